"""Where jobs go: every event in every state, and that the tables in SQL say the same."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import apsw
import pytest

from fairway.core.priority import Band, band_at
from fairway.jobs.job import (
    ENDED,
    TERMINAL,
    Claim,
    Fate,
    Job,
    Limits,
    NewJob,
    Settlement,
    Signal,
    Status,
)
from fairway.jobs.moves import (
    CHILDREN,
    DEATH,
    END,
    MOVES,
    UNHAPPY,
    Facts,
    Move,
    QueueFacts,
    WaitFacts,
    WaitReason,
    Why,
    cancelled,
    child_ended,
    death_error,
    key_is_free,
    like,
    may_be_discarded,
    may_be_retried,
    names_again,
    reason_to_end,
    retried,
    settled,
    signalled,
    signals_awaited,
    still_waits,
    why_waits,
    worker_died,
)
from fairway.jobs.presence import KnownKind, WorkerState
from fairway.jobs.stores.postgres.schema import statements
from fairway.jobs.stores.sqlite import schema as sqlite_schema

CLAIM = Claim(
    id=1, token=1, kind="k", version=2, step="run", state=b"{}", attempt=0, crashes=0,
    max_attempts=3, queue="q", tenant="", priority=0, partition_key=None, parent=None, trace=None,
    timed_out=False, cancelling=None, signals=(Signal(7, "go", b"1"),),
)  # fmt: skip
BOTH = (False, True)


def settlements() -> list[Settlement]:
    """Of every fate, with and without what matters beside it."""
    return [
        Settlement(claim=CLAIM, fate=fate, delay_ns=delay_ns, counts=counts, names=names)
        for fate, delay_ns, counts, names in product(Fate, (0, 5), BOTH, ((), ("go",)))
    ]


def made() -> set[tuple[Status, Status]]:
    """Every way that some event leads."""
    ways = set()

    def note(status: Status, move: Move | None) -> None:
        if move is None:
            return
        ways.add((status, move.to))
        assert move.ends is (move.to in ENDED)
        if move.to is Status.WAITING:
            ways.add((status, Status.READY))  # what it waits for is there

    for settlement, cancelling in product(settlements(), BOTH):
        note(Status.RUNNING, settled(settlement, cancelling))
    for crashes, reason in product((1, 5), (None, "why")):
        note(Status.RUNNING, worker_died(Facts(Status.RUNNING, 0, crashes, 20, 5, reason)))
    for status in Status:
        note(status, cancelled(Facts(status)))
        for names in ((), ("go",)):
            note(status, signalled(Facts(status, names=names), "go"))
            note(status, child_ended(Facts(status, names=names), pending=False))
        note(status, key_is_free(Facts(status)))
        for anew, waits in product(BOTH, BOTH):
            if may_be_retried(Facts(status), parent_lives=False, reporters_live=False):
                note(status, retried(anew=anew, waits=waits))
    return ways


def test_events_lead_where_the_table_says_and_everywhere_it_says() -> None:
    elsewhere = {  # by claims and timers, which decide nothing about the job
        (Status.READY, Status.RUNNING),
        (Status.READY, Status.BLOCKED),
        (Status.SCHEDULED, Status.READY),
    }
    legal = {(before, after) for before, ways in MOVES.items() for after in ways}
    assert made() | elsewhere == legal


def test_fates_that_end_are_those_that_have_a_status() -> None:
    assert set(END) == TERMINAL
    assert set(END.values()) | {Status.DEAD} == ENDED
    assert {Status.DONE} == ENDED - UNHAPPY


@pytest.mark.parametrize("fate", Fate)
def test_a_cancel_wins_over_all_but_an_end(fate: Fate) -> None:
    move = settled(Settlement(claim=CLAIM, fate=fate, names=("go",)), cancelling=True)
    assert move.ends
    assert move.to is END.get(fate, Status.CANCELLED)
    assert move.counts is (fate in TERMINAL)  # what the run said is of no use to a cancelled job


@pytest.mark.parametrize(
    ("fate", "options", "expected"),
    [
        (Fate.RELEASE, {}, Move(Status.READY)),
        (Fate.RETRY, {}, Move(Status.READY, steps=True, tries=1)),
        (Fate.RETRY, {"counts": False}, Move(Status.READY, steps=True)),
        (Fate.RETRY, {"delay_ns": 9}, Move(Status.SCHEDULED, steps=True, tries=1)),
        (Fate.NEXT, {}, Move(Status.READY, steps=True, begins=True)),
        (Fate.NEXT, {"children": (NewJob(kind="c"),)}, Move(Status.READY, steps=True, begins=True)),
        (Fate.WAIT, {"names": ("go",)}, Move(Status.WAITING, steps=True, begins=True)),
        (Fate.WAIT, {}, Move(Status.READY, steps=True, begins=True)),
        (Fate.SPAWN, {}, Move(Status.WAITING, steps=True, begins=True)),
    ],
)
def test_what_a_run_leads_to(fate: Fate, options: dict[str, object], expected: Move) -> None:
    assert settled(Settlement(claim=CLAIM, fate=fate, **options)) == expected  # type: ignore[arg-type]


def test_a_job_dies_of_crashes_or_of_crashes_and_attempts_together() -> None:
    def died(attempt: int, crashes: int) -> Status:
        return worker_died(Facts(Status.RUNNING, attempt, crashes, 6, 3)).to

    assert died(0, 1) is Status.READY
    assert died(0, 3) is Status.DEAD
    assert died(4, 1) is Status.READY
    assert died(4, 2) is Status.DEAD
    assert worker_died(Facts(Status.RUNNING, 9, 9, 1, 1, "why")).to is Status.CANCELLED
    assert death_error(3) == "its worker died 3 times"


def test_the_first_reason_to_cancel_stands() -> None:
    assert reason_to_end(Facts(Status.READY), "second") == "second"
    assert reason_to_end(Facts(Status.READY, reason="first"), "second") == "first"


def test_a_job_waits_for_one_of_its_signals_or_for_all_its_children() -> None:
    assert still_waits(("a", "b"), ("c",), pending=False)
    assert not still_waits(("a", "b"), ("c", "b"), pending=True)
    assert still_waits((), ("c",), pending=True)
    assert not still_waits((), (), pending=False)


def test_a_parent_that_waits_for_signals_is_not_woken_by_a_child_that_ended() -> None:
    assert child_ended(Facts(Status.WAITING), pending=True) is None
    assert child_ended(Facts(Status.WAITING, names=("go",)), pending=False) is None
    assert child_ended(Facts(Status.WAITING), pending=False) == Move(Status.READY)


def test_who_may_be_retried_and_discarded() -> None:
    for status, parent_lives, reporters_live in product(Status, BOTH, BOTH):
        job = Facts(status)
        may = may_be_retried(job, parent_lives=parent_lives, reporters_live=reporters_live)
        assert may is (status in UNHAPPY and not parent_lives and not reporters_live)
        assert may_be_discarded(job, parent_lives=parent_lives) is (
            status in UNHAPPY and not parent_lives
        )


def test_a_retried_job_waits_again_only_if_it_waited_and_nothing_has_come() -> None:
    assert retried(anew=False, waits=True).to is Status.WAITING
    assert retried(anew=True, waits=True).to is Status.READY
    assert retried(anew=False, waits=False).to is Status.READY


def test_a_retried_job_that_waited_waits_for_the_same_and_any_other_for_its_children() -> None:
    def again(names: tuple[str | None, ...], until: int | None) -> list[str | None]:
        return list(names_again(Facts(Status.FAILED, names=names, waited_until_ns=until)))

    assert again(("go",), 0) == ["go"]
    assert again((), 0) == again((), None) == []
    assert again(("go",), None) == ["go", CHILDREN]  # it had its signal, and is given it again
    assert again(("go", CHILDREN), None) == again(("go", CHILDREN), 0) == ["go", CHILDREN]


def test_a_retried_job_that_had_its_signals_waits_for_its_children_alone() -> None:
    job = Facts(Status.WAITING, names=("go", CHILDREN))
    assert still_waits(job.names, ["go"], pending=True)
    assert not still_waits(job.names, ["go"], pending=False)
    assert signalled(job, "go") is None
    assert child_ended(job, pending=True) is None
    assert child_ended(job, pending=False) == Move(Status.READY)
    assert signals_awaited(job.names) == ()
    assert signals_awaited(("go",)) == ("go",)


def test_jobs_of_a_kind_version_and_step_are_alike() -> None:
    assert like(CLAIM) == ("k", 2, "run")


# --- the same rules in SQL


def test_sqlite_keeps_the_unhappy_behind_the_rest() -> None:
    codes = {sqlite_schema.CODES[status] for status in UNHAPPY}
    assert codes == {code for code in sqlite_schema.CODES.values() if code > sqlite_schema.DONE}
    assert f"status > {sqlite_schema.DONE}" == sqlite_schema.UNHAPPY


def test_no_rule_is_left_open_in_a_statement() -> None:
    for name, text in statements("s").items():
        assert re.search(r"\{[a-z]", text) is None, name


def test_the_death_rule_of_postgres_is_ours() -> None:
    text = statements("s")["take_over"]
    for terms, most in DEATH:
        assert f"{' + '.join(terms)} >= {most}" in text
    assert "'its worker died ' || crashes || ' times'" in statements("s")["end_jobs"]
    letters = ", ".join(sorted(f"'{status.value}'" for status in UNHAPPY))
    for name in ("revive", "reviving_keys", "discard", "readable"):
        assert f"in ({letters})" in statements("s")[name], name


@pytest.mark.parametrize("priority", [-1500, -1000, -1, 0, 1, 249, 250, 740, 750, 1000, 2000])
def test_the_bands_of_both_databases_are_those_of_the_core(priority: int) -> None:
    connection = apsw.Connection(":memory:")
    rules = statements("s")
    waited_ms = [0, 1, 10, 990, 1_000, 2_490, 2_500, 5_000, 9_999, 10_000, 60_000]
    for ms in waited_ms:
        now_ns = ms * 1_000_000
        expected = band_at(priority, False, None, 0, now_ns)
        sqlite = sqlite_schema.AGED_BAND.replace("priority", str(priority)).replace("since_ns", "0")
        (found,) = connection.execute(f"SELECT {sqlite}", (now_ns,)).fetchone()
        assert Band(found) is expected
        # The words of PostgreSQL, as far as SQLite has others for them.
        points = rules["points"].replace("greatest", "max").replace("least", "min")
        points = points.replace("r.priority", str(priority))
        start, end = points.index("extract("), points.index(" * ")
        points = points[:start] + str(ms / 1000) + points[end:]
        band = rules["band"].replace("p.points", f"({points})")
        (found,) = connection.execute(f"SELECT {band}").fetchone()
        assert Band(found) is expected, (priority, ms)


# --- why it waits


def waiting(status: Status = Status.READY, **fields: Any) -> Job:
    return Job(
        id=1, kind="k", version=2, status=status, queue="q", tenant="", priority=0, step="run",
        state=b"{}", attempt=0, crashes=0, max_attempts=3, partition_key=None, unique_key=None,
        parent=None, trace=None, enqueued_wall_ns=0, **fields,
    )  # fmt: skip


def worker(
    alive: bool = True, queue: str = "q", kinds: tuple[KnownKind, ...] | None = None
) -> WorkerState:
    return WorkerState(
        id=1, name="w", alive=alive, started_wall_ns=0, beat_wall_ns=0, expires_wall_ns=0,
        running=0, queues={queue: 1}, kinds=kinds,
    )  # fmt: skip


FULL = QueueFacts("*", Limits(concurrency=2), 2, 0.0, 0)
SLOW = QueueFacts("q", Limits(rate_per_s=2.0), 0, 0.0, 0)
FREE = QueueFacts("q", Limits(concurrency=2), 1, 0.0, 0)
KNOWN = worker(kinds=(KnownKind("k", 2, ("run",)),))
UNKNOWN = worker(kinds=(KnownKind("k", 1, ("run",)), KnownKind("k", 2, ("walk",))))
ALL = WaitFacts(paused=True, queues=(FULL,), holder=7, workers=())


@pytest.mark.parametrize(
    ("job", "around", "reason"),
    [
        (waiting(Status.RUNNING), ALL, None),
        *((waiting(status), ALL, None) for status in ENDED),
        (
            waiting(Status.SCHEDULED, due_wall_ns=5),
            ALL,
            WaitReason(why=Why.TIMER, until_wall_ns=5),
        ),
        (
            waiting(Status.SCHEDULED, due_wall_ns=5, error="no"),
            ALL,
            WaitReason(why=Why.BACKOFF, until_wall_ns=5),
        ),
        (
            waiting(Status.WAITING, waits_for=("go",)),
            ALL,
            WaitReason(why=Why.SIGNAL, names=("go",)),
        ),
        (
            waiting(Status.WAITING, due_wall_ns=5),
            ALL._replace(children=3),
            WaitReason(why=Why.CHILDREN, children=3, until_wall_ns=5),
        ),
        (waiting(Status.BLOCKED), ALL, WaitReason(why=Why.KEY, holder=7)),
        (waiting(), ALL, WaitReason(why=Why.KEY, holder=7)),
        (waiting(), ALL._replace(holder=None), WaitReason(why=Why.PAUSED, queue="q")),
        (waiting(), WaitFacts(queues=(FULL,)), WaitReason(why=Why.NO_WORKER, queue="q")),
        (
            waiting(),
            WaitFacts(workers=(worker(alive=False), worker(queue="other"))),
            WaitReason(why=Why.NO_WORKER, queue="q"),
        ),
        (
            waiting(),
            WaitFacts(queues=(FULL,), workers=(UNKNOWN,)),
            WaitReason(why=Why.UNKNOWN_KIND, queue="q"),
        ),
        (
            waiting(),
            WaitFacts(queues=(FREE, FULL), workers=(UNKNOWN, KNOWN)),
            WaitReason(why=Why.LIMIT, queue="*"),
        ),
        (
            waiting(),
            WaitFacts(queues=(SLOW, FULL), workers=(KNOWN,)),
            WaitReason(why=Why.LIMIT, queue="q", wait_ns=500_000_000),
        ),
        (waiting(), WaitFacts(queues=(FREE,), workers=(KNOWN,)), WaitReason(why=Why.TURN)),
        (waiting(), WaitFacts(workers=(worker(),)), WaitReason(why=Why.TURN)),
        (waiting(Status.BLOCKED), WaitFacts(workers=(KNOWN,)), WaitReason(why=Why.TURN)),
    ],
)
def test_the_first_reason_in_the_way_of_a_job_is_told(
    job: Job, around: WaitFacts, reason: WaitReason | None
) -> None:
    assert why_waits(job, around) == reason

"""The `JobStore` contract, promise by promise, over every store.

Durations are minutes where a real clock runs on by itself, so that a slow machine decides nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import json, structs

from fairway.core.priority import Band
from fairway.errors import Invalid
from fairway.jobs.attempts import (
    ATTEMPTS_MAX,
    CLAIM_LOST,
    ERROR_MAX,
    LOG_BYTES_MAX,
    WORKER_DIED,
    AttemptFate,
)
from fairway.jobs.job import (
    ASIDE_MAX,
    ENDED,
    MAX_ATTEMPTS,
    Enqueued,
    Fate,
    Filter,
    JobBatch,
    Lane,
    Limits,
    NewJob,
    Settlement,
    Status,
)
from fairway.jobs.moves import WaitReason, Why
from fairway.jobs.presence import KnownKind, Offer
from fairway.jobs.store import Cancelled, Cursor, Delivered, Want
from tests.conformance.job_backends import JOB_STORES, opened
from tests.support.postgres import Unavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence
    from pathlib import Path

    from fairway.jobs.attempts import JobAttempt
    from fairway.jobs.job import Beat, Claim, Job
    from fairway.jobs.store import Exchanged, JobStore
    from tests.conformance.job_backends import JobRig

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
LANE = Lane("default", "", Band.B1)
MANY = 1000


class Desk:
    """A store and its clock, for tests that do one thing after the other.

    Every method of the store can be called here without `await`.
    """

    def __init__(self, rig: JobRig, runner: asyncio.Runner) -> None:
        self.rig = rig
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.rig.store, name)
        return lambda *args, **options: self.run(method(*args, **options))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def advance(self, ns: int) -> None:
        self.run(self.rig.advance(ns))

    def pass_and_promote(self, ns: int) -> None:
        self.advance(ns)
        self.promote(MANY)

    def near(self, ns: int | None, expected: int) -> bool:
        return ns is not None and abs(ns - expected) <= self.rig.slack_ns

    def add(self, count: int = 1, **fields: Any) -> list[int]:
        added = self.enqueue([NewJob(kind="mail", **fields) for _ in range(count)])
        return [one.id for one in added]

    def one(self, **fields: Any) -> int:
        return self.add(**fields)[0]

    def job(self, id: int) -> Job:
        found: Job | None = self.find(id)
        assert found is not None
        return found

    def status(self, id: int) -> Status:
        return self.job(id).status

    def statuses(self, ids: Sequence[int]) -> list[Status]:
        return [self.status(id) for id in ids]

    def hand(self, ttl_ns: int = 30 * DAY) -> Hand:
        return Hand(self, ttl_ns)


class Hand:
    """A worker at the desk."""

    def __init__(self, desk: Desk, ttl_ns: int) -> None:
        self.desk = desk
        self.worker: int = desk.register("hand", ttl_ns)
        self.token = 0

    def exchange(
        self,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Sequence[str] = (),
    ) -> Exchanged:
        self.token += 1
        out: Exchanged = self.desk.exchange(self.worker, self.token, settlements, wants, probe)
        return out

    def take(self, most: int = MANY, lane: Lane = LANE) -> list[Claim]:
        return self.exchange(wants=[Want(lane, most)]).claims

    def ids(self, most: int = MANY, lane: Lane = LANE) -> list[int]:
        return [claim.id for claim in self.take(most, lane)]

    def one(self, lane: Lane = LANE) -> Claim:
        (claim,) = self.take(1, lane)
        return claim

    def settle(self, claim: Claim, fate: Fate, **fields: Any) -> Exchanged:
        """Settle and be heard."""
        out = self.exchange([Settlement(claim=claim, fate=fate, **fields)])
        assert out.stale == []
        return out

    def is_stale(self, claim: Claim, fate: Fate = Fate.DONE) -> bool:
        """Settle, and nothing comes of it."""
        before = self.desk.find(claim.id)
        out = self.exchange([Settlement(claim=claim, fate=fate, state=b'"lost"', result=b'"lost"')])
        return out.stale == [claim.id] and not out.ended and self.desk.find(claim.id) == before

    def beat(self, *held: Claim, ttl_ns: int = 30 * DAY, grace_ns: int = MINUTE) -> Beat:
        heart = self.desk.rig.store.heart()
        try:
            return heart.beat(
                self.worker, {claim.id: claim.token for claim in held}, ttl_ns, grace_ns
            )
        finally:
            heart.close()


@pytest.fixture(params=list(JOB_STORES))
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    try:
        with opened(request.param, tmp_path) as (rig, runner):
            yield Desk(rig, runner)
    except Unavailable as reason:
        pytest.skip(f"{request.param}: {reason}")


@pytest.fixture
def hand(desk: Desk) -> Hand:
    return desk.hand()


@pytest.mark.parametrize("name", JOB_STORES)
def test_every_store_ran(name: str, tmp_path: Path) -> None:
    """A skipped store proves nothing: where the suite counts, all of them are installed."""
    try:
        JOB_STORES[name](tmp_path)
    except Unavailable as reason:
        pytest.fail(f"the conformance suite did not run over {name}: {reason}")


# --- enqueueing


def test_a_new_store_is_empty(desk: Desk, hand: Hand) -> None:
    assert desk.browse(Filter()) == []
    assert desk.queues() == []
    assert desk.find(1) is None
    assert desk.find_by_key("nobody") is None
    assert desk.cursor("nobody") is None
    assert desk.promote(MANY) == (0, frozenset(), None)
    assert desk.reap(MANY) == (0, 0, 0, frozenset(), ())
    assert desk.age(MANY) == 0
    assert desk.prune(0) == 0
    assert hand.take() == []


def test_a_job_is_found_as_it_was_enqueued(desk: Desk) -> None:
    parent = desk.one()
    new = NewJob(
        kind="mail",
        state=b'{"to":"a"}',
        version=3,
        step="first",
        queue="q",
        tenant="t",
        priority=300,
        max_attempts=7,
        partition_key="p",
        unique_key="u",
        parent=parent,
        notify="ended",
        trace="00-1-2-01",
    )
    before = desk.rig.wall_ns()
    (added,) = desk.enqueue([new])
    id, fresh = added.id, added.fresh
    job = desk.job(id)
    assert fresh
    assert desk.near(job.enqueued_wall_ns, before)
    assert (job.id, job.status, job.kind, job.version) == (id, Status.READY, "mail", 3)
    assert (job.queue, job.tenant, job.priority) == ("q", "t", 300)
    assert (job.step, job.state) == ("first", b'{"to":"a"}')
    assert (job.attempt, job.crashes, job.max_attempts) == (0, 0, 7)
    assert (job.partition_key, job.unique_key) == ("p", "u")
    assert (job.parent, job.trace) == (parent, "00-1-2-01")
    assert job.due_wall_ns is job.finished_wall_ns is job.worker is None
    assert not job.cancelling
    assert job.waits_for == ()
    assert job.progress is job.result is job.error is None


def test_a_claim_brings_what_was_enqueued(desk: Desk, hand: Hand) -> None:
    new = NewJob(
        kind="mail",
        state=b'{"to":"a"}',
        version=3,
        step="first",
        queue="q",
        tenant="t",
        priority=300,
        max_attempts=7,
        partition_key="p",
        trace="00-1-2-01",
    )
    id = desk.enqueue([new])[0].id
    claim = hand.one(Lane("q", "t", Band.B2))
    assert (claim.id, claim.token, claim.kind, claim.version) == (id, hand.token, "mail", 3)
    assert (claim.step, claim.state) == ("first", b'{"to":"a"}')
    assert (claim.attempt, claim.crashes, claim.max_attempts) == (0, 0, 7)
    assert (claim.queue, claim.tenant, claim.priority) == ("q", "t", 300)
    assert (claim.partition_key, claim.parent, claim.trace) == ("p", None, "00-1-2-01")
    assert not claim.timed_out
    assert not claim.cancelling
    assert claim.signals == ()
    assert claim.children == ()
    job = desk.job(id)
    assert (job.status, job.worker) == (Status.RUNNING, hand.worker)


def test_defaults_are_those_of_a_plain_function(desk: Desk, hand: Hand) -> None:
    desk.one()
    claim = hand.one()
    assert (claim.step, claim.state, claim.version) == ("run", b"{}", 1)
    assert claim.max_attempts == MAX_ATTEMPTS


def test_any_bytes_and_any_text_come_back(desk: Desk, hand: Hand) -> None:
    state = bytes(range(256))
    desk.one(state=state, partition_key="käse/'\"%s", unique_key="ü")
    claim = hand.one()
    assert (claim.state, claim.partition_key) == (state, "käse/'\"%s")
    hand.settle(claim, Fate.DONE, result=state)
    assert desk.job(claim.id).result == state


def test_ids_rise_in_the_order_of_enqueueing(desk: Desk) -> None:
    ids = desk.add(3) + desk.add(2, queue="other") + desk.add(3)
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"delay_ns": HOUR},
        {"partition_key": "p", "strict": True},
        {"queue": "q", "tenant": "t", "priority": 300, "trace": "00-1", "max_attempts": 3},
    ],
    ids=["plain", "later", "keyed", "elsewhere"],
)
def test_a_batch_is_the_jobs_it_stands_for(desk: Desk, fields: dict[str, Any]) -> None:
    states = [b'{"n":%d}' % n for n in range(5)]
    batch = JobBatch(NewJob(kind="mail", **fields), states)
    assert [job.state for job in batch] == states
    assert list(batch[1:3]) == [batch[1], batch[2]]
    one_by_one = [desk.enqueue([job])[0].id for job in batch]
    together = [one.id for one in desk.enqueue(batch)]
    assert together == sorted(together)
    for single, other in zip(one_by_one, together, strict=True):
        expected = structs.replace(desk.job(single), id=other)
        assert desk.job(other) == expected


def test_a_batch_under_one_unique_key_is_one_job(desk: Desk) -> None:
    batch = JobBatch(NewJob(kind="mail", unique_key="u"), [b"1", b"2", b"3"])
    first, *rest = desk.enqueue(batch)
    assert first.fresh
    assert rest == [Enqueued(first.id, False)] * 2
    assert [job.state for job in desk.browse(Filter())] == [b"1"]


def test_enqueueing_nothing_changes_nothing(desk: Desk) -> None:
    assert desk.enqueue([]) == []
    assert desk.browse(Filter()) == []


def test_a_delayed_job_is_not_given_out_before_its_time(desk: Desk, hand: Hand) -> None:
    id = desk.one(delay_ns=10 * MINUTE)
    assert desk.status(id) is Status.SCHEDULED
    assert desk.near(desk.job(id).due_wall_ns, desk.rig.wall_ns() + 10 * MINUTE)
    desk.pass_and_promote(9 * MINUTE)
    assert hand.take() == []
    desk.pass_and_promote(MINUTE)
    assert desk.job(id).due_wall_ns is None
    assert hand.ids() == [id]


def test_a_job_may_be_told_when_to_start(desk: Desk, hand: Hand) -> None:
    id = desk.one(at_wall_ns=desk.rig.wall_ns() + 10 * MINUTE)
    assert desk.status(id) is Status.SCHEDULED
    desk.pass_and_promote(9 * MINUTE)
    assert hand.take() == []
    desk.pass_and_promote(2 * MINUTE)
    assert hand.ids() == [id]


def test_a_time_that_has_passed_is_now(desk: Desk, hand: Hand) -> None:
    id = desk.one(at_wall_ns=desk.rig.wall_ns() - HOUR)
    assert desk.job(id).due_wall_ns is None
    assert hand.ids() == [id]


def test_a_job_that_ran_its_first_minute_late_keeps_its_place(desk: Desk, hand: Hand) -> None:
    early = desk.one(delay_ns=MINUTE)
    late = desk.one()
    desk.pass_and_promote(MINUTE)
    assert hand.ids() == [early, late]


def test_a_store_without_transactions_refuses_to_take_part_in_one(desk: Desk) -> None:
    if desk.rig.lasting:
        pytest.skip("this store has transactions")
    with pytest.raises(Invalid):
        desk.enqueue([NewJob(kind="mail")], within=object(), cursor=Cursor("c", 1, 1))
    assert desk.browse(Filter()) == []
    assert desk.cursor("c") is None


# --- unique keys


def test_a_unique_key_stands_for_one_living_job(desk: Desk) -> None:
    first = desk.enqueue([NewJob(kind="mail", unique_key="u")])
    again = desk.enqueue([NewJob(kind="mail", unique_key="u"), NewJob(kind="mail")])
    assert first[0].fresh
    assert again[0] == Enqueued(first[0].id, False)
    assert again[1].fresh
    assert len(desk.browse(Filter())) == 2


def test_a_unique_key_given_twice_in_one_call_is_one_job(desk: Desk) -> None:
    new = NewJob(kind="mail", unique_key="u")
    first, plain, again = desk.enqueue([new, NewJob(kind="mail"), new])
    assert first.fresh
    assert plain.fresh
    assert again == Enqueued(first.id, False)


@pytest.mark.parametrize(
    "state", [Status.SCHEDULED, Status.RUNNING, Status.WAITING, Status.BLOCKED]
)
def test_a_unique_key_stands_in_every_state_before_the_end(
    desk: Desk, hand: Hand, state: Status
) -> None:
    id = brought_to(desk, hand, state, unique_key="u")
    assert desk.enqueue([NewJob(kind="mail", unique_key="u")]) == [Enqueued(id, False)]


@pytest.mark.parametrize("end", sorted(ENDED, key=lambda end: end.value))
def test_a_unique_key_is_free_when_its_job_has_ended(desk: Desk, hand: Hand, end: Status) -> None:
    old = brought_to(desk, hand, end, unique_key="u")
    assert desk.find_by_key("u") is None
    (new,) = desk.enqueue([NewJob(kind="mail", unique_key="u")])
    assert new.fresh
    assert new.id != old
    assert desk.find_by_key("u").id == new.id


def test_a_unique_key_with_a_window_outlives_its_job(desk: Desk, hand: Hand) -> None:
    id = desk.one(unique_key="u", window_ns=HOUR)
    desk.advance(10 * MINUTE)
    hand.settle(hand.one(), Fate.DONE)
    desk.advance(40 * MINUTE)
    again = NewJob(kind="mail", unique_key="u", window_ns=HOUR)
    assert desk.enqueue([again]) == [Enqueued(id, False)]
    assert desk.find_by_key("u").id == id
    desk.advance(10 * MINUTE)  # an hour after it was enqueued, not after it ended
    assert desk.find_by_key("u") is None
    assert desk.enqueue([again])[0].fresh


def test_a_window_stands_even_when_its_job_is_pruned(desk: Desk, hand: Hand) -> None:
    id = desk.one(unique_key="u", window_ns=HOUR)
    hand.settle(hand.one(), Fate.DONE)
    assert desk.prune(0) == 1
    assert desk.find_by_key("u") is None
    assert desk.enqueue([NewJob(kind="mail", unique_key="u")]) == [Enqueued(id, False)]
    desk.advance(2 * HOUR)
    assert desk.enqueue([NewJob(kind="mail", unique_key="u")])[0].fresh


def test_a_job_that_lives_past_its_window_keeps_its_key(desk: Desk) -> None:
    id = desk.one(unique_key="u", window_ns=MINUTE)
    desk.advance(HOUR)
    assert desk.enqueue([NewJob(kind="mail", unique_key="u")]) == [Enqueued(id, False)]


def test_a_job_retried_by_hand_takes_its_key_back(desk: Desk, hand: Hand) -> None:
    id = brought_to(desk, hand, Status.FAILED, unique_key="u")
    assert desk.retry([id]) == [id]
    assert desk.enqueue([NewJob(kind="mail", unique_key="u")]) == [Enqueued(id, False)]
    assert desk.find_by_key("u").id == id


def test_a_job_whose_key_is_anothers_by_now_is_not_retried(desk: Desk, hand: Hand) -> None:
    old = brought_to(desk, hand, Status.FAILED, unique_key="u")
    new = desk.one(unique_key="u")
    assert desk.retry([old]) == []
    assert desk.statuses([old, new]) == [Status.FAILED, Status.READY]
    desk.cancel([new])
    assert desk.retry([old]) == [old]


# --- cursors


def test_a_cursor_moves_with_the_jobs_it_brings(desk: Desk) -> None:
    assert len(desk.enqueue([NewJob(kind="mail")], cursor=Cursor("r", 1, 5))) == 1
    assert desk.cursor("r") == Cursor("r", 1, 5)
    assert desk.cursor("s") is None


@pytest.mark.parametrize("cursor", [Cursor("r", 1, 5), Cursor("r", 1, 4), Cursor("r", 0, 9)])
def test_a_cursor_that_does_not_move_forward_brings_nothing(desk: Desk, cursor: Cursor) -> None:
    desk.enqueue([], cursor=Cursor("r", 1, 5))
    assert desk.enqueue([NewJob(kind="mail")], cursor=cursor) == []
    assert desk.cursor("r") == Cursor("r", 1, 5)
    assert desk.browse(Filter()) == []


@pytest.mark.parametrize("cursor", [Cursor("r", 1, 6), Cursor("r", 2, 0)])
def test_a_cursor_moves_on_in_its_topic_and_to_a_new_incarnation(
    desk: Desk, cursor: Cursor
) -> None:
    desk.enqueue([], cursor=Cursor("r", 1, 5))
    assert len(desk.enqueue([NewJob(kind="mail")], cursor=cursor)) == 1
    assert desk.cursor("r") == cursor


@pytest.mark.parametrize(("first", "there"), [(5, False), (6, True), (None, True)])
def test_a_reader_that_was_overtaken_does_not_bring_the_first_of_several_again(
    desk: Desk, first: int | None, there: bool
) -> None:
    """It looked, another one came in between, and only the last of what it brings is new."""
    desk.enqueue([], cursor=Cursor("r", 1, 5))
    added = desk.enqueue([NewJob(kind="mail")] * 3, cursor=Cursor("r", 1, 8, first))
    assert bool(added) is there
    assert desk.cursor("r") == Cursor("r", 1, 8 if there else 5)
    assert len(desk.browse(Filter())) == (3 if there else 0)


def test_cursors_of_different_names_do_not_meet(desk: Desk) -> None:
    desk.enqueue([], cursor=Cursor("r", 1, 5))
    assert len(desk.enqueue([NewJob(kind="mail")], cursor=Cursor("s", 1, 1))) == 1
    assert desk.cursor("r") == Cursor("r", 1, 5)


def test_a_cursor_moves_although_its_jobs_were_there(desk: Desk) -> None:
    id = desk.one(unique_key="u")
    added = desk.enqueue([NewJob(kind="mail", unique_key="u")], cursor=Cursor("r", 1, 1))
    assert added == [Enqueued(id, False)]
    assert desk.cursor("r") == Cursor("r", 1, 1)


# --- claiming


def test_a_lane_is_served_first_enqueued_first(desk: Desk, hand: Hand) -> None:
    ids = desk.add(5)
    assert hand.ids(2) == ids[:2]
    assert hand.ids(2) == ids[2:4]
    assert hand.ids(2) == ids[4:]
    assert hand.ids(2) == []


def test_lanes_are_apart(desk: Desk, hand: Hand) -> None:
    lanes = {
        Lane("a", "", Band.B1): desk.add(2, queue="a"),
        Lane("a", "t", Band.B1): desk.add(2, queue="a", tenant="t"),
        Lane("b", "", Band.B1): desk.add(2, queue="b"),
        Lane("a", "", Band.B0): desk.add(2, queue="a", priority=-1),
        Lane("a", "", Band.B2): desk.add(2, queue="a", priority=250),
        Lane("a", "", Band.B3): desk.add(2, queue="a", priority=500),
        Lane("a", "", Band.B4): desk.add(2, queue="a", priority=750),
    }
    for lane, ids in lanes.items():
        assert hand.ids(MANY, lane) == ids
    assert hand.take(MANY, Lane("b", "t", Band.B1)) == []


def test_one_exchange_serves_several_lanes(desk: Desk, hand: Hand) -> None:
    first, second = desk.add(3, queue="a"), desk.add(3, queue="b")
    wants = [Want(Lane("a", "", Band.B1), 2), Want(Lane("b", "", Band.B1), 1)]
    claims = hand.exchange(wants=wants).claims
    assert [claim.id for claim in claims if claim.queue == "a"] == first[:2]
    assert [claim.id for claim in claims if claim.queue == "b"] == second[:1]
    assert len(claims) == 3


def test_a_probe_tells_which_lanes_have_something_ready(desk: Desk, hand: Hand) -> None:
    desk.add(2, queue="a")
    desk.add(1, queue="a", tenant="t", priority=800)
    desk.add(1, queue="a", tenant="later", delay_ns=HOUR)
    desk.add(1, queue="b")
    lanes = hand.exchange(probe=["a", "c"]).lanes
    assert set(lanes) == {"a", "c"}
    assert sorted(lanes["a"]) == [Lane("a", "", Band.B1), Lane("a", "t", Band.B4)]
    assert list(lanes["c"]) == []


def test_a_probe_looks_after_the_claims(desk: Desk, hand: Hand) -> None:
    desk.add(2)
    assert list(hand.exchange(wants=[Want(LANE, 1)], probe=["default"]).lanes["default"]) == [LANE]
    assert list(hand.exchange(wants=[Want(LANE, 1)], probe=["default"]).lanes["default"]) == []


def test_a_probe_tells_of_cancelled_jobs_of_this_worker(desk: Desk, hand: Hand) -> None:
    other = desk.hand()
    desk.add(3)
    mine, kept, theirs = hand.one(), hand.one(), other.one()
    desk.cancel([mine.id, theirs.id])
    assert hand.exchange(probe=["default"]).cancelling == {mine.id: "cancelled"}
    assert desk.status(kept.id) is Status.RUNNING


def test_what_was_just_settled_can_be_claimed_in_the_same_exchange(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    claim = hand.one()
    out = hand.exchange(
        [Settlement(claim=claim, fate=Fate.NEXT, step="second")], [Want(LANE, 1)], ["default"]
    )
    assert [(one.id, one.step) for one in out.claims] == [(id, "second")]
    assert out.claims[0].token == hand.token
    assert list(out.lanes["default"]) == []


def test_workers_at_once_never_get_the_same_job(desk: Desk) -> None:
    ids = desk.add(60) + desk.add(20, partition_key="k")
    hands = [desk.hand() for _ in range(4)]
    store: JobStore = desk.rig.store

    async def work(worker: int, got: list[int]) -> None:
        settlements: list[Settlement] = []
        token = 0
        while len(done) < len(ids):
            token += 1
            out = await store.exchange(worker, token, settlements, [Want(LANE, 3)])
            assert out.stale == []
            done.extend(one.id for one in out.ended)
            got += [claim.id for claim in out.claims]
            keyed = [claim.id for claim in out.claims if claim.partition_key]
            assert len(keyed) <= 1
            settlements = [Settlement(claim=claim, fate=Fate.DONE) for claim in out.claims]

    async def race() -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for hand, got in zip(hands, taken, strict=True):
                group.create_task(work(hand.worker, got))

    done: list[int] = []
    taken: list[list[int]] = [[] for _ in hands]
    desk.run(race())
    assert sorted(done) == ids
    assert sorted(id for got in taken for id in got) == ids


# --- fates


def test_done_ends_a_job_with_its_result(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    out = hand.settle(hand.one(), Fate.DONE, result=b'"yes"', state=b'{"n":1}')
    assert [tuple(one) for one in out.ended] == [(id, Status.DONE, b'"yes"', None)]
    job = desk.job(id)
    assert (job.status, job.result, job.error, job.worker) == (Status.DONE, b'"yes"', None, None)
    assert job.state == b'{"n":1}'
    assert desk.near(job.finished_wall_ns, desk.rig.wall_ns())
    assert hand.take() == []


def test_failed_ends_a_job_with_its_error(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    out = hand.settle(hand.one(), Fate.FAILED, error="no such address")
    assert [tuple(one) for one in out.ended] == [(id, Status.FAILED, None, "no such address")]
    assert (desk.job(id).status, desk.job(id).error) == (Status.FAILED, "no such address")


def test_a_job_may_end_itself_as_cancelled(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    out = hand.settle(hand.one(), Fate.CANCELLED, error="not wanted")
    assert [tuple(one) for one in out.ended] == [(id, Status.CANCELLED, None, "not wanted")]
    assert desk.status(id) is Status.CANCELLED


def test_next_commits_step_and_state_and_is_ready_at_once(desk: Desk, hand: Hand) -> None:
    id = desk.one(state=b"1")
    out = hand.settle(hand.one(), Fate.NEXT, step="second", state=b"2")
    assert set(out.woken) == {LANE}
    assert out.ended == []
    claim = hand.one()
    assert (claim.id, claim.step, claim.state) == (id, "second", b"2")


def test_next_without_a_state_leaves_it_as_it_is(desk: Desk, hand: Hand) -> None:
    desk.one(state=b"1")
    hand.settle(hand.one(), Fate.NEXT, step="second")
    assert hand.one().state == b"1"


def test_next_forgets_failed_attempts(desk: Desk, hand: Hand) -> None:
    desk.one()
    hand.settle(hand.one(), Fate.RETRY, error="first")
    claim = hand.one()
    assert claim.attempt == 1
    hand.settle(claim, Fate.NEXT, step="second")
    assert hand.one().attempt == 0


def test_retry_comes_back_after_its_delay_with_one_more_attempt(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.RETRY, delay_ns=10 * MINUTE, error="busy", state=b"2")
    job = desk.job(id)
    assert (job.status, job.attempt, job.error) == (Status.SCHEDULED, 1, "busy")
    assert job.worker is None
    assert desk.near(job.due_wall_ns, desk.rig.wall_ns() + 10 * MINUTE)
    desk.pass_and_promote(9 * MINUTE)
    assert hand.take() == []
    desk.pass_and_promote(MINUTE)
    claim = hand.one()
    assert (claim.id, claim.attempt, claim.state, claim.step) == (id, 1, b"2", "run")


def test_retry_without_delay_is_ready_at_once(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.RETRY)
    assert desk.status(id) is Status.READY
    assert hand.one().attempt == 1


def test_a_retry_that_does_not_count_leaves_the_attempts(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.RETRY)
    hand.settle(hand.one(), Fate.RETRY, delay_ns=MINUTE, counts=False)
    assert (desk.status(id), desk.job(id).attempt) == (Status.SCHEDULED, 1)


def test_release_is_as_if_it_had_not_been_claimed(desk: Desk, hand: Hand) -> None:
    ids = desk.add(2, step="first", state=b"1")
    hand.settle(hand.one(), Fate.RETRY, step="first")
    claim = hand.one()
    out = hand.settle(claim, Fate.RELEASE)
    assert set(out.woken) == {LANE}
    assert desk.status(ids[0]) is Status.READY
    assert desk.job(ids[0]).worker is None
    again = hand.take()
    assert [one.id for one in again] == ids  # its place in line as well
    assert (again[0].attempt, again[0].crashes, again[0].step, again[0].state) == (
        *(1, 0),
        *("first", b"1"),
    )


def test_a_settlement_may_tell_progress(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.NEXT, progress=b"0.5")
    assert desk.job(id).progress == b"0.5"
    hand.settle(hand.one(), Fate.NEXT)
    assert desk.job(id).progress == b"0.5"


def test_many_settlements_commit_together(desk: Desk, hand: Hand) -> None:
    ids = desk.add(5)
    claims = hand.take()
    fates = [Fate.DONE, Fate.FAILED, Fate.NEXT, Fate.RETRY, Fate.RELEASE]
    settlements = [
        Settlement(claim=claim, fate=fate, delay_ns=MINUTE)
        for claim, fate in zip(claims, fates, strict=True)
    ]
    out = hand.exchange(settlements)
    assert {one.id for one in out.ended} == set(ids[:2])
    ready = Status.READY
    assert desk.statuses(ids) == [Status.DONE, Status.FAILED, ready, Status.SCHEDULED, ready]


# --- stale settlements


def test_a_claim_is_settled_once(desk: Desk, hand: Hand) -> None:
    desk.one()
    claim = hand.one()
    hand.settle(claim, Fate.NEXT)
    assert hand.is_stale(claim)
    assert hand.is_stale(claim, Fate.RELEASE)


def test_only_the_holder_can_settle(desk: Desk, hand: Hand) -> None:
    desk.one()
    claim = hand.one()
    assert desk.hand().is_stale(claim)
    hand.settle(claim, Fate.DONE)


def test_the_same_worker_with_an_older_claim_is_not_the_holder(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    old = hand.one()
    hand.settle(old, Fate.RELEASE)
    new = hand.one()
    assert new.id == old.id
    assert hand.is_stale(old)
    assert desk.status(id) is Status.RUNNING
    hand.settle(new, Fate.DONE, result=b'"new"')
    assert desk.job(id).result == b'"new"'


def test_a_claim_that_was_taken_back_cannot_commit_over_the_one_that_followed(
    desk: Desk, hand: Hand
) -> None:
    id = desk.one(state=b'"before"')
    old = hand.one()
    desk.advance(10 * MINUTE)
    assert hand.beat(grace_ns=MINUTE).released == 1  # the reply with the claim was lost
    new = hand.one()
    both = [
        Settlement(claim=old, fate=Fate.DONE, state=b'"old"', result=b'"old"'),
        Settlement(claim=new, fate=Fate.NEXT, state=b'"new"'),
    ]
    out = hand.exchange(both)
    assert (out.stale, out.ended) == ([id], [])
    assert (desk.status(id), desk.job(id).state) == (Status.READY, b'"new"')


def test_one_stale_settlement_does_not_take_the_others_with_it(desk: Desk, hand: Hand) -> None:
    ids = desk.add(3)
    claims = hand.take()
    hand.settle(claims[1], Fate.NEXT)
    out = hand.exchange([Settlement(claim=claim, fate=Fate.DONE) for claim in claims])
    assert out.stale == [ids[1]]
    assert desk.statuses(ids) == [Status.DONE, Status.READY, Status.DONE]


def test_a_worker_whose_lease_ran_out_commits_and_gets_nothing(desk: Desk) -> None:
    ids = desk.add(2)
    hand = desk.hand(ttl_ns=10 * MINUTE)
    claim = hand.one()
    desk.advance(10 * MINUTE)  # and nobody has reaped it yet
    assert hand.is_stale(claim)
    assert hand.take() == []
    assert desk.statuses(ids) == [Status.RUNNING, Status.READY]


def test_a_reaped_worker_commits_and_gets_nothing(desk: Desk, hand: Hand) -> None:
    desk.one()
    lost = desk.hand(ttl_ns=MINUTE)
    old = lost.one()
    desk.advance(HOUR)
    desk.reap(MANY)
    assert lost.is_stale(old)
    assert lost.take() == []
    new = hand.one()
    assert lost.is_stale(old)
    hand.settle(new, Fate.DONE)


def test_a_worker_that_took_its_leave_commits_and_gets_nothing(desk: Desk, hand: Hand) -> None:
    desk.add(2)
    claim = hand.one()
    hand.settle(claim, Fate.NEXT)
    desk.unregister(hand.worker)
    assert hand.is_stale(claim)
    assert hand.take() == []


def test_a_settlement_of_a_job_that_was_pruned_is_stale(desk: Desk, hand: Hand) -> None:
    desk.one()
    claim = hand.one()
    hand.settle(claim, Fate.DONE)
    desk.prune(0)
    assert hand.is_stale(claim)


# --- workers and their hearts


def test_a_workers_number_is_never_given_to_another(desk: Desk) -> None:
    first = desk.register("w", MINUTE)
    desk.unregister(first)
    second = desk.register("w", MINUTE)
    desk.advance(HOUR)
    desk.reap(MANY)
    third = desk.register("w", MINUTE)
    assert len({first, second, third}) == 3


def test_unregistering_a_worker_nobody_knows_is_harmless(desk: Desk) -> None:
    desk.unregister(12345)


def test_a_beat_extends_the_lease(desk: Desk) -> None:
    hand = desk.hand(ttl_ns=10 * MINUTE)
    desk.one()
    claim = hand.one()
    for _ in range(5):
        desk.advance(8 * MINUTE)
        assert hand.beat(claim, ttl_ns=10 * MINUTE).alive
    assert desk.reap(MANY).workers == 0
    hand.settle(claim, Fate.DONE)


def test_a_beat_never_shortens_the_lease(desk: Desk) -> None:
    hand = desk.hand(ttl_ns=HOUR)
    assert hand.beat(ttl_ns=MINUTE).alive
    desk.advance(30 * MINUTE)
    assert hand.beat(ttl_ns=MINUTE).alive


def test_a_lease_that_ran_out_is_not_renewed(desk: Desk) -> None:
    hand = desk.hand(ttl_ns=10 * MINUTE)
    desk.advance(10 * MINUTE)
    assert not hand.beat(ttl_ns=HOUR).alive
    assert desk.reap(MANY).workers == 1
    assert not hand.beat(ttl_ns=HOUR).alive


def test_a_worker_that_took_its_leave_has_no_heart(desk: Desk, hand: Hand) -> None:
    desk.unregister(hand.worker)
    assert hand.beat() == (False, {}, 0, {})


def test_leases_the_worker_knows_nothing_of_are_released_after_a_grace(
    desk: Desk, hand: Hand
) -> None:
    lost, kept = desk.add(2)
    hand.exchange(wants=[Want(LANE, 1)])
    known = hand.one()
    desk.advance(9 * MINUTE)
    assert hand.beat(known, grace_ns=10 * MINUTE).released == 0
    desk.advance(MINUTE)
    assert hand.beat(known, grace_ns=10 * MINUTE).released == 1
    assert desk.statuses([lost, kept]) == [Status.READY, Status.RUNNING]
    again = hand.one()
    assert (again.id, again.attempt, again.crashes) == (lost, 0, 0)


def test_a_lease_known_by_an_old_token_is_not_known(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    old = hand.one()
    hand.settle(old, Fate.RELEASE)
    hand.exchange(wants=[Want(LANE, 1)])
    desk.advance(HOUR)
    assert hand.beat(old, grace_ns=MINUTE).released == 1
    assert desk.status(id) is Status.READY


def test_a_beat_leaves_the_leases_of_others(desk: Desk, hand: Hand) -> None:
    other = desk.hand()
    id = desk.one()
    other.one()
    desk.advance(HOUR)
    assert hand.beat(grace_ns=MINUTE) == (True, {}, 0, {})
    assert desk.status(id) is Status.RUNNING


def test_a_beat_tells_which_jobs_were_cancelled(desk: Desk, hand: Hand) -> None:
    desk.add(3)
    other = desk.hand()
    first, second, theirs = hand.one(), hand.one(), other.one()
    desk.cancel([second.id, theirs.id], reason="not needed")
    assert hand.beat(first, second).cancel == {second.id: "not needed"}
    assert hand.beat(first, second).cancel == {second.id: "not needed"}  # until it is settled
    hand.settle(second, Fate.CANCELLED)
    assert hand.beat(first).cancel == {}


def test_a_beat_names_what_the_worker_has_and_the_store_has_not(desk: Desk, hand: Hand) -> None:
    desk.add(4)
    first, second, third, fourth = (hand.one() for _ in range(4))
    assert hand.beat(first, second, third, fourth).lost == {}
    hand.settle(second, Fate.DONE)
    hand.settle(third, Fate.RELEASE)
    again = hand.one()  # another claim of the same job
    assert again.id == third.id
    said = hand.beat(first, second, third, fourth)
    assert said.lost == {second.id: second.token, third.id: third.token}
    assert hand.beat(first, again, fourth).lost == {}
    assert desk.hand().beat(first).lost == {first.id: first.token}  # it is another's


def test_what_is_claimed_while_the_heart_beats_is_not_named(desk: Desk, hand: Hand) -> None:
    """The book is the worker's own, and grows while the store is asked."""
    desk.one()

    class Book(dict[int, int]):
        def get(self, id: int, default: Any = None) -> Any:
            self.setdefault(4711, 1)  # claimed and taken into the book in the middle of the beat
            return super().get(id, default)

    claim = hand.one()
    desk.advance(HOUR)
    heart = desk.rig.store.heart()
    book = Book({claim.id: claim.token})
    said = heart.beat(hand.worker, book, 30 * DAY, MINUTE)
    heart.close()
    assert (4711 in book, said.lost, said.released) == (True, {}, 0)


def test_a_claim_that_was_lost_counts_as_a_crash_once(desk: Desk, hand: Hand) -> None:
    first, second, third, fourth = desk.add(4, max_crashes=1)
    claims = hand.take(3)
    for claim in claims:
        hand.settle(claim, Fate.RELEASE)  # as if it had never been claimed
    desk.count_lost(hand.worker, claims[:1])
    desk.count_lost(hand.worker, claims[:1])  # the reply was lost
    (again,) = hand.take(1)
    assert (again.id, again.attempt, again.crashes) == (first, 0, 1)
    # Whoever came further, or has lost it since in another way, has counted it already.
    other = hand.one()
    hand.settle(other, Fate.RETRY)
    desk.count_lost(hand.worker, [claims[1]])
    assert (desk.job(second).attempt, desk.job(second).crashes) == (1, 0)
    # It may run elsewhere by now, or have ended: nobody's lease changes.
    rerun = hand.take(2)[-1]
    assert rerun.id == third
    desk.count_lost(hand.worker, [claims[2]])
    assert desk.job(third).crashes == 1
    hand.settle(rerun, Fate.DONE)
    desk.count_lost(hand.worker, [rerun])
    assert (desk.job(third).crashes, desk.status(third)) == (1, Status.DONE)
    mine = hand.one()
    desk.count_lost(hand.worker, [mine])  # it has the lease after all
    assert (mine.id, desk.job(fourth).crashes) == (fourth, 0)
    desk.count_lost(hand.worker, [])


# --- reaping


def test_reaping_returns_the_jobs_of_dead_workers(desk: Desk, hand: Hand) -> None:
    ids = desk.add(3)
    lost = desk.hand(ttl_ns=MINUTE)
    lost.take(2)
    kept = hand.one()
    assert desk.reap(MANY) == (0, 0, 0, frozenset(), ())
    desk.advance(MINUTE)
    assert desk.reap(MANY) == (1, 2, 0, frozenset({LANE}), ())
    assert desk.statuses(ids) == [Status.READY, Status.READY, Status.RUNNING]
    assert desk.reap(MANY) == (0, 0, 0, frozenset(), ())
    claims = hand.take()
    assert [(one.id, one.crashes, one.attempt) for one in claims] == [
        (ids[0], 1, 0),
        (ids[1], 1, 0),
    ]
    hand.settle(kept, Fate.DONE)


def test_a_job_whose_worker_died_too_often_is_dead(desk: Desk) -> None:
    id = desk.one(max_crashes=3)
    for crashes in range(3):
        hand = desk.hand(ttl_ns=MINUTE)
        assert hand.one().crashes == crashes
        desk.advance(HOUR)
        reaped = desk.reap(MANY)
        assert (reaped.returned, reaped.dead) == ((1, 0) if crashes < 2 else (0, 1))
    job = desk.job(id)
    assert (job.status, job.crashes) == (Status.DEAD, 3)
    assert job.error
    assert desk.near(job.finished_wall_ns, desk.rig.wall_ns())


def test_crashes_and_failed_attempts_use_up_attempts_together(desk: Desk, hand: Hand) -> None:
    id = desk.one(max_attempts=3, max_crashes=100)
    hand.settle(hand.one(), Fate.RETRY)
    hand.settle(hand.one(), Fate.RETRY)
    lost = desk.hand(ttl_ns=MINUTE)
    assert lost.one().attempt == 2
    desk.advance(HOUR)
    assert desk.reap(MANY).dead == 1
    assert desk.status(id) is Status.DEAD


def test_a_job_to_be_cancelled_whose_worker_died_is_cancelled(desk: Desk) -> None:
    id = desk.one()
    lost = desk.hand(ttl_ns=MINUTE)
    lost.one()
    desk.cancel([id], reason="not needed")
    desk.advance(HOUR)
    reaped = desk.reap(MANY)
    assert (reaped.workers, reaped.returned, reaped.dead) == (1, 0, 0)
    assert (desk.status(id), desk.job(id).error) == (Status.CANCELLED, "not needed")


def test_reaping_takes_at_most_its_limit_and_goes_on_later(desk: Desk) -> None:
    ids = desk.add(5)
    lost = desk.hand(ttl_ns=MINUTE)
    lost.take()
    desk.advance(HOUR)
    for left in (3, 1, 0):
        assert desk.reap(2).workers == 1
        assert desk.statuses(ids).count(Status.RUNNING) == left
    assert desk.reap(2).workers == 0


# --- signals


def waiting(desk: Desk, hand: Hand, *names: str, delay_ns: int = 0, **fields: Any) -> int:
    """A job that waits for signals."""
    id = desk.one(**fields)
    claim = hand.one()
    assert claim.id == id
    hand.settle(claim, Fate.WAIT, step="woken", names=names, delay_ns=delay_ns)
    assert desk.status(id) is Status.WAITING
    return id


def payloads(claim: Claim) -> list[bytes]:
    return [signal.payload for signal in claim.signals]


def test_a_signal_wakes_the_job_that_waits_for_it(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    assert desk.job(id).waits_for == ("s",)
    assert hand.take() == []
    assert desk.signal(id, "s", b"1") == Delivered(id, True, LANE)
    assert desk.job(id).waits_for == ()
    claim = hand.one()
    assert (claim.id, claim.step, claim.timed_out) == (id, "woken", False)
    assert [(one.name, one.payload) for one in claim.signals] == [("s", b"1")]


def test_a_signal_of_another_name_waits_in_the_inbox(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    assert desk.signal(id, "other", b"1") == Delivered(id, True, None)
    assert desk.status(id) is Status.WAITING
    desk.signal(id, "s", b"2")
    claim = hand.one()
    assert payloads(claim) == [b"2"]
    hand.settle(claim, Fate.WAIT, names=("other",))
    assert payloads(hand.one()) == [b"1"]


def test_a_job_may_wait_for_any_of_several_signals(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", "t")
    desk.signal(id, "t", b"1")
    desk.signal(id, "s", b"2")
    assert payloads(hand.one()) == [b"1", b"2"]


def test_a_signal_before_the_first_step_is_kept_for_whoever_waits(desk: Desk, hand: Hand) -> None:
    id = desk.one(delay_ns=MINUTE)
    assert desk.signal(id, "s", b"1") == Delivered(id, True, None)
    desk.pass_and_promote(MINUTE)
    claim = hand.one()
    assert claim.signals == ()  # it waits for nothing yet
    hand.settle(claim, Fate.WAIT, names=("s",))
    assert payloads(hand.one()) == [b"1"]


def test_a_signal_while_the_job_runs_is_not_lost_when_it_parks(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    claim = hand.one()
    assert desk.signal(id, "s", b"1") == Delivered(id, True, None)
    out = hand.settle(claim, Fate.WAIT, names=("s",), delay_ns=HOUR)
    assert set(out.woken) == {LANE}
    job = desk.job(id)
    assert (job.status, job.due_wall_ns) == (Status.READY, None)
    assert payloads(hand.one()) == [b"1"]


@pytest.mark.parametrize(
    ("fate", "fields"),
    [
        (Fate.NEXT, {}),
        (Fate.WAIT, {"names": ("s",)}),
        (Fate.WAIT, {"names": ("t",)}),
        (Fate.SPAWN, {}),
        (Fate.SPAWN, {"names": ("s",)}),
        (Fate.SPAWN, {"children": (NewJob(kind="sum", queue="children"),)}),
        (Fate.RETRY, {"counts": False}),
        (Fate.RETRY, {"counts": False, "delay_ns": MINUTE}),
    ],
)
def test_whatever_a_step_goes_on_with_consumes_exactly_the_signals_it_was_given(
    desk: Desk, hand: Hand, fate: Fate, fields: dict[str, Any]
) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1")
    desk.signal(id, "t", b"2")
    claim = hand.one()
    assert payloads(claim) == [b"1"]
    desk.signal(id, "s", b"3")  # while it runs
    hand.settle(claim, fate, step="more", **fields)
    if fields.get("children"):
        hand.settle(hand.one(Lane("children", "", Band.B1)), Fate.DONE)
    desk.pass_and_promote(MINUTE)
    given = []
    for _ in range(3):
        claim = hand.one()
        given += payloads(claim)
        hand.settle(claim, Fate.WAIT, names=("s", "t"))
        if desk.status(id) is Status.WAITING:
            break
    assert sorted(given) == [b"2", b"3"]
    assert desk.status(id) is Status.WAITING


def test_waiting_for_the_same_signal_again_waits_for_another_one(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "pay")
    desk.signal(id, "pay", b"1")
    hand.settle(hand.one(), Fate.WAIT, names=("ship",))
    desk.signal(id, "ship", b"2")
    hand.settle(hand.one(), Fate.WAIT, names=("pay",))
    assert desk.status(id) is Status.WAITING
    desk.signal(id, "pay", b"3")
    assert payloads(hand.one()) == [b"3"]


def test_a_step_that_collects_is_given_each_signal_once(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    for count in range(1, 4):
        desk.signal(id, "s", b"%d" % count)
        claim = hand.one()
        assert payloads(claim) == [b"%d" % count]
        hand.settle(claim, Fate.WAIT, names=("s",))
        assert desk.status(id) is Status.WAITING


def test_a_retry_is_shown_the_signals_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1")
    hand.settle(hand.one(), Fate.RETRY, step="woken")
    desk.signal(id, "s", b"2")
    assert payloads(hand.one()) == [b"1", b"2"]


def test_a_release_and_a_crash_show_the_signals_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1")
    hand.settle(hand.one(), Fate.RELEASE)
    lost = desk.hand(ttl_ns=MINUTE)
    assert payloads(lost.one()) == [b"1"]
    desk.advance(HOUR)
    desk.reap(MANY)
    assert payloads(hand.one()) == [b"1"]


def test_a_timeout_wakes_and_says_so(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=10 * MINUTE)
    assert desk.near(desk.job(id).due_wall_ns, desk.rig.wall_ns() + 10 * MINUTE)
    desk.pass_and_promote(9 * MINUTE)
    assert desk.status(id) is Status.WAITING
    desk.pass_and_promote(MINUTE)
    claim = hand.one()
    assert (claim.id, claim.timed_out, claim.signals) == (id, True, ())
    hand.settle(claim, Fate.NEXT)
    assert not hand.one().timed_out


def test_a_release_and_a_crash_do_not_forget_the_timeout(desk: Desk, hand: Hand) -> None:
    waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.pass_and_promote(MINUTE)
    hand.settle(hand.one(), Fate.RELEASE)
    lost = desk.hand(ttl_ns=MINUTE)
    assert lost.one().timed_out
    desk.advance(HOUR)
    desk.reap(MANY)
    assert hand.one().timed_out


def test_a_signal_between_the_timer_and_the_claim_is_in_time(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.pass_and_promote(MINUTE)
    assert desk.signal(id, "s", b"1").fresh
    claim = hand.one()
    assert (claim.timed_out, payloads(claim)) == (False, [b"1"])
    hand.settle(claim, Fate.RETRY, step="woken")  # it failed, and is given the same again
    claim = hand.one()
    assert (claim.timed_out, payloads(claim)) == (False, [b"1"])
    hand.settle(claim, Fate.RETRY, step="woken", counts=False)  # it went on, and has nothing left
    claim = hand.one()
    assert (claim.timed_out, payloads(claim)) == (False, [])


def test_another_signal_between_the_timer_and_the_claim_is_no_answer(
    desk: Desk, hand: Hand
) -> None:
    id = waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.signal(id, "other", b"1")
    desk.pass_and_promote(MINUTE)
    claim = hand.one()
    assert (claim.timed_out, payloads(claim)) == (True, [])


def test_a_step_that_timed_out_and_waits_again_is_woken_by_what_came_meanwhile(
    desk: Desk, hand: Hand
) -> None:
    id = waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.pass_and_promote(MINUTE)
    claim = hand.one()
    assert claim.timed_out
    assert desk.signal(id, "s", b"1").fresh
    hand.settle(claim, Fate.WAIT, names=("s",), delay_ns=MINUTE)
    assert desk.status(id) is Status.READY
    claim = hand.one()
    assert (claim.timed_out, payloads(claim)) == (False, [b"1"])


def test_a_signal_in_time_ends_the_timeout(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=10 * MINUTE)
    desk.signal(id, "s", b"1")
    desk.advance(HOUR)
    assert desk.promote(MANY) == (0, frozenset(), None)
    assert not hand.one().timed_out


def test_waiting_without_a_timeout_waits_for_ever(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    assert desk.job(id).due_wall_ns is None
    desk.pass_and_promote(10 * DAY)
    assert desk.status(id) is Status.WAITING


def test_a_wait_forgets_failed_attempts(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.RETRY)
    hand.settle(hand.one(), Fate.WAIT, names=("s",))
    desk.signal(id, "s", b"1")
    assert hand.one().attempt == 0


def test_a_signal_finds_its_job_by_unique_key(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", unique_key="u")
    assert desk.signal("u", "s", b"1") == Delivered(id, True, LANE)
    assert desk.signal("nobody", "s", b"1") == Delivered(None, False, None)


def test_a_signal_that_was_sent_twice_arrives_once(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "never")
    other = waiting(desk, hand, "never")
    assert desk.signal(id, "s", b"1", dedup="d").fresh
    assert desk.signal(id, "s", b"2", dedup="d") == Delivered(id, False, None)
    assert desk.signal(id, "s", b"3", dedup="e").fresh
    assert desk.signal(other, "s", b"4", dedup="d").fresh
    desk.signal(id, "never", b"5")
    hand.settle(hand.one(), Fate.WAIT, names=("s",))
    assert payloads(hand.one()) == [b"1", b"3"]


def test_a_signal_that_was_dealt_with_is_not_taken_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    assert desk.signal(id, "s", b"1", dedup="d").fresh
    claim = hand.one()
    assert desk.signal(id, "s", b"2", dedup="d") == Delivered(id, False, None)
    hand.settle(claim, Fate.WAIT, names=("s",))
    assert desk.signal(id, "s", b"3", dedup="d") == Delivered(id, False, None)
    assert desk.status(id) is Status.WAITING
    assert desk.signal(id, "s", b"4", dedup="e").fresh
    assert payloads(hand.one()) == [b"4"]


def test_a_dedup_key_stands_for_its_window_after_the_signal_was_dealt_with(
    desk: Desk, hand: Hand
) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1", dedup="d")
    desk.signal(id, "t", b"2", dedup="waits")
    desk.advance(10 * DAY)
    hand.settle(hand.one(), Fate.WAIT, names=("s",))
    desk.advance(DAY)
    desk.prune(0)  # jobs that ended; no key of a job that lives
    desk.prune(0, dedup_older_than_ns=2 * DAY)
    assert not desk.signal(id, "s", b"3", dedup="d").fresh
    desk.prune(0, dedup_older_than_ns=DAY)
    assert desk.signal(id, "s", b"4", dedup="d").fresh
    assert not desk.signal(id, "t", b"5", dedup="waits").fresh  # its signal is there still
    assert payloads(hand.one()) == [b"4"]


@pytest.mark.parametrize(
    ("fields", "handled"), [({}, False), ({"state": b'"handled"'}, True)], ids=["raised", "stop"]
)
def test_a_job_retried_by_hand_knows_what_it_has_dealt_with(
    desk: Desk, hand: Hand, fields: dict[str, Any], handled: bool
) -> None:
    """Neither what is in its state nor what is in its inbox may be sent again."""
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1", dedup="before")
    hand.settle(hand.one(), Fate.WAIT, names=("s",))
    desk.signal(id, "s", b"2", dedup="given")
    desk.signal(id, "t", b"3", dedup="waits")
    hand.settle(hand.one(), Fate.FAILED, **fields)
    desk.prune(DAY, dedup_older_than_ns=DAY)
    desk.retry([id])
    assert not desk.signal(id, "s", b"4", dedup="before").fresh
    assert not desk.signal(id, "s", b"5", dedup="given").fresh
    assert not desk.signal(id, "t", b"6", dedup="waits").fresh
    assert payloads(hand.one()) == ([] if handled else [b"2"])


def test_a_stale_run_takes_no_dedup_key(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1", dedup="d")
    lost = desk.hand(ttl_ns=MINUTE)
    late = lost.one()
    desk.advance(HOUR)
    desk.reap(MANY)
    assert lost.is_stale(late, Fate.WAIT)
    assert lost.is_stale(late, Fate.FAILED)
    claim = hand.one()
    assert payloads(claim) == [b"1"]
    hand.settle(claim, Fate.FAILED)
    desk.retry([id])
    assert not desk.signal(id, "s", b"2", dedup="d").fresh
    assert payloads(hand.one()) == [b"1"]


@pytest.mark.parametrize("end", sorted(ENDED, key=lambda end: end.value))
def test_a_job_that_has_ended_gets_no_signals(desk: Desk, hand: Hand, end: Status) -> None:
    id = brought_to(desk, hand, end)
    assert desk.signal(id, "s", b"1") == Delivered(None, False, None)
    assert desk.signal(id + 1000, "s", b"1") == Delivered(None, False, None)


# --- children


def spawned(
    desk: Desk,
    hand: Hand,
    *children: NewJob,
    names: Sequence[str] = (),
    delay_ns: int = 0,
    **fields: Any,
) -> tuple[int, list[int]]:
    """A parent that waits, and its children."""
    id = desk.one(queue="parents", **fields)
    claim = hand.one(Lane("parents", "", Band.B1))
    hand.settle(
        claim,
        Fate.SPAWN,
        step="joined",
        children=tuple(children),
        names=tuple(names),
        delay_ns=delay_ns,
    )
    return id, sorted(job.id for job in desk.browse(Filter(parent=id)))


PARENTS = Lane("parents", "", Band.B1)


def test_a_parent_wakes_when_all_its_children_have_ended(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand, *[NewJob(kind="part")] * 3)
    assert len(children) == 3
    assert desk.status(parent) is Status.WAITING
    fates = [(Fate.DONE, b"1", None), (Fate.FAILED, None, "broke"), (Fate.DONE, b"3", None)]
    for left, (fate, result, error) in zip((2, 1, 0), fates, strict=True):
        out = hand.settle(hand.one(), fate, result=result, error=error)
        assert (desk.status(parent) is Status.WAITING) == (left > 0)
        assert set(out.woken) == (set() if left else {PARENTS})
    claim = hand.one(PARENTS)
    assert (claim.id, claim.step, claim.timed_out) == (parent, "joined", False)
    assert [(one.id, one.kind, one.status, one.result, one.error) for one in claim.children] == [
        (children[0], "part", Status.DONE, b"1", None),
        (children[1], "part", Status.FAILED, None, "broke"),
        (children[2], "part", Status.DONE, b"3", None),
    ]


def test_children_carry_their_parent_and_run_where_they_say(desk: Desk, hand: Hand) -> None:
    parent, (child,) = spawned(desk, hand, NewJob(kind="part", queue="q", tenant="t"))
    assert desk.job(child).parent == parent
    claim = hand.one(Lane("q", "t", Band.B1))
    assert (claim.id, claim.parent) == (child, parent)


def test_spawning_no_children_does_not_wait(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand)
    assert (desk.status(parent), children) == (Status.READY, [])
    assert hand.one(PARENTS).step == "joined"


def test_children_that_were_there_already_are_not_waited_for(desk: Desk, hand: Hand) -> None:
    there = desk.one(unique_key="u")
    parent, children = spawned(desk, hand, NewJob(kind="part", unique_key="u"))
    assert (desk.status(parent), children) == (Status.READY, [])
    hand.settle(hand.one(), Fate.DONE)
    assert desk.statuses([parent, there]) == [Status.READY, Status.DONE]


def test_every_kind_of_end_counts_for_the_parent(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand, *[NewJob(kind="part", max_crashes=1)] * 4)
    done, failed = hand.take(2)
    hand.settle(done, Fate.DONE)
    hand.settle(failed, Fate.FAILED)
    desk.hand(ttl_ns=MINUTE).take(1)
    desk.advance(HOUR)
    desk.reap(MANY)
    assert desk.status(parent) is Status.WAITING
    desk.cancel([children[3]])
    assert desk.status(parent) is Status.READY
    ends = [child.status for child in hand.one(PARENTS).children]
    assert ends == [Status.DONE, Status.FAILED, Status.DEAD, Status.CANCELLED]


def test_a_barrier_may_have_a_timeout(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand, NewJob(kind="part"), delay_ns=10 * MINUTE)
    desk.pass_and_promote(10 * MINUTE)
    claim = hand.one(PARENTS)
    assert (claim.id, claim.timed_out) == (parent, True)
    assert [(one.id, one.status.ended) for one in claim.children] == [(children[0], False)]
    hand.settle(claim, Fate.NEXT)
    hand.settle(hand.one(), Fate.DONE)
    assert desk.status(parent) is Status.READY


def test_a_parent_may_spawn_again(desk: Desk, hand: Hand) -> None:
    parent, first = spawned(desk, hand, NewJob(kind="part"))
    hand.settle(hand.one(), Fate.DONE)
    hand.settle(hand.one(PARENTS), Fate.SPAWN, children=(NewJob(kind="part"),) * 2)
    hand.settle(hand.one(), Fate.DONE)
    assert desk.status(parent) is Status.WAITING
    hand.settle(hand.one(), Fate.DONE)
    claim = hand.one(PARENTS)
    assert [child.id for child in claim.children][:1] == first
    assert len(claim.children) == 3


def test_a_spawn_consumes_the_signals_it_was_shown(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1")
    hand.settle(hand.one(), Fate.SPAWN, children=(NewJob(kind="part", queue="q"),))
    hand.settle(hand.one(Lane("q", "", Band.B1)), Fate.DONE)
    hand.settle(hand.one(), Fate.WAIT, names=("s",))
    assert desk.status(id) is Status.WAITING


def test_a_parent_in_its_next_step_may_leave_children_behind(desk: Desk, hand: Hand) -> None:
    parent = desk.one(queue="parents")
    hand.settle(hand.one(PARENTS), Fate.NEXT, children=(NewJob(kind="part"),))
    assert desk.status(parent) is Status.READY
    hand.settle(hand.one(PARENTS), Fate.DONE)
    child = hand.one()
    assert child.parent == parent
    hand.settle(child, Fate.DONE)
    assert desk.status(parent) is Status.DONE


@pytest.mark.parametrize(
    ("fate", "word", "result", "error"),
    [(Fate.DONE, "done", b'{"n":1}', None), (Fate.FAILED, "failed", None, "broke")],
)
def test_children_that_report_send_their_parent_a_signal(
    desk: Desk, hand: Hand, fate: Fate, word: str, result: bytes | None, error: str | None
) -> None:
    new = NewJob(kind="part", notify="ended")
    parent, children = spawned(desk, hand, new, new, names=["ended"])
    assert desk.status(parent) is Status.WAITING
    out = hand.settle(hand.one(), fate, result=result, error=error)
    assert set(out.woken) == {PARENTS}
    claim = hand.one(PARENTS)
    assert claim.children == ()
    (signal,) = claim.signals
    assert signal.name == "ended"
    assert json.decode(signal.payload) == {
        "id": children[0],
        "status": word,
        "result": json.decode(result) if result else None,
        "error": error,
    }
    hand.settle(claim, Fate.WAIT, names=("ended",))
    assert desk.status(parent) is Status.WAITING
    hand.settle(hand.one(), Fate.DONE)
    assert len(hand.one(PARENTS).signals) == 1


def test_children_that_report_are_not_counted(desk: Desk, hand: Hand) -> None:
    parent, _ = spawned(desk, hand, NewJob(kind="part", notify="ended"))
    assert desk.status(parent) is Status.READY


def test_a_child_may_be_enqueued_for_a_parent_that_lives(desk: Desk, hand: Hand) -> None:
    """Nobody waits for it then, and the barrier of a later spawn is as long as it should be."""
    parent = desk.one(queue="parents")
    desk.one(parent=parent)
    hand.settle(hand.one(), Fate.DONE)
    assert desk.status(parent) is Status.READY
    hand.settle(hand.one(PARENTS), Fate.SPAWN, children=(NewJob(kind="part"),) * 2)
    hand.settle(hand.one(), Fate.DONE)
    assert desk.status(parent) is Status.WAITING
    hand.settle(hand.one(), Fate.DONE)
    assert desk.status(parent) is Status.READY


def test_a_parent_retried_by_hand_counts_its_children_anew(desk: Desk, hand: Hand) -> None:
    parent, (child,) = spawned(desk, hand, NewJob(kind="part"))
    running = hand.one()
    assert desk.cancel([parent]) == Cancelled((parent,), (child,))
    hand.settle(running, Fate.CANCELLED)
    assert desk.retry([parent]) == [parent]
    hand.settle(hand.one(PARENTS), Fate.SPAWN, children=(NewJob(kind="part"),))
    assert desk.status(parent) is Status.WAITING
    hand.settle(hand.one(), Fate.DONE)
    assert desk.status(parent) is Status.READY


# --- cancelling


def brought_to(desk: Desk, hand: Hand, state: Status, /, **fields: Any) -> int:
    """A job of its own queue that is in this state."""
    fields = {"queue": "brought", **fields}
    lane = Lane(fields["queue"], "", Band.B1)
    if state is Status.SCHEDULED:
        return desk.one(delay_ns=HOUR, **fields)
    if state is Status.BLOCKED:
        holder = f"holder of {fields['queue']}"
        desk.one(queue=holder, partition_key=holder)
        hand.one(Lane(holder, "", Band.B1))
        id = desk.one(partition_key=holder, **fields)
        assert hand.take(1, lane) == []
        assert desk.status(id) is Status.BLOCKED
        return id
    if state is Status.DEAD:
        fields["max_crashes"] = 1
    id = desk.one(**fields)
    if state is Status.READY:
        return id
    if state is Status.DEAD:
        desk.hand(ttl_ns=MINUTE).one(lane)
        desk.advance(2 * MINUTE)
        desk.reap(MANY)
    elif state is Status.CANCELLED:
        desk.cancel([id])
    else:
        claim = hand.one(lane)
        fates = {Status.DONE: Fate.DONE, Status.FAILED: Fate.FAILED, Status.WAITING: Fate.WAIT}
        if state in fates:
            hand.settle(claim, fates[state], names=("never",))
    assert desk.status(id) is state
    return id


@pytest.mark.parametrize("state", [Status.SCHEDULED, Status.READY, Status.BLOCKED, Status.WAITING])
def test_a_job_that_does_not_run_is_cancelled_at_once(
    desk: Desk, hand: Hand, state: Status
) -> None:
    id = brought_to(desk, hand, state)
    assert desk.cancel([id], reason="not needed") == Cancelled((id,), ())
    job = desk.job(id)
    assert (job.status, job.error, job.due_wall_ns) == (Status.CANCELLED, "not needed", None)
    assert not job.cancelling
    assert job.waits_for == ()
    assert desk.near(job.finished_wall_ns, desk.rig.wall_ns())
    desk.pass_and_promote(2 * HOUR)
    assert hand.take(MANY, Lane("brought", "", Band.B1)) == []
    assert desk.status(id) is Status.CANCELLED


@pytest.mark.parametrize("end", sorted(ENDED, key=lambda end: end.value))
def test_a_job_that_has_ended_is_not_cancelled(desk: Desk, hand: Hand, end: Status) -> None:
    id = brought_to(desk, hand, end)
    before = desk.job(id)
    assert desk.cancel([id, id + 1000]) == Cancelled((), ())
    assert desk.job(id) == before


def test_a_running_job_is_asked_to_stop(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    claim = hand.one()
    assert desk.cancel([id], reason="not needed") == Cancelled((), (id,))
    job = desk.job(id)
    assert (job.status, job.cancelling, job.error) == (Status.RUNNING, True, "not needed")
    assert desk.cancel([id], reason="once more") == Cancelled((), (id,))
    assert hand.beat(claim).cancel == {id: "not needed"}
    assert hand.exchange(probe=["default"]).cancelling == {id: "not needed"}


@pytest.mark.parametrize("fate", [Fate.NEXT, Fate.RETRY, Fate.WAIT, Fate.SPAWN, Fate.RELEASE])
def test_a_cancelled_run_that_would_go_on_ends_cancelled(
    desk: Desk, hand: Hand, fate: Fate
) -> None:
    id = desk.one()
    claim = hand.one()
    desk.cancel([id], reason="not needed")
    children = (NewJob(kind="part"),) if fate is Fate.SPAWN else ()
    out = hand.settle(claim, fate, names=("s",), delay_ns=MINUTE, children=children, error="no")
    assert [(one.id, one.status, one.error) for one in out.ended] == [
        (id, Status.CANCELLED, "not needed")
    ]
    assert desk.job(id).error == "not needed"
    assert (desk.status(id), desk.job(id).cancelling) == (Status.CANCELLED, False)
    assert len(desk.browse(Filter())) == 1
    desk.pass_and_promote(HOUR)
    assert hand.take() == []


@pytest.mark.parametrize(
    ("fate", "status"),
    [
        (Fate.DONE, Status.DONE),
        (Fate.FAILED, Status.FAILED),
        (Fate.CANCELLED, Status.CANCELLED),
    ],
)
def test_a_run_that_ended_before_it_heard_of_the_cancel_ends_as_it_did(
    desk: Desk, hand: Hand, fate: Fate, status: Status
) -> None:
    id = desk.one()
    claim = hand.one()
    desk.cancel([id], reason="not needed")
    hand.settle(claim, fate, error="its own")
    assert (desk.status(id), desk.job(id).cancelling) == (status, False)
    assert desk.job(id).error == "its own"


def test_cancelling_a_parent_cancels_its_descendants(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand, *[NewJob(kind="part")] * 4)
    done, nested, running = hand.take(3)
    hand.settle(done, Fate.DONE)
    hand.settle(nested, Fate.SPAWN, children=(NewJob(kind="leaf", queue="leaves"),))
    (leaf,) = desk.browse(Filter(parent=nested.id))
    bystander = desk.one()
    out = desk.cancel([parent])
    assert out.running == (running.id,)
    assert sorted(out.ended) == sorted([parent, nested.id, children[3], leaf.id])
    assert desk.status(done.id) is Status.DONE
    assert desk.status(bystander) is Status.READY
    hand.settle(running, Fate.NEXT)
    assert desk.status(running.id) is Status.CANCELLED
    assert hand.take(MANY, PARENTS) == []


def test_cancelling_children_wakes_a_parent_that_was_not_cancelled(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand, *[NewJob(kind="part")] * 2)
    assert sorted(desk.cancel(children).ended) == children
    assert desk.status(parent) is Status.READY
    assert [one.error for one in hand.one(PARENTS).children] == ["cancelled"] * 2


def test_a_cancelled_child_that_reports_does(desk: Desk, hand: Hand) -> None:
    new = NewJob(kind="part", notify="ended")
    parent, (child,) = spawned(desk, hand, new, names=["ended"])
    desk.cancel([child], reason="late")
    (signal,) = hand.one(PARENTS).signals
    told = json.decode(signal.payload)
    assert (told["id"], told["status"], told["error"]) == (child, "cancelled", "late")
    assert desk.status(parent) is Status.RUNNING


# --- partition keys


def keyed(desk: Desk, count: int, *, strict: bool = False, **fields: Any) -> list[int]:
    return desk.add(count, partition_key="k", strict=strict, **fields)


def test_one_job_of_a_key_runs_at_a_time(desk: Desk, hand: Hand) -> None:
    first, second, third = keyed(desk, 3)
    free = desk.one()
    other = desk.one(partition_key="other")
    assert hand.ids() == [first, free, other]
    assert desk.statuses([second, third]) == [Status.BLOCKED, Status.BLOCKED]
    assert desk.hand().take() == []


def test_a_key_holds_across_lanes_and_workers(desk: Desk, hand: Hand) -> None:
    first = keyed(desk, 1)[0]
    second = keyed(desk, 1, queue="q", tenant="t")[0]
    assert hand.ids() == [first]
    assert desk.hand().take(MANY, Lane("q", "t", Band.B1)) == []
    assert desk.status(second) is Status.BLOCKED


@pytest.mark.parametrize(
    ("fate", "fields"),
    [
        (Fate.DONE, {}),
        (Fate.FAILED, {}),
        (Fate.CANCELLED, {}),
        (Fate.RETRY, {"delay_ns": HOUR}),
        (Fate.WAIT, {"names": ("s",)}),
        (Fate.SPAWN, {"children": (NewJob(kind="part", queue="q"),)}),
    ],
)
def test_a_key_is_free_when_its_job_stops_running(
    desk: Desk, hand: Hand, fate: Fate, fields: dict[str, Any]
) -> None:
    _, second, third = keyed(desk, 3)
    (claim,) = hand.take()
    out = hand.settle(claim, fate, **fields)
    assert LANE in out.woken
    assert desk.statuses([second, third]) == [Status.READY, Status.BLOCKED]
    assert hand.ids() == [second]


@pytest.mark.parametrize("fate", [Fate.NEXT, Fate.RETRY, Fate.RELEASE])
def test_a_key_stays_with_the_first_in_line(desk: Desk, hand: Hand, fate: Fate) -> None:
    first, second = keyed(desk, 2)
    (claim,) = hand.take()
    hand.settle(claim, fate)
    assert hand.ids() == [first]
    assert desk.status(second) is Status.BLOCKED


def test_a_key_is_free_when_its_worker_died(desk: Desk, hand: Hand) -> None:
    first, second = keyed(desk, 2, max_crashes=1)
    desk.hand(ttl_ns=MINUTE).take()
    desk.advance(HOUR)
    assert desk.reap(MANY).dead == 1
    assert desk.status(first) is Status.DEAD
    assert hand.ids() == [second]


def test_a_key_is_free_when_its_lease_was_unknown(desk: Desk, hand: Hand) -> None:
    first, second = keyed(desk, 2)
    hand.take()
    desk.advance(HOUR)
    assert hand.beat().released == 1
    assert hand.ids() == [first]
    assert desk.status(second) is Status.BLOCKED


def test_a_key_is_free_when_its_cancelled_holder_stops(desk: Desk, hand: Hand) -> None:
    first, second = keyed(desk, 2)
    (claim,) = hand.take()
    desk.cancel([first])
    assert hand.take() == []
    hand.settle(claim, Fate.NEXT)
    assert desk.status(first) is Status.CANCELLED
    assert hand.ids() == [second]


def test_cancelling_the_next_in_line_lets_the_one_after_try(desk: Desk, hand: Hand) -> None:
    _, second, third = keyed(desk, 3)
    (claim,) = hand.take()
    hand.settle(claim, Fate.DONE)
    assert desk.statuses([second, third]) == [Status.READY, Status.BLOCKED]
    desk.cancel([second])
    assert hand.ids() == [third]


def test_without_strict_order_a_later_job_overtakes_one_that_is_between_attempts(
    desk: Desk, hand: Hand
) -> None:
    first, second = keyed(desk, 2)
    hand.settle(hand.one(), Fate.RETRY, delay_ns=MINUTE)
    (claim,) = hand.take()
    assert claim.id == second
    desk.pass_and_promote(MINUTE)
    assert hand.take() == []  # and now that one waits
    assert desk.status(first) is Status.BLOCKED
    hand.settle(claim, Fate.DONE)
    assert hand.ids() == [first]


def test_in_strict_order_a_later_job_waits_for_one_between_attempts(desk: Desk, hand: Hand) -> None:
    first, second = keyed(desk, 2, strict=True)
    hand.settle(hand.one(), Fate.RETRY, delay_ns=MINUTE)
    assert hand.take() == []
    desk.pass_and_promote(MINUTE)
    (claim,) = hand.take()
    assert claim.id == first
    hand.settle(claim, Fate.DONE)
    assert hand.ids() == [second]


def test_in_strict_order_a_later_job_waits_for_one_that_waits(desk: Desk, hand: Hand) -> None:
    first, second = keyed(desk, 2, strict=True)
    hand.settle(hand.one(), Fate.WAIT, names=("s",))
    assert hand.take() == []
    desk.signal(first, "s", b"1")
    hand.settle(hand.one(), Fate.FAILED)
    assert hand.ids() == [second]


def test_in_strict_order_a_cancelled_job_is_out_of_the_way(desk: Desk, hand: Hand) -> None:
    first, second, third = keyed(desk, 3, strict=True)
    hand.settle(hand.one(), Fate.RETRY, delay_ns=HOUR)
    assert hand.take() == []
    desk.cancel([second])
    assert hand.take() == []
    desk.cancel([first])
    assert hand.ids() == [third]


def test_strict_order_holds_over_a_long_line(desk: Desk, hand: Hand) -> None:
    ids = keyed(desk, 6, strict=True)
    ran = []
    for turn in range(12):
        (claim,) = hand.take()
        ran.append(claim.id)
        if turn % 2:
            hand.settle(claim, Fate.DONE)
        else:
            hand.settle(claim, Fate.RETRY, delay_ns=MINUTE)
            assert hand.take() == []
            desk.pass_and_promote(MINUTE)
    assert ran == [id for id in ids for _ in range(2)]


# --- pausing and limits


def test_a_paused_queue_gives_out_nothing(desk: Desk, hand: Hand) -> None:
    ids = desk.add(2)
    other = desk.one(queue="q")
    claim = hand.one()
    desk.set_paused("default", True)
    out = hand.exchange(wants=[Want(LANE, 5)], probe=["default", "q"])
    assert out.claims == []
    assert {queue: list(lanes) for queue, lanes in out.lanes.items()} == {
        "default": [],
        "q": [Lane("q", "", Band.B1)],
    }
    assert hand.ids(5, Lane("q", "", Band.B1)) == [other]
    desk.add(1)
    hand.settle(claim, Fate.RETRY, delay_ns=MINUTE)  # what runs goes on
    desk.pass_and_promote(HOUR)
    assert hand.take() == []
    desk.set_paused("default", False)
    assert hand.ids()[:2] == ids


def test_a_queue_can_be_paused_before_it_has_jobs(desk: Desk, hand: Hand) -> None:
    desk.set_paused("default", True)
    desk.one()
    assert hand.take() == []
    (state,) = desk.queues()
    assert (state.name, state.paused, state.ready) == ("default", True, 1)


def test_no_more_run_than_a_queue_allows(desk: Desk, hand: Hand) -> None:
    ids = desk.add(5)
    desk.one(queue="free")
    desk.set_limits("default", Limits(concurrency=2))
    claims = hand.take()
    assert [claim.id for claim in claims] == ids[:2]
    out = desk.hand().exchange(wants=[Want(LANE, 5), Want(Lane("free", "", Band.B1), 5)])
    assert [claim.queue for claim in out.claims] == ["free"]
    assert set(out.held_back_ns) == {"default"}
    done = [Settlement(claim=claims[0], fate=Fate.DONE)]
    assert [claim.id for claim in hand.exchange(done, [Want(LANE, 5)]).claims] == [ids[2]]


def test_a_limit_counts_all_tenants_and_bands_of_a_queue(desk: Desk, hand: Hand) -> None:
    desk.add(2)
    desk.add(2, tenant="t")
    desk.add(2, priority=800)
    desk.set_limits("default", Limits(concurrency=3))
    lanes = [LANE, Lane("default", "t", Band.B1), Lane("default", "", Band.B4)]
    assert len(hand.exchange(wants=[Want(lane, 2) for lane in lanes]).claims) == 3


def test_the_queue_star_limits_all_of_them_together(desk: Desk, hand: Hand) -> None:
    desk.add(3, queue="a")
    desk.add(3, queue="b")
    wants = [Want(Lane("a", "", Band.B1), 3), Want(Lane("b", "", Band.B1), 3)]
    desk.set_limits("*", Limits(concurrency=4))
    claims = hand.exchange(wants=wants).claims
    assert len(claims) == 4
    out = hand.exchange(wants=wants)
    assert out.claims == []
    assert set(out.held_back_ns) == {"a", "b"}
    done = [Settlement(claim=claim, fate=Fate.DONE) for claim in claims[:2]]
    assert len(hand.exchange(done, wants).claims) == 2
    assert "*" not in [state.name for state in desk.queues()]


def test_a_limit_holds_for_a_queue_that_was_empty_when_it_was_probed(
    desk: Desk, hand: Hand
) -> None:
    desk.set_limits("default", Limits(concurrency=1))
    hand.exchange(wants=[Want(LANE, 5)], probe=["default"])
    desk.add(3)
    assert len(hand.take()) == 1


def test_a_limit_can_be_lifted(desk: Desk, hand: Hand) -> None:
    desk.add(5)
    desk.set_limits("default", Limits(concurrency=1))
    assert len(hand.take()) == 1
    desk.set_limits("default", Limits())
    assert len(hand.take()) == 4


def test_a_rate_lets_a_burst_through_and_then_one_by_one(desk: Desk, hand: Hand) -> None:
    ids = desk.add(9)
    desk.set_limits("default", Limits(rate_per_s=1 / 600, burst=3))
    assert hand.ids() == ids[:3]
    out = hand.exchange(wants=[Want(LANE, 5)])
    assert out.claims == []
    assert desk.near(out.held_back_ns["default"], 10 * MINUTE)
    desk.advance(4 * MINUTE)
    out = hand.exchange(wants=[Want(LANE, 5)])
    assert out.claims == []
    assert abs(out.held_back_ns["default"] - 6 * MINUTE) <= max(1000, desk.rig.slack_ns)
    desk.advance(7 * MINUTE)
    assert hand.ids() == ids[3:4]
    desk.advance(21 * MINUTE)
    assert hand.ids() == ids[4:6]
    desk.advance(DAY)  # a quiet queue saves up no more than its burst
    assert hand.ids() == ids[6:9]


def test_a_rate_may_hold_for_all_queues_together(desk: Desk, hand: Hand) -> None:
    desk.add(2, queue="a")
    desk.add(2, queue="b")
    wants = [Want(Lane("a", "", Band.B1), 2), Want(Lane("b", "", Band.B1), 2)]
    desk.set_limits("*", Limits(rate_per_s=1 / 600, burst=3))
    assert len(hand.exchange(wants=wants).claims) == 3
    out = hand.exchange(wants=wants)
    assert out.claims == []
    assert all(desk.near(ns, 10 * MINUTE) for ns in out.held_back_ns.values())
    assert set(out.held_back_ns) == {"a", "b"}


def test_queues_below_their_limits_are_not_held_back(desk: Desk, hand: Hand) -> None:
    desk.add(1)
    desk.set_limits("default", Limits(concurrency=5, rate_per_s=1.0, burst=5))
    assert hand.exchange(wants=[Want(LANE, 3)]).held_back_ns == {}


# --- ageing


def climbed(desk: Desk, hand: Hand, tenant: str = "") -> dict[Band, list[int]]:
    """What is ready of the default queue, by band: it is claimed to see."""
    found = {}
    for band in Band:
        claims = hand.take(MANY, Lane("default", tenant, band))
        if claims:
            found[band] = [claim.id for claim in claims]
    return found


def test_what_has_waited_long_moves_up(desk: Desk, hand: Hand) -> None:
    ids = desk.add(2)
    desk.advance(SECOND)
    assert desk.age(MANY) == 0
    desk.advance(2 * SECOND)  # 300 points
    assert desk.age(MANY) == 2
    assert desk.age(MANY) == 0
    assert list(hand.exchange(probe=["default"]).lanes["default"]) == [Lane("default", "", Band.B2)]
    desk.advance(3 * SECOND)  # 600 points
    assert desk.age(MANY) == 2
    assert climbed(desk, hand) == {Band.B3: ids}


@pytest.mark.parametrize(
    ("priority", "seconds", "band"),
    [
        (-1000, 9, Band.B0),
        (-1000, 60, Band.B1),
        (-5000, 60, Band.B1),
        (-600, 7, Band.B1),
        (0, 60, Band.B4),
        (250, 3, Band.B3),
        (500, 1, Band.B3),
        (500, 3, Band.B4),
    ],
)
def test_how_far_waiting_moves_a_job(
    desk: Desk, hand: Hand, priority: int, seconds: int, band: Band
) -> None:
    id = desk.one(priority=priority)
    desk.advance(seconds * SECOND)
    desk.age(MANY)
    assert climbed(desk, hand) == {band: [id]}


def test_a_lane_stays_in_order_when_older_jobs_come_up(desk: Desk, hand: Hand) -> None:
    old = desk.add(2)
    desk.advance(9 * SECOND)
    urgent = desk.add(2, priority=800)
    assert desk.age(MANY) == 2
    assert climbed(desk, hand) == {Band.B4: old + urgent}


def test_ageing_looks_at_the_head_of_each_lane_only(desk: Desk, hand: Hand) -> None:
    ids = desk.add(3)
    others = desk.add(3, tenant="t")
    desk.advance(3 * SECOND)
    assert desk.age(2) == 4
    assert climbed(desk, hand) == {Band.B1: ids[2:], Band.B2: ids[:2]}
    assert climbed(desk, hand, "t") == {Band.B1: others[2:], Band.B2: others[:2]}


def test_an_aged_job_that_comes_back_starts_from_its_own_band(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    desk.advance(MINUTE)
    desk.age(MANY)
    claim = hand.one(Lane("default", "", Band.B4))
    assert claim.priority == 0
    out = hand.settle(claim, Fate.NEXT)
    assert set(out.woken) == {LANE}
    desk.age(MANY)
    assert climbed(desk, hand) == {Band.B1: [id]}


def test_only_ready_jobs_of_open_queues_age(desk: Desk, hand: Hand) -> None:
    desk.one(delay_ns=HOUR)
    desk.one(queue="paused")
    desk.set_paused("paused", True)
    desk.one(queue="q")
    hand.one(Lane("q", "", Band.B1))
    desk.advance(MINUTE)
    assert desk.age(MANY) == 0


# --- promoting


def test_promoting_goes_by_time_and_stops_at_its_limit(desk: Desk, hand: Hand) -> None:
    late = desk.one(delay_ns=30 * MINUTE)
    early = desk.one(delay_ns=10 * MINUTE, tenant="t")
    middle = desk.one(delay_ns=20 * MINUTE)
    later = desk.one(delay_ns=90 * MINUTE)
    moved, lanes, next_due_ns = desk.promote(MANY)
    assert (moved, lanes) == (0, frozenset())
    assert desk.near(next_due_ns, 10 * MINUTE)
    desk.advance(40 * MINUTE)
    assert desk.promote(2) == (2, frozenset({LANE, Lane("default", "t", Band.B1)}), 0)
    ready, scheduled = Status.READY, Status.SCHEDULED
    assert desk.statuses([early, middle, late]) == [ready, ready, scheduled]
    moved, lanes, next_due_ns = desk.promote(2)
    assert (moved, lanes) == (1, frozenset({LANE}))
    assert desk.near(next_due_ns, 50 * MINUTE)
    assert desk.status(later) is scheduled


def test_timers_of_all_kinds_are_promoted(desk: Desk, hand: Hand) -> None:
    delayed = desk.one(delay_ns=MINUTE)
    retried = desk.one()
    hand.settle(hand.one(), Fate.RETRY, delay_ns=MINUTE)
    patient = waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.advance(MINUTE)
    assert desk.promote(MANY) == (3, frozenset({LANE}), None)
    claims = {claim.id: claim.timed_out for claim in hand.take()}
    assert claims == {delayed: False, retried: False, patient: True}


def test_waiting_for_its_time_does_not_age_a_job(desk: Desk, hand: Hand) -> None:
    id = desk.one(delay_ns=HOUR)
    desk.pass_and_promote(HOUR)
    assert desk.age(MANY) == 0
    assert climbed(desk, hand) == {Band.B1: [id]}


# --- retrying by hand


@pytest.mark.parametrize("end", [Status.FAILED, Status.DEAD, Status.CANCELLED])
def test_a_job_that_ended_badly_may_be_tried_again(desk: Desk, hand: Hand, end: Status) -> None:
    id = brought_to(desk, hand, end, step="first", state=b"1")
    assert desk.retry([id]) == [id]
    job = desk.job(id)
    assert (job.status, job.attempt, job.crashes) == (Status.READY, 0, 0)
    assert job.error is job.result is job.finished_wall_ns is None
    claim = hand.one(Lane("brought", "", Band.B1))
    assert (claim.id, claim.state, claim.attempt, claim.crashes) == (id, b"1", 0, 0)
    hand.settle(claim, Fate.DONE)
    assert desk.status(id) is Status.DONE


@pytest.mark.parametrize(
    "state",
    [Status.DONE, Status.SCHEDULED, Status.READY, Status.BLOCKED, Status.RUNNING, Status.WAITING],
)
def test_no_other_job_is_retried(desk: Desk, hand: Hand, state: Status) -> None:
    id = brought_to(desk, hand, state)
    before = desk.job(id)
    assert desk.retry([id, id + 1000]) == []
    assert desk.job(id) == before


def test_several_are_retried_together(desk: Desk, hand: Hand) -> None:
    failed = brought_to(desk, hand, Status.FAILED)
    done = brought_to(desk, hand, Status.DONE)
    cancelled = brought_to(desk, hand, Status.CANCELLED)
    assert sorted(desk.retry([cancelled, done, failed])) == [failed, cancelled]


def test_a_child_whose_parent_lives_is_not_retried(desk: Desk, hand: Hand) -> None:
    parent, (first, second) = spawned(desk, hand, *[NewJob(kind="part")] * 2)
    hand.settle(hand.one(), Fate.FAILED)
    assert desk.retry([first]) == []
    desk.cancel([parent])
    assert sorted(desk.retry([first, second])) == [first, second]


def test_a_step_that_failed_for_good_is_given_its_signals_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    assert desk.signal(id, "s", b"1", dedup="d").fresh
    assert desk.signal(id, "t", b"2").fresh
    hand.settle(hand.one(), Fate.FAILED)
    assert desk.signal(id, "s", b"3") == Delivered(None, False, None)
    assert desk.retry([id]) == [id]
    assert not desk.signal(id, "s", b"4", dedup="d").fresh
    claim = hand.one()
    assert (claim.step, payloads(claim)) == ("woken", [b"1"])
    hand.settle(claim, Fate.WAIT, names=("t",))
    assert payloads(hand.one()) == [b"2"]


@pytest.mark.parametrize("end", ["failed", "dead", "cancelled"])
def test_what_was_given_is_given_again_however_it_ended(desk: Desk, hand: Hand, end: str) -> None:
    id = waiting(desk, hand, "s", max_crashes=1)
    desk.signal(id, "s", b"1")
    if end == "dead":
        lost = desk.hand(ttl_ns=MINUTE)
        lost.one()
        desk.advance(HOUR)
        desk.reap(MANY)
    else:
        claim = hand.one()
        hand.settle(claim, Fate.FAILED if end == "failed" else Fate.CANCELLED)
    assert desk.status(id).word == end
    assert desk.retry([id]) == [id]
    assert payloads(hand.one()) == [b"1"]


def test_a_step_that_stopped_in_order_is_not_given_its_signals_again(
    desk: Desk, hand: Hand
) -> None:
    """It saved its state, as `ctx.stop` does, and has dealt with them; the others it has still."""
    id = waiting(desk, hand, "s")
    desk.signal(id, "s", b"1")
    desk.signal(id, "t", b"2")
    hand.settle(hand.one(), Fate.FAILED, error="nobody paid", state=b"2")
    assert desk.retry([id]) == [id]
    claim = hand.one()
    assert (claim.step, claim.state, payloads(claim)) == ("woken", b"2", [])
    hand.settle(claim, Fate.WAIT, names=("t",))
    assert payloads(hand.one()) == [b"2"]


def test_a_job_cancelled_while_it_waited_waits_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=10 * MINUTE)
    due_ns = desk.job(id).due_wall_ns
    desk.cancel([id])
    assert (desk.job(id).due_wall_ns, desk.job(id).waits_for) == (None, ())
    desk.advance(MINUTE)
    assert desk.retry([id]) == [id]
    job = desk.job(id)
    assert (job.status, job.waits_for, job.retries) == (Status.WAITING, ("s",), 1)
    assert desk.near(job.due_wall_ns, due_ns)
    desk.signal(id, "s", b"1")
    claim = hand.one()
    assert (payloads(claim), claim.timed_out) == ([b"1"], False)


def test_what_is_left_of_its_time_counts_on(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=10 * MINUTE)
    desk.cancel([id])
    desk.advance(HOUR)
    desk.retry([id])
    desk.pass_and_promote(0)
    assert hand.one().timed_out


def test_a_job_that_waited_without_a_timeout_does_so_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    desk.cancel([id])
    desk.retry([id])
    assert (desk.status(id), desk.job(id).due_wall_ns) == (Status.WAITING, None)


def test_a_signal_of_another_name_outlives_a_cancel(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s")
    desk.signal(id, "t", b"1", dedup="d")
    desk.cancel([id])
    desk.retry([id])
    assert not desk.signal(id, "t", b"2", dedup="d").fresh
    desk.signal(id, "s", b"3")
    hand.settle(hand.one(), Fate.WAIT, names=("t",))
    assert payloads(hand.one()) == [b"1"]


def test_a_timeout_that_a_step_failed_over_is_told_again(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.pass_and_promote(MINUTE)
    claim = hand.one()
    assert claim.timed_out
    hand.settle(claim, Fate.FAILED)
    desk.retry([id])
    assert hand.one().timed_out


def test_a_parent_waits_again_for_children_that_have_not_ended(desk: Desk, hand: Hand) -> None:
    parent, (child,) = spawned(desk, hand, NewJob(kind="part"))
    running = hand.one()
    assert desk.cancel([parent]) == Cancelled((parent,), (child,))
    assert desk.retry([parent]) == [parent]
    assert desk.status(parent) is Status.WAITING
    hand.settle(running, Fate.CANCELLED)
    claim = hand.one(PARENTS)
    assert [(one.id, one.status) for one in claim.children] == [(child, Status.CANCELLED)]


def test_a_parent_whose_children_have_ended_goes_on(desk: Desk, hand: Hand) -> None:
    parent, _ = spawned(desk, hand, NewJob(kind="part"))
    desk.cancel([parent])
    assert desk.retry([parent]) == [parent]
    assert hand.one(PARENTS).step == "joined"


def test_children_and_then_their_parent_may_be_retried_together(desk: Desk, hand: Hand) -> None:
    parent, (child,) = spawned(desk, hand, NewJob(kind="part"))
    desk.cancel([parent])
    assert desk.retry([child, parent]) == [child, parent]
    assert desk.statuses([child, parent]) == [Status.READY, Status.WAITING]
    hand.settle(hand.one(), Fate.DONE)
    assert hand.one(PARENTS).id == parent


@pytest.mark.parametrize("parent_first", [True, False])
def test_a_parent_that_failed_waits_for_children_that_are_retried_with_it(
    desk: Desk, hand: Hand, parent_first: bool
) -> None:
    """It had gone on when they ended, and failed because they had: all of them are taken up."""
    parent, children = spawned(desk, hand, NewJob(kind="part"), NewJob(kind="part"))
    for _ in children:
        hand.settle(hand.one(), Fate.FAILED)
    hand.settle(hand.one(PARENTS), Fate.FAILED)
    every = [parent, *children] if parent_first else [*children, parent]
    assert desk.retry(every) == every
    assert desk.status(parent) is Status.WAITING
    assert hand.take(lane=PARENTS) == []
    for _ in children:
        hand.settle(hand.one(), Fate.DONE)
    claim = hand.one(PARENTS)
    assert (claim.step, [one.status for one in claim.children]) == ("joined", [Status.DONE] * 2)


def test_a_parent_that_failed_waits_for_a_child_that_was_retried_before_it(
    desk: Desk, hand: Hand
) -> None:
    parent, (child,) = spawned(desk, hand, NewJob(kind="part"))
    hand.settle(hand.one(), Fate.FAILED)
    hand.settle(hand.one(PARENTS), Fate.FAILED)
    assert desk.retry([child]) == [child]
    running = hand.one()
    assert desk.retry([parent]) == [parent]
    assert desk.status(parent) is Status.WAITING
    hand.settle(running, Fate.DONE)
    assert hand.one(PARENTS).step == "joined"


@pytest.mark.parametrize("woken", ["signal", "timer"])
@pytest.mark.parametrize("order", ["parent first", "children first", "children before"])
def test_a_parent_that_failed_behind_a_wait_waits_for_children_that_were_retried(
    desk: Desk, hand: Hand, order: str, woken: str
) -> None:
    """It has what it waited for, and is given it again; no signal wakes it meanwhile."""
    parent, children = spawned(desk, hand, NewJob(kind="part"), NewJob(kind="part"))
    for _ in children:
        hand.settle(hand.one(), Fate.FAILED)
    hand.settle(hand.one(PARENTS), Fate.WAIT, step="then", names=("go",), delay_ns=HOUR)
    if woken == "signal":
        desk.signal(parent, "go", b"1")
    else:
        desk.pass_and_promote(HOUR)
    hand.settle(hand.one(PARENTS), Fate.FAILED)
    if order == "children before":
        assert desk.retry(children) == children
        assert desk.retry([parent]) == [parent]
    else:
        every = [parent, *children] if order == "parent first" else [*children, parent]
        assert desk.retry(every) == every
    job = desk.job(parent)
    assert (job.status, job.waits_for, job.due_wall_ns) == (Status.WAITING, (), None)
    hand.settle(hand.one(), Fate.DONE)
    for dedup in (None, "once"):
        assert desk.signal(parent, "other", b"2", dedup=dedup).woken is None
    assert hand.take(lane=PARENTS) == []
    hand.settle(hand.one(), Fate.DONE)
    claim = hand.one(PARENTS)
    given = ["go"] if woken == "signal" else []
    assert (claim.step, claim.timed_out) == ("then", woken == "timer")
    assert [one.name for one in claim.signals] == given
    assert [one.status for one in claim.children] == [Status.DONE] * 2


def test_a_parent_that_waits_for_retried_children_is_not_woken_by_its_signal(
    desk: Desk, hand: Hand
) -> None:
    """Nor after it was cancelled and retried once more: it waits for the same again."""
    parent, (child,) = spawned(desk, hand, NewJob(kind="part"))
    hand.settle(hand.one(), Fate.FAILED)
    hand.settle(hand.one(PARENTS), Fate.WAIT, step="then", names=("go",))
    desk.signal(parent, "go", b"1")
    hand.settle(hand.one(PARENTS), Fate.FAILED)
    desk.retry([child, parent])
    for payload, dedup in ((b"2", None), (b"3", "once")):
        assert desk.signal(parent, "go", payload, dedup=dedup).woken is None
        assert desk.status(parent) is Status.WAITING
    desk.cancel([parent])
    assert desk.retry([child, parent]) == [child, parent]
    assert desk.status(parent) is Status.WAITING
    hand.settle(hand.one(), Fate.DONE)
    claim = hand.one(PARENTS)
    assert [one.payload for one in claim.signals] == [b"1", b"2", b"3"]
    hand.settle(claim, Fate.WAIT, step="again", names=("go",))
    assert desk.job(parent).waits_for == ("go",)
    assert desk.signal(parent, "go", b"4").woken is not None


def test_a_retry_anew_is_ready_with_an_empty_inbox(desk: Desk, hand: Hand) -> None:
    id = waiting(desk, hand, "s", delay_ns=MINUTE)
    desk.signal(id, "t", b"1", dedup="d")
    desk.cancel([id])
    assert desk.retry([id], anew=True) == [id]
    assert desk.signal(id, "t", b"2", dedup="d").fresh
    claim = hand.one()
    assert (claim.timed_out, claim.signals) == (False, ())
    hand.settle(claim, Fate.WAIT, names=("t",))
    assert payloads(hand.one()) == [b"2"]


def test_it_is_counted_how_often_a_job_was_retried(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    for retries in range(3):
        claim = hand.one()
        assert (claim.retries, desk.job(id).retries) == (retries, retries)
        hand.settle(claim, Fate.NEXT, step="second")
        hand.settle(hand.one(), Fate.FAILED)
        assert desk.job(id).retries == retries
        assert desk.retry([id]) == [id]
    hand.settle(hand.one(), Fate.DONE)
    assert desk.job(id).retries == 3


def test_a_parent_is_not_retried_while_children_that_report_to_it_live(
    desk: Desk, hand: Hand
) -> None:
    """They belong to the attempt that is over; the next one would hear of them, or beside them
    start the same again."""
    new = NewJob(kind="part", notify="ended")
    parent, (child,) = spawned(desk, hand, new, names=["ended"], unique_key="one")
    running = hand.one()
    assert desk.cancel([parent]) == Cancelled((parent,), (child,))
    assert desk.retry([parent], anew=True) == []
    assert desk.status(parent) is Status.CANCELLED
    assert desk.find_by_key("one") is None
    hand.settle(running, Fate.DONE)
    assert desk.retry([parent], anew=True) == [parent]
    claim = hand.one(PARENTS)
    assert (claim.retries, claim.signals) == (1, ())
    hand.settle(claim, Fate.WAIT, names=("ended",))
    assert desk.status(parent) is Status.WAITING


@pytest.mark.parametrize("parent_first", [True, False])
def test_a_parent_and_a_child_that_reports_to_it_are_not_both_retried(
    desk: Desk, hand: Hand, parent_first: bool
) -> None:
    """The parent is, in whichever order they are given: it starts again what it needs."""
    new = NewJob(kind="part", notify="ended")
    parent, (child,) = spawned(desk, hand, new, names=["ended"])
    desk.cancel([parent])
    both = [parent, child] if parent_first else [child, parent]
    assert desk.retry(both, anew=True) == [parent]
    assert desk.statuses([parent, child]) == [Status.READY, Status.CANCELLED]


def test_the_first_reason_stands_for_a_job_that_came_back_to_its_lane(
    desk: Desk, hand: Hand
) -> None:
    """Its worker knew nothing of it, so that it waits for another to end it."""
    id = desk.one()
    hand.one()
    assert desk.cancel([id], reason="first") == Cancelled((), (id,))
    assert hand.beat(grace_ns=0).released == 1
    assert desk.status(id) is Status.READY
    assert desk.cancel([id], reason="second") == Cancelled((id,), ())
    assert desk.job(id).error == "first"


# --- what a worker does not know


SKILLED = Lane("default", "", Band.B1, "mail")


def test_a_job_that_is_set_aside_is_for_those_who_know_it(desk: Desk, hand: Hand) -> None:
    (first, second), other = desk.add(2), desk.one(step="other")
    out = hand.settle(hand.one(), Fate.RELEASE, skill="mail", error="waits for one who knows it")
    assert set(out.woken) == {SKILLED}
    assert list(hand.exchange(probe=["default"]).lanes["default"]) == [LANE, SKILLED]
    for id in (first, second):
        job = desk.job(id)
        assert (job.status, job.attempt) == (Status.READY, 0)
        assert (job.queue, job.tenant, job.error) == ("default", "", "waits for one who knows it")
    assert desk.job(other).error is None
    assert hand.ids() == [other]
    assert [job.id for job in desk.browse(Filter(tenant="", status=Status.READY))] == [2, 1]
    (queue,) = desk.queues()
    assert (queue.ready, queue.running) == (2, 1)
    one, two = hand.take(lane=SKILLED)
    assert (one.id, one.queue, one.tenant) == (first, "default", "")
    hand.settle(one, Fate.DONE)
    hand.settle(two, Fate.RETRY)  # it comes back where those are who know it
    assert hand.ids(lane=SKILLED) == [second]
    assert desk.job(first).error is None


def test_what_a_release_makes_ready_and_takes_along_is_told(desk: Desk, hand: Hand) -> None:
    desk.one(priority=800, partition_key="k")
    blocked = desk.one(partition_key="k")
    urgent = hand.one(LANE._replace(band=Band.B4))
    assert hand.take() == []
    out = hand.settle(urgent, Fate.RELEASE, skill="mail")
    assert set(out.woken) >= {SKILLED, SKILLED._replace(band=Band.B4)}
    assert hand.ids(lane=SKILLED) == [blocked]


def test_only_the_head_of_each_lane_is_set_aside(desk: Desk, hand: Hand) -> None:
    ids = desk.add(ASIDE_MAX + 3)
    theirs = desk.one(tenant="t")
    urgent = desk.one(priority=800)
    hand.settle(hand.one(), Fate.RELEASE, skill="mail")
    assert hand.ids() == ids[ASIDE_MAX + 1 :]
    assert hand.ids(lane=Lane("default", "t", Band.B1)) == [theirs]
    assert hand.ids(lane=Lane("default", "", Band.B4)) == []
    assert hand.ids(lane=Lane("default", "", Band.B4, "mail")) == [urgent]


def test_a_job_that_was_set_aside_ages_is_cancelled_and_retried(desk: Desk, hand: Hand) -> None:
    first, second = desk.add(2)
    hand.settle(hand.one(), Fate.RELEASE, skill="mail")
    desk.advance(MINUTE)
    assert desk.age(MANY) == 2
    assert desk.cancel([second], reason="never") == Cancelled((second,), ())
    assert desk.retry([second]) == [second]
    assert hand.ids(lane=SKILLED._replace(band=Band.B4)) == [first]
    assert hand.ids(lane=SKILLED) == [second]


@pytest.mark.parametrize(
    ("fate", "fields"),
    [
        (Fate.NEXT, {}),
        (Fate.WAIT, {"names": ("go",)}),
        (Fate.SPAWN, {"children": (NewJob(kind="part", queue="parts"),)}),
        (Fate.SPAWN, {"names": ("go",), "delay_ns": MINUTE}),
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_job_that_goes_on_may_be_for_anybody_again(
    desk: Desk, hand: Hand, fate: Fate, fields: dict[str, Any], keyed: bool
) -> None:
    """What it was set aside for lies behind it. Without a word of that it stays where it is."""
    key = "k" if keyed else None
    home = Lane("default", "t", Band.B2)
    aside = home._replace(skill="step")
    for skill, lane in (("", home), (None, aside)):
        id = desk.one(tenant="t", priority=300, partition_key=key)
        hand.settle(hand.one(home), Fate.RELEASE, skill="step")
        claim = hand.one(aside)
        assert (claim.id, claim.skill) == (id, "step")
        hand.settle(claim, fate, step="then", skill=skill, **fields)
        if fate is Fate.SPAWN and "children" in fields:
            hand.settle(hand.one(Lane("parts", "", Band.B1)), Fate.DONE)
        elif fate is not Fate.NEXT:
            assert desk.signal(id, "go", b"1").woken == lane
        assert next(iter(hand.exchange(probe=["default"]).lanes["default"])) == lane
        claim = hand.one(lane)
        assert (claim.id, claim.step, claim.skill) == (id, "then", lane.skill)
        hand.settle(claim, Fate.DONE)


# --- progress


def test_progress_of_running_jobs_can_be_seen(desk: Desk, hand: Hand) -> None:
    ids = desk.add(2)
    hand.take()
    desk.progress(hand.worker, {ids[0]: b"0.1", ids[1]: b"0.2"})
    desk.progress(hand.worker, {ids[0]: b"0.3"})
    assert [desk.job(id).progress for id in ids] == [b"0.3", b"0.2"]


def test_progress_of_others_is_not_ours_to_tell(desk: Desk, hand: Hand) -> None:
    ready, running = desk.one(queue="q"), desk.one()
    desk.hand().one()
    desk.progress(hand.worker, {ready: b"1", running: b"1", running + 1000: b"1"})
    assert desk.job(ready).progress is desk.job(running).progress is None


# --- looking


def test_jobs_are_browsed_newest_first_page_by_page(desk: Desk) -> None:
    ids = desk.add(5)[::-1]
    page = [job.id for job in desk.browse(Filter(limit=2))]
    assert page == ids[:2]
    page = [job.id for job in desk.browse(Filter(limit=2, before=page[-1]))]
    assert page == ids[2:4]
    assert [job.id for job in desk.browse(Filter(limit=2, before=page[-1]))] == ids[4:]
    assert desk.browse(Filter(before=ids[-1])) == []


def test_living_and_ended_jobs_are_browsed_as_one_list(desk: Desk, hand: Hand) -> None:
    ids = desk.add(6)
    for claim in hand.take(4)[::2]:
        hand.settle(claim, Fate.DONE)
    assert [job.id for job in desk.browse(Filter())] == ids[::-1]
    assert [job.id for job in desk.browse(Filter(limit=3, before=ids[4]))] == ids[3:0:-1]


def test_browsing_filters_by_what_jobs_are(desk: Desk, hand: Hand) -> None:
    desk.enqueue([NewJob(kind="mail", queue="a"), NewJob(kind="sum", queue="a", tenant="t")])
    mail, total = sorted(job.id for job in desk.browse(Filter()))
    other = desk.one(queue="b")
    child = desk.one(queue="b", parent=other)

    def found(**wanted: Any) -> list[int]:
        return [job.id for job in desk.browse(Filter(**wanted))]

    assert found(queue="a") == [total, mail]
    assert found(kind="mail") == [child, other, mail]
    assert found(tenant="t") == [total]
    assert found(tenant="") == [child, other, mail]
    assert found(parent=other) == [child]
    assert found(queue="a", kind="mail") == [mail]
    assert found(queue="nowhere") == []


@pytest.mark.parametrize("state", list(Status))
def test_browsing_filters_by_state(desk: Desk, hand: Hand, state: Status) -> None:
    ids = {one: brought_to(desk, hand, one, queue=f"q{one.value}") for one in Status}
    found = desk.browse(Filter(status=state))
    assert ids[state] in [job.id for job in found]
    assert {job.status for job in found} == {state}
    assert [job.id for job in desk.browse(Filter(status=state, queue=f"q{state.value}"))] == [
        ids[state]
    ]


def test_queues_count_their_jobs(desk: Desk, hand: Hand) -> None:
    for state in sorted(Status, key=lambda state: state is Status.READY):  # or others take it
        brought_to(desk, hand, state, queue="q")
    desk.add(2, queue="q")
    desk.set_limits("q", Limits(concurrency=100, burst=2))
    by_name = {state.name: state for state in desk.queues()}
    assert set(by_name) == {"q", "holder of q"}
    state = by_name["q"]
    assert (state.ready, state.scheduled, state.waiting) == (3, 1, 1)
    assert (state.blocked, state.running) == (1, 1)
    assert not state.paused
    assert state.limits == Limits(concurrency=100, burst=2)
    assert by_name["holder of q"].running == 1
    assert by_name["holder of q"].limits == Limits()


# --- pruning


def test_jobs_that_ended_long_ago_are_forgotten(desk: Desk, hand: Hand) -> None:
    old = [brought_to(desk, hand, end) for end in sorted(ENDED, key=lambda end: end.value)]
    desk.advance(HOUR)
    recent = brought_to(desk, hand, Status.DONE)
    living = [
        brought_to(desk, hand, state)
        for state in (Status.SCHEDULED, Status.RUNNING, Status.WAITING, Status.READY)
    ]
    desk.advance(30 * MINUTE)
    assert desk.prune(2 * HOUR) == 0
    assert desk.prune(HOUR) == len(old)
    assert [desk.find(id) for id in old] == [None] * len(old)
    assert [job.id for job in desk.browse(Filter())] == sorted([recent, *living], reverse=True)
    assert desk.retry(old) == []


def test_failures_have_a_retention_of_their_own(desk: Desk, hand: Hand) -> None:
    ends = sorted(ENDED, key=lambda end: end.value)
    ids = {end: brought_to(desk, hand, end) for end in ends}
    desk.advance(10 * DAY)
    assert desk.prune(DAY, failed_older_than_ns=30 * DAY) == 2
    assert desk.find(ids[Status.DONE]) is desk.find(ids[Status.CANCELLED]) is None
    assert desk.status(ids[Status.FAILED]) is Status.FAILED
    assert desk.status(ids[Status.DEAD]) is Status.DEAD
    assert {job.id for job in desk.browse(Filter(status=Status.FAILED))} == {ids[Status.FAILED]}
    assert desk.retry([ids[Status.DEAD]]) == [ids[Status.DEAD]]
    desk.advance(20 * DAY)
    assert desk.prune(DAY, failed_older_than_ns=30 * DAY) == 1
    assert desk.find(ids[Status.FAILED]) is None


def test_a_failed_child_is_kept_for_its_living_parent(desk: Desk, hand: Hand) -> None:
    _, (child,) = spawned(desk, hand, NewJob(kind="part"), names=("never",))
    hand.settle(hand.one(), Fate.FAILED, error="broke")
    desk.advance(10 * DAY)
    assert desk.prune(DAY, failed_older_than_ns=DAY) == 0
    assert desk.job(child).error == "broke"


@pytest.mark.parametrize("exact", [True, False])
def test_retention_is_kept_whatever_day_it_is(desk: Desk, hand: Hand, exact: bool) -> None:
    """Also when nobody asks for it to be exact: a few jobs are no reason to keep them."""
    old = brought_to(desk, hand, Status.DONE)
    desk.advance(MINUTE)
    recent = brought_to(desk, hand, Status.DONE)
    assert desk.prune(MINUTE, exact=exact) == 1
    assert desk.find(old) is None
    assert desk.status(recent) is Status.DONE


def test_what_a_living_parent_may_still_read_is_kept(desk: Desk, hand: Hand) -> None:
    parent, children = spawned(desk, hand, *[NewJob(kind="part")] * 2)
    hand.settle(hand.one(), Fate.DONE, result=b"1")
    desk.advance(10 * DAY)
    assert desk.prune(DAY) == 0
    hand.settle(hand.one(), Fate.DONE, result=b"2")
    claim = hand.one(PARENTS)
    assert [child.result for child in claim.children] == [b"1", b"2"]
    hand.settle(claim, Fate.DONE)
    desk.advance(10 * DAY)
    assert desk.prune(DAY) == 3
    assert desk.find(parent) is desk.find(children[0]) is None


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "failed"])
def test_what_a_parent_that_may_be_retried_may_read_is_kept(
    desk: Desk, hand: Hand, cancelled: bool
) -> None:
    """Retried after weeks, a machine finds its children and what they brought."""
    parent, children = spawned(desk, hand, *[NewJob(kind="part")] * 2)
    for result in (b"1", b"2"):
        hand.settle(hand.one(), Fate.DONE, result=result)
    desk.advance(8 * DAY)
    if cancelled:
        desk.cancel([parent])
    else:
        hand.settle(hand.one(PARENTS), Fate.FAILED, error="broke")
        desk.advance(8 * DAY)
    for exact in (True, False):
        assert desk.prune(4 * DAY, failed_older_than_ns=10 * DAY, exact=exact) == 0
    assert desk.retry([parent]) == [parent]
    claim = hand.one(PARENTS)
    assert [child.result for child in claim.children] == [b"1", b"2"]
    hand.settle(claim, Fate.FAILED, error="broke again")
    desk.advance(4 * DAY)
    assert desk.prune(4 * DAY) == 3
    assert desk.find(parent) is desk.find(children[0]) is None


def test_a_family_that_ended_badly_is_forgotten_with_one_call(desk: Desk, hand: Hand) -> None:
    """Children go with the parent that might have read them, however deep it goes."""
    parent, (child,) = spawned(desk, hand, NewJob(kind="part"))
    claim = hand.one()
    assert claim.id == child
    hand.settle(claim, Fate.SPAWN, step="then", children=(NewJob(kind="part of a part"),))
    (grandchild,) = (job.id for job in desk.browse(Filter(parent=child)))
    desk.advance(DAY)
    hand.settle(hand.one(), Fate.FAILED, error="broke")
    desk.cancel([parent])
    desk.advance(DAY)
    assert desk.prune(3 * DAY, failed_older_than_ns=DAY) == 0
    assert desk.prune(DAY) == 3
    assert desk.find(parent) is desk.find(child) is desk.find(grandchild) is None


# --- lasting


def test_what_was_committed_is_there_after_a_restart(desk: Desk, hand: Hand) -> None:
    if not desk.rig.lasting:
        pytest.skip("this store ends with its process")
    for state in Status:
        brought_to(desk, hand, state, queue=f"q{state.value}", unique_key=f"u{state.value}")
    desk.one(partition_key="free", queue="q")
    desk.signal(desk.one(queue="signalled", delay_ns=MINUTE), "s", b"1")
    desk.enqueue([], cursor=Cursor("r", 2, 7))
    desk.set_paused("q", True)
    desk.set_limits("*", Limits(concurrency=50, rate_per_s=2.5, burst=5))
    before = desk.browse(Filter(limit=MANY)), desk.queues(), desk.cursor("r")
    desk.run(desk.rig.reopen())
    assert (desk.browse(Filter(limit=MANY)), desk.queues(), desk.cursor("r")) == before
    assert desk.register("w", MINUTE) > hand.worker
    assert hand.beat(grace_ns=HOUR).alive
    assert desk.one() > max(job.id for job in before[0])


def test_a_claim_can_be_settled_after_a_restart(desk: Desk, hand: Hand) -> None:
    if not desk.rig.lasting:
        pytest.skip("this store ends with its process")
    desk.one()
    claim = hand.one()
    desk.run(desk.rig.reopen())
    hand.settle(claim, Fate.DONE)
    desk.run(desk.rig.reopen())
    assert desk.status(claim.id) is Status.DONE


def test_discard_forgets_what_ended_badly_and_nothing_else(desk: Desk, hand: Hand) -> None:
    done, failed, ready = desk.add(3)
    first, second = hand.take(2)
    hand.settle(first, Fate.DONE, result=b"1")
    hand.settle(second, Fate.FAILED, error="no")
    assert desk.discard([done, failed, ready, 99]) == [failed]
    assert desk.find(failed) is None
    assert desk.discard([failed]) == []
    assert desk.statuses([done, ready]) == [Status.DONE, Status.READY]


@pytest.mark.parametrize("window_ns", [0, HOUR])
def test_the_unique_keys_of_discarded_jobs_go_when_they_stand_for_nothing(
    desk: Desk, window_ns: int
) -> None:
    names = [f"u{number}" for number in range(10)]
    ids = [desk.one(unique_key=name, window_ns=window_ns) for name in names]
    desk.cancel(ids)
    assert desk.discard(ids[1:]) == ids[1:]
    assert desk.prune(HOUR) == 0
    if window_ns:
        assert [one.fresh for one in desk.enqueue([NewJob(kind="mail", unique_key="u9")])] == [
            False
        ]
    desk.advance(window_ns)
    assert desk.prune(0) == 1
    assert desk.rig.unique_keys() == []


def test_a_child_that_its_parent_may_still_read_is_not_discarded(desk: Desk, hand: Hand) -> None:
    desk.one()
    parent = hand.one()
    children = (NewJob(kind="child"), NewJob(kind="child"))
    hand.settle(parent, Fate.SPAWN, step="then", children=children)
    child, _ = hand.take(2)
    hand.settle(child, Fate.FAILED, error="no")
    assert desk.discard([child.id]) == []
    desk.cancel([parent.id])
    assert desk.discard([child.id]) == [child.id]


def test_a_child_that_is_not_retried_does_not_take_its_key_back(desk: Desk, hand: Hand) -> None:
    desk.one()
    parent = hand.one()
    child = NewJob(kind="child", unique_key="u", window_ns=HOUR)
    hand.settle(parent, Fate.SPAWN, step="then", children=(child, NewJob(kind="child")))
    first, _ = hand.take(2)
    hand.settle(first, Fate.FAILED, error="no")
    desk.advance(HOUR)
    assert desk.retry([first.id]) == []
    (again,) = desk.enqueue([NewJob(kind="child", unique_key="u")])
    assert again.fresh


# --- attempts


def told(attempts: Sequence[JobAttempt]) -> list[tuple[int, str | None, str | None]]:
    return [(one.number, one.fate and one.fate.value, one.error) for one in attempts]


def test_an_attempt_that_failed_is_told_with_its_times_worker_and_error(
    desk: Desk, hand: Hand
) -> None:
    id = desk.one()
    assert desk.attempts(id) == []
    began = desk.rig.wall_ns()
    claim = hand.one()
    (running,) = desk.attempts(id)
    assert (running.number, running.step, running.worker) == (1, "run", hand.worker)
    assert (running.fate, running.ended_wall_ns, running.error) == (None, None, None)
    desk.advance(MINUTE)
    hand.settle(claim, Fate.RETRY, step="run", error="it broke", delay_ns=MINUTE)
    (one,) = desk.attempts(id)
    assert (one.number, one.step, one.worker) == (1, "run", hand.worker)
    assert (one.fate, one.error, one.log_bytes) == (AttemptFate.FAILED, "it broke", 0)
    assert desk.near(one.started_wall_ns, began)
    assert desk.near(one.ended_wall_ns, began + MINUTE)
    assert desk.near(running.started_wall_ns, began)
    assert desk.job(id).runs == 1


def test_a_job_that_is_done_tells_of_its_last_attempt(desk: Desk, hand: Hand) -> None:
    """That costs it no row of its own."""
    id = desk.one()
    began = desk.rig.wall_ns()
    claim = hand.one()
    desk.advance(MINUTE)
    hand.settle(claim, Fate.DONE, result=b"7")
    (one,) = desk.attempts(id)
    assert (one.number, one.step, one.worker) == (1, "run", hand.worker)
    assert (one.fate, one.error) == (AttemptFate.DONE, None)
    assert desk.near(one.started_wall_ns, began)
    assert desk.near(one.ended_wall_ns, began + MINUTE)
    job = desk.job(id)
    assert (job.runs, job.ran_by, job.worker) == (1, hand.worker, None)


def test_attempts_that_went_well_are_counted_and_left_out(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    for fate, fields in (
        (Fate.NEXT, {"step": "second"}),
        (Fate.RETRY, {"step": "second", "counts": False}),  # it came back later by itself
        (Fate.SPAWN, {"step": "third"}),
        (Fate.RETRY, {"step": "third", "error": "no"}),
        (Fate.DONE, {}),
    ):
        hand.settle(hand.one(), fate, **fields)
    assert told(desk.attempts(id)) == [(4, "failed", "no"), (5, "done", None)]
    assert [one.step for one in desk.attempts(id)] == ["third", "third"]
    assert desk.job(id).runs == 5


def test_what_was_not_run_is_no_attempt(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.RELEASE)
    claim = hand.one()
    desk.cancel([id])
    hand.settle(claim, Fate.RELEASE)
    assert desk.status(id) is Status.CANCELLED
    assert (desk.attempts(id), desk.job(id).runs) == ([], 0)


@pytest.mark.parametrize("fate", [Fate.NEXT, Fate.WAIT, Fate.RETRY, Fate.CANCELLED])
def test_a_run_that_was_cancelled_is_told_with_the_reason(
    desk: Desk, hand: Hand, fate: Fate
) -> None:
    id = desk.one()
    claim = hand.one()
    desk.cancel([id], reason="no more")
    error = "no more" if fate is Fate.CANCELLED else "it broke"
    hand.settle(claim, fate, step="then", names=("go",), error=error)
    assert told(desk.attempts(id)) == [(1, "cancelled", "no more")]
    assert desk.job(id).runs == 1


def test_an_attempt_whose_worker_died_is_told_as_lost(desk: Desk, hand: Hand) -> None:
    id = desk.one(max_crashes=2)
    workers = []
    for _ in range(2):
        late = desk.hand(ttl_ns=MINUTE)
        workers.append(late.worker)
        late.one()
        desk.advance(2 * MINUTE)
        desk.reap(MANY)
    assert desk.status(id) is Status.DEAD
    lost = desk.attempts(id)
    assert told(lost) == [(1, "lost", WORKER_DIED), (2, "lost", WORKER_DIED)]
    assert [one.worker for one in lost] == workers
    assert desk.near(lost[1].ended_wall_ns, (lost[1].started_wall_ns or 0) + 2 * MINUTE)


def test_a_claim_that_the_store_lost_is_an_attempt(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    claim = hand.one()
    hand.beat(grace_ns=0)  # the store gives it back: to it, the worker does not know of it
    assert desk.status(id) is Status.READY
    desk.count_lost(hand.worker, [claim])
    desk.count_lost(hand.worker, [claim])
    assert told(desk.attempts(id)) == [(1, "lost", CLAIM_LOST)]
    assert desk.job(id).crashes == 1


def test_attempts_of_before_a_retry_by_hand_are_told(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    hand.settle(hand.one(), Fate.FAILED, error="no")
    assert desk.retry([id]) == [id]
    assert told(desk.attempts(id)) == [(1, "failed", "no")]
    hand.settle(hand.one(), Fate.DONE)
    assert told(desk.attempts(id)) == [(1, "failed", "no"), (2, "done", None)]


def test_of_many_attempts_the_last_are_kept(desk: Desk, hand: Hand) -> None:
    id = desk.one(max_attempts=MANY)
    other = desk.one(queue="other")
    for number in range(ATTEMPTS_MAX + 3):
        hand.settle(hand.one(), Fate.RETRY, step="run", error=f"no {number}")
    hand.settle(hand.one(Lane("other", "", Band.B1)), Fate.FAILED, error="no")
    kept = desk.attempts(id)
    assert [one.number for one in kept] == list(range(4, ATTEMPTS_MAX + 4))
    assert kept[-1].error == f"no {ATTEMPTS_MAX + 2}"
    assert len(desk.attempts(other)) == 1


def test_a_long_error_and_a_long_log_are_kept_from_their_end(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    log = b"x" + b"y" * LOG_BYTES_MAX
    hand.settle(hand.one(), Fate.FAILED, error="x" + "y" * ERROR_MAX, log=log)
    (one,) = desk.attempts(id)
    assert (one.error, one.log_bytes) == ("y" * ERROR_MAX, LOG_BYTES_MAX)
    assert desk.attempt_log(id, 1) == log[1:]


@pytest.mark.parametrize("fate", [Fate.DONE, Fate.NEXT, Fate.FAILED, Fate.RETRY])
def test_an_attempt_that_logged_something_is_kept_with_its_log(
    desk: Desk, hand: Hand, fate: Fate
) -> None:
    id = desk.one()
    quiet = desk.one()
    claims = hand.take()
    fields: dict[str, Any] = {"step": "run", "fate": fate}
    hand.exchange(
        [
            Settlement(claim=claims[0], log="größer".encode(), **fields),
            Settlement(claim=claims[1], **fields),
        ],
        [Want(Lane("nothing", "", Band.B1), 1)],
    )
    (one,) = desk.attempts(id)
    assert (one.number, one.log_bytes) == (1, 8)
    assert desk.attempt_log(id, 1) == "größer".encode()
    assert desk.attempt_log(id, 2) is None
    assert desk.attempt_log(quiet, 1) is None
    assert desk.job(id).runs == desk.job(quiet).runs == 1


def test_an_attempt_of_a_stale_claim_is_not_told(desk: Desk, hand: Hand) -> None:
    id = desk.one()
    claim = hand.one()
    hand.settle(claim, Fate.RETRY, step="run", error="once")
    assert hand.exchange([Settlement(claim=claim, fate=Fate.FAILED, error="twice")]).stale == [id]
    assert told(desk.attempts(id)) == [(1, "failed", "once")]


def test_attempts_go_with_their_job(desk: Desk, hand: Hand) -> None:
    pruned, discarded = desk.add(2)
    for claim in hand.take():
        hand.settle(claim, Fate.FAILED, error="no", log=b"it began")
    assert desk.discard([discarded]) == [discarded]
    assert desk.attempts(discarded) == []
    assert len(desk.attempts(pruned)) == 1
    desk.advance(HOUR)
    assert desk.prune(MINUTE) == 1
    assert desk.attempts(pruned) == []
    assert desk.attempts(10**9) == []


# --- workers and what they know

MAIL = KnownKind("mail", 1, ("run",))


def test_workers_are_told_with_what_they_offer(desk: Desk) -> None:
    at = desk.rig.wall_ns()
    offer = Offer(queues={"default": 10, "q": 2}, kinds=(MAIL,), schemas={("mail", 1): b"{}"})
    id = desk.register("host:1", HOUR, offer)
    silent = desk.register("host:2", MINUTE)
    one, two = desk.workers()
    assert (one.id, one.name, one.alive, one.running) == (id, "host:1", True, 0)
    assert (dict(one.queues), tuple(one.kinds)) == ({"default": 10, "q": 2}, (MAIL,))
    assert desk.near(one.started_wall_ns, at)
    assert desk.near(one.beat_wall_ns, at)
    assert desk.near(one.expires_wall_ns, at + HOUR)
    assert (two.id, two.queues, two.kinds) == (silent, None, None)
    desk.add(3)
    assert len(desk.exchange(id, 1, (), [Want(LANE, 2)]).claims) == 2
    desk.advance(2 * MINUTE)
    heart = desk.rig.store.heart()
    assert heart.beat(id, {}, HOUR, HOUR).alive
    heart.close()
    one, two = desk.workers()
    assert (one.running, one.alive, two.alive) == (2, True, False)
    assert desk.near(one.beat_wall_ns, at + 2 * MINUTE)
    assert desk.near(one.started_wall_ns, at)
    desk.reap(MANY)
    desk.unregister(id)
    (left,) = desk.workers()  # it has jobs, which are the reaper's
    assert (left.id, left.alive) == (id, False)
    desk.reap(MANY)
    assert desk.workers() == []


def test_kinds_are_told_with_their_schema_and_who_knows_them(desk: Desk) -> None:
    assert desk.kinds() == []
    old = Offer(kinds=(MAIL,), schemas={("mail", 1): b'{"type":"object"}'})
    desk.register("old", MINUTE, old)
    desk.advance(SECOND)
    at = desk.rig.wall_ns()
    second = KnownKind("mail", 2, ("a", "b"))
    new = Offer(kinds=(second, MAIL), schemas={("mail", 1): b'{"type":"null"}'})
    worker = desk.register("new", HOUR, new)
    one, two = desk.kinds()
    assert (one.name, one.version, one.schema, one.workers) == ("mail", 1, b'{"type":"null"}', 2)
    assert (two.name, two.version, two.schema, two.workers) == ("mail", 2, None, 1)
    assert desk.near(one.seen_wall_ns, at)
    desk.advance(2 * MINUTE)
    assert [kind.workers for kind in desk.kinds()] == [1, 1]
    desk.unregister(worker)
    assert [kind.workers for kind in desk.kinds()] == [0, 0]


# --- by trace and by time


def test_browsing_filters_by_trace(desk: Desk, hand: Hand) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    mine = [desk.one(trace=f"00-{trace}-{span}-01") for span in ("00f067aa0ba902b7", "1" * 16)]
    desk.one(trace=f"00-{'1' * 32}-{'1' * 16}-01")
    desk.one()
    hand.settle(hand.one(), Fate.DONE)
    found = desk.browse(Filter(trace=trace))
    assert [(job.id, job.status) for job in found] == [
        (mine[1], Status.READY),
        (mine[0], Status.DONE),
    ]
    assert desk.browse(Filter(trace="2" * 32)) == []
    assert [job.id for job in desk.browse(Filter(trace=trace, status=Status.DONE))] == mine[:1]


def test_browsing_filters_by_the_time_of_enqueueing(desk: Desk, hand: Hand) -> None:
    """Of jobs that ended and of those that live, with gaps where some were forgotten."""
    start = desk.rig.wall_ns()
    ids = []
    for _ in range(9):
        ids += desk.add(3)
        desk.advance(10 * MINUTE)
    for claim in hand.take(10):
        hand.settle(claim, Fate.FAILED if claim.id in ids[3:8] else Fate.DONE, error="no")
    assert len(desk.discard(ids[3:8])) == 5

    def found(since: int | None, until: int | None, **only: Any) -> list[int]:
        since_ns = None if since is None else start + since * 10 * MINUTE
        until_ns = None if until is None else start + until * 10 * MINUTE
        jobs = desk.browse(Filter(since_wall_ns=since_ns, until_wall_ns=until_ns, **only))
        return [job.id for job in jobs][::-1]

    left = [*ids[:3], *ids[8:]]
    assert found(None, None) == left
    for since in (None, 0, 1, 2, 3, 5, 8, 9, 20):
        for until in (None, 0, 1, 2, 3, 4, 8, 9, 20):
            first, last = since or 0, 9 if until is None else until
            wanted = set(ids[3 * first : 3 * last])
            assert found(since, until) == [id for id in left if id in wanted], (since, until)
    assert found(0, 9, status=Status.DONE) == [*ids[:3], *ids[8:10]]
    assert found(2, None, limit=4) == left[-4:]


# --- why a job waits


def why(desk: Desk, id: int) -> Why | None:
    reason: WaitReason | None = desk.why_waits(id)
    return None if reason is None else reason.why


@pytest.fixture
def staff(desk: Desk) -> Hand:
    """A worker that says what it works on and knows."""
    hand = desk.hand()
    desk.unregister(hand.worker)
    offer = Offer(queues={"default": 10}, kinds=(MAIL,))
    hand.worker = desk.register("staff", 30 * DAY, offer)
    return hand


def test_a_job_waits_for_its_turn_and_then_no_more(desk: Desk, staff: Hand) -> None:
    id = desk.one()
    assert desk.why_waits(id) == WaitReason(why=Why.TURN)
    claim = staff.one()
    assert desk.why_waits(id) is None
    staff.settle(claim, Fate.DONE)
    assert desk.why_waits(id) is None
    assert desk.why_waits(10**9) is None


def test_a_job_waits_for_its_time_and_after_a_failure_to_be_tried_again(
    desk: Desk, staff: Hand
) -> None:
    id = desk.one(delay_ns=HOUR)
    due = desk.rig.wall_ns() + HOUR
    reason = desk.why_waits(id)
    assert reason.why is Why.TIMER
    assert desk.near(reason.until_wall_ns, due)
    desk.pass_and_promote(HOUR)
    staff.settle(staff.one(), Fate.RETRY, step="run", error="no", delay_ns=MINUTE)
    reason = desk.why_waits(id)
    assert reason.why is Why.BACKOFF
    assert desk.near(reason.until_wall_ns, due + MINUTE)


def test_a_job_waits_for_signals(desk: Desk, staff: Hand) -> None:
    id = desk.one()
    staff.settle(staff.one(), Fate.WAIT, step="run", names=("pay", "stop"), delay_ns=HOUR)
    reason = desk.why_waits(id)
    assert (reason.why, reason.names) == (Why.SIGNAL, ("pay", "stop"))
    assert desk.near(reason.until_wall_ns, desk.rig.wall_ns() + HOUR)
    desk.signal(id, "pay", b"1")
    assert why(desk, id) is Why.TURN


def test_a_job_waits_for_its_children(desk: Desk, staff: Hand) -> None:
    parent = desk.one()
    kids = tuple(NewJob(kind="mail") for _ in range(3))
    staff.settle(staff.one(), Fate.SPAWN, step="run", children=kids)
    assert desk.why_waits(parent) == WaitReason(why=Why.CHILDREN, children=3)
    staff.settle(staff.one(), Fate.DONE)
    assert desk.why_waits(parent).children == 2


def test_a_job_waits_for_the_job_that_has_its_key(desk: Desk, staff: Hand) -> None:
    first, second, third = desk.add(3, partition_key="k")
    other = desk.one(partition_key="other")
    assert why(desk, first) is why(desk, second) is Why.TURN
    claims = staff.take()
    assert [claim.id for claim in claims] == [first, other]
    for id in (second, third):
        assert desk.why_waits(id) == WaitReason(why=Why.KEY, holder=first)
    staff.settle(claims[0], Fate.RETRY, step="run", error="no", delay_ns=HOUR)
    assert why(desk, second) is Why.TURN


def test_a_job_in_strict_order_waits_for_the_first_of_its_key(desk: Desk, staff: Hand) -> None:
    first, second = desk.add(2, partition_key="k", strict=True)
    staff.settle(staff.one(), Fate.RETRY, step="run", error="no", delay_ns=HOUR)
    assert desk.why_waits(second) == WaitReason(why=Why.KEY, holder=first)
    desk.cancel([first])
    assert why(desk, second) is Why.TURN


def test_a_job_waits_while_its_queue_is_paused(desk: Desk, staff: Hand) -> None:
    id = desk.one()
    desk.set_paused("default", True)
    assert desk.why_waits(id) == WaitReason(why=Why.PAUSED, queue="default")
    desk.set_paused("default", False)
    assert why(desk, id) is Why.TURN


@pytest.mark.parametrize("queue", ["default", "*"])
def test_a_job_waits_for_a_limit(desk: Desk, staff: Hand, queue: str) -> None:
    id = desk.add(3)[-1]
    desk.set_limits(queue, Limits(concurrency=2))
    assert why(desk, id) is Why.TURN
    assert len(staff.take()) == 2
    assert desk.why_waits(id) == WaitReason(why=Why.LIMIT, queue=queue)
    desk.set_limits(queue, Limits(rate_per_s=1 / 60, burst=1))
    assert why(desk, id) is Why.TURN
    assert staff.ids() == [id]
    later = desk.one()
    reason = desk.why_waits(later)
    assert (reason.why, reason.queue) == (Why.LIMIT, queue)
    assert desk.near(reason.wait_ns, MINUTE) or abs(reason.wait_ns - MINUTE) < 1000


def test_a_job_waits_for_a_worker_that_works_on_its_queue_and_knows_its_kind(desk: Desk) -> None:
    id = desk.one()
    assert desk.why_waits(id) == WaitReason(why=Why.NO_WORKER, queue="default")
    desk.register("elsewhere", HOUR, Offer(queues={"q": 1}, kinds=(MAIL,)))
    assert why(desk, id) is Why.NO_WORKER
    for other in (KnownKind("mail", 2, ("run",)), KnownKind("mail", 1, ("walk",))):
        desk.register("old", HOUR, Offer(queues={"default": 1}, kinds=(other,)))
    assert desk.why_waits(id) == WaitReason(why=Why.UNKNOWN_KIND, queue="default")
    desk.register("new", MINUTE, Offer(queues={"default": 1}, kinds=(MAIL,)))
    assert why(desk, id) is Why.TURN
    desk.advance(2 * MINUTE)
    assert why(desk, id) is Why.UNKNOWN_KIND
    desk.register("of an older release", MINUTE)  # it does not say what it knows
    assert why(desk, id) is Why.TURN

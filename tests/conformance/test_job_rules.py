"""What a store decides about a job is what `jobs/moves.py` decides, whatever the facts are.

Each test makes every combination of facts that a rule looks at, by calls of the store, lets the
event happen, and asks the pure function what was to come of it.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from fairway.core.priority import Band
from fairway.jobs import moves
from fairway.jobs.job import Fate, NewJob, ReadyLine, Status
from fairway.jobs.moves import Facts
from tests.conformance.job_backends import JOB_STORES, opened
from tests.conformance.test_job_store import HOUR, MANY, MINUTE, Desk, Hand, brought_to
from tests.support.postgres import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairway.jobs.job import Claim

BOTH = (False, True)


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


def line(queue: str) -> ReadyLine:
    return ReadyLine(queue, "", Band.B1)


def parents(desk: Desk, number: int) -> list[tuple[int | None, bool]]:
    """No parent, one that lives and one that has ended, and whether it lives."""
    living, ended = desk.one(queue=f"living {number}"), desk.one(queue=f"ended {number}")
    desk.cancel([ended])
    return [(None, False), (living, True), (ended, False)]


def test_what_may_be_discarded_and_retried(desk: Desk, hand: Hand) -> None:
    seen = set()
    for number, (status, reporters_live) in enumerate(product(Status, BOTH)):
        for at, (parent, parent_lives) in enumerate(parents(desk, number)):
            queue = f"q{number}.{at}"
            ids = [
                brought_to(desk, hand, status, queue=f"{queue}.{one}", parent=parent)
                for one in ("discarded", "retried")
            ]
            if reporters_live:
                desk.enqueue([NewJob(kind="part", parent=id, notify="told") for id in ids])
            job = Facts(status)
            discards = moves.may_be_discarded(job, parent_lives=parent_lives)
            retries = moves.may_be_retried(
                job, parent_lives=parent_lives, reporters_live=reporters_live
            )
            case = (status, parent_lives, reporters_live)
            assert desk.discard(ids[:1]) == (ids[:1] if discards else []), case
            assert desk.retry(ids[1:]) == (ids[1:] if retries else []), case
            assert (desk.find(ids[0]) is None) is discards, case
            seen.add((discards, retries))
    assert seen == {(False, False), (True, False), (True, True)}


def ended_badly(
    desk: Desk, hand: Hand, queue: str, end: Status, *, woken: str | None, timer: bool, child: bool
) -> int:
    """A job that waited for `go`, if `woken` says by what it was woken or that it was not, and then
    ended; `child` if it left one behind that lives."""
    id = desk.one(queue=queue, max_crashes=1)
    claim = hand.one(line(queue))
    if child:
        part = NewJob(kind="part", queue="parts")
        hand.settle(claim, Fate.NEXT, step="then", children=(part,))
        claim = hand.one(line(queue))
    if woken is not None:
        delay_ns = HOUR if timer or woken == "timer" else 0  # else for ever
        hand.settle(claim, Fate.WAIT, step="woken", names=("go",), delay_ns=delay_ns)
    else:
        hand.settle(claim, Fate.RELEASE)
    if woken == "signal":
        desk.signal(id, "go", b"1")
    elif woken == "timer":
        desk.pass_and_promote(HOUR)
    if end is Status.FAILED:
        hand.settle(hand.one(line(queue)), Fate.FAILED, error="broke")
    elif end is Status.DEAD:
        desk.hand(ttl_ns=MINUTE).one(line(queue))
        desk.advance(2 * MINUTE)
        desk.reap(MANY)
    else:
        desk.cancel([id])
    assert desk.status(id) is end
    return id


def test_where_a_retry_by_hand_takes_a_job(desk: Desk, hand: Hand) -> None:
    seen = set()
    ends = (Status.FAILED, Status.DEAD, Status.CANCELLED)
    cases = product(ends, (None, "", "signal", "timer"), BOTH, BOTH, BOTH)
    for number, (end, woken, timer, child, anew) in enumerate(cases):
        if (woken == "" and end is not Status.CANCELLED) or (timer and woken != ""):
            continue  # what waits can only be cancelled; its timer has gone if it does not
        case = (end, woken, timer, child, anew)
        id = ended_badly(desk, hand, f"q{number}", end, woken=woken, timer=timer, child=child)
        due_ns = None if not timer else desk.rig.wall_ns() + HOUR
        until_ns = None if woken != "" else due_ns or 0
        names = ("go",) if woken is not None else ()
        pending = child and end is not Status.CANCELLED  # a cancel ends the children as well
        inbox = ["go"] if woken == "signal" else []
        again = moves.names_again(Facts(end, names=names, waited_until_ns=until_ns))
        waits = moves.still_waits(again, inbox, pending)
        move = moves.retried(anew=anew, waits=waits)
        assert desk.retry([id], anew=anew) == [id], case
        job = desk.job(id)
        assert job.status is move.to, case
        waits = move.to is Status.WAITING
        assert job.waits_for == (moves.signals_awaited(again) if waits else ()), case
        assert job.due_wall_ns == (due_ns if waits else None), case
        seen.add((move.to, pending, bool(inbox)))
    assert len(seen) == 7, seen


def came_back(desk: Desk, hand: Hand, queue: str) -> int:
    """A job that was cancelled while it ran, and whose lease was given back: it has a reason."""
    id = desk.one(queue=queue)
    hand.one(line(queue))
    desk.cancel([id], reason="first")
    desk.advance(1)
    hand.renew(grace_ns=0)
    assert desk.status(id) is Status.READY
    return id


def test_what_a_cancel_does_and_which_reason_stands(desk: Desk, hand: Hand) -> None:
    for number, (status, before) in enumerate(product(Status, (None, "first"))):
        queue = f"q{number}"
        if before is None:
            id = brought_to(desk, hand, status, queue=queue)
        elif status is Status.RUNNING:
            id = brought_to(desk, hand, status, queue=queue)
            desk.cancel([id], reason=before)
        else:
            continue
        check_cancel(desk, id, Facts(status, reason=before))
    check_cancel(desk, came_back(desk, hand, "back"), Facts(Status.READY, reason="first"))


def check_cancel(desk: Desk, id: int, job: Facts) -> None:
    untouched = desk.job(id)
    result = desk.cancel([id], reason="second")
    move = moves.cancelled(job)
    if move is not None:
        assert result == ((id,), ()), job
        assert desk.job(id).error == moves.reason_to_end(job, "second"), job
    elif job.status.ended:
        assert result == ((), ()), job
        assert desk.job(id) == untouched
    else:
        assert result == ((), (id,)), job
        assert desk.job(id).error == moves.reason_to_end(job, "second"), job
    assert desk.status(id) is (job.status if move is None else move.to)


@pytest.mark.parametrize("dedup", [None, "once"])
def test_which_signal_wakes_a_job(desk: Desk, hand: Hand, dedup: str | None) -> None:
    """A job keeps the names it waited for while it runs: they wake it no more."""
    for number, (status, name) in enumerate(product(Status, ("never", "other"))):
        id = brought_to(desk, hand, status, queue=f"q{number}")
        names = ("never",) if status is Status.WAITING else ()
        check_signal(desk, id, Facts(status, names=names), name, dedup)
    for number, name in enumerate(("never", "other")):
        id = brought_to(desk, hand, Status.WAITING, queue=f"woken{number}")
        desk.signal(id, "never", b"1")
        check_signal(desk, id, Facts(Status.READY, names=("never",)), name, dedup)
        hand.one(line(f"woken{number}"))
        check_signal(desk, id, Facts(Status.RUNNING, names=("never",)), name, f"{dedup} again")


def check_signal(desk: Desk, id: int, job: Facts, name: str, dedup: str | None) -> None:
    move = moves.signalled(job, name)
    result = desk.signal(id, name, b"1", dedup=dedup)
    assert (result.woken is not None) is (move is not None), (job, name)
    assert result.job == (None if job.status.ended else id), (job, name)
    assert desk.status(id) is (job.status if move is None else move.to), (job, name)


def test_which_end_of_a_child_wakes_its_parent(desk: Desk, hand: Hand) -> None:
    seen = set()
    for number, (status, spawns, pending) in enumerate(product(Status, BOTH, BOTH)):
        queue = f"q{number}"
        if spawns and status is not Status.WAITING:
            continue
        if spawns:  # it waits for its children, and for no signal
            id = desk.one(queue=queue)
            part = NewJob(kind="part", queue=f"part of {queue}")
            hand.settle(hand.one(line(queue)), Fate.SPAWN, step="then", children=(part,))
        else:
            id = brought_to(desk, hand, status, queue=queue)
            desk.one(parent=id, queue=f"part of {queue}")
        if pending:
            desk.one(parent=id, queue=f"other part of {queue}")
        names = ("never",) if status is Status.WAITING and not spawns else ()
        move = moves.child_ended(Facts(status, names=names), pending)
        hand.settle(hand.one(line(f"part of {queue}")), Fate.DONE)
        expected = status if move is None else move.to
        assert desk.status(id) is expected, (status, spawns, pending)
        seen.add(expected)
    assert seen == set(Status)


def test_which_job_gets_a_key_that_is_free(desk: Desk, hand: Hand) -> None:
    for status in Status:
        if status is Status.RUNNING:
            continue  # nobody else could have its key
        queue = f"q{status.value}"
        key = f"holder of {queue}"  # as `brought_to` calls it
        fields = {} if status is Status.BLOCKED else {"partition_key": key}
        if status is Status.BLOCKED:
            desk.one(queue=key, partition_key=key)
            holder = hand.one(line(key))
            id = desk.one(queue=queue, partition_key=key)
            assert hand.take(1, line(queue)) == []
        else:
            id = brought_to(desk, hand, status, queue=queue, **fields)
            desk.one(queue=key, partition_key=key)
            holder = hand.one(line(key))
        move = moves.key_is_free(Facts(status))
        hand.settle(holder, Fate.DONE)
        assert desk.status(id) is (status if move is None else move.to), status


def test_what_becomes_of_a_job_whose_worker_died(desk: Desk, hand: Hand) -> None:
    seen = set()
    for number, (attempt, crashes, reason) in enumerate(product(range(3), range(3), (None, "why"))):
        queue = f"q{number}"
        id = desk.one(queue=queue, max_attempts=4, max_crashes=3)
        for _ in range(attempt):
            hand.settle(hand.one(line(queue)), Fate.RETRY)
        for _ in range(crashes):
            claim = dying(desk, queue)
            if claim is None:
                break
            desk.advance(2 * MINUTE)
            desk.reap(MANY)
        job = desk.job(id)
        if job.status.ended or dying(desk, queue) is None:
            continue  # it had died before
        if reason is not None:
            desk.cancel([id], reason=reason)
        facts = Facts(Status.RUNNING, attempt, crashes + 1, 4, 3, reason)
        move = moves.worker_died(facts)
        desk.advance(2 * MINUTE)
        desk.reap(MANY)
        after = desk.job(id)
        assert (after.status, after.crashes) == (move.to, crashes + 1), facts
        if move.ends:
            assert after.error == (reason or moves.death_error(crashes + 1)), facts
        seen.add(move.to)
    assert seen == {Status.READY, Status.DEAD, Status.CANCELLED}


def dying(desk: Desk, queue: str) -> Claim | None:
    """The job of a queue, in the hands of a worker that will not renew its lease."""
    claims = desk.hand(ttl_ns=MINUTE).take(1, line(queue))
    return claims[0] if claims else None

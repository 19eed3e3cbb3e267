"""Which calls share a transaction of the SQLite job store: the decision, and its writer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import Backpressure, Closing, Unavailable
from fairway.jobs.job import NewJob
from fairway.jobs.stores.sqlite.calls import (
    BULK,
    BULK_BYTES_MAX,
    BULK_BYTES_MIN,
    COMMAND,
    ENQUEUE,
    GROUP_BYTES_MAX,
    GROUP_CALLS_MAX,
    JOB_BYTES,
    LANE,
    PART_CALLS_MAX,
    RESERVE,
    SORTED_MAX,
    TOTAL,
    UPKEEP,
    WORKER,
    Caller,
    CallLanes,
    StoreCall,
    who_enqueues,
)
from fairway.jobs.stores.sqlite.writer import CallOutcome, SqliteWriter, together
from fairway.runtime.clock import clock_of
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOUD, QUIET = Caller(ENQUEUE, "loud"), Caller(ENQUEUE, "quiet")


def nothing(transaction: Any) -> None:
    pass


def groups_of(*offered: tuple[Caller, int], size: int = 0) -> list[list[tuple[str | int, int]]]:
    """Offer so many calls of each caller; the groups until none waits, as (who, how many)."""
    lanes = CallLanes()
    for caller, count in offered:
        for _ in range(count):
            assert lanes.offer(caller, StoreCall(nothing, True, size=size), 0) is None
    groups = []
    while group := lanes.next_group():
        groups.append([(part.key.who, len(part.items)) for part in group])
        for part in group:
            lanes.settle(part, 0)
        lanes.check()
    return groups


def test_a_lone_caller_fills_the_transactions() -> None:
    assert groups_of((LOUD, 2 * PART_CALLS_MAX + 1)) == [
        [("loud", PART_CALLS_MAX)],
        [("loud", PART_CALLS_MAX)],
        [("loud", 1)],
    ]


def test_two_callers_fill_a_transaction() -> None:
    assert groups_of((LOUD, GROUP_CALLS_MAX), (QUIET, PART_CALLS_MAX))[0] == [
        ("loud", PART_CALLS_MAX),
        ("quiet", PART_CALLS_MAX),
    ]


def test_a_quiet_tenant_and_a_worker_are_in_the_next_transaction_whatever_waits() -> None:
    first, *rest = groups_of((LOUD, 8_000), (QUIET, 1), (Caller(WORKER, 7), 1))
    assert first == [(7, 1), ("quiet", 1), ("loud", GROUP_CALLS_MAX // 3)]
    assert all(group == [("loud", group[0][1])] for group in rest)


def test_who_has_least_to_say_hears_first() -> None:
    (group,) = groups_of((LOUD, 50), (QUIET, 3), (Caller(COMMAND), 1))
    assert group == [("", 1), ("quiet", 3), ("loud", 50)]


def test_a_crowd_of_tenants_leaves_room_for_the_other_kinds() -> None:
    """A lane each for eight thousand tenants: the kinds of calls take turns all the same."""
    crowd = [(Caller(ENQUEUE, f"tenant {number}"), 1) for number in range(8_000)]
    first = groups_of(*crowd, (Caller(UPKEEP, "reap"), 1), (Caller(WORKER, 7), 1))[0]
    assert len(first) == GROUP_CALLS_MAX
    assert {7, "reap"} <= {who for who, _ in first}


def test_a_transaction_has_so_many_bytes_and_at_least_one_call() -> None:
    half = GROUP_BYTES_MAX // 2
    assert groups_of((LOUD, 3), size=half) == [[("loud", 2)], [("loud", 1)]]
    assert groups_of((LOUD, 2), size=GROUP_BYTES_MAX + 1) == [[("loud", 1)], [("loud", 1)]]


def test_bulk_has_every_second_transaction_to_itself() -> None:
    """Whoever else calls waits for one call of thousands of jobs, not for one of each tenant."""
    bulk = [(Caller(BULK, f"bulk {number}"), 2) for number in range(3)]
    others = [(Caller(WORKER, 7), 1), (QUIET, 2)]
    assert groups_of(*bulk, *others, size=BULK_BYTES_MAX) == [
        [("bulk 0", 1)],
        [(7, 1), ("quiet", 1)],
        [("bulk 1", 1)],
        [("quiet", 1)],
        *[[(f"bulk {number}", 1)] for number in (2, 0, 1, 2)],
    ]
    assert groups_of(*bulk, size=BULK_BYTES_MAX // 2) == [[(f"bulk {at}", 2)] for at in range(3)]


def test_calls_that_add_more_than_a_quarter_of_a_transaction_are_bulk() -> None:
    assert who_enqueues("t", BULK_BYTES_MIN) == Caller(ENQUEUE, "t")
    assert who_enqueues("t", BULK_BYTES_MIN + 1) == Caller(BULK, "t")


def test_calls_that_enqueue_side_by_side_go_together() -> None:
    def call(letter: str) -> StoreCall[Any]:
        return StoreCall(nothing, True, [NewJob(kind=letter)] if letter.islower() else None)

    calls = [call(letter) for letter in "abXcYZde"]
    parts = [[job.kind for one in part for job in one.jobs or ()] for part in together(calls)]
    assert parts == [["a", "b"], [], ["c"], [], [], ["d", "e"]]


# --- the writer, with a thread that only writes down what it was given


class Recorded:
    """Stands for the thread: remembers who was in each transaction."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    def open(self) -> None: ...

    def close(self) -> None: ...

    def commit(self, group: Any) -> list[CallOutcome]:
        callers = [call.function(None) for call in group]
        self.groups.append([f"{who} {len(list(some))}" for who, some in groupby(callers)])
        return [(who, None) for who in callers]


class Known:
    """Stands for whoever looks up tenants: jobs above zero are the loud one's, the rest quiet's."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fails = False

    def tenants(self, targets: Any) -> list[str]:
        self.asked.append(len(targets))
        if self.fails:
            raise Unavailable("the file cannot be read")
        return ["loud" if target > 0 else "quiet" for target in targets]

    def close(self) -> None: ...


CALL_NS = 1_000_000
"""How long either thread takes."""


def on_writer(
    body: Callable[[SqliteWriter, Recorded], Coroutine[Any, Any, None]], known: Known | None = None
) -> Recorded:
    recorded = Recorded()

    async def main() -> None:
        clock = clock_of(asyncio.get_running_loop())
        writer = SqliteWriter("jobs.db", clock, recorded, known or Known())
        await writer.open()
        await body(writer, recorded)
        with suppress(Closing):
            await writer.aclose()

    run(main, quiet=True, latency_ns=(CALL_NS, CALL_NS))
    return recorded


def ask(writer: SqliteWriter, caller: Caller, **options: Any) -> Coroutine[Any, Any, Any]:
    return writer.run(lambda _: caller.who, caller, durable=True, **options)


def test_a_flood_delays_others_by_the_transaction_that_is_under_way() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(8_000):
                group.create_task(ask(writer, LOUD))
            await asyncio.sleep(0)  # they wait
            await asyncio.sleep(0)  # and the first of them are under way
            others = [QUIET, Caller(WORKER, 7)]
            answers = [group.create_task(ask(writer, caller)) for caller in others]
            await asyncio.wait(answers)
            assert len(recorded.groups) == 2

    recorded = on_writer(body)
    assert recorded.groups[0] == ["loud 128"]
    assert sorted(recorded.groups[1]) == ["7 1", "loud 85", "quiet 1"]
    assert len(recorded.groups) == 63  # as many as without the others


def test_calls_of_one_caller_stay_in_order() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        order: list[int] = []

        def note(number: int) -> Callable[[Any], str]:
            return lambda _: order.append(number) or "noted"  # type: ignore[func-returns-value]

        async with asyncio.TaskGroup() as group:
            for number in range(1_000):
                group.create_task(writer.run(note(number), LOUD, durable=True))
                group.create_task(ask(writer, QUIET))
        assert order == list(range(1_000))

    on_writer(body)


def command(writer: SqliteWriter, job: int, **options: Any) -> Coroutine[Any, Any, Any]:
    who = "loud" if job > 0 else "quiet"
    return writer.command(lambda _: who, job, durable=True, **options)


def test_a_flood_of_commands_delays_others_by_a_lookup_and_two_transactions() -> None:
    """Here a lookup takes as long as a transaction: there are eight of them before the first one
    of the others, who came right behind the flood."""
    known = Known()

    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        async with asyncio.TaskGroup() as group:
            flood = [group.create_task(command(writer, job)) for job in range(1, 8_001)]
            await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
            assert await command(writer, -1) == "quiet"
            assert len(recorded.groups) <= 1 + len(known.asked) + 2
            await flood[2_000]
            before = len(recorded.groups)
            assert await command(writer, -1) == "quiet"
            assert len(recorded.groups) <= before + 1 + 2

    recorded = on_writer(body, known)
    assert max(known.asked) == SORTED_MAX
    assert sum(known.asked) == 8_001  # the first of all came while nobody waited
    assert [group for group in recorded.groups if "quiet 1" in group] == [
        ["quiet 1", f"loud {PART_CALLS_MAX}"]
    ] * 2


def test_commands_about_one_job_stay_in_order_among_those_of_others() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        order: list[int] = []

        def note(number: int) -> Callable[[Any], str]:
            return lambda _: order.append(number) or "noted"  # type: ignore[func-returns-value]

        async with asyncio.TaskGroup() as group:
            for number in range(1_000):
                group.create_task(writer.command(note(number), -7, durable=True))
                if number % 3 == 0:
                    group.create_task(command(writer, number))
        assert order == list(range(1_000))
        order.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(9):
                # Each comes while the one before is under way, or looked up and nothing under way.
                group.create_task(writer.command(note(number), -7, durable=True))
                await asyncio.sleep(0.6 * CALL_NS / 1e9)
        assert order == list(range(9))

    on_writer(body)


def test_commands_whose_tenant_cannot_be_looked_up_are_done_all_the_same() -> None:
    known = Known()
    known.fails = True

    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(command(writer, job)) for job in (1, -1, 2)]
        assert [answer.result() for answer in answers] == ["loud", "quiet", "loud"]

    assert on_writer(body, known).groups == [["loud 1"], ["quiet 1", "loud 1"]]


def test_too_many_commands_are_refused_by_the_line_for_the_lookup_or_by_their_lane() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        huge = TOTAL.size
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(refusal(command(writer, job, size=huge)))
                for job in (1, 2, 3, 4, -1)
            ]
            await asyncio.sleep(0)
            assert "bytes" in str(await refusal(command(writer, -2, size=JOB_BYTES)))
        # The first came while nobody waited, and a lane has room for two.
        assert [task.result() is None for task in asked] == [True, True, True, False, True]

    async def refusal(call: Coroutine[Any, Any, Any]) -> Backpressure | None:
        try:
            await call
        except Backpressure as refused:
            return refused
        return None

    on_writer(body)


def test_commands_that_wait_for_their_lane_are_committed_before_the_store_closes() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        first = asyncio.ensure_future(command(writer, 1))
        await asyncio.sleep(0.6 * CALL_NS / 1e9)
        accepted = [asyncio.ensure_future(command(writer, job)) for job in range(2, 500)]
        await asyncio.sleep(0.6 * CALL_NS / 1e9)
        assert first.done()  # so nothing is under way but the lookup
        closing = asyncio.ensure_future(writer.aclose())
        await asyncio.sleep(0)
        with pytest.raises(Closing):
            await command(writer, 3)
        await closing
        assert [await call for call in accepted] == ["loud"] * 498

    on_writer(body)


def test_a_caller_who_has_gone_before_the_turn_is_left_out() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask(writer, LOUD))
            second = group.create_task(ask(writer, QUIET))
            await asyncio.sleep(0)
            second.cancel()
            await first

    assert on_writer(body).groups == [["loud 1"]]


def test_when_everybody_has_gone_nothing_is_committed() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        gone = asyncio.ensure_future(ask(writer, LOUD))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait([gone])
        assert await ask(writer, QUIET) == "quiet"

    assert on_writer(body).groups == [["quiet 1"]]


def test_a_full_lane_refuses_and_leaves_the_others_room() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(LANE.items):
                group.create_task(ask(writer, LOUD))
            await asyncio.sleep(0)
            with pytest.raises(Backpressure) as refused:
                await ask(writer, LOUD)
            assert refused.value.depth == LANE.items
            assert refused.value.retry_after_ns > 0
            assert await ask(writer, QUIET) == "quiet"

    recorded = on_writer(body)
    assert (
        sum(int(some.split()[1]) for group in recorded.groups for some in group) == LANE.items + 1
    )


def test_a_full_store_refuses_enqueues_and_still_settles() -> None:
    lanes = CallLanes()
    tenants = [Caller(ENQUEUE, f"tenant {number}") for number in range(TOTAL.items)]
    for caller in tenants:
        assert lanes.offer(caller, StoreCall(nothing, True), 0) is None
    assert lanes.offer(QUIET, StoreCall(nothing, True), 0) is not None
    worker = Caller(WORKER, 7)
    for _ in range(RESERVE[0]):
        assert lanes.offer(worker, StoreCall(nothing, True), 0) is None
    assert lanes.offer(worker, StoreCall(nothing, True), 0) is not None


def test_the_largest_call_is_welcome_and_fills_a_lane_with_a_few_like_it() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        huge = 10 * LANE.size
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(ask(writer, LOUD, size=huge))
            await asyncio.sleep(0)
            with pytest.raises(Backpressure, match="bytes"):
                await ask(writer, LOUD, size=JOB_BYTES)

    assert on_writer(body).groups == [["loud 1"], ["loud 1"]]


def test_whoever_closes_commits_what_was_accepted_and_refuses_the_rest() -> None:
    async def body(writer: SqliteWriter, recorded: Recorded) -> None:
        accepted = asyncio.ensure_future(ask(writer, LOUD))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(writer.aclose())
        await asyncio.sleep(0)
        with pytest.raises(Closing):
            await ask(writer, QUIET)
        assert await accepted == "loud"
        await closing

    assert on_writer(body).groups == [["loud 1"]]

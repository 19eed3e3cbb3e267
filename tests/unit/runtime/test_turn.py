"""One budget for a turn of the loop, and what counts within one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairway.app import Fairway
from fairway.errors import InvalidConfig
from fairway.runtime.clock import clock_of
from fairway.runtime.turn import TURN, Pace, PerTurn, TimeSlice, TurnBudget
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run


@pytest.mark.parametrize(
    "fields",
    [
        {"requests_per_turn": 0},
        {"delivery_ns": -1},
        {"gc_thresholds": (700, 0, 10)},
        {"refusals_per_turn": TURN.requests_per_turn + 1},
        {"acks_per_turn": TURN.acks_per_partition - 1},
        {"scan_records_per_append": TURN.scan_records_per_turn + 1},
        {"urgent_pause_every_ns": TURN.thread_pause_every_ns + 1},
        {"thread_pause_every_serving_ns": TURN.thread_pause_every_ns - 1},
        {"switch_interval_ns": TURN.thread_pause_every_ns},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_budget_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(fields))):
        TurnBudget(**fields)


def test_the_budget_of_an_app_is_that_of_its_log_and_its_parts() -> None:
    turn = TurnBudget(requests_per_turn=5)

    async def main() -> None:
        async with Fairway("memory:", turn=turn) as app:
            assert app.turn is app.log.turn is app.kernel.turn is turn

    run(main)


def test_a_log_obeys_the_budget_that_it_is_given() -> None:
    """Of two partitions, one is told of two writes before the other is told of its first."""

    async def main() -> list[str]:
        told: list[str] = []
        turn = TurnBudget(acks_per_partition=2, acks_backlog_share=1000)
        async with Log(MemoryWal(), turn=turn) as log:
            log.acks_per_turn = 1
            waiters = []
            for partition, name in ((1, "a"), (2, "b")):
                for _ in range(4):
                    waiter = asyncio.ensure_future(log.append(partition, b"x"))
                    waiter.add_done_callback(lambda _, name=name: told.append(name))
                    waiters.append(waiter)
            await asyncio.gather(*waiters)
            await asyncio.sleep(0)
        return told

    assert run(main) == list("aabbaabb")


def test_an_allowance_is_renewed_by_the_next_turn() -> None:
    async def main() -> None:
        allowance = PerTurn()
        assert allowance.take(3)
        assert allowance.take(3, 2)
        assert not allowance.take(3)
        await asyncio.sleep(0)
        assert not allowance.take(3, 4), "more than a turn ever allows"
        assert allowance.take(3, 3)

    run(main)


def test_a_slice_of_time_is_spent_by_the_clock_and_begins_anew_after_others() -> None:
    async def main() -> None:
        slice_ = TimeSlice(clock_of(), 2_000_000)
        slice_.begin()
        await asyncio.sleep(0.001)
        assert not slice_.spent
        await asyncio.sleep(0.002)
        assert slice_.spent
        await slice_.let_others()
        assert not slice_.spent

    run(main)


def test_a_pace_rests_when_so_much_work_was_done() -> None:
    async def main() -> None:
        clock = clock_of()
        pace = Pace(10, 1_000_000)
        before_ns = clock.now_ns()
        await pace.turn(9)
        assert clock.now_ns() == before_ns
        await pace.turn(1)
        assert clock.now_ns() == before_ns + 1_000_000
        await pace.turn(9)
        assert clock.now_ns() == before_ns + 1_000_000

    run(main)

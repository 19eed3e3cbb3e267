"""Clocks count integer nanoseconds, and a part gets the clock of the loop it runs on."""

from __future__ import annotations

import asyncio
import time

from fairway.runtime.clock import SYSTEM_CLOCK, Clock, LoopClock, SystemClock, clock_of, sleep_ns
from fairway.testing import VirtualClock, run
from fairway.testing.loop import WALL_START_NS


def test_the_system_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before, now, after = time.monotonic_ns(), clock.now_ns(), time.monotonic_ns()
    assert before <= now <= after
    before, now, after = time.time_ns(), clock.wall_ns(), time.time_ns()
    assert before <= now <= after


def test_a_real_loop_runs_on_the_system_clock() -> None:
    async def main() -> None:
        assert clock_of() is SYSTEM_CLOCK
        clock = LoopClock()
        before = time.monotonic_ns()
        assert abs(clock.now_ns() - before) < 1_000_000_000
        assert abs(clock.wall_ns() - time.time_ns()) < 1_000_000_000

    asyncio.run(main())


def test_a_virtual_loop_has_a_clock_of_its_own() -> None:
    async def main() -> None:
        clock: Clock = clock_of()
        assert isinstance(clock, VirtualClock)
        loop_clock = LoopClock()
        assert clock.now_ns() == loop_clock.now_ns() == 0
        await sleep_ns(1_000_000_007)
        assert clock.now_ns() == loop_clock.now_ns() == 1_000_000_007
        assert clock.wall_ns() == loop_clock.wall_ns() == WALL_START_NS + 1_000_000_007

    run(main, seed=1)


def test_sleeping_for_nothing_only_yields() -> None:
    async def main() -> None:
        await sleep_ns(-5)
        await sleep_ns(0)
        assert clock_of().now_ns() == 0

    run(main, seed=1)

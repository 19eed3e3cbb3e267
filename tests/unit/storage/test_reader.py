"""The fair reader on virtual time: order, turns, bounds, and what happens to a failing read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway.core.lanes import LaneLimits
from fairway.errors import Backpressure, Closing, InvalidConfig
from fairway.runtime.blocking import BlockingPool
from fairway.storage.log import Log
from fairway.storage.reader import FairReader, ReaderConfig
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Callable


def on_reader(body: Callable[[FairReader], Any], **config: Any) -> None:
    """Run `body` with a reader on virtual time."""

    async def main() -> None:
        pool = BlockingPool(8)
        reader = FairReader(pool, config=ReaderConfig(**config))
        async with asyncio.TaskGroup() as tasks:
            service = tasks.create_task(reader.run())
            try:
                await body(reader)
            finally:
                await reader.drain()
                service.cancel()
        await pool.aclose()

    run(main, quiet=True)


def test_reads_of_a_partition_are_made_in_order_and_partitions_take_turns() -> None:
    made: list[tuple[int, int]] = []

    async def body(reader: FairReader) -> None:
        waiters = [
            reader.submit(partition, lambda p=partition, n=number: made.append((p, n)))
            for partition in (1, 2)
            for number in range(5)
        ]
        for waiter in waiters:
            await waiter

    on_reader(body, max_batch=2, workers=1)
    assert [number for partition, number in made if partition == 1] == [0, 1, 2, 3, 4]
    assert [partition for partition, _ in made] == [1, 1, 2, 2, 1, 1, 2, 2, 1, 2]


def test_a_failing_read_fails_alone() -> None:
    async def body(reader: FairReader) -> None:
        def fail() -> None:
            raise KeyError("missing")

        first, bad, last = (
            reader.submit(1, lambda: 1),
            reader.submit(1, fail),
            reader.submit(1, int),
        )
        assert await first == 1
        with pytest.raises(KeyError):
            await bad
        assert await last == 0

    on_reader(body)


def test_a_read_whose_caller_has_gone_is_not_made() -> None:
    made = []

    async def body(reader: FairReader) -> None:
        gone = reader.submit(1, lambda: made.append("gone"))
        gone.cancel()
        await reader.submit(1, lambda: made.append("kept"))

    on_reader(body)
    assert made == ["kept"]


def test_a_full_lane_refuses_and_others_go_on() -> None:
    async def body(reader: FairReader) -> None:
        waiters = [reader.submit(1, int) for _ in range(3)]
        with pytest.raises(Backpressure) as refused:
            reader.submit(1, int)
        assert (refused.value.lane, refused.value.depth) == ("reader/1", 3)
        waiters.append(reader.submit(2, int))
        for waiter in waiters:
            await waiter
        assert reader.statistics().refused == 1

    on_reader(body, lane=LaneLimits(items=3))


def test_drain_makes_every_accepted_read_then_refuses() -> None:
    async def body(reader: FairReader) -> None:
        waiters = [reader.submit(p, int) for p in range(4) for _ in range(100)]
        await reader.drain()
        assert all(waiter.done() for waiter in waiters)
        with pytest.raises(Closing):
            reader.submit(1, int)

    on_reader(body, max_batch=3)


def test_a_read_after_a_completed_write_sees_it() -> None:
    async def main() -> None:
        async with Log(MemoryWal(), reader=ReaderConfig(workers=3)) as log:
            for number in range(200):
                key = await log.append(number % 3, b"%d" % number)
                (entry,) = await log.read(number % 3, first=key)
                assert entry.payload == b"%d" % number

    run(main, quiet=True)


@pytest.mark.parametrize("config", [{"max_batch": 0}, {"workers": 0}])
def test_a_config_that_cannot_work_is_refused(config: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig):
        ReaderConfig(**config)

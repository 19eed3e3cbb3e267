"""What a pipeline without a graph costs: three `asyncio.Queue` hops with a task behind each.

    python -m benchmarks.load.graphs_floor EVENTS

As bare as it can be: queues without bounds, so that nobody waits for room, and nobody is
notified that an item is done. It keeps nothing and counts nothing but its results.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.load.graphs_work import Tick, buys, edge, mid, ticks

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 10_000


async def pipeline(events: int) -> float:
    """Events a second, from the first put until the last result is there."""
    first, second, third = queues = [asyncio.Queue[Any]() for _ in range(3)]
    seen = wanted = 0
    complete = asyncio.Event()

    async def stage(
        source: asyncio.Queue[Any], function: Callable[[Any], Any], out: asyncio.Queue[Any]
    ) -> None:
        while True:
            await out.put(function(await source.get()))

    async def last() -> None:
        nonlocal seen
        while True:
            buys(await third.get())
            seen += 1
            if seen == wanted:
                complete.set()

    async def push(batch: list[Tick]) -> None:
        nonlocal wanted
        wanted += len(batch)
        complete.clear()
        for tick in batch:
            await first.put(tick)
        await complete.wait()

    async with asyncio.TaskGroup() as group:
        stages = [
            group.create_task(stage(first, mid, second)),
            group.create_task(stage(second, edge, third)),
            group.create_task(last()),
        ]
        await push(ticks(WARM_UP))
        batch = ticks(events)
        begin = time.perf_counter()
        await push(batch)
        seconds = time.perf_counter() - begin
        for task in stages:
            task.cancel()
    assert all(queue.empty() for queue in queues)
    assert seen == WARM_UP + events
    return events / seconds


def main(events: int) -> None:
    print(json.dumps({"events": events, "events_per_s": uvloop.run(pipeline(events))}))


if __name__ == "__main__":
    main(int(sys.argv[1]))

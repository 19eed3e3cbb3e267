"""Our own graphs under load, one measure to a process: `python -m benchmarks.load.graphs_run`.

    inline EVENTS                   three nodes, a call for each event that returns when it fired
    ask EVENTS                      how long from an event to its result, one after another
    sequential EVENTS               every event fires in order, as fast as the graph takes them
    checkpointed EVENTS             the same, and the clock stops when the last record is synced
    kafka EVENTS SERVERS TOPIC      events that are in a topic already
    idle GRAPHS                     what graphs cost that have nothing to do

Each makes its data in a new directory below the first argument and prints one JSON object. This is
the only file of the benchmark that knows how graphs are declared and driven.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.load.graphs_work import Tick, buys, edge, mid, ticks
from fairway import Backpressure, Fairway, any_

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 10_000
YIELD_EVERY = 256
"""A program that pushes lets others have the loop now and then; this one as well."""
IDLE_S = 2.0
KAFKA_WAIT_MS = 10  # the mock broker answers a fetch when its wait ends, however much there is


def declared(
    app: Fairway,
    name: str,
    source: Any,
    *,
    inputs: str = "latest",
    checkpoint: bool = False,
    last: Callable[..., Any] = buys,
) -> Any:
    """The graph that all of these are: three functions after another and one source."""
    graph = app.graph(name, when=any_(source), inputs=inputs, checkpoint=checkpoint)
    for function in (mid, edge):
        graph.node(function)
    graph.node(name="buys")(last)
    return graph


async def inline(directory: str, events: int) -> dict[str, Any]:
    """As the peers' drivers: after each call the result has to be there."""
    app = Fairway(directory)
    source = app.source("ticks", Tick)
    seen = 0

    def counted(edge: float) -> bool:
        nonlocal seen
        seen += 1
        return edge > 0.0

    graph = declared(app, "bench", source, last=counted)
    async with app:
        await graph.ask(source, ticks(1)[0])
        push = graph.push_nowait

        async def push_all(batch: list[Tick]) -> None:
            nonlocal seen
            seen = 0
            for pushed, tick in enumerate(batch, 1):
                push(source, tick)
                if seen != pushed:
                    raise RuntimeError(f"{seen} results of {pushed} events")
                if not pushed % YIELD_EVERY:
                    await asyncio.sleep(0)

        await push_all(ticks(WARM_UP))
        batch = ticks(events)
        fired = graph.fired
        begin = time.perf_counter()
        await push_all(batch)
        seconds = time.perf_counter() - begin
        _check(graph.fired - fired, events)
    return {"events_per_s": events / seconds}


async def ask(directory: str, events: int) -> dict[str, Any]:
    app = Fairway(directory)
    source = app.source("ticks", Tick)
    graph = declared(app, "bench", source)
    now = time.perf_counter_ns
    times_ns = []
    async with app:
        for tick in ticks(WARM_UP):
            await graph.ask(source, tick)
        for tick in ticks(events):
            begin_ns = now()
            firing = await graph.ask(source, tick)
            times_ns.append(now() - begin_ns)
            if "buys" not in firing.outputs:
                raise RuntimeError(f"firing {firing.number} has no result")
    times_ns.sort()
    return {
        "p50_us": times_ns[events // 2] / 1e3,
        "p99_us": times_ns[events * 99 // 100] / 1e3,
    }


async def sequential(directory: str, events: int, *, checkpoint: bool = False) -> dict[str, Any]:
    """Push as fast as the graph takes them, until all have fired and are recorded."""
    app = Fairway(directory)
    source = app.source("ticks", Tick)
    graph = declared(app, "bench", source, inputs="sequential", checkpoint=checkpoint)
    async with app:
        await graph.ask(source, ticks(1)[0])
        await _flood(graph, source, ticks(WARM_UP))
        batch = ticks(events)
        fired = graph.fired
        begin, cpu = time.perf_counter(), time.process_time()
        await _flood(graph, source, batch)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        _check(graph.fired - fired, events)
    return {"events_per_s": events / seconds, "cpu_us_per_event": cpu / events * 1e6}


async def checkpointed(directory: str, events: int) -> dict[str, Any]:
    return await sequential(directory, events, checkpoint=True)


async def _flood(graph: Any, source: Any, batch: list[Tick]) -> None:
    for at, tick in enumerate(batch):
        try:
            graph.push_nowait(source, tick)
        except Backpressure:
            await graph.push(source, tick)  # waits for room
        if at % YIELD_EVERY == 0:
            await asyncio.sleep(0)
    await graph.settled()


async def kafka(directory: str, events: int, servers: str, topic: str) -> dict[str, Any]:
    """From the first firing that is seen until the last: to join the group is not counted."""
    from fairway.graphs.feeds.kafka import kafka as kafka_feed

    app = Fairway(directory)
    feed = kafka_feed(
        topic,
        servers=servers,
        group=f"bench-{os.getpid()}",  # the offsets of another run are not where to begin
        options={"fetch.wait.max.ms": KAFKA_WAIT_MS},
    )
    source = app.source("ticks", Tick, feed=feed)
    graph = declared(app, "bench", source, inputs="sequential")
    async with app:
        while not (before := graph.fired):
            await asyncio.sleep(0.001)
        begin = time.perf_counter()
        while graph.fired < events:
            await asyncio.sleep(0.001)
        seconds = time.perf_counter() - begin
        _check(graph.fired, events)
    return {"events_per_s": (events - before) / seconds}


async def idle(directory: str, graphs: int) -> dict[str, Any]:
    """What so many more graphs add to an app that has one; and the processor while they wait."""
    before = await _idle(directory, 1)  # also loads all code, which is there once
    after = await _idle(directory, graphs)
    return {
        "mb": (after["rss"] - before["rss"]) / 1e6,
        "cpu_percent": after["cpu"] / IDLE_S * 100,
        "app_cpu_percent": before["cpu"] / IDLE_S * 100,
    }


async def _idle(directory: str, graphs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=directory) as fresh:
        app = Fairway(fresh)
        source = app.source("ticks", Tick)
        declared_ones = [declared(app, f"idle{at}", source) for at in range(graphs)]
        async with app:
            for graph in declared_ones:
                await graph.ask(source, ticks(1)[0])  # each has fired once, and waits
            await asyncio.sleep(0.5)
            gc.collect()
            cpu = time.process_time()
            await asyncio.sleep(IDLE_S)
            cpu = time.process_time() - cpu
            return {"rss": _rss_bytes(), "cpu": cpu}


def _rss_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _check(fired: int, events: int) -> None:
    if fired != events:
        raise RuntimeError(f"{fired} firings of {events} events")


MEASURES: dict[str, Callable[..., Any]] = {
    "inline": inline,
    "ask": ask,
    "sequential": sequential,
    "checkpointed": checkpointed,
    "kafka": kafka,
    "idle": idle,
}


def main(directory: str, measure: str, number: int, *more: str) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as fresh:
        print(json.dumps(uvloop.run(MEASURES[measure](fresh, number, *more))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])

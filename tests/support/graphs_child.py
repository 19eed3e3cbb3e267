"""A process that runs a checkpointed graph over a topic and Kafka, to be killed by the tests.

    python -m tests.support.graphs_child PLACE [--kafka SERVERS] [--window MS] [--lease MS]

It appends numbers to its own topic without end, and reports on standard output, a line each:
`ready`, `fired N` now and then, and whatever `show` on standard input asks for. `finish COUNT`
makes it stop appending, wait until everything (COUNT messages of Kafka among it) has fired, print
what came of it as JSON, and end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from typing import Any

import msgspec

from fairway import Fairway, FiringContext, any_
from fairway.errors import FairwayError
from fairway.graphs.feeds.kafka import kafka
from fairway.jobs.job import Filter
from fairway.storage.wals.postgres import PostgresWal
from tests.support.kafka_mock import CLIENT

REPORT_EVERY = 25
MANY = 1_000_000


class Number(msgspec.Struct, frozen=True):
    id: int


class FiringNote(msgspec.Struct, frozen=True):
    """A firing as it notes itself: appended to a topic, and to be appended once."""

    source: str
    id: int
    total: int
    firing: int


class Outcome(msgspec.Struct):
    """What came of it all."""

    notes: list[FiringNote]
    total: int
    jobs: dict[str, int]
    """How often each was enqueued, by `source-id`."""
    numbers: int
    epoch: int


def make(options: argparse.Namespace) -> tuple[Fairway, Any, Any]:
    place: Any = options.place
    if options.lease:

        def place() -> Any:
            return PostgresWal(options.place, lease_ttl_ns=options.lease * 1_000_000)

    app = Fairway(place, jobs=options.jobs or None, worker=None, standby=True)
    numbers = app.topic("numbers", Number, idempotency_window_ms=options.window)
    notes = app.topic("notes", FiringNote, idempotency_window_ms=options.window)

    @app.job(name="note")
    def note(source: str, id: int) -> None:
        raise AssertionError("nobody works here")

    total = app.source("total", int, keep=1)
    sources = [numbers]
    if options.kafka:
        feed = kafka("ticks", servers=options.kafka, options=CLIENT)
        sources.append(app.source("ticks", Number, feed=feed))  # type: ignore[arg-type]
    graph = app.graph(
        "sums", when=any_(*sources), uses=[total], inputs="sequential", checkpoint=True
    )

    def add(
        firing: FiringContext, numbers: Number | None, ticks: Number | None, total: list[int] | None
    ) -> int:
        (source,) = [each for each in firing.fresh if each != "total"]
        value = ticks if source == "ticks" else numbers
        assert value is not None
        now = (total[-1] if total else 0) + value.id
        firing.put("total", now)
        firing.append(notes, FiringNote(source, value.id, now, firing.number))
        firing.enqueue(note.order(source, value.id))
        return now

    if options.kafka:
        graph.add(add)
    else:

        def add_numbers(
            firing: FiringContext, numbers: Number | None, total: list[int] | None
        ) -> int:
            return add(firing, numbers, None, total)

        graph.add(add_numbers)
    return app, graph, numbers


async def append(numbers: Any, stopping: asyncio.Event) -> None:
    """Numbers that follow those that are there: the topic has one owner, so there is one next."""
    while not stopping.is_set():
        try:
            head = numbers.state.head
            await numbers.append(*[Number(head + at) for at in range(1, 6)])
        except FairwayError as error:
            print(f"refused {type(error).__name__}", flush=True)
            return


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("--jobs", default="")
    parser.add_argument("--kafka", default="")
    parser.add_argument("--window", type=int, default=60_000)
    parser.add_argument("--lease", type=int, default=0)
    options = parser.parse_args()
    app, graph, numbers = make(options)
    loop = asyncio.get_running_loop()
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    async with app:
        print("ready", flush=True)

        def report(firing: Any) -> None:
            if firing.number % REPORT_EVERY == 0:
                print(f"fired {firing.number}", flush=True)

        graph.running.reactor.listeners.append(report)
        async with asyncio.TaskGroup() as group:
            stopping = asyncio.Event()
            group.create_task(append(numbers, stopping))
            line = (await asked.readline()).decode().split()
            stopping.set()
        if line[:1] != ["finish"]:
            return
        await finish(app, graph, int(line[1]))


async def finish(app: Fairway, graph: Any, messages: int) -> None:
    notes = app.topic("notes")
    head = app.topic("numbers").state.head
    while notes.state.head < head + messages:
        await notes.read(notes.state.head, wait_s=10.0)
    await graph.settled()
    found: list[FiringNote] = []
    while (page := await notes.read(len(found), limit=1000)).records:
        found += [record.data for record in page.records]
    jobs: Counter[str] = Counter()
    for job in await app.jobs.browse(Filter(limit=MANY)):
        state = msgspec.json.decode(job.state)
        jobs[f"{state['source']}-{state['id']}"] += 1
    kept = graph.running.checkpoint.kept("total")
    total = msgspec.msgpack.decode(kept.window[-1].data) if kept.window else 0
    epoch = graph.running.checkpoint.epoch
    outcome = Outcome(found, total, dict(jobs), head, epoch)
    print("outcome", msgspec.json.encode(outcome).decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

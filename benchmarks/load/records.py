"""Fills a data directory, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

TOPICS = 10_000
RECORDS = 100
BATCH = 10


async def build(directory: str, mode: str) -> None:
    from fairway.app import Fairway
    from fairway.topics.engine import TopicsConfig
    from fairway.topics.retention import RetentionConfig

    if mode == "1":
        retention = RetentionConfig(snapshot_idle_ms=100)
    else:
        retention = RetentionConfig(snapshot_records=10**9, snapshot_idle_ms=10**9)
    app = Fairway(Path(directory), topics=TopicsConfig(retention=retention))
    async with app:
        if mode == "idle":
            await _each(100_000, lambda number: app.topics.create(f"topic-{number}"))
        else:
            await _each(TOPICS, lambda number: _fill(app, number))
            if mode == "1":
                while any(topic.head != topic.snapshot_head for topic in app.topics):
                    await asyncio.sleep(0.1)
        print("port 0", flush=True)
        await asyncio.Event().wait()


async def _fill(app: object, number: int) -> None:
    from fairway.app import Fairway

    assert isinstance(app, Fairway)
    topic = app.topic(f"topic-{number}")
    values = [{"number": number, "text": "x" * 64}] * BATCH
    for batch in range(RECORDS // BATCH):
        await topic.append(*values)
        if batch == RECORDS // BATCH // 2:
            await topic.delete(before_seq=RECORDS // 10 + 1)


async def _each(count: int, work: object) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)  # type: ignore[operator]

    async with asyncio.TaskGroup() as group:
        for _ in range(256):
            group.create_task(worker())


if __name__ == "__main__":
    uvloop.run(build(*sys.argv[1:]))

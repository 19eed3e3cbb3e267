"""One of several processes on one file of jobs: what `test_jobs_sqlite` starts. Run with

    python -m tests.support.jobs_sqlite_child FILE NAME JOBS OTHERS

It opens the file, adds `JOBS` jobs in small batches and, meanwhile, runs whatever is ready, until
everybody of `OTHERS` (names, joined by commas) has added theirs and none is left. What it added and
what it ran are its last line on stdout.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from fairway.core.priority import Band
from fairway.jobs.job import Fate, NewJob, ReadyLine, Settlement
from fairway.jobs.store import TopicCursor, Want
from fairway.jobs.stores.sqlite import SqliteStore

BATCH = 7
LINE = ReadyLine("default", "", Band.B1)
TTL_NS = 600 * 1_000_000_000


class ChildReport(msgspec.Struct):
    added: list[int]
    ran: list[int]
    stale: list[int]


async def add(store: SqliteStore, name: str, jobs: int) -> list[int]:
    added = []
    for first in range(0, jobs, BATCH):
        new = [
            NewJob(kind=name, partition_key=f"key-{number % 5}" if number % 3 == 0 else None)
            for number in range(first, min(first + BATCH, jobs))
        ]
        added += [one.id for one in await store.enqueue(new)]
    await store.enqueue([], cursor=TopicCursor(name, 1, 1))
    return added


async def run(store: SqliteStore, everybody: list[str]) -> ChildReport:
    report = ChildReport([], [], [])
    worker = await store.register("child", TTL_NS)
    token = 0
    held: list[Settlement] = []
    while True:
        complete = all([await store.cursor(name) is not None for name in everybody])
        token += 1
        got = await store.exchange(worker, token, held, [Want(LINE, BATCH)])
        report.stale += got.stale
        report.ran += [claim.id for claim in got.claims]
        held = [Settlement(claim=claim, fate=Fate.DONE) for claim in got.claims]
        if complete and not held:
            (queue,) = await store.queues()
            if not queue.ready and not queue.blocked and not queue.running:
                await store.unregister(worker)
                return report


async def main(path: str, name: str, jobs: int, everybody: list[str]) -> None:
    store = SqliteStore(path)
    await store.open()
    async with asyncio.TaskGroup() as group:
        adding = group.create_task(add(store, name, jobs))
        running = group.create_task(run(store, everybody))
    report = running.result()
    report.added = adding.result()
    await store.aclose()
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")))

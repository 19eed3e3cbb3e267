"""A process that adds jobs until it is killed: what `test_jobs_mark` starts. Run with

    python -m tests.support.jobs_adding_child FILE

Each job has been acknowledged when its id is a line on stdout.
"""

from __future__ import annotations

import asyncio
import sys

from fairway.jobs.job import NewJob
from fairway.jobs.stores.sqlite import SqliteStore


async def main(path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    while True:
        (one,) = await store.enqueue([NewJob(kind="noop", state=b"x" * 700)])
        print(one.id, flush=True)
        await store.promote(10)  # a commit that is not synced, and counts for nothing


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

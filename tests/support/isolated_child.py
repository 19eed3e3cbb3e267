"""A worker with one job in a process of its own, for a test that ends or stops the worker.

`python -m tests.support.isolated_child FILE`: the job tells in FILE who it is and does not end.
"""

from __future__ import annotations

import asyncio
import sys

from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import WorkerConfig
from tests.support.isolated_app import app, forever

SECOND_NS = 1_000_000_000
CONFIG = WorkerConfig(lease_ttl_ns=6 * SECOND_NS, heartbeat_interval_ns=SECOND_NS // 4)


async def main(file: str) -> None:
    async with app.working(CONFIG, store=MemoryStore()):
        job = await forever.enqueue(pids=file)
        await job.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

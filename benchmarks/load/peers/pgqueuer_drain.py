"""Drain no-op jobs with PgQueuer: `pgqueuer_drain.py DSN JOBS`, in PgQueuer's own environment."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

if TYPE_CHECKING:
    from pgqueuer.models import Job

# "Performance Tuning": a larger `batch_size` for short jobs. It is also the size at which buffered
# acknowledgements are flushed (or after 0.1 s). 100, 250 and 1,000 were slower here.
BATCH_SIZE = 500
ENQUEUE_BATCH = 10_000

DURABILITY = """
SELECT format('synchronous_commit=%s fsync=%s full_page_writes=%s unlogged_tables=%s',
  current_setting('synchronous_commit'), current_setting('fsync'),
  current_setting('full_page_writes'),
  (SELECT count(*) FROM pg_class WHERE relpersistence = 'u'))
"""
DURABLE = "synchronous_commit=on fsync=on full_page_writes=on unlogged_tables=0"


async def main(dsn: str, jobs: int) -> None:
    observer = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(observer))
    await queries.install()  # `durable`, the default: every table is logged
    await queries.optimize_autovacuum()  # `pgq autovac`: first on the checklist of the tuning guide

    begin = time.perf_counter()
    for start in range(0, jobs, ENQUEUE_BATCH):
        count = min(ENQUEUE_BATCH, jobs - start)
        # Lists instead of scalars: the documented batch insert, one statement each.
        await queries.enqueue(["noop"] * count, [None] * count, [0] * count)
    enqueue_s = time.perf_counter() - begin
    await observer.execute("ANALYZE")  # as autovacuum would have by then on a queue in use

    # "For high-throughput deployments, use a connection pool driver": acknowledgements are then
    # written while the next batch is fetched. One connection was slower.
    pool = await asyncpg.create_pool(dsn, min_size=4, max_size=8)
    durability = await pool.fetchval(DURABILITY)
    if durability != DURABLE:
        raise RuntimeError(f"not durable: {durability}")
    worker = PgQueuer(AsyncpgPoolDriver(pool))
    ran = 0
    all_ran = asyncio.Event()

    # No `concurrency_limit` and no `max_concurrent_tasks`: the fetch is cheaper without limits.
    @worker.entrypoint("noop")
    async def noop(job: Job) -> None:
        nonlocal ran
        ran += 1
        if ran >= jobs:
            all_ran.set()

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(batch_size=BATCH_SIZE))
        await all_ran.wait()
        while await observer.fetchval("SELECT EXISTS (SELECT FROM pgqueuer)"):
            await asyncio.sleep(0.005)  # the last acknowledgements are still buffered
        seconds = time.perf_counter() - begin
        worker.shutdown.set()

    done = await observer.fetchval(
        "SELECT count(DISTINCT job_id) FROM pgqueuer_log WHERE status = 'successful'"
    )
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs are done")
    print(
        json.dumps(
            {
                "peer": "pgqueuer",
                "jobs": jobs,
                "seconds": seconds,
                "jobs_per_s": jobs / seconds,
                "enqueue_per_s": jobs / enqueue_s,
                "version": version("pgqueuer"),
                "durability": durability,
            }
        )
    )


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))  # as `pgq run` does

"""Drain no-op jobs with Procrastinate: `procrastinate_drain.py DSN JOBS`, in its environment."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from importlib.metadata import version

import psycopg
from procrastinate import App, PsycopgConnector

# A worker fetches one job at a time, whatever its `concurrency`: only more workers fetch more at
# once. Eight in one process, each a task as "run a worker inside your application" shows, drained
# about twice as fast as one worker with a concurrency of 100.
WORKERS = 8
CONCURRENCY = 20
# Of the connector, shared by the workers: a fetch and a few acknowledgements of each at once.
POOL_SIZE = 20
ENQUEUE_BATCH = 1_000

DURABILITY = """
SELECT format('synchronous_commit=%%s fsync=%%s full_page_writes=%%s unlogged_tables=%%s',
  current_setting('synchronous_commit'), current_setting('fsync'),
  current_setting('full_page_writes'),
  (SELECT count(*) FROM pg_class WHERE relpersistence = 'u')) AS value
"""
DURABLE = "synchronous_commit=on fsync=on full_page_writes=on unlogged_tables=0"


async def main(dsn: str, jobs: int) -> None:
    # "App is instantiated in the main Python module": right here, but it need not be said
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    connector = PsycopgConnector(conninfo=dsn, min_size=POOL_SIZE, max_size=POOL_SIZE)
    app = App(connector=connector)
    ran = 0
    all_ran = asyncio.Event()

    @app.task(name="noop", queue="bench")
    async def noop() -> None:
        nonlocal ran
        ran += 1
        if ran >= jobs:
            all_ran.set()

    async with (
        app.open_async(),
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as observer,
    ):
        await app.schema_manager.apply_schema_async()
        # Through the pool of the workers, not the connection beside it
        answer = await connector.execute_query_one_async(DURABILITY)
        durability = answer["value"]
        if durability != DURABLE:
            raise RuntimeError(f"not durable: {durability}")

        begin = time.perf_counter()
        for start in range(0, jobs, ENQUEUE_BATCH):
            count = min(ENQUEUE_BATCH, jobs - start)
            await noop.batch_defer_async(*({} for _ in range(count)))  # the documented bulk way
        enqueue_s = time.perf_counter() - begin
        await observer.execute("ANALYZE")  # as autovacuum would have by then on a queue in use

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            workers = [
                group.create_task(
                    app.run_worker_async(
                        name=f"worker-{number}",
                        queues=["bench"],
                        concurrency=CONCURRENCY,
                        # `delete_jobs` stays at "never", the default: deleting was not faster
                        install_signal_handlers=False,
                    )
                )
                for number in range(WORKERS)
            ]
            await all_ran.wait()
            unfinished = "SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1"
            while (await observer.execute(unfinished)).rowcount:
                await asyncio.sleep(0.005)  # the last jobs ran but are not yet marked as done
            seconds = time.perf_counter() - begin
            for worker in workers:
                worker.cancel()  # the documented way to stop one: it ends gracefully

        succeeded = await observer.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'"
        )
        if (done := (await succeeded.fetchone())[0]) != jobs:
            raise RuntimeError(f"{done} of {jobs} jobs are done")
    print(
        json.dumps(
            {
                "peer": "procrastinate",
                "jobs": jobs,
                "seconds": seconds,
                "jobs_per_s": jobs / seconds,
                "enqueue_per_s": jobs / enqueue_s,
                "version": version("procrastinate"),
                "durability": durability,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""Drain no-op jobs with our own worker: `python -m benchmarks.load.jobs_drain PLACE JOBS [CLAIMS]`.

`CLAIMS`, on PostgreSQL, is `relaxed` (the default), `durable`, `keyed` (each job has a partition
key of its own) or `limited` (the queue has a limit that is never reached).

The same shape as the peers' drivers: one process makes the schema and enqueues the backlog, and
only then starts its worker and the clock, which stops when the last job is committed as done. It
counts the jobs in the database and fails if one is missing, or if a commit would not be synced.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.handles import JobFunction
from fairway.jobs.job import Limits
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.part import FILE, store_at
from fairway.jobs.worker import Worker, WorkerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fairway.jobs.store import Ended, JobStore

CONCURRENCY = 500
PREFETCH = 500
"""For short jobs: claims that are few and large, and as much in the buffer as runs."""
ENQUEUE_BATCH = 5_000

DURABILITY = """
SELECT format('synchronous_commit=%s fsync=%s full_page_writes=%s unlogged_tables=%s',
  current_setting('synchronous_commit'), current_setting('fsync'),
  current_setting('full_page_writes'),
  (SELECT count(*) FROM pg_class WHERE relpersistence = 'u'))
"""
DURABLE = "synchronous_commit=on fsync=on full_page_writes=on unlogged_tables=0"
SYNCHRONOUS_FULL = 2

ran = 0


async def noop() -> None:
    global ran
    ran += 1


async def keyed(n: int) -> None:
    global ran
    ran += 1


@dataclass(frozen=True, slots=True)
class Result:
    """What the driver prints."""

    jobs: int
    seconds: float
    jobs_per_s: float
    enqueue_per_s: float
    cpu_us_per_job: float
    """Of this process, the worker's threads included."""
    durability: str
    wal_bytes_per_job: float | None = None
    commits_per_job: float | None = None


@asynccontextmanager
async def opened(place: str, claims: str = "relaxed") -> AsyncIterator[JobStore]:
    store = store_at(place)
    if claims == "durable":
        from fairway.jobs.stores.postgres import PostgresStore

        store = PostgresStore(place, claims="durable")
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


def declared(claims: str = "relaxed") -> tuple[Kinds, Any]:
    kinds = Kinds()
    kind = function_kind(noop, "noop", 1, Options())
    if claims == "keyed":
        kind = function_kind(keyed, "keyed", 1, Options(partition_key="{n}"))
    kinds.add(kind)
    return kinds, kind


async def enqueue(place: str, jobs: int, claims: str = "relaxed") -> float:
    """Add the backlog; how long that took."""
    kinds, kind = declared(claims)
    async with opened(place) as store:
        engine = Jobs(store, kinds)
        if claims == "limited":
            await engine.limit("default", Limits(concurrency=2 * (CONCURRENCY + PREFETCH)))
        function: JobFunction[[], None] = JobFunction(lambda: engine, kind)
        begin = time.perf_counter()
        for start in range(0, jobs, ENQUEUE_BATCH):
            some = range(start, min(start + ENQUEUE_BATCH, jobs))
            await function.enqueue_many([{"n": n} if claims == "keyed" else {} for n in some])
        return time.perf_counter() - begin


async def drain(place: str, jobs: int, claims: str = "relaxed") -> tuple[float, float]:
    """Run the backlog; how long that took, and how much of the processor."""
    kinds, _ = declared(claims)
    all_done = asyncio.Event()
    left = jobs

    def on_ended(ended: Sequence[Ended]) -> None:  # after their commit
        nonlocal left
        left -= len(ended)
        if left <= 0:
            all_done.set()

    feeder = FeederConfig(concurrency=CONCURRENCY, prefetch=PREFETCH)
    async with opened(place, claims) as store:
        worker = Worker(
            store, kinds.by_version, WorkerConfig(queues={"default": feeder}), on_ended=on_ended
        )
        cpu = time.process_time()
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run())
            await all_done.wait()
            seconds = time.perf_counter() - begin
            cpu = time.process_time() - cpu
            await worker.drain()
            running.cancel()
    if ran != jobs:
        raise RuntimeError(f"{ran} runs of {jobs} jobs")
    return seconds, cpu


async def on_postgres(dsn: str, jobs: int, claims: str) -> Result:
    import asyncpg

    enqueue_s = await enqueue(dsn, jobs, claims)
    observer = await asyncpg.connect(dsn)
    durability = await observer.fetchval(DURABILITY)
    if durability != DURABLE:
        raise RuntimeError(f"not durable: {durability}")
    await observer.execute("ANALYZE")  # as autovacuum would have by then on a queue in use
    before = await _activity(observer)
    seconds, cpu = await drain(dsn, jobs, claims)
    after = await _activity(observer)
    done = await observer.fetchval(
        "SELECT count(DISTINCT id) FROM fairway_jobs.history WHERE status = 'd'"
    )
    await observer.close()
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs are done")
    return Result(
        jobs=jobs,
        seconds=seconds,
        jobs_per_s=jobs / seconds,
        enqueue_per_s=jobs / enqueue_s,
        cpu_us_per_job=cpu / jobs * 1e6,
        durability=durability,
        wal_bytes_per_job=(after[0] - before[0]) / jobs,
        commits_per_job=(after[1] - before[1]) / jobs,
    )


async def _activity(observer: Any) -> tuple[int, int]:
    """How much was ever written ahead, and how many transactions were committed here.

    A connection tells the second when it is idle or at its end, so the others have to be gone.
    """
    while await observer.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ):
        await asyncio.sleep(0.01)
    row = await observer.fetchrow(
        "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn,"
        " (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())"
    )
    return int(row[0]), int(row[1])


async def on_sqlite(directory: str, jobs: int, claims: str) -> Result:
    import apsw

    from fairway.jobs.stores.sqlite.calls import COMMAND, Caller

    enqueue_s = await enqueue(directory, jobs)
    seconds, cpu = await drain(directory, jobs)
    async with opened(directory) as store:
        synchronous = await store._write.run(  # type: ignore[attr-defined]  # what settles uses
            lambda one: one.connection.pragma("synchronous"), Caller(COMMAND), durable=True
        )
    if synchronous != SYNCHRONOUS_FULL:
        raise RuntimeError(f"not durable: synchronous={synchronous}")
    connection = apsw.Connection(str(Path(directory) / FILE))
    journal = connection.pragma("journal_mode")
    done = connection.execute("SELECT count(*) FROM job WHERE status = 5").get
    connection.close()
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs are done")
    return Result(
        jobs=jobs,
        seconds=seconds,
        jobs_per_s=jobs / seconds,
        enqueue_per_s=jobs / enqueue_s,
        cpu_us_per_job=cpu / jobs * 1e6,
        durability=f"synchronous={synchronous} journal_mode={journal}",
    )


def main(place: str, jobs: int, claims: str = "relaxed") -> None:
    measure = on_postgres if place.startswith("postgres") else on_sqlite
    print(json.dumps(asdict(uvloop.run(measure(place, jobs, claims)))))  # as `fairway worker` does


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

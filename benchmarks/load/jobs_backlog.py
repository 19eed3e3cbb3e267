"""What a claim costs with so many jobs in line, on PostgreSQL."""

from __future__ import annotations

import statistics
import time

import asyncpg

from benchmarks.load.jobs_drain import opened
from fairway.core.priority import band_of
from fairway.jobs.job import Fate, NewJob, ReadyLine, Settlement
from fairway.jobs.store import Want

LINE = ReadyLine("default", "", band_of(0))
CLAIMS = 150
CLAIM = 100
WARM_UP = 20
HOUR_NS = 3_600_000_000_000

JOB = """
INSERT INTO fairway_jobs.job
  (id, kind, version, step, state, lane, priority, max_attempts, max_crashes, enqueued_at)
SELECT nextval('fairway_jobs.job_id'), 'noop', 1, 'run', '{}', $2, 0, 20, 5, now()
FROM generate_series(1, $1::bigint)
"""
READY = """
INSERT INTO fairway_jobs.ready (lane, id, priority, strict, since)
SELECT lane, id, priority, false, enqueued_at FROM fairway_jobs.job ORDER BY id
"""


async def fill(dsn: str, jobs: int) -> None:
    """Put jobs in line, in the quickest way: how they came there does not matter."""
    async with opened(dsn) as store:  # one of them makes the tables and the line
        await store.enqueue([NewJob(kind="noop")])
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("TRUNCATE fairway_jobs.ready")
            line = await connection.fetchval("SELECT id FROM fairway_jobs.lane")
            await connection.execute(JOB, jobs - 1, line)
            await connection.execute(READY)
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def claim_ms(dsn: str) -> float:
    """The median of many exchanges that claim a hundred, with as many in line before each."""
    async with opened(dsn) as store:
        worker = await store.register("bench", HOUR_NS)
        times: list[float] = []
        for number in range(1, WARM_UP + CLAIMS + 1):
            begin = time.perf_counter()
            out = await store.exchange(worker, number * 2, (), [Want(LINE, CLAIM)])
            times.append((time.perf_counter() - begin) * 1e3)
            if len(out.claims) != CLAIM:
                raise RuntimeError(f"{len(out.claims)} jobs were claimed of {CLAIM}")
            done = [Settlement(claim=claim, fate=Fate.DONE, result=b"null") for claim in out.claims]
            await store.exchange(worker, number * 2 + 1, done)
            await store.enqueue([NewJob(kind="noop")] * CLAIM)
        await store.unregister(worker)
        return statistics.median(times[WARM_UP:])

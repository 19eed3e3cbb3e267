"""Jobs enqueued in bulk, and a bare asyncpg loop that inserts the same rows into the same tables.

Both get what they insert ready-made before the clock starts: ours typed arguments, which it checks
and encodes, the bare loop the encoded bytes. Both commit each batch.
"""

from __future__ import annotations

import time
from typing import Any

import asyncpg
import msgspec

from benchmarks.load.jobs_drain import opened
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.handles import JobFunction
from fairway.jobs.kinds import Options, function_kind

# The fastest of three here. COPY into each table, which needs the numbers fetched first, had two
# thirds of its rows a second, and `executemany` for each table a third.
INSERT = """
WITH input AS MATERIALIZED (
  SELECT nextval('fairway_jobs.job_id') AS id, state FROM unnest($1::bytea[]) AS u (state)
), added AS (
  INSERT INTO fairway_jobs.job
    (id, kind, version, step, state, lane, priority, max_attempts, max_crashes, enqueued_at)
  SELECT id, 'charge', 1, 'run', state, $2, 0, 20, 5, now() FROM input
)
INSERT INTO fairway_jobs.ready (lane, id, priority, strict, since)
SELECT $2, id, 0, false, now() FROM input
"""


async def charge(order: int, customer: str, cents: int, urgent: bool = False) -> None:
    """Never run here: only its arguments matter."""


def arguments(number: int) -> dict[str, Any]:
    return {"order": number, "customer": f"customer-{number % 997}", "cents": 100 + number % 9_000}


async def ours(dsn: str, jobs: int, batch: int) -> float:
    """Jobs a second through `JobFunction.enqueue_many`."""
    kinds = Kinds()
    kind = function_kind(charge, "charge", 1, Options())
    kinds.add(kind)
    batches = [
        [arguments(number) for number in range(start, start + batch)]
        for start in range(0, jobs, batch)
    ]
    async with opened(dsn) as store:
        engine = Jobs(store, kinds)
        function: JobFunction[..., None] = JobFunction(lambda: engine, kind)
        await function.enqueue_many(batches[0])  # makes the line, prepares the statement
        begin = time.perf_counter()
        for each in batches:
            await function.enqueue_many(each)
        return jobs / (time.perf_counter() - begin)


async def bare(dsn: str, jobs: int, batch: int) -> float:
    """Rows a second in a bare loop. The tables and the line are those that `ours` made."""
    batches = [
        [msgspec.json.encode(arguments(number) | {"urgent": False}) for number in numbers]
        for numbers in (range(start, start + batch) for start in range(0, jobs, batch))
    ]
    connection = await asyncpg.connect(dsn)
    try:
        line = await connection.fetchval("SELECT min(id) FROM fairway_jobs.lane")
        insert = await connection.prepare(INSERT)
        await insert.fetch(batches[0], line)
        begin = time.perf_counter()
        for each in batches:
            await insert.fetch(each, line)
        return jobs / (time.perf_counter() - begin)
    finally:
        await connection.close()

"""What PostgreSQL itself allows: a bare loop that claims a hundred jobs and deletes them.

No job runs, nothing is retried and one table holds everything: nobody's queue does less. asyncpg on
one connection, as a queue with one worker would.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncpg

SCHEMA = """
DROP TABLE IF EXISTS bench_ceiling;
CREATE TABLE bench_ceiling (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  payload bytea NOT NULL,
  status smallint NOT NULL DEFAULT 0
);
"""
# Partial: a job that is claimed leaves it, so that the next claim never steps over it.
INDEX = "CREATE INDEX ON bench_ceiling (id) WHERE status = 0"
FILL = "INSERT INTO bench_ceiling (payload) SELECT '\\x' FROM generate_series(1, $1::bigint)"
CLAIM = """
UPDATE bench_ceiling SET status = 1
WHERE id = ANY(ARRAY(
  SELECT id FROM bench_ceiling WHERE status = 0 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
))
RETURNING id, payload
"""
DELETE = "DELETE FROM bench_ceiling WHERE id = ANY($1::bigint[])"
SETTINGS = ("synchronous_commit", "fsync", "full_page_writes")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Jobs a second, with a commit after the claim and after the delete, or after both at once."""

    two_commits: float
    one_commit: float


def ceiling(dsn: str, jobs: int, batch: int = 100) -> Ceiling:
    """Drain `jobs` rows twice from a table of its own in the database at `dsn`."""
    return asyncio.run(_ceiling(dsn, jobs, batch))


async def _ceiling(dsn: str, jobs: int, batch: int) -> Ceiling:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        for name in SETTINGS:
            if (value := await connection.fetchval("SELECT current_setting($1)", name)) != "on":
                raise RuntimeError(f"not durable: {name} is {value}")
        two_commits = await _drain(connection, jobs, batch, in_one=False)
        return Ceiling(two_commits, await _drain(connection, jobs, batch, in_one=True))
    finally:
        await connection.execute("DROP TABLE IF EXISTS bench_ceiling")
        await connection.close()


async def _drain(connection: asyncpg.Connection, jobs: int, batch: int, *, in_one: bool) -> float:
    await connection.execute(SCHEMA)
    await connection.execute(FILL, jobs)
    await connection.execute(INDEX)
    await connection.execute("ANALYZE bench_ceiling")
    claim = await connection.prepare(CLAIM)
    delete = await connection.prepare(DELETE)
    done = 0
    begin = time.perf_counter()
    while done < jobs:
        if in_one:
            async with connection.transaction():
                claimed = await claim.fetch(batch)
                await delete.fetch([row["id"] for row in claimed])
        else:
            claimed = await claim.fetch(batch)
            await delete.fetch([row["id"] for row in claimed])
        if not claimed:
            raise RuntimeError(f"{done} of {jobs} jobs are done and no more are found")
        done += len(claimed)
    rate = done / (time.perf_counter() - begin)
    if left := await connection.fetchval("SELECT count(*) FROM bench_ceiling"):
        raise RuntimeError(f"{left} of {jobs} jobs are left")
    return rate

"""Drain no-op jobs with Awa: `awa_pg_drain.py DSN JOBS`, in the environment of awa-pg."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import awa

# "For a hot workload that can be partitioned, start with `PartitionedQueue`." Two were faster than
# one on two cores, four were not faster than two.
PARTITIONS = 2
# "For very high-throughput no-op queues, size `max_workers` for durable completion latency":
# 1,024 in the reference shape. From 512 on, completions are flushed by four shards by default.
MAX_WORKERS_PER_PARTITION = 1_024
# `claim_batch_size` 512, `claimers` 1, AWA_COMPLETION_BATCH_SIZE 512 and AWA_COMPLETION_FLUSH_MS 1
# are the recommended values and the defaults. `deadline_duration_ms` 0 was slower than the default.
CLAIM_BATCH_SIZE = 512
CONNECTIONS = 20
# A segment keeps what is done until it is rotated out and truncated. We count it afterwards, so it
# has to outlive the drain; "increase rotation intervals to reduce partition churn".
ROTATE_MS = 600_000
ENQUEUE_BATCH = 5_000

DURABILITY = """
SELECT format('synchronous_commit=%s fsync=%s full_page_writes=%s unlogged_tables=%s',
  current_setting('synchronous_commit'), current_setting('fsync'),
  current_setting('full_page_writes'),
  (SELECT count(*) FROM pg_class WHERE relpersistence = 'u')) AS value
"""
DURABLE = "synchronous_commit=on fsync=on full_page_writes=on unlogged_tables=0"

# What the view `terminal_jobs` reads, without joining each job to its arguments again.
COMPLETED = """
SELECT (SELECT coalesce(sum(completed_count), 0) FROM awa.receipt_completion_batches)::bigint
  + (SELECT count(*) FROM awa.done_entries WHERE state = 'completed') AS value
"""
DISTINCT = """
SELECT count(DISTINCT job_id) AS value FROM (
  SELECT unnest(job_ids) AS job_id FROM awa.receipt_completion_batches
  UNION ALL SELECT job_id FROM awa.done_entries WHERE state = 'completed'
) AS completed
"""


@dataclass
class Noop:
    pass


async def main(dsn: str, jobs: int) -> None:
    client = awa.AsyncClient(_url(dsn), max_connections=CONNECTIONS)
    await client.migrate()
    # A first worker on a new database would select this engine, the one Awa recommends; bulk
    # enqueueing before there is a worker needs it selected.
    await client.install_queue_storage(schema="awa")
    durability = await _value(client, DURABILITY)
    if durability != DURABLE:
        raise RuntimeError(f"not durable: {durability}")

    queue = awa.PartitionedQueue("bench", PARTITIONS)
    begin = time.perf_counter()
    for start in range(0, jobs, ENQUEUE_BATCH):
        numbers = range(start, min(start + ENQUEUE_BATCH, jobs))
        # "COPY ingestion … for high-volume Python producers", spread evenly over the partitions
        await client.enqueue_many_copy(
            [Noop()] * len(numbers), opts=[queue.route_by_index(number) for number in numbers]
        )
    enqueue_s = time.perf_counter() - begin
    await _execute(client, "ANALYZE")  # as autovacuum would have by then on a queue in use

    ran = 0
    all_ran = asyncio.Event()
    loop = asyncio.get_running_loop()

    @client.task(Noop, queue=queue.physical_queues[0])
    async def noop(job: awa.Job) -> None:
        nonlocal ran
        ran += 1
        if ran >= jobs:
            loop.call_soon_threadsafe(all_ran.set)

    begin = time.perf_counter()
    await client.start(
        queue.queue_configs(
            max_workers_per_partition=MAX_WORKERS_PER_PARTITION, claim_batch_size=CLAIM_BATCH_SIZE
        ),
        queue_storage_queue_rotate_interval_ms=ROTATE_MS,
    )
    await all_ran.wait()
    while await _value(client, COMPLETED) < jobs:
        await asyncio.sleep(0.005)  # the last completions are still to be flushed
    seconds = time.perf_counter() - begin
    await client.shutdown()

    done = await _value(client, DISTINCT)
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} jobs are done")
    await client.close()
    print(
        json.dumps(
            {
                "peer": "awa-pg",
                "jobs": jobs,
                "seconds": seconds,
                "jobs_per_s": jobs / seconds,
                "enqueue_per_s": jobs / enqueue_s,
                "version": version("awa-pg"),
                "durability": durability,
            }
        ),
        flush=True,
    )


def _url(dsn: str) -> str:
    """The same with the user in the query: its driver refuses a user before an empty host."""
    parts = urlsplit(dsn)
    if parts.hostname:
        return dsn
    query = {**dict(parse_qsl(parts.query)), "user": parts.username or ""}
    return f"postgresql://localhost{parts.path}?{urlencode(query)}"


async def _value(client: awa.AsyncClient, query: str) -> Any:
    transaction = await client.transaction()
    try:
        return (await transaction.fetch_one(query))["value"]
    finally:
        await transaction.rollback()


async def _execute(client: awa.AsyncClient, statement: str) -> None:
    async with await client.transaction() as transaction:
        await transaction.execute(statement)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
    os._exit(0)  # the threads of its runtime may outlive `close`, and everything is said

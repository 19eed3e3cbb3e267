"""How long others wait on SQLite while one tenant enqueues thousands of jobs, one by one."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, NamedTuple

from fairway.core.priority import Band
from fairway.jobs.job import Lane, NewJob
from fairway.jobs.store import Want
from fairway.jobs.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

FLOOD = 8_000
"""Enqueues that are under way at once."""
ALONE = 50
LEASE_NS = 600_000_000_000


class Waits(NamedTuple):
    """Milliseconds, medians: of a quiet tenant's enqueue and of a worker's exchange."""

    enqueue_ms: float
    exchange_ms: float


async def waits(path: Path) -> tuple[Waits, Waits]:
    """How long others wait alone, and beside the flood."""
    store = SqliteStore(path)
    await store.open()
    worker = await store.register("bench", LEASE_NS)
    lane = Lane("quiet", "quiet", Band.B1)

    async def both(token: int) -> Waits:
        quiet = NewJob(kind="note", queue="quiet", tenant="quiet")
        exchange = store.exchange(worker, token, wants=[Want(lane, 1)], probe=["quiet"])
        return Waits(*await asyncio.gather(_timed(store.enqueue([quiet])), _timed(exchange)))

    alone = [await both(token) for token in range(1, ALONE)]
    loud = NewJob(kind="note", queue="loud", tenant="loud")
    beside = []
    async with asyncio.TaskGroup() as group:
        flood = [group.create_task(store.enqueue([loud])) for _ in range(FLOOD)]
        await asyncio.sleep(0)
        while not flood[-1].done():
            beside.append(await both(ALONE + len(beside)))
    await store.aclose()
    return _median(alone), _median(beside)


async def _timed(call: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await call
    return (time.perf_counter() - begin) * 1e3


def _median(waits: list[Waits]) -> Waits:
    return Waits(*(statistics.median(column) for column in zip(*waits, strict=True)))

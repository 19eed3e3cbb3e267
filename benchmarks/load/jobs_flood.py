"""How long others wait on SQLite while one tenant makes thousands of calls, one by one."""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fairway.core.priority import Band
from fairway.jobs.job import NewJob, ReadyLine
from fairway.jobs.store import Want
from fairway.jobs.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

FLOOD = 8_000
"""Calls that are under way at once."""
ALONE = 50
LEASE_NS = 600_000_000_000
LATER_NS = 3_600_000_000_000


Call: TypeAlias = "Callable[[], Awaitable[object]]"
Scene: TypeAlias = "tuple[Call, Sequence[Call]]"
"""What one tenant floods the store with, and the calls that are asked beside it."""


class Waits(NamedTuple):
    """Milliseconds, medians: of calls of a quiet tenant and of a worker's exchange."""

    enqueue: float
    exchange: float
    cancel: float
    signal: float


async def waits(path: Path) -> tuple[Waits, Waits]:
    """How long others wait alone, and beside a flood: of enqueues, or of their own kind."""
    alone, beside = [], []
    for number, scene in enumerate((_enqueues, _cancels, _signals)):
        # Each in a file of its own: what a flood leaves to the next checkpoint would slow others.
        store = SqliteStore(path.with_suffix(f".{number}"))
        await store.open()
        before, during = await _beside(*await scene(store))
        alone += before
        beside += during
        await store.aclose()
    return Waits(*alone), Waits(*beside)


async def _enqueues(store: SqliteStore) -> Scene:
    loud, quiet = (NewJob(kind="note", queue=name, tenant=name) for name in ("loud", "quiet"))
    wants = [Want(ReadyLine("quiet", "quiet", Band.B1), 1)]
    worker = await store.register("bench", LEASE_NS)
    tokens = count(1)

    def exchange() -> Awaitable[object]:
        return store.exchange(worker, next(tokens), wants=wants, probe=["quiet"])

    return (lambda: store.enqueue([loud])), [lambda: store.enqueue([quiet]), exchange]


async def _cancels(store: SqliteStore) -> Scene:
    """Cancels of one job after the other."""
    loud, quiet = [iter(await _parked(store, tenant)) for tenant in ("loud", "quiet")]
    return (lambda: store.cancel([next(loud)])), [lambda: store.cancel([next(quiet)])]


async def _signals(store: SqliteStore) -> Scene:
    """Signals to one job after the other."""
    loud, quiet = [iter(await _parked(store, tenant)) for tenant in ("loud", "quiet")]
    return (lambda: store.signal(next(loud), "note", b"1")), [
        lambda: store.signal(next(quiet), "note", b"1")
    ]


async def _parked(store: SqliteStore, tenant: str) -> list[int]:
    one = NewJob(kind="note", queue=tenant, tenant=tenant, delay_ns=LATER_NS)
    return [added.id for added in await store.enqueue([one] * (FLOOD + ALONE))]


async def _beside(flood: Call, asked: Sequence[Call]) -> tuple[list[float], list[float]]:
    """The median wait of each call that is asked, alone and while the flood is under way."""

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(_timed(ask()) for ask in asked))

    alone = [await all_of_them() for _ in range(ALONE)]
    beside = []
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(_done(flood())) for _ in range(FLOOD)]
        await asyncio.sleep(0)
        while not calls[-1].done():
            beside.append(await all_of_them())
    return _medians(alone), _medians(beside)


async def _timed(call: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await call
    return (time.perf_counter() - begin) * 1e3


async def _done(call: Awaitable[object]) -> None:
    await call


def _medians(waits: list[list[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*waits, strict=True)]

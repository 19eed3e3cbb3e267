"""A worker in a process of its own, to be killed. Run with

    python -m tests.support.jobs_child PLACE BOOK LEASE_MS

`PLACE` is `sqlite:FILE` or `postgres:SCHEMA:URL`. Each run of a job appends a line to `BOOK` when
it begins and when it ends, and says so with one byte on stdout when it begins. It works until stdin
is closed, then gives back what did not start, waits for the rest and ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.engine import Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.stores.sqlite import SqliteStore
from fairway.jobs.upkeep import Upkeep
from fairway.jobs.worker import Worker, WorkerConfig
from tests.support.culprits import ends

if TYPE_CHECKING:
    from fairway.jobs.store import JobStore

MILLISECOND_NS = 1_000_000
PAUSE_S = 0.01
"""About how long a job takes."""


class Line(msgspec.Struct, array_like=True):
    """What the book says of one run."""

    what: str
    """`began`, or `ended`: with a result, or stopped by its worker, which `gated` tells apart."""
    job: int
    attempt: int
    key: str | None
    pid: int
    at_ns: int
    """On the clock that all processes of the machine share."""


class Book:
    """Lines that survive whoever wrote them."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, ctx: Context[Any]) -> None:
        line = Line(
            what, ctx.id, ctx.attempt, ctx._claim.partition_key, os.getpid(), time.monotonic_ns()
        )
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def gate_of(book: str, pid: int) -> str:
    """The file that lets `gated` jobs of a process end."""
    return f"{book}.go-{pid}"


def store_at(place: str) -> JobStore:
    kind, _, rest = place.partition(":")
    if kind == "sqlite":
        return SqliteStore(rest)
    from fairway.jobs.stores.postgres import PostgresStore

    schema, _, url = rest.partition(":")
    return PostgresStore(url, schema=schema)


def kinds_of(book: Book) -> Kinds:
    kinds = Kinds()

    def began(ctx: Context[Any]) -> None:
        book.note("began", ctx)
        os.write(1, b".")

    async def work(ctx: Context[Any]) -> int:
        began(ctx)
        try:
            await asyncio.sleep(random.random() * 2 * PAUSE_S)
        finally:
            book.note("ended", ctx)
        return ctx.attempt

    def threaded(ctx: Context[Any]) -> int:
        began(ctx)
        time.sleep(random.random() * PAUSE_S)
        book.note("ended", ctx)
        return ctx.attempt

    async def poison(ctx: Context[Any]) -> None:
        began(ctx)
        if ctx.attempt % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(13)

    async def ends_in_a_coroutine(ctx: Context[Any], way: str) -> None:
        began(ctx)
        ends(way)

    def ends_in_a_thread(ctx: Context[Any], way: str) -> None:
        began(ctx)
        ends(way)

    async def gated(ctx: Context[Any]) -> int:
        """Until the test lets the jobs of this process go on."""
        began(ctx)
        try:
            while not os.path.exists(gate_of(book.path, os.getpid())):  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(PAUSE_S)
        except asyncio.CancelledError:
            book.note("stopped", ctx)
            raise
        book.note("ended", ctx)
        return ctx.attempt

    for function in (work, threaded, poison, gated, ends_in_a_coroutine, ends_in_a_thread):
        kinds.add(function_kind(function, function.__name__, 1, Options()))
    return kinds


def config_of(lease_ms: int) -> WorkerConfig:
    lease_ns = lease_ms * MILLISECOND_NS
    return WorkerConfig(
        queues={
            "default": FeederConfig(
                concurrency=6, prefetch=6, poll_interval_ns=50 * MILLISECOND_NS,
                max_poll_interval_ns=100 * MILLISECOND_NS,
            )
        },
        lease_ttl_ns=lease_ns,
        heartbeat_interval_ns=lease_ns // 4,
        reap_interval_ns=100 * MILLISECOND_NS,
        threads=3,
        upkeep=Upkeep(timer_interval_ns=100 * MILLISECOND_NS),
    )  # fmt: skip


async def main(place: str, book: str, lease_ms: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_reader(0, stop.set)
    store = store_at(place)
    await store.open()
    worker = Worker(store, kinds_of(Book(book)).by_version, config_of(lease_ms))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(worker.run())
        await stop.wait()
        await worker.drain()
        running.cancel()
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""The jobs of an app while it runs: the store, and a worker beside it if there is one."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.errors import InvalidConfig, OutcomeUnknown, TryLater
from fairway.jobs.clockwork import Clockwork
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.store import Inspected
from fairway.jobs.worker import Worker, WorkerConfig
from fairway.masking import masked
from fairway.runtime.clock import SYSTEM_CLOCK, sleep_ns
from fairway.storage.wals import directory_of, no_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from fairway.jobs.clockwork import Schedule
    from fairway.jobs.store import JobStore
    from fairway.runtime.telemetry import Telemetry

logger = logging.getLogger("fairway.jobs")

FILE = "jobs.db"
OPENING = BackoffConfig(base_ns=100_000_000, cap_ns=2_000_000_000, jitter=0.5)
"""How often a database that cannot be used yet is tried."""


def store_at(place: str | Path) -> JobStore:
    """The job store that belongs to a place, as the log reads it: a PostgreSQL URL, a directory
    (`sqlite:` or `rocksdb:` before it changes nothing), or `memory:`."""
    text = str(place)
    if text.startswith(("postgresql://", "postgres://")):
        try:
            from fairway.jobs.stores.postgres import PostgresStore
        except ImportError as error:
            raise InvalidConfig(
                f"jobs in PostgreSQL need asyncpg and psycopg ({error}):"
                " pip install 'fairway[postgres]'"
            ) from None
        return PostgresStore(text)
    if text == "memory:":
        from fairway.jobs.stores.memory import MemoryStore

        return MemoryStore()
    from fairway.jobs.stores.sqlite import SqliteStore

    path = directory_of(place)
    if path is None:
        raise InvalidConfig(f"{masked(text)!r} names no store for jobs")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise (no_place(error) or error) from None
    return SqliteStore(path / FILE)


class JobsPart:
    """Opens the store on entering and closes it on leaving; between, jobs run if there is a worker.

    Leaving it stops claiming, gives back what did not start and waits for what runs, for a while.
    """

    def __init__(
        self,
        store: JobStore,
        kinds: Kinds,
        config: WorkerConfig | None,
        schedules: Mapping[str, Schedule],
        telemetry: Telemetry | None = None,
        *,
        patient: bool = False,
    ) -> None:
        """With `patient`, a database that cannot be used yet is waited for, however long."""
        self.store = store
        self._patient = patient
        self.engine = Jobs(store, kinds)
        self.worker: Worker | None = None
        if config is not None:
            self.worker = Worker(
                store, kinds.by_version, config, told=self.engine.told, telemetry=telemetry
            )
            self.engine.attach(self.worker)
        self._group = asyncio.TaskGroup()
        self._schedules = schedules
        self._running: list[asyncio.Task[None]] = []

    async def inspect(self) -> None:
        """Raise what entering would raise over damaged files, and change none of them."""
        if isinstance(self.store, Inspected):
            await self._patiently(self.store.inspect)

    async def __aenter__(self) -> Self:
        await self._patiently(self.store.open)
        await self._group.__aenter__()
        if self.worker is not None:
            clockwork = Clockwork(self.engine, self.store.timetable, self._schedules)
            self._running = [
                self._group.create_task(self.worker.run(), name=self.worker.name),
                self._group.create_task(clockwork.run(), name=clockwork.name),
            ]
            await self.worker.wait_started()
        return self

    async def _patiently(self, look: Callable[[], Awaitable[None]]) -> None:
        """Open or inspect the store, as soon as its database is reached, has started or is free.

        Whatever waiting does not mend is raised at once: a wrong password, an unknown database, the
        tables of a newer release.
        """
        backoff = Backoff(OPENING, random.Random())
        said = ""
        while True:
            try:
                return await look()
            except (TryLater, OutcomeUnknown) as error:
                if not self._patient:
                    raise
                if str(error) != said:
                    said = str(error)
                    logger.warning("waiting for the database of the jobs: %s", said)
                await sleep_ns(backoff.failed(SYSTEM_CLOCK.now_ns()) or OPENING.cap_ns)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self.worker is not None:
                await self.worker.drain()
            for service in self._running:
                service.cancel()
            await self._group.__aexit__(None, None, None)
        finally:
            await self.store.aclose()

"""The jobs of an app while it runs: the store, and a worker beside it if there is one."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.errors import InvalidConfig, OutcomeUnknown, TryLater
from fairway.jobs.clockwork import Clockwork
from fairway.jobs.effects import KIND, JobDestination
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.store import Inspected
from fairway.jobs.worker import Worker, WorkerConfig
from fairway.kernel.part import Part
from fairway.masking import masked
from fairway.runtime.clock import SYSTEM_CLOCK, sleep_ns
from fairway.storage.wals import directory_of, no_place

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from fairway.jobs.clockwork import Schedule
    from fairway.jobs.forwarding import Forwarder
    from fairway.jobs.store import JobStore
    from fairway.kernel.kernel import Kernel
    from fairway.kernel.part import PartHealth
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


class JobsPart(Part):
    """Opens the store on entering and closes it on leaving; between, jobs run if there is a worker.

    Leaving it stops claiming, gives back what did not start and waits for what runs, for a while.
    """

    name = "jobs"

    def __init__(
        self,
        store: JobStore,
        kinds: Kinds,
        config: WorkerConfig | None,
        schedules: Mapping[str, Schedule],
        telemetry: Telemetry | None = None,
        *,
        kernel: Kernel | None = None,
        on_disk_of_log: bool = False,
        wait_for_store: bool = False,
        forwarders: Iterable[Forwarder] = (),
    ) -> None:
        """With `wait_for_store`, a database that cannot be used yet is waited for, however long.

        Without a kernel it is all that its process has: the log is left to whoever owns it. With
        one, jobs are effects of other parts, the worker holds less while the kernel is under
        pressure, and a store `on_disk_of_log` leaves the reserve of that disk to deletes.
        """
        self._forwarders = forwarders
        self._forwarding: list[asyncio.Task[None]] = []
        self.store = store
        self._wait_for_store = wait_for_store
        self._kernel = kernel
        kept = kernel is not None and on_disk_of_log
        self.engine = Jobs(store, kinds, check_room=self._check_room if kept else None)
        if kernel is not None:
            kernel.offer(KIND, JobDestination(self.engine))
        self.worker: Worker | None = None
        if config is not None:
            self.worker = Worker(
                store,
                kinds.by_version,
                config,
                on_ended=self.engine.on_ended,
                telemetry=telemetry,
                pressure=self._pressure,
            )
            self.engine.attach(self.worker)
        self._schedules = schedules
        self._opened = False

    def health(self) -> PartHealth:
        return self.engine.health()

    def _check_room(self) -> None:
        assert self._kernel is not None
        self._kernel.writability.check_room()

    def _pressure(self) -> float:
        return self._kernel.ladder.pressure if self._kernel is not None else 0.0

    async def inspect(self) -> None:
        """Raise what entering would raise over damaged files, and change none of them."""
        if isinstance(self.store, Inspected):
            await self._when_available(self.store.inspect)

    async def open(self) -> None:
        await self._when_available(self.store.open)
        self._opened = True
        if self.worker is not None:
            clockwork = Clockwork(self.engine, self.store.timetable, self._schedules)
            self.spawn(self.worker.run(), self.worker.name)
            self.spawn(clockwork.run(), clockwork.name)
            await self.worker.wait_started()
        self._forwarding = [self.spawn(each.run(), each.name) for each in self._forwarders]

    def stop_admitting(self) -> None:
        for forwarding in self._forwarding:
            forwarding.cancel()

    async def drain(self) -> None:
        if self.worker is not None:
            await self.worker.drain()

    async def aclose(self) -> None:
        if self._opened:
            await self.store.aclose()

    async def _when_available(self, look: Callable[[], Awaitable[None]]) -> None:
        """Open or inspect the store, as soon as its database is reached, has started or is free.

        Whatever waiting does not mend is raised at once: a wrong password, an unknown database, the
        tables of a newer release.
        """
        backoff = Backoff(OPENING, random.Random())
        error_text = ""
        while True:
            try:
                return await look()
            except (TryLater, OutcomeUnknown) as error:
                if not self._wait_for_store:
                    raise
                if str(error) != error_text:
                    error_text = str(error)
                    logger.warning("waiting for the database of the jobs: %s", error_text)
                await sleep_ns(backoff.failed(SYSTEM_CLOCK.now_ns()) or OPENING.cap_ns)

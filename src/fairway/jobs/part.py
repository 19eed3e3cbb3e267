"""The jobs of an app while it runs: the store, and a worker beside it if there is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.errors import InvalidConfig
from fairway.jobs.clockwork import Clockwork
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.worker import Worker, WorkerConfig
from fairway.masking import masked
from fairway.storage.wals import directory_of, no_place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from fairway.jobs.clockwork import Schedule
    from fairway.jobs.store import JobStore
    from fairway.runtime.telemetry import Telemetry

FILE = "jobs.db"


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
    ) -> None:
        self.store = store
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

    async def __aenter__(self) -> Self:
        await self.store.open()
        await self._group.__aenter__()
        if self.worker is not None:
            clockwork = Clockwork(self.engine, self.store.timetable, self._schedules)
            self._running = [
                self._group.create_task(self.worker.run(), name=self.worker.name),
                self._group.create_task(clockwork.run(), name=clockwork.name),
            ]
            await self.worker.wait_started()
        return self

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

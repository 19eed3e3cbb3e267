"""What the conformance suite of job stores needs of each: a place for it, and a hand on its clock.

Stores are imported when first used. One that cannot run here is skipped with a line that says why,
and `test_every_store_ran` makes sure that nobody overlooks that line.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import shutil
import tempfile
from abc import ABC, abstractmethod
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fairway.jobs.stores.memory import MemoryStore
from fairway.testing.loop import WALL_START_NS
from tests.support.postgres import Unavailable, empty, postgres_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.jobs.store import JobStore

SECOND_NS = 1_000_000_000
MEMORY_FILES = Path("/dev/shm")


class ManualClock:
    """A clock that stands still until somebody moves it."""

    def __init__(self, ns: int = WALL_START_NS) -> None:
        self.ns = ns

    def now_ns(self) -> int:
        return self.ns

    def wall_ns(self) -> int:
        return self.ns


class JobRig(ABC):
    """One store on an empty place of its own, and its time."""

    lasting = True
    """Whether jobs outlive the process: what a restart finds can be looked at."""
    slack_ns = 0
    """How far times may be off: 0 where the suite owns the clock."""
    histories = 12
    """How many random histories are played in `make test`."""

    store: JobStore

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    @abstractmethod
    def make(self) -> JobStore:
        """A store on this rig's place, not yet open."""

    async def open(self) -> None:
        self.store = self.make()
        await self.store.open()

    async def reopen(self) -> None:
        """Close cleanly; then a new store on the same place."""
        await self.store.aclose()
        await self.open()

    async def aclose(self) -> None:
        await self.store.aclose()

    @abstractmethod
    async def advance(self, ns: int) -> None:
        """Let time pass for the store."""

    @abstractmethod
    def wall_ns(self) -> int:
        """What the store takes for now, within `slack_ns`."""

    @abstractmethod
    def unique_keys(self) -> list[str]:
        """Every unique key that something is kept of, whether it stands for a job or not."""


class ClockedRig(JobRig):
    """A store that takes its time from a clock we hold."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.clock = ManualClock()

    async def advance(self, ns: int) -> None:
        self.clock.ns += ns

    def wall_ns(self) -> int:
        return self.clock.ns


class MemoryRig(ClockedRig):
    lasting = False

    def make(self) -> JobStore:
        return MemoryStore(self.clock)

    def unique_keys(self) -> list[str]:
        assert isinstance(self.store, MemoryStore)
        return sorted(self.store._keys)


class SqliteRig(ClockedRig):
    """In files of memory, where the system has such: to sync them costs and proves nothing here."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._kind = load("sqlite", "SqliteStore", library="apsw")
        self._place: Path | None = None

    def make(self) -> JobStore:
        if self._place is None:
            home = MEMORY_FILES if MEMORY_FILES.is_dir() else self.scratch
            self._place = Path(tempfile.mkdtemp(prefix="fairway-jobs-", dir=home))
        made: JobStore = self._kind(self._file, clock=self.clock)
        return made

    @property
    def _file(self) -> Path:
        assert self._place is not None
        return self._place / "jobs.db"

    def unique_keys(self) -> list[str]:
        connection = importlib.import_module("apsw").Connection(str(self._file))
        try:
            rows = connection.execute("SELECT key FROM unique_key ORDER BY key").fetchall()
        finally:
            connection.close()
        return [key for (key,) in rows]

    async def aclose(self) -> None:
        await super().aclose()
        if self._place is not None:
            shutil.rmtree(self._place)


class PostgresRig(ClockedRig):
    """The store asks `now_()` in its schema for the time; here that answers what we say.

    Making the tables takes longer than a test: schemas that are free again are emptied and reused.
    """

    _schemas = itertools.count(1)
    _free: ClassVar[list[str]] = []

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._kind = load("postgres", "PostgresStore", library="asyncpg")
        self._url = postgres_url()
        self._schema = self._free.pop() if self._free else f"jobs_{next(self._schemas)}"
        self._psycopg = importlib.import_module("psycopg")
        self._hand: Any = None

    def make(self) -> JobStore:
        made: JobStore = self._kind(self._url, schema=self._schema)
        return made

    async def open(self) -> None:
        await super().open()
        self._set_clock()

    async def advance(self, ns: int) -> None:
        await super().advance(ns)
        self._set_clock()

    def _set_clock(self) -> None:
        at = f"timestamptz 'epoch' + interval '1 microsecond' * {self.clock.ns // 1000}"
        self._execute(
            f'create or replace function "{self._schema}".now_() returns timestamptz'
            f" language sql stable return {at}"
        )

    def unique_keys(self) -> list[str]:
        rows = self._execute(f'select key from "{self._schema}".unique_key order by key').fetchall()
        return [key for (key,) in rows]

    def _execute(self, text: str) -> Any:
        if self._hand is None:
            self._hand = self._psycopg.connect(self._url, autocommit=True)
        return self._hand.execute(text)

    async def aclose(self) -> None:
        await super().aclose()
        if self._hand is not None:
            self._hand.close()
        empty(self._url, self._schema)
        self._free.append(self._schema)


def load(module: str, name: str, *, library: str) -> Callable[..., Any]:
    """The class of a store. Raises `Unavailable` if its library is missing."""
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as missing:
        raise Unavailable(f"{missing.name} is not installed") from None
    found = importlib.import_module(f"fairway.jobs.stores.{module}")
    kind: Callable[..., Any] = getattr(found, name)
    return kind


@contextmanager
def opened(name: str, scratch: Path) -> Iterator[tuple[JobRig, asyncio.Runner]]:
    """An open store of that kind and the loop it runs on. Raises `Unavailable`."""
    rig = JOB_STORES[name](scratch)
    with asyncio.Runner() as runner:
        runner.run(rig.open())
        try:
            yield rig, runner
        finally:
            runner.run(rig.aclose())


JOB_STORES: dict[str, Callable[[Path], JobRig]] = {
    "memory": MemoryRig,
    "sqlite": SqliteRig,
    "postgres": PostgresRig,
}

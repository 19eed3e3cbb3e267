"""What the conformance suite may ask of a backend beyond the `Wal` contract itself.

Backends are imported when first used: one whose library is not installed is skipped with a line
that says so, and `test_every_backend_ran` makes sure that nobody overlooks that line.
"""

from __future__ import annotations

import importlib
import itertools
import shutil
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from fairway.storage.wals.memory import MemoryWal
from tests.support.postgres import Unavailable, postgres_url
from tests.support.rocksdb_files import copy_live

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fairway.storage.wal import Wal


class Backend(ABC):
    """Makes stores of one kind, and does to them what the outside world would."""

    one_owner = True
    """Whether a second opener can be refused: there is a place to meet."""
    examples = 80
    """How many random histories this backend plays in `make test`: fewer where each is slow."""
    watched_writes = 250
    """How many writes threads look on: more where each is over in no time."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self._numbers = itertools.count(1)
        self._places: dict[int, tuple[Wal, Any]] = {}  # the log is kept, or its id could be reused

    @abstractmethod
    def create(self, number: int) -> Any:
        """Make an empty place for a store and return what names it."""

    @abstractmethod
    def attach(self, place: Any) -> Wal:
        """A log on that place, not yet open."""

    def fresh(self) -> Wal:
        """A log on a new, empty store, not yet open."""
        return self._at(self.create(next(self._numbers)))

    def reopen(self, wal: Wal) -> Wal:
        """Close cleanly; then a new log on the same store, not yet open."""
        wal.close()
        return self.rival(wal)

    def rival(self, wal: Wal) -> Wal:
        """A second log on the store that `wal` may still hold."""
        return self._at(self.place(wal))

    @abstractmethod
    def kill(self, wal: Wal) -> Wal:
        """A new log on what the process had written when kill -9 hit it; `wal` is dead."""

    @abstractmethod
    def spoil_format(self, wal: Wal) -> None:
        """Let the closed store say that it was written by a version nobody knows."""

    def place(self, wal: Wal) -> Any:
        return self._places[id(wal)][1]

    def discard(self, wal: Wal) -> None:
        """Close every log on the store of this one, and remove it."""
        self.remove(self._forget(self.place(wal)))

    @abstractmethod
    def remove(self, place: Any) -> None:
        """Remove a store that nobody has open any more."""

    def close(self) -> None:
        while self._places:
            self.discard(next(iter(self._places.values()))[0])

    def _forget(self, place: Any) -> Any:
        for number, (wal, where) in list(self._places.items()):
            if where == place:
                wal.close()
                del self._places[number]
        return place

    def _at(self, place: Any) -> Wal:
        wal = self.attach(place)
        self._places[id(wal)] = (wal, place)
        return wal


class MemoryBackend(Backend):
    one_owner = False
    watched_writes = 4000

    def __init__(self, scratch: Path, *, shards: int = 1) -> None:
        super().__init__(scratch)
        self._shards = shards

    def create(self, number: int) -> MemoryWal:
        return MemoryWal(shards=self._shards)

    def attach(self, place: MemoryWal) -> Wal:
        return place

    def rival(self, wal: Wal) -> Wal:
        return self._at(self.place(wal).reopened())

    def kill(self, wal: Wal) -> Wal:
        return self._at(self.place(wal).kill())

    def remove(self, place: MemoryWal) -> None:
        pass  # it is gone with the last reference

    def spoil_format(self, wal: Wal) -> None:
        raise NotImplementedError("memory holds no files, so no version")


class DirectoryBackend(Backend):
    """A backend whose store is a directory."""

    examples = 16

    def create(self, number: int) -> Path:
        return self.scratch / f"store-{number}"

    def kill(self, wal: Wal) -> Wal:
        # What another process would find: every byte that reached a system call, and none that
        # waits in the memory of this one. The copy has no owner, as after a death.
        place = self.create(next(self._numbers))
        copy_live(self.place(wal), place)
        self.discard(wal)
        return self._at(place)

    def remove(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)


class SqliteBackend(DirectoryBackend):
    def __init__(self, scratch: Path, *, shards: int = 1) -> None:
        super().__init__(scratch)
        self._kind = load("sqlite", "SqliteWal", library="apsw")
        self._shards = shards

    def attach(self, place: Path) -> Wal:
        wal: Wal = self._kind(place, shards=self._shards)
        return wal

    def spoil_format(self, wal: Wal) -> None:
        import apsw

        from fairway.storage.wals.sqlite_shard import checksum_vfs

        shard = max(self.place(wal).glob("*.db"))
        connection = apsw.Connection(str(shard), vfs=checksum_vfs())
        connection.pragma("user_version", 999)
        connection.close()


class RocksdbBackend(DirectoryBackend):
    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._kind = load("rocksdb", "RocksdbWal", library="rocksdict")

    def attach(self, place: Path) -> Wal:
        wal: Wal = self._kind(place)
        return wal

    def spoil_format(self, wal: Wal) -> None:
        from fairway.storage.wals.rocksdb_rows import FORMAT_KEY, seal

        db = wal._connect(create=False)  # type: ignore[attr-defined]
        db[FORMAT_KEY] = seal(FORMAT_KEY, b"fairway log, rocksdb, 999")
        db.close()


class PostgresBackend(Backend):
    examples = 8
    _schemas = itertools.count(1)  # one server serves all tests, so names never repeat

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self._kind = load("postgres", "PostgresWal", library="psycopg")
        self.url = postgres_url()

    def create(self, number: int) -> str:
        return f"conformance_{next(self._schemas)}"

    def attach(self, place: str) -> Wal:
        wal: Wal = self._kind(self.url, schema=place)
        return wal

    def kill(self, wal: Wal) -> Wal:
        # The dead owner's lease would end by itself; its successor need not wait for that.
        place = self.place(wal)
        heir: Wal = self._kind(self.url, schema=place, takeover=True)
        self._places[id(heir)] = (heir, place)
        return heir

    def spoil_format(self, wal: Wal) -> None:
        self._execute(f'UPDATE "{self.place(wal)}".format SET version = 999')

    def remove(self, place: str) -> None:
        self._execute(f'DROP SCHEMA IF EXISTS "{place}" CASCADE')

    def _execute(self, statement: str) -> None:
        with importlib.import_module("psycopg").connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


def load(module: str, name: str, *, library: str) -> Callable[..., Any]:
    """The class of a backend. Raises `Unavailable` if its library or the module is missing."""
    try:
        importlib.import_module(library)
        found = importlib.import_module(f"fairway.storage.wals.{module}")
    except ModuleNotFoundError as missing:
        raise Unavailable(f"{missing.name} is not installed") from None
    kind: Callable[..., Any] = getattr(found, name)
    return kind


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "memory": MemoryBackend,
    "memory-sharded": lambda scratch: MemoryBackend(scratch, shards=3),
    "sqlite": SqliteBackend,
    "sqlite-sharded": lambda scratch: SqliteBackend(scratch, shards=3),
    "rocksdb": RocksdbBackend,
    "postgres": PostgresBackend,
}

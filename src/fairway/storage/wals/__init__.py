"""The stores behind the `Wal` contract, and how one is named in a setting.

Importing this imports no database library: each backend loads its own when it is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fairway.errors import InvalidConfig

if TYPE_CHECKING:
    from fairway.storage.wal import Wal


def wal_at(place: str | Path) -> Wal:
    """The store that `place` names, not opened yet.

    A directory (or `sqlite:directory`), `rocksdb:directory`, `postgresql://…` or `memory:`.
    """
    name = str(place)
    scheme, colon, rest = name.partition(":")
    if isinstance(place, Path) or not colon or len(scheme) == 1:
        scheme, rest = "sqlite", name
    if scheme in ("postgresql", "postgres"):
        from fairway.storage.wals.postgres import PostgresWal

        return PostgresWal(name)
    if scheme == "memory":
        from fairway.storage.wals.memory import MemoryWal

        return MemoryWal()
    if scheme not in ("sqlite", "rocksdb"):
        raise InvalidConfig(
            f"{name!r} names no store: give a directory, sqlite:DIRECTORY, rocksdb:DIRECTORY,"
            " postgresql://… or memory:"
        )
    if not rest:
        raise InvalidConfig(f"{name!r} names no directory")
    if scheme == "rocksdb":
        from fairway.storage.wals.rocksdb import RocksdbWal

        return RocksdbWal(Path(rest))
    from fairway.storage.wals.sqlite import SqliteWal

    return SqliteWal(Path(rest))

"""The stores behind the `Wal` contract, and how one is named in a setting.

Importing this imports no database library: each backend loads its own when it is asked for.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairway.errors import BadPlace, InvalidConfig
from fairway.masking import masked
from fairway.storage.address import check_address, refuse_connection_string

if TYPE_CHECKING:
    from fairway.storage.wal import Wal

IN_A_DIRECTORY = ("sqlite", "rocksdb")
NO_PLACE: Final = {
    *(errno.EEXIST, errno.ENOTDIR, errno.ENOENT, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
}
"""What a system says of a path that can be no data directory, however healthy the disk."""


def wal_at(place: str | Path) -> Wal:
    """The store that `place` names, not opened yet.

    A directory (or `sqlite:directory`), `rocksdb:directory`, `postgresql://…` or `memory:`.
    """
    scheme, rest = _named(place)
    if scheme in ("postgresql", "postgres"):
        from fairway.storage.wals.postgres import PostgresWal

        return PostgresWal(str(place))
    if scheme == "memory":
        from fairway.storage.wals.memory import MemoryWal

        return MemoryWal()
    if scheme == "rocksdb":
        from fairway.storage.wals.rocksdb import RocksdbWal

        return RocksdbWal(Path(rest))
    from fairway.storage.wals.sqlite import SqliteWal

    return SqliteWal(Path(rest))


def no_place(error: OSError) -> BadPlace | None:
    """The error for a path that can be no data directory; None if it speaks of something else."""
    if error.errno not in NO_PLACE or error.filename is None:
        return None
    reason = "it is not a directory" if error.errno == errno.EEXIST else error.strerror
    return BadPlace(masked(error.filename), str(reason))


def directory_of(place: str | Path) -> Path | None:
    """The directory of this machine in which the store that `place` names keeps its files; None if
    it keeps none here."""
    scheme, rest = _named(place)
    return Path(rest) if scheme in IN_A_DIRECTORY else None


def _named(place: str | Path) -> tuple[str, str]:
    """The kind of store, and where: the one reader of what a setting says."""
    name = str(place)
    if "\0" in name:
        raise BadPlace(name.replace("\0", "\\0"), "a path has no zero byte")
    if isinstance(place, str):
        check_address(name)
        refuse_connection_string(name)
    scheme, colon, rest = name.partition(":")
    if isinstance(place, Path) or not colon or len(scheme) == 1:  # a drive has one letter
        scheme, rest = "sqlite", name
    if scheme not in (*IN_A_DIRECTORY, "postgresql", "postgres", "memory"):
        raise InvalidConfig(
            f"{masked(name)!r} names no store: give a directory, sqlite:DIRECTORY,"
            " rocksdb:DIRECTORY, postgresql://… or memory:"
        )
    if scheme in IN_A_DIRECTORY and not rest:
        raise InvalidConfig(f"{name!r} names no directory")
    return scheme, rest

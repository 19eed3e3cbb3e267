"""The write-ahead files of RocksDB, synced from outside it and without the interpreter lock.

RocksDB hands every record to the system before a write returns (its `manual_wal_flush` is off),
begins a new file together with a new memtable, inside a write and before that write's record, and
deletes a file once its rows are in table files that it has synced itself.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from fairway.errors import Corrupt
from fairway.storage.sync import sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK_BYTES = 32 * 1024
RECORD_HEAD = struct.Struct("<LHB")  # checksum, length, type
RECYCLED = frozenset((5, 6, 7, 8, 11, 131))


def check_records(path: Path) -> None:
    """Refuse a log file or manifest that RocksDB would read for ever.

    A record marked as one of a reused file, where the file was not reused, makes its reader come
    back to the same place without end, with the interpreter lock in hand. One flipped bit of a
    record's type is enough. Files are never reused here, so such a mark is damage.
    (facebook/rocksdb#13333: `ReadPhysicalRecord` reports a bad record without consuming it.)
    """
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            at = 0
            while at + RECORD_HEAD.size <= len(block):
                _, length, kind = RECORD_HEAD.unpack_from(block, at)
                if kind in RECYCLED:
                    raise Corrupt("a record is marked as one of a reused file", place=str(path))
                at += RECORD_HEAD.size + length if length or kind else BLOCK_BYTES


class LogFiles:
    """The log files in `home`, which holds nothing else, so that listing it stays cheap."""

    def __init__(self, home: Path, sync_file: Callable[[int], None]) -> None:
        self._home = home
        self._sync_file = sync_file
        self._newest = -1
        self._fd: int | None = None
        self.syncs = 0

    def settle(self, *, sync: bool) -> tuple[bool, bool]:
        """Sync every file that may hold more than at the last sync, if asked or if one is new.

        Returns whether it synced and whether a new file has begun. The older ones are synced then
        even if nobody asked: power loss could take the end of one and spare the next, which would
        be a hole. The newest is kept open, so that no error of writing it back goes unseen.
        """
        stems = [name[:-4] for name in os.listdir(self._home) if name.endswith(".log")]
        newer = sorted(int(stem) for stem in stems if stem.isdigit() and int(stem) > self._newest)
        if newer or sync:
            self._sync(self._fd)
        for number in newer:
            try:
                fd = os.open(self._home / f"{number:06}.log", os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # its rows are in table files by now
            self.close()
            self._fd, self._newest = fd, number
            self._sync(fd)
        assert self._fd is not None, f"RocksDB has no log file in {self._home}"
        if newer:
            sync_directory(self._home)
        return sync or bool(newer), bool(newer)

    def settle_beside(self) -> Callable[[], None]:
        """A sync of all that is written now, to be called while writes go on."""
        fd = os.dup(self._fd) if self._fd is not None else None

        def settle() -> None:
            try:
                self._sync(fd)
            finally:
                if fd is not None:
                    os.close(fd)

        return settle

    def close(self) -> None:
        """Let go of the newest file. Safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _sync(self, fd: int | None) -> None:
        if fd is not None:
            self.syncs += 1
            self._sync_file(fd)

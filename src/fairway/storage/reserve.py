"""Room kept back on the disk: what lets deletes and a clean stop work when everything else is full.

A file of a few megabytes that holds nothing. When the disk is full it is given up, so that what
makes room again has room to work in; once it can be made anew, there is room for everybody.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_BYTES: Final = 16 * 1024 * 1024
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CHUNK: Final = 1024 * 1024


def free_bytes(directory: Path) -> int:
    """What the file system says it has left; with a quota it may have less."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class DiskReserve:
    """One reserve beside the data. Its methods block: call them from a thread of the pool."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self.size = size
        self.half = size // 2
        self.given_up = False
        """Whether it was released and has not been held in full since."""
        self.obstacle: str | None = None
        """What kept it from being held when that was tried last, if it was not a full disk."""

    def hold(self, share: int | None = None) -> bool:
        """Bring the reserve to `share` bytes, all of it if None. False if the disk has no room for
        that: then it is as large as it was."""
        wanted = self.size if share is None else share
        try:
            held = self._extend(wanted)
        except OSError as error:
            self.obstacle = None if error.errno in NO_ROOM else str(error)
            return False
        self.obstacle = None
        if held and wanted == self.size:
            self.given_up = False
        return held

    def hold_some(self) -> bool:
        """Hold all of it, or else half: that is worth having, too."""
        return self.hold() or self.hold(self.half)

    def fits(self, share: int, *, spare: int = 0) -> bool:
        """Whether the disk says that it has room to `hold` so much, and for `spare` bytes beside.
        Only asked: whoever tried it out would take it from everybody meanwhile."""
        try:
            return free_bytes(self._path.parent) >= share + spare - self._held()
        except OSError:
            return False

    def release(self) -> None:
        """Give the room up."""
        self.given_up = True
        with suppress(OSError):  # on a disk that became read-only, say: then it is of no use
            self._path.unlink(missing_ok=True)

    def make_way(self, needed: int) -> None:
        """Give the room up if the disk has less than `needed` besides."""
        if free_bytes(self._path.parent) < needed:
            self.release()

    def _held(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _extend(self, wanted: int) -> bool:
        size = self._held()
        if size == wanted:
            return True
        # Asked first: writing only to be refused would wear the disk out.
        if size < wanted and not self.fits(wanted):
            return False
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            _append_zeros(handle, size, wanted)
            os.ftruncate(handle, wanted)
        except OSError:
            os.ftruncate(handle, size)
            raise
        finally:
            os.close(handle)
        return True


def _append_zeros(handle: int, begin: int, end: int) -> None:
    # Written, not only allocated: some file systems promise room that they do not have.
    os.lseek(handle, begin, os.SEEK_SET)
    while begin < end:
        begin += os.write(handle, bytes(min(end - begin, CHUNK)))
    os.fsync(handle)

"""Room kept back on the disk: what lets deletes and a clean stop work when everything else is full.

A file of a few megabytes that holds nothing. When the disk is full it is given up, so that what
makes room again has room to work in; once it can be made anew, there is room for everybody.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RESERVE_BYTES: Final = 16 * 1024 * 1024
CHUNK: Final = 1024 * 1024


class DiskReserve:
    """One reserve beside the data. Its methods block: call them from a thread of the pool."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size

    def hold(self) -> bool:
        """Make the reserve if it is not there; False if the disk has no room for it."""
        try:
            if self._path.stat().st_size == self._size:
                return True
        except OSError:
            pass
        try:
            self._fill()
        except OSError:
            self.release()
            return False
        return True

    def release(self) -> None:
        """Give the room up."""
        self._path.unlink(missing_ok=True)

    def _fill(self) -> None:
        # Written, not only allocated: some file systems promise room that they do not have.
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for _ in range(0, self._size, CHUNK):
                left = memoryview(bytes(CHUNK))
                while left:
                    left = left[os.write(handle, left) :]
            os.fsync(handle)
        finally:
            os.close(handle)

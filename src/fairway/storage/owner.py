"""A data directory has one owner: an exclusive lock held for as long as the owner lives.

The kernel drops the lock when the process dies, however it dies, so a crash leaves nothing to
clean up. The pid inside the file is for the error message only; the lock is what decides.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from fairway.errors import AlreadyOwned

if TYPE_CHECKING:
    from pathlib import Path

LOCK_NAME = "owner.lock"


class DirectoryLock:
    """Exclusive ownership of a directory, refused at once if somebody else has it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the directory, creating it (readable by its owner alone) if it is absent."""
        assert self._fd is None, "acquired twice"
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self._directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            pid = int(holder) if holder.isdigit() else None
            raise AlreadyOwned(str(self._directory), pid=pid) from None
        self._fd = fd
        with suppress(OSError):  # a full disk costs the next opener the pid, not us the directory
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the directory up. The file stays: removing it would race the next owner."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

"""Bringing files and names to the platter, on systems that mean different things by it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

if sys.platform == "darwin":
    import fcntl

    def sync_data(fd: int) -> None:
        """Sync the data of a file; plain fsync stops at the drive's cache there."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
else:
    sync_data = os.fdatasync


def sync_directory(place: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

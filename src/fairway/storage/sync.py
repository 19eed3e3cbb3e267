"""Bringing a file's data to the platter, on systems that mean different things by it."""

from __future__ import annotations

import os
import sys

if sys.platform == "darwin":
    import fcntl

    def sync_data(fd: int) -> None:
        """Sync the data of a file; plain fsync stops at the drive's cache there."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
else:
    sync_data = os.fdatasync

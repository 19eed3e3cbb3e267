"""Which run of the operating system this is: what tells a crash of a process from one of all."""

from __future__ import annotations

from typing import Final
from uuid import UUID

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> bytes | None:
    """16 bytes that are the same until the system is started anew; None where it does not tell.

    What a process has written to a file without a sync is there for whoever comes after it, as long
    as this stays the same: the system has it, though the disk may not.
    """
    try:
        with open(BOOT_ID, encoding="ascii") as file:
            return UUID(file.read().strip()).bytes
    except (OSError, ValueError):
        return None

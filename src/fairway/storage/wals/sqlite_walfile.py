"""The -wal file of a SQLite database, looked at from outside: its identity and its sync."""

from __future__ import annotations

import os
import struct

from fairway.storage.sync import sync_data

HEADER = struct.Struct(">6I2I")  # magic, version, page size, sequence, salts; checksums
DAMAGED = -1


def generation(database: str) -> int | None:
    """What tells one -wal file from the next that overwrites it: the salts in its header.

    None if there is no such file or it is empty, `DAMAGED` if the header makes no sense.
    """
    try:
        with open(database + "-wal", "rb") as file:
            raw = file.read(HEADER.size)
    except FileNotFoundError:
        return None
    if len(raw) < HEADER.size:
        return DAMAGED if raw else None
    magic, _, _, _, salt, pepper, *checks = HEADER.unpack(raw)
    words = struct.unpack(">6I" if magic & 1 else "<6I", raw[:24])
    one = two = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return salt << 32 | pepper if checks == [one, two] else DAMAGED


def sync(database: str) -> None:
    """Sync the file, if there is one, beside whatever SQLite is doing."""
    try:
        fd = os.open(database + "-wal", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        sync_data(fd)
    finally:
        os.close(fd)

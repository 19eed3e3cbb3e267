"""Where the logs of integration tests live, by name, in any process; and what memory they use.

A place is `KIND:DIRECTORY`, with a kind from `KINDS`.
"""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairway.storage.wals import wal_at
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.wals.sqlite import SqliteWal

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.storage.wal import Failures, Group, Wal

KIB = 1024
SMALL_WAL = 512 * KIB  # so that checkpoints, forced ones too, happen all the time

KINDS: dict[str, Callable[[Path], Wal]] = {
    "sqlite": lambda directory: SqliteWal(directory, wal_bytes_max=SMALL_WAL),
    "sqlite-3": lambda directory: SqliteWal(directory, shards=3, wal_bytes_max=SMALL_WAL),
    "rocksdb": lambda directory: wal_at(f"rocksdb:{directory}"),
}


def log_at(place: str) -> Wal:
    kind, _, directory = place.partition(":")
    return KINDS[kind](Path(directory))


def stalled_log_at(place: str) -> tuple[Wal, Callable[[], None]]:
    """A store whose writes stand still until the second of the pair is called."""
    released = threading.Event()
    if place == "memory:":
        return MemoryWal(before_write=released.wait), released.set
    wal: Any = log_at(place)
    write = wal.write

    def stalled(*args: Any, **options: Any) -> Any:
        released.wait()
        return write(*args, **options)

    wal.write = stalled
    return wal, released.set


def torn_log_at(place: str) -> Wal:
    """PLANTED: a store that writes the metadata of an operation apart from its entries."""
    wal: Any = log_at(place)
    write = wal.write

    def torn(group: Group, *, sync: bool) -> Failures:
        entries = {n: [one._replace(meta={}) for one in group[n]] for n in group}
        others = {n: [one._replace(entries=()) for one in group[n]] for n in group}
        return {**write(entries, sync=sync), **write(others, sync=sync)}

    wal.write = torn
    return wal


class MemoryUse:
    """What this process holds, sampled."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    def sample(self) -> None:
        try:
            with open("/proc/self/statm", "rb") as file:
                pages = int(file.read().split()[1])
        except FileNotFoundError:  # macOS tells only the most there ever was, which will do
            self.samples.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        else:
            self.samples.append(pages * os.sysconf("SC_PAGE_SIZE"))

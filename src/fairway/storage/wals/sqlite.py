"""A `Wal` on SQLite: a fixed pool of shard files, one transaction per shard and group.

Partitions map to shards by their number modulo the shard count, which is pinned in the file names
when the log is created. A failing shard fails its own partitions and nobody else's.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fairway.errors import Closing, Corrupt, FairwayError, InvalidConfig
from fairway.runtime.boot import boot_id
from fairway.storage.owner import DirectoryLock
from fairway.storage.wal import INT_MAX
from fairway.storage.wals.sqlite_shard import Shard
from fairway.storage.wals.stores import refuse_other_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from fairway.storage.wal import Entry, Failures, Group, HardState, Operation, Tail

SHARD_FILE = re.compile(r"shard-(\d+)-of-(\d+)\.mark")


class SqliteWal:
    """Partitions in SQLite files under `directory`.

    `shards` files can sync at the same time, each with its own transaction: more of them help only
    where the disk syncs in parallel, and cost a sync each per group. Durable groups commit with
    synchronous=FULL, the others with NORMAL (they survive the death of the process), never OFF.
    Pages carry checksums, so a damaged file is refused and not misread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        shards: int | None = None,
        vfs: str | None = None,
        wal_bytes_max: int = 64 * 1024 * 1024,
        checkpoint_bytes: int = 4 * 1024 * 1024,
        boot: Callable[[], bytes | None] = boot_id,
    ) -> None:
        """`shards` None: one for a new log, what it has for an old one. `checkpoint_bytes` is how
        long a -wal file gets before upkeep moves its pages while the log is busy; past
        `wal_bytes_max` a commit waits for that. `vfs` is for tests: such a database is opened
        exclusively through that VFS, without page checksums; and so is `boot`, which tells one run
        of the system from the next."""
        if shards is not None and not 1 <= shards <= 64:
            raise InvalidConfig(f"1 to 64 shards, not {shards}")
        self._directory = directory
        self._wanted = shards
        self._vfs = vfs
        self._wal_bytes_max = wal_bytes_max
        self._checkpoint_bytes = checkpoint_bytes
        self._boot = boot
        self._lock = DirectoryLock(directory)
        self._shards: list[Shard] = []

    @property
    def parallelism(self) -> int:
        return len(self._shards) or self._wanted or 1

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The files of the log while it is open: partition p lives in shard p % parallelism."""
        return tuple(self._shards)

    @property
    def syncs(self) -> int:
        """How many transactions were synced."""
        return sum(shard.syncs for shard in self._shards)

    @property
    def unsynced_kept(self) -> bool:
        """See `Vouching`."""
        return all(shard.unsynced_kept for shard in self._shards)

    def open(self) -> dict[int, Tail]:
        return self._opened(held=False)

    def open_held(self) -> dict[int, Tail]:
        """See `Holding`."""
        return self._opened(held=True)

    def release(self) -> None:
        """See `Holding`."""
        for shard in reversed(self._live()):
            shard.release()

    def _opened(self, *, held: bool) -> dict[int, Tail]:
        self._lock.acquire()
        try:
            return self._open(held)
        except BaseException:
            self.close()
            raise

    def _open(self, held: bool) -> dict[int, Tail]:
        refuse_other_store(self._directory, "sqlite")
        count = self._pinned_count()
        if self._wanted is not None and count is not None and self._wanted != count:
            raise InvalidConfig(
                f"{self._directory} was created with {count} shards, which is final;"
                f" {self._wanted} were asked for"
            )
        if count is None:
            count = self._wanted or 1
        boot = self._boot()
        for index in range(count):
            path = self._directory / f"shard-{index}-of-{count}.db"
            shard = Shard(
                path,
                vfs=self._vfs,
                wal_bytes_max=self._wal_bytes_max,
                checkpoint_bytes=self._checkpoint_bytes,
                boot=boot,
            )
            self._shards.append(shard)
        complete = self._shards[0].created
        tails: dict[int, Tail] = {}
        # The first shard is made last: once it is there they all are, and groups can be written.
        for index, shard in reversed(list(enumerate(self._shards))):
            if complete and not shard.created:
                raise Corrupt("the file or its watermark is missing", place=shard.place)
            found = shard.inspect()
            if not complete and shard.groups:
                place = self._shards[0].place
                raise Corrupt("the file or its watermark is missing", place=place)
            if any(partition % count != index for partition in (*found, *shard.deleting())):
                raise Corrupt("the file holds partitions of another shard", place=shard.place)
            tails.update(found)
        # Now that none is refused: what is opened for writing does not stay as it was.
        for shard in reversed(self._shards):
            shard.open(held=held)
        return tails

    def _pinned_count(self) -> int | None:
        """The shard count of an existing log; None if there is none, or its creation broke off."""
        marks = [
            (int(match[1]), int(match[2]))
            for match in map(SHARD_FILE.fullmatch, os.listdir(self._directory))
            if match is not None
        ]
        counts = {count for _, count in marks}
        if len(counts) > 1:
            raise Corrupt(
                f"shards of different counts {sorted(counts)}", place=str(self._directory)
            )
        return counts.pop() if counts else None

    def write(self, group: Group, *, sync: bool) -> Failures:
        shards = self._live()
        if len(shards) == 1:
            return shards[0].write(group, sync=sync)
        by_shard: dict[int, dict[int, Sequence[Operation]]] = {}
        for partition, operations in group.items():
            by_shard.setdefault(partition % len(shards), {})[partition] = operations
        failures: dict[int, FairwayError] = {}
        for index, part in by_shard.items():
            failures.update(shards[index].write(part, sync=sync))
        return failures

    def read(
        self,
        partition: int,
        *,
        first: int = 1,
        last: int = INT_MAX,
        limit: int = 1000,
        max_bytes: int = INT_MAX,
        backwards: bool = False,
    ) -> list[Entry]:
        return self._shard(partition).read(partition, first, last, limit, max_bytes, backwards)

    def tail(self, partition: int) -> Tail:
        return self._shard(partition).tail(partition)

    def term_at(self, partition: int, key: int) -> int | None:
        found = self.read(partition, first=key, last=key)
        return found[0].term if found else None

    def meta(self, partition: int, name: str) -> bytes | None:
        return self._shard(partition).meta(partition, name)

    def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        return self._shard(partition).meta_scan(partition, prefix, after, limit)

    def hard_state(self, partition: int) -> HardState | None:
        return self._shard(partition).hard_state(partition)

    def sweep(self, *, limit: int = 1000) -> bool:
        # Every shard gets its chunk: one with much to sweep must not hide the others.
        more = [shard.sweep(limit) for shard in self._live()]
        return any(more)

    def deleting(self) -> set[int]:
        return set().union(*(shard.deleting() for shard in self._live()))

    def maintain(self) -> None:
        for shard in self._live():
            shard.maintain()

    def free_inside_bytes(self) -> int:
        return sum(shard.free_inside_bytes() for shard in self._live())

    def forbid_growth(self, keep_bytes: int) -> None:
        shards = self._live()
        try:
            for shard in shards:
                shard.forbid_growth(keep_bytes // len(shards))
        except BaseException:
            for shard in shards:
                shard.forbid_growth(0)
            raise

    def close(self) -> None:
        shards, self._shards = self._shards, []
        with ExitStack() as stack:  # each is closed, whatever becomes of another
            stack.callback(self._lock.release)
            for shard in reversed(shards):
                stack.callback(shard.close)

    def _live(self) -> list[Shard]:
        if not self._shards:
            raise Closing(f"the log in {self._directory} is not open")
        return self._shards

    def _shard(self, partition: int) -> Shard:
        shards = self._live()
        return shards[partition % len(shards)]

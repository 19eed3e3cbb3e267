"""A log in memory: the reference that other backends are compared with, and a disk for simulations.

It keeps what was written and, apart from it, what was synced, so a test can pull the plug
(`crash`), kill the process (`kill`) or make a disk fail (`sync`, `before_write`, `fail_shard`)
and look at what a real store would have left. It promises nothing once the process is gone.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fairway.errors import Closing, FairwayError, OutcomeUnknown, WriteFailed
from fairway.storage.wal import INT_MAX, Entry, Failures, Group, HardState, Operation, Tail

if TYPE_CHECKING:
    from collections.abc import Callable


class Dice(Protocol):
    """The one thing `crash` asks of a `random.Random`."""

    def randint(self, a: int, b: int, /) -> int: ...


class MemoryWal:
    """A `Wal` without files, with the durability of one modelled.

    `sync` is called for each synced shard of a group, where a real store would wait for its disk.
    An `OSError` from it leaves that shard's part of the group in doubt (`OutcomeUnknown`), and the
    shard refuses every later write until the log is reopened: after a failed sync nothing the
    device says can be trusted. `before_write` is called once per group; an `OSError` from it (a
    full disk) refuses that group and nothing else.
    """

    def __init__(
        self,
        *,
        shards: int = 1,
        sync: Callable[[], None] | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        assert shards > 0
        self._sync = sync
        self.before_write = before_write
        """See above; it may be exchanged at any time."""
        self._shards = [_Shard() for _ in range(shards)]
        self._state = threading.Lock()  # guards what readers look at; never held during a sync
        self._syncs = 0
        self._opened = False
        self._closed = False
        self.unsynced_kept = False
        """See `Vouching`: after `kill`, not after `crash`."""

    @property
    def parallelism(self) -> int:
        return len(self._shards)

    @property
    def syncs(self) -> int:
        """How many syncs were asked of the disk, one for each shard of a synced group."""
        return self._syncs

    # -- the life of the log ----------------------------------------------------------------------

    def open(self) -> dict[int, Tail]:
        with self._state:
            if self._closed:
                raise Closing("this log was closed; make a new one")
            assert not self._opened, "opened twice"
            self._opened = True
            return {
                number: partition.tail
                for shard in self._shards
                for number, partition in shard.live.partitions.items()
            }

    def close(self) -> None:
        """Sync what can be synced and refuse everything from now on."""
        for shard in self._shards:
            with shard.writing, self._state:
                if not self._closed and shard.failure is None:
                    shard.settle()
        with self._state:
            self._closed = True

    def reopened(self) -> MemoryWal:
        """Close, and return a new log, not yet open, on what this one holds."""
        self.close()
        return self.kill()

    def kill(self) -> MemoryWal:
        """Return a new log as after kill -9 of the process: everything written is there."""
        return self.crash(keep=INT_MAX)

    def crash(self, rng: Dice | None = None, *, keep: int | None = None) -> MemoryWal:
        """Return a new log as after power loss: everything synced is there, and of the rest a
        beginning: as much as `rng` says for each shard, or `keep` groups, or nothing.

        This log is dead afterwards; the new one has no faults and no hooks but the same `sync`.
        """
        survivor = MemoryWal(shards=len(self._shards), sync=self._sync)
        survivor.unsynced_kept = keep == INT_MAX
        with self._state:
            self._closed = True
            for shard, heir in zip(self._shards, survivor._shards, strict=True):
                written = len(shard.unsynced)
                if keep is None:
                    kept = rng.randint(0, written) if rng is not None else 0
                else:
                    kept = min(keep, written)
                heir.synced = shard.synced.copy()
                for change in shard.unsynced[:kept]:
                    heir.synced.apply(change)
                heir.live = heir.synced.copy()
        return survivor

    def inherit(self, dead: MemoryWal) -> None:
        """Hold what `dead` held, which `crash` or `kill` returned and nobody has opened.

        For a log with hooks or faults of its own that is to go on where another was killed. Whether
        it vouches for what was not synced (`unsynced_kept`) stays as it is.
        """
        assert not self._opened
        assert not dead._opened
        self._shards = dead._shards

    def latched(self, partition: int) -> bool:
        """Whether the partition's shard refuses every write after a failed sync."""
        return self._shards[partition % len(self._shards)].failure is not None

    def fail_shard(
        self, shard: int, *, write: OSError | None = None, sync: OSError | None = None
    ) -> None:
        """Fail every write, or every sync, of one shard from now on; with neither, heal it.

        Partition p lives in shard p % shards. Healing does not undo a failed sync: only reopening
        does.
        """
        self._shards[shard].write_fault = write
        self._shards[shard].sync_fault = sync

    # -- writing ----------------------------------------------------------------------------------

    def write(self, group: Group, *, sync: bool) -> Failures:
        self._check_open()
        if self.before_write is not None:
            try:
                self.before_write()
            except OSError as fault:
                return {number: _because(WriteFailed, fault) for number in group}
        failures: dict[int, FairwayError] = {}
        for index, shard in enumerate(self._shards):
            part = {n: tuple(group[n]) for n in group if n % len(self._shards) == index}
            if part:
                failures.update(self._write_shard(shard, part, sync=sync))
        return failures

    def _write_shard(self, shard: _Shard, part: Group, *, sync: bool) -> Failures:
        # Hard state is always synced, whatever the group asks for.
        sync = sync or any(change.hard_state for changes in part.values() for change in changes)
        with shard.writing:
            fault = shard.failure or shard.write_fault
            if fault is not None:
                return {number: _because(WriteFailed, fault) for number in part}
            with self._state:
                self._check_open_locked()
                shard.live.check(part)
                shard.unsynced.append(part)
            # Readers see the group only after its sync: what is visible is durable. Yet it is
            # written already, so a kill keeps it and a crash may.
            if sync:
                try:
                    self._sync_shard(shard)
                except OSError as failed:
                    return {number: _because(OutcomeUnknown, failed) for number in part}
            with self._state:
                if self._closed:  # the plug was pulled while we waited for the disk
                    return {number: OutcomeUnknown("the log was lost") for number in part}
                shard.live.apply(part)
                if sync:
                    shard.settle()
        return {}

    def _sync_shard(self, shard: _Shard) -> None:
        try:
            with self._state:
                self._syncs += 1
            if shard.sync_fault is not None:
                raise shard.sync_fault
            if self._sync is not None:
                self._sync()
        except OSError as failed:
            shard.failure = failed
            raise

    def sweep(self, *, limit: int = 1000) -> bool:
        more = False
        for shard in self._shards:
            with shard.writing, self._state:
                self._check_open_locked()
                if shard.failure is not None:
                    continue  # nothing can be removed until it is reopened: do not come back
                if shard.live.dead and limit:
                    swept = shard.live.sweep(limit)
                    shard.unsynced.append(limit)
                    limit -= swept
                more = more or bool(shard.live.dead)
        return more

    def deleting(self) -> set[int]:
        with self._state:
            self._check_open_locked()
            return {number for shard in self._shards for number in shard.live.dead}

    def free_inside_bytes(self) -> int:
        return 0  # there is no disk

    def forbid_growth(self, keep_bytes: int) -> None:
        pass

    def maintain(self) -> None:
        """Sync what was written without a sync, so that it need not be remembered apart."""
        self._check_open()
        for shard in self._shards:
            with shard.writing:
                if shard.unsynced and shard.failure is None:
                    try:
                        self._sync_shard(shard)
                    except OSError:
                        continue  # the shard refuses writes from now on, and says why
                    with self._state:
                        shard.settle()

    # -- reading ----------------------------------------------------------------------------------

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
        with self._state:
            found = self._partition(partition).between(first, last)
        if backwards:
            found.reverse()
        size = 0
        for count, entry in enumerate(found[:limit]):
            size += len(entry.payload)
            if size > max_bytes and count:
                return found[:count]
        return found[:limit]

    def tail(self, partition: int) -> Tail:
        with self._state:
            return self._partition(partition).tail

    def term_at(self, partition: int, key: int) -> int | None:
        with self._state:
            found = self._partition(partition).between(key, key)
        return found[0].term if found else None

    def meta(self, partition: int, name: str) -> bytes | None:
        with self._state:
            return self._partition(partition).meta.get(name)

    def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        with self._state:
            found = list(self._partition(partition).meta.items())
        chosen = [(name, value) for name, value in found if name.startswith(prefix)]
        chosen = [(name, value) for name, value in chosen if name > after]
        return sorted(chosen)[:limit]  # code points sort as their UTF-8 bytes do

    def hard_state(self, partition: int) -> HardState | None:
        with self._state:
            return self._partition(partition).hard_state

    def _partition(self, number: int) -> _Partition:
        self._check_open_locked()
        shard = self._shards[number % len(self._shards)]
        return shard.live.partitions.get(number) or _Partition()

    def _check_open(self) -> None:
        with self._state:
            self._check_open_locked()

    def _check_open_locked(self) -> None:
        if self._closed:
            raise Closing("the log is closed")
        assert self._opened, "open the log first"


@dataclass(slots=True)
class _Partition:
    """Entries in order of their keys, and what is kept beside them."""

    tail: Tail = field(default_factory=Tail)
    keys: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    meta: dict[str, bytes] = field(default_factory=dict)
    hard_state: HardState | None = None

    def apply(self, change: Operation) -> None:
        tail = change.after(self.tail)
        if change.truncate_after is not None:
            self._drop(slice(bisect_right(self.keys, change.truncate_after), None))
        for entry in change.entries:
            self.keys.append(entry.key)
            self.entries.append(entry)
        if change.compact_before is not None:
            self._drop(slice(None, bisect_left(self.keys, change.compact_before)))
        for first, last in change.remove:
            self._drop(slice(bisect_left(self.keys, first), bisect_right(self.keys, last)))
        for name, value in change.meta.items():
            if value is None:
                self.meta.pop(name, None)
            else:
                self.meta[name] = value
        self.hard_state = change.hard_state or self.hard_state
        self.tail = tail._replace(last_term=self.entries[-1].term if self.entries else 0)

    def between(self, first: int, last: int) -> list[Entry]:
        return self.entries[bisect_left(self.keys, first) : bisect_right(self.keys, last)]

    def rows(self) -> int:
        return len(self.entries) + len(self.meta) + 1

    def copy(self) -> _Partition:
        return _Partition(
            self.tail,
            self.keys.copy(),
            self.entries.copy(),
            self.meta.copy(),
            self.hard_state,
        )

    def _drop(self, where: slice) -> None:
        del self.keys[where], self.entries[where]


_Change: TypeAlias = "Group | int"  # a written group, or a sweep of so many rows


@dataclass(slots=True)
class _Contents:
    """The partitions of one shard, and how many rows of deleted ones are still to be swept."""

    partitions: dict[int, _Partition] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)

    def check(self, group: Group) -> None:
        """Raise `InvalidOperation` before anything is applied: the caller should have."""
        for number, changes in group.items():
            assert number not in self.dead, f"partition {number} is still being swept"
            found = self.partitions.get(number)
            tail = found.tail if found is not None else Tail()
            for change in changes:
                tail = change.after(tail)

    def apply(self, change: _Change) -> None:
        if isinstance(change, int):
            self.sweep(change)
            return
        for number, operations in change.items():
            for operation in operations:
                self._apply(number, operation)

    def _apply(self, number: int, operation: Operation) -> None:
        if operation.delete:
            gone = self.partitions.pop(number, None)
            if gone is not None:
                self.dead[number] = gone.rows()
        else:
            self.partitions.setdefault(number, _Partition()).apply(operation)

    def sweep(self, limit: int) -> int:
        swept = 0
        for number in list(self.dead):
            rows = min(self.dead[number], limit - swept)
            swept += rows
            self.dead[number] -= rows
            if not self.dead[number]:
                del self.dead[number]
        return swept

    def copy(self) -> _Contents:
        partitions = {number: found.copy() for number, found in self.partitions.items()}
        return _Contents(partitions, self.dead.copy())


@dataclass(slots=True)
class _Shard:
    """What one disk file would hold: the synced contents, and the changes written since."""

    live: _Contents = field(default_factory=_Contents)
    synced: _Contents = field(default_factory=_Contents)
    unsynced: list[_Change] = field(default_factory=list)
    writing: threading.Lock = field(default_factory=threading.Lock)
    failure: OSError | None = None  # a sync failed: nothing may be written any more
    write_fault: OSError | None = None
    sync_fault: OSError | None = None

    def settle(self) -> None:
        """A sync happened: everything written before it is safe."""
        for change in self.unsynced:
            self.synced.apply(change)
        self.unsynced.clear()


def _because(kind: type[FairwayError], fault: OSError) -> FairwayError:
    error = kind(f"the disk said: {fault}")
    error.__cause__ = fault
    return error

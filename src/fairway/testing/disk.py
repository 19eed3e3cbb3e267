"""A simulated disk: files in memory, deterministic from a seed, as unkind as real ones are allowed.

What a program wrote is visible to it at once, but is *safe* only after a sync of that file. When
the power goes, every change that is not safe is kept, dropped or torn on its own, in any order.
Faults can be planned (errors, short writes, slow syncs, syncs that lie), each one that happens is
counted, and the power can fail at any chosen operation.

Names (creations, renamings, deletions) change in order, as journalling file systems keep them: at a
power loss a beginning of the changes that are not safe survives. Syncing a new or renamed file
makes its name safe and so every change of names before that; syncing the directory makes all safe.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from fairway.testing.platter import Inode, NameChange, Survivors, UnsyncedWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.testing.platter import Survival

Operation = Literal[
    "open", "create", "read", "write", "truncate", "sync", "delete", "rename", "syncdir"
]


class PowerLoss(BaseException):
    """The power is gone: the program that sees this is dead and only its disk lives on.

    Not an `Exception`, so that no broad handler in the program under test survives its own death.
    """


class Attachment(Protocol):
    """Something that lives and dies with the program that uses the disk."""

    def power_lost(self) -> None: ...

    def restarting(self) -> None:
        """The power is still off; nothing may be held over from before."""
        ...


@dataclass(slots=True)
class _Fault:
    kind: Literal["error", "short", "delay", "lie"]
    operation: Operation
    name: str | None
    nth: int
    times: int | None
    value: int = 0
    seen: int = 0

    def fires(self, operation: Operation, name: str) -> bool:
        if operation != self.operation or self.name not in (None, name):
            return False
        self.seen += 1
        return self.seen >= self.nth and (self.times is None or self.seen < self.nth + self.times)


class DiskFile:
    """An open file of a `SimulatedDisk`. Dead once the power was lost."""

    __slots__ = ("_disk", "_generation", "_inode", "name")

    def __init__(self, disk: SimulatedDisk, name: str, inode: Inode) -> None:
        self._disk = disk
        self._generation = disk.generation
        self._inode = inode
        self.name = name

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""
        with self._disk._lock:
            self._begin("read")
            return bytes(self._inode.content[offset : offset + size])

    def write(self, data: bytes, offset: int) -> int:
        """Write at `offset`; returns how many bytes were written, which may be too few."""
        disk = self._disk
        with disk._lock:
            mild = self._begin("write")
            disk._require_space(offset + len(data) - len(self._inode.content))
            if "short" in mild and len(data) > 1:
                data = data[: disk._random.randrange(1, len(data))]
                disk.counts["short_write"] += 1
            self._inode.write(UnsyncedWrite(disk.ops, offset, bytes(data)))
            disk._end()
            return len(data)

    def truncate(self, size: int) -> None:
        """Cut the file to `size`, or extend it with zeros."""
        with self._disk._lock:
            self._begin("truncate")
            self._disk._require_space(size - len(self._inode.content))
            self._inode.write(UnsyncedWrite(self._disk.ops, size, None))
            self._disk._end()

    def sync(self) -> None:
        """Make everything written so far, and the file's name, safe."""
        disk = self._disk
        with disk._lock:
            try:
                mild = self._begin("sync")
            except OSError:
                self._inode.doom()
                raise
            disk._end()  # the power goes before the sync has done anything
            if "lie" in mild:
                disk.counts["lying_sync"] += 1
                return
            self._inode.settle()
            disk._settle_names(self._inode)

    def size(self) -> int:
        with self._disk._lock:
            self._disk._require_power(self._generation)
            return len(self._inode.content)

    def _begin(self, operation: Operation) -> set[str]:
        return self._disk._begin(operation, self.name, self._generation)


class SimulatedDisk:
    """Files that survive a power loss exactly as far as they were synced.

    `ops` counts the operations that change the disk, so that a campaign can cut the power at each
    of them. `counts` says how often each fault happened. `on_delay` is called with how long a slow
    operation takes; under the virtual loop give it `loop.spend_ns`. Several threads may use it.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        capacity_bytes: int | None = None,
        on_delay: Callable[[int], None] | None = None,
    ) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.ops = 0
        self.generation = 0
        self.counts: Counter[str] = Counter()
        self._on_delay = on_delay
        self._random = random.Random(f"{seed}/disk")
        self._names: dict[str, Inode] = {}
        self._safe_names: dict[str, Inode] = {}
        self._name_changes: list[NameChange] = []
        self._faults: list[_Fault] = []
        self._crash_after: int | None = None
        self._powered = True
        self._attached: list[Attachment] = []
        self._lock = threading.RLock()

    # Files

    def open(self, name: str, *, create: bool = True) -> DiskFile:
        """Open a file, making an empty one if it is absent and `create` is set."""
        with self._lock:
            if create and name not in self._names:
                self._begin("create", name)
                self._enter(Inode(), None, name)
            else:
                self._begin("open", name)
            return DiskFile(self, name, self._find(name))

    def exists(self, name: str) -> bool:
        with self._lock:
            self._require_power()
            return name in self._names

    def names(self) -> list[str]:
        """The files a program can see, sorted."""
        with self._lock:
            self._require_power()
            return sorted(self._names)

    def delete(self, name: str, *, sync: bool = False) -> None:
        """Remove a name; with `sync`, safely."""
        with self._lock:
            self._begin("delete", name)
            self._enter(self._find(name), name, None)
            if sync:
                self._settle_names()

    def rename(self, old: str, new: str) -> None:
        """Give the file another name, replacing what had it. Atomic, and safe after a sync."""
        with self._lock:
            self._begin("rename", old)
            self._enter(self._find(old), old, new)

    def sync_directory(self) -> None:
        """Make all creations, renamings and deletions so far safe."""
        with self._lock:
            self._begin("syncdir", "")
            self._end()
            self._settle_names()

    def image(self) -> dict[str, bytes]:
        """The content of every file as a program sees it, to compare or to copy elsewhere."""
        with self._lock:
            return {name: bytes(self._names[name].content) for name in sorted(self._names)}

    # Faults

    def fail(
        self,
        operation: Operation,
        *,
        nth: int = 1,
        times: int | None = 1,
        error: int = errno.EIO,
        name: str | None = None,
    ) -> None:
        """Fail the nth such operation from now, and `times` in all (None: for ever).

        A failed operation changes nothing, with one exception that real systems share: what a
        failed sync was to make safe stays visible, but no later sync covers it.
        """
        self._faults.append(_Fault("error", operation, name, nth, times, error))

    def shorten(self, *, nth: int = 1, times: int | None = 1, name: str | None = None) -> None:
        """Let the nth write from now write only a part, as when the disk fills up half-way."""
        self._faults.append(_Fault("short", "write", name, nth, times))

    def delay(
        self,
        delay_ns: int,
        *,
        operation: Operation = "sync",
        nth: int = 1,
        times: int | None = None,
        name: str | None = None,
    ) -> None:
        """Let such operations take `delay_ns` longer, from the nth on."""
        self._faults.append(_Fault("delay", operation, name, nth, times, delay_ns))

    def lie(self, *, nth: int = 1, times: int | None = None, name: str | None = None) -> None:
        """Let syncs report success and do nothing, from the nth on. A later honest one repairs."""
        self._faults.append(_Fault("lie", "sync", name, nth, times))

    def heal(self) -> None:
        """Forget every planned fault and the planned crash."""
        self._faults.clear()
        self._crash_after = None

    def flip_bit(self, name: str, offset: int, bit: int = 0) -> None:
        """Damage one bit of a file, on the platter and as the program sees it."""
        with self._lock:
            inode = self._find(name)
            if not 0 <= offset < len(inode.content):
                raise ValueError(f"{name} has {len(inode.content)} bytes, none at {offset}")
            inode.settle(doomed=True)
            for content in (inode.content, inode.safe):
                content[offset] ^= 1 << bit
            self.counts["bit_flip"] += 1

    # Power

    @property
    def powered(self) -> bool:
        return self._powered

    def crash_at(self, ops_left: int) -> None:
        """Let `ops_left` more changing operations complete and lose power in the one after."""
        self._crash_after = self.ops + ops_left

    def crash(self) -> None:
        """Lose power now. Every operation raises `PowerLoss` until `restart`."""
        with self._lock:
            if self._powered:
                self._powered = False
                self.counts["power_loss"] += 1
                for attached in self._attached:
                    attached.power_lost()

    @contextmanager
    def life(self) -> Iterator[None]:
        """One life of a program: once the power is lost, what it still raises is swallowed.

        Libraries turn a `PowerLoss` they do not know into errors of their own while they clean up,
        and groups wrap it, so what leaves the block is no sure sign; `powered` is.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            if self._powered:
                raise

    def attach(self, attachment: Attachment) -> None:
        """Notify `attachment` of the next power loss and the restart after it."""
        self._attached.append(attachment)

    def restart(self, survival: Survival = "random") -> None:
        """Come back with what survived. Files opened before are dead; planned faults are gone.

        `random`: each change that is not safe is kept, dropped or torn, independently. `lose`:
        none survives. `keep`: all do, as when a process is killed and the machine lives on.
        `prefix`: all up to a random moment, as on a disk that keeps its writes in order.
        """
        with self._lock:
            self.crash()
            for attached in self._attached:
                attached.restarting()
            self._attached.clear()
            survivors = Survivors(survival, self._random, self._unsafe(), self.counts)
            for change in survivors.names(self._name_changes):
                change.apply(self._safe_names)
            self._name_changes.clear()
            for inode in dict.fromkeys(self._safe_names.values()):
                for write in inode.unsynced:
                    survivors.apply(write, inode.safe)
                inode.unsynced.clear()
                inode.content[:] = inode.safe
            self._names = dict(self._safe_names)
            self.heal()
            self.generation += 1
            self._powered = True

    # Inside

    def _begin(self, operation: Operation, name: str, generation: int | None = None) -> set[str]:
        """Count the operation and raise what is planned for it; returns the milder faults."""
        self._require_power(generation)
        if operation not in ("open", "read"):
            self.ops += 1
        mild: set[str] = set()
        for fault in self._faults:
            if not fault.fires(operation, name):
                continue
            if fault.kind == "delay":
                self.counts[f"delayed_{operation}"] += 1
                if self._on_delay is not None:
                    self._on_delay(fault.value)
            elif fault.kind == "error":
                self.counts[f"{operation}_{errno.errorcode[fault.value]}"] += 1
                raise OSError(fault.value, os.strerror(fault.value), name)
            else:
                mild.add(fault.kind)
        return mild

    def _end(self) -> None:
        """The point in an operation at which the power fails, if it is to fail in this one."""
        if self._crash_after is not None and self.ops > self._crash_after:
            self.crash()
            self._require_power()

    def _require_power(self, generation: int | None = None) -> None:
        if not self._powered:
            raise PowerLoss(f"the power went in operation {self.ops} (seed {self.seed})")
        if generation not in (None, self.generation):
            raise OSError(errno.EBADF, "opened before the power was lost")

    def _require_space(self, growth: int) -> None:
        if self.capacity_bytes is None or growth <= 0:
            return
        used = sum(len(inode.content) for inode in set(self._names.values()))
        if used + growth > self.capacity_bytes:
            self.counts["disk_full"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _unsafe(self) -> list[int]:
        """The operations whose effect a power loss may undo, by number."""
        inodes = dict.fromkeys((*self._names.values(), *self._safe_names.values()))
        writes = [write for inode in inodes for write in inode.unsynced if not write.safe]
        return [change.index for change in self._name_changes] + [write.index for write in writes]

    def _find(self, name: str) -> Inode:
        inode = self._names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return inode

    def _enter(self, inode: Inode, old: str | None, new: str | None) -> None:
        change = NameChange(self.ops, inode, old, new)
        change.apply(self._names)
        self._name_changes.append(change)
        self._end()

    def _settle_names(self, inode: Inode | None = None) -> None:
        """Make changes of names safe: all of them, or up to the last one that named this file."""
        settled = 0
        for number, change in enumerate(self._name_changes, start=1):
            if inode is None or (change.inode is inode and change.new is not None):
                settled = number
        for change in self._name_changes[:settled]:
            change.apply(self._safe_names)
        del self._name_changes[:settled]

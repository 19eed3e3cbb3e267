"""What a simulated disk is made of: changes that are not synced yet, and what becomes of them.

An `Inode` is a file without a name: what the program sees, what is safe, and the writes between
the two. A `NameChange` creates, renames or deletes a file. `Survivors` decides at a power loss
which of these survive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Iterator

SECTOR = 512
"""Bytes that are written whole or not at all."""

Survival = Literal["random", "lose", "keep", "prefix"]
WriteOutcome = Literal["kept", "lost", "torn"]


@dataclass(slots=True, eq=False)
class UnsyncedWrite:
    """A write, or with `data` None a truncation, that is newer than the safe content."""

    index: int
    offset: int
    data: bytes | None
    safe: bool = False
    doomed: bool = False  # a sync of it failed: no later sync covers it

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
        else:
            content.extend(bytes(max(0, self.offset - len(content))))  # a gap reads as zeros
            content[self.offset : self.offset + len(self.data)] = self.data

    def sectors(self) -> Iterator[UnsyncedWrite]:
        """The same write in pieces that the disk writes whole."""
        assert self.data is not None
        start = 0
        while start < len(self.data):
            end = start + SECTOR - (self.offset + start) % SECTOR
            yield UnsyncedWrite(self.index, self.offset + start, self.data[start:end])
            start = end


@dataclass(slots=True, eq=False)
class Inode:
    content: bytearray = field(default_factory=bytearray)  # what the program sees
    safe: bytearray = field(default_factory=bytearray)  # what `unsynced` applies to
    unsynced: list[UnsyncedWrite] = field(default_factory=list)

    def write(self, write: UnsyncedWrite) -> None:
        write.apply(self.content)
        self.unsynced.append(write)

    def settle(self, *, doomed: bool = False) -> None:
        """Everything is safe now, except what an earlier sync failed on."""
        for write in self.unsynced:
            write.safe = write.safe or doomed or not write.doomed
        while self.unsynced and self.unsynced[0].safe:
            self.unsynced.pop(0).apply(self.safe)

    def doom(self) -> None:
        for write in self.unsynced:
            write.doomed = not write.safe


@dataclass(slots=True, eq=False)
class NameChange:
    """A change of names: `inode` leaves `old` and appears as `new`."""

    index: int
    inode: Inode
    old: str | None
    new: str | None

    def apply(self, names: dict[str, Inode]) -> None:
        if self.old is not None:
            del names[self.old]
        if self.new is not None:
            names[self.new] = self.inode


class Survivors:
    """Decides at a power loss what survives of all that is not safe."""

    def __init__(
        self, survival: Survival, source: random.Random, unsafe: list[int], counts: Counter[str]
    ) -> None:
        self._survival = survival
        self._random = source
        self._counts = counts
        # The moment a prefix ends: before, among or after the operations that are not safe.
        self._cut = source.randint(min(unsafe), max(unsafe) + 1) if unsafe else 0

    def names(self, changes: list[NameChange]) -> list[NameChange]:
        """File systems keep the order of changes of names, so a beginning of them survives."""
        match self._survival:
            case "lose":
                kept = 0
            case "keep":
                kept = len(changes)
            case "prefix":
                kept = sum(change.index < self._cut for change in changes)
            case "random":
                kept = self._random.randint(0, len(changes))
        self._counts["name_change_kept"] += kept
        self._counts["name_change_lost"] += len(changes) - kept
        return changes[:kept]

    def apply(self, write: UnsyncedWrite, content: bytearray) -> None:
        """Apply what survives of one write to the safe content."""
        outcome = "kept" if write.safe else self._draw(write)
        if outcome == "kept":
            write.apply(content)
        elif outcome == "torn":
            sectors = list(write.sectors())
            # At least one is missing and one is there, or it would not be torn.
            kept = self._random.sample(sectors, self._random.randrange(1, len(sectors)))
            if self._survival == "prefix":
                kept = sectors[: len(kept)]
            for sector in kept:
                sector.apply(content)
        if not write.safe:
            kind = "truncate" if write.data is None else "write"
            self._counts[f"{kind}_{outcome}"] += 1

    def _draw(self, write: UnsyncedWrite) -> WriteOutcome:
        may_tear = write.data is not None and len(list(write.sectors())) > 1
        match self._survival:
            case "lose":
                return "lost"
            case "keep":
                return "kept"
            case "prefix":
                if write.index == self._cut and may_tear:
                    return "torn"
                return "kept" if write.index < self._cut else "lost"
            case "random":
                outcomes: list[WriteOutcome] = ["kept", "lost"]
                if may_tear:
                    outcomes.append("torn")
                return self._random.choice(outcomes)

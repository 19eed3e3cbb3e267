"""What a simulated disk is made of: changes that are not safe yet, and what becomes of them.

An `Inode` is a file without a name: what the program sees, what is safe, and the changes between
the two. An `Entry` is a change of names. `Fates` decides at a power loss which of these survive.
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
Fate = Literal["kept", "lost", "torn"]


@dataclass(slots=True, eq=False)
class Change:
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

    def sectors(self) -> Iterator[Change]:
        """The same write in pieces that the disk writes whole."""
        assert self.data is not None
        start = 0
        while start < len(self.data):
            end = start + SECTOR - (self.offset + start) % SECTOR
            yield Change(self.index, self.offset + start, self.data[start:end])
            start = end


@dataclass(slots=True, eq=False)
class Inode:
    content: bytearray = field(default_factory=bytearray)  # what the program sees
    safe: bytearray = field(default_factory=bytearray)  # what `changes` apply to
    changes: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        change.apply(self.content)
        self.changes.append(change)

    def settle(self, *, doomed: bool = False) -> None:
        """Everything is safe now, except what an earlier sync failed on."""
        for change in self.changes:
            change.safe = change.safe or doomed or not change.doomed
        while self.changes and self.changes[0].safe:
            self.changes.pop(0).apply(self.safe)

    def doom(self) -> None:
        for change in self.changes:
            change.doomed = not change.safe


@dataclass(slots=True, eq=False)
class Entry:
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


class Fates:
    """Decides at a power loss what becomes of each change that is not safe."""

    def __init__(
        self, survival: Survival, source: random.Random, unsafe: list[int], counts: Counter[str]
    ) -> None:
        self._survival = survival
        self._random = source
        self._counts = counts
        # The moment a prefix ends: before, among or after the operations that are not safe.
        self._cut = source.randint(min(unsafe), max(unsafe) + 1) if unsafe else 0

    def surviving(self, entries: list[Entry]) -> list[Entry]:
        """File systems keep the order of changes of names, so a beginning of them survives."""
        match self._survival:
            case "lose":
                kept = 0
            case "keep":
                kept = len(entries)
            case "prefix":
                kept = sum(entry.index < self._cut for entry in entries)
            case "random":
                kept = self._random.randint(0, len(entries))
        self._counts["name_change_kept"] += kept
        self._counts["name_change_lost"] += len(entries) - kept
        return entries[:kept]

    def meet(self, change: Change, content: bytearray) -> None:
        """Apply what survives of one change to the safe content."""
        fate = "kept" if change.safe else self._draw(change)
        if change.safe or fate == "kept":
            change.apply(content)
        elif fate == "torn":
            sectors = list(change.sectors())
            # At least one is missing and one is there, or it would not be torn.
            kept = self._random.sample(sectors, self._random.randrange(1, len(sectors)))
            if self._survival == "prefix":
                kept = sectors[: len(kept)]
            for sector in kept:
                sector.apply(content)
        if not change.safe:
            self._counts[f"write_{fate}" if change.data is not None else f"truncate_{fate}"] += 1

    def _draw(self, change: Change) -> Fate:
        may_tear = change.data is not None and len(list(change.sectors())) > 1
        match self._survival:
            case "lose":
                return "lost"
            case "keep":
                return "kept"
            case "prefix":
                if change.index == self._cut and may_tear:
                    return "torn"
                return "kept" if change.index < self._cut else "lost"
            case "random":
                fates: list[Fate] = ["kept", "lost"]
                if may_tear:
                    fates.append("torn")
                return self._random.choice(fates)

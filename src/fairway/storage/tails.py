"""Where each partition ends: once all that is queued is written, and what is written already.

Decides under which key the next operation goes, and whether there may be one; the writer reports
what was accepted, was written, or has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.errors import FairwayError, InvalidOperation, WriteFailed
from fairway.storage.wal import INT_MAX, Tail

if TYPE_CHECKING:
    from collections.abc import Mapping


class PartitionTail:
    """The end of one partition."""

    __slots__ = ("exists", "floor", "last_key", "refusal", "written_floor", "written_key")

    def __init__(self, tail: Tail, *, exists: bool) -> None:
        self.exists = exists
        self.last_key = self.written_key = tail.last_key
        self.floor = self.written_floor = tail.floor
        self.refusal: FairwayError | None = None  # why it takes no operation: deleted, or in doubt

    def wrote(self, last_key: int, floor: int) -> None:
        """It is written up to here."""
        self.exists = self.refusal is None
        self.written_key, self.written_floor = last_key, floor

    def found(self, tail: Tail) -> None:
        """The store was asked after a doubtful write: it ends here."""
        self.written_key, self.written_floor = tail.last_key, tail.floor

    def failed(self) -> None:
        """Nothing of what was queued is written, nor will be."""
        self.last_key, self.floor = self.written_key, self.written_floor
        if isinstance(self.refusal, InvalidOperation):  # the delete was among what failed
            self.refusal = None
            self.exists = True


class Tails:
    """The ends of all partitions that were ever asked for, by number."""

    def __init__(self, tails: Mapping[int, Tail]) -> None:
        self._tails = {number: PartitionTail(tail, exists=True) for number, tail in tails.items()}
        self._deleted: set[int] = set()
        self._doubtful: set[int] = set()
        self.find = self._tails.get
        """The end of a partition that is known; a number that only looks like it (True) finds it
        too, so `of` is for whoever does not know its type."""

    def of(self, partition: int) -> PartitionTail:
        """The end of a partition, known or new. Raises `InvalidOperation` if that is none."""
        # The type first: 1.0 and True would find partition 1.
        if type(partition) is not int or not 0 <= partition <= INT_MAX:
            raise InvalidOperation(f"partition {partition!r} is not a number in range")
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = PartitionTail(Tail(), exists=False)
        return tail

    def existing(self) -> list[int]:
        """Every partition that has or had something written, in order; deleted ones are gone."""
        return sorted(number for number, tail in self._tails.items() if tail.exists)

    def doubt(self, partition: int, why: str) -> None:
        """After a doubtful write the store could not say where it ends: it takes nothing more."""
        self.of(partition).refusal = WriteFailed(why)
        self._doubtful.add(partition)

    def doubtful(self) -> list[int]:
        """The partitions whose end the store has yet to name."""
        return sorted(self._doubtful)

    def cleared(self, partition: int, tail: Tail) -> None:
        """The store knows its end now. Nothing is queued: all was refused meanwhile."""
        self._doubtful.discard(partition)
        known = self.of(partition)
        known.refusal = None
        known.found(tail)
        known.failed()
        known.exists = known.exists or tail != Tail()

    def refuse(self, partition: int) -> None:
        """It is being deleted, and takes nothing more."""
        tail = self.of(partition)
        tail.exists = False
        tail.refusal = InvalidOperation(f"partition {partition} is being deleted")

    def deleted(self, partition: int) -> None:
        """It was deleted durably, and may have rows to sweep: its number cannot be used yet."""
        self.refuse(partition)
        self._deleted.add(partition)

    def to_sweep(self) -> set[int]:
        """The partitions that were deleted durably and not yet swept."""
        return set(self._deleted)

    def swept(self, partition: int) -> None:
        """The rows of a deleted partition are gone: its number may be used again."""
        self._deleted.discard(partition)
        self._tails.pop(partition, None)

"""The `Wal` contract: what a store of ordered partitions must do, and the nouns it speaks in.

A `Wal` is synchronous and thread-safe; it never decides who goes first. Fairness, bounds and
completion belong to `writer` and `reader`, which call it from threads of the blocking pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, runtime_checkable
from zlib import crc32

from fairway.errors import FairwayError, InvalidOperation

if TYPE_CHECKING:
    from fairway.storage.ownership import Ownership

INT_MAX = 2**63 - 1
"""Partitions, keys and terms are whole numbers from 0 to this (keys from 1)."""


class Entry(NamedTuple):
    """One item of a partition. Keys rise within it and may have gaps."""

    key: int
    payload: bytes
    term: int = 0


class HardState(NamedTuple):
    """What a consensus member must never forget: its term and its vote. Always synced."""

    term: int
    vote: str = ""


class Tail(NamedTuple):
    """Where a partition ends, and what was compacted away before it begins.

    `last_key` survives compaction and the loss of every entry by it: a key is never used twice
    unless a truncation took it back. `last_term` is that of the last entry still present, 0 if
    there is none. `floor` is the lowest key that may still be present.
    """

    last_key: int = 0
    last_term: int = 0
    floor: int = 1


NO_META: Mapping[str, bytes | None] = {}


class Operation(NamedTuple):
    """One change of one partition, applied all or nothing and never split over groups.

    Applied in this order: `truncate_after` removes entries with a higher key; `entries` are
    appended; `compact_before` removes entries with a lower key; `remove` those in ranges of keys,
    both ends included; `meta` sets names (None deletes); `hard_state` replaces the former one.
    `delete` stands alone: the partition is gone from then on and its rows are swept away in chunks.
    """

    entries: Sequence[Entry] = ()
    meta: Mapping[str, bytes | None] = NO_META
    truncate_after: int | None = None
    compact_before: int | None = None
    hard_state: HardState | None = None
    delete: bool = False
    remove: Sequence[tuple[int, int]] = ()

    @classmethod
    def appending(cls, key: int, payload: bytes, term: int) -> Operation:
        """An append of one entry, made without the keyword machinery: there are very many."""
        entry = tuple.__new__(Entry, (key, payload, term))
        return tuple.__new__(cls, ((entry,), NO_META, None, None, None, False, ()))

    @property
    def size(self) -> int:
        """Bytes it counts against byte limits: payloads, metadata, and what holding it costs."""
        size = 64 + 32 * len(self.entries) + sum(len(entry.payload) for entry in self.entries)
        size += 32 * len(self.remove)
        for name, value in self.meta.items():
            size += len(name.encode()) + len(value or b"") + 32
        return size

    def after(self, tail: Tail) -> Tail:
        """The tail that this operation leaves behind, or `InvalidOperation` if it breaks a rule.

        A truncation makes `last_key` what it names, entry or gap. The last term is right if the
        operation appends; else it may need the store to tell.
        """
        if self.delete:
            if self != DELETE:
                raise InvalidOperation("a delete stands alone in its operation")
            return Tail()
        last_key, last_term, floor = tail
        if self.truncate_after is not None:
            if not _whole(self.truncate_after) or not floor - 1 <= self.truncate_after <= INT_MAX:
                raise InvalidOperation(
                    f"cannot truncate after {self.truncate_after}: compacted up to {floor - 1}"
                )
            last_key = min(last_key, self.truncate_after)
        for key, payload, term in self.entries:
            if not _whole(key) or not last_key < key <= INT_MAX:
                raise InvalidOperation(f"keys must rise: {key} does not follow {last_key}")
            if not _whole(term) or not 0 <= term <= INT_MAX:
                raise InvalidOperation(f"term {term} is out of range")
            if not isinstance(payload, bytes):
                raise InvalidOperation(f"a payload is bytes, not {type(payload).__name__}")
            last_key, last_term = key, term
        if self.compact_before is not None:
            if not _whole(self.compact_before) or not 1 <= self.compact_before <= last_key + 1:
                raise InvalidOperation(
                    f"cannot compact before {self.compact_before}: the last key is {last_key}"
                )
            floor = max(floor, self.compact_before)
            if floor > last_key:
                last_term = 0
        for first, last in self.remove:
            if not (_whole(first) and _whole(last)) or not 1 <= first <= last <= last_key:
                raise InvalidOperation(
                    f"cannot remove {first} to {last}: the last key is {last_key}"
                )
        if self.meta or self.hard_state is not None:
            self._check_values()
        return Tail(last_key, last_term, floor)

    def _check_values(self) -> None:
        for name, value in self.meta.items():
            if not name or not _encodable(name):
                raise InvalidOperation(f"{name!r} cannot name metadata")
            if value is not None and not isinstance(value, bytes):
                raise InvalidOperation(f"metadata {name!r} is {type(value).__name__}, not bytes")
        if self.hard_state is not None:
            term, vote = self.hard_state
            if not _whole(term) or not 0 <= term <= INT_MAX or not _encodable(vote):
                raise InvalidOperation(f"{self.hard_state} is out of range")


def _whole(number: object) -> bool:
    return isinstance(number, int)  # a store would round a fraction, each in its own way


def _encodable(text: object) -> bool:
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


DELETE = Operation(delete=True)

Group: TypeAlias = Mapping[int, Sequence[Operation]]
"""Operations of many partitions, in order within each."""

Failures: TypeAlias = Mapping[int, FairwayError]
"""The outcome of a group: the partitions that failed, each with its reason. Absent means done.

`WriteFailed` or `Fenced`: nothing of that partition's operations was written. `OutcomeUnknown`:
they may be.
"""


class Wal(Protocol):
    """A durable store of partitions. Every method may block and may be called from any thread."""

    @property
    def parallelism(self) -> int:
        """How many writes can make progress at once (for example, the number of shards)."""
        ...

    def open(self) -> dict[int, Tail]:
        """Take ownership, verify, and return the tail of every partition that exists: that has
        entries, metadata or hard state, or had entries and keeps their last key.

        Raises `AlreadyOwned`, `UnknownFormat` or `Corrupt`; after that nothing else may be called.
        """
        ...

    def write(self, group: Group, *, sync: bool) -> Failures:
        """Apply the group, all or nothing per partition, and make it durable.

        With `sync` it survives power loss on return; without, the death of this process. Hard
        state is always synced. The caller has checked each operation with `Operation.after`.
        Never raises for a storage failure: it is the outcome of the partitions concerned.
        """
        ...

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
        """Entries with `first <= key <= last`, rising (or falling if `backwards`).

        At most `limit`, and as many as fit in `max_bytes` of payload, but always at least one.
        Raises `Corrupt` if one of them is damaged or missing.
        """
        ...

    def tail(self, partition: int) -> Tail:
        """Where the partition ends (a `Tail()` if it does not exist)."""
        ...

    def term_at(self, partition: int, key: int) -> int | None:
        """The term of the entry at `key`, or None if there is none."""
        ...

    def meta(self, partition: int, name: str) -> bytes | None:
        """The metadata value under `name`, or None."""
        ...

    def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Metadata names with `prefix`, above `after`, in order of their UTF-8 bytes."""
        ...

    def hard_state(self, partition: int) -> HardState | None:
        """The hard state last written, or None."""
        ...

    def sweep(self, *, limit: int = 1000) -> bool:
        """Remove up to `limit` rows of deleted partitions. True while more remain and it can."""
        ...

    def deleting(self) -> set[int]:
        """Deleted partitions whose rows are not all swept: their numbers cannot be used yet."""
        ...

    def maintain(self) -> None:
        """Do what keeps files small and needs no commit to wait (a checkpoint). Cheap if idle."""
        ...

    def free_inside_bytes(self) -> int:
        """How many bytes could be written without taking more of the disk: what deletes freed
        inside the files. 0 if the store cannot tell."""
        ...

    def forbid_growth(self, keep_bytes: int) -> None:
        """Take no more of the disk: write only into free space inside the files, and keep
        `keep_bytes` of that for operations that free some. 0 lets the files grow again. A store
        that cannot tell how much is free inside its files goes on as it is.

        A store in several files shares `keep_bytes` out among them, and lets those with next to
        nothing free grow, all together by twice that at most. If it raises, all files may grow.
        """
        ...

    def close(self) -> None:
        """Give up ownership. Safe to call twice, or after a failed `open`."""
        ...


@runtime_checkable
class Vouching(Protocol):
    """A `Wal` that can tell a crash of its process from one of the system."""

    @property
    def unsynced_kept(self) -> bool:
        """Whether everything that the last owner wrote is there, synced or not: only its process
        died. False if that is not known."""
        ...


@runtime_checkable
class Holding(Protocol):
    """A `Wal` in files, which can be read before any of them is changed: whoever opens it may find
    that what it holds makes no sense, and has to leave it as it was."""

    def open_held(self) -> dict[int, Tail]:
        """As `open`, but the files stay as they are until `release`, or the first write. A close
        before that leaves them so."""
        ...

    def release(self) -> None:
        """What was read makes sense: go on as after `open`."""
        ...


@runtime_checkable
class Leased(Protocol):
    """A `Wal` that is owned for a time only, and says how long it may be answered from."""

    @property
    def ownership(self) -> Ownership: ...


PARTITION_FACTOR, KEY_FACTOR, TERM_FACTOR = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D


def checksum(partition: int, key: int, term: int, payload: bytes) -> int:
    """What is stored beside an entry, so that damage and misplacement are noticed on reading."""
    seed = partition * PARTITION_FACTOR ^ key * KEY_FACTOR ^ term * TERM_FACTOR
    return crc32(payload, seed & 0xFFFFFFFF)

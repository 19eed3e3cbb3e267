"""What a group comes to as rows: the statements that write it, with arrays as their parameters.

A run of operations on one partition is folded into its net effect, so that a group is a handful of
statements whatever its size. Arrays are packed here by hand into PostgreSQL's binary form: that
takes half the time psycopg's general dumper does, and all of it with the interpreter lock held.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, repeat
from struct import Struct
from typing import TYPE_CHECKING

from fairway.storage.wal import checksum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fairway.storage.wal import Entry, HardState, Operation

_INT8, _BYTEA = 20, 17  # type oids, fixed for all versions
_head = Struct("!iiIii").pack  # dimensions, has nulls, element type, length, lower bound
_length = Struct("!i").pack
_length_and_int8 = Struct("!iq").pack


class Int8Array(bytearray):
    """An array of bigint in PostgreSQL's binary form."""

    @classmethod
    def of(cls, numbers: Collection[int]) -> Int8Array:
        array = cls(_head(1, 0, _INT8, len(numbers), 1))
        array += b"".join(map(_length_and_int8, repeat(8), numbers))
        return array


class ByteaArray(bytearray):
    """An array of bytea in PostgreSQL's binary form."""

    @classmethod
    def of(cls, values: Collection[bytes]) -> ByteaArray:
        array = cls(_head(1, 0, _BYTEA, len(values), 1))
        for value in values:
            array += _length(len(value))
            array += value
        return array


@dataclass(slots=True)
class PartitionChange:
    """The net effect of a run of operations on one partition.

    Written in this order it equals the run: end the former life if `deleted`, truncate what is
    stored, append `entries` (those a later truncation of the run left), compact, remove, and set
    the rest.
    """

    partition: int
    deleted: bool = False
    alive: bool = False
    truncate_after: int | None = None
    last_key: int = 0
    entries: list[Entry] = field(default_factory=list)
    compact_before: int | None = None
    remove: list[tuple[int, int]] = field(default_factory=list)
    meta: dict[bytes, bytes | None] = field(default_factory=dict)
    hard_state: tuple[int, bytes] | None = None

    @classmethod
    def of(cls, partition: int, operations: Iterable[Operation]) -> PartitionChange:
        change = cls(partition)
        for operation in operations:
            if operation.delete:
                change = cls(partition, deleted=True)
            else:
                change._add(*operation)
        return change

    def _add(
        self,
        entries: Sequence[Entry],
        meta: Mapping[str, bytes | None],
        truncate_after: int | None,
        compact_before: int | None,
        hard_state: HardState | None,
        _: bool,
        remove: Sequence[tuple[int, int]],
    ) -> None:
        self.alive = True
        if truncate_after is not None:
            self._truncate(truncate_after)
        if entries:
            self.entries += entries
            self.last_key = entries[-1].key
        if compact_before is not None:
            self.compact_before = max(self.compact_before or 0, compact_before)
        self.remove += remove
        if meta:
            self.meta.update((name.encode(), value) for name, value in meta.items())
        if hard_state is not None:
            self.hard_state = hard_state.term, hard_state.vote.encode()

    def _truncate(self, key: int) -> None:
        if self.truncate_after is None or key < self.truncate_after:
            self.truncate_after = key
        while self.entries and self.entries[-1].key > key:
            self.entries.pop()
        self.last_key = min(self.last_key, key)
        self.remove = [(first, min(last, key)) for first, last in self.remove if first <= key]


def statements(changes: Sequence[PartitionChange]) -> Iterator[tuple[str, dict[str, object]]]:
    """The statements of a group, in the order that makes each change equal its run."""
    deleted = [change.partition for change in changes if change.deleted]
    if deleted:
        yield "delete", {"partitions": Int8Array.of(deleted)}
    alive = [change for change in changes if change.alive]
    for change in alive:
        if change.truncate_after is not None:
            yield "truncate", {"partition": change.partition, "key": change.truncate_after}
    if alive:
        yield "touch", _tails(alive)
    if any(change.entries for change in alive):
        yield "append", _entries(alive)
    for change in alive:
        if change.compact_before is not None:
            yield "compact", {"partition": change.partition, "key": change.compact_before}
        if change.remove:
            firsts, lasts = zip(*change.remove, strict=True)
            ranges = {"firsts": Int8Array.of(firsts), "lasts": Int8Array.of(lasts)}
            yield "remove", {"partition": change.partition, **ranges}
            yield "settle", {"partition": change.partition}
    yield from _meta(alive)
    voted = [(change.partition, change.hard_state) for change in alive if change.hard_state]
    if voted:
        yield (
            "set_hard_state",
            {
                "partitions": Int8Array.of([partition for partition, _ in voted]),
                "terms": Int8Array.of([term for _, (term, _) in voted]),
                "votes": ByteaArray.of([vote for _, (_, vote) in voted]),
            },
        )


def _tails(changes: Sequence[PartitionChange]) -> dict[str, object]:
    tops = [change.entries[-1] if change.entries else None for change in changes]
    return {
        "partitions": Int8Array.of([change.partition for change in changes]),
        "last_keys": Int8Array.of([change.last_key for change in changes]),
        "last_terms": Int8Array.of([top.term if top else 0 for top in tops]),
        "top_keys": Int8Array.of([top.key if top else 0 for top in tops]),
    }


def _entries(changes: Sequence[PartitionChange]) -> dict[str, object]:
    # No loop of ours goes over the entries: there are very many, and zip and map are quicker.
    keys, payloads, terms = zip(*chain.from_iterable(c.entries for c in changes), strict=True)
    owners = (repeat(change.partition, len(change.entries)) for change in changes)
    partitions = list(chain.from_iterable(owners))
    return {
        "partitions": Int8Array.of(partitions),
        "keys": Int8Array.of(keys),
        "terms": Int8Array.of(terms),
        "checksums": Int8Array.of(list(map(checksum, partitions, keys, terms, payloads))),
        "payloads": ByteaArray.of(payloads),
    }


def _meta(changes: Sequence[PartitionChange]) -> Iterator[tuple[str, dict[str, object]]]:
    kept: list[tuple[int, bytes, bytes]] = []
    dropped: list[tuple[int, bytes]] = []
    for change in changes:
        for name, value in change.meta.items():
            if value is None:
                dropped.append((change.partition, name))
            else:
                kept.append((change.partition, name, value))
    if kept:
        partitions, names, values = zip(*kept, strict=True)
        yield (
            "set_meta",
            {
                "partitions": Int8Array.of(partitions),
                "names": ByteaArray.of(names),
                "values": ByteaArray.of(values),
            },
        )
    if dropped:
        partitions, names = zip(*dropped, strict=True)
        yield (
            "drop_meta",
            {"partitions": Int8Array.of(partitions), "names": ByteaArray.of(names)},
        )

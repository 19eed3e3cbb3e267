"""What a group becomes in RocksDB: the rows of one batch, and the change it makes in memory.

Nothing here writes. A batch that RocksDB did not take is used up and is filled again, so filling
one changes nothing but the batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fairway.storage.wal import (
    INT_MAX,
    KEY_FACTOR,
    PARTITION_FACTOR,
    TERM_FACTOR,
    Entry,
    checksum,
)
from fairway.storage.wals.rocksdb_rows import (
    DEAD,
    ENTRY,
    FENCE,
    HARD_STATE,
    META,
    PARTITION,
    PartitionRow,
    ReadView,
    entry_head,
    entry_key,
    key_of_entry,
    pack_hard_state,
    partition_body,
    seal,
    space_key,
    system_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fairway.storage.wal import Group, Operation

    Reading = Callable[[], AbstractContextManager[ReadView]]

POINT_DELETES_MAX = 256
"""A larger compaction becomes one range tombstone. A small one does not: after each range deletion
the next read sorts all range tombstones of the memtable again."""


@dataclass(slots=True)
class BatchChange:
    """What is to be remembered once the batch is acknowledged."""

    next_space: int
    partitions: dict[int, PartitionRow] = field(default_factory=dict)
    """Partitions touched; one without a space is gone."""
    dead: dict[int, bytes] = field(default_factory=dict)
    """Spaces to sweep and the row to begin with; an empty one says that nothing is left."""
    sync: bool = False
    """Whether there is hard state among it, which is always synced."""


def put_group(
    batch: Any,
    group: Group,
    partitions: Mapping[int, PartitionRow],
    next_space: int,
    reading: Reading,
) -> BatchChange:
    """Put a group into a batch. The hot path of the log: no calls that can be avoided."""
    change = BatchChange(next_space)
    put, key_of, head_of = batch.put, entry_key, entry_head.pack
    for partition, operations in group.items():
        before = partitions.get(partition, PartitionRow())
        space, last_key, last_term, floor, last_entry = before
        salt = partition * PARTITION_FACTOR
        removes = False
        for index, operation in enumerate(operations):
            entries, meta, truncate, compact, hard_state, delete, removed = operation
            removes = bool(removed) or (removes and not delete)
            if delete:
                _retire(batch, change, partition, space)
                space, last_key, last_term, floor, last_entry = PartitionRow()
                continue
            if not space:
                space = change.next_space
                change.next_space += 1
                put(space_key(space, FENCE), b"")
            if truncate is not None and truncate < last_key:
                batch.delete_range(
                    key_of(space, ENTRY, truncate + 1), key_of(space, ENTRY, last_key + 1)
                )
                last_key = truncate
                cut = PartitionRow(space, last_key, floor=floor)
                last_entry, last_term = _last_entry(cut, before, operations[:index], reading)
            for key, payload, last_term in entries:
                seed = salt ^ key * KEY_FACTOR ^ last_term * TERM_FACTOR  # `checksum`, spelled out
                check = crc32(payload, seed & 0xFFFFFFFF)
                put(key_of(space, ENTRY, key), head_of(last_term, last_entry, check) + payload)
                last_key = last_entry = key
            if compact is not None and compact > floor:
                floor = compact
                if last_entry < floor:
                    last_entry = last_term = 0
            for name, value in meta.items():
                row = space_key(space, META) + name.encode()
                if value is None:
                    batch.delete(row)
                else:
                    put(row, seal(row, value))
            if hard_state is not None:
                row = space_key(space, HARD_STATE)
                put(row, seal(row, pack_hard_state(hard_state)))
                change.sync = True
        after = PartitionRow(space, last_key, last_term, floor, last_entry)
        if removes:
            after = _remove(batch, partition, after, before, operations, reading)
        change.partitions[partition] = after
        if space:
            row = system_key.pack(PARTITION, partition)
            put(row, seal(row, partition_body.pack(*after)))
            if floor > (before.floor if before.space == space else 1):
                _compact(batch, after, before, operations, reading)
    return change


def _retire(batch: Any, change: BatchChange, partition: int, space: int) -> None:
    """Forget a partition and leave its rows to be swept."""
    if space:
        batch.delete(system_key.pack(PARTITION, partition))
        row = system_key.pack(DEAD, space)
        batch.put(row, seal(row, b""))
        change.dead[space] = space_key(space, 0)


def _last_entry(
    cut: PartitionRow, before: PartitionRow, earlier: Sequence[Operation], reading: Reading
) -> tuple[int, int]:
    """Key and term of the last entry that a truncation to `cut.last_key` leaves, or zeros."""
    fresh: list[Entry] = []  # what this batch has appended so far
    bound = cut.last_key  # above this, it has removed what was in the store
    removed: list[tuple[int, int]] = []
    for operation in earlier:
        if operation.truncate_after is not None:
            bound = min(bound, operation.truncate_after)
            fresh = [entry for entry in fresh if entry.key <= operation.truncate_after]
            removed = [(first, min(last, bound)) for first, last in removed if first <= bound]
        fresh = [] if operation.delete else [*fresh, *operation.entries]
        removed = [] if operation.delete else [*removed, *operation.remove]
        fresh = [
            entry
            for entry in fresh
            if not any(first <= entry.key <= last for first, last in operation.remove)
        ]
    fresh = [entry for entry in fresh if entry.key <= cut.last_key]
    key = term = 0
    if fresh:
        key, _, term = fresh[-1]
    elif before.space == cut.space:
        with reading() as view:
            row = view.seek_back(entry_key(cut.space, ENTRY, bound))
            while row.startswith(space_key(cut.space, ENTRY)):
                key, term = key_of_entry(row), view.entry()[0]
                below = [first for first, last in removed if first <= key <= last]
                if not below:
                    break
                key = term = 0
                row = view.seek_back(entry_key(cut.space, ENTRY, min(below) - 1))
    return (key, term) if key >= cut.floor else (0, 0)


def _compact(
    batch: Any,
    after: PartitionRow,
    before: PartitionRow,
    operations: Sequence[Operation],
    reading: Reading,
) -> None:
    """Remove the entries below the floor: those of this batch and those of the store."""
    rows = [
        entry_key(after.space, ENTRY, entry.key)
        for operation in operations
        for entry in operation.entries
        if entry.key < after.floor
    ]
    if before.space == after.space and before.last_entry:
        begin = entry_key(after.space, ENTRY, before.floor)
        last = entry_key(after.space, ENTRY, before.last_entry)
        end = entry_key(after.space, ENTRY, after.floor)
        stored = 0
        with reading() as view:
            row = view.seek(begin)
            while row < end and stored < POINT_DELETES_MAX:
                rows.append(row)
                stored += 1
                row = view.step() if row < last else end  # behind it tombstones may follow
        if row < end:
            batch.delete_range(begin, end)
            return
    for row in rows:
        batch.delete(row)


def _remove(
    batch: Any,
    partition: int,
    after: PartitionRow,
    before: PartitionRow,
    operations: Sequence[Operation],
    reading: Reading,
) -> PartitionRow:
    """Remove entries in ranges of keys, and have the entry behind each follow the one before it.

    Worked out once for all operations of a batch, from what they leave: an entry that one of them
    puts may be the one that follows a range of another.
    """
    fresh: dict[int, Entry] = {}
    ranges: list[tuple[int, int]] = []
    bound = before.last_entry if before.space == after.space else 0
    for operation in operations:
        cut = operation.truncate_after
        if operation.delete:
            fresh, ranges, bound = {}, [], 0
        elif cut is not None:
            fresh = {key: entry for key, entry in fresh.items() if key <= cut}
            ranges = [(first, min(last, cut)) for first, last in ranges if first <= cut]
            bound = min(bound, cut)
        fresh |= {entry.key: entry for entry in operation.entries}
        ranges += operation.remove
    keys = sorted(key for key in fresh if key >= after.floor)
    home = space_key(after.space, ENTRY)
    with reading() as view:

        def following(key: int) -> int:
            """The key of the next entry behind one, or 0."""
            at = bisect_right(keys, key)
            found = keys[at] if at < len(keys) else 0
            if max(key + 1, after.floor) <= bound:
                row = view.seek(entry_key(after.space, ENTRY, max(key + 1, after.floor)))
                if row.startswith(home) and key_of_entry(row) <= bound:
                    found = min(found or INT_MAX, key_of_entry(row))
            return found

        def preceding(key: int) -> int:
            at = bisect_left(keys, key)
            found = keys[at - 1] if at else 0
            if bound and key > 1:
                row = view.seek_back(entry_key(after.space, ENTRY, min(key - 1, bound)))
                if row.startswith(home) and key_of_entry(row) >= after.floor:
                    found = max(found, key_of_entry(row))
            return found

        def entry_at(key: int) -> tuple[int, int, bytes]:
            """Term, checksum and payload."""
            if key in fresh:
                _, payload, term = fresh[key]
                return term, checksum(partition, key, term, payload), payload
            view.seek(entry_key(after.space, ENTRY, key))
            term, _, check, payload = view.entry()
            return term, check, payload

        behind: int | None = None  # what follows the range before, 0 if nothing does
        previous = 0  # what comes before that range
        for first, last in _joined(ranges):
            if behind is None or 0 < behind < first:
                previous = preceding(first)
            key = following(first - 1)
            while 0 < key <= last:
                batch.delete(entry_key(after.space, ENTRY, key))
                key = following(key)
            behind = key
            if behind:
                term, check, payload = entry_at(behind)
                head = entry_head.pack(term, previous, check)
                batch.put(entry_key(after.space, ENTRY, behind), head + payload)
            else:
                term = entry_at(previous)[0] if previous else 0
                after = after._replace(last_entry=previous, last_term=term)
    return after


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same keys in ranges that rise and do not overlap."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def put_sweep(
    batch: Any, dead: Mapping[int, bytes], next_space: int, limit: int, reading: Reading
) -> BatchChange:
    """Remove up to `limit` rows of dead spaces."""
    change = BatchChange(next_space)
    for space, begin in dead.items():
        with reading() as view:
            row = view.seek(begin)
            while row.startswith(begin[:8]) and limit > 0:
                batch.delete(row)
                limit -= 1
                row = view.step()
        if row.startswith(begin[:8]):
            change.dead[space] = row  # next time from here, past the tombstones
            break
        batch.delete(system_key.pack(DEAD, space))
        change.dead[space] = b""
    return change

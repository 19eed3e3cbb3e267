"""What a group becomes in RocksDB: the rows of one batch, and the change it makes in memory.

Nothing here writes. A batch that RocksDB did not take is used up and is filled again, so filling
one changes nothing but the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

from fairway.storage.wal import KEY_FACTOR, PARTITION_FACTOR, TERM_FACTOR, Entry
from fairway.storage.wals.rocksdb_rows import (
    DEAD,
    ENTRY,
    FENCE,
    HARD_STATE,
    META,
    PARTITION,
    Part,
    View,
    entry_head,
    entry_key,
    key_of_entry,
    pack_hard_state,
    part_body,
    seal,
    space_key,
    system_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fairway.storage.wal import Group, Operation

    Reading = Callable[[], AbstractContextManager[View]]

POINT_DELETES_MAX = 256
"""A larger compaction becomes one range tombstone. A small one does not: after each range deletion
the next read sorts all range tombstones of the memtable again."""


@dataclass(slots=True)
class Change:
    """What is to be remembered once the batch is acknowledged."""

    next_space: int
    parts: dict[int, Part] = field(default_factory=dict)
    """Partitions touched; one without a space is gone."""
    dead: dict[int, bytes] = field(default_factory=dict)
    """Spaces to sweep and the row to begin with; an empty one says that nothing is left."""
    sync: bool = False
    """Whether there is hard state among it, which is always synced."""


def put_group(
    batch: Any, group: Group, parts: Mapping[int, Part], next_space: int, reading: Reading
) -> Change:
    """Put a group into a batch. The hot path of the log: no calls that can be avoided."""
    change = Change(next_space)
    put, key_of, head_of = batch.put, entry_key, entry_head.pack
    for partition, operations in group.items():
        before = parts.get(partition, Part())
        space, last_key, last_term, floor, last_entry = before
        salt = partition * PARTITION_FACTOR
        for index, operation in enumerate(operations):
            entries, meta, truncate, compact, hard_state, delete = operation
            if delete:
                _retire(batch, change, partition, space)
                space, last_key, last_term, floor, last_entry = Part()
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
                cut = Part(space, last_key, floor=floor)
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
        change.parts[partition] = part = Part(space, last_key, last_term, floor, last_entry)
        if space:
            row = system_key.pack(PARTITION, partition)
            put(row, seal(row, part_body.pack(*part)))
            if floor > (before.floor if before.space == space else 1):
                _compact(batch, part, before, operations, reading)
    return change


def _retire(batch: Any, change: Change, partition: int, space: int) -> None:
    """Forget a partition and leave its rows to be swept."""
    if space:
        batch.delete(system_key.pack(PARTITION, partition))
        row = system_key.pack(DEAD, space)
        batch.put(row, seal(row, b""))
        change.dead[space] = space_key(space, 0)


def _last_entry(
    cut: Part, before: Part, earlier: Sequence[Operation], reading: Reading
) -> tuple[int, int]:
    """Key and term of the last entry that a truncation to `cut.last_key` leaves, or zeros."""
    fresh: list[Entry] = []  # what this batch has appended so far
    bound = cut.last_key  # above this, it has removed what was in the store
    for operation in earlier:
        if operation.truncate_after is not None:
            bound = min(bound, operation.truncate_after)
            fresh = [entry for entry in fresh if entry.key <= operation.truncate_after]
        fresh = [] if operation.delete else [*fresh, *operation.entries]
    fresh = [entry for entry in fresh if entry.key <= cut.last_key]
    key = term = 0
    if fresh:
        key, _, term = fresh[-1]
    elif before.space == cut.space:
        with reading() as view:
            row = view.seek_back(entry_key(cut.space, ENTRY, bound))
            if row.startswith(space_key(cut.space, ENTRY)):
                key, term = key_of_entry(row), view.entry()[0]
    return (key, term) if key >= cut.floor else (0, 0)


def _compact(
    batch: Any, part: Part, before: Part, operations: Sequence[Operation], reading: Reading
) -> None:
    """Remove the entries below the floor: those of this batch and those of the store."""
    rows = [
        entry_key(part.space, ENTRY, entry.key)
        for operation in operations
        for entry in operation.entries
        if entry.key < part.floor
    ]
    if before.space == part.space and before.last_entry:
        begin = entry_key(part.space, ENTRY, before.floor)
        last = entry_key(part.space, ENTRY, before.last_entry)
        end = entry_key(part.space, ENTRY, part.floor)
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


def put_sweep(
    batch: Any, dead: Mapping[int, bytes], next_space: int, limit: int, reading: Reading
) -> Change:
    """Remove up to `limit` rows of dead spaces."""
    change = Change(next_space)
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

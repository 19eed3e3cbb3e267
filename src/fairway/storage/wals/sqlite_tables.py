"""What is in the tables of one SQLite file of the log, and every statement that touches it.

The hot path is one statement. A group of plain appends crosses to SQLite as one array and becomes
`INSERT … SELECT … FROM carray(?)` in autocommit: the interpreter lock is released once, for the
insertion, the commit and the sync together, so the event loop runs on meanwhile.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple, cast
from zlib import crc32

import apsw

from fairway.errors import Corrupt
from fairway.storage.wal import (
    KEY_FACTOR,
    PARTITION_FACTOR,
    TERM_FACTOR,
    Entry,
    HardState,
    Tail,
    checksum,
)

if TYPE_CHECKING:
    from fairway.storage.wal import Group, Operation

FORMAT = 1
APPLICATION_ID = 0x46574C47  # "FWLG"
HELD_BYTES = 5 * 1024  # up to so many, zlib keeps the interpreter lock
LET_GO_BYTES = 64 * 1024  # from here on others gain more by having it than we lose
MARK = -1  # the reserved partition whose only row holds the number of the last group

SCHEMA = f"""
CREATE TABLE entry (
    partition INTEGER NOT NULL, key INTEGER NOT NULL, term INTEGER NOT NULL,
    checksum INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (partition, key)
) WITHOUT ROWID;
CREATE TABLE meta (
    partition INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (partition, name)
) WITHOUT ROWID;
CREATE TABLE state (
    partition INTEGER PRIMARY KEY,
    floor INTEGER NOT NULL DEFAULT 1, last INTEGER NOT NULL DEFAULT 0,
    term INTEGER, vote TEXT, deleted INTEGER NOT NULL DEFAULT 0
);
INSERT INTO entry VALUES ({MARK}, 0, 0, 0, x'');
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""

# Each row travels as one blob: four decimal fields of fixed width, then the payload. Decimal, since
# SQL can cast text to a number but not bytes; the table stays readable for a person that way.
ROW = b"%019d%019d%019d%010d%b"
# A conflict is legal for the mark alone. For any other row it sets payload to NULL, which the
# schema forbids, so that a key used twice aborts the statement instead of replacing history.
APPEND = """
INSERT INTO entry
SELECT CAST(CAST(substr(value, 1, 19) AS TEXT) AS INTEGER),
       CAST(CAST(substr(value, 20, 19) AS TEXT) AS INTEGER),
       CAST(CAST(substr(value, 39, 19) AS TEXT) AS INTEGER),
       CAST(CAST(substr(value, 58, 10) AS TEXT) AS INTEGER),
       substr(value, 68)
FROM carray(?) WHERE true
ON CONFLICT (partition, key) DO UPDATE SET
    term = excluded.term, payload = CASE WHEN partition = -1 THEN excluded.payload END
"""

# Where a truncation leaves the partition. It may be a gap, which the entries do not remember.
TRUNCATED = """
INSERT INTO state (partition, last)
SELECT ?1, min(?2, max(
    coalesce((SELECT max(key) FROM entry WHERE partition = ?1), 0),
    coalesce((SELECT max(last, floor - 1) FROM state WHERE partition = ?1), 0)
)) WHERE true
ON CONFLICT (partition) DO UPDATE SET last = excluded.last
"""

# The last key, which the entries would forget if the last one goes.
ENDED = """
INSERT INTO state (partition, last)
SELECT ?1, coalesce(max(key), 0) FROM entry WHERE partition = ?1
ON CONFLICT (partition) DO UPDATE SET last = max(last, excluded.last)
"""

# In one statement: between two of them a compaction could take the entry away.
TAIL = """
SELECT last.key, last.term, state.floor, state.last
FROM (SELECT ?1 AS id)
LEFT JOIN state ON state.partition = id
LEFT JOIN (SELECT key, term FROM entry WHERE partition = ?1 ORDER BY key DESC LIMIT 1) AS last
"""

# The last entry of every partition, by skipping from one partition to the next: O(partitions).
TAILS = """
WITH RECURSIVE present(id) AS (
    SELECT min(partition) FROM entry WHERE partition >= 0
    UNION ALL
    SELECT (SELECT min(partition) FROM entry WHERE partition > present.id)
    FROM present WHERE present.id IS NOT NULL
), known(id) AS (
    SELECT id FROM present WHERE id IS NOT NULL
    UNION SELECT partition FROM state
    UNION SELECT DISTINCT partition FROM meta
)
SELECT known.id, last.key, last.term, state.floor, state.last, coalesce(state.deleted, 0)
FROM known
LEFT JOIN state ON state.partition = known.id
LEFT JOIN entry AS last ON last.partition = known.id
    AND last.key = (SELECT max(key) FROM entry WHERE partition = known.id)
"""


# Writing


SWEEP_BYTES = 256 * 1024


def has_hard_state(group: Group) -> bool:
    """Whether the group must be synced whatever it asks for."""
    return any(o.hard_state is not None for operations in group.values() for o in operations)


def _crc32_in_parts(payload: bytes, check: int) -> int:
    """The same as in one call, which would give the interpreter lock away and wait for it again:
    for a busy loop's turn, to save two microseconds of it."""
    if len(payload) > LET_GO_BYTES:
        return crc32(payload, check)
    with memoryview(payload) as view:
        for at in range(0, len(payload), HELD_BYTES):
            check = crc32(view[at : at + HELD_BYTES], check)
    return check


def append_rows(group: Group, number: int) -> tuple[bytes, ...] | None:
    """The rows of group `number` if all it does is append; None if it does more.

    This loop is where the interpreter spends its time when the log is busy, so what depends on the
    partition alone is done once, and the checksum is spelled out.
    """
    rows = [ROW % (MARK, 0, number, 0, b"")]
    add = rows.append
    for partition, operations in group.items():
        prefix = b"%019d" % partition
        salt = partition * PARTITION_FACTOR
        for entries, meta, truncate_after, compact_before, hard_state, delete, remove in operations:
            if meta or delete or remove or hard_state is not None:
                return None
            if truncate_after is not None or compact_before is not None:
                return None
            for key, payload, term in entries:
                check = (salt ^ key * KEY_FACTOR ^ term * TERM_FACTOR) & 0xFFFFFFFF
                if len(payload) <= HELD_BYTES:
                    check = crc32(payload, check)
                else:
                    check = _crc32_in_parts(payload, check)
                add(prefix + b"%019d%019d%010d" % (key, term, check) + payload)
    return tuple(rows)


def insert_rows(connection: apsw.Connection, rows: tuple[bytes, ...]) -> None:
    """Write what `append_rows` made, in one statement that is its own transaction."""
    connection.execute(APPEND, (apsw.carray(rows),))


class FilePages(NamedTuple):
    """How many pages the file has, and how many of them are free."""

    pages: int
    free: int

    @property
    def used(self) -> int:
        return self.pages - self.free


def file_pages(connection: apsw.Connection) -> FilePages:
    """As the transaction under way has it."""
    return FilePages(connection.pragma("page_count"), connection.pragma("freelist_count"))


class Bounds(NamedTuple):
    """How many pages a file that must not grow may have, and how many free ones entries keep for
    operations that free some."""

    pages: int
    keep: int


def bounds_of(found: FilePages, keep: int) -> Bounds:
    """For a file as it is, or a little larger: with no more free than it has to keep, it would
    refuse the next entry though other files have free pages."""
    return Bounds(max(found.pages, found.used + 2 * keep), keep)


def fits(before: FilePages, after: FilePages, bounds: Bounds) -> bool:
    """Whether a group may be committed: it neither makes the file too large nor uses pages that are
    to be kept. One that frees pages may, however few are free."""
    return after.pages <= max(bounds.pages, before.pages) and after.used <= max(
        bounds.pages - bounds.keep, before.used
    )


def apply_mixed(
    connection: apsw.Connection, group: Group, number: int, bounds: Bounds | None = None
) -> set[int]:
    """Write any group as group `number` in one transaction; returns the partitions it deletes.

    `FullError` if there are bounds and it does not stay within. What has no entries, such as a
    deletion, keeps nothing free.
    """
    connection.execute("BEGIN IMMEDIATE")
    before = file_pages(connection) if bounds else None
    rows = [ROW % (MARK, 0, number, 0, b"")]
    deleted = set()
    for partition, operations in group.items():
        for operation in operations:
            _apply(connection, partition, operation, rows)
            if operation.delete:
                deleted.add(partition)
    _flush(connection, rows)
    if bounds is not None and before is not None:
        if not any(operation.entries for operations in group.values() for operation in operations):
            bounds = bounds._replace(keep=0)
        if not fits(before, file_pages(connection), bounds):
            raise apsw.FullError("the disk is full, and so are the pages that the file has")
    connection.execute("COMMIT")
    return deleted


def _apply(
    connection: apsw.Connection, partition: int, operation: Operation, rows: list[bytes]
) -> None:
    if operation.truncate_after is not None:
        _flush(connection, rows)
        connection.execute(TRUNCATED, (partition, operation.truncate_after))
        connection.execute(
            "DELETE FROM entry WHERE partition = ? AND key > ?",
            (partition, operation.truncate_after),
        )
    for key, payload, term in operation.entries:
        check = checksum(partition, key, term, payload)
        rows.append(ROW % (partition, key, term, check, payload))
    if operation.compact_before is not None:
        _flush(connection, rows)
        _compact(connection, partition, operation.compact_before)
    if operation.remove:
        _flush(connection, rows)
        connection.execute(ENDED, (partition,))
        connection.executemany(
            "DELETE FROM entry WHERE partition = ? AND key BETWEEN ? AND ?",
            [(partition, first, last) for first, last in operation.remove],
        )
    for name, value in operation.meta.items():
        _set_meta(connection, partition, name, value)
    if operation.hard_state is not None:
        term, vote = operation.hard_state
        connection.execute(
            "INSERT INTO state (partition, term, vote) VALUES (?, ?, ?) ON CONFLICT"
            " (partition) DO UPDATE SET term = excluded.term, vote = excluded.vote",
            (partition, term, vote),
        )
    if operation.delete:
        _flush(connection, rows)
        connection.execute(
            "INSERT OR REPLACE INTO state (partition, deleted) VALUES (?, 1)", (partition,)
        )


def sweep(connection: apsw.Connection, partition: int, limit: int) -> bool:
    """Remove up to `limit` rows of a deleted partition, not many bytes; True if none is left."""
    with connection:
        for table, key, value in (("entry", "key", "payload"), ("meta", "name", "value")):
            # Writers wait meanwhile, and a large row costs a page of work for each of its pages.
            last, count, size = None, 0, 0
            for last, length in connection.execute(  # noqa: B007  (the last one counts)
                f"SELECT {key}, length({value}) FROM {table} WHERE partition = ?"
                f" ORDER BY {key} LIMIT ?",
                (partition, limit),
            ):
                count += 1
                size += cast("int", length)
                if size >= SWEEP_BYTES:
                    break
            if last is not None:
                connection.execute(
                    f"DELETE FROM {table} WHERE partition = ? AND {key} <= ?", (partition, last)
                )
            limit -= count
            if limit <= 0 or size >= SWEEP_BYTES:
                return False
        connection.execute("DELETE FROM state WHERE partition = ?", (partition,))
    return True


def _flush(connection: apsw.Connection, rows: list[bytes]) -> None:
    if rows:
        connection.execute(APPEND, (apsw.carray(tuple(rows)),))
        rows.clear()


def _compact(connection: apsw.Connection, partition: int, before: int) -> None:
    connection.execute("DELETE FROM entry WHERE partition = ? AND key < ?", (partition, before))
    connection.execute(
        "INSERT INTO state (partition, floor) VALUES (?, ?) ON CONFLICT (partition)"
        " DO UPDATE SET floor = max(floor, excluded.floor)",
        (partition, before),
    )


def _set_meta(connection: apsw.Connection, partition: int, name: str, value: bytes | None) -> None:
    if value is None:
        connection.execute("DELETE FROM meta WHERE partition = ? AND name = ?", (partition, name))
    else:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (partition, name, value))


# Reading


def read_entries(
    connection: apsw.Connection,
    partition: int,
    *,
    first: int,
    last: int,
    limit: int,
    max_bytes: int,
    backwards: bool,
    place: str,
) -> list[Entry]:
    """See `Wal.read`."""
    entries: list[Entry] = []
    size = 0
    order = "DESC" if backwards else "ASC"
    rows = connection.execute(
        "SELECT key, term, checksum, payload FROM entry WHERE partition = ?"
        f" AND key BETWEEN ? AND ? ORDER BY key {order} LIMIT ?",
        (partition, first, last, limit),
    )
    # Closed, or an error that is kept somewhere would keep the connection in the past.
    with closing(rows):
        for key, term, check, payload in rows:
            if checksum(partition, key, term, payload) != check:
                raise Corrupt(f"entry {key} fails its checksum", place=place, partition=partition)
            size += len(payload)
            if entries and size > max_bytes:
                break
            entries.append(Entry(key, payload, term))
    return entries


def read_tail(connection: apsw.Connection, partition: int) -> Tail:
    """See `Wal.tail`."""
    return _tail(*connection.execute(TAIL, (partition,)).get)


def read_tails(connection: apsw.Connection, place: str) -> tuple[dict[int, Tail], set[int]]:
    """The tail of every partition, and the deleted ones that have rows left."""
    try:
        rows = cast("list[tuple[int, ...]]", connection.execute(TAILS).fetchall())
    except apsw.Error as error:
        damaged = _damaged(connection)
        raise Corrupt(str(error), place=place, partition=damaged) from error
    tails = {}
    deleted = set()
    for partition, key, term, floor, last, gone in rows:
        if gone:
            deleted.add(partition)
        else:
            tails[partition] = _tail(key, term, floor, last)
    return tails, deleted


def _damaged(connection: apsw.Connection) -> int | None:
    """The first partition that cannot be read, or the last one before the damage."""
    partition: int | None = MARK
    try:
        while partition is not None:
            connection.execute(TAIL, (partition,)).fetchall()
            partition = connection.execute(
                "SELECT min(partition) FROM entry WHERE partition > ?", (partition,)
            ).get
    except apsw.Error:
        return partition if partition != MARK else None
    return None


def read_group_number(connection: apsw.Connection, place: str) -> int:
    """The number of the last group that was written."""
    number = connection.execute("SELECT term FROM entry WHERE partition = ?", (MARK,)).get
    if number is None:
        raise Corrupt("the group number is missing", place=place)
    return int(number)


def read_meta(connection: apsw.Connection, partition: int, name: str) -> bytes | None:
    """See `Wal.meta`."""
    value: bytes | None = connection.execute(
        "SELECT value FROM meta WHERE partition = ? AND name = ?", (partition, name)
    ).get
    return value


def scan_meta(
    connection: apsw.Connection, partition: int, prefix: str, after: str, limit: int
) -> list[tuple[str, bytes]]:
    """See `Wal.meta_scan`."""
    beyond = _beyond(prefix)
    return list(
        connection.execute(
            "SELECT name, value FROM meta WHERE partition = ?1 AND name > ?2 AND name >= ?3"
            f" {'' if beyond is None else 'AND name < ?5'} ORDER BY name LIMIT ?4",
            (partition, after, prefix, limit, *([] if beyond is None else [beyond])),
        )
    )


def read_hard_state(connection: apsw.Connection, partition: int) -> HardState | None:
    """See `Wal.hard_state`."""
    found = connection.execute(
        "SELECT term, vote FROM state WHERE partition = ? AND term IS NOT NULL", (partition,)
    ).get
    return HardState(*found) if found else None


def _tail(key: int | None, term: int | None, floor: int | None, last: int | None) -> Tail:
    floor = floor or 1
    return Tail(max(key or 0, floor - 1, last or 0), term or 0, floor)


def _beyond(prefix: str) -> str | None:
    """The first name after all that begin with `prefix`; None if there is no such name."""
    for end in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[end]) + 1
        if point <= 0x10FFFF:
            return prefix[:end] + chr(0xE000 if point == 0xD800 else point)
    return None

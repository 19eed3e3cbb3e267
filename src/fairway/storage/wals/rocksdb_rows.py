"""How the log lies in RocksDB: its rows, and the view through which they are read and verified.

Keys are big-endian, so that they sort by number:

    space, 0                hard state           The rows of a partition live in a numbered space.
    space, 1, name          metadata             A deleted one leaves its space to be swept and may
    space, 2                a fence              be created anew, in another, at once.
    space, 3, key           an entry: term, key of the entry before it, checksum, payload
    ff, "D", space          a space to sweep
    ff, "F"                 format version
    ff, "P", partition      its space and tail
    ff, "S", segment, 0|1   the last two groups of a segment (see `head`)

Every row but the entries, which have their own checksum, is sealed: it begins with a checksum of
its key and its body.
"""

from __future__ import annotations

import re
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from fairway.errors import Corrupt
from fairway.storage.wal import HardState, Tail

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = b"fairway log, rocksdb, 1"
FORMAT_KEY = b"\xffF"
DEAD, PARTITION, SEGMENT = b"\xffD", b"\xffP", b"\xffS"
HARD_STATE, META, FENCE, ENTRY = range(4)
SEGMENTS_KEPT = 1024

space_key = struct.Struct(">QB").pack
entry_key = struct.Struct(">QBQ").pack
SPACE_KEY_BYTES = 9
system_key = struct.Struct(">2sQ")
segment_key = struct.Struct(">2sQB")
segment_body = struct.Struct(">QQ")  # the segment's first group, and the group that wrote this
entry_head = struct.Struct(">QQL")  # term, key of the entry before, checksum
partition_body = struct.Struct(">5Q")

_FILE = re.compile(r"[^\s:'\"]*/(?:MANIFEST-\d+|CURRENT|\d+\.(?:log|sst))\b")


class PartitionRow(NamedTuple):
    """Where a partition's rows live and where its entries end. Space 0: it does not exist."""

    space: int = 0
    last_key: int = 0
    last_term: int = 0
    floor: int = 1
    last_entry: int = 0
    """Key of the last entry present, 0 if none. A truncation may leave it below `last_key`."""

    @property
    def tail(self) -> Tail:
        return Tail(self.last_key, self.last_term, self.floor)


def seal(key: bytes, body: bytes) -> bytes:
    """A row's value: the body behind a checksum of key and body."""
    return crc32(body, crc32(key)).to_bytes(4, "big") + body


def key_of_entry(row: bytes) -> int:
    return int.from_bytes(row[SPACE_KEY_BYTES:], "big")


def pack_hard_state(state: HardState) -> bytes:
    return state.term.to_bytes(8, "big") + state.vote.encode()


def unpack_hard_state(body: bytes) -> HardState:
    return HardState(int.from_bytes(body[:8], "big"), body[8:].decode())


def corrupt(error: Exception, place: str) -> Corrupt:
    """What RocksDB's complaint means to us. It has no error types, and names files in prose."""
    found = _FILE.search(str(error))
    return Corrupt(str(error), place=found[0] if found else place)


class ReadView:
    """What readers see: an iterator made when the last group was acknowledged.

    An iterator shows the store as it was when it was made, so a group becomes visible whole, and
    not before its sync. (A snapshot would say so more plainly, but rocksdict's iterators of
    snapshots ignore the snapshot.) Reads of one view take turns by `lock`; the interpreter lock,
    which rocksdict holds, would not let them overlap anyway.

    RocksDB gives its lock back when its last iterator is gone. A traceback keeps whatever its
    frames know, so they know the view, and the view lets go of the iterator by `close`.
    """

    def __init__(self, rows: Any, place: str) -> None:
        self.lock = threading.Lock()
        self.readers = 0
        self.place = place
        self._rows = rows

    def close(self) -> None:
        """Let go of the store. Nobody reads any more."""
        self._rows = None

    def seek(self, key: bytes) -> bytes:
        """Go to `key` or the next one above, and return what is there; empty at the end."""
        self._rows.seek(key)
        return self._here()

    def seek_back(self, key: bytes) -> bytes:
        """Go to `key` or the next one below."""
        self._rows.seek_for_prev(key)
        return self._here()

    def step(self) -> bytes:
        """Go on to the next key."""
        self._rows.next()
        return self._here()

    def step_back(self) -> bytes:
        """Go on to the key before."""
        self._rows.prev()
        return self._here()

    def _here(self) -> bytes:
        if self._rows.valid():
            return self._rows.key()  # type: ignore[no-any-return]
        try:
            self._rows.status()  # damage ends an iteration just as the end does
        except Exception as error:
            raise corrupt(error, self.place) from error
        return b""

    def body(self, key: bytes) -> bytes | None:
        """The body of the sealed row at `key`, or None."""
        return self.unseal() if self.seek(key) == key else None

    def unseal(self) -> bytes:
        """The body of the sealed row here."""
        key, value = self._rows.key(), self._rows.value()
        body: bytes = value[4:]
        if value != seal(key, body):
            raise Corrupt(f"row {key.hex()} fails its checksum", place=self.place)
        return body

    def sealed(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and bodies of all system rows of one kind."""
        key = self.seek(kind)
        while key.startswith(kind):
            yield key, self.unseal()
            key = self.step()

    def partition_row(self, partition: int) -> PartitionRow:
        """The partition's row, or a `PartitionRow()`."""
        body = self.body(system_key.pack(PARTITION, partition))
        return PartitionRow(*partition_body.unpack(body)) if body is not None else PartitionRow()

    def entry(self) -> tuple[int, int, int, bytes]:
        """Of the entry here: term, key of the one before it, checksum, payload."""
        value = self._rows.value()
        if len(value) < entry_head.size:
            raise Corrupt(f"row {self._rows.key().hex()} is cut short", place=self.place)
        return *entry_head.unpack_from(value), value[entry_head.size :]

    def rising(
        self, partition: PartitionRow, first: int, last: int
    ) -> Iterator[tuple[int, int, int, bytes]]:
        """Key, term, checksum and payload of each entry; it must follow the one it says.

        `last` is at most the last entry's key, so this stops there and never strays into
        tombstones behind it.
        """
        home = space_key(partition.space, ENTRY)
        row = self.seek(home + first.to_bytes(8, "big")) if first <= last else b""
        before = None
        while first <= last:
            if not row.startswith(home):
                raise Corrupt(f"entries up to {partition.last_entry} are missing", place=self.place)
            key = key_of_entry(row)
            term, previous, check, payload = self.entry()
            if previous >= first if before is None else previous != before:
                raise Corrupt(f"an entry before {key} is missing", place=self.place)
            if key > last:
                return
            yield key, term, check, payload
            if key == partition.last_entry:
                return
            before = key
            row = self.step()

    def falling(
        self, partition: PartitionRow, first: int, last: int
    ) -> Iterator[tuple[int, int, int, bytes]]:
        """The same from `last` down to `first`."""
        expected = partition.last_entry
        if first <= last < expected:
            above = self.seek(entry_key(partition.space, ENTRY, last + 1))
            if not above.startswith(space_key(partition.space, ENTRY)):
                raise Corrupt(f"entries above {last} are missing", place=self.place)
            expected = self.entry()[1]
        row = self.seek_back(entry_key(partition.space, ENTRY, last)) if expected >= first else b""
        while first <= expected <= last:
            if row != entry_key(partition.space, ENTRY, expected):
                raise Corrupt(f"entry {expected} is missing", place=self.place)
            key = expected
            term, expected, check, payload = self.entry()
            yield key, term, check, payload
            row = self.step_back() if expected >= first else b""


def head(rows: list[tuple[int, int, int]], place: str) -> tuple[int, int]:
    """The last segment and the last group, if none before it is missing; (0, 0) without rows.

    RocksDB forgives a log file that ends early even if another follows, and a manifest that ends
    early, so a damaged bit could take groups out of the middle. Therefore each group writes its
    number into one of two rows, in turn, beside the number of the first group of its segment; and
    a segment ends with the first group that was written to a new log file. Whatever goes missing
    at the end of a file, or with a table file, leaves a row that does not follow the one before.
    """
    ends: dict[int, set[tuple[int, int]]] = {}
    for segment, first, group in rows:
        ends.setdefault(segment, set()).add((first, group))
    segment, last = max(ends, default=0), None
    for number in range(max(1, segment - SEGMENTS_KEPT + 1), segment + 1):
        first, group = max(ends.get(number, {(0, 0)}))
        whole = ends.get(number) == {(first, n) for n in (group - 1, group) if n >= first}
        if not whole or first != (1 if number == 1 else first if last is None else last + 1):
            raise Corrupt(f"groups are missing in segment {number} of {segment}", place=place)
        last = group
    return segment, last or 0

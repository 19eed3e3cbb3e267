"""What one append leaves in the log, and how its records look to a reader.

A batch is one log entry keyed by its last seq, so it is stored and lost as a whole. Its records
stay the JSON their writer sent: they are parsed when they come in, to refuse what is wrong, and
again when somebody reads them, never re-encoded in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from fairway.errors import Corrupt, UnknownFormat
from fairway.wire.records import RECORD_OVERHEAD, RecordInput, decode_records

if TYPE_CHECKING:
    from collections.abc import Callable

VERSION: Final = 1


class RecordBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The records of one append. Extended only at the end, with defaults."""

    version: int
    first_seq: int
    count: int
    ts: int
    size: int
    """What its records count against `cap_bytes`."""
    records: bytes
    """A JSON array of `RecordInput`."""
    node: str | None = None
    """The origin of records that name none."""
    trace: str | None = None
    """The `traceparent` of the request that wrote it."""
    hops: int = 0
    """How many routers it came through."""
    accepted: int = 0
    """When it was accepted, if the clock was behind `ts` then, which never falls in a topic."""
    copies: int = -1
    """How many copies routers may make of each of its records, all that follow counted; -1 of what
    no router made."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1

    @property
    def accepted_ms(self) -> int:
        """What the clock showed when it was accepted."""
        return self.accepted or self.ts

    def parse(self) -> list[RecordInput]:
        return decode_records(self.records)


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(RecordBatch)

encode_batch = _ENCODER.encode


def decode_batch(payload: bytes, *, topic: str) -> RecordBatch:
    """Read an entry back. Its checksum was right, so what does not fit is another format."""
    try:
        batch = _DECODER.decode(payload)
    except msgspec.DecodeError as error:
        raise Corrupt(f"an entry is not a batch: {error}", place=f"topic {topic}") from None
    if batch.version != VERSION:
        raise UnknownFormat(f"topic {topic} holds batches of version {batch.version}")
    return batch


def size_of(record: RecordInput, node: str | None) -> int:
    """What a record counts against `cap_bytes`."""
    size = RECORD_OVERHEAD + len(record.data)
    if record.tag is not None:
        size += len(record.tag)
    size += len(record.meta)
    node = record.node if record.node is not None else node
    return size + len(node) if node is not None else size


class RawRecord(NamedTuple):
    """One record as a reader in this process sees it."""

    seq: int
    ts: int
    data: bytes
    """JSON, as it was written."""
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None
    trace: str | None = None
    hops: int = 0

    @property
    def copies(self) -> int:
        """How many copies routers may still make of it; -1 of what no router made. No field: it is
        the routers' own business, and readers compare records."""
        return -1


class Copied(RawRecord):
    """A record that a router made."""

    copies: int = -1

    @classmethod
    def within(cls, copies: int) -> Callable[..., Copied]:
        """Makes those of which so many copies may be made."""

        def make(*fields: Any) -> Copied:
            record = cls(*fields)
            record.copies = copies
            return record

        return make


class Projection(NamedTuple):
    """Which fields of a record a reader wants."""

    tags: bool = False
    meta: bool = True
    data: bool = True


_string: Callable[[str], bytes] = msgspec.json.encode


def encode_record(record: RawRecord, projection: Projection) -> bytes:
    """`{"$seq":…,"$ts":…,"$node":…,"$tag":…,"data":…,"meta":…}`; what is absent is left out."""
    seq, ts, data, tag, node, meta, trace, _ = record
    parts = [b'{"$seq":%d,"$ts":%d' % (seq, ts)]
    if node is not None:
        parts += (b',"$node":', _string(node))
    if tag is not None and projection.tags:
        parts += (b',"$tag":', _string(tag))
    if projection.data:
        parts += (b',"data":', data)
    if projection.meta:
        if meta is not None:
            parts += (b',"meta":', meta)
        if trace is not None:
            parts += (b',"$traceparent":', _string(trace))
    parts.append(b"}")
    return b"".join(parts)


def encode_new(record: RawRecord, *, keep_tag: bool, keep_node: bool) -> bytes:
    """A record as its writer would have given it: the other way round."""
    parts = [b'{"data":', record.data]
    if keep_tag and record.tag is not None:
        parts += (b',"tag":', _string(record.tag))
    if keep_node and record.node is not None:
        parts += (b',"node":', _string(record.node))
    if record.meta is not None:
        parts += (b',"meta":', record.meta)
    parts.append(b"}")
    return b"".join(parts)

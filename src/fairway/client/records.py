"""Records as a client's user writes and reads them, and where a reader stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from fairway.errors import BadRecord, InvalidRequest
from fairway.wire.encoding import NOT_JSON, check_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.wire.events import DeliveredRecord, TombstoneEvent

T = TypeVar("T")


class Position(NamedTuple):
    """Everything up to `seq` of one incarnation of a topic was seen."""

    epoch: int
    seq: int


Cursor: TypeAlias = int | Position | Literal["tail"]
"""Where a reader begins: after a seq, after a `Position`, or with what comes next."""


class Record(NamedTuple, Generic[T]):
    """One record of a topic, its data as the type that was asked for."""

    seq: int
    ts: int
    """When the server accepted it, in milliseconds since 1970."""
    data: T
    tag: str | None
    node: str | None
    meta: dict[str, Any] | None
    topic: str
    epoch: int
    trace: str | None
    """The `traceparent` of the request that wrote it."""

    @property
    def position(self) -> Position:
        """What to keep if a later process is to go on after this record."""
        return Position(self.epoch, self.seq)


class NewRecord(NamedTuple):
    """A value to append with a tag, node or meta of its own."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None


class Page(NamedTuple, Generic[T]):
    """What `diff` found after a cursor. A tombstone stands for what was lost before `records`."""

    records: list[Record[T]]
    next_from_seq: int
    """Where the next page begins: past records that were left out, too."""
    epoch: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    """Whether there was no more. An empty list of records does not say so."""
    tombstone: TombstoneEvent | None
    lag: int
    bad: tuple[BadRecord, ...] = ()
    """Records that do not fit the type; they are not among `records`."""

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.next_from_seq)


class RecordDecoder(Generic[T]):
    """Turns records from the wire into records of one type."""

    def __init__(self, type: Any) -> None:
        self._decode = msgspec.json.Decoder(type).decode

    def __call__(self, topic: str, epoch: int, record: DeliveredRecord) -> Record[T]:
        """Raises `BadRecord`, which names topic and seq, if its data does not fit.

        So does meta that cannot be read: older servers took any number there.
        """
        what = ""
        try:
            data: T = self._decode(record.data)
            what = "meta: "
            meta = msgspec.json.decode(record.meta) if record.meta else None
        except (msgspec.DecodeError, RecursionError) as error:
            raw, reason = bytes(record.data), f"{what}{error}"
            raise BadRecord(topic, record.seq, epoch, raw, reason) from None
        return Record(
            record.seq, record.ts, data, record.tag, record.node, meta, topic, epoch, record.trace
        )


_encode: Final = msgspec.json.Encoder().encode


def encode_new(
    value: Any, *, tag: str | None = None, meta: Mapping[str, Any] | None = None
) -> bytes:
    """One record as the wire has it. What a `NewRecord` says itself wins over `tag` and `meta`."""
    node = None
    if isinstance(value, NewRecord):
        tag = value.tag if value.tag is not None else tag
        meta = value.meta if value.meta is not None else meta
        node, value = value.node, value.data
    try:
        parts = [b'{"data":', _encode(value)]
        if tag is not None:
            parts += (b',"tag":', _encode(tag))
        if node is not None:
            parts += (b',"node":', _encode(node))
        if meta is not None:
            parts += (b',"meta":', _encode(meta))
        parts.append(b"}")
        encoded = b"".join(parts)
        check_numbers(encoded, (value, tag, node, meta))
    except NOT_JSON as error:
        raise InvalidRequest(f"a value is not JSON: {error}") from None
    return encoded

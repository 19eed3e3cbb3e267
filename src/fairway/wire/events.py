"""The events of a watch, as they are spelled in the `data` of server-sent events."""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct, field

from fairway.wire.topics import Tombstone

RECORD: Final = "record"
TOMBSTONE: Final = "tombstone"
CAUGHT_UP: Final = "caught-up"
TOPIC_DELETED: Final = "topic-deleted"
ERROR: Final = "error"
"""Its data is an `ErrorReply`."""


class DeliveredRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One record as a reader gets it. Names with a dollar are the server's."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    """When it was accepted, in milliseconds since 1970."""
    node: str | None = field(name="$node", default=None)
    tag: str | None = field(name="$tag", default=None)
    data: Raw = Raw(b"null")
    meta: Raw = Raw()
    trace: str | None = field(name="$traceparent", default=None)
    """The `traceparent` of the request that wrote it."""


class RecordEvent(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    records: list[DeliveredRecord]
    from_seq: int
    to_seq: int
    head_seq: int


class TombstoneEvent(Tombstone, frozen=True, kw_only=True):
    """Records `gap_from..gap_to` of a topic are gone, and nobody asked for it.

    With the reason `recreated` the topic was deleted and made anew: its seqs begin again at 1.
    """

    topic: str
    epoch: int


class CaughtUpEvent(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int
    head_seq: int


class TopicDeletedEvent(Struct, frozen=True, kw_only=True):
    topic: str
    epoch: int

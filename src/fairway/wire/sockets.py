"""The messages of the WebSocket `/v0/ws`: what a client asks, what it is answered and told.

    -> {"op":"subscribe","topic":"orders","from_seq":0}     <- {"op":"subscribed", ...}
    -> {"op":"publish","topic":"orders","records":[...]}    <- {"op":"published","last_seq":7, ...}
    -> {"op":"unsubscribe","topic":"orders"}                <- {"op":"unsubscribed", ...}
    -> {"op":"ping"}                                        <- {"op":"pong"}
    <- {"op":"record", ...}  {"op":"tombstone", ...}  {"op":"caught-up", ...}
    <- {"op":"topic-deleted", ...}

`SocketRequest` is what a client sends, `SocketMessage` what the server does. A request's `id`, if
it has one, comes back with its answer. The messages of a graph's sockets are in `wire.graphs`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fairway.wire.events import CaughtUpEvent, RecordEvent, TombstoneEvent
from fairway.wire.requests import TRACE_BYTES_MAX, RequestId
from fairway.wire.topics import Count, Match  # noqa: TC001  (read at run time)

Trace: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TRACE_BYTES_MAX)]


class _Request(Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """What a client sends."""


class Subscribe(_Request, frozen=True, kw_only=True, tag="subscribe"):
    """Follow a topic from a cursor."""

    topic: str
    from_seq: Count = 0
    epoch: Count | None = None
    tail: bool = False
    node: str | None = None
    match: Match | None = None
    limit: Count = 256
    include_meta: bool = True
    include_tags: bool = False
    touch: bool = True
    """Whether it counts as consuming, for the topic's automatic priority."""
    id: RequestId | None = None


class Unsubscribe(_Request, frozen=True, kw_only=True, tag="unsubscribe"):
    """Follow a topic no more."""

    topic: str
    id: RequestId | None = None


class Publish(_Request, frozen=True, kw_only=True, tag="publish"):
    """Append records, all or none of them."""

    topic: str
    records: Raw
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    traceparent: Trace | None = None
    """That of the handshake if it has none."""
    id: RequestId | None = None


class Ping(_Request, frozen=True, kw_only=True, tag="ping"):
    id: RequestId | None = None


SocketRequest: TypeAlias = Subscribe | Unsubscribe | Publish | Ping


class Subscribed(Struct, frozen=True, kw_only=True, tag_field="op", tag="subscribed"):
    """Comes before the first record."""

    id: RequestId | UnsetType = UNSET
    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int


class Unsubscribed(Struct, frozen=True, kw_only=True, tag_field="op", tag="unsubscribed"):
    id: RequestId | UnsetType = UNSET
    topic: str


class Published(Struct, frozen=True, kw_only=True, tag_field="op", tag="published"):
    """The records are as durable as the topic is configured."""

    id: RequestId | UnsetType = UNSET
    topic: str
    epoch: int
    first_seq: int
    last_seq: int
    created: bool
    """Whether the topic was made for it."""
    deduped: bool
    """Whether it had been made before: nothing was written."""


class Pong(Struct, frozen=True, kw_only=True, tag_field="op", tag="pong"):
    id: RequestId | UnsetType = UNSET


class ErrorMessage(Struct, frozen=True, kw_only=True, tag_field="op", tag="error"):
    """A request was not carried out; the socket lives on."""

    id: RequestId | UnsetType = UNSET
    status: int
    """What HTTP would answer."""
    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class RecordMessage(RecordEvent, frozen=True, kw_only=True, tag_field="op", tag="record"):
    """Records of a subscription. The server writes it by hand: it is the one that counts."""


class TombstoneMessage(TombstoneEvent, frozen=True, kw_only=True, tag_field="op", tag="tombstone"):
    """Records of a subscription are gone, and nobody asked for it."""


class CaughtUpMessage(CaughtUpEvent, frozen=True, kw_only=True, tag_field="op", tag="caught-up"):
    """Everything up to `head_seq` was sent."""


class TopicDeletedMessage(Struct, frozen=True, kw_only=True, tag_field="op", tag="topic-deleted"):
    """The last message of a subscription whose topic is no more."""

    topic: str
    epoch: int
    head_seq: int
    reason: Literal["deleted"] = "deleted"


SocketMessage: TypeAlias = (
    Subscribed
    | Unsubscribed
    | Published
    | Pong
    | ErrorMessage
    | RecordMessage
    | TombstoneMessage
    | CaughtUpMessage
    | TopicDeletedMessage
)

"""Every request a client makes, as a value: what to send, and how to read the answer. Pure.

`Client` and `AsyncClient` only carry these out; whether a call is tried again is `retry`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from fairway.client.records import Page, Position, encode_new
from fairway.errors import BadRecord, InvalidConfig, InvalidRequest, Stop
from fairway.wire import server as server_wire
from fairway.wire import topics as wire
from fairway.wire.events import DeliveredRecord, TombstoneEvent
from fairway.wire.topics import Match, TopicPatch, check_name, match_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fairway.client.records import Record, RecordDecoder

T = TypeVar("T")
Query: TypeAlias = tuple[tuple[str, str], ...]

GOOD: Final = frozenset((200, 201))
PAGE: Final = 1000
MS_NS: Final = 1_000_000
ROOM_WAIT_NS: Final = 30_000_000_000
"""How long an append that waits for room may take to be answered."""

_encode = msgspec.json.Encoder().encode
_records = msgspec.json.Decoder(list[DeliveredRecord]).decode
_diff = msgspec.json.Decoder(wire.DiffReply).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request."""

    method: str
    path: str
    decode: Callable[[bytes], T]
    query: Query = ()
    body: bytes | None = None
    mutates: bool = False
    """It changes something, so a lost answer leaves a doubt."""
    repeatable: bool = True
    """Carried out twice, it changes no more than once."""
    wait_ns: int = 0
    """How long the server may rightly take before it answers."""
    good: frozenset[int] = GOOD


def reading(type: type[T]) -> Callable[[bytes], T]:
    """A decoder of replies. One that is not what it should be is somebody else's."""
    decode = msgspec.json.Decoder(type).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Stop(f"the answer is not {type.__name__}: {error}") from None

    return read


_append = reading(wire.AppendReply)
_put_topic = reading(wire.PutTopicReply)
_state = reading(wire.TopicState)
_topic_list = reading(wire.TopicList)
_delete_records = reading(wire.DeleteReply)
_delete_topic = reading(wire.DeleteTopicReply)
_put_router = reading(wire.PutRouterReply)
_router = reading(wire.RouterState)
_router_list = reading(wire.RouterList)
_delete_router = reading(wire.DeleteRouterReply)
_watch = reading(wire.WatchReply)
_ready = reading(server_wire.Readiness)
_ticket = reading(server_wire.TicketReply)


# Records


def append(
    topic: str,
    values: Iterable[Any],
    *,
    tag: str | None = None,
    node: str | None = None,
    meta: Mapping[str, Any] | None = None,
    key: str | None = None,
    create: bool | None = None,
    config: Mapping[str, Any] | TopicPatch | None = None,
    wait_for_room: bool = False,
) -> Call[wire.AppendReply]:
    encoded = [encode_new(value, tag=tag, meta=meta) for value in values]
    return append_encoded(
        topic,
        encoded,
        node=node,
        key=key,
        create=create,
        config=config,
        wait_for_room=wait_for_room,
    )


def append_encoded(
    topic: str,
    records: Sequence[bytes],
    *,
    node: str | None = None,
    key: str | None = None,
    create: bool | None = None,
    config: Mapping[str, Any] | TopicPatch | None = None,
    wait_for_room: bool = False,
) -> Call[wire.AppendReply]:
    """The same for records that `encode_new` has made. Without a key it is not repeatable."""
    if not records:
        raise InvalidRequest("there is nothing to append")
    parts = [b'{"records":[', b",".join(records), b"]"]
    options = {
        "node": node,
        "idempotency_key": key,
        "create": create,
        "config": patch_of(config) if config is not None else None,
        "disable_backpressure": wait_for_room or None,
    }
    for name, value in options.items():
        if value is not None:
            parts += (b',"', name.encode(), b'":', _encode(value))
    parts.append(b"}")
    return Call(
        method="POST",
        path=topic_path(topic),
        query=(("return_seqs", "false"),),
        body=b"".join(parts),
        decode=_append,
        mutates=True,
        repeatable=key is not None,
        wait_ns=ROOM_WAIT_NS if wait_for_room else 0,
    )


def diff(
    topic: str,
    decoder: RecordDecoder[T],
    from_seq: int | Position = 0,
    *,
    limit: int = wire.LIMIT_DEFAULT,
    wait_ms: int = 0,
    node: str | Sequence[str] | None = None,
    match: Match | None = None,
    max_batch_bytes: int = wire.READ_BYTES_DEFAULT,
) -> Call[Page[T]]:
    epoch, seq = from_seq if isinstance(from_seq, Position) else (None, from_seq)
    request = wire.DiffRequest(
        from_seq=seq,
        epoch=epoch,
        limit=limit,
        node=node if node is None or isinstance(node, str) else list(node),
        match=match_of(match),
        include_tags=True,
        wait_ms=wait_ms,
        max_batch_bytes=max_batch_bytes,
    )

    def decode(body: bytes) -> Page[T]:
        try:
            reply = _diff(body)
            found = _records(reply.records)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Stop(f"the answer is no page of records: {error}") from None
        gone = reply.tombstone
        records: list[Record[T]] = []
        bad: list[BadRecord] = []
        for one in found:
            try:
                records.append(decoder(reply.topic, reply.epoch, one))
            except BadRecord as error:
                bad.append(error)
        return Page(
            records,
            reply.next_from_seq,
            reply.epoch,
            reply.head_seq,
            reply.earliest_seq,
            reply.caught_up,
            TombstoneEvent(topic=topic, epoch=reply.epoch, **msgspec.structs.asdict(gone))
            if gone is not None
            else None,
            reply.lag,
            tuple(bad),
        )

    return Call(
        method="POST",
        path=f"{topic_path(topic)}/diff",
        body=_encode(request),
        decode=decode,
        wait_ns=wait_ms * MS_NS,
    )


def delete_records(
    topic: str, *, before_seq: int | None = None, match: Match | None = None
) -> Call[wire.DeleteReply]:
    """By tag alone it is not repeatable: what came meanwhile was not meant."""
    return Call(
        method="POST",
        path=f"{topic_path(topic)}/delete",
        body=_encode(wire.DeleteRequest(before_seq=before_seq, match=match_of(match))),
        decode=_delete_records,
        mutates=True,
        repeatable=before_seq is not None,
    )


# Topics


def put_topic(topic: str, config: Mapping[str, Any]) -> Call[wire.PutTopicReply]:
    return Call(
        method="PUT",
        path=topic_path(topic),
        body=_encode(patch_of(config)),
        decode=_put_topic,
        mutates=True,
    )


def state(topic: str, *, touch: bool = False) -> Call[wire.TopicState]:
    return Call(
        method="GET",
        path=topic_path(topic),
        query=() if touch else (("touch", "false"),),
        decode=_state,
    )


def list_topics(prefix: str, page_size: int, cursor: str | None) -> Call[wire.TopicList]:
    return Call(
        method="GET",
        path="/v0/topics",
        query=_given(prefix=prefix, page_size=str(page_size), cursor=cursor),
        decode=_topic_list,
    )


def delete_topic(topic: str, *, if_empty: bool = False) -> Call[wire.DeleteTopicReply]:
    return Call(
        method="DELETE",
        path=topic_path(topic),
        query=(("if_empty", "true"),) if if_empty else (),
        decode=_delete_topic,
        mutates=True,
    )


# Routers


def put_router(router: str, config: Mapping[str, Any]) -> Call[wire.PutRouterReply]:
    try:
        made = msgspec.convert(
            {**config, "filter": match_of(config.get("filter"))}, wire.RouterConfig
        )
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"router {router!r}: {error}") from None
    return Call(
        method="PUT",
        path=router_path(router),
        body=_encode(made),
        decode=_put_router,
        mutates=True,
    )


def get_router(router: str) -> Call[wire.RouterState]:
    return Call(method="GET", path=router_path(router), decode=_router)


def list_routers(
    prefix: str, source: str | None, dest: str | None, page_size: int, cursor: str | None
) -> Call[wire.RouterList]:
    return Call(
        method="GET",
        path="/v0/routers",
        query=_given(
            prefix=prefix, source=source, dest=dest, page_size=str(page_size), cursor=cursor
        ),
        decode=_router_list,
    )


def delete_router(router: str) -> Call[wire.DeleteRouterReply]:
    return Call(method="DELETE", path=router_path(router), decode=_delete_router, mutates=True)


# Watches and the server itself


def create_watch(request: wire.WatchRequest, *, lenient: bool) -> Call[wire.WatchReply]:
    return Call(
        method="POST",
        path="/v0/watch",
        query=(("lenient", "true"),) if lenient else (),
        body=_encode(request),
        decode=_watch,
    )


def ready() -> Call[server_wire.Readiness]:
    return Call(method="GET", path="/readyz", decode=_ready, good=frozenset((200, 503)))


def ticket(path: str | None = None) -> Call[server_wire.TicketReply]:
    return Call(
        method="POST",
        path="/v0/tickets",
        body=_encode(server_wire.TicketRequest(path=path)),
        decode=_ticket,
    )


# Small things


def topic_path(topic: str) -> str:
    return f"/v0/topics/{check_name(topic)}"


def router_path(router: str) -> str:
    return f"/v0/routers/{quote(check_name(router, what='router'), safe='')}"


def patch_of(config: Mapping[str, Any] | TopicPatch) -> TopicPatch:
    if isinstance(config, TopicPatch):
        return config
    try:
        return msgspec.convert(dict(config), TopicPatch)
    except msgspec.ValidationError as error:
        raise InvalidConfig(f"topic config: {error}") from None


def match_text(match: Match) -> str:
    """A match as a query has it, which cannot say that a final star is part of a tag."""
    if isinstance(match, str):
        return match
    _, operator, text = match
    starred = text.endswith("*")
    if operator == "Eq" and starred:
        raise InvalidRequest(f"a watch of one topic cannot ask for the tag {text!r} itself")
    if operator == "Glob" and not starred:  # without its star a query would mean the tag
        raise InvalidRequest(f"Glob {text!r}: a literal prefix and one star at its end")
    return text


def _given(**query: str | None) -> Query:
    return tuple((name, value) for name, value in query.items() if value)

"""What a fork inherits: where its source is cut, and the part of a record it takes as its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import Conflict, InvalidRequest
from fairway.server.streams.content import piece_of
from fairway.server.streams.protocol import NOW, Lifetime, media_type
from fairway.server.streams.stored import Fork
from fairway.server.streams.stream import Place, Stream

if TYPE_CHECKING:
    from fairway.server.streams.protocol import CreateRequest
    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic


NO_ROWS: Final = 2**62
"""The floor of a fork that needs none of its source's own rows: the source has to stay for it."""


class Inheritance(NamedTuple):
    """What a fork begins with."""

    source: Stream
    fork: Fork
    prefix: tuple[bytes, ...]
    """The beginning of a record that is cut in two: copied, the rest is not inherited."""
    floor: int
    """From where on the source's own records are needed."""
    lifetime: Lifetime


async def forked_at(topics: Topics, source: Stream, request: CreateRequest) -> Inheritance:
    """What a fork of `source` inherits; `Conflict` or `InvalidRequest` if it cannot be made."""
    meta = source.meta
    if meta.deleted:
        raise Conflict(f"the source {meta.path!r} is deleted", code="stream_forked")
    if source.topic.config.durability == "ephemeral":
        # A fork reads rows, and would be left without them by the next start.
        raise Conflict(
            f"the source {meta.path!r} is ephemeral: nothing of it is stored",
            code="stream_ephemeral",
        )
    kind = request.content_type
    if kind is not None and media_type(kind) != media_type(meta.content_type):
        raise Conflict(f"a fork has its source's type, {meta.content_type}", code="content_type")
    place = source.place_of(request.fork_offset if request.fork_offset is not None else NOW)
    offset = request.fork_offset or source.offset_of(place)
    if source.topic.live is not None:
        # What readers saw before it was written is stored by then, or known to be lost.
        await source.topic.live.wait_written()
    prefix: tuple[bytes, ...] = ()
    if request.sub_offset:
        place, prefix = await _refined(topics, source, place, request.sub_offset)
    inherits = request.lifetime == Lifetime()
    segments = source.truncated(place)
    return Inheritance(
        source,
        Fork(meta.path, source.topic.epoch, str(offset), request.sub_offset, segments, inherits),
        prefix,
        min((own.first for own in segments if own.epoch == source.topic.epoch), default=NO_ROWS),
        Lifetime(meta.ttl_s, meta.expires_at) if inherits else request.lifetime,
    )


async def _refined(
    topics: Topics, source: Stream, place: Place, sub_offset: int
) -> tuple[Place, tuple[bytes, ...]]:
    """The place `sub_offset` messages or bytes on, within the append that follows `place`."""
    upto = source.topic.head
    topic: Topic | None = source.topic
    if place.segment < len(source.segments):
        segment = source.segments[place.segment]
        upto = segment.upto
        topic = topics.find(segment.topic)
    batch = None
    if topic is not None and place.seq < upto:
        batch = await topics.reading.batch_at(topic, place.seq + 1)
    if batch is None:
        raise InvalidRequest("Stream-Fork-Sub-Offset points past the end of the source")
    left = sub_offset
    for seq, record in enumerate(batch.parse(), batch.first_seq):
        if seq <= place.seq or seq > upto:
            continue
        size = 1 if source.json else len(piece_of(bytes(record.data), json=False))
        if left < size:
            part = piece_of(bytes(record.data), json=False)[:left]
            return Place(place.segment, seq - 1), (part,) if part else ()
        left -= size
        if not left:
            return Place(place.segment, seq), ()
    raise InvalidRequest("Stream-Fork-Sub-Offset points past the append it begins in")

"""What a fork inherits: where its source is cut, and the part of a record it takes as its own.

Pure, but for `forked_at`, which asks the source's topic what has to be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fairway.errors import Conflict, InvalidRequest
from fairway.streams.content import piece_of, same_type
from fairway.streams.lifetime import Lifetime
from fairway.streams.offset import NOW, StreamPlace
from fairway.streams.stored import Fork, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.streams.port import BackingTopic, BackingTopics
    from fairway.streams.requests import StreamCreate
    from fairway.streams.stored import StreamMeta
    from fairway.streams.stream import Stream


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


async def forked_at(topics: BackingTopics, source: Stream, request: StreamCreate) -> Inheritance:
    """What a fork of `source` inherits; `Conflict` or `InvalidRequest` if it cannot be made."""
    check_forkable(source.meta, source.topic.durability, request)
    place = source.place_of(request.fork_offset if request.fork_offset is not None else NOW)
    offset = request.fork_offset or source.offset_of(place)
    # What readers saw before it was written is stored by then, or known to be lost.
    await source.topic.wait_written()
    prefix: tuple[bytes, ...] = ()
    if request.sub_offset:
        place, prefix = await _refined(topics, source, place, request.sub_offset)
    segments = inherited_segments(source.segments, source.topic, place)
    inherits = request.lifetime == Lifetime()
    path, epoch = source.meta.path, source.topic.epoch
    return Inheritance(
        source,
        Fork(path, epoch, str(offset), request.sub_offset, segments, inherits),
        prefix,
        floor_of(segments, epoch),
        source.lifetime if inherits else request.lifetime,
    )


def check_forkable(source: StreamMeta, durability: str, request: StreamCreate) -> None:
    """Raise `Conflict` if a stream that is stored so cannot be forked as it is asked."""
    if source.deleted:
        raise Conflict(f"the source {source.path!r} is deleted", code="stream_forked")
    if durability == "ephemeral":
        # A fork reads rows, and would be left without them by the next start.
        raise Conflict(
            f"the source {source.path!r} is ephemeral: nothing of it is stored",
            code="stream_ephemeral",
        )
    kind = request.content_type
    if kind is not None and not same_type(kind, source.content_type):
        raise Conflict(f"a fork has its source's type, {source.content_type}", code="content_type")


def inherited_segments(
    segments: tuple[Segment, ...], own: BackingTopic, place: StreamPlace
) -> tuple[Segment, ...]:
    """What a fork made at `place` of a stream inherits: of its `segments`, and of its `own`."""
    number, seq = place
    if not seq:
        return segments[:number]
    last = segment_of(own) if number == len(segments) else segments[number]
    return (*segments[:number], cut(last, seq))


def floor_of(segments: Iterable[Segment], epoch: int) -> int:
    """From where on a fork with these segments needs records of the topic of that epoch."""
    return min((one.first for one in segments if one.epoch == epoch), default=NO_ROWS)


def segment_of(topic: BackingTopic) -> Segment:
    """Everything of a topic, as it is now."""
    return Segment(
        topic.name,
        topic.epoch,
        topic.head,
        topic.evict_floor,
        topic.delete_floor,
        topic.floor_reason or "",
        tuple(topic.holes),
    )


def cut(segment: Segment, upto: int) -> Segment:
    """A segment without what lies above `upto`."""
    return msgspec.structs.replace(
        segment,
        upto=upto,
        floor=min(segment.floor, upto + 1),
        delete_floor=min(segment.delete_floor, upto + 1),
        holes=tuple(
            (first, min(last, upto), reason)
            for first, last, reason in segment.holes
            if first <= upto
        ),
    )


async def _refined(
    topics: BackingTopics, source: Stream, place: StreamPlace, sub_offset: int
) -> tuple[StreamPlace, tuple[bytes, ...]]:
    """The place `sub_offset` messages or bytes on, within the append that follows `place`."""
    upto = source.topic.head
    topic: BackingTopic | None = source.topic
    if place.segment < len(source.segments):
        segment = source.segments[place.segment]
        upto = segment.upto
        topic = topics.find(segment.topic)
    found = None
    if topic is not None and place.seq < upto:
        found = await topic.append_at(place.seq + 1)
    if found is None:
        raise InvalidRequest("Stream-Fork-Sub-Offset points past the end of the source")
    first_seq, data = found
    seq, prefix = cut_within(first_seq, data, place.seq, upto, sub_offset, json=source.json)
    return StreamPlace(place.segment, seq), prefix


def cut_within(
    first_seq: int, data: Iterable[bytes], after: int, upto: int, sub_offset: int, *, json: bool
) -> tuple[int, tuple[bytes, ...]]:
    """The last seq that lies whole before the cut, and what is copied of the next one.

    The cut is `sub_offset` messages or bytes behind seq `after`, in one append of this `data`.
    """
    left = sub_offset
    for seq, record in enumerate(data, first_seq):
        if seq <= after or seq > upto:
            continue
        piece = piece_of(record, json=False)
        size = 1 if json else len(piece)
        if left < size:
            part = piece[:left]
            return seq - 1, (part,) if part else ()
        left -= size
        if not left:
            return seq, ()
    raise InvalidRequest("Stream-Fork-Sub-Offset points past the append it begins in")

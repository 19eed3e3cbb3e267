"""One stream: what is stored of it beside its records, and what may be done to it now.

Pure: asked what to do with a request, it answers with a verdict; the store carries it out and says
what became of it. A fork is a list of segments, ranges of other topics that it reads first, and a
topic of its own that continues them.

    forked at 5 of A, whose own fork of R was made at 3:   R 1..3 | A 1..5 | own 1..head
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fairway.errors import InvalidRequest
from fairway.server.streams.protocol import (
    BEGINNING,
    JSON,
    NOW,
    START,
    CreateRequest,
    Lifetime,
    Offset,
    media_type,
)
from fairway.server.streams.stored import Pin, Segment, StreamMeta
from fairway.topics.topic import Hole, Topic
from fairway.wire.topics import TopicConfig

if TYPE_CHECKING:
    import asyncio

    from fairway.server.streams.protocol import AppendRequest, Producer

TOUCH_SHARE: Final = 8
"""The last access is saved after this share of the TTL: a restart lengthens a life by as much."""
PLAIN: Final = TopicConfig()


class Place(NamedTuple):
    """A position resolved: after `seq` of segment number `segment` (the own one is the last)."""

    segment: int
    seq: int


class Denied(Enum):
    """Why an append is refused."""

    CLOSED = "the stream is closed"
    CONTENT_TYPE = "the content type is not the stream's"
    STALE_EPOCH = "the producer has begun a newer epoch"
    EPOCH_START = "a new epoch begins with Producer-Seq 0"
    GAP = "appends of the producer before this one are missing"
    SEQ = "Stream-Seq does not rise"


class Repeat(NamedTuple):
    """Done before; `seq` is the highest number the producer has reached, if there is one."""

    seq: int | None


Verdict = Denied | Repeat | None
"""None: append it."""


class Stream:
    """One incarnation of a stream."""

    def __init__(
        self, meta: StreamMeta, topic: Topic, *, touched_ms: int, pins: dict[int, Pin] | None = None
    ) -> None:
        self.meta = meta
        self.topic = topic
        self.pins = pins if pins is not None else {}
        """The forks made of it, by the epoch of their topic."""
        self.touched_ms = self.saved_touch_ms = touched_ms
        self.readers = 0
        """Live readers: a stream is not idle while there are any."""
        self.closing: asyncio.Future[Offset] | None = None
        """A write that closes it and is under way."""
        self.last_write: asyncio.Future[Offset] | None = None
        self.writes: dict[str, asyncio.Future[Offset]] = {}
        """The last write under way of each producer."""
        self.stale = False
        """A write failed: what is stored may differ from `meta`."""

    @property
    def json(self) -> bool:
        return media_type(self.meta.content_type) == JSON

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.meta.fork.segments if self.meta.fork is not None else ()

    def takes(self, content_type: str | None) -> bool:
        """Whether bodies of this type are its own."""
        return media_type(content_type or "") == media_type(self.meta.content_type)

    # Life

    @property
    def ended(self) -> bool:
        """Deleted, whether or not forks keep what it held."""
        return self.meta.deleted or self.topic.epoch < 0

    def expires_ms(self) -> int | None:
        """When it is over, if nobody comes; None if never."""
        meta = self.meta
        if meta.expires_at is not None:
            return Lifetime(expires_at=meta.expires_at).expires_ms
        return None if meta.ttl_s is None else self.touched_ms + meta.ttl_s * 1000

    def expired(self, now_ms: int) -> bool:
        expires_ms = self.expires_ms()
        if expires_ms is None or now_ms < expires_ms:
            return False
        return not self.readers or self.meta.expires_at is not None

    def touch(self, now_ms: int) -> bool:
        """It was read or written; True if that should be saved."""
        self.touched_ms = max(self.touched_ms, now_ms)
        if self.meta.ttl_s is None:
            return False
        return now_ms - self.saved_touch_ms >= self.meta.ttl_s * 1000 // TOUCH_SHARE

    def same_as(self, request: CreateRequest) -> bool:
        """Whether a PUT asks for what is there."""
        meta, fork = self.meta, self.meta.fork
        inherits = fork is not None and request.content_type is None
        wanted = Lifetime(meta.ttl_s, meta.expires_at)
        if fork is not None and fork.inherits_lifetime:
            wanted = Lifetime()
        return (
            (inherits or media_type(request.content_type or "") == media_type(meta.content_type))
            and request.lifetime.ttl_s == wanted.ttl_s
            and request.lifetime.expires_ms == wanted.expires_ms
            and request.closed == meta.closed
            and request.source == (fork.source if fork is not None else None)
            and request.sub_offset == (fork.sub_offset if fork is not None else 0)
            and (
                request.fork_offset is None
                or fork is None
                or str(request.fork_offset) == fork.offset
            )
        )

    @property
    def pinned(self) -> int:
        """From where on its forks need its records; 0 if there are none."""
        return min((pin.floor for pin in self.pins.values()), default=0)

    # Positions

    @property
    def tail(self) -> Place:
        return Place(len(self.segments), self.topic.head)

    def offset_of(self, place: Place) -> Offset:
        """How a position is told to clients: the end of a segment and the start of the next are
        one position and have one name."""
        segment, seq = place
        if segment < len(self.segments):
            return Offset(self.segments[segment].epoch, seq)
        if not seq and self.segments:
            return Offset(self.segments[-1].epoch, self.segments[-1].upto)
        return Offset(abs(self.topic.epoch), seq)

    def place_of(self, offset: Offset | str | None) -> Place:
        """Where a position is. `InvalidRequest` with code `gone` if it was of a former stream of
        this path."""
        if offset is None or offset in (START, BEGINNING):
            return Place(0, 0)
        if offset == NOW:
            return self.tail
        assert isinstance(offset, Offset)
        for number, segment in enumerate(self.segments):
            if offset.epoch == segment.epoch and offset.seq <= segment.upto:
                at_end = offset.seq == segment.upto
                return Place(number + 1, 0) if at_end else Place(number, offset.seq)
        if offset.epoch == self.topic.epoch and offset.seq <= self.topic.head:
            return Place(len(self.segments), offset.seq)
        if offset.epoch < self.topic.epoch and not self.segments:
            raise InvalidRequest(f"{offset} was in a stream that is gone from here", code="gone")
        raise InvalidRequest(f"{offset} is no position of this stream")

    def truncated(self, place: Place) -> tuple[Segment, ...]:
        """What a fork made at `place` inherits."""
        number, seq = place
        if not seq:
            return self.segments[:number]
        own = number == len(self.segments)
        last = segment_of(self.topic) if own else self.segments[number]
        return (*self.segments[:number], cut(last, seq))

    # Appending

    def blocker(self, producer: Producer | None, verdict: Verdict) -> asyncio.Future[Offset] | None:
        """The write under way that has to end before a verdict counts.

        The next append of a producer need not wait for the one before: if that fails, this one
        fails with it. But nothing is refused, or called done, because of what may yet fail.
        """
        if self.closing is not None:
            return self.closing
        if producer is None or verdict is None:
            return None
        return self.writes.get(producer.id)

    def writing(self, write: asyncio.Future[Offset], request: AppendRequest) -> None:
        """An append is under way."""
        self.last_write = write
        if request.closes:
            self.closing = write
        if request.producer is not None:
            self.writes[request.producer.id] = write

    def wrote(self, write: asyncio.Future[Offset], request: AppendRequest) -> None:
        """An append has ended, well or badly."""
        if self.closing is write:
            self.closing = None
        if request.producer is not None and self.writes.get(request.producer.id) is write:
            del self.writes[request.producer.id]

    def judge(
        self, request: AppendRequest, known: tuple[int, int] | None, *, empty: bool
    ) -> Verdict:
        """What to do with an append; `known` is where its producer is, `empty`: it only closes."""
        meta, producer = self.meta, request.producer
        if meta.closed:
            if producer is None:
                return Repeat(None) if empty else Denied.CLOSED
            if producer == meta.closed_by:
                return Repeat(producer.seq)
            stale = known is not None and producer.epoch < known[0]
            return Denied.STALE_EPOCH if stale else Denied.CLOSED
        if not empty and not self.takes(request.content_type):
            return Denied.CONTENT_TYPE
        if producer is not None:
            verdict = judge_producer(producer, known)
            if verdict is not None:
                return verdict
        # After the producer's verdict: a repeated append is no regression of Stream-Seq.
        if request.seq is not None and meta.seq is not None and request.seq <= meta.seq:
            return Denied.SEQ
        return None

    def after(self, request: AppendRequest) -> StreamMeta:
        """What is to be stored with an append."""
        changes: dict[str, object] = {}
        if request.seq is not None:
            changes["seq"] = request.seq
        if request.closes:
            changes |= {"closed": True, "closed_by": request.producer}
        return msgspec.structs.replace(self.meta, **changes) if changes else self.meta


def judge_producer(producer: Producer, known: tuple[int, int] | None) -> Verdict:
    """Whether this is the producer's next append."""
    epoch, seq = known if known is not None else (producer.epoch, -1)
    if producer.epoch < epoch:
        return Denied.STALE_EPOCH
    if producer.epoch > epoch:
        return Denied.EPOCH_START if producer.seq else None
    if producer.seq <= seq:
        return Repeat(seq)
    return Denied.GAP if producer.seq > seq + 1 else None


def segment_of(topic: Topic) -> Segment:
    """Everything of a topic, as it is now."""
    return Segment(
        topic.name,
        topic.epoch,
        topic.head,
        topic.evict_floor,
        topic.delete_floor,
        topic.floor_reason or "",
        topic.holes,
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


def as_of_fork(topic: Topic, segment: Segment) -> Topic:
    """A topic as it was when it was forked: what it has lost since then is still stored."""
    past = Topic(topic.name, topic.epoch, PLAIN)
    past.head = past.assigned = past.drained = segment.upto
    past.evict_floor = segment.floor
    past.floor_reason = segment.floor_reason or None  # type: ignore[assignment]
    past.delete_floor = segment.delete_floor
    past.earliest = segment.first
    past.holes = tuple(Hole(*hole) for hole in segment.holes)  # type: ignore[arg-type]
    past.live = topic.live
    return past

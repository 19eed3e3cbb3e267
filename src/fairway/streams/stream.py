"""One stream: what is stored of it beside its records, and what it is in this process.

The decisions are pure functions over it: `verdict`, `lifetime`, `offset`, `creation`, `forks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.streams.content import is_json
from fairway.streams.lifetime import Lifetime
from fairway.streams.offset import Offset, StreamPlace, offset_of, place_of
from fairway.streams.pending import PendingWrites
from fairway.streams.stored import META, PIN, TOUCHED, decode_meta, decode_pin, decode_touched

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.streams.port import BackingTopic
    from fairway.streams.stored import Pin, Segment, StreamMeta


class Stream:
    """One incarnation of a stream."""

    def __init__(
        self,
        meta: StreamMeta,
        topic: BackingTopic,
        *,
        touched_ms: int,
        pins: dict[int, Pin] | None = None,
    ) -> None:
        self.meta = meta
        self.topic = topic
        self.json = is_json(meta.content_type)
        self.segments: tuple[Segment, ...] = meta.fork.segments if meta.fork is not None else ()
        """What it inherited. As little as its type does this ever change."""
        self.pins = pins if pins is not None else {}
        """The forks made of it, by the epoch of their topic."""
        self.touched_ms = self.saved_touch_ms = touched_ms
        self.readers = 0
        """Live readers: a stream is not idle while there are any."""
        self.pending = PendingWrites()
        self.stale = False
        """A write failed: what is stored may differ from `meta`."""

    # Life

    @property
    def ended(self) -> bool:
        """Deleted, whether or not forks keep what it held."""
        return self.meta.deleted or self.topic.deleted

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime(self.meta.ttl_s, self.meta.expires_at)

    def expires_ms(self) -> int | None:
        """When it is over, if nobody comes; None if never."""
        return self.lifetime.ends_ms(self.touched_ms)

    def expired(self, now_ms: int) -> bool:
        return self.lifetime.over(self.touched_ms, now_ms, in_use=self.readers > 0)

    def touch(self, now_ms: int) -> bool:
        """It was read or written; True if that should be saved."""
        self.touched_ms = max(self.touched_ms, now_ms)
        return self.lifetime.worth_saving(self.saved_touch_ms, now_ms)

    @property
    def pinned(self) -> int:
        """From where on its forks need its records; 0 if there are none."""
        return min((pin.floor for pin in self.pins.values()), default=0)

    # Positions

    @property
    def tail(self) -> StreamPlace:
        return StreamPlace(len(self.segments), self.topic.head)

    def at_end(self, place: StreamPlace) -> tuple[bool, bool]:
        """(whether `place` is the tail, whether nothing will ever follow it)."""
        at_tail = place == self.tail
        return at_tail, at_tail and self.meta.closed

    def offset_of(self, place: StreamPlace) -> Offset:
        """How a position is named to clients."""
        return offset_of(place, self.segments, self.topic.epoch)

    def place_of(self, offset: Offset | str | None) -> StreamPlace:
        """Where a position is; `InvalidRequest` if it is none of this stream."""
        return place_of(offset, self.segments, Offset(self.topic.epoch, self.topic.head))


def restored(topic: BackingTopic, stored: Mapping[str, bytes]) -> Stream:
    """A stream from what is stored of it."""
    meta = decode_meta(stored[META])
    touched_ms = max(meta.created_ms, topic.last_ts)
    if TOUCHED in stored:
        touched_ms = max(touched_ms, decode_touched(stored[TOUCHED]))
    touched_ms = Lifetime(meta.ttl_s).after_restart(touched_ms)
    pins = {
        int(name.removeprefix(PIN)): decode_pin(value)
        for name, value in stored.items()
        if name.startswith(PIN)
    }
    return Stream(meta, topic, touched_ms=touched_ms, pins=pins)

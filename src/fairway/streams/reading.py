"""Reading a stream: what follows a position, over everything it inherited, and waiting for more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import InvalidRequest
from fairway.runtime.clock import clock_of
from fairway.streams.content import piece_of
from fairway.streams.offset import StreamPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.streams.port import BackingTopics, TopicGap, TopicPage
    from fairway.streams.stream import Stream

PAGE_RECORDS: Final = 1000


class StreamChunk(NamedTuple):
    """What a reader at a position gets next."""

    begin: StreamPlace
    """Where the pieces begin: behind the gap, if there is one."""
    pieces: list[bytes]
    ends: list[StreamPlace]
    """Where each of the pieces ends."""
    end: StreamPlace
    """Where to read on."""
    gap: TopicGap | None = None
    """Records lost before these, against anybody's will."""


class StreamReader:
    """Reads streams."""

    def __init__(self, topics: BackingTopics, *, closing: Callable[[], bool]) -> None:
        """Nobody is kept waiting once it is `closing`."""
        self._topics = topics
        self._closing = closing
        self._clock = clock_of()

    async def read(self, stream: Stream, place: StreamPlace, max_bytes: int) -> StreamChunk:
        """What follows `place`: at least one record if there are any, up to so many bytes."""
        begin = place
        pieces: list[bytes] = []
        ends: list[StreamPlace] = []
        size = 0
        while place != stream.tail and size < max_bytes:
            page = await self._page(stream, place, max_bytes - size)
            if page.gap is not None and pieces:
                break  # it is reported at the start of the next chunk
            for record in page.records:
                pieces.append(piece_of(record.data, json=stream.json))
                ends.append(StreamPlace(place.segment, record.seq))
                size += len(record.data)
            before, place = place, StreamPlace(place.segment, page.next_seq)
            inherited = place.segment < len(stream.segments)
            if inherited and place.seq >= stream.segments[place.segment].upto:
                place = StreamPlace(place.segment + 1, 0)
            if page.gap is not None:
                begin = StreamPlace(before.segment, page.gap.last)
                return StreamChunk(begin, pieces, ends, place, page.gap)
            if place == before:
                break
        return StreamChunk(begin, pieces, ends, place)

    def about(self, stream: Stream, place: StreamPlace, max_bytes: int) -> int:
        """About how many bytes `read` would return. What was inherited may be any size."""
        if place.segment < len(stream.segments):
            return max_bytes
        return min(max_bytes, stream.topic.about_behind(place.seq))

    async def _page(self, stream: Stream, place: StreamPlace, max_bytes: int) -> TopicPage:
        if place.segment == len(stream.segments):
            return await stream.topic.page(place.seq, limit=PAGE_RECORDS, max_bytes=max_bytes)
        segment = stream.segments[place.segment]
        found = self._topics.find(segment.topic)
        if found is None or found.epoch != segment.epoch:
            raise InvalidRequest("what this stream inherited is gone", code="gone")
        return await found.page_as_of(segment, place.seq, limit=PAGE_RECORDS, max_bytes=max_bytes)

    async def wait_change(
        self, stream: Stream, place: StreamPlace, until_ns: int, gone: asyncio.Future[None]
    ) -> bool:
        """Wait for records after `place`, a close or the end; False if there were none."""
        while not self.changed(stream, place):
            left_ns = until_ns - self._clock.now_ns()
            if left_ns <= 0 or gone.done():
                return False
            # Asked for before it is looked at again: what lands in between resolves it.
            with stream.topic.change() as change:
                if not self.changed(stream, place):
                    await asyncio.wait(
                        [change, gone],
                        timeout=left_ns / 1e9,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
        return True

    def changed(self, stream: Stream, place: StreamPlace) -> bool:
        """Whether a reader at `place` need not wait: there are records, a close or the end."""
        return stream.ended or stream.meta.closed or self._closing() or place != stream.tail

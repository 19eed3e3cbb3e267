"""Reading a stream: what follows a position, over everything it inherited, and waiting for more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import InvalidRequest
from fairway.runtime.clock import clock_of
from fairway.server.streams.content import piece_of
from fairway.server.streams.stream import Place, Stream, as_of_fork
from fairway.topics.reading import about_behind

if TYPE_CHECKING:
    from fairway.topics.engine import Topics
    from fairway.topics.reading import Page
    from fairway.topics.topic import Gap

PAGE_RECORDS: Final = 1000


class Chunk(NamedTuple):
    """What a reader at a position gets next."""

    begin: Place
    """Where the pieces begin: behind the gap, if there is one."""
    pieces: list[bytes]
    ends: list[Place]
    """Where each of the pieces ends."""
    end: Place
    """Where to read on."""
    gap: Gap | None = None
    """Records lost before these, against anybody's will."""


class Reading:
    """Reads streams of one engine."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._clock = clock_of()

    async def read(self, stream: Stream, place: Place, max_bytes: int) -> Chunk:
        """What follows `place`: at least one record if there are any, up to so many bytes."""
        begin = place
        pieces: list[bytes] = []
        ends: list[Place] = []
        size = 0
        while place != stream.tail and size < max_bytes:
            page = await self._page(stream, place, max_bytes - size)
            if page.gap is not None and pieces:
                break  # told of at the start of the next chunk
            for record in page.records:
                pieces.append(piece_of(record.data, json=stream.json))
                ends.append(Place(place.segment, record.seq))
                size += len(record.data)
            before, place = place, Place(place.segment, page.next_seq)
            inherited = place.segment < len(stream.segments)
            if inherited and place.seq >= stream.segments[place.segment].upto:
                place = Place(place.segment + 1, 0)
            if page.gap is not None:
                begin = Place(before.segment, page.gap.last)
                return Chunk(begin, pieces, ends, place, page.gap)
            if place == before:
                break
        return Chunk(begin, pieces, ends, place)

    def about(self, stream: Stream, place: Place, max_bytes: int) -> int:
        """About how many bytes `read` would return. What was inherited may be any size."""
        if place.segment < len(stream.segments):
            return max_bytes
        return min(max_bytes, about_behind(stream.topic, place.seq, stream.topic.count))

    async def _page(self, stream: Stream, place: Place, max_bytes: int) -> Page:
        topic = stream.topic
        if place.segment == len(stream.segments):
            return await self._topics.reading.page(
                topic, place.seq, topic.head, PAGE_RECORDS, max_bytes
            )
        segment = stream.segments[place.segment]
        found = self._topics.find(segment.topic)
        if found is None or found.epoch != segment.epoch:
            raise InvalidRequest("what this stream inherited is gone", code="gone")
        past = as_of_fork(found, segment)
        return await self._topics.reading.page(
            past, place.seq, segment.upto, PAGE_RECORDS, max_bytes
        )

    async def wait_news(
        self, stream: Stream, place: Place, until_ns: int, gone: asyncio.Future[None]
    ) -> bool:
        """Wait for records after `place`, a close or the end; False if there were none."""
        while not self.news(stream, place):
            left_ns = until_ns - self._clock.now_ns()
            if left_ns <= 0 or gone.done():
                return False
            # Registered before it is looked at again: what lands in between resolves it.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            live = self._topics.live(stream.topic)
            live.waiters.append(waiter)
            try:
                if not self.news(stream, place):
                    await asyncio.wait(
                        [waiter, gone],
                        timeout=left_ns / 1e9,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
            finally:
                if waiter in live.waiters:
                    live.waiters.remove(waiter)
        return True

    def news(self, stream: Stream, place: Place) -> bool:
        """Whether a reader at `place` has anything to be told."""
        return stream.ended or stream.meta.closed or self._topics.closing or place != stream.tail

"""Appending to a stream: judged and queued in one step, and acknowledged when it is durable.

A verdict may depend on a write that is still under way: on a close, or on an append of the same
producer. Then that is waited for, so nobody is refused or told of success because of what may fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fairway.errors import InvalidRequest, NotFound
from fairway.server.streams.content import records_of
from fairway.server.streams.stored import META, encode_meta
from fairway.server.streams.stream import Denied, Place, Repeat, Stream
from fairway.topics.writing import NewBatch, Position
from fairway.wire.records import NO_RECORDS, Records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.server.streams.protocol import AppendRequest, Offset
    from fairway.topics.engine import Topics
    from fairway.topics.outcome import Appended

PRODUCER: Final = "ds:"
"""Before the names of producers, which share their place with those of routers."""


class Written(NamedTuple):
    """What became of an append."""

    verdict: Denied | Repeat | None
    offset: Offset
    """The tail after it."""
    known: tuple[int, int] | None
    """Where its producer was before."""


class Appending:
    """Appends to streams of one engine."""

    def __init__(self, topics: Topics, reload: Callable[[Stream], Awaitable[None]]) -> None:
        """`reload` brings a stream up to date of which a write has failed."""
        self._topics = topics
        self._reload = reload

    def content(self, stream: Stream, request: AppendRequest, body: bytes) -> Records:
        """The records of a body, if it is one that could be appended; else none."""
        if not body or stream.meta.closed or not stream.takes(request.content_type):
            return NO_RECORDS
        content = records_of(body, json=stream.json)
        if not content.count:
            raise InvalidRequest("an empty array appends nothing")
        return content

    async def append(
        self,
        stream: Stream,
        request: AppendRequest,
        content: Records,
        *,
        empty: bool,
        trace: str | None = None,
    ) -> Written:
        """Append content, close the stream, or both; all of it or nothing."""
        self._topics.check_admits()
        producer, topic, writing = request.producer, stream.topic, self._topics.writing
        new = NewBatch(records=content, trace=trace)
        name = PRODUCER + producer.id if producer is not None else ""
        known: tuple[int, int] | None = None
        while True:
            if stream.stale:
                await self._reload(stream)
            if producer is not None:
                known = await writing.position_of(topic, name)
            if topic.weak or topic.capped:
                await writing.prepare(topic, new)
            # One step from here to the queue: nothing is appended between the verdict and this.
            if stream.ended:
                raise NotFound("stream", stream.meta.path)
            live = self._topics.live(topic)
            live.settle()
            if live.producers.get(name) != known:
                continue  # another append was quicker, or has just failed
            verdict = stream.judge(request, known, empty=empty)
            blocker = stream.blocker(producer, verdict)
            if blocker is None:
                break
            await asyncio.wait([blocker])
        if verdict is not None:
            return Written(verdict, stream.offset_of(stream.tail), known)
        return Written(None, await asyncio.shield(self._enqueue(stream, request, new)), known)

    def _enqueue(
        self, stream: Stream, request: AppendRequest, new: NewBatch
    ) -> asyncio.Future[Offset]:
        meta, producer, topic = stream.after(request), request.producer, stream.topic
        extra = {META: encode_meta(meta)} if meta is not stream.meta else {}
        position = None
        if producer is not None:
            position = Position(PRODUCER + producer.id, producer.epoch, producer.seq)
        told: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()

        def settle(done: asyncio.Future[Appended] | asyncio.Future[None]) -> None:
            stream.wrote(told, request)
            error = done.exception()
            if error is not None:
                stream.stale = True
                told.set_exception(error)
                told.exception()  # whoever asked may be gone
                return
            if request.closes:
                # Only now: what is seen is durable.
                stream.meta = stream.after(request)
                if topic.live is not None:
                    self._topics.delivery.wake(topic.live)
            answer = done.result()
            seq = answer.last_seq if answer is not None else topic.head
            told.set_result(stream.offset_of(Place(len(stream.segments), seq)))

        if new.records.count:
            new = msgspec.structs.replace(new, position=position, extra=extra)
            self._topics.writing.enqueue(topic, new).add_done_callback(settle)
        else:
            written = self._topics.writing.enqueue_meta(topic, extra, position)
            written.add_done_callback(settle)
        if not request.closes:
            stream.meta = meta
        stream.writing(told, request)
        return told

"""Appending to a stream: judged and queued in one step, and acknowledged when it is durable.

A verdict may depend on a write that is still under way: on a close, or on an append of the same
producer. Then that is waited for, so nobody is refused or told of success because of what may fail.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import InvalidRequest, NotFound
from fairway.runtime.completion import fail
from fairway.runtime.shielded import shielded
from fairway.streams.content import records_of, same_type
from fairway.streams.offset import StreamPlace
from fairway.streams.stored import META, encode_meta
from fairway.streams.verdict import after, judge
from fairway.wire.records import NO_RECORDS, Records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.streams.offset import Offset
    from fairway.streams.requests import StreamAppend
    from fairway.streams.stream import Stream
    from fairway.streams.verdict import Verdict

PRODUCER: Final = "ds:"
"""Before the names of producers, which share their place with those of routers."""


class StreamAppended(NamedTuple):
    """What became of an append."""

    verdict: Verdict
    offset: Offset
    """The tail after it."""
    known: tuple[int, int] | None
    """Where its producer was before."""


class StreamAppender:
    """Appends to streams."""

    def __init__(
        self, *, check_admits: Callable[[], None], reload: Callable[[Stream], Awaitable[None]]
    ) -> None:
        """`reload` brings a stream up to date of which a write has failed."""
        self._check_admits = check_admits
        self._reload = reload

    def content(self, stream: Stream, request: StreamAppend, body: bytes) -> Records:
        """The records of a body, if it is one that could be appended; else none."""
        meta = stream.meta
        if not body or meta.closed or not same_type(request.content_type, meta.content_type):
            return NO_RECORDS
        content = records_of(body, json=stream.json)
        if not content.count:
            raise InvalidRequest("an empty array appends nothing")
        return content

    async def append(
        self,
        stream: Stream,
        request: StreamAppend,
        content: Records,
        *,
        empty: bool,
        trace: str | None = None,
    ) -> StreamAppended:
        """Append content, close the stream, or both; all of it or nothing."""
        self._check_admits()
        producer, topic = request.producer, stream.topic
        name = PRODUCER + producer.id if producer is not None else ""
        known: tuple[int, int] | None = None
        while True:
            if stream.stale:
                await self._reload(stream)
            if producer is not None:
                known = await topic.position_of(name)
            await topic.prepare(content)
            # One step from here to the queue: nothing is appended between the verdict and this.
            if stream.ended:
                raise NotFound("stream", stream.meta.path)
            if topic.queued_position_of(name) != known:
                continue  # another append was quicker, or has just failed
            verdict = judge(stream.meta, request, known, empty=empty)
            blocker = stream.pending.blocker(producer, verdict)
            if blocker is None:
                break
            await asyncio.wait([blocker])
        if verdict is not None:
            return StreamAppended(verdict, stream.offset_of(stream.tail), known)
        queued = self._submit(stream, request, content, trace)
        return StreamAppended(None, await shielded(queued), known)

    def _submit(
        self, stream: Stream, request: StreamAppend, content: Records, trace: str | None
    ) -> asyncio.Future[Offset]:
        producer, topic, meta = request.producer, stream.topic, after(stream.meta, request)
        write: asyncio.Future[Offset] = asyncio.get_running_loop().create_future()

        def on_done(last_seq: int | None, error: BaseException | None) -> None:
            stream.pending.ended(write, request)
            if error is not None:
                stream.stale = True
                fail(write, error)
                return
            assert last_seq is not None
            if request.closes:
                # Only now: what is seen is durable.
                stream.meta = after(stream.meta, request)
                topic.wake()
            write.set_result(stream.offset_of(StreamPlace(len(stream.segments), last_seq)))

        topic.submit(
            content,
            on_done,
            meta={META: encode_meta(meta)} if meta is not stream.meta else {},
            position=(PRODUCER + producer.id, producer.epoch, producer.seq) if producer else None,
            trace=trace,
        )
        if not request.closes:
            stream.meta = meta
        stream.pending.began(write, request)
        return write

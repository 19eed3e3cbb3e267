"""Streams kept as topics: found, made, forked, deleted.

A stream's metadata is stored in its topic's own operations, with the records they belong to or
alone. A fork and its source are two topics and cannot be changed together, so the order is one
that a crash makes harmless: the source is pinned before the fork exists, and let go once it is
gone, whoever deleted it: as a stream or as a topic. A pin without a fork is found and dropped when
the source is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from fairway.errors import Conflict, FairwayError, InvalidRequest, NotFound, OutcomeUnknown
from fairway.streams.content import is_json, records_of
from fairway.streams.creation import check_same, content_type_of, meta_of
from fairway.streams.forks import forked_at
from fairway.streams.paths import topic_name
from fairway.streams.pins import ForkPins
from fairway.streams.stored import META, TOUCHED, decode_meta, encode_meta, encode_touched
from fairway.streams.stream import Stream, restored
from fairway.wire.records import NO_RECORDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from fairway.runtime.clock import Clock
    from fairway.streams.forks import Inheritance
    from fairway.streams.port import BackingTopic, BackingTopics
    from fairway.streams.requests import StreamCreate

logger = logging.getLogger("fairway.streams")


class NewStream(NamedTuple):
    """A stream to be made, with what it begins with and whose it is."""

    path: str
    request: StreamCreate
    body: bytes
    owner: str
    trace: str | None


class StreamStore:
    """Every stream of one app."""

    def __init__(
        self,
        topics: BackingTopics,
        clock: Clock,
        *,
        check_admits: Callable[[], None],
        start: Callable[[Coroutine[Any, Any, None]], None],
        loaded: Callable[[Stream], None],
    ) -> None:
        """`start` runs what follows from a deletion beside it; `loaded` is called with each
        stream that is made or found for the first time."""
        self._topics = topics
        self._clock = clock
        self._check_admits = check_admits
        self._start = start
        self._loaded = loaded
        self._streams: dict[str, Stream] = {}
        self._pins = ForkPins(topics)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Stream]:
        """The streams that somebody has asked for, by now."""
        return iter(list(self._streams.values()))

    # Finding

    async def find(self, path: str) -> Stream | None:
        """The stream at `path`, perhaps a deleted one that its forks still need; or None."""
        name = topic_name(path)
        topic = self._topics.find(name)
        if topic is None:
            return None
        stream = self._streams.get(name)
        if stream is None or stream.topic.epoch != topic.epoch:
            stream = await self._load(topic)
            if stream is None:
                return None
        elif stream.stale:
            await self.reload(stream)
        if stream.meta.deleted or stream.expired(self.now_ms()):
            async with self._locked(path):
                return stream if await self._end(stream) else None
        return stream

    async def get(self, path: str) -> Stream:
        """The stream at `path`; raises `NotFound`, or `InvalidRequest` with code `gone`."""
        stream = await self.find(path)
        if stream is None:
            raise NotFound("stream", path)
        if stream.meta.deleted:
            raise InvalidRequest(f"stream {path!r} was deleted, its forks live on", code="gone")
        return stream

    async def _load(self, topic: BackingTopic) -> Stream | None:
        stored = await topic.meta(META)
        stream = self._streams.get(topic.name)
        if stream is not None and stream.topic.epoch == topic.epoch:
            return stream  # somebody else was faster, and there is only one of each
        if META not in stored or topic.deleted:
            return None
        stream = restored(topic, stored)
        self._register(stream)
        loose = await self._pins.loose(stream)
        if loose:
            async with self._locked(stream.meta.path):
                for epoch in loose:
                    await self._pins.unpin(stream, epoch)
        return stream

    async def reload(self, stream: Stream) -> None:
        """A write failed, perhaps half-way: take what is stored for true."""
        if stream.pending.last is not None:
            await asyncio.wait([stream.pending.last])  # else what it changes would be missed
        stored = await stream.topic.meta(META)
        if stream.stale and META in stored:
            stream.meta = decode_meta(stored[META])
            stream.stale = False
            stream.topic.wake()

    def _register(self, stream: Stream) -> None:
        self._streams[stream.topic.name] = stream
        self._pins.found(stream)
        self._loaded(stream)

    @asynccontextmanager
    async def _locked(self, *paths: str) -> AsyncIterator[None]:
        """Nobody else makes, deletes or forks these streams meanwhile."""
        async with AsyncExitStack() as stack:
            for path in sorted(set(paths)):  # in one order, or two could wait for each other
                lock = self._locks.setdefault(path, asyncio.Lock())
                await stack.enter_async_context(lock)
            yield

    # Making

    async def create(
        self,
        path: str,
        request: StreamCreate,
        body: bytes,
        *,
        owner: str = "",
        trace: str | None = None,
    ) -> tuple[Stream, bool]:
        """Make a stream, or find that it is there as asked for; True if it was made.

        Raises `Conflict` if another one is there, `NotFound` for a source that is not.
        """
        self._check_admits()
        await self.find(path)  # what is over is removed before the path is locked
        source = await self.find(request.source) if request.source is not None else None
        paths = (path,) if request.source is None else (path, request.source)
        async with self._locked(*paths):
            existing = self._streams.get(topic_name(path))
            if existing is not None and not existing.topic.deleted:
                check_same(existing.meta, request)
                return existing, False
            wanted = NewStream(path, request, body, owner, trace)
            if request.source is None:
                return await self._make(wanted), True
            if source is None or source.topic.deleted:
                raise NotFound("stream", request.source)
            inherited = await forked_at(self._topics, source, request)
            return await self._make_fork(wanted, inherited), True

    async def _make(self, wanted: NewStream, inherited: Inheritance | None = None) -> Stream:
        path, request, body, owner, trace = wanted
        kind = content_type_of(request, inherited)
        prefix = inherited.prefix if inherited is not None else ()
        content = records_of(body, json=is_json(kind), prefix=prefix)
        topic, made = await self._topics.create(topic_name(path), owner=owner)
        if not made and topic.head:
            raise Conflict(f"topic {topic.name!r} holds other records", code="stream_exists")
        now_ms = self.now_ms()
        meta = meta_of(path, request, inherited, now_ms)
        try:
            if inherited is not None:
                await self._pins.pin(inherited.source, topic, inherited.floor)
            first = topic.append(content, meta={META: encode_meta(meta)}, trace=trace)
            await asyncio.shield(first)
        except OutcomeUnknown:
            raise  # it may be there: whoever looks for it next will see
        except FairwayError:
            if made:
                await self._topics.delete(topic.name)
            raise
        stream = Stream(meta, topic, touched_ms=now_ms)
        if not topic.deleted:  # else it was deleted as a topic already
            self._register(stream)
        return stream

    # Forks hold on to their source

    async def _make_fork(self, wanted: NewStream, inherited: Inheritance) -> Stream:
        source = inherited.source
        # Held from this moment on, though not durably yet: it could be trimmed before it is.
        source.topic.hold(inherited.floor)
        try:
            return await self._make(wanted, inherited)
        except FairwayError:
            for epoch in await self._pins.loose(source):
                await self._pins.unpin(source, epoch)
            source.topic.hold_only(source.pinned)
            raise

    async def _let_go(self, source: Stream, epoch: int) -> None:
        """The fork of that epoch is gone: its source need not keep anything for it."""
        path = source.meta.path
        try:
            async with self._locked(path):
                if epoch in source.pins and not source.topic.deleted:
                    await self._pins.unpin(source, epoch)
            await self.find(path)  # which ends it if this was all it lived for
        except FairwayError as error:  # the next start finds the loose end
            logger.warning("stream %s is still held by a fork: %s", path, error)

    # Ending

    async def delete(self, path: str) -> None:
        """Delete a stream; one with forks stays stored for them, and its path is taken."""
        await self.get(path)
        async with self._locked(path):
            stream = self._streams.get(topic_name(path))
            if stream is None or stream.ended:
                raise NotFound("stream", path)
            await self._end(stream, now=True)

    async def _end(self, stream: Stream, *, now: bool = False) -> bool:
        """End a stream that is over, or `now`; False if nothing is left of it.

        Its path is locked. A source that lived only for this fork ends with it, a little later.
        """
        if stream.pending.closing is not None:
            await asyncio.wait([stream.pending.closing])
        if stream.topic.deleted:
            return False
        meta = stream.meta
        if not (now or meta.deleted or stream.expired(self.now_ms())):
            return True
        if stream.pins:
            if not meta.deleted:
                await self._mark_deleted(stream)
            return True
        await self._topics.delete(stream.topic.name)
        return False

    def forget(self, name: str, epoch: int) -> None:
        """A topic is gone, and its stream with it; if that was a fork, its source is let go."""
        stream = self._streams.get(name)
        if stream is not None and stream.topic.epoch == epoch:  # else another one has its path
            del self._streams[name]
        source = self._pins.gone(epoch)
        if source is not None:
            self._start(self._let_go(source, epoch))

    async def _mark_deleted(self, stream: Stream) -> None:
        stream.meta = msgspec.structs.replace(stream.meta, deleted=True)
        meta = {META: encode_meta(stream.meta)}
        try:
            await asyncio.shield(stream.topic.append(NO_RECORDS, meta=meta))
        except FairwayError:
            stream.stale = True
            raise
        stream.topic.wake()

    # Using

    def touch(self, stream: Stream) -> None:
        """It was used: its time to live begins anew."""
        now_ms = self.now_ms()
        stream.topic.touch()
        if not stream.touch(now_ms) or stream.ended:
            return
        stream.saved_touch_ms = now_ms
        try:
            stream.topic.note({TOUCHED: encode_touched(now_ms)})
        except FairwayError as error:
            logger.info("the last use of stream %s was not saved: %s", stream.meta.path, error)

    @contextmanager
    def read_live(self, stream: Stream) -> Iterator[None]:
        """A stream is in use, and not idle, for as long as somebody follows it."""
        stream.readers += 1
        try:
            yield
        finally:
            stream.readers -= 1
            self.touch(stream)

    def now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000

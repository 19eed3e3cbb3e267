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
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from fairway.errors import Conflict, FairwayError, InvalidRequest, NotFound, OutcomeUnknown
from fairway.runtime.clock import clock_of
from fairway.server.streams.appending import Appending
from fairway.server.streams.content import records_of
from fairway.server.streams.forks import Inheritance, forked_at
from fairway.server.streams.protocol import JSON, OCTETS, media_type, topic_name
from fairway.server.streams.reading import Reading
from fairway.server.streams.stored import (
    META,
    PIN,
    TOUCHED,
    VERSION,
    Pin,
    StreamMeta,
    decode_meta,
    decode_pin,
    encode_meta,
    encode_pin,
)
from fairway.server.streams.stream import TOUCH_SHARE, Stream
from fairway.storage.writer import Durability
from fairway.topics import names
from fairway.topics.writing import NewBatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from fairway.server.streams.protocol import CreateRequest
    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic

logger = logging.getLogger("fairway.streams")


class Wanted(NamedTuple):
    """A stream to be made, with what it begins with and whose it is."""

    path: str
    request: CreateRequest
    body: bytes
    owner: str
    trace: str | None


class Streams:
    """Every stream of one topics engine."""

    def __init__(self, topics: Topics, *, loaded: Callable[[Stream], None] | None = None) -> None:
        """`loaded` is told of each stream that is made or found for the first time."""
        self.topics = topics
        self.reading = Reading(topics)
        self.appending = Appending(topics, self._reload)
        self._loaded = loaded if loaded is not None else lambda _: None
        self._clock = clock_of()
        self._streams: dict[str, Stream] = {}
        self._sources: dict[int, Stream] = {}
        """What each fork holds on to, by the epoch of the fork's topic."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        topics.deleted.append(self._forget)

    # Finding

    async def find(self, path: str) -> Stream | None:
        """The stream at `path`, perhaps a deleted one that its forks still need; or None."""
        name = topic_name(path)
        topic = self.topics.find(name)
        if topic is None:
            return None
        stream = self._streams.get(name)
        if stream is None or stream.topic is not topic:
            stream = await self._load(topic)
            if stream is None:
                return None
        elif stream.stale:
            await self._reload(stream)
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

    async def _load(self, topic: Topic) -> Stream | None:
        stored = await self.topics.extras(topic, META)
        stream = self._streams.get(topic.name)
        if stream is not None and stream.topic is topic:
            return stream  # somebody else was faster, and there is only one of each
        if META not in stored or topic.epoch < 0:
            return None
        stream = restored(topic, stored)
        self._register(stream)
        loose = [
            epoch
            for epoch, pin in list(stream.pins.items())
            if not await self._is_fork(pin.topic, epoch)
        ]
        if loose:
            async with self._locked(stream.meta.path):
                for epoch in loose:
                    await self._unpin(stream, epoch)
        return stream

    async def _reload(self, stream: Stream) -> None:
        """A write failed, perhaps half-way: take what is stored for true."""
        if stream.last_write is not None:
            await asyncio.wait([stream.last_write])  # else what it changes would be missed
        stored = await self.topics.extras(stream.topic, META)
        if stream.stale and META in stored:
            stream.meta = decode_meta(stored[META])
            stream.stale = False
            self._wake(stream)

    async def _is_fork(self, name: str, epoch: int) -> bool:
        topic = self.topics.find(name)
        if topic is None or topic.epoch != epoch:
            return False
        return META in await self.topics.extras(topic, META)

    def _register(self, stream: Stream) -> None:
        self._streams[stream.topic.name] = stream
        self._sources.update(dict.fromkeys(stream.pins, stream))
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
        request: CreateRequest,
        body: bytes,
        *,
        owner: str = "",
        trace: str | None = None,
    ) -> tuple[Stream, bool]:
        """Make a stream, or find that it is there as asked for; True if it was made.

        Raises `Conflict` if another one is there, `NotFound` for a source that is not.
        """
        self.topics.check_admits()
        await self.find(path)  # what is over is removed before the path is locked
        source = await self.find(request.source) if request.source is not None else None
        paths = (path,) if request.source is None else (path, request.source)
        async with self._locked(*paths):
            existing = self._streams.get(topic_name(path))
            if existing is not None and existing.topic.epoch >= 0:
                return self._same(existing, request), False
            wanted = Wanted(path, request, body, owner, trace)
            if request.source is None:
                return await self._make(wanted), True
            if source is None or source.topic.epoch < 0:
                raise NotFound("stream", request.source)
            inherited = await forked_at(self.topics, source, request)
            return await self._make_fork(wanted, inherited), True

    def _same(self, existing: Stream, request: CreateRequest) -> Stream:
        path = existing.meta.path
        if existing.meta.deleted:
            raise Conflict(f"stream {path!r} was deleted, its forks live on", code="stream_forked")
        if not existing.same_as(request):
            raise Conflict(f"another stream is at {path!r} already", code="stream_exists")
        return existing

    async def _make(self, wanted: Wanted, inherited: Inheritance | None = None) -> Stream:
        path, request, body, owner, trace = wanted
        kind = request.content_type or OCTETS
        lifetime = request.lifetime
        prefix: tuple[bytes, ...] = ()
        if inherited is not None:
            kind = request.content_type or inherited.source.meta.content_type
            lifetime, prefix = inherited.lifetime, inherited.prefix
        content = records_of(body, json=media_type(kind) == JSON, prefix=prefix)
        topic, made = await self.topics.create(topic_name(path), owner=owner)
        if not made and topic.head:
            raise Conflict(f"topic {topic.name!r} holds other records", code="stream_exists")
        now_ms = self.now_ms()
        meta = StreamMeta(
            VERSION,
            path,
            kind,
            now_ms,
            lifetime.ttl_s,
            lifetime.expires_at,
            inherited.fork if inherited is not None else None,
            request.closed,
        )
        try:
            if inherited is not None:
                await self._pin(inherited.source, topic, inherited.floor)
            await self._write_first(topic, meta, NewBatch(records=content, trace=trace))
        except OutcomeUnknown:
            raise  # it may be there: whoever looks for it next will see
        except FairwayError:
            if made:
                await self.topics.delete(topic.name)
            raise
        stream = Stream(meta, topic, touched_ms=now_ms)
        if topic.epoch >= 0:  # else it was deleted as a topic already
            self._register(stream)
        return stream

    async def _write_first(self, topic: Topic, meta: StreamMeta, new: NewBatch) -> None:
        extra = {META: encode_meta(meta)}
        writing = self.topics.writing
        if new.records.count:
            new = msgspec.structs.replace(new, extra=extra)
            await asyncio.shield(writing.append(topic, new))
        else:
            await asyncio.shield(writing.enqueue_meta(topic, extra))

    # Forks hold on to their source

    async def _make_fork(self, wanted: Wanted, inherited: Inheritance) -> Stream:
        source = inherited.source
        # Held from this moment on, though not durably yet: it could be trimmed before it is.
        source.topic.pin = min(source.topic.pin or inherited.floor, inherited.floor)
        try:
            return await self._make(wanted, inherited)
        except FairwayError:
            for epoch, pin in list(source.pins.items()):
                if not await self._is_fork(pin.topic, epoch):
                    await self._unpin(source, epoch)
            source.topic.pin = source.pinned
            raise

    async def _pin(self, source: Stream, topic: Topic, floor: int) -> None:
        pin = Pin(topic.name, floor)
        source.pins[topic.epoch] = pin
        self._sources[topic.epoch] = source
        extra = {f"{PIN}{topic.epoch}": encode_pin(pin)}
        await self.topics.pin(source.topic, source.pinned, extra)

    async def _unpin(self, source: Stream, epoch: int) -> None:
        source.pins.pop(epoch, None)
        self._sources.pop(epoch, None)
        await self.topics.pin(source.topic, source.pinned, {f"{PIN}{epoch}": None})

    async def _let_go(self, source: Stream, epoch: int) -> None:
        """The fork of that epoch is gone: its source need not keep anything for it."""
        path = source.meta.path
        try:
            async with self._locked(path):
                if epoch in source.pins and source.topic.epoch >= 0:
                    await self._unpin(source, epoch)
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
        if stream.closing is not None:
            await asyncio.wait([stream.closing])
        epoch, meta = stream.topic.epoch, stream.meta
        if epoch < 0 or not (now or meta.deleted or stream.expired(self.now_ms())):
            return epoch >= 0
        if stream.pins:
            if not meta.deleted:
                await self._mark_deleted(stream)
            return True
        await self.topics.delete(stream.topic.name)
        return False

    def _forget(self, topic: Topic) -> None:
        """A topic is gone, and its stream with it; if that was a fork, its source is let go."""
        stream = self._streams.get(topic.name)
        if stream is not None and stream.topic is topic:  # else another one has its path by now
            del self._streams[topic.name]
        epoch = abs(topic.epoch)
        # A fork that nobody has asked for since the start is not among the streams, but here.
        source = self._sources.pop(epoch, None)
        if source is not None and not self.topics.closing:
            self.topics.start(self._let_go(source, epoch))

    async def _mark_deleted(self, stream: Stream) -> None:
        stream.meta = msgspec.structs.replace(stream.meta, deleted=True)
        extra = {META: encode_meta(stream.meta)}
        try:
            await asyncio.shield(self.topics.writing.enqueue_meta(stream.topic, extra))
        except FairwayError:
            stream.stale = True
            raise
        self._wake(stream)

    # Small things

    def touch(self, stream: Stream) -> None:
        """It was used: its time to live begins anew."""
        now_ms = self.now_ms()
        self.topics.delivery.touch(stream.topic)
        if not stream.touch(now_ms) or stream.ended:
            return
        stream.saved_touch_ms = now_ms
        extra = {TOUCHED: names.encode_number(now_ms)}
        try:
            self.topics.writing.enqueue_meta(stream.topic, extra, durability=Durability.DISK)
        except FairwayError as error:
            logger.info("the last use of stream %s was not saved: %s", stream.meta.path, error)

    def _wake(self, stream: Stream) -> None:
        if stream.topic.live is not None:
            self.topics.delivery.wake(stream.topic.live)

    def now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000


def restored(topic: Topic, stored: Mapping[str, bytes]) -> Stream:
    """A stream from what is stored of it."""
    meta = decode_meta(stored[META])
    touched_ms = max(meta.created_ms, topic.last_ts)
    if TOUCHED in stored:
        touched_ms = max(touched_ms, names.decode_number(stored[TOUCHED]))
    # It may have been used since then without that being saved: never expire it too early.
    touched_ms += (meta.ttl_s or 0) * 1000 // TOUCH_SHARE
    pins = {
        int(name.removeprefix(PIN)): decode_pin(value)
        for name, value in stored.items()
        if name.startswith(PIN)
    }
    return Stream(meta, topic, touched_ms=touched_ms, pins=pins)

"""Durable Streams over HTTP: a bare ASGI app for everything under `/v1/stream/`.

Each request is parsed, judged by the part and answered; a live reader is one task that reads,
sends and waits. Who asks, and from which origin, is decided in front of this; what they may touch
and use up is asked of their identity and of the meter.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, nullcontext
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol

from fairway.errors import FairwayError, InvalidRequest
from fairway.runtime.clock import clock_of
from fairway.server.access.auth import ANYONE
from fairway.server.fronts.streams.answers import (
    CLOSED,
    IMMUTABLE,
    NO_STORE,
    PREFLIGHT,
    REVALIDATE,
    UP_TO_DATE,
    append_reply,
    bounded_body,
    described,
    gap_headers,
    location,
    lost_reply,
    next_offset,
    respond,
)
from fairway.server.fronts.streams.live import StreamEvents, StreamsFrontConfig
from fairway.server.fronts.streams.protocol import (
    METHODS,
    etag,
    matches,
    next_cursor,
    parse_append,
    parse_create,
    parse_read,
    stream_path,
)
from fairway.server.http.exchange import UNCOUNTED, Disconnected, Reply, Request
from fairway.server.http.problems import problem, reply
from fairway.streams.content import OCTETS, is_json, joined, records_of
from fairway.streams.offset import NOW, START
from fairway.streams.paths import resource_name, topic_name
from fairway.wire.records import NO_RECORDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.server.access.auth import Identity
    from fairway.server.fronts.streams.answers import Headers
    from fairway.server.fronts.streams.protocol import ReadRequest
    from fairway.server.http.exchange import Receive, Scope, Send
    from fairway.server.http.large_pages import LargePages
    from fairway.streams.engine import Streams
    from fairway.streams.offset import StreamPlace
    from fairway.streams.requests import StreamCreate
    from fairway.streams.stream import Stream
    from fairway.wire.records import Records

IN_PLENTY: Final = nullcontext()
"""Room for an answer where nobody counts."""
IDENTITY: Final = "fairway.identity"
"""Where the server leaves, in the scope, who asks."""


class Meter(Protocol):
    """Counts what a key uses up. `charge` and `connect` raise `Throttled`.

    What `connect` returns is given to `disconnect`; `end` is called if the key stops being good.
    """

    def charge(self, identity: Identity, topic: str, *, records: int, size: int) -> None: ...
    def connect(self, identity: Identity, end: Callable[[FairwayError], None]) -> Any: ...
    def disconnect(self, open_stream: Any) -> None: ...


class StreamsApp:
    """The ASGI app."""

    def __init__(
        self,
        streams: Streams,
        *,
        config: StreamsFrontConfig | None = None,
        meter: Meter | None = None,
        pages: LargePages | None = None,
        random: Random | None = None,
    ) -> None:
        self._streams = streams
        self._config = config or StreamsFrontConfig()
        self._meter = meter
        self._pages = pages
        self._random = random or Random()
        self._clock = clock_of()
        self._routes: dict[str, Callable[[Request, str], Awaitable[Reply]]] = {
            "PUT": self._put,
            "POST": self._post,
            "HEAD": self._head,
            "DELETE": self._delete,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "streams speak HTTP only"
        request = Request(scope, receive)
        request.identity = scope.get(IDENTITY, ANYONE)
        try:
            if request.method == "GET":
                await self._get(request, receive, send)
            else:
                answer = await self._answer(request)
                await respond(send, answer, head_only=request.method == "HEAD")
        except Disconnected:
            return
        except FairwayError as error:
            await respond(send, problem(error), head_only=request.method == "HEAD")

    async def _answer(self, request: Request) -> Reply:
        if request.method == "OPTIONS":
            return PREFLIGHT
        route = self._routes.get(request.method)
        if route is None:
            allow = (b"allow", METHODS.encode())
            return reply(405, "method_not_allowed", f"a stream takes {METHODS}", headers=(allow,))
        return await route(request, stream_path(request.path))

    # Writing

    async def _put(self, request: Request, path: str) -> Reply:
        identity = request.identity
        identity.require("write", resource_name(path))
        asked = parse_create(request.headers)
        if asked.source is not None:
            identity.require("read", resource_name(asked.source))
        body = await bounded_body(request)
        if self._meter is not None:
            content = await self._first_content(path, asked, body)
            self._meter.charge(
                identity, topic_name(path), records=content.count, size=len(content.raw)
            )
        stream, made = await self._streams.store.create(
            path, asked, body, owner=identity.name, trace=request.trace
        )
        headers = described(stream)
        if made:
            headers.append((b"location", location(request)))
        return Reply(201 if made else 200, b"", tuple(headers))

    async def _first_content(self, path: str, asked: StreamCreate, body: bytes) -> Records:
        """What a stream would begin with, if it is to be made; nothing if it is there."""
        store, kind = self._streams.store, asked.content_type
        if not body or await store.find(path) is not None:
            return NO_RECORDS
        if kind is None and asked.source is not None:
            source = await store.find(asked.source)
            kind = source.meta.content_type if source is not None else None
        return records_of(body, json=is_json(kind or OCTETS))

    async def _post(self, request: Request, path: str) -> Reply:
        request.identity.require("write", resource_name(path))
        asked = parse_append(request.headers)
        body = await bounded_body(request)
        streams = self._streams
        stream = await streams.store.get(path)
        if not body and not asked.closes:
            raise InvalidRequest("an append has a body, unless it only closes the stream")
        if body and asked.content_type is None:
            raise InvalidRequest("an append names its Content-Type")
        content = streams.appending.content(stream, asked, body)
        if self._meter is not None:
            self._meter.charge(
                request.identity,
                stream.topic.name,
                records=content.count,
                size=len(content.raw),
            )
        written = await streams.appending.append(
            stream, asked, content, empty=not body, trace=request.trace
        )
        streams.store.touch(stream)
        return append_reply(stream, asked, written, empty=not body)

    async def _delete(self, request: Request, path: str) -> Reply:
        request.identity.require("delete", resource_name(path))
        await self._streams.store.delete(path)
        return Reply(204, b"", ())

    # Reading

    async def _head(self, request: Request, path: str) -> Reply:
        request.identity.require("read", resource_name(path))
        stream = await self._streams.store.get(path)
        headers = [*described(stream), NO_STORE]
        if stream.meta.ttl_s is not None:
            headers.append((b"stream-ttl", b"%d" % stream.meta.ttl_s))
        if stream.meta.expires_at is not None:
            headers.append((b"stream-expires-at", stream.meta.expires_at.encode()))
        return Reply(200, b"", tuple(headers))

    async def _get(self, request: Request, receive: Receive, send: Send) -> None:
        path = stream_path(request.path)
        request.identity.require("read", resource_name(path))
        asked = parse_read(request.scope["query_string"])
        streams = self._streams
        stream = await streams.store.get(path)
        place = stream.place_of(asked.offset)
        streams.store.touch(stream)
        if asked.live is None:
            await respond(send, await self._chunk(request, stream, place, asked))
            return
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with ExitStack() as leaving:
            if self._meter is not None:
                open_stream = self._meter.connect(request.identity, partial(turn_away, gone))
                leaving.callback(self._meter.disconnect, open_stream)
            went_live(
                request, lasts=asked.live == "sse" or not streams.reading.changed(stream, place)
            )
            leaving.enter_context(streams.store.read_live(stream))
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(wait_gone(receive, gone), name="stream-reader")
                try:
                    if asked.live == "sse":
                        events = StreamEvents(streams, stream, gone, send, self._config)
                        await events.run(place, asked, lambda: self._cursor(asked))
                    else:
                        answer = await self._long_poll(request, stream, place, asked, gone)
                        await respond(send, answer)
                except FairwayError as error:  # in here: a group would wrap it
                    await respond(send, problem(error))
                listening.cancel()

    async def _chunk(
        self, request: Request, stream: Stream, place: StreamPlace, asked: ReadRequest
    ) -> Reply:
        reading, size = self._streams.reading, self._config.chunk_bytes
        with self._pages.reserve(reading.about(stream, place, size)) if self._pages else IN_PLENTY:
            chunk = await reading.read(stream, place, size)
        end = stream.offset_of(chunk.end)
        at_tail, closed = stream.at_end(chunk.end)
        headers: Headers = [next_offset(end)]
        if chunk.gap is not None:
            if asked.offset not in (None, START, NOW):
                return lost_reply(chunk.gap, stream.offset_of(chunk.begin))
            headers += gap_headers(chunk.gap)
        if at_tail:
            headers.append(UP_TO_DATE)
        if closed:
            headers.append(CLOSED)
        elif asked.live is not None:
            headers.append((b"stream-cursor", self._cursor(asked).encode()))
        if asked.offset == NOW:
            headers.append(NO_STORE)
        else:
            tag = etag(
                stream.topic.epoch,
                stream.offset_of(place),
                end,
                records=len(chunk.pieces),
                lost_to=chunk.gap.last if chunk.gap is not None else 0,
                at_tail=at_tail,
                closed=closed,
            )
            # A range that ended before the tail never grows; at the tail there is soon more.
            headers += ((b"etag", tag.encode()), REVALIDATE if at_tail else IMMUTABLE)
            if matches(request.headers.get(b"if-none-match"), tag):
                return Reply(304, b"", tuple(headers))
        headers.append((b"content-type", stream.meta.content_type.encode("latin-1")))
        return Reply(200, joined(chunk.pieces, json=stream.json), tuple(headers))

    async def _long_poll(
        self,
        request: Request,
        stream: Stream,
        place: StreamPlace,
        asked: ReadRequest,
        gone: asyncio.Future[None],
    ) -> Reply:
        streams = self._streams
        until_ns = self._clock.now_ns() + self._config.long_poll_ns
        await streams.reading.wait_change(stream, place, until_ns, gone)
        if gone.done():
            gone.result()  # raises why it was turned away, if it was
        if await streams.store.get(stream.meta.path) is not stream:
            raise InvalidRequest("the stream was deleted, and another one made", code="gone")
        if place != stream.tail:
            return await self._chunk(request, stream, place, asked)
        headers: Headers = [next_offset(stream.offset_of(place)), UP_TO_DATE, NO_STORE]
        if stream.meta.closed:
            headers.append(CLOSED)
        else:
            headers.append((b"stream-cursor", self._cursor(asked).encode()))
        return Reply(204, b"", tuple(headers))

    def _cursor(self, asked: ReadRequest) -> str:
        now_s = self._clock.wall_ns() // 1_000_000_000
        return str(next_cursor(now_s, asked.cursor, self._random))


def went_live(request: Request, *, lasts: bool) -> None:
    """A request is a connection from here on, and none under way.

    One that `lasts` ends with its client; a long poll that has something to say does not.
    """
    if UNCOUNTED in request.scope:
        request.scope[UNCOUNTED]()
    if request.response_stream is not None:
        request.response_stream.lasts = lasts


async def wait_gone(receive: Receive, gone: asyncio.Future[None]) -> None:
    """Resolve `gone` once the client is."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not gone.done():
        gone.set_result(None)


def turn_away(gone: asyncio.Future[None], error: FairwayError) -> None:
    """Whoever reads may not any more."""
    if not gone.done():
        gone.set_exception(error)
        gone.exception()  # an event stream just ends: that is no reason for a warning

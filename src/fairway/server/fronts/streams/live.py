"""An event stream: what is there, then what comes, each data event followed by where it ends.

One task reads a chunk, sends it and waits for news; a client that does not read stops its own task
and nobody else. After a cycle the stream ends and its reader comes again, from where it was.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import clock_of
from fairway.server.fronts.streams.answers import (
    COMMON,
    REVALIDATE,
    gap_headers,
    lost_reply,
    respond,
)
from fairway.server.fronts.streams.events import (
    CHARACTER_BYTES,
    control_event,
    event,
    whole_characters,
)
from fairway.server.fronts.streams.protocol import is_text
from fairway.streams.content import joined
from fairway.streams.offset import NOW, START
from fairway.wire.streams import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.server.fronts.streams.protocol import ReadRequest
    from fairway.server.http.exchange import Send
    from fairway.streams.engine import Streams
    from fairway.streams.offset import StreamPlace
    from fairway.streams.reading import StreamChunk
    from fairway.streams.stream import Stream

logger = logging.getLogger("fairway.streams")

STALL_S: Final = 30.0
"""How long after its cycle an event stream may still take to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsFrontConfig:
    long_poll_ns: int = 20_000_000_000
    """How long a long poll waits for news. Raising it costs fewer requests and more connections."""
    sse_cycle_ns: int = 60_000_000_000
    """How long an event stream lasts before its reader has to come again, so that caches can
    collapse readers into one."""
    keep_alive_ns: int = 15_000_000_000
    """How often an idle event stream is told where it is. Raising it risks proxies hanging up."""
    chunk_bytes: int = 1024 * 1024
    """What one answer carries at most, unless a single record is larger."""
    event_bytes: int = 64 * 1024
    """The same for one event."""

    def __post_init__(self) -> None:
        check_amounts(self, long_poll_ns=0, sse_cycle_ns=1, keep_alive_ns=1)
        check_amounts(self, chunk_bytes=1, event_bytes=1)


class StreamEvents:
    """One reader of one stream, over server-sent events."""

    def __init__(
        self,
        streams: Streams,
        stream: Stream,
        gone: asyncio.Future[None],
        send: Send,
        config: StreamsFrontConfig,
    ) -> None:
        self._streams = streams
        self._reading = streams.reading
        self._stream = stream
        self._gone = gone
        self._send = send
        self._config = config
        self._clock = clock_of()
        self._text = is_text(stream.meta.content_type)

    async def run(
        self, place: StreamPlace, request: ReadRequest, cursor: Callable[[], str]
    ) -> None:
        """Follow the stream from `place` on, for one cycle at most."""
        chunk = await self._reading.read(self._stream, place, self._config.event_bytes)
        if chunk.gap is not None and request.offset not in (START, NOW):
            await respond(self._send, lost_reply(chunk.gap, self._stream.offset_of(chunk.begin)))
            return
        headers = [(b"content-type", b"text/event-stream"), REVALIDATE, *COMMON]
        if chunk.gap is not None:
            headers += gap_headers(chunk.gap)
        if not self._text:
            headers.append((b"stream-sse-data-encoding", b"base64"))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with asyncio.timeout(self._config.sse_cycle_ns / 1e9 + STALL_S):
                await self._follow(place, chunk, cursor)
        except (TimeoutError, OSError):
            return  # it does not read, or is gone: the connection ends here
        except FairwayError as error:
            logger.warning("an event stream of %s ended: %s", self._stream.meta.path, error)
        await self._send({"type": "http.response.body", "body": b""})

    async def _follow(
        self, place: StreamPlace, chunk: StreamChunk, cursor: Callable[[], str]
    ) -> None:
        stream, config, clock = self._stream, self._config, self._clock
        end_ns = clock.now_ns() + config.sse_cycle_ns
        changed = False
        while not self._gone.done():
            sent = self._whole_characters(chunk)
            if sent:
                place = chunk.ends[sent - 1] if sent < len(chunk.pieces) else chunk.end
            elif not chunk.pieces:
                place = chunk.end  # past what was deleted
            at_tail, closed = stream.at_end(place)
            if sent or closed or not changed or chunk.end == place:
                control = StreamControl(str(stream.offset_of(place)), up_to_date=at_tail)
                if closed:
                    control.stream_closed = True
                else:
                    control.stream_cursor = cursor()
                data = event("data", self._payload(chunk.pieces[:sent])) if sent else b""
                await self._write(data + control_event(control))
            if closed:
                return
            if chunk.end == stream.tail:
                until_ns = min(end_ns, clock.now_ns() + config.keep_alive_ns)
                changed = await self._reading.wait_change(stream, chunk.end, until_ns, self._gone)
            if self._over() or clock.now_ns() >= end_ns:
                return
            chunk = await self._read_on(place, chunk)
            if chunk.gap is not None:
                return  # whoever comes back from there is told what is missing

    async def _read_on(self, place: StreamPlace, before: StreamChunk) -> StreamChunk:
        """The next chunk; a larger one than before if that did not complete a character."""
        limit = self._config.event_bytes
        if place != before.end:
            limit = max(limit, 2 * sum(map(len, before.pieces)) + CHARACTER_BYTES)
        return await self._reading.read(self._stream, place, limit)

    def _whole_characters(self, chunk: StreamChunk) -> int:
        """How many pieces can be sent: the next one may complete a character of the last."""
        count = len(chunk.pieces)
        if not self._text or self._stream.json or self._stream.at_end(chunk.end)[1]:
            return count
        return whole_characters(chunk.pieces)

    def _payload(self, pieces: list[bytes]) -> str:
        body = joined(pieces, json=self._stream.json)
        return body.decode(errors="replace") if self._text else b64encode(body).decode()

    def _over(self) -> bool:
        stream, streams = self._stream, self._streams
        return stream.ended or streams.closing or stream.expired(streams.store.now_ms())

    async def _write(self, part: bytes) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

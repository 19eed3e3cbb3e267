"""What is written to a client: the response that an ASGI app sends, or a stream.

A `ResponseCycle` writes what an app sends; its head and body leave in one write. A stream is
written straight to its socket, without a task, a queue or a copy for each watcher: the app finds a
`ResponseStream` in `scope["extensions"]["fairway.response"]`. Whoever delivers frames a chunk once
and offers the same bytes to every watcher. The outbound buffer is bounded and counts what the
kernel holds too; what does not fit is refused at once, and catching up is left to the caller.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

from fairway.server.http.held_bytes import FREE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from uvicorn._types import ASGI3Application

    from fairway.server.http.protocol import HttpProtocol, Site
    from fairway.storage.ownership import Ownership

EXTENSION = "fairway.response"
LAST_CHUNK = b"0\r\n\r\n"

_JOINED_MAX = 16 * 1024  # a body up to this is copied behind its head, to save a system call
_PIECE = 256 * 1024
_FAILED = b'{"error":{"code":"internal","message":"the server failed; its log says how"}}'
_WITHHELD = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b"x-content-type-options: nosniff\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
)
_WITHHELD_BODY = (
    b'{"error":{"code":"fenced","message":"the lease of this server ran out while it answered:'
    b' another process may own the data"}}'
)
_SIOCOUTQ = termios.TIOCOUTQ  # Linux gives both requests one number: bytes sent and not yet acked
_NO_BYTES = bytes(4)  # where the answer goes, a C int


class AutoResetEvent:
    """An event for one waiter, which a wait clears. Cheap to make: each request has one."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until it is set, and clear it."""
        while not self._is_set:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._is_set = False


class ResponseCycle(RequestResponseCycle):
    """One request and the response that an ASGI app sends to it.

    The head waits for the first of the body, as ASGI wants it, and they leave in one write. Until
    then nothing has started: an app that fails is still answered with an error.
    """

    # The base's fields too. One of these is made for each request, and what is set only when it is
    # answered would make a dictionary of most of them: attributes that were not seen on the first
    # few objects of a class do not fit beside the others.
    __slots__ = (
        "_body_left",
        "_head",
        "_protocol",
        "begins_whole",
        "body",
        "chunked_encoding",
        "default_headers",
        "disconnected",
        "flow",
        "held",
        "keep_alive",
        "logger",
        "message_event",
        "more_body",
        "on_response",
        "response_complete",
        "response_started",
        "scope",
        "transport",
        "waiting_for_100_continue",
    )
    access_log = False  # it would hold query strings, and tickets

    def __init__(self, protocol: HttpProtocol, scope: Any, *, keep_alive: bool) -> None:
        # Not the base's, which makes more.
        self._protocol = protocol
        self.scope = scope
        self.transport = protocol.transport
        self.flow = protocol.flow
        self.logger = protocol.logger
        self.default_headers = protocol.server_state.default_headers
        self.message_event = AutoResetEvent()  # type: ignore[assignment]
        self.on_response = protocol.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = protocol.expect_100_continue
        self.begins_whole = False  # once its body is there, and not before
        self.body: bytes | bytearray = b""  # type: ignore[assignment]
        self.held = 0  # bytes of the body that are counted
        self.more_body = True
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.chunked_encoding: bool | None = None
        self._head = b""  # built, and not yet written
        self._body_left: int | None = None  # None: until the last chunk, or until the close

    def take_in(self, part: bytes) -> None:
        """More of the request's body has come."""
        if not self.body:
            self.body = part
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += part

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not self.disconnected and not self.response_complete:
            self.flow.resume_reading()
            await self.message_event.wait()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), b""
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def reply(self, head: bytes, body: bytes) -> None:
        """A whole response at once, without ASGI; `head` ends in its empty line."""
        if self.disconnected:
            return
        site = self._protocol.site
        if site is not None and site.ownership is not None and self._withheld(site):
            return
        self.response_started = True
        if len(body) > FREE and not self._protocol.held.has_room(len(body)):
            self._refuse_held()
            return
        if not self.keep_alive:
            head = head[:-2] + b"connection: close\r\n\r\n"
        self.transport.write(head + body)
        self.complete()

    @property
    def begun(self) -> bool:
        """The app has said how its response starts."""
        return bool(self._head) or self.response_started

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self._wait_read(_size_of(message))
        if self.disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.begun:
            self._head = self._begin(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.begun and not self.response_complete:
            self._go_on(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError(f"the ASGI message {kind} is out of turn")

    async def _wait_read(self, size: int) -> None:
        """Until the client has read what was written before; what waits for that is counted.

        Without room it is refused; beyond the bound if part of it was written already.
        """
        held = self._protocol.held
        if size <= FREE:
            await self.flow.drain()
        elif held.has_room(size) or self.response_started:
            held.used += size
            try:
                await self.flow.drain()
            finally:
                held.give(size)
        else:
            self.response_started = True
            self._refuse_held()

    async def run_asgi(self, app: ASGI3Application) -> None:
        """As the base does; but what a stop cuts off is no fault of the app's."""

        async def run(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                site = self._protocol.site
                if site is None or not site.end_cut_off(self):
                    raise

        await super().run_asgi(run)

    async def send_500_response(self) -> None:
        """Called when the app has failed before anything was written."""
        self._head = b""
        self.keep_alive = False
        headers = [(b"content-type", b"application/json")]
        headers.append((b"content-length", b"%d" % len(_FAILED)))
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _FAILED})

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        self.waiting_for_100_continue = False
        self.chunked_encoding, self._body_left = None, None
        lines = [STATUS_LINE[status]]
        closes = False
        for name, value in [*self.default_headers, *headers]:
            check_header(name, value)
            name = name.lower()
            if name == b"content-length" and not self.chunked_encoding:
                self.chunked_encoding, self._body_left = False, int(value)
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.chunked_encoding, self._body_left = True, None
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
            lines += (name, b": ", value, b"\r\n")
        if self.chunked_encoding is None:
            if status in (204, 304):
                self._body_left = 0
            elif self.scope["http_version"] == "1.1" and self.scope["method"] != "HEAD":
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def _withheld(self, site: Site) -> bool:
        """Whether this must not be written any more. Then the client is told to ask again; if it
        has part of the answer already, its connection ends."""
        if not site.withholds(self.scope):
            return False
        self._head = b""
        self.keep_alive = False
        if not self.response_started:
            self.response_started = True
            body = b"" if self.scope["method"] == "HEAD" else _WITHHELD_BODY
            self.transport.write(_WITHHELD % len(_WITHHELD_BODY) + body)
            self.complete()
        else:
            self.transport.abort()
        return True

    def _go_on(self, body: bytes, more: bool) -> None:
        site = self._protocol.site
        if site is not None and site.ownership is not None and self._withheld(site):
            return
        if self.scope["method"] == "HEAD":
            body = b""
        elif self.chunked_encoding:
            body = (ResponseStream.chunk(body) if body else b"") + (b"" if more else LAST_CHUNK)
        elif self._body_left is not None:
            self._body_left -= len(body)
            if self._body_left < 0 or (self._body_left and not more):
                raise RuntimeError("the body is not as long as its content-length says")
        if self._head:
            head, self._head = self._head, b""
            self.response_started = True
            if len(body) > FREE and not self._protocol.held.has_room(len(body)):
                self._refuse_held()
                return
            if len(body) <= _JOINED_MAX:
                body = head + body
            else:
                self.transport.write(head)
        if len(body) > _PIECE:
            # In pieces: of one that is sent in part the transport keeps the whole, uncounted.
            for at in range(0, len(body), _PIECE):
                self.transport.write(body[at : at + _PIECE])
            if self.flow.write_paused:
                self._protocol.count_unread()  # the transport tells of the first that waits only
        elif body:
            self.transport.write(body)
        if not more:
            self.complete()

    def _refuse_held(self) -> None:
        """The answer is made, and there is no room to hold it until the client has read it."""
        self.keep_alive = False
        self.transport.write(self._protocol.held.refusal.render(self.default_headers))
        self.complete()
        self.disconnected = True  # whatever else the app has to say is for nobody

    def complete(self) -> None:
        """The last byte is written: close, or let the next request have its turn."""
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class ResponseStream:
    """The response to one request, if it lasts: `open`, `write`, then `finish`.

    All methods are called on the event loop, none of them waits, and the callbacks are called on
    the loop too. While the stream is open the ASGI app only awaits `wait_ended()`; a return before
    that cuts the stream off. Once the response has ended, in whatever way, every method is
    harmless and does nothing.
    """

    # Defaults live on the class: one of these is made for each request, and few become streams.
    chunked: bool = True
    """False for an HTTP/1.0 client: give `write` the bare bytes, not those of `chunk`."""
    closed: bool = False
    """The client is gone, was refused, or the server is shutting down."""
    lasts: bool = False
    """Set by an app that sends a response which lasts by itself, without `open`: a client that
    sends no more has left then, and is not waited for."""
    on_writable: Callable[[], None] | None = None
    """Called once after a refused `write`, when at most half the limit is still buffered."""
    on_closed: Callable[[], None] | None = None
    """Called once when `closed` becomes true before `finish`; set it before `open`."""

    ownership: Ownership | None = None
    """Of the log that the stream is written from, if it is owned for a time only."""

    _protocol: HttpProtocol | None
    _transport: asyncio.Transport | None = None  # while the stream is open
    _refused = False
    _fd = -1
    _limit = _kernel_max = 0
    _ended: asyncio.Event | None = None

    def __init__(self, protocol: HttpProtocol) -> None:
        self._protocol = protocol

    @staticmethod
    def chunk(data: bytes) -> bytes:
        """`data` framed as one HTTP chunk, to be shared by all chunked connections."""
        assert data, "an empty chunk would end the response"
        return b"%x\r\n%b\r\n" % (len(data), data)

    @property
    def writable(self) -> bool:
        """The stream is open and has refused nothing since it last drained."""
        return self._transport is not None and not self._refused

    async def wait_read(self) -> bool:
        """Wait until the client has read the responses before this one, but for a little; False if
        it is gone."""
        if self._protocol is not None:
            await self._protocol.flow.drain()
        return not self.closed

    @property
    def buffered(self) -> int:
        """Bytes written and not yet acknowledged by the client: ours and the kernel's."""
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + self._kernel_bytes()

    def open(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Write the response head. On a connection that is gone, `on_closed` follows instead."""
        if self._protocol is None:
            asyncio.get_running_loop().call_soon(self._notify_closed)
            return
        for name, value in headers:
            check_header(name, value)
        keep_alive = self._protocol.start_stream(self)
        self._transport = self._protocol.transport
        if self._protocol.site is not None:
            self.ownership = self._protocol.site.ownership
        self._bound_kernel()
        lines = [STATUS_LINE[status]]
        for name, value in self._protocol.server_state.default_headers + headers:
            lines += (name, b": ", value, b"\r\n")
        if self.chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._transport.write(b"".join(lines))

    def write(self, framed: bytes) -> bool:
        """Write `framed` now and return True; or, if the buffer has no room, nothing and False.

        After a refusal everything is refused until `on_writable` is called, so that no later frame
        overtakes an earlier one. When none of our own bytes wait, a frame of any size is taken.
        """
        transport = self._transport
        if transport is None or self._refused:
            return False
        waiting = transport.get_write_buffer_size()
        if waiting and (
            waiting + self._kernel_bytes() + len(framed) > self._limit
            or (waiting > FREE and not self._room_for(len(framed)))
        ):
            self._refuse(transport, len(framed))
            return False
        transport.write(framed)
        if waiting > FREE and self._protocol is not None:
            self._protocol.count_unread()
        return True

    def finish(self) -> None:
        """End the response properly; the connection then serves the client's next request."""
        protocol, transport = self._protocol, self._transport
        if protocol is None or transport is None:
            return
        if self.chunked:
            transport.write(LAST_CHUNK)
        self._end()
        protocol.finish_stream()

    def abort(self) -> None:
        """Drop the connection and what is buffered at once; `on_closed` follows."""
        if self._protocol is not None:
            self._transport = None
            self._protocol.transport.abort()

    def cut_off(self, last: bytes) -> None:
        """Send `last`, framed, and close; `on_closed` follows. If anything of before waits to be
        sent, that is dropped, and nobody is told."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size():
            self.abort()
            return
        self._transport = None
        transport.write(last + LAST_CHUNK if self.chunked else last)
        transport.close()

    async def wait_ended(self) -> None:
        """Wait until the response is finished or the connection closed."""
        if self._protocol is None:
            return
        if self._ended is None:
            self._ended = asyncio.Event()
        await self._ended.wait()

    # --- for the protocol

    def drained(self) -> None:
        """The transport has sent enough of what waited."""
        if not self._refused or self._transport is None:
            return
        self._refused = False
        self._transport.set_write_buffer_limits(FREE)
        if self.on_writable is not None:
            self.on_writable()

    def lost(self) -> None:
        """The client is gone, or shall be gone for this response."""
        if self._protocol is None:
            return
        self.closed = True
        self._end()
        self._notify_closed()

    def shut_down(self) -> None:
        """The server ends the stream: properly, but as a close."""
        self.closed = True
        self.finish()
        # Not called from here: an error in it must not keep other connections from shutting down.
        asyncio.get_running_loop().call_soon(self._notify_closed)

    # --- inside

    def _room_for(self, size: int) -> bool:
        return self._protocol is not None and self._protocol.held.has_room(size)

    def _end(self) -> None:
        self._protocol = self._transport = None
        if self._ended is not None:
            self._ended.set()

    def _notify_closed(self) -> None:
        callback, self.on_closed = self.on_closed, None
        if callback is not None:
            callback()

    def _bound_kernel(self) -> None:
        assert self._protocol is not None
        assert self._transport is not None
        limits = self._protocol.limits
        held = self._transport.get_extra_info("socket")
        self._fd = held.fileno()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.kernel_buffer_bytes)
        if held.family in (socket.AF_INET, socket.AF_INET6):
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Asked back, since Linux doubles what it is given and others round it.
        self._kernel_max = held.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._limit = limits.stream_buffer_bytes

    def _kernel_bytes(self) -> int:
        try:
            answer = fcntl.ioctl(self._fd, _SIOCOUTQ, _NO_BYTES)
        except OSError:  # a system that does not tell: asked while we wait, its buffer is full
            return self._kernel_max
        return min(int.from_bytes(answer, sys.byteorder), self._kernel_max)

    def _refuse(self, transport: asyncio.Transport, size: int) -> None:
        """Have the transport say when it drained, both to half the limit and to take `size`.

        Only our own bytes are watched by the transport, so the kernel is taken to be full. More is
        waiting than that, or the write had fitted; so the transport is paused now and will resume.
        """
        self._refused = True
        low = max(0, min(self._limit // 2, self._limit - size) - self._kernel_max)
        transport.set_write_buffer_limits(high=low, low=low)


def _size_of(message: Any) -> int:
    """The bytes that an app holds with a message: its own, or those that it says will follow."""
    for name, value in message.get("headers", ()):
        if name.lower() == b"content-length":
            return int(value)
    return len(message.get("body", b""))


def check_header(name: bytes, value: bytes) -> None:
    """Refuse what would end the header, and so could begin another one or the body."""
    if HEADER_RE.search(name) or HEADER_VALUE_RE.search(value):
        raise ValueError(f"header {name!r} has a character that no header may have")

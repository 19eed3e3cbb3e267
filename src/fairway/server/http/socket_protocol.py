"""WebSockets with turns and a bound, for `uvicorn.Config(ws=SocketProtocol)`.

Framing is the `websockets` library's, running the app is uvicorn's. This decides how much of what a
client sends is looked at in one turn of the loop, and that nothing more is while the client does
not read: pongs are written as they are due, so they would pile up without end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidHandshake

from fairway.runtime.clock import clock_of
from fairway.runtime.turn import TURN
from fairway.server.http.deadline import Deadline
from fairway.server.http.frames import cut
from fairway.server.http.limits import MALFORMED, HttpLimits
from fairway.server.http.read_turns import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.http11 import Request as Handshake

    from fairway.runtime.turn import TurnBudget
    from fairway.server.http.door import Door
    from fairway.server.http.protocol import Site

RESTARTS: Final = 1012
"""How a WebSocket is closed whose client should connect again, to whoever owns the log then."""
WRITTEN_MAX: Final = 64 * 1024
"""Bytes that were written and not sent; with more, nothing is read. Part of a socket's bound."""


class SocketProtocol(WebSocketsSansIOProtocol):
    """One client's socket."""

    limits: HttpLimits = HttpLimits()
    turn: ClassVar[TurnBudget] = TURN
    site: ClassVar[Site | None] = None
    """Knows until when what is sent is true."""
    door: Door | None = None
    """Gives the turns; set by the HTTP connection that this was. Without one, all is read."""
    holder: Any = None
    on_lost: Callable[[], None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.debug = False  # its log of the handshake would hold keys and tickets
        self._received = b""  # and not looked at yet
        self._missing = 0  # of the frame that was looked at last
        self._in_line = False
        self._frames_per_turn = self.turn.frames_per_turn
        self._unsent = 0
        self._deadline = Deadline(self.loop, clock_of(self.loop).now_ns, self._on_deadline_missed)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(WRITTEN_MAX)

    # --- reading

    def data_received(self, data: bytes) -> None:
        if self.door is None:
            super().data_received(data)
            return
        self._received += data
        if not self._in_line:
            if self.door.passes():
                self._look()
            self._go_on()
        elif self._received:
            self.transport.pause_reading()

    def read_held(self) -> None:
        """It is our turn."""
        self._in_line = False
        self._look()
        self._go_on()

    def _look(self) -> None:
        """Look at the next few frames, unless the app or the client is behind."""
        if self.read_paused or self.disconnected or self._is_stalled():
            return
        end, self._missing = cut(self._received, self._missing, self._frames_per_turn)
        frames, self._received = self._received[:end], self._received[end:]
        if frames:
            super().data_received(frames)

    def _go_on(self) -> None:
        """Get in line if there is something to look at, else read; neither if somebody is behind.

        The app reads on by `receive` when it is no longer, the client by `resume_writing`.
        """
        if self.door is None or self.transport.is_closing() or self._in_line or self.read_paused:
            return
        if not self._received or not cut(self._received, self._missing, 1).end:
            self.transport.resume_reading()  # a head may be there that is not whole
            return
        self.transport.pause_reading()
        if not self._is_stalled():
            self._in_line = True
            self.door.wait(self, Standing.OPEN, self.holder)
        elif not self._unsent:  # it sends and does not read
            self._expect_progress()

    def _is_stalled(self) -> bool:
        return self.transport.get_write_buffer_size() > WRITTEN_MAX

    async def receive(self) -> Any:
        message = await super().receive()
        self._go_on()
        return message

    # --- writing

    async def send(self, message: Any) -> None:
        ownership = self.site.ownership if self.site is not None else None
        if ownership is not None and message["type"] in ("websocket.send", "websocket.close"):
            await self.writable.wait()  # before it is asked: a client may be slow for a while
            if ownership.overdue:
                message = {"type": "websocket.close", "code": RESTARTS, "reason": "fenced"}
        await super().send(message)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent = 0
        self._deadline.lift()
        self._go_on()

    def _expect_progress(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._deadline.grant(self.limits.stall_ns)

    def _on_deadline_missed(self) -> None:
        if self.transport.get_write_buffer_size() < self._unsent:
            self._expect_progress()
        else:
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # it reads nothing, so it would never be done

    # --- the handshake, and the end

    def handle_connect(self, event: Handshake) -> None:
        try:
            self.conn.process_request(event)
        except InvalidHandshake as error:
            # Before uvicorn sees it: that would answer in plain text.
            refusal = replace(MALFORMED, message=f"this is no WebSocket handshake: {error}")
            self.handshake_complete = self.close_sent = True
            self.transport.write(refusal.render(self.default_headers))
            self.transport.close()
        else:
            super().handle_connect(event)

    async def run_asgi(self) -> None:
        app = self.app

        async def answered(scope: Any, receive: Any, send: Any) -> None:
            await app(scope, receive, send)
            # A refusal completes a handshake as well. uvicorn would log it as a fault of ours.
            self.handshake_complete |= self.close_sent

        self.app = answered
        try:
            await super().run_asgi()
        finally:
            self.app = app

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.end()
        self._received = b""
        if self._in_line and self.door is not None:
            self.door.leave(self)
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

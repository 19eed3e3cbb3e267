"""One connection to the HTTP protocol without a network, on virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.server import ServerState

from fairway.runtime.turn import TURN
from fairway.server.http.door import Door, LineState
from fairway.server.http.limits import SECOND_NS, HttpLimits
from fairway.server.http.protocol import HttpProtocol
from fairway.testing import run

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from fairway.server.http.protocol import Site
    from fairway.server.http.response import ResponseCycle

KIB = 1024
LIMITS = HttpLimits(
    first_byte_ns=3 * SECOND_NS,
    idle_ns=5 * SECOND_NS,
    head_ns=10 * SECOND_NS,
    body_ns=30 * SECOND_NS,
    body_rate_min=100,
    linger_ns=SECOND_NS,
    half_closed_ns=4 * SECOND_NS,
    stall_ns=20 * SECOND_NS,
)


class FakeTransport(asyncio.Transport):
    """Takes everything and keeps what `stuck` says: 0 sends all at once, as an idle socket does."""

    def __init__(self, protocol: HttpProtocol, held: socket.socket) -> None:
        super().__init__({"socket": held})
        self.protocol = protocol
        self.sent = bytearray()
        self.writes = 0
        self.waiting = 0
        self.stuck = False
        self.paused = False
        self.reading = True
        self.at_eof = False
        self.low = self.high = 64 * KIB
        self.eof = self.aborted = self.closed_by_us = False
        self.ended_at: float | None = None

    def write(self, data: bytes) -> None:  # type: ignore[override]
        assert not self.eof
        self.sent += data
        self.writes += 1
        if self.stuck:
            self.waiting += len(data)
            self._maybe_pause()

    def drain(self, left: int = 0) -> None:
        self.waiting = left
        if self.paused and left <= self.low:
            self.paused = False
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = 64 * KIB if high is None else high
        self.low = self.high if low is None else low
        self._maybe_pause()

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def is_closing(self) -> bool:
        return self.closed_by_us

    def close(self) -> None:
        if not self.closed_by_us:
            self.closed_by_us = True
            if not self.waiting:
                asyncio.get_running_loop().call_soon(self.lose)

    def abort(self) -> None:
        self.closed_by_us = self.aborted = True
        asyncio.get_running_loop().call_soon(self.lose)

    def lose(self) -> None:
        if self.ended_at is None:
            self.ended_at = asyncio.get_running_loop().time()
            self.protocol.connection_lost(None)

    def end_input(self) -> None:
        """The client sends no more; whoever reads notices it."""
        self.at_eof = True
        if self.reading and not self.closed_by_us:
            keep_open = self.protocol.eof_received()
            self.reading = False
            if not keep_open:
                self.close()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        if self.at_eof:
            asyncio.get_running_loop().call_soon(self.end_input)

    def _maybe_pause(self) -> None:
        if not self.paused and self.waiting > self.high:
            self.paused = True
            self.protocol.pause_writing()


class Busy:
    """A site that is always working, with as much room as `room` says."""

    ownership = None

    def __init__(self) -> None:
        self.room = TURN.reads_per_turn
        self.door: Door | None = Door(lambda: LineState(self.room, 0, True))

    def admit(self, peer: Any, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        peer.show(None)
        begin()

    def answer_without_task(self, cycle: ResponseCycle) -> bool:
        return False

    def line_up(self, peer: Any, head: Any, begin: Callable[[], object]) -> bool:
        return False

    def let_in(self, peer: Any, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        begin()

    def lost(self, peer: Any) -> None: ...


class Client:
    """One connection to an app, without a network."""

    def __init__(
        self,
        app: Any,
        held: socket.socket,
        limits: HttpLimits = LIMITS,
        site: Site | None = None,
        http: type[HttpProtocol] | None = None,
    ) -> None:
        """`http` is shared by connections that are counted together."""
        http = http or HttpProtocol.limited_to(limits, site)
        config = uvicorn.Config(app, http=http, ws="none", log_config=None, lifespan="off")
        config.load()
        self.state = ServerState()
        self.protocol = config.http_protocol_class(config, self.state, {})  # type: ignore[call-arg]
        self.transport = FakeTransport(self.protocol, held)
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    @property
    def status(self) -> int:
        return int(self.transport.sent.split(b" ", 2)[1])

    @property
    def error(self) -> str:
        code = json.loads(self.transport.sent.partition(b"\r\n\r\n")[2])["error"]["code"]
        assert isinstance(code, str)
        return code


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def end_of(client: Client) -> float:
    """The virtual time at which the connection ended; it must."""
    await asyncio.sleep(3600)
    assert client.transport.ended_at is not None
    assert not client.state.connections
    return client.transport.ended_at


def on_virtual_time(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(scenario, seed=1, quiet=True)

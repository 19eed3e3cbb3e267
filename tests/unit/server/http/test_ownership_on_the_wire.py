"""An answer that was read while the log was ours, and is written when it may be somebody else's.

In each scene the lease runs out between what the app did and the write to the socket.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from fairway.core.lease import Tenure
from fairway.errors import Fenced
from fairway.server.fronts import FRONTS
from fairway.server.http.asgi import HttpApp
from fairway.server.http.response import EXTENSION
from fairway.server.http.socket_protocol import RESTARTS, SocketProtocol
from fairway.server.http.sse import EventStream, Frame
from fairway.storage.ownership import Ownership
from fairway.testing import run
from tests.support.http_protocol import KIB, Client, FakeTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.server.http.response import ResponseCycle

READ = b"GET /v0/topics/t HTTP/1.1\r\nhost: a\r\n\r\n"
WRITE = b"POST /v0/topics/t HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
UPGRADE = (
    b"GET /v0/graphs/g/ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
STALE = b"what was read"
"""What no client may be sent once the lease has run out."""
CLOSED = b"\x88" + bytes([2 + len(b"fenced")]) + RESTARTS.to_bytes(2, "big") + b"fenced"
"""The frame that ends a WebSocket and asks the client to connect again."""


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


class Leased(HttpApp):
    """What a server knows of its requests. Its lease runs out when the test says so."""

    def __init__(self) -> None:
        super().__init__(FRONTS.routes, dict)
        self.door = None
        self._now_ns = 0
        tenure = Tenure(ttl_ns=15, margin_ns=1)
        tenure.renewed(0)
        self.ownership = Ownership(tenure, lambda: self._now_ns, "the log")

    def run_out(self) -> None:
        assert self.ownership is not None
        assert not self.ownership.overdue
        self._now_ns = 14
        assert self.ownership.overdue


def begun(size: int) -> dict[str, Any]:
    headers = [(b"content-length", b"%d" % size)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


@pytest.mark.parametrize("request_", [READ, WRITE], ids=["read", "write"])
def test_an_answer_whose_lease_ran_out_before_it_was_written_is_withheld(
    request_: bytes, held: socket.socket
) -> None:
    """But for the answer to a write: what was done is true whoever owns the log."""
    site = Leased()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(begun(len(STALE)))
        site.run_out()
        await send(body(STALE))

    async def scene() -> None:
        client = Client(app, held, site=site)
        client.send(request_)
        await asyncio.sleep(0)
        if request_ is WRITE:
            assert client.status == 200
            assert client.transport.sent.endswith(STALE)
            return
        assert (client.status, client.error) == (503, "fenced")
        assert STALE not in client.transport.sent
        assert b"\r\nretry-after: 1\r\n" in client.transport.sent
        assert client.transport.closed_by_us

    run(scene, seed=1, quiet=True)


def test_an_answer_without_a_task_is_withheld_alike(held: socket.socket) -> None:
    class AnsweredWithoutTask(Leased):
        def answer_without_task(self, cycle: ResponseCycle) -> bool:
            self.run_out()
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(STALE)
            cycle.reply(head, STALE)
            return True

    async def scene() -> None:
        client = Client(None, held, site=AnsweredWithoutTask())
        client.send(READ)
        assert (client.status, client.error) == (503, "fenced")
        assert STALE not in client.transport.sent

    run(scene, seed=1, quiet=True)


def test_the_rest_of_an_answer_is_withheld_by_ending_its_connection(held: socket.socket) -> None:
    site = Leased()
    first = b"the first part"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(begun(len(first + STALE)))
        await send(body(first, more=True))
        site.run_out()
        await send(body(STALE))

    async def scene() -> None:
        client = Client(app, held, site=site)
        client.send(READ)
        await asyncio.sleep(0)
        assert client.transport.sent.endswith(first)
        assert client.transport.aborted

    run(scene, seed=1, quiet=True)


def test_an_answer_that_waits_for_a_slow_reader_is_asked_about_after_the_wait(
    held: socket.socket,
) -> None:
    site = Leased()
    first = bytes(100 * KIB)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(begun(len(first + STALE)))
        await send(body(first, more=True))
        await send(body(STALE))

    async def scene() -> None:
        client = Client(app, held, site=site)
        client.transport.stuck = True
        client.send(READ)
        await asyncio.sleep(1)
        assert client.transport.paused
        site.run_out()
        client.transport.drain()
        await asyncio.sleep(1)
        assert STALE not in client.transport.sent
        assert client.transport.aborted

    run(scene, seed=1, quiet=True)


@pytest.mark.parametrize("request_", [READ, WRITE], ids=["read", "write"])
@pytest.mark.parametrize("stuck", [False, True], ids=["reads", "does not read"])
def test_an_answer_that_waits_to_be_sent_is_dropped_once_the_lease_ran_out(
    stuck: bool, request_: bytes, held: socket.socket
) -> None:
    site = Leased()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(begun(100 * KIB))
        await send(body(bytes(100 * KIB)))

    async def scene() -> None:
        client = Client(app, held, site=site)
        client.transport.stuck = stuck
        client.send(request_)
        await asyncio.sleep(0)
        client.protocol.withhold_unsent()
        assert not client.transport.aborted, "it is ours"
        site.run_out()
        client.protocol.withhold_unsent()
        assert client.transport.aborted == (stuck and request_ is READ)

    run(scene, seed=1, quiet=True)


@pytest.mark.parametrize(
    "write",
    [
        lambda stream: stream.send(Frame(STALE)),
        EventStream.keep_alive,
        lambda stream: stream.end(Fenced("the log has another owner")),
    ],
    ids=["frame", "keep-alive", "end"],
)
@pytest.mark.parametrize("stuck", [False, True], ids=["reads", "does not read"])
def test_a_stream_whose_lease_ran_out_is_told_so_and_cut_off(
    write: Callable[[EventStream], object], stuck: bool, held: socket.socket
) -> None:
    """Unless it has not taken in what was sent before: that would be sent first."""
    site = Leased()
    closed: list[bool] = []
    sent: list[bytes] = []  # before the lease ran out, and after

    async def app(scope: Any, receive: Any, send: Any) -> None:
        response = scope["extensions"][EXTENSION]
        stream = EventStream(response, lambda: closed.append(True))
        stream.open([])
        client.transport.stuck = stuck
        stream.send(Frame(b"data: in time\n\n"))
        sent.append(bytes(client.transport.sent))
        site.run_out()
        write(stream)
        sent.append(bytes(client.transport.sent))
        await response.wait_ended()

    async def scene() -> None:
        nonlocal client
        client = Client(app, held, site=site)
        client.send(READ)
        await asyncio.sleep(1)
        before, after = sent
        assert b"in time" in before
        assert after == client.transport.sent
        assert STALE not in after
        if stuck:
            assert after == before
        else:
            assert b"event: error" in after.removeprefix(before)
            assert after.endswith(b"\r\n0\r\n\r\n")
        assert client.transport.aborted == stuck
        assert client.transport.closed_by_us
        assert closed == [True]

    client: Client
    run(scene, seed=1, quiet=True)


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "after a wait"])
def test_a_websocket_whose_lease_ran_out_is_closed_instead_of_written_to(
    slow: bool, held: socket.socket
) -> None:
    site = Leased()

    class Protocol(SocketProtocol):
        pass

    Protocol.site = site

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "in time"})
        if slow:
            transport.stuck = True
            await send({"type": "websocket.send", "bytes": bytes(100 * KIB)})
            asyncio.get_running_loop().call_later(1, wakes)
        else:
            site.run_out()
        await send({"type": "websocket.send", "bytes": STALE})

    def wakes() -> None:
        site.run_out()
        transport.drain()

    async def scene() -> None:
        nonlocal transport
        config = uvicorn.Config(app, ws=Protocol, log_config=None, lifespan="off")
        config.load()
        protocol: Any = Protocol(config, ServerState(), {})
        transport = FakeTransport(protocol, held)
        protocol.connection_made(transport)
        protocol.data_received(UPGRADE)
        await asyncio.sleep(2)
        assert b"in time" in transport.sent
        assert STALE not in transport.sent
        assert transport.sent.endswith(CLOSED)

    transport: FakeTransport
    run(scene, seed=1, quiet=True)

"""The HTTP protocol on real sockets: every limit by name, and streams to slow and fast clients."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import ssl
import subprocess
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import uvloop
from uvicorn.server import ServerState

from fairway.server.http.door import Door, HeldConnection
from fairway.server.http.limits import SECOND_NS, HttpLimits
from fairway.server.http.protocol import HttpProtocol, Site
from fairway.server.http.response import EXTENSION, ResponseCycle, ResponseStream
from tests.support.http_protocol import Busy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
    from pathlib import Path

    from fairway.server.http.read_turns import Standing

KIB = 1024
TICK_S = 0.002
WAIT_S = 10
LINGER_NS = SECOND_NS // 20
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Loop:
    """Runs a scenario on the loop under test, within a deadline."""

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._factory = factory

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=self._factory) as runner:
            runner.run(asyncio.wait_for(scenario(), WAIT_S))


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    return Loop(request.param)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (what it waits for has no event, and is near)
        await asyncio.sleep(TICK_S)


async def fill(stream: ResponseStream) -> bytes:
    """Write chunks until one is refused, letting the loop run in between; what was taken."""
    frame = ResponseStream.chunk(bytes(16 * KIB))
    taken = 0
    while stream.write(frame):
        taken += 1
        await asyncio.sleep(0)
    return frame * taken


# --- a server and a client


class App:
    """Echoes bodies; under /stream opens a stream and keeps its connection for the test."""

    def __init__(self) -> None:
        self.requests = 0
        self.paths: list[str] = []
        self.streams: list[ResponseStream] = []
        self.closed: list[ResponseStream] = []
        self.writable: list[ResponseStream] = []
        self.disconnects = 0
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        self.paths.append(scope["path"])
        if scope["path"] == "/stream":
            await self.stream(scope["extensions"][EXTENSION])
        elif scope["path"] == "/refuse":
            await answer(send, 401, b"no")
        else:
            body = await self.body(receive)
            if body is not None:
                if scope["path"] == "/held":
                    await self.release.wait()
                await answer(send, 200, body or scope["path"].encode())

    async def body(self, receive: Any) -> bytes | None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return None
            body, more = body + message["body"], message["more_body"]
        return body

    async def stream(self, response: ResponseStream) -> None:
        response.on_closed = lambda: self.closed.append(response)
        response.on_writable = lambda: self.writable.append(response)
        response.open(200, [(b"content-type", b"text/event-stream")])
        self.streams.append(response)
        await response.wait_ended()


async def answer(send: Any, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Served:
    """An app on a port of this machine."""

    def __init__(self, app: App, state: ServerState, port: int) -> None:
        self.app = app
        self.state = state
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.writers.append(writer)
        return reader, writer

    async def exchange(self, *parts: bytes, half_close: bool = False) -> bytes:
        """Send the parts and return all that the server sends until it closes."""
        reader, writer = await self.connect()
        for part in parts:
            writer.write(part)
        if half_close:
            writer.write_eof()
        answered = await reader.read()
        writer.close()
        return answered

    async def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
            with suppress(OSError):  # a reset by the server is none of the client's business
                await writer.wait_closed()

    async def is_quiet(self) -> None:
        """Wait until nothing of any connection is left."""
        await until(lambda: not self.state.connections and not self.state.tasks)


@asynccontextmanager
async def serving(site: Site | None = None, **limits: int) -> AsyncIterator[Served]:
    app = App()
    protocol = HttpProtocol.limited_to(HttpLimits(**{"linger_ns": LINGER_NS, **limits}), site)
    config = uvicorn.Config(app, http=protocol, ws="none", log_config=None, lifespan="off")  # type: ignore[arg-type]
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    served = Served(app, state, server.sockets[0].getsockname()[1])
    try:
        yield served
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        app.release.set()
        await served.hang_up()
        await served.is_quiet()


def error_of(response: bytes) -> tuple[int, str]:
    """Status and code of a refusal, which says that the connection closes and has no more."""
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-type: application/json" in head
    document = json.loads(body)
    assert document.keys() == {"error"}
    assert document["error"].keys() == {"code", "message"}
    return int(head.split(b" ")[1]), document["error"]["code"]


def post(body: bytes = b"", *headers: str, path: str = "/", version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: a", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
LAST_GET = b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n"


# --- malformed, and what proxies disagree about


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"GET / HTTP/3.7\r\nhost: a\r\n\r\n",
        b"GET / HTTP/2.0\r\nhost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\nhost: a\n\n",
        b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        post(b"zz\r\n", "transfer-encoding: chunked"),
        post(b"5\r\nhelloXX", "transfer-encoding: chunked"),
    ],
)
def test_malformed_requests_are_answered_400(loop: Loop, request_bytes: bytes) -> None:
    async def scenario() -> None:
        async with serving() as served:
            assert error_of(await served.exchange(request_bytes)) == (400, "invalid_request")

    loop.run(scenario)


@pytest.mark.parametrize(
    "headers",
    [
        ("content-length: 5", "transfer-encoding: chunked"),
        ("transfer-encoding: chunked", "content-length: 5"),
        ("content-length: 5", "content-length: 6"),
        ("content-length: 5", "content-length: 5"),
        ("content-length: 5, 5",),
        ("content-length: +5",),
        ("content-length: 0x5",),
        ("content-length: 99999999999999999999999999",),
        ("transfer-encoding: gzip",),
        ("transfer-encoding: gzip, chunked",),
        ("transfer-encoding: chunked, identity",),
        ("transfer-encoding: chunked", "transfer-encoding: chunked"),
        ("transfer-encoding : chunked",),
        ("transfer-encoding: xchunked",),
        ("content-length: 5", "connection: upgrade", "upgrade: h2c"),
    ],
)
def test_ambiguous_bodies_are_refused_and_no_app_is_asked(
    loop: Loop, headers: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        async with serving() as served:
            smuggled = post(b"0\r\n\r\n" + GET, *headers)
            assert error_of(await served.exchange(smuggled)) == (400, "invalid_request")
            assert served.app.requests == 0

    loop.run(scenario)


def test_chunks_from_an_http_1_0_client_are_refused(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            request = post(b"0\r\n\r\n", "transfer-encoding: chunked", version="1.0")
            assert error_of(await served.exchange(request)) == (400, "invalid_request")
            assert served.app.requests == 0

    loop.run(scenario)


# --- too large, too many, too long


def test_body_too_large_by_its_length_is_refused_before_any_is_read(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(body_bytes_max=1000) as served:
            request = post(b"", "content-length: 1001")
            assert error_of(await served.exchange(request)) == (413, "payload_too_large")
            assert served.app.requests == 0
            expecting = post(b"", "content-length: 1001", "expect: 100-continue")
            assert error_of(await served.exchange(expecting)) == (413, "payload_too_large")

    loop.run(scenario)


def test_body_too_large_sees_its_answer_though_the_client_goes_on_sending(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(body_bytes_max=1000, linger_ns=5 * SECOND_NS) as served:
            request = post(bytes(4_000_000), "content-length: 4000000")
            assert error_of(await served.exchange(request)) == (413, "payload_too_large")

    loop.run(scenario)


def test_body_too_large_by_its_chunks_is_refused(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(body_bytes_max=1000) as served:
            chunks = b"64\r\n" + bytes(100) + b"\r\n"
            request = post(chunks * 11, "transfer-encoding: chunked")
            assert error_of(await served.exchange(request)) == (413, "payload_too_large")
            await served.is_quiet()
            assert served.app.disconnects == 1  # told so, and not given half a body
            fitting = post(chunks * 10 + b"0\r\n\r\n", "transfer-encoding: chunked")
            assert (await served.exchange(fitting, LAST_GET)).count(b"200 OK") == 2

    loop.run(scenario)


@pytest.mark.parametrize("pieces", [1, 7])
def test_header_bomb_is_refused(loop: Loop, pieces: int) -> None:
    async def scenario() -> None:
        async with serving() as served:
            bomb = b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 40_000
            step = len(bomb) // pieces + 1
            parts = [bomb[at : at + step] for at in range(0, len(bomb), step)]
            assert error_of(await served.exchange(*parts)) == (431, "headers_too_large")
            complete = bomb + b"\r\n\r\n"
            assert error_of(await served.exchange(complete)) == (431, "headers_too_large")
            assert served.app.requests == 0

    loop.run(scenario)


def test_headers_are_measured_alone_and_to_the_byte(loop: Loop) -> None:
    """A large body, or requests in advance, in the same read are not taken for headers."""

    async def scenario() -> None:
        async with serving(head_bytes_max=1000, url_bytes_max=500) as served:
            assert b"200 OK" in await served.exchange(
                post(bytes(50_000), "content-length: 50000", "connection: close")
            )
            ahead = post(bytes(50_000), "content-length: 50000") + LAST_GET[:-2]
            assert (await served.exchange(ahead, b"\r\n")).count(b"200 OK") == 2
            filler = 1000 - len("/") - len("host" + "a") - 4 - len("connection" + "close") - 4 - 5
            fits = f"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: {'y' * filler}\r\n\r\n"
            assert b"200 OK" in await served.exchange(fits.encode())
            over = fits.replace("x: ", "x: yy", 1) + "z" * 1000
            assert error_of(await served.exchange(over.encode()))[0] == 431

    loop.run(scenario)


def test_too_many_headers_are_refused(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            many = b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 129
            assert error_of(await served.exchange(many)) == (431, "headers_too_large")
            assert error_of(await served.exchange(many + b"\r\n")) == (431, "headers_too_large")
            allowed = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n" + b"x: y\r\n" * 126
            assert b"200 OK" in await served.exchange(allowed + b"\r\n")

    loop.run(scenario)


def test_trailers_are_bounded_and_never_reach_the_app(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            start = post(b"5\r\nhello\r\n0\r\n", "transfer-encoding: chunked")
            few = start + b"authorization: x\r\n\r\n" + LAST_GET
            assert (await served.exchange(few)).count(b"200 OK") == 2
            reader, writer = await served.connect()
            writer.write(start + b"x: ")
            await until(lambda: served.app.requests == 3)
            writer.write(bytes(b"y" * 400_000))
            assert error_of(await reader.read()) == (431, "headers_too_large")

    loop.run(scenario)


def test_url_too_long_is_refused(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            url = b"/" + b"u" * 8192
            long = b"GET " + url + b" HTTP/1.1\r\nhost: a\r\n\r\n"
            assert error_of(await served.exchange(long)) == (414, "uri_too_long")
            unending = b"GET " + url * 20
            assert error_of(await served.exchange(unending)) == (414, "uri_too_long")
            fits = b"GET " + url[:8192] + b" HTTP/1.0\r\n\r\n"
            assert b"200 OK" in await served.exchange(fits)

    loop.run(scenario)


def test_one_connection_too_many_is_answered_503(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(connections_max=2) as served:
            kept = [await served.connect() for _ in range(2)]
            for reader, writer in kept:
                writer.write(GET)
                await reader.readuntil(b"\r\n\r\n/")
            refused = await served.exchange(GET)
            assert error_of(refused) == (503, "too_many_connections")
            assert b"\r\nretry-after: 1\r\n" in refused
            kept.pop()[1].close()
            await until(lambda: len(served.state.connections) < 2)
            assert b"200 OK" in await served.exchange(LAST_GET)
            kept.pop()[1].close()

    loop.run(scenario)


# --- too slow


def test_slowloris_on_headers_is_answered_408(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(head_ns=SECOND_NS // 20) as served:
            reader, writer = await served.connect()
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n")
            answered = b""
            while not reader.at_eof():
                writer.write(b"x: y\r\n")
                with suppress(TimeoutError):
                    # A piece at a time: a read of everything that is cancelled forgets its pieces.
                    answered += await asyncio.wait_for(reader.read(65536), TICK_S)
            assert error_of(answered) == (408, "request_timeout")
            writer.close()
            await served.is_quiet()

    loop.run(scenario)


def test_slowloris_on_the_body_is_answered_408(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(body_ns=SECOND_NS // 20) as served:
            request = post(b"half", "content-length: 8")
            assert error_of(await served.exchange(request)) == (408, "request_timeout")
            await served.is_quiet()
            assert served.app.requests == 0, "what is small begins when it is whole"
            request = post(b"half", "content-length: 100000")
            assert error_of(await served.exchange(request)) == (408, "request_timeout")
            await served.is_quiet()
            assert served.app.disconnects == 1

    loop.run(scenario)


def test_idle_connections_are_closed_without_a_word(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(idle_ns=SECOND_NS // 20, first_byte_ns=SECOND_NS // 20) as served:
            assert await served.exchange() == b""
            answered = await served.exchange(GET)
            assert answered.endswith(b"\r\n\r\n/")

    loop.run(scenario)


# --- when a request begins, and who serves it


class Turnstile:
    """A site that lets requests begin by `begin`, and answers those under /without-task itself."""

    door = None
    ownership = None

    def withholds(self, scope: Any) -> bool:
        raise AssertionError("nobody asks where nothing is owned for a time only")

    def end_cut_off(self, cycle: ResponseCycle) -> bool:
        return False

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def admit(self, peer: Any, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        self.waiting.append(begin)

    def line_up(self, peer: Any, head: Any, begin: Callable[[], object]) -> bool:
        return False

    def lost(self, peer: Any) -> None: ...

    def answer_without_task(self, cycle: ResponseCycle) -> bool:
        if cycle.scope["path"] != "/without-task":
            return False
        body = bytes(cycle.body)
        cycle.reply(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body), body)
        return True

    async def begin(self, count: int) -> None:
        await until(lambda: len(self.waiting) >= count)
        for _ in range(count):
            self.waiting.pop(0)()


def test_a_small_request_begins_when_it_is_whole(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(post(b"ha", "content-length: 4", "connection: close"))
            await served.exchange(LAST_GET)  # by now it was read
            assert served.app.paths == ["/last"]
            writer.write(b"lf")
            assert (await reader.read()).endswith(b"\r\n\r\nhalf")

    loop.run(scenario)


def test_a_request_in_advance_begins_when_it_is_whole(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(post(b"", "content-length: 0", path="/held"))
            writer.write(post(b"ha", "content-length: 4", "connection: close"))
            await until(lambda: served.app.requests == 1)
            served.app.release.set()
            assert b"/held" in await reader.readuntil(b"/held")
            writer.write(b"lf")
            assert (await reader.read()).endswith(b"\r\n\r\nhalf")

    loop.run(scenario)


def test_a_request_begins_in_its_turn(loop: Loop) -> None:
    async def scenario() -> None:
        site = Turnstile()
        async with serving(site) as served:
            reader, writer = await served.connect()
            writer.write(LAST_GET)
            await until(lambda: len(site.waiting) == 1)
            assert served.app.requests == 0
            await site.begin(1)
            assert (await reader.read()).endswith(b"\r\n\r\n/last")

    loop.run(scenario)


def test_a_request_whose_client_left_does_not_begin(loop: Loop) -> None:
    async def scenario() -> None:
        site = Turnstile()
        async with serving(site) as served:
            _, writer = await served.connect()
            writer.write(GET)
            await until(lambda: len(site.waiting) == 1)
            writer.transport.abort()
            await until(lambda: not served.state.connections)
            await site.begin(1)
            assert served.app.requests == 0

    loop.run(scenario)


def test_a_site_serves_a_request_itself(loop: Loop) -> None:
    async def scenario() -> None:
        site = Turnstile()
        async with serving(site) as served:
            reader, writer = await served.connect()
            for body in (b"one", b"two"):
                writer.write(post(body, "content-length: 3", path="/without-task"))
                await site.begin(1)
                assert await reader.readuntil(body) == (
                    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n" + body
                )
            writer.write(
                post(b"end", "content-length: 3", "connection: close", path="/without-task")
            )
            await site.begin(1)
            assert await reader.read() == (
                b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nend"
            )
            assert served.app.requests == 0

    loop.run(scenario)


# --- keep-alive, pipelining, 100-continue, half-close


def test_keep_alive_serves_request_after_request(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            for number in range(20):
                body = b"%06d" % number
                writer.write(post(body, "content-length: 6"))
                assert (await reader.readuntil(body)).startswith(b"HTTP/1.1 200 OK")
            assert served.state.total_requests == 20

    loop.run(scenario)


def test_pipelined_requests_are_answered_in_order(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            bodies = [b"body-%d" % number for number in range(10)]
            sent = b"".join(post(body, "content-length: 6") for body in bodies)
            answered = await served.exchange(sent + LAST_GET)
            assert answered.count(b"200 OK") == 11
            places = [answered.index(body) for body in [*bodies, b"/last"]]
            assert places == sorted(places)

    loop.run(scenario)


def test_pipelining_is_bounded(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(pipeline_max=4) as served:
            held = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n"
            reader, writer = await served.connect()
            writer.write(held + GET * 1000)
            await until(lambda: served.app.requests == 1)
            (connection,) = served.state.connections
            assert len(connection.pipeline) == 4
            served.app.release.set()
            *answers, refusal = (await reader.read()).split(b"HTTP/1.1 ")[1:]
            assert [answer[:6] for answer in answers] == [b"200 OK"] * 5
            # The rest is refused, behind the answers that were owed: nobody has to guess.
            assert refusal.startswith(b"429 ")
            assert b"connection: close" in refusal
            assert b'"limit":"pipeline_max","max":4' in refusal
            assert served.app.requests == 5

    loop.run(scenario)


def test_a_bad_request_is_refused_after_the_answers_that_are_owed(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(body_bytes_max=100) as served:
            held = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n"
            for bad in (b"nonsense\r\n\r\n", post(b"", "content-length: 101")):
                served.app.release.clear()
                served.app.requests = 0
                reader, writer = await served.connect()
                writer.write(held + GET + bad)
                await until(lambda: served.app.requests == 1)
                served.app.release.set()
                answered = await reader.read()
                assert [part[:3] for part in answered.split(b"HTTP/1.1 ")[1:3]] == [b"200"] * 2
                assert error_of(answered[answered.rindex(b"HTTP/1.1 ") :])[0] in (400, 413)

    loop.run(scenario)


def test_expect_100_continue(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(post(b"", "content-length: 5", "expect: 100-continue"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"hello")
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK")
            writer.write(LAST_GET)
            assert b"200 OK" in await reader.read()

    loop.run(scenario)


def test_expect_100_continue_that_is_answered_at_once_closes(loop: Loop) -> None:
    """The client may or may not send its body now, so what follows cannot be told apart."""

    async def scenario() -> None:
        async with serving() as served:
            request = post(b"", "content-length: 500", "expect: 100-continue", path="/refuse")
            reader, writer = await served.connect()
            writer.write(request)
            assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 401 ")
            writer.write(GET)
            assert await reader.read() == b""
            assert served.app.requests == 1

    loop.run(scenario)


def test_half_closed_client_is_answered_and_then_closed(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            answered = await served.exchange(GET, half_close=True)
            assert answered.endswith(b"\r\n\r\n/")
            await served.is_quiet()

    loop.run(scenario)


class Shut(Door):
    """Holds everybody until it is opened."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.held: list[HeldConnection] = []
        self.open = True

    def passes(self) -> bool:
        return self.open

    def wait(self, connection: HeldConnection, standing: Standing, holder: Hashable) -> None:
        self.held.append(connection)


def test_known_client_that_half_closes_while_it_waits_is_answered_in_its_turn(loop: Loop) -> None:
    async def scenario() -> None:
        site, door = Busy(), Shut()
        site.door = door
        async with serving(site) as served:
            reader, writer = await served.connect()
            writer.write(GET)
            assert (await reader.readuntil(b"\r\n\r\n/")).startswith(b"HTTP/1.1 200 ")
            door.open = False
            writer.write(GET)
            await until(lambda: bool(door.held))
            (connection,) = served.state.connections
            writer.write_eof()
            await until(lambda: not connection.transport.is_reading())
            assert served.app.requests == 1
            door.held[0].read_held()
            assert (await reader.read()).endswith(b"\r\n\r\n/")
            assert served.app.requests == 2
            await served.is_quiet()

    loop.run(scenario)


def test_unknown_client_that_hangs_up_while_it_waits_is_let_go_unread(loop: Loop) -> None:
    async def scenario() -> None:
        site, door = Busy(), Shut()
        site.door = door
        async with serving(site) as served:
            door.open = False
            assert await served.exchange(GET, half_close=True) == b""
            assert served.app.requests == 0
            await served.is_quiet()

    loop.run(scenario)


@pytest.mark.parametrize(
    "part", [b"", b"GE", b"GET / HTTP/1.1\r\nho", post(b"half", "content-length: 8")]
)
def test_half_closed_in_the_midst_of_a_request_leaves_nothing_behind(
    loop: Loop, part: bytes
) -> None:
    async def scenario() -> None:
        async with serving() as served:
            assert await served.exchange(part, half_close=True) == b""
            await served.is_quiet()

    loop.run(scenario)


def test_a_wish_for_another_protocol_is_ignored(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            wish = b"GET /h2 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
            answered = await served.exchange(wish + LAST_GET)
            assert answered.count(b"200 OK") == 2
            assert served.app.paths == ["/h2", "/last"]

    loop.run(scenario)


def test_nothing_secret_is_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as served:
            secret = "authorization: Bearer s3cret"
            path = "/?ticket=s3cret&token=s3cret"
            assert b"200 OK" in await served.exchange(post(b"", secret, "connection: close"))
            await served.exchange(post(b"", "content-length: 0", "connection: close", path=path))
            await served.exchange(post(b"", secret, "content-length: x", path=path))

    with caplog.at_level(logging.DEBUG):
        loop.run(scenario)
    assert caplog.records
    assert "s3cret" not in caplog.text


# --- streams


class Watcher:
    """A raw client of /stream that reads only when told to, through a small kernel buffer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
        self.socket.setblocking(False)
        self.port = port
        self.received = bytearray()

    async def start(self, request: bytes = STREAM) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, ("127.0.0.1", self.port))
        await loop.sock_sendall(self.socket, request)
        while b"\r\n\r\n" not in self.received:
            self.received += await loop.sock_recv(self.socket, 1)

    async def read(self, size: int) -> bytes:
        """Take `size` bytes of what follows the head."""
        loop = asyncio.get_running_loop()
        taken = bytearray()
        while len(taken) < size:
            data = await loop.sock_recv(self.socket, min(64 * KIB, size - len(taken)))
            assert data, "the server has closed"
            taken += data
        return bytes(taken)


async def watchers(served: Served, count: int) -> list[tuple[Watcher, ResponseStream]]:
    pairs = []
    for number in range(count):
        watcher = Watcher(served.port)
        await watcher.start()
        await until(lambda expected=number + 1: len(served.app.streams) == expected)
        pairs.append((watcher, served.app.streams[-1]))
    return pairs


def test_slow_watchers_are_refused_and_the_fast_one_does_not_notice(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving(stream_buffer_bytes=64 * KIB, kernel_buffer_bytes=16 * KIB) as served:
            pairs = await watchers(served, 3)
            (fast, fast_stream), *slow = pairs
            frame = ResponseStream.chunk(bytes(4 * KIB))
            taken = dict.fromkeys(range(3), 0)
            for _ in range(200):
                for number, (_, stream) in enumerate(pairs):
                    taken[number] += stream.write(frame)
                    assert stream.buffered <= 64 * KIB
                assert await fast.read(len(frame)) == frame
            assert taken[0] == 200
            assert fast_stream.writable
            for number, (_, stream) in enumerate(slow, 1):
                assert 10 < taken[number] < 100
                assert not stream.writable
                assert not stream.write(b"1\r\nx\r\n")
            assert served.app.writable == []
            # They drain, are told once, and what was accepted arrives whole and in order.
            for number, (watcher, stream) in enumerate(slow, 1):
                assert await watcher.read(taken[number] * len(frame)) == frame * taken[number]
                await until(lambda stream=stream: stream.writable)
                assert stream.write(frame)
                assert await watcher.read(len(frame)) == frame
            assert served.app.writable == [stream for _, stream in slow]
            for watcher, _ in pairs:
                watcher.socket.close()

    loop.run(scenario)


def test_the_kernels_part_of_a_streams_buffer_is_bounded(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            [(watcher, stream)] = await watchers(served, 1)
            await fill(stream)
            (connection,) = served.state.connections
            ours = connection.transport.get_write_buffer_size()
            assert ours > 0
            assert 0 < stream.buffered - ours <= 128 * KIB
            assert 200 * KIB < stream.buffered <= 256 * KIB
            held = connection.transport.get_extra_info("socket")
            assert held.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 128 * KIB
            assert held.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            watcher.socket.close()
            await until(lambda: served.app.closed == [stream])

    loop.run(scenario)


def test_a_frame_larger_than_the_buffer_passes_through(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            [(watcher, stream)] = await watchers(served, 1)
            large = ResponseStream.chunk(bytes(2_000_000))
            assert stream.write(large)
            assert not stream.write(large)
            assert await watcher.read(len(large)) == large
            await until(lambda: served.app.writable == [stream])
            assert stream.write(large)
            assert await watcher.read(len(large)) == large
            watcher.socket.close()

    loop.run(scenario)


@pytest.mark.parametrize("how", ["close", "reset", "half-close", "half-close while stuck"])
def test_a_watcher_that_leaves_is_noticed(loop: Loop, how: str) -> None:
    async def scenario() -> None:
        async with serving() as served:
            [(watcher, stream)] = await watchers(served, 1)
            if how == "half-close while stuck":
                await fill(stream)
            if how == "reset":
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                watcher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if how.startswith("half-close"):
                watcher.socket.shutdown(socket.SHUT_WR)
            else:
                watcher.socket.close()
            await until(lambda: served.app.closed == [stream])
            await served.is_quiet()
            assert stream.closed
            assert not stream.write(b"late")
            watcher.socket.close()

    loop.run(scenario)


def test_a_finished_stream_keeps_the_connection_alive(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(STREAM)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"\r\ntransfer-encoding: chunked\r\n" in head
            (stream,) = served.app.streams
            stream.write(ResponseStream.chunk(b"data: 1\n\n"))
            stream.finish()
            assert await reader.readuntil(b"0\r\n\r\n") == b"9\r\ndata: 1\n\n\r\n0\r\n\r\n"
            writer.write(LAST_GET)
            assert (await reader.read()).endswith(b"/last")
            assert served.app.closed == []

    loop.run(scenario)


def test_a_stream_for_http_1_0_is_bare_bytes_until_the_close(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            reader, writer = await served.connect()
            writer.write(b"GET /stream HTTP/1.0\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"transfer-encoding" not in head
            assert b"\r\nconnection: close\r\n" in head
            (stream,) = served.app.streams
            assert not stream.chunked
            stream.write(b"data: 1\n\n")
            stream.finish()
            assert await reader.read() == b"data: 1\n\n"

    loop.run(scenario)


def test_an_aborted_stream_is_cut_off(loop: Loop) -> None:
    async def scenario() -> None:
        async with serving() as served:
            [(watcher, stream)] = await watchers(served, 1)
            stream.abort()
            assert not stream.writable
            await until(lambda: served.app.closed == [stream])
            await served.is_quiet()
            watcher.socket.close()

    loop.run(scenario)


# --- under uvicorn's own server


@asynccontextmanager
async def hosted(app: Any, **options: Any) -> AsyncIterator[Served]:
    """A whole uvicorn server, ended by a graceful shutdown."""
    listener = socket.create_server(("127.0.0.1", 0))
    options = {"log_config": None, "lifespan": "off", "ws": "none", **options}
    protocol = HttpProtocol.limited_to(HttpLimits(linger_ns=LINGER_NS))
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, **options))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve([listener]))
        await until(lambda: server.started)
        served = Served(app, server.server_state, listener.getsockname()[1])
        yield served
        server.should_exit = True
    await served.hang_up()


def test_graceful_shutdown_ends_streams_and_finishes_answers(loop: Loop) -> None:
    async def scenario() -> None:
        app = App()
        async with hosted(app) as served:
            pairs = await watchers(served, 3)
            await fill(pairs[-1][1])
            reader, writer = await served.connect()
            writer.write(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: app.paths[-1] == "/held")
            pairs[0][1].on_closed = app.release.set  # so the answer is given during the shutdown
        assert (await reader.read()).endswith(b"/held")
        for watcher, _ in pairs[:2]:
            assert await watcher.read(5) == b"0\r\n\r\n"
        assert all(stream.closed for _, stream in pairs)
        assert not served.state.connections
        assert not served.state.tasks
        for watcher, _ in pairs:
            watcher.socket.close()

    loop.run(scenario)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, so there is no certificate to test TLS with")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)]
    subprocess.run([*command, "-out", str(cert)], check=True, capture_output=True)
    return key, cert


def test_tls(loop: Loop, certificate: tuple[Path, Path]) -> None:
    async def scenario() -> None:
        app = App()
        key, cert = certificate
        trust = ssl.create_default_context(cafile=str(cert))
        options = {"ssl_keyfile": str(key), "ssl_certfile": str(cert)}
        async with hosted(app, **options) as served:
            secure = {"ssl": trust, "server_hostname": "localhost", "limit": 4 * KIB}
            reader, writer = await served.connect(**secure)
            writer.write(b"nonsense\r\n\r\n")
            assert error_of(await reader.read()) == (
                400,
                "invalid_request",
            )
            writer.close()
            reader, writer = await served.connect(**secure)
            writer.write(STREAM)
            await reader.readuntil(b"\r\n\r\n")
            (stream,) = app.streams
            taken = await fill(stream)
            assert 200 * KIB < len(taken) < 8_000 * KIB  # the client's kernel holds a part
            assert await reader.readexactly(len(taken)) == taken
            await until(lambda: app.writable == [stream])
            assert stream.write(b"1\r\nx\r\n")
            await reader.readexactly(6)
            writer.close()
            await until(lambda: app.closed == [stream])

    loop.run(scenario)


WEBSOCKET = (
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_websockets_are_handed_over(loop: Loop) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "websocket"
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await receive()

    async def scenario() -> None:
        async with hosted(app, ws="websockets-sansio") as served:
            reader, writer = await served.connect()
            writer.write(WEBSOCKET)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            assert (await reader.readexactly(7)).endswith(b"hello")
            writer.close()
            await served.is_quiet()

    loop.run(scenario)


def test_a_websocket_cannot_be_asked_for_behind_an_unanswered_request(loop: Loop) -> None:
    async def scenario() -> None:
        app = App()
        async with hosted(app, ws="websockets-sansio") as served:
            reader, writer = await served.connect()
            writer.write(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n" + WEBSOCKET)
            await until(lambda: app.requests == 1)
            app.release.set()
            answered = await reader.read()
            assert answered.startswith(b"HTTP/1.1 200 OK")
            assert error_of(answered[answered.rindex(b"HTTP/1.1 ") :])[0] == 400

    loop.run(scenario)

"""The HTTP protocol on virtual time: exact deadlines, and a stream's buffer against a transport
that drains when told to."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidConfig
from fairway.server.http.limits import CROWDED, SECOND_NS, HttpLimits
from fairway.server.http.protocol import HttpProtocol
from fairway.server.http.response import EXTENSION, ResponseStream
from fairway.testing import run
from tests.support.http_protocol import (
    KIB,
    LIMITS,
    Client,
    echo,
    end_of,
    on_virtual_time,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


async def silent(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


# --- limits


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="head_ns"):
        HttpLimits(head_ns=0)
    with pytest.raises(InvalidConfig, match="url_bytes_max"):
        HttpLimits(url_bytes_max=64 * KIB)
    with pytest.raises(InvalidConfig, match="kernel_buffer_bytes"):
        HttpLimits(stream_buffer_bytes=64 * KIB)


def test_a_refusal_is_exactly_our_error_body() -> None:
    head, _, body = CROWDED.render([(b"date", b"today")]).partition(b"\r\n\r\n")
    error = {"code": "too_many_connections", "message": "the server has no free connection"}
    assert json.loads(body) == {"error": error}
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 503 Service Unavailable",
        b"date: today",
        b"retry-after: 1",
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]


# --- deadlines


def test_a_connection_that_says_nothing_is_closed_without_a_word(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        assert await end_of(client) == pytest.approx(3)
        assert client.transport.sent == b""

    on_virtual_time(scenario)


@pytest.mark.parametrize("pause", [0.5, 2.0, 9.0])
def test_headers_have_their_deadline_from_the_first_byte(held: socket.socket, pause: float) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        for byte in b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x" * 1000:
            client.send(bytes([byte]))
            await asyncio.sleep(pause)
            if client.transport.sent:
                break
        assert (client.status, client.error) == (408, "request_timeout")
        assert client.transport.eof
        assert await end_of(client) == pytest.approx(11)  # one second for reading the answer
        assert client.transport.aborted

    on_virtual_time(scenario)


def test_empty_lines_do_not_keep_a_connection_open(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        while client.transport.ended_at is None:
            client.send(b"\r\n")
            await asyncio.sleep(0.5)
        assert client.transport.ended_at == pytest.approx(3)

    on_virtual_time(scenario)


@pytest.mark.parametrize(("rate", "granted_s"), [(0, 30), (10, 33), (50, 60)])
def test_a_body_has_its_deadline_extended_by_what_arrives(
    held: socket.socket, rate: int, granted_s: float
) -> None:
    """At 100 bytes a second for a second more, 30 s become 30 / (1 - rate / 100)."""

    async def scenario() -> None:
        client = Client(echo, held)
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n")
        while not client.transport.sent:
            await asyncio.sleep(1)
            if rate:
                client.send(b"x" * rate)
        assert (client.status, client.error) == (408, "request_timeout")
        assert asyncio.get_running_loop().time() == pytest.approx(granted_s, abs=2)
        await end_of(client)
        assert not client.state.tasks

    on_virtual_time(scenario)


def test_a_body_at_the_least_rate_may_last_for_ever(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(1000):
            await asyncio.sleep(1)
            client.send(b"x" * 100)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client.status == 200

    on_virtual_time(scenario)


def test_keep_alive_counts_from_the_last_answer(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        for _ in range(10):
            client.send(GET)
            await asyncio.sleep(4)
        assert client.transport.sent.count(b"200 OK") == 10
        assert await end_of(client) == pytest.approx(36 + 5)
        assert not client.transport.aborted

    on_virtual_time(scenario)


def test_an_app_may_take_its_time(held: socket.socket) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(500)
        await echo(scope, receive, send)

    async def scenario() -> None:
        client = Client(slow, held)
        client.send(GET)
        assert await end_of(client) == pytest.approx(505)
        assert client.status == 200

    on_virtual_time(scenario)


def test_a_body_that_comes_after_its_answer_ends_in_keep_alive(held: socket.socket) -> None:
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401})
        await send({"type": "http.response.body"})

    async def scenario() -> None:
        client = Client(hasty, held)
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n")
        await asyncio.sleep(2)
        client.send(b"hello" + GET)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client.transport.sent.count(b"401 Unauthorized") == 2
        assert await end_of(client) == pytest.approx(7)

    on_virtual_time(scenario)


def test_a_client_that_takes_in_nothing_is_dropped(held: socket.socket) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for _ in range(10):
            await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})

    async def scenario() -> None:
        client = Client(large, held)
        client.transport.stuck = True
        client.send(GET)
        await asyncio.sleep(15)
        client.transport.drain(90_000)  # takes in a little, so it is only slow
        assert await end_of(client) == pytest.approx(40)
        assert client.transport.aborted

    on_virtual_time(scenario)


def test_asking_again_is_no_way_out_for_a_client_that_takes_in_nothing(
    held: socket.socket,
) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-length", b"1000000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(1_000_000)})

    async def scenario() -> None:
        client = Client(large, held)
        client.transport.stuck = True
        for _ in range(2):
            client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello")
            for _ in range(5):
                await asyncio.sleep(0)
        assert await end_of(client) == pytest.approx(20)

    on_virtual_time(scenario)


def test_half_closed_client_is_answered_if_it_is_soon(held: socket.socket) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2)
        await echo(scope, receive, send)

    async def scenario() -> None:
        client = Client(slow, held)
        client.send(GET)
        assert client.protocol.eof_received() is True
        assert await end_of(client) == pytest.approx(2)
        assert client.status == 200

    on_virtual_time(scenario)


def test_half_closed_client_does_not_hold_a_long_request(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(silent, held)
        client.send(GET)
        assert client.protocol.eof_received() is True
        assert await end_of(client) == pytest.approx(4)
        assert not client.state.tasks

    on_virtual_time(scenario)


def test_half_closed_client_may_take_in_a_long_answer_slowly(held: socket.socket) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": bytes(100_000)})

    async def scenario() -> None:
        client = Client(large, held)
        client.transport.stuck = True
        client.send(GET)
        client.protocol.eof_received()
        for left in range(100_000, 0, -10_000):
            await asyncio.sleep(15)
            client.transport.drain(left)
        assert client.transport.ended_at is None
        assert await end_of(client) == pytest.approx(180, abs=20)

    on_virtual_time(scenario)


def test_a_client_that_drains_after_its_answer_is_idle_from_then(held: socket.socket) -> None:
    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": bytes(100_000)})

    async def scenario() -> None:
        client = Client(large, held)
        client.transport.stuck = True
        client.send(GET)
        await asyncio.sleep(2)
        client.transport.drain()
        assert await end_of(client) == pytest.approx(7)

    on_virtual_time(scenario)


def test_a_large_answer_that_is_not_read_is_held_no_longer_than_a_stall(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        limits = HttpLimits(stall_ns=20 * SECOND_NS, idle_ns=75 * SECOND_NS)
        client = Client(megabyte, held, limits)
        client.transport.stuck = True
        client.send(GET)
        assert await end_of(client) == pytest.approx(20)

    on_virtual_time(scenario)


async def megabyte(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"%d" % 2**20)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(2**20)})


# --- bytes over all connections


def test_answers_that_nobody_reads_are_counted_over_all_connections(held: socket.socket) -> None:
    async def scenario() -> None:
        http = HttpProtocol.limited_to(HttpLimits(held_bytes_max=3 * 2**20))
        deaf = [Client(megabyte, held, http=http) for _ in range(4)]
        for client in deaf:
            client.transport.stuck = True
            client.send(GET)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert [client.status for client in deaf] == [200, 200, 429, 429]
        assert b"retry-after: 1\r\n" in deaf[-1].transport.sent
        assert deaf[-1].error == "throttled"
        assert 2 * 2**20 <= http.held.used <= 3 * 2**20
        deaf[0].transport.drain()
        reads = Client(megabyte, held, http=http)
        reads.send(GET)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reads.status == 200, "there is room again"
        for client in (*deaf, reads):
            client.transport.abort()
        await asyncio.sleep(1)
        assert http.held.used == 0

    on_virtual_time(scenario)


def test_answers_that_wait_behind_unread_ones_are_counted(held: socket.socket) -> None:
    async def scenario() -> None:
        http = HttpProtocol.limited_to(HttpLimits(held_bytes_max=3 * 2**20 + KIB))
        deaf = [Client(megabyte, held, http=http) for _ in range(2)]
        for client in deaf:
            client.transport.stuck = True
            client.send(GET * 4)
            for _ in range(4):
                await asyncio.sleep(0)
        assert [client.status for client in deaf] == [200, 200]
        assert 3 * 2**20 <= http.held.used <= 3 * 2**20 + KIB, "two are written, and one waits"
        assert deaf[1].transport.sent.count(b"HTTP/1.1 429") == 1, "no room for it to wait"
        deaf[0].transport.drain()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert deaf[0].transport.sent.count(b"HTTP/1.1 200") == 2
        for client in deaf:
            client.transport.abort()
        await asyncio.sleep(3600)
        assert http.held.used == 0

    on_virtual_time(scenario)


def test_a_large_answer_is_written_in_pieces_that_are_let_go_as_they_are_sent(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        client = Client(megabyte, held)
        client.send(GET)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client.transport.sent.endswith(b"\r\n\r\n" + bytes(2**20))
        assert client.transport.writes >= 4

    on_virtual_time(scenario)


def test_bodies_that_come_slowly_are_counted_over_all_connections(held: socket.socket) -> None:
    async def scenario() -> None:
        http = HttpProtocol.limited_to(HttpLimits(held_bytes_max=2**20))
        slow = [Client(echo, held, http=http) for _ in range(4)]
        for client in slow:
            client.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10000000\r\n\r\n")
            for _ in range(5):
                client.send(bytes(64 * KIB))
                await asyncio.sleep(0)
        assert [client.status if client.transport.sent else None for client in slow] == [
            *(None, None, None),
            429,
        ]
        assert http.held.used <= 2**20
        small = Client(echo, held, http=http)
        small.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nsome")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert small.status == 200, "small requests go on"
        for client in (*slow, small):
            client.transport.abort()
        await asyncio.sleep(3600)
        assert http.held.used == 0

    on_virtual_time(scenario)


def test_a_body_counts_until_it_is_answered(held: socket.socket) -> None:
    async def scenario() -> None:
        http = HttpProtocol.limited_to(HttpLimits(held_bytes_max=2**21))
        client = Client(echo, held, http=http)
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 600000\r\n\r\n"
        for _ in range(3):
            client.send(head + bytes(600_000))
            assert http.held.used == 600_000
            for _ in range(3):
                await asyncio.sleep(0)
            assert http.held.used == 0
        assert client.transport.sent.count(b"200 OK") == 3

    on_virtual_time(scenario)


def test_http_1_0_is_not_told_to_continue(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        client.send(b"POST / HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not client.transport.sent
        client.send(b"some")
        await end_of(client)
        assert client.transport.sent.startswith(b"HTTP/1.1 200")
        assert client.transport.sent.endswith(b"some")

    on_virtual_time(scenario)


@pytest.mark.parametrize("target", [b"/t#1", b"/t?a=1#b", b"/#", b"/t#"])
def test_a_fragment_in_the_target_is_refused(held: socket.socket, target: bytes) -> None:
    async def scenario() -> None:
        client = Client(echo, held)
        client.send(b"DELETE %b HTTP/1.1\r\nhost: a\r\n\r\n" % target)
        await asyncio.sleep(0)
        assert client.status == 400
        assert client.error == "invalid_request"
        assert b"%23" in client.transport.sent

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 80000\r\n\r\n", bytes(80_000)),
        (GET, GET + GET),
    ],
)
def test_a_client_is_not_late_while_it_is_we_who_do_not_read(
    held: socket.socket, first: bytes, rest: bytes
) -> None:
    reads = asyncio.Event()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await reads.wait()
        await echo(scope, receive, send)

    async def scenario() -> None:
        client = Client(later, held)
        client.send(first + rest[:-5])
        await asyncio.sleep(3000)
        reads.set()
        await asyncio.sleep(0)
        client.send(rest[-5:])
        await end_of(client)
        assert client.transport.sent.count(b"200 OK") == (first + rest).count(b"HTTP/1.1")

    on_virtual_time(scenario)


def test_a_refused_body_is_told_to_the_app_at_once(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(silent, held, HttpLimits(body_bytes_max=10))
        client.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(0)
        assert client.state.tasks
        client.send(b"b\r\nhello world\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client.status == 413
        assert not client.state.tasks
        assert client.transport.ended_at is None

    on_virtual_time(scenario)


def test_trailers_do_not_become_headers(held: socket.socket) -> None:
    seen: list[list[tuple[bytes, bytes]]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        seen.append(scope["headers"])

    async def scenario() -> None:
        client = Client(app, held)
        client.send(WHOLE[3])
        await asyncio.sleep(0)
        assert seen == [[(b"host", b"a"), (b"transfer-encoding", b"chunked")]]

    on_virtual_time(scenario)


def test_trailers_do_not_become_headers_of_the_next_request_either(held: socket.socket) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        seen.append(scope["method"])

    async def scenario() -> None:
        client = Client(app, held)
        client.send(WHOLE[3].replace(b"trailer: z", b"host: b\r\nexpect: 100-continue"))
        await asyncio.sleep(0)
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await asyncio.sleep(0)
        assert seen == ["POST", "GET"]
        assert client.transport.ended_at is None

    on_virtual_time(scenario)


# --- answers


def answering(*messages: dict[str, Any]) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


LENGTH_5 = (b"Content-Length", b"5")
HEAD_REQUEST = GET.replace(b"GET", b"HEAD")
OLD_GET = b"GET / HTTP/1.0\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "messages", "sent"),
    [
        (GET, [start(200, LENGTH_5), body(b"hello")], b"content-length: 5\r\n\r\nhello"),
        (GET, [start(), body(b"hello")], b"chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        (GET, [start(), body(b"a", more=True), body()], b"\r\n\r\n1\r\na\r\n0\r\n\r\n"),
        (GET, [start(), body(more=True), body(b"a")], b"\r\n\r\n1\r\na\r\n0\r\n\r\n"),
        (GET, [start(204), body()], b"HTTP/1.1 204 No Content\r\n\r\n"),
        (HEAD_REQUEST, [start(200, LENGTH_5), body(b"hello")], b"content-length: 5\r\n\r\n"),
        (HEAD_REQUEST, [start(), body(b"hello")], b"HTTP/1.1 200 OK\r\n\r\n"),
        (OLD_GET, [start(), body(b"hello")], b"OK\r\nconnection: close\r\n\r\nhello"),
        (GET, [start(200, (b"connection", b"close")), body()], b"close\r\n\r\n0\r\n\r\n"),
    ],
)
def test_an_answer_on_the_wire(
    held: socket.socket, request_bytes: bytes, messages: list[dict[str, Any]], sent: bytes
) -> None:
    async def scenario() -> None:
        client = Client(answering(*messages), held)
        client.send(request_bytes)
        await asyncio.sleep(0)
        expected = sent.replace(b"close\r\n\r\n0", b"close\r\ntransfer-encoding: chunked\r\n\r\n0")
        assert client.transport.sent.endswith(expected)
        assert client.transport.closed_by_us == (b"connection: close" in client.transport.sent)

    on_virtual_time(scenario)


def test_head_and_body_leave_in_one_write(held: socket.socket) -> None:
    async def scenario() -> None:
        for size, writes in ((5, 1), (100_000, 2)):  # a large body is not copied behind its head
            client = Client(answering(start(), body(bytes(size))), held)
            client.send(GET)
            await asyncio.sleep(0)
            assert client.transport.writes == writes

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [start()],
        [start(200, (b"a", b"b\r\nset-cookie: c")), body()],
        [start(), start()],
        [start(200, LENGTH_5), body(b"too long")],
        [start(200, LENGTH_5), body(b"few")],
        [body(b"no start")],
    ],
)
def test_an_app_that_breaks_the_rules_is_answered_500(
    held: socket.socket, messages: list[dict[str, Any]]
) -> None:
    async def scenario() -> None:
        client = Client(answering(*messages), held)
        client.send(GET)
        await asyncio.sleep(0)
        assert (client.status, client.error) == (500, "internal")
        assert client.transport.sent.count(b"HTTP/1.1") == 1
        assert client.transport.closed_by_us

    on_virtual_time(scenario)


def test_an_app_that_fails_within_its_answer_is_cut_off(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(answering(start(), body(b"a", more=True), start()), held)
        client.send(GET)
        await asyncio.sleep(0)
        assert client.transport.sent.endswith(b"1\r\na\r\n")
        assert client.transport.closed_by_us

    on_virtual_time(scenario)


# --- however the bytes arrive

WHOLE = [
    GET,
    b"\r\nGET /a?b=c HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\nhello world",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\ntrailer: z\r\n\r\n",
]
LAST = [
    b"",
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"GET /" + b"u" * 300 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * 9 + b"\r\n",
    b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 500 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 101\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n65\r\n"
    + b"x" * 101
    + b"\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nz\r\n",
]
SMALL = HttpLimits(url_bytes_max=200, head_bytes_max=400, header_count_max=8, body_bytes_max=100)


@given(
    whole=st.lists(st.sampled_from(WHOLE), max_size=5),
    last=st.sampled_from(LAST),
    cuts=st.lists(st.integers(0, 1500), max_size=20),
    turns=st.integers(0, 3),
)
def test_the_answers_do_not_depend_on_how_the_bytes_arrive(
    whole: list[bytes], last: bytes, cuts: list[int], turns: int
) -> None:
    sent = b"".join(whole) + last
    at = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    parts = [sent[start:end] for start, end in pairwise(at)]

    async def answers(parts: list[bytes]) -> bytes:
        with socket.socket() as held:
            client = Client(echo, held, SMALL)
            for part in parts:
                client.send(part)
                for _ in range(turns):
                    await asyncio.sleep(0)
            await end_of(client)
            assert not client.state.tasks
            return bytes(client.transport.sent)

    at_once = run(answers([sent]), seed=1, quiet=True)
    assert at_once.count(b"HTTP/1.1 200 OK") == len(whole)
    assert at_once.count(b"HTTP/1.1 4") == bool(last)
    in_parts = run(answers(parts), seed=1, quiet=True)
    reason = re.compile(rb'"message":"[^"]*"|content-length: \d+')  # a parser's words may differ
    assert reason.sub(b"", in_parts) == reason.sub(b"", at_once)


def test_a_head_is_not_charged_for_the_request_before_it(held: socket.socket) -> None:
    async def scenario() -> None:
        client = Client(echo, held, SMALL)
        post = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n" + bytes(100)
        client.send(post * 4 + GET[:-10])
        client.send(GET[-10:-5])
        client.send(GET[-5:])
        await end_of(client)
        assert client.transport.sent.count(b"200 OK") == 5

    on_virtual_time(scenario)


@given(st.lists(st.one_of(st.binary(max_size=50), st.sampled_from(WHOLE + LAST)), max_size=8))
def test_no_bytes_break_the_protocol_or_leave_anything_behind(parts: list[bytes]) -> None:
    async def scenario() -> None:
        with socket.socket() as held:
            client = Client(echo, held, SMALL)
            for part in parts:
                if client.transport.ended_at is None:
                    client.send(part)
                    await asyncio.sleep(0)
            await end_of(client)
            assert not client.state.tasks
            assert b"HTTP/1.1 500" not in client.transport.sent

    on_virtual_time(scenario)


# --- streams


class Streaming:
    """An app that opens a stream and hands its response to the test."""

    def __init__(self) -> None:
        self.opened: list[ResponseStream] = []
        self.events: list[str] = []
        self.ended = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response: ResponseStream = scope["extensions"][EXTENSION]
        response.on_closed = lambda: self.events.append("closed")
        response.on_writable = lambda: self.events.append("writable")
        response.open(200, [(b"content-type", b"text/event-stream")])
        self.opened.append(response)
        await response.wait_ended()
        self.ended += 1


async def open_stream(
    held: socket.socket, limits: HttpLimits = LIMITS
) -> tuple[Client, Streaming, ResponseStream]:
    app = Streaming()
    client = Client(app, held, limits)
    client.send(GET)
    await asyncio.sleep(0)
    return client, app, app.opened[0]


def test_a_chunk_is_framed_once() -> None:
    assert ResponseStream.chunk(b"hello") == b"5\r\nhello\r\n"
    assert ResponseStream.chunk(b"x" * 300) == b"12c\r\n" + b"x" * 300 + b"\r\n"
    with pytest.raises(AssertionError):
        ResponseStream.chunk(b"")


def test_a_write_that_does_not_fit_writes_nothing_until_half_has_drained(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        client, app, stream = await open_stream(held)
        client.transport.stuck = True
        frame = bytes(10 * KIB)
        while stream.write(frame):
            pass
        assert stream.buffered == 250 * KIB
        assert not stream.writable
        sent = len(client.transport.sent)
        client.transport.drain(200 * KIB)
        assert not stream.write(b"small")  # or it would overtake the frame that was refused
        assert len(client.transport.sent) == sent
        assert app.events == []
        # The kernel is taken to be full: 128 KiB of it are half the limit already.
        client.transport.drain(0)
        assert app.events == ["writable"]
        assert stream.writable
        assert stream.write(frame)
        client.transport.drain(0)
        assert app.events == ["writable"]

    on_virtual_time(scenario)


def test_a_frame_larger_than_the_limit_is_taken_when_nothing_waits(held: socket.socket) -> None:
    async def scenario() -> None:
        client, app, stream = await open_stream(held)
        client.transport.stuck = True
        assert stream.write(b"1")
        assert not stream.write(bytes(1000 * KIB))
        client.transport.drain(0)
        assert app.events == ["writable"]
        assert stream.write(bytes(1000 * KIB))
        assert not stream.write(b"1")

    on_virtual_time(scenario)


def test_writable_means_that_the_refused_frame_has_room_now(held: socket.socket) -> None:
    async def scenario() -> None:
        limits = HttpLimits(stream_buffer_bytes=1024 * KIB)
        client, app, stream = await open_stream(held, limits)
        client.transport.stuck = True
        assert stream.write(bytes(600 * KIB))
        assert not stream.write(bytes(700 * KIB))
        client.transport.drain(300 * KIB)  # below half the limit, and yet 700 do not fit
        assert app.events == []
        client.transport.drain(190 * KIB)
        assert app.events == ["writable"]
        assert stream.write(bytes(700 * KIB))

    on_virtual_time(scenario)


def test_finish_ends_the_response_and_keeps_the_connection(held: socket.socket) -> None:
    async def scenario() -> None:
        client, app, stream = await open_stream(held)
        stream.write(ResponseStream.chunk(b"hello"))
        stream.finish()
        assert client.transport.sent.endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        assert not stream.write(b"late")
        stream.finish()
        stream.abort()
        client.send(GET)
        await asyncio.sleep(1)
        assert (app.ended, len(app.opened), app.events) == (1, 2, [])
        stream.finish()  # of the first request: not the second's business
        assert app.opened[1].writable

    on_virtual_time(scenario)


def test_a_stream_is_gone_when_its_client_half_closes(held: socket.socket) -> None:
    async def scenario() -> None:
        client, app, stream = await open_stream(held)
        client.protocol.eof_received()
        await asyncio.sleep(1)
        assert app.events == ["closed"]
        assert (stream.closed, app.ended, client.transport.aborted) == (True, 1, True)
        assert not stream.write(b"late")

    on_virtual_time(scenario)


@pytest.mark.parametrize("leaves", ["altogether", "half"])
def test_a_stream_opened_for_a_client_that_has_left_is_closed(
    held: socket.socket, leaves: str
) -> None:
    async def late(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await app(scope, receive, send)

    app = Streaming()

    async def scenario() -> None:
        client = Client(late, held)
        client.send(GET)
        await asyncio.sleep(0.5)
        if leaves == "half":
            client.protocol.eof_received()
        else:
            client.transport.lose()
        await asyncio.sleep(1)
        assert (app.events, app.ended) == (["closed"], 1)
        assert client.transport.ended_at is not None

    on_virtual_time(scenario)


def test_requests_behind_a_stream_are_dropped_and_the_connection_closed_after_it(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        client, app, stream = await open_stream(held)
        client.send(GET * 5000)
        client.send(b"anything")
        assert not client.protocol.pipeline
        stream.finish()
        await asyncio.sleep(1)
        assert len(app.opened) == 1
        assert client.transport.ended_at is not None

    on_virtual_time(scenario)


def test_a_stream_with_requests_already_behind_it_says_that_it_closes(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        app = Streaming()
        client = Client(app, held)
        client.send(GET + GET)
        await asyncio.sleep(0)
        assert b"\r\nconnection: close\r\n" in client.transport.sent
        client.protocol.eof_received()
        await asyncio.sleep(0)
        assert app.events == ["closed"]

    on_virtual_time(scenario)


def test_a_response_is_opened_once(held: socket.socket) -> None:
    async def scenario() -> None:
        _, _, stream = await open_stream(held)
        with pytest.raises(RuntimeError, match="opened once"):
            stream.open(200, [])

    on_virtual_time(scenario)


def test_a_header_cannot_smuggle_another(held: socket.socket) -> None:
    refused: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            scope["extensions"][EXTENSION].open(200, [(b"a", b"b\r\nset-cookie: c")])
        except ValueError as error:
            refused.append(str(error))
        await echo(scope, receive, send)

    async def scenario() -> None:
        client = Client(app, held)
        client.send(GET)
        await asyncio.sleep(0)
        assert refused
        assert client.status == 200

    on_virtual_time(scenario)


def test_shutdown_ends_a_stream_even_if_its_client_is_stuck(held: socket.socket) -> None:
    async def scenario() -> None:
        client, app, stream = await open_stream(held)
        client.transport.stuck = True
        stream.write(b"x" * KIB)
        client.protocol.shutdown()
        assert not stream.write(b"late")
        await asyncio.sleep(0)
        assert app.events == ["closed"]
        assert client.transport.sent.endswith(b"0\r\n\r\n")
        assert await end_of(client) == pytest.approx(1)
        assert client.transport.aborted
        assert app.ended == 1

    on_virtual_time(scenario)

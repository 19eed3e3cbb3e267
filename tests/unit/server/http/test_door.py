"""Connections that are held at the door: nothing is lost, late, or left behind."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from fairway.runtime.turn import TURN
from fairway.server.http.limits import HttpLimits
from fairway.server.http.protocol import HttpProtocol
from fairway.server.http.read_turns import Standing
from fairway.testing import run
from tests.support.http_protocol import KIB, Busy, Client, echo

if TYPE_CHECKING:
    from collections.abc import Iterator


POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nsome"


class Crowd:
    """Clients of one server, more than one turn has time for."""

    def __init__(self, held: socket.socket, count: int, **limits: int) -> None:
        self.site = Busy()
        self.http = HttpProtocol.limited_to(HttpLimits(**limits), self.site)
        self.clients = [Client(echo, held, http=self.http) for _ in range(count)]

    @property
    def waiting(self) -> int:
        assert self.site.door is not None
        return len(self.site.door)

    @property
    def answered(self) -> int:
        return sum(b"200 OK" in client.transport.sent for client in self.clients)

    def send(self, data: bytes = POST) -> None:
        for client in self.clients:
            client.send(data)


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def test_all_are_read_in_the_end_and_so_many_in_a_turn(held: socket.socket) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 100)
        crowd.send()
        assert crowd.waiting == 100
        while crowd.waiting:
            before = crowd.waiting
            await asyncio.sleep(0)
            assert before - crowd.waiting <= TURN.new_reads_per_turn
        await asyncio.sleep(1)
        assert crowd.answered == len(crowd.clients)

    run(scenario, seed=1, quiet=True)


def test_a_known_client_is_read_before_new_ones(held: socket.socket) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 100)
        crowd.send()
        known = crowd.clients[0]
        assert known.protocol.peer.standing is Standing.KNOWN
        known.send(POST)
        assert crowd.waiting == 101
        await asyncio.sleep(0)
        assert crowd.waiting == 100 - TURN.new_reads_per_turn
        await asyncio.sleep(1)
        assert known.transport.sent.count(b"200 OK") == 2

    run(scenario, seed=1, quiet=True)


def test_a_known_client_that_closes_its_side_while_it_waits_is_answered(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn)
        crowd.send()
        await asyncio.sleep(1)
        crowd.send()
        crowd.clients[0].send(POST)
        last = crowd.clients[-1]
        last.send(POST)
        last.transport.end_input()
        assert crowd.waiting == 2  # it is not read for that
        await asyncio.sleep(1)
        assert last.transport.sent.count(b"200 OK") == 3
        assert last.transport.ended_at is not None

    run(scenario, seed=1, quiet=True)


def test_a_client_that_sends_more_while_it_waits_is_not_read_until_its_turn(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 1)
        crowd.send()
        last = crowd.clients[-1]
        assert last.transport.reading
        last.send(POST[:20])
        assert not last.transport.reading
        await asyncio.sleep(1)
        assert last.transport.reading
        last.send(POST[20:])
        await asyncio.sleep(1)
        assert last.transport.sent.count(b"200 OK") == 2

    run(scenario, seed=1, quiet=True)


def test_thousands_that_hang_up_while_they_wait_are_let_go_unread(held: socket.socket) -> None:
    """To read them first took half a second of the loop for six thousand."""

    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 100)
        crowd.send()
        for client in crowd.clients[TURN.reads_per_turn :]:
            client.transport.end_input()
        assert crowd.waiting == 100
        await asyncio.sleep(0)
        assert crowd.waiting == 0
        await asyncio.sleep(1)
        assert crowd.answered == TURN.reads_per_turn
        assert all(client.transport.closed_by_us for client in crowd.clients[TURN.reads_per_turn :])

    run(scenario, seed=1, quiet=True)


def test_whoever_leaves_while_it_waits_leaves_nothing_behind(held: socket.socket) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 10)
        crowd.send(POST + bytes(100 * KIB))
        assert crowd.http.held.used >= 10 * 100 * KIB
        for client in crowd.clients:
            client.transport.lose()
        assert crowd.waiting == crowd.http.held.used == len(crowd.http.peers) == 0

    run(scenario, seed=1, quiet=True)


def test_a_client_is_not_late_while_it_waits_for_its_turn(held: socket.socket) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 1)
        crowd.send()
        last = crowd.clients[-1]
        last.protocol._on_deadline_missed()  # its time is over, and it is we who do not read
        assert not last.transport.closed_by_us
        await asyncio.sleep(1)
        assert b"200 OK" in last.transport.sent

    run(scenario, seed=1, quiet=True)


def test_what_is_held_is_counted_and_more_than_the_budget_is_refused(
    held: socket.socket,
) -> None:
    async def scenario() -> None:
        crowd = Crowd(held, TURN.reads_per_turn + 20, held_bytes_max=2**20)
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 102400\r\n\r\n"
        for client in crowd.clients[: TURN.reads_per_turn]:
            client.send(POST)
        for client in crowd.clients[TURN.reads_per_turn :]:
            client.send(head + bytes(100 * KIB))
        assert crowd.http.held.used <= 2**20
        assert crowd.waiting == 10
        refused = [client for client in crowd.clients if b" 429 " in client.transport.sent]
        assert len(refused) == 10
        await asyncio.sleep(1)
        assert all(client.status in (200, 429) for client in crowd.clients)
        assert crowd.answered > TURN.reads_per_turn
        assert crowd.http.held.used == 0

    run(scenario, seed=1, quiet=True)

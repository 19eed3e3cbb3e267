"""How many connections are accepted before everybody else on the loop has a turn."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from fairway.runtime.turn import TurnBudget
from fairway.server.http.listener import HttpListener, listening

uvloop = pytest.importorskip("uvloop")  # asyncio takes all that wait


@pytest.mark.parametrize("most", [1, 4, 16])
def test_so_many_connections_are_accepted_in_a_turn_and_all_of_them_in_the_end(most: int) -> None:
    accepted: Counter[int] = Counter()
    turn = 0

    class Accepted(asyncio.Protocol):
        def __init__(self, **_: Any) -> None: ...

        def connection_made(self, transport: Any) -> None:
            accepted[turn] += 1
            transport.close()

    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    async def scenario() -> None:
        nonlocal turn
        config = listening(app, "127.0.0.1", 0, http=Accepted)
        listener = HttpListener(config, turn=TurnBudget(connections_per_turn=most))
        running = asyncio.ensure_future(listener.run_until_asked())
        await listener.wait_listening()
        with ExitStack() as clients:
            for _ in range(60):  # the system has accepted them when this returns
                clients.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            while accepted.total() < 60:
                turn += 1
                await asyncio.sleep(0)
        listener.should_exit = True
        await running
        assert max(accepted.values()) == most

    uvloop.run(asyncio.wait_for(scenario(), 60))

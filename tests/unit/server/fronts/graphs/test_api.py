"""A large push leaves turns of the loop to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from fairway.runtime.turn import TurnBudget
from fairway.server.fronts.graphs import api
from fairway.testing import run


def test_a_large_push_goes_on_in_the_next_turn_after_so_many_events() -> None:
    async def main() -> None:
        taken: list[int] = []
        turn = 0

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        context: Any = SimpleNamespace(turn=TurnBudget(pushes_per_turn=50))
        instance: Any = SimpleNamespace(
            accumulator=lambda source: None, accept=lambda source, value: taken.append(turn)
        )
        counting = asyncio.ensure_future(count())
        reply = await api._push(context, instance, "numbers", range(1_000), 0)
        counting.cancel()
        assert reply.accepted == len(taken) == 1_000
        assert max(Counter(taken).values()) <= 50

    run(main, seed=1, quiet=True)

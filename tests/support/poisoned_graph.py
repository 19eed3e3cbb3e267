"""A process whose checkpointed graph meets an event that ends the process.

    python -m tests.support.poisoned_graph DIRECTORY inline|waits|where dead_letter|halt

It gives the graph five events, once, of which the third is poison: to its node, or to a predicate,
which does not want the first either. It ends when all of them are
dealt with, or the graph is halted, and prints what came of it as JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fairway import Fairway, FiringContext, retry, where

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENTS = 5
POISON = 3


UNWANTED = 1


def wanted(inputs: Mapping[str, Any]) -> bool:
    return fire(inputs["numbers"]) != UNWANTED


def fire(n: int) -> int:
    if n == POISON:
        os._exit(13)
    return n


async def main(directory: str, how: str, then: Any) -> None:
    app = Fairway(directory)
    numbers = app.topic("numbers", int)
    kept = app.topic("kept", int)
    on_error = retry(1, base_s=0.01, then=then)
    graph = app.graph(
        "g",
        when=where(numbers, wanted) if how == "where" else numbers,
        inputs="sequential",
        checkpoint=True,
        on_error=on_error,
    )

    if how == "waits":

        @graph.node(name="it")
        async def waits(numbers: int, firing: FiringContext) -> int:
            await asyncio.sleep(0)
            firing.append(kept, fire(numbers))
            return numbers
    else:

        @graph.node(name="it")
        def inline(numbers: int, firing: FiringContext) -> int:
            firing.append(kept, fire(numbers))
            return numbers

    async with app:
        if not (await numbers.read()).records:
            await numbers.append(*range(1, EVENTS + 1))
        reactor = graph.running.reactor
        changed = asyncio.Event()
        graph.listen(lambda _: changed.set())
        firings = EVENTS - (how == "where")
        while graph.number < firings and not reactor.halted:
            changed.clear()
            await changed.wait()
        await graph.settled()
        outcome = {
            "kept": [record.data for record in (await kept.read()).records],
            "dead": [letter.reason for letter in graph.dead_letters],
            "halted": reactor.halted,
        }
    print(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

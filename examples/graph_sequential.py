"""Every event, in order: sequential input, what a full source does, and what `latest` skips."""

import asyncio
import tempfile
from typing import Any, Literal

from fairway import Backpressure, Fairway, Graph, all_, any_, where


# --8<-- [start:declare]
def slow_sum(
    app: Fairway, name: Literal["latest", "sequential"], **options: Any
) -> tuple[Graph, list[int]]:
    numbers = app.source("numbers", int, **options)
    graph = app.graph(name, when=any_(numbers), inputs=name)
    seen: list[int] = []

    @graph.node
    async def note(numbers: int) -> int:
        await asyncio.sleep(0.01)  # others come meanwhile
        seen.append(numbers)
        return numbers

    return graph, seen


async def compare(directory: str) -> None:
    app = Fairway(directory)
    latest, newest = slow_sum(app, "latest")
    sequential, every = slow_sum(app, "sequential")
    async with app:
        for number in range(5):
            await latest.push("numbers", number)
            await sequential.push("numbers", number)
        await latest.settled()
        await sequential.settled()
    print("latest saw", newest)
    print("sequential saw", every)


# --8<-- [end:declare]


# --8<-- [start:all]
async def pairs(directory: str) -> None:
    app = Fairway(directory)
    left, right = app.source("left", str), app.source("right", str)
    graph = app.graph("pairs", when=all_(left, right), inputs="sequential")
    paired: list[str] = []

    @graph.node
    def pair(left: str, right: str) -> str:
        paired.append(left + right)
        return left + right

    async with app:
        for letter in "abc":
            await graph.push(left, letter)
        for number in "12":
            await graph.push(right, number)
    print("pairs:", paired)  # c waits for a third number


# --8<-- [end:all]


# --8<-- [start:where]
async def filtered(directory: str) -> None:
    app = Fairway(directory)
    prices = app.source("prices", float)
    worth = where(any_(prices), lambda inputs: inputs["prices"] > 100)

    @app.graph(when=worth, inputs="sequential")
    def dear(prices: float) -> float:
        return prices

    async with app:
        for price in (90.0, 110.0, 95.0, 120.0):
            await dear.push(prices, price)
        print(dear.fired, "were worth a firing;", dear.running.reactor.inputs.filtered, "not")


# --8<-- [end:where]


# --8<-- [start:full]
async def full(directory: str) -> None:
    app = Fairway(directory)
    graph, seen = slow_sum(app, "sequential", capacity=2, on_full="refuse")
    async with app:
        refused = 0
        for number in range(10):
            try:
                graph.push_nowait("numbers", number)
            except Backpressure:  # nothing was accepted; `retry_after_ns` says when to come back
                refused += 1
        await graph.settled()
        print(f"{len(seen)} were accepted, {refused} refused")


# --8<-- [end:full]


async def main(directory: str) -> None:
    for play in (compare, pairs, filtered, full):
        await play(f"{directory}/{play.__name__}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

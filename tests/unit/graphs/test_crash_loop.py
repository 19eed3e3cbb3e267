"""Which firing ends the process: found out after starts that came to nothing, and not tried for
ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Graph, Source, debounce, where
from fairway.graphs.crash_loop import CRASHES_MAX, NOTED_FIRINGS, STARTS_MAX
from fairway.testing import run_graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.graphs.inputs import Strategy
    from fairway.testing import GraphsUnderTest

POISON = 0


class Poisoned:
    """A checkpointed graph in which one value never comes to an end."""

    def __init__(self, on_error: str = "dead_letter") -> None:
        self.n = Source("n", int)
        self.tries: list[int] = []
        self.graph = Graph(
            "g", when=self.n, inputs="sequential", checkpoint=True, on_error=on_error
        )

        @self.graph.node
        async def it(n: int) -> int:
            self.tries.append(n)
            if n == POISON:
                await asyncio.Event().wait()
            if n < 0:
                raise ValueError("it fails, and ends nothing")
            return n

    def reasons(self) -> list[str]:
        return [letter.reason for letter in self.graph.dead_letters]


async def kill_until_it_goes_on(kit: GraphsUnderTest, it: Poisoned) -> int:
    """Kill the process again and again while the poison fires; how often."""
    for kills in range(STARTS_MAX + CRASHES_MAX + 3):
        await kit.advance(1)
        if not it.tries or it.tries[-1] != POISON:
            return kills
        it.tries.clear()
        await kit.restart(power_loss=True)
    raise AssertionError("it is tried for ever")


def test_what_ends_the_process_again_and_again_is_kept_aside() -> None:
    it = Poisoned()

    async def play(kit: GraphsUnderTest) -> None:
        for n in (1, 2, POISON, 3, 4):
            await kit.push(it.graph, "n", n)
        kills = await kill_until_it_goes_on(kit, it)
        assert kills == 1 + STARTS_MAX + CRASHES_MAX
        assert it.tries == [3, 4], "what came behind it has fired"
        assert [f"the process ended {CRASHES_MAX} times" in each for each in it.reasons()] == [True]
        assert it.graph.number == 5

    run_graph(it.graph, play)


def test_a_graph_that_is_to_halt_does_and_tries_it_again_when_it_is_resumed() -> None:
    it = Poisoned(on_error="halt")

    async def play(kit: GraphsUnderTest) -> None:
        for n in (1, POISON, 2):
            await kit.push(it.graph, "n", n)
        await kill_until_it_goes_on(kit, it)
        for _ in range(3):
            assert "the process ended" in str(it.graph.running.reactor.halted)
            assert it.tries == []
            await kit.restart()
            await kit.advance(1)
        await it.graph.resume()
        await kit.advance(1)
        assert it.tries == [POISON]
        assert await kill_until_it_goes_on(kit, it) >= CRASHES_MAX, "it has all its tries again"

    run_graph(it.graph, play)


def test_an_orderly_stop_is_no_crash_however_long_a_firing_lasts() -> None:
    it = Poisoned()

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(it.graph, "n", POISON)
        for _ in range(3 * (STARTS_MAX + CRASHES_MAX)):
            await kit.advance(1)
            assert it.tries == [POISON]
            it.tries.clear()
            await kit.stop()
            await kit.start()
        assert it.reasons() == []

    run_graph(it.graph, play)


def test_a_failure_is_no_crash() -> None:
    it = Poisoned(on_error="halt")

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(it.graph, "n", -1)
        for _ in range(3 * (STARTS_MAX + CRASHES_MAX)):
            await kit.advance(1)
            assert it.tries == [-1], "each start tries it"
            assert "ValueError" in str(it.graph.running.reactor.halted)
            it.tries.clear()
            await kit.restart()

    run_graph(it.graph, play)


@pytest.mark.parametrize("quiet_s", [None, 1.0])
@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_predicates_decide_as_ever_while_a_crash_loop_is_suspected(
    inputs: Strategy, quiet_s: float | None
) -> None:
    n = Source("n", int)
    asked: list[int] = []

    def positive(values: Mapping[str, Any]) -> bool:
        asked.append(values["n"])
        if not values["n"]:
            raise ValueError("no sign")
        return values["n"] > 0

    when = where(n, positive)
    graph = Graph(
        "g",
        when=when if quiet_s is None else debounce(when, quiet_s=quiet_s),
        inputs=inputs,
        checkpoint=True,
        on_error="dead_letter",
    )

    @graph.node
    def it(n: int) -> int:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for _ in range(STARTS_MAX):
            await kit.restart()
        for number in (-1, 1, -2, 0, -3, 2):
            graph.push_nowait(n, number)
            await kit.advance(2)
            await graph.settled()
            assert asked[-1] == number
            assert len(asked) < 20, "asked again and again"
        assert [firing.output for firing in graph.firings if firing.error is None] == [1, 2]
        [letter] = graph.dead_letters
        assert "no sign" in letter.reason
        assert graph.running.reactor.checkpoint.crashes == 0

    run_graph(graph, play)


def test_care_ends_and_plain_nodes_fire_where_their_values_arrive_again() -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: int) -> int:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for _ in range(STARTS_MAX):
            await kit.restart()
        many = NOTED_FIRINGS + 10
        for number in range(many):
            await kit.push(graph, "n", number)
        await graph.settled()
        assert graph.fired == many
        assert [firing.output for firing in graph.firings][-3:] == [many - 3, many - 2, many - 1]
        before = graph.number
        graph.push_nowait(n, 1)
        assert graph.number == before + 1, "at once"

    run_graph(graph, play)

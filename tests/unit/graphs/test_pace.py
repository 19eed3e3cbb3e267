"""When a source that is full says to try again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairway import Backpressure, Graph, Source
from fairway.graphs.pace import RETRY_CAP_NS, RETRY_FLOOR_NS, pace_ns, retry_after_ns
from fairway.testing import run_graph

if TYPE_CHECKING:
    from fairway.testing import GraphsUnderTest

MS = 1_000_000


def test_the_pace_is_that_of_late() -> None:
    assert pace_ns([]) == 0
    assert pace_ns([7]) == 7
    assert pace_ns([100] * 16) == 100
    assert 90 < pace_ns([1000, *[100] * 20]) < 110, "what was long ago is forgotten"
    assert pace_ns([100] * 15 + [500]) == 200, "one that lasts is no rule yet"


def test_a_quarter_of_what_waits_is_waited_for_within_bounds() -> None:
    assert retry_after_ns(10 * MS, 40) == 100 * MS
    assert retry_after_ns(10 * MS, 1) == 10 * MS
    assert retry_after_ns(0, 1000) == RETRY_FLOOR_NS
    assert retry_after_ns(10_000 * MS, 1000) == RETRY_CAP_NS


def retry_of(graph: Graph) -> int:
    with pytest.raises(Backpressure) as refused:
        graph.push_nowait("n", 0)
    return refused.value.retry_after_ns


@pytest.mark.parametrize("lasts_s", [0.02, 0.5])
def test_a_full_source_tells_how_long_its_firings_take(lasts_s: float) -> None:
    graph = Graph("g", when=Source("n", int, capacity=8, on_full="refuse"), inputs="sequential")

    @graph.node
    async def slow(n: int) -> int:
        await asyncio.sleep(lasts_s)
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for n in range(4):
            await graph.ask("n", n)
        graph.push_nowait("n", 4)
        await asyncio.sleep(0)  # it is under way
        await asyncio.sleep(0)
        for n in range(8):
            graph.push_nowait("n", n)
        assert retry_of(graph) == pytest.approx(2 * lasts_s * 1e9, rel=0.01)

    run_graph(graph, play)


@pytest.mark.parametrize("how", ["paused", "halted"])
def test_a_graph_that_does_not_fire_says_to_come_back_late(how: str) -> None:
    source = Source("n", int, capacity=2, on_full="refuse")
    graph = Graph("g", when=source, inputs="sequential", on_error="halt")

    @graph.node
    def positive(n: int) -> int:
        assert n > 0
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for _ in range(20):
            graph.push_nowait("n", 1)
        if how == "paused":
            await graph.pause()
            graph.push_nowait("n", 1)
        else:
            graph.push_nowait("n", 0)
        graph.push_nowait("n", 1)
        assert retry_of(graph) == RETRY_CAP_NS

    run_graph(graph, play)

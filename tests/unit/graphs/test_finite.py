"""`nan` and `inf` in graphs: refused where they are pushed, kept and shown where they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest

from fairway import FiringContext, Graph, Source, any_
from fairway.errors import InvalidRequest
from fairway.graphs.feeds.poll import poll
from fairway.graphs.finite import finite_check
from fairway.testing import GraphsUnderTest, run_graph

NAN, INF = math.nan, math.inf


class Quote(msgspec.Struct, frozen=True):
    symbol: str
    bid: float
    ask: float = 1.0


class Better(Quote, frozen=True):
    size: float = 0.0


@dataclass
class Tick:
    price: float


class Pair(NamedTuple):
    left: float
    right: float | None = None


class Nested(msgspec.Struct):
    quotes: list[Quote]
    next: Nested | None = None


class Order(msgspec.Struct):
    id: int
    tags: dict[str, tuple[int, ...]]
    after: Order | None = None


class Opaque:
    """What nobody can look into."""

    def __init__(self, x: float) -> None:
        self.x = x

    def __repr__(self) -> str:
        return f"Opaque({self.x})"


AROUND: list[Any] = []
AROUND.append(AROUND)

REFUSED: list[tuple[Any, Any]] = [
    (float, NAN),
    (float, -INF),
    (float | None, INF),
    (Quote, Quote("a", NAN)),
    (Quote, Quote("a", 1.0, -INF)),
    (Quote, Quote("a", INF, -INF)),
    (Quote, Better("a", 1.0, size=NAN)),
    (Quote, {"symbol": "a", "bid": NAN}),
    (Tick, Tick(NAN)),
    (Pair, Pair(1.0, NAN)),
    (Nested, Nested([], Nested([Quote("a", 1.0), Quote("b", NAN)]))),
    (list[float], [1.0, INF]),
    (dict[str, float], {"a": NAN}),
    (Any, NAN),
    (Any, {"a": [1, {"b": (NAN,)}], "wide": 2**70}),
    (Any, [Opaque(1.0), NAN]),
    (Any, {NAN}),
]
TAKEN: list[tuple[Any, Any]] = [
    (float, 1.7e308),
    (Quote, Quote("a", 1.7e308, 1.7e308)),
    (Quote, Quote("nan", 0.0, -0.0)),
    (Tick, Tick(1.0)),
    (Pair, Pair(1.0)),
    (Order, Order(1, {"a": (1, 2)}, Order(2, {}))),
    (int, 7),
    (str, "nan"),
    (Any, "inf"),
    (Any, {"bytes": b"\xcb\x7f\xf8", "wide": 2**70, "none": None}),
    (Any, Opaque(NAN)),
    (Any, [2**70, AROUND]),
]


def numbers(kind: Any, *, checkpoint: bool = False, **options: Any) -> Graph:
    graph = Graph(
        "numbers",
        when=Source("n", kind, **options),
        inputs="sequential",
        checkpoint=checkpoint,
    )

    @graph.node
    def same(n: Any) -> Any:
        return n

    return graph


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=repr)
def test_a_push_of_what_json_has_no_number_for_is_refused_and_nothing_is_accepted(
    kind: Any, value: Any, checkpoint: bool
) -> None:
    graph = numbers(kind, checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match=r"source 'n': .*JSON has no number -?(nan|inf)"):
            graph.push_nowait("n", value)
        for way in (graph.push, graph.ask):
            with pytest.raises(InvalidRequest, match="JSON has no number"):
                await way("n", value)
        with pytest.raises(InvalidRequest, match=r"source 'n': .*JSON has no number"):
            await graph.fire({"n": value})
        await kit.settled()
        assert (graph.number, kit.state(graph).cache, kit.firings(graph)) == (0, {}, [])

    run_graph(graph, play)


@pytest.mark.parametrize(("kind", "value"), TAKEN, ids=repr)
def test_every_other_value_is_taken_as_it_is(kind: Any, value: Any) -> None:
    graph = numbers(kind)

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("n", value)
        await graph.fire({"n": value})
        await kit.settled()
        assert [one is value for one in kit.outputs(graph)] == [True, True]

    run_graph(graph, play)


@pytest.mark.parametrize("kind", [int, str, bool, Order, list[int], dict[str, bytes]], ids=repr)
def test_a_type_without_floats_is_not_looked_into(kind: Any) -> None:
    assert finite_check(kind) is None


def test_an_event_is_checked_before_it_is_made_something_else() -> None:
    def text(event: float) -> str:
        return str(event)

    graph = numbers(str, through=text)

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match="JSON has no number nan"):
            await graph.push("n", NAN)
        assert await graph.ask("n", 1.5)
        assert kit.outputs(graph) == ["1.5"]

    run_graph(graph, play)


@pytest.mark.parametrize("power_loss", [False, True])
def test_what_a_poll_or_a_node_makes_is_nan_after_a_restart_too(power_loss: bool) -> None:
    made = iter([NAN])
    polled = Source("polled", float, feed=poll(lambda: next(made, None), every_s=1))
    given = Source("given", int)
    past = Source("past", Quote, keep=5)
    graph = Graph("made", when=any_(polled, given), uses=[past], checkpoint=True, record=100)

    def see(
        firing: FiringContext,
        polled: float | None = None,
        given: int | None = None,
        past: Any = None,
    ) -> list[Any]:
        firing.put("past", Quote("made", -INF, NAN))
        return [polled, given, past]

    graph.add(see)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.advance(2)
        await kit.settled()
        assert repr(kit.outputs(graph)) == "[[nan, None, None]]"
        await kit.restart(power_loss=power_loss)
        assert math.isnan(kit.state(graph).cache["polled"])
        await graph.push("given", 1)
        await kit.settled()
        kept = repr([Quote("made", -INF, NAN)])
        assert repr(kit.outputs(graph)[-1]) == f"[nan, 1, {kept}]"

    run_graph(graph, play)

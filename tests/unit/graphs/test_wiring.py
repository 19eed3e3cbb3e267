"""Wiring: what is wrong is said when the graph is built; and what a traversal then does."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict

import pytest

from fairway.errors import InvalidConfig
from fairway.graphs.context import FiringContext
from fairway.graphs.node import node_of
from fairway.graphs.traversal import NodeFailed, NodeTimeout, Traversal
from fairway.graphs.wiring import Wiring, wire

if TYPE_CHECKING:
    from decimal import Decimal  # that it is missing at run time is the test


class Quote(NamedTuple):
    price: float


@dataclass
class Trade:
    price: float


class BlockTrade(Trade):
    pass


class NoAction:
    pass


class Shape(TypedDict):
    sides: int


class Priced(Protocol):
    price: float


SOURCES: dict[str, Any] = {"quotes": Quote, "rates": float}


def built(*functions: Callable[..., Any], sources: Mapping[str, Any] | None = None) -> Wiring:
    given = SOURCES if sources is None else sources
    return wire("pricing", given, [node_of(each) for each in functions], idle=set(given))


def fired(wiring: Wiring, **given: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = {}
    Traversal(wiring).run(given, context(), outputs)
    return outputs


def context() -> FiringContext:
    return FiringContext("pricing", "default", 1, "news", 0)


# What is wrong


def mid(quotes: Quote) -> float:
    return quotes.price


def unknown_input(quotse: Quote) -> float:
    return quotse.price


def far_off_input(nothing_like_it: Quote) -> None: ...


def wrong_type(quotes: Trade) -> None: ...


def circle_a(circle_c: int, quotes: Quote) -> int: ...


def circle_b(circle_a: int) -> int: ...


def circle_c(circle_b: int) -> int: ...


def itself(itself: int) -> int: ...


def decide(quotes: Quote) -> Trade | NoAction:
    return Trade(quotes.price) if quotes.price > 1 else NoAction()


def only_trades(decide: Trade) -> None: ...


def rates(quotes: Quote) -> float: ...


def takes_nothing() -> int: ...


def gives_nothing(quotes: Quote) -> None: ...


def takes_nothings_gift(gives_nothing: int) -> None: ...


def either_list(quotes: Quote) -> list[int] | list[str]: ...


def int_list(either_list: list[int]) -> None: ...


def str_list(either_list: list[str]) -> None: ...


def either_word(quotes: Quote) -> Literal["a"] | int: ...


def word_a(either_word: Literal["a"]) -> None: ...


def any_number(either_word: int) -> None: ...


def either_shape(quotes: Quote) -> Shape | int: ...


def shape(either_shape: Shape) -> None: ...


def shape_number(either_shape: int) -> None: ...


WRONG = [
    ((unknown_input,), ["unknown_input", "'quotse'", "did you mean 'quotes'?"]),
    ((far_off_input,), ["far_off_input", "neither a source nor a node", "quotes, rates"]),
    ((wrong_type,), ["wrong_type", "as Trade", "the source 'quotes' gives Quote", "make the two"]),
    (
        (circle_a, circle_b, circle_c),
        ["circle_a -> circle_c -> circle_b -> circle_a", "in a state instead", "circle_a"],
    ),
    ((itself,), ["itself", "takes itself", "keep a state"]),
    (
        (decide, only_trades),
        ["decide", "may give NoAction", "no node takes it", "a parameter 'decide' of that type"],
    ),
    ((mid, mid), ["two nodes are called 'mid'", "rename one, or give it name="]),
    ((rates,), ["rates", "has the name of a source", "rename it, or give it name="]),
    ((takes_nothing,), ["takes_nothing", "takes nothing", "name a parameter after a source"]),
    (
        (gives_nothing, takes_nothings_gift),
        ["takes_nothings_gift", "returns None always", "annotate what 'gives_nothing'"],
    ),
    (
        (either_list, int_list, str_list),
        ["int_list", "list[int]", "cannot be told from list[str]", "a class of its own"],
    ),
    ((either_word, word_a, any_number), ["word_a", "cannot be told from int", "a class"]),
    ((either_shape, shape, shape_number), ["shape", "cannot be told from int", "a class"]),
]


@pytest.mark.parametrize(("functions", "said"), WRONG, ids=[each[0][-1].__name__ for each in WRONG])
def test_what_is_wrong_is_said_with_the_graph_the_place_and_the_fix(
    functions: tuple[Callable[..., Any], ...], said: list[str]
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        built(*functions)
    message = str(caught.value)
    assert message.startswith("graph 'pricing': ")
    for part in said:
        assert part in message
    places = {f"{each.__code__.co_filename}:{each.__code__.co_firstlineno}" for each in functions}
    assert any(place in message for place in places), message


def test_a_graph_without_nodes() -> None:
    with pytest.raises(InvalidConfig, match=r"graph 'pricing': it has no nodes; .*@graph\.node"):
        built()


def test_a_source_that_no_node_takes() -> None:
    with pytest.raises(InvalidConfig, match=r"no node takes the source 'rates'; name a parameter"):
        wire("pricing", SOURCES, [node_of(mid)], idle={"quotes"})
    assert wire("pricing", SOURCES, [node_of(mid)], idle={"rates"}).terminal == ("mid",)


def test_a_member_of_a_source_that_no_node_takes() -> None:
    def one(events: Trade) -> None: ...

    with pytest.raises(InvalidConfig, match=r"the source 'events' may give Quote, and no node"):
        built(one, sources={"events": Trade | Quote})


def type_checking_only(quotes: Decimal) -> None: ...


def misspelt(quotes: asyncio.Quote) -> None: ...  # type: ignore[name-defined]


def any_number_of(*quotes: Quote) -> None: ...


def any_named(quotes: Quote, **rest: float) -> None: ...


def by_position(quotes: Quote, /) -> None: ...


async def waits(quotes: Quote) -> float:
    await asyncio.sleep(0)
    return quotes.price


def with_context(quotes: Quote, firing: FiringContext) -> float:
    firing.append("topic", quotes.price)
    return quotes.price


REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (type_checking_only, {}, r"'Decimal' is not defined.*not only under TYPE_CHECKING"),
    (misspelt, {}, r"annotations name something unknown: .*'Quote'"),
    (any_number_of, {}, r"any number of inputs with 'quotes': name each"),
    (any_named, {}, r"any number of inputs with 'rest': name each"),
    (by_position, {}, r"'quotes' by position only: leave out the '/'"),
    (waits, {"blocking": True}, r"is async: leave out blocking=True"),
    (mid, {"blocking": True, "isolation": "process"}, r"a thread or in a process: choose one"),
    (mid, {"isolation": "thread"}, r"isolation is 'none' or 'process', not 'thread'"),
    (mid, {"timeout_s": 1}, r"runs on the event loop, where nothing can stop it: make it async"),
    (waits, {"timeout_s": 0}, r"timeout_s is above 0"),
    (waits, {"timeout_s": "5"}, r"timeout_s is a number of seconds, not '5'"),
    (waits, {"timeout_s": float("nan")}, r"timeout_s is a number of seconds, not nan"),
    (with_context, {"isolation": "process"}, r"runs in another process.*then does with 'firing'"),
]


@pytest.mark.parametrize(
    ("function", "options", "said"), REFUSED, ids=[f"{f.__name__}-{o}" for f, o, _ in REFUSED]
)
def test_a_function_that_cannot_be_a_node(
    function: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidConfig, match=said) as caught:
        node_of(function, **options)
    code = function.__code__
    where = f"node {function.__name__!r} ({code.co_filename}:{code.co_firstlineno})"
    assert str(caught.value).startswith(where)


def test_what_is_not_a_function() -> None:
    for given in (functools.partial(mid), Quote):
        with pytest.raises(InvalidConfig, match="is not a function: write a def around it"):
            node_of(given)


# What fits


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (Quote, Quote),
        (Quote, Any),
        (Any, Quote),
        (Quote, object),
        (BlockTrade, Trade),
        (int, float),
        (bool, int),
        (list[Quote], list[Quote]),
        (list[Quote], list),
        (list[Quote], Sequence),
        (list[Quote], Sequence[Quote]),
        (list[Quote], Iterable[Quote]),
        (list, list[Quote]),
        (Trade | Quote, Quote | Trade),
        (Trade | None, Trade),
        (Trade, Priced),
        (Shape, Shape),
    ],
)
def test_types_that_fit(given: Any, taken: Any) -> None:
    def node(events: Any) -> None: ...

    node.__annotations__["events"] = taken
    wiring = built(node, sources={"events": given})
    assert not wiring.edges[0].routed


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (Quote, Trade),
        (Trade, BlockTrade),
        (float, int),
        (list[Quote], list[Trade]),
        (list[Quote], Quote),
        (Quote, list[Quote]),
        (list[Quote], tuple[Quote, ...]),
        (str, bytes),
    ],
)
def test_types_that_do_not_fit(given: Any, taken: Any) -> None:
    def node(events: Any) -> None: ...

    node.__annotations__["events"] = taken
    with pytest.raises(InvalidConfig, match="make the two alike"):
        built(node, sources={"events": given})


# What it then does


def test_fan_out_and_fan_in() -> None:
    def high(quotes: Quote) -> float:
        return quotes.price + 1

    def low(quotes: Quote) -> float:
        return quotes.price - 1

    def spread(high: float, low: float) -> float:
        return high - low

    wiring = built(spread, low, high)  # in any order
    assert [node.name for node in wiring.nodes] == ["high", "low", "spread"]
    assert wiring.terminal == ("spread",)
    assert fired(wiring, quotes=Quote(5)) == {"spread": 2}


def test_a_diamond_runs_its_top_once() -> None:
    runs = []

    def top(quotes: Quote) -> float:
        runs.append(quotes)
        return quotes.price

    def left(top: float) -> float:
        return top + 1

    def right(top: float) -> float:
        return top * 2

    def bottom(left: float, right: float, top: float) -> tuple[float, float, float]:
        return left, right, top

    assert fired(built(top, left, right, bottom), quotes=Quote(3)) == {"bottom": (4, 6, 3)}
    assert len(runs) == 1


def test_routing_by_type_runs_one_branch_and_tells_only_that() -> None:
    def bought(decide: Trade) -> float:
        return decide.price

    def idle(decide: NoAction) -> str:
        return "nothing"

    wiring = built(decide, bought, idle)
    assert fired(wiring, quotes=Quote(2)) == {"bought": 2}
    assert fired(wiring, quotes=Quote(1)) == {"idle": "nothing"}


def test_a_node_that_takes_all_members_needs_no_route() -> None:
    def both(decide: Trade | NoAction) -> str:
        return type(decide).__name__

    def trades(decide: Trade) -> float:
        return decide.price

    wiring = built(decide, both, trades)
    assert fired(wiring, quotes=Quote(2)) == {"both": "Trade", "trades": 2}
    assert fired(wiring, quotes=Quote(0)) == {"both": "NoAction"}


def test_a_source_of_several_types_is_routed_too() -> None:
    def priced(events: Quote) -> float:
        return events.price

    def traded(events: Trade) -> float:
        return -events.price

    wiring = built(priced, traded, sources={"events": Quote | Trade | None})
    assert fired(wiring, events=Quote(1)) == {"priced": 1}
    assert fired(wiring, events=BlockTrade(1)) == {"traded": -1}
    assert fired(wiring, events=None) == {}


def test_generics_are_routed_by_their_class() -> None:
    def some(quotes: Quote) -> list[float] | str:
        return [quotes.price] if quotes.price else "none"

    def total(some: list[float]) -> float:
        return sum(some)

    def word(some: str) -> str:
        return some

    wiring = built(some, total, word)
    assert fired(wiring, quotes=Quote(4)) == {"total": 4}
    assert fired(wiring, quotes=Quote(0)) == {"word": "none"}


def test_none_is_absence() -> None:
    def big(quotes: Quote) -> float | None:
        return quotes.price if quotes.price > 10 else None

    def needs(big: float) -> str:
        return f"big {big}"

    def may_use(quotes: Quote, big: float | None) -> tuple[float, float | None]:
        return quotes.price, big

    wiring = built(big, needs, may_use)
    assert fired(wiring, quotes=Quote(11)) == {"needs": "big 11", "may_use": (11, 11)}
    assert fired(wiring, quotes=Quote(1)) == {"may_use": (1, None)}
    assert fired(wiring) == {}


def test_a_default_of_none_makes_it_optional() -> None:
    def node(quotes: Quote, rates: float = None) -> float | None:  # type: ignore[assignment]  # noqa: RUF013
        return rates

    assert fired(built(node), quotes=Quote(1)) == {"node": None}
    assert fired(built(node), quotes=Quote(1), rates=2.0) == {"node": 2.0}


def test_all_optional_needs_one_of_them() -> None:
    def node(quotes: Quote | None, rates: float | None) -> tuple[Any, Any]:
        return quotes, rates

    wiring = built(node)
    assert fired(wiring) == {}
    assert fired(wiring, rates=0.0) == {"node": (None, 0.0)}


def test_an_optional_parameter_that_is_routed_sees_its_type_or_none() -> None:
    def node(quotes: Quote, decide: Trade | None) -> Trade | None:
        return decide

    def rest(decide: NoAction) -> str:
        return "rest"

    wiring = built(decide, node, rest)
    assert fired(wiring, quotes=Quote(2)) == {"node": Trade(2)}
    assert fired(wiring, quotes=Quote(1)) == {"node": None, "rest": "rest"}


def test_without_annotations_everything_passes() -> None:
    def first(quotes):  # type: ignore[no-untyped-def]
        return [quotes]

    def second(first):  # type: ignore[no-untyped-def]
        return first

    assert fired(built(first, second), quotes="anything") == {"second": ["anything"]}


def test_values_that_are_false_are_there() -> None:
    def node(rates: float) -> bool:
        return False

    def then(node: bool) -> str:
        return "ran"

    assert fired(built(node, then), rates=0.0) == {"then": "ran"}


def test_the_context_is_given_by_its_type() -> None:
    ctx = context()
    outputs: dict[str, Any] = {}
    Traversal(built(with_context)).run({"quotes": Quote(3)}, ctx, outputs)
    assert [effect.asked[1] for effect in ctx.effects] == [3]


# Failures and counts


def test_a_node_that_fails_is_named_and_counted() -> None:
    def fails(mid: float) -> float:
        raise ValueError(f"no {mid}")

    def after(fails: float) -> float:
        raise AssertionError("it never runs")

    traversal = Traversal(built(mid, fails, after))
    with pytest.raises(NodeFailed, match="node 'fails': ValueError: no 3") as caught:
        traversal.run({"quotes": Quote(3)}, context(), {})
    assert caught.value.node == "fails"
    assert isinstance(caught.value.__cause__, ValueError)
    counts = traversal.counts
    assert dict(zip(counts.names, counts.runs, strict=True)) == {"mid": 1, "fails": 0, "after": 0}
    assert dict(zip(counts.names, counts.failed, strict=True)) == {"mid": 0, "fails": 1, "after": 0}


def test_runs_are_counted_by_node() -> None:
    def idle(decide: NoAction) -> None: ...

    traversal = Traversal(built(decide, only_trades, idle))
    for price in (0, 1, 2, 3, 4):
        traversal.run({"quotes": Quote(price)}, context(), {})
    counts = traversal.counts
    assert dict(zip(counts.names, counts.runs, strict=True)) == {
        "decide": 5,
        "only_trades": 3,
        "idle": 2,
    }
    assert all(busy_ns >= 0 for busy_ns in counts.busy_ns)


# Nodes that wait


class FakeNodeRunner:
    """Calls at once, and remembers where."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.hang = False

    async def in_thread(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        self.calls.append(("thread", function.__name__, dict(given)))
        if self.hang:
            await asyncio.Event().wait()
        return function(**given)

    async def in_process(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        self.calls.append(("process", function.__name__, dict(given)))
        return function(**given)


def arun(traversal: Traversal, runner: FakeNodeRunner, **given: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = {}
    asyncio.run(traversal.arun(given, context(), outputs, runner))
    return outputs


def test_async_blocking_and_isolated_nodes() -> None:
    def heavy(waits: float) -> float:
        return waits * 2

    def far(heavy: float, rates: float | None) -> float:
        return heavy + 1

    nodes = [
        node_of(waits),
        node_of(heavy, blocking=True, timeout_s=5),
        node_of(far, isolation="process"),
    ]
    traversal = Traversal(wire("pricing", SOURCES, nodes, idle=set(SOURCES)))
    assert not traversal.inline
    runner = FakeNodeRunner()
    assert arun(traversal, runner, quotes=Quote(4)) == {"far": 9}
    assert runner.calls == [
        ("thread", "heavy", {"waits": 4}),
        ("process", "far", {"heavy": 8, "rates": None}),
    ]


def test_a_plain_graph_runs_either_way() -> None:
    traversal = Traversal(built(mid))
    assert traversal.inline
    assert arun(traversal, FakeNodeRunner(), quotes=Quote(4)) == {"mid": 4}


async def hangs(quotes: Quote) -> None:
    await asyncio.Event().wait()


async def times_out_by_itself(quotes: Quote) -> None:
    raise TimeoutError("mine")


def test_a_timeout_names_its_node() -> None:
    traversal = Traversal(
        wire("pricing", {"quotes": Quote}, [node_of(hangs, timeout_s=0.01)], idle=set())
    )
    with pytest.raises(NodeFailed, match=r"node 'hangs': NodeTimeout: .*0\.01 s") as caught:
        arun(traversal, FakeNodeRunner(), quotes=Quote(1))
    assert isinstance(caught.value.error, NodeTimeout)
    assert traversal.counts.failed == [1]


def test_a_timeout_of_a_node_in_a_thread() -> None:
    traversal = Traversal(
        wire(
            "pricing", {"quotes": Quote}, [node_of(mid, blocking=True, timeout_s=0.01)], idle=set()
        )
    )
    runner = FakeNodeRunner()
    runner.hang = True
    with pytest.raises(NodeFailed, match="NodeTimeout"):
        arun(traversal, runner, quotes=Quote(1))


def test_a_timeout_that_a_node_raises_is_its_own() -> None:
    node = node_of(times_out_by_itself, timeout_s=60)
    traversal = Traversal(wire("pricing", {"quotes": Quote}, [node], idle=set()))
    with pytest.raises(NodeFailed, match="TimeoutError: mine") as caught:
        arun(traversal, FakeNodeRunner(), quotes=Quote(1))
    assert not isinstance(caught.value.error, NodeTimeout)


def test_cancelling_is_no_failure_of_a_node() -> None:
    async def cancelled() -> None:
        async with asyncio.timeout(0.01):
            await Traversal(built(hangs)).arun(
                {"quotes": Quote(1)}, context(), {}, FakeNodeRunner()
            )

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())


# What is generated


def signal(mid: float, rates: float | None) -> Trade | NoAction:
    return Trade(mid) if mid > 1 else NoAction()


def trade(signal: Trade, ctx: FiringContext) -> float:
    return signal.price


def rest(signal: NoAction) -> None: ...


GENERATED = """\
def traverse(given, ctx, out):
    s_0 = given.get('quotes')
    s_1 = given.get('rates')
    v_0 = v_1 = v_2 = v_3 = None
    at = 0
    try:
        if s_0 is not None:
            at = 0
            begin = now()
            v_0 = f_0(quotes=s_0)
            busy[0] += now() - begin
            runs[0] += 1
        if v_0 is not None:
            at = 1
            passed[2] += s_1 is not None
            begin = now()
            v_1 = f_1(mid=v_0, rates=s_1)
            busy[1] += now() - begin
            runs[1] += 1
            if not isinstance(v_1, g_1): undeclared(v_1, g_1)
        if isinstance(v_1, t_2_0):
            at = 2
            begin = now()
            v_2 = f_2(signal=v_1, ctx=ctx)
            busy[2] += now() - begin
            runs[2] += 1
            out['trade'] = v_2
        if isinstance(v_1, t_3_0):
            at = 3
            begin = now()
            v_3 = f_3(signal=v_1)
            busy[3] += now() - begin
            runs[3] += 1
            out['rest'] = v_3
    except BaseException as error:
        if passes(error): raise
        failed[at] += 1
        raise NodeFailed(names[at], error) from error
"""


def test_generated_code_stays_readable() -> None:
    traversal = Traversal(built(mid, signal, trade, rest))
    assert traversal.source_code == GENERATED


def test_a_value_that_is_none_of_those_declared_fails_and_does_not_fall_through() -> None:
    def chosen(quotes: Quote) -> Trade | NoAction:
        return 7  # type: ignore[return-value]

    def bought(chosen: Trade) -> None: ...

    def rested(chosen: NoAction) -> None: ...

    with pytest.raises(NodeFailed, match=r"returned a int, and declares Trade \| NoAction"):
        fired(built(chosen, bought, rested), quotes=Quote(1))

    def nothing(quotes: Quote) -> Trade | NoAction | None:
        return None

    def taken(nothing: Trade) -> None: ...

    def left(nothing: NoAction) -> None: ...

    assert fired(built(nothing, taken, left), quotes=Quote(1)) == {}


def test_generated_code_has_a_name_in_tracebacks() -> None:
    def fails(quotes: Quote) -> None:
        raise ValueError("no")

    with pytest.raises(NodeFailed) as caught:
        fired(built(fails), quotes=Quote(1))
    assert any(re.search("graph pricing", str(entry.path)) for entry in caught.traceback)

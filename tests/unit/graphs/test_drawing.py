"""Drawings of graphs: what they say is exact, and nothing in them lies over anything else."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from fairway.graphs.drawing import to_mermaid, to_svg
from fairway.graphs.layout import Box, Layout, Point, lay_out
from fairway.graphs.node import Node, node_of
from fairway.graphs.wiring import Edge, Wiring, wire

if TYPE_CHECKING:
    from collections.abc import Iterator

SVG = "{http://www.w3.org/2000/svg}"


class Quote: ...


class Mid: ...


class Trade: ...


class Hedge: ...


class Wait: ...


class Order: ...


def mid(quotes: Quote) -> Mid: ...
def signal(mid: Mid, rates: float | None = None) -> Trade | Hedge | Wait: ...
def buy(signal: Trade | Hedge) -> Order: ...
def skip(signal: Wait | None = None) -> Order: ...
def book(buy: Order | None = None, skip: Order | None = None) -> Order: ...


@pytest.fixture
def diamond() -> Wiring:
    nodes = [node_of(each) for each in (mid, signal, buy, skip, book)]
    return wire("market", {"quotes": Quote, "rates": float}, nodes, idle=set())


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def of_class(root: ElementTree.Element, tag: str, name: str) -> list[ElementTree.Element]:
    return [each for each in root.iter(SVG + tag) if name in each.get("class", "").split()]


def linked(name: str, sources: list[str], edges: list[tuple[str, str]]) -> Wiring:
    """A wiring of names that no function could have."""
    names = list(dict.fromkeys(end for edge in edges for end in edge if end not in sources))
    nodes = tuple(Node(each, len, (), None, (), False) for each in names)
    taken = {source for source, _ in edges}
    made = tuple(Edge(source, node, (), False, False) for source, node in edges)
    return Wiring(name, tuple(sources), nodes, made, tuple(n for n in names if n not in taken))


def test_a_routed_diamond_as_mermaid(diamond: Wiring) -> None:
    assert to_mermaid(diamond, {"quotes": "kafka", "rates": "poll"}) == (
        "flowchart LR\n"
        '    quotes(["quotes<br/>kafka"])\n'
        '    rates(["rates<br/>poll"])\n'
        '    mid["mid"]\n'
        '    signal["signal"]\n'
        '    buy["buy"]\n'
        '    skip["skip"]\n'
        '    book[["book"]]\n'
        "    quotes --> mid\n"
        "    mid --> signal\n"
        "    rates -.-> signal\n"
        '    signal -- "Trade | Hedge" --> buy\n'
        '    signal -. "Wait" .-> skip\n'
        "    buy -.-> book\n"
        "    skip -.-> book\n"
    )


def test_mermaid_is_given_no_word_of_its_own_and_no_quote() -> None:
    made = to_mermaid(linked("odd", ["node_1"], [("node_1", "end"), ("end", 'a "b" <#>')]))
    assert made == (
        "flowchart LR\n"
        '    node_1(["node_1"])\n'
        '    node_1_["end"]\n'
        '    node_2[["a #34;b#34; #60;#35;#62;"]]\n'
        "    node_1 --> node_1_\n"
        "    node_1_ --> node_2\n"
    )


def test_svg_has_a_box_for_each_node_and_a_path_for_each_edge(diamond: Wiring) -> None:
    root = drawn(to_svg(diamond, {"quotes": "kafka"}, {"mid": "120/s", "mid->signal": "9/s"}))
    names = [group.get("data-name") for group in root.iter(SVG + "g")]
    assert names == ["quotes", "rates", "mid", "signal", "buy", "skip", "book"]
    assert len(of_class(root, "rect", "box")) == 7
    assert [path.get("data-edge") for path in root.iter(SVG + "path")] == [
        f"{edge.source}->{edge.node}" for edge in diamond.edges
    ]
    assert len(of_class(root, "path", "optional")) == 4
    assert [group.get("data-name") for group in of_class(root, "g", "source")] == [*diamond.sources]
    assert [group.get("data-name") for group in of_class(root, "g", "terminal")] == ["book"]
    texts = [text.text for text in root.iter(SVG + "text")]
    assert {"kafka", "120/s", "9/s", "Trade | Hedge", "Wait"} <= set(texts)


def test_svg_says_in_words_what_it_shows(diamond: Wiring) -> None:
    root = drawn(to_svg(diamond, {"quotes": "kafka"}))
    told = {each.get("id"): each.text for each in root if each.get("id")}
    assert [told[part] for part in root.get("aria-labelledby", "").split()] == [
        "Graph market",
        "Sources: quotes (kafka), rates. Edges: quotes to mid; mid to signal; rates to signal"
        " (optional); signal to buy (Trade | Hedge); signal to skip (Wait · optional); buy to book"
        " (optional); skip to book (optional). Results: book.",
    ]


def test_svg_needs_nothing_from_elsewhere(diamond: Wiring) -> None:
    svg = to_svg(diamond).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http" not in svg
    assert "prefers-color-scheme:dark" in svg
    assert "currentColor" in svg


def test_text_is_escaped_and_cut() -> None:
    odd = "<script>alert('&\"')</script>\x00"
    long = "x" * 80
    wiring = linked(odd, [odd], [(odd, long)])
    root = drawn(to_svg(wiring, {odd: "<b>"}, {long: "</text>", f"{odd}->{long}": "]]>&"}))
    assert not list(root.iter(SVG + "script"))
    texts = [text.text or "" for text in root.iter(SVG + "text")]
    assert {"<b>", "</text>", "]]>&"} <= set(texts)
    assert "<script>alert('&\"')</script>" in texts
    assert "x" * 35 + "…" in texts
    assert max(map(len, texts)) <= 36
    assert any(title.text == f"{long} · </text>" for title in root.iter(SVG + "title"))


def test_the_same_graph_is_always_drawn_the_same(diamond: Wiring) -> None:
    assert to_svg(diamond) == to_svg(diamond)


# Layout


Sizes = dict[str, tuple[float, float]]


def random_graph(
    rng: random.Random,
) -> tuple[list[str], Sizes, list[tuple[str, str]], dict[Any, float]]:
    sources = [f"s{at}" for at in range(rng.randint(1, 4))]
    names = [f"n{at}" for at in range(rng.randint(1, 18))]
    edges = []
    for at, name in enumerate(names):
        known = [*sources, *names[:at]]
        taken = rng.sample(known, min(len(known), rng.choice([1, 1, 2, 3, 6])))
        edges += [(each, name) for each in taken]
    sizes = {each: (rng.uniform(40, 300), rng.choice([34.0, 46.0])) for each in [*sources, *names]}
    labels = {edge: rng.uniform(10, 200) for edge in edges if rng.random() < 0.4}
    return sources, sizes, edges, labels


def overlap(one: Box, other: Box) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def inside(point: Point, box: Box) -> bool:
    within = box.x + 0.01 < point.x < box.x + box.width - 0.01
    return within and box.y + 0.01 < point.y < box.y + box.height - 0.01


def along(points: tuple[Point, ...]) -> Iterator[Point]:
    """The curve as it is drawn: a cubic that is level at both ends."""
    for begin, end in pairwise(points):
        for step in range(11):
            t = step / 10
            half = (begin.x + end.x) / 2
            x = begin.x * (1 - t) ** 3 + 3 * half * t * (1 - t) + end.x * t**3
            yield Point(x, begin.y + (end.y - begin.y) * t * t * (3 - 2 * t))


def check(layout: Layout) -> None:
    labels = [line.label for line in layout.lines.values() if line.label is not None]
    solid = [*layout.boxes.values(), *labels]
    page = Box(0, 0, layout.width, layout.height)
    for one, other in combinations(solid, 2):
        assert not overlap(one, other)
    for each in solid:
        assert inside(Point(each.x, each.y), page)
        assert inside(Point(each.x + each.width, each.y + each.height), page)
    for line in layout.lines.values():
        for point in along(line.points):
            assert inside(point, page)
            assert not any(inside(point, box) for box in solid)
    level: list[tuple[float, float, float]] = []
    for (source, node), line in layout.lines.items():
        first, last = line.points[0], line.points[-1]
        assert (first.x, first.y) == (
            layout.boxes[source].x + layout.boxes[source].width,
            pytest.approx(layout.boxes[source].middle.y),
        )
        assert last.x == layout.boxes[node].x
        assert layout.boxes[node].y < last.y < layout.boxes[node].y + layout.boxes[node].height
        # Where lines run level in or before a column; between columns they may cross.
        runs = list(zip(line.points[1::2], line.points[2::2], strict=True))
        level += [(start.x, end.x, start.y) for start, end in runs]
    for (a, b, y), (c, d, z) in combinations(level, 2):
        assert min(b, d) <= max(a, c) or abs(y - z) > 8


@pytest.mark.parametrize("seed", range(200))
def test_nothing_lies_over_anything(seed: int) -> None:
    sources, sizes, edges, labels = random_graph(random.Random(seed))
    layout = lay_out(sources, sizes, edges, labels)
    check(layout)
    for source, node in edges:
        assert layout.boxes[source].x < layout.boxes[node].x
    assert len({layout.boxes[source].x for source in sources}) == 1


def test_a_chain_is_straight_and_a_fan_is_even() -> None:
    sizes = dict.fromkeys("abcde", (60.0, 34.0))
    chain = lay_out(["a"], sizes, list(pairwise("abcde")), {})
    assert len({box.middle.y for box in chain.boxes.values()}) == 1
    fan = lay_out(["a"], sizes, [("a", each) for each in "bcde"], {})
    ys = [fan.boxes[each].middle.y for each in "bcde"]
    assert fan.boxes["a"].middle.y == pytest.approx(sum(ys) / 4)


def test_lines_that_need_not_cross_do_not() -> None:
    sizes = dict.fromkeys(["a", "b", "c", "x", "y", "z"], (60.0, 34.0))
    layout = lay_out(["a", "b", "c"], sizes, [("c", "x"), ("b", "y"), ("a", "z")], {})
    assert [layout.boxes[each].y for each in "abc"] == [layout.boxes[each].y for each in "zyx"]

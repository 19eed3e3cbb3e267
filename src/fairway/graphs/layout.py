"""Where the boxes and lines of a drawing go: columns from left to right, nothing over anything.

A vertex stands one column after the last of those it takes from. A line that passes columns has a
joint in each, and a joint takes up room as a box does: so lines run level inside a column and turn
only between columns, where no box is. Just before a column all lines run level once more: there are
their labels, each above its own line and within the height of the box it points to. What is in a
column is put in order by the mean place of its neighbours, which leaves few crossings.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MARGIN: Final = 16.0
ROW_GAP: Final = 22.0
JOINT_GAP: Final = 14.0
PITCH: Final = 14.0
"""Between the lines that come into one box."""
LABELLED_PITCH: Final = 22.0
LABEL_HEIGHT: Final = 15.0
"""Of a label and its distance from its line, which is below."""
TURN_MIN: Final = 44.0
TURN_MAX: Final = 150.0
LEVEL: Final = 16.0
"""How far a line runs level before it comes into a box."""
SWEEPS: Final = 12


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Box:
    """A place for a vertex, or for a label; x and y are its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> Point:
        return Point(self.x + self.width / 2, self.y + self.height / 2)


@dataclass(frozen=True, slots=True)
class Line:
    """From a box to a box: level where two points have the same y, and a curve between others."""

    points: tuple[Point, ...]
    label: Box | None


@dataclass(frozen=True, slots=True)
class Layout:
    width: float
    height: float
    boxes: dict[str, Box]
    lines: dict[tuple[str, str], Line]


@dataclass(slots=True, eq=False)
class _Vertex:
    """A box, or a joint where `name` is empty."""

    name: str
    column: int
    height: float
    before: list[_Vertex]
    after: list[_Vertex]
    at: int = 0
    """Its place in its column."""
    y: float = 0.0
    """Of its middle."""
    pitch: float = PITCH

    def port(self, other: _Vertex) -> float:
        """How far below the middle the line from `other` comes in."""
        return (self.before.index(other) - (len(self.before) - 1) / 2) * self.pitch


def lay_out(
    first: Sequence[str],
    sizes: Mapping[str, tuple[float, float]],
    edges: Iterable[tuple[str, str]],
    labels: Mapping[tuple[str, str], float],
) -> Layout:
    """Lay out a graph without circles.

    `first` are those in the first column, which no edge points to. `sizes` are the width and the
    height that each vertex needs, in the order in which they stand if nothing else decides it.
    `labels` are the widths of the labels of edges.
    """
    edges = list(edges)
    vertices = _columns(first, sizes, edges)
    chains = {(a, b): _chain(vertices[a], vertices[b]) for a, b in edges}
    columns: list[list[_Vertex]] = []
    for vertex in [*vertices.values(), *(joint for c in chains.values() for joint in c[1:-1])]:
        columns += [[] for _ in range(vertex.column + 1 - len(columns))]
        columns[vertex.column].append(vertex)
    _order(columns)
    for edge in edges:
        if edge in labels:
            vertices[edge[1]].pitch = LABELLED_PITCH
    for vertex in vertices.values():
        ports = max(0, len(vertex.before) - 1) * vertex.pitch + 2 * LABEL_HEIGHT
        vertex.height = max(vertex.height, ports)
    _place(columns)
    return _drawn(vertices, chains, columns, sizes, labels)


def _columns(
    first: Sequence[str],
    sizes: Mapping[str, tuple[float, float]],
    edges: Sequence[tuple[str, str]],
) -> dict[str, _Vertex]:
    before: dict[str, list[str]] = {name: [] for name in sizes}
    for source, node in edges:
        before[node].append(source)
    found: dict[str, int] = dict.fromkeys(first, 0)
    waiting = [name for name in sizes if name not in found]
    while waiting:
        ready = [name for name in waiting if all(each in found for each in before[name])]
        assert ready, "the graph has a circle"
        for name in ready:
            found[name] = 1 + max((found[each] for each in before[name]), default=0)
        waiting = [name for name in waiting if name not in found]
    return {name: _Vertex(name, found[name], sizes[name][1], [], []) for name in sizes}


def _chain(source: _Vertex, target: _Vertex) -> list[_Vertex]:
    joints = [
        _Vertex("", column, 0.0, [], []) for column in range(source.column + 1, target.column)
    ]
    chain = [source, *joints, target]
    for left, right in pairwise(chain):
        left.after.append(right)
        right.before.append(left)
    return chain


# Order


def _order(columns: list[list[_Vertex]]) -> None:
    """Order each column by the mean place of its neighbours, and keep the best order met."""
    _number(columns)
    best, fewest = [list(column) for column in columns], _crossings(columns)
    for sweep in range(SWEEPS):
        if not fewest:
            break
        if sweep % 2 == 0:
            for column in columns[1:]:
                _sort(column, lambda vertex: vertex.before)
        else:
            for column in reversed(columns[:-1]):
                _sort(column, lambda vertex: vertex.after)
        _swap(columns)
        crossings = _crossings(columns)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
    columns[:] = best
    _number(columns)
    for column in columns:
        for vertex in column:
            vertex.before.sort(key=lambda other: other.at)
            vertex.after.sort(key=lambda other: other.at)


def _number(columns: Iterable[Sequence[_Vertex]]) -> None:
    for column in columns:
        for at, vertex in enumerate(column):
            vertex.at = at


def _sort(column: list[_Vertex], neighbours: Callable[[_Vertex], list[_Vertex]]) -> None:
    def mean(vertex: _Vertex) -> float:
        near = neighbours(vertex)
        return sum(other.at for other in near) / len(near) if near else vertex.at

    column.sort(key=mean)
    _number([column])


def _swap(columns: Sequence[list[_Vertex]]) -> None:
    """Swap two that stand next to each other where that takes crossings away."""
    for column in columns:
        for at in range(len(column) - 1):
            upper, lower = column[at], column[at + 1]
            gain = 0
            for above, below in ((upper.before, lower.before), (upper.after, lower.after)):
                gain += sum((a.at > b.at) - (a.at < b.at) for a in above for b in below)
            if gain > 0:
                column[at], column[at + 1] = lower, upper
                upper.at, lower.at = at + 1, at


def _crossings(columns: Sequence[Sequence[_Vertex]]) -> int:
    found = 0
    for column in columns[:-1]:
        ends: list[int] = []
        for vertex in column:
            places = [other.at for other in vertex.after]
            found += sum(len(ends) - bisect_right(ends, place) for place in places)
            for place in places:
                insort(ends, place)
    return found


# Place


def _place(columns: Sequence[Sequence[_Vertex]]) -> None:
    """Give each vertex a y near to those of its neighbours, in order and with room between."""
    for column in columns:
        _settle(column, [0.0] * len(column))
    forth, back = list(columns[1:]), list(reversed(columns[:-1]))
    for _ in range(SWEEPS):
        for column in forth:
            _settle(column, [_wanted(vertex, forth=True) for vertex in column])
        for column in back:
            _settle(column, [_wanted(vertex, forth=False) for vertex in column])
    for column in forth:
        _settle(column, [_wanted(vertex, forth=True) for vertex in column])


def _wanted(vertex: _Vertex, *, forth: bool) -> float:
    near = vertex.before if forth else vertex.after
    if not near:
        return vertex.y
    total = weights = 0.0
    for other in near:
        # A line between joints is long: that one should be straight, before others.
        weight = 1.0 + 3.0 * (not vertex.name) + 3.0 * (not other.name)
        y = other.y - vertex.port(other) if forth else other.y + other.port(vertex)
        total += weight * y
        weights += weight
    return total / weights


def _settle(column: Sequence[_Vertex], wanted: Sequence[float]) -> None:
    """The places nearest to those wanted that keep the order and the gaps.

    Those that would come too close are moved as one block to the mean of what its members want.
    """
    offsets = [0.0]
    for upper, lower in pairwise(column):
        gap = ROW_GAP if upper.name and lower.name else JOINT_GAP
        offsets.append(offsets[-1] + (upper.height + lower.height) / 2 + gap)
    blocks: list[tuple[float, int]] = []  # the mean, and how many it is of
    for want, offset in zip(wanted, offsets, strict=False):
        mean, size = want - offset, 1
        while blocks and blocks[-1][0] >= mean:
            other, others = blocks.pop()
            mean = (mean * size + other * others) / (size + others)
            size += others
        blocks.append((mean, size))
    means = [mean for mean, size in blocks for _ in range(size)]
    for vertex, mean, offset in zip(column, means, offsets, strict=False):
        vertex.y = mean + offset


# Draw


def _drawn(
    vertices: Mapping[str, _Vertex],
    chains: Mapping[tuple[str, str], Sequence[_Vertex]],
    columns: Sequence[Sequence[_Vertex]],
    sizes: Mapping[str, tuple[float, float]],
    labels: Mapping[tuple[str, str], float],
) -> Layout:
    every = [vertex for column in columns for vertex in column]
    top = min((vertex.y - vertex.height / 2 for vertex in every), default=0.0) - MARGIN
    for vertex in every:
        vertex.y -= top
    widths = [max((sizes[v.name][0] for v in column if v.name), default=0.0) for column in columns]
    level = [LEVEL] * len(columns)
    turn = [TURN_MIN] * len(columns)
    for edge, chain in chains.items():
        if edge in labels:
            level[chain[-1].column] = max(level[chain[-1].column], labels[edge] + LEVEL)
        for left, right in pairwise(chain):
            steep = abs(left.y - right.y - right.port(left))
            turn[right.column] = max(turn[right.column], min(TURN_MAX, steep * 0.4))
    lefts: list[float] = []
    for at in range(len(columns)):
        gap = lefts[-1] + widths[at - 1] + turn[at] + level[at] if lefts else MARGIN
        lefts.append(gap)
    boxes = {
        name: Box(lefts[v.column], v.y - v.height / 2, widths[v.column], v.height)
        for name, v in vertices.items()
    }
    lines = {}
    for edge, chain in chains.items():
        points = [Point(lefts[chain[0].column] + widths[chain[0].column], chain[0].y)]
        for left, right in pairwise(chain):
            y = right.y + right.port(left)
            points.append(Point(lefts[right.column] - level[right.column], y))
            end = lefts[right.column] + (0.0 if right.name else widths[right.column])
            points.append(Point(end, y))
        label = None
        if edge in labels:
            start, end = points[-2].x, points[-1].x - LEVEL / 2
            x = (start + end - labels[edge]) / 2
            label = Box(x, points[-1].y - LABEL_HEIGHT, labels[edge], LABEL_HEIGHT - 3)
        lines[edge] = Line(tuple(points), label)
    width = max((box.x + box.width for box in boxes.values()), default=0.0) + MARGIN
    height = max((vertex.y + vertex.height / 2 for vertex in every), default=0.0) + MARGIN
    return Layout(width, height, boxes, lines)

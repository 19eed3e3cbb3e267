"""Puts the nodes of a graph in order: each parameter is an edge from what it is named after.

Everything that can be wrong is found here, when the graph is built and not when it fires, and the
message says which function it is about, where it stands and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType
from typing import TYPE_CHECKING, Any, get_origin, is_typeddict

from fairway.errors import InvalidConfig
from fairway.graphs.node import fits, is_protocol, members, named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairway.graphs.node import Node, NodeParameter


@dataclass(frozen=True, slots=True)
class Edge:
    """From a source or a node to a node."""

    source: str
    node: str
    accepts: tuple[Any, ...]
    """The types that pass, if `routed`."""
    optional: bool
    routed: bool
    """Whether only some of what the node gives passes here."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """A graph in order."""

    name: str
    sources: tuple[str, ...]
    nodes: tuple[Node, ...]
    """Each after all it takes from."""
    edges: tuple[Edge, ...]
    terminal: tuple[str, ...]
    """The nodes whose values are the result."""

    def into(self, node: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.node == node]


def wire(name: str, sources: Mapping[str, Any], nodes: Sequence[Node], *, idle: set[str]) -> Wiring:
    """Put nodes in order. `sources` are types by name; those in `idle` need no node to take them.

    Raises `InvalidConfig`.
    """
    by_name: dict[str, Node] = {}
    for node in nodes:
        if node.name in by_name:
            raise _wrong(
                name,
                f"two nodes are called {node.name!r}: {by_name[node.name].where} and {node.where};"
                " rename one, or give it name=",
            )
        if node.name in sources:
            raise _wrong(
                name, f"node {node.where} has the name of a source; rename it, or give it name="
            )
        by_name[node.name] = node
    if not by_name:
        raise _wrong(name, "it has no nodes; declare one with @graph.node")
    edges = [
        _edge(name, node, parameter, sources, by_name)
        for node in nodes
        for parameter in node.parameters
    ]
    for node in nodes:
        if not node.parameters:
            raise _wrong(
                name,
                f"node {node.where} takes nothing; name a parameter after a source"
                f" ({_listed(sources)}) or another node",
            )
    taken = {edge.source for edge in edges}
    for source in sources:
        if source not in taken and source not in idle:
            raise _wrong(
                name,
                f"no node takes the source {source!r}; name a parameter after it, or leave it out",
            )
    ordered = _ordered(name, by_name, edges)
    for node in ordered:
        _check_exhaustive(name, f"node {node.where}", node.name, node.gives, edges)
    for source, type in sources.items():
        _check_exhaustive(name, f"the source {source!r}", source, _present(type), edges)
    terminal = tuple(node.name for node in ordered if node.name not in taken - set(sources))
    return Wiring(name, tuple(sources), tuple(ordered), tuple(edges), terminal)


def _edge(
    graph: str,
    node: Node,
    parameter: NodeParameter,
    sources: Mapping[str, Any],
    nodes: Mapping[str, Node],
) -> Edge:
    name = parameter.name
    if name in sources:
        gives = _present(sources[name])
        label = f"the source {name!r}"
    elif name in nodes and name != node.name:
        gives = nodes[name].gives
        label = f"node {nodes[name].where}"
        if not gives:
            raise _wrong(
                graph,
                f"node {node.where} takes {name!r}, which returns None always: annotate what"
                f" {nodes[name].where} returns",
            )
    elif name == node.name:
        raise _wrong(
            graph, f"node {node.where} takes itself; to see what it gave before, keep a state"
        )
    else:
        others = [*sources, *(each for each in nodes if each != node.name)]
        near = get_close_matches(name, others, n=1)
        hint = (
            f"; did you mean {near[0]!r}?"
            if near
            else f" of this graph; there are: {_listed(others)}; name a source in when= or uses="
        )
        raise _wrong(
            graph, f"node {node.where} takes {name!r}, which is neither a source nor a node{hint}"
        )
    passing = [each for each in gives if any(fits(each, taken) for taken in parameter.accepts)]
    if not passing:
        raise _wrong(
            graph,
            f"node {node.where} takes {name!r} as {_union(parameter.accepts)}, but {label} gives"
            f" {_union(gives)}; make the two alike",
        )
    routed = len(passing) < len(gives)
    for each in passing if routed else ():
        others = [other for other in gives if other not in passing]
        mistaken = next((other for other in others if _indistinguishable(other, each)), None)
        if mistaken is not None:
            raise _wrong(
                graph,
                f"node {node.where} takes {name!r} as {named(each)}, which cannot be told from"
                f" {named(mistaken)} when it runs; give each of them a class of its own",
            )
    return Edge(name, node.name, tuple(passing), parameter.optional, routed)


def _present(type: Any) -> tuple[Any, ...]:
    return tuple(each for each in members(type) if each is not NoneType)


def _indistinguishable(one: Any, other: Any) -> bool:
    """Whether a value of the first could be taken for one of the second, by its class."""
    classes = [get_origin(each) or each for each in (one, other)]
    for each in classes:
        if each is Any or not isinstance(each, type) or is_typeddict(each) or is_protocol(each):
            return True  # no `isinstance` for these
    return issubclass(*classes)


def _check_exhaustive(
    graph: str, label: str, name: str, gives: Sequence[Any], edges: Sequence[Edge]
) -> None:
    mine = [edge for edge in edges if edge.source == name]
    passing = [each for edge in mine for each in edge.accepts]
    missing = [each for each in gives if each not in passing]
    if mine and missing:
        raise _wrong(
            graph,
            f"{label} may give {_union(missing)}, and no node takes it; add one with a parameter"
            f" {name!r} of that type",
        )


def _ordered(graph: str, nodes: Mapping[str, Node], edges: Sequence[Edge]) -> list[Node]:
    """Each node after all it takes from; otherwise as they were declared."""
    before = {
        name: [edge.source for edge in edges if edge.node == name and edge.source in nodes]
        for name in nodes
    }
    ordered: list[Node] = []
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise _wrong(
                graph,
                f"its nodes go in a circle: {circle}; {nodes[name].where} is one of them. Keep what"
                " comes back in a state instead",
            )
        path.append(name)
        for each in before[name]:
            visit(each)
        path.pop()
        done.add(name)
        ordered.append(nodes[name])

    for name in nodes:
        visit(name)
    return ordered


def _union(types: Sequence[Any]) -> str:
    return " | ".join(named(each) for each in types) or "nothing"


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "there are none"


def _wrong(graph: str, what: str) -> InvalidConfig:
    return InvalidConfig(f"graph {graph!r}: {what}")

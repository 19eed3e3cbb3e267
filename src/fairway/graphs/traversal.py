"""Runs the nodes of a graph, each after what it takes from, as one function made for the graph.

The function is generated from the wiring when the graph is built: a firing then costs the calls of
the user's functions and little else, with no look at the wiring (it was four times as slow with
one). What is generated for

    mid(quotes) -> Mid;  signal(mid, rates=None) -> Trade | NoAction;  trade(signal: Trade)

reads, apart from the counting, as

    def traverse(given, ctx, out):
        quotes = given.get("quotes"); rates = given.get("rates")
        mid = signal = trade = None
        if quotes is not None:
            mid = f_mid(quotes)
        if mid is not None:
            signal = f_signal(mid, rates)
        if isinstance(signal, Trade):
            out["trade"] = trade = f_trade(signal)

None is absence: a node runs when every input that may not be absent is there.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any, NoReturn, get_origin

from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.runtime.usercode import is_interrupt
from fairway.runtime.words import kind_of, named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import FrameType

    from fairway.graphs.context import FiringContext
    from fairway.graphs.node import Node
    from fairway.graphs.node_runner import NodeRunner
    from fairway.graphs.wiring import Edge, Wiring
    from fairway.runtime.usercode import CancelledItself


class NodeFailed(Exception):
    """A node raised. `node` names it; the cause is what it raised."""

    def __init__(self, node: str, error: BaseException) -> None:
        super().__init__(f"node {node!r}: {named(error)}")
        self.node = node
        self.error = error


class NodeTimeout(TimeoutError):
    """A node took longer than its timeout_s."""


class NodeCounts:
    """How often each node ran and failed, and how long it took in all. Plain numbers: hot."""

    __slots__ = ("_edges", "busy_ns", "failed", "names", "optional", "runs")

    def __init__(self, wiring: Wiring) -> None:
        self.names = tuple(node.name for node in wiring.nodes)
        self.runs = [0] * len(self.names)
        self.failed = [0] * len(self.names)
        self.busy_ns = [0] * len(self.names)
        self.optional = [0] * len(wiring.edges)
        """Values that passed an edge that may be empty. The others pass with each run."""
        self._edges = wiring.edges

    def passed(self) -> list[tuple[str, int]]:
        """How many values went along each edge, as `from->to`."""
        return [
            (
                f"{edge.source}->{edge.node}",
                self.optional[at] if edge.optional else self.runs[self.names.index(edge.node)],
            )
            for at, edge in enumerate(self._edges)
        ]


class Traversal:
    """A graph, ready to run."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.counts = NodeCounts(wiring)
        self.inline = all(node.inline for node in wiring.nodes)
        """Whether it runs on the loop to its end, without ever waiting."""
        self.source_code, scope = _generated(wiring, self.counts, inline=self.inline)
        exec(compile(self.source_code, f"{FILE}{wiring.name}>", "exec"), scope)
        self._function: Callable[..., Any] = scope["traverse"]

    def run(self, given: Mapping[str, Any], ctx: FiringContext, out: dict[str, Any]) -> None:
        """Run an inline graph. Results are put in `out`; raises `NodeFailed`."""
        self._function(given, ctx, out)

    async def arun(
        self, given: Mapping[str, Any], ctx: FiringContext, out: dict[str, Any], runner: NodeRunner
    ) -> None:
        """Run any graph."""
        if self.inline:
            self._function(given, ctx, out)
        else:
            await self._function(given, ctx, out, runner)

    def failure_of(self, error: CancelledItself) -> NodeFailed:
        """The node that cancelled the task it ran in, which was made for its firing."""
        cause = error.__cause__
        assert cause is not None
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        found = node_in(frames)
        at = self.counts.names.index(found[1]) if found is not None else 0
        self.counts.failed[at] += 1
        return NodeFailed(self.counts.names[at], cause)


def node_in(frames: Sequence[FrameType]) -> tuple[str, str] | None:
    """The graph and the node that run in a stack, if one does."""
    for frame in frames:
        file = frame.f_code.co_filename
        if file.startswith(FILE) and frame.f_code.co_name == "traverse":
            names, at = frame.f_globals["names"], frame.f_locals.get("at", 0)
            return file[len(FILE) : -1], names[at]
    return None


FILE = "<graph "
"""What generated code is called, before the name of the graph."""


def _generated(wiring: Wiring, counts: NodeCounts, *, inline: bool) -> tuple[str, dict[str, Any]]:
    scope: dict[str, Any] = {
        "now": SYSTEM_CLOCK.now_ns,
        "runs": counts.runs,
        "failed": counts.failed,
        "busy": counts.busy_ns,
        "names": counts.names,
        "passed": counts.optional,
        "NodeFailed": NodeFailed,
        "passes": is_interrupt if inline else _passes,
        "within": _within,
        "undeclared": _undeclared,
    }
    values = {name: f"s_{at}" for at, name in enumerate(wiring.sources)}
    values.update({node.name: f"v_{at}" for at, node in enumerate(wiring.nodes)})
    head = (
        "def traverse(given, ctx, out):"
        if inline
        else "async def traverse(given, ctx, out, runner):"
    )
    lines = [head]
    for name in wiring.sources:
        lines.append(f"    {values[name]} = given.get({name!r})")
    lines.append(f"    {' = '.join(values[node.name] for node in wiring.nodes)} = None")
    lines.append("    at = 0")
    lines.append("    try:")
    for at, node in enumerate(wiring.nodes):
        scope[f"f_{at}"] = node.function
        edges = wiring.into(node.name)
        arguments = []
        taken = []
        guards = []
        for edge_at, edge in enumerate(edges):
            value = values[edge.source]
            if edge.routed:
                scope[f"t_{at}_{edge_at}"] = tuple(_class_of(each) for each in edge.accepts)
                if edge.optional:
                    value = f"({value} if isinstance({value}, t_{at}_{edge_at}) else None)"
                else:
                    guards.append(f"isinstance({value}, t_{at}_{edge_at})")
            elif not edge.optional:
                guards.append(f"{value} is not None")
            taken.append(value)
            arguments.append(f"{edge.source}={value}")
        if all(edge.optional for edge in edges):  # something must have come of what it may take
            guards.append(
                f"({' or '.join(_present(e, values, at, i) for i, e in enumerate(edges))})"
            )
        if node.context is not None:
            arguments.append(f"{node.context}=ctx")
        lines += [
            f"        if {' and '.join(guards)}:",
            f"            at = {at}",
            *(
                f"            passed[{wiring.edges.index(edge)}] += {value} is not None"
                for edge, value in zip(edges, taken, strict=True)
                if edge.optional
            ),
            "            begin = now()",
            f"            {values[node.name]} = {_call(node, at, arguments)}",
            f"            busy[{at}] += now() - begin",
            f"            runs[{at}] += 1",
        ]
        if any(edge.routed for edge in wiring.edges if edge.source == node.name):
            scope[f"g_{at}"] = tuple(_class_of(each) for each in node.gives)
            none = f"{values[node.name]} is not None and " if node.gives_none else ""
            lines.append(
                f"            if {none}not isinstance({values[node.name]}, g_{at}):"
                f" undeclared({values[node.name]}, g_{at})"
            )
        if node.name in wiring.terminal:
            lines.append(f"            out[{node.name!r}] = {values[node.name]}")
    # Whatever it raises ends the firing, and not the process that others fire in. A cancellation
    # that nobody asked for is an error of the node: it met something cancelled.
    lines += [
        "    except BaseException as error:",
        "        if passes(error): raise",
        "        failed[at] += 1",
        "        raise NodeFailed(names[at], error) from error",
    ]
    return "\n".join(lines) + "\n", scope


def _present(edge: Edge, values: Mapping[str, str], at: int, edge_at: int) -> str:
    value = values[edge.source]
    return f"isinstance({value}, t_{at}_{edge_at})" if edge.routed else f"{value} is not None"


def _call(node: Node, at: int, arguments: list[str]) -> str:
    if node.inline:
        return f"f_{at}({', '.join(arguments)})"
    given = ", ".join(arguments)
    if node.isolation == "process":
        call = f"runner.in_process(f_{at}, dict({given}))"
    elif node.blocking:
        call = f"runner.in_thread(f_{at}, dict({given}))"
    else:
        call = f"f_{at}({given})"
    if node.timeout_s is not None:
        call = f"within({node.timeout_s!r}, {call})"
    return f"await {call}"


def _class_of(hint: Any) -> type:
    origin = get_origin(hint)
    found = origin if isinstance(origin, type) else hint
    return found if isinstance(found, type) else object


def _passes(error: BaseException) -> bool:
    """Whether it is not the node's: meant for the process, or for the task that runs the nodes.

    Who cancelled that is known only to whoever made it; see `Traversal.failure_of`.
    """
    if type(error) is not asyncio.CancelledError:
        return is_interrupt(error)
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _undeclared(value: Any, declared: tuple[type, ...]) -> NoReturn:
    """A node whose value decides where it goes gave one that goes nowhere."""
    wanted = " | ".join(each.__name__ for each in declared)
    raise TypeError(f"it returned a {kind_of(value)}, and declares {wanted}")


async def _within(timeout_s: float, call: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await call
    except TimeoutError:
        if not limit.expired():
            raise  # its own
        raise NodeTimeout(f"it took longer than {timeout_s:g} s") from None

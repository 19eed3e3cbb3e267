"""A computation graph, as it is declared: its sources, its nodes and when it fires.

    pricing = Graph("pricing", when=any_(orderbook, rates))

    @pricing.node
    def mid(orderbook: OrderBook) -> Mid: ...

    @pricing.node
    def signal(mid: Mid, rates: Rates | None) -> Trade | NoAction: ...

    @pricing.node
    def trade(signal: Trade, firing: FiringContext) -> None: ...

    @pricing.node
    def rest(signal: NoAction) -> None: ...

A parameter is an edge from the source or the node that it is named after, and its type must fit.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, overload

from fairway.errors import Closing, InvalidConfig, InvalidRequest
from fairway.graphs.context import FiringContext
from fairway.graphs.criteria import Criterion, any_
from fairway.graphs.drawing import to_mermaid, to_svg
from fairway.graphs.feeds.topic import TopicFeed
from fairway.graphs.firing import OnError, on_error_of
from fairway.graphs.node import Node, node_of
from fairway.graphs.source import Source
from fairway.graphs.traversal import Traversal
from fairway.graphs.wiring import Wiring, wire
from fairway.runtime.amounts import count, length_ns
from fairway.runtime.usercode import reraise_interrupt, without_task
from fairway.runtime.words import brief, traced, writable
from fairway.wire.topics import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairway.graphs.boundary import Schema
    from fairway.graphs.firing import DeadLetter, Firing, Then
    from fairway.graphs.inputs import Strategy
    from fairway.graphs.node import Isolation
    from fairway.graphs.running import RunningGraph

F = TypeVar("F", bound="Callable[..., Any]")

logger = logging.getLogger("fairway.graphs")


@dataclass(frozen=True, slots=True)
class Bridge:
    """A workflow, or a job, that a firing starts."""

    order: Callable[[Mapping[str, Any]], Any]
    """From outputs to what is enqueued."""
    where: Callable[[Mapping[str, Any]], bool] | None


class GraphOptions(TypedDict, total=False):
    """What a graph may be declared with: see `Graph`."""

    uses: Iterable[Any]
    inputs: Strategy
    tenant: str
    on_error: OnError | Then
    warm_timeout_s: float | None
    checkpoint: bool
    record: int


class Graph:
    """One graph. It runs where it is loaded: by the app that declares it, or by a command."""

    def __init__(
        self,
        name: str,
        *,
        when: Criterion | Source[Any] | Any,
        uses: Iterable[Any] = (),
        inputs: Strategy = "latest",
        tenant: str = "",
        on_error: OnError | Then = OnError(),  # noqa: B008  (it is a value)
        warm_timeout_s: float | None = None,
        checkpoint: bool = False,
        record: int = 0,
    ) -> None:
        """Declare it.

        `when` names the sources that make it fire, `uses` those that are inputs only. With
        `latest` a firing sees the newest value of each; with `sequential` every value is seen, in
        order. With `checkpoint` it goes on after a crash where it stood, and its effects happen
        once; without, it begins afresh. `record` keeps that many records of its journal, with the
        outputs, to be replayed.

        It fires when all its required sources are healthy; after `warm_timeout_s` it goes on
        without those that are not.
        """
        check_name(name, what="graph")
        if tenant != "":
            check_name(tenant, what="tenant")
        if inputs not in ("latest", "sequential"):
            raise InvalidConfig(
                f"graph {name!r}: inputs is 'latest' or 'sequential', not {inputs!r}"
            )
        if record and not checkpoint:
            raise InvalidConfig(
                f"graph {name!r}: record keeps more of its journal, which it has with"
                " checkpoint=True only"
            )
        count(f"graph {name!r}: record", record, least=0)
        warm_timeout_ns = None
        if warm_timeout_s is not None:
            what = f"graph {name!r}: warm_timeout_s"
            warm_timeout_ns = length_ns(what, warm_timeout_s, zero=True)
        self.name = name
        self.tenant = tenant
        self.criterion = when if isinstance(when, Criterion) else any_(when)
        self.inputs: Strategy = inputs
        self.on_error = on_error_of(on_error)
        self.warm_timeout_ns = warm_timeout_ns
        self.checkpoint = checkpoint
        self.record = record
        self.sources: dict[str, Source[Any]] = {}
        self.firing_sources: set[str] = set()
        for given in self.criterion.sources:
            self.firing_sources.add(self._add_source(given).name)
        if not isinstance(uses, Iterable):
            raise InvalidConfig(f"graph {name!r}: uses is a list of sources: [{uses!r}]")
        for given in uses:
            self._add_source(given)
        self.nodes: list[Node] = []
        self.bridges: list[Bridge] = []
        self._built: Traversal | None = None
        self.instance: RunningGraph | None = None
        """Where it runs, while it does."""
        self.failed: str | None = None
        """Why it was given up, if it was."""
        self._listeners: list[Callable[[Firing], None]] = []

    def __repr__(self) -> str:
        return f"Graph({self.name!r})"

    @overload
    def node(self, function: F, /) -> F: ...
    @overload
    def node(
        self,
        *,
        name: str | None = None,
        blocking: bool = False,
        isolation: Isolation = "none",
        timeout_s: float | None = None,
    ) -> Callable[[F], F]: ...
    def node(self, *functions: Any, **options: Any) -> Any:
        """Declare a function, sync or async, as a node.

        A sync function runs on the event loop and should take well under a millisecond; with
        `blocking=True` it runs in a thread, with `isolation="process"` in a process, where
        `timeout_s` ends it for good.
        """
        scope = sys._getframe(1).f_locals  # where its types are, if that is inside a function

        def declare(function: Any) -> Any:
            self.add(function, scope=scope, **options)
            return function

        return declare(*functions) if functions else declare

    def add(
        self,
        function: Callable[..., Any],
        *,
        scope: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """As `node`, without being a decorator."""
        if self._built is not None:
            raise InvalidConfig(
                f"graph {self.name!r} is built already: declare its nodes before it is loaded,"
                " called or replayed"
            )
        self.nodes.append(node_of(function, scope=scope, **options))

    def starts(
        self,
        order: Callable[[Mapping[str, Any]], Any],
        *,
        where: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        """Start a workflow, or enqueue a job, with each firing of which `where` is true.

            pricing.starts(lambda outputs: nightly.order({"mid": outputs["mid"]}))

        Both are given the outputs by name. It happens once for each firing, like every effect.
        """
        self.bridges.append(Bridge(order, where))

    def build(self) -> Traversal:
        """Wire it, or say what is wrong with it. Done when it is loaded, at the latest."""
        if self._built is None:
            self._built = Traversal(self.wiring())
        return self._built

    def wiring(self) -> Wiring:
        types = {name: source.given_type for name, source in self.sources.items()}
        idle = self.firing_sources | {
            name for name, source in self.sources.items() if source.keep == 0
        }
        return wire(self.name, types, self.nodes, idle=idle)

    @property
    def states(self) -> dict[str, Schema]:
        """What it keeps by itself, and the type of what is written to each."""
        kept = {name: source for name, source in self.sources.items() if source.keep is not None}
        return {name: source.item_schema for name, source in kept.items()}

    def call(self, **inputs: Any) -> Mapping[str, Any]:
        """Run the nodes once with these inputs, here and now, and return the outputs.

        Nothing is remembered, and effects are dropped: for tests, and for graphs of plain nodes
        that are used as functions. `invoke` runs any graph.
        """
        traversal = self.build()
        if not traversal.inline:
            raise InvalidConfig(f"graph {self.name!r} has nodes that wait: await graph.invoke(...)")
        outputs: dict[str, Any] = {}
        traversal.run(self.checked(inputs), self._context(), outputs)
        return outputs

    async def invoke(self, **inputs: Any) -> Mapping[str, Any]:
        """As `call`, for any graph: what a task of a workflow does with a graph."""
        from fairway.graphs.node_runner import NodeRunner

        outputs: dict[str, Any] = {}
        async with NodeRunner() as runner:
            await self.build().arun(self.checked(inputs), self._context(), outputs, runner)
        return outputs

    def checked(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by name, if they are those of this graph."""
        for name in inputs:
            if name not in self.sources:
                raise InvalidConfig(
                    f"graph {self.name!r} has no source {name!r}: {', '.join(self.sources)}"
                )
        return dict(inputs)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        return to_mermaid(self.wiring(), self._kinds())

    def to_svg(self) -> str:
        """The graph as an SVG picture."""
        return to_svg(self.wiring(), self._kinds())

    # While it runs

    @property
    def running(self) -> RunningGraph:
        if self.instance is None:
            raise self._not_running()
        return self.instance

    def _not_running(self) -> Closing:
        why = self.failed or "enter its app, or load it"
        return Closing(f"graph {self.name!r} is not running: {why}")

    def push_nowait(self, source: Source[Any] | str, value: Any) -> None:
        """Give a source a value, at once. An idle graph of plain nodes has fired on return.

        Raises `Backpressure` if the source is full (nothing was accepted), `InvalidRequest` if
        the value does not fit, or has `nan` or `inf` in it. In a checkpointed graph the value is
        durable some time later: `await push` waits for that.
        """
        instance = self.instance
        if instance is None:
            raise self._not_running()
        instance.push_nowait(_source_name(source), value)

    async def push(self, source: Source[Any] | str, value: Any) -> None:
        """Give a source a value, and return when it is accepted: durably, if checkpointed.

        Waits for room if the source says `on_full="block"`. Raises `InvalidRequest` for what does
        not fit, `nan` and `inf` included.
        """
        await self.running.push(_source_name(source), value)

    async def ask(self, source: Source[Any] | str, value: Any) -> Firing | None:
        """Give a source a value, and return the firing that consumed it.

        None if no firing comes of it: the source left it out (`through`, or a repeat), or `where`
        passed over it (`sequential`). Raises `FiringFailed` if that firing went to the dead
        letters.
        """
        return await self.running.ask(_source_name(source), value)

    async def settled(self) -> None:
        """Wait until everything that was accepted and can fire has fired, and is recorded."""
        await self.running.settled()

    @property
    def fired(self) -> int:
        """How many times it has fired since it was loaded."""
        return self.running.reactor.fired

    def listen(self, listener: Callable[[Firing], None]) -> Callable[[], None]:
        """Call `listener` with each firing, failed ones too, once it is recorded; returns how to
        end that.

        It is called on the event loop and must not wait. It outlives restarts of the graph.
        """
        if not callable(listener):
            raise InvalidRequest(f"a listener is a function of a firing, not {brief(listener)}")
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def notify_listeners(self, firing: Firing) -> None:
        """A firing is over: call whoever listens."""
        if self._listeners:
            for listener in list(self._listeners):
                try:
                    without_task(listener, firing)
                except BaseException as error:  # the firing is over whatever they make of it
                    reraise_interrupt(error)
                    logger.error("graph %s: a listener failed\n%s", self.name, traced(error))

    @property
    def number(self) -> int:
        """The number of its last firing; it goes on after a restart if checkpointed."""
        return self.running.reactor.number

    @property
    def firings(self) -> list[Firing]:
        """The last 200 firings, oldest first."""
        return list(self.running.reactor.log)

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """What could not be used and was kept aside, oldest first."""
        return self.running.checkpoint.letters()

    async def fire(self, cache: Mapping[str, Any] | None = None) -> Firing:
        """Fire now, whatever the criterion says, paused or not; with `cache`, it replaces the
        inputs by source. Raises `FiringFailed`: then nothing was consumed; and `InvalidRequest` for
        what does not fit, `nan` and `inf` included."""
        return await self.running.force(cache)

    async def pause(self, who: str = "") -> None:
        """Stop firing by itself, also after a restart if checkpointed. Sources go on."""
        await self.running.reactor.pause(_named(who))

    async def resume(self, who: str = "") -> None:
        """Fire again, at once if something is due; it also ends a halt."""
        await self.running.reactor.resume(_named(who))

    # How

    def _add_source(self, given: Any) -> Source[Any]:
        if isinstance(given, Source):
            source: Source[Any] = given
        elif hasattr(given, "name") and hasattr(given, "type") and hasattr(given, "patch"):
            source = Source(given.name, given.type, feed=TopicFeed(given.name))
        else:
            raise InvalidConfig(
                f"graph {self.name!r}: {given!r} is no source; a source is made with app.source()"
                " or app.topic(), several are named as any_(a, b) in when= and as [a, b] in uses="
            )
        if self.sources.setdefault(source.name, source) is not source:
            raise InvalidConfig(
                f"graph {self.name!r}: two sources are called {source.name!r}; rename one, or name"
                " the same declaration both times"
            )
        return source

    def _context(self) -> FiringContext:
        return FiringContext(self.name, self.tenant, 0, "call", 0, states=self.states)

    def _kinds(self) -> dict[str, str]:
        return {name: source.kind for name, source in self.sources.items()}


def _named(who: object) -> str:
    """Who gives a command, as the journal keeps it."""
    if not isinstance(who, str):
        raise InvalidRequest(f"who gives a command is a text, not {brief(who)}")
    return writable(who)


def _source_name(source: Source[Any] | str) -> str:
    if isinstance(source, str):
        return source
    if not isinstance(source, Source):
        raise InvalidRequest(f"a source is given by its name or as a Source, not {brief(source)}")
    return source.name

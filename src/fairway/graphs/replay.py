"""Runs a graph over what was recorded, at full speed, and compares what comes out.

From a journal, each firing is given exactly what it was given then: the same code gives the same
outputs, byte for byte. From events (a topic, a file), everything is decided anew, with the times
the events carry instead of a clock: sources, criterion and windows as they would have been.
Effects are made and not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairway.errors import InvalidRequest
from fairway.graphs.boundary import WHOLE, Boundary
from fairway.graphs.checkpoint import STATE, Checkpoint, DeadLettered, Fired, Pushed
from fairway.graphs.context import FiringContext
from fairway.graphs.firing import packed
from fairway.graphs.inputs import Inputs, PredicateFailed, Slot
from fairway.graphs.node_runner import NodeRunner
from fairway.graphs.repeats import Repeats, hashable
from fairway.graphs.source import KEYS_MAX
from fairway.graphs.traversal import NodeFailed
from fairway.graphs.windows import collector_of
from fairway.runtime.usercode import reraise_interrupt, without_task
from fairway.runtime.words import named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from fairway.graphs.boundary import Stored
    from fairway.graphs.checkpoint import Consumed, Record
    from fairway.graphs.context import Effect
    from fairway.graphs.graph import Graph
    from fairway.graphs.inputs import Taken
    from fairway.graphs.source import Source


class Given(NamedTuple):
    """An event to run a graph over."""

    source: str
    data: bytes
    """JSON."""
    at_ns: int
    """When it came."""


class Replayed(NamedTuple):
    """One firing, again."""

    number: int
    wall_ns: int
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    error: str | None
    effects: tuple[Effect, ...]
    recorded: bytes | None = None
    """The outputs as they were then, if that was recorded."""

    @property
    def packed(self) -> bytes:
        return packed(self.outputs)

    @property
    def same(self) -> bool | None:
        """Whether the outputs are what they were; None if that was not recorded."""
        return None if self.recorded is None else self.recorded == self.packed


async def over_journal(
    graph: Graph, journal: AsyncIterator[Checkpoint | Record]
) -> AsyncIterator[Replayed]:
    """Every firing that a journal holds (see `Graphs.history`), given what it was given then."""
    recorded = _Recorded(graph.sources)
    async with _Runner(graph) as runner:
        async for found in journal:
            if isinstance(found, Checkpoint):
                recorded.begin(found)
            elif isinstance(found, Pushed):
                recorded.write(found.source, found.stored)
            elif isinstance(found, DeadLettered):
                recorded.consume(found.news)
            elif isinstance(found, Fired):
                if found.replaced:
                    recorded.cache.clear()
                recorded.consume(found.news)
                brought = () if found.replaced else found.news
                fresh = tuple(each.source for each in brought if each.stored is not None)
                given = dict(recorded.cache)
                for write in found.writes:
                    recorded.write(write.source, write.stored)
                replayed = await runner.fire(
                    given, found.number, found.cause, found.wall_ns, found.degraded, fresh
                )
                yield replayed._replace(recorded=found.outputs)


class _Recorded:
    """What a journal says that each firing was given."""

    def __init__(self, sources: Mapping[str, Source[Any]]) -> None:
        self.cache: dict[str, Any] = {}
        self._sources = sources
        self._written: dict[str, list[Any]] = {}  # to states that keep everything
        self._before: dict[str, int] = {}  # how many values are not held of each

    def begin(self, checkpoint: Checkpoint) -> None:
        for name, kept in checkpoint.sources.items():
            for stored in kept.window:
                self.write(name, stored)
            self._before[name] = kept.written - len(kept.window)
            if kept.value is not None and name in self._sources:
                self.cache[name] = self._loaded(name, kept.value, kept.shown)

    def write(self, name: str, stored: Stored) -> None:
        source = self._sources.get(name)
        if source is not None and source.keep is not None:
            self._written.setdefault(name, []).append(source.item_schema.load(stored))

    def consume(self, news: Iterable[Consumed]) -> None:
        for name, marks, stored in ((each.source, each.marks, each.stored) for each in news):
            if stored is not None and name in self._sources:
                self.cache[name] = self._loaded(name, stored, marks.get(STATE, 0))

    def _loaded(self, name: str, stored: Stored, written: int) -> Any:
        if stored.data != WHOLE:
            return self._sources[name].schema.load(stored)
        return self._written.get(name, [])[: written - self._before.get(name, 0)]


async def over_events(graph: Graph, events: Iterable[Given]) -> AsyncIterator[Replayed]:
    """Run a graph over events in order of time, as if they came now. Raises `InvalidRequest`."""
    async with _Runner(graph) as runner:
        run = _Rerun(graph)
        now_ns = 0
        for event in events:
            for at_ns, taken in run.until(event.at_ns):
                yield await runner.next(run, taken, at_ns)
            now_ns = max(now_ns, event.at_ns)
            for taken in run.arrive(event, now_ns):
                yield await runner.next(run, taken, now_ns)
        for taken in run.end(now_ns):
            yield await runner.next(run, taken, now_ns)


class Difference(NamedTuple):
    """Where two versions part."""

    number: int
    inputs: Mapping[str, Any]
    before: Mapping[str, Any] | None
    """None if only the other one fired."""
    after: Mapping[str, Any] | None


async def compared(
    before: AsyncIterator[Replayed], after: AsyncIterator[Replayed]
) -> AsyncIterator[Difference]:
    """The firings whose outputs differ between two versions of a graph over the same input."""
    while True:
        one = await anext(before, None)
        other = await anext(after, None)
        if one is None and other is None:
            return
        if one is None or other is None:
            found = one or other
            assert found is not None
            yield Difference(
                found.number,
                found.inputs,
                one.outputs if one is not None else None,
                other.outputs if other is not None else None,
            )
        elif (one.packed, one.error) != (other.packed, other.error):
            yield Difference(
                one.number,
                one.inputs,
                one.outputs if one.error is None else {"error": one.error},
                other.outputs if other.error is None else {"error": other.error},
            )


def events_of(lines: Iterable[bytes]) -> Iterable[Given]:
    """Events from lines of JSON: `{"source": "quotes", "data": {...}, "at": 12.5}`.

    `at` is in seconds and may be left out; then each comes when the one before did.
    """
    at_ns = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = _LINE.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest(f"line {number}: {error}") from None
        if event.at is not None:
            at_ns = round(event.at * 1e9)
        yield Given(event.source, bytes(event.data), at_ns)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    data: msgspec.Raw
    at: float | None = None


_LINE = msgspec.json.Decoder(_Line)


class _Runner:
    """Runs the nodes, and nothing else."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._traversal = graph.build()
        self._node_runner = NodeRunner()
        self._states = graph.states
        self._number = 0

    async def __aenter__(self) -> _Runner:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._node_runner.__aexit__(None, None, None)

    async def next(self, run: _Rerun, taken: Taken, at_ns: int) -> Replayed:
        self._number += 1
        fresh = tuple(update.source for update in taken.updates)
        replayed = await self.fire(taken.values, self._number, "news", at_ns, (), fresh)
        for name, value in self._writes:
            run.write(name, value, at_ns)
        return replayed

    async def fire(
        self,
        values: Mapping[str, Any],
        number: int,
        cause: str,
        wall_ns: int,
        degraded: tuple[str, ...],
        fresh: tuple[str, ...],
    ) -> Replayed:
        graph = self._graph
        ctx = FiringContext(
            graph.name, graph.tenant, number, cause, wall_ns, degraded, fresh, self._states
        )
        outputs: dict[str, Any] = {}
        error = None
        try:
            await self._traversal.arun(values, ctx, outputs, self._node_runner)
        except NodeFailed as failure:
            error = str(failure)
        self._writes = ctx.writes
        return Replayed(number, wall_ns, values, outputs, error, tuple(ctx.effects))


class _Rerun:
    """The sources and the criterion of a graph, on the time of the events."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        slots = [
            Slot(name, source.capacity, name in graph.firing_sources)
            for name, source in graph.sources.items()
        ]
        self._inputs: Inputs | None = None
        self._slots = slots
        self._collectors = {
            name: collector_of(source.batch)
            for name, source in graph.sources.items()
            if source.batch is not None
        }
        self._windows: dict[str, list[Any]] = {}
        self._repeats: dict[str, Repeats] = {}

    def until(self, at_ns: int) -> Iterable[tuple[int, Taken]]:
        """What time alone brings about before `at_ns`."""
        if self._inputs is None:
            self._inputs = Inputs(self._slots, self._graph.criterion, self._graph.inputs, at_ns)
        while True:
            deadlines = [self._inputs.deadline_ns()]
            deadlines += [each.deadline_ns() for each in self._collectors.values()]
            due_ns = min((each for each in deadlines if each is not None), default=None)
            if due_ns is None or due_ns > at_ns:
                return
            for name, collector in self._collectors.items():
                for window in collector.due(due_ns):
                    self._inputs.arrive(name, Boundary(window.values), due_ns)
            before = self._inputs.deadline_ns()
            taken = self._take(due_ns)
            if taken is None and before == self._inputs.deadline_ns() == due_ns:
                return  # nothing moved: it waits for more than time
            while taken is not None:
                yield due_ns, taken
                taken = self._take(due_ns)

    def arrive(self, event: Given, now_ns: int) -> Iterable[Taken]:
        """An event, and the firings that it brings about."""
        source = self._graph.sources.get(event.source)
        if source is None:
            raise InvalidRequest(f"graph {self._graph.name!r} has no source {event.source!r}")
        assert self._inputs is not None
        value = source.event_schema.of_json(event.data)
        try:
            if source.through is not None:
                value = without_task(source.through, value)
                value = None if value is None else source.item_schema.fitting(value)
            if value is None or self._is_repeat(source, value):
                return
        except InvalidRequest:
            raise
        except BaseException as error:
            reraise_interrupt(error)
            raise InvalidRequest(
                f"source {source.name!r}: through or dedupe failed: {named(error)}"
            ) from error
        if source.name in self._collectors:
            collector = self._collectors[source.name]
            for window in collector.push(value, {}, (), None, now_ns):
                self._inputs.arrive(source.name, Boundary(window.values), now_ns)
        elif source.keep is not None:
            self.write(source.name, value, now_ns)
        else:
            self._inputs.arrive(source.name, Boundary(value), now_ns)
        while (taken := self._take(now_ns)) is not None:
            yield taken

    def end(self, now_ns: int) -> Iterable[Taken]:
        """What is still collected when there are no more events."""
        if self._inputs is None:
            return
        for name, collector in self._collectors.items():
            for window in collector.flush():
                self._inputs.arrive(name, Boundary(window.values), now_ns)
        while (taken := self._take(now_ns)) is not None:
            yield taken

    def _take(self, now_ns: int) -> Taken | None:
        assert self._inputs is not None
        try:
            return self._inputs.take(now_ns)
        except PredicateFailed as failure:
            raise InvalidRequest(str(failure)) from failure.error
        finally:
            self._inputs.unwanted.clear()

    def write(self, name: str, value: Any, now_ns: int) -> None:
        assert self._inputs is not None
        keep = self._graph.sources[name].keep
        assert keep is not None
        window = self._windows.setdefault(name, [])
        window.append(value)
        if keep >= 0:
            del window[: len(window) - keep]
        if keep:
            self._inputs.arrive(name, Boundary(list(window)), now_ns)

    def _is_repeat(self, source: Source[Any], value: Any) -> bool:
        if source.dedupe is None:
            return False
        keys = (hashable(without_task(source.dedupe, value)),)
        repeats = self._repeats.setdefault(source.name, Repeats(KEYS_MAX))
        if repeats.met(keys):
            return True
        repeats.remember(keys)
        return False

"""A graph while it runs: its accumulators, its reactor, its journal and its outbox, together.

Made anew each time the graph is started, from the declaration and what was kept. `run` lasts until
it is cancelled or the reactor breaks; a source that breaks is restarted by itself meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairway.core.backoff import BackoffConfig
from fairway.errors import (
    Closing,
    Conflict,
    FairwayError,
    GaveUp,
    InvalidRequest,
    NotFound,
    SourceFailed,
)
from fairway.graphs.accumulator import Accumulator
from fairway.graphs.checkpoint import FORMAT, Began, Checkpoint, Limits, Recovered, Sent
from fairway.graphs.feed import Surroundings
from fairway.graphs.health import ReactorHealth, SourceHealth, SourceState
from fairway.graphs.journal import FAILURES_MAX, Journal, load
from fairway.graphs.outbox import Outbox
from fairway.graphs.reactor import Reactor
from fairway.graphs.reading import FeedReader
from fairway.graphs.source import KEYS_MAX
from fairway.graphs.tickets import Ticket
from fairway.runtime.supervision import Happening, Supervised
from fairway.runtime.turn import TURN
from fairway.runtime.usercode import without_task
from fairway.runtime.words import brief, is_a, said, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import Arrivals
    from fairway.graphs.firing import Firing
    from fairway.graphs.graph import Graph
    from fairway.graphs.hands import Hands
    from fairway.graphs.journal import Loaded
    from fairway.kernel.effects import Destination
    from fairway.runtime.clock import Clock
    from fairway.runtime.supervision import SupervisionEvent
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.partitions import Partitions

logger = logging.getLogger("fairway.graphs")

SUPERVISION: Final = BackoffConfig(
    base_ns=1_000_000_000,
    cap_ns=60_000_000_000,
    jitter=0.0,
    reset_after_ns=60_000_000_000,
    attempts_max=6,
)
"""Five restarts, after 1 s doubling to 60 s; a minute of health forgets earlier failures."""


WRITE_S: Final = 1.0
"""What was not drained in time has so long to be written."""
EPOCH_BITS: Final = 24
"""Lives of one incarnation of a graph that can be told apart."""


class Around(NamedTuple):
    """What graphs use of the process they run in."""

    clock: Clock
    hands: Hands
    random: Random
    holder: str
    """What this process is called, in what is kept."""
    log: Partitions | None = None
    destinations: Mapping[str, Destination] | None = None
    arrivals: Arrivals | None = None
    supervision: BackoffConfig = SUPERVISION
    check_writable: Callable[[], None] | None = None
    """Raises `ReadOnly` while the log takes nothing new."""
    turn: TurnBudget = TURN


class LiveGraph:
    """One graph, running."""

    def __init__(
        self,
        graph: Graph,
        around: Around,
        loaded: Loaded | None,
        partition: int | None,
        *,
        recoveries: Callable[[Recovered], None],
    ) -> None:
        self.graph = graph
        self.checkpoint = checkpoint = loaded.checkpoint if loaded is not None else Checkpoint()
        self.limits = limits_of(graph)
        self._around = around
        self._partition = partition
        self._recoveries = recoveries
        clock = around.clock
        sources = graph.sources.values()
        self.healths = {
            source.name: SourceHealth(
                source.name, required=source.required, stale_after_ns=source.stale_after_ns
            )
            for source in sources
        }
        self.health = ReactorHealth(self.healths.values(), warm_timeout_ns=graph.warm_timeout_ns)
        self.journal: Journal | None = None
        if partition is not None:
            assert around.log is not None
            assert loaded is not None
            self.journal = Journal(
                around.log,
                partition,
                loaded,
                self.limits,
                keep_records=graph.record,
                health=lambda failures: self.reactor.checkpoint_failing(failures, FAILURES_MAX),
                room=lambda: self.reactor.room(),
                lost=lambda error: self.reactor.broken(error),
            )
        self.outbox = Outbox(
            around.destinations,
            producer_of(graph),
            checkpoint.epoch,
            positions=partition is not None,
            moved=lambda: self.reactor.moved(),
            room=lambda: self.reactor.room(),
        )
        self.reactor = Reactor(
            graph,
            self.health,
            around.hands,
            clock,
            checkpoint=checkpoint,
            limits=self.limits,
            journal=self.journal,
            outbox=self.outbox,
            consumed=self._consumed,
            wrote=lambda name, value: self.accumulators[name].write(value),
            turn=around.turn,
        )
        self.accumulators = {
            source.name: Accumulator(
                source,
                self.reactor,
                self.healths[source.name],
                clock,
                journaled=partition is not None,
            )
            for source in sources
        }
        self.readers = {
            source.name: FeedReader(
                source.feed,
                self.accumulators[source.name],
                clock,
                around.random,
                check_writable=around.check_writable if partition is not None else None,
            )
            for source in sources
            if source.feed is not None
        }
        if any(source.batch is not None for source in sources):
            self.reactor.listeners.append(self._after_firing)
        self._draining = False
        self._feeds: dict[str, Supervised] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    # Life

    async def run(self, started: Callable[[], None]) -> None:
        """Run until cancelled. Raises what broke the reactor, or `SourceFailed`."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._begin()
            group.create_task(self.reactor.run(), name=f"{self.graph.name}-reactor")
            if self.outbox.effects_possible:
                group.create_task(self.outbox.run(), name=f"{self.graph.name}-outbox")
            for name in self.graph.sources:
                if name in self.readers:
                    self.start_source(name)
                else:
                    self.healths[name].move(SourceState.SOCKET_ONLY)
            self.reactor.start()
            started()

    async def _begin(self) -> None:
        """Take the graph over, and restore what was kept."""
        kept = self.checkpoint
        if self.journal is not None:
            wall_ns = self._around.clock.wall_ns()
            began = Began(kept.epoch + 1, self._around.holder, wall_ns, FORMAT)
            self.journal.append(began)
            # A graph that is forgotten and loaded anew counts from 1 again, in another partition;
            # for whoever has its effects it must be a later producer, not an earlier one.
            assert self._partition is not None
            self.outbox.epoch = self._partition << EPOCH_BITS | kept.epoch
            # Nothing is done in its name before it is durable that it is ours.
            try:
                await self.journal.wait_durable()
            except Closing:
                self.reactor.check_broken()
                raise
        for number, (epoch, effects) in sorted(kept.unsent.items()):
            self.outbox.send(number, effects, epoch)
        for name, accumulator in self.accumulators.items():
            queued = name in self.limits.queued
            without_task(partial(accumulator.restore, kept.kept(name), queued=queued))
        for offset, name, stored in kept.waiting(self.accumulators):
            without_task(self.accumulators[name].replay, offset, stored)

    def start_source(self, name: str) -> None:
        """Read the feed of a source, and begin again when it dies."""
        assert self._group is not None
        reader = self.readers[name]
        health = self.healths[name]
        around = Surroundings(
            graph=self.graph.name,
            source=name,
            tenant=self.graph.tenant,
            report=lambda connected, why="": self._reported(name, connected, why),
            in_thread=self._around.hands.pool.run,
            arrivals=self._around.arrivals,
        )

        def make() -> FeedService:
            if health.state is not SourceState.STARTING:
                health.move(SourceState.STARTING)
            return FeedService(reader, around, supervised)

        supervised = Supervised(
            name,
            make,
            config=self._around.supervision,
            random=self._around.random,
            report=lambda event: self._happened(event),
            clock=self._around.clock,
            tells_health=True,
            heeds_stop=False,
        )
        self._feeds[name] = supervised
        self._tasks[name] = self._group.create_task(
            self._supervise(name, supervised), name=f"{self.graph.name}-{name}"
        )

    def restart_source(self, name: str) -> None:
        """Try again with a source that was given up."""
        self.accumulator(name)
        if name not in self.readers:
            raise Conflict(f"source {name!r} has no feed to restart", code="source_without_feed")
        self._check_stays()
        task = self._tasks.get(name)
        if task is not None and not task.done():
            raise Conflict(f"source {name!r} runs", code="source_running")
        self.start_source(name)

    async def _supervise(self, name: str, supervised: Supervised) -> None:
        try:
            await supervised.run()
        except GaveUp as error:
            self.healths[name].move(SourceState.FAILED, said(error.__cause__ or error))
            if self.graph.sources[name].required:
                raise SourceFailed(f"source {name!r} is required, and {error}") from error

    def _happened(self, event: SupervisionEvent) -> None:
        if event.happening is Happening.FAILED:
            health = self.healths[event.name]
            if health.state is not SourceState.DISCONNECTED:
                why = "" if event.error is None else said(event.error)
                health.move(SourceState.DISCONNECTED, f"it died: {why}")
        if event.happening is not Happening.STARTED:
            self.recovered(event)

    def recovered(self, event: SupervisionEvent) -> None:
        """Something failed, was restarted or given up: remember it."""
        record = Recovered(
            self._around.clock.wall_ns(),
            event.name,
            event.happening.value,
            event.failures,
            told(event.error) if event.error is not None else "",
        )
        self._recoveries(record)
        if self.journal is not None:
            self.journal.append(record)

    def _reported(self, name: str, connected: bool, why: str) -> None:
        health = self.healths[name]
        if connected and health.state is SourceState.DISCONNECTED:
            health.move(SourceState.LIVE)
        elif not connected and health.state is SourceState.LIVE:
            health.move(SourceState.DISCONNECTED, why)
        else:
            return
        self._feeds[name].healthy(connected)

    async def drain(self, timeout_s: float = 5.0) -> None:
        """Take no more, give what is collected, and wait until what was accepted has fired."""
        self._draining = True
        for reader in self.readers.values():
            reader.hush()
        for accumulator in self.accumulators.values():
            accumulator.flush_at_end()
        try:
            async with asyncio.timeout(timeout_s):
                await self.reactor.settled()
                if self.journal is not None:
                    if self.outbox.sent:
                        self.journal.append(Sent(self.outbox.sent))
                    await self.journal.wait_durable()
        except (TimeoutError, Closing) as error:
            logger.warning("graph %s was not drained in time: %r", self.graph.name, error)
            self.reactor.survived()
            if self.journal is not None:
                with suppress(TimeoutError, Closing):
                    await asyncio.wait_for(self.journal.wait_durable(), WRITE_S)

    def stop(self, why: FairwayError) -> None:
        """Fire no more; whoever waits is told. What is not recorded is as after a crash."""
        self.reactor.stop(why)
        for accumulator in self.accumulators.values():
            accumulator.stop()
        if self.journal is not None:
            self.journal.close()

    # What comes in

    def accumulator(self, source: str) -> Accumulator:
        if not isinstance(source, str):
            raise InvalidRequest(f"a source is given by its name, not {brief(source)}")
        found = self.accumulators.get(source)
        if found is None:
            raise NotFound("source", source)
        return found

    def push_nowait(self, source: str, value: Any) -> None:
        accumulator = self.accumulators.get(source) or self.accumulator(source)
        self._check_running()
        accumulator.push(value, None)

    def accept(self, source: str, value: Any) -> asyncio.Future[Any] | None:
        """Take a value in now, or raise `Backpressure`, also if the source would wait for room.

        The future, if there is one: that it is kept.
        """
        accumulator = self.accumulator(source)
        self._check_running()
        if self.journal is None:
            accumulator.push(value, None)
            return None
        future = self.reactor.promise()
        try:
            accumulator.push(value, Ticket(future, asks=False))
        except BaseException:
            future.cancel()
            raise
        return future

    async def push(self, source: str, value: Any) -> None:
        """Accepted when it returns: durably, if the graph is checkpointed."""
        accumulator = self.accumulator(source)
        if self.journal is None:
            if not accumulator.room() and accumulator.source.on_full == "block":
                await self.reactor.wait_room(source)
            self._check_running()
            accumulator.push(value, None)
            return
        await self._pushed(accumulator, value, asks=False)

    async def ask(self, source: str, value: Any) -> Firing | None:
        """The firing that consumed it; None if it was left out, or passed over by `where`."""
        firing: Firing | None = await self._pushed(self.accumulator(source), value, asks=True)
        return firing

    async def _pushed(self, accumulator: Accumulator, value: Any, *, asks: bool) -> Any:
        if not accumulator.room() and accumulator.source.on_full == "block":
            await self.reactor.wait_room(accumulator.source.name)
        self._check_running()
        future = self.reactor.promise()
        try:
            accumulator.push(value, Ticket(future, asks=asks))
        except BaseException:
            future.cancel()
            raise
        return await future

    async def settled(self) -> None:
        await self.reactor.settled()

    async def force(self, values: Mapping[str, Any] | None = None) -> Firing:
        """Fire now; with `values`, plain data or boundaries by source, as the whole cache."""
        if values is not None:
            if not isinstance(values, Mapping):
                raise InvalidRequest(f"the cache is a mapping by source, not {brief(values)}")
            checked = self.graph.checked(values)
            sources = self.graph.sources
            values = {
                name: without_task(sources[name].schema.fitting, each)
                for name, each in checked.items()
            }
            for name, each in values.items():
                self.accumulators[name].check_given(each)
            # A state is what the graph keeps, not what it is given: it stays unless it is named.
            cache = self.reactor.inputs.cache
            kept = {name: cache[name] for name in self.graph.states if name in cache}
            values = {**kept, **values}
        return await self.reactor.force(values)

    def _check_running(self) -> None:
        self._check_stays()
        if self.journal is not None and self._around.check_writable is not None:
            self._around.check_writable()

    def _check_stays(self) -> None:
        if self.reactor.stopped is not None:
            raise Closing(f"graph {self.graph.name!r} does not run: {self.reactor.stopped}")
        if self._draining:
            raise Closing(f"graph {self.graph.name!r} is being unloaded")

    def _consumed(self, source: str, marks: Marks) -> None:
        reader = self.readers.get(source)
        if reader is not None:
            reader.consumed(marks)

    def _after_firing(self, firing: Firing) -> None:
        for accumulator in self.accumulators.values():
            accumulator.after_firing()


class FeedService:
    """The part of a source that may die, for its supervisor."""

    def __init__(self, reader: FeedReader, around: Surroundings, supervised: Supervised) -> None:
        self.around = around
        self._reader = reader
        self._supervised = supervised

    async def run(self) -> None:
        try:
            await self._reader.run(self.around, self._supervised.healthy)
        except BaseExceptionGroup as group:  # of reading and committing: it died of one error
            error: BaseException = group
            while is_a(error, BaseExceptionGroup):
                error = error.exceptions[0]  # type: ignore[attr-defined]
            raise error from None


def limits_of(graph: Graph) -> Limits:
    keep = {name: source.keep for name, source in graph.sources.items() if source.keep is not None}
    newest = frozenset(
        name
        for name, source in graph.sources.items()
        if (graph.inputs == "latest" or name not in graph.firing_sources)
        and not source.collects
        and source.dedupe is None  # else the keys of what was overtaken are needed
    )
    queued = frozenset(
        name
        for name in keep
        if graph.inputs == "sequential"
        and name in graph.firing_sources
        and graph.sources[name].on_full != "drop_oldest"  # what is dropped of it is not recorded
    )
    return Limits(keep, KEYS_MAX, newest, queued)


def producer_of(graph: Graph) -> str:
    """What the destinations of its effects know it by."""
    return f"graph/{graph.tenant}/{graph.name}"


async def restored(log: Partitions, partition: int, graph: Graph) -> Loaded:
    """What was kept of a graph."""
    return await load(log, partition, limits_of(graph))

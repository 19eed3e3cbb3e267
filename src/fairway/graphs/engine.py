"""Every graph of one app: loaded, supervised, steered and unloaded while the others run.

A graph whose reactor breaks is made anew from what was kept; each waits its own backoff in a task
of its own, so one that breaks again and again costs the others nothing. One that broke too often
is failed, and stays so until it is restarted by command.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from fairway.errors import (
    Closing,
    Conflict,
    FairwayError,
    Fenced,
    GaveUp,
    GraphFailed,
    Invalid,
    InvalidConfig,
    InvalidRequest,
    NotFound,
    SourceFailed,
    Stop,
    TryLater,
)
from fairway.graphs.checkpoint import RECOVERIES_MAX, Recovered
from fairway.graphs.graph import Graph
from fairway.graphs.hands import Hands
from fairway.graphs.health import ReactorState
from fairway.graphs.journal import BACKOFF, history, page
from fairway.graphs.live import SUPERVISION, Around, LiveGraph, restored
from fairway.graphs.metrics import series_of
from fairway.graphs.traversal import node_in
from fairway.kernel.part import OK, Part, PartHealth
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.runtime.supervision import Happening, Supervised
from fairway.runtime.turn import TURN
from fairway.runtime.watchdog import Watchdog
from fairway.runtime.words import brief, is_a, said, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

    from fairway.core.backoff import BackoffConfig
    from fairway.graphs.checkpoint import Checkpoint, Record
    from fairway.graphs.feed import Arrivals
    from fairway.graphs.journal import Journal, Loaded
    from fairway.kernel.kernel import Kernel
    from fairway.runtime.supervision import SupervisionEvent
    from fairway.runtime.telemetry import Series
    from fairway.runtime.watchdog import Stall
    from fairway.storage.partitions import Partitions

logger = logging.getLogger("fairway.graphs")

T = TypeVar("T")

KIND: Final = "graph"
"""What graphs are called in the catalog of the log."""
DRAIN_S: Final = 5.0
STALLS_MAX: Final = 50


class Managed:
    """A graph that is loaded, whether it runs just now or not."""

    def __init__(self, graph: Graph, partition: int | None) -> None:
        self.graph = graph
        self.partition = partition
        self.live: LiveGraph | None = None
        self.failed: str | None = None
        """Why it was given up, if it was."""
        self.failures = 0
        self.recoveries: deque[Recovered] = deque(maxlen=RECOVERIES_MAX)
        self.unkept: list[Recovered] = []
        """Those that happened while there was no journal to keep them: it did not run."""
        self.task: asyncio.Task[None] | None = None
        self.watchers: list[Callable[[], None]] = []
        """Told when something about it changed."""

    @property
    def key(self) -> tuple[str, str]:
        return (self.graph.tenant, self.graph.name)

    @property
    def state(self) -> str:
        """starting, warming, live, degraded, stopped or failed."""
        if self.failed is not None:
            return "failed"
        if self.live is None:
            return ReactorState.STARTING.value if self.task is not None else "stopped"
        return self.live.reactor.state.value

    def running(self) -> LiveGraph:
        """The graph as it runs now, or why it does not."""
        if self.live is None:
            why = self.failed or "it is being started"
            raise Conflict(f"graph {self.graph.name!r} does not run: {why}", code="graph_stopped")
        return self.live

    def changed(self) -> None:
        for watcher in list(self.watchers):
            watcher()


class Graphs(Part):
    """The graphs of one app. Enter it to run them; leave it to drain and stop them."""

    name = "graphs"

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        arrivals: Arrivals | None = None,
        declared: Sequence[Graph] = (),
        supervision: BackoffConfig = SUPERVISION,
        seed: int | None = None,
    ) -> None:
        """Without a kernel no graph can be checkpointed. Those that are `declared` run once it is
        open."""
        self._declared = declared
        self.stalls: deque[str] = deque(maxlen=STALLS_MAX)
        """What blocked the event loop, newest last."""
        self._watchdog = Watchdog(self._stalled)
        self._kernel = kernel
        self._log = kernel.partitions if kernel is not None else None
        known = kernel.catalog.take(KIND) if kernel is not None else {}
        self._partitions = {name: named.partition for name, named in known.items()}
        self._arrivals = arrivals
        self._supervision = supervision
        self._random = random.Random(seed)
        self._managed: dict[tuple[str, str], Managed] = {}
        self._lanes: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """One command after the other, to each graph; there for as long as one is under way."""
        self._writing: dict[int, Journal] = {}
        """What ended graphs still had under way to their partitions."""
        self._closing = True

    async def open(self) -> None:
        self._hands = Hands()
        kernel = self._kernel
        self._around = Around(
            clock=clock_of(),
            hands=self._hands,
            random=self._random,
            holder=f"{socket.gethostname()}:{os.getpid()}",
            log=self._log,
            destinations=kernel.destinations if kernel is not None else None,
            arrivals=self._arrivals,
            supervision=self._supervision,
            check_writable=kernel.writability.check if kernel is not None else None,
            turn=kernel.turn if kernel is not None else TURN,
        )
        self._closing = False
        self._watchdog.start()
        if kernel is not None:
            kernel.partitions.when_lost.append(self._replaced)
            kernel.telemetry.collectors.append(self._series)
        for graph in self._declared:
            with suppress(GraphFailed):  # it is told and shown so; the others run
                await self.load(graph)

    def stop_admitting(self) -> None:
        self._closing = True

    async def drain(self) -> None:
        self._watchdog.stop()
        if self._kernel is not None:
            self._kernel.partitions.when_lost.remove(self._replaced)
            self._kernel.telemetry.collectors.remove(self._series)
        async with asyncio.TaskGroup() as group:
            for managed in list(self._managed.values()):
                group.create_task(self._end_last(managed))

    async def _end_last(self, managed: Managed) -> None:
        async with self._lane(managed.key):  # whoever waits for it is told that the app is closing
            await self._end(managed)

    async def aclose(self) -> None:
        await self._hands.__aexit__(None, None, None)

    def _replaced(self, error: Fenced) -> None:
        """Another process has the log, and runs the graphs: these fire no more."""
        for managed in self._managed.values():
            if managed.live is not None:
                managed.live.reactor.broken(error)

    def _series(self) -> list[Series]:
        return list(series_of(self, clock_of().now_ns()))

    def _stalled(self, stall: Stall) -> None:
        """Called in the thread of the watchdog."""
        text = f"the event loop is blocked for {stall.lasted_ns // 1_000_000} ms"
        found = node_in(stall.frames)
        if found is not None:
            text += (
                f" by node {found[1]!r} of graph {found[0]!r}: give it blocking=True"
                " or isolation='process'"
            )
        elif stall.frames:
            text += f" in {stall.frames[0].f_code.co_qualname}"
        self.stalls.append(text)
        logger.warning("%s", text)

    # Which there are

    def __iter__(self) -> Iterator[Managed]:
        return iter(sorted(self._managed.values(), key=lambda managed: managed.key))

    def __len__(self) -> int:
        return len(self._managed)

    def health(self) -> PartHealth:
        """Degraded while a graph has failed: all others run, so requests are welcome."""
        failed = [managed for managed in self if managed.failed is not None]
        if not failed:
            return OK
        tenant, name = failed[0].key
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        named = f"{tenant}/{name}" if tenant else name
        return PartHealth("degraded", f"graph {named!r} failed: {failed[0].failed}{more}")

    def get(self, name: str, tenant: str | None = None) -> Managed:
        """The graph of that name. Without a tenant the name must not be that of several."""
        if tenant is not None:
            found = self._managed.get((tenant, name))
            if found is None:
                raise NotFound("graph", f"{tenant}/{name}" if tenant else name)
            return found
        several = [managed for managed in self._managed.values() if managed.graph.name == name]
        if not several:
            raise NotFound("graph", name)
        if len(several) > 1:
            tenants = ", ".join(repr(managed.graph.tenant) for managed in several)
            raise Conflict(
                f"several tenants have a graph {name!r}: {tenants}; say which",
                code="graph_ambiguous",
            )
        return several[0]

    async def journal(
        self, managed: Managed, after: int, limit: int
    ) -> tuple[bytes | None, list[bytes], int | None]:
        """A part of what the journal of a graph still holds (see `journal.page`)."""
        return await page(*self._journal_of(managed), after, limit)

    def history(self, name: str, tenant: str | None = None) -> AsyncIterator[Checkpoint | Record]:
        """What the journal of a graph still holds, to be replayed: the state that it begins with,
        then each record."""
        return history(*self._journal_of(self.get(name, tenant)))

    def _journal_of(self, managed: Managed) -> tuple[Partitions, int]:
        if managed.partition is None or self._log is None:
            raise Conflict(
                f"graph {managed.graph.name!r} keeps no journal: it is not checkpointed",
                code="graph_not_checkpointed",
            )
        return self._log, managed.partition

    # Coming and going

    async def load(self, graph: Graph, *, wait: bool = True) -> Managed:
        """Run a graph from now on. Returns once it has started, or raises why it cannot.

        With `wait` off it returns at once, and starts by itself.
        """
        self._check_open()
        if not isinstance(graph, Graph):
            raise InvalidRequest(f"a Graph is loaded, not {brief(graph)}")
        graph.build()
        managed = await self._in_lane((graph.tenant, graph.name), lambda: self._load(graph))
        if wait:
            await self.wait_started(managed)
        return managed

    async def _load(self, graph: Graph) -> Managed:
        self._check_open()
        if (graph.tenant, graph.name) in self._managed:
            raise Conflict(f"graph {graph.name!r} is loaded already", code="graph_exists")
        partition = await self._partition(graph) if graph.checkpoint else None
        self._check_open()
        managed = Managed(graph, partition)
        self._managed[managed.key] = managed
        self._start(managed)
        return managed

    async def unload(self, name: str, tenant: str | None = None, *, forget: bool = False) -> None:
        """Drain a graph and stop it. With `forget`, what was kept of it goes as well."""
        self._check_open()
        key = self.get(name, tenant).key
        await self._in_lane(key, lambda: self._unload(self.get(key[1], key[0]), forget=forget))

    async def withdraw(self, managed: Managed) -> None:
        """Unload this one, unless somebody did: what has its name by then is another's."""
        self._check_open()
        await self._in_lane(managed.key, lambda: self._withdraw(managed))

    async def _withdraw(self, managed: Managed) -> None:
        if self._managed.get(managed.key) is managed:
            await self._unload(managed, forget=False)

    async def _unload(self, managed: Managed, *, forget: bool) -> None:
        await self._end(managed)
        del self._managed[managed.key]
        if forget and managed.partition is not None:
            assert self._kernel is not None
            assert self._log is not None
            key = _catalog_name(managed.graph)
            await self._kernel.catalog.remove((KIND, key))
            self._partitions.pop(key, None)
            await self._log.delete(managed.partition)

    async def restart(self, name: str, tenant: str | None = None, *, wait: bool = True) -> Managed:
        """Start a graph that failed anew; one that runs is stopped first.

        It is the one that has the name when its turn comes: if that was unloaded meanwhile,
        `NotFound` is raised, and none runs.
        """
        self._check_open()
        key = self.get(name, tenant).key
        managed = await self._in_lane(key, lambda: self._restart(self.get(key[1], key[0])))
        if wait:
            await self.wait_started(managed)
        return managed

    async def _restart(self, managed: Managed) -> Managed:
        self._check_open()
        await self._end(managed)
        self._check_open()
        managed.failed = None
        self._start(managed)
        return managed

    async def _in_lane(
        self, key: tuple[str, str], command: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """Carry out a command when those that were given to the same graph before it are over.

        Two at once could have two of one graph run on one journal. One that began is carried out
        to its end, whatever becomes of its caller, so that the next one finds a graph that runs or
        none; a caller who goes away before its turn has asked for nothing.
        """
        lane = self._lane(key)
        await lane.acquire()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def carry_out() -> None:
            try:
                result = await command()
                if not outcome.done():
                    outcome.set_result(result)
            except Exception as error:
                if outcome.done():
                    logger.warning("graph %s: a command failed: %s", key[1], told(error))
                else:
                    outcome.set_exception(error)

        def over(_: object) -> None:
            lane.release()
            if not outcome.done():
                outcome.set_exception(Closing("the app is closing"))

        try:
            self._check_open()
            task = self.spawn(carry_out(), f"graph-{key[1]}-command")
        except BaseException:
            lane.release()
            raise
        task.add_done_callback(over)
        return await outcome

    def _lane(self, key: tuple[str, str]) -> asyncio.Lock:
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = asyncio.Lock()
        return found

    def _check_open(self) -> None:
        if self._closing:
            raise Closing("the app is closing")

    async def _partition(self, graph: Graph) -> int:
        if self._kernel is None:
            raise InvalidConfig(f"graph {graph.name!r} is checkpointed, and there is no log")
        key = _catalog_name(graph)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = await self._kernel.catalog.create(KIND, key, b"")
        return found

    # Life of one

    def _start(self, managed: Managed) -> None:
        managed.task = self.spawn(self._run(managed), f"graph-{managed.graph.name}")

    async def wait_started(self, managed: Managed) -> None:
        """Wait until it runs. Raises `GraphFailed` if it is given up, or stopped before."""
        moved = asyncio.Event()
        managed.watchers.append(moved.set)
        try:
            while not (managed.live or managed.failed or managed.task is None):
                moved.clear()
                await moved.wait()
        finally:
            managed.watchers.remove(moved.set)
        if managed.live is None:
            why = managed.failed or "it was stopped before it had started"
            raise GraphFailed(f"graph {managed.graph.name!r}: {why}")

    async def _run(self, managed: Managed) -> None:
        supervised = Supervised(
            "reactor",
            lambda: _GraphService(self, managed, supervised),
            config=self._supervision,
            random=self._random,
            report=lambda event: self._happened(managed, event),
            clock=self._around.clock,
            tells_health=True,
        )
        try:
            await supervised.run()
        except (GaveUp, Stop) as error:
            found = _innermost(error.__cause__ or error) if is_a(error, GaveUp) else error
            managed.failed = managed.graph.failed = said(found) or told(found)
            logger.error("graph %s is failed: %s", managed.graph.name, managed.failed)
            managed.changed()

    def _happened(self, managed: Managed, event: SupervisionEvent) -> None:
        managed.failures = event.failures
        if event.happening is Happening.STARTED:
            return
        error = "" if event.error is None else told(_innermost(event.error))
        record = Recovered(
            self._around.clock.wall_ns(), event.name, event.happening.value, event.failures, error
        )
        managed.recoveries.append(record)
        managed.unkept.append(record)
        logger.warning(
            "graph %s: %s %s %s", managed.graph.name, event.name, record.happening, error
        )
        managed.changed()

    async def _end(self, managed: Managed) -> None:
        """Drain what runs, and stop it."""
        try:
            if managed.live is not None:
                await managed.live.drain(DRAIN_S)
        finally:
            task, managed.task = managed.task, None
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
            managed.changed()

    async def _restored(self, partition: int, graph: Graph) -> Loaded:
        """What was kept of it. While the log cannot be read it is waited for: that is no failure of
        the graph's, and others say what is the matter."""
        assert self._log is not None
        while (before := self._writing.get(partition)) is not None:
            # An entry of the life before may still come: read without it, its key would be given
            # out twice.
            await before.wait_settled()
            self._writing.pop(partition, None)
        tries = 0
        while True:
            try:
                return await restored(self._log, partition, graph)
            except (Fenced, TryLater) as error:
                if self._log.lost is not None or isinstance(error, Closing):
                    raise
                tries += 1
                if tries == 1:
                    logger.warning("graph %s waits for its journal: %s", graph.name, error)
            await sleep_ns(BACKOFF.ceiling_ns(tries))

    async def serve(self, managed: Managed, healthy: Callable[[bool], None]) -> None:
        """One life of a graph: from what was kept until it breaks or is stopped."""
        graph = managed.graph
        loaded = None
        if managed.partition is not None:
            assert self._log is not None
            loaded = await self._restored(managed.partition, graph)
            known = [*managed.recoveries]
            managed.recoveries.extend(
                record for record in loaded.checkpoint.recoveries if record not in known
            )
        live = LiveGraph(
            graph,
            self._around,
            loaded,
            managed.partition,
            recoveries=managed.recoveries.append,
        )
        why: FairwayError = Closing("the graph was stopped")

        def started() -> None:
            unkept, managed.unkept = managed.unkept, []
            for record in unkept:
                live.reactor.remember(record)
            managed.live = graph.live = live
            graph.failed = None
            managed.changed()

        def changed() -> None:
            healthy(live.reactor.state is ReactorState.LIVE)
            managed.changed()

        live.reactor.changed = changed
        live.reactor.listeners.append(graph.tell)
        try:
            await live.run(started)
        except BaseException as error:
            found = _innermost(error)
            if is_a(found, FairwayError):
                why = found  # type: ignore[assignment]
            elif not is_a(found, asyncio.CancelledError):
                why = Closing(f"the graph broke: {said(found)}")
            raise
        finally:
            live.stop(why)
            if live.journal is not None and live.journal.writing and managed.partition is not None:
                self._writing[managed.partition] = live.journal
            managed.live = None
            if graph.live is live:
                graph.live = None


class _GraphService:
    """One life of a graph, for its supervisor."""

    def __init__(self, graphs: Graphs, managed: Managed, supervised: Supervised) -> None:
        self._graphs = graphs
        self._managed = managed
        self._supervised = supervised

    async def run(self) -> None:
        try:
            await self._graphs.serve(self._managed, self._supervised.healthy)
        except (ExceptionGroup, FairwayError) as error:
            found = _innermost(error)
            if is_a(found, SourceFailed, Fenced, Invalid, Stop):
                raise GraphFailed(str(found)) from error
            raise


def _catalog_name(graph: Graph) -> str:
    return f"{graph.tenant}/{graph.name}"


def _innermost(error: BaseException) -> BaseException:
    while is_a(error, BaseExceptionGroup) and error.exceptions:  # type: ignore[attr-defined]
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return error

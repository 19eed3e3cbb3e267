"""Graphs in tests: the real reactors and supervisors on virtual time, over a log in memory.

    from fairway.testing import run_graph

    def test_pricing():
        async def play(kit):
            await kit.push(pricing, "quotes", Quote(99, 101))
            await kit.expect(pricing, 100.0)        # the next firing came to this
            await kit.restart()                     # as by kill -9
            assert kit.state(pricing).cache["quotes"] == Quote(99, 101)

        run_graph(pricing, play)

Nothing is mocked but the disk and the clock: sources, windows, checkpoints, effects, topics and
jobs are those of the app. `TestFeed` is a feed that the test controls, and `crash` lets one child
of a graph fail at the n-th of its awaits.
"""

from __future__ import annotations

import asyncio
import copy
import random
import sys
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from fairway.app import Fairway
from fairway.graphs.graph import Graph
from fairway.jobs.stores.memory import MemoryStore
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.runtime.telemetry import Telemetry
from fairway.storage.wals.memory import MemoryWal
from fairway.testing.crashes import REACTOR, Crashes, InjectedCrash
from fairway.testing.feed import TestFeed
from fairway.testing.jobs import JobsUnderTest, NotQuiet
from fairway.testing.loop import VirtualLoop, _make_task, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fairway.graphs.checkpoint import Recovered
    from fairway.graphs.engine import Managed
    from fairway.graphs.firing import DeadLetter, Firing
    from fairway.graphs.running import RunningGraph

__all__ = ["GraphState", "GraphsUnderTest", "InjectedCrash", "TestFeed", "run_graph"]

SECOND_NS: Final = 1_000_000_000
QUIET_NS: Final = 20_000_000
"""Nothing moved for so long: then nothing will, unless time itself brings it."""
SHOWN: Final = 8
"""Firings that a failed expectation lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphState:
    """A graph at one moment. What it holds is empty while it does not run."""

    state: str
    """starting, warming, live, degraded, stopped or failed."""
    why: str = ""
    """Why it failed or halted, if it did."""
    number: int = 0
    """Of the last firing, over all its lives."""
    fired: int = 0
    """Firings that succeeded in this life."""
    failed: int = 0
    """Tries that did not."""
    paused: bool = False
    halted: bool = False
    cache: Mapping[str, Any] = field(default_factory=dict)
    """The value of each source that a firing would be given."""
    dirty: Mapping[str, bool] = field(default_factory=dict)
    """Which sources have news."""
    depths: Mapping[str, int] = field(default_factory=dict)
    """How many boundaries of each source wait."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """How each source is."""
    waiting: tuple[str, ...] = ()
    """The required sources that are not healthy."""
    windows: Mapping[str, list[Any]] = field(default_factory=dict)
    """What each state holds."""
    dead: tuple[DeadLetter, ...] = ()
    recoveries: tuple[Recovered, ...] = ()


class _Life:
    """One life of the app, and every task that was started in it."""

    def __init__(self) -> None:
        self._tasks: weakref.WeakValueDictionary[int, asyncio.Task[Any]] = (
            weakref.WeakValueDictionary()
        )
        self._numbers = count()
        self.over = asyncio.Event()
        self.killed = False
        self.task: asyncio.Task[None] | None = None

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks[next(self._numbers)] = task

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that are still known to somebody, in the order in which they were started: in which
        they are cancelled decides what happens."""
        return [task for _, task in sorted(self._tasks.items())]


_LIFE: ContextVar[_Life | None] = ContextVar("fairway.testing.life", default=None)


@dataclass(slots=True)
class _Heard:
    """The firings of one graph, and how many of them were expected so far."""

    firings: list[Firing] = field(default_factory=list)
    expected: int = 0
    more: asyncio.Event = field(default_factory=asyncio.Event)
    known: weakref.ref[RunningGraph] | None = None

    def hear(self, firing: Firing) -> None:
        self.firings.append(firing)
        self.more.set()


class GraphsUnderTest:
    """The graphs of an app while a test plays with them. Graphs are named, or given as such."""

    def __init__(self, app: Fairway, *, seed: int) -> None:
        self.app = app
        self.jobs = JobsUnderTest(app)
        """Its jobs: `await kit.jobs.drain()`."""
        self.random = random.Random(f"{seed}/kit")
        self._wal = MemoryWal()
        self._store = MemoryStore()
        self._declared = list(app._declared_graphs)
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._crashes = Crashes()
        self._life = _Life()
        self._errors: list[BaseException] = []

    # What comes in

    async def push(self, graph: Graph | str, source: Any, value: Any) -> None:
        """Push a value; it is accepted on return, and durable if the graph is checkpointed."""
        await self._graph(graph).push(source, value)

    async def ask(self, graph: Graph | str, source: Any, value: Any) -> Firing | None:
        """Push a value and return the firing that consumed it."""
        return await self._graph(graph).ask(source, value)

    # Time

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass. What ticks in an app makes a virtual minute cost 0.1 s or so."""
        await sleep_ns(round(seconds * SECOND_NS))

    async def settled(self, limit_s: float = 600.0) -> None:
        """Wait until what came has been fired, recorded and sent; retries are waited for, and
        graphs that are restarted.

        What else waits for time (a window, a poll, a source that died) is for `advance`.
        Raises `NotQuiet` if it goes on for longer than `limit_s`.
        """
        clock = clock_of()
        end_ns = clock.now_ns() + round(limit_s * SECOND_NS)
        before: object = None
        while True:
            await sleep_ns(QUIET_NS)
            busy = [managed.graph.name for managed in self.app.graphs if _busy(managed)]
            now = [_moves(managed) for managed in self.app.graphs]
            if not busy and now == before:
                return
            before = now
            if clock.now_ns() > end_ns:
                raise NotQuiet(f"after {limit_s:g} s there is no quiet: {busy or 'events go on'}")

    # What came of it

    async def expect(self, graph: Graph | str, *wanted: Any, within_s: float = 1.0) -> Firing:
        """The next firings come to this, each within so long; returns the last of them.

        A firing is next if no `expect` has had it. What is wanted of one is a mapping of outputs
        by node, the one output there is, or a function of the `Firing`. A firing that failed is
        only good enough for a function.
        """
        assert wanted, "say what the next firing comes to"
        heard = self._hears(graph)
        for want in wanted:
            if not await self._another(heard, within_s):
                raise AssertionError(f"{self._named(graph)} did not fire: {self._described(graph)}")
            firing = heard.firings[heard.expected]
            heard.expected += 1
            if not _fits(firing, want):
                raise AssertionError(
                    f"{self._named(graph)}, firing {firing.number} came to"
                    f" {_outcome_text(firing)}, not {_shown(want)}: {self._described(graph)}"
                )
        return firing

    async def expect_none(self, graph: Graph | str, *, within_s: float = 1.0) -> None:
        """Nothing fires for so long that was not expected before."""
        if await self._another(self._hears(graph), within_s):
            raise AssertionError(f"{self._named(graph)} fired: {self._described(graph)}")

    def firings(self, graph: Graph | str) -> list[Firing]:
        """Every firing so far, failed tries too, over all lives of the app."""
        return list(self._hears(graph).firings)

    def outputs(self, graph: Graph | str) -> list[Any]:
        """What those that succeeded came to: the one output of each, or all by name."""
        good = [firing for firing in self.firings(graph) if firing.error is None]
        return [f.output if len(f.outputs) < 2 else dict(f.outputs) for f in good]

    def state(self, graph: Graph | str) -> GraphState:
        """How the graph is now, and what it holds."""
        managed = self._managed(graph)
        instance = managed.instance
        if instance is None:
            return GraphState(
                state=managed.state,
                why=managed.failed or "",
                recoveries=tuple(managed.recoveries),
            )
        reactor = instance.reactor
        return GraphState(
            state=managed.state,
            why=managed.failed or reactor.halted or "",
            number=reactor.number,
            fired=reactor.fired,
            failed=reactor.failed,
            paused=reactor.paused,
            halted=reactor.halted is not None,
            cache=dict(reactor.inputs.cache),
            dirty=reactor.inputs.dirty,
            depths=reactor.inputs.depths,
            sources={name: health.state.value for name, health in instance.healths.items()},
            waiting=instance.health.waiting(clock_of().now_ns()).waiting,
            windows={
                name: list(accumulator._window)
                for name, accumulator in instance.accumulators.items()
                if accumulator.source.keep is not None
            },
            dead=tuple(reactor.checkpoint.letters()),
            recoveries=tuple(managed.recoveries),
        )

    # What goes wrong

    async def restart(self, *, power_loss: bool = False) -> None:
        """Crash the app as by kill -9, and start it again over what its store held.

        Nothing is drained: what was in memory is gone, and whoever waited is told `Closing`. With
        `power_loss` what was written and not synced is gone, too.
        """
        await self._kill(power_loss=power_loss)
        await self._begin()

    async def stop(self) -> None:
        """End the app as a person would: drained. `start` it again, or the test is over."""
        assert self._life.task is not None
        self._life.over.set()
        await asyncio.wait({self._life.task})
        self._life.task.result()
        self._wal = self._wal.kill()

    async def start(self) -> None:
        """Start the app again after `stop`."""
        await self._begin()

    def crash(self, graph: Graph | str, *, child: str = REACTOR, at: int = 0) -> None:
        """Let a child of a graph fail: its `reactor`, or the one that reads a source.

        It fails the `at`-th time from now that it is woken from an await; 0 is at once. The reactor
        of a graph of plain nodes fires where boundaries arrive and is never woken: let it fail at
        once.
        """
        sources = self._graph(graph).sources
        if child != REACTOR and sources[child].feed is None:
            raise ValueError(f"source {child!r} has no feed, so there is nothing that could crash")
        self._crashes.plan(self._named(graph), child, at)

    def runs(self, graph: Graph | str, *, child: str = REACTOR) -> bool:
        """Whether a child is at work, so that it could crash at once."""
        return self._crashes.runs(self._named(graph), child)

    @property
    def crashes(self) -> list[tuple[str, str]]:
        """The graphs and children that `crash` has let fail."""
        return list(self._crashes.done)

    # Lives of the app

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._life = life = _Life()
        started: asyncio.Future[None] = loop.create_future()
        life.task = self._lives.create_task(self._run_app(life, started), name="app")
        await started

    async def _run_app(self, life: _Life, started: asyncio.Future[None]) -> None:
        _LIFE.set(life)
        app = self.app
        task = asyncio.current_task()
        assert task is not None
        life.add(task)
        app.place, app._jobs_place = self._wal, self._store
        app._declared_graphs = []  # loaded below, so that no firing is missed
        try:
            try:
                await app.__aenter__()
                app.graphs._random.seed(self.random.random())
                for managed in [await self._load(graph) for graph in self._declared]:
                    await app.graphs.wait_started(managed)
            except Exception as error:
                if not life.killed:
                    started.set_exception(error)
                    if app._stack is not None:
                        await app.__aexit__(None, None, None)
                return
            started.set_result(None)
            await life.over.wait()
        except asyncio.CancelledError:
            if life.killed:
                return
            raise
        finally:
            app._declared_graphs = self._declared
        await app.__aexit__(None, None, None)

    async def _load(self, graph: Graph) -> Managed:
        managed = await self.app.graphs.load(graph, wait=False)
        managed.watchers.append(lambda: self._attach(managed))
        return managed

    def _attach(self, managed: Managed) -> None:
        instance = managed.instance
        heard = self._hears(managed.graph)
        if instance is not None and (heard.known is None or heard.known() is not instance):
            heard.known = weakref.ref(instance)
            instance.reactor.listeners.append(heard.hear)

    async def _kill(self, *, power_loss: bool) -> None:
        life, app = self._life, self.app
        life.killed = True
        # What follows of this life happens to stores that nobody will ever look at.
        self._wal = self._wal.crash(self.random) if power_loss else self._wal.kill()
        self._store = _copied(self._store)
        for task in life.tasks:
            task.cancel()
        while pending := [task for task in life.tasks if not task.done()]:
            await asyncio.wait(pending, timeout=1.0)
            for task in pending:
                task.cancel()
        for task in life.tasks:
            if not task.cancelled():
                task.exception()  # seen
        app.telemetry = Telemetry()
        app._forget_started()
        for graph in self._declared:
            graph.instance = None

    async def _run(self, play: Callable[[GraphsUnderTest], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        before = self.app.place, self.app._jobs_place
        loop.set_task_factory(self._make_task)
        loop.set_exception_handler(self._unhandled)
        try:
            async with asyncio.TaskGroup() as self._lives:
                await self._begin()
                try:
                    await play(self)
                except BaseException:
                    await self._kill(power_loss=False)
                    raise
                life = self._life
                life.over.set()
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            self.app.place, self.app._jobs_place = before
        if self._errors:
            raise self._errors[0]

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: nobody else would hear of it, and a test should."""
        handle, error = context.get("handle"), context.get("exception")
        life = handle._context.get(_LIFE) if handle is not None else None
        if error is not None and life is not None and not life.killed:
            self._errors.append(error)
            loop.default_exception_handler(context)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        driven, child = self._crashes.watched(coroutine)
        task = _make_task(loop, driven, **options)
        if driven is not coroutine:  # a task that is cancelled before its first turn awaits nothing
            task.add_done_callback(lambda task: coroutine.close())
        if child is not None:
            child.task = task
        life = _LIFE.get()
        if life is None and _by_the_app():  # by a command that the test gave
            life = self._life
        if life is not None:
            life.add(task)
        return task

    # How

    async def _another(self, heard: _Heard, within_s: float) -> bool:
        """Wait for a firing that was not expected yet."""
        try:
            async with asyncio.timeout(within_s):
                while len(heard.firings) <= heard.expected:
                    heard.more.clear()
                    await heard.more.wait()
        except TimeoutError:
            return False
        return True

    def _named(self, graph: Graph | str) -> str:
        return graph if isinstance(graph, str) else graph.name

    def _managed(self, graph: Graph | str) -> Managed:
        if isinstance(graph, str):
            return self.app.graphs.get(graph)
        return self.app.graphs.get(graph.name, graph.tenant)

    def _graph(self, graph: Graph | str) -> Graph:
        return graph if isinstance(graph, Graph) else self._managed(graph).graph

    def _hears(self, graph: Graph | str) -> _Heard:
        found = self._graph(graph)
        return self._heard.setdefault((found.tenant, found.name), _Heard())

    def _described(self, graph: Graph | str) -> str:
        heard = self._hears(graph)
        state = self.state(graph)
        text = f"it is {state.state}"
        if state.waiting:
            text += f", waiting for {', '.join(state.waiting)}"
        if state.why:
            text += f" ({state.why})"
        if not heard.firings:
            return f"{text}, and never fired"
        lines = [f"\n  {f.number} {f.cause}: {_outcome_text(f)}" for f in heard.firings[-SHOWN:]]
        return f"{text}; the last of {len(heard.firings)} firings:{''.join(lines)}"


def run_graph(
    graph_or_app: Graph | Fairway,
    play: Callable[[GraphsUnderTest], Awaitable[None]],
    *,
    seed: int = 0,
    limit_s: float | None = None,
) -> None:
    """Play with the graphs of an app on virtual time, in memory. The same seed plays the same.

    A graph alone gets an app of its own. When `play` returns, the app is left as a person would
    leave it: what was accepted is drained. `limit_s` is a virtual time by which all is over, for
    a test that might wait for ever.
    """
    if isinstance(graph_or_app, Graph):
        app = Fairway(MemoryWal())
        app.add_graph(graph_or_app)
    else:
        app = graph_or_app
    app.first_epoch = app.first_epoch or 1  # or no two runs were the same to the byte
    limit_ns = None if limit_s is None else round(limit_s * SECOND_NS)

    async def main() -> None:
        await GraphsUnderTest(app, seed=seed)._run(play)

    run(main, seed=seed, limit_ns=limit_ns)


def _fits(firing: Firing, want: Any) -> bool:
    if callable(want):
        return bool(want(firing))
    if firing.error is not None:
        return False
    if dict(firing.outputs) == want:
        return True
    return len(firing.outputs) < 2 and firing.output == want


def _outcome_text(firing: Firing) -> str:
    if firing.error is not None:
        return f"an error: {firing.error}"
    return repr(firing.output if len(firing.outputs) == 1 else dict(firing.outputs))


def _shown(want: Any) -> str:
    return f"what {want.__name__} wants" if hasattr(want, "__name__") else repr(want)


def _busy(managed: Managed) -> bool:
    instance = managed.instance
    if instance is None:
        return managed.failed is None and managed.task is not None
    return instance.reactor.stopped is None and not instance.reactor.at_rest


def _moves(managed: Managed) -> object:
    """Numbers that stand still when nothing happens."""
    instance = managed.instance
    if instance is None:
        return managed.failed
    events = [accumulator.events for accumulator in instance.accumulators.values()]
    marks = [dict(accumulator.marks) for accumulator in instance.accumulators.values()]
    return events, marks, instance.reactor.fired, instance.reactor.failed, instance.reactor.number


def _by_the_app() -> bool:
    """Whether it is the app that starts a task just now, and not the test."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__", "").startswith("asyncio."):
        assert frame.f_back is not None
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "")
    return name.startswith("fairway.") and not name.startswith("fairway.testing")


def _copied(store: MemoryStore) -> MemoryStore:
    """A store that holds the same, and hears of nothing that is done to the other."""
    clock, store._clock = store._clock, None  # or a copy of the loop would be made
    try:
        return copy.deepcopy(store)
    finally:
        store._clock = clock

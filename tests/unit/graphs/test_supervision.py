"""Supervision, to the virtual second: who is restarted, when, from what, and who never notices."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Closing, Fairway, FiringContext, Source, all_, any_
from fairway.core.lease import Tenure
from fairway.errors import (
    Conflict,
    FeedLost,
    Fenced,
    GaveUp,
    GraphFailed,
    NotFound,
    SourceFailed,
)
from fairway.graphs.graph import Graph
from fairway.runtime.clock import clock_of
from fairway.storage.ownership import Ownership
from fairway.testing import InjectedCrash, TestFeed, run_graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.testing import GraphsUnderTest

BUG = OSError("a bug")


def now_s() -> float:
    return clock_of().now_ns() / 1e9


async def turns() -> None:
    """Let everything happen that happens at this very instant."""
    for _ in range(20):
        await asyncio.sleep(0)


def waits(moments_ns: Sequence[int]) -> list[float]:
    """Between one moment and the next, in seconds."""
    return [round((later - sooner) / 1e9, 6) for sooner, later in pairwise(moments_ns)]


def fed(feed: TestFeed, *, name: str = "fed", required: bool = True, **options: Any) -> Graph:
    """A graph over pushes (`a`) and a feed (`b`)."""
    a, b = Source("a", int), Source("b", int, feed=feed, required=required)
    graph = Graph(name, when=any_(a, b), inputs="sequential", **options)

    @graph.node
    def both(a: int | None, b: int | None) -> tuple[int | None, int | None]:
        return a, b

    return graph


def happened(kit: GraphsUnderTest, graph: Graph, what: str) -> list[tuple[str, int]]:
    return [(r.happening, r.failures) for r in kit.state(graph).recoveries if r.what == what]


# A source


def test_a_source_is_restarted_after_1_2_4_8_16_seconds_and_failed_at_the_sixth_death() -> None:
    feed = TestFeed()
    graph = fed(feed, required=False)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.opened_ns.clear()
        died_ns = clock_of().now_ns()
        feed.die(BUG, times=6)  # the connection that is open, and five new ones
        await kit.advance(31.5)
        assert waits([died_ns, *feed.opened_ns]) == [1, 2, 4, 8, 16]
        assert kit.state(graph).sources["b"] == "failed"
        assert graph.running.healths["b"].why == "a bug"
        failures = [n for happening, n in happened(kit, graph, "b") if happening == "failed"]
        assert failures == [1, 2, 3, 4, 5, 6]
        assert happened(kit, graph, "b")[-1] == ("gave up", 6)
        await kit.advance(200)
        assert len(feed.opened_ns) == 5  # and never again by itself

    run_graph(graph, play)


class SaysStop(TestFeed):
    """A feed that raises what Fairway itself raises when no restart will help."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__()
        self.where = where
        self.error = error
        self.times = 0

    def meet(self, where: str) -> None:
        if where == self.where and self.times:
            self.times -= 1
            raise self.error

    def open(self, context: Any) -> Any:
        self.meet("open")
        connection = super().open(context)
        for step in ("connect", "receive", "commit"):
            setattr(connection, step, self.meeting(step, getattr(connection, step)))
        return connection

    def meeting(self, step: str, do: Any) -> Any:
        async def met(*args: Any) -> Any:
            self.meet(step)
            return await do(*args)

        return met


@pytest.mark.parametrize("error", [GraphFailed("mine"), SourceFailed("mine"), GaveUp("mine")])
@pytest.mark.parametrize("where", ["open", "connect", "receive", "commit"])
def test_a_feed_that_says_stop_dies_like_any_other(where: str, error: Exception) -> None:
    feed = SaysStop(where, error)
    graph = fed(feed, checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        instance = graph.running
        feed.times = 1
        feed.push(1)
        if where in ("open", "connect"):
            feed.die(BUG)
        await kit.advance(10)
        feed.push(2)
        await kit.advance(10)
        assert kit.state(graph).state == "live"
        assert graph.running is instance
        assert kit.outputs(graph) == [(None, 1), (None, 2)]
        assert repr(error) in [record.error for record in kit.state(graph).recoveries]
        feed.times = 100
        feed.push(3)
        if where in ("open", "connect"):
            feed.die(BUG)
        for _ in range(10):
            feed.push(4)
            await kit.advance(20)
        assert "required, and b failed 6 times in a row" in kit.state(graph).why

    run_graph(graph, play)


def test_a_death_is_noticed_at_once() -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        died_ns = clock_of().wall_ns()
        feed.die(BUG)
        await turns()
        assert kit.state(graph).state == "degraded"
        (record,) = kit.state(graph).recoveries
        assert (record.what, record.happening, record.wall_ns) == ("b", "failed", died_ns)
        assert record.error == "OSError('a bug')"

    run_graph(graph, play)


def test_only_the_source_that_died_is_restarted_and_its_graph_is_degraded_meanwhile() -> None:
    first, second = TestFeed(), TestFeed()
    a, b = Source("a", int, feed=first), Source("b", int, feed=second)
    graph = Graph("two", when=any_(a, b), inputs="sequential")

    @graph.node
    def both(a: int | None, b: int | None) -> tuple[int | None, int | None]:
        return a, b

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        instance = graph.running
        first.die(BUG)
        await kit.advance(0.5)
        assert kit.state(graph).state == "degraded"
        assert kit.state(graph).sources == {"a": "disconnected", "b": "live"}
        assert instance.healths["a"].why == "it died: a bug"
        second.push(1)
        firing = await kit.expect(graph, (None, 1))
        assert firing.degraded == ("a",)
        await kit.push(graph, "a", 7)  # pushes to it go on
        await kit.expect(graph, (7, 1))
        first.push(8)
        await kit.advance(0.6)
        assert kit.state(graph).state == "live"
        await kit.expect(graph, (8, 1))
        assert graph.running is instance
        assert len(second.opened_ns) == 1
        states = [state.value for _, state in instance.health.moves]
        assert states == ["warming", "live", "degraded", "live"]

    run_graph(graph, play)


def test_a_source_goes_on_after_what_it_had_received() -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(1, 30):
            feed.push(number)
            if number % 10 == 0:
                kit.crash(graph, child="b", at=number // 10)
            await kit.advance(1)
        await kit.advance(10)
        assert [b for _, b in kit.outputs(graph)] == list(range(1, 30))
        assert kit.crashes == [("fed", "b")] * 2

    run_graph(graph, play)


@pytest.mark.parametrize(("health_s", "second_wait"), [(59.9, 2), (60, 1), (61, 1)])
def test_a_minute_of_health_forgets_earlier_failures(health_s: float, second_wait: int) -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.die(BUG)
        await kit.advance(1)
        await turns()
        assert kit.state(graph).sources["b"] == "live"
        restarted_ns = feed.opened_ns[-1]
        await kit.advance(health_s - (clock_of().now_ns() - restarted_ns) / 1e9)
        died_ns = clock_of().now_ns()
        feed.die(BUG)
        await kit.advance(3)
        assert waits([died_ns, feed.opened_ns[-1]]) == [second_wait]

    run_graph(graph, play)


@pytest.mark.parametrize("reports", [False, True])
def test_health_that_was_interrupted_forgets_nothing(reports: bool) -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.die(BUG)
        await kit.advance(41)
        feed.lose(reports=reports)  # 40 s of health, then a moment without
        await kit.advance(0.1)
        feed.restore()
        await kit.advance(40)  # 40 s again: more than a minute in all
        died_ns = clock_of().now_ns()
        feed.die(BUG)
        await kit.advance(3)
        assert waits([died_ns, feed.opened_ns[-1]]) == [2]

    run_graph(graph, play)


def test_each_source_waits_its_own_backoff() -> None:
    first, second = TestFeed(), TestFeed()
    a = Source("a", int, feed=first, required=False)
    b = Source("b", int, feed=second, required=False)
    graph = Graph("two", when=any_(a, b))

    @graph.node
    def both(a: int | None, b: int | None) -> None: ...

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        first.opened_ns.clear()
        second.opened_ns.clear()
        begin_ns = clock_of().now_ns()
        first.die(BUG, times=6)
        await kit.advance(0.25)
        second.die(BUG, times=3)
        await kit.advance(40)
        assert waits([begin_ns, *first.opened_ns]) == [1, 2, 4, 8, 16]
        assert waits([begin_ns, *second.opened_ns]) == [1.25, 2, 4]
        assert kit.state(graph).sources == {"a": "failed", "b": "live"}
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


def test_a_required_source_that_is_given_up_fails_its_graph() -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.die(BUG, times=6)
        await kit.advance(32)
        state = kit.state(graph)
        assert state.state == "failed"
        assert "source 'b' is required" in state.why
        with pytest.raises(Closing):
            graph.push_nowait("a", 1)
        await kit.advance(200)
        assert kit.state(graph).state == "failed"

    run_graph(graph, play)


def test_an_optional_source_that_is_given_up_leaves_its_graph_live_and_comes_back_by_command() -> (
    None
):
    feed = TestFeed()
    graph = fed(feed, required=False)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        instance = graph.running
        with pytest.raises(Conflict, match="runs"):
            instance.restart_source("b")
        with pytest.raises(Conflict, match="no feed"):
            instance.restart_source("a")
        with pytest.raises(NotFound):
            instance.restart_source("c")
        feed.die(BUG, times=6)
        await kit.advance(32)
        assert kit.state(graph).state == "live"
        assert (await kit.ask(graph, "a", 1)) is not None
        instance.restart_source("b")
        feed.push(2)
        await kit.expect(graph, (1, None), (1, 2))
        assert kit.state(graph).sources["b"] == "live"
        feed.opened_ns.clear()
        died_ns = clock_of().now_ns()
        feed.die(BUG)
        await kit.advance(2)
        assert waits([died_ns, *feed.opened_ns]) == [1]  # its count begins anew

    run_graph(graph, play)


@pytest.mark.parametrize("turn", range(16))
@pytest.mark.parametrize("dies", [True, False])
def test_a_source_that_ends_while_its_graph_is_stopped_is_not_started_again(
    turn: int, dies: bool
) -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        if dies:
            feed.die(BUG)
        else:
            feed.lose()
        for _ in range(turn):  # at each turn of the loop that dying takes
            await asyncio.sleep(0)
        kit.crash(graph)  # all of it ends, and is begun anew a second later
        await kit.advance(0.5)
        feed.restore()
        async with asyncio.timeout(30):
            await kit.app.graphs.wait_started(kit.app.graphs.get("fed"))
            await kit.advance(1)
            await kit.app.graphs.unload("fed")
        assert len(feed.opened_ns) == 2
        await kit.advance(10)
        assert len(feed.opened_ns) == 2

    run_graph(graph, play)


def test_a_commit_that_meets_nobody_is_a_lost_feed() -> None:
    class Forgetful(TestFeed):
        refuses = True

        def open(self, context: Any) -> Any:
            connection = super().open(context)
            commit = connection.commit

            async def refused(marks: Any) -> None:
                if self.refuses:
                    raise FeedLost("no coordinator")
                await commit(marks)

            connection.commit = refused  # type: ignore[method-assign]
            return connection

    feed = Forgetful()
    graph = fed(feed, checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(1)
        await kit.advance(0.4)
        assert graph.running.healths["b"].why == "no coordinator"
        assert kit.state(graph).state == "degraded"
        feed.refuses = False
        feed.push(2)
        await kit.advance(3)
        assert kit.state(graph).state == "live"
        assert kit.outputs(graph) == [(None, 1), (None, 2)]
        assert feed.committed == {"feed": 2}
        assert not kit.state(graph).recoveries

    run_graph(graph, play)


# A reactor


def test_a_reactor_is_restarted_after_1_2_4_8_16_seconds_and_failed_at_the_sixth_death() -> None:
    graph = fed(TestFeed())
    started_ns: list[int] = []

    async def play(kit: GraphsUnderTest) -> None:
        managed = kit.app.graphs.get("fed")
        lives: list[Any] = [managed.instance]

        def look() -> None:
            if managed.instance is not None and managed.instance is not lives[-1]:
                lives.append(managed.instance)
                started_ns.append(clock_of().now_ns())

        managed.watchers.append(look)
        for wait_s in (1, 2, 4, 8, 16):
            died_ns = clock_of().now_ns()
            kit.crash(graph)
            await kit.advance(wait_s + 0.001)
            assert waits([died_ns, started_ns[-1]]) == [wait_s]
        kit.crash(graph)
        await kit.advance(100)
        state = kit.state(graph)
        assert (state.state, len(started_ns)) == ("failed", 5)
        assert "fed/reactor" in state.why
        failures = [n for happening, n in happened(kit, graph, "reactor") if happening == "failed"]
        assert failures == [1, 2, 3, 4, 5, 6]
        with pytest.raises(GraphFailed):
            await kit.app.graphs.wait_started(managed)

    run_graph(graph, play)


@pytest.mark.parametrize(("health_s", "wait_s"), [(59.9, 2), (60, 1)])
def test_a_minute_of_a_live_reactor_forgets_earlier_failures(health_s: float, wait_s: int) -> None:
    source = Source("ticks", int)  # no feed: it is live from the start
    graph = Graph("plain", when=source)

    @graph.node
    def same(ticks: int) -> int:
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        kit.crash(graph)
        await kit.advance(1)
        await turns()
        assert kit.state(graph).state == "live"
        await kit.advance(health_s)
        kit.crash(graph)
        await kit.advance(wait_s - 0.01)
        assert kit.state(graph).state == "starting"
        await kit.advance(0.02)
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


def test_a_degraded_reactor_is_not_healthy_so_nothing_is_forgotten() -> None:
    feed = TestFeed()
    graph = fed(feed)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        kit.crash(graph)
        await kit.advance(31)
        feed.lose(reports=True)
        await kit.advance(1)
        feed.restore()
        await kit.advance(50)
        kit.crash(graph)
        await kit.advance(1.5)
        assert kit.state(graph).state == "starting"  # it waits two seconds
        await kit.advance(0.6)
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


def test_a_reactor_that_dies_restarts_its_graph_from_the_checkpoint() -> None:
    feed = TestFeed()
    a, b = Source("a", int), Source("b", int, feed=feed)
    graph = Graph("kept", when=all_(a, b), inputs="sequential", checkpoint=True)

    @graph.node
    def both(a: int, b: int) -> tuple[int, int]:
        return a, b

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2, 3):
            await kit.push(graph, "a", number)
        feed.push(10)
        await kit.expect(graph, (1, 10))
        feed.push(20)
        await kit.expect(graph, (2, 20))
        kit.crash(graph)
        await kit.advance(0.5)
        with pytest.raises(Closing):
            graph.push_nowait("a", 4)
        await kit.advance(1)
        state = kit.state(graph)
        assert (state.number, state.depths["a"]) == (2, 1)
        assert state.cache == {"a": 2, "b": 20}
        feed.push(30)
        await kit.expect(graph, (3, 30))

    run_graph(graph, play)


def test_a_reactor_that_dies_in_the_middle_of_a_firing_fires_it_again() -> None:
    ticks = Source("ticks", int)
    app = Fairway()
    out = app.topic("out", int)
    graph = app.graph("mid", when=ticks, inputs="sequential", checkpoint=True)
    begun: list[int] = []

    @graph.node
    async def slow(ticks: int) -> int:
        begun.append(ticks)
        await asyncio.sleep(1)
        return ticks

    @graph.node
    def emit(slow: int, firing: FiringContext) -> int:
        firing.append(out, slow)
        return slow

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2):
            await kit.push(graph, "ticks", number)
        await kit.advance(0.5)
        kit.crash(graph)
        await kit.settled()
        assert begun == [1, 1, 2]
        assert kit.outputs(graph) == [1, 2]
        assert [record.data for record in (await out.read()).records] == [1, 2]
        assert [firing.number for firing in kit.firings(graph)] == [1, 2]

    run_graph(app, play)


def test_a_journal_that_may_be_somebody_else_s_for_a_while_is_waited_for() -> None:
    """A lease that was renewed late, or a database that is away, is no failure of the graph's."""
    n = Source("n", int)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: int) -> int:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "n", 1)
        await kit.settled()
        tenure = Tenure(ttl_ns=10, margin_ns=0)
        log: Any = kit.app.graphs._log
        log.ownership = Ownership(tenure, clock_of().now_ns, "here")
        kit.crash(graph)
        await kit.advance(600)
        assert kit.app.graphs.get("g").failed is None
        with pytest.raises(Closing):
            graph.push_nowait(n, 2)
        tenure.until_ns = clock_of().now_ns() + 10**15
        await kit.advance(5)
        await kit.push(graph, "n", 2)
        await kit.settled()
        assert graph.number == 2
        tenure.end()
        log._lose(Fenced("another one has it"))
        await kit.advance(5)
        assert "another one has it" in str(kit.app.graphs.get("g").failed)

    run_graph(graph, play)


def test_a_failed_graph_is_restarted_by_command() -> None:
    graph = fed(TestFeed(), checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        await kit.push(graph, "a", 1)
        for _ in range(6):
            while not kit.runs(graph):
                await kit.advance(0.1)
            kit.crash(graph)
            await kit.advance(0.01)
        assert kit.state(graph).state == "failed"
        await kit.app.graphs.restart("fed")
        await kit.settled()
        assert kit.state(graph).state == "live"
        assert kit.state(graph).cache == {"a": 1}
        kit.crash(graph)
        await kit.advance(1.1)
        assert kit.state(graph).state == "live"  # after one second: its count began anew

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_running_graph_is_restarted_by_command_without_losing_anything(checkpoint: bool) -> None:
    graph = fed(TestFeed(), checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "a", 1)
        before = graph.running
        await kit.app.graphs.restart("fed")
        assert graph.running is not before
        await kit.settled()
        assert kit.state(graph).cache == ({"a": 1} if checkpoint else {})

    run_graph(graph, play)


def test_recoveries_are_told_in_order_and_survive_the_process() -> None:
    feed = TestFeed()
    graph = fed(feed, checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.die(BUG)
        await kit.advance(2)
        kit.crash(graph)
        await kit.advance(2)
        told = [(r.what, r.happening, r.failures) for r in kit.state(graph).recoveries]
        assert told == [
            ("b", "failed", 1),
            ("b", "restarted", 1),
            ("reactor", "failed", 1),
            ("reactor", "restarted", 1),
        ]
        moments = [record.wall_ns for record in kit.state(graph).recoveries]
        assert moments == sorted(moments)
        await kit.settled()
        await kit.restart(power_loss=True)
        again = [(r.what, r.happening, r.failures) for r in kit.state(graph).recoveries]
        assert again == told

    run_graph(graph, play)


# One and another


def other_firings(*, crashing: bool) -> list[int]:
    """When a graph fires, to the nanosecond, with or without one that crashes beside it."""
    app = Fairway()
    feed, tick_feed = TestFeed(), TestFeed()
    ticks = Source("ticks", int, feed=tick_feed)
    loops = Source("loops", int, feed=feed, required=False)
    steady = app.graph("steady", when=ticks, inputs="sequential")
    looping = app.graph("looping", when=loops)
    at: list[int] = []

    @steady.node
    async def slow(ticks: int) -> int:
        await asyncio.sleep(0.05)
        at.append(clock_of().now_ns())
        return ticks

    @looping.node
    def same(loops: int) -> int:
        return loops

    async def play(kit: GraphsUnderTest) -> None:
        await asyncio.sleep(1 - now_s())
        if crashing:
            feed.die(BUG, times=6)
        for number in range(400):
            tick_feed.push(number)
            await kit.advance(0.1)
            if crashing and kit.runs(looping):
                kit.crash(looping)
        await kit.advance(1)
        assert kit.outputs(steady) == list(range(400))
        if crashing:
            assert len(kit.crashes) == 6, kit.state(looping)
            assert kit.state(looping).state == "failed"

    run_graph(app, play)
    return at


def test_a_graph_that_crashes_again_and_again_costs_another_not_a_nanosecond() -> None:
    alone, beside = other_firings(crashing=False), other_firings(crashing=True)
    assert len(alone) == 400
    assert alone == beside


def test_what_is_injected_is_what_it_died_of() -> None:
    graph = fed(TestFeed())

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        kit.crash(graph, child="b")
        await kit.advance(0.01)
        assert kit.state(graph).recoveries[0].error == repr(InjectedCrash("fed/b"))
        with pytest.raises(ValueError, match="does not run just now"):
            kit.crash(graph, child="b")
        with pytest.raises(ValueError, match="has no feed"):
            kit.crash(graph, child="a")

    run_graph(graph, play)

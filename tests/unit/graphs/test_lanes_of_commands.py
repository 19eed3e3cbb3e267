"""Commands to one graph at the same time: one after the other, and never two of one graph."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Fairway, FiringContext
from fairway.errors import Closing, FairwayError, NotFound
from fairway.testing import TestFeed, run_graph

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.graphs.graph import Graph
    from fairway.testing import GraphsUnderTest

SEEDS = range(12)


class Counted:
    """A checkpointed graph that says what it is given, and counts who is in it at once."""

    def __init__(self, *, takes_s: float = 0.0, chance: random.Random | None = None) -> None:
        self.app = Fairway("memory:", worker=None)
        self.inside = 0
        self.most = 0
        self.numbers: list[int] = []
        source = self.app.source("s", int, capacity=5_000)
        self.graph: Graph = self.app.graph("g", when=source, inputs="sequential", checkpoint=True)

        @self.graph.node
        async def say(s: int, firing: FiringContext) -> int:
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                await asyncio.sleep(takes_s * (chance.random() if chance is not None else 1))
            finally:
                self.inside -= 1
            firing.append("said", s)
            return s

    async def said(self) -> list[int]:
        said: list[int] = []
        while True:
            page = await self.app.topic("said", int).read(len(said), limit=1000)
            if not page.records:
                return said
            said += [record.data for record in page.records]


async def outcome(command: Awaitable[Any]) -> str:
    try:
        await command
    except FairwayError as error:
        return type(error).__name__
    return "done"


def test_what_was_unloaded_while_a_restart_waited_stays_unloaded() -> None:
    counted = Counted(takes_s=1.0)

    async def play(kit: GraphsUnderTest) -> None:
        graphs = kit.app.graphs
        counted.graph.push_nowait("s", 1)
        unloading = asyncio.create_task(outcome(graphs.unload("g")))
        await asyncio.sleep(0.1)
        restarting = asyncio.create_task(outcome(graphs.restart("g")))
        assert [await unloading, await restarting] == ["done", "NotFound"]
        await kit.advance(1)
        assert counted.graph.instance is None
        with pytest.raises(NotFound):
            graphs.get("g")
        await graphs.load(counted.graph)
        assert await counted.said() == [1]

    run_graph(counted.app, play)


def test_a_restart_that_waited_is_of_the_one_that_has_the_name_by_then() -> None:
    counted = Counted(takes_s=1.0)

    async def play(kit: GraphsUnderTest) -> None:
        graphs = kit.app.graphs
        counted.graph.push_nowait("s", 1)
        before = graphs.get("g")
        given = [
            asyncio.create_task(outcome(command))
            for command in (
                graphs.unload("g"),
                graphs.load(counted.graph),
                graphs.restart("g"),
            )
        ]
        await asyncio.wait(given)
        assert [task.result() for task in given][::2] == ["done", "done"]
        assert graphs.get("g") is not before
        assert before.instance is None
        assert counted.graph.instance is graphs.get("g").instance
        for number in range(2, 6):
            await kit.push(counted.graph, "s", number)
        await kit.settled()
        assert await counted.said() == [1, 2, 3, 4, 5]
        assert counted.most == 1

    run_graph(counted.app, play)


@pytest.mark.parametrize("name", ["restart", "unload"])
def test_a_command_that_began_is_carried_out_although_its_caller_goes_away(name: str) -> None:
    counted = Counted(takes_s=1.0)

    async def play(kit: GraphsUnderTest) -> None:
        graphs = kit.app.graphs
        counted.graph.push_nowait("s", 1)
        caller = asyncio.create_task(getattr(graphs, name)("g"))
        await asyncio.sleep(0.1)
        caller.cancel()
        if name == "unload":
            assert await outcome(graphs.restart("g")) == "NotFound"
            await graphs.load(counted.graph)
        await kit.advance(10)
        assert caller.cancelled()
        await kit.push(counted.graph, "s", 2)
        await kit.settled()
        assert await counted.said() == [1, 2]

    run_graph(counted.app, play)


def test_a_caller_who_goes_away_before_its_turn_has_asked_for_nothing() -> None:
    counted = Counted(takes_s=1.0)

    async def play(kit: GraphsUnderTest) -> None:
        graphs = kit.app.graphs
        counted.graph.push_nowait("s", 1)
        restarting = asyncio.create_task(outcome(graphs.restart("g")))
        await asyncio.sleep(0.1)
        caller = asyncio.create_task(graphs.unload("g"))
        await asyncio.sleep(0.1)
        caller.cancel()
        assert await restarting == "done"
        await kit.advance(5)
        assert graphs.get("g").state == "live"

    run_graph(counted.app, play)


def test_commands_to_other_graphs_do_not_wait_for_one_that_drains() -> None:
    counted = Counted(takes_s=4.0)
    other = counted.app.graph("other", when=counted.app.source("o", int))

    @other.node
    def same(o: int) -> int:
        return o

    async def play(kit: GraphsUnderTest) -> None:
        counted.graph.push_nowait("s", 1)
        slow = asyncio.create_task(kit.app.graphs.restart("g"))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(1):
            await kit.app.graphs.restart("other")
        assert not slow.done()
        await slow

    run_graph(counted.app, play)


def test_whoever_waits_for_its_turn_when_the_app_is_left_is_told() -> None:
    counted = Counted(takes_s=1.0)
    told: list[asyncio.Task[str]] = []

    async def play(kit: GraphsUnderTest) -> None:
        graphs = kit.app.graphs
        counted.graph.push_nowait("s", 1)
        for command in (graphs.restart("g"), graphs.unload("g"), graphs.restart("g")):
            told.append(asyncio.create_task(outcome(command)))
        await asyncio.sleep(0.1)
        await kit.stop()
        assert [await each for each in told] == ["Closing"] * 3
        await kit.start()
        assert await counted.said() == [1]

    run_graph(counted.app, play)


@pytest.mark.parametrize("how", ["restart", "unload"])
def test_what_the_log_still_has_of_a_graph_comes_before_its_next_life(how: str) -> None:
    """An entry that is under way when the graph ends, after all that is waited for it."""
    counted = Counted()

    async def play(kit: GraphsUnderTest) -> None:
        graphs, loop = kit.app.graphs, asyncio.get_running_loop()
        await kit.push(counted.graph, "s", 1)
        await kit.settled()
        log: Any = graphs._log
        submit_for = log.submit_for
        log.submit_for = lambda *args, **options: loop.call_later(
            30.0, lambda: submit_for(*args, **options)
        )
        counted.graph.push_nowait("s", 2)
        await asyncio.sleep(0)  # it is given to the log
        if how == "restart":
            ended = asyncio.create_task(graphs.restart("g"))
        else:
            await graphs.unload("g")
            ended = asyncio.create_task(graphs.load(counted.graph))
        await asyncio.sleep(0.1)
        await kit.advance(10)
        del log.submit_for
        await ended
        await kit.push(counted.graph, "s", 3)
        await kit.settled()
        assert await counted.said() == [1, 2, 3]
        assert kit.state(counted.graph).recoveries == ()

    run_graph(counted.app, play)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_commands_at_once_beside_pushes_give_each_effect_once(seed: int, forgets: bool) -> None:
    """What is forgotten counts its firings anew, and loses what waits while it is paused."""
    chance = random.Random(seed)
    counted = Counted(takes_s=0.002, chance=chance)
    graph = counted.graph
    graph.listen(lambda firing: counted.numbers.append(firing.number))
    pushed: list[int] = []
    tried: list[int] = []

    async def play(kit: GraphsUnderTest) -> None:
        graphs = kit.app.graphs
        over = False

        async def push() -> None:
            while not over:
                number = len(tried)
                tried.append(number)
                try:
                    if chance.random() < 0.5:
                        await graph.push("s", number)
                    else:
                        graph.push_nowait("s", number)
                    pushed.append(number)
                except FairwayError:
                    pass
                await asyncio.sleep(chance.choice((0, 0, 0.001)))

        async def reload() -> None:
            await graphs.unload("g", forget=forgets and chance.random() < 0.5)
            await graphs.load(graph, wait=chance.random() < 0.5)

        commands: list[Callable[[], Awaitable[Any]]] = [
            reload,
            lambda: graphs.load(graph),
            lambda: graphs.restart("g", wait=chance.random() < 0.5),
            lambda: graphs.restart("g"),
            lambda: graph.pause("x"),
            lambda: graph.resume("x"),
            lambda: graph.resume("x"),
        ]

        async def command() -> None:
            while not over:
                try:
                    async with asyncio.timeout(chance.choice((0.0005, 0.005, 60))):
                        await chance.choice(commands)()
                except (FairwayError, TimeoutError):
                    pass
                failed = [each.failed for each in graphs if each.failed is not None]
                assert failed == []
                await asyncio.sleep(chance.random() * 0.02)

        async with asyncio.TaskGroup() as group:
            group.create_task(push())
            for _ in range(3):
                group.create_task(command())
            await asyncio.sleep(1.5)
            over = True
        if not len(graphs):
            await graphs.load(graph)
        while graphs.get("g").instance is None:
            await kit.advance(1)
        await graph.resume()
        await kit.settled()
        said = await counted.said()
        assert len(said) == len(set(said)), "an effect happened twice"
        assert set(said) <= set(tried)
        if not forgets:
            assert set(pushed) <= set(said), "an accepted push had no effect"
            numbers = counted.numbers
            assert len(numbers) == len(set(numbers)), "a number was given out twice"
        assert counted.most == 1, "there was more than one firing at a time"

    run_graph(counted.app, play, seed=seed, limit_s=600)


def test_a_source_of_a_graph_that_is_being_unloaded_is_not_restarted() -> None:
    feed = TestFeed()
    app = Fairway("memory:", worker=None)
    graph = app.graph("fed", when=app.source("s", int, feed=feed, required=False))

    @graph.node
    async def slow(s: int) -> int:
        await asyncio.sleep(1)
        return s

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.push(1)
        feed.die(OSError("a bug"), times=6)
        await kit.advance(60)
        assert kit.state(graph).sources["s"] == "failed"
        instance = graph.running
        graph.push_nowait("s", 2)
        unloading = asyncio.create_task(kit.app.graphs.unload("fed"))
        await asyncio.sleep(0.1)
        with pytest.raises(Closing):
            instance.restart_source("s")
        await unloading
        with pytest.raises(Closing):
            instance.restart_source("s")

    run_graph(app, play)

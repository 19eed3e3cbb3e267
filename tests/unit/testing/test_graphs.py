"""The testing kit for graphs: what it shows, what it breaks, and that it fails when it should."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Closing, Fairway, FiringContext, Graph, Source, all_
from fairway.errors import InvalidConfig
from fairway.settings import seed_of
from fairway.testing import InjectedCrash, TestFeed, run_graph
from fairway.testing.jobs import NotQuiet

if TYPE_CHECKING:
    from fairway.testing import GraphsUnderTest

pytest_plugins = ["fairway.testing.pytest_plugin"]


def ticking(**options: Any) -> Graph:
    graph = Graph("ticking", when=Source("ticks", int, **options), inputs="sequential")

    @graph.node
    def twice(ticks: int) -> int:
        if ticks < 0:
            raise ValueError("negative")
        return ticks * 2

    return graph


def test_expect_takes_firings_in_order_and_says_what_fired() -> None:
    graph = ticking()

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2, 3):
            await kit.push("ticking", "ticks", number)
        await kit.expect(graph, 2, {"twice": 4}, lambda firing: firing.inputs == {"ticks": 3})
        await kit.push(graph, "ticks", 4)
        with pytest.raises(
            AssertionError, match=r"firing 4 came to 8, not 7: it is live; the last"
        ):
            await kit.expect(graph, 7)
        with pytest.raises(AssertionError, match=r"ticking did not fire: it is live; .*4 firings"):
            await kit.expect(graph, 9)
        await kit.expect_none(graph)
        await kit.push(graph, "ticks", 5)
        with pytest.raises(AssertionError, match="ticking fired"):
            await kit.expect_none(graph)
        with pytest.raises(AssertionError, match="not what wrong wants"):
            await kit.expect(graph, wrong)

    run_graph(graph, play)


def wrong(firing: object) -> bool:
    return False


def test_a_failed_firing_is_not_what_was_expected() -> None:
    graph = ticking()

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "ticks", -1)
        with pytest.raises(AssertionError, match="an error: node 'twice': ValueError: negative"):
            await kit.expect(graph, -2)

    run_graph(graph, play)


def test_a_graph_that_waits_says_for_what() -> None:
    feed = TestFeed()
    feed.lose()
    graph = ticking(feed=feed)

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(AssertionError, match="is warming, waiting for ticks, and never fired"):
            await kit.expect(graph, 1)

    run_graph(graph, play)


def test_whatever_play_raises_is_raised() -> None:
    async def play(kit: GraphsUnderTest) -> None:
        raise LookupError("by the test")

    with pytest.raises(LookupError, match="by the test"):
        run_graph(ticking(), play)


def test_an_app_that_cannot_start_says_why() -> None:
    graph = Graph("odd", when=Source("ticks", int))

    @graph.node
    def other(ticks: int, nobody: int) -> None: ...

    async def play(kit: GraphsUnderTest) -> None:
        raise AssertionError("never played")

    with pytest.raises(Exception, match="nobody"):
        run_graph(graph, play)


def test_a_restart_drops_what_was_in_memory_and_keeps_what_was_durable() -> None:
    app = Fairway()
    out = app.topic("out", int)

    @app.job
    async def note(number: int) -> None: ...

    a, b = Source("a", int), Source("b", int)
    kept = app.graph("kept", when=all_(a, b), inputs="sequential", checkpoint=True)
    dropped = app.graph("dropped", when=all_(a, b), inputs="sequential")
    for graph in (kept, dropped):

        @graph.node
        def both(a: int, b: int, firing: FiringContext) -> int:
            firing.append(out, a + b)
            firing.enqueue(note.order(number=a))
            return a + b

    async def play(kit: GraphsUnderTest) -> None:
        for graph in (kept, dropped):
            await kit.push(graph, "a", 1)
            await kit.push(graph, "a", 2)
            await kit.push(graph, "b", 10)
        await kit.settled()
        await kit.jobs.drain()
        before = app.graphs
        for power_loss in (False, True):
            await kit.restart(power_loss=power_loss)
            assert app.graphs is not before
            assert kit.state(kept).depths == {"a": 1, "b": 0}
            assert kit.state(dropped).depths == {"a": 0, "b": 0}
            assert [record.data for record in (await out.read()).records] == [11, 11]
            await kit.jobs.assert_enqueued("note", 2)
        await kit.push(kept, "b", 20)
        await kit.expect(kept, 11, 22)

    place = app.place
    run_graph(app, play)
    assert app.place == place  # and nothing of the test is left in it


def test_nothing_fires_between_the_kill_and_the_next_life() -> None:
    graph = Graph("slow", when=Source("ticks", int), inputs="sequential")
    done: list[int] = []

    @graph.node
    async def slow(ticks: int) -> None:
        await asyncio.sleep(1)
        done.append(ticks)

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(5):
            await kit.push(graph, "ticks", number)
        await kit.advance(1.5)
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(told(kit.ask(graph, "ticks", 9)))
            await asyncio.sleep(0)
            await kit.restart()
        assert isinstance(asked.result(), Closing)
        await kit.advance(20)
        assert done == [0]

    run_graph(graph, play)


async def told(asking: Any) -> BaseException | None:
    try:
        await asking
    except Exception as error:
        return error
    return None


def test_a_clean_stop_drains() -> None:
    graph = Graph("slow", when=Source("ticks", int), inputs="sequential")
    done: list[int] = []

    @graph.node
    async def slow(ticks: int) -> None:
        await asyncio.sleep(0.1)
        done.append(ticks)

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(5):
            await kit.push(graph, "ticks", number)

    run_graph(graph, play)
    assert done == [0, 1, 2, 3, 4]


def test_settled_gives_up_on_what_never_rests() -> None:
    graph = Graph("ever", when=Source("ticks", int), inputs="sequential")

    @graph.node
    async def ever(ticks: int) -> None:
        await asyncio.sleep(0.01)
        graph.push_nowait("ticks", ticks + 1)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "ticks", 0)
        with pytest.raises(NotQuiet, match="ever"):
            await kit.settled(limit_s=5)

    run_graph(graph, play)


@pytest.mark.parametrize("at", [2, 3, 4, 5, 7, 8])
def test_a_crash_comes_at_the_nth_await(at: int) -> None:
    graph = Graph("steps", when=Source("ticks", int), inputs="sequential", checkpoint=True)
    steps: list[int] = []

    @graph.node
    async def step(ticks: int) -> int:
        for number in range(4):
            steps.append(number)
            await asyncio.sleep(0.1)
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        kit.crash(graph, at=at)
        await kit.push(graph, "ticks", 1)
        await kit.settled()
        await kit.push(graph, "ticks", 2)
        await kit.settled()
        assert kit.crashes == [("steps", "reactor")]
        assert kit.outputs(graph) == [1, 2]
        # A firing is woken five times: for work, and in each of the four awaits of its node.
        assert len(steps) == 8 + (at - 1) % 5
        (record,) = [r for r in kit.state(graph).recoveries if r.happening == "failed"]
        assert record.error == repr(InjectedCrash("steps/reactor"))

    run_graph(graph, play)


def test_a_seed_plays_the_same() -> None:
    def played(seed: int) -> list[int]:
        feed = TestFeed()
        graph = ticking(feed=feed)

        async def play(kit: GraphsUnderTest) -> None:
            for _ in range(5):
                feed.lose()
                await kit.advance(0.1)
                feed.restore()
                await kit.advance(5)

        run_graph(graph, play, seed=seed)
        return feed.opened_ns

    assert played(7) == played(7) != played(8)


def test_an_exception_in_a_callback_fails_the_test() -> None:
    class Bad(TestFeed):
        def open(self, context: Any) -> Any:
            asyncio.get_running_loop().call_soon(divmod, 1, 0)
            return super().open(context)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()

    with pytest.raises(ZeroDivisionError):
        run_graph(ticking(feed=Bad()), play)


def test_the_fixtures_play_with_a_fresh_seed(graph_kit: Any, fairway_seed: int) -> None:
    graph = ticking()
    loops: list[int] = []

    async def play(kit: GraphsUnderTest) -> None:
        loops.append(asyncio.get_running_loop().seed)  # type: ignore[attr-defined]
        await kit.push(graph, "ticks", 1)
        await kit.expect(graph, 2)

    graph_kit(graph, play)
    assert loops == [fairway_seed]


def test_a_seed_is_replayed(monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    monkeypatch.setattr(request.config.option, "fairway_seed", 77, raising=False)
    monkeypatch.setenv("FAIRWAY_SEED", "78")
    assert request.getfixturevalue("fairway_seed") == 77


def test_a_seed_of_the_environment_is_replayed(
    monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    monkeypatch.setattr(request.config.option, "fairway_seed", None, raising=False)
    monkeypatch.setenv("FAIRWAY_SEED", "78")
    assert request.getfixturevalue("fairway_seed") == 78


def test_a_seed_of_the_environment_that_is_none_is_refused() -> None:
    assert seed_of(None, environ={"FAIRWAY_SEED": " "}) is None
    assert seed_of(7, environ={"FAIRWAY_SEED": "seven"}) == 7
    with pytest.raises(InvalidConfig, match="FAIRWAY_SEED: a seed is a whole number, not 'seven'"):
        seed_of(None, environ={"FAIRWAY_SEED": "seven"})

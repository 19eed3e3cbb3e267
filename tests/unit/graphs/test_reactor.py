"""The reactor at work: what fires, when, with what, and what becomes of a firing that fails."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import (
    ALL,
    Backpressure,
    Batch,
    Closing,
    Fairway,
    FiringContext,
    FiringFailed,
    Graph,
    OnError,
    Source,
    Window,
    all_,
    any_,
    quorum,
    retry,
    where,
)
from fairway.errors import InvalidConfig, InvalidRequest
from fairway.graphs.checkpoint import DEAD_MAX
from fairway.graphs.feeds.poll import poll
from fairway.graphs.firing import LOG_MAX
from fairway.graphs.traversal import NodeFailed
from fairway.runtime.clock import clock_of
from fairway.testing import TestFeed, run_graph

if TYPE_CHECKING:
    from fairway.graphs.inputs import Strategy
    from fairway.graphs.source import OnFull
    from fairway.testing import GraphsUnderTest


class Quote(msgspec.Struct):
    price: int
    id: int = 0


def now_s() -> float:
    return clock_of().now_ns() / 1e9


def pair(when: Any, inputs: Strategy = "latest", **options: Any) -> Graph:
    """A graph over `a` and `b` that comes to both of them."""
    graph = Graph("pair", when=when, inputs=inputs, **options)

    @graph.node
    def both(a: int | None, b: int | None) -> tuple[int | None, int | None]:
        return a, b

    return graph


# Firing


def test_a_graph_of_plain_nodes_has_fired_when_push_nowait_returns() -> None:
    quotes = Source("quotes", Quote)
    graph = Graph("inline", when=quotes)
    seen: list[tuple[int, str]] = []

    @graph.node
    def price(quotes: Quote, firing: FiringContext) -> int:
        seen.append((firing.number, firing.cause))
        return quotes.price

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait(quotes, Quote(5))
        assert graph.fired == 1
        graph.push_nowait("quotes", {"price": 7})  # plain data is fitted to the type
        assert seen == [(1, "news"), (2, "news")]
        await kit.expect(graph, 5, {"price": 7})
        with pytest.raises(InvalidRequest, match="quotes"):
            graph.push_nowait(quotes, {"price": "high"})
        assert graph.fired == 2

    run_graph(graph, play)


def test_a_node_that_pushes_into_its_own_graph_does_not_fire_inside_the_firing() -> None:
    ticks = Source("ticks", int)
    graph = Graph("own", when=ticks, inputs="sequential")
    depth = [0, 0]

    @graph.node
    def down(ticks: int) -> int:
        depth[0] += 1
        depth[1] = max(depth)
        if ticks:
            graph.push_nowait("ticks", ticks - 1)
        depth[0] -= 1
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("ticks", 500)
        await kit.settled()
        assert kit.outputs(graph) == list(range(500, -1, -1))
        assert depth[1] == 1

    run_graph(graph, play)


def test_others_on_the_loop_get_their_turn_between_many_firings() -> None:
    ticks = Source("ticks", int, capacity=1000)
    graph = Graph("many", when=ticks, inputs="sequential")

    @graph.node
    def same(ticks: int) -> int:
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        instance = graph.running
        await instance.reactor.pause()
        for number in range(1000):
            graph.push_nowait("ticks", number)
        resumed = instance.reactor.resume()
        turns = 0
        while graph.fired < 1000:
            turns += 1
            await asyncio.sleep(0)
        await resumed
        assert turns == 1000 // 128
        assert kit.outputs(graph) == list(range(1000))

    run_graph(graph, play)


def test_an_async_graph_fires_in_its_own_task_one_firing_at_a_time() -> None:
    ticks = Source("ticks", int)
    graph = Graph("waits", when=ticks, inputs="sequential")
    at: list[tuple[float, int]] = []

    @graph.node
    async def slow(ticks: int) -> int:
        at.append((now_s(), ticks))
        await asyncio.sleep(1.0)
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        begin = now_s()
        for number in range(3):
            graph.push_nowait("ticks", number)
        assert graph.fired == 0
        await graph.settled()
        assert [(round(t - begin, 6), n) for t, n in at] == [(0.0, 0), (1.0, 1), (2.0, 2)]
        assert [firing.duration_ns for firing in kit.firings(graph)] == [1_000_000_000] * 3

    run_graph(graph, play)


def test_latest_skips_what_was_overtaken_while_it_fired() -> None:
    ticks = Source("ticks", int)
    graph = Graph("latest", when=ticks)

    @graph.node
    async def slow(ticks: int) -> int:
        await asyncio.sleep(1.0)
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("ticks", 0)
        await kit.advance(0.5)
        for number in range(1, 10):
            graph.push_nowait("ticks", number)
        await kit.settled()
        assert kit.outputs(graph) == [0, 9]

    run_graph(graph, play)


def test_blocking_nodes_run_beside_the_loop() -> None:
    ticks = Source("ticks", int)
    graph = Graph("threads", when=ticks)

    @graph.node(blocking=True)
    def there(ticks: int) -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return True  # as in a thread
        return False

    async def play(kit: GraphsUnderTest) -> None:
        firing = await kit.ask(graph, "ticks", 1)
        assert firing is not None
        assert firing.output is True

    run_graph(graph, play)


def test_a_timeout_ends_a_hanging_node_and_counts_as_a_failure() -> None:
    ticks = Source("ticks", int)
    graph = Graph("hangs", when=ticks, inputs="sequential", on_error="dead_letter")

    @graph.node(timeout_s=2.0)
    async def answer(ticks: int) -> int:
        if ticks == 1:
            await asyncio.Event().wait()
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        begin = now_s()
        with pytest.raises(FiringFailed, match=r"node 'answer': NodeTimeout: .*longer than 2 s"):
            await kit.ask(graph, "ticks", 1)
        assert now_s() - begin == pytest.approx(2.0, abs=1e-6)
        await kit.ask(graph, "ticks", 2)
        assert kit.outputs(graph) == [2]

    run_graph(graph, play)


def test_a_hanging_node_without_a_timeout_holds_up_its_own_graph_only() -> None:
    app = Fairway()
    ticks, tocks = Source("ticks", int), Source("tocks", int)
    stuck = app.graph("stuck", when=ticks, inputs="sequential")
    other = app.graph("other", when=tocks)

    @stuck.node
    async def for_ever(ticks: int) -> None:
        await asyncio.Event().wait()

    @other.node
    async def quick(tocks: int) -> int:
        return tocks

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(5):
            await kit.push(stuck, "ticks", number)  # accepted all the same
        await kit.ask(other, "tocks", 3)
        await kit.advance(300)
        assert kit.state(stuck).depths == {"ticks": 4}
        begin = now_s()
        await kit.app.graphs.unload("stuck")  # drained for as long as is decent, and no longer
        assert now_s() - begin == pytest.approx(5.0, abs=0.01)
        await kit.ask(other, "tocks", 4)

    run_graph(app, play)


# Failures


def failing(inputs: Strategy, on_error: Any, fails: set[int], **options: Any) -> Graph:
    """A graph over `ticks` that fails while the value is one of `fails`."""
    graph = Graph("fails", when=Source("ticks", int, **options), inputs=inputs, on_error=on_error)

    @graph.node
    def same(ticks: int) -> int:
        if ticks in fails:
            raise ValueError(f"no {ticks}")
        return ticks

    return graph


def test_retries_follow_the_backoff_exactly_and_keep_the_order() -> None:
    fails = {1}
    graph = failing("sequential", retry(3), fails)
    at: list[float] = []

    async def play(kit: GraphsUnderTest) -> None:
        graph.running.reactor.listeners.append(lambda firing: at.append(now_s()))
        for number in (1, 2, 3):
            graph.push_nowait("ticks", number)
        assert kit.state(graph).depths == {"ticks": 3}  # the head is back in front
        await kit.advance(0.35)
        fails.clear()
        await graph.settled()
        assert kit.outputs(graph) == [1, 2, 3]
        tries = [(firing.number, firing.attempt) for firing in kit.firings(graph)]
        assert tries == [(1, 1), (1, 2), (1, 3), (1, 1), (2, 1), (3, 1)]
        waits = [round(later - sooner, 6) for sooner, later in pairwise(at)]
        assert waits == [0.1, 0.2, 0.4, 0, 0]

    run_graph(graph, play)


def test_a_retry_of_latest_sees_the_newest() -> None:
    graph = failing("latest", retry(2), {1})

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("ticks", 1)
        assert kit.state(graph).dirty == {"ticks": True}
        graph.push_nowait("ticks", 2)
        await kit.settled()
        assert kit.outputs(graph) == [2]
        assert kit.state(graph).dirty == {"ticks": False}

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_after_the_last_retry_inputs_are_dead_letters_and_the_rest_goes_on(
    checkpoint: bool,
) -> None:
    graph = Graph(
        "dead",
        when=Source("ticks", Quote),
        inputs="sequential",
        on_error=retry(1),
        checkpoint=checkpoint,
    )

    @graph.node
    def same(ticks: Quote) -> int:
        if ticks.price == 1:
            raise ValueError("no")
        return ticks.price

    async def play(kit: GraphsUnderTest) -> None:
        for price in (1, 2):
            await kit.push(graph, "ticks", Quote(price))
        await kit.settled()
        assert kit.outputs(graph) == [2]
        (letter,) = kit.state(graph).dead
        assert "node 'same': ValueError: no" in letter.reason
        assert msgspec.msgpack.decode(letter.data["ticks"], type=Quote) == Quote(1)
        assert letter.wall_ns > 0
        numbers = [(f.number, f.attempt, f.error is None) for f in kit.firings(graph)]
        assert numbers == [(1, 1, False), (1, 2, False), (2, 1, True)]  # each told once
        if checkpoint:
            await kit.restart()
            assert [each.reason for each in kit.state(graph).dead] == [letter.reason]
            assert kit.state(graph).number == 2

    run_graph(graph, play)


def test_so_many_firings_and_dead_letters_are_kept_the_newest_of_them() -> None:
    ticks = Source("ticks", int, capacity=5_000)
    graph = Graph("many", when=ticks, inputs="sequential", on_error="dead_letter")

    @graph.node
    def never(ticks: int) -> None:
        raise ValueError(f"no {ticks}")

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(1, DEAD_MAX + 6):
            graph.push_nowait("ticks", number)
        await kit.settled()
        letters = graph.dead_letters
        assert [letter.id for letter in letters] == list(range(6, DEAD_MAX + 6))
        assert letters[-1].reason.endswith(f"no {DEAD_MAX + 5}")
        assert [firing.number for firing in graph.firings][-1] == DEAD_MAX + 5
        assert len(graph.firings) == LOG_MAX

    run_graph(graph, play)
    assert (DEAD_MAX, LOG_MAX) == (1_000, 200)


def test_the_backoff_counts_anew_for_the_next_inputs() -> None:
    graph = failing("sequential", retry(2), {1, 2})

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("ticks", 1)
        graph.push_nowait("ticks", 2)
        await kit.settled()
        assert [f.attempt for f in kit.firings(graph)] == [1, 2, 3, 1, 2, 3]
        assert len(kit.state(graph).dead) == 2

    run_graph(graph, play)


@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_halt_keeps_flags_and_queue_until_somebody_resumes(inputs: Strategy) -> None:
    fails = {1}
    graph = failing(inputs, "halt", fails)

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("ticks", 1)
        state = kit.state(graph)
        assert (state.halted, state.dirty, state.depths) == (True, {"ticks": True}, {"ticks": 1})
        assert "no 1" in state.why
        graph.push_nowait("ticks", 2)
        await kit.settled()
        assert kit.outputs(graph) == []
        fails.clear()
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == ([1, 2] if inputs == "sequential" else [2])
        assert not kit.state(graph).halted
        assert not kit.state(graph).dead

    run_graph(graph, play)


def test_nothing_of_a_failed_firing_happens() -> None:
    app = Fairway()
    out = app.topic("out", int)
    ticks = Source("ticks", int)
    total = Source("total", int, keep=10)
    graph = app.graph("half", when=ticks, uses=[total], inputs="sequential", on_error=retry(1))
    tries = [0]

    @graph.node
    def half(ticks: int, total: list[int] | None, firing: FiringContext) -> int:
        firing.append(out, ticks)
        firing.put("total", ticks)
        tries[0] += 1
        if tries[0] == 1:
            raise ValueError("after its effects")
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        await kit.ask(graph, "ticks", 7)
        await kit.settled()
        assert [record.data for record in (await out.read()).records] == [7]
        assert kit.state(graph).windows == {"total": [7]}

    run_graph(app, play)


def test_a_predicate_that_raises_is_a_failed_firing() -> None:
    criterion = where(any_(Source("ticks", int)), lambda inputs: 1 / inputs["ticks"] > 0)
    graph = Graph("gate", when=criterion, inputs="sequential", on_error="dead_letter")

    @graph.node
    def same(ticks: int) -> int:
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(FiringFailed, match="division by zero"):
            await kit.ask(graph, "ticks", 0)
        await graph.running.reactor.pause()
        for number in (0, 0, 4):
            graph.push_nowait("ticks", number)
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == [4]  # what came after it does not wait for more
        assert len(kit.state(graph).dead) == 3
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


# Pushing and asking


@pytest.mark.parametrize("checkpoint", [False, True])
def test_ask_returns_the_firing_that_consumed_the_value(checkpoint: bool) -> None:
    a, b = Source("a", int), Source("b", int)
    graph = pair(all_(a, b), "sequential", checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(kit.ask(graph, "a", 1))
            await kit.advance(1)
            assert not asked.done()
            await kit.push(graph, "b", 2)
        firing = asked.result()
        assert firing is not None
        assert (firing.output, sorted(firing.fresh)) == ((1, 2), ["a", "b"])

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_push_returns_when_it_is_accepted_and_ask_when_it_fired(checkpoint: bool) -> None:
    ticks = Source("ticks", int)
    graph = Graph("slow", when=ticks, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    async def slow(ticks: int) -> int:
        await asyncio.sleep(10)
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        begin = now_s()
        await kit.push(graph, "ticks", 1)
        assert now_s() - begin < 0.1
        assert kit.firings(graph) == []
        await kit.ask(graph, "ticks", 2)
        assert now_s() - begin >= 20

    run_graph(graph, play)


def test_a_durable_push_is_there_after_a_crash_though_it_never_fired() -> None:
    a, b = Source("a", int), Source("b", int)
    graph = pair(all_(a, b), "sequential", checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "a", 1)
        await kit.push(graph, "a", 2)
        await kit.restart(power_loss=True)
        assert kit.state(graph).depths == {"a": 2, "b": 0}
        await kit.push(graph, "b", 10)
        await kit.push(graph, "b", 20)
        await kit.expect(graph, (1, 10), (2, 20))

    run_graph(graph, play)


def test_a_graph_without_checkpoint_begins_afresh() -> None:
    a, b = Source("a", int), Source("b", int)
    graph = pair(all_(a, b), "sequential")

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "a", 1)
        await kit.restart()
        assert kit.state(graph).depths == {"a": 0, "b": 0}

    run_graph(graph, play)


def test_whoever_asks_a_graph_that_is_stopped_is_told() -> None:
    a, b = Source("a", int), Source("b", int)
    graph = pair(all_(a, b), "sequential")

    async def play(kit: GraphsUnderTest) -> None:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(_told(kit.ask(graph, "a", 1)))
            await kit.advance(1)
            await kit.app.graphs.unload("pair")
        assert isinstance(asked.result(), Closing)
        with pytest.raises(Closing):
            graph.push_nowait("a", 2)

    run_graph(graph, play)


async def _told(asking: Any) -> BaseException | None:
    try:
        await asking
    except Exception as error:
        return error
    return None


# Commands, in each corner of strategy and criteria


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_pause_and_resume_when_any(inputs: Strategy, checkpoint: bool) -> None:
    graph = pair(any_(Source("a", int), Source("b", int)), inputs, checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for number in (1, 2):
            graph.push_nowait("a", number)
        graph.push_nowait("b", 3)
        await kit.settled()
        await kit.expect_none(graph)
        assert kit.state(graph).paused
        if checkpoint:
            await kit.restart()
            assert kit.state(graph).paused  # a person said so
            await kit.expect_none(graph)
        await graph.running.reactor.resume()
        await kit.settled()
        wanted = [(2, 3)] if inputs == "latest" else [(1, None), (2, None), (2, 3)]
        assert kit.outputs(graph) == wanted

    run_graph(graph, play)


@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_pause_and_resume_when_all(inputs: Strategy) -> None:
    graph = pair(all_(Source("a", int), Source("b", int)), inputs)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for number in (1, 2):
            graph.push_nowait("a", number)
            graph.push_nowait("b", -number)
        await kit.expect_none(graph)
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == ([(2, -2)] if inputs == "latest" else [(1, -1), (2, -2)])

    run_graph(graph, play)


@pytest.mark.parametrize("criterion", [any_, all_])
@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_force_fires_whatever_the_criterion_says(inputs: Strategy, criterion: Any) -> None:
    graph = pair(criterion(Source("a", int), Source("b", int)), inputs)

    async def play(kit: GraphsUnderTest) -> None:
        instance = graph.running
        forced = await instance.force()  # with nothing at all
        assert (forced.cause, forced.fresh, dict(forced.outputs)) == ("forced", (), {})
        await instance.reactor.pause()
        graph.push_nowait("a", 1)
        graph.push_nowait("a", 2)
        forced = await instance.force()  # paused or not
        one = 2 if inputs == "latest" else 1
        assert (forced.output, forced.fresh) == ((one, None), ("a",))
        assert kit.state(graph).depths["a"] == (0 if inputs == "latest" else 1)
        forced = await instance.force()
        assert forced.output == (2, None)
        forced = await instance.force()  # nothing is news: the same once more
        assert (forced.output, forced.fresh) == ((2, None), ())
        await instance.reactor.resume()
        await kit.settled()
        assert len(kit.firings(graph)) == 4  # what was forced is consumed

    run_graph(graph, play)


@pytest.mark.parametrize("criterion", [any_, all_])
@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_fire_with_replaces_the_cache_and_leaves_queues(inputs: Strategy, criterion: Any) -> None:
    graph = pair(criterion(Source("a", int), Source("b", int)), inputs)

    async def play(kit: GraphsUnderTest) -> None:
        instance = graph.running
        await instance.reactor.pause()
        graph.push_nowait("a", 1)
        fired = await instance.force({"b": 9})
        assert (fired.cause, fired.output) == ("injected", (None, 9))
        assert kit.state(graph).cache == {"b": 9}
        await instance.reactor.resume()
        await kit.settled()
        if inputs == "latest":  # what was news was overtaken
            assert kit.outputs(graph) == [(None, 9)]
        elif criterion is any_:
            assert kit.outputs(graph) == [(None, 9), (1, 9)]
        else:
            assert kit.state(graph).depths == {"a": 1, "b": 0}
        with pytest.raises(InvalidConfig, match="no source 'c'"):
            await instance.force({"c": 1})

    run_graph(graph, play)


@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_a_forced_firing_that_fails_consumes_nothing(inputs: Strategy) -> None:
    fails = {1, 5}
    graph = failing(inputs, retry(3), fails)

    async def play(kit: GraphsUnderTest) -> None:
        instance = graph.running
        await instance.reactor.pause()
        graph.push_nowait("ticks", 1)
        with pytest.raises(FiringFailed, match="nothing was consumed"):
            await instance.force()
        with pytest.raises(FiringFailed):
            await instance.force({"ticks": 5})
        assert kit.state(graph).dirty == {"ticks": True}
        fails.clear()
        await instance.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == [1]

    run_graph(graph, play)


def test_what_fire_with_left_is_what_a_restart_finds() -> None:
    graph = pair(any_(Source("a", int), Source("b", int)), checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "a", 1)
        await graph.running.force({"b": 9})
        before = kit.state(graph).cache
        await kit.restart()
        assert kit.state(graph).cache == before == {"b": 9}

    run_graph(graph, play)


# Too much


def test_on_full_refuse_tells_the_caller_and_counts() -> None:
    graph = failing("sequential", retry(0), set(), capacity=2, on_full="refuse")

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for number in (1, 2):
            await kit.push(graph, "ticks", number)
        with pytest.raises(Backpressure) as refused:
            await kit.push(graph, "ticks", 3)
        assert refused.value.depth == 2
        assert refused.value.retry_after_ns > 0
        accumulator = graph.running.accumulator("ticks")
        assert (accumulator.refused, accumulator.events) == (1, 2)
        await graph.running.reactor.resume()
        assert kit.outputs(graph) == [1, 2]

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_on_full_drop_oldest_keeps_the_newest_and_counts(checkpoint: bool) -> None:
    ticks = Source("ticks", int, capacity=2, on_full="drop_oldest")
    graph = Graph("drops", when=ticks, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def same(ticks: int) -> int:
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(_told(kit.ask(graph, "ticks", 1)))
            await asyncio.sleep(0)
            for number in (2, 3, 4):
                await kit.push(graph, "ticks", number)
        assert isinstance(asked.result(), Backpressure)  # and is not left waiting
        assert graph.running.accumulator("ticks").dropped == 2
        if checkpoint:
            await kit.restart()
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph)[-2:] == [3, 4]
        if not checkpoint:
            assert kit.outputs(graph) == [3, 4]

    run_graph(graph, play)


@pytest.mark.parametrize("batch", [None, Batch(size=2)], ids=["single", "lists"])
def test_a_push_that_is_dropped_before_it_is_durable_was_accepted(batch: Batch | None) -> None:
    ticks = Source("ticks", int, capacity=2, on_full="drop_oldest", batch=batch)
    graph = Graph("drops", when=ticks, inputs="sequential", checkpoint=True)

    kind: Any = int if batch is None else list[int]

    def same(ticks: kind) -> kind:  # type: ignore[valid-type]
        return ticks

    graph.add(same, scope={"kind": kind})

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        kept = [graph.running.accept("ticks", number) for number in range(10)]
        assert not any(future.done() for future in kept if future is not None)
        assert [await future for future in kept if future is not None] == [None] * 10
        assert graph.running.accumulator("ticks").dropped == (8 if batch is None else 3)
        await kit.restart(power_loss=True)
        await graph.running.reactor.resume()
        await kit.settled()
        expected = [8, 9] if batch is None else [[6, 7], [8, 9]]
        assert kit.outputs(graph) == expected

    run_graph(graph, play)


def test_on_full_block_waits_for_room() -> None:
    graph = failing("sequential", retry(0), set(), capacity=2)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for number in (1, 2):
            await kit.push(graph, "ticks", number)
        with pytest.raises(Backpressure):
            graph.push_nowait("ticks", 3)  # this one cannot wait
        async with asyncio.TaskGroup() as group:
            pushed = [group.create_task(kit.push(graph, "ticks", n)) for n in (3, 4)]
            await kit.advance(60)
            assert not any(task.done() for task in pushed)
            await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == [1, 2, 3, 4]

    run_graph(graph, play)


def test_a_feed_waits_for_room_and_nothing_is_lost() -> None:
    feed = TestFeed()
    ticks = Source("ticks", int, feed=feed, capacity=3, on_full="refuse")
    graph = Graph("feeds", when=ticks, inputs="sequential")

    @graph.node
    async def slow(ticks: int) -> int:
        await asyncio.sleep(0.01)
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(*range(50))
        await kit.advance(0.05)
        assert kit.state(graph).depths["ticks"] <= 3
        await kit.settled()
        assert kit.outputs(graph) == list(range(50))
        assert graph.running.accumulator("ticks").refused == 0

    run_graph(graph, play)


LARGE = 1000
"""Bytes of a text: with its frame, a few more."""


def large(on_full: OnFull, *, checkpoint: bool = False, feed: TestFeed | None = None) -> Graph:
    """A graph whose source has room for the next large text and for two behind it."""
    texts = Source("texts", str, feed=feed, capacity_bytes=2 * LARGE + 1, on_full=on_full)
    graph = Graph("large", when=texts, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    async def first(texts: str) -> str:
        await asyncio.sleep(0.01)
        return texts[0]

    return graph


def texts(letters: str) -> list[str]:
    return [letter * LARGE for letter in letters]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_few_large_boundaries_fill_a_source_as_many_small_ones_do(checkpoint: bool) -> None:
    graph = large("refuse", checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for text in texts("abc"):
            await kit.push(graph, "texts", text)
        with pytest.raises(Backpressure, match="2,001 bytes of boundaries") as refused:
            await kit.push(graph, "texts", "d")
        assert refused.value.depth == 3
        assert refused.value.retry_after_ns > 0
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == list("abc")
        assert graph.running.reactor.inputs.size("texts") == 0
        await kit.push(graph, "texts", "d")
        await kit.settled()
        assert kit.outputs(graph) == list("abcd")

    run_graph(graph, play)


@pytest.mark.parametrize("on_full", ["block", "refuse"])
def test_a_boundary_of_any_size_is_accepted_until_a_source_has_come_to_its_bytes(
    on_full: OnFull,
) -> None:
    graph = large(on_full)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for text in ["a", "b" * LARGE, "c" * 5 * LARGE]:
            graph.push_nowait("texts", text)
        for text in ["d", "e" * LARGE]:
            with pytest.raises(Backpressure, match="2,001 bytes of boundaries"):
                graph.push_nowait("texts", text)
        size = graph.running.reactor.inputs.size("texts")
        assert 6 * LARGE < size < 6 * LARGE + 20, "it is passed by the last one, and no further"
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == list("abc")

    run_graph(graph, play)


def test_whoever_pushes_waits_for_room_for_large_boundaries() -> None:
    graph = large("block")

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        async with asyncio.TaskGroup() as group:
            pushed = [group.create_task(kit.push(graph, "texts", text)) for text in texts("abcde")]
            await kit.advance(60)
            assert [task.done() for task in pushed] == [True, True, True, False, False]
            await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == list("abcde")

    run_graph(graph, play)


def test_a_feed_waits_for_room_for_large_boundaries() -> None:
    feed = TestFeed()
    graph = large("block", feed=feed)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(*texts("abcdefgh"))
        await kit.advance(0.005)
        assert kit.state(graph).depths["texts"] == 2  # the next one is under way
        await kit.settled()
        assert kit.outputs(graph) == list("abcdefgh")

    run_graph(graph, play)


def test_as_many_are_dropped_as_make_room_for_a_large_one() -> None:
    graph = large("drop_oldest")

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for text in ["a", "b", "c", "d" * 3 * LARGE]:
            await kit.push(graph, "texts", text)
        await kit.push(graph, "texts", "e")  # all that came before is dropped, the large one too
        assert graph.running.accumulator("texts").dropped == 4
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == ["e"]

    run_graph(graph, play)


class Odd:
    """Nothing that can be encoded, and it does not say how large it is."""

    def __sizeof__(self) -> int:
        raise RuntimeError("no idea")


def test_a_boundary_whose_size_nobody_knows_counts_as_one_all_the_same() -> None:
    source = Source("things", Any, capacity=3, capacity_bytes=1, on_full="refuse")
    graph = Graph("odd", when=source, inputs="sequential")

    @graph.node
    def name(things: Any) -> str:
        return type(things).__name__

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for _ in range(3):
            await kit.push(graph, "things", Odd())
        with pytest.raises(Backpressure, match="3 boundaries"):
            await kit.push(graph, "things", Odd())
        await graph.running.reactor.resume()
        assert kit.outputs(graph) == ["Odd"] * 3

    run_graph(graph, play)


def collecting(batch: Any, *, checkpoint: bool = False, feed: TestFeed | None = None) -> Graph:
    """A graph whose source collects two large texts, and no third."""
    texts = Source("texts", str, feed=feed, batch=batch, capacity_bytes=2 * LARGE + 10)
    graph = Graph("collecting", when=texts, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def first(texts: list[str]) -> str:
        return "".join(text[0] for text in texts)

    return graph


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    "batch",
    [Batch(every_s=3600), Window(seconds=3600), Window(seconds=3600, at=lambda text: 0)],
    ids=["batch", "by arrival", "by event time"],
)
def test_what_is_collected_is_given_when_it_comes_to_its_bytes(
    batch: Any, checkpoint: bool
) -> None:
    graph = collecting(batch, checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        accumulator = graph.running.accumulator("texts")
        for text in texts("abcdefg"):
            await kit.push(graph, "texts", text)
            assert accumulator.collected_bytes <= 2 * LARGE + 10
        await kit.settled()
        assert kit.outputs(graph) == ["ab", "cd", "ef"]
        assert accumulator.collected_bytes > LARGE

    run_graph(graph, play)


def test_what_a_checkpointed_graph_collects_fits_the_record_of_a_firing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairway.graphs.accumulator.VALUE_BYTES_MAX", 3 * LARGE)
    source = Source("texts", str, batch=Batch(every_s=1), dedupe=lambda text: text)
    graph = Graph("fits", when=source, inputs="sequential", checkpoint=True)

    @graph.node
    def count(texts: list[str]) -> int:
        return len(texts)

    async def play(kit: GraphsUnderTest) -> None:
        for text in texts("abcde"):
            await kit.push(graph, "texts", text)
        await kit.advance(1)
        assert kit.outputs(graph) == [1] * 5, "each counts with its key"

    run_graph(graph, play)


def test_a_batch_with_large_keys_that_fails_is_a_dead_letter_that_fits_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("journal.RECORD_BYTES_MAX", "records.RECORD_BYTES_MAX"):
        monkeypatch.setattr(f"fairway.graphs.{name}", 10 * LARGE)
    monkeypatch.setattr("fairway.graphs.records.SLACK", LARGE)
    source = Source("texts", str, batch=Batch(size=4), dedupe=lambda text: text)
    graph = Graph(
        "fails", when=source, inputs="sequential", checkpoint=True, on_error="dead_letter"
    )

    @graph.node
    def fail(texts: list[str]) -> str:
        raise ValueError(texts[0][0])

    async def play(kit: GraphsUnderTest) -> None:
        for text in texts("abcd"):
            await kit.push(graph, "texts", text)
        await kit.settled()
        (letter,) = kit.state(graph).dead
        assert "ValueError: a" in letter.reason
        assert len(letter.data["texts"]) < LARGE, "its beginning must do"

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("window", [Window(count=3), Window(count=3, step=1)])
def test_a_window_by_count_that_comes_to_its_bytes_refuses_and_is_not_cut(
    window: Window, checkpoint: bool
) -> None:
    graph = collecting(window, checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        for text in texts("ab"):
            await kit.push(graph, "texts", text)
        for push in (kit.push, kit.ask):
            with pytest.raises(Backpressure, match="2,010 bytes of a window") as refused:
                await push(graph, "texts", "c" * LARGE)
        assert refused.value.depth == 2
        assert refused.value.retry_after_ns > 0
        accumulator = graph.running.accumulator("texts")
        assert (accumulator.events, accumulator.refused) == (2, 2)
        assert accumulator.collected_bytes <= 2 * LARGE + 10
        await kit.expect_none(graph)
        await kit.push(graph, "texts", "d")  # for this one there is room
        await kit.settled()
        assert kit.outputs(graph) == ["abd"]

    run_graph(graph, play)


def test_a_window_by_count_of_a_checkpointed_graph_fits_the_record_of_its_firing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairway.graphs.accumulator.VALUE_BYTES_MAX", 3 * LARGE)
    source = Source("texts", str, batch=Window(count=3))
    graph = Graph("fits", when=source, checkpoint=True)

    @graph.node
    def count(texts: list[str]) -> int:
        return len(texts)

    async def play(kit: GraphsUnderTest) -> None:
        for text in texts("ab"):
            await kit.push(graph, "texts", text)
        with pytest.raises(Backpressure, match="3,000 bytes of a window"):
            await kit.push(graph, "texts", "c" * LARGE)
        await kit.restart()
        await kit.push(graph, "texts", "d")
        await kit.settled()
        assert kit.outputs(graph) == [3]

    run_graph(graph, play)


def test_a_feed_waits_while_a_window_by_count_has_come_to_its_bytes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    feed = TestFeed()
    graph = collecting(Window(count=4), feed=feed)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(*texts("abcdef"))
        await kit.expect_none(graph)
        accumulator = graph.running.accumulator("texts")
        assert accumulator.events == 3
        assert accumulator.collected_bytes <= 2 * LARGE + 10
        assert caplog.text.count("collecting, source texts: reads no more") == 1
        with pytest.raises(Backpressure, match="2,010 bytes of a window"):
            await kit.push(graph, "texts", "z")  # it would overtake what was read before
        accumulator.flush()  # as when the graph is stopped
        await kit.settled()
        assert kit.outputs(graph) == ["ab"]
        assert accumulator.events == 5, "it reads on"
        for _ in range(2):
            accumulator.flush()
            await kit.settled()
        assert kit.outputs(graph) == ["ab", "cd", "ef"]

    run_graph(graph, play)


def keyed(on_full: OnFull, *, checkpoint: bool = False, feed: TestFeed | None = None) -> Graph:
    """A graph that is given the newest of what is no repeat."""
    ticks = Source("ticks", int, feed=feed, dedupe=lambda tick: tick, on_full=on_full)
    graph = Graph("keyed", when=ticks, checkpoint=checkpoint)

    @graph.node
    def same(ticks: int) -> int:
        return ticks

    return graph


@pytest.mark.parametrize("on_full", ["refuse", "drop_oldest"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_paused_graph_keeps_a_bounded_number_of_keys_of_what_was_overtaken(
    on_full: OnFull, checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairway.graphs.inputs.OVERTAKEN_MAX", 5)
    graph = keyed(on_full, checkpoint=checkpoint)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for tick in range(5):
            await kit.push(graph, "ticks", tick)
        with pytest.raises(Backpressure, match="overtaken") as refused:
            await kit.push(graph, "ticks", 5)
        assert refused.value.retry_after_ns > 0
        await kit.push(graph, "ticks", 3)  # a repeat takes up no room
        accumulator = graph.running.accumulator("ticks")
        assert (accumulator.refused, accumulator.repeated, accumulator.dropped) == (1, 1, 0)
        if checkpoint:
            assert len(graph.running.checkpoint.kept("ticks").pushes) == 5
        await graph.running.reactor.resume()
        for tick in (2, 5):
            await kit.push(graph, "ticks", tick)
        await kit.settled()
        assert kit.outputs(graph) == [4, 5]

    run_graph(graph, play)


def test_pushes_that_are_overtaken_and_stay_in_the_journal_are_bounded_in_bytes() -> None:
    texts = Source("texts", str, dedupe=lambda text: text[0], capacity_bytes=2 * LARGE)
    graph = Graph("keyed", when=texts, checkpoint=True)

    @graph.node
    def first(texts: str) -> str:
        return texts[0]

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        async with asyncio.TaskGroup() as group:
            large = [letter * LARGE for letter in "abcde"]
            pushed = [group.create_task(kit.push(graph, "texts", text)) for text in large]
            await kit.advance(60)
            assert [task.done() for task in pushed] == [True, True, True, False, False]
            await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph)[0] == "c"
        assert kit.outputs(graph)[-1] == "e"
        assert not graph.running.checkpoint.kept("texts").pushes

    run_graph(graph, play)


def test_a_feed_waits_while_too_many_keys_of_what_was_overtaken_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairway.graphs.inputs.OVERTAKEN_MAX", 5)
    feed = TestFeed()
    graph = keyed("drop_oldest", feed=feed)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        feed.push(*range(20))
        await kit.advance(1)
        assert graph.running.accumulator("ticks").events == 5
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph)[0] == 4
        assert kit.outputs(graph)[-1] == 19

    run_graph(graph, play)


# What sources do


@pytest.mark.parametrize("checkpoint", [False, True])
def test_repeats_are_left_out_also_after_a_restart(checkpoint: bool) -> None:
    quotes = Source("quotes", Quote, dedupe=lambda quote: quote.id)
    graph = Graph("once", when=quotes, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def price(quotes: Quote) -> int:
        return quotes.price

    async def play(kit: GraphsUnderTest) -> None:
        await kit.ask(graph, "quotes", Quote(10, id=1))
        assert await kit.ask(graph, "quotes", Quote(11, id=1)) is None
        assert graph.running.accumulator("quotes").repeated == 1
        await kit.ask(graph, "quotes", Quote(12, id=2))
        assert kit.outputs(graph) == [10, 12]
        if checkpoint:
            await kit.restart()
            assert await kit.ask(graph, "quotes", Quote(13, id=1)) is None
            assert kit.outputs(graph) == [10, 12]

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_through_makes_boundaries_or_leaves_events_out(checkpoint: bool) -> None:
    def price_of(event: Quote) -> int | None:
        if event.price < 0:
            raise ValueError("negative")
        return event.price or None

    prices = Source("prices", int, through=price_of)
    graph = Graph("through", when=prices, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def same(prices: int) -> int:
        return prices

    async def play(kit: GraphsUnderTest) -> None:
        firing = await kit.ask(graph, "prices", Quote(5))
        assert firing is not None
        assert firing.output == 5
        assert await kit.ask(graph, "prices", Quote(0)) is None
        await kit.push(graph, "prices", Quote(0))
        assert graph.running.accumulator("prices").suppressed == 2
        with pytest.raises(InvalidRequest, match="through failed: ValueError: negative"):
            await kit.push(graph, "prices", Quote(-1))
        await kit.ask(graph, "prices", Quote(6))
        if checkpoint:
            await kit.restart()
            await kit.ask(graph, "prices", Quote(7))
        assert kit.outputs(graph)[:2] == [5, 6]

    run_graph(graph, play)


def test_a_push_that_went_through_and_waits_is_not_put_through_again_by_a_restart() -> None:
    doubled = Source("doubled", int, through=lambda event: event * 2)
    graph = Graph("double", when=all_(doubled, Source("b", int)), checkpoint=True)

    @graph.node
    def both(doubled: int, b: int) -> tuple[int, int]:
        return doubled, b

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "doubled", 21)
        await kit.restart()
        await kit.push(graph, "b", 1)
        await kit.expect(graph, (42, 1))

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_poison_from_a_feed_is_kept_aside_and_the_source_goes_on(checkpoint: bool) -> None:
    feed = TestFeed()
    quotes = Source("quotes", Quote, feed=feed)
    graph = Graph("poison", when=quotes, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def price(quotes: Quote) -> int:
        return quotes.price

    async def play(kit: GraphsUnderTest) -> None:
        poison = [b"{ not json", b'{"price":"high"}', b"\xff\xfe"]
        feed.push(b'{"price":1}', *poison, b'{"price":2}')
        await kit.expect(graph, 1, 2)
        state = kit.state(graph)
        assert [letter.data["quotes"] for letter in state.dead] == poison
        assert all(letter.source == "quotes" and letter.reason for letter in state.dead)
        assert "Expected `int`, got `str`" in state.dead[1].reason
        assert state.sources == {"quotes": "live"}
        assert graph.running.accumulator("quotes").undecodable == 3
        assert not state.recoveries  # nothing died of it
        if checkpoint:
            await kit.restart()
            feed.push(b'{"price":3}')
            await kit.expect(graph, 3)
            assert len(kit.state(graph).dead) == 3

    run_graph(graph, play)


def test_poison_that_was_met_and_not_consumed_is_kept_once() -> None:
    feed = TestFeed()
    quotes, other = Source("quotes", Quote, feed=feed), Source("other", int)
    graph = Graph("again", when=all_(quotes, other), inputs="sequential", checkpoint=True)

    @graph.node
    def price(quotes: Quote) -> int:
        return quotes.price

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(b"poison")
        await kit.settled()
        assert len(kit.state(graph).dead) == 1
        await kit.restart()  # nothing was fired, so it is read again
        await kit.settled()
        assert len(kit.state(graph).dead) == 1
        feed.push(b"more poison")
        await kit.settled()
        assert len(kit.state(graph).dead) == 2

    run_graph(graph, play)


# Health, as a firing sees it


def test_a_stale_source_degrades_the_graph_and_the_firing_says_so() -> None:
    fast, slow = Source("fast", int), Source("slow", int, stale_after_s=10)
    graph = Graph("stale", when=any_(fast, slow))
    told: list[tuple[str, ...]] = []

    @graph.node
    def both(fast: int | None, slow: int | None, firing: FiringContext) -> None:
        told.append(firing.degraded)

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("slow", 1)
        await kit.advance(9.999)
        graph.push_nowait("fast", 1)
        assert kit.state(graph).state == "live"
        await kit.advance(0.001)
        assert kit.state(graph).state == "degraded"
        assert kit.state(graph).waiting == ("slow",)
        graph.push_nowait("fast", 2)
        graph.push_nowait("slow", 2)
        assert told == [(), (), ("slow",), ()]
        assert [f.degraded for f in kit.firings(graph)] == told
        await kit.advance(1)
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


def test_a_lost_feed_degrades_the_graph_until_it_is_back() -> None:
    feed = TestFeed()
    graph = pair(any_(Source("a", int), Source("b", int, feed=feed)))

    async def play(kit: GraphsUnderTest) -> None:
        assert kit.state(graph).state == "live"
        feed.lose("cable cut")
        await kit.advance(0.1)
        assert kit.state(graph).state == "degraded"
        assert kit.state(graph).sources["b"] == "disconnected"
        assert graph.running.healths["b"].why == "cable cut"
        firing = await kit.ask(graph, "a", 1)  # it goes on with what there is, and says so
        assert firing is not None
        assert firing.degraded == ("b",)
        await kit.advance(300)  # for ever: it was lost, and did not die
        assert not kit.state(graph).recoveries
        feed.restore()
        await kit.advance(31)
        assert kit.state(graph).state == "live"
        feed.push(5)
        await kit.expect(graph, (1, None), (1, 5))

    run_graph(graph, play)


def test_a_connection_that_mends_itself_reports() -> None:
    feed = TestFeed()
    graph = pair(any_(Source("a", int), Source("b", int, feed=feed)))

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.lose("no leader", reports=True)
        assert kit.state(graph).state == "degraded"
        feed.restore()
        assert kit.state(graph).state == "live"
        assert len(feed.opened_ns) == 1

    run_graph(graph, play)


def test_what_a_closed_connection_reports_is_old_news() -> None:
    feed = TestFeed()
    graph = pair(any_(Source("a", int), Source("b", int, feed=feed)))

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        (connection,) = feed._connections
        feed.lose()
        await kit.advance(0.01)
        connection.context.report(True)  # as a thread might that does not know yet
        assert kit.state(graph).sources["b"] == "disconnected"
        feed.restore()
        await kit.advance(1)
        assert kit.state(graph).sources["b"] == "live"
        assert not kit.state(graph).recoveries

    run_graph(graph, play)


def test_warming_waits_for_required_sources_and_keeps_what_comes() -> None:
    feed = TestFeed()
    feed.lose()
    graph = pair(any_(Source("a", int), Source("b", int, feed=feed)), "sequential")

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("a", 1)
        await kit.advance(300)
        state = kit.state(graph)
        assert (state.state, state.waiting) == ("warming", ("b",))
        assert kit.firings(graph) == []
        feed.restore()
        await kit.advance(31)
        assert kit.state(graph).state == "live"
        await kit.expect(graph, (1, None))

    run_graph(graph, play)


def test_warming_ends_by_its_timeout_exactly() -> None:
    feed = TestFeed()
    feed.lose()
    graph = pair(
        any_(Source("a", int), Source("b", int, feed=feed)), "sequential", warm_timeout_s=30
    )
    at: list[float] = []

    async def play(kit: GraphsUnderTest) -> None:
        begin = graph.running.health._warming_ns / 1e9
        graph.running.reactor.listeners.append(lambda firing: at.append(now_s() - begin))
        graph.push_nowait("a", 1)
        await kit.advance(40)
        assert at == [pytest.approx(30, abs=1e-6)]
        assert kit.state(graph).state == "degraded"
        assert kit.firings(graph)[0].degraded == ("b",)

    run_graph(graph, play)


def test_an_optional_source_is_never_waited_for() -> None:
    feed = TestFeed()
    feed.lose()
    graph = pair(any_(Source("a", int), Source("b", int, feed=feed, required=False)))

    async def play(kit: GraphsUnderTest) -> None:
        assert kit.state(graph).state == "live"
        await kit.ask(graph, "a", 1)
        await kit.expect(graph, (1, None))

    run_graph(graph, play)


# States


def test_a_bounded_state_feeds_back_the_last_values() -> None:
    ticks, last = Source("ticks", int), Source("last", int, keep=3)
    graph = Graph("window", when=ticks, uses=[last], inputs="sequential", checkpoint=True)

    @graph.node
    def mean(ticks: int, last: list[int] | None, firing: FiringContext) -> list[int]:
        firing.put("last", ticks)
        return last or []

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(1, 6):
            await kit.push(graph, "ticks", number)
        await kit.expect(graph, [], [1], [1, 2], [1, 2, 3], [2, 3, 4])
        await kit.restart()
        assert kit.state(graph).windows == {"last": [3, 4, 5]}
        await kit.push(graph, "ticks", 6)
        await kit.expect(graph, [3, 4, 5])

    run_graph(graph, play)


def test_a_state_that_keeps_all_and_one_that_keeps_none() -> None:
    ticks = Source("ticks", int)
    every, sink = Source("every", int, keep=ALL), Source("sink", int, keep=0)
    graph = Graph("both", when=ticks, uses=[every, sink], inputs="sequential")

    @graph.node
    def count(ticks: int, every: list[int] | None, firing: FiringContext) -> int:
        firing.put("every", ticks)
        firing.put("sink", ticks)
        return len(every or [])

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(600):
            graph.push_nowait("ticks", number)
        await kit.settled()
        assert kit.outputs(graph) == list(range(600))
        assert kit.state(graph).windows == {"every": list(range(600)), "sink": []}

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_state_that_fires_is_a_feedback_loop(checkpoint: bool) -> None:
    ticks, left = Source("ticks", int), Source("left", int, keep=1)
    graph = Graph("loop", when=any_(ticks, left), inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def step(ticks: int, left: list[int] | None, firing: FiringContext) -> int:
        now = left[0] if left else ticks
        if now:
            firing.put("left", now - 1)
        return now

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "ticks", 5)
        await kit.settled()
        assert kit.outputs(graph) == [5, 4, 3, 2, 1, 0]
        if checkpoint:
            await kit.restart()
            await kit.settled()
            assert kit.state(graph).windows == {"left": [0]}
            assert kit.state(graph).number == 6

    run_graph(graph, play)


def test_only_a_state_of_the_graph_is_written_to() -> None:
    ticks = Source("ticks", int)
    graph = Graph("wrong", when=ticks, on_error="dead_letter")

    @graph.node
    def write(ticks: int, firing: FiringContext) -> None:
        firing.put("elsewhere", ticks)

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(FiringFailed, match="keeps no state 'elsewhere'"):
            await kit.ask(graph, "ticks", 1)

    run_graph(graph, play)


# Batches


def batching(batch: Batch, *, checkpoint: bool = False, uses: bool = False) -> Graph:
    items = Source("items", int, batch=batch)
    ticks = Source("ticks", int)
    graph = Graph("batch", when=any_(items, ticks), inputs="sequential", checkpoint=checkpoint)

    @graph.node
    async def take(items: list[int] | None, ticks: int | None, firing: FiringContext) -> Any:
        await asyncio.sleep(1)
        return items

    return graph


def test_a_firing_in_which_no_node_could_run_has_consumed_its_value() -> None:
    a, b = Source("a", int), Source("b", int)
    graph = Graph("early", when=any_(a, b), inputs="sequential")

    @graph.node
    def both(a: int, b: int) -> tuple[int, int]:
        return a, b

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2):
            graph.push_nowait("a", number)
        assert kit.state(graph).depths == {"a": 0, "b": 0}
        graph.push_nowait("b", 10)
        await kit.settled()
        assert [firing.outputs for firing in kit.firings(graph)] == [{}, {}, {"both": (2, 10)}]

    run_graph(graph, play)


def test_after_firing_gives_what_came_meanwhile() -> None:
    graph = batching(Batch(after_firing=True))

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2, 3):
            graph.push_nowait("items", number)
        await kit.expect_none(graph)  # nothing fired yet that could be over
        graph.push_nowait("ticks", 0)
        await kit.expect(graph, lambda firing: firing.fresh == ("ticks",), within_s=2)
        for number in (4, 5):
            graph.push_nowait("items", number)
        await kit.expect(graph, [1, 2, 3], within_s=2)
        await kit.expect(graph, [4, 5], within_s=2)

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_is_collected_is_given_when_the_app_is_left(checkpoint: bool) -> None:
    graph = batching(Batch(size=100), checkpoint=checkpoint)
    seen: list[Any] = []

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2, 3):
            await kit.push(graph, "items", number)
        await kit.stop()
        seen.extend(kit.firings(graph))
        await kit.start()
        await kit.settled()
        assert kit.state(graph).number == (1 if checkpoint else 0)

    run_graph(graph, play)
    assert [firing.output for firing in seen] == [[1, 2, 3]]


def test_a_batch_is_given_by_size_and_by_time_exactly() -> None:
    items = Source("items", int, batch=Batch(size=3, every_s=2))
    graph = Graph("batch", when=items, inputs="sequential")
    at: list[float] = []

    @graph.node
    def take(items: list[int]) -> list[int]:
        at.append(now_s())
        return items

    async def play(kit: GraphsUnderTest) -> None:
        begin = now_s()
        for number in (1, 2, 3, 4):
            graph.push_nowait("items", number)
        await kit.advance(1)
        graph.push_nowait("items", 5)
        await kit.advance(5)
        assert kit.outputs(graph) == [[1, 2, 3], [4, 5]]
        assert [round(moment - begin, 6) for moment in at] == [0, 2]

    run_graph(graph, play)


def test_what_is_collected_and_pushed_survives_a_crash() -> None:
    graph = batching(Batch(size=3), checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2):
            await kit.push(graph, "items", number)
        await kit.restart(power_loss=True)
        await kit.push(graph, "items", 3)
        await kit.expect(graph, [1, 2, 3], within_s=2)
        await kit.restart()
        await kit.expect_none(graph, within_s=5)

    run_graph(graph, play)


# Polling


def test_polling_asks_at_once_and_then_every_so_often() -> None:
    answers: list[Any] = [1, None, 3]
    at: list[float] = []

    async def fetch() -> int | None:
        at.append(now_s())
        return answers.pop(0) if answers else None

    graph = Graph("polls", when=Source("rates", int, feed=poll(fetch, every_s=5)))

    @graph.node
    def same(rates: int) -> int:
        return rates

    async def play(kit: GraphsUnderTest) -> None:
        await kit.advance(21)
        assert [round(moment - at[0], 3) for moment in at] == [0, 5, 10, 15, 20]
        assert kit.outputs(graph) == [1, 3]
        assert graph.sources["rates"].kind == "polling"

    run_graph(graph, play)


def test_a_poll_that_fails_is_a_lost_feed() -> None:
    broken = [True]

    def fetch() -> int:
        if broken[0]:
            raise OSError("refused")
        return 7

    graph = Graph("polls", when=Source("rates", int, feed=poll(fetch, every_s=5)))

    @graph.node
    def same(rates: int) -> int:
        return rates

    async def play(kit: GraphsUnderTest) -> None:
        await kit.advance(100)
        assert kit.state(graph).state == "warming"
        assert not kit.state(graph).recoveries
        broken[0] = False
        await kit.advance(31)
        assert kit.state(graph).state == "live"
        await kit.expect(graph, 7)

    run_graph(graph, play)


# Bridges, effects and plain calls


def test_a_bridge_starts_a_workflow_once_for_each_firing_that_is_worth_it() -> None:
    app = Fairway()
    nightly = app.workflow("nightly")
    seen: list[int] = []

    @nightly.task
    def load(price: int) -> None:
        seen.append(price)

    graph = app.graph("bridge", when=Source("ticks", int), inputs="sequential", checkpoint=True)

    @graph.node
    def price(ticks: int) -> int:
        return ticks

    graph.starts(
        lambda outputs: nightly.order({"price": outputs["price"]}),
        where=lambda outputs: outputs["price"] > 10,
    )

    async def play(kit: GraphsUnderTest) -> None:
        for number in (5, 20, 7, 30):
            await kit.push(graph, "ticks", number)
        await kit.settled()
        await kit.restart()
        await kit.settled()
        await kit.jobs.drain()
        assert sorted(seen) == [20, 30]

    run_graph(app, play)


def test_a_bridge_that_fails_fails_the_firing() -> None:
    graph = Graph("bridge", when=Source("ticks", int), on_error="dead_letter")

    @graph.node
    def price(ticks: int) -> int:
        return ticks

    graph.starts(lambda outputs: "no order")

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(FiringFailed, match="no order"):
            await kit.ask(graph, "ticks", 1)

    run_graph(graph, play)


def test_effects_go_to_topics_and_jobs_in_order() -> None:
    app = Fairway()
    out = app.topic("out", int)
    ran: list[int] = []

    @app.job
    async def note(number: int) -> None:
        ran.append(number)

    graph = app.graph("effects", when=Source("ticks", int), inputs="sequential")

    @graph.node
    def emit(ticks: int, firing: FiringContext) -> None:
        firing.append(out, ticks, tag="even" if ticks % 2 == 0 else None)
        firing.append("other", -ticks)
        firing.enqueue(note.order(number=ticks))

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(20):
            graph.push_nowait("ticks", number)
        await kit.settled()
        await kit.jobs.drain()
        assert [record.data for record in (await out.read()).records] == list(range(20))
        assert [r.data for r in (await out.read(match="even")).records] == list(range(0, 20, 2))
        other = await app.topic("other").read()
        assert [record.data for record in other.records] == [-n for n in range(20)]
        assert sorted(ran) == list(range(20))

    run_graph(app, play)


def test_a_record_with_a_number_that_json_has_not_fails_its_firing() -> None:
    """And is not appended as null, nor is what else the firing had to append."""
    app = Fairway()
    graph = app.graph("effects", when=Source("ticks", float), inputs="sequential")

    @graph.node
    def emit(ticks: float, firing: FiringContext) -> None:
        firing.append("first", 1)
        firing.append("out", {"at": None, "x": [1 / ticks if ticks else math.inf]})

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1.0, 0.0, 2.0):
            graph.push_nowait("ticks", number)
        await kit.settled()
        out = (await app.topic("out").read()).records
        assert [record.data["x"] for record in out] == [[1.0], [0.5]]
        assert len((await app.topic("first").read()).records) == 2

    run_graph(app, play)


def test_a_graph_is_called_like_a_function() -> None:
    graph = pair(any_(Source("a", int), Source("b", int)))
    assert graph.call(a=1, b=2) == {"both": (1, 2)}
    assert graph.call(b=2) == {"both": (None, 2)}
    with pytest.raises(InvalidConfig, match="no source 'c'"):
        graph.call(c=1)


def test_a_graph_that_waits_is_invoked() -> None:
    graph = Graph("waits", when=Source("a", int))

    @graph.node
    async def slow(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    @graph.node(blocking=True)
    def further(slow: int) -> int:
        return slow + 1

    with pytest.raises(InvalidConfig, match="invoke"):
        graph.call(a=1)
    assert asyncio.run(graph.invoke(a=1)) == {"further": 3}


def test_on_error_is_checked() -> None:
    with pytest.raises(InvalidConfig, match="on_error"):
        Graph("x", when=Source("a", int), on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="retries"):
        OnError(retries=-1)


def test_a_call_drops_effects_and_what_is_put() -> None:
    """`call` and `invoke` run the nodes and nothing else: not even a state is needed."""
    last = Source("last", int, keep=3)
    graph = Graph("g", when=Source("n", int), uses=[last])

    @graph.node
    def node(n: int, last: list[int] | None, firing: FiringContext) -> int:
        firing.put("last", n)
        firing.append("topic", n)
        return n + len(last or ())

    assert graph.call(n=1, last=None) == {"node": 1}
    assert graph.call(n=1, last=[1, 2]) == {"node": 3}
    assert asyncio.run(graph.invoke(n=2)) == {"node": 2}
    with pytest.raises(NodeFailed, match="state 'last'"):
        graph.call(n="no number")


def test_a_quorum_of_one_takes_one_boundary_at_a_time_like_any() -> None:
    outputs = []
    for criterion in (any_, partial(quorum, 1)):
        a, b = Source("a", int), Source("b", int)
        graph = Graph("g", when=criterion(a, b), inputs="sequential")

        @graph.node
        def node(a: int | None, b: int | None) -> tuple[int | None, int | None]:
            return a, b

        async def play(kit: GraphsUnderTest, graph: Graph = graph) -> None:
            await graph.pause()
            for source, value in (("a", 1), ("b", 2), ("a", 3)):
                await kit.push(graph, source, value)
            await graph.resume()
            await kit.settled()
            outputs.append(kit.outputs(graph))

        run_graph(graph, play)
    assert outputs == [[(1, None), (1, 2), (3, 2)]] * 2

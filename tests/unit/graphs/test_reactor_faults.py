"""Graphs where something goes wrong: waiting that must end, user code that raises, values that
cannot be kept, feeds that are lost, and what a replay makes of it all."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from fairway import (
    Backpressure,
    Batch,
    Fairway,
    FiringContext,
    FiringFailed,
    Graph,
    Source,
    Window,
    all_,
    any_,
    debounce,
    retry,
    where,
)
from fairway.errors import Closing, FeedLost, InvalidRequest
from fairway.graphs import feed as feeds
from fairway.graphs import journal as journals
from fairway.graphs.metrics import series_of
from fairway.graphs.replay import over_journal
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import TestFeed, run, run_graph

if TYPE_CHECKING:
    from fairway.graphs.firing import Firing
    from fairway.testing import GraphsUnderTest


def same(source: Source[Any], **options: Any) -> Graph:
    """A graph that comes to what its one source brings."""
    options.setdefault("inputs", "sequential")
    graph = Graph("same", when=source, **options)

    if source.collects:

        @graph.node(name="it")
        def many(n: list[int]) -> list[int]:
            return list(n)

    else:

        @graph.node(name="it")
        def one(n: int) -> int:
            return n

    return graph


def outputs(graph: Graph) -> list[Any]:
    return [firing.output for firing in graph.firings]


# Waiting that never ended


def adding() -> tuple[Source[int], Source[int], Graph]:
    """A checkpointed graph that adds what two sources bring."""
    a, b = Source("a", int), Source("b", int)
    graph = Graph("g", when=all_(a, b), checkpoint=True)

    @graph.node
    def add(a: int, b: int) -> int:
        return a + b

    return a, b, graph


def test_settled_does_not_wait_for_a_firing_after_what_is_only_kept() -> None:
    *_, graph = adding()

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("a", 1)
        async with asyncio.timeout(5):
            await graph.settled()
        assert graph.running.journal is not None
        assert not graph.running.journal.pending

    run_graph(graph, play)


def test_settled_does_not_wait_for_a_retry_that_a_pause_put_off() -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, on_error=retry(2))

    @graph.node
    def fail(n: int) -> int:
        raise ValueError(n)

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait(n, 1)
        await graph.pause()
        async with asyncio.timeout(5):
            await graph.settled()

    run_graph(graph, play)


def test_whoever_waits_for_room_is_woken_when_a_predicate_makes_it() -> None:
    n = Source("n", int, capacity=2)
    graph = same(n)
    graph.criterion = where(n, lambda inputs: inputs["n"] > 100)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.pause()
        await graph.push(n, 1)
        await graph.push(n, 2)
        waiting = [asyncio.ensure_future(graph.push(n, each)) for each in range(3, 9)]
        await asyncio.sleep(0.1)
        await graph.resume()
        async with asyncio.timeout(5):
            await asyncio.gather(*waiting)

    run_graph(graph, play)


def test_whoever_no_longer_waits_for_room_is_forgotten() -> None:
    n = Source("n", int, capacity=1)
    graph = same(n)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.pause()
        await graph.push(n, 1)
        for each in range(20):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await graph.push(n, each)
        assert not graph.running.reactor._room_broadcasts["n"].waiters

    run_graph(graph, play)


def test_a_gate_of_time_does_not_spin_while_a_firing_lasts() -> None:
    n = Source("n", int)
    graph = Graph("g", when=debounce(n, quiet_s=0.1))

    @graph.node
    async def slow(n: int) -> int:
        await asyncio.sleep(10)
        return n

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait(n, 1)
        await asyncio.sleep(1)
        reactor = graph.running.reactor
        tick, ticks = reactor._tick, 0

        def counted() -> None:
            nonlocal ticks
            ticks += 1
            if ticks < 1000:
                tick()

        reactor._tick = counted  # type: ignore[method-assign]
        graph.push_nowait(n, 2)
        await asyncio.sleep(30)
        assert ticks < 100, "it spins"
        assert outputs(graph) == [1, 2]

    run_graph(graph, play)


def test_an_app_that_closes_while_a_graph_is_restarted_closes() -> None:
    async def main() -> None:
        app = Fairway(MemoryWal(), jobs="memory:", worker=None)
        graph = app.graph("g", when=app.source("n", int))

        @graph.node
        async def slow(n: int) -> int:
            await asyncio.sleep(3)
            return n

        async with asyncio.timeout(60):
            async with app:
                graph.push_nowait("n", 1)
                await asyncio.sleep(0.1)
                again = asyncio.ensure_future(app.graphs.restart("g"))
                await asyncio.sleep(0.1)
            with pytest.raises(Closing):
                await again

    run(main)


# What user code raises


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_listener_that_fails_harms_nobody(checkpoint: bool) -> None:
    n = Source("n", int)
    graph = same(n, checkpoint=checkpoint)
    heard: list[Any] = []

    def bad(firing: Firing) -> None:
        raise ValueError("of the listener")

    async def play(kit: GraphsUnderTest) -> None:
        graph.listen(bad)
        graph.listen(lambda firing: heard.append(firing.output))
        async with asyncio.timeout(5):
            await asyncio.gather(*(graph.push(n, each) for each in range(3)))
            await graph.settled()
        assert graph.fired == 3
        assert heard == [0, 1, 2]

    run_graph(graph, play)


class Raises(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        raise AttributeError("of the type")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_wrong_calls_of_a_graph_are_refused_with_an_error_of_our_own(checkpoint: bool) -> None:
    feed = TestFeed()
    d, r = Source("d", dict[str, int]), Source("r", Raises, feed=feed)
    graph = Graph("g", when=any_(d, r), inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def it(d: dict[str, int] | None, r: Raises | None) -> int:
        return len(d or {})

    async def play(kit: GraphsUnderTest) -> None:
        for wrong in (range(3), memoryview(b"x"), object(), lambda: 0):
            with pytest.raises(InvalidRequest):
                await graph.push("d", wrong)
            with pytest.raises(InvalidRequest):
                graph.push_nowait("d", wrong)
            with pytest.raises(InvalidRequest):
                await graph.fire({"d": wrong})
        for cache in (5, 5.0, [1], "d", object()):
            with pytest.raises(InvalidRequest, match="the cache is a mapping by source"):
                await graph.fire(cache)  # type: ignore[arg-type]
        for name in ([], {}, 5, None):
            with pytest.raises(InvalidRequest, match="a source is given by its name"):
                graph.running.restart_source(name)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="AttributeError: of the type"):
            await graph.push("r", {"n": 1})
        feed.push(b'{"n": 1}', {"n": 1})  # what a feed brings of it is kept aside
        await kit.advance(1)
        assert len(graph.dead_letters) == 2
        assert kit.state(graph).recoveries == ()
        assert graph.fired == 0
        found = await graph.ask("d", {"a": 1})
        assert found is not None
        assert found.output == 1

    run_graph(graph, play)


class Brings(TestFeed):
    """A feed that brings events with offsets of its own choice."""

    def after(self, offset: int) -> list[feeds.Event]:
        return self.events[offset:]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("optional", [False, True])
def test_none_and_offsets_below_0_become_dead_letters(optional: bool, checkpoint: bool) -> None:
    """None is no news where the type has room for it."""
    nones = 0 if optional else 2
    feed = Brings()
    brought = ((None, 1), (b"null", 2), (b"5", 3), (b"6", -1), (b"7", -(2**70)), (b"8", 4))
    feed.push(*(feeds.Event(data, "s", offset) for data, offset in brought))
    n = Source("n", int | None if optional else int, feed=feed)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def it(n: int) -> int:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        assert kit.outputs(graph) == [5, 8]
        reasons = [letter.reason for letter in graph.dead_letters]
        assert ["Expected `int`, got `null`" in each for each in reasons[:-2]] == [True] * nones
        assert ["its offset 0 or a number" in each for each in reasons[-2:]] == [True, True]
        found = graph.running.accumulator("n")
        assert (found.undecodable, found.suppressed, found.repeated) == (2 + nones, 2 - nones, 0)
        if not optional:
            with pytest.raises(InvalidRequest, match="Expected `int`, got `null`"):
                await graph.push("n", None)

    run_graph(graph, play)


def test_a_through_that_takes_none_is_given_it() -> None:
    feed = TestFeed()

    def of(event: int | None) -> int | None:
        return None if event == 0 else event or -1

    n = Source("n", int, feed=feed, through=of)
    graph = same(n)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(None, b"null", 0, 3)
        await kit.settled()
        assert kit.outputs(graph) == [-1, -1, 3]
        assert graph.running.accumulator("n").suppressed == 1

    run_graph(graph, play)


def cancels(value: Any) -> Any:
    """Code of the user's that cancels the task in which it finds itself."""
    if (task := asyncio.current_task()) is not None:
        task.cancel()
    return value


class Cancels(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        cancels(self)


CANCELLING: dict[str, dict[str, Any]] = {
    "through": {"through": cancels},
    "dedupe": {"dedupe": cancels},
    "at": {"batch": Window(seconds=1, at=cancels)},
}


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("name", CANCELLING)
def test_what_shapes_a_push_does_not_see_the_task_of_its_caller(
    name: str, checkpoint: bool
) -> None:
    n = Source("n", int, **CANCELLING[name])
    graph = same(n, checkpoint=checkpoint)
    went_on: list[int] = []

    async def push() -> None:
        await graph.push(n, 1)
        graph.push_nowait(n, 2)
        await asyncio.sleep(0)
        went_on.append(2)

    async def play(kit: GraphsUnderTest) -> None:
        caller = asyncio.create_task(push())
        await asyncio.wait({caller})
        assert not caller.cancelled()
        assert went_on == [2]
        if checkpoint:
            await kit.restart()  # what was kept is taken in again, in the task of the graph
            await kit.settled()
            assert kit.state(graph).recoveries == ()
            await graph.push(n, 3)

    run_graph(graph, play)


def test_neither_a_type_nor_an_upgrade_sees_the_task_that_needs_it() -> None:
    def graph_of(version: int) -> Graph:
        upgrades = {1: cancels} if version == 2 else None
        n = Source("n", Cancels, version=version, upgrades=upgrades)
        m = Source("m", int)
        graph = Graph("g", when=all_(n, m), inputs="sequential", checkpoint=True)

        @graph.node
        def it(n: Cancels, m: int) -> int:
            return n.n

        return graph

    async def main() -> None:
        wal = MemoryWal()
        async with Fairway(wal, jobs="memory:", worker=None) as app:
            first = graph_of(1)
            await app.graphs.load(first)
            await first.push("n", {"n": 1})
        async with Fairway(wal.kill(), jobs="memory:", worker=None) as app:
            second = graph_of(2)
            await app.graphs.load(second)
            firing = await second.ask("m", 1)
            assert firing is not None
            assert firing.output == 1
            assert (await second.fire({"n": {"n": 2}, "m": 1})).output == 2
            await asyncio.sleep(0)

    run(main)


@pytest.mark.parametrize("waits", [False, True])
def test_a_node_that_meets_a_cancelled_future_fails_like_any_other(waits: bool) -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, inputs="sequential", on_error="dead_letter")

    if waits:

        @graph.node
        async def it(n: int) -> int:
            if n == 1:
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            return n
    else:

        @graph.node(name="it")
        def plain(n: int) -> int:
            if n == 1:
                raise asyncio.CancelledError
            return n

    async def play(kit: GraphsUnderTest) -> None:
        async with asyncio.timeout(5):
            with pytest.raises(FiringFailed, match="CancelledError"):
                await graph.ask(n, 1)
            found = await graph.ask(n, 2)
        assert found is not None
        assert found.output == 2
        assert len(graph.dead_letters) == 1

    run_graph(graph, play)


@pytest.mark.parametrize("how", ["inline", "waits", "thread"])
def test_a_node_that_exits_ends_its_firing_and_not_the_process(how: str) -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, inputs="sequential", on_error="dead_letter")

    if how == "waits":

        @graph.node
        async def it(n: int) -> int:
            return sys.exit(n) if n == 1 else n
    else:

        @graph.node(name="it", blocking=how == "thread")
        def plain(n: int) -> int:
            return sys.exit(n) if n == 1 else n

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(FiringFailed, match="SystemExit"):
            await graph.ask(n, 1)
        found = await graph.ask(n, 2)
        assert found is not None
        assert found.output == 2

    run_graph(graph, play)


def test_a_graph_that_broke_fires_no_more() -> None:
    n = Source("n", int)
    graph = same(n, checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        reactor = graph.running.reactor
        reactor.broken(OSError("it broke"))
        reactor.room_freed()
        graph.push_nowait(n, 1)
        assert not reactor.fired
        await asyncio.sleep(2)
        assert outputs(graph) == [1] or graph.number == 1

    run_graph(graph, play)


@pytest.mark.parametrize("how", ["dedupe", "unhashable", "at"])
def test_an_event_that_dedupe_or_at_cannot_treat_is_buried(how: str) -> None:
    feed = TestFeed()

    def key(n: int) -> Any:
        return 1 / n if how == "dedupe" else [n] if n == 0 and how == "unhashable" else n

    class Odd:
        __hash__ = None  # type: ignore[assignment]

    def odd(n: int) -> Any:
        return Odd() if n == 0 and how == "unhashable" else key(n)

    batch = Window(seconds=1, at=lambda n: 100 / n) if how == "at" else None
    n = Source("n", int, feed=feed, dedupe=odd, batch=batch)
    graph = same(n, checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(4, 0, 2, 1)
        await asyncio.sleep(3)
        assert [letter.source for letter in graph.dead_letters] == ["n"]
        assert not kit.state(graph).recoveries
        assert outputs(graph)[:2] == ([[4], [2]] if how == "at" else [4, 2])
        for _ in range(2):  # and a push of it is refused, each time
            with pytest.raises(InvalidRequest):
                await graph.push(n, 0)

    run_graph(graph, play)


# Values


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError("it says nothing")


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    "poison",
    [b"[" * 100_000, b'{"unknown":' + b"[" * 100_000, 2**70, "\ud800", Speechless()],
    ids=["deep", "deep inside", "large", "surrogate", "speechless"],
)
def test_an_event_is_buried_whatever_is_wrong_with_it(poison: Any, checkpoint: bool) -> None:
    class Counted(msgspec.Struct):
        count: int

    feed = TestFeed()
    n = Source("n", Counted, feed=feed)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def it(n: Any) -> int:
        return int(n.count)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(poison, Counted(7))
        await kit.settled()
        assert kit.outputs(graph) == [7]
        assert len(kit.state(graph).dead) == 1
        assert not kit.state(graph).recoveries

    run_graph(graph, play)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it says nothing")


@pytest.mark.parametrize("where_", ["node", "where", "through", "dedupe", "at"])
@pytest.mark.parametrize(
    "error",
    [ValueError("no \ud800"), Mute(), ValueError("x" * journals.RECORD_BYTES_MAX)],
    ids=["surrogate", "mute", "long"],
)
def test_what_an_error_says_breaks_nothing(
    error: Exception, where_: str, caplog: pytest.LogCaptureFixture
) -> None:
    # A traceback has the text as it is, which what is captured of a test cannot hold.
    caplog.set_level(logging.CRITICAL, logger="fairway.graphs")

    def bad(n: int) -> int:
        if n == 1:
            raise error
        return n

    feed = TestFeed()
    n: Source[Any] = Source(
        "n",
        int,
        feed=feed,
        through=bad if where_ == "through" else None,
        dedupe=bad if where_ == "dedupe" else None,
        batch=Window(seconds=1, at=bad) if where_ == "at" else None,
    )
    criterion: Any = where(n, lambda inputs: bool(bad(inputs["n"]))) if where_ == "where" else n
    graph = Graph("g", when=criterion, inputs="sequential", checkpoint=True, on_error="dead_letter")

    @graph.node
    def it(n: Any) -> Any:
        return bad(n) if where_ == "node" else n

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(1, 2, 5)
        await kit.settled()
        assert len(kit.state(graph).dead) == 1
        assert not kit.state(graph).recoveries
        assert kit.firings(graph)[-1].error is None
        await kit.restart()
        assert len(kit.state(graph).dead) == 1

    run_graph(graph, play)


def test_inputs_that_have_no_form_at_all_are_buried() -> None:
    n = Source("n", Any, feed=(feed := TestFeed()))
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True, on_error="dead_letter")

    @graph.node
    def it(n: Any) -> int:
        return 1

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(Speechless(), 5)
        await kit.settled()
        assert [firing.error is None for firing in kit.firings(graph)] == [False, True]
        assert kit.state(graph).dead[0].data == {"n": b"a Speechless"}
        assert not kit.state(graph).recoveries

    run_graph(graph, play)


def test_a_number_too_large_to_be_kept_is_refused_or_buried() -> None:
    feed = TestFeed()
    n = Source("n", int, feed=feed)
    graph = same(n, checkpoint=True, on_error="dead_letter")

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match="n"):
            await graph.push(n, 10**30)
        feed.push(b"1" + b"0" * 30, 7)
        await asyncio.sleep(5)
        assert len(graph.dead_letters) == 1
        assert outputs(graph)[-1] == 7
        assert not kit.state(graph).recoveries

    run_graph(graph, play)


@pytest.mark.parametrize(("kind", "value"), [(int, True), (list[int], "no"), (int | str, 1.5)])
def test_what_could_not_be_restored_is_not_accepted(kind: Any, value: Any) -> None:
    n = Source("n", kind)
    graph = Graph("g", when=n, checkpoint=True)

    @graph.node
    def it(n: Any) -> int:
        return 1

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match="n"):
            await graph.push(n, value)
        await kit.restart()
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_none_is_no_news(checkpoint: bool) -> None:
    n = Source("n", int | None)
    graph = Graph("g", when=n, checkpoint=checkpoint)

    @graph.node
    def it(n: int | None) -> int:
        return 1

    async def play(kit: GraphsUnderTest) -> None:
        assert await graph.ask(n, None) is None
        assert graph.fired == 0

    run_graph(graph, play)


class Event(msgspec.Struct):
    id: UUID


def test_repeats_are_known_after_a_restart_whatever_the_key_is() -> None:
    n = Source("n", Event, dedupe=lambda event: (event.id, frozenset({"b", "a"})))
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: Event) -> int:
        return 1

    async def play(kit: GraphsUnderTest) -> None:
        event = Event(UUID(int=1))
        await graph.push(n, event)
        await kit.restart()
        await graph.push(n, event)
        await kit.settled()
        assert graph.number == 1

    run_graph(graph, play)


@pytest.mark.parametrize("keep", [0, 1, 10])
def test_a_repeat_is_not_written_to_a_state_nor_after_a_restart(keep: int) -> None:
    n = Source("n", int, keep=keep, dedupe=lambda value: value)
    tick = Source("tick", int)
    graph = Graph("g", when=tick, uses=[n], checkpoint=True)

    if keep:

        @graph.node
        def it(tick: int, n: list[int] | None) -> int:
            return tick

    else:

        @graph.node(name="it")
        def without(tick: int) -> int:
            return tick

    async def play(kit: GraphsUnderTest) -> None:
        for _ in range(2):
            for value in (1, 2, 1):
                await graph.push(n, value)
            kept = kit.state(graph).windows["n"]
            assert kept == [1, 2][2 - min(keep, 2) :]
            assert graph.running.checkpoint.kept("n").written == 2
            await kit.restart()
            assert kit.state(graph).windows["n"] == kept

    run_graph(graph, play)


# Refusals


def test_a_refused_push_drops_nothing_and_a_dropped_one_is_no_repeat() -> None:
    def positive(event: int) -> int:
        if event < 0:
            raise ValueError(event)
        return event

    n = Source("n", int, through=positive, dedupe=lambda v: v, capacity=1, on_full="drop_oldest")
    graph = same(n)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.pause()
        graph.push_nowait(n, 1)
        with pytest.raises(InvalidRequest):
            graph.push_nowait(n, -1)
        graph.push_nowait(n, 1)  # a repeat needs no room
        assert kit.state(graph).depths == {"n": 1}
        graph.push_nowait(n, 2)  # 1 is dropped, and whoever asked is told to try again
        await graph.resume()
        graph.push_nowait(n, 1)
        assert outputs(graph) == [2, 1]

    run_graph(graph, play)


def test_pushes_are_bounded_by_what_is_not_durable_yet() -> None:
    a, b, graph = adding()

    async def play(kit: GraphsUnderTest) -> None:
        taken = 0
        with pytest.raises(Backpressure):  # noqa: PT012
            while taken < 100_000:
                graph.push_nowait(a, taken)
                taken += 1
        assert 1000 < taken < 10_000
        async with asyncio.timeout(5):
            await graph.push(a, -1)  # waits
            found = await graph.ask(b, 1)
        assert found is not None
        assert found.output == 0

    run_graph(graph, play)


def test_a_value_that_no_journal_takes_is_refused_and_the_graph_lives() -> None:
    a = Source("a", str)
    graph = Graph("g", when=a, checkpoint=True, on_error="dead_letter")

    @graph.node
    def twice(a: str, firing: FiringContext) -> int:
        firing.append("out", a)
        return len(a)

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match="bytes"):
            await graph.push(a, "x" * (40 << 20))
        with pytest.raises(FiringFailed, match="bytes"):  # the record holds it twice
            await graph.ask(a, "x" * (20 << 20))
        assert (await graph.ask(a, "x")) is not None
        assert kit.state(graph).state == "live"
        await kit.restart()
        assert kit.state(graph).cache["a"] == "x"

    run_graph(graph, play)


def test_a_state_too_large_for_a_snapshot_does_not_end_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_RECORDS", 20)
    monkeypatch.setattr(journals, "OPERATION_BYTES_MAX", 100_000)
    n = Source("n", int)
    kept = Source("kept", str, keep=-1)
    graph = Graph("g", when=n, uses=[kept], inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: int, kept: list[str] | None, firing: FiringContext) -> int:
        firing.put("kept", "x" * 1000)
        return len(kept or ())

    async def play(kit: GraphsUnderTest) -> None:
        for value in range(150):
            await graph.push(n, value)
        await kit.settled()
        await kit.restart()
        assert graph.number == 150
        assert len(kit.state(graph).windows["kept"]) == 150

    run_graph(graph, play)


def test_pushes_that_were_overtaken_are_not_kept() -> None:
    a, b, graph = adding()

    async def play(kit: GraphsUnderTest) -> None:
        for value in range(300):
            if value % 3:
                await graph.push(a, value)
            else:
                graph.push_nowait(a, value)
        assert len(graph.running.checkpoint.kept("a").pushes) == 1
        assert len(graph.running.reactor.inputs.waiters()) < 3
        asking = asyncio.ensure_future(graph.ask(a, 1000))
        await asyncio.sleep(0.1)
        await graph.push(a, 299)
        assert len(graph.running.reactor.inputs.waiters()) < 3
        await graph.push(b, 1)
        firing = await asking
        assert firing is not None
        assert firing.output == 300
        await graph.push(a, 1)
        await graph.push(a, 2)
        await kit.restart()
        await graph.push(b, 5)
        await kit.settled()
        assert outputs(graph)[-1] == 7

    run_graph(graph, play)


# Effects


def test_one_effect_that_nobody_takes_takes_no_others_with_it() -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: int, firing: FiringContext) -> int:
        firing.append("out", "x" * (2 << 20) if n == 2 else n)
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for value in range(5):
            graph.push_nowait(n, value)
        await kit.settled()
        page = await kit.app.topic("out", Any).read(limit=100)
        assert [record.data for record in page.records] == [0, 1, 3, 4]
        assert graph.running.outbox.dropped == 1

    run_graph(graph, play)


def test_effects_go_out_in_parts_that_their_destination_takes() -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: int, firing: FiringContext) -> int:
        for _ in range(10):
            firing.append("out", "x" * 1_000_000)
        return n

    async def play(kit: GraphsUnderTest) -> None:
        outbox = graph.running.outbox
        sizes: list[int] = []
        pushed = asyncio.Event()
        topics = kit.app.kernel.destinations["topic"]
        send = topics.send

        async def counted(target: str, effects: Any, position: Any) -> bool:
            await pushed.wait()
            sizes.append(sum(map(len, effects)))
            return await send(target, effects, position)

        topics.send = counted  # type: ignore[method-assign]
        for value in range(8):
            await graph.push(n, value)
        pushed.set()
        await kit.settled()
        assert sum(sizes) > 80_000_000
        assert max(sizes) < 16 << 20
        assert not outbox.dropped

    run_graph(graph, play)


# Replays, and what is told


def test_a_firing_with_a_given_cache_is_replayed_as_it_was() -> None:
    n = Source("n", int)
    graph = Graph("g", when=n, checkpoint=True, record=100)

    @graph.node
    def it(n: int, firing: FiringContext) -> list[str]:
        return list(firing.fresh)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.push(n, 1)
        await graph.fire({"n": 5})
        await graph.fire()
        replayed = [each async for each in over_journal(graph, kit.app.graphs.history("g"))]
        assert [each.same for each in replayed] == [True, True, True]

    run_graph(graph, play)


def test_who_waits_when_a_graph_is_unloaded_is_told_that() -> None:
    async def main() -> None:
        app = Fairway(MemoryWal(), jobs="memory:", worker=None)
        graph = app.graph("g", when=all_(app.source("a", int), app.source("b", int)))

        @graph.node
        def add(a: int, b: int) -> int:
            return a + b

        async with app:
            asking = asyncio.ensure_future(graph.ask("a", 1))
            await asyncio.sleep(0.1)
            await app.graphs.unload("g")
            with pytest.raises(Closing, match="stopped"):
                await asking

    run(main)


def test_a_feed_that_was_lost_is_told_later_what_was_consumed() -> None:
    feed = TestFeed()
    n = Source("n", int, feed=feed)
    graph = same(n)

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(1)
        await asyncio.sleep(0.01)
        connection = next(iter(feed._connections))

        async def lost(marks: Any) -> None:
            raise FeedLost("just now")

        connection.commit = lost  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert feed.committed == {"feed": 1}

    run_graph(graph, play)


def test_a_batch_after_a_firing_is_given_once() -> None:
    n = Source("n", int, batch=Batch(size=3, after_firing=True))
    graph = same(n, checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        for value in range(8):
            graph.push_nowait(n, value)
        await kit.settled()
        assert [value for output in outputs(graph) for value in output] == list(range(8))
        await kit.restart()
        assert graph.number == len({tuple(f.output) for f in kit.firings(graph)})

    run_graph(graph, play)


# What no firing comes of


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_who_asks_for_what_is_filtered_is_told_so_at_once(checkpoint: bool, waits: bool) -> None:
    n = Source("n", int)
    graph = Graph(
        "g",
        when=where(n, lambda inputs: inputs["n"] > 10),
        inputs="sequential",
        checkpoint=checkpoint,
    )

    def plain(n: int) -> int:
        return n

    async def slow(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    graph.add(slow if waits else plain)

    async def play(kit: GraphsUnderTest) -> None:
        async with asyncio.timeout(5):
            assert await graph.ask(n, 1) is None
            await graph.push(n, 2)
            wanted = await graph.ask(n, 11)
            assert wanted is not None
            assert wanted.output == 11
            assert await graph.ask(n, 3) is None
        assert graph.running.reactor.inputs.filtered == 3
        series = {each.name: each.value for each in series_of(kit.app.graphs, 0)}
        assert series["fairway_graph_filtered"] == 3
        await kit.restart()
        await kit.settled()
        assert kit.outputs(graph) == [11], "and nothing of it is kept"

    run_graph(graph, play)


def test_all_who_ask_for_a_list_that_is_filtered_are_told() -> None:
    n = Source("n", int, batch=Batch(size=2))
    graph = same(n)
    graph.criterion = where(n, lambda inputs: sum(inputs["n"]) > 10)

    async def play(kit: GraphsUnderTest) -> None:
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            asked = [group.create_task(graph.ask(n, each)) for each in (1, 2)]
        assert [await each for each in asked] == [None, None]
        assert outputs(graph) == []

    run_graph(graph, play)


# Values of the wrong type


class Price(msgspec.Struct, frozen=True):
    price: float


WRONG = [3, "text", {"price": "high"}, {"cost": 1.0}, [Price(1.0)]]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_state_takes_only_values_of_its_type(wrong: Any, checkpoint: bool) -> None:
    n, last = Source("n", int), Source("last", Price, keep=1)
    graph = Graph("g", when=n, uses=[last], checkpoint=checkpoint, on_error="dead_letter")

    @graph.node
    def put(n: int, last: list[Price] | None, firing: FiringContext) -> None:
        firing.put("last", Price(1.0) if n else wrong)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.ask(n, 1)
        with pytest.raises(FiringFailed, match="state 'last': the boundary does not fit"):
            await graph.ask(n, 0)
        assert kit.state(graph).windows == {"last": [Price(1.0)]}
        assert "does not fit" in graph.dead_letters[0].reason

    run_graph(graph, play)


def test_plain_data_that_fits_a_state_becomes_a_value_of_its_type() -> None:
    n, last = Source("n", int), Source("last", Price, keep=1)
    graph = Graph("g", when=n, uses=[last])

    @graph.node
    def put(n: int, last: list[Price] | None, firing: FiringContext) -> None:
        firing.put("last", {"price": n})

    async def play(kit: GraphsUnderTest) -> None:
        await graph.ask(n, 1)
        assert kit.state(graph).windows == {"last": [Price(1.0)]}

    run_graph(graph, play)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_through_makes_must_be_of_the_type_of_the_source(wrong: Any) -> None:
    def through(event: int) -> Any:
        return Price(event) if event else wrong

    feed = TestFeed()
    prices = Source("prices", Price, through=through, feed=feed)
    graph = Graph("g", when=prices, inputs="sequential")

    @graph.node
    def price(prices: Price) -> float:
        return prices.price

    async def play(kit: GraphsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match="source 'prices': the boundary does not fit"):
            await graph.push(prices, 0)
        with pytest.raises(InvalidRequest, match="does not fit"):
            await graph.push(prices, "an event of another type")
        assert not graph.dead_letters, "whoever pushed it was told"
        feed.push(0, 1)
        await kit.settled()
        assert outputs(graph) == [1]
        assert ["does not fit" in each.reason for each in graph.dead_letters] == [True]

    run_graph(graph, play)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_an_object_of_a_feed_must_be_of_the_type_of_the_source(wrong: Any) -> None:
    feed = TestFeed()
    graph = Graph("g", when=Source("prices", Price, feed=feed), inputs="sequential")

    @graph.node
    def price(prices: Price) -> float:
        return prices.price

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(wrong, Price(2.0), {"price": 3})
        await kit.settled()
        assert outputs(graph) == [2.0, 3.0]
        (letter,) = graph.dead_letters
        assert (letter.source, "does not fit" in letter.reason) == ("prices", True)
        assert graph.running.accumulators["prices"].undecodable == 1

    run_graph(graph, play)

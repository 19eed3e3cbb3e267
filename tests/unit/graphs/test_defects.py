"""Fourteen defects of the graph scheduler that this one was modelled on, each of them not here.

Numbers are those of the study of Cloacina 0.12; what it does is in each docstring.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import (
    Backpressure,
    Batch,
    Fairway,
    FiringContext,
    Graph,
    Source,
    Window,
    all_,
    any_,
    retry,
)
from fairway.graphs import journal
from fairway.runtime.clock import clock_of
from fairway.testing import TestFeed, run_graph

if TYPE_CHECKING:
    from fairway.testing import GraphsUnderTest


def pair(when: Any, **options: Any) -> Graph:
    graph = Graph("pair", when=when, **options)

    @graph.node
    def both(a: int | None, b: int | None) -> tuple[int | None, int | None]:
        return a, b

    return graph


def counting(name: str = "counts", **options: Any) -> Graph:
    """A graph over the sequence of `ticks` that comes to each of them."""
    options = {"inputs": "sequential", **options}
    source = options.pop("source", None) or Source("ticks", int)
    graph = Graph(name, when=source, **options)

    @graph.node
    def same(ticks: int) -> int:
        return ticks

    return graph


def test_defect_01_sequential_consults_the_criteria() -> None:
    """Upstream fires on every boundary in sequential mode, whatever when_all says."""
    graph = pair(all_(Source("a", int), Source("b", int)), inputs="sequential")

    async def play(kit: GraphsUnderTest) -> None:
        for number in (1, 2, 3):
            graph.push_nowait("a", number)
        await kit.expect_none(graph)
        for number in (10, 20):
            graph.push_nowait("b", number)
        await kit.expect(graph, (1, 10), (2, 20))
        await kit.expect_none(graph)

    run_graph(graph, play)


@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_defect_02_pause_eats_no_wake_up(inputs: Any) -> None:
    """Upstream consumes signals while paused, so that data waits for the next boundary after a
    resume; a forced firing is swallowed while paused, and on an empty queue, and told as fired."""
    graph = counting(inputs=inputs)

    async def play(kit: GraphsUnderTest) -> None:
        instance = graph.running
        assert (await instance.force()).cause == "forced"  # nothing queued, and it fires
        await instance.reactor.pause()
        graph.push_nowait("ticks", 1)
        await kit.advance(5)
        await instance.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph)[-1] == 1  # without another boundary
        await instance.reactor.pause()
        graph.push_nowait("ticks", 2)
        assert (await instance.force()).output == 2
        assert (await instance.force({"ticks": 9})).output == 9
        assert [f.cause for f in kit.firings(graph)] == ["forced", "news", "forced", "injected"]

    run_graph(graph, play)


@pytest.mark.parametrize("inputs", ["latest", "sequential"])
def test_defect_03_a_failed_firing_is_not_lost(inputs: Any) -> None:
    """Upstream clears flags and pops the queue before it runs: a failure loses the inputs, with no
    retry, no dead letter and no timeout of a node."""
    ticks = Source("ticks", int)
    graph = Graph("fails", when=ticks, inputs=inputs, on_error=retry(2), checkpoint=True)
    tries: list[int] = []

    @graph.node(timeout_s=1)
    async def same(ticks: int) -> int:
        tries.append(ticks)
        if ticks == 1 and len(tries) < 3:
            await asyncio.Event().wait()  # hangs
        if ticks == 2:
            raise ValueError("always")
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        await kit.ask(graph, "ticks", 1)
        assert tries == [1, 1, 1]
        await kit.push(graph, "ticks", 2)
        await kit.settled()
        (letter,) = kit.state(graph).dead
        assert msgspec.msgpack.decode(letter.data["ticks"]) == 2
        assert kit.outputs(graph) == [1]

    run_graph(graph, play)


def test_defect_04_health_tells_the_truth_about_a_feed() -> None:
    """Upstream says Live as soon as the task starts, and stays so when the source errors or ends:
    nothing is degraded by a lost broker, and nothing restarted."""
    feed = TestFeed()
    feed.lose("not there yet")
    graph = counting(source=Source("ticks", int, feed=feed))

    async def play(kit: GraphsUnderTest) -> None:
        assert kit.state(graph).state == "warming"
        assert kit.state(graph).sources["ticks"] in ("connecting", "disconnected")
        feed.restore()
        await kit.advance(1)
        assert kit.state(graph).state == "live"
        feed.lose("gone")
        await kit.advance(0.01)
        assert kit.state(graph).sources["ticks"] == "disconnected"
        assert kit.state(graph).state == "degraded"
        feed.restore()
        await kit.advance(2)
        assert kit.state(graph).state == "live"
        feed.die(OSError("a bug"))
        await kit.advance(0.01)
        assert kit.state(graph).state == "degraded"
        await kit.advance(1)
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


def test_defect_05_a_restarted_source_is_still_watched() -> None:
    """Upstream gives a restarted accumulator a new health channel, of which the reactor never
    hears: it keeps the last word of the dead one."""
    feed = TestFeed()
    graph = counting(source=Source("ticks", int, feed=feed))

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        for _ in range(3):  # whatever was restarted before
            kit.crash(graph, child="ticks")
            await kit.advance(0.01)
            assert kit.state(graph).state == "degraded"
            await kit.advance(4)
            assert kit.state(graph).state == "live"
            feed.lose("for a moment", reports=True)
            assert kit.state(graph).state == "degraded"
            feed.restore()
            assert kit.state(graph).state == "live"

    run_graph(graph, play)


def test_defect_06_a_broker_is_told_only_of_what_was_recorded() -> None:
    """Upstream's Kafka provider commits by itself: an offset can be committed before the graph saw
    the event, and a crash loses it."""
    feed = TestFeed()
    ticks = Source("ticks", int, feed=feed)
    graph = Graph("slow", when=ticks, inputs="sequential", checkpoint=True)

    @graph.node
    async def slow(ticks: int) -> int:
        await asyncio.sleep(1)
        return ticks

    async def play(kit: GraphsUnderTest) -> None:
        feed.push(1, 2, 3)
        await kit.advance(0.9)
        assert feed.committed == {}  # all received, none fired
        await kit.advance(0.5)
        assert feed.committed == {"feed": 1}
        await kit.restart()
        await kit.settled()
        await kit.advance(1)
        assert kit.outputs(graph) == [1, 2, 3]
        assert feed.committed == {"feed": 3}

    run_graph(graph, play)


@pytest.mark.parametrize("flushed_by", ["time", "size", "firing"])
def test_defect_07_a_flushed_batch_is_not_replayed(flushed_by: str) -> None:
    """Upstream clears the checkpoint of a batch only when the reactor's signal flushed it: after a
    flush by time or size a crash replays it. Each event rewrites the whole buffer."""
    batch = {
        "time": Batch(every_s=1),
        "size": Batch(size=3),
        "firing": Batch(after_firing=True),
    }[flushed_by]
    items, ticks = Source("items", int, batch=batch), Source("ticks", int)
    graph = Graph("batch", when=any_(items, ticks), inputs="sequential", checkpoint=True)

    @graph.node
    def take(items: list[int] | None, ticks: int | None) -> Any:
        return items

    async def play(kit: GraphsUnderTest) -> None:
        written: list[int] = []
        for number in (1, 2, 3):
            before = graph.running.checkpoint.records
            await kit.push(graph, "items", number)
            written.append(graph.running.checkpoint.records - before)
        if flushed_by == "firing":
            await kit.push(graph, "ticks", 0)
        await kit.advance(2)
        assert [f.outputs["take"] for f in kit.firings(graph) if "items" in f.fresh] == [[1, 2, 3]]
        assert written[0] == written[1] == 1  # one record for each, and no buffer
        await kit.restart()
        await kit.advance(5)
        assert len([f for f in kit.firings(graph) if "items" in f.fresh]) == 1

    run_graph(graph, play)


def test_defect_08_a_firing_writes_what_changed_and_not_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Upstream writes the whole cache and the whole queue after every firing: quadratic while a
    long queue is drained."""
    sizes: list[int] = []
    encode = journal.encode_record

    def measured(record: Any) -> bytes:
        data = encode(record)
        if type(record).__name__ == "Fired":
            sizes.append(len(data))
        return data

    monkeypatch.setattr(journal, "encode_record", measured)
    graph = counting(source=Source("ticks", int, capacity=2000), checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for _ in range(2000):
            graph.push_nowait("ticks", 7)
        await graph.running.reactor.resume()
        await kit.settled()
        assert len(sizes) == 2000
        assert max(sizes) - min(sizes) <= 8  # numbers grow, records do not

    run_graph(graph, play)


def test_defect_09_each_child_is_supervised_by_itself_and_at_once() -> None:
    """Upstream looks for the dead every 5 s, and sleeps one backoff after the other: a graph that
    crashes in a loop delays all others."""
    app = Fairway()
    feeds = {name: TestFeed() for name in ("first", "second", "third")}
    for name, feed in feeds.items():
        app.add_graph(counting(name, source=Source("ticks", int, feed=feed, required=False)))

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        for feed in feeds.values():
            feed.opened_ns.clear()
        died_ns = clock_of().now_ns()
        feeds["first"].die(OSError("again and again"), times=6)
        await kit.advance(0.3)
        feeds["second"].die(OSError("once"))
        await kit.advance(0.01)
        feeds["third"].push(1)
        await kit.expect("third", 1, within_s=0.001)
        await kit.advance(40)
        moments = [died_ns, *feeds["first"].opened_ns]
        assert [round((b - a) / 1e9, 6) for a, b in pairwise(moments)] == [1, 2, 4, 8, 16]
        assert feeds["second"].opened_ns == [died_ns + 1_300_000_000]
        assert feeds["third"].opened_ns == []

    run_graph(app, play)


def test_defect_10_recovery_events_are_kept() -> None:
    """Upstream writes recovery events with a random id into a column that references executions:
    PostgreSQL refuses them."""
    feed = TestFeed()
    graph = counting(source=Source("ticks", int, feed=feed), checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        feed.die(OSError("a bug"))
        await kit.advance(2)
        kit.crash(graph)
        await kit.advance(2)
        await kit.settled()
        await kit.restart()
        told = [(r.what, r.happening, r.error) for r in kit.state(graph).recoveries]
        assert told == [
            ("ticks", "failed", "OSError('a bug')"),
            ("ticks", "restarted", ""),
            ("reactor", "failed", "InjectedCrash('counts/reactor')"),
            ("reactor", "restarted", ""),
        ]

    run_graph(graph, play)


def test_defect_11_a_push_is_acknowledged_or_refused() -> None:
    """Upstream drops a push in silence when its channel is full, and acknowledges none."""
    graph = counting(source=Source("ticks", int, capacity=2, on_full="refuse"), checkpoint=True)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.running.reactor.pause()
        for number in (1, 2):
            await kit.push(graph, "ticks", number)
        with pytest.raises(Backpressure) as refused:
            await kit.push(graph, "ticks", 3)
        assert refused.value.retry_after_ns > 0
        await kit.restart(power_loss=True)  # what was accepted is durable
        await graph.running.reactor.resume()
        await kit.settled()
        assert kit.outputs(graph) == [1, 2]

    run_graph(graph, play)


def test_defect_12_one_dead_source_does_not_block_the_graph_for_ever() -> None:
    """Upstream warms without a timeout, and knows no optional sources and no staleness."""
    dead, missing = TestFeed(), TestFeed()
    dead.lose()
    missing.lose()
    a = Source("a", int, stale_after_s=60)
    b, c = Source("b", int, feed=dead), Source("c", int, feed=missing, required=False)
    graph = Graph("warms", when=any_(a, b, c), inputs="sequential", warm_timeout_s=10)

    @graph.node
    def all_of(a: int | None, b: int | None, c: int | None, firing: FiringContext) -> Any:
        return a, firing.degraded

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait("a", 1)
        await kit.advance(9)
        assert kit.state(graph).state == "warming"
        await kit.advance(2)
        await kit.expect(graph, (1, ("b", "c")))
        dead.restore()
        await kit.advance(15)
        assert kit.state(graph).state == "live"  # c is optional
        await kit.advance(60)
        assert kit.state(graph).waiting == ("a",)  # stale

    run_graph(graph, play)


def test_defect_13_graphs_of_the_same_name_are_kept_apart_by_tenant() -> None:
    """Upstream keys state and checkpoints by the name of the graph alone."""
    app = Fairway()
    for tenant in ("red", "blue"):
        app.add_graph(counting("same", tenant=tenant, checkpoint=True))

    async def play(kit: GraphsUnderTest) -> None:
        red, blue = kit.app.graphs.get("same", "red"), kit.app.graphs.get("same", "blue")
        await kit.push(red.graph, "ticks", 1)
        await kit.push(blue.graph, "ticks", 2)
        await kit.push(blue.graph, "ticks", 3)
        await kit.settled()
        await kit.restart()
        red, blue = kit.app.graphs.get("same", "red"), kit.app.graphs.get("same", "blue")
        assert kit.state(red.graph).cache == {"ticks": 1}
        assert kit.state(blue.graph).cache == {"ticks": 3}
        assert (kit.state(red.graph).number, kit.state(blue.graph).number) == (1, 2)

    run_graph(app, play)


def test_defect_13_nothing_is_skipped_that_happens_in_the_same_instant() -> None:
    """Upstream follows firings by `fired_at >` a timestamp: of two at one instant it skips one."""
    app = Fairway()
    out = app.topic("out", int)
    graph = app.graph("ties", when=Source("ticks", int), inputs="sequential", checkpoint=True)
    follower = app.graph("follows", when=out, inputs="sequential", checkpoint=True)

    @graph.node
    def emit(ticks: int, firing: FiringContext) -> None:
        firing.append(out, ticks)

    @follower.node
    def follow(out: int) -> int:
        return out

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(100):
            graph.push_nowait("ticks", number)
            if number == 50:
                await kit.settled()
                await kit.restart()
        await kit.settled()
        moments = [firing.wall_ns for firing in kit.firings(graph)]
        assert len(set(moments)) == 2  # all of them at two instants
        assert kit.outputs(follower) == list(range(100))

    run_graph(app, play)


def test_defect_14_event_time_windows() -> None:
    """Upstream has no event time and no windows."""

    class Tick(msgspec.Struct):
        at: float
        value: int

    window = Window(seconds=10, at=lambda tick: tick.at, lateness_s=5)
    graph = Graph("windows", when=Source("ticks", Tick, batch=window), inputs="sequential")

    @graph.node
    def total(ticks: list[Tick]) -> int:
        return sum(tick.value for tick in ticks)

    async def play(kit: GraphsUnderTest) -> None:
        for at, value in ((1, 1), (12, 100), (8, 10), (15, 200), (3, 5), (25, 7)):
            graph.push_nowait("ticks", Tick(at, value))
        await kit.settled()
        assert kit.outputs(graph) == [11, 300]  # by what they say, in whatever order they came
        assert graph.running.accumulator("ticks").late == 1

    run_graph(graph, play)


@pytest.mark.parametrize("crash", [False, True])
def test_an_event_for_a_window_that_ended_empty_is_late(crash: bool) -> None:
    """It ended when its time was over, though there was nothing to give; a crash forgets it not."""

    class Tick(msgspec.Struct):
        at: float

    window = Window(seconds=10, at=lambda tick: tick.at, lateness_s=5)
    source = Source("ticks", Tick, batch=window)
    graph = Graph("windows", when=source, inputs="sequential", checkpoint=True)

    @graph.node
    def times(ticks: list[Tick]) -> list[float]:
        return [tick.at for tick in ticks]

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(graph, "ticks", Tick(1))
        await kit.push(graph, "ticks", Tick(36))  # so what ends by 31 is over
        if crash:
            await kit.restart()
        await kit.push(graph, "ticks", Tick(15))  # nothing came from 10 to 20
        await kit.push(graph, "ticks", Tick(31))
        await kit.push(graph, "ticks", Tick(45))
        await kit.settled()
        assert kit.outputs(graph) == [[1.0], [31.0, 36.0]]
        assert graph.running.accumulator("ticks").late == 1

    run_graph(graph, play)


def test_defect_14_a_checkpoint_outlives_a_change_of_its_types() -> None:
    """Upstream has no versions of what it keeps: a changed type cannot read its old state."""

    class Old(msgspec.Struct):
        price: int

    class New(msgspec.Struct):
        cents: int

    def declared(source: Source[Any], hint: Any) -> Graph:
        graph = Graph("typed", when=all_(source, Source("b", int)), checkpoint=True)

        def both(quotes: hint, b: int) -> Any:
            return msgspec.to_builtins(quotes)

        graph.add(both, scope={"hint": hint})
        return graph

    old = declared(Source("quotes", Old), Old)
    upgrades = {1: lambda plain: {"cents": plain["price"] * 100}}
    new = declared(Source("quotes", New, version=2, upgrades=upgrades), New)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(old, "quotes", Old(5))
        await kit.push(old, "b", 1)
        await kit.expect(old, {"both": {"price": 5}})
        await kit.stop()
        kit._declared[:] = [new]
        await kit.start()
        assert kit.state(new).cache["quotes"] == New(500)
        assert (await new.running.force()).output == {"cents": 500}

    run_graph(old, play)

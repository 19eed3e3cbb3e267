"""What the records of a graph add up to: what was dropped or passed over stays so, what waited
waits in the same order, and a state that keeps everything is written once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway import Batch, FiringContext, Graph, Source, Window, all_, any_, where
from fairway.graphs import journal as journals
from fairway.graphs.boundary import PUSH, WHOLE, Stored
from fairway.graphs.checkpoint import (
    FORMAT,
    STATE,
    Began,
    Checkpoint,
    Consumed,
    DeadLettered,
    Dropped,
    EffectRecord,
    Fired,
    Kept,
    Passed,
    Pushed,
    Record,
    Recovered,
    RetentionLimits,
    Sent,
    StateWrite,
    Steered,
    Trying,
    decode_checkpoint,
    decode_records,
    encode_checkpoint,
    encode_record,
    encode_records,
)
from fairway.graphs.replay import over_journal
from fairway.graphs.source import ALL
from fairway.testing import TestFeed, run_graph

if TYPE_CHECKING:
    from fairway.testing import GraphsUnderTest

LIMITS = RetentionLimits({"log": ALL}, keys=10)


def stored(value: Any) -> Stored:
    return Stored(1, msgspec.msgpack.encode(value))


def applied(*records: Any, to: Checkpoint | None = None) -> Checkpoint:
    """What records add up to that were written and read again."""
    checkpoint = to or Checkpoint()
    for record in decode_records(encode_records([encode_record(each) for each in records])):
        checkpoint.apply(record, LIMITS)
    return checkpoint


# What is written

FIVE = Stored(1, b"\x05")
TAKEN = (Consumed("n", {PUSH: 4}, FIVE, ("k",)),)
TAKEN_BYTES = [["n", {"~push": 4}, [1, b"\x05"], ["k"]]]
LETTER = DeadLettered(123, "n", "no JSON", {"n": b"{"}, TAKEN, 7, {"ticks": 9})
LETTER_BYTES = [2, 123, "n", "no JSON", {"n": b"{"}, TAKEN_BYTES, 7, {"ticks": 9}]
EFFECT = EffectRecord("topic", "out", b"{}")
EFFECT_BYTES = ["topic", "out", b"{}"]
RECOVERED = Recovered(123, "reactor", "failed", 1, "a bug")
RECOVERED_BYTES = [5, 123, "reactor", "failed", 1, "a bug"]
WRITTEN: list[tuple[Record, list[Any]]] = [
    (
        Fired(
            *(7, 1, 123, "news", TAKEN, (StateWrite("log", FIVE),), (EFFECT,)),
            *(b"\x80", 6, True, ("rates",)),
        ),
        [
            *(0, 7, 1, 123, "news", TAKEN_BYTES, [["log", [1, b"\x05"]]], [EFFECT_BYTES]),
            *(b"\x80", 6, True, ["rates"]),
        ],
    ),
    (Pushed("n", 4, FIVE, ("k",)), [1, "n", 4, [1, b"\x05"], ["k"]]),
    (LETTER, LETTER_BYTES),
    (Steered(True, 123, "ann"), [3, True, 123, "ann"]),
    (Began(2, "host:1", 123, FORMAT), [4, 2, "host:1", 123, 2]),
    (RECOVERED, RECOVERED_BYTES),
    (Sent(6), [6, 6]),
    (Dropped("n", 2, 4), [7, "n", 2, 4]),
    (Passed(TAKEN), [8, TAKEN_BYTES]),
    (Trying(8, 1), [9, 8, 1]),
]


@pytest.mark.parametrize(("record", "plain"), WRITTEN, ids=lambda each: type(each).__name__)
def test_a_record_is_written_as_it_always_was(record: Record, plain: list[Any]) -> None:
    """Journals outlive releases, so neither the numbers of kinds nor the order of fields moves."""
    assert encode_record(record) == msgspec.msgpack.encode(plain)


def test_a_snapshot_is_written_as_it_always_was() -> None:
    checkpoint = Checkpoint(
        number=7,
        epoch=2,
        holder="h",
        sources={"n": Kept({PUSH: 4}, FIVE, {5: FIVE}, 5, [FIVE], 1, ["k"], 0)},
        unsent={7: (1, (EFFECT,))},
        dead=[LETTER],
        dead_ids=1,
        recoveries=[RECOVERED],
        records=9,
    )
    stored = [1, b"\x05"]
    plain = {
        "format": 2,
        "number": 7,
        "epoch": 2,
        "holder": "h",
        "paused": False,
        "sources": {"n": [{"~push": 4}, stored, {5: stored}, 5, [stored], 1, ["k"], 0]},
        "unsent": {7: [1, [EFFECT_BYTES]]},
        "dead": [LETTER_BYTES],
        "dead_ids": 1,
        "recoveries": [RECOVERED_BYTES],
        "records": 9,
        "starts": 0,
        "crashes": 0,
    }
    assert encode_checkpoint(checkpoint) == msgspec.msgpack.encode(plain)


# What was dropped


def test_pushes_that_were_dropped_are_not_kept() -> None:
    pushes = [Pushed("n", offset, stored(offset)) for offset in range(1, 6)]
    checkpoint = applied(*pushes, Dropped("n", 2, 4))
    assert list(checkpoint.kept("n").pushes) == [1, 2, 5]
    assert checkpoint.kept("n").pushed == 5, "no offset is given twice"


def slow(source: Source[Any]) -> tuple[Graph, asyncio.Event]:
    """A graph whose firings wait until a test lets them end."""
    graph = Graph("slow", when=source, inputs="sequential", checkpoint=True)
    go = asyncio.Event()
    wanted: Any = list[int] if source.collects else int

    async def it(n: wanted) -> wanted:  # type: ignore[valid-type]
        await go.wait()
        return n

    graph.add(it, scope={"wanted": wanted})
    return graph, go


@pytest.mark.parametrize("power_loss", [False, True])
def test_what_was_dropped_does_not_fire_after_a_crash(power_loss: bool) -> None:
    n = Source("n", int, capacity=2, on_full="drop_oldest")
    graph, go = slow(n)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.pause()
        for each in range(1, 6):
            await graph.push(n, each)
        await kit.restart(power_loss=power_loss)
        go.set()
        await graph.resume()
        await kit.settled()
        assert kit.outputs(graph) == [4, 5]

    run_graph(graph, play)


def test_what_is_under_way_is_not_dropped_with_what_came_after_it() -> None:
    n = Source("n", int, capacity=1, on_full="drop_oldest")
    graph, go = slow(n)

    async def play(kit: GraphsUnderTest) -> None:
        for each in range(1, 5):
            await graph.push(n, each)  # the first is under way when the others come
        await kit.restart()
        go.set()
        await kit.settled()
        assert kit.outputs(graph) == [1, 4]

    run_graph(graph, play)


def test_lists_that_were_dropped_do_not_fire_after_a_crash() -> None:
    n = Source("n", int, batch=Batch(size=2), capacity=1, on_full="drop_oldest")
    graph, go = slow(n)

    async def play(kit: GraphsUnderTest) -> None:
        await graph.pause()
        for each in range(1, 7):
            await graph.push(n, each)
        await kit.restart()
        go.set()
        await graph.resume()
        await kit.settled()
        for each in (7, 8):
            await graph.push(n, each)
        await kit.settled()
        assert kit.outputs(graph) == [[5, 6], [7, 8]]

    run_graph(graph, play)


# What a predicate passed over


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_what_was_passed_over_together_is_gone_together_after_a_crash(
    waits: bool, power_loss: bool
) -> None:
    a, b = Source("a", int), Source("b", int)
    criterion = where(all_(a, b), lambda inputs: inputs["a"] > 1)
    graph = Graph("g", when=criterion, inputs="sequential", checkpoint=True)

    if waits:

        @graph.node
        async def pair(a: int, b: int) -> tuple[int, int]:
            return a, b
    else:

        @graph.node(name="pair")
        def plain(a: int, b: int) -> tuple[int, int]:
            return a, b

    async def play(kit: GraphsUnderTest) -> None:
        for n in (1, 2, 3):
            await graph.push(a, n)
            await graph.push(b, n)
            await kit.restart(power_loss=power_loss)
        await kit.settled()
        assert kit.outputs(graph) == [(2, 2), (3, 3)]

    run_graph(graph, play)


def test_an_event_that_was_passed_over_with_a_push_is_not_read_again_without_it() -> None:
    a, b = Source("a", int, feed=(feed := TestFeed())), Source("b", int)
    criterion = where(all_(a, b), lambda inputs: inputs["a"] > 1)
    graph = Graph("g", when=criterion, inputs="sequential", checkpoint=True)

    @graph.node
    def pair(a: int, b: int) -> tuple[int, int]:
        return a, b

    async def play(kit: GraphsUnderTest) -> None:
        for n in (1, 2, 3):
            feed.push(n)
            await kit.settled()
            await graph.push(b, n)
            await kit.restart()
        await kit.settled()
        assert kit.outputs(graph) == [(2, 2), (3, 3)]

    run_graph(graph, play)


def test_a_repeat_of_what_was_passed_over_is_one_after_a_crash_too() -> None:
    n = Source("n", int, dedupe=lambda value: value)
    wanted: set[int] = set()
    criterion = where(n, lambda inputs: inputs["n"] in wanted)
    graph = Graph("g", when=criterion, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: int) -> int:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        await graph.push(n, 1)
        await kit.restart()
        wanted.update({1, 2})
        for each in (1, 2):
            await graph.push(n, each)
        await kit.settled()
        assert kit.outputs(graph) == [2]

    run_graph(graph, play)


def test_a_list_that_was_passed_over_does_not_come_back_in_parts() -> None:
    n = Source("n", int, batch=Batch(size=3))
    criterion = where(n, lambda inputs: sum(inputs["n"]) > 10)
    graph = Graph("g", when=criterion, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: list[int]) -> list[int]:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for each in (1, 2, 3):
            await graph.push(n, each)
        await kit.restart()
        for each in (10, 11, 12):
            await graph.push(n, each)
        await kit.settled()
        assert kit.outputs(graph) == [[10, 11, 12]]

    run_graph(graph, play)


@pytest.mark.parametrize("keep", [None, 2])
def test_what_is_passed_over_is_not_kept_until_something_fires(keep: int | None) -> None:
    n = Source("n", int, keep=keep)
    criterion = where(n, lambda inputs: False)
    graph = Graph("g", when=criterion, inputs="sequential", checkpoint=True)
    wanted: Any = int if keep is None else list[int]

    async def it(n: wanted) -> wanted:  # type: ignore[valid-type]
        return n

    graph.add(it, scope={"wanted": wanted})

    async def play(kit: GraphsUnderTest) -> None:
        for each in range(50):
            await graph.push(n, each)
        await kit.settled()
        kept = graph.running.checkpoint.kept("n")
        assert not kept.pushes
        assert len(kept.window) <= 3

    run_graph(graph, play)


# What waited


def test_what_waited_fires_in_order_of_arrival_after_a_crash() -> None:
    a, b = Source("a", int), Source("b", int)
    graph = Graph("g", when=any_(a, b), inputs="sequential", checkpoint=True)

    @graph.node
    def newest(firing: FiringContext, a: int | None, b: int | None) -> str:
        (source,) = firing.fresh
        return f"{source}{a if source == 'a' else b}"

    async def play(kit: GraphsUnderTest) -> None:
        await graph.pause()
        for source, n in (("b", 1), ("a", 1), ("b", 2)):
            await graph.push(source, n)
        await kit.restart()
        for source, n in (("a", 2), ("b", 3)):
            await graph.push(source, n)
        await kit.restart()
        await graph.resume()
        await kit.settled()
        assert kit.outputs(graph) == ["b1", "a1", "b2", "a2", "b3"]

    run_graph(graph, play)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(
    ("keep", "wanted"),
    [
        (1, [[1], [2], [3], [4]]),
        (2, [[1], [1, 2], [2, 3], [3, 4]]),
        (ALL, [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]),
    ],
)
def test_each_value_of_a_state_fires_after_a_crash_too(
    keep: int, wanted: list[list[int]], restart: bool
) -> None:
    n = Source("n", int, keep=keep)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: list[int]) -> list[int]:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        await graph.push(n, 1)
        await graph.pause()
        for each in (2, 3, 4):
            await graph.push(n, each)
            if restart:
                await kit.restart()
        assert kit.state(graph).windows["n"] == wanted[-1]
        await graph.resume()
        await kit.settled()
        assert kit.outputs(graph) == wanted
        await kit.restart()
        assert kit.state(graph).windows["n"] == wanted[-1]
        await kit.settled()
        assert kit.outputs(graph) == wanted

    run_graph(graph, play)


def test_an_event_that_completes_a_window_is_there_for_the_next_after_a_crash() -> None:
    n = Source("n", int, batch=Window(count=3, step=1), dedupe=lambda value: value)
    graph = Graph("g", when=n, inputs="sequential", checkpoint=True)

    @graph.node
    def it(n: list[int]) -> list[int]:
        return n

    async def play(kit: GraphsUnderTest) -> None:
        for each in range(1, 7):
            await graph.push(n, each)
            await kit.restart()
            await graph.push(n, each)  # a repeat
        await kit.settled()
        assert kit.outputs(graph) == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]

    run_graph(graph, play)


# A state that keeps everything


def test_a_snapshot_that_says_nothing_of_what_was_shown_is_read() -> None:
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode([{}, None, {}, 0, [], 0, []]), type=Kept)
    assert kept == Kept()


def fired(number: int, shown: int | None, *writes: int) -> Fired:
    news = [Consumed("n", {PUSH: number}, stored(number))]
    if shown is not None:
        news.append(Consumed("log", {STATE: shown}, Stored(1, WHOLE)))
    return Fired(
        number, 1, 0, "news", tuple(news), tuple(StateWrite("log", stored(w)) for w in writes)
    )


def test_what_was_given_of_a_state_is_told_by_its_mark() -> None:
    checkpoint = applied(fired(1, None, 10, 11), fired(2, 1, 12))
    kept = checkpoint.kept("log")
    assert (kept.whole(), kept.written) == ([stored(10)], 3)
    checkpoint = decode_checkpoint(encode_checkpoint(checkpoint))
    applied(fired(3, 3), to=checkpoint)
    assert checkpoint.kept("log").whole() == [stored(10), stored(11), stored(12)]


@given(
    writes=st.lists(st.integers(0, 3), max_size=12),
    behind=st.integers(0, 3),
    snapshot=st.integers(0, 12),
)
def test_a_snapshot_anywhere_tells_the_same(writes: list[int], behind: int, snapshot: int) -> None:
    plain = Checkpoint()
    summed = Checkpoint()
    written = 0
    for number, count in enumerate(writes, 1):
        record = fired(number, max(0, written - behind), *range(written, written + count))
        applied(record, to=plain)
        applied(record, to=summed)
        if number == snapshot:
            summed = decode_checkpoint(encode_checkpoint(summed))
        assert summed.kept("log").whole() == [stored(n) for n in range(max(0, written - behind))]
        written += count
    assert summed == plain


def remembering() -> Graph:
    """A graph that is given all that it was ever given."""
    n, log = Source("n", int), Source("log", int, keep=ALL)
    graph = Graph("g", when=n, uses=[log], inputs="sequential", checkpoint=True, record=10_000)

    @graph.node
    def note(n: int, log: list[int] | None, firing: FiringContext) -> int:
        firing.put("log", n)
        return sum(log or ())

    return graph


async def sizes(kit: GraphsUnderTest) -> list[int]:
    records = [each async for each in kit.app.graphs.history("g")]
    return [len(encode_record(each)) for each in records if isinstance(each, Fired)]


def test_a_record_holds_what_was_added_to_a_state_and_not_all_of_it() -> None:
    graph = remembering()

    async def play(kit: GraphsUnderTest) -> None:
        for n in range(100):
            await graph.push("n", n)
        await kit.settled()
        found = await sizes(kit)
        assert len(found) == 100
        assert max(found) < min(found) + 40

    run_graph(graph, play)


@pytest.mark.parametrize("every", [7, 10_000])
def test_it_is_whole_after_every_restart_and_in_a_replay(
    every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SNAPSHOT_RECORDS", every)
    graph = remembering()

    async def play(kit: GraphsUnderTest) -> None:
        for n in range(40):
            await graph.push("n", n)
            if n % 9 == 8:
                await kit.restart(power_loss=n % 2 == 0)
        await kit.settled()
        assert kit.outputs(graph) == [sum(range(n)) for n in range(40)]
        assert kit.state(graph).windows["log"] == list(range(40))
        before = kit.state(graph).cache["log"]
        await kit.restart()
        assert kit.state(graph).cache["log"] in (before, list(range(40)))
        replayed = [each async for each in over_journal(graph, kit.app.graphs.history("g"))]
        assert len(replayed) >= 34, "what is kept may begin after a snapshot"
        assert {each.same for each in replayed} == {True}

    run_graph(graph, play)


def test_a_state_that_a_command_replaced_is_kept_as_it_was_given() -> None:
    graph = remembering()

    async def play(kit: GraphsUnderTest) -> None:
        await graph.push("n", 1)
        await graph.push("n", 2)
        await graph.pause()
        firing = await graph.fire({"n": 3, "log": [100, 200]})
        assert firing.output == 300
        assert kit.state(graph).windows["log"] == [1, 2, 3]
        await kit.restart()
        await graph.resume()
        await graph.push("n", 4)
        await kit.settled()
        assert kit.outputs(graph)[-1] == 6
        replayed = [each async for each in over_journal(graph, kit.app.graphs.history("g"))]
        assert [each.same for each in replayed] == [True] * 4

    run_graph(graph, play)

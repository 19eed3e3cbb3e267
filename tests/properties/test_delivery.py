"""Fair delivery on virtual time: nothing falls between replay and push, and nobody waits too long.

Costs are made visible by sinks that move the virtual clock: a frame then takes as long as they say.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from fairway.core.pressure import Ladder
from fairway.core.priority import WEIGHTS, Band
from fairway.errors import WriteFailed
from fairway.runtime.turn import TURN, TurnBudget
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics.catching_up import CatchUp
from fairway.topics.delivery import Delivery
from fairway.topics.engine import TopicsConfig
from fairway.topics.watching import SharedView
from fairway.wire.topics import RouterConfig, TopicPatch
from tests.support.topics import MS, PLAIN, Forced, Notes, new, read_all, topics_on, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic
    from fairway.topics.watching import Watcher
    from tests.conftest import Campaign

PRIORITY = {Band.B4: 900, Band.B3: 600, Band.B2: 300, Band.B1: 100, Band.B0: -100}
PACKING = Ladder(pressure=0.3, coalesce_window_ns=10 * MS)
DEFERRING = Ladder(pressure=0.9, coalesce_window_ns=17 * MS, commit_window_ns=8 * MS, defer=True)
LADDERS = [
    Ladder(),
    PACKING,
    Ladder(pressure=0.6, coalesce_window_ns=10 * MS, commit_window_ns=4 * MS),
    DEFERRING,
]


def now_ns() -> int:
    loop: Any = asyncio.get_running_loop()
    return int(loop.now_ns)


def pass_time(cost_ns: int) -> None:
    """The code that runs now takes this long."""
    loop: Any = asyncio.get_running_loop()
    loop.now_ns += cost_ns


# --- between replay and push


class Stalling(Notes):
    """Refuses now and then, and has room again a little later."""

    def __init__(self, chance: random.Random, refusals: int) -> None:
        super().__init__()
        self.chance = chance
        self.left = refusals

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        if self.left and self.chance.random() < 0.3:
            self.left -= 1
            self.refused += 1
            later = self.chance.choice((0, 0.0001, 0.002))
            asyncio.get_running_loop().call_later(later, watcher.resume)
            return False
        return super().write(watcher, frame, to_seq)


async def one_race(topics: Topics, chance: random.Random, number: int, tally: Counter[str]) -> None:
    """A watcher comes while somebody writes; what it gets, and when, is all there is to it."""
    name = f"race-{number}"
    urgent = chance.random() < 0.5  # such a topic may be served within the turn of the write
    topic, _ = await topics.create(name, TopicPatch(priority=900 if urgent else None))
    tally["urgent"] += urgent
    for _ in range(chance.randint(0, 4)):
        await topics.append(name, new(*range(chance.randint(1, 6))))
    refusals = chance.choice((0, 0, 1, 3))
    notes = Stalling(chance, refusals)
    tally["stalling"] += refusals > 0
    start = chance.randint(0, topic.head)
    view = SharedView(PLAIN.encoder, limit=chance.choice((1, 2, 256)))
    written: dict[int, int] = {}

    async def write(delay_ns: int) -> None:
        await asyncio.sleep(delay_ns / 1e9)
        before = notes.frames.count(("caught-up",))
        _, answer, _ = await topics.append(name, new("late"))
        written[answer.first_seq] = now_ns()
        tally["written before it caught up" if not before else "written when it had"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(chance.randint(1, 3)):
            group.create_task(write(chance.randrange(4 * MS)))
        await asyncio.sleep(chance.randrange(4 * MS) / 1e9)
        watcher = topics.watch(topic, view, notes, start)
        tally["began behind"] += start < topic.drained
    await asyncio.sleep(0.15)
    assert notes.seqs == list(range(start + 1, topic.head + 1)), "lost or doubled"
    for seq, acked_ns in written.items():
        if seq > start:
            # A read of the store takes up to 2 ms here; nothing waits for the next write.
            pages = (topic.head - start) // view.limit + refusals + 3
            assert notes.at_ns(seq) - acked_ns <= pages * 2.5 * MS, f"{seq} was pushed late"
    assert notes.kinds.count("caught-up") >= 1
    assert watcher.caught_up
    topics.unwatch(watcher)


def race(seed: int, count: int, tally: Counter[str]) -> None:
    chance = random.Random(f"race/{seed}")
    cold = chance.random() < 0.5
    tally["cold"] += count if cold else 0
    config = TopicsConfig(hot_bytes=1 if cold else 1 << 20)
    turn = TurnBudget(delivery_ns=chance.choice((1, 2 * MS)))

    async def main() -> None:
        async with topics_on(config=config, turn=turn) as topics:
            for number in range(count):
                await one_race(topics, chance, number, tally)

    run(main, seed=seed, quiet=True, shuffle=True)


@pytest.mark.timeout(3600)
def test_nothing_falls_between_replay_and_push(campaign: Campaign) -> None:
    """Checklist 11: thousands of interleavings of a write with a watcher that catches up."""
    rounds = campaign.rounds(share=40, full=600)
    for number in range(rounds):
        race(campaign.seed + number, 50, campaign.tally)
    for event in (
        "began behind",
        "cold",
        "stalling",
        "written before it caught up",
        "written when it had",
    ):
        assert campaign.tally[event] > rounds, f"hardly ever: {event}"


@contextmanager
def read_before_register() -> Iterator[None]:
    """Upstream's bug: the watcher is registered after it has read what there is."""
    attach = Delivery.attach

    def late(self: Delivery, watcher: Watcher, *, router: bool = False) -> None:
        topic = watcher.topic

        async def read_then_register() -> None:
            target = topic.drained
            while watcher.cursor < target:
                from fairway.topics.reading import cold_page

                page = await cold_page(
                    self._log, topic, watcher.cursor, target, 256, 1 << 20, watcher.view.selection
                )
                await self._frames.give_page(watcher, page)
            await asyncio.sleep(0)
            watcher.cursor = topic.head  # "caught up"
            attach(self, watcher, router=router)

        loop = asyncio.get_running_loop()
        TASKS.append(loop.create_task(read_then_register()))

    with patch.object(Delivery, "attach", late):
        yield


TASKS: list[asyncio.Task[None]] = []


@contextmanager
def lost_wake_up() -> Iterator[None]:
    """A drain does not look after those who are on their own way."""
    queue = CatchUp.queue

    def forgetful(self: CatchUp, watcher: Watcher) -> None:
        if watcher.cursor < watcher.topic.drained and watcher.view.limit == 2:
            return
        queue(self, watcher)

    with patch.object(CatchUp, "queue", forgetful):
        yield


@pytest.mark.parametrize("bug", [read_before_register, lost_wake_up])
def test_a_race_that_is_planted_is_seen(bug: Any) -> None:
    def races() -> None:
        for seed in range(20):
            race(seed, 50, Counter())

    TASKS.clear()
    with bug(), pytest.raises((AssertionError, ExceptionGroup)):
        races()
    ended = [task for task in TASKS if task.done() and not task.cancelled()]
    assert not any(task.exception() for task in ended), "seen by an accident of the bug's own"


def test_a_watcher_that_caught_up_by_itself_gets_no_frame_twice() -> None:
    """It stalls in the middle of a drain, and has caught up again before the drain ends."""

    async def main() -> None:
        async with topics_on(turn=TurnBudget(delivery_ns=1)) as topics:
            await topics.append("t", new(0))
            notes = Hiccup()
            watcher = topics.watch(topics.get("t"), PLAIN, notes, 1)
            for _ in range(20):
                topics.watch(topics.get("t"), PLAIN, Slow(1000), 1)
            await topics.append("t", new(*range(30)))
            await asyncio.sleep(0.1)
            assert notes.refused == 1
            assert watcher.caught_up
            assert notes.seqs == list(range(2, 32))

    run(main, seed=1, quiet=True)


class Hiccup(Notes):
    """Refuses its third frame of records once, and has room at the next turn of the loop."""

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        pass_time(1000)
        if len(self.seqs) == 2 and not self.refused:
            self.refused += 1
            asyncio.get_running_loop().call_soon(watcher.resume)
            return False
        return super().write(watcher, frame, to_seq)


class Slow(Notes):
    """A sink that takes its time for each frame."""

    def __init__(self, cost_ns: int) -> None:
        super().__init__()
        self.cost_ns = cost_ns

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        pass_time(self.cost_ns)
        return super().write(watcher, frame, to_seq)


# --- fair turns


class Endless(Notes):
    """A topic that is written to whenever it was served, and counts the turns it waited."""

    def __init__(self, world: Saturated, topic: Topic, band: Band) -> None:
        super().__init__()
        self.world, self.topic, self.band = world, topic, band
        self.served_at = 0
        self.ahead = 0
        self.waits: list[tuple[int, int]] = []

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        world = self.world
        if frame[0] == "records":
            pass_time(world.cost_ns)
            self.waits.append((self.ahead, world.turns - self.served_at))
            world.turns += 1
            world.served[self.band] += 1
            if world.turns < world.limit:
                asyncio.get_running_loop().call_soon(self.again)
            else:
                world.over.set()
        return True

    def again(self) -> None:
        """Dirty again as soon as the drain is over: behind whoever waits in its band."""
        self.ahead = self.world.topics.delivery._ready.depths()[self.band]
        self.served_at = self.world.turns
        self.world.topics.writing.enqueue(self.topic, new(1))


class Saturated:
    """Every band has more to do than can be done."""

    def __init__(self, topics: Topics, limit: int, cost_ns: int) -> None:
        self.topics = topics
        self.limit = limit
        self.cost_ns = cost_ns
        self.turns = 0
        self.served: Counter[Band] = Counter()
        self.sinks: list[Endless] = []
        self.over = asyncio.Event()

    async def add(self, band: Band, count: int) -> None:
        for number in range(count):
            patch = TopicPatch(durability="ephemeral", priority=PRIORITY[band])
            topic, _ = await self.topics.put(f"{band.name}-{number}", patch)
            sink = Endless(self, topic, band)
            self.topics.watch(topic, PLAIN, sink, 0)
            await self.topics.writing.prepare(topic, new(*range(1)))
            self.sinks.append(sink)

    async def start(self) -> None:
        for sink in self.sinks:
            sink.again()
        await self.over.wait()


def saturate(counts: dict[Band, int], *, limit: int = 3000, cost_ns: int = 5000) -> Saturated:
    async def main() -> Saturated:
        # One turn of the loop after each frame, so that whoever was served is dirty at once again.
        async with topics_on(turn=TurnBudget(delivery_ns=1)) as topics:
            world = Saturated(topics, limit, cost_ns)
            for band, count in counts.items():
                await world.add(band, count)
            await world.start()
            return world

    return run(main, seed=3, quiet=True)


def test_every_band_is_served_within_its_bound_and_by_its_weight() -> None:
    """Checklist 7. All within one tick of aging: weights alone decide."""
    world = saturate(dict.fromkeys(Band, 6))
    total = sum(WEIGHTS.values())
    for sink in world.sinks:
        weight = WEIGHTS[sink.band]
        assert sink.waits, f"{sink.band} was never served"
        for ahead, waited in sink.waits:
            bound = ahead + math.ceil((ahead + 1) / weight) * (total - weight)
            assert waited <= bound, f"{sink.band}: {waited} turns with {ahead} ahead"
    for band, weight in WEIGHTS.items():
        share = world.served[band] / world.turns
        assert share == pytest.approx(weight / total, abs=0.02), f"{band} had {share}"


@pytest.mark.parametrize("band", [Band.B3, Band.B2, Band.B1, Band.B0])
def test_a_lone_topic_waits_at_most_one_round_of_a_saturated_top_band(band: Band) -> None:
    world = saturate({Band.B4: 30, band: 1}, limit=1000)
    lone = world.sinks[-1]
    assert len(lone.waits) >= 1000 // (8 + WEIGHTS[band]) - 2
    # With nobody else below, others have at most the top band's weight between two of its turns.
    assert max(waited for _, waited in lone.waits) <= WEIGHTS[Band.B4]


def test_strict_priority_would_be_noticed() -> None:
    """The planted bug: the most urgent band that has work, always."""
    from fairway.core.turns import Turns

    def strict(self: Any, cost: int = 1) -> Any:
        for at, band in enumerate(self._bands):
            if self._active[at]:
                return band
        return None

    with patch.object(Turns, "take", strict):
        world = saturate({Band.B4: 30, Band.B1: 1}, limit=1000)
    assert all(waited > 900 for _, waited in world.sinks[-1].waits), "served when all was over"


# --- aging


def push_delay_ns(priority: int, ladder: Ladder, *, router: bool = False) -> int:
    """How long after a write its watcher, or the watcher of the router's copy, has it."""

    async def main() -> int:
        sampler = Forced(ladder)
        async with topics_on(sampler=sampler) as topics:
            await topics.put("t", TopicPatch(priority=priority))
            await topics.put("copy", TopicPatch(priority=900))
            notes = Notes()
            if router:
                await topics.put_router("r", RouterConfig(source="t", dest="copy"))
                topics.watch(topics.get("copy"), PLAIN, notes, 0)
            else:
                topics.watch(topics.get("t"), PLAIN, notes, 0)
            await asyncio.sleep(1)
            await topics.append("t", new("x"))
            written_ns = now_ns()
            await asyncio.sleep(60)
            return notes.at_ns(1) - written_ns

    return run(main, seed=5, quiet=True)


def test_b0_is_withheld_under_pressure_and_still_pushed_within_ten_seconds() -> None:
    assert push_delay_ns(-1000, Ladder()) < 5 * MS
    withheld = push_delay_ns(-1000, DEFERRING)
    assert 9_900 * MS < withheld < 10_200 * MS  # it leaves B0 after 10 s, and a tick and a window
    assert push_delay_ns(-500, DEFERRING) < 5_200 * MS
    assert push_delay_ns(900, DEFERRING) < 30 * MS


def test_routers_go_one_band_lower_under_pressure_and_never_starve() -> None:
    assert push_delay_ns(900, Ladder(), router=True) < 10 * MS
    assert push_delay_ns(300, DEFERRING, router=True) < 100 * MS
    # B1 becomes B0, which is withheld until it has aged.
    assert 1_000 * MS < push_delay_ns(0, DEFERRING, router=True) < 10_300 * MS
    # What can never climb past B1 is forwarded all the same: 10 s as a topic, 10 s as a router.
    assert push_delay_ns(-1000, DEFERRING, router=True) < 20_500 * MS


def test_a_deferred_router_waits_one_band_below_its_topic() -> None:
    async def main() -> None:
        async with topics_on(sampler=Forced(DEFERRING)) as topics:
            await topics.put("t", TopicPatch(priority=600))
            await topics.put_router("r", RouterConfig(source="t", dest="copy"))
            topic = topics.get("t")
            bands = []
            mark = topics.delivery._ready.mark

            def noted(key: Any, band: Band, *args: Any, **options: Any) -> bool:
                bands.append((key[1], band))
                return mark(key, band, *args, **options)

            with patch.object(topics.delivery._ready, "mark", noted):
                await topics.append("t", new(1))
                await asyncio.sleep(0.1)
            assert (True, Band.B3) in bands
            assert (False, Band.B2) in bands
            assert topic.drained == 1

    run(main, seed=5, quiet=True)


def test_waiting_topics_climb_by_the_tick() -> None:
    """With the top band saturated a B1 topic climbs, and is served ever more often."""
    world = saturate({Band.B4: 10, Band.B1: 30}, limit=6000, cost_ns=1 * MS)
    lows = [sink for sink in world.sinks if sink.band is Band.B1]
    assert all(sink.waits for sink in lows)
    # 6 s in all. By weights alone 30 topics would share 1/9 of the turns: each waits 270 ms and
    # gets 22 turns. That is what is seen while nothing waits long enough to climb.
    assert max(waited for sink in lows for _, waited in sink.waits) <= 30 + 31 * 8


# --- frames


def frames_under(ladder: Ladder, priority: int) -> list[Any]:
    async def main() -> list[Any]:
        async with topics_on(sampler=Forced(ladder)) as topics:
            await topics.put("t", TopicPatch(priority=priority))
            notes = Notes()
            topics.watch(topics.get("t"), PLAIN, notes, 0)
            await asyncio.sleep(0.2)
            async with asyncio.TaskGroup() as group:
                for number in range(12):
                    group.create_task(topics.append("t", new(number)))
            await asyncio.sleep(0.2)
            assert notes.seqs == list(range(1, 13))
            return [frame for frame in notes.frames if frame[0] == "records"]

    return run(main, seed=2, quiet=True)


def test_each_record_is_its_own_frame_until_there_is_pressure() -> None:
    assert len(frames_under(Ladder(), 0)) == 12
    assert len(frames_under(PACKING, 0)) < 4
    batch = run(lambda: batch_frames(Ladder()), seed=1, quiet=True)
    assert [len(frame[1]) for frame in batch] == [1] * 8
    batch = run(lambda: batch_frames(PACKING), seed=1, quiet=True)
    assert [len(frame[1]) for frame in batch] == [8]


async def batch_frames(ladder: Ladder) -> list[Any]:
    async with topics_on(sampler=Forced(ladder)) as topics:
        notes = Notes()
        topic, _ = await topics.create("t")
        topics.watch(topic, PLAIN, notes, 0)
        await asyncio.sleep(0.1)
        await topics.append("t", new(*range(8)))
        await asyncio.sleep(0.1)
        return [frame for frame in notes.frames if frame[0] == "records"]


def test_a_frame_is_encoded_once_and_shared() -> None:
    async def main() -> None:
        made = 0
        encode = PLAIN.encoder.records

        def counted(*args: Any) -> Any:
            nonlocal made
            made += 1
            return encode(*args)

        async with topics_on() as topics:
            topic, _ = await topics.create("t")
            sinks = [Notes() for _ in range(50)]
            with patch.object(type(PLAIN.encoder), "records", staticmethod(counted)):
                for sink in sinks:
                    topics.watch(topic, PLAIN, sink, 0)
                await topics.append("t", new(1))
                await asyncio.sleep(0.1)
            assert made == 1
            assert len({id(sink.frames[-1]) for sink in sinks}) == 1

    run(main, seed=1, quiet=True)


def test_a_drain_past_its_budget_lets_others_run_and_keeps_its_place() -> None:
    order: list[str] = []

    class Costly(Notes):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
            if frame[0] == "records":
                pass_time(1 * MS)
                order.append(self.name)
            return super().write(watcher, frame, to_seq)

    async def main() -> None:
        async with topics_on() as topics:
            for name in ("first", "second"):
                topic, _ = await topics.put(name, TopicPatch(durability="ephemeral", priority=100))
                topics.watch(topic, PLAIN, Costly(name), 0)
                await topics.writing.prepare(topic, new(*range(40)))
            turns = 0

            async def other() -> None:
                nonlocal turns
                while len(order) - turns < 80:
                    if order:
                        turns += 1
                        order.append("other")
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as group:
                for name in ("first", "second"):
                    topics.writing.enqueue(topics.get(name), new(*range(40)))
                group.create_task(other())
            assert turns > 10, "the loop was held for the whole drain"

    run(main, seed=1, quiet=True)
    served = [name for name in order if name != "other"]
    assert served == ["first"] * 40 + ["second"] * 40
    longest = max(
        len(run_) for run_ in "".join("." if n != "other" else " " for n in order).split()
    )
    assert longest <= 4  # 2 ms of 1 ms frames, and the one that passed the budget


# --- slow consumers


def test_a_stalled_watcher_costs_nobody_else_anything() -> None:
    async def main() -> list[int]:
        delays = []
        async with topics_on() as topics:
            topic, _ = await topics.create("t")
            good, bad = Notes(), Notes(open=False)
            topics.watch(topic, PLAIN, good, 0)
            stuck = topics.watch(topic, PLAIN, bad, 0)
            for number in range(200):
                await topics.append("t", new(number))
                written_ns = now_ns()
                await asyncio.sleep(0.01)
                delays.append(good.at_ns(number + 1) - written_ns)
            assert bad.refused <= 2, "frames are offered to one that has no room"
            bad.open = True
            stuck.resume()
            await asyncio.sleep(0.2)
            assert bad.seqs == good.seqs == list(range(1, 201))
            assert stuck.caught_up
        return delays

    assert max(run(main, seed=1, quiet=True)) < 5 * MS


def test_a_stalled_watcher_is_told_only_of_what_is_gone() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            topic, _ = await topics.put("t", TopicPatch(cap_records=50))
            notes = Notes(open=False)
            watcher = topics.watch(topic, PLAIN, notes, 0)
            for number in range(80):
                await topics.append("t", new(number))
            notes.open = True
            watcher.resume()
            await asyncio.sleep(0.1)
            gaps = [frame[1] for frame in notes.frames if frame[0] == "gap"]
            assert [(gap.first, gap.last, gap.reason) for gap in gaps] == [(1, 30, "cap")]
            assert notes.seqs == list(range(31, 81))

    run(main, seed=1, quiet=True)


def test_a_watcher_without_room_is_told_later_that_its_topic_is_gone() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            topic, _ = await topics.create("t")
            notes = Notes(open=False)
            watcher = topics.watch(topic, PLAIN, notes, 0)
            await topics.append("t", new(1))
            await asyncio.sleep(0.1)
            await topics.delete("t")
            notes.open = True
            watcher.resume()
            assert notes.kinds == ["deleted"]

    run(main, seed=1, quiet=True)


def test_a_page_that_cannot_be_read_is_read_later() -> None:
    """The store's trouble is one watcher's delay, not the end of delivery."""

    async def main() -> None:
        async with topics_on(config=TopicsConfig(hot_bytes=1)) as topics:
            for number in range(5):
                await topics.append("t", new(number))
            await topics.append("other", new(0))
            real = topics.kernel.partitions.read
            failing = True

            async def read(*args: Any, **options: Any) -> Any:
                if failing:
                    raise WriteFailed("a reader's lane is full")
                return await real(*args, **options)

            notes = Notes()
            with patch.object(topics._log, "read", read):
                topics.watch(topics.get("t"), PLAIN, notes, 0)
                await asyncio.sleep(1)
                assert notes.seqs == []
                failing = False
                await asyncio.sleep(1)
            assert notes.seqs == [1, 2, 3, 4, 5]

    run(main, seed=1, quiet=True)


# --- scheduling changes when, never what


async def script(topics: Topics, chance: random.Random) -> dict[str, Any]:
    """A fixed sequence of requests, one after the other, and all that can be read after it."""
    from fairway.topics.match import TagMatch

    for name in ("a", "b", "c"):
        fields: dict[str, Any] = {"priority": chance.choice((None, -1000, 0, 900))}
        if chance.random() < 0.5:
            fields["cap_records"] = chance.randint(5, 30)
        await topics.put(name, TopicPatch(**fields))
    await topics.put_router("r", RouterConfig(source="a", dest="copy"))
    notes = {name: Notes() for name in ("a", "b", "c")}
    for name, sink in notes.items():
        topics.watch(topics.get(name), PLAIN, sink, 0)
    for number in range(60):
        name = chance.choice("abc")
        step = chance.random()
        if step < 0.85:
            records = [((number, at), chance.choice("xyz")) for at in range(chance.randint(1, 5))]
            await topics.append(name, new(*records, key=chance.choice((None, f"k{number % 7}"))))
        elif step < 0.92:
            await topics.delete_records(name, before_seq=chance.randint(1, 20))
        else:
            await topics.delete_records(name, match=TagMatch(chance.choice("xyz")))
    await asyncio.sleep(25)
    found: dict[str, Any] = {}
    for name in ("a", "b", "c"):
        whole = await read_all(topics, name)
        found[name] = (values(whole), whole.seqs, whole.gaps, whole.cursor)
    for name, sink in notes.items():
        head = topics.get(name).head
        told = {seq for frame in sink.frames if frame[0] == "gap" for seq in _range(frame[1])}
        assert sink.seqs == sorted(set(sink.seqs))
        assert set(found[name][1]) <= set(sink.seqs), "a live record was never pushed"
        assert set(sink.seqs) | told <= set(range(1, head + 1))
    return found


def _range(gap: Any) -> range:
    return range(gap.first, gap.last + 1)


@pytest.mark.timeout(1800)
def test_the_same_diff_at_every_pressure(campaign: Campaign) -> None:
    """Checklist 6."""
    for number in range(campaign.rounds(share=12, full=200)):
        answers = []
        for ladder in LADDERS:

            async def main(ladder: Ladder = ladder, number: int = number) -> dict[str, Any]:
                async with topics_on(sampler=Forced(ladder)) as topics:
                    return await script(topics, campaign.random(number))

            answers.append(run(main, seed=number, quiet=True))
            campaign.tally["histories"] += 1
        assert all(answer == answers[0] for answer in answers[1:])
        campaign.tally["gaps"] += sum(bool(answers[0][name][2]) for name in "abc")
    assert campaign.tally["gaps"] > 0


# --- one turn of the loop


def test_nothing_is_numbered_behind_a_failure() -> None:
    """Whoever hears of a failure first and appends at once takes the place of what failed."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            topic, _ = await topics.create("t")
            wal.before_write = _full
            failed = topics.writing.enqueue(topic, new(1, 2))
            answers: list[asyncio.Future[Any]] = []

            def next_one(_: object) -> None:
                wal.before_write = None
                answers.append(topics.writing.enqueue(topic, new("next")))

            failed.add_done_callback(next_one)
            with pytest.raises(WriteFailed):
                await failed
            assert (await answers[0]).first_seq == 1
            found = await read_all(topics, "t")
            assert (found.seqs, values(found)) == ([1], ["next"])

    run(main, seed=1, quiet=True)


def _full() -> None:
    raise OSError(28, "no space")


def test_an_urgent_topic_is_served_within_the_turn_of_the_write_if_that_delays_nobody() -> None:
    async def main() -> None:
        async with topics_on() as topics:

            async def watched(name: str, priority: int, watchers: int = 1) -> tuple[Topic, Notes]:
                patch = TopicPatch(durability="ephemeral", priority=priority)
                topic, _ = await topics.create(name, patch)
                notes = Notes()
                for _ in range(watchers):
                    topics.watch(topic, PLAIN, notes, 0)
                await topics.writing.prepare(topic, new(*range(100)))
                return topic, notes

            def at_once(topic: Topic, notes: Notes, records: int = 1) -> bool:
                before = len(notes.frames)
                topics.writing.enqueue(topic, new(*range(records)))
                return len(notes.frames) > before

            urgent = await watched("urgent", 900)
            most = TURN.inline_deliveries_per_turn
            others = [await watched(f"other-{number}", 900) for number in range(most)]
            lower = await watched("lower", 600)
            crowded = await watched("crowded", 900, TURN.inline_delivery_items + 1)
            await asyncio.sleep(0)
            assert at_once(*urgent)
            topics.writing.enqueue(urgent[0], new("x" * TURN.inline_delivery_bytes))
            assert len(urgent[1].seqs) == 1, "that is large"
            await asyncio.sleep(0.01)
            assert not at_once(*urgent, records=TURN.inline_delivery_items + 1), "that is much"
            assert not at_once(*urgent), "nothing overtakes it"
            await asyncio.sleep(0.01)
            assert not at_once(*crowded), "those are many"
            await asyncio.sleep(0.01)
            assert not at_once(*lower)
            assert not at_once(*urgent), "it would take the turn of another"
            await asyncio.sleep(0.01)
            served = [at_once(*one) for one in (urgent, *others)]
            assert served == [True] * most + [False], "a few in each turn of the loop"
            await asyncio.sleep(0.01)
            topics.delivery.obey(PACKING)  # the lower bands wait for the end of a window
            assert not at_once(*lower)
            await asyncio.sleep(0)
            topics.writing.enqueue(lower[0], new(1))
            assert at_once(*urgent), "they have no turn that it could take"
            await asyncio.sleep(0.05)
            for topic, notes in (urgent, lower, *others):
                assert notes.seqs == list(range(1, topic.head + 1))

    run(main, seed=1, quiet=True)


def test_a_write_to_an_urgent_topic_does_not_linger() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            loop = asyncio.get_running_loop()
            took = {}
            for name, priority in (("urgent", 750), ("other", 749)):
                topic, _ = await topics.create(name, TopicPatch(priority=priority))
                topics.kernel.partitions.linger_ns = 1_000_000_000  # as if the pressure were high
                begin = loop.time()
                await topics.writing.append(topic, new(1))
                took[name] = loop.time() - begin
                topics.kernel.partitions.linger_ns = 0
            assert took["urgent"] < 0.1 < 1 <= took["other"]

    run(main, seed=1, quiet=True)

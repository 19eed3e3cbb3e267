"""Ready keys: a sorted twin, the starvation bounds, what a tick costs, and aging by priority."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import count
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import fairway.core.ready as ready_module
from fairway.core.priority import WEIGHTS, Band, band_at, next_crossing_ns
from fairway.core.ready import Ready
from tests.properties.twins import MANY, SlowReady, histories, slow_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.conftest import Campaign

MS = 1_000_000
SECOND = 1_000_000_000

KEYS = "pqrstuvw"
SETUPS: list[tuple[dict[str, int], dict[str, Fraction]]] = [
    ({"a": 8, "b": 4, "c": 2, "d": 1}, {}),
    ({"a": 1}, {}),
    ({"a": 3, "b": 1, "c": 2}, {}),
    ({"a": 8, "b": 1, "c": 1}, {"b": Fraction(1, 5), "c": Fraction(1, 7)}),
]


class Step(NamedTuple):
    """One event: what happens, to which key and band, and a number for what else it needs."""

    verb: str
    key: str
    band: int
    number: int


VERBS = (
    *("mark",) * 7,
    *("take",) * 5,
    *("release",) * 4,
    *("move",) * 4,
    *("tick",) * 3,
    *("forget", "charge", "withhold", "restore", "restore"),
)


def step(verb: int, key: int, band: int, number: int) -> Step:
    return Step(VERBS[verb % len(VERBS)], KEYS[key % len(KEYS)], band, number)


def apply(
    machine: Ready[str, str] | SlowReady, step: Step, bands: list[str], now_ns: int
) -> object:
    """Do the step and tell everything it answered. Illegal ones are left out, alike for both."""
    band = bands[step.band % len(bands)]
    soon, late = now_ns + 1 + step.number % 12, now_ns + 1 + step.number * 20
    due_ns = (None, soon, late)[step.number % 3]
    match step.verb:
        case "mark":
            return machine.mark(step.key, band, now_ns, due_ns=due_ns)
        case "take":
            return machine.take(1 + step.number % 5 if step.number % 2 else 1)
        case "release" if is_taken(machine, step.key):
            return machine.release(step.key, now_ns, due_ns=due_ns)
        case "move" if machine.waiting_in(step.key) is not None:
            return machine.move(step.key, band, due_ns=due_ns)
        case "charge":
            return machine.charge(band, step.number % 23 - 5)
        case "forget" | "withhold" | "restore":
            return getattr(machine, step.verb)(step.key if step.verb == "forget" else band)
        case "tick":
            told = []
            for key, where, since_ns in machine.due(now_ns):
                told.append((key, where, since_ns))
                if step.number % 4:  # answered or not, on the spot
                    target = bands[(bands.index(where) + step.number) % len(bands)]
                    machine.move(key, target, due_ns=due_ns)
            return told
    return None


def is_taken(machine: Ready[str, str] | SlowReady, key: str) -> bool:
    return key in machine.taken if isinstance(machine, SlowReady) else machine.is_taken(key)


def compare(
    setup: tuple[dict[str, int], dict[str, Fraction]], keys: Sequence[str], history: list[Step]
) -> None:
    """Drive the machine and its twin through one history."""
    weights, minimum = setup
    ready: Ready[str, str] = Ready(weights, minimum=minimum)
    twin = SlowReady(weights, minimum)
    bands = list(weights)
    now_ns = 100
    hands: set[str] = set()
    for step in history:
        # Time goes by, and now and then back.
        now_ns = max(0, now_ns + (step.number % 5 if step.number % 16 else -20))
        answer = apply(ready, step, bands, now_ns)
        assert answer == apply(twin, step, bands, now_ns)
        ready.check()
        if step.verb == "take" and isinstance(answer, str):
            assert answer not in hands, "in two hands"
            hands.add(answer)
        elif step.verb == "release":
            hands.discard(step.key)
        assert ready.depths() == twin.depths()
        assert len(ready) == len(twin.waits)
        for key in keys:
            assert ready.waiting_in(key) == twin.waiting_in(key)
            assert ready.is_taken(key) == (key in hands) == (key in twin.taken)
    for band in bands:
        ready.restore(band)
        twin.restore(band)
    assert [ready.take() for _ in keys] == [twin.take() for _ in keys]
    assert not len(ready)


@MANY
@given(setup=st.sampled_from(SETUPS), history=histories(step, 150))
def test_same_answers_as_the_slow_twin(
    setup: tuple[dict[str, int], dict[str, Fraction]], history: list[Step]
) -> None:
    compare(setup, KEYS, history)


def test_same_answers_as_the_slow_twin_in_a_crowd(campaign: Campaign) -> None:
    """Enough keys, moves and ticks that what they leave behind is swept up again and again."""
    crowd = [f"key {number}" for number in range(50)]
    verbs = ("mark",) * 4 + ("move",) * 8 + ("tick", "take", "release", "forget")
    for number in range(campaign.rounds(share=4, full=100)):
        random = campaign.random(number)
        history = [
            Step(
                random.choice(verbs),
                random.choice(crowd),
                random.randrange(9),
                random.randrange(99),
            )
            for _ in range(500)
        ]
        campaign.tally.update(step.verb for step in history)
        compare(SETUPS[number % len(SETUPS)], crowd, history)


@given(history=histories(step, 150))
def test_inside_a_band_the_eldest_goes_first_however_it_got_there(history: list[Step]) -> None:
    """Without a twin: births are remembered, and nobody is taken while an elder waits beside it."""
    bands = ["a", "b", "c"]
    ready: Ready[str, str] = Ready(dict.fromkeys(bands, 2))
    born: dict[str, int] = {}
    moved = 0
    for now_ns, step in enumerate(history):
        waited = [key for key in KEYS if ready.waiting_in(key) is not None]
        where = {key: ready.waiting_in(key) for key in waited}
        answer = apply(ready, step, bands, now_ns)
        if step.verb == "take" and isinstance(answer, str):
            rivals = [key for key in waited if where[key] == where[answer]]
            assert answer == min(rivals, key=lambda key: born[key])
        moved += any(where[key] != ready.waiting_in(key) for key in waited if key != answer)
        for key in KEYS:
            if ready.waiting_in(key) is not None and key not in waited:
                born[key] = now_ns  # and never again while it waits, whatever marks come
    event(f"keys moved: {min(moved, 5)}")


# --- nobody starves


@MANY
@given(
    setup=st.sampled_from([setup for setup in SETUPS if len(setup[0]) > 1]),
    band=st.integers(0, 3),
    cost_max=st.just(1) | st.integers(1, 5),
    before=histories(step, 30),
    after=histories(step, 200),
)
def test_a_waiting_key_is_taken_within_the_bound(
    setup: tuple[dict[str, int], dict[str, Fraction]],
    band: int,
    cost_max: int,
    before: list[Step],
    after: list[Step],
) -> None:
    weights = slow_weights(*setup)
    bands = list(weights)
    mine = bands[band % len(bands)]
    ready: Ready[str, str] = Ready(setup[0], minimum=setup[1])
    for step in before:
        disturb(ready, step, bands, cost_max)
    ready.restore(mine)
    elders = {key for key in KEYS if ready.waiting_in(key) is not None}
    ahead = {key for key in elders if ready.waiting_in(key) == mine}
    ready.mark("me", mine)
    turns = spent = spent_ahead = 0
    for step in after:
        where = {key: ready.waiting_in(key) for key in KEYS}
        taken, cost = disturb(ready, step, bands, cost_max, never_withheld=mine)
        if taken == "me":
            break
        if taken is not None:
            turns += 1
            if where[taken] == mine:
                assert taken in elders, "a younger key went first"
                spent_ahead += cost
            else:
                spent += cost
            elders.discard(taken)  # should it come back, it comes back young
        elif step.verb == "forget":
            elders.discard(step.key)
        ahead |= {key for key in elders if ready.waiting_in(key) == mine}
        grants = ceil(Fraction((len(ahead) + 1) * cost_max) / weights[mine])
        others = sum(
            ceil(grants * weight) + cost_max - 1 for name, weight in weights.items() if name != mine
        )
        assert spent <= others
        assert spent_ahead <= len(ahead) * cost_max
        if cost_max == 1 and not setup[1]:
            own, whole = setup[0][mine], sum(setup[0].values())
            n = len(ahead)
            assert turns <= n + ceil((n + 1) / own) * (whole - own)  # as the docstring has it
    event(f"was taken: {not ready.waiting_in('me')}")


def disturb(
    ready: Ready[str, str], step: Step, bands: list[str], cost_max: int, never_withheld: str = ""
) -> tuple[str | None, int]:
    """Anything may happen to others. A take is released at once: at most one key is away."""
    band = bands[step.band % len(bands)]
    cost = 1 + step.number % cost_max
    match step.verb:
        case "take" | "release" | "tick":
            key = ready.take(cost)
            if key is not None and key != "me":
                ready.mark(key, band)
                ready.release(key)
            return key, cost
        case "mark":
            ready.mark(step.key, band)
        case "move" if ready.waiting_in(step.key) is not None:
            ready.move(step.key, band)
        case "forget":
            ready.forget(step.key)
        case "withhold" if band != never_withheld:
            ready.withhold(band)
        case "restore":
            ready.restore(band)
    return None, 0


def test_the_bound_is_reached() -> None:
    weights = {"a": 8, "b": 4, "c": 2, "d": 1}
    for mine, ahead in (("d", 0), ("d", 5), ("c", 3), ("a", 16)):
        ready: Ready[str, str] = Ready(weights)
        ready.mark("last turn", mine)
        assert ready.take() == "last turn"
        assert ready.take() is None  # the ring stands here, its credit gone for want of work
        for other in weights:
            for number in range(ahead if other == mine else 300):
                ready.mark(f"{other}{number}", other)
        ready.mark("me", mine)
        turns = next(turn for turn in count() if ready.take() == "me")
        own, whole = weights[mine], sum(weights.values())
        assert turns == ahead + ceil((ahead + 1) / own) * (whole - own)


def test_one_key_a_band_that_always_comes_back_has_its_bands_share() -> None:
    weights = {"a": 8, "b": 4, "c": 2, "d": 1}
    ready: Ready[str, str] = Ready(weights)
    for band in weights:
        ready.mark(band, band)
    served = Counter[str]()
    for _ in range(10 * sum(weights.values())):
        key = ready.take()
        assert key is not None
        served[key] += 1
        ready.mark(key, key)
        ready.release(key)
        ready.check()
    assert served == {band: 10 * weight for band, weight in weights.items()}


def test_a_key_that_comes_back_too_late_finds_no_credit() -> None:
    ready: Ready[str, str] = Ready({"a": 8, "b": 4})
    ready.mark("a", "a")
    ready.mark("b", "b")
    assert [ready.take(), ready.take()] == ["a", "b"]
    ready.mark("a", "a")
    ready.release("a")
    ready.mark("b", "b")
    ready.release("b")
    # The ring stands at b, which was back in time; a was not, and its turn comes with the next one.
    assert [ready.take(), ready.take()] == ["b", "a"]


# --- what it costs, counted rather than timed


class Tally:
    """How often keys were hashed, waits or due times compared, and heaps touched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name in ("heappop", "heappush", "heapify"):
            monkeypatch.setattr(ready_module, name, self.counted(name, getattr(ready_module, name)))
        wait = ready_module._Wait
        monkeypatch.setattr(wait, "__lt__", self.counted("compared", wait.__lt__))
        tally = self

        class Key:
            def __hash__(self) -> int:
                tally.counts["hashed"] += 1
                return id(self) >> 4

        class Time(int):
            def __lt__(self, other: int) -> bool:
                tally.counts["compared"] += 1
                return int(self) < int(other)

            def __le__(self, other: int) -> bool:
                tally.counts["compared"] += 1
                return int(self) <= int(other)

            def __eq__(self, other: object) -> bool:
                tally.counts["compared"] += 1
                return int(self) == other

            __hash__ = int.__hash__

        self.key = Key
        self.time = Time

    def counted(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object) -> object:
            self.counts[name] += 1
            return function(*args)

        return counting

    def spent(self) -> Counter[str]:
        counts, self.counts = self.counts, Counter()
        return counts


BANDS = {"top": 8, "high": 4, "low": 2, "rest": 1}


@pytest.mark.parametrize("size", [10, 1_000, 100_000])
def test_mark_take_and_release_cost_the_same_whatever_waits(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(monkeypatch)
    ready: Ready[object, str] = Ready(BANDS)
    for number in range(size):
        ready.mark(tally.key(), list(BANDS)[number % 4])
    tally.spent()
    for _ in range(100):
        key = ready.take()
        assert key is not None
        ready.mark(key, "low")
        ready.release(key)
    assert tally.spent() == {"hashed": 700}  # seven look-ups a time, no heap and no comparison
    assert len(ready) == size


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_an_aging_tick_touches_only_the_keys_that_cross(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally(monkeypatch)
    ready: Ready[object, str] = Ready(BANDS)
    for number in range(size):
        # Every hundredth falls due in the first second; only ten of those in the first tick.
        due = tally.time(number // 100 if number % 100 == 0 else SECOND + number)
        ready.mark(tally.key(), "rest", due_ns=due)
    tally.spent()
    crossed = 0
    for key, band, _ in ready.due(9):
        assert band == "rest"
        ready.move(key, "low", due_ns=tally.time(2 * SECOND))
        crossed += 1
    counts = tally.spent()
    assert crossed == counts["heappop"] == 10
    assert counts["heappush"] == 20  # into the new band, and the next due time
    assert counts["heapify"] == 0
    assert counts["hashed"] == 2 * 10
    # Each pop and push of the heap of due times costs its height, twice over: `==`, then `<`.
    assert counts["compared"] <= 10 * 6 * log2(size)
    assert ready.depths() == {"top": 0, "high": 0, "low": 10, "rest": size - 10}
    assert list(ready.due(9)) == []
    assert tally.spent()["compared"] <= 1
    ready.check()


def test_every_key_may_cross_at_the_price_of_one_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tally = Tally(monkeypatch)
    size = 20_000
    ready: Ready[object, str] = Ready(BANDS)
    for number in range(size):
        ready.mark(tally.key(), "rest", due_ns=number)
    tally.spent()
    for key, _, _ in ready.due(SECOND):
        ready.move(key, "top")
    counts = tally.spent()
    assert counts["heappop"] == counts["heappush"] == size
    assert counts["hashed"] == 2 * size
    # A band is swept when what left it outnumbers what stayed: each time half as much is left.
    assert counts["heapify"] <= log2(size) + 1
    assert ready.depths()["top"] == len(ready) == size
    ready.check()


def test_endless_moves_pile_up_no_memory(campaign: Campaign) -> None:
    random = campaign.random()
    keys = range(20)  # in order of age
    ready: Ready[int, str] = Ready(BANDS)
    for key in keys:
        ready.mark(key, "rest", due_ns=SECOND)
    for _ in range(5_000):
        key = random.choice(keys)
        before = ready.waiting_in(key)
        assert before is not None
        after = random.choice((before, *BANDS))  # reconsidered, and often left where it is
        ready.move(key, after, due_ns=random.randrange(SECOND))
        campaign.tally["moved" if after != before else "stayed"] += 1
        assert held(ready) <= 2 * len(keys) + 4 * 16
        assert len(ready._due) <= 2 * len(keys) + 64
        ready.check()
    assert sorted(key for key, _, _ in ready.due(2 * SECOND)) == list(keys), "each is due once"
    where = {key: ready.waiting_in(key) for key in keys}
    taken = list(iter(ready.take, None))
    for band in BANDS:
        assert [key for key in taken if where[key] == band] == [k for k in keys if where[k] == band]


def test_endless_serving_and_forgetting_piles_up_no_memory(campaign: Campaign) -> None:
    random = campaign.random()
    ready: Ready[int, str] = Ready(BANDS)
    for turn in range(5_000):
        key = random.randrange(10)
        ready.mark(key, random.choice(list(BANDS)), turn, due_ns=turn + random.randrange(SECOND))
        if random.random() < 0.5:
            ready.forget(random.randrange(10))
            campaign.tally["forgot"] += 1
        elif random.random() < 0.5 and (taken := ready.take()) is not None:
            ready.release(taken, turn)
            campaign.tally["served"] += 1
        # What is left behind in a band is bounded by the most that waited there, ten at worst.
        assert held(ready) <= 4 * (2 * 10 + 16)
        assert len(ready._due) <= 2 * 10 + 64
        ready.check()


def held(ready: Ready[int, str]) -> int:
    """All waits that are kept, stale ones included."""
    return sum(len(band.began) + len(band.moved) for band in ready._bands.values())


# --- aging: `priority` says when a key climbs, `ready` moves it then and not before

TICK_NS = 50 * MS
START = 1_000 * SECOND


class Topic(NamedTuple):
    """What priority knows of a key, apart from since when it waits."""

    manual: int | None
    auto: bool
    consumed_ns: int | None

    def band(self, since_ns: int, now_ns: int) -> Band:
        return band_at(*self, since_ns, now_ns)

    def due_ns(self, since_ns: int, now_ns: int) -> int | None:
        wait_ns = next_crossing_ns(*self, since_ns, now_ns)
        return None if wait_ns is None else since_ns + wait_ns


class Aging:
    """Ready keys of topics, moved as they age, and a count of the looks that this took."""

    def __init__(self) -> None:
        self.ready: Ready[str, Band] = Ready(WEIGHTS)
        self.topics: dict[str, Topic] = {}
        self.since: dict[str, int] = {}
        self.looks = 0

    def mark(self, key: str, topic: Topic, now_ns: int) -> None:
        if self.ready.mark(
            key, topic.band(now_ns, now_ns), now_ns, due_ns=topic.due_ns(now_ns, now_ns)
        ):
            self.topics[key], self.since[key] = topic, now_ns

    def take(self) -> str | None:
        key = self.ready.take()
        if key is not None:
            self.ready.release(key)
            del self.topics[key], self.since[key]
        return key

    def tick(self, now_ns: int) -> None:
        for key, band, since_ns in self.ready.due(now_ns):
            topic = self.topics[key]
            assert since_ns == self.since[key]
            climbed = topic.band(since_ns, now_ns)
            assert climbed > band, "looked at for nothing"
            self.ready.move(key, climbed, due_ns=topic.due_ns(since_ns, now_ns))
            self.looks += 1

    def recomputed(self, now_ns: int) -> dict[str, Band]:
        """The band of every waiting key, from scratch."""
        return {key: topic.band(self.since[key], now_ns) for key, topic in self.topics.items()}

    def bands(self) -> dict[str, Band | None]:
        return {key: self.ready.waiting_in(key) for key in self.topics}


def topic_of(kind: int, number: int) -> Topic:
    manual = (number * 11 % 2500) - 1250 if kind % 3 == 0 else None
    consumed_ns = START - (number - 10) * 2 * SECOND if kind % 2 else None
    return Topic(manual, kind % 5 != 0, consumed_ns)


class Moment(NamedTuple):
    """What happens between two ticks: a mark or a take, or a while without either."""

    ticks: int
    key: str | None
    topic: Topic
    offset_ns: int


def moment(verb: int, key: int, kind: int, number: int) -> Moment:
    name = KEYS[key % len(KEYS)] if verb % 8 else None
    return Moment(1 + verb // 8 % 16, name, topic_of(kind, number), number * 190_000)


@given(history=histories(moment, 40))
def test_aging_agrees_with_recomputing_every_key_at_every_tick(history: list[Moment]) -> None:
    aging = Aging()
    now_ns = START
    climbs = 0
    for happened in history:
        if happened.key is None:
            aging.take()
        else:
            aging.mark(happened.key, happened.topic, now_ns + happened.offset_ns)
        for _ in range(happened.ticks):
            now_ns += TICK_NS
            before = aging.bands()
            aging.tick(now_ns)
            after = aging.recomputed(now_ns)
            assert aging.bands() == after
            aging.ready.check()
            climbs += sum(before[key] != after[key] for key in after)
    assert aging.looks == climbs, "one look for each time a key climbs"
    event(f"climbs: {min(climbs, 10)}")


PLAIN = Topic(None, False, None)  # 0 points: begins in B1
URGENT = Topic(1000, False, None)  # begins, and stays, in B4


@pytest.mark.parametrize("ahead", [0, 1, 7, 40])
def test_a_key_of_b1_is_served_under_an_endless_load_of_b4(ahead: int) -> None:
    """Turns are so fast that nobody ages: the weights alone keep the bound."""
    aging = Aging()
    for number in range(ahead):
        aging.mark(f"plain {number}", PLAIN, START)
    aging.mark("me", PLAIN, START)
    assert aging.ready.waiting_in("me") is Band.B1
    turns = 0
    for number in count():
        aging.mark(f"urgent {number}", URGENT, START)
        aging.mark(f"urgent too {number}", URGENT, START)
        if aging.take() == "me":
            break
        turns += 1
    whole, own = sum(WEIGHTS.values()), WEIGHTS[Band.B1]
    assert turns <= ahead + ceil((ahead + 1) / own) * (whole - own)
    # Only B4 and B1 had work, so it went faster still: eight of them for each of ours.
    assert turns == ahead + (ahead + 1) * WEIGHTS[Band.B4]


def test_a_key_whose_band_is_withheld_is_served_once_it_has_climbed_to_the_top(
    campaign: Campaign,
) -> None:
    """Under pressure all but B4 is withheld; a plain key waits for 7.5 s and a tick at most."""
    random = campaign.random()
    for _ in range(campaign.rounds(share=5, full=100)):
        aging = Aging()
        for band in (Band.B0, Band.B1, Band.B2, Band.B3):
            aging.ready.withhold(band)
        born_ns = START + random.randrange(TICK_NS)
        now_ns = START
        numbers = count()
        while True:
            now_ns += TICK_NS
            if now_ns >= born_ns and "me" not in aging.topics:
                aging.mark("me", PLAIN, born_ns)
            aging.tick(now_ns)
            for _ in range(20):  # twice as much comes as is served
                aging.mark(f"urgent {next(numbers)}", URGENT, now_ns)
            taken = [aging.take() for _ in range(10)]
            campaign.tally["turns"] += len(taken)
            if "me" in taken:
                break
            assert None not in taken
        campaign.tally["served"] += 1
        # By then it is older than anybody in B4, so it goes first.
        climbed_ns = born_ns + 7_500 * MS
        assert climbed_ns <= now_ns <= climbed_ns + TICK_NS

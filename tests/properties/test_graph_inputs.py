"""Criteria x strategy against a slow twin; and what must never happen to a boundary.

The history of each example arrives, takes, ends and forces at random. Beside the twin stands a
ledger of what firings that succeeded have consumed: if everything else were lost now, and each
source were read again after its marks, nothing may be missing.
"""

from __future__ import annotations

import copy
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fairway.graphs import inputs as inputs_module
from fairway.graphs.boundary import PUSH, Boundary
from fairway.graphs.criteria import Criterion, all_, any_, debounce, every, quorum, where
from fairway.graphs.inputs import PASSED, Inputs, PredicateFailed, Slot, SourceUpdate, Taken
from tests.properties.graph_twin import SlowInputs, SlowTaken
from tests.properties.twins import MANY, histories

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.graphs.inputs import Strategy

TENTH_NS = 100_000_000
START_NS = 7 * TENTH_NS
OTHER = "z"
"""A source that is an input only."""
NEEDS = ("any", "all", "quorum")
TIMINGS = ("", "debounce", "debounce most", "every", "every always", "every debounce")


class Setup(NamedTuple):
    need: str
    sources: int
    timing: str
    where: bool
    strategy: Strategy

    @property
    def names(self) -> list[str]:
        return list("abc"[: self.sources])

    def criterion(self, predicate: Any) -> Criterion:
        names = self.names
        kinds = {"any": any_, "all": all_, "quorum": lambda *these: quorum(2, *these)}
        criterion: Criterion = kinds[self.need if self.sources > 1 else "any"](*names)
        if self.where:
            criterion = where(criterion, predicate)
        if "debounce" in self.timing:
            most_s = 1.2 if "most" in self.timing else None
            criterion = debounce(criterion, quiet_s=0.5, most_s=most_s)
        if "every" in self.timing:
            criterion = every(0.7, criterion, always="always" in self.timing)
        return criterion


setups = st.builds(
    Setup,
    st.sampled_from(NEEDS),
    st.integers(1, 3),
    st.sampled_from(TIMINGS),
    st.booleans(),
    st.sampled_from(["latest", "sequential"]),
)


class Step(NamedTuple):
    verb: str
    source: int
    much: int
    more: int


VERBS = (
    *("arrive",) * 8,
    *("take",) * 6,
    *("end",) * 5,
    *("fail",) * 3,
    *("passed",) * 2,
    *("advance",) * 4,
    *("drop", "force", "force_with"),
)


def step(verb: int, source: int, much: int, more: int) -> Step:
    return Step(VERBS[verb % len(VERBS)], source, much, more)


class Pair:
    """The machine and its twin, and the ledger of what was given in and what came of it."""

    def __init__(self, setup: Setup, *, apart: bool = False) -> None:
        """If `apart`, predicates are asked in a step of their own."""
        self.setup = setup
        self.apart = apart
        self.asked = 0
        criterion = setup.criterion(self.worth_it)
        self.names = [*setup.names, OTHER]
        slots = [
            Slot(name, fires=name != OTHER, size_of=lambda _: 1, hoards=True) for name in self.names
        ]
        self.inputs = Inputs(slots, criterion, setup.strategy, START_NS)
        wanted = self.worth_it if setup.where else lambda values: True
        next_ns = START_NS + criterion.period_ns
        sequential = setup.strategy == "sequential"
        self.twin = SlowInputs(setup.names, criterion, sequential, next_ns, wanted)
        self.now_ns = START_NS
        self.flying: tuple[Taken, SlowTaken] | None = None
        self.offsets: Counter[tuple[str, str]] = Counter()
        self.number = 0
        self.keys: list[Any] = []
        self.waiters: list[Any] = []
        self.marks: dict[tuple[str, str], int] = {}
        self.keys_done: list[Any] = []
        self.waiters_done: list[Any] = []
        self.fired: list[tuple[str, int]] = []
        self.dropped: set[int] = set()

    def worth_it(self, values: Mapping[str, Any]) -> bool:
        self.asked += 1
        return sum(values.values()) % 3 != 0

    def do(self, step: Step) -> None:
        source = self.names[step.source % len(self.names)]
        match step.verb:
            case "arrive":
                self.arrive(source, step.much, step.more)
            case "passed":
                at = self.offset(source, step.much)
                keys = self.made_keys(step.more)
                self.inputs.passed(source, dict([at]), keys)
                self.twin.passed(source, at, keys)
            case "advance":
                self.now_ns += step.much % 16 * TENTH_NS
            case "drop" if source != OTHER and self.twin.sequential and self.twin.waiting(source):
                oldest = self.twin.waiting(source)[0]
                dropped = self.inputs.drop_oldest(source)
                assert dropped.value == oldest.value
                self.keys_done += dropped.keys  # given back: what brings it again is no repeat
                self.dropped.add(oldest.value)
                self.twin.drop_oldest(source)
            case "take" if self.flying is None:
                self.take()
            case "force" if self.flying is None:
                self.fly(self.inputs.force(), self.twin.force())
            case "force_with" if self.flying is None:
                values = {source: 10_000 + step.much}
                self.fly(self.inputs.force_with(values), self.twin.force_with(values))
            case "end" if self.flying is not None:
                self.complete(*self.flying)
            case "fail" if self.flying is not None:
                taken, slow = self.flying
                self.flying = None
                self.inputs.restore(taken)
                self.twin.restore(slow)
        self.compare()
        self.check_marks()

    def arrive(self, source: str, much: int, more: int) -> None:
        self.number += 1
        at = self.offset(source, much)
        keys = self.made_keys(more)
        waiter = None
        if more % 3 == 0:
            waiter = f"waiter {self.number}"
            self.waiters.append(waiter)
        self.inputs.arrive(source, Boundary(self.number, dict([at]), keys), self.now_ns, waiter)
        self.twin.arrive(source, self.number, at, keys, self.now_ns, waiter)

    def offset(self, source: str, much: int) -> tuple[str, int]:
        stream = "pq"[much % 2]
        self.offsets[source, stream] += 1
        return stream, self.offsets[source, stream]

    def made_keys(self, more: int) -> tuple[Any, ...]:
        if more % 2:
            return ()
        self.keys.append(len(self.keys))
        return (self.keys[-1],)

    def take(self) -> None:
        taken = self.take_apart() if self.apart else self.inputs.take(self.now_ns)
        slow = self.twin.take(self.now_ns)
        assert (taken is None) == (slow is None), "one fires and the other does not"
        if taken is not None and slow is not None:
            self.fly(taken, slow)
        else:
            self.check_deadline()

    def take_apart(self) -> Taken | None:
        while (taken := self.inputs.candidate(self.now_ns)) is not None:
            asked = self.asked
            if self.inputs.wanted(taken):
                return taken
            assert self.asked == asked + 1, "one at a time"
            due_ns = self.inputs.deadline_ns()
            if self.inputs.refused and (due_ns is None or due_ns > self.now_ns):
                return None
        return None

    def fly(self, taken: Taken, slow: SlowTaken) -> None:
        assert taken.values == slow.values
        assert len({update.source for update in taken.updates}) == len(taken.updates)
        got = {n.source: (unpassed(n), n.marks, n.keys, n.waiters) for n in taken.updates}
        assert got == slow.updates()
        assert taken.dirty_since_ns == slow.since_ns
        self.flying = (taken, slow)

    def complete(self, taken: Taken, slow: SlowTaken) -> None:
        self.flying = None
        self.twin.complete(slow)
        for source, value, marks, keys, waiters in taken.updates:
            for stream, offset in marks.items():
                assert offset > self.marks.get((source, stream), 0), "marks went back"
                self.marks[source, stream] = offset
            self.keys_done += keys
            self.waiters_done += waiters
            if value is not PASSED and source != OTHER:
                self.fired.append((source, value))

    def compare(self) -> None:
        inputs, twin = self.inputs, self.twin
        inputs.check()
        assert inputs.cache == twin.cache
        assert inputs.filtered == twin.filtered
        assert Counter(waiters_of(inputs.unwanted)) == Counter(twin.unwanted)
        assert inputs.dirty == {name: bool(twin.waiting(name)) for name in twin.fires}
        if twin.sequential:
            assert inputs.pending == sum(len(twin.waiting(name)) for name in twin.fires)
        waiting = [each for each in twin.came if each.state in ("waiting", "aside")]
        waiters = [waiter for each in waiting for waiter in each.waiters]
        assert Counter(inputs.waiters()) == Counter(waiters)

    def check_marks(self) -> None:
        """A crash now, and each source read again after its marks, loses nothing."""
        for each in self.twin.owed():
            covered = self.marks.get((each.source, each.stream), 0)
            assert each.offset > covered, f"{each} would not be read again"

    def check_deadline(self) -> None:
        deadline_ns = self.inputs.deadline_ns()
        if deadline_ns is None:
            for later_s in (1, 3, 100):
                assert self.clone().take(self.now_ns + later_s * 10 * TENTH_NS) is None
            return
        assert deadline_ns > self.now_ns
        assert self.clone().take(deadline_ns - 1) is None
        asked = self.asked
        taken = self.clone().take(deadline_ns)
        assert taken is not None or self.asked > asked, "at its deadline it does not answer"

    def clone(self) -> Inputs:
        criterion = self.inputs.criterion
        return copy.deepcopy(self.inputs, {id(PASSED): PASSED, id(criterion): criterion})

    def drain(self) -> None:
        """To the end: all that is left is taken, and every firing succeeds."""
        if self.flying is not None:
            self.complete(*self.flying)
        while True:
            self.fly(self.inputs.force(), self.twin.force())
            assert self.flying is not None
            empty = not self.flying[0].updates
            self.complete(*self.flying)
            self.check_marks()
            if empty:
                return


def waiters_of(unwanted: list[SourceUpdate]) -> list[Any]:
    return [waiter for update in unwanted for waiter in update.waiters]


def unpassed(update: SourceUpdate) -> Any:
    return None if update.value is PASSED else update.value


@MANY
@given(setup=setups, apart=st.booleans(), history=histories(step, 120))
def test_same_answers_as_the_slow_twin_and_nothing_is_lost(
    setup: Setup, apart: bool, history: list[Step]
) -> None:
    pair = Pair(setup, apart=apart)
    for each in history:
        pair.do(each)
    pair.drain()
    keys = pair.keys_done + [key for update in pair.inputs.unwanted for key in update.keys]
    assert Counter(keys) == Counter(pair.keys), "each key comes out exactly once"
    told = Counter(pair.waiters_done) + Counter(waiters_of(pair.inputs.unwanted))
    assert told == Counter(pair.waiters), "so is each waiter"
    assert pair.marks == {at: offset for at, offset in pair.offsets.items() if offset}
    event(f"{setup.strategy}, {setup.timing or 'at once'}: fired {min(len(pair.fired), 3)}")


@given(
    sources=st.integers(1, 3),
    need=st.sampled_from(NEEDS),
    filtering=st.booleans(),
    history=histories(step, 120),
)
def test_sequential_takes_each_value_once_and_in_order(
    sources: int, need: str, filtering: bool, history: list[Step]
) -> None:
    """Without the twin's word: only what was pushed and what firings were given."""
    setup = Setup(need, sources, "", filtering, "sequential")
    pair = Pair(setup)
    arrived: list[tuple[str, int]] = []
    for each in history:
        if each.verb == "force_with":
            continue  # its values are not those that arrived
        before = pair.number
        pair.do(each)
        if pair.number > before:
            arrived.append((pair.names[each.source % len(pair.names)], pair.number))
    pair.drain()
    expected = [pushed for pushed in arrived if pushed[0] != OTHER]
    fired = pair.fired
    assert len(set(fired)) == len(fired), "a value was taken twice"
    for name in setup.names:
        numbers = [value for source, value in fired if source == name]
        assert numbers == sorted(numbers)
    if pair.inputs.criterion.need == 1:
        assert [value for _, value in fired] == sorted(value for _, value in fired)
    missing = {value for _, value in expected} - {value for _, value in fired}
    assert pair.dropped <= missing
    assert len(missing) == len(pair.dropped) + pair.inputs.filtered


@given(values=st.lists(st.sampled_from("ab"), min_size=1, max_size=40), every_nth=st.integers(1, 5))
def test_latest_takes_the_newest_of_each_source_and_each_flag_once(
    values: list[str], every_nth: int
) -> None:
    inputs = made(any_("a", "b"), "latest")
    newest: dict[str, int] = {}
    fresh: set[str] = set()
    for number, source in enumerate(values):
        inputs.arrive(source, Boundary(number, {"p": number + 1}), 1)
        newest[source] = number
        fresh.add(source)
        if number % every_nth == 0:
            taken = inputs.take(1)
            assert taken is not None
            assert taken.values == newest
            assert {update.source: update.value for update in taken.updates} == {
                name: newest[name] for name in fresh
            }
            fresh.clear()
            assert inputs.take(1) is None


# Defects of upstream, by name


def made(criterion: Criterion, strategy: Strategy, *others: str) -> Inputs:
    slots = [Slot(name) for name in criterion.sources]
    return Inputs([*slots, *(Slot(name, fires=False) for name in others)], criterion, strategy, 0)


def at(number: int) -> Boundary:
    return Boundary(number, {"p": number}, (f"key {number}",))


def test_defect_1_all_with_sequential_waits_for_each_source() -> None:
    inputs = made(all_("a", "b"), "sequential")
    inputs.arrive("a", at(1), 1)
    inputs.arrive("a", at(2), 2)
    assert inputs.take(2) is None
    inputs.arrive("b", at(3), 3)
    taken = inputs.take(3)
    assert taken is not None
    assert taken.values == {"a": 1, "b": 3}
    assert inputs.take(3) is None
    inputs.arrive("b", at(4), 4)
    taken = inputs.take(4)
    assert taken is not None
    assert taken.values == {"a": 2, "b": 4}
    assert inputs.pending == 0


@pytest.mark.parametrize("strategy", ["latest", "sequential"])
def test_defect_2_force_with_nothing_waiting_still_fires(strategy: Strategy) -> None:
    inputs = made(any_("a"), strategy)
    assert inputs.force() == ({}, [], {}, 0, None)
    inputs.arrive("a", at(1), 1)
    assert inputs.take(1) is not None
    taken = inputs.force()
    assert taken.values == {"a": 1}
    assert list(taken.updates) == []
    assert inputs.force_with({"a": 9}).values == {"a": 9}


def test_defect_3_a_failed_firing_comes_back_first_sequential() -> None:
    inputs = made(any_("a", "b"), "sequential")
    for number, source in enumerate("abab", 1):
        inputs.arrive(source, at(number), number)
    first = inputs.take(5)
    assert first is not None
    inputs.arrive("a", at(5), 5)
    inputs.restore(first)
    assert inputs.depths == {"a": 3, "b": 2}
    assert "a" not in inputs.cache
    order = []
    while (taken := inputs.take(6)) is not None:
        order += [(update.value, update.marks, update.keys) for update in taken.updates]
    assert order == [(n, {"p": n}, (f"key {n}",)) for n in (1, 2, 3, 4, 5)]


def test_defect_3_a_failed_firing_raises_its_flags_again_latest() -> None:
    inputs = made(all_("a", "b"), "latest")
    inputs.arrive("a", at(1), 1)
    inputs.arrive("b", at(2), 2)
    taken = inputs.take(2)
    assert taken is not None
    inputs.arrive("a", at(3), 3, waiter="waits")
    inputs.restore(taken)
    assert inputs.dirty == {"a": True, "b": True}
    again = inputs.take(4)
    assert again is not None
    assert again.values == {"a": 3, "b": 2}
    assert again.dirty_since_ns == 1
    updates = {each.source: each for each in again.updates}
    assert updates["a"] == SourceUpdate("a", 3, {"p": 3}, ("key 1", "key 3"), ("waits",))
    assert updates["b"] == SourceUpdate("b", 2, {"p": 2}, ("key 2",), ())


def test_what_comes_before_a_candidate_is_refused_is_asked_about_too() -> None:
    inputs = made(where(any_("a"), lambda values: values["a"] > 1), "latest")
    inputs.arrive("a", at(1), 1)
    candidate = inputs.candidate(1)
    assert candidate is not None
    inputs.arrive("a", at(2), 2)
    assert not inputs.wanted(candidate)
    assert not inputs.refused
    candidate = inputs.candidate(2)
    assert candidate is not None
    assert candidate.values == {"a": 2}
    assert inputs.wanted(candidate)


@pytest.mark.parametrize("strategy", ["latest", "sequential"])
def test_a_firing_with_other_values_that_fails_gives_everything_back(strategy: Strategy) -> None:
    inputs = made(any_("a"), strategy, "z")
    inputs.arrive("a", at(1), 1)
    assert inputs.take(1) is not None
    inputs.arrive("a", at(2), 2)
    inputs.arrive("z", at(3), 3)
    before = dict(inputs.cache)
    taken = inputs.force_with({"a": 99})
    assert inputs.cache == {"a": 99}
    assert all(update.value is PASSED for update in taken.updates)
    inputs.restore(taken)
    assert inputs.cache == before
    again = inputs.take(4)
    assert again is not None
    assert again.values == {"a": 2, "z": 3}
    assert {update.source: update.value for update in again.updates} == {"a": 2, "z": 3}


def test_what_is_passed_during_a_firing_that_fails_is_not_consumed_before_it() -> None:
    """The marks of 2 must not go out while 1 waits."""
    inputs = made(any_("a"), "sequential")
    inputs.arrive("a", at(1), 1)
    taken = inputs.take(1)
    assert taken is not None
    inputs.passed("a", {"p": 2})
    inputs.restore(taken)
    assert list(inputs.force_with({}).updates) == []
    again = inputs.take(2)
    assert again is not None
    assert [(update.value, update.marks) for update in again.updates] == [(1, {"p": 2})]


def test_a_source_that_is_never_needed_does_not_hold_back_its_marks() -> None:
    inputs = made(where(any_("a"), lambda values: values["a"] > 1), "sequential", "z")
    inputs.arrive("z", at(7), 1)
    inputs.arrive("a", at(1), 1)
    assert inputs.take(1) is None
    assert inputs.filtered == 1
    inputs.arrive("a", at(2), 2)
    taken = inputs.take(2)
    assert taken is not None
    updates = {each.source: (each.value, each.marks) for each in taken.updates}
    assert updates == {"a": (2, {"p": 2}), "z": (7, {"p": 7})}


@pytest.mark.parametrize("strategy", ["latest", "sequential"])
def test_a_predicate_that_raises_gives_what_it_was_asked_about(strategy: Strategy) -> None:
    inputs = made(where(any_("a"), lambda values: 1 / (values["a"] - 1) > 0), strategy)
    inputs.arrive("a", at(1), 1)
    with pytest.raises(PredicateFailed, match="division by zero") as caught:
        inputs.take(1)
    assert inputs.pending == 0
    inputs.restore(caught.value.taken)
    assert inputs.pending == 1
    inputs.check()


def test_debounce_refused_by_a_predicate_does_not_ask_for_ever() -> None:
    inputs = made(debounce(where(any_("a"), lambda v: v["a"] > 1), quiet_s=1), "latest", "z")
    inputs.arrive("a", at(1), 0)
    assert inputs.deadline_ns() == 10 * TENTH_NS
    assert inputs.take(10 * TENTH_NS) is None
    assert inputs.deadline_ns() is None
    inputs.arrive("z", at(1), 20 * TENTH_NS)  # it may be worth it now
    assert inputs.deadline_ns() is not None
    inputs.arrive("a", at(2), 30 * TENTH_NS)
    assert inputs.take(39 * TENTH_NS) is None
    assert inputs.take(40 * TENTH_NS) is not None


def test_debounce_lets_pass_what_waited_and_not_what_came_later() -> None:
    inputs = made(debounce(all_("a", "b"), quiet_s=1), "sequential")
    for number, source in enumerate("aabb", 1):
        inputs.arrive(source, at(number), 0)
    assert inputs.take(10 * TENTH_NS) is not None
    inputs.drop_oldest("b")
    inputs.arrive("b", at(5), 10 * TENTH_NS)
    assert inputs.take(10 * TENTH_NS) is None
    assert inputs.deadline_ns() == 20 * TENTH_NS


def test_most_counts_from_what_waits_and_not_from_what_was_taken() -> None:
    inputs = made(debounce(any_("a"), quiet_s=1, most_s=2), "sequential")
    for tenth in range(0, 50, 5):  # it never rests
        inputs.arrive("a", at(tenth + 1), tenth * TENTH_NS)
        if tenth == 20:
            while inputs.take(20 * TENTH_NS) is not None:
                pass
    assert inputs.deadline_ns() == (25 + 20) * TENTH_NS


def test_overtaken_news_costs_the_same_however_much_was_overtaken() -> None:
    inputs = made(all_("a", "b"), "latest")
    for number in range(1, 5_001):
        inputs.arrive("a", at(number), number, waiter=number)
    assert inputs.depth("a") == 1
    taken = inputs.force()
    assert taken.updates[0].waiters == tuple(range(1, 5_001))
    assert len(taken.updates[0].keys) == 5_000
    assert taken.updates[0].marks == {"p": 5_000}


@pytest.mark.parametrize("fires", [True, False])
def test_what_is_kept_of_overtaken_boundaries_is_bounded(
    fires: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source has no room at so many, at so many bytes of keys, and of pushes in the journal. A
    firing that fails gives them back."""
    monkeypatch.setattr(inputs_module, "OVERTAKEN_MAX", 100)
    monkeypatch.setattr(inputs_module, "KEYS_BYTES_MAX", 1000)

    def fill(marks: Any, key: Any, size: int = 0) -> tuple[Inputs, int]:
        slots = [
            Slot("a", fires=fires, hoards=True, capacity_bytes=500, size_of=lambda _: size),
            Slot("b"),
        ]
        inputs = Inputs(slots, any_("a", "b") if fires else any_("b"), "latest")
        number = 0
        while inputs.room("a") > 0:
            number += 1
            inputs.arrive("a", Boundary(number, marks(number), key(number)), 0)
        return inputs, number

    inputs, number = fill(lambda n: {}, lambda n: (n,))
    assert number == 100
    inputs, number = fill(lambda n: {}, lambda n: (f"{n:0100}",))
    assert number == 10
    pushed, number = fill(lambda n: {PUSH: n}, lambda n: (n,), 50)
    assert number == 11, "the first of them is not counted"
    assert pushed.size("a") == 500
    for each in (inputs, pushed):
        taken = each.force()
        assert each.room("a") == 1
        each.restore(taken)
        assert each.room("a") == 0
        each.force()
        assert each.room("a") == 1
        assert each.size("a") == 0


def test_every_looks_at_multiples_only() -> None:
    inputs = made(every(1.0, any_("a")), "latest")
    fired = []
    arrivals = {3: 1, 12: 2, 13: 3, 40: 4}
    for tenth in range(60):
        if tenth in arrivals:
            inputs.arrive("a", at(arrivals[tenth]), tenth * TENTH_NS)
        if inputs.take(tenth * TENTH_NS) is not None:
            fired.append((tenth, inputs.cache["a"]))
    assert fired == [(10, 1), (20, 3), (50, 4)]


def test_always_fires_at_each_multiple() -> None:
    inputs = made(every(1.0, any_("a"), always=True), "sequential")
    inputs.arrive("a", at(1), 1)
    inputs.arrive("a", at(2), 2)
    fired = []
    for tenth in range(35):
        while (taken := inputs.take(tenth * TENTH_NS)) is not None:
            fired.append((tenth, taken.values["a"]))
    assert fired == [(10, 1), (10, 2), (20, 2), (30, 2)]
    assert all(one <= other for one, other in pairwise(fired))

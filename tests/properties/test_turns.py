"""Turns: shares, starvation bounds and minimum shares as formulas, and a twin round by round."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil, lcm
from typing import NamedTuple

from hypothesis import event, given
from hypothesis import strategies as st

from fairway.core.turns import Turns
from tests.properties.twins import MANY, SlowTurns, histories, slow_weights

BANDS = "abcde"


class Setup(NamedTuple):
    """What a machine is made of."""

    weights: dict[str, int]
    minimum: dict[str, Fraction]

    def turns(self) -> Turns[str]:
        return Turns(self.weights, minimum=self.minimum)

    def twin(self) -> SlowTurns:
        return SlowTurns(self.weights, self.minimum)

    def raised(self) -> dict[str, Fraction]:
        return slow_weights(self.weights, self.minimum)


@st.composite
def setups(
    draw: st.DrawFn, *, least: int = 1, weight_max: int = 9, named: bool | None = None
) -> Setup:
    """Weights, and minimum shares for some bands; `named` demands or forbids the latter."""
    count = draw(st.integers(least, len(BANDS)))
    weights = {band: draw(st.integers(1, weight_max)) for band in BANDS[:count]}
    if named is False or (named is None and draw(st.booleans())):
        return Setup(weights, {})
    parts = draw(st.dictionaries(st.sampled_from(sorted(weights)), st.integers(1, 4), min_size=1))
    whole = sum(parts.values()) + draw(st.integers(1, 6))
    return Setup(weights, {band: Fraction(part, whole) for band, part in parts.items()})


def spent(turns: Turns[str], count: int) -> Counter[str]:
    return Counter(band for _ in range(count) if (band := turns.take()) is not None)


# --- shares


@given(setup=setups(named=False, weight_max=20), skip=st.integers(0, 50), rounds=st.integers(1, 3))
def test_shares_are_exact_over_full_rounds(setup: Setup, skip: int, rounds: int) -> None:
    turns = setup.turns()
    for band in setup.weights:
        turns.wake(band)
    spent(turns, skip)  # a round may begin anywhere
    got = spent(turns, rounds * sum(setup.weights.values()))
    assert got == {band: rounds * weight for band, weight in setup.weights.items()}
    turns.check()


@given(setup=setups(), costs=histories(lambda cost, *_: 1 + cost % 12, 150))
def test_with_costs_spending_differs_from_the_share_by_less_than_the_largest(
    setup: Setup, costs: list[int]
) -> None:
    turns, twin = setup.turns(), setup.twin()  # the twin says where a round ends
    for band in setup.weights:
        turns.wake(band)
        twin.wake(band)
    paid: Counter[str] = Counter()
    ends: list[tuple[int, dict[str, int]]] = []
    for cost in costs:
        before, begun = dict(paid), twin.rounds_begun
        band = turns.take(cost)
        assert band == twin.take(cost)
        assert band is not None
        paid[band] += cost
        if twin.rounds_begun > begun:
            ends.append((twin.rounds_begun - 1, {name: before.get(name, 0) for name in twin.ring}))
    for rounds, sums in ends:
        for band, share in twin.weights.items():
            assert 0 <= sums[band] - rounds * share < max(costs), "less than one turn ahead"
    for (early, first), (late, last) in pairwise(ends):
        for band, share in twin.weights.items():
            assert abs(last[band] - first[band] - (late - early) * share) < max(costs)


@given(setup=setups(named=True, least=2), ready=st.sets(st.sampled_from(BANDS)))
def test_a_minimum_share_is_kept_whatever_else_is_ready(setup: Setup, ready: set[str]) -> None:
    raised = setup.raised()
    ready = ready & set(setup.weights) | set(setup.minimum)
    turns = setup.turns()
    for band in ready:
        turns.wake(band)
    # Over this many rounds nobody's share is a fraction of a turn.
    rounds = lcm(*(share.denominator for share in raised.values()))
    count = rounds * sum(raised[band] for band in ready)
    got = spent(turns, int(count))
    assert got == {band: rounds * raised[band] for band in ready}
    for band, least in setup.minimum.items():
        assert got[band] >= least * count
    turns.check()


# --- nobody starves


class Step(NamedTuple):
    """One event of a history; the test settles which band it is about."""

    verb: str
    band: int
    cost: int
    extra: int


VERBS = ("take",) * 6 + ("wake",) * 3 + ("rest", "withhold", "restore")


def step(verb: int, band: int, cost: int, extra: int) -> Step:
    return Step(VERBS[verb % len(VERBS)], band % 5, 1 + cost % 12, extra % 23 - 11)


def play(turns: Turns[str], step: Step, names: list[str], cost_max: int) -> tuple[str | None, int]:
    """One event on one of `names`; the band that had a turn, if any, and what that cost in all."""
    if step.verb != "take":
        getattr(turns, step.verb)(names[step.band % len(names)])
        return None, 0
    cost = min(step.cost, cost_max)
    band = turns.take(cost)
    if band is None:
        return None, 0
    # Its true cost is known at once: anything from 1 to the largest.
    true_cost = min(max(cost + step.extra, 1), cost_max)
    turns.charge(band, true_cost - cost)
    return band, true_cost


@MANY
@given(
    setup=setups(least=2),
    starving=st.integers(0, 4),
    cost_max=st.just(1) | st.integers(1, 12),
    before=histories(step, 30),
    after=histories(step, 120),
)
def test_others_spend_at_most_the_bound_before_a_ready_band_has_its_turn(
    setup: Setup, starving: int, cost_max: int, before: list[Step], after: list[Step]
) -> None:
    weights = setup.raised()
    names = list(weights)
    turns = setup.turns()
    for step in before:
        play(turns, step, names, cost_max)
    hungry = names[starving % len(names)]
    others = [name for name in names if name != hungry]
    grants = ceil(cost_max / weights[hungry])
    bound = sum(ceil(grants * weights[other]) + cost_max - 1 for other in others)
    if cost_max == 1 and not setup.minimum:
        assert bound == sum(setup.weights.values()) - setup.weights[hungry]  # W - w_b
    turns.wake(hungry)
    turns.restore(hungry)
    passed = 0
    for step in after:
        band, cost = play(turns, step, others, cost_max)
        if band == hungry:
            passed = 0
        elif band is not None:
            passed += cost
            assert passed <= bound
        else:
            assert step.verb != "take", "a ready band was refused"
        turns.check()
    event(f"reached the bound: {passed == bound}")


@given(setup=setups(least=2, named=False), starving=st.integers(0, 4), cost_max=st.integers(1, 12))
def test_the_bound_is_reached(setup: Setup, starving: int, cost_max: int) -> None:
    weights = setup.weights
    hungry = list(weights)[starving % len(weights)]
    grants = ceil(cost_max / weights[hungry])
    turns = setup.turns()
    turns.wake(hungry)
    for _ in range(weights[hungry] - 1):
        turns.take()
    turns.take(cost_max)  # with its last credit: the deepest debt a turn can leave
    allowance = {name: grants * weight for name, weight in weights.items() if name != hungry}
    for other in allowance:
        turns.wake(other)
    passed = 0
    while True:
        # Each of the others spends its grants one by one, and its very last credit on a whole turn.
        probe = next_band(turns)
        if probe == hungry:
            break
        cost = cost_max if allowance[probe] == 1 else 1
        assert turns.take(cost) == probe
        allowance[probe] -= 1
        passed += cost
    assert passed == sum(grants * weights[other] + cost_max - 1 for other in allowance)


def next_band(turns: Turns[str]) -> str:
    """Whose turn it is, without changing anything that matters: the turn is given back at once."""
    band = turns.take()
    assert band is not None
    turns.charge(band, -1)
    return band


# --- a debt of any size


class CountingList(list[int]):
    """Counts how often somebody's credit is written."""

    writes = 0

    def __setitem__(self, at: object, value: object) -> None:
        self.writes += 1
        super().__setitem__(at, value)  # type: ignore[index, assignment]


@given(
    setup=setups(),
    debts=st.lists(st.integers(0, 10**15), min_size=5, max_size=5),
    charge=st.integers(10**12, 10**15),
)
def test_no_debt_makes_a_turn_long(setup: Setup, debts: list[int], charge: int) -> None:
    turns = setup.turns()
    turns._credit = CountingList(turns._credit)
    for band, debt in zip(setup.weights, debts, strict=False):
        turns.wake(band)
        turns.charge(band, debt)
    for _ in range(20):
        turns._credit.writes = 0
        band = turns.take()
        assert band is not None
        assert turns._credit.writes <= 3 * len(setup.weights) + 1
        turns.charge(band, charge)
        turns.check()


# --- the twin

TWIN_VERBS = (*VERBS, "charge", "charge")


def twin_step(verb: int, band: int, cost: int, charge: int) -> Step:
    return Step(TWIN_VERBS[verb % len(TWIN_VERBS)], band % 5, 1 + cost % 15, charge % 61 - 20)


@MANY
@given(setup=setups(), history=histories(twin_step, 120))
def test_same_turns_as_the_slow_twin(setup: Setup, history: list[Step]) -> None:
    turns, twin = setup.turns(), setup.twin()
    names = list(setup.weights)
    for step in history:
        band = names[step.band % len(names)]
        if step.verb == "take":
            assert turns.take(step.cost) == twin.take(step.cost)
        elif step.verb == "charge":
            turns.charge(band, step.extra)
            twin.charge(band, step.extra)
        else:
            getattr(turns, step.verb)(band)
            getattr(twin, step.verb)(band)
        turns.check()
    for band in names:
        for machine in (turns, twin):
            machine.wake(band)
            machine.restore(band)
    assert [turns.take() for _ in range(40)] == [twin.take() for _ in range(40)]

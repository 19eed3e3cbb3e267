"""Turns as plain values: the order of a round, credit and debt, withholding, minimum shares."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from fairway.core.turns import Turns

SEED = {"control": 8, "replication": 4, "client": 2, "maintenance": 1}
FIVE = {"B4": 8, "B3": 4, "B2": 2, "B1": 1, "B0": 1}


def awake(weights: dict[str, int], minimum: dict[str, Fraction] | None = None) -> Turns[str]:
    turns = Turns(weights, minimum=minimum)
    for band in weights:
        turns.wake(band)
    return turns


def served(turns: Turns[str], count: int, cost: int = 1) -> str:
    """The first letters of the bands that have the next turns; `-` where nobody has one."""
    letters = []
    for _ in range(count):
        letters.append((turns.take(cost) or "-")[0])
        turns.check()
    return "".join(letters)


# --- shares


def test_a_round_serves_the_bands_in_ring_order_by_weight() -> None:
    turns = awake({"a": 3, "b": 2, "c": 1})
    assert served(turns, 12) == "aaabbcaaabbc"


@pytest.mark.parametrize("weights", [SEED, FIVE], ids=["8/4/2/1", "8/4/2/1/1"])
def test_shares_over_full_rounds_are_exact(weights: dict[str, int]) -> None:
    turns = awake(weights)
    order = []
    for rounds in range(1, 11):
        order += [turns.take() for _ in range(sum(weights.values()))]
        assert Counter(order) == {band: rounds * weight for band, weight in weights.items()}


def test_ten_rounds_of_the_seed_are_80_40_20_10() -> None:
    turns = awake(SEED)
    got = Counter(turns.take() for _ in range(150))
    assert list(got.values()) == [80, 40, 20, 10]


def test_nobody_is_served_when_nothing_is_ready() -> None:
    turns = Turns(SEED)
    assert turns.take() is None
    turns.wake("client")
    assert served(turns, 3) == "ccc"
    turns.rest("client")
    assert turns.take() is None


def test_a_band_alone_has_every_turn_whatever_its_weight() -> None:
    turns = Turns(SEED)
    turns.wake("maintenance")
    assert served(turns, 20) == "m" * 20


# --- credit and debt


def test_a_band_with_nothing_ready_keeps_no_credit() -> None:
    turns = awake({"a": 3, "b": 1})
    assert served(turns, 1) == "a"  # two turns of credit left
    turns.rest("a")
    turns.wake("a")
    assert served(turns, 5) == "baaab"


def test_sleeping_through_rounds_saves_nothing_up() -> None:
    turns = awake({"a": 3, "b": 1})
    turns.rest("a")
    assert served(turns, 10) == "b" * 10
    turns.wake("a")
    assert served(turns, 8) == "aaabaaab"


def test_a_turn_may_cost_more_than_the_credit_and_the_debt_is_paid_first() -> None:
    turns = awake({"a": 3, "b": 1})
    assert turns.take(8) == "a"  # 3 - 8 leaves a debt of 5
    # Grants of 3 bring the debt to 2, then a credit of 1; b has its turn in each round.
    assert served(turns, 7) == "bbabaaa"


def test_a_debt_outlives_a_rest() -> None:
    turns = awake({"a": 3, "b": 1})
    assert turns.take(8) == "a"
    turns.rest("a")
    assert served(turns, 5) == "bbbbb"  # nothing is paid off meanwhile
    turns.wake("a")
    assert served(turns, 3) == "bab"


def test_a_charge_is_a_cost_known_late() -> None:
    dear, late = awake({"a": 3, "b": 1}), awake({"a": 3, "b": 1})
    assert dear.take(8) == late.take() == "a"
    late.charge("a", 7)
    assert served(dear, 30) == served(late, 30)


def test_what_is_given_back_while_the_band_is_served_is_credit_again() -> None:
    turns = awake({"a": 3, "b": 1})
    assert turns.take(8) == "a"
    turns.charge("a", -7)
    assert served(turns, 4) == "aaba"


def test_what_is_given_back_later_pays_debt_and_saves_nothing_up() -> None:
    turns = awake({"a": 3, "b": 1})
    assert turns.take(8) == "a"
    assert turns.take() == "b"
    turns.charge("a", -7)
    assert served(turns, 4) == "aaab"
    turns.charge("a", -1_000)
    assert served(turns, 8) == "aaabaaab"


def test_giving_back_never_makes_more_than_a_grant() -> None:
    turns = awake({"a": 3, "b": 1})
    assert turns.take() == "a"
    turns.charge("a", -1_000)
    assert served(turns, 5) == "aaaba"


def test_a_resting_or_withheld_band_is_given_back_only_its_debt() -> None:
    for pause in ("rest", "withhold"):
        turns = awake({"a": 3, "b": 1})
        assert turns.take(8) == "a"
        getattr(turns, pause)("a")
        turns.charge("a", -1_000)
        turns.check()
        turns.wake("a")
        turns.restore("a")
        assert served(turns, 5) == "baaab"


def test_a_turn_costs_something() -> None:
    with pytest.raises(AssertionError, match="never end"):
        awake(SEED).take(0)


def test_one_huge_charge_is_paid_off_without_going_round() -> None:
    turns = awake({"a": 1, "b": 1})
    turns.take()
    turns.charge("a", 10**12)
    assert served(turns, 5) == "bbbbb"
    turns.charge("b", 10**12)  # now everybody is in debt: a trillion rounds pass at once
    assert served(turns, 9) == "aaaaababa"  # a had paid five rounds' worth before b fell into debt
    turns.charge("b", 10**12)
    turns.rest("a")
    assert served(turns, 2) == "bb"


# --- withholding


def test_a_withheld_band_gets_nothing_until_it_is_restored() -> None:
    turns = awake({"a": 3, "b": 1})
    assert served(turns, 1) == "a"
    turns.withhold("a")
    turns.withhold("a")
    assert served(turns, 4) == "bbbb"
    turns.restore("a")
    assert served(turns, 5) == "aaaba"


def test_withheld_alone_nobody_is_served() -> None:
    turns = Turns({"a": 3, "b": 1})
    turns.withhold("a")
    turns.wake("a")
    assert turns.take() is None
    turns.restore("a")
    assert turns.take() == "a"


def test_restoring_wakes_nobody() -> None:
    turns = awake({"a": 3, "b": 1})
    turns.withhold("a")
    turns.rest("a")
    turns.restore("a")
    assert served(turns, 3) == "bbb"
    turns.wake("a")
    assert served(turns, 4) == "aaab"


# --- bounds, each reached


def test_everybody_else_has_their_round_between_two_turns() -> None:
    turns = awake(FIVE)
    names = [turns.take() for _ in range(64)]
    first = names.index("B1")
    assert names.index("B1", first + 1) - first - 1 == sum(FIVE.values()) - 1


def test_a_band_that_wakes_where_the_ring_has_just_passed_waits_for_one_round() -> None:
    turns = awake({"a": 1, "b": 3, "c": 2})
    turns.rest("a")
    assert served(turns, 1) == "b"
    turns.withhold("b")
    turns.withhold("c")
    turns.wake("a")
    assert served(turns, 1) == "a"
    turns.rest("a")
    turns.wake("a")
    turns.restore("b")
    turns.restore("c")
    assert served(turns, 6) == "bbbcca"


# --- minimum shares


def test_a_minimum_raises_the_small_and_keeps_the_others_as_they_were() -> None:
    # 8/4/2/1 with a tenth promised to maintenance: 14 is 9/10, so it weighs 14/9.
    turns = awake(SEED, {"maintenance": Fraction(1, 10)})
    got = Counter(turns.take() for _ in range(140))
    assert got == {"control": 72, "replication": 36, "client": 18, "maintenance": 14}


def test_a_minimum_that_is_met_changes_nothing() -> None:
    plain, promised = awake(SEED), awake(SEED, {"control": Fraction(1, 2)})
    assert served(plain, 60) == served(promised, 60)


def test_raising_one_band_may_leave_another_short_so_that_is_raised_too() -> None:
    # b has its 2/10 of the weights, but no longer once a's half makes the round larger.
    minimum = {"a": Fraction(1, 2), "b": Fraction(1, 5)}
    turns = awake({"a": 1, "b": 2, "c": 7}, minimum)
    assert Counter(turns.take() for _ in range(700)) == {"a": 350, "b": 140, "c": 210}


def test_a_fraction_of_a_turn_is_not_lost() -> None:
    # A quarter beside 4: it weighs 4/3, so it has 4 turns in 3 rounds.
    turns = awake({"a": 1, "b": 4}, {"a": Fraction(1, 4)})
    assert served(turns, 16) == "aabbbbabbbbabbbb"


@pytest.mark.parametrize(
    ("weights", "minimum", "complaint"),
    [
        ({}, {}, "at least one band"),
        ({"a": 0}, {}, "whole numbers from 1"),
        ({"a": 1, "b": -1}, {}, "whole numbers from 1"),
        ({"a": 1}, {"b": Fraction(1, 2)}, "unknown band 'b'"),
        ({"a": 1, "b": 1}, {"a": Fraction(0)}, "between 0 and 1"),
        ({"a": 1, "b": 1}, {"a": Fraction(1)}, "between 0 and 1"),
        ({"a": 1, "b": 1}, {"a": Fraction(1, 2), "b": Fraction(1, 2)}, "add up to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    weights: dict[str, int], minimum: dict[str, Fraction], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Turns(weights, minimum=minimum)


def test_an_unknown_band_is_an_error() -> None:
    turns = Turns(SEED)
    with pytest.raises(KeyError):
        turns.wake("nobody")


@pytest.mark.parametrize(
    "broken", ["turns._active_count += 1", "turns._credit[1] = 5", "turns._withheld[0] = True"]
)
def test_check_sees_a_broken_state(broken: str) -> None:
    turns = awake(SEED)
    turns.take()
    turns.check()
    exec(broken, {"turns": turns})
    with pytest.raises(AssertionError):
        turns.check()

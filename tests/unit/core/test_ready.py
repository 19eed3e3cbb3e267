"""Ready keys as plain values: at most once, in one hand, eldest first, and aging between bands."""

from __future__ import annotations

from fractions import Fraction

import pytest

from fairway.core.ready import Ready

WEIGHTS = {"high": 2, "low": 1}


def made(*marks: tuple[str, str]) -> Ready[str, str]:
    """A machine in which these keys wait; each was marked one nanosecond after the other."""
    ready: Ready[str, str] = Ready(WEIGHTS)
    for now_ns, (key, band) in enumerate(marks, 1):
        assert ready.mark(key, band, now_ns)
    return ready


def drained(ready: Ready[str, str]) -> list[str]:
    """Every key that can be taken, in order; nobody gives one back."""
    keys = []
    while (key := ready.take()) is not None:
        ready.check()
        keys.append(key)
    return keys


# --- a key is idle, waiting or taken


def test_nothing_waits_at_first() -> None:
    ready = made()
    assert ready.take() is None
    assert len(ready) == 0
    assert ready.depths() == {"high": 0, "low": 0}
    assert list(ready.due(10**18)) == []


def test_a_key_waits_at_most_once() -> None:
    ready = made(("a", "low"))
    assert not ready.mark("a", "low", 2)
    assert not ready.mark("a", "high", 3)
    assert len(ready) == 1
    assert drained(ready) == ["a"]


def test_a_taken_key_is_in_nobody_elses_hands() -> None:
    ready = made(("a", "low"))
    assert ready.take() == "a"
    assert ready.is_taken("a")
    assert not ready.mark("a", "low", 2)
    assert ready.waiting_in("a") is None
    assert ready.take() is None
    ready.check()


def test_a_mark_while_taken_is_kept_for_the_release() -> None:
    ready = made(("a", "low"))
    ready.take()
    ready.mark("a", "low", 2)
    ready.mark("a", "high", 3)  # the newest says where
    assert ready.release("a", 4)
    assert not ready.is_taken("a")
    assert ready.waiting_in("a") == "high"
    assert ready.take() == "a"
    assert not ready.release("a", 5)
    assert ready.take() is None
    ready.check()


def test_releasing_what_nobody_holds_is_an_error() -> None:
    ready = made(("a", "low"))
    with pytest.raises(KeyError):
        ready.release("a")
    with pytest.raises(KeyError):
        ready.release("b")
    assert drained(ready) == ["a"]


def test_an_unknown_band_is_refused_at_once_and_changes_nothing() -> None:
    ready = made(("a", "low"), ("b", "low"))
    ready.take()
    for key in "abc":  # taken, waiting and idle
        with pytest.raises(KeyError):
            ready.mark(key, "nowhere")
    with pytest.raises(KeyError):
        ready.move("b", "nowhere")
    ready.check()
    assert not ready.release("a")
    assert drained(ready) == ["b"]


# --- who is next


def test_bands_share_by_weight_and_keys_by_age() -> None:
    ready = made(*((f"l{n}", "low") for n in range(4)), *((f"h{n}", "high") for n in range(4)))
    assert drained(ready) == ["h0", "h1", "l0", "h2", "h3", "l1", "l2", "l3"]


def test_a_released_key_waits_behind_those_that_came_meanwhile() -> None:
    ready = made(("a", "low"), ("b", "low"))
    assert ready.take() == "a"
    ready.mark("a", "low", 3)
    ready.mark("c", "low", 4)
    ready.release("a", 5)
    assert drained(ready) == ["b", "c", "a"]


def test_marking_again_resets_neither_age_nor_band() -> None:
    ready = made(("a", "low"), ("b", "low"), ("c", "low"))
    ready.mark("a", "high", 10, due_ns=11)
    ready.mark("b", "low", 11)
    assert ready.waiting_in("a") == "low"
    assert list(ready.due(100)) == []
    assert drained(ready) == ["a", "b", "c"]


def test_a_clock_that_steps_back_lets_nobody_overtake() -> None:
    ready: Ready[str, str] = Ready(WEIGHTS)
    ready.mark("a", "low", 100, due_ns=100)
    ready.mark("b", "low", 40, due_ns=40)
    ready.mark("c", "high", 60)
    ready.move("c", "low")
    assert [(key, since_ns) for key, _, since_ns in ready.due(1_000)] == [("b", 100), ("a", 100)]
    assert drained(ready) == ["a", "b", "c"]


def test_a_costly_turn_is_paid_by_its_band() -> None:
    ready = made(*((f"l{n}", "low") for n in range(5)), *((f"h{n}", "high") for n in range(2)))
    assert ready.take(cost=6) == "h0"  # two rounds' debt
    assert [ready.take() for _ in range(4)] == ["l0", "l1", "l2", "h1"]


def test_a_charge_may_come_after_the_turn() -> None:
    ready = made(*((f"l{n}", "low") for n in range(5)), *((f"h{n}", "high") for n in range(2)))
    assert ready.take() == "h0"
    ready.charge("high", 5)
    assert [ready.take() for _ in range(4)] == ["l0", "l1", "l2", "h1"]


def test_a_withheld_band_waits_and_ages_but_is_not_served() -> None:
    ready = made(("a", "high"), ("b", "low"))
    ready.withhold("high")
    ready.mark("c", "high", 3, due_ns=5)
    assert drained(ready) == ["b"]
    assert ready.depths() == {"high": 2, "low": 0}
    assert [key for key, _, _ in ready.due(5)] == ["c"]
    ready.restore("high")
    assert drained(ready) == ["a", "c"]


def test_minimum_shares_reach_the_bands() -> None:
    weights = {"high": 9, "low": 1}
    ready: Ready[int, str] = Ready(weights, minimum={"low": Fraction(1, 4)})
    for key in range(200):
        ready.mark(key, "high" if key < 100 else "low")
    assert sum(key >= 100 for key in [ready.take() for _ in range(48)] if key is not None) == 12


# --- moving


def test_a_moved_key_stands_among_its_elders() -> None:
    ready = made(("a", "high"), ("b", "low"), ("c", "high"), ("d", "low"), ("e", "high"))
    ready.move("d", "high")
    ready.move("b", "high")
    assert ready.depths() == {"high": 5, "low": 0}
    assert drained(ready) == ["a", "b", "c", "d", "e"]


def test_there_and_back_again_is_as_if_it_never_left() -> None:
    ready = made(("a", "low"), ("b", "low"), ("c", "low"))
    for band in ("high", "low", "high", "low"):
        ready.move("a", band)
        ready.check()
    assert drained(ready) == ["a", "b", "c"]


def test_only_a_waiting_key_can_be_moved() -> None:
    ready = made(("a", "low"))
    ready.take()
    with pytest.raises(KeyError):
        ready.move("a", "high")
    with pytest.raises(KeyError):
        ready.move("b", "high")


# --- forgetting


def test_a_forgotten_key_is_idle() -> None:
    ready = made(("a", "low"), ("b", "low"))
    ready.forget("a")
    ready.forget("nobody")
    ready.check()
    assert ready.waiting_in("a") is None
    assert ready.mark("a", "low", 9)
    assert drained(ready) == ["b", "a"]


def test_a_taken_key_that_is_forgotten_does_not_come_back() -> None:
    ready = made(("a", "low"))
    ready.take()
    ready.mark("a", "low", 2)
    ready.forget("a")
    assert ready.is_taken("a")  # its holder still has it
    assert not ready.release("a", 3)
    ready.mark("a", "low", 4)
    assert drained(ready) == ["a"]


def test_forgetting_the_last_key_of_a_band_ends_its_turn() -> None:
    ready = made(("a", "high"), ("b", "low"))
    ready.forget("a")
    assert drained(ready) == ["b"]


# --- falling due


def aged(*dues: tuple[str, int | None]) -> Ready[str, str]:
    ready: Ready[str, str] = Ready(WEIGHTS)
    for key, due_ns in dues:
        ready.mark(key, "low", 1, due_ns=due_ns)
    return ready


def due(ready: Ready[str, str], now_ns: int) -> list[str]:
    ready.check()
    return [key for key, _, _ in ready.due(now_ns)]


def test_keys_fall_due_in_order_of_time_then_age() -> None:
    ready = aged(("a", 30), ("b", 10), ("c", 30), ("d", 20), ("e", None))
    assert due(ready, 9) == []
    assert due(ready, 10) == ["b"]
    assert due(ready, 100) == ["d", "a", "c"]
    assert due(ready, 100) == []


def test_a_due_key_is_told_with_its_band_and_how_long_it_has_waited() -> None:
    ready: Ready[str, str] = Ready(WEIGHTS)
    ready.mark("a", "low", 7, due_ns=10)
    assert list(ready.due(10)) == [("a", "low", 7)]


def test_a_move_names_the_next_due_time_while_the_keys_are_being_told() -> None:
    ready = aged(("a", 10), ("b", 20))
    told = []
    for key, band, _ in ready.due(50):
        told.append((key, band))
        ready.move(key, "high", due_ns=60)
    assert told == [("a", "low"), ("b", "low")]
    assert list(ready.due(60)) == [("a", "high", 1), ("b", "high", 1)]


def test_a_taken_or_forgotten_key_does_not_fall_due() -> None:
    ready = aged(("a", 10), ("b", 10), ("c", 10))
    assert ready.take() == "a"
    ready.forget("b")
    assert due(ready, 10) == ["c"]


def test_a_key_that_waits_again_has_the_due_time_of_its_new_wait() -> None:
    ready = aged(("a", 10))
    ready.take()
    ready.mark("a", "low", 5)
    ready.release("a", 6, due_ns=20)
    assert due(ready, 10) == []
    assert due(ready, 20) == ["a"]


@pytest.mark.parametrize("band", ["low", "high"])
def test_a_move_replaces_the_due_time_whether_the_band_changes_or_not(band: str) -> None:
    ready = aged(("a", 10), ("b", 10), ("c", 10))
    ready.move("a", band, due_ns=20)
    ready.move("b", band)
    ready.move("c", band, due_ns=5)
    assert due(ready, 5) == ["c"]
    assert due(ready, 10) == []
    assert due(ready, 100) == ["a"]


def test_a_clock_that_steps_back_only_delays_what_is_due() -> None:
    ready = aged(("a", 10), ("b", 20))
    assert due(ready, 15) == ["a"]
    assert due(ready, 5) == []
    assert due(ready, 20) == ["b"]


# --- check


@pytest.mark.parametrize(
    "broken",
    [
        "ready._taken['b'] = None",
        "ready._bands['low'].live += 1",
        "ready._bands['low'].began[0].stale = True",
        "ready._bands['low'].began.reverse()",
        "ready._waiting.pop('b')",
        "ready._due.clear()",
        "ready._due.reverse()",
        "ready._turns._active_count = 0",
    ],
)
def test_check_sees_a_broken_state(broken: str) -> None:
    ready = aged(("a", 10), ("b", 20), ("c", None))
    ready.take()
    ready.check()
    exec(broken, {"ready": ready})
    with pytest.raises((AssertionError, KeyError)):
        ready.check()

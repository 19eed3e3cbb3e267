"""Waits between tries, as plain values."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.core.backoff import Backoff, BackoffConfig

EXACT = BackoffConfig(base_ns=10, cap_ns=100, jitter=0.0, reset_after_ns=1_000)


class Draws:
    """A random source that plays back given numbers and then repeats the last."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = list(numbers)
        self.drawn = 0

    def random(self) -> float:
        self.drawn += 1
        return self._numbers.pop(0) if len(self._numbers) > 1 else self._numbers[0]


def test_doubles_up_to_the_cap() -> None:
    backoff = Backoff(EXACT, Draws(0.5))
    assert [backoff.failed(0) for _ in range(6)] == [10, 20, 40, 80, 100, 100]
    backoff.check()


def test_a_cap_below_twice_the_base_holds() -> None:
    config = BackoffConfig(base_ns=10, cap_ns=10)
    assert [config.ceiling_ns(failures) for failures in (1, 2, 3)] == [10, 10, 10]
    assert BackoffConfig(base_ns=10, cap_ns=19).ceiling_ns(2) == 19


def test_a_huge_count_is_the_cap_at_once() -> None:
    assert EXACT.ceiling_ns(10**18) == 100


def test_there_is_no_wait_before_the_first_failure() -> None:
    with pytest.raises(ValueError, match="after 0 failures"):
        EXACT.ceiling_ns(0)


def test_jitter_takes_away_its_share_at_most() -> None:
    config = BackoffConfig(base_ns=1_000, cap_ns=1_000, jitter=0.25)
    assert [config.delay_ns(1, Draws(chance)) for chance in (0.0, 0.5, 1.0)] == [1_000, 875, 750]
    full = BackoffConfig(base_ns=1_000, cap_ns=1_000, jitter=1.0)
    assert full.delay_ns(1, Draws(1.0)) == 0


def test_a_wait_too_long_for_a_float_is_still_not_negative() -> None:
    huge = 2**60 + 255  # rounds up to a float
    assert BackoffConfig(base_ns=huge, cap_ns=huge, jitter=1.0).delay_ns(1, Draws(1.0)) == 0


def test_one_draw_per_wait_whatever_the_jitter() -> None:
    source = Draws(0.5)
    EXACT.delay_ns(1, source)
    assert source.drawn == 1


def test_a_broken_random_source_is_caught() -> None:
    with pytest.raises(AssertionError, match="random source"):
        EXACT.delay_ns(1, Draws(1.5))


def test_sustained_health_forgets_failures() -> None:
    backoff = Backoff(EXACT, Draws(0.0))
    assert [backoff.failed(0), backoff.failed(0)] == [10, 20]
    backoff.recovered(100)
    assert backoff.failures(1_099) == 2
    assert backoff.failures(1_100) == 0
    assert backoff.failed(1_100) == 10


def test_short_health_does_not() -> None:
    backoff = Backoff(EXACT, Draws(0.0))
    for started in range(0, 5_000, 1_000):
        backoff.recovered(started)
        waited = backoff.failed(started + 999)
    assert waited == 100


def test_time_without_health_does_not() -> None:
    backoff = Backoff(EXACT, Draws(0.0))
    backoff.failed(0)
    assert backoff.failed(1_000_000) == 20


def test_health_counts_from_the_first_sign_of_it() -> None:
    backoff = Backoff(EXACT, Draws(0.0))
    backoff.failed(0)
    backoff.recovered(100)
    backoff.recovered(900)
    assert backoff.failed(1_100) == 10


def test_a_clock_that_steps_back_forgets_nothing() -> None:
    backoff = Backoff(EXACT, Draws(0.0))
    backoff.failed(5_000)
    backoff.recovered(5_000)
    assert backoff.failed(0) == 20


def test_gives_up_when_the_last_attempt_fails_and_stays_so() -> None:
    config = BackoffConfig(base_ns=10, cap_ns=100, jitter=0.0, attempts_max=3)
    backoff = Backoff(config, Draws(0.0))
    assert [backoff.failed(0) for _ in range(4)] == [10, 20, None, None]
    assert [config.spent(failures) for failures in (2, 3)] == [False, True]
    assert Backoff(BackoffConfig(attempts_max=1), Draws(0.0)).failed(0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_ns": 0},
        {"base_ns": 10, "cap_ns": 9},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": float("nan")},
        {"reset_after_ns": 0},
        {"attempts_max": 0},
        {"base_ns": 1.5},
        {"base_ns": "1"},
        {"cap_ns": 1e12},
        {"jitter": "much"},
        {"reset_after_ns": None},
        {"attempts_max": 1.5},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        BackoffConfig(**wrong)

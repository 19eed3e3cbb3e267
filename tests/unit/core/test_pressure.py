"""The governor: smoothing, windows, hysteresis and refusal, as plain values."""

from __future__ import annotations

import math

import pytest

from fairway.core.pressure import Governor, Ladder, PressureConfig

MS = 1_000_000
AT_ONCE = PressureConfig(rise=1.0, fall=1.0)


def ladders(
    levels: list[float], config: PressureConfig = AT_ONCE, *, full: bool = False
) -> list[Ladder]:
    governor = Governor(config)
    climbed = []
    for level in levels:
        climbed.append(governor.sample({"ready": level}, full))
        governor.check()
    return climbed


def test_before_the_first_sample_nothing_is_degraded() -> None:
    assert Governor().ladder == Ladder(
        pressure=0.0,
        cause=None,
        coalesce_window_ns=0,
        commit_window_ns=0,
        defer=False,
        refuse=False,
    )


def test_pressure_is_the_highest_signal_and_names_it() -> None:
    governor = Governor(AT_ONCE)
    ladder = governor.sample({"ready": 0.1, "delay": 0.7, "busy": 0.3}, False)
    assert (ladder.pressure, ladder.cause) == (0.7, "delay")
    assert governor.ladder is ladder
    idle = governor.sample({"ready": 0.0, "delay": 0.0}, False)
    assert (idle.pressure, idle.cause) == (0.0, "ready")
    assert governor.sample({}, False).cause is None


@pytest.mark.parametrize(
    ("signal", "pressure"),
    [(-1.0, 0.0), (-math.inf, 0.0), (1.5, 1.0), (math.inf, 1.0), (math.nan, 1.0), (0, 0.0)],
)
def test_signals_are_clamped_and_nan_is_overload(signal: float, pressure: float) -> None:
    assert ladders([signal])[0].pressure == pressure


def test_nan_hides_no_other_signal() -> None:
    ladder = Governor(AT_ONCE).sample({"ready": 0.3, "delay": math.nan, "busy": 0.2}, False)
    assert (ladder.pressure, ladder.cause) == (1.0, "delay")


def test_rises_by_halves_and_falls_by_fifths() -> None:
    assert [ladder.pressure for ladder in ladders([1, 1, 1], PressureConfig())] == [
        0.5,
        0.75,
        0.875,
    ]
    falling = ladders([1.0] * 60 + [0.0] * 3, PressureConfig())[-3:]
    assert [ladder.pressure for ladder in falling] == pytest.approx([0.8, 0.64, 0.512])


def test_a_jump_to_saturation_defers_at_the_fifth_sample_and_refuses_at_the_seventh() -> None:
    climbed = ladders([1.0] * 8, PressureConfig(), full=True)
    assert [ladder.defer for ladder in climbed] == [False] * 4 + [True] * 4
    assert [ladder.refuse for ladder in climbed] == [False] * 6 + [True] * 2


def test_windows_open_above_their_threshold_and_grow_in_a_line() -> None:
    climbed = ladders([0.0, 0.2, 0.6, 1.0])
    assert [ladder.coalesce_window_ns for ladder in climbed] == pytest.approx(
        [0, 0, 10 * MS, 20 * MS], abs=1
    )
    climbed = ladders([0.0, 0.4, 0.400001, 0.7, 1.0])
    assert [ladder.commit_window_ns for ladder in climbed] == pytest.approx(
        [0, 0, 500_015, 5_250_000, 10 * MS], abs=1
    )


def test_deferring_takes_three_in_a_row_and_lasts_until_below_the_release() -> None:
    levels = [0.9, 0.9, 0.8, 0.9, 0.9, 0.81, 0.7, 0.6, 0.59, 0.7, 0.9, 0.9, 0.9]
    deferred = [ladder.defer for ladder in ladders(levels)]
    assert deferred == [False] * 5 + [True] * 3 + [False] * 4 + [True]


def test_refuses_only_when_saturated_and_full() -> None:
    assert [ladder.refuse for ladder in ladders([0.98, 0.99, 1.0], full=True)] == [
        False,
        True,
        True,
    ]
    assert not ladders([1.0])[0].refuse


@pytest.mark.parametrize(
    "wrong",
    [
        {"rise": 0.0},
        {"rise": 1.1},
        {"rise": 0.1, "fall": 0.2},
        {"fall": math.nan},
        {"coalesce_above": 0.5},
        {"coalesce_above": -0.1},
        {"commit_above": 0.9},
        {"release_below": 0.8},
        {"release_below": 0.0},
        {"defer_above": 0.99},
        {"refuse_from": 1.0},
        {"defer_samples": 0},
        {"coalesce_window_max_ns": -1},
        {"commit_window_min_ns": 0},
        {"commit_window_min_ns": 20 * MS},
    ],
)
def test_settings_that_contradict_each_other_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"rise|fall|above|below|refuse|defer|window"):
        PressureConfig(**wrong)  # type: ignore[arg-type]

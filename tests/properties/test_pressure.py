"""The governor against a twin that works everything out again from the whole history."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.core.pressure import Governor, PressureConfig

levels = st.floats(0, 1) | st.sampled_from([0.0, 0.2, 0.4, 0.59, 0.6, 0.8, 0.85, 0.99, 1.0])
wild = levels | st.floats(allow_nan=True, allow_infinity=True)
samples = st.tuples(st.dictionaries(st.sampled_from("abc"), wild, max_size=3), st.booleans())


@st.composite
def configs(draw: st.DrawFn) -> PressureConfig:
    fall, rise = sorted(draw(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1))))
    coalesce, commit, release, defer = sorted(
        draw(st.lists(st.integers(1, 98), min_size=4, max_size=4, unique=True))
    )
    least = draw(st.integers(1, 10**7))
    return PressureConfig(
        rise=rise,
        fall=fall,
        coalesce_above=coalesce / 100,
        commit_above=commit / 100,
        release_below=release / 100,
        defer_above=defer / 100,
        defer_samples=draw(st.integers(1, 5)),
        coalesce_window_max_ns=draw(st.integers(0, 10**9)),
        commit_window_min_ns=least,
        commit_window_max_ns=least + draw(st.integers(0, 10**8)),
    )


def raw(signals: dict[str, float]) -> float:
    known = [1.0 if math.isnan(value) else min(max(value, 0.0), 1.0) for value in signals.values()]
    return max(known, default=0.0)


def window(pressure: float, above: float, least_ns: int, most_ns: int) -> Fraction:
    if pressure <= above:
        return Fraction(0)
    part = (Fraction(pressure) - Fraction(above)) / (1 - Fraction(above))
    return least_ns + (most_ns - least_ns) * part


def deferring(config: PressureConfig, pressures: list[float]) -> bool:
    """Whether some run of high samples was followed by nothing below the release."""
    run = config.defer_samples
    return any(
        all(high > config.defer_above for high in pressures[end - run : end])
        and all(since >= config.release_below for since in pressures[end:])
        for end in range(run, len(pressures) + 1)
    )


@settings(deadline=None)
@given(config=st.just(PressureConfig()) | configs(), history=st.lists(samples, max_size=30))
def test_same_ladder_as_the_twin(
    config: PressureConfig, history: list[tuple[dict[str, float], bool]]
) -> None:
    governor = Governor(config)
    pressures: list[float] = []
    for signals, full in history:
        ladder = governor.sample(signals, full)
        governor.check()
        before, level = (pressures[-1] if pressures else 0.0), raw(signals)
        gain = config.rise if level > before else config.fall
        assert ladder.pressure == pytest.approx((1 - gain) * before + gain * level, abs=1e-12)
        assert 0.0 <= ladder.pressure <= 1.0
        # From here on the twin takes the governor's own float: thresholds are exact.
        pressures.append(ladder.pressure)
        assert ladder.defer == deferring(config, pressures)
        assert ladder.refuse == (full and ladder.pressure >= config.refuse_from)
        assert (ladder.cause is None) == (not signals)
        if ladder.cause is not None:
            assert raw({"": signals[ladder.cause]}) == level
        coalesce = window(ladder.pressure, config.coalesce_above, 0, config.coalesce_window_max_ns)
        commit = window(
            ladder.pressure,
            config.commit_above,
            config.commit_window_min_ns,
            config.commit_window_max_ns,
        )
        assert abs(ladder.coalesce_window_ns - coalesce) <= 1
        assert abs(ladder.commit_window_ns - commit) <= 1


@settings(deadline=None)
@given(config=configs(), start=levels, target=levels, count=st.integers(1, 40))
def test_equal_samples_close_the_distance_geometrically(
    config: PressureConfig, start: float, target: float, count: int
) -> None:
    governor = Governor(config)
    first = governor.sample({"a": start}, False).pressure
    for _ in range(count):
        governor.sample({"a": target}, False)
    gain = config.rise if target > first else config.fall
    left = (first - target) * (1 - gain) ** count
    assert governor.ladder.pressure - target == pytest.approx(left, abs=1e-9)


@settings(deadline=None)
@given(before=st.lists(levels, max_size=10))
def test_full_load_defers_within_five_samples_and_rest_releases_within_three(
    before: list[float],
) -> None:
    governor = Governor()
    for level in before:
        governor.sample({"a": level}, False)
    loaded = [governor.sample({"a": 1.0}, True) for _ in range(7)]
    assert loaded[4].defer
    assert loaded[6].refuse
    rested = [governor.sample({"a": 0.0}, True) for _ in range(3)]
    assert not rested[0].refuse
    assert not rested[2].defer

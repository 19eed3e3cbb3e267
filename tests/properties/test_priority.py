"""Effective priority against the seed's formula in floats, and crossings against a scan."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.core.priority import Band, band_at, effective, next_crossing_ns, recency

SECOND = 1_000_000_000
START = 10_000 * SECOND

manuals = st.none() | st.integers(-1500, 1500)
# Times near the corners (no wait, full bonus, the 300 s floor) as well as anywhere.
waits = st.integers(0, 12 * SECOND) | st.sampled_from([0, 1, 10 * SECOND - 1, 10 * SECOND])
idles = st.none() | st.integers(0, 310 * SECOND) | st.integers(290 * SECOND, 302 * SECOND)
# Seen from the moment of enqueuing; a topic may be consumed while it waits.
idles_at_enqueue = idles | st.integers(-2 * SECOND, 2 * SECOND)


def exact(manual: int | None, auto: bool, idle_ns: int | None, waited_ns: int) -> float:
    if manual is not None:
        base = float(max(-1000, min(1000, manual)))
    elif auto and idle_ns is not None and idle_ns < 300 * SECOND:
        base = 500 * 2 ** (-idle_ns / (30 * SECOND))
    else:
        base = 0.0
    return base + min(1000.0, waited_ns * 100 / SECOND)


@settings(deadline=None)
@given(manual=manuals, auto=st.booleans(), idle_ns=idles, waited_ns=waits)
def test_within_one_of_the_formula(
    manual: int | None, auto: bool, idle_ns: int | None, waited_ns: int
) -> None:
    consumed = None if idle_ns is None else START - idle_ns
    points = effective(manual, auto, consumed, START - waited_ns, START)
    truth = exact(manual, auto, idle_ns, waited_ns)
    assert abs(points - truth) <= 1
    if idle_ns is None or not 300 * SECOND <= idle_ns < 301 * SECOND:
        assert truth - 1 < points + 1e-9  # the bounds the module states, less a float's rounding
        assert points <= truth + 0.0334


@settings(deadline=None)
@given(idle_ns=st.integers(0, 310 * SECOND))
def test_recency_is_within_one_and_nothing_after_the_floor(idle_ns: int) -> None:
    assert abs(recency(idle_ns) - exact(None, True, idle_ns, 0)) <= 1
    assert recency(300 * SECOND + idle_ns) == 0


@settings(deadline=None)
@given(
    manual=manuals,
    auto=st.booleans(),
    idle_ns=idles_at_enqueue,
    now_ns=st.integers(-SECOND, 12 * SECOND),
    later_ns=st.integers(0, 12 * SECOND) | st.integers(0, 20_000_000),
)
def test_a_waiting_key_never_drops_a_band(
    manual: int | None, auto: bool, idle_ns: int | None, now_ns: int, later_ns: int
) -> None:
    consumed = None if idle_ns is None else START - idle_ns
    args = (manual, auto, consumed, START)
    now = START + now_ns
    assert band_at(*args, now) <= band_at(*args, now + later_ns)
    # Until the bonus is full even the points never fall.
    until = max(now, min(now + later_ns, START + 10 * SECOND))
    assert effective(*args, now) <= effective(*args, until)


@settings(deadline=None)
@given(
    waited_ns=st.integers(0, 10 * SECOND),
    before_ns=st.integers(0, 20_000_000),
    after_ns=st.integers(0, 20_000_000),
)
def test_points_do_not_fall_where_recency_ends(
    waited_ns: int, before_ns: int, after_ns: int
) -> None:
    args = (None, True, START - 300 * SECOND, START - waited_ns)
    last = min(START + after_ns, START - waited_ns + 10 * SECOND)
    assert effective(*args, START - before_ns) <= effective(*args, max(START - before_ns, last))


@settings(deadline=None)
@given(idle_ns=st.integers(-2 * SECOND, 100 * SECOND), early_ns=st.integers(0, 60 * SECOND))
def test_before_it_was_enqueued_a_key_stands_as_when_it_was(idle_ns: int, early_ns: int) -> None:
    args = (None, True, START - idle_ns, START)
    assert effective(*args, START - early_ns) == effective(*args, START)
    assert next_crossing_ns(*args, START - early_ns) == next_crossing_ns(*args, START)


def scanned_crossing_ns(
    manual: int | None, auto: bool, consumed: int | None, enqueued: int, now: int
) -> int | None:
    """Walk forward, ever more finely, to the first nanosecond in a higher band."""
    here = band_at(manual, auto, consumed, enqueued, now)
    at, end = now, max(now, enqueued) + 11 * SECOND
    for stride in (10_000_000, 100_000, 1_000, 10, 1):
        while band_at(manual, auto, consumed, enqueued, at + stride) <= here:
            at += stride
            if at > end:
                return None
    return at + 1 - enqueued


@settings(deadline=None)
@given(
    manual=manuals,
    auto=st.booleans(),
    idle_ns=idles_at_enqueue,
    now_ns=st.integers(-SECOND, 12 * SECOND),
)
def test_crossings_are_exact(
    manual: int | None, auto: bool, idle_ns: int | None, now_ns: int
) -> None:
    consumed = None if idle_ns is None else START - idle_ns
    args = (manual, auto, consumed, START, START + now_ns)
    assert next_crossing_ns(*args) == scanned_crossing_ns(*args)


@settings(deadline=None)
@given(manual=manuals, auto=st.booleans(), idle_ns=idles)
def test_bounds_on_climbing(manual: int | None, auto: bool, idle_ns: int | None) -> None:
    consumed = None if idle_ns is None else START - idle_ns
    args = (manual, auto, consumed, START)
    assert band_at(*args, START + 10 * SECOND) >= Band.B1
    if manual is None or manual >= 0:
        assert band_at(*args, START + 7_500_000_000) is Band.B4
    reaches_top = manual is None or manual >= -250
    assert (band_at(*args, START + 10 * SECOND) is Band.B4) == reaches_top

"""Effective priority: seed 003's numbers, as plain values."""

from __future__ import annotations

import pytest

from fairway.core.priority import (
    WEIGHTS,
    Band,
    band_at,
    band_of,
    effective,
    next_crossing_ns,
    recency,
    waiting_bonus,
)

MS = 1_000_000
SECOND = 1_000_000_000
START = 1_000 * SECOND


def test_bands_and_weights_are_the_seeds() -> None:
    edges = {-1000: Band.B0, -1: Band.B0, 0: Band.B1, 249: Band.B1, 250: Band.B2, 499: Band.B2}
    edges |= {500: Band.B3, 749: Band.B3, 750: Band.B4, 2000: Band.B4}
    assert {points: band_of(points) for points in edges} == edges
    assert [WEIGHTS[band] for band in sorted(WEIGHTS, reverse=True)] == [8, 4, 2, 1, 1]
    assert list(WEIGHTS) == sorted(WEIGHTS, reverse=True)


@pytest.mark.parametrize(
    ("idle_s", "points"),
    [(0, 500), (30, 250), (60, 125), (120, 31), (270, 0), (299, 0), (300, 0), (301, 0), (10**9, 0)],
)
def test_recency_halves_every_thirty_seconds(idle_s: int, points: int) -> None:
    assert recency(idle_s * SECOND) == points


def test_a_future_consumption_counts_as_now() -> None:
    assert recency(-5 * SECOND) == 500


def test_bonus_grows_by_a_point_every_ten_milliseconds_up_to_a_thousand() -> None:
    waits = [-SECOND, 0, 10 * MS - 1, 10 * MS, SECOND, 10 * SECOND - 1, 10 * SECOND, 3600 * SECOND]
    assert [waiting_bonus(wait) for wait in waits] == [0, 0, 0, 1, 100, 999, 1000, 1000]


def test_manual_is_clamped_and_overrides_recency() -> None:
    just_consumed = (True, START, START, START)
    assert effective(7, *just_consumed) == 7
    assert effective(5000, *just_consumed) == 1000
    assert effective(-5000, *just_consumed) == -1000
    assert effective(None, *just_consumed) == 500


def test_without_manual_auto_or_a_consumer_the_base_is_zero() -> None:
    assert effective(None, False, START, START, START) == 0
    assert effective(None, True, None, START, START) == 0
    assert band_at(None, False, START, START, START) is Band.B1


def test_terms_are_added_before_rounding() -> None:
    # 499.8845 of recency and half a point of waiting make 500, though each rounds down to less.
    idle = 10 * MS
    assert recency(idle) == 499
    assert effective(None, True, START - idle, START - 5 * MS, START) == 500


def test_the_lowest_manual_key_leaves_b0_after_exactly_ten_seconds_and_climbs_no_further() -> None:
    args = (-1000, True, START, START)
    assert next_crossing_ns(*args, START) == 10 * SECOND
    assert band_at(*args, START + 10 * SECOND - 1) is Band.B0
    assert band_at(*args, START + 10 * SECOND) is Band.B1
    assert next_crossing_ns(*args, START + 10 * SECOND) is None
    assert band_at(*args, START + 3600 * SECOND) is Band.B1


def test_a_plain_key_climbs_every_two_and_a_half_seconds() -> None:
    args = (None, False, None, START)
    climbed, now = [], START
    while (wait := next_crossing_ns(*args, now)) is not None:
        now = START + wait
        climbed.append((wait, band_at(*args, now)))
    assert climbed == [
        (2_500 * MS, Band.B2),
        (5_000 * MS, Band.B3),
        (7_500 * MS, Band.B4),
    ]


def test_minus_250_is_the_lowest_manual_value_that_reaches_the_top() -> None:
    after = START + 3600 * SECOND
    assert band_at(-250, False, None, START, after) is Band.B4
    assert band_at(-251, False, None, START, after) is Band.B3
    assert next_crossing_ns(-251, False, None, START, START + 9_999 * MS) is None


def test_a_crossing_counts_what_recency_loses_meanwhile() -> None:
    # 250 points short at a standstill would be 2.5 s; the fading of recency makes it later.
    args = (None, True, START - 30 * SECOND, START)
    assert band_at(*args, START) is Band.B2
    wait = next_crossing_ns(*args, START)
    assert wait is not None
    assert 2_600 * MS < wait < 2_700 * MS
    assert band_at(*args, START + wait - 1) is Band.B2
    assert band_at(*args, START + wait) is Band.B3


def test_a_key_does_not_drop_a_band_when_recency_ends() -> None:
    # 249.7 points of waiting when the last 0.488 of recency would vanish: 250.2 stays 250.
    wait = 2_497 * MS
    args = (None, True, START + wait - 300 * SECOND, START)
    assert band_at(*args, START + wait - 1) is Band.B2
    assert band_at(*args, START + wait) is Band.B2


def test_a_key_enqueued_in_the_future_has_not_begun_to_wait() -> None:
    assert next_crossing_ns(0, False, None, START + SECOND, START) == 2_500 * MS
    assert effective(0, False, None, START + SECOND, START) == 0

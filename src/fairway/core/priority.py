"""Decides how urgent a waiting key is: its effective priority, its band, and when it climbs next.

    P = manual, clamped to -1000..1000, if set; else 500 * 2^(-idle / 30 s) if auto; else 0
        + 100 per second waited, at most 1000

Who is served is left to `turns` and `ready`, the clock to `runtime`; how a key fares while it waits
is under "How a waiting key climbs" below.

How a waiting key climbs
------------------------
Both terms are evaluated at `now_ns`, so recency fades while the bonus grows. It fades by at most
500 ln 2 / 30 = 11.6 points a second against the bonus's 100, so for fixed inputs P never falls
before the bonus is full, and by then (P >= 1000 for automatic keys) the key is in the top band: **a
waiting key never drops a band**, and `next_crossing_ns` alone says when to look again. A consumer
that reads the topic meanwhile, or a new manual value, is a re-evaluation: ask again.

Bounds, for a key that stands at p points when it starts to wait (p constant, or recency >= 0):

* it reaches the band that starts at T within 10 ms * (T - p), if T - p <= 1000, else never;
* an automatic key (p >= 0) is in B4 within 7.5 s; a manual key reaches B4 only if p >= -250;
* every key leaves B0 within 10 s. A key at -1000 reaches exactly 0, which is B1, and stays there.

Arithmetic
----------
Points are counted in the waiting that earns them: 1 point = 10 ms = 10^7 ns, so the sum is exact in
integers and is rounded down once. 2^-x comes from a table with one entry per second of idleness,
joined by chords. A chord lies above the curve by at most 500 * (ln 2 / 30)^2 / 8 < 0.0334 points,
hence exact - 1 < P <= exact + 0.0334. The half point of recency left at 300 s (500 / 1024) fades
over one more second instead of dropping: that keeps the sum from falling, and P is then at most
0.49 above the exact value. Recency by itself, rounded down, is 0 from 300 s on.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import IntEnum
from types import MappingProxyType
from typing import Final

SECOND_NS: Final = 1_000_000_000
POINT_NS: Final = 10_000_000
"""The waiting that earns one point: 100 points a second."""

MANUAL_MIN: Final = -1000
MANUAL_MAX: Final = 1000
RECENCY_MAX: Final = 500
RECENCY_HALF_LIFE_NS: Final = 30 * SECOND_NS
RECENCY_FLOOR_NS: Final = 300 * SECOND_NS
BONUS_MAX: Final = 1000


class Band(IntEnum):
    """A weight class; a higher band is more urgent."""

    B0 = 0
    B1 = 1
    B2 = 2
    B3 = 3
    B4 = 4


WEIGHTS: Final = MappingProxyType({Band.B4: 8, Band.B3: 4, Band.B2: 2, Band.B1: 1, Band.B0: 1})
"""Turns per round, most urgent band first."""

THRESHOLDS: Final = (0, 250, 500, 750)
"""The least points of B1, B2, B3 and B4; whatever is below the first is B0."""

_BANDS: Final = tuple(Band)
_THRESHOLDS_NS: Final = tuple(points * POINT_NS for points in THRESHOLDS)
_BONUS_MAX_NS: Final = BONUS_MAX * POINT_NS

# One entry per second of idleness, rounded up so that a chord is never below the curve; the last
# entry is the 0 that the half point left at the floor fades to.
_FADE_NS: Final[tuple[int, ...]] = (
    *(
        math.ceil(RECENCY_MAX * POINT_NS * 2.0 ** (-second * SECOND_NS / RECENCY_HALF_LIFE_NS))
        for second in range(RECENCY_FLOOR_NS // SECOND_NS + 1)
    ),
    0,
)
_FADED_NS: Final = (len(_FADE_NS) - 1) * SECOND_NS


def recency(idle_ns: int) -> int:
    """Points for having been consumed `idle_ns` ago: 500, halved every 30 s, 0 from 300 s on."""
    return _recency_ns(idle_ns) // POINT_NS


def waiting_bonus(waited_ns: int) -> int:
    """Points for having waited: 100 per second, at most 1000 (after 10 s)."""
    return max(0, min(_BONUS_MAX_NS, waited_ns)) // POINT_NS


def effective(
    manual: int | None, auto: bool, last_consumed_ns: int | None, enqueued_ns: int, now_ns: int
) -> int:
    """The effective priority at `now_ns` of a key that has waited since `enqueued_ns`.

    `last_consumed_ns` is None if nobody ever consumed it; one in the future counts as this moment.
    A `now_ns` before `enqueued_ns` counts as `enqueued_ns`: clocks may step back, waiting may not.
    """
    return _score_ns(manual, auto, last_consumed_ns, enqueued_ns, now_ns) // POINT_NS


def band_of(points: int) -> Band:
    """The band that `points` of effective priority fall into."""
    return _BANDS[bisect_right(THRESHOLDS, points)]


def band_at(
    manual: int | None, auto: bool, last_consumed_ns: int | None, enqueued_ns: int, now_ns: int
) -> Band:
    """The band at `now_ns`; arguments as for `effective`. Never falls while the key waits."""
    score_ns = _score_ns(manual, auto, last_consumed_ns, enqueued_ns, now_ns)
    return _BANDS[bisect_right(_THRESHOLDS_NS, score_ns)]


def next_crossing_ns(
    manual: int | None, auto: bool, last_consumed_ns: int | None, enqueued_ns: int, now_ns: int
) -> int | None:
    """The wait, in ns since `enqueued_ns`, at which the key next enters a higher band.

    Exact to the nanosecond: `band_at` is higher than it is now at `enqueued_ns` + the answer, and
    not one nanosecond earlier. None if the key will not climb, however long it waits. Costs about
    ten times `band_at`, so ask for keys that outlived a tick rather than at every enqueue.
    """
    band = band_at(manual, auto, last_consumed_ns, enqueued_ns, now_ns)
    if band is Band.B4:
        return None
    target_ns = _THRESHOLDS_NS[band]
    # The wait needed depends on how far recency will have faded by then. Each round assumes the
    # recency of the last answer, an instant not after the true one; since recency only fades, the
    # rounds rise towards the true instant and stop on it. The error shrinks eightfold or better per
    # round (11.6 points against 100), so 10 s comes down to 1 ns in about a dozen rounds.
    at_ns = max(now_ns, enqueued_ns)
    while True:
        needed_ns = target_ns - _base_ns(manual, auto, last_consumed_ns, at_ns)
        if needed_ns > _BONUS_MAX_NS:
            return None
        if enqueued_ns + needed_ns <= at_ns:
            return needed_ns
        at_ns = enqueued_ns + needed_ns


# The functions below are the hot path: comparing costs a fraction of calling `min` and `max`.


def _score_ns(
    manual: int | None, auto: bool, last_consumed_ns: int | None, enqueued_ns: int, now_ns: int
) -> int:
    waited_ns = now_ns - enqueued_ns
    if waited_ns <= 0:
        return _base_ns(manual, auto, last_consumed_ns, enqueued_ns)
    bonus_ns = waited_ns if waited_ns < _BONUS_MAX_NS else _BONUS_MAX_NS
    return _base_ns(manual, auto, last_consumed_ns, now_ns) + bonus_ns


def _base_ns(manual: int | None, auto: bool, last_consumed_ns: int | None, now_ns: int) -> int:
    if manual is not None:
        if manual > MANUAL_MAX:
            return MANUAL_MAX * POINT_NS
        return (manual if manual > MANUAL_MIN else MANUAL_MIN) * POINT_NS
    if not auto or last_consumed_ns is None:
        return 0
    return _recency_ns(now_ns - last_consumed_ns)


def _recency_ns(idle_ns: int) -> int:
    if idle_ns >= _FADED_NS:
        return 0
    if idle_ns <= 0:
        return _FADE_NS[0]
    second = idle_ns // SECOND_NS
    high = _FADE_NS[second]
    return high - (high - _FADE_NS[second + 1]) * (idle_ns - second * SECOND_NS) // SECOND_NS

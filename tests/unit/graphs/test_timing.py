"""When time lets a firing pass."""

from __future__ import annotations

import pytest

from fairway import Source, debounce, every
from fairway.graphs.timing import Timing

S = 1_000_000_000
N = Source("n", int)


def test_looks_come_at_multiples_of_the_period_however_late_we_are() -> None:
    timing = Timing(every(10, N), 5 * S)
    assert timing.deadline_ns(6 * S) == 15 * S
    assert not timing.passes(15 * S - 1, 6 * S)
    assert timing.passes(37 * S, 6 * S)
    assert timing.deadline_ns(38 * S) == 45 * S


def test_looks_at_which_nothing_waited_are_over() -> None:
    timing = Timing(every(10, N), 0)
    assert timing.deadline_ns(None) is None
    timing.idled(9 * S)
    assert timing.deadline_ns(9 * S) == 10 * S
    timing.idled(34 * S)
    assert timing.deadline_ns(34 * S) == 40 * S
    assert not timing.passes(40 * S, None)


@pytest.mark.parametrize(("last_s", "quiet_s"), [(2, 3), (6, 7), (9, 9)])
def test_it_is_quiet_a_while_after_the_last_news_or_has_waited_long_enough(
    last_s: int, quiet_s: int
) -> None:
    timing = Timing(debounce(N, quiet_s=1, most_s=8), 0)
    timing.heard(last_s * S)
    assert timing.deadline_ns(1 * S) == quiet_s * S
    assert not timing.passes(quiet_s * S - 1, 1 * S)
    assert timing.passes(quiet_s * S, 1 * S)

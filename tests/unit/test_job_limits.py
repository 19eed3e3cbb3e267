"""How many jobs of a queue may start: concurrency, the token bucket, and both."""

from __future__ import annotations

import pytest

from fairway.jobs.job import Limits
from fairway.jobs.limits import SECOND_NS, UNLIMITED, Allowance, allowance


@pytest.mark.parametrize(
    ("limits", "running", "tokens", "since_s", "expected"),
    [
        (Limits(), 7, 0.0, 0, Allowance(UNLIMITED, 0.0, 0)),
        (Limits(concurrency=3), 1, 0.0, 0, Allowance(2, 0.0, 0)),
        (Limits(concurrency=3), 5, 0.0, 0, Allowance(0, 0.0, 0)),
        (Limits(rate_per_s=2, burst=5), 0, 0.0, 1, Allowance(2, 2.0, 0)),
        (Limits(rate_per_s=2, burst=5), 0, 4.0, 60, Allowance(5, 5.0, 0)),
        (Limits(rate_per_s=2, burst=5), 0, 0.5, 0, Allowance(0, 0.5, SECOND_NS // 4)),
        (Limits(rate_per_s=2, burst=5), 0, 1.0, -60, Allowance(1, 1.0, 0)),
        (Limits(rate_per_s=2, burst=5, concurrency=1), 0, 5.0, 0, Allowance(1, 5.0, 0)),
    ],
)
def test_what_may_start(
    limits: Limits, running: int, tokens: float, since_s: int, expected: Allowance
) -> None:
    assert allowance(limits, running, tokens, since_s * SECOND_NS) == expected

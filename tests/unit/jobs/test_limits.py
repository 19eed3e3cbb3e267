"""How many jobs of a queue may start: concurrency, the token bucket, and both."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairway.errors import Invalid
from fairway.jobs.job import Limits
from fairway.jobs.limits import SECOND_NS, UNLIMITED, StartAllowance, allowance, stored_limits
from fairway.wire.jobs import LIMIT_MAX, RATE_MIN


@pytest.mark.parametrize(
    ("limits", "running", "tokens", "since_s", "expected"),
    [
        (Limits(), 7, 0.0, 0, StartAllowance(UNLIMITED, 0.0, 0)),
        (Limits(concurrency=3), 1, 0.0, 0, StartAllowance(2, 0.0, 0)),
        (Limits(concurrency=3), 5, 0.0, 0, StartAllowance(0, 0.0, 0)),
        (Limits(rate_per_s=2, burst=5), 0, 0.0, 1, StartAllowance(2, 2.0, 0)),
        (Limits(rate_per_s=2, burst=5), 0, 4.0, 60, StartAllowance(5, 5.0, 0)),
        (Limits(rate_per_s=2, burst=5), 0, 0.5, 0, StartAllowance(0, 0.5, SECOND_NS // 4)),
        (Limits(rate_per_s=2, burst=5), 0, 1.0, -60, StartAllowance(1, 1.0, 0)),
        (Limits(rate_per_s=2, burst=5, concurrency=1), 0, 5.0, 0, StartAllowance(1, 5.0, 0)),
    ],
)
def test_what_may_start(
    limits: Limits, running: int, tokens: float, since_s: int, expected: StartAllowance
) -> None:
    assert allowance(limits, running, tokens, since_s * SECOND_NS) == expected


@pytest.mark.parametrize(
    "fields",
    [
        *({"rate_per_s": rate} for rate in (0, -1, math.nan, math.inf, -math.inf, 1e-320, 1e7)),
        *({"rate_per_s": 1.0, "burst": burst} for burst in (0, -3, math.nan, 2**40)),
        *({"concurrency": count} for count in (-1, 1.5, math.nan, 2**40)),
        {"rate_per_s": "1"},
        {"concurrency": True},
    ],
)
def test_what_cannot_be_kept_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        Limits(**fields)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, 0.0, 1), Limits(rate_per_s=RATE_MIN)),
        ((None, math.nan, 1), Limits(rate_per_s=RATE_MIN)),
        ((None, -2.0, 0), Limits(rate_per_s=RATE_MIN)),
        ((None, 1e-320, 1), Limits(rate_per_s=RATE_MIN)),
        ((None, math.inf, 2), Limits(rate_per_s=LIMIT_MAX, burst=2)),
        ((None, 2.0, -7), Limits(rate_per_s=2.0, burst=1)),
        ((-3, None, 1), Limits(concurrency=0)),
        ((2**30, None, 1), Limits(concurrency=LIMIT_MAX)),
        ((4, 2.5, 9), Limits(concurrency=4, rate_per_s=2.5, burst=9)),
        ((None, None, 1), Limits()),
    ],
)
def test_what_the_store_holds_and_cannot_be_kept_becomes_the_nearest_that_can(
    given: tuple[Any, Any, Any], expected: Limits, caplog: pytest.LogCaptureFixture
) -> None:
    queue = f"mail {given}"
    for _ in range(3):
        assert stored_limits(queue, *given) == expected
    kept = given == (expected.concurrency, expected.rate_per_s, expected.burst)
    assert len(caplog.records) == (0 if kept else 1)  # once, not at every claim


@pytest.mark.parametrize("tokens", [math.nan, math.inf, -math.inf, -1e300, 1e300])
def test_a_bucket_that_was_spoilt_holds_nothing_and_fills_again(tokens: float) -> None:
    limits = Limits(rate_per_s=RATE_MIN, burst=3)
    may = allowance(limits, 0, tokens, 0)
    assert 0 <= may.free <= 3
    assert 0 <= may.wait_ns <= SECOND_NS / RATE_MIN
    later = allowance(limits, 0, may.tokens, round(3 * SECOND_NS / RATE_MIN))
    assert later.free == 3

"""Decides how many jobs of a queue may start now, under its limits; stores keep the state.

Concurrency counts what runs over all workers. The rate is a token bucket: `rate_per_s` tokens a
second, `burst` at most; each start takes one. A clock that steps back brings no tokens.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Final, NamedTuple

from fairway.jobs.job import Limits
from fairway.wire.jobs import LIMIT_MAX, RATE_MIN

logger = logging.getLogger("fairway.jobs")

SECOND_NS: Final = 1_000_000_000
UNLIMITED: Final = 1 << 30


class StartAllowance(NamedTuple):
    """What a queue may start now."""

    free: int
    tokens: float
    """In the bucket now; what is started is to be taken away."""
    wait_ns: int
    """Until the next token, if the rate is what holds it back."""


def stored_limits(
    queue: str, concurrency: int | None, rate_per_s: float | None, burst: int
) -> Limits:
    """Limits as a store holds them, perhaps since before they were checked.

    What cannot be kept counts as the nearest that can, and is warned of once: a worker must not end
    at what somebody wrote long ago, at every start again.
    """
    many = None if concurrency is None else min(max(concurrency, 0), LIMIT_MAX)
    rate = rate_per_s
    if rate is not None:
        rate = min(rate, LIMIT_MAX) if rate >= RATE_MIN else RATE_MIN  # NaN is not >= anything
    saved = min(max(burst, 1), LIMIT_MAX)
    if (many, rate, saved) != (concurrency, rate_per_s, burst):
        given = f"concurrency {concurrency}, rate_per_s {rate_per_s}, burst {burst}"
        _warn(queue, given, f"concurrency {many}, rate_per_s {rate}, burst {saved}")
    return Limits(concurrency=many, rate_per_s=rate, burst=saved)


@lru_cache(maxsize=1024)
def _warn(queue: str, given: str, kept: str) -> None:
    logger.warning(
        "the limits of queue %r cannot be kept as they are (%s) and count as %s: set them anew",
        *(queue, given, kept),
    )


def allowance(limits: Limits, running: int, tokens: float, since_ns: int) -> StartAllowance:
    """What may start when `running` jobs run and the bucket held `tokens` `since_ns` ago."""
    free = UNLIMITED if limits.concurrency is None else max(0, limits.concurrency - running)
    rate = limits.rate_per_s
    if rate is None:
        return StartAllowance(free, tokens, 0)
    tokens = tokens if tokens > 0 else 0.0  # also one that a rate which was no number has spoilt
    tokens = min(float(limits.burst), tokens + max(0, since_ns) / SECOND_NS * rate)
    wait_ns = round(max(0.0, 1 - tokens) / rate * SECOND_NS)
    return StartAllowance(min(free, int(tokens)), tokens, wait_ns)

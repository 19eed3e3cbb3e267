"""Decides how many jobs of a queue may start now, under its limits. Pure; stores keep the state.

Concurrency counts what runs over all workers. The rate is a token bucket: `rate_per_s` tokens a
second, `burst` at most; each start takes one. A clock that steps back brings no tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fairway.jobs.job import Limits

SECOND_NS: Final = 1_000_000_000
UNLIMITED: Final = 1 << 30


class Allowance(NamedTuple):
    """What a queue may start now."""

    free: int
    tokens: float
    """In the bucket now; what is started is to be taken away."""
    wait_ns: int
    """Until the next token, if the rate is what holds it back."""


def allowance(limits: Limits, running: int, tokens: float, since_ns: int) -> Allowance:
    """What may start when `running` jobs run and the bucket held `tokens` `since_ns` ago."""
    free = UNLIMITED if limits.concurrency is None else max(0, limits.concurrency - running)
    rate = limits.rate_per_s
    if rate is None:
        return Allowance(free, tokens, 0)
    tokens = min(float(limits.burst), tokens + max(0, since_ns) / SECOND_NS * rate)
    wait_ns = round(max(0.0, 1 - tokens) / rate * SECOND_NS)
    return Allowance(min(free, int(tokens)), tokens, wait_ns)

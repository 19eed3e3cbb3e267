"""Decides how long to wait before trying again, and when to give up.

After the n-th failure in a row the wait d(n) = min(cap, base * 2^(n-1)), of which jitter takes away
a random share: (1 - jitter) * d(n) <= wait <= d(n). So n failures cost at most base * (2^n - 1) and
at most n * cap. Waiting, retrying and the random source are the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fairway.core.amounts import check_shares, check_whole


class RandomSource(Protocol):
    """Where jitter comes from; `random.Random` fits. Seeded by whoever owns it."""

    def random(self) -> float:
        """The next number in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffConfig:
    base_ns: int = 1_000_000_000
    """The wait after the first failure. Raising it spares what failed and delays recovery."""
    cap_ns: int = 60_000_000_000
    """The longest wait. Raising it spares what stays broken and notices its recovery later."""
    jitter: float = 0.25
    """The share of a wait that chance may take away. Raising it spreads a herd; 0 is exact."""
    reset_after_ns: int = 60_000_000_000
    """Health of this length forgets earlier failures. Raising it remembers flapping longer."""
    attempts_max: int | None = None
    """Tries in all, the first included; the failure of the last one is final. None: no limit."""

    def __post_init__(self) -> None:
        # Without health of some length no failure would be remembered.
        check_whole(self, base_ns=1, cap_ns=1, reset_after_ns=1)
        if self.attempts_max is not None:
            check_whole(self, attempts_max=1)
        check_shares(self, "jitter")
        if self.base_ns > self.cap_ns:
            raise ValueError("base_ns <= cap_ns")

    def ceiling_ns(self, failures: int) -> int:
        """The wait after that many failures in a row (at least 1), before jitter."""
        if failures < 1:
            raise ValueError(f"there is no wait after {failures} failures")
        # Past this many doublings the cap holds anyway: the shift stays small however large the
        # count, where base * 2**failures would build a number of that many bits.
        doublings_max = (self.cap_ns // self.base_ns).bit_length()
        return min(self.cap_ns, self.base_ns << min(failures - 1, doublings_max))

    def delay_ns(self, failures: int, source: RandomSource) -> int:
        """The wait after that many failures in a row, with jitter.

        Draws exactly one number, jitter or not, so that a seeded run keeps its later draws when
        jitter is changed.
        """
        ceiling_ns = self.ceiling_ns(failures)
        chance = source.random()
        assert 0.0 <= chance <= 1.0, f"random source gave {chance}"
        # The inner product may round up past a ceiling beyond 2**53 ns; a wait is never negative.
        return ceiling_ns - min(ceiling_ns, int(ceiling_ns * (self.jitter * chance)))

    def spent(self, failures: int) -> bool:
        """Whether that many failures use up the attempts."""
        return self.attempts_max is not None and failures >= self.attempts_max


class Backoff:
    """Counts the failures in a row of one thing that is tried again and again.

    Report each `failed`, and `recovered` when it is seen to work (not merely when it was started
    again: a thing that crashes slowly has not recovered). Failures are forgotten once
    `reset_after_ns` passes between the first `recovered` and the next `failed`. A clock that steps
    back makes health look shorter, so it can delay forgetting but not cause it.
    """

    def __init__(self, config: BackoffConfig, source: RandomSource) -> None:
        self._config = config
        self._source = source
        self._failures = 0
        self._healthy_since_ns: int | None = None

    def failed(self, now_ns: int) -> int | None:
        """Count a failure. How long to wait before the next try, or None to give up."""
        self._failures = self.failures(now_ns) + 1
        self._healthy_since_ns = None
        if self._config.spent(self._failures):
            return None
        return self._config.delay_ns(self._failures, self._source)

    def recovered(self, now_ns: int) -> None:
        """Note that it works. Repeating this while it stays healthy changes nothing."""
        if self._healthy_since_ns is None:
            self._healthy_since_ns = now_ns

    def ailing(self, now_ns: int) -> None:
        """Note that it does not work just now, though it did not fail: health begins anew."""
        self._failures = self.failures(now_ns)
        self._healthy_since_ns = None

    def failures(self, now_ns: int) -> int:
        """How many failures in a row still count at `now_ns`."""
        since_ns = self._healthy_since_ns
        if since_ns is not None and now_ns - since_ns >= self._config.reset_after_ns:
            return 0
        return self._failures

    def check(self) -> None:
        """Assert every invariant."""
        assert self._failures >= 0
        if self._failures:
            assert self._config.base_ns <= self._config.ceiling_ns(self._failures)
            assert self._config.ceiling_ns(self._failures) <= self._config.cap_ns

"""When time lets a firing pass: at looks that come regularly, once it is quiet, or both. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairway.graphs.criteria import Criterion


class Timing:
    """What a criterion says about time, and how far it is. Its callers know what waits."""

    def __init__(self, criterion: Criterion, now_ns: int) -> None:
        self._criterion = criterion
        self._next_ns = now_ns + criterion.period_ns if criterion.period_ns else 0
        self._last_ns = 0

    def heard(self, now_ns: int) -> None:
        """There is news: it is not quiet."""
        self._last_ns = now_ns

    def idled(self, now_ns: int) -> None:
        """At the looks up to now there was nothing to see."""
        if self._next_ns and now_ns >= self._next_ns:
            self._skip_to(now_ns)

    def passes(self, now_ns: int, since_ns: int | None) -> bool:
        """Whether what waits since then may pass now; None if nothing does."""
        criterion = self._criterion
        look_ns = now_ns
        if criterion.period_ns:
            if now_ns < self._next_ns:
                return False
            self._skip_to(now_ns)
            look_ns = self._next_ns - criterion.period_ns  # we may be late
        if criterion.always:
            return True
        if since_ns is None:
            return False
        return not criterion.quiet_ns or look_ns >= self._quiet_at_ns(since_ns)

    def deadline_ns(self, since_ns: int | None) -> int | None:
        """When that may pass at the earliest, or None if only news can change the answer."""
        criterion = self._criterion
        if criterion.always:
            return self._next_ns
        if since_ns is None:
            return None
        if not criterion.quiet_ns:
            return self._next_ns
        quiet_ns = self._quiet_at_ns(since_ns)
        if not criterion.period_ns:
            return quiet_ns
        looks = max(0, -(-(quiet_ns - self._next_ns) // criterion.period_ns))
        return self._next_ns + looks * criterion.period_ns

    def _quiet_at_ns(self, since_ns: int) -> int:
        quiet_ns = self._last_ns + self._criterion.quiet_ns
        most_ns = self._criterion.most_ns
        return min(quiet_ns, since_ns + most_ns) if most_ns else quiet_ns

    def _skip_to(self, now_ns: int) -> None:
        """The next look is at the first multiple of the period after now."""
        period_ns = self._criterion.period_ns
        self._next_ns += ((now_ns - self._next_ns) // period_ns + 1) * period_ns

"""Bands that get no turns for a while, because the governor said so, and for how long.

What waits on orders is not late: counted as delay, it would raise the pressure that ordered it, and
a short burst would be followed by pressure for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from fairway.core.priority import Band
    from fairway.core.ready import Ready


class Withholding:
    """Withholds bands of a ready queue, and remembers how long."""

    def __init__(self, ready: Ready[Any, Band]) -> None:
        self._ready = ready
        self._since_ns: dict[Band, int] = {}  # of those withheld now
        self._total_ns: dict[Band, int] = {}  # of past times

    def __contains__(self, band: Band) -> bool:
        return band in self._since_ns

    def only(self, bands: AbstractSet[Band], now_ns: int) -> None:
        """Withhold these from now on, and no others."""
        for band in self._since_ns.keys() - bands:
            self._ready.restore(band)
            self._total_ns[band] = self.held_ns(band, now_ns)
            del self._since_ns[band]
        for band in bands - self._since_ns.keys():
            self._ready.withhold(band)
            self._since_ns[band] = now_ns

    def held_ns(self, band: Band, now_ns: int) -> int:
        """For how long a band got no turns so far, all times together."""
        held_ns = self._total_ns.get(band, 0)
        since_ns = self._since_ns.get(band)
        return held_ns if since_ns is None else held_ns + now_ns - since_ns

    def depth(self) -> int:
        """How many keys wait that could be served."""
        return sum(n for band, n in self._ready.depths().items() if band not in self._since_ns)

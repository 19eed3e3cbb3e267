"""Who is served next: requests begin a few at a time, urgent topics first, none of them starved.

An event loop serves whatever is readable, all of it, before it looks at anything else; under load a
request then waits for every one that came with it. Here at most `PER_TURN` begin in one turn of the
loop, and as many more of the most urgent topics. The rest wait by topic, each topic at most once in
line, in the band of its priority, as for delivery. What does not fit the bound is refused at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fairway.core.lanes import LaneLimits, Lanes
from fairway.core.priority import WEIGHTS, Band
from fairway.core.ready import Ready
from fairway.errors import Throttled

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.server")

PER_TURN: Final = 12
"""Requests begun in one turn of the loop, and as many urgent ones: about a millisecond of work."""
WAITING_MAX: Final = 4096
LIMITS: Final = LaneLimits(items=WAITING_MAX, size=WAITING_MAX)


class Gate:
    """Lets requests in. On an idle server that is one comparison."""

    def __init__(
        self,
        clock: Clock,
        band_of: Callable[[str], Band],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """`band_of` tells the band of a key, asked whenever it gets in line. `meanwhile` is called
        between two requests: for what should not wait for the end of the turn."""
        self._clock = clock
        self._band_of = band_of
        self._meanwhile = meanwhile
        self._begun = self._urgent = 0
        self._lanes: Lanes[str, Callable[[], object]] = Lanes(LIMITS, total=LIMITS)
        self._ready: Ready[str, Band] = Ready(WEIGHTS)
        self._bands: dict[str, Band] = {}  # of those in line
        self._loop = asyncio.get_running_loop()

    @property
    def fill(self) -> float:
        """How full the line is, 0 to 1."""
        return self._lanes.depth / WAITING_MAX

    def passes(self) -> bool:
        """Whether a request may begin now; it is counted then. Else it must `wait`."""
        if self._begun >= PER_TURN or self._lanes.depth:
            return False
        if not self._begun:
            self._loop.call_soon(self._turn)
        self._begun += 1
        return True

    def wait(self, key: str, begin: Callable[[], object]) -> None:
        """Call `begin` in a turn to come; in this one, if it is urgent and few such were.

        Raises `Throttled` if the line is full.
        """
        in_line = key in self._bands
        band = Band.B0 if in_line else self._band_of(key)
        if band is Band.B4 and self._urgent < PER_TURN:
            self._urgent += 1
            begin()
            self._meanwhile()
            return
        now_ns = self._clock.now_ns()
        refusal = self._lanes.offer(key, begin, 1, now_ns)
        if refusal is not None:
            raise Throttled(
                f"{WAITING_MAX:,} requests wait already",
                retry_after_ns=refusal.retry_after_ns,
                limit="waiting_requests",
                maximum=WAITING_MAX,
            )
        if not in_line:
            self._line_up(key, band, now_ns)
        self._meanwhile()

    def _line_up(self, key: str, band: Band, now_ns: int) -> None:
        self._bands[key] = band
        self._ready.mark(key, band, now_ns)

    def _turn(self) -> None:
        """A new turn of the loop: let the next few in."""
        self._begun = self._urgent = 0
        now_ns = self._clock.now_ns()
        while self._begun < PER_TURN and (key := self._ready.take()) is not None:
            count = 1 if len(self._ready) else PER_TURN - self._begun  # alone, it has all turns
            begins = self._lanes.drain(key, items=count, size=count).items
            if self._lanes.settle(key, len(begins), len(begins), now_ns):
                self._line_up(key, self._band_of(key), now_ns)
            else:
                del self._bands[key]
            self._ready.release(key, now_ns)
            self._begun += len(begins)
            for begin in begins:
                try:
                    begin()
                    self._meanwhile()
                except Exception:  # or nobody behind it would ever begin
                    logger.exception("a request could not begin")
        if self._begun:
            self._loop.call_soon(self._turn)

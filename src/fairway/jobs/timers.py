"""Makes ready what is due, to the millisecond for what this worker knows of.

A look at the store says when the next timer is due; a delay that passes through this worker is
given to `expect`. What others schedule meanwhile is noticed at the next look.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from fairway.errors import FairwayError
from fairway.runtime.clock import clock_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairway.jobs.job import ReadyLine
    from fairway.jobs.store import JobStore

logger = logging.getLogger("fairway.jobs")

BATCH = 1_000
LOCKED_PAUSE_NS = 1_000_000
"""How soon timers are looked at again that are due and that another worker is just taking."""


class Timers:
    """A service that looks at the timers of a store when one is due, and now and then."""

    name = "job-timers"

    def __init__(
        self, store: JobStore, wake: Callable[[Iterable[ReadyLine]], None], interval_ns: int
    ) -> None:
        self._store = store
        self._wake = wake
        self._interval_ns = interval_ns
        self._look = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_ns = 0

    async def run(self) -> None:
        """Look until cancelled."""
        clock = clock_of()
        loop = asyncio.get_running_loop()
        try:
            while True:
                wait_ns = await self._promote()
                self._next_ns = clock.now_ns() + wait_ns
                self._timer = loop.call_later(wait_ns / 1e9, self._look.set)
                await self._look.wait()
                self._look.clear()
                self._timer.cancel()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def expect(self, delay_ns: int) -> None:
        """Something will be due after this long."""
        at_ns = clock_of().now_ns() + delay_ns
        if at_ns < self._next_ns and self._timer is not None:
            self._next_ns = at_ns
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._look.set)

    async def _promote(self) -> int:
        try:
            promoted = await self._store.promote(BATCH)
        except FairwayError as error:
            logger.warning("timers could not be looked at: %s", error)
            return self._interval_ns
        self._wake(promoted.lines)
        if promoted.next_due_ns is None:
            return self._interval_ns
        least_ns = 0 if promoted.moved else LOCKED_PAUSE_NS
        return min(self._interval_ns, max(least_ns, promoted.next_due_ns))

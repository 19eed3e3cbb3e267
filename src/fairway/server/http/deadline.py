"""How long a client may take, as one deadline at a time.

A timer chases it lazily: moving the deadline back, as each request does, costs a clock reading and
no timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.server.http.limits import SECOND_NS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Deadline:
    """Calls `missed` on the loop once the time is over that was last granted."""

    __slots__ = ("_due_ns", "_loop", "_missed", "_now_ns", "_timer", "_timer_ns")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ns: Callable[[], int],
        missed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._now_ns = now_ns
        self._missed = missed
        self._due_ns = 0  # 0: there is none
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0  # when the timer fires

    def grant(self, within_ns: int) -> None:
        """Have patience for so long, in place of any deadline before."""
        self._due_ns = self._now_ns() + within_ns
        if self._timer is not None:
            if self._timer_ns <= self._due_ns:
                return  # it will look again when it fires
            self._timer.cancel()
        self._chase(within_ns)

    def lift(self) -> None:
        """There is no deadline: it is our turn."""
        self._due_ns = 0

    def end(self) -> None:
        """There will be none any more."""
        self._due_ns = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _chase(self, within_ns: int) -> None:
        self._timer_ns = self._due_ns
        self._timer = self._loop.call_later(within_ns / SECOND_NS, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._due_ns:
            return
        left_ns = self._due_ns - self._now_ns()
        if left_ns > 0:
            self._chase(left_ns)
        else:
            self._due_ns = 0
            self._missed()

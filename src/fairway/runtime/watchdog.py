"""Notices that the event loop is blocked, while it is, and reports by what.

A timer on the loop notes the time again and again, and a thread reads what it noted. If that was
too long ago, the stack of the loop's thread shows what it is doing. There is no thread on a loop of
virtual time: nothing blocks there.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

from fairway.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TICK_S = 0.2
LIMIT_NS = 500_000_000
"""A loop that is silent for so long is blocked."""


class Stall(NamedTuple):
    """What blocks the loop."""

    lasted_ns: int
    """How long it has, when this was noticed."""
    frames: list[FrameType]
    """What runs there, innermost first."""


class Watchdog:
    """Watches the running loop from `start` to `stop`. `on_stall` is called in another thread."""

    def __init__(self, on_stall: Callable[[Stall], None], *, limit_ns: int = LIMIT_NS) -> None:
        self._on_stall = on_stall
        self._limit_ns = limit_ns
        self._ticked_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if getattr(self._loop, "clock", None) is not None:
            return
        self._loop_thread = threading.get_ident()
        self._tick()
        self._thread = threading.Thread(target=self._watch, name="fairway-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _tick(self) -> None:
        self._ticked_ns = SYSTEM_CLOCK.now_ns()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _watch(self) -> None:
        reported_ns = 0
        while not self._ended.wait(TICK_S):
            ticked_ns = self._ticked_ns
            silent_ns = SYSTEM_CLOCK.now_ns() - ticked_ns
            if silent_ns < self._limit_ns or ticked_ns == reported_ns:
                continue
            reported_ns = ticked_ns  # once for each time it is blocked
            frame = sys._current_frames().get(self._loop_thread)
            frames = []
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            self._on_stall(Stall(silent_ns, frames))

"""Notices that the event loop is blocked, while it is, and says by what.

A thread looks whether the loop still beats. If it has not for a while, the stack of the loop's
thread tells what it is doing. There is none on a loop of virtual time: nothing blocks there.
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

BEAT_S = 0.2
LIMIT_NS = 500_000_000
"""A loop that is silent for so long is blocked."""


class Stall(NamedTuple):
    """What blocks the loop."""

    lasted_ns: int
    """How long it has, when this was noticed."""
    frames: list[FrameType]
    """What runs there, innermost first."""


class Watchdog:
    """Beats on the running loop from `start` to `stop`. `told` is called in another thread."""

    def __init__(self, told: Callable[[Stall], None], *, limit_ns: int = LIMIT_NS) -> None:
        self._told = told
        self._limit_ns = limit_ns
        self._beat_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        if getattr(self._loop, "clock", None) is not None:
            return
        self._loop_thread = threading.get_ident()
        self._beat()
        self._thread = threading.Thread(target=self._watch, name="fairway-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        self._beat_ns = SYSTEM_CLOCK.now_ns()
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _watch(self) -> None:
        told_of = 0
        while not self._ended.wait(BEAT_S):
            beat_ns = self._beat_ns
            silent_ns = SYSTEM_CLOCK.now_ns() - beat_ns
            if silent_ns < self._limit_ns or beat_ns == told_of:
                continue
            told_of = beat_ns  # once for each time it is blocked
            frame = sys._current_frames().get(self._loop_thread)
            frames = []
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            self._told(Stall(silent_ns, frames))

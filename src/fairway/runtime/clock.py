"""Where time comes from: integer nanoseconds, from the system or from the event loop.

Nothing outside `runtime` reads a clock. A part takes a `Clock`, or `now_ns` itself if it is pure.
`clock_of(loop)` gives a part the clock of the loop it runs on, so the same code counts real
nanoseconds in production and virtual ones under `fairway.testing`.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. Differences of `now_ns` are durations; `wall_ns` is a date."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds from an arbitrary start. Never goes back."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 in UTC. May be set forwards or back by a person."""
        ...


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)  # not wrapped: it is called for each append
    wall_ns = staticmethod(time.time_ns)


class LoopClock:
    """The time of an event loop, `loop.time()`, as integer nanoseconds.

    The loop speaks float seconds. Under the virtual loop, whose time starts at 0, the conversion
    gives back the exact nanosecond for the first 26 virtual days. On a real loop the float is good
    to a nanosecond, but uvloop reads its clock once per iteration and in milliseconds: to measure
    short durations prefer `clock_of(loop)`.
    """

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop if loop is not None else asyncio.get_running_loop()

    def now_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def wall_ns(self) -> int:
        return clock_of(self._loop).wall_ns()


SYSTEM_CLOCK = SystemClock()

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime_ns() -> int:
    """Monotonic nanoseconds that go on counting while the machine is suspended, where the system
    has such a clock (Linux: CLOCK_BOOTTIME).

    For what others measure meanwhile, such as a lease: `now_ns` stands still in a laptop that
    sleeps, and whoever went by it would wake up believing that no time has passed.
    """
    return time.clock_gettime_ns(_BOOTTIME)


def clock_of(loop: asyncio.AbstractEventLoop | None = None) -> Clock:
    """The clock that belongs to `loop` (the running one if not given).

    A loop on virtual time carries its own in `loop.clock`; every other loop runs on the system's.
    """
    if loop is None:
        loop = asyncio.get_running_loop()
    own: Clock | None = getattr(loop, "clock", None)
    return SYSTEM_CLOCK if own is None else own


def pause_for_threads() -> None:
    """Stop this thread, and so its loop, for as long as another takes to wake up: under 0.1 ms."""
    time.sleep(1e-6)


async def sleep_ns(delay_ns: int) -> None:
    """Sleep on the running loop's time. Zero or less only lets other tasks run."""
    await asyncio.sleep(max(0, delay_ns) / 1_000_000_000)

"""The client's own clock: it lives in other people's processes, without our runtime.

With `runtime/clock.py` the only place that reads the time; whoever tests a client gives it another.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class ClientClock(Protocol):
    """How a client knows the time and waits."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...

    def sleep_ns(self, delay_ns: int) -> None:
        """Block this thread."""
        ...

    async def wait_ns(self, delay_ns: int) -> None:
        """Let other tasks run meanwhile."""
        ...


class SystemClientClock:
    """The clock of this machine."""

    __slots__ = ()

    now_ns = staticmethod(time.monotonic_ns)

    def sleep_ns(self, delay_ns: int) -> None:
        time.sleep(max(0, delay_ns) / 1_000_000_000)

    async def wait_ns(self, delay_ns: int) -> None:
        await asyncio.sleep(max(0, delay_ns) / 1_000_000_000)


SYSTEM_CLIENT_CLOCK = SystemClientClock()

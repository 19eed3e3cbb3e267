"""Calls a synchronous function again and again on a thread of its own.

A lease is renewed so: an event loop that is busy, or blocked by a user's code, must not delay that.
A loop on virtual time has no threads, so there the ticker is a task like any other.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ThreadTicker:
    """A service that calls `tick` at once and then every `interval_ns`, until it is cancelled.

    `tick` must not raise; it is called on the ticker's thread, may block it, and returns how long
    to wait until the next call (None: `interval_ns`). `end` is called on the same thread at the
    end.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], int | None],
        interval_ns: int,
        *,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._tick = tick
        self._interval_ns = interval_ns
        self._end = end
        self._report_end: Callable[[], object] = lambda: None
        self._ended = threading.Event()
        self._woken = threading.Event()
        self._woken_virtually = asyncio.Event()

    def tick_now(self) -> None:
        """Do not wait for the next time. From the event loop."""
        self._woken.set()
        self._woken_virtually.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        if is_virtual(loop):
            try:
                while True:
                    self._woken_virtually.clear()
                    wait_ns = self._tick()
                    wait_s = (self._interval_ns if wait_ns is None else wait_ns) / 1e9
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._woken_virtually.wait()
            finally:
                self._end()
        ended: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=self._go_on, name=self.name, daemon=True)

        def note_end() -> None:
            if not ended.done():
                ended.set_result(None)

        self._report_end = partial(loop.call_soon_threadsafe, note_end)
        thread.start()
        try:
            await asyncio.shield(ended)
            raise RuntimeError(f"{self.name} ended although nobody stopped it")
        finally:
            self._ended.set()
            self._woken.set()

    def _go_on(self) -> None:
        try:
            while True:
                self._woken.clear()
                if self._ended.is_set():
                    return
                wait_ns = self._tick()
                self._woken.wait((self._interval_ns if wait_ns is None else wait_ns) / 1e9)
        finally:
            self._end()
            if not self._ended.is_set():
                self._report_end()


def is_virtual(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop runs on virtual time, and so has no threads."""
    return getattr(loop, "clock", None) is not None

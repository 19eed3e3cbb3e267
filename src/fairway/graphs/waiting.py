"""How callers wait for a graph: until something changes, or for the outcome of what they asked."""

from __future__ import annotations

import asyncio
from typing import Any


class Broadcast:
    """Wakes everybody who waits for it; each of them looks whether what they wait for is there."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            raise

    def notify_all(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            resolve(waiter)


class Promises:
    """Futures that callers wait for: they fail at the end of the graph, if nothing settled them."""

    def __init__(self) -> None:
        # In the order in which they were made, in which they are failed: the same in each run.
        self._made: dict[asyncio.Future[Any], None] = {}
        self._loop = asyncio.get_running_loop()

    def make(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._made[future] = None
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: asyncio.Future[Any]) -> None:
        del self._made[future]

    def fail_all(self, error: Exception) -> None:
        for future in list(self._made):
            fail(future, error)


def resolve(future: asyncio.Future[Any], result: Any = None) -> None:
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)

"""Callers who may have to wait for a unique key that an open transaction holds.

Somebody's transaction may hold a key for as long as they like, and whoever waits for it in the
database has a connection meanwhile. So a call only tries first, for a moment. If that was in vain
it stands in a line of this process, of which the first few wait in the database. Its time counts
from the call, wherever it stands, and connections are left for those who wait for nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from fairway.errors import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections

T = TypeVar("T")

TRY_MS = 50
"""How long a call tries. Raising it spares the line those that meet a short transaction, and holds
up for longer those who try behind them. Where many try at once, each tries for less."""
FREE = 2
"""Connections that are left to calls that wait for no key."""


class WaitingLine:
    """Transactions that ask for unique keys, on some of the connections at most."""

    def __init__(self, connections: Connections, size: int, lock_timeout_ms: int) -> None:
        self._connections = connections
        self._lock_timeout_ms = lock_timeout_ms
        asking = max(1, size - FREE)
        self._most_asking = asking
        self._asking = asyncio.Semaphore(asking)
        self._calls = 0
        self._waiting = asyncio.Semaphore(max(1, min(size // 2, asking - 1)))

    async def transaction(self, work: Callable[[AsyncpgConnection, int], Awaitable[T]]) -> T:
        """Run `work` in a transaction. It is given how many milliseconds to wait for locks, and is
        run a second time if the first one met a lock for longer than that.

        Raises `LockTimeout` when the time of the call is over, and not without a last look: what
        kept it in line need not be what it asks for.
        """
        clock = asyncio.get_running_loop()
        until_s = clock.time() + self._lock_timeout_ms / 1000
        self._calls += 1
        try:
            return await self._transaction(work, clock, until_s)
        finally:
            self._calls -= 1

    async def _transaction(
        self,
        work: Callable[[AsyncpgConnection, int], Awaitable[T]],
        clock: asyncio.AbstractEventLoop,
        until_s: float,
    ) -> T:
        try:
            return await self._ask(work, lambda: min(self._try_ms(), self._lock_timeout_ms))
        except LockTimeout:
            if self._lock_timeout_ms <= TRY_MS:
                raise
        try:
            async with asyncio.timeout_at(until_s):
                await self._waiting.acquire()
        except TimeoutError:
            return await self._ask(work, lambda: 1)
        try:
            return await self._ask(work, lambda: max(1, int((until_s - clock.time()) * 1000)))
        finally:
            self._waiting.release()

    def _try_ms(self) -> int:
        return max(1, TRY_MS * self._most_asking // max(self._most_asking, self._calls))

    async def _ask(
        self, work: Callable[[AsyncpgConnection, int], Awaitable[T]], most_ms: Callable[[], int]
    ) -> T:
        async with self._asking:
            return await self._connections.transaction(
                lambda connection: work(connection, most_ms())
            )

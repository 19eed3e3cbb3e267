"""So many in one turn of the event loop: for what may go before its turn, and must stay rare."""

from __future__ import annotations

import asyncio


class PerTurn:
    """An allowance that each turn of the loop renews."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def take(self, limit: int, count: int = 1) -> bool:
        """Whether `count` more are within `limit` in this turn; they are taken then."""
        if self._taken + count > limit:
            return False
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._renew)
        self._taken += count
        return True

    def _renew(self) -> None:
        self._taken = 0

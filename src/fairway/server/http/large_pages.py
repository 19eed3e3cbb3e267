"""Large answers: room for one is reserved before it is read, and few of them are built at once.

What an answer may cost is taken from the budget that counts it once it is written (`HeldBytes`), so
that it is counted from before it is read until its client has read it. A page of more than `step`
is read and encoded in steps of about so much, with a turn of the loop after each. Only a few such
pages are built at any time (`pages_at_once`); the others wait, keys in turn, so that one key's do
not hold up those of another. Nobody keeps a place while it waits for its client: a page is built,
written and left.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from fairway.runtime.turn import TURN
from fairway.server.http.held_bytes import FREE
from fairway.server.http.read_turns import Holders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable, Iterator

    from fairway.runtime.turn import TurnBudget
    from fairway.server.http.held_bytes import HeldBytes


class PageReservation:
    """Room for one answer that is being built."""

    __slots__ = ("_held", "size")

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self.size = 0

    def cover(self, size: int) -> bool:
        """Have room for so much at least; False if there is none, and then it is as before."""
        more = size - self.size
        if more > 0:
            if not self._held.take(more):
                return False
            self.size = size
        return True

    def end(self) -> None:
        self._held.give(self.size)
        self.size = 0


class LargePages:
    """Room and turns for large answers. One for each server."""

    def __init__(self, held: HeldBytes, *, turn: TurnBudget = TURN) -> None:
        self.step = turn.page_step_bytes
        """Bytes that are read and encoded in one turn of the loop."""
        self._held = held
        self._most = turn.pages_at_once
        self._building = 0
        self._waiting: Holders[asyncio.Future[None]] = Holders()

    @contextmanager
    def reserve(self, size: int) -> Iterator[PageReservation]:
        """Room for an answer of about so many bytes; it ends in the step that writes the answer.

        Raises `Throttled` if there is none. An answer that is small needs no room.
        """
        room = PageReservation(self._held)
        if size > FREE and not room.cover(size):
            raise self._held.throttled()
        try:
            yield room
        finally:
            room.end()

    @asynccontextmanager
    async def turn(self, holder: Hashable) -> AsyncIterator[None]:
        """Wait until it is the turn of a page of this holder, and keep others from theirs."""
        if self._building >= self._most:
            await self._wait(holder)
        else:
            self._building += 1
        try:
            yield
        finally:
            self._leave()

    async def _wait(self, holder: Hashable) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(turn, holder)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.discard(turn)
            if not turn.cancelled():  # it was given the turn, and does not take it
                self._leave()
            raise

    def _leave(self) -> None:
        """Hand the turn to whoever is next, if anybody waits."""
        while len(self._waiting):
            for turn in self._waiting.take(1):
                if not turn.done():
                    turn.set_result(None)
                    return
        self._building -= 1

"""Hears the clients, a bounded number in each turn of the loop: the shell around `read_turns`.

While few have something to say it is a comparison and an addition for each read. Whoever comes
later in a turn is held: its bytes wait, unparsed, until it is the turn of its connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairway.runtime.turn import TURN
from fairway.server.http.read_turns import ReadTurns, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fairway.runtime.turn import TurnBudget

logger = logging.getLogger("fairway.server")


class HeldConnection(Protocol):
    """A connection whose bytes are held."""

    def read_held(self) -> None:
        """It is its turn."""
        ...


class LineState(NamedTuple):
    """How the line of accepted requests is, for `ReadTurns.take`."""

    room: int
    kept: int
    working: bool


class Door:
    """One for each server. Made anywhere, used on one loop."""

    def __init__(
        self, line_state: Callable[[], LineState | None], *, turn: TurnBudget = TURN
    ) -> None:
        """`line_state` returns None while there is no line: then all may be read."""
        self._line_state = line_state
        self._turns: ReadTurns[HeldConnection] = ReadTurns(turn=turn)
        self._per_turn = turn.reads_per_turn
        self._plenty = LineState(self._per_turn, 0, False)
        self._left = self._per_turn  # of this turn; none while somebody waits
        self._expected = False  # a turn is coming
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        """How many are held."""
        return len(self._turns)

    def passes(self) -> bool:
        """Whether a client may be read now; it is counted then. Else it must `wait`."""
        if not self._left:
            return False
        if not self._expected:
            self._expect_turn()
        self._left -= 1
        return True

    def wait(self, connection: HeldConnection, standing: Standing, holder: Hashable) -> None:
        """Read it in a turn to come."""
        self._turns.wait(connection, standing, holder)
        self._left = 0
        if not self._expected:
            self._expect_turn()

    def leave(self, connection: HeldConnection) -> None:
        """It is gone, or was read for another reason."""
        self._turns.leave(connection)

    def _expect_turn(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._expected = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """A new turn of the loop: hear those who wait."""
        self._expected = False
        if not self._turns:
            self._left = self._per_turn
            return
        room, kept, working = self._line_state() or self._plenty
        taken = self._turns.take(room=room, kept=kept, working=working)
        self._left = 0 if self._turns else max(self._per_turn - len(taken), 0)
        for connection in taken:
            try:
                connection.read_held()
            except Exception:  # or nobody behind it would ever be read
                logger.exception("a request could not be read")
        if not self._expected:
            self._expect_turn()

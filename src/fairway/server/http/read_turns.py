"""Which connection is read next when more have something to say than one turn of the loop can hear.

Reading and refusing cost as much as a small append. Clients that repeat a refused request at once
would have all of the server's time if each of them was answered as soon as it spoke. So in a turn
only so many are read, by their standing, and refusals come out of a share of their own:

* probes (`/healthz`, `/readyz`, `/metrics`): `probe_reads_per_turn`;
* open WebSockets that sent more than a few messages: `socket_reads_per_turn`;
* those that come back after the time they were told to wait: as many as the line has room for, and
  they have it first; the rest of them wait for more;
* those that are known: as many as the line has room for without the places kept for the former;
* if there is none, `refusals_per_turn` of these are read all the same, to be told so;
* new ones and strangers: `new_reads_per_turn` and `stranger_reads_per_turn`; `idle_reads_per_turn`
  if nobody works.

The numbers are those of `TurnBudget`.

Within a standing, holders (keys, or addresses) take turns, and each one's connections are in order.
The bound: with h holders of that standing, n connections of its own ahead of it and b reads a turn,
a connection is read after at most ceil((n + 1) * h / b) turns. What is read is left to others.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from fairway.runtime.turn import TURN

if TYPE_CHECKING:
    from collections.abc import Hashable

    from fairway.runtime.turn import TurnBudget

T = TypeVar("T")


class Standing(enum.IntEnum):
    """What is known of whoever waits to be read; the lower, the earlier it is read."""

    PROBE = 0
    """It asks how the server is."""
    OPEN = 1
    """It is an open WebSocket, with more messages than one turn has time for."""
    RETURNING = 2
    """It was told when to come back, and waited for so long."""
    KNOWN = 3
    """It has shown a key that is good, or was served by a server without keys."""
    NEW = 4
    """It was not read yet."""
    STRANGER = 5
    """It was read and showed no key that is good."""


class Holders(Generic[T]):
    """What waits for the same: holders in turn, the connections of each in order."""

    __slots__ = ("_items", "_queues", "_ring")

    def __init__(self) -> None:
        self._items: dict[T, Hashable] = {}
        self._queues: dict[Hashable, deque[T]] = {}
        self._ring: deque[Hashable] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: T) -> bool:
        return item in self._items

    def add(self, item: T, holder: Hashable) -> None:
        self._items[item] = holder
        queue = self._queues.get(holder)
        if queue is None:
            queue = self._queues[holder] = deque()
            self._ring.append(holder)
        queue.append(item)

    def discard(self, item: T) -> None:
        """Its place goes when its turn comes: to look for it now would take as long as the line."""
        self._items.pop(item, None)

    def take(self, most: int) -> list[T]:
        """The next ones, `most` of them at most."""
        taken: list[T] = []
        items, queues, ring = self._items, self._queues, self._ring
        while len(taken) < most and items:
            holder = ring[0]
            queue = queues[holder]
            item = queue.popleft()
            if not queue:
                del queues[holder]
                ring.popleft()
            elif len(ring) > 1:
                ring.rotate(-1)
            if items.pop(item, None) is not None:
                taken.append(item)
        if not items and ring:  # what is left has gone already
            queues.clear()
            ring.clear()
        return taken


class ReadTurns(Generic[T]):
    """Connections that wait to be read. Each waits at most once."""

    def __init__(self, *, turn: TurnBudget = TURN) -> None:
        self._turn = turn
        self._waiting = {standing: Holders[T]() for standing in Standing}
        self._standing: dict[T, Standing] = {}

    def __len__(self) -> int:
        return len(self._standing)

    def __contains__(self, item: T) -> bool:
        return item in self._standing

    def wait(self, item: T, standing: Standing, holder: Hashable) -> None:
        """`item` has something to say."""
        assert item not in self._standing, "whoever waits does not wait twice"
        self._standing[item] = standing
        self._waiting[standing].add(item, holder)

    def leave(self, item: T) -> None:
        """It waits no more, if it did."""
        standing = self._standing.pop(item, None)
        if standing is not None:
            self._waiting[standing].discard(item)

    def take(self, *, room: int, kept: int, working: bool) -> list[T]:
        """Who is read in this turn, in order.

        `room` is how many requests the line takes, `kept` how many of those places are for whoever
        returns. `working` says that accepted requests wait for their turn, or begin in it.
        """
        waiting, turn = self._waiting, self._turn
        taken = waiting[Standing.PROBE].take(turn.probe_reads_per_turn)
        taken += waiting[Standing.OPEN].take(turn.socket_reads_per_turn)
        returning = waiting[Standing.RETURNING].take(min(turn.reads_per_turn, room))
        left = turn.reads_per_turn - len(returning)
        known = waiting[Standing.KNOWN].take(min(left, room - kept - len(returning)))
        left -= len(known)
        taken += returning
        taken += known
        if left > 0:
            taken += waiting[Standing.KNOWN].take(min(left, turn.refusals_per_turn))
        for standing, most in (
            (Standing.NEW, turn.new_reads_per_turn),
            (Standing.STRANGER, turn.stranger_reads_per_turn),
        ):
            taken += waiting[standing].take(most if working else turn.idle_reads_per_turn)
        for item in taken:
            del self._standing[item]
        return taken

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self._standing) == sum(len(holders) for holders in self._waiting.values())
        for item, standing in self._standing.items():
            assert item in self._waiting[standing]

"""Notifying callers that what they asked for is done: at once, or a few in each turn of the loop.

A group may hold hundreds of operations. Where each caller that is notified has much to do, as in a
server that answers a request, they would hold up everything else on the loop for as long as that
takes. Then a few are notified in each turn: the partitions of a group take turns, and one with a
single operation is not notified after a flood. Otherwise that costs more than it gives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairway.runtime.completion import notify
from fairway.runtime.turn import TURN, PerTurn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairway.runtime.completion import OnDone
    from fairway.runtime.turn import TurnBudget


class Completions:
    """Callers to be notified with a key each, in order within a partition."""

    def __init__(self, *, turn: TurnBudget = TURN) -> None:
        self.per_turn: int | None = None
        """Callers notified in one turn of the loop, about; None notifies all of a group at once."""
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, deque[tuple[OnDone[int], int]]] = {}
        self._turns: deque[int] = deque()  # the partitions in `_lanes`
        self.waiting = 0
        """Callers to be notified in the turns to come."""
        self.notifying = False
        """Some are being notified at this moment."""
        self._scheduled = False
        self._backlog_share = turn.acks_backlog_share
        self._per_partition = turn.acks_per_partition
        self._hasty = PerTurn()  # urgent callers notified at once

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Callers are notified within: no others may be, before its end."""
        before, self.notifying = self.notifying, True
        try:
            yield
        finally:
            self.notifying = before

    def holds_back(self, partition: int, count: int, urgent: bool) -> bool:
        """Whether `count` callers of a partition wait for their turn; else they are notified now.

        Where others wait, as many who are urgent do not, in each turn of the loop.
        """
        if partition in self._lanes:
            return True  # or they would overtake those
        if self.per_turn is None:
            return False
        return not (urgent and self._hasty.take(self.per_turn, count))

    def add(self, partition: int, pending: Sequence[tuple[OnDone[int], int]]) -> None:
        """Notify these in the turns to come, after what waits in the partition already."""
        if not pending:
            return
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = deque()
            self._turns.append(partition)
        lane.extend(pending)
        self.waiting += len(pending)

    def notify(self) -> None:
        """Notify the first few now, if none were in this turn, and the others in the next ones."""
        if self.waiting and not self._scheduled:
            self._turn()

    def flush(self, partition: int) -> None:
        """Notify all that wait in a partition now: what comes next must not overtake them."""
        lane = self._lanes.pop(partition, None)
        if lane is not None:
            self._turns.remove(partition)
            self.waiting -= len(lane)
            for on_done, last_key in lane:
                notify(on_done, last_key)

    def flush_all(self) -> None:
        """Notify everybody now."""
        for partition in list(self._lanes):
            self.flush(partition)

    def _turn(self) -> None:
        with self.exclusive():
            self._notify_some()

    def _notify_some(self) -> None:
        left = self.waiting
        if self.per_turn is not None:
            left = max(self.per_turn, self.waiting // self._backlog_share)
        lanes, turns, per_partition = self._lanes, self._turns, self._per_partition
        while left > 0 and turns:
            partition = turns.popleft()
            lane = lanes[partition]
            share = min(len(lane), per_partition if turns else left)
            for _ in range(share):
                on_done, last_key = lane.popleft()
                notify(on_done, last_key)
            left -= share
            self.waiting -= share
            if lane:
                turns.append(partition)
            else:
                del lanes[partition]
        self._scheduled = bool(turns)
        if turns:
            self._loop.call_soon(self._turn)

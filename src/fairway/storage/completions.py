"""Telling callers that what they asked for is done: at once, or a few in each turn of the loop.

A group may hold hundreds of operations. Where each caller that is told has much to do, as in a
server that answers a request, they would hold up everything else on the loop for as long as that
takes. Then a few are told in each turn: the partitions of a group take turns, and one with a single
operation is not told after a flood. Otherwise that costs more than it gives.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from fairway.runtime.turn import TURN, PerTurn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairway.errors import FairwayError
    from fairway.runtime.turn import TurnBudget

logger = logging.getLogger("fairway.log")


class Waiter(Protocol):
    """Who is told the outcome of an operation: a future, or whatever else has its methods."""

    def done(self) -> bool: ...

    def set_result(self, last_key: int, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...


class Completions:
    """Waiters to be told a key each, in order within a partition."""

    def __init__(self, *, turn: TurnBudget = TURN) -> None:
        self.per_turn: int | None = None
        """Callers told in one turn of the loop, about; None tells all of a group at once."""
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, deque[tuple[Waiter, int]]] = {}
        self._turns: deque[int] = deque()  # the partitions in `_lanes`
        self.waiting = 0
        """Callers to be told in the turns to come."""
        self.telling = False
        """Some are told at this moment."""
        self._scheduled = False
        self._backlog_share = turn.acks_backlog_share
        self._per_partition = turn.acks_per_partition
        self._hasty = PerTurn()  # urgent callers told at once

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Callers are told within: nobody else may be, before its end."""
        before, self.telling = self.telling, True
        try:
            yield
        finally:
            self.telling = before

    def holds_back(self, partition: int, count: int, urgent: bool) -> bool:
        """Whether `count` callers of a partition wait for their turn; else they are told at once.

        Where others wait, as many who are urgent do not, in each turn of the loop.
        """
        if partition in self._lanes:
            return True  # or they would overtake those
        if self.per_turn is None:
            return False
        return not (urgent and self._hasty.take(self.per_turn, count))

    def add(self, partition: int, told: Sequence[tuple[Waiter, int]]) -> None:
        """Resolve these in the turns to come, after what waits in the partition already."""
        if not told:
            return
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = deque()
            self._turns.append(partition)
        lane.extend(told)
        self.waiting += len(told)

    def tell(self) -> None:
        """Resolve the first few now, if none were in this turn, and the others in the next ones."""
        if self.waiting and not self._scheduled:
            self._turn()

    def flush(self, partition: int) -> None:
        """Resolve all that waits in a partition now: what comes next must not overtake it."""
        lane = self._lanes.pop(partition, None)
        if lane is not None:
            self._turns.remove(partition)
            self.waiting -= len(lane)
            for waiter, value in lane:
                tell(waiter, value)

    def flush_all(self) -> None:
        """Resolve everything now."""
        for partition in list(self._lanes):
            self.flush(partition)

    def _turn(self) -> None:
        with self.speaking():
            self._tell_some()

    def _tell_some(self) -> None:
        left = self.waiting
        if self.per_turn is not None:
            left = max(self.per_turn, self.waiting // self._backlog_share)
        lanes, turns, per_partition = self._lanes, self._turns, self._per_partition
        while left > 0 and turns:
            partition = turns.popleft()
            lane = lanes[partition]
            share = min(len(lane), per_partition if turns else left)
            for _ in range(share):
                waiter, last_key = lane.popleft()
                tell(waiter, last_key)
            left -= share
            self.waiting -= share
            if lane:
                turns.append(partition)
            else:
                del lanes[partition]
        self._scheduled = bool(turns)
        if turns:
            self._loop.call_soon(self._turn)


def tell(waiter: Waiter, last_key: int) -> None:
    """Its write is done. A waiter's own fault must not keep others from being told."""
    try:
        waiter.set_result(last_key)
    except asyncio.InvalidStateError:  # cancelled; asking each first would cost more
        pass
    except Exception:
        logger.exception("a waiter failed when it was told that its write is done")


def tell_failure(waiter: Waiter | None, failure: FairwayError) -> None:
    """Its write failed; None waits for nothing."""
    if waiter is None or waiter.done():
        return
    try:
        waiter.set_exception(failure.again())
    except Exception:
        logger.exception("a waiter failed when it was told that its write failed")

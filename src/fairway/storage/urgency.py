"""What is urgent and not written yet, and how a long turn of the loop makes way for it.

A write takes several steps, each of which would wait for the loop to turn: the group before it must
be heard of, its own group taken, begun by a thread and heard of. Under load a turn takes longer
than all of them. So whoever makes a turn long expedites such writes, between two of the things it
does there. That makes groups small, so it is for the few: where much is urgent, groups are worth
more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.runtime.turn import TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairway.runtime.blocking import BlockingPool
    from fairway.runtime.clock import Clock
    from fairway.runtime.turn import TurnBudget


class Urgency:
    """The last urgent item of each partition that has one."""

    def __init__(self, pool: BlockingPool, clock: Clock, *, turn: TurnBudget = TURN) -> None:
        self._pool = pool
        self._now_ns = clock.now_ns
        self._window_length_ns = turn.urgent_window_ns
        self._window_max = turn.urgent_writes_per_window
        self._pause_every_ns = turn.urgent_pause_every_ns
        self.waiting: dict[int, object] = {}
        """The last urgent item of each partition that has one."""
        self._window_ns = 0  # when the present window began
        self._count = self._before = 0  # accepted in it, and in the one before
        self._pause_ns = 0  # when to pause again

    @property
    def expedites(self) -> bool:
        """Whether something waits that is urgent, and few such came of late."""
        most = self._window_max
        return bool(self.waiting) and self._count <= most and self._before <= most

    def accepted(self, partition: int, item: object, now_ns: int) -> None:
        """An urgent item waits to be written."""
        self.waiting[partition] = item
        age_ns = now_ns - self._window_ns
        if age_ns >= self._window_length_ns:
            self._before = self._count if age_ns < 2 * self._window_length_ns else 0
            self._count = 0
            self._window_ns = now_ns
        self._count += 1

    def written(self, partition: int, items: Iterable[object]) -> bool:
        """These are written; returns whether something urgent may have been among them."""
        last = self.waiting.get(partition)
        if last is None:
            return False
        if any(item is last for item in items):
            del self.waiting[partition]
        return True

    def failed(self, partition: int) -> None:
        """All that waits in a partition has failed."""
        self.waiting.pop(partition, None)

    def expedite(self, go_on: Callable[[], None]) -> None:
        """Take the steps that can be taken now, if something is to be expedited. `go_on` takes a
        group."""
        if self.expedites:
            self._pool.collect()
        if self.expedites:
            go_on()
            now_ns = self._now_ns()
            if now_ns >= self._pause_ns:
                self._pool.yield_to_threads(now_ns)
                self._pause_ns = now_ns + self._pause_every_ns

"""What is urgent and not written yet, and how a long turn of the loop makes way for it.

A write takes several steps, each of which would wait for the loop to turn: the group before it must
be heard of, its own group taken, begun by a thread and heard of. Under load a turn takes longer
than all of them. So whoever makes turns long presses on, between two of the things it does there.
That makes groups small, so it is for the few: where much is urgent, groups are worth more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairway.runtime.blocking import BlockingPool
    from fairway.runtime.clock import Clock

BREATH_NS = 300_000  # how often a busy loop pauses for a write that is urgent
WINDOW_NS = 10_000_000
FEW = 8  # in a window; where there were more, in it or the one before, nobody presses on


class Urgency:
    """The last urgent item of each partition that has one."""

    def __init__(self, pool: BlockingPool, clock: Clock) -> None:
        self._pool = pool
        self._now_ns = clock.now_ns
        self._last: dict[int, object] = {}
        self._window_ns = 0  # when the present window began
        self._count = self._before = 0  # accepted in it, and in the one before
        self._breath_ns = 0  # when to pause again

    @property
    def waits(self) -> bool:
        """Whether something waits that is urgent."""
        return bool(self._last)

    @property
    def presses(self) -> bool:
        """The same, if few such came of late."""
        return bool(self._last) and self._count <= FEW and self._before <= FEW

    def accepted(self, partition: int, item: object, now_ns: int) -> None:
        """An urgent item waits to be written."""
        self._last[partition] = item
        age_ns = now_ns - self._window_ns
        if age_ns >= WINDOW_NS:
            self._before = self._count if age_ns < 2 * WINDOW_NS else 0
            self._count = 0
            self._window_ns = now_ns
        self._count += 1

    def written(self, partition: int, items: Iterable[object]) -> bool:
        """These are written; returns whether something urgent may have been among them."""
        last = self._last.get(partition)
        if last is None:
            return False
        if any(item is last for item in items):
            del self._last[partition]
        return True

    def failed(self, partition: int) -> None:
        """All that waits in a partition has failed."""
        self._last.pop(partition, None)

    def press_on(self, go_on: Callable[[], None]) -> None:
        """Take the steps that can be taken now, if anything presses. `go_on` takes a group."""
        if self.presses:
            self._pool.collect()
        if self.presses:
            go_on()
            now_ns = self._now_ns()
            if now_ns >= self._breath_ns:
                self._pool.breathe(now_ns)
                self._breath_ns = now_ns + BREATH_NS

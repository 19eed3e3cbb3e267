"""When to look at a topic because its oldest record will be too old.

The store is asked once what the oldest record of a topic is; until that expires there is nothing to
ask. A time that is noted may be too early, which costs one look, and never too late: records of a
topic only get younger towards its head. Times are those of the wall clock, and each look compares
them with what it shows then, so a clock that jumps is obeyed.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairway.topics.topic import Topic

SLACK: Final = 1024
"""Times that may be out of date before they are cleared away, beside as many as are not."""
AT_ONCE: Final = 256
"""Topics taken in one step."""


class Expiries:
    """The next look at each topic that has a TTL and records. Forgets topics that are gone."""

    def __init__(self) -> None:
        self._due_ms: dict[Topic, int] = {}
        self._order: list[tuple[int, int, Topic]] = []  # some of them out of date
        self._numbers = count()
        self._clear_at = SLACK

    def __len__(self) -> int:
        return len(self._due_ms)

    def __contains__(self, topic: Topic) -> bool:
        return topic in self._due_ms

    def due_ms(self, topic: Topic) -> int | None:
        """When it will be looked at, or None if that is not noted."""
        return self._due_ms.get(topic)

    def note(self, topic: Topic, due_ms: int) -> None:
        """Look at a topic at that time, or earlier if that was noted before."""
        known_ms = self._due_ms.get(topic)
        if known_ms is not None and known_ms <= due_ms:
            return
        self._due_ms[topic] = due_ms
        heappush(self._order, (due_ms, next(self._numbers), topic))
        if len(self._order) > self._clear_at:
            self._clear()

    def take(self, now_ms: int) -> list[Topic]:
        """Some of the topics that are to be looked at now; they are noted no more."""
        order = self._order
        found: list[Topic] = []
        while order and order[0][0] <= now_ms and len(found) < AT_ONCE:
            due_ms, _, topic = heappop(order)
            if self._due_ms.get(topic) == due_ms:
                del self._due_ms[topic]
                found.append(topic)
        return found

    def _clear(self) -> None:
        """Forget what is out of date, and topics that were deleted. Rare: see `SLACK`."""
        self._due_ms = {topic: due for topic, due in self._due_ms.items() if topic.epoch >= 0}
        self._order = [(due, next(self._numbers), topic) for topic, due in self._due_ms.items()]
        heapify(self._order)
        self._clear_at = 2 * len(self._order) + SLACK

    def check(self) -> None:
        """Assert every invariant."""
        noted = {(due_ms, topic) for due_ms, _, topic in self._order}
        assert all((due_ms, topic) in noted for topic, due_ms in self._due_ms.items())
        assert len(self._order) <= self._clear_at

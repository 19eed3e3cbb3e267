"""Idempotency keys whose window has passed: their rows are removed, a page at a time."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from fairway.storage.wal import Operation
from fairway.storage.writer import Durability
from fairway.topics import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.clock import Clock
    from fairway.storage.partitions import Partitions
    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.topic import Topic


class OldKeys:
    """Removes them: those that memory knows when they are due, the others by looking."""

    def __init__(
        self,
        log: Partitions,
        clock: Clock,
        keys: KeyMemory,
        topic_at: Callable[[int], Topic | None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._keys = keys
        self._topic_at = topic_at
        self._due: list[tuple[int, int, Topic]] = []  # when to look at it
        self._numbers = count()

    async def forget(self) -> None:
        """Remove the rows of keys whose window has passed, a page at a time."""
        now_ms = self._clock.wall_ns() // 1_000_000
        while gone := self._keys.expire(now_ms):
            by_topic: dict[int, list[str]] = {}
            for epoch, key in gone:
                by_topic.setdefault(epoch, []).append(names.KEY + key)
            for epoch, rows in by_topic.items():
                await self._drop(epoch, rows)
        for epoch, due_ms in list(self._keys.forgotten.items()):
            if due_ms <= now_ms:
                del self._keys.forgotten[epoch]
                topic = self._topic_at(epoch)
                if topic is not None:
                    self.look_at(topic, 0)
        for _ in range(64):
            if not self._due or self._due[0][0] > now_ms:
                return
            topic = heappop(self._due)[2]
            left_ms = await self._forget_stored(topic, now_ms) if topic.epoch >= 0 else None
            if left_ms is not None:
                self.look_at(topic, left_ms)

    def look_at(self, topic: Topic, due_ms: int) -> None:
        heappush(self._due, (due_ms, next(self._numbers), topic))

    async def _forget_stored(self, topic: Topic, now_ms: int) -> int | None:
        """Remove stored keys whose window has passed; returns when to look at what is left."""
        window_ms = topic.config.idempotency_window_ms
        epoch, after, due_ms = topic.epoch, "", None
        while page := await self._log.meta_scan(epoch, prefix=names.KEY, after=after):
            after = page[-1][0]
            expiries = {name: names.decode_key(value).ts + window_ms for name, value in page}
            if topic.epoch < 0:
                return None
            await self._drop(epoch, [name for name in expiries if expiries[name] <= now_ms])
            # Once for all that is left: they went in one after the other and may go together.
            due_ms = max((due_ms or 0, *expiries.values()))
        return due_ms if due_ms is not None and due_ms > now_ms else None

    async def _drop(self, epoch: int, rows: list[str]) -> None:
        """Remove rows, but not of a key that is in use again."""
        if self._topic_at(epoch) is None:
            return
        meta: dict[str, bytes | None] = {
            row: None for row in rows if not self._keys.holds(epoch, row.removeprefix(names.KEY))
        }
        if meta:
            await self._log.submit(epoch, Operation(meta=meta), durability=Durability.DISK)

"""The newest batches of a topic, kept in memory: what its watchers are served from.

A `BatchTail` is contiguous up to the head. All tails together stay within one byte budget:
`HotBytes` drops the batch that was published longest ago, whichever topic it belongs to; from then
on it is read from the store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from fairway.topics.batch import RecordBatch
    from fairway.topics.topic import Topic

BATCH_OVERHEAD = 256
"""Bytes a batch in memory costs beside its records."""


def hot_size(batch: RecordBatch) -> int:
    """Bytes that a batch takes of the budget."""
    return len(batch.records) + BATCH_OVERHEAD


class BatchTail:
    """Batches in order of their seqs. All that is live from `first_seq` up to the head is in it."""

    __slots__ = ("_batches", "_start", "first_seq")

    def __init__(self, first_seq: int) -> None:
        self._batches: list[RecordBatch] = []
        self._start = 0
        self.first_seq = first_seq

    def __len__(self) -> int:
        return len(self._batches) - self._start

    @property
    def oldest(self) -> RecordBatch | None:
        return self._batches[self._start] if len(self) else None

    def push(self, batch: RecordBatch) -> None:
        self._batches.append(batch)

    def pop_oldest(self) -> RecordBatch:
        batch = self._batches[self._start]
        self._start += 1
        self.first_seq = batch.last_seq + 1
        if self._start > 64 and self._start * 2 > len(self._batches):
            del self._batches[: self._start]
            self._start = 0
        return batch

    def discard(self, last_seqs: Container[int]) -> None:
        """Forget the batches that end with these seqs: nothing of them is live."""
        kept = [one for one in self._batches[self._start :] if one.last_seq not in last_seqs]
        self._batches, self._start = kept, 0

    def after(self, seq: int) -> Iterator[RecordBatch]:
        """Batches that hold anything above `seq`, in order. They must be in here."""
        batches = self._batches
        at = len(batches) - 1
        if at < self._start or batches[at].last_seq <= seq:
            return
        if batches[at].first_seq > seq + 1:  # the newest alone is by far the most common answer
            at = bisect_left(batches, seq + 1, lo=self._start, key=_last_seq)
        while at < len(batches):
            yield batches[at]
            at += 1


def _last_seq(batch: RecordBatch) -> int:
    return batch.last_seq


class _Hot(msgspec.Struct, gc=False):
    """One batch in memory. Not the collector's business: there are very many, in no cycle."""

    topic: Any  # None if it can be read from the store again, whatever becomes of its topic
    tail: BatchTail
    batch: RecordBatch


class HotBytes:
    """One budget for all tails, spent first in, first out."""

    def __init__(self, budget: int, dropped: Callable[[Topic, RecordBatch], None]) -> None:
        """`dropped` is called with each batch that left memory for the budget's sake."""
        self.budget = budget
        self.used = 0
        self._dropped = dropped
        self._order: deque[_Hot] = deque()

    def push(self, topic: Topic | None, tail: BatchTail, batch: RecordBatch) -> None:
        tail.push(batch)
        self._order.append(_Hot(topic, tail, batch))
        self.used += hot_size(batch)
        while self.used > self.budget and len(self._order) > 1:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        hot = self._order.popleft()
        self.used -= hot_size(hot.batch)
        if hot.tail.oldest is hot.batch:  # else it was evicted from its topic, or that is gone
            hot.tail.pop_oldest()
            if hot.topic is not None:
                self._dropped(hot.topic, hot.batch)

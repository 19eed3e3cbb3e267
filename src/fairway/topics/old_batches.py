"""Looking through the old batches of a topic without keeping everybody else waiting.

What is in memory can be had without a pause, so whoever goes through much of it must make one (see
`Pace`). A batch is the smallest step, however many records it holds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from fairway.errors import NotFound
from fairway.runtime.turn import TURN
from fairway.topics.batch import decode_batch
from fairway.topics.tail import hot_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairway.runtime.turn import Pace, TurnBudget
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.batch import RecordBatch
    from fairway.topics.tail import HotBytes
    from fairway.topics.topic import Eviction, Topic

BATCH_WORK: Final = 8
"""What a batch, or a topic, costs by itself: as much as so many records."""
RECORD_BYTES: Final = 256
"""Bytes of a batch that cost as much to parse as a record."""
FRONT_BATCHES: Final = 64
"""Batches of its front that a topic is read ahead: for some appends, each of which evicts one."""
FRONT_BYTES: Final = 64 * 1024
"""The same in bytes. Raising it reads less often, and leaves less memory to what is new."""
PAGE_BATCHES: Final = 1000
"""Batches read from the store at a time, if their bytes allow."""
HOT_PAGE: Final = 256
"""Batches of the tail taken at a time: it may change between two steps."""


class Tally:
    """Records counted a batch at a time, less those of batches that were lost meanwhile."""

    __slots__ = ("_batches", "records", "size")

    def __init__(self, *, lossy: bool) -> None:
        """`lossy`: memory alone holds them, and may have to drop some while others are counted."""
        self.records = 0
        self.size = 0
        self._batches: deque[tuple[int, int, int]] | None = deque() if lossy else None

    def add(self, last_seq: int, records: int, size: int) -> None:
        self.records += records
        self.size += size
        if self._batches is not None and records:
            self._batches.append((last_seq, records, size))

    def lose_below(self, floor: int) -> None:
        """What lies below `floor` is gone already, batch by batch."""
        while self._batches and self._batches[0][0] < floor:
            _, records, size = self._batches.popleft()
            self.records -= records
            self.size -= size


def work_of(batch: RecordBatch, *, parsed: bool) -> int:
    """What going through a batch costs, if its records are looked at or not."""
    if not parsed:
        return BATCH_WORK
    return BATCH_WORK + batch.count + len(batch.records) // RECORD_BYTES


def eviction_work(topic: Topic, front: RecordBatch) -> int:
    return work_of(front, parsed=bool(topic.rules or topic.config.cap_bytes))


def evict_front(
    topic: Topic, active: ActiveTopic, front: RecordBatch, eviction: Eviction, behind: int
) -> None:
    """Lose what must go of the oldest batch; from memory too, if all of it went."""
    if topic.evict(front, eviction, behind):
        for part in (active.tail, active.front):
            if part is not None and part.oldest is front:
                part.pop_oldest()


def hot_front(topic: Topic, active: ActiveTopic) -> RecordBatch | None:
    """The oldest batch that is not wholly below the floor, if memory reaches back to it."""
    tail, floor = active.tail, topic.floor
    if tail.first_seq > floor:
        if active.front is None or active.front.first_seq > floor:
            return None
        tail = active.front
    oldest = tail.oldest
    if oldest is not None and oldest.last_seq >= floor:
        return oldest
    return next(tail.after(floor - 1), None)


def hot_behind(
    topic: Topic, active: ActiveTopic, front: RecordBatch, upto: int, work: int
) -> int | None:
    """What `Topic.evict` must know: the first live seq behind the oldest batch, or 0 if nobody
    needs it. None if memory, or so much work, does not reach that far."""
    if not topic.must_look_behind(front, upto):
        return 0
    after = front.last_seq
    for part in (active.front, active.tail):
        if part is None or part.first_seq > after + 1:
            continue
        for batch in part.after(after):
            if work <= 0:
                return None
            work -= work_of(batch, parsed=True)
            first = topic.first_live_in(batch)
            if first is not None:
                return first
            after = batch.last_seq
    return topic.head + 1 if active.tail.first_seq <= after + 1 else None


def holds_front(topic: Topic, active: ActiveTopic, work: int) -> bool:
    """Whether an append can evict the oldest batch in its own step."""
    front = hot_front(topic, active)
    return front is not None and hot_behind(topic, active, front, front.last_seq, work) is not None


class OldBatches:
    """Reads batches from memory, or from the store if they are not there any more."""

    def __init__(
        self, log: Partitions, hot: HotBytes, *, page_bytes: int, turn: TurnBudget = TURN
    ) -> None:
        self._log = log
        self._step = turn.scan_records_per_turn
        self._hot = hot
        self._page_bytes = page_bytes
        self._fetching: dict[Topic, asyncio.Future[None]] = {}

    async def front(self, topic: Topic, active: ActiveTopic) -> RecordBatch | None:
        """The oldest batch that is not wholly below the floor."""
        front = hot_front(topic, active)
        if front is None:
            await active.writes.wait_written()
            front = hot_front(topic, active)
        if front is not None:
            return front
        stored = await self._stored(topic, topic.floor, limit=1)
        return stored[0] if stored and stored[0].first_seq <= topic.head else None

    async def behind(self, topic: Topic, front: RecordBatch, upto: int, pace: Pace) -> int:
        """As `hot_behind`, from the store too. Called with the topic's lock held."""
        if not topic.must_look_behind(front, upto):
            return 0
        return await self.first_live(topic, front.last_seq, pace)

    async def first_live(self, topic: Topic, after: int, pace: Pace) -> int:
        """The first live seq above `after`; if there is none, the one behind the head.

        It holds when it is returned, and for as long as the topic's lock is held.
        """
        limit = 1  # it is the next one, mostly
        while topic.thinned_after(after := max(after, topic.floor - 1)):
            head = topic.head
            batches = await self.page(topic, after + 1, limit) if after < head else []
            if not batches and topic.head == head:
                return head + 1
            for batch in batches:
                if batch.first_seq > topic.head:
                    return topic.head + 1  # it is stored, and readers may not see it yet
                first = topic.first_live_in(batch, after)
                if first is not None:
                    return first
                after = batch.last_seq
                await pace.turn(work_of(batch, parsed=True))
            limit = min(2 * limit, PAGE_BATCHES)
        return min(after, topic.head) + 1

    async def fetch_front(self, topic: Topic, active: ActiveTopic) -> None:
        """Have the oldest batches in memory, so that an append can evict them in its own step."""
        other = self._fetching.get(topic)
        if other is not None:
            await asyncio.shield(other)
            return
        done = self._fetching[topic] = asyncio.get_running_loop().create_future()
        try:
            await active.writes.wait_written()
            if not holds_front(topic, active, self._step) and not active.doubts.changes:
                await self._read_front(topic, active)
        finally:
            del self._fetching[topic]
            done.set_result(None)

    async def _read_front(self, topic: Topic, active: ActiveTopic) -> None:
        # In place before it is filled: who reclaims meanwhile takes it away.
        front = active.begin_front(topic.floor)
        head = topic.head
        found = await self._stored(
            topic, front.first_seq, limit=FRONT_BATCHES, max_bytes=FRONT_BYTES
        )
        last = front.first_seq - 1
        left = self._hot.budget // 2  # with more, its end could push its beginning out of memory
        for batch in found:
            if active.front is not front or batch.last_seq > head:
                return
            if batch.first_seq >= active.tail.first_seq:
                active.tail.first_seq = last + 1  # nothing is stored between here and there
                return
            left -= hot_size(batch)
            if left < 0 and len(front):
                return
            self._hot.push(None, front, batch)
            last = batch.last_seq

    async def between(
        self, topic: Topic, first: int, last: int, pace: Pace, *, parsed: bool
    ) -> AsyncIterator[RecordBatch]:
        """Batches that hold seqs in [first, last] and above the floor, a step at a time."""
        # What falls below the floor meanwhile may be nowhere: it is not looked for.
        while (first := max(first, topic.floor)) <= last:
            batches = await self.page(topic, first)
            if not batches:
                return
            for batch in batches:
                if batch.first_seq > last:
                    return
                yield batch
                await pace.turn(work_of(batch, parsed=parsed))
            first = batches[-1].last_seq + 1

    async def page(self, topic: Topic, first: int, limit: int = PAGE_BATCHES) -> list[RecordBatch]:
        """Some batches that hold seqs from `first` on, in order; none if there are none."""
        active = topic.active
        if active is not None and active.tail.first_seq > first:
            await active.writes.wait_written()
        if active is not None and active.tail.first_seq <= first:
            if topic.epoch < 0:
                raise NotFound("topic", topic.name)
            return list(islice(active.tail.after(first - 1), min(limit, HOT_PAGE)))
        return await self._stored(topic, first, limit=limit)

    async def _stored(
        self, topic: Topic, first: int, *, limit: int, max_bytes: int | None = None
    ) -> list[RecordBatch]:
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        entries = await self._log.read(
            topic.epoch, first=first, limit=limit, max_bytes=max_bytes or self._page_bytes
        )
        return [decode_batch(entry.payload, topic=topic.name) for entry in entries]

"""What a reader at a cursor gets next: live records, and a tombstone for what was lost before them.

From the hot tail if it reaches back far enough, else from the store through the fair reader; and
waited for, if there is nothing yet. A page
begins with at most one gap and ends before the next, so nothing is ever passed over in silence but
what somebody deleted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import Corrupt, InvalidRequest, NotFound
from fairway.topics.batch import Copied, RawRecord, decode_batch
from fairway.wire.records import NULL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fairway.runtime.clock import Clock
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.batch import RecordBatch
    from fairway.topics.match import TagMatch
    from fairway.topics.topic import Gap, Topic

MIB: Final = 1024 * 1024
WHOLE: Final = 2**63 - 1
"""The step of a page that is read in one."""
DELETED_AT_ONCE: Final = 4096
"""A page passes over so many deleted records at most, and ends: others have their turn."""
NO_NODES: frozenset[str] = frozenset()


class Selection(NamedTuple):
    """Which records a reader wants: not those of `nodes`, and of the tags that match."""

    nodes: frozenset[str] = NO_NODES
    match: TagMatch | None = None


EVERYTHING = Selection()


class RecordPage(NamedTuple):
    """Records after a cursor, in order; a gap, if there is one, comes before them."""

    records: list[RawRecord]
    gap: Gap | None
    next_seq: int
    """Everything up to here was looked at."""


def about_behind(topic: Topic, after: int, limit: int) -> int:
    """About how many bytes the next `limit` records after a cursor have: the mean of the topic."""
    count = min(limit, topic.head - max(after, topic.earliest - 1), topic.count)
    return topic.bytes * count // topic.count if count > 0 else 0


def hot_page(
    topic: Topic,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
    selection: Selection,
    step: int = WHOLE,
) -> RecordPage | None:
    """The next page if all of it is in memory, else None. Costs nothing but the records."""
    if topic.holes:
        after = max(after, min(topic.past_skipped(after), upto))
    gap = topic.gap_after(after)
    start = gap.last if gap is not None else after
    end = min(upto, topic.end_of_run(start))
    start = max(start, min(topic.delete_floor - 1, end))
    if start >= end:
        return RecordPage([], gap, start)
    active = topic.active
    if active is None or active.tail.first_seq > start + 1:
        return None
    records, next_seq = select(
        topic, active.tail.after(start), start, end, limit, max_bytes, selection, step
    )
    return RecordPage(records, gap, next_seq)


async def cold_page(
    log: Partitions,
    topic: Topic,
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
    selection: Selection,
    step: int = WHOLE,
) -> RecordPage:
    """The next page, from the store."""
    limit = max(limit, 1)
    if topic.holes:
        after = max(after, min(topic.past_skipped(after), upto))
    while True:
        page = hot_page(topic, after, upto, limit, max_bytes, selection, step)
        if page is not None:
            return page
        if topic.active is not None:
            await topic.active.writes.wait_written()
        gap = topic.gap_after(after)
        begin = gap.last if gap is not None else after
        # Not past the next hole, whatever was deleted beyond it: it has to be announced.
        start = max(begin, min(topic.delete_floor - 1, topic.end_of_run(begin)))
        if (
            selection.match is not None
            and topic.active is not None
            and topic.active.tags is not None
        ):
            end = min(upto, topic.end_of_run(begin))
            skipped = topic.active.tags.skip(start, end, selection.match)
            if skipped >= end:
                return RecordPage([], gap, skipped)
            start = skipped
        rules = topic.rules
        entries = await log.read(
            topic.epoch, first=start + 1, limit=limit, max_bytes=min(max_bytes, step)
        )
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        end = min(upto, topic.end_of_run(begin))
        if topic.gap_after(after) != gap or max(start, topic.delete_floor - 1) >= end:
            continue  # what was asked for went while the store was read
        if topic.rules is not rules:
            continue  # a rule went that hid some of what was read
        batches = [decode_batch(entry.payload, topic=topic.name) for entry in entries]
        del entries  # twice in memory otherwise, while it is gone through
        missing = min(batches[0].first_seq - 1, end) if batches else end
        if missing > max(start, topic.floor - 1, topic.reclaimed):
            raise Corrupt(f"records after {start} are missing", place=f"topic {topic.name}")
        if batches:
            end = min(end, batches[-1].last_seq)
        records, next_seq = select(topic, batches, start, end, limit, max_bytes, selection, step)
        return RecordPage(records, gap, next_seq)


def select(
    topic: Topic,
    batches: Iterable[RecordBatch],
    after: int,
    upto: int,
    limit: int,
    max_bytes: int,
    selection: Selection,
    step: int = WHOLE,
) -> tuple[list[RawRecord], int]:
    """Wanted live records in (after, upto], at most `limit` looked at; and how far it looked.

    Deleted records count for nothing: pages are the same before and after their room is given back.
    With `step` bytes it has enough when a batch ends: whoever goes on parses none of them again.
    """
    nodes, match = selection
    rules = topic.rules
    first = max(after + 1, topic.floor)
    found: list[RawRecord] = []
    looked = deleted = size = 0
    for batch in batches:
        seq = batch.first_seq
        if size >= step:
            return found, min(seq - 1, upto)
        make = RawRecord if batch.copies < 0 else Copied.within(batch.copies)
        for record in batch.parse():
            if seq >= first:
                if seq > upto:
                    return found, upto
                if rules is not None and rules.hides(seq, record.tag):
                    deleted += 1
                    if deleted == DELETED_AT_ONCE:
                        return found, seq
                    seq += 1
                    continue
                if looked >= limit or (size >= max_bytes and found):
                    return found, seq - 1
                looked += 1
                node = record.node if record.node is not None else batch.node
                if not ((nodes and node in nodes) or (match is not None and not match(record.tag))):
                    meta = record.meta
                    size += len(record.data) + len(meta)
                    if size > max_bytes and found:
                        return found, seq - 1
                    found.append(
                        make(
                            seq,
                            batch.ts,
                            bytes(record.data),
                            record.tag,
                            node,
                            bytes(meta) if meta and meta != NULL else None,
                            batch.trace,
                            batch.hops,
                        )
                    )
            seq += 1
    return found, upto


class Diff(NamedTuple):
    """What a reader at a cursor got. `recreated`: its cursor was of another incarnation."""

    topic: Topic
    page: RecordPage
    recreated: bool


class TopicReader:
    """Reads topics for whoever asks again and again."""

    def __init__(
        self,
        log: Partitions,
        clock: Clock,
        *,
        get: Callable[[str], Topic],
        activate: Callable[[Topic], ActiveTopic],
        touch: Callable[[Topic], None],
        expire: Callable[[Topic], Awaitable[None]],
        closing: Callable[[], bool],
    ) -> None:
        """`touch` is called with a topic that is read; `expire` takes from it what is too old;
        nobody is kept waiting once it is `closing`."""
        self._log = log
        self._clock = clock
        self._get = get
        self._activate = activate
        self._touch = touch
        self._expire = expire
        self._closing = closing

    async def diff(
        self,
        name: str,
        from_seq: int,
        *,
        epoch: int | None = None,
        limit: int = 256,
        max_bytes: int = MIB,
        selection: Selection = EVERYTHING,
        wait_ns: int = 0,
        step: int = WHOLE,
    ) -> Diff:
        """What a reader that has seen everything up to `from_seq` gets next.

        With a `step` a page may end after so many bytes; `page` goes on behind it.
        """
        topic = self._get(name)
        self._touch(topic)
        if (epoch is not None and epoch != topic.epoch) or from_seq > topic.head:
            if epoch in (None, topic.epoch) and from_seq <= topic.assigned:
                from_seq = topic.head  # written and not yet to be seen: as far as one can be
            elif epoch == topic.epoch:
                raise InvalidRequest(f"from_seq {from_seq} lies beyond the head, {topic.head}")
            else:
                page = await self.page(topic, 0, topic.head, limit, max_bytes, selection, step)
                return Diff(topic, page, True)
        page = await self.page(topic, from_seq, topic.head, limit, max_bytes, selection, step)
        if wait_ns and not page.records and page.gap is None and page.next_seq >= topic.head:
            page = await self._wait(topic, page, limit, max_bytes, selection, wait_ns)
        return Diff(topic, page, False)

    async def _wait(
        self,
        topic: Topic,
        page: RecordPage,
        limit: int,
        max_bytes: int,
        selection: Selection,
        wait_ns: int,
    ) -> RecordPage:
        deadline_ns = self._clock.now_ns() + wait_ns
        while not page.records and page.gap is None and not self._closing():
            left_ns = deadline_ns - self._clock.now_ns()
            if left_ns <= 0:
                break
            # Registered before it is read again: what lands in between resolves it.
            subscribers = self._activate(topic).subscribers
            waiter = subscribers.wait()
            try:
                if page.next_seq >= topic.head:
                    async with asyncio.timeout(left_ns / 1e9):
                        await waiter
            except TimeoutError:
                break
            finally:
                subscribers.leave(waiter)
            page = await self.page(topic, page.next_seq, topic.head, limit, max_bytes, selection)
        return page

    async def page(
        self,
        topic: Topic,
        after: int,
        upto: int,
        limit: int,
        max_bytes: int,
        selection: Selection = EVERYTHING,
        step: int = WHOLE,
    ) -> RecordPage:
        """Records after a cursor, from memory or from the store."""
        if topic.config.ttl_ms:
            await self._expire(topic)
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        page = hot_page(topic, after, upto, limit, max_bytes, selection, step)
        if page is None:
            page = await cold_page(self._log, topic, after, upto, limit, max_bytes, selection, step)
        self._log.check_owned()
        return page

    async def batch_at(self, topic: Topic, seq: int) -> RecordBatch | None:
        """The stored batch that holds `seq`, or the first one behind it."""
        entries = await self._log.read(topic.epoch, first=seq, limit=1)
        return decode_batch(entries[0].payload, topic=topic.name) if entries else None

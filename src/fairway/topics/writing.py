"""The way in: an append is checked, numbered, queued, and seen by readers once its class is met.

Numbering and queueing are one step of the event loop, so seqs rise in the order of the log.
Whatever must be known first and is not in memory (an old idempotency key, a producer's position, a
reservation of seqs) is fetched before that step and checked again in it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from fairway.core.priority import THRESHOLDS
from fairway.errors import (
    Backpressure,
    FairwayError,
    InvalidOperation,
    NotFound,
    OutcomeUnknown,
    TopicFull,
    Unavailable,
)
from fairway.runtime.clock import sleep_ns
from fairway.runtime.completion import fail, notify, resolve
from fairway.storage.wal import NO_META, Entry, Operation
from fairway.storage.writer import Durability
from fairway.topics import names
from fairway.topics.batch import VERSION, Batch, encode_batch
from fairway.topics.bounds import UNBOUNDED
from fairway.topics.doubts import Doubt
from fairway.topics.names import SeenKey
from fairway.topics.once import Once
from fairway.topics.operations import Hole, KeySeen, changes_of, encode_snapshot, rows_of
from fairway.topics.outcome import Appended
from fairway.topics.reserving import Reserving
from fairway.topics.writes import Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fairway.kernel.writability import Writability
    from fairway.runtime.clock import Clock
    from fairway.runtime.completion import OnDone
    from fairway.storage.partitions import Partitions
    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.live import LivePart
    from fairway.topics.operations import Noted, Position
    from fairway.topics.retention import Retention
    from fairway.topics.tags import TagMemory
    from fairway.topics.tail import HotBytes
    from fairway.topics.topic import Topic
    from fairway.wire.records import Records
    from fairway.wire.topics import LossReason

logger = logging.getLogger("fairway.topics")

T = TypeVar("T")

DURABILITY = {
    "memory": Durability.DISK,  # nobody waits for it, yet a failure must be noticed
    "disk": Durability.DISK,
    "fsync": Durability.FSYNC,
}
URGENT = THRESHOLDS[-1]
"""Writes to topics of this priority do not wait for company in a commit."""
PATIENCE_NS = 5_000_000_000
"""How long a write that may not be throttled waits for room."""
PATIENT_BYTES_MAX = 64 * 1024 * 1024
"""How much of such writes may wait at once."""


NOTHING_NOTED: Final[tuple[Noted, ...]] = ()


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """An append that is to be made."""

    records: Records
    node: str | None = None
    key: str | None = None
    position: Position | None = None
    trace: str | None = None
    hops: int = 0
    copies: int = -1
    patient: bool = False
    """Wait for room instead of being refused, up to a deadline."""
    extra: Mapping[str, bytes | None] = NO_META
    """Metadata of other parts, written in the same operation."""


class Writing:
    """Appends to topics."""

    def __init__(
        self,
        log: Partitions,
        clock: Clock,
        *,
        hot: HotBytes,
        keys: KeyMemory,
        tags: TagMemory,
        live: Callable[[Topic], LivePart],
        published: Callable[[Topic], None],
        retention: Retention,
        writability: Writability,
    ) -> None:
        self._log = log
        self._clock = clock
        self._hot = hot
        self._tags = tags
        self._live = live
        self._published = published
        self._retention = retention
        self._writability = writability
        self.reserving = Reserving(log, live, writability)
        self._once = Once(self, log, clock, keys=keys, live=live)
        self._patient_bytes = 0
        self.bounds = UNBOUNDED
        self._create_future: Callable[[], asyncio.Future[Appended]]
        self._create_future = asyncio.get_running_loop().create_future

    async def append(self, topic: Topic, new: NewBatch) -> Appended:
        """Append all records or none. Raises as `Log.submit` does, or `TopicFull`, `NotFound`."""
        if new.key is not None:
            return await self._once.append(topic, new, new.key)
        return await (await self.begin(topic, new))

    async def begin(self, topic: Topic, new: NewBatch) -> asyncio.Future[Appended]:
        """Queue an append as soon as all that it needs is known and, if it is patient, has room."""
        if topic.weak or topic.capped or new.position is not None:
            await self.prepare(topic, new)
        if new.patient:
            return await self._enqueue_patiently(topic, new)
        return self.enqueue(topic, new)

    def append_now(self, on_done: OnDone[Appended], topic: Topic, new: NewBatch) -> bool:
        """As `append`, begun at once; False if something must be looked up or waited for first.

        `on_done` is called within this call if it was made before, or if its class does not wait
        for the disk.
        """
        if new.position is not None or new.patient:
            return False
        if topic.weak and topic.assigned + new.records.count > topic.reserved:
            return False
        config = topic.config
        if (config.cap_records or config.cap_bytes) and self.lacks_front(topic, new):
            return False
        if new.key is not None:
            return self._once.append_now(on_done, topic, new, new.key)
        self.enqueue_for(on_done, topic, new)
        return True

    def lacks_front(self, topic: Topic, new: NewBatch) -> bool:
        """Whether records that must go for these have to be fetched first."""
        records = new.records
        return self._retention.lacks_front(topic, records.count, records.size(new.node))

    async def fetch_front(self, topic: Topic) -> None:
        """Have what an append to a full topic will evict first at hand."""
        await self._retention.fetch_front(topic)

    async def prepare(self, topic: Topic, new: NewBatch) -> None:
        """Fetch what `enqueue` needs to know."""
        if topic.capped and self.lacks_front(topic, new):
            await self.fetch_front(topic)
        if new.position is not None:
            await self.position_of(topic, new.position.producer)
        if topic.weak and not new.patient:
            await self.reserving.reserve(topic, new.records.count)

    async def position_of(self, topic: Topic, producer: str) -> tuple[int, int] | None:
        """The (epoch, number) of a producer's last append, or None if it never made one."""
        live, row = self._live(topic), names.PRODUCER + producer
        while (known := live.producers.at(producer)) is None:
            failures = live.writes.failures
            stored = await self._log.meta(topic.epoch, row)
            if live.writes.failures != failures:
                continue  # it may have been read before a write that was made and not confirmed
            if stored is None:
                return live.producers.at(producer)  # queued meanwhile
            for change in changes_of((), {row: stored}, topic=topic.name):
                topic.apply(change)
        return known

    async def written_position_of(self, topic: Topic, producer: str) -> tuple[int, int] | None:
        """As `position_of`, for whoever goes on behind it: nothing up to there may fail any more.

        To be asked when the producer itself queues nothing meanwhile.
        """
        await self._live(topic).writes.wait_decided()
        return await self.position_of(topic, producer)

    def _check_open(self, topic: Topic, live: LivePart) -> None:
        if not live.doubts.end and self._log.last_key(topic.epoch) > topic.assigned:
            # Our numbers, and no fault of whoever writes: the store is asked, and then it goes on.
            logger.error("topic %s ends behind what is known of it: looking again", topic.name)
            live.doubts.raise_end()
            self._retention.doubt(topic)
        if live.doubts.end:
            raise Unavailable(f"the end of topic {topic.name!r} is being looked up after a failure")
        if live.writes.halted:
            raise Unavailable(f"the durability of topic {topic.name!r} is being changed")

    def enqueue(self, topic: Topic, new: NewBatch) -> asyncio.Future[Appended]:
        """Number and queue an append that is prepared. The future is done when its class is met."""
        reply = self._create_future()
        self.enqueue_for(resolve(reply), topic, new)
        return reply

    def enqueue_for(self, on_done: OnDone[Appended], topic: Topic, new: NewBatch) -> None:
        """As `enqueue`, with a callback, which may be called within this call."""
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        live = topic.live
        if live is None:
            live = self._live(topic)
        writes = live.writes
        count = new.records.count
        # Several records in one entry could lie across a key that is there, and the log not mind.
        if writes.halted or live.doubts.end or count > 1:
            self._check_open(topic, live)
        position = new.position
        if position is not None and live.producers.passed(position):
            notify(on_done, Appended(topic.head, topic.head, deduped=True))
            return
        records = new.records
        tagged, size = records.tagged, records.size(new.node)
        config = topic.config
        if config.discard == "reject" and topic.would_overflow(count, size):
            raise TopicFull(
                f"topic {topic.name!r} is full: {topic.count:,} records, {topic.bytes:,} bytes"
            )
        if topic.owner in self.bounds.stored:
            self.bounds.may_store(topic, size)
        assert not topic.weak or topic.assigned + count <= topic.reserved, "seqs are not reserved"
        now_ms = self._clock.wall_ns() // 1_000_000
        first, ts = topic.place(count, now_ms)
        accepted = now_ms if now_ms < ts else 0
        batch = Batch(
            VERSION,
            first,
            count,
            ts,
            size,
            records.raw,
            new.node,
            new.trace,
            new.hops,
            accepted,
            new.copies,
        )
        last = first + count - 1
        answer = Appended(first, last)
        if config.durability != "fsync":
            self.reserving.keep_ahead(topic, live)
        # Nothing is seen before what was numbered before it, whatever the class was then.
        quick = config.durability in ("memory", "ephemeral") and writes.all_shown
        if config.durability == "ephemeral" and quick and not (new.extra or position or new.key):
            self._publish(topic, live, batch, tagged)
            notify(on_done, answer)
            return
        meta, noted = NO_META, NOTHING_NOTED
        if new.extra or position is not None or new.key is not None:
            noted = _noted(new, answer, ts)
            meta = {**new.extra, **rows_of(noted)}
        if config.durability != "ephemeral" and meta is NO_META:
            operation = Operation.appending(last, encode_batch(batch), 0)
        elif config.durability != "ephemeral":
            operation = Operation((Entry(last, encode_batch(batch)),), meta)
        else:
            operation = Operation(meta=meta)
        if quick:
            then = partial(self._settle_quick, topic, live, batch, noted)
        else:
            then = partial(self._settle, topic, live, batch, tagged, answer, on_done, noted)
        write = Write(writes, then, count, size, quick)
        try:
            self._log.submit_for(
                write.settled,
                topic.epoch,
                operation,
                durability=DURABILITY.get(config.durability, Durability.DISK),
                urgent=config.priority is not None and config.priority >= URGENT,
            )
        except FairwayError as error:
            topic.take_back(first)  # nobody else was numbered meanwhile
            if isinstance(error, InvalidOperation):
                self._check_open(topic, live)  # the key may be there already
            raise
        writes.add(write)
        if position is not None:
            live.producers.begin(position)
        if quick:
            self._publish(topic, live, batch, tagged, noted)
            notify(on_done, answer)

    def enqueue_meta(
        self,
        topic: Topic,
        extra: Mapping[str, bytes | None],
        position: Position | None = None,
        *,
        durability: Durability = Durability.FSYNC,
    ) -> asyncio.Future[None]:
        """Write metadata of another part without records, in its place among the appends."""
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        live = self._live(topic)
        self._check_open(topic, live)
        noted = (position,) if position is not None else NOTHING_NOTED
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if position is not None and live.producers.passed(position):
            reply.set_result(None)
            return reply

        def settle(error: BaseException | None) -> None:
            if error is not None:
                self._failed(topic, live, error, noted)
                fail(reply, error)
                return
            for change in noted:
                topic.apply(change)
            if not reply.done():
                reply.set_result(None)

        write = Write(live.writes, settle, shown=True)  # there is nothing in it to show
        operation = Operation(meta={**extra, **rows_of(noted)})
        self._log.submit_for(write.settled, topic.epoch, operation, durability=durability)
        live.writes.add(write)
        if position is not None:
            live.producers.begin(position)
        return reply

    def enqueue_gap(
        self, topic: Topic, count: int, reason: LossReason, position: Position
    ) -> asyncio.Future[Appended]:
        """Give `count` seqs to records that were lost before they could be appended."""
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        live = self._live(topic)
        self._check_open(topic, live)
        if live.producers.passed(position):
            repeated = self._create_future()
            repeated.set_result(Appended(topic.head, topic.head, deduped=True))
            return repeated
        writes = live.writes
        quick = topic.config.durability in ("memory", "ephemeral") and writes.all_shown
        # Shown before it is written only within what a crash cannot give out again.
        quick = quick and topic.assigned + count <= topic.reserved
        topic.snapshot()  # if it cannot be summed up now, nothing is numbered
        first, _ = topic.place(count, self._clock.wall_ns() // 1_000_000)
        gap = Hole(first, topic.assigned, reason)
        writes.begin_gap(gap)
        snapshot = encode_snapshot(topic.snapshot())
        meta = {**rows_of((position,)), names.SNAPSHOT: snapshot}
        reply = self._create_future()

        def show() -> None:
            topic.apply(gap)
            topic.apply(position)
            self._published(topic)

        def settle(error: BaseException | None) -> None:
            if not quick:
                writes.end_gap(gap)
            if error is not None:
                if isinstance(error, OutcomeUnknown) and not quick:
                    live.doubts.raise_change(Doubt(snapshot, gap.first, gap))
                self._failed(topic, live, error, (position,))
                fail(reply, error)
                return
            if not quick and topic.epoch >= 0:
                show()
            if not reply.done():
                reply.set_result(Appended(gap.first, gap.last))

        write = Write(writes, settle, shown=quick)
        try:
            self._log.submit_for(write.settled, topic.epoch, Operation(meta=meta))
        except FairwayError:
            writes.end_gap(gap)
            topic.take_back(first)
            raise
        writes.add(write)
        live.producers.begin(position)
        if quick:  # as with records: a class that does not wait for the disk shows it at once
            writes.end_gap(gap)
            show()
        return reply

    # Once it is written

    def _settle(
        self,
        topic: Topic,
        live: LivePart,
        batch: Batch,
        tagged: bool,
        answer: Appended,
        on_done: OnDone[Appended],
        noted: tuple[Noted, ...],
        error: BaseException | None,
    ) -> None:
        if error is None:
            self._publish(topic, live, batch, tagged, noted)
            notify(on_done, answer)
            return
        self._failed(topic, live, error, noted)
        notify(on_done, None, error)

    def _settle_quick(
        self,
        topic: Topic,
        live: LivePart,
        batch: Batch,
        noted: tuple[Noted, ...],
        error: BaseException | None,
    ) -> None:
        if error is None or topic.config.durability == "ephemeral":
            return
        self._failed(topic, live, error, noted)
        if topic.epoch < 0 or (isinstance(error, OutcomeUnknown) and self._holds(topic, batch)):
            return
        # Readers may have seen it: it is lost as by a crash, and they hear of it the same way.
        topic.lose_range(batch.first_seq, batch.last_seq, *topic.held_in(batch))
        live.restart_tail(topic.head + 1)
        logger.warning("topic %s lost %d records: %s", topic.name, batch.count, error)

    def _holds(self, topic: Topic, batch: Batch) -> bool:
        """Whether the store has it after all: nothing was numbered since, so its end shows it."""
        try:
            return self._log.last_key(topic.epoch) >= batch.last_seq
        except FairwayError:  # it is closed
            return False

    def _failed(
        self, topic: Topic, live: LivePart, error: BaseException, noted: tuple[Noted, ...]
    ) -> None:
        unknown = isinstance(error, OutcomeUnknown)
        live.writes.note_failure()
        live.lose(topic.epoch, noted, unknown=unknown)
        self._writability.note(error, abs(topic.epoch))
        if unknown and topic.assigned > topic.head and live.doubts.raise_end():
            self._retention.doubt(topic)
        if live.writes.all_shown:
            topic.unassign()

    def _publish(
        self,
        topic: Topic,
        live: LivePart,
        batch: Batch,
        tagged: bool,
        noted: tuple[Noted, ...] = NOTHING_NOTED,
    ) -> None:
        if topic.epoch < 0:
            return  # deleted while it was being written
        topic.apply(batch)
        for change in noted:
            topic.apply(change)
        self._hot.push(topic, live.tail, batch)
        durable = topic.config.durability == "fsync"  # what a failure may take is not noted
        if durable and (tagged or live.tags is not None):
            self._tags.note(live, batch)
        self._published(topic)

    # What must be known first

    async def _enqueue_patiently(self, topic: Topic, new: NewBatch) -> asyncio.Future[Appended]:
        async def enqueue() -> asyncio.Future[Appended]:
            if topic.weak:
                await self.reserving.reserve(topic, new.records.count)
            return self.enqueue(topic, new)

        return await self.patiently(topic.name, len(new.records.raw), enqueue)

    async def patiently(self, name: str, size: int, attempt: Callable[[], Awaitable[T]]) -> T:
        """Wait for room up to a deadline; how much may wait is bounded too."""
        if self._patient_bytes + size > PATIENT_BYTES_MAX:
            raise Unavailable("too many writes wait for room already")
        self._patient_bytes += size
        deadline_ns = self._clock.now_ns() + PATIENCE_NS
        try:
            while True:
                try:
                    return await attempt()
                except Backpressure as refusal:
                    if self._clock.now_ns() + refusal.retry_after_ns > deadline_ns:
                        raise Unavailable(
                            f"no room for a write to {name!r} within"
                            f" {PATIENCE_NS // 10**9} s: {refusal}"
                        ) from None
                    await sleep_ns(refusal.retry_after_ns)
        finally:
            self._patient_bytes -= size


def _noted(new: NewBatch, answer: Appended, ts: int) -> tuple[Noted, ...]:
    """What its operation says beside the records."""
    noted: tuple[Noted, ...] = (new.position,) if new.position is not None else NOTHING_NOTED
    if new.key is not None:
        noted += (KeySeen(new.key, SeenKey(answer.first_seq, answer.last_seq, ts)),)
    return noted

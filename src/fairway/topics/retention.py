"""What makes a topic smaller by itself: caps and TTL; and the upkeep that follows from them.

Eviction happens at once, with the append that makes it necessary, unless much has to go: then the
rest goes shortly after. What is to be evicted, and the live record behind it, is read before the
append if it is not in memory. Whatever goes through much of a topic does so in steps, with turns
for the others between them, so no state between two steps may be wrong: a batch is evicted as a
whole, a deletion is applied once it is counted, and neither before it is known which live record
will be the first. Rows below the floors are removed in chunks that queue like any other write, so
trimming a large topic is never a long write for the others. Snapshots are written with them, and
for topics that were written to and then left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.errors import FairwayError, NotFound
from fairway.runtime.clock import sleep_ns
from fairway.runtime.shielded import shielded
from fairway.runtime.turn import TURN, Pace
from fairway.storage.wal import INT_MAX, Operation
from fairway.storage.writer import Durability
from fairway.topics import names
from fairway.topics.batch import decode_batch
from fairway.topics.deleting import Deletions
from fairway.topics.expiry import Expiries
from fairway.topics.old_batches import (
    BATCH_WORK,
    OldBatches,
    evict_front,
    eviction_work,
    holds_front,
    hot_behind,
    hot_front,
    work_of,
)
from fairway.topics.old_keys import OldKeys
from fairway.topics.operations import encode_snapshot
from fairway.topics.reclaiming import Reclaiming
from fairway.topics.topic import Eviction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fairway.runtime.clock import Clock
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.batch import RecordBatch
    from fairway.topics.doubts import Doubt
    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.tail import HotBytes
    from fairway.topics.topic import Topic

logger = logging.getLogger("fairway.topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    period_ns: int = 250_000_000
    """How often upkeep looks for work. Raising it costs less and trims later."""
    chunk: int = 500
    """Entries removed by one write. Raising it trims faster, in longer writes for everybody."""
    eviction_steps: int = 8
    """Steps of evicting from one topic before the others are looked after."""
    page_bytes: int = 256 * 1024
    """Bytes read at a time when old records must be looked at."""
    snapshot_records: int = 2000
    """Records after which a topic is snapshotted. Raising it writes less and recovers slower."""
    snapshot_idle_ms: int = 5_000
    """A topic left alone this long is snapshotted whatever it got."""


class Retention:
    """Evicts, trims and snapshots. A service of the topics engine."""

    name = "retention"

    def __init__(
        self,
        log: Partitions,
        clock: Clock,
        *,
        activate: Callable[[Topic], ActiveTopic],
        hot: HotBytes,
        keys: KeyMemory,
        topic_at: Callable[[int], Topic | None],
        published: Callable[[Topic], None],
        config: RetentionConfig | None = None,
        turn: TurnBudget = TURN,
    ) -> None:
        self.config = config or RetentionConfig()
        self._log = log
        self._clock = clock
        self._activate = activate
        self._published = published
        self._trim: dict[Topic, None] = {}
        self._doubtful: deque[Topic] = deque()
        self._unsaved: deque[tuple[int, Topic]] = deque()
        self._expiries = Expiries()
        self._batches = OldBatches(log, hot, page_bytes=self.config.page_bytes, turn=turn)
        self._step = turn.scan_records_per_turn
        self._append_step = turn.scan_records_per_append
        # One for all: together they keep the loop no longer than one alone.
        self._pace = Pace(self._step, turn.scan_rest_ns)
        self._old_keys = OldKeys(log, clock, keys, topic_at)
        self._wake = asyncio.Event()
        self.deletions = Deletions(
            log,
            activate=activate,
            batches=self._batches,
            pace=self._pace,
            doubt=self.doubt_change,
            settle=self._settle_front,
            deleted=self._deleted,
        )
        self._reclaiming = Reclaiming(
            log, activate=activate, batches=self._batches, pace=self._pace
        )

    # On the way in

    def wrote(self, topic: Topic) -> None:
        """Records were published: evict what must go, as far as memory reaches."""
        unsaved = topic.head - topic.snapshot_head
        if unsaved >= self.config.snapshot_records:
            self._trim[topic] = None
        elif unsaved:
            self._note_unsaved(topic)
        expired = False
        if topic.config.ttl_ms:
            due_ms = self._expiries.due_ms(topic)
            if topic.set_back[0] > topic.floor:  # its oldest may go earlier than they say
                self._expiries.note(topic, topic.set_back[1] + topic.config.ttl_ms)
            if due_ms is None:
                self._note_oldest(topic)
            else:
                expired = due_ms <= topic.last_ts  # as good as now, and at hand
        if expired or topic.over_cap:
            # Who writes takes part: upkeep alone, with its rests, could be left behind.
            self.evict_hot(topic, self._append_step)

    def lacks_front(self, topic: Topic, count: int, size: int) -> bool:
        """Whether an append of so much passes a cap, and memory does not hold what must go then."""
        config = topic.config
        if not topic.count or config.discard == "reject" or not topic.would_overflow(count, size):
            return False
        return not holds_front(topic, self._activate(topic), self._step)

    async def fetch_front(self, topic: Topic) -> None:
        """Have in memory what an append will evict first, or it would be left to upkeep."""
        with suppress(FairwayError):  # the write itself raises what is the matter
            await self._batches.fetch_front(topic, self._activate(topic))

    def doubt(self, topic: Topic) -> None:
        """A write's outcome is unknown: look at the store before the next one."""
        self._doubtful.append(topic)
        self._wake.set()

    def doubt_change(self, topic: Topic, doubt: Doubt) -> None:
        """The same of a change: until the store was asked, nothing is numbered or changed."""
        doubts = self._activate(topic).doubts
        doubts.raise_change(doubt)
        doubts.raise_end()
        self.doubt(topic)

    def recovered(self, topics: Iterable[Topic]) -> None:
        """Topics as they were found: what a crash left undone is done by and by."""
        for topic in topics:
            self._old_keys.look_at(topic, 0)
            if topic not in self._expiries:  # else its oldest record was looked at just now
                self._look_for_expired(topic)
            self._look_at_rows(topic)
            if topic.thinned:
                self._trim[topic] = None
            if topic.to_reclaim:
                self._reclaiming.begin(topic, 0)

    def reconsider(self, topic: Topic) -> None:
        """Its state or its configuration is another: what follows from that is done by and by."""
        self._look_for_expired(topic)
        self._look_at_rows(topic)

    def _look_for_expired(self, topic: Topic) -> None:
        if topic.config.ttl_ms and topic.count:
            self._expiries.note(topic, 0)

    def _look_at_rows(self, topic: Topic) -> None:
        if topic.over_cap or topic.floor > 1 or topic.head != topic.snapshot_head:
            self._trim[topic] = None

    def _note_oldest(self, topic: Topic) -> None:
        """Its first record is there, or the first one again: remember when it will expire."""
        front = hot_front(topic, self._activate(topic))
        expires_ms = topic.expires_ms(front, self._now_ms()) if front is not None else None
        if topic.count:
            self._expiries.note(topic, expires_ms or 0)

    def _deleted(self, topic: Topic, first: int) -> None:
        self._trim[topic] = None
        self._reclaiming.begin(topic, first)
        self._wake.set()
        self.evict_hot(topic)

    async def _settle_front(self, topic: Topic) -> None:
        """Begin at a live record, past what was deleted. Called with the topic's lock held."""
        active = self._activate(topic)
        while topic.thinned:
            if not topic.count:
                topic.skip_all()
                return
            front = None if active.doubts.changes else await self._batches.front(topic, active)
            if front is None or topic.epoch < 0 or not topic.skip_deleted(front):
                return
            if active.tail.oldest is front:
                active.tail.pop_oldest()
            await self._pace.turn(work_of(front, parsed=True))

    # Evicting

    def evict_hot(self, topic: Topic, work: int | None = None) -> None:
        """Evict what must go, as far as memory and so much work reach, a step if it is not given.
        Upkeep takes the rest."""
        active = self._activate(topic)
        if (active.lock.locked() and not active.reclaiming) or active.doubts.changes:
            self._trim[topic] = None
            return
        now_ms = self._now_ms()
        left = self._step if work is None else work
        floor = topic.floor
        while topic.over_cap or self._front_expired(topic, now_ms):
            if left <= 0:
                self._evict_on(topic)
                return
            front = hot_front(topic, active)
            eviction = topic.eviction_due(front, now_ms) if front is not None else None
            if front is None or eviction is None:
                self._trim[topic] = None
                return
            left -= eviction_work(topic, front)
            behind = hot_behind(topic, active, front, eviction.upto, self._step)
            if behind is None:
                # Better late than now: nobody could say which record is the first then.
                self._trim[topic] = None
                return
            evict_front(topic, active, front, eviction, behind)
        if topic.thinned and topic.floor > floor:
            self._settle_hot(topic, active)
        if topic.floor > self._log.floor(topic.epoch) + self.config.chunk:
            self._trim[topic] = None

    def dropped(self, topic: Topic, batch: RecordBatch) -> None:
        """Memory was all that held a batch, and has had to let it go."""
        eviction = Eviction(batch.last_seq, "cap")
        behind = hot_behind(topic, self._activate(topic), batch, eviction.upto, self._step)
        topic.evict(batch, eviction, behind or 0)
        if behind is None:
            # More was deleted behind it than can be gone through at once, just now: it was to be
            # reclaimed. This cannot wait, so here alone upkeep finds the first live record.
            self._trim[topic] = None
            self._wake.set()

    def _settle_hot(self, topic: Topic, active: ActiveTopic) -> None:
        """As `_settle_front`, as far as memory and a step reach."""
        left = self._step
        while topic.count and left > 0:
            front = hot_front(topic, active)
            if front is None:
                break
            left -= work_of(front, parsed=True)
            if not topic.skip_deleted(front):
                return
            if active.tail.oldest is front:
                active.tail.pop_oldest()
        if not topic.count:
            topic.skip_all()
        else:
            self._trim[topic] = None

    def _front_expired(self, topic: Topic, now_ms: int) -> bool:
        front = hot_front(topic, self._activate(topic)) if topic.config.ttl_ms else None
        expires_ms = topic.expires_ms(front, now_ms) if front is not None else None
        return expires_ms is not None and expires_ms <= now_ms

    def _evict_on(self, topic: Topic) -> None:
        """More must go: the others first, then the next part, without a pause."""
        self._trim[topic] = None
        self._look_for_expired(topic)
        self._wake.set()

    async def expire(self, topic: Topic) -> None:
        """Lose what is too old now; called before a topic with a TTL is read."""
        if topic.count:
            floor = topic.floor
            await self._evict(topic, INT_MAX)
            if topic.floor > floor:
                self._trim[topic] = None  # upkeep may have nothing left to expire

    async def _evict(self, topic: Topic, steps_max: int) -> None:
        """Evict what must go by now, at most so many steps of it."""
        active = self._activate(topic)
        now_ms = self._now_ms()
        for _ in range(steps_max):
            async with active.lock:
                more = await self._evict_step(topic, active, now_ms)
            if not more:
                return
            await self._pace.rest()  # without the lock: appends and deletes go on meanwhile
            if topic.epoch < 0:
                raise NotFound("topic", topic.name)
        self._evict_on(topic)

    async def _evict_step(self, topic: Topic, active: ActiveTopic, now_ms: int) -> bool:
        """Evict until a rest is due; False if nothing more has to go, or can."""
        floor = topic.floor
        while topic.count and (topic.over_cap or topic.config.ttl_ms):
            front = None if active.doubts.changes else await self._batches.front(topic, active)
            if front is None:
                self._look_for_expired(topic)  # it is not known yet
                return False
            self._pace.spend(eviction_work(topic, front))
            eviction = topic.eviction_due(front, now_ms)
            if eviction is None:
                expires_ms = topic.expires_ms(front, now_ms)
                if expires_ms is not None:
                    self._expiries.note(topic, expires_ms)
                break
            failures = active.writes.failures
            behind = await self._batches.behind(topic, front, eviction.upto, self._pace)
            if active.writes.failures != failures:
                continue  # the batch itself may be lost
            evict_front(topic, active, front, eviction, behind)
            if self._pace.spent:
                return True
        if topic.floor > floor:
            await self._settle_front(topic)
        return False

    # Upkeep

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.config.period_ns / 1e9):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            for chore in (
                self._settle_doubts,
                self._expire_all,
                self._trim_all,
                self._reclaim_all,
                self._old_keys.forget,
            ):
                try:
                    await chore()
                except FairwayError as error:  # the store is ill: its writers see that; try again
                    logger.warning("upkeep of topics failed, will try again: %s", error)
                    await sleep_ns(self.config.period_ns)

    async def _each(
        self, topics: Iterable[Topic], upkeep: Callable[[Topic], Awaitable[None]]
    ) -> None:
        """Look after each topic; one that cannot be now is tried again and holds up no other."""
        failure: FairwayError | None = None
        for topic in topics:
            await self._pace.turn(BATCH_WORK)
            if topic.epoch < 0:
                continue
            try:
                await upkeep(topic)
            except NotFound:
                continue  # deleted meanwhile
            except FairwayError as error:
                self._trim[topic] = None
                failure = error
        if failure is not None:
            raise failure

    async def _settle_doubts(self) -> None:
        topics, self._doubtful = list(self._doubtful), deque()
        await self._each(topics, self._settle_doubt)

    async def _settle_doubt(self, topic: Topic) -> None:
        try:
            await self._look_again(topic)
        except FairwayError:
            self._doubtful.append(topic)
            raise

    async def _look_again(self, topic: Topic) -> None:
        """Publish what a write of unknown outcome left in the store after all."""
        active = self._activate(topic)
        await active.writes.wait_decided()  # they take in themselves what they wrote
        # Raises for as long as the log does not know: to settle the doubt by what was there before
        # would give out seqs again that the store has.
        first, last = topic.head + 1, self._log.last_key(topic.epoch)
        found: list[RecordBatch] = []
        while first <= last:
            entries = await self._log.read(topic.epoch, first=first, last=last)
            if not entries:
                break
            found += (decode_batch(entry.payload, topic=topic.name) for entry in entries)
            first = entries[-1].key + 1
        true: list[Doubt] = []
        if active.doubts.changes:
            true = active.doubts.made(await self._log.meta(topic.epoch, names.SNAPSHOT))
        # It is there; readers may see it once it is certain to stay. Nobody is numbered meanwhile.
        if found or true:
            meta: dict[str, bytes | None] = {names.CONFIRMED: names.encode_number(last)}
            await self._log.submit(topic.epoch, Operation(meta=meta))
        active.doubts.settle_changes()
        for batch in found:
            while true and true[0].seq <= batch.first_seq:
                topic.apply(true.pop(0).change)
            topic.apply(batch)
        for doubt in true:
            topic.apply(doubt.change)
        if topic.config.durability != "ephemeral":  # whose records are nowhere else
            active.restart_tail(topic.head + 1)
        topic.unassign(last)
        active.doubts.settle_end()
        self.reconsider(topic)  # it may be configured in another way
        self.wrote(topic)
        self._published(topic)

    async def _expire_all(self) -> None:
        now_ms = self._now_ms()
        due: list[Topic] = []
        while some := self._expiries.take(now_ms):
            due += some
            await self._pace.turn(self._step)
        await self._each(due, self._expire_one)

    async def _expire_one(self, topic: Topic) -> None:
        if not topic.count or not topic.config.ttl_ms:
            return
        try:
            await self._evict(topic, self.config.eviction_steps)
        except FairwayError:
            self._look_for_expired(topic)
            raise
        if topic.floor > self._log.floor(topic.epoch):
            self._trim[topic] = None

    async def _trim_all(self) -> None:
        now_ms = self._now_ms()
        while self._unsaved and self._unsaved[0][0] <= now_ms:
            _, topic = self._unsaved.popleft()
            if topic.active is not None:
                topic.active.note_saved()
            self._trim[topic] = None
        topics, self._trim = list(self._trim), {}
        await self._each(topics, self._trim_one)

    async def _trim_one(self, topic: Topic) -> None:
        if topic.over_cap:
            await self._evict(topic, self.config.eviction_steps)
        if topic.thinned:
            async with self._activate(topic).lock:
                await self._settle_front(topic)
        if await self.save(topic):
            self._trim[topic] = None  # the others first, then the next chunk, without a pause
            self._wake.set()

    async def _reclaim_all(self) -> None:
        await self._each(self._reclaiming.topics, self._reclaim_one)

    async def _reclaim_one(self, topic: Topic) -> None:
        for _ in range(self.config.eviction_steps):
            if not await self._reclaiming.step(topic):
                return
        self._wake.set()  # the others first, then the next part, without a pause

    def snapshot_meta(self, topic: Topic) -> dict[str, bytes | None]:
        """A snapshot as metadata, to be written in an operation of the topic."""
        snapshot = topic.snapshot()
        topic.saved(snapshot.head)
        return {names.SNAPSHOT: encode_snapshot(snapshot)}

    async def save(self, topic: Topic) -> bool:
        """Write a snapshot, and remove a chunk of rows below the floor; True if more can go."""
        floor = self._log.floor(topic.epoch)
        target = min(topic.floor, self._log.last_key(topic.epoch) + 1)
        if topic.pin:
            target = min(target, topic.pin)
        step = min(target, floor + self.config.chunk)
        meta: dict[str, bytes | None] = {}
        active = topic.active
        if topic.rules is not None and (active is None or active.writes.removal is None):
            # Not while a deletion is being written: it may have extended one of these rules.
            for match in topic.rules.prune(topic.floor):
                meta[names.RULE + match.name] = None
        snapshot = topic.snapshot()
        meta[names.SNAPSHOT] = encode_snapshot(snapshot)
        compact = step if step > floor else None
        if compact is None and snapshot.head == topic.snapshot_head and len(meta) == 1:
            return False
        operation = Operation(meta=meta, compact_before=compact)
        await shielded(self._log.submit(topic.epoch, operation, durability=Durability.DISK))
        topic.saved(snapshot.head)
        return step < target

    def _note_unsaved(self, topic: Topic) -> None:
        if self._activate(topic).note_unsaved():
            self._unsaved.append((self._now_ms() + self.config.snapshot_idle_ms, topic))

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000

"""One topic, as a pure machine: seqs, the two floors, what is lost, what is deleted, what is live.

`head` is the last seq that readers may see; `assigned` the last one given to a write under way. Two
floors say where reading begins. `evict_floor` moves only when records are lost against anybody's
will (cap, TTL, crash) and alone makes tombstones; `earliest` is the first live record and moves on
deletes too. Always `evict_floor <= earliest`.

    1 ........ evict_floor ........ earliest ................ head ... assigned
      lost: a tombstone   deleted:     live, less what a tag rule     being
                          silence      hides and crashes took         written
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fairway.errors import Unavailable
from fairway.topics.batch import RecordBatch, size_of
from fairway.topics.match import TagRules
from fairway.topics.operations import (
    NO_HOLES,
    SKIPPED,
    Hole,
    Removal,
    Reserved,
    Ruling,
    Snapshot,
    joined,
)
from fairway.wire.topics import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fairway.topics.active import ActiveTopic
    from fairway.topics.match import Rule
    from fairway.topics.operations import Change
    from fairway.wire.topics import LossReason


class Gap(NamedTuple):
    """Seqs `first..last` are lost, from a reader's cursor on."""

    first: int
    last: int
    reason: LossReason


class Eviction(NamedTuple):
    """What must go of the oldest batch with live records, and why."""

    upto: int
    reason: LossReason


class Extent(Protocol):
    """What a topic was at a moment, as whoever depends on it wrote it down."""

    @property
    def upto(self) -> int:
        """Its head."""
        ...

    @property
    def floor(self) -> int:
        """Its `evict_floor`."""
        ...

    @property
    def floor_reason(self) -> str: ...
    @property
    def delete_floor(self) -> int: ...
    @property
    def holes(self) -> Sequence[tuple[int, int, str]]: ...


DEFAULT_CONFIG: Final = TopicConfig()


class Topic:
    """The state of one incarnation of a topic. There may be very many: idle ones stay small."""

    __slots__ = (
        "active",
        "assigned",
        "bytes",
        "config",
        "count",
        "delete_floor",
        "drained",
        "earliest",
        "epoch",
        "evict_floor",
        "floor_reason",
        "head",
        "hidden",
        "holes",
        "last_read_ns",
        "last_ts",
        "name",
        "owner",
        "pin",
        "reclaimed",
        "reserved",
        "rules",
        "set_back",
        "snapshot_head",
        "to_reclaim",
    )

    def __init__(self, name: str, epoch: int, config: TopicConfig, owner: str = "") -> None:
        self.name = name
        self.owner = owner
        self.epoch = epoch
        self.config = config
        self.head = 0
        self.assigned = 0
        self.drained = 0
        self.evict_floor = 1
        self.floor_reason: LossReason | None = None
        self.delete_floor = 1
        self.earliest = 1
        self.holes = NO_HOLES
        self.count = 0
        self.bytes = 0
        self.hidden = 0
        self.reclaimed = 0
        self.to_reclaim = 0
        self.last_ts = 0
        self.set_back = (0, 0)
        self.reserved = 0
        self.pin = 0  # rows from this seq on stay stored whatever the floors say; 0: none need to
        self.rules: TagRules | None = None
        self.last_read_ns: int | None = None
        self.snapshot_head = 0
        self.active: ActiveTopic | None = None

    def as_of(self, extent: Extent) -> Topic:
        """The topic as it was at a moment: what it has lost since then is still stored."""
        past = Topic(self.name, self.epoch, DEFAULT_CONFIG)
        past.head = past.assigned = past.drained = extent.upto
        past.evict_floor = extent.floor
        past.floor_reason = extent.floor_reason or None  # type: ignore[assignment]
        past.delete_floor = extent.delete_floor
        past.earliest = max(extent.floor, extent.delete_floor)
        past.holes = tuple(Hole(*hole) for hole in extent.holes)  # type: ignore[arg-type]
        past.active = self.active
        return past

    # In use, and gone

    def begin_use(self, active: ActiveTopic) -> ActiveTopic:
        """Somebody uses it: it has from now on what only a topic in use needs."""
        self.active = active
        return active

    def end_use(self) -> None:
        """Nobody does, and it is small again."""
        self.active = None

    def retire(self) -> int:
        """It is deleted, and whoever still holds it sees that by its epoch, which is returned."""
        epoch, self.epoch = self.epoch, -self.epoch
        return epoch

    def note_read(self, now_ns: int) -> None:
        """Somebody consumed from it: recency."""
        self.last_read_ns = now_ns

    def mark_drained(self) -> int:
        """Everything up to the head is being delivered, or nobody reads it; returns the last seq
        that was delivered before."""
        before, self.drained = self.drained, self.head
        return before

    # What its operations add up to

    def apply(self, change: Change) -> None:
        """Add a change that an operation made. What was added before changes nothing."""
        if isinstance(change, RecordBatch):  # by far the most common
            first, count = change.first_seq, change.count
            head, last = self.head, first + count - 1
            if first != head + 1:
                if last <= head:
                    return
                # Seqs are given out one after the other: what is missing was acknowledged and lost.
                head = first - 1
                self._leave_out(Hole(self.head + 1, head, "crash"))
            if last > self.assigned:  # another life, or another machine, gave it its seqs
                self.assigned = last
                self._note_clock(first, change.accepted_ms)
                self.last_ts = max(self.last_ts, change.ts)
            if self.earliest > head:
                self.earliest = first
            self.head = last
            self.count += count
            self.bytes += change.size
        elif isinstance(change, Hole):
            self._leave_out(change)
        elif isinstance(change, Removal):
            self._remove(change)
        elif isinstance(change, Snapshot):
            self._become(change)
        elif isinstance(change, Ruling):
            self._rule(change)
        elif isinstance(change, Reserved):
            self.reserved = change.upto
        elif isinstance(change, TopicConfig):
            self.config = change
        elif self.active is not None:  # else whoever needs it asks the store
            self.active.apply(self.epoch, change)

    def _leave_out(self, hole: Hole) -> None:
        """Seqs behind the head hold no records: they were lost before they came here, or by a
        crash, or were certainly never written."""
        if hole.last <= self.head:
            return
        assert hole.first == self.head + 1, "applied out of order"
        self.head = hole.last
        self.assigned = max(self.assigned, hole.last)
        self.holes = joined((*self.holes, hole))
        self._absorb()
        if not self.count:
            self.earliest = hole.last + 1

    def _absorb(self) -> None:
        """Losses that adjoin the lost prefix are part of it."""
        while self.holes and self.holes[0].first <= self.evict_floor:
            first = self.holes[0]
            if first.reason == SKIPPED:
                return
            self.raise_evict_floor(first.last + 1, first.reason)

    def _remove(self, removal: Removal) -> None:
        if removal.rule is None:
            self.delete_floor = max(self.delete_floor, removal.delete_floor)
            self.start_at(min(removal.delete_floor, self.head + 1))
        else:
            self._rule(Ruling(removal.rule, removal.upto))
            self.to_reclaim = max(self.to_reclaim, removal.upto)
        self.count -= removal.records
        self.bytes -= removal.size
        self._uncover(-removal.hidden)
        self.start_at(min(removal.earliest, self.head + 1))

    def _rule(self, ruling: Ruling) -> None:
        if ruling.upto:
            if self.rules is None:
                self.rules = TagRules()
            self.rules.add(*ruling)
        elif self.rules is not None:
            self.rules.drop(ruling.rule)

    def _become(self, snapshot: Snapshot) -> None:
        self.head = self.assigned = snapshot.head
        self.snapshot_head = snapshot.head
        self.last_ts = snapshot.ts
        self.count = snapshot.count
        self.bytes = snapshot.bytes
        self.evict_floor = snapshot.evict_floor
        self.floor_reason = snapshot.floor_reason or None  # type: ignore[assignment]
        self.delete_floor = snapshot.delete_floor
        self.earliest = snapshot.earliest
        self.holes = joined(Hole(*hole) for hole in snapshot.holes)  # type: ignore[arg-type]
        self._absorb()
        self.start_at(self.earliest)
        self.pin = snapshot.pin
        self.hidden = max(snapshot.hidden, 0)
        self.reclaimed = snapshot.reclaimed
        self.to_reclaim = snapshot.to_reclaim
        self.set_back = snapshot.set_back
        if snapshot.hidden < 0 and snapshot.rules:
            self.to_reclaim = snapshot.head  # of a release that left all of it where it was
        if snapshot.config is not None and snapshot.config != self.config:
            self.config = snapshot.config  # else the one that it shares with others

    def take_over(self, *, all_written: bool) -> None:
        """Everything that is stored was applied, and this process gives out the next seq.

        Those that a life before has reserved and not written may have been acknowledged. With
        `all_written` each that was given out is there, if its class waits for that.
        """
        if self.reserves_seqs and self.reserved:
            skipped = all_written and self.config.durability == "disk"
            # Not written down here: until it is, the jump in the seqs shows a crash.
            self._leave_out(Hole(self.head + 1, self.reserved, SKIPPED if skipped else "crash"))
            self.reserved = self.head
        if self.config.durability == "ephemeral" and self.floor <= self.head:
            # Live or not, and behind a deleted prefix too: nobody must look for it in the store,
            # and memory, which begins behind the head now, must reach back to the floor.
            self.lose_all("crash")
        self.drained = self.head

    # Writing

    def place(self, count: int, now_ms: int) -> tuple[int, int]:
        """The first seq and the time of an append that is about to be written."""
        first = self.assigned + 1
        self.assigned += count
        # Time never runs backwards inside a topic, whatever the clock does.
        if now_ms >= self.last_ts:
            self.last_ts = now_ms
        else:
            self._note_clock(first, now_ms)
        return first, self.last_ts

    def _note_clock(self, first: int, now_ms: int) -> None:
        """A record is accepted: those below were accepted before it, whatever their times say."""
        seq, ms = self.set_back
        if now_ms < self.last_ts and (now_ms <= ms or seq <= self.floor):
            self.set_back = (first, now_ms)

    def take_back(self, first: int) -> None:
        """What was placed last, from `first` on, was not accepted."""
        self.assigned = first - 1

    def unassign(self, stored: int = 0) -> None:
        """Everything under way failed: their seqs were never seen and are given out again, but
        those up to `stored`, which the store has used."""
        self.assigned = max(self.head, stored)

    def give_back(self) -> None:
        """Nothing is reserved any more: whoever is numbered from now on must reserve anew."""
        self.reserved = 0

    @property
    def reserves_seqs(self) -> bool:
        """Whether a crash may take acknowledged records, so that seqs must be reserved."""
        return self.config.durability != "fsync"

    # What is lost, and what is live

    def gap_after(self, seq: int) -> Gap | None:
        """The loss that a reader standing at `seq` meets next, if the very next seq is lost."""
        following = seq + 1
        if following < self.evict_floor:
            return Gap(following, self.evict_floor - 1, self.floor_reason or "cap")
        for hole in self.holes:
            if hole.first <= following <= hole.last and hole.reason != "skipped":
                return Gap(following, hole.last, hole.reason)
        return None

    def past_skipped(self, seq: int) -> int:
        """Where a reader at `seq` stands once it has passed over seqs that were never written."""
        for hole in self.holes:
            if hole.reason == SKIPPED and hole.first <= seq + 1 <= hole.last:
                seq = hole.last
        return seq

    @property
    def skip_unsaved(self) -> bool:
        """Whether seqs were skipped at the end, and no snapshot says so: then the next record
        must not be written before one does, or the jump would pass for a loss."""
        return bool(
            self.holes
            and self.holes[-1].reason == SKIPPED
            and self.holes[-1].last > self.snapshot_head
        )

    def end_of_run(self, seq: int) -> int:
        """The last seq after `seq`, up to the head, before the next hole."""
        for hole in self.holes:
            if hole.first > seq:
                return hole.first - 1
        return self.head

    def is_live(self, seq: int, tag: str | None) -> bool:
        return seq >= self.floor and not (self.rules is not None and self.rules.hides(seq, tag))

    @property
    def floor(self) -> int:
        """Nothing below it is live."""
        return max(self.evict_floor, self.delete_floor)

    @property
    def thinned(self) -> bool:
        """Whether deletions left gaps above the floor: a record there may be hidden, or gone."""
        return self.thinned_after(self.floor - 1)

    def thinned_after(self, seq: int) -> bool:
        """The same, above `seq`: the next one may not be live."""
        return bool(self.rules) or seq < self.reclaimed

    def held_in(self, batch: RecordBatch, upto: int | None = None) -> tuple[int, int, int]:
        """(live records, their bytes, bytes that are hidden) of a batch, up to seq `upto`."""
        floor = self.floor
        last = batch.last_seq if upto is None else min(upto, batch.last_seq)
        if last < floor or last < batch.first_seq:
            return 0, 0, 0
        if floor <= batch.first_seq and last == batch.last_seq and not self.rules:
            return batch.count, batch.size, 0
        count = size = hidden = 0
        for seq, record in enumerate(batch.parse(), batch.first_seq):
            if floor <= seq <= last:
                if self.is_live(seq, record.tag):
                    count += 1
                    size += size_of(record, batch.node)
                else:
                    hidden += size_of(record, batch.node)
        return count, size, hidden

    def live_in(self, batch: RecordBatch, upto: int | None = None) -> tuple[int, int]:
        """(records, bytes) of a batch that are live, of those up to seq `upto`."""
        return self.held_in(batch, upto)[:2]

    def first_live_in(self, batch: RecordBatch, after: int = 0) -> int | None:
        """The first live seq of a batch, of those above `after`."""
        first = max(self.floor, batch.first_seq, after + 1)
        if first > batch.last_seq or not self.rules:
            return first if first <= batch.last_seq else None
        for seq, record in enumerate(batch.parse(), batch.first_seq):
            if seq >= first and self.is_live(seq, record.tag):
                return seq
        return None

    # Retention

    @property
    def capped(self) -> bool:
        return bool(self.config.cap_records or self.config.cap_bytes)

    @property
    def over_cap(self) -> bool:
        config = self.config
        return bool(
            (config.cap_records and self.count > config.cap_records)
            or (config.cap_bytes and self.stored > config.cap_bytes)
        )

    @property
    def stored(self) -> int:
        """Bytes that count against a cap or a quota: live, or hidden by a deletion and stored."""
        return self.bytes + self.hidden

    def would_overflow(self, count: int, size: int) -> bool:
        """Whether an append of so much would pass a cap, counting what is under way."""
        config = self.config
        pending = pending_bytes = 0
        if self.active is not None:
            writes = self.active.writes
            pending, pending_bytes = writes.pending_count, writes.pending_bytes
        return bool(
            (config.cap_records and self.count + pending + count > config.cap_records)
            or (config.cap_bytes and self.stored + pending_bytes + size > config.cap_bytes)
        )

    def expires_ms(self, batch: RecordBatch, now_ms: int) -> int | None:
        """When a batch is too old by a clock that shows `now_ms`, or None if never.

        That is its TTL after it was accepted. If the clock has not come to that yet, it was ahead
        then: the batch goes with those that were accepted after it was set back, or these would
        have to stay for as long as it was ahead.
        """
        ttl_ms = self.config.ttl_ms
        if not ttl_ms:
            return None
        accepted_ms = batch.accepted_ms
        seq, ms = self.set_back
        if batch.last_seq < seq and now_ms < accepted_ms:
            return min(ms, accepted_ms) + ttl_ms
        return accepted_ms + ttl_ms

    def eviction_due(self, front: RecordBatch, now_ms: int) -> Eviction | None:
        """What must go of the oldest batch with live records, or None if all of it may stay."""
        expires_ms = self.expires_ms(front, now_ms)
        if expires_ms is not None and expires_ms <= now_ms:
            return Eviction(front.last_seq, "ttl")
        return Eviction(self._overflow_in(front), "cap") if self.over_cap else None

    def must_look_behind(self, front: RecordBatch, upto: int) -> bool:
        """Whether a loss up to `upto` leaves nothing of the oldest batch, and the next batch need
        not hold the first live record: deletions may have left that anywhere."""
        return (
            self.earliest <= front.last_seq
            and self.thinned_after(front.last_seq)
            and self.first_live_in(front, upto) is None
        )

    def evict(self, front: RecordBatch, eviction: Eviction, behind: int = 0) -> bool:
        """Lose what must go of the oldest batch with live records; True if all of it went.

        `behind` is the first live seq behind it, for whoever `must_look_behind` it. Both move in
        one step: whoever looks between two would see a deleted record as the first.
        """
        self._lose(front, eviction.upto, eviction.reason)
        self.start_at(behind)
        return self.floor > front.last_seq

    def _overflow_in(self, front: RecordBatch) -> int:
        """The seq up to which the oldest batch must go for the caps to hold, or its last."""
        config = self.config
        records = self.count - config.cap_records if config.cap_records else 0
        size = self.stored - config.cap_bytes if config.cap_bytes else 0
        seq = max(self.floor, front.first_seq)
        if size <= 0 and not self.rules:
            return min(seq + records - 1, front.last_seq)
        # One pass, whatever must go: a cap may take thousands of records out of one batch.
        for seq, record in enumerate(front.parse(), front.first_seq):
            if seq >= self.floor:
                records -= self.is_live(seq, record.tag)
                size -= size_of(record, front.node)
                if records <= 0 and size <= 0:
                    return seq
        return front.last_seq

    def _lose(self, front: RecordBatch, upto: int, reason: LossReason) -> None:
        count, size, hidden = self.held_in(front, upto)
        self.count -= count
        self.bytes -= size
        self._uncover(hidden)
        self.raise_evict_floor(upto + 1, reason)
        if self.rules:
            self.skip_deleted(front)

    def _uncover(self, hidden: int) -> None:
        # Never below nothing: a store of an older release does not say how much there is.
        self.hidden = max(0, self.hidden - hidden)

    def skip_deleted(self, front: RecordBatch) -> bool:
        """Begin at the first live record of the oldest batch; behind it, and True, if it has none.

        Nobody is notified: what it holds was deleted on request, or announced as lost before.
        """
        first = self.first_live_in(front)
        if first is not None:
            self.start_at(first)
            return False
        if front.last_seq >= self.floor:
            self._uncover(self.held_in(front)[2])
            self.delete_floor = front.last_seq + 1
            self.start_at(min(self.delete_floor, self.head + 1))
        return True

    def skip_all(self) -> None:
        """No record is live: begin behind the last one."""
        self.delete_floor = max(self.delete_floor, self.head + 1)
        self.hidden = 0
        self.start_at(self.head + 1)

    def raise_evict_floor(self, floor: int, reason: LossReason) -> None:
        """Everything below `floor` is lost."""
        if floor <= self.evict_floor:
            return
        while self.holes and self.holes[0].first <= floor:
            # A hole that the floor reaches is part of the lost prefix from now on. What was skipped
            # is so only if something behind it is lost, too.
            reached, *rest = self.holes
            if reached.reason == SKIPPED:
                if reached.first == floor:
                    break
            elif reason != reached.reason:
                reason = "mixed"
            floor = max(floor, reached.last + 1)
            self.holes = tuple(rest)
        if self.floor_reason not in (None, reason):
            reason = "mixed"
        self.evict_floor = floor
        self.floor_reason = reason
        self.start_at(min(floor, self.head + 1))

    def lose_range(self, first: int, last: int, count: int, size: int, hidden: int = 0) -> None:
        """Published seqs of a class that promises nothing could not be written after all."""
        self.count -= count
        self.bytes -= size
        self._uncover(hidden)
        if first <= self.evict_floor:
            self.raise_evict_floor(last + 1, "crash")
            return
        self.holes = joined((*self.holes, Hole(first, last, "crash")))
        self.start_at(self.earliest)

    def lose_all(self, reason: LossReason) -> None:
        """Nothing of what could be read is left."""
        self.count = self.bytes = self.hidden = 0
        self.rules = None
        self.raise_evict_floor(self.head + 1, reason)

    def start_at(self, seq: int) -> None:
        """No record below `seq` is live, nor is one that was lost."""
        for hole in self.holes:
            if hole.first <= seq <= hole.last:
                seq = hole.last + 1
        self.earliest = max(self.earliest, seq)

    # Reclaiming what was deleted

    def reclaim(self, upto: int, hidden: int) -> None:
        """Batches up to `upto` that have no live record are gone, with so many hidden bytes."""
        self.reclaimed = max(self.reclaimed, upto)
        self._uncover(hidden)

    def reclaimed_all(self, idle: Collection[Rule], hidden: int | None) -> None:
        """A pass is over: these rules hide nothing any more, and what is `hidden` was counted."""
        if hidden is not None:
            self.hidden = hidden
        self.to_reclaim = 0
        if idle and self.rules is not None:
            # Another object, so that who has read records meanwhile notices.
            self.rules = self.rules.without(idle) or None

    def reclaim_again(self, upto: int) -> None:
        """The end of a pass was not written: there may be more, up to that seq."""
        self.to_reclaim = max(self.to_reclaim, upto)

    # Snapshots

    def snapshot(self) -> Snapshot:
        """The state once everything under way is written: it is queued behind that."""
        active = self.active
        removal = None
        gaps, pin, config = NO_HOLES, self.pin, self.config
        pending = pending_bytes = 0
        if active is not None:
            if active.doubts:
                # One that was written now would hide from us what the one in doubt did, or come
                # behind records that the store has and it does not count.
                raise Unavailable(f"it is not known yet what topic {self.name!r} holds")
            writes = active.writes
            removal, gaps = writes.removal, writes.gaps
            pin = writes.pins[-1] if writes.pins else pin
            config = writes.config or config
            pending, pending_bytes = writes.pending_count, writes.pending_bytes
        if removal is None:
            removal = Removal(self.delete_floor, self.earliest, 0, 0)
        return Snapshot(
            1,
            self.assigned,
            self.last_ts,
            self.count + pending - removal.records,
            self.bytes + pending_bytes - removal.size,
            self.evict_floor,
            self.floor_reason or "",
            max(self.delete_floor, removal.delete_floor),
            max(self.earliest, removal.earliest),
            [*self.holes, *gaps],
            bool(self.rules) or removal.rule is not None,
            pin,
            max(0, self.hidden + removal.hidden),
            self.reclaimed,
            max(self.to_reclaim, removal.upto),
            self.set_back,
            config,
        )

    def saved(self, head: int) -> None:
        """A snapshot up to `head` is written, or about to be."""
        self.snapshot_head = head

    def hold_from(self, seq: int) -> None:
        """Rows from `seq` on stay stored, although that is not durable yet."""
        self.pin = min(self.pin or seq, seq)

    def pinned(self, seq: int) -> None:
        """It is durable that rows from `seq` on stay stored; 0: none need to."""
        self.pin = seq

    def check(self) -> None:
        """Assert every invariant."""
        assert 0 <= self.drained <= self.head <= self.assigned
        assert 1 <= self.evict_floor <= self.earliest <= self.head + 1 or self.head == 0
        assert self.count >= 0
        assert self.bytes >= 0
        assert self.hidden >= 0
        assert (self.count == 0) == (self.bytes == 0)
        previous = self.evict_floor
        for hole in self.holes:
            assert previous <= hole.first <= hole.last <= self.head
            previous = hole.last + 1

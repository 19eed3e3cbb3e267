"""Room from deletions that leave something beside them: batches without a live record go for good.

A deletion by tag or by seq only hides: a batch is stored as a whole, and others of its records may
live. Upkeep goes through what was deleted, in steps, and removes the batches that have no live
record left, so that the store can use their room again. What is hidden and has to stay is counted.
A pass over a whole topic also finds the rules that hide nothing any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError
from fairway.runtime.shielded import shielded
from fairway.storage.wal import Operation
from fairway.storage.writer import Durability
from fairway.topics import names
from fairway.topics.old_batches import work_of
from fairway.topics.operations import encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairway.runtime.turn import Pace
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.batch import RecordBatch
    from fairway.topics.match import Rule
    from fairway.topics.old_batches import OldBatches
    from fairway.topics.topic import Topic

RULES_FEW: Final = 64
"""So many rules are not worth a pass over the whole topic to find those that hide nothing."""


@dataclass(slots=True)
class _Pass:
    """How far it is, and what it has seen of a whole topic."""

    cursor: int
    upto: int
    rules: dict[Rule, int] | None = None
    """What there was when it began at the floor; None if it did not."""
    floor: int = 0
    needed: set[Rule] = field(default_factory=set)
    hidden: int = 0
    undisturbed: bool = True
    """Nothing was deleted since, so that `hidden` is all there is."""
    gone: list[RecordBatch] = field(default_factory=list)
    """Nothing lives in them, nobody looks at them any more, and they may still be stored."""


class Reclaiming:
    """Passes over topics in which records were deleted, a step at a time."""

    def __init__(
        self,
        log: Partitions,
        *,
        activate: Callable[[Topic], ActiveTopic],
        batches: OldBatches,
        pace: Pace,
    ) -> None:
        self._log = log
        self._activate = activate
        self._batches = batches
        self._pace = pace
        self._passes: dict[Topic, _Pass] = {}
        self._few: dict[Topic, int] = {}

    @property
    def topics(self) -> list[Topic]:
        """Those that have something to be looked at."""
        return list(self._passes)

    def begin(self, topic: Topic, first: int) -> None:
        """Something was deleted, from seq `first` on."""
        if not topic.rules:
            return
        found = self._passes.get(topic)
        whole = first <= topic.floor or len(topic.rules) > self._few.get(topic, RULES_FEW)
        if found is not None and found.rules is not None:
            found.undisturbed = False
            found.upto = max(found.upto, topic.to_reclaim)
            if first >= found.cursor:
                return
        gone: list[RecordBatch] = []
        if found is not None:
            first, gone = min(first, found.cursor), found.gone
        if whole:
            # All that any rule may hide: those that hide nothing in it are dropped.
            rules = topic.rules.all()
            upto = max(topic.to_reclaim, *rules.values())
            self._passes[topic] = _Pass(topic.floor, upto, rules, topic.floor, gone=gone)
        else:
            self._passes[topic] = _Pass(first, topic.to_reclaim, gone=gone)

    async def step(self, topic: Topic) -> bool:
        """Look at a page of a topic, and remove what nothing lives in; True if there is more."""
        found = self._passes.get(topic)
        if found is None or topic.epoch < 0:
            self._passes.pop(topic, None)
            self._few.pop(topic, None)
            return False
        active = self._activate(topic)
        async with active.lock:
            if active.doubts.changes or topic.epoch < 0:
                return False  # it is not known yet what it holds: later
            active.begin_reclaiming()
            try:
                page = await self._look(topic, active, found)
                if topic.epoch < 0:
                    return True
                if found.gone:
                    await self._remove(topic, found.gone)
                elif not page:
                    await self._finish(topic, found)
                    if self._passes.get(topic) is found:
                        del self._passes[topic]
            finally:
                active.end_reclaiming()
        # Without the lock: deletes go on meanwhile.
        await self._pace.turn(sum(work_of(batch, parsed=True) for batch in page))
        return topic in self._passes

    async def _look(self, topic: Topic, active: ActiveTopic, found: _Pass) -> list[RecordBatch]:
        """Look at the next page, and take what nothing lives in out of memory."""
        if found.gone:
            return []  # they could not be removed
        first = max(found.cursor, topic.floor)
        if found.cursor <= topic.floor:
            found.floor = topic.floor  # nothing was counted yet
        page = await self._batches.page(topic, first) if first <= found.upto else []
        page = [batch for batch in page if batch.first_seq <= found.upto]
        if page and topic.epoch >= 0:
            gone = [batch for batch in page if self._is_gone(topic, batch, found)]
            found.gone.extend(gone)
            found.cursor = page[-1].last_seq + 1
            if gone:
                # Before it is written, and in what is written with it: who reads must not take it
                # for lost, and who evicts meanwhile must not count it again.
                hidden = sum(topic.held_in(batch)[2] for batch in gone)
                topic.reclaim(gone[-1].last_seq, hidden)
                active.discard({batch.last_seq for batch in gone})
        return page

    def _is_gone(self, topic: Topic, batch: RecordBatch, found: _Pass) -> bool:
        pinned = topic.pin and batch.last_seq >= topic.pin
        if not pinned and topic.first_live_in(batch) is None:
            return True
        if found.rules is not None and topic.rules is not None:
            found.hidden += topic.held_in(batch)[2]
            for seq, record in enumerate(batch.parse(), batch.first_seq):
                found.needed.update(topic.rules.hiding(seq, record.tag))
        return False

    async def _remove(self, topic: Topic, gone: list[RecordBatch]) -> None:
        """Remove them from the store; they are kept in mind until that is certain."""
        if topic.config.durability != "ephemeral":
            meta: dict[str, bytes | None] = {names.SNAPSHOT: encode_snapshot(topic.snapshot())}
            operation = Operation(meta=meta, remove=_ranges(gone))
            submit = self._log.submit(topic.epoch, operation, durability=Durability.DISK)
            await shielded(submit)
        gone.clear()

    async def _finish(self, topic: Topic, found: _Pass) -> None:
        """Forget the rules that hide nothing which is stored, and that there is more to do."""
        meta: dict[str, bytes | None] = {}
        rules, before = topic.rules, topic.to_reclaim
        idle: set[Rule] = set()
        hidden: int | None = None
        if found.rules is not None and rules is not None:
            now = rules.all()
            idle = {
                rule
                for rule, upto in found.rules.items()
                if rule not in found.needed and now.get(rule) == upto
            }
            meta = {names.RULE + rule.name: None for rule in idle}
            if found.undisturbed and found.floor == topic.floor:
                hidden = found.hidden
            self._few[topic] = 2 * (len(now) - len(idle)) + RULES_FEW
        topic.reclaimed_all(idle, hidden)
        if topic.config.durability == "ephemeral":
            return
        meta[names.SNAPSHOT] = encode_snapshot(topic.snapshot())
        submit = self._log.submit(topic.epoch, Operation(meta=meta), durability=Durability.DISK)
        try:
            await shielded(submit)
        except FairwayError:
            topic.reclaim_again(before)
            raise


def _ranges(batches: Iterable[RecordBatch]) -> list[tuple[int, int]]:
    """The keys of their entries, as few ranges."""
    ranges: list[tuple[int, int]] = []
    for batch in batches:
        if ranges and ranges[-1][1] == batch.first_seq - 1:
            ranges[-1] = ranges[-1][0], batch.last_seq
        else:
            ranges.append((batch.first_seq, batch.last_seq))
    return ranges

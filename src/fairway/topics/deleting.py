"""Deletes on request: what goes is counted first, in steps, then written, and only then applied.

Readers are not spared what may still be there, and nothing is told to be gone that is not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.errors import FairwayError, NotFound, OutcomeUnknown, Unavailable
from fairway.storage.wal import INT_MAX, Operation
from fairway.topics import names
from fairway.topics.batch import size_of
from fairway.topics.doubts import Doubt
from fairway.topics.match import SeqMatch
from fairway.topics.old_batches import Tally
from fairway.topics.operations import Removal, encode_snapshot
from fairway.topics.writes import Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.runtime.turn import Pace
    from fairway.storage.partitions import Partitions
    from fairway.topics.live import LivePart
    from fairway.topics.match import Rule, TagMatch
    from fairway.topics.old_batches import OldBatches
    from fairway.topics.topic import Topic


class Deletions:
    """Deletes records of topics, by seq and by tag."""

    def __init__(
        self,
        log: Partitions,
        *,
        live: Callable[[Topic], LivePart],
        batches: OldBatches,
        pace: Pace,
        doubt: Callable[[Topic, Doubt], None],
        settle: Callable[[Topic], Awaitable[None]],
        deleted: Callable[[Topic, int], None],
    ) -> None:
        """`doubt` is told of a topic that the store must be asked about. `settle` has it begin with
        a live record; `deleted` is told of one that has become smaller, from a seq on."""
        self._log = log
        self._live = live
        self._batches = batches
        self._pace = pace
        self._doubt = doubt
        self._settle = settle
        self._deleted = deleted

    async def delete(
        self,
        topic: Topic,
        before_seq: int | None,
        match: TagMatch | None,
        only_seq: int | None = None,
    ) -> int:
        """Delete what is there now, for good; returns how many records that were."""
        live = self._live(topic)
        async with live.lock:
            if live.doubts.changes:  # what is counted now might be deleted already
                raise Unavailable(f"it is not known yet what topic {topic.name!r} holds")
            while True:
                failures = live.writes.failures
                removal, first = await self._find(topic, before_seq, match, only_seq)
                if live.writes.failures == failures:
                    break  # else some of what was counted may be lost
            if not removal.records and removal.delete_floor == topic.delete_floor:
                return 0
            earliest = topic.earliest
            await self._remove(topic, live, removal)
            if removal.rule is None or first <= earliest:
                await self._settle(topic)
        self._deleted(topic, first)
        return removal.records

    async def _find(
        self, topic: Topic, before_seq: int | None, match: TagMatch | None, only_seq: int | None
    ) -> tuple[Removal, int]:
        """What a deletion would change, and the first seq that a rule would hide."""
        upto = topic.head if before_seq is None else min(before_seq - 1, topic.head)
        start = topic.floor
        if only_seq is not None:
            start, upto = max(start, only_seq), min(upto, only_seq)
        rule: Rule | None = match if only_seq is None else SeqMatch(only_seq)
        ruled = rule is not None
        begin = last = hidden = 0
        first_live: int | None = None
        tally = Tally(lossy=topic.config.durability == "ephemeral")
        tags = topic.live.tags if topic.live is not None else None
        if match is not None and tags is not None:
            first = max(topic.floor, 1)
            if tags.skip(first - 1, upto, match) >= upto:
                return Removal(topic.delete_floor, topic.earliest, 0, 0, rule), 0
        parsed = ruled or bool(topic.rules)
        async for batch in self._batches.between(topic, start, upto, self._pace, parsed=parsed):
            tally.lose_below(topic.evict_floor)
            if not ruled:
                count, size, beside = topic.held_in(batch, upto)
                tally.add(batch.last_seq, count, size)
                hidden += beside
                continue
            records = size = 0
            for seq, record in enumerate(batch.parse(), batch.first_seq):
                matches = match is None or match(record.tag)
                matches = matches and only_seq in (None, seq)
                if not matches and first_live is not None:
                    continue  # most of them: nothing else is asked of those that stay
                if seq > upto or not topic.is_live(seq, record.tag):
                    continue
                if matches:
                    records += 1
                    size += size_of(record, batch.node)
                    begin, last = begin or seq, seq
                else:
                    first_live = seq
            tally.add(batch.last_seq, records, size)
        if only_seq not in (None, topic.earliest):
            first_live = topic.earliest  # it stays: what was met beside the other lies behind it
        elif first_live is None and upto >= topic.earliest:
            # Before anything is deleted: whoever looks afterwards must not find a record that was
            # deleted named as the first.
            first_live = await self._batches.first_live(topic, upto, self._pace)
        tally.lose_below(topic.evict_floor)
        floor, earliest = topic.delete_floor, max(topic.earliest, first_live or 0)
        if not ruled:
            floor = max(floor, upto + 1) if upto >= topic.floor else floor
        change = tally.size if ruled else -hidden
        return Removal(floor, earliest, tally.records, tally.size, rule, last, change), begin

    async def _remove(self, topic: Topic, live: LivePart, removal: Removal) -> None:
        """Write a deletion, then apply it: readers are not spared what may still be there."""
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        if topic.config.durability == "ephemeral":
            topic.apply(removal)  # there is nothing in the store to delete
            return
        writes = live.writes
        writes.begin_removal(removal)
        try:
            snapshot = encode_snapshot(topic.snapshot())
            meta: dict[str, bytes | None] = {names.SNAPSHOT: snapshot}
            if removal.rule is not None:
                meta[names.RULE + removal.rule.name] = names.encode_number(removal.upto)
            write = Write(writes, lambda error: settle(error), shown=True)  # it shows nothing new
            self._log.submit_for(write.settled, topic.epoch, Operation(meta=meta))
        except FairwayError:
            writes.end_removal()
            raise

        def settle(error: BaseException | None) -> None:
            writes.end_removal()
            if error is None:
                topic.apply(removal)
            elif isinstance(error, OutcomeUnknown):
                self._doubt(topic, Doubt(snapshot, INT_MAX, removal))

        writes.add(write)
        await asyncio.shield(write.decided())

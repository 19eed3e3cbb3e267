"""Deletes on request: what goes is counted first, in steps, then written, and only then applied.

Readers are not spared what may still be there, and nothing is told to be gone that is not.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from fairway.errors import FairwayError, NotFound, OutcomeUnknown, Unavailable
from fairway.storage.wal import INT_MAX, Operation
from fairway.topics import names
from fairway.topics.batch import size_of
from fairway.topics.live import Doubt, Write
from fairway.topics.match import SeqMatch
from fairway.topics.old_batches import Tally
from fairway.topics.topic import Removal, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.storage.log import Log
    from fairway.topics.live import LivePart
    from fairway.topics.match import Rule, TagMatch
    from fairway.topics.old_batches import OldBatches, Pace
    from fairway.topics.topic import Topic


class Deletions:
    """Deletes records of topics, by seq and by tag."""

    def __init__(
        self,
        log: Log,
        *,
        live: Callable[[Topic], LivePart],
        batches: OldBatches,
        pace: Pace,
        doubt: Callable[[Topic], None],
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
        rule: Rule | None = match if only_seq is None else SeqMatch(only_seq)
        live = self._live(topic)
        async with live.lock:
            if live.in_doubt:  # what is counted now might be deleted already
                raise Unavailable(f"it is not known yet what topic {topic.name!r} holds")
            while True:
                failures = live.failures
                removal, first, last = await self._find(topic, before_seq, match, only_seq)
                if live.failures == failures:
                    break  # else some of what was counted may be lost
            if not removal.records and removal.delete_floor == topic.delete_floor:
                return 0
            earliest = topic.earliest
            await self._remove(topic, live, removal, rule, last)
            if rule is None or first <= earliest:
                await self._settle(topic)
        self._deleted(topic, first)
        return removal.records

    async def _find(
        self, topic: Topic, before_seq: int | None, match: TagMatch | None, only_seq: int | None
    ) -> tuple[Removal, int, int]:
        """What a deletion would change, and the first and the last seq that a rule would hide."""
        upto = topic.head if before_seq is None else min(before_seq - 1, topic.head)
        start = topic.floor
        if only_seq is not None:
            start, upto = max(start, only_seq), min(upto, only_seq)
        ruled = match is not None or only_seq is not None
        begin = last = hidden = 0
        first_live: int | None = None
        tally = Tally(lossy=topic.config.durability == "ephemeral")
        tags = topic.live.tags if topic.live is not None else None
        if match is not None and tags is not None:
            first = max(topic.floor, 1)
            if tags.skip(first - 1, upto, match) >= upto:
                return Removal(topic.delete_floor, topic.earliest, 0, 0, True), 0, 0
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
        removal = Removal(floor, earliest, tally.records, tally.size, ruled, change)
        return removal, begin, last

    async def _remove(
        self, topic: Topic, live: LivePart, removal: Removal, match: Rule | None, last: int
    ) -> None:
        """Write a deletion, then apply it: readers are not spared what may still be there."""
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        if topic.config.durability == "ephemeral":
            _apply(topic, removal, match, last)  # there is nothing in the store to delete
            return
        # Snapshots that are written from now on come after it and must know of it.
        live.removal = removal
        apply = partial(_apply, topic, removal, match, last)
        try:
            snapshot = encode_snapshot(topic.snapshot())
            meta: dict[str, bytes | None] = {names.SNAPSHOT: snapshot}
            if match is not None:
                meta[names.RULE + match.name] = names.encode_number(last)
            write = Write(live, lambda error: settle(error))
            self._log.submit_for(write, topic.epoch, Operation(meta=meta))
        except FairwayError:
            live.removal = None
            raise

        def settle(error: BaseException | None) -> None:
            live.quick -= 1
            live.removal = None
            if error is None:
                apply()
            elif isinstance(error, OutcomeUnknown):
                live.in_doubt.append(Doubt(snapshot, INT_MAX, apply))
                live.doubt = True
                self._doubt(topic)

        live.quick += 1  # it shows nothing new
        live.under_way.append(write)
        await asyncio.shield(write.decided())


def _apply(topic: Topic, removal: Removal, match: Rule | None, last: int) -> None:
    if match is None:
        topic.delete_before(removal.delete_floor, removal.records, removal.size, -removal.hidden)
    else:
        topic.delete_matching(match, last, removal.records, removal.size)
    topic.start_at(min(removal.earliest, topic.head + 1))

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
from fairway.topics.old_batches import Tally
from fairway.topics.topic import Removal, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.storage.log import Log
    from fairway.topics.live import LivePart
    from fairway.topics.match import TagMatch
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
        deleted: Callable[[Topic], None],
    ) -> None:
        """`doubt` is told of a topic that the store must be asked about; `deleted` of one that has
        become smaller."""
        self._log = log
        self._live = live
        self._batches = batches
        self._pace = pace
        self._doubt = doubt
        self._deleted = deleted

    async def delete(self, topic: Topic, before_seq: int | None, match: TagMatch | None) -> int:
        """Delete what is there now, for good; returns how many records that were."""
        live = self._live(topic)
        async with live.lock:
            if live.in_doubt:  # what is counted now might be deleted already
                raise Unavailable(f"it is not known yet what topic {topic.name!r} holds")
            while True:
                failures = live.failures
                removal, last = await self._find(topic, before_seq, match)
                if live.failures == failures:
                    break  # else some of what was counted may be lost
            if not removal.records and removal.delete_floor == topic.delete_floor:
                return 0
            await self._remove(topic, live, removal, match, last)
        self._deleted(topic)
        return removal.records

    async def _find(
        self, topic: Topic, before_seq: int | None, match: TagMatch | None
    ) -> tuple[Removal, int]:
        """What a deletion would change, and the last seq that a tag took with it."""
        upto = topic.head if before_seq is None else min(before_seq - 1, topic.head)
        last = 0
        first_live: int | None = None
        tally = Tally(lossy=topic.config.durability == "ephemeral")
        tags = topic.live.tags if topic.live is not None else None
        if match is not None and tags is not None:
            first = max(topic.floor, 1)
            if tags.skip(first - 1, upto, match) >= upto:
                return Removal(topic.delete_floor, topic.earliest, 0, 0, True), 0
        parsed = match is not None or bool(topic.rules)
        async for batch in self._batches.between(
            topic, topic.floor, upto, self._pace, parsed=parsed
        ):
            tally.lose_below(topic.evict_floor)
            if match is None:
                tally.add(batch.last_seq, *topic.live_in(batch, upto))
                continue
            records = size = 0
            for seq, record in enumerate(batch.parse(), batch.first_seq):
                matches = match(record.tag)
                if not matches and first_live is not None:
                    continue  # most of them: nothing else is asked of those that stay
                if seq > upto or not topic.is_live(seq, record.tag):
                    continue
                if matches:
                    records += 1
                    size += size_of(record, batch.node)
                    last = seq
                else:
                    first_live = seq
            tally.add(batch.last_seq, records, size)
        tally.lose_below(topic.evict_floor)
        floor, earliest = topic.delete_floor, max(topic.earliest, upto + 1)
        if match is None:
            floor = max(floor, upto + 1) if upto >= topic.floor else floor
        elif first_live is not None:
            earliest = max(topic.earliest, first_live)
        removal = Removal(floor, earliest, tally.records, tally.size, match is not None)
        return removal, last

    async def _remove(
        self, topic: Topic, live: LivePart, removal: Removal, match: TagMatch | None, last: int
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


def _apply(topic: Topic, removal: Removal, match: TagMatch | None, last: int) -> None:
    if match is None:
        topic.delete_before(removal.delete_floor, removal.records, removal.size)
    else:
        topic.delete_tagged(match, last, removal.records, removal.size)
    topic.start_at(removal.earliest)

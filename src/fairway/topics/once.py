"""Appends with an idempotency key: made once, however often and however soon they are asked for."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from fairway.errors import FairwayError, Unavailable
from fairway.runtime.completion import fail, notify, settle
from fairway.runtime.shielded import shielded
from fairway.storage.wal import NO_META
from fairway.topics import names
from fairway.topics.operations import KeySeen, changes_of
from fairway.topics.outcome import Appended

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.clock import Clock
    from fairway.runtime.completion import OnDone
    from fairway.storage.partitions import Partitions
    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.live import LivePart
    from fairway.topics.topic import Topic
    from fairway.topics.writing import NewBatch, Writing


class Once:
    """Repeats of an append are answered as the first one was, within the window of its topic."""

    def __init__(
        self,
        writing: Writing,
        log: Partitions,
        clock: Clock,
        *,
        keys: KeyMemory,
        live: Callable[[Topic], LivePart],
    ) -> None:
        self._writing = writing
        self._log = log
        self._clock = clock
        self._keys = keys
        self._live = live

    async def append(self, topic: Topic, new: NewBatch, key: str) -> Appended:
        place = (topic.epoch, key)
        while (other := self._keys.under_way.get(place)) is not None:
            try:
                first = await asyncio.shield(other)
            except FairwayError:
                continue  # that one failed: this one is the first now
            return Appended(first.first_seq, first.last_seq, deduped=True)
        reply = self._keys.under_way[place] = asyncio.get_running_loop().create_future()
        try:
            answer = await self._seen(topic, key)
            if answer is None:
                waiting = await self._writing.begin(topic, new)
        except BaseException as error:
            # Nothing was accepted; whoever waits with the same key may try.
            del self._keys.under_way[place]
            known = isinstance(error, FairwayError)
            fail(reply, error if known else Unavailable("the first of these requests went away"))
            raise
        if answer is not None:
            del self._keys.under_way[place]
            reply.set_result(answer)
            return answer
        # From here on it will happen, whether or not this caller stays to see it.
        waiting.add_done_callback(partial(self._first_over, place))
        return await shielded(reply)

    def append_now(self, on_done: OnDone[Appended], topic: Topic, new: NewBatch, key: str) -> bool:
        """As `append`, begun at once, with a callback, which may be called within this call; False
        if something must come first."""
        place = (topic.epoch, key)
        now_ms = self._clock.wall_ns() // 1_000_000
        window_ms = topic.config.idempotency_window_ms
        if place in self._keys.under_way:
            return False
        seen = self._keys.get(topic.epoch, key)
        if seen is None and self._keys.unsure(now_ms, window_ms):
            return False
        if seen is not None and now_ms - seen.ts < window_ms:
            notify(on_done, Appended(seen.first_seq, seen.last_seq, deduped=True))
            return True
        # First: the callback of a class that does not wait for the disk is called within the call.
        self._keys.under_way[place] = asyncio.get_running_loop().create_future()
        try:
            self._writing.enqueue_for(partial(self._first_done, place, on_done), topic, new)
        except FairwayError:
            del self._keys.under_way[place]
            raise
        return True

    async def _seen(self, topic: Topic, key: str) -> Appended | None:
        now_ms = self._clock.wall_ns() // 1_000_000
        window_ms = topic.config.idempotency_window_ms
        seen = self._keys.get(topic.epoch, key)
        if seen is None and self._keys.unsure(now_ms, window_ms):
            # A class that does not wait may still be at it.
            await self._live(topic).writes.wait_written()
            row = names.KEY + key
            stored = await self._log.meta(topic.epoch, row)
            found = {row: stored} if stored is not None else NO_META
            for change in changes_of((), found, topic=topic.name):
                topic.apply(change)
                if isinstance(change, KeySeen):
                    seen = change.seen  # memory may have no room for it
        if seen is None or now_ms - seen.ts >= window_ms:
            return None
        return Appended(seen.first_seq, seen.last_seq, deduped=True)

    def _first_over(self, place: tuple[int, str], first: asyncio.Future[Appended]) -> None:
        """The first append with a key has ended."""
        error = first.exception()
        self._settle(place, None if error is not None else first.result(), error)

    def _first_done(
        self,
        place: tuple[int, str],
        on_done: OnDone[Appended],
        appended: Appended | None,
        error: BaseException | None,
    ) -> None:
        """The first append with a key has ended, begun without a task: its caller comes last."""
        self._settle(place, appended, error)
        on_done(appended, error)

    def _settle(
        self, place: tuple[int, str], appended: Appended | None, error: BaseException | None
    ) -> None:
        """The first append with a key is decided, and the key is known or not: resolve those that
        repeated it."""
        settle(self._keys.under_way.pop(place), appended, error)

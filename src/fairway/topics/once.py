"""Appends with an idempotency key: made once, however often and however soon they are asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.errors import FairwayError, Unavailable
from fairway.runtime.shielded import shielded
from fairway.storage.wal import NO_META
from fairway.topics import names
from fairway.topics.operations import KeySeen, changes_of
from fairway.topics.outcome import Appended, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.clock import Clock
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.outcome import Told
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
        activate: Callable[[Topic], ActiveTopic],
    ) -> None:
        self._writing = writing
        self._log = log
        self._clock = clock
        self._keys = keys
        self._activate = activate

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
        waiting.add_done_callback(
            lambda done: self._settle(place, done.exception() or done.result())
        )
        return await shielded(reply)

    def append_now(self, reply: Told, topic: Topic, new: NewBatch, key: str) -> bool:
        """As `append`, begun at once and told to `reply`; False if something must come first."""
        place = (topic.epoch, key)
        now_ms = self._clock.wall_ns() // 1_000_000
        window_ms = topic.config.idempotency_window_ms
        if place in self._keys.under_way:
            return False
        seen = self._keys.get(topic.epoch, key)
        if seen is None and self._keys.unsure(now_ms, window_ms):
            return False
        if seen is not None and now_ms - seen.ts < window_ms:
            reply.set_result(Appended(seen.first_seq, seen.last_seq, deduped=True))
            return True
        # First: a class that does not wait for the disk is told within the call.
        self._keys.under_way[place] = asyncio.get_running_loop().create_future()
        try:
            self._writing.enqueue_for(_First(self, place, reply), topic, new)
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
            await self._activate(topic).writes.wait_written()
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

    def _settle(self, place: tuple[int, str], outcome: Appended | BaseException) -> None:
        """The first append with a key is decided, and the key is known or not: tell those that
        repeated it."""
        reply = self._keys.under_way.pop(place)
        if isinstance(outcome, BaseException):
            fail(reply, outcome)
        elif not reply.done():
            reply.set_result(outcome)


class _First:
    """The first append with a key, begun without a task; whoever asked for it is told after us."""

    __slots__ = ("_once", "_place", "_reply")

    def __init__(self, once: Once, place: tuple[int, str], reply: Told) -> None:
        self._once = once
        self._place = place
        self._reply = reply

    def done(self) -> bool:
        return False

    def set_result(self, appended: Appended) -> None:
        self._once._settle(self._place, appended)
        self._reply.set_result(appended)

    def set_exception(self, error: BaseException) -> None:
        self._once._settle(self._place, error)
        self._reply.set_exception(error)

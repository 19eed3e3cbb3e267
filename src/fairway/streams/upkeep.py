"""Streams that nobody asks for any more: expired ones go, and so does what a crash left behind."""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import TYPE_CHECKING

from fairway.errors import FairwayError
from fairway.runtime.clock import sleep_ns
from fairway.streams.paths import HASHED, NAMESPACE
from fairway.streams.stored import META, decode_meta

if TYPE_CHECKING:
    from fairway.streams.port import BackingTopic, BackingTopics
    from fairway.streams.store import StreamStore
    from fairway.streams.stream import Stream

logger = logging.getLogger("fairway.streams")


class StreamUpkeep:
    """A service: removes streams as they expire. Nobody sees an expired one, removed or not."""

    name = "streams-upkeep"

    def __init__(self, topics: BackingTopics, *, period_ns: int) -> None:
        self._topics = topics
        self._period_ns = period_ns
        self._due: list[tuple[int, str]] = []
        self._some_due = asyncio.Event()
        self.trouble: str | None = None
        """Why the stream that was to go last is still there, or None if it went."""

    async def run(self, store: StreamStore) -> None:
        for prefix in (NAMESPACE, HASHED):
            after = ""
            while found := self._topics.ordered(prefix, after):
                for topic in found:
                    await self._look_at(store, topic)
                after = found[-1].name
        while True:
            # An app without streams that end is not woken for them.
            await self._some_due.wait()
            await sleep_ns(self._period_ns)
            now_ms = store.now_ms()
            while self._due and self._due[0][0] <= now_ms:
                _, path = heapq.heappop(self._due)
                await self._sweep(store, path, now_ms)
            if not self._due:
                self._some_due.clear()

    def note(self, stream: Stream) -> None:
        """A stream was made, or found: it is looked at again once it may be over."""
        expires_ms = stream.expires_ms()
        if expires_ms is not None:
            self._push(expires_ms, stream.meta.path)

    def _push(self, at_ms: int, path: str) -> None:
        heapq.heappush(self._due, (at_ms, path))
        self._some_due.set()

    async def _look_at(self, store: StreamStore, topic: BackingTopic) -> None:
        """Load a stream that may be over: finding it ends it."""
        try:
            stored = await topic.meta(META)
            if META not in stored:
                return
            meta = decode_meta(stored[META])
            held = len(stored) > 1
            if held or meta.deleted or meta.ttl_s is not None or meta.expires_at is not None:
                await store.find(meta.path)
        except FairwayError as error:
            logger.warning("topic %s was not looked at for its stream: %s", topic.name, error)

    async def _sweep(self, store: StreamStore, path: str, now_ms: int) -> None:
        again_ms = now_ms + self._period_ns // 1_000_000 + 1
        try:
            stream = await store.find(path)
        except FairwayError as error:
            self.trouble = f"stream {path} was not removed, will try again: {error}"
            logger.warning("%s", self.trouble)
        else:
            self.trouble = None
            expires_ms = stream.expires_ms() if stream is not None else None
            if stream is None or stream.meta.deleted or expires_ms is None:
                return
            again_ms = max(again_ms, expires_ms)  # it was used meanwhile, or is being read
        self._push(again_ms, path)

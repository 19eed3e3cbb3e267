"""Streams that nobody asks for any more: expired ones go, and so does what a crash left behind."""

from __future__ import annotations

import heapq
import logging
from typing import TYPE_CHECKING

from fairway.errors import FairwayError
from fairway.runtime.clock import sleep_ns
from fairway.server.streams.protocol import HASHED, NAMESPACE
from fairway.server.streams.store import Streams
from fairway.server.streams.stored import META, decode_meta

if TYPE_CHECKING:
    from fairway.server.streams.stream import Stream
    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic

logger = logging.getLogger("fairway.streams")


class Upkeep:
    """A service: removes streams as they expire. Nobody sees an expired one, removed or not."""

    name = "streams-upkeep"

    def __init__(self, topics: Topics, *, period_ns: int) -> None:
        self.streams = Streams(topics, loaded=self._note)
        self._topics = topics
        self._period_ns = period_ns
        self._due: list[tuple[int, str]] = []

    async def run(self) -> None:
        for prefix in (NAMESPACE, HASHED):
            after = ""
            while found := list(self._topics.ordered(prefix=prefix, after=after)):
                for topic in found:
                    await self._look_at(topic)
                after = found[-1].name
        while True:
            await sleep_ns(self._period_ns)
            now_ms = self.streams.now_ms()
            while self._due and self._due[0][0] <= now_ms:
                _, path = heapq.heappop(self._due)
                await self._sweep(path, now_ms)

    def _note(self, stream: Stream) -> None:
        expires_ms = stream.expires_ms()
        if expires_ms is not None:
            heapq.heappush(self._due, (expires_ms, stream.meta.path))

    async def _look_at(self, topic: Topic) -> None:
        """Load a stream that may be over: finding it ends it."""
        try:
            stored = await self._topics.extras(topic, META)
            if META not in stored:
                return
            meta = decode_meta(stored[META])
            held = len(stored) > 1
            if held or meta.deleted or meta.ttl_s is not None or meta.expires_at is not None:
                await self.streams.find(meta.path)
        except FairwayError as error:
            logger.warning("topic %s was not looked at for its stream: %s", topic.name, error)

    async def _sweep(self, path: str, now_ms: int) -> None:
        again_ms = now_ms + self._period_ns // 1_000_000 + 1
        try:
            stream = await self.streams.find(path)
        except FairwayError as error:
            logger.warning("stream %s was not removed, will try again: %s", path, error)
        else:
            expires_ms = stream.expires_ms() if stream is not None else None
            if stream is None or stream.meta.deleted or expires_ms is None:
                return
            again_ms = max(again_ms, expires_ms)  # it was used meanwhile, or is being read
        heapq.heappush(self._due, (again_ms, path))

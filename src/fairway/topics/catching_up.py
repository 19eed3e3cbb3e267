"""Watchers that are behind: each is read pages of its own until it stands where all others do."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from fairway.errors import FairwayError, NotFound
from fairway.topics.reading import cold_page, hot_page

if TYPE_CHECKING:
    from fairway.storage.partitions import Partitions
    from fairway.topics.frames import FrameWriter
    from fairway.topics.watching import Watcher

logger = logging.getLogger("fairway.topics")


class CatchUp:
    """The line of those who are behind. A few workers run it, so a slow one costs its own time."""

    def __init__(self, log: Partitions, frames: FrameWriter, *, retry_ns: int) -> None:
        self._log = log
        self._frames = frames
        self._retry_ns = retry_ns
        self._line: deque[Watcher] = deque()
        self._some = asyncio.Event()

    def queue(self, watcher: Watcher) -> None:
        """See to it that a watcher gets on: in line, unless it has caught up."""
        if watcher.closed or watcher.queued or watcher.stalled:
            return
        topic = watcher.topic
        if watcher.cursor == topic.drained:
            self._announce_caught_up(watcher)
        elif watcher.cursor < topic.drained:
            watcher.queued = True
            self._line.append(watcher)
            self._some.set()

    async def run(self) -> None:
        """One worker: read a page for whoever is first in line."""
        while True:
            await self._some.wait()
            if not self._line:
                self._some.clear()
                continue
            watcher = self._line.popleft()
            watcher.queued = False
            if not watcher.closed:
                try:
                    await self._advance(watcher)
                except FairwayError as error:
                    # The store cannot be read now: it waits, and nobody with it.
                    logger.warning("a page of topic %s: %s", watcher.topic.name, error)
                    watcher.queued = True
                    asyncio.get_running_loop().call_later(
                        self._retry_ns / 1e9, self._retry, watcher
                    )
                    continue
                self.queue(watcher)

    def _announce_caught_up(self, watcher: Watcher) -> None:
        if watcher.caught_up:
            return
        watcher.caught_up = True
        frame = watcher.view.encoder.caught_up(watcher.topic)
        if frame is not None:
            self._frames.give_notice(watcher, frame)

    def _retry(self, watcher: Watcher) -> None:
        watcher.queued = False
        self.queue(watcher)

    async def _advance(self, watcher: Watcher) -> None:
        """Read one page for a watcher that is behind and hand it over."""
        topic, view = watcher.topic, watcher.view
        watcher.queued = True  # nobody else advances it meanwhile, though it may be sent back
        cursor = watcher.cursor
        try:
            args = (
                topic,
                cursor,
                topic.drained,
                view.limit,
                view.max_bytes,
                view.selection,
            )
            page = hot_page(*args)
            if page is None:
                page = await cold_page(self._log, *args)
        except NotFound:
            return  # deleted meanwhile, and notified of that
        finally:
            watcher.queued = False
        if watcher.cursor == cursor and not (watcher.closed or watcher.stalled):
            await self._frames.give_page(watcher, page)

"""Reading by cursor: a page of what comes next, from memory or the store, perhaps waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import InvalidRequest, NotFound
from fairway.topics.batch import decode_batch
from fairway.topics.reading import EVERYTHING, Page, Selection, cold_page, hot_page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.runtime.clock import Clock
    from fairway.storage.log import Log
    from fairway.topics.batch import Batch
    from fairway.topics.live import LivePart
    from fairway.topics.topic import Topic

MIB: Final = 1024 * 1024


class Diff(NamedTuple):
    """What a reader at a cursor got. `recreated`: its cursor was of another incarnation."""

    topic: Topic
    page: Page
    recreated: bool


class Reading:
    """Reads topics for whoever asks again and again."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        *,
        get: Callable[[str], Topic],
        live: Callable[[Topic], LivePart],
        touch: Callable[[Topic], None],
        expire: Callable[[Topic], Awaitable[None]],
        closing: Callable[[], bool],
    ) -> None:
        """`touch` is told that a topic is read; `expire` takes from it what is too old; nobody is
        kept waiting once it is `closing`."""
        self._log = log
        self._clock = clock
        self._get = get
        self._live = live
        self._touch = touch
        self._expire = expire
        self._closing = closing

    async def diff(
        self,
        name: str,
        from_seq: int,
        *,
        epoch: int | None = None,
        limit: int = 256,
        max_bytes: int = MIB,
        selection: Selection = EVERYTHING,
        wait_ns: int = 0,
    ) -> Diff:
        """What a reader that has seen everything up to `from_seq` gets next."""
        topic = self._get(name)
        self._touch(topic)
        if (epoch is not None and epoch != topic.epoch) or from_seq > topic.head:
            if epoch in (None, topic.epoch) and from_seq <= topic.assigned:
                from_seq = topic.head  # written and not yet to be seen: as far as one can be
            elif epoch == topic.epoch:
                raise InvalidRequest(f"from_seq {from_seq} lies beyond the head, {topic.head}")
            else:
                page = await self.page(topic, 0, topic.head, limit, max_bytes, selection)
                return Diff(topic, page, True)
        page = await self.page(topic, from_seq, topic.head, limit, max_bytes, selection)
        if wait_ns and not page.records and page.gap is None and page.next_seq >= topic.head:
            page = await self._wait(topic, page, limit, max_bytes, selection, wait_ns)
        return Diff(topic, page, False)

    async def _wait(
        self,
        topic: Topic,
        page: Page,
        limit: int,
        max_bytes: int,
        selection: Selection,
        wait_ns: int,
    ) -> Page:
        deadline_ns = self._clock.now_ns() + wait_ns
        while not page.records and page.gap is None and not self._closing():
            left_ns = deadline_ns - self._clock.now_ns()
            if left_ns <= 0:
                break
            # Registered before it is read again: what lands in between resolves it.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            live = self._live(topic)
            live.waiters.append(waiter)
            try:
                if page.next_seq >= topic.head:
                    async with asyncio.timeout(left_ns / 1e9):
                        await waiter
            except TimeoutError:
                break
            finally:
                if waiter in live.waiters:
                    live.waiters.remove(waiter)
            page = await self.page(topic, page.next_seq, topic.head, limit, max_bytes, selection)
        return page

    async def page(
        self,
        topic: Topic,
        after: int,
        upto: int,
        limit: int,
        max_bytes: int,
        selection: Selection = EVERYTHING,
    ) -> Page:
        """Records after a cursor, from memory or from the store."""
        if topic.config.ttl_ms:
            await self._expire(topic)
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        page = hot_page(topic, after, upto, limit, max_bytes, selection)
        if page is None:
            page = await cold_page(self._log, topic, after, upto, limit, max_bytes, selection)
        return page

    async def batch_at(self, topic: Topic, seq: int) -> Batch | None:
        """The stored batch that holds `seq`, or the first one behind it."""
        entries = await self._log.read(topic.epoch, first=seq, limit=1)
        return decode_batch(entries[0].payload, topic=topic.name) if entries else None

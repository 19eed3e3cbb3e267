"""Topics come into being, change and go: durably, one change at a time, each to its end.

A change that its caller gives up on is carried out all the same: half of one is worse than none.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fairway.errors import Closing, Conflict, FairwayError, NotFound, OutcomeUnknown, Throttled
from fairway.runtime.completion import fail
from fairway.storage.wal import INT_MAX, Operation
from fairway.topics import names
from fairway.topics.doubts import Doubt
from fairway.topics.operations import encode_snapshot
from fairway.topics.recovery import StoredTopic, encode_topic
from fairway.topics.routers import ROUTER
from fairway.topics.topic import Topic
from fairway.topics.writes import Write
from fairway.wire.topics import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairway.kernel.catalog import Catalog
    from fairway.storage.partitions import Partitions
    from fairway.topics.delivery import Delivery
    from fairway.topics.live import LivePart
    from fairway.topics.registry import Registry
    from fairway.topics.retention import Retention
    from fairway.topics.routers import Routers
    from fairway.wire.topics import TopicConfig, TopicPatch

T = TypeVar("T")

logger = logging.getLogger("fairway.topics")

TOPIC: Final = "topic"


class Changes:
    """Makes, configures and deletes the topics of a registry."""

    def __init__(
        self,
        registry: Registry,
        log: Partitions,
        catalog: Catalog,
        *,
        topics_max: int,
        routers: Routers,
        retention: Retention,
        delivery: Delivery,
        live: Callable[[Topic], LivePart],
        may_make: Callable[[str], None],
        created: Callable[[Topic], None],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """`may_make` raises if an owner may not have one topic more; `created` is told of each new
        one; `start` runs what outlives its caller."""
        self._registry = registry
        self._log = log
        self._catalog = catalog
        self._topics_max = topics_max
        self._routers = routers
        self._retention = retention
        self._delivery = delivery
        self._live = live
        self._may_make = may_make
        self._created = created
        self._start = start
        self._creating: dict[str, asyncio.Future[Topic]] = {}
        self.making: dict[str, str] = {}
        """Topics that are not there yet, and whom each will count for."""
        self._changing = asyncio.Lock()

    async def create(self, name: str, patch: TopicPatch | None, owner: str) -> tuple[Topic, bool]:
        """See `Topics.create`."""
        check_name(name)
        while (other := self._creating.get(name)) is not None:
            try:
                return await asyncio.shield(other), False
            except FairwayError:
                self._made(name, other)  # and whoever comes first tries again
        existing = self._registry.by_name.get(name)
        if existing is not None:
            return existing, False
        count = len(self._registry) + len(self.making)
        if count >= self._topics_max:
            raise Throttled(
                f"there are {count:,} topics already",
                retry_after_ns=60_000_000_000,
                limit="topics",
                maximum=self._topics_max,
            )
        config = self._registry.shared(self._registry.config(patch))
        # In the step that counts it: whoever asks before waiting for something asks too early.
        self._may_make(owner)
        self.making[name] = owner
        making = self._creating[name] = self._begin(self._make(name, config, owner))
        making.add_done_callback(partial(self._made, name))
        return await asyncio.shield(making), True

    async def _make(self, name: str, config: TopicConfig, owner: str) -> Topic:
        stored = encode_topic(StoredTopic(config, owner))
        try:
            epoch = await self._catalog.create(TOPIC, name, stored)
        finally:
            del self.making[name]
        topic = Topic(name, epoch, config, sys.intern(owner))
        self._registry.add(topic)
        self._created(topic)
        return topic

    def _made(self, name: str, making: asyncio.Future[Topic]) -> None:
        if self._creating.get(name) is making:
            del self._creating[name]

    async def alone(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out a change while no other is, to its end."""

        async def locked() -> T:
            async with self._changing:
                return await change()

        return await self.to_its_end(locked())

    async def to_its_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Carry a change out, whether or not its caller stays."""
        return await asyncio.shield(self._begin(change))

    def _begin(self, change: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start a change; what becomes of it, if only that the engine was closed before its end."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def carry_out() -> None:
            try:
                outcome.set_result(await change)
            except Exception as error:
                fail(outcome, error)

        def over(_: asyncio.Task[None]) -> None:
            if not outcome.done():
                change.close()  # if it was cut off before its first step
                fail(outcome, Closing("topics were closed during this change"))

        self._start(carry_out()).add_done_callback(over)
        return outcome

    async def delete(self, name: str, if_empty: bool) -> list[str] | None:
        """See `Topics.delete`; to be called within `alone`."""
        topic = self._registry.by_name.get(name)
        if topic is None:
            return None
        if topic.pin:
            raise Conflict(f"forks read the records of topic {name!r}", code="topic_pinned")
        if if_empty and topic.count:
            raise Conflict(f"topic {name!r} holds {topic.count:,} records", code="topic_not_empty")
        routers = self._routers.of(name)
        doubt: OutcomeUnknown | None = None
        try:
            await self._catalog.remove((TOPIC, name), *((ROUTER, router) for router in routers))
        except OutcomeUnknown as error:
            # Taking writes for a topic that is gone at the next start would lose them.
            if await self._catalog.get(TOPIC, name) is not None:
                raise
            doubt = error
        for router in routers:
            self._routers.forget(router)
        epoch = self._registry.remove(topic)
        self._delivery.forget(topic)
        try:
            await self._log.delete(epoch)
        except FairwayError as error:  # nobody owns its rows: the next start removes them
            logger.warning("the rows of topic %s stay for now: %s", name, error)
        if doubt is not None:
            raise doubt
        return routers

    async def configure(self, topic: Topic, patch: TopicPatch | None) -> None:
        """Change a topic's configuration, to its end.

        One snapshot says what the old configuration made of the topic, and the new one: a cap that
        is raised does not bring back what was told to be lost. Therefore nothing is evicted while
        that is written: whoever evicts takes the topic's lock. It is taken first, so that a long
        delete of this topic holds up no other change.
        """

        async def change() -> None:
            async with self._live(topic).lock, self._changing:
                await self._configure(topic, patch)
            self._retention.evict_hot(topic)
            self._retention.reconsider(topic)

        await self.to_its_end(change())

    async def _configure(self, topic: Topic, patch: TopicPatch | None) -> None:
        if topic.epoch < 0:
            raise NotFound("topic", topic.name)
        before = topic.config
        config = self._registry.shared(self._registry.config(patch, before))
        live = self._live(topic)
        held = topic.count + live.writes.pending_count
        if before.durability != config.durability and (
            config.durability == "ephemeral" or (before.durability == "ephemeral" and held)
        ):
            raise Conflict(
                "a topic with records cannot become ephemeral, nor cease to be",
                code="topic_exists_incompatible",
            )
        # What comes before the change would be in memory alone, and after it nobody knew that.
        halts = before.durability == "ephemeral" != config.durability
        if halts:
            live.writes.halt()
        if halts and topic.floor <= topic.head:
            topic.lose_all("crash")  # nothing is live, yet nobody must look for it in the store
        try:
            await asyncio.shield(self._write_config(topic, live, config).decided())
        finally:
            live.writes.resume()
        # From here on it is so, whatever becomes of this: a start reads the snapshot.
        stored = encode_topic(StoredTopic(config, topic.owner))
        try:
            await self._catalog.put(TOPIC, topic.name, stored, partition=topic.epoch)
        except FairwayError as error:
            logger.warning("the catalog does not tell how topic %s is: %s", topic.name, error)

    def _write_config(self, topic: Topic, live: LivePart, config: TopicConfig) -> Write:
        """Write what the topic has become, and what it is configured as from there on. It is so
        once that is written, in its place among the appends."""
        before, writes = topic.config, live.writes

        def settle(error: BaseException | None) -> None:
            writes.end_config()
            if error is None:
                topic.apply(config)
                topic.saved(max(topic.snapshot_head, state.head))
                return
            topic.apply(before)
            if isinstance(error, OutcomeUnknown):
                self._retention.doubt_change(topic, Doubt(snapshot, INT_MAX, config))

        writes.begin_config(config)
        try:
            state = topic.snapshot()
            snapshot = encode_snapshot(state)
            meta: dict[str, bytes | None] = {names.SNAPSHOT: snapshot}
            if before.durability != config.durability:
                # What is appended until the change is made has the promise of the old class.
                meta[names.RESERVED_DISK] = None
            if config.durability == "fsync" and topic.weak:
                topic.apply(config)  # from here on nothing needs a reservation
                meta[names.RESERVED] = None
                topic.give_back()
                live.reservation.give_back()
            write = Write(writes, settle, shown=True)  # it shows nothing new
            self._log.submit_for(write.settled, topic.epoch, Operation(meta=meta))
        except FairwayError:
            writes.end_config()
            topic.apply(before)
            raise
        writes.add(write)
        return write

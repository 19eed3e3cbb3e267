"""The topics engine: creates, writes, reads, follows and deletes topics over one fair log.

Composes the parts of this package and owns their life: what a crash left is recovered before
anything is served; a stop refuses new work, writes snapshots, and lets the log drain. All of it
belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fairway.errors import (
    Closing,
    FairwayError,
    InvalidRequest,
    NotFound,
    Throttled,
    TopicFull,
)
from fairway.kernel.part import OK, Part, PartHealth
from fairway.runtime.clock import clock_of
from fairway.runtime.shielded import shielded
from fairway.storage.wal import Operation
from fairway.topics import names
from fairway.topics.bounds import UNBOUNDED
from fairway.topics.changes import TOPIC, Changes
from fairway.topics.delivery import Delivery, DeliveryConfig
from fairway.topics.idempotency import KeyMemory
from fairway.topics.live import LivePart
from fairway.topics.reading import Reading
from fairway.topics.recovery import Recovery
from fairway.topics.registry import Registry
from fairway.topics.retention import Retention, RetentionConfig
from fairway.topics.routers import ROUTER, Routers
from fairway.topics.tags import TagMemory
from fairway.topics.tail import HotBytes, Tail
from fairway.topics.topic import Topic
from fairway.topics.watching import Watcher
from fairway.topics.writing import NewBatch, Writing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from fairway.kernel.kernel import Kernel
    from fairway.runtime.completion import OnDone
    from fairway.topics.batch import Batch
    from fairway.topics.bounds import OwnerBounds
    from fairway.topics.match import TagMatch
    from fairway.topics.outcome import Appended
    from fairway.topics.routing import Router
    from fairway.topics.watching import Sink, View
    from fairway.wire.topics import RouterConfig, TopicPatch

T = TypeVar("T")

logger = logging.getLogger("fairway.topics")

MIB: Final = 1024 * 1024
SAVES_AT_ONCE: Final = 256
RETRY_SATURATED_NS: Final = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    hot_bytes: int = 64 * MIB
    """Newest records kept in memory, over all topics. Raising it spares the disk."""
    key_bytes: int = 16 * MIB
    """Idempotency keys kept in memory. Raising it spares look-ups of old keys."""
    tag_bytes: int = 8 * MIB
    """Tag indexes kept in memory. Raising it spares reads of old records that do not match."""
    ephemeral_cap_bytes: int = 64 * MIB
    """The cap of an ephemeral topic that names none: it lives in memory alone."""
    topics_max: int = 1_000_000
    """Topics at most. Raising it costs about 1 KB of memory each."""
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    retention: RetentionConfig = field(default_factory=RetentionConfig)


class Topics(Part):
    """Every topic and router of one log. Enter it to recover and serve; leave it to stop."""

    name = "topics"

    def __init__(
        self,
        kernel: Kernel,
        *,
        config: TopicsConfig | None = None,
        declared: Mapping[str, TopicPatch | None] | None = None,
        routers: Mapping[str, RouterConfig] | None = None,
    ) -> None:
        """What is `declared`, and the ends of `routers`, is there once it is open."""
        self.kernel = kernel
        self._declared = declared or {}
        self._declared_routers = routers or {}
        self.config = config or TopicsConfig()
        self.writability = kernel.writability
        self._log = kernel.partitions
        self._registry = Registry(ephemeral_cap_bytes=self.config.ephemeral_cap_bytes)
        self._routers = Routers(self)
        self._closing = True
        self.recovery: Recovery | None = None
        self.deleted: list[Callable[[Topic], None]] = []
        """Told of every topic that is gone, whoever deleted it."""
        self.created: list[Callable[[Topic], None]] = []
        """Told of every topic that comes into being."""
        self.bounds = UNBOUNDED
        """What owners of topics may use: see `bound_by`."""

    def bound_by(self, bounds: OwnerBounds) -> None:
        """Ask this from now on, whoever makes topics, appends or copies. Once it is open."""
        self.bounds = self.writing.bounds = bounds

    # Life

    async def open(self) -> None:
        self._clock = clock_of()
        self._keys = KeyMemory(self.config.key_bytes, self._registry.window_ms)
        self._hot = HotBytes(self.config.hot_bytes, self._dropped)
        self._tags = TagMemory(self.config.tag_bytes)
        self.delivery = Delivery(
            self._log,
            self._clock,
            config=self.config.delivery,
            telemetry=self.kernel.telemetry,
            turn=self.kernel.turn,
        )
        self.retention = Retention(
            self._log,
            self._clock,
            live=self.live,
            hot=self._hot,
            keys=self._keys,
            topic_at=self._registry.by_epoch.get,
            published=self.delivery.mark,
            config=self.config.retention,
            turn=self.kernel.turn,
        )
        self.writing = Writing(
            self._log,
            self._clock,
            hot=self._hot,
            keys=self._keys,
            tags=self._tags,
            live=self.live,
            published=self._published,
            retention=self.retention,
            writability=self.writability,
        )
        self.reading = Reading(
            self._log,
            self._clock,
            get=self.get,
            live=self.live,
            touch=self.delivery.touch,
            expire=self.retention.expire,
            closing=lambda: self._closing,
        )
        self.recovery = Recovery(
            self._log,
            share=self._registry.shared,
            expire=self.retention.expire,
            admit=self._registry.add,
        )
        self._changes = Changes(
            self._registry,
            self._log,
            self.kernel.catalog,
            topics_max=self.config.topics_max,
            routers=self._routers,
            retention=self.retention,
            delivery=self.delivery,
            live=self.live,
            may_make=lambda owner: self.bounds.may_make(owner),
            created=self._tell_created,
            start=self.start,
        )
        self._instruments()
        await self._recover()
        self.kernel.governor.add_signal("ready_depth", self.delivery.depth_signal)
        self.kernel.governor.add_signal("delivery_delay", self.delivery.delay_signal)
        self.kernel.governor.listen(self.delivery.obey)
        self.spawn(self.delivery.run(), "topics-delivery")
        self.spawn(self.retention.run(), "topics-retention")
        self.spawn(self._routers.run(), "topics-routers")
        self._closing = False
        await self._routers.start_all()
        for name, patch in self._declared.items():
            await self.put(name, patch, declared=True)
        for name, router in self._declared_routers.items():
            for end in (router.source, router.dest):
                if self.find(end) is None:
                    await self.create(end, declared=True)
            await self.put_router(name, router, declared=True)

    def progress(self) -> dict[str, object]:
        recovery = self.recovery
        if recovery is None or not recovery.total:
            return {}
        share = round(recovery.done / recovery.total, 3)
        return {"replay_progress": share, "topics": recovery.total}

    async def drain(self) -> None:
        try:
            if not self.cut_short and self._log.lost is None:
                await self._save_all()
        except FairwayError as failure:
            logger.warning("snapshots were not written; the next start replays: %s", failure)

    async def _save_all(self) -> None:
        """A clean stop leaves nothing to replay, and no seq reserved that was not used."""
        await self._routers.save_positions()
        pending = [
            topic
            for topic in self._registry
            if (topic.weak and topic.reserved) or topic.head != topic.snapshot_head
        ]
        while pending:
            async with asyncio.TaskGroup() as group:
                for topic in pending[-SAVES_AT_ONCE:]:
                    group.create_task(self._save(topic))
            del pending[-SAVES_AT_ONCE:]

    async def _save(self, topic: Topic) -> None:
        try:
            if topic.weak and topic.reserved:
                meta = self.retention.snapshot_meta(topic)
                meta[names.RESERVED] = None
                # Before it is written: whoever is numbered from now on must reserve anew.
                topic.give_back()
                self.live(topic).reservation.give_back()
                await self._log.submit(topic.epoch, Operation(meta=meta))
            else:
                await self.retention.save(topic)
        except FairwayError as failure:
            logger.warning("topic %s was not saved, it will be replayed: %s", topic.name, failure)

    # Recovery

    async def _recover(self) -> None:
        assert self.recovery is not None
        catalog = self.kernel.catalog
        await self.recovery.run(catalog.take(TOPIC))
        if len(self._registry):
            # Their keys are looked up when they are asked for. None was used later than this,
            # wherever the clock was set to since.
            last_ms = max(topic.last_ts for topic in self._registry)
            self._keys.doubt(max(last_ms, self._now_ms()))
        await self._routers.restore(catalog.take(ROUTER))
        await self.kernel.release()
        await self.recovery.trim()
        self.retention.recovered(self._registry)

    # Topics

    def get(self, name: str) -> Topic:
        """The topic of that name, or `NotFound`."""
        return self._registry.get(name)

    def find(self, name: str) -> Topic | None:
        return self._registry.by_name.get(name)

    def __len__(self) -> int:
        return len(self._registry)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._registry)

    @property
    def making(self) -> Mapping[str, str]:
        """The names of topics that are being made, and whom each will count for."""
        return self._changes.making

    def ordered(self, *, prefix: str = "", after: str = "", limit: int = 100) -> Iterator[Topic]:
        """Topics whose name begins with `prefix` and lies above `after`, in order."""
        return self._registry.ordered(prefix=prefix, after=after, limit=limit)

    async def put(
        self,
        name: str,
        patch: TopicPatch | None = None,
        *,
        owner: str = "",
        declared: bool = False,
    ) -> tuple[Topic, bool]:
        """Create a topic, or change some of its configuration; True if it is new.

        A change is made on a full disk too, as a delete is: a lower cap makes room.
        """
        topic = self.find(name)
        if topic is None:
            return await self.create(name, patch, owner=owner, declared=declared)
        self._check_open()
        if self._registry.config(patch, topic.config) != topic.config:
            await self._changes.configure(topic, patch)
        return topic, False

    async def create(
        self,
        name: str,
        patch: TopicPatch | None = None,
        *,
        owner: str = "",
        declared: bool = False,
    ) -> tuple[Topic, bool]:
        """Create a topic if there is none of that name; True if this call did.

        `owner` is whoever it counts for, kept with it. What the program itself has `declared` is
        made on a full disk too, from the reserve: it is little, and a program that cannot start
        deletes nothing.
        """
        self._check_open()
        if not declared and self.find(name) is None:
            self.writability.check()
        return await self._changes.create(name, patch, owner)

    async def delete(self, name: str, *, if_empty: bool = False) -> list[str] | None:
        """Delete a topic with all it holds and the routers that name it; None if there is none.

        Its rows are removed later, in chunks. A topic made anew under this name is another one.
        """
        self._check_open()
        return await self._changes.alone(lambda: self._delete(name, if_empty))

    async def _delete(self, name: str, if_empty: bool) -> list[str] | None:
        topic = self.find(name)
        try:
            return await self._changes.delete(name, if_empty)
        finally:
            # Not only if all went well: it may be gone although its deletion is in doubt.
            if topic is not None and topic.epoch < 0:
                for listener in list(self.deleted):
                    listener(topic)

    # Records

    async def append(
        self,
        name: str,
        new: NewBatch,
        *,
        create: bool | None = None,
        config: TopicPatch | None = None,
        owner: str = "",
    ) -> tuple[Topic, Appended, bool]:
        """Append to a topic, making it first if it may be made; the last says whether it was."""
        while True:
            self.check_admits(patient=new.patient)
            topic = self.find(name)
            created = False
            if topic is None:
                wanted = create
                if wanted is None:
                    wanted = not (config is not None and config.auto_create is False)
                if not wanted:
                    raise NotFound("topic", name)
                self._check_fits(name, config, new)
                make = partial(self.create, name, config, owner=owner)
                size = len(new.records.raw)
                made = self.writing.patiently(name, size, make) if new.patient else make()
                topic, created = await made
            try:
                return topic, await self.writing.append(topic, new), created
            except NotFound:
                if self.find(name) is topic:
                    raise
                # It was deleted before anything was accepted: as if we had come after that.

    def append_now(self, on_done: OnDone[Appended], topic: Topic, new: NewBatch) -> bool:
        """As `append`, begun at once, with a callback, which may be called within this call; False
        if something must come first."""
        self.check_admits(patient=new.patient)
        return self.writing.append_now(on_done, topic, new)

    async def delete_records(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: TagMatch | None = None,
        seq: int | None = None,
    ) -> tuple[Topic, int]:
        """Delete records that are there now: below a seq, of a tag, of a seq, or where all that is
        asked holds; and how many."""
        self._check_open()
        if before_seq is None and match is None and seq is None:
            raise InvalidRequest("a delete names before_seq, match or seq")
        topic = self.get(name)
        deleted = await self._changes.to_its_end(
            self.retention.deletions.delete(topic, before_seq, match, seq)
        )
        return topic, deleted

    # What other parts keep with a topic

    def check_admits(self, *, patient: bool = False) -> None:
        """Raise what an append would be refused with now, whichever its topic."""
        if self._closing:
            raise Closing("topics are closing")
        self.writability.check()
        if self.kernel.ladder.refuse and not patient:
            raise Throttled("saturated: no room for more writes", retry_after_ns=RETRY_SATURATED_NS)

    async def extras(self, topic: Topic, prefix: str) -> dict[str, bytes]:
        """What was written with `NewBatch.extra` under names that begin with `prefix`."""
        found: dict[str, bytes] = {}
        after = ""
        while page := await self._log.meta_scan(topic.epoch, prefix=prefix, after=after):
            found.update(page)
            after = page[-1][0]
        return found

    async def pin(self, topic: Topic, seq: int, extra: Mapping[str, bytes | None]) -> None:
        """Keep what is stored from `seq` on, though caps, TTL and deletes hide it; 0 lets it go."""
        if seq:
            topic.hold_from(seq)  # the lower one, until it is durable
        writes = self.live(topic).writes
        with writes.pinning(seq):
            meta = {**extra, **self.retention.snapshot_meta(topic)}
            await shielded(self._log.submit(topic.epoch, Operation(meta=meta)))
        topic.pinned(seq)
        self.retention.reconsider(topic)

    # Following

    def watch(self, topic: Topic, view: View, sink: Sink, cursor: int) -> Watcher:
        """Follow a topic: `sink` is given frames from `cursor` on, until `unwatch`."""
        watcher = Watcher(topic, view, sink, cursor)
        self.follow(watcher)
        return watcher

    def follow(self, watcher: Watcher) -> None:
        """The same, for a watcher that is made already."""
        self.live(watcher.topic)
        self.delivery.attach(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self.delivery.detach(watcher)

    def consume(self, topic: Topic, view: View, sink: Sink, cursor: int) -> Watcher:
        """Follow a topic as a router does: after its watchers, deferred under pressure.

        The port for parts that turn records into other work and keep their own position.
        """
        self.live(topic)
        watcher = Watcher(topic, view, sink, cursor)
        self.delivery.attach(watcher, router=True)
        return watcher

    # Routers

    def router(self, name: str) -> Router:
        """The router of that name, or `NotFound`."""
        return self._routers.get(name)

    def routers(self) -> dict[str, Router]:
        return self._routers.all

    async def put_router(
        self,
        name: str,
        config: RouterConfig,
        *,
        owner: str = "",
        declared: bool = False,
        permit: Callable[[RouterConfig], None] | None = None,
    ) -> tuple[Router, bool]:
        """Create a router, or replace one; True if it is new. It forwards from now on.

        `owner` is whoever its copies count for, and its destination if that is made; `declared` is
        as for `create`. `permit` is asked about the rule that would be replaced, if there is one,
        and raises if it may not be.
        """
        self._check_open()

        async def put() -> tuple[Router, bool]:
            replaced = self._permitted(name, permit)
            if not declared and (replaced is None or replaced.config != config):
                self.writability.check()
            return await self._routers.put(name, config, owner)

        return await self._changes.alone(put)

    async def delete_router(
        self, name: str, *, permit: Callable[[RouterConfig], None] | None = None
    ) -> bool:
        """Stop forwarding and forget the rule; what was forwarded stays.

        `permit` is asked about the rule that would go, and raises if it may not.
        """
        self._check_open()

        async def delete() -> bool:
            self._permitted(name, permit)
            return await self._routers.delete(name)

        return await self._changes.alone(delete)

    def _permitted(self, name: str, permit: Callable[[RouterConfig], None] | None) -> Router | None:
        """The router of that name, if `permit` lets it be changed.

        Asked while no other change happens: before that, another rule may have that name.
        """
        existing = self._routers.all.get(name)
        if existing is not None and permit is not None:
            permit(existing.config)
        return existing

    def fan_out(self, topic: str) -> tuple[int, int]:
        """How many routers read a topic, and how many of these lead to one that others read."""
        return self._routers.fan_out(topic)

    async def topic_for_router(self, config: RouterConfig, owner: str = "") -> Topic:
        """The destination of a router, which counts for its owner if it has to be made."""
        topic = self.find(config.dest)
        if topic is None:
            if not config.create_dest:
                raise NotFound("topic", config.dest)
            topic, _ = await self.create(config.dest, owner=owner)
        return topic

    def start(self, chore: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that ends by itself, and ends with the engine at the latest."""
        return self.spawn(chore, "topics-chore")

    # Small things

    def live(self, topic: Topic) -> LivePart:
        """The part of a topic that only those in use have."""
        live = topic.live
        if live is None:
            live = topic.begin_use(LivePart(Tail(topic.head + 1), self._keys))
        return live

    def health(self) -> PartHealth:
        """Not ready while it must not answer from its log, ends, or takes no writes."""
        ownership = self._log.ownership
        if ownership is not None and ownership.overdue:
            fenced = "fenced: another process owns the log, or may own it by now"
            return PartHealth("failed", fenced, ready=False)
        trouble = "shutting down" if self._closing else self.writability.trouble
        return OK if trouble is None else PartHealth("degraded", trouble, ready=False)

    @property
    def closing(self) -> bool:
        """Whether it is not yet, or no longer, open: whoever waits for news should go."""
        return self._closing

    def _published(self, topic: Topic) -> None:
        self.retention.wrote(topic)
        self.delivery.mark(topic)

    def _tell_created(self, topic: Topic) -> None:
        for listener in list(self.created):
            listener(topic)

    def _dropped(self, topic: Topic, batch: Batch) -> None:
        if topic.config.durability == "ephemeral":
            self.retention.dropped(topic, batch)

    def _check_fits(self, name: str, patch: TopicPatch | None, new: NewBatch) -> None:
        """Refuse the first append to a topic before the topic is made for it."""
        config = self._registry.config(patch)
        count, size = new.records.count, new.records.size(new.node)
        empty = Topic(name, 0, config)
        if config.discard == "reject" and empty.would_overflow(count, size):
            raise TopicFull(f"topic {name!r} could not hold {count:,} records")

    def stop_admitting(self) -> None:
        """Refuse new work from now on, and let whoever waits for something new go."""
        self._closing = True
        for topic in self._registry:
            if topic.live is not None:
                topic.live.readers.wake()

    def check_owned(self) -> None:
        """Raises `Fenced` once another process may own the log: see `Log.check_owned`."""
        self._log.check_owned()

    def _check_open(self) -> None:
        if self._closing:
            raise Closing("topics are closing")

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000

    def _instruments(self) -> None:
        gauge = self.kernel.telemetry.gauge
        gauge("fairway_topics", "Topics that exist", lambda: len(self._registry))
        gauge("fairway_routers", "Routers that exist", lambda: len(self._routers.all))
        gauge("fairway_hot_bytes", "Records kept in memory", lambda: self._hot.used)
        gauge("fairway_key_bytes", "Idempotency keys kept in memory", lambda: self._keys.used)
        gauge("fairway_tag_bytes", "Tag indexes kept in memory", lambda: self._tags.used)

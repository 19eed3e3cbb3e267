"""Topics as another part stands on them: one object for each topic, and no way around it.

Parts never import each other. One that keeps things in topics says in a Protocol what it needs, and
this fits it. What such a part stores beside records has a namespace of its own, `names.EXTRA`.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from fairway.storage.writer import Durability
from fairway.topics.names import EXTRA
from fairway.topics.operations import Position
from fairway.topics.reading import about_behind
from fairway.topics.writing import NewBatch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fairway.runtime.completion import OnDone
    from fairway.topics.engine import Topics
    from fairway.topics.operations import Hole
    from fairway.topics.outcome import Appended
    from fairway.topics.reading import Page
    from fairway.topics.topic import Extent, Topic
    from fairway.wire.records import Records

    Meta = Mapping[str, bytes | None]


class TopicPort:
    """One incarnation of a topic."""

    __slots__ = ("_topic", "_topics", "epoch", "name")

    def __init__(self, topics: Topics, topic: Topic) -> None:
        self._topics = topics
        self._topic = topic
        self.name = topic.name
        self.epoch = abs(topic.epoch)
        """The number of this incarnation, once it is deleted too."""

    @property
    def deleted(self) -> bool:
        return self._topic.epoch < 0

    @property
    def head(self) -> int:
        return self._topic.head

    @property
    def last_ts(self) -> int:
        return self._topic.last_ts

    @property
    def durability(self) -> str:
        return self._topic.config.durability

    @property
    def evict_floor(self) -> int:
        return self._topic.evict_floor

    @property
    def floor_reason(self) -> str | None:
        return self._topic.floor_reason

    @property
    def delete_floor(self) -> int:
        return self._topic.delete_floor

    @property
    def holes(self) -> tuple[Hole, ...]:
        return self._topic.holes

    # Writing

    async def prepare(self, records: Records) -> None:
        """Fetch what `submit` needs to know of the store before it can number these records."""
        topic = self._topic
        if topic.weak or topic.capped:
            await self._topics.writing.prepare(topic, NewBatch(records=records))

    def submit(
        self,
        records: Records,
        on_done: OnDone[int],
        *,
        meta: Meta,
        position: tuple[str, int, int] | None = None,
        trace: str | None = None,
    ) -> None:
        """Number and queue records with metadata, or metadata alone, in one step of the loop.

        `on_done` is given the last seq, in a turn to come.
        """
        topic, writing, extra = self._topic, self._topics.writing, _extra(meta)
        at = Position(*position) if position is not None else None
        if records.count:
            new = NewBatch(records=records, position=at, trace=trace, extra=extra)
            writing.enqueue(topic, new).add_done_callback(partial(_notify_appended, on_done))
        else:
            noted = writing.enqueue_meta(topic, extra, at)
            noted.add_done_callback(partial(_notify_noted, on_done, topic))

    async def append(self, records: Records, *, meta: Meta, trace: str | None = None) -> None:
        """Append all of it or nothing; durable when this returns."""
        writing, extra = self._topics.writing, _extra(meta)
        if records.count:
            await writing.append(self._topic, NewBatch(records=records, trace=trace, extra=extra))
        else:
            await writing.enqueue_meta(self._topic, extra)

    def note(self, meta: Meta) -> None:
        """Queue metadata that a crash may take; raises if it is refused."""
        writing = self._topics.writing
        writing.enqueue_meta(self._topic, _extra(meta), durability=Durability.DISK)

    async def position_of(self, producer: str) -> tuple[int, int] | None:
        """The (epoch, number) of a producer's last append, under way or written."""
        return await self._topics.writing.position_of(self._topic, producer)

    def queued_position_of(self, producer: str) -> tuple[int, int] | None:
        """The same, as far as memory knows it, once every write that is decided was taken in."""
        live = self._topics.live(self._topic)
        live.writes.settle()
        return live.producers.at(producer)

    async def meta(self, prefix: str) -> dict[str, bytes]:
        """What was written with `append`, `submit`, `note` or `pin`, by name."""
        stored = await self._topics.extras(self._topic, EXTRA + prefix)
        return {name.removeprefix(EXTRA): value for name, value in stored.items()}

    # Keeping what is stored

    def hold(self, seq: int) -> None:
        """Trim nothing from `seq` on, as of now; a crash forgets it."""
        self._topic.hold_from(seq)

    def hold_only(self, seq: int) -> None:
        """Go back to holding what is there from `seq` on; 0 lets it go."""
        self._topic.pinned(seq)

    async def pin(self, seq: int, meta: Meta) -> None:
        """Hold what is stored from `seq` on, durably, and write `meta` with that; 0 lets it go."""
        await self._topics.pin(self._topic, seq, _extra(meta))

    # Reading

    async def page(self, after: int, *, limit: int, max_bytes: int) -> Page:
        """Live records after a seq, up to the head."""
        topic = self._topic
        return await self._topics.reading.page(topic, after, topic.head, limit, max_bytes)

    async def page_as_of(self, extent: Extent, after: int, *, limit: int, max_bytes: int) -> Page:
        """The same, of what there was at a moment from which on it was held."""
        past = self._topic.as_of(extent)
        return await self._topics.reading.page(past, after, extent.upto, limit, max_bytes)

    async def append_at(self, seq: int) -> tuple[int, Iterable[bytes]] | None:
        """The stored append that holds `seq`, or the first one behind it: its first seq, and the
        data of its records."""
        batch = await self._topics.reading.batch_at(self._topic, seq)
        if batch is None:
            return None
        return batch.first_seq, (bytes(record.data) for record in batch.parse())

    def about_behind(self, seq: int) -> int:
        """About how many bytes of records lie behind a seq."""
        return about_behind(self._topic, seq, self._topic.count)

    async def wait_written(self) -> None:
        """Wait until what readers may see by now is stored, or known to be lost."""
        if self._topic.live is not None:
            await self._topic.live.writes.wait_written()

    @contextmanager
    def change(self) -> Iterator[asyncio.Future[None]]:
        """A future that resolves when there is news, or no more reason to wait for any."""
        readers = self._topics.live(self._topic).readers
        waiter = readers.wait()
        try:
            yield waiter
        finally:
            readers.leave(waiter)

    def wake(self) -> None:
        """Whoever waits for a change looks again."""
        if self._topic.live is not None:
            self._topic.live.readers.wake()

    def touch(self) -> None:
        """Somebody uses it: recency."""
        self._topics.delivery.touch(self._topic)


class TopicsPort:
    """Every topic of one engine."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def closing(self) -> bool:
        """Whether it is no longer open: whoever waits for news should go."""
        return self._topics.closing

    def check_admits(self) -> None:
        """Raise what an append would be refused with now, whichever its topic."""
        self._topics.check_admits()

    def find(self, name: str) -> TopicPort | None:
        topic = self._topics.find(name)
        return TopicPort(self._topics, topic) if topic is not None else None

    def ordered(self, prefix: str, after: str) -> list[TopicPort]:
        """Some of the topics whose name begins with `prefix` and lies above `after`, in order."""
        found = self._topics.ordered(prefix=prefix, after=after)
        return [TopicPort(self._topics, topic) for topic in found]

    async def create(self, name: str, *, owner: str) -> tuple[TopicPort, bool]:
        """Make a topic if there is none of that name; True if this call did."""
        topic, made = await self._topics.create(name, owner=owner)
        return TopicPort(self._topics, topic), made

    async def delete(self, name: str) -> None:
        await self._topics.delete(name)

    def when_deleted(self, listener: Callable[[str, int], None]) -> Callable[[], None]:
        """Tell `listener` the name and epoch of every topic that is gone, whoever deleted it,
        until what this returns is called."""

        def tell(topic: Topic) -> None:
            listener(topic.name, abs(topic.epoch))

        def stop() -> None:
            if tell in self._topics.deleted:
                self._topics.deleted.remove(tell)

        self._topics.deleted.append(tell)
        return stop


def _extra(meta: Meta) -> dict[str, bytes | None]:
    return {EXTRA + name: value for name, value in meta.items()}


def _notify_appended(on_done: OnDone[int], appended: asyncio.Future[Appended]) -> None:
    error = appended.exception()
    on_done(None if error is not None else appended.result().last_seq, error)


def _notify_noted(on_done: OnDone[int], topic: Topic, noted: asyncio.Future[None]) -> None:
    error = noted.exception()
    on_done(None if error is not None else topic.head, error)

"""How the parts of an app meet: what one fills of a port that another has.

The features never import each other. Each says in a small Protocol what it needs of the rest, and
here is what the app gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairway.errors import Invalid
from fairway.graphs.checkpoint import EffectRecord
from fairway.graphs.context import JobEnqueue, TopicAppend
from fairway.jobs.forwarding import Arrived
from fairway.jobs.job import NewJob
from fairway.jobs.kinds import Order
from fairway.jobs.store import Cursor
from fairway.topics.handle import consumed
from fairway.topics.writing import NewBatch, Position
from fairway.wire.encoding import encode_given
from fairway.wire.records import parse_records
from fairway.wire.topics import check_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from fairway.graphs.context import Effect
    from fairway.graphs.outbox import Position as EffectPosition
    from fairway.jobs.engine import Jobs
    from fairway.topics.engine import Topics
    from fairway.topics.handle import TopicHandle

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(NewJob).decode

JOBS = ""
"""Where effects go that are for no topic."""


class TopicSource:
    """A topic, as jobs read it."""

    def __init__(self, topics: Callable[[], Topics], name: str) -> None:
        self._topics = topics
        self._name = name

    async def read(self, cursor: Cursor | None) -> AsyncIterator[Arrived]:
        epoch, seq = (None, 0) if cursor is None else (cursor.epoch, cursor.seq)
        async for found, records in consumed(self._topics(), self._name, epoch, seq):
            yield Arrived(found, records)


class TopicArrivals:
    """Topics, as graphs read them. One that does not exist is made."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def __call__(
        self, topic: str, epoch: int | None, seq: int
    ) -> AsyncIterator[tuple[int, Sequence[tuple[int, bytes]]]]:
        if self._topics.find(topic) is None:
            await self._topics.create(topic, declared=True)
        async for found in consumed(self._topics, topic, epoch, seq):
            yield found


class EffectDestinations:
    """Topics and the job store, as the effects of graphs reach them."""

    def __init__(
        self, topics: Topics, jobs: Callable[[], Jobs], declared: dict[str, TopicHandle[Any]]
    ) -> None:
        self._topics = topics
        self._jobs = jobs
        self._declared = declared

    def encoded(self, effect: Effect) -> EffectRecord:
        if isinstance(effect, TopicAppend):
            topic = effect.topic if isinstance(effect.topic, str) else effect.topic.name
            check_name(topic)
            data = encode_given(effect.value, f"a record for topic {topic!r}")
            return EffectRecord(topic, data, effect.tag)
        assert isinstance(effect, JobEnqueue)
        if not isinstance(effect.order, Order):
            raise Invalid(f"{effect.order!r} is not what job.order(...) or flow.order(...) returns")
        return EffectRecord(JOBS, _pack(effect.order.job))

    async def known(self, topic: str, producer: str) -> tuple[int, int] | None:
        if topic == JOBS:
            cursor = await self._jobs().store.cursor(producer)
            return None if cursor is None else (cursor[1], cursor[2])
        found = self._topics.find(topic)
        return (
            None
            if found is None
            else await self._topics.writing.written_position_of(found, producer)
        )

    async def send(
        self, topic: str, effects: Sequence[EffectRecord], position: EffectPosition | None
    ) -> bool:
        if topic == JOBS:
            cursor = None if position is None else Cursor(*position)
            jobs = [_unpack(each.data) for each in effects]
            return bool(await self._jobs().enqueue(jobs, cursor=cursor))
        parts = []
        for each in effects:
            tag = b"" if each.tag is None else b',"tag":' + _encode(each.tag)
            parts.append(b'{"data":%b%b}' % (each.data, tag))
        new = NewBatch(
            records=parse_records(b"[%b]" % b",".join(parts)),
            # Whoever writes to topics owns the log, so nobody can come in between here.
            position=None if position is None else Position(*position[:3]),
            patient=True,
        )
        handle = self._declared.get(topic)
        await self._topics.append(topic, new, config=handle.patch if handle is not None else None)
        return True

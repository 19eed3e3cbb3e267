"""The parts of an app: which there are, in the order of their start, and how they meet.

Parts never import each other. Each says in a small Protocol what it needs of the rest (a port), or
offers to the kernel what others may ask of it; here they are made and introduced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fairway.graphs.engine import Graphs
from fairway.jobs.forwarding import Arrived
from fairway.jobs.part import JobsPart
from fairway.streams.engine import Streams
from fairway.topics.effects import KIND as TOPIC_EFFECTS
from fairway.topics.effects import TopicDestination
from fairway.topics.engine import Topics
from fairway.topics.handle import consumed
from fairway.topics.port import TopicsPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from fairway.graphs.graph import Graph
    from fairway.jobs.clockwork import Schedule
    from fairway.jobs.engine import Kinds
    from fairway.jobs.forwarding import Forwarder
    from fairway.jobs.store import JobStore, TopicCursor
    from fairway.jobs.worker import WorkerConfig
    from fairway.kernel.kernel import Kernel
    from fairway.kernel.part import Part
    from fairway.runtime.telemetry import Telemetry
    from fairway.streams.engine import StreamsConfig
    from fairway.topics.engine import TopicsConfig
    from fairway.topics.handle import TopicHandle
    from fairway.wire.topics import RouterConfig

PartT = TypeVar("PartT", bound="Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a program has declared, as its parts are given it."""

    topics: Mapping[str, TopicHandle[Any]]
    topics_config: TopicsConfig | None
    streams_config: StreamsConfig | None
    routers: Mapping[str, RouterConfig]
    job_store: JobStore
    jobs_on_our_disk: bool
    """Whether the store of the jobs is a directory of the disk that the log is on."""
    kinds: Kinds
    worker: WorkerConfig | None
    schedules: Mapping[str, Schedule]
    forwarders: Iterable[Forwarder]
    graphs: Sequence[Graph]
    telemetry: Telemetry
    wait_for_job_store: bool


@dataclass(frozen=True, slots=True)
class Assembly:
    """An app that is being put together: each part is made with those before it at hand."""

    kernel: Kernel
    declared: Declared
    parts: dict[type[Part], Part] = field(default_factory=dict)

    def part(self, kind: type[PartT]) -> PartT:
        """A part that was made already."""
        return cast("PartT", self.parts[kind])


def topics_part(app: Assembly) -> Part:
    declared = app.declared
    config_of = {name: handle.patch for name, handle in declared.topics.items()}.get
    topics = Topics(
        app.kernel,
        config=declared.topics_config,
        declared={name: handle.patch for name, handle in declared.topics.items()},
        routers=declared.routers,
    )
    app.kernel.offer(TOPIC_EFFECTS, TopicDestination(topics, config_of))
    return topics


def jobs_part(app: Assembly) -> Part:
    declared = app.declared
    return JobsPart(
        declared.job_store,
        declared.kinds,
        declared.worker,
        declared.schedules,
        declared.telemetry,
        kernel=app.kernel,
        on_disk_of_log=declared.jobs_on_our_disk,
        wait_for_store=declared.wait_for_job_store,
        forwarders=declared.forwarders,
    )


def graphs_part(app: Assembly) -> Part:
    arrivals = TopicArrivals(app.part(Topics))
    return Graphs(app.kernel, arrivals=arrivals, declared=app.declared.graphs)


def streams_part(app: Assembly) -> Part:
    return Streams(TopicsPort(app.part(Topics)), config=app.declared.streams_config)


PARTS: list[Callable[[Assembly], Part]] = [topics_part, jobs_part, graphs_part, streams_part]
"""Each is opened when those before it are open, and left before them."""


class TopicSource:
    """A topic, as jobs read it."""

    def __init__(self, topics: Callable[[], Topics], name: str) -> None:
        self._topics = topics
        self._name = name

    async def read(self, cursor: TopicCursor | None) -> AsyncIterator[Arrived]:
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

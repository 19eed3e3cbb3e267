"""A feed from Kafka, by way of librdkafka (`pip install 'fairway[kafka]'`).

    Source("ticks", Tick, feed=kafka("ticks", servers="broker:9092"))

The graph's own marks decide where reading goes on; what is committed to the broker follows them,
for those who watch the lag of the group, and counts only for a partition without a mark. So nothing
is ever committed that the graph has not consumed, and a rebalance or a restart repeats nothing.

The stream of a mark is "<topic>/<partition>" and its offset that of the message plus one: where to
read next, and never 0. A message without a value (a tombstone) is an `Event` whose `data` is None:
there is nothing to take, but it is passed, and its offset counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from fairway.errors import FeedLost, InvalidConfig
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import SYSTEM_CLOCK, clock_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import Event, FeedContext, Report
    from fairway.graphs.feeds.kafka_reader import KafkaReader

Start: TypeAlias = Literal["earliest", "latest"]

REACH_S: Final = 10.0
"""How long the first broker may take to answer before the feed is lost."""
JOIN_S: Final = 60.0
"""How long the group may take to give us partitions: a member that died must be missed first."""
CLOSE_S: Final = 5.0
"""How long closing may take. Then the consumer is left to end by itself."""
BATCH: Final = 500
"""Messages that cross from the thread to the event loop at once, at most."""

logger = logging.getLogger("fairway.graphs.kafka")

_OURS: Final = {
    "bootstrap.servers": "give servers",
    "group.id": "give group",
    "auto.offset.reset": "give start",
    "enable.auto.commit": "an offset is committed when the graph has consumed it",
    "enable.auto.offset.store": "an offset is committed when the graph has consumed it",
    "error_cb": "the feed needs it to tell whether the brokers are there",
    "stats_cb": "the feed needs it to tell whether the brokers are there",
    "on_commit": "the feed needs it",
}
_DEFAULTS: Final = {
    "statistics.interval.ms": 500,  # how soon the loss and the return of one broker are seen
    "session.timeout.ms": 10_000,  # how long a restart waits for the group to miss who died
    "reconnect.backoff.max.ms": 2_000,
    "socket.keepalive.enable": True,
    "client.id": "fairway",
}


def kafka(
    topics: str | Sequence[str],
    *,
    servers: str,
    group: str | None = None,
    start: Start = "earliest",
    options: Mapping[str, Any] | None = None,
    batch: int = BATCH,
) -> Kafka:
    """Read `topics` of the brokers at `servers`, all partitions that the group is given.

    The `group` is "<tenant>.<graph>.<source>" unless it is named. `start` says where to begin in a
    partition that has neither a mark nor a committed offset. `options` are those of librdkafka,
    for instance how to authenticate. The order within a partition is kept.

    While the leader of a partition that we read is not connected, the source is disconnected; it
    mends by itself, and goes on where it was.
    """
    return Kafka(topics, servers=servers, group=group, start=start, options=options, batch=batch)


class Kafka:
    """The declaration of topics to read. See `kafka`."""

    kind: Final = "kafka"

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        servers: str,
        group: str | None = None,
        start: Start = "earliest",
        options: Mapping[str, Any] | None = None,
        batch: int = BATCH,
    ) -> None:
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        if not self.topics or not all(self.topics):
            raise InvalidConfig("kafka: name at least one topic")
        if not servers:
            raise InvalidConfig("kafka: servers is empty; give host:port, several with commas")
        if start not in ("earliest", "latest"):
            raise InvalidConfig(f"kafka: start is earliest or latest, not {start!r}")
        if batch < 1:
            raise InvalidConfig("kafka: batch is at least 1")
        self.servers = servers
        self.group = group
        self.start: Start = start
        self.options = dict(options or {})
        self.batch = batch
        for name in self.options.keys() & _OURS.keys():
            raise InvalidConfig(f"kafka: {name} is no option of a feed: {_OURS[name]}")

    def __repr__(self) -> str:
        return f"kafka({', '.join(map(repr, self.topics))}, servers={self.servers!r})"

    def open(self, context: FeedContext) -> KafkaConnection:
        return KafkaConnection(self, context)

    def settings(self, group: str) -> dict[str, Any]:
        """All options of the consumer, apart from its callbacks."""
        defaults = dict(_DEFAULTS)
        if self.options.get("group.protocol") == "consumer":  # there the broker decides on this
            del defaults["session.timeout.ms"]
        return {
            "logger": logger,  # or librdkafka writes to standard error
            **defaults,
            **self.options,
            "bootstrap.servers": self.servers,
            "group.id": self.group or group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Not `start`: that is for partitions without a mark, and the reader sees to those. A
            # mark that is out of range must never skip to the end.
            "auto.offset.reset": "earliest",
        }


@dataclass(frozen=True)
class KafkaStatistics:
    """How the reading of a broker stands."""

    group: str
    """The consumer group, under which lag tools find it."""
    assigned: tuple[str, ...]
    """The partitions that the group has given to this reader, as `topic/number`."""
    batches_waiting: int
    """Batches that were read and not taken by the graph."""
    paused: bool
    """Whether nothing more is read until the graph has taken one."""


class KafkaConnection:
    """The event loop's side: a `KafkaReader` reads in its own thread, and its batches come here."""

    def __init__(self, declared: Kafka, context: FeedContext) -> None:
        try:
            from fairway.graphs.feeds.kafka_reader import KafkaReader
        except ImportError as error:
            raise InvalidConfig(
                f"source {context.source!r} reads from Kafka, which needs confluent-kafka"
                f" ({error}): pip install 'fairway[kafka]'"
            ) from error
        self._make_reader = KafkaReader
        self._declared = declared
        self._report = context.report
        names = (context.tenant, context.graph, context.source)
        self._settings = declared.settings(".".join(name for name in names if name))
        self._reader: KafkaReader | None = None
        self._inbox: Inbox | None = None
        self._pool: BlockingPool | None = None

    async def connect(self, marks: Marks) -> None:
        """Return when a broker answered and the group has given us our partitions.

        Raises `FeedLost` if that takes too long, and `InvalidConfig` for options that librdkafka
        refuses. May be called again at any time: it starts over.
        """
        await self.aclose()
        loop = asyncio.get_running_loop()
        if clock_of(loop) is not SYSTEM_CLOCK:
            raise InvalidConfig("Kafka is not simulated: there are no threads on virtual time")
        inbox = self._inbox = Inbox(self._report)
        reader = self._reader = self._make_reader(
            self._settings,
            self._declared.topics,
            marks,
            from_end=self._declared.start == "latest",
            batch=self._declared.batch,
            listener=inbox,
            call_on_loop=lambda what, *args: _call_on_loop(loop, what, *args),
        )
        self._pool = BlockingPool(1, queue_limit=0, name=f"kafka {self._settings['group.id']}")
        self._pool.submit(inbox.ended, reader.run)
        try:
            await self._wait(inbox.reached, REACH_S, "no broker answers")
            await self._wait(inbox.joined, JOIN_S, "the group has given us no partitions")
            if inbox.lost:  # again, and before anybody could be told
                raise FeedLost(f"the brokers at {self._declared.servers} are gone ({inbox.lost})")
        except Exception:
            await self.aclose()
            raise
        inbox.connected = True

    def statistics(self) -> KafkaStatistics:
        """A snapshot. Nothing is assigned or waits while it is not connected."""
        reader, inbox = self._reader, self._inbox
        return KafkaStatistics(
            group=self._settings["group.id"],
            assigned=() if reader is None else reader.assigned,
            batches_waiting=0 if inbox is None else len(inbox),
            paused=reader is not None and reader.paused,
        )

    async def receive(self) -> Sequence[Event]:
        assert self._inbox is not None, "connect comes first"
        assert self._reader is not None
        events = await self._inbox.take()
        self._reader.batch_taken()
        return events

    async def commit(self, marks: Marks) -> None:
        """Have these offsets committed, soon; does not wait. The last ones win."""
        if self._reader is not None:
            self._reader.commit(marks)

    async def aclose(self) -> None:
        """Commit what is left to commit and leave the group, in a bounded time."""
        reader, inbox, pool = self._reader, self._inbox, self._pool
        self._reader = self._inbox = self._pool = None
        if reader is None or inbox is None or pool is None:
            return
        inbox.connected = False  # nobody wants to hear from it any more
        reader.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await inbox.over.wait()
        except TimeoutError:
            group = self._settings["group.id"]
            logger.warning("the consumer of group %s does not end; it is left alone", group)
        finally:
            await pool.aclose(abandon=True)

    async def _wait(self, happened: asyncio.Event, seconds: float, otherwise: str) -> None:
        assert self._inbox is not None
        assert self._reader is not None
        try:
            async with asyncio.timeout(seconds):
                await happened.wait()
        except TimeoutError:
            why = f" ({self._reader.why})" if self._reader.why else ""
            raise FeedLost(f"{otherwise} at {self._declared.servers}{why}") from None
        if self._inbox.failure is not None:
            raise self._inbox.failure


class Inbox:
    """What a reader tells, on the event loop. Each has its own: a late word reaches nobody."""

    def __init__(self, report: Report) -> None:
        self.reached = asyncio.Event()
        """A broker answered, or never will."""
        self.joined = asyncio.Event()
        """We were given partitions, or never will be."""
        self.over = asyncio.Event()
        self.connected = False
        """From the end of `connect` to the beginning of `aclose`."""
        self.lost = ""
        """Why the brokers are not there, while they are not."""
        self.failure: BaseException | None = None
        self._report = report
        self._batches: deque[list[Event]] = deque()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._batches)

    async def take(self) -> list[Event]:
        """The next batch. Raises what ended the reader once all it had read is taken."""
        while not self._batches:
            if self.failure is not None:
                raise self.failure
            self._some.clear()
            await self._some.wait()
        return self._batches.popleft()

    def has_reached(self) -> None:
        self.reached.set()

    def has_joined(self) -> None:
        self.reached.set()
        self.joined.set()

    def arrived(self, events: list[Event]) -> None:
        self._batches.append(events)
        self._some.set()

    def health(self, connected: bool, why: str) -> None:
        self.lost = "" if connected else why
        if self.connected:
            self._report(connected, why)

    def ended(self, result: None, error: BaseException | None) -> None:
        self.failure = error or FeedLost("the consumer has ended")
        self.over.set()
        self.has_joined()
        self._some.set()


def _call_on_loop(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(what, *args)
    except RuntimeError:  # the loop was closed and did not wait for us
        if not loop.is_closed():
            raise

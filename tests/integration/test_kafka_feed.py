"""The Kafka feed against librdkafka's mock cluster: real sockets, real groups, real outages."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import FeedLost, InvalidConfig
from fairway.graphs.feed import FeedContext
from fairway.graphs.feeds import kafka as feed_module
from fairway.graphs.feeds import kafka_reader as reader_module
from fairway.graphs.feeds.kafka import Kafka, KafkaConnection, kafka
from fairway.testing import run
from tests.support.kafka_mock import CLIENT, OFFSET_COMMIT, command, mock_cluster, mock_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import Event
    from tests.support.kafka_mock import MockCluster

GROUP = "graph.source"
STRATEGIES = ("range", "cooperative-sticky")
"""How a group shares partitions: all anew, or as few moves as may be."""


class Reports:
    """What a feed told of its connection, in order."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()

    def __call__(self, connected: bool, why: str = "") -> None:
        self.told.put_nowait((connected, why))

    async def next(self) -> tuple[bool, str]:
        async with asyncio.timeout(20):
            return await self.told.get()


def context(reports: Reports | None = None, *, tenant: str = "") -> FeedContext:
    async def in_thread(*call: Any) -> None:
        raise AssertionError("the feed has its own thread")

    return FeedContext("graph", "source", tenant, reports or Reports(), in_thread)


def feed(servers: str, topics: str | list[str] = "ticks", **options: Any) -> Kafka:
    return kafka(topics, servers=servers, options=CLIENT, **options)


@asynccontextmanager
async def connected(
    declared: Kafka, marks: Marks | None = None, reports: Reports | None = None
) -> AsyncIterator[KafkaConnection]:
    connection = declared.open(context(reports))
    try:
        async with asyncio.timeout(30):
            await connection.connect(marks or {})
        yield connection
    finally:
        await connection.aclose()


async def read(connection: KafkaConnection, count: int) -> list[Event]:
    events: list[Event] = []
    try:
        async with asyncio.timeout(20):
            while len(events) < count:
                events += await connection.receive()
    except TimeoutError:
        state = {name: str(value) for name, value in vars(connection._reader).items()}
        pytest.fail(f"{len(events)} of {count} came, up to {marks_of(events)}: {state}")
    assert len(events) == count
    return events


async def nothing_comes(connection: KafkaConnection, within_s: float = 0.3) -> None:
    try:
        async with asyncio.timeout(within_s):
            events = await connection.receive()
    except TimeoutError:
        return
    pytest.fail(f"nothing was to come, and this did: {events}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (it comes true in another thread)
            await asyncio.sleep(0)


def marks_of(events: Iterable[Event]) -> Marks:
    return {event.stream: event.offset for event in events}


class Sender:
    """Writes numbered messages, to partitions in turn."""

    def __init__(self, servers: str, partitions: int) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 100}
        )
        self._partitions = partitions
        self.sent = 0

    def send(self, count: int, *, topic: str = "ticks", flush: bool = True) -> None:
        for number in range(self.sent, self.sent + count):
            self._producer.produce(topic, b"%d" % number, partition=number % self._partitions)
        self.sent += count
        if flush:
            assert self._producer.flush(20) == 0

    def send_tombstone(self, partition: int) -> None:
        self._producer.produce("ticks", None, key=b"gone", partition=partition)
        assert self._producer.flush(20) == 0


def committed(servers: str, partitions: int, group: str = GROUP) -> list[int]:
    """What another consumer of the group would find; negative where there is nothing."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    asked = [TopicPartition("ticks", number) for number in range(partitions)]
    found = [each.offset for each in consumer.committed(asked, 10)]
    consumer.close()
    return found


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with mock_cluster({"ticks": 3}) as made:
        yield made


@pytest.fixture
def sender(cluster: MockCluster) -> Sender:
    return Sender(cluster.bootstrap, 3)


def test_every_message_of_every_partition_comes_once_and_in_order(
    cluster: MockCluster, sender: Sender
) -> None:
    async def scenario() -> None:
        sender.send(3_000)
        async with connected(feed(cluster.bootstrap)) as connection:
            events = await read(connection, 3_000)
            by_stream: dict[str, list[tuple[int, int]]] = {}
            for event in events:
                by_stream.setdefault(event.stream, []).append((event.offset, int(event.data)))
            assert sorted(by_stream) == ["ticks/0", "ticks/1", "ticks/2"]
            for number, stream in enumerate(sorted(by_stream)):
                # An offset is one more than Kafka's: where to go on.
                assert by_stream[stream] == [(i + 1, 3 * i + number) for i in range(1_000)]

    asyncio.run(scenario())


def test_reading_goes_on_after_the_marks(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(90)
        declared = feed(cluster.bootstrap, batch=7)
        async with connected(declared) as connection:
            first = await connection.receive()
            first = [*first, *await connection.receive()]
        # Marks of other streams are none of its business.
        marks = {**marks_of(first), "push": 12, "~window": 5}
        async with connected(declared, marks) as connection:
            rest = await read(connection, 90 - len(first))
            assert sorted(int(event.data) for event in [*first, *rest]) == list(range(90))
            await nothing_comes(connection)

    asyncio.run(scenario())


def test_marks_count_more_than_what_is_committed(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(30)
        async with connected(feed(cluster.bootstrap)) as connection:
            await connection.commit(marks_of(await read(connection, 30)))
        assert committed(cluster.bootstrap, 3) == [10, 10, 10]
        async with connected(feed(cluster.bootstrap), {"ticks/1": 4}) as connection:
            again = await read(connection, 6)
            assert [event.offset for event in again] == [5, 6, 7, 8, 9, 10]
            assert {event.stream for event in again} == {"ticks/1"}
            await nothing_comes(connection)

    asyncio.run(scenario())


def test_a_commit_is_seen_by_another_consumer(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(30)
        async with connected(feed(cluster.bootstrap)) as connection:
            await read(connection, 30)
            # Only what is told, not what was read; and only the last of it when closing.
            await connection.commit({"ticks/0": 2, "push": 7})
            await connection.commit({"ticks/0": 3, "ticks/2": 9})
        assert committed(cluster.bootstrap, 3) == [3, -1001, 9]
        async with connected(feed(cluster.bootstrap)) as connection:
            again = await read(connection, 7 + 10 + 1)
            assert min(event.offset for event in again if event.stream == "ticks/0") == 4

    asyncio.run(scenario())


def test_commits_are_made_while_it_reads(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(3)
        async with connected(feed(cluster.bootstrap)) as connection:
            await connection.commit(marks_of(await read(connection, 3)))
            await until(lambda: committed(cluster.bootstrap, 3) == [1, 1, 1])

    asyncio.run(scenario())


def test_many_commits_become_few(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(3_000)
        async with connected(feed(cluster.bootstrap, batch=10)) as connection:
            seen: list[Event] = []
            while len(seen) < 3_000:
                seen += await connection.receive()
                await connection.commit(marks_of(seen))
        assert committed(cluster.bootstrap, 3) == [1_000] * 3
        assert cluster.requests(OFFSET_COMMIT) < 50

    asyncio.run(scenario())


def test_nothing_is_committed_that_was_not_asked_for(cluster: MockCluster, sender: Sender) -> None:
    """Upstream commits on a timer: an event that the graph never saw is then gone after a crash."""

    async def scenario() -> None:
        sender.send(300)
        # A timer would have fired many times.
        options = {**CLIENT, "auto.commit.interval.ms": 10}
        declared = kafka("ticks", servers=cluster.bootstrap, options=options)
        async with connected(declared) as connection:
            await read(connection, 300)
            await nothing_comes(connection)
        assert cluster.requests(OFFSET_COMMIT) == 0
        assert committed(cluster.bootstrap, 3) == [-1001] * 3

    asyncio.run(scenario())


def test_from_the_end_only_what_comes_later_is_read(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(30)
        declared = feed(cluster.bootstrap, start="latest")
        async with connected(declared) as connection:
            sender.send(3)  # nothing is missed once it is connected
            assert sorted(int(event.data) for event in await read(connection, 3)) == [30, 31, 32]
        # It has begun: what came while nobody read is not skipped, although there is no mark.
        sender.send(3)
        async with connected(declared, {"ticks/0": 11}) as connection:
            again = await read(connection, 5)
            assert sorted(int(event.data) for event in again) == [31, 32, 33, 34, 35]

    asyncio.run(scenario())


def test_a_mark_out_of_range_never_skips_to_the_end(cluster: MockCluster, sender: Sender) -> None:
    """The topic was created again. To go on would be to drop what seems to be consumed."""

    async def scenario() -> None:
        sender.send(30)
        declared = feed(cluster.bootstrap, start="latest")
        async with connected(declared, {"ticks/0": 500}) as connection:
            with pytest.raises(InvalidConfig, match="ticks/0 was consumed up to 500 and now begin"):
                await read(connection, 1)

    asyncio.run(scenario())


def test_a_tombstone_is_passed(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send_tombstone(1)
        async with connected(feed(cluster.bootstrap)) as connection:
            assert await read(connection, 1) == [(None, "ticks/1", 1)]

    asyncio.run(scenario())


def test_several_topics(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        cluster.topic("quotes", 3)
        sender.send(3)
        sender.send(3, topic="quotes")
        async with connected(feed(cluster.bootstrap, ["ticks", "quotes"])) as connection:
            streams = {event.stream for event in await read(connection, 6)}
            assert streams == {f"{topic}/{i}" for topic in ("ticks", "quotes") for i in range(3)}

    asyncio.run(scenario())


# Outages


def test_an_outage_is_told_and_costs_no_message() -> None:
    """The broker is a process of its own, and is told over its socket to go."""

    async def scenario(servers: str, control: int) -> None:
        sender = Sender(servers, 2)
        reports = Reports()
        async with connected(feed(servers), reports=reports) as connection:
            seen: list[int] = []
            for _ in range(2):
                sender.send(500)
                seen += [int(event.data) for event in await read(connection, 500)]
                command(control, "down")
                lost, why = await reports.next()
                assert lost is False
                assert why
                sender.send(500, flush=False)  # it waits in the producer
                command(control, "up")
                assert await reports.next() == (True, "")
                seen += [int(event.data) for event in await read(connection, 500)]
            await nothing_comes(connection)
            assert sorted(seen) == list(range(2_000))
            assert reports.told.empty()

    with mock_process({"ticks": 2}) as made:
        asyncio.run(scenario(made.bootstrap, made.control))


def test_messages_in_memory_are_no_sign_of_a_broker(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(3_000)
        reports = Reports()
        async with connected(feed(cluster.bootstrap, batch=10), reports=reports) as connection:
            await until(lambda: connection.statistics().batches_waiting == reader_module.AHEAD)
            cluster.down()
            assert (await reports.next())[0] is False
            for _ in range(reader_module.AHEAD):
                await connection.receive()
            assert reports.told.empty()

    asyncio.run(scenario())


def test_the_loss_of_one_leader_is_told() -> None:
    async def scenario(cluster: MockCluster) -> None:
        sender = Sender(cluster.bootstrap, 3)
        for partition in range(3):
            cluster.lead("ticks", partition, partition + 1)
        reports = Reports()
        async with connected(feed(cluster.bootstrap), reports=reports) as connection:
            sender.send(3)
            await read(connection, 3)
            cluster.down(2)
            lost, why = await reports.next()
            assert lost is False
            assert why
            cluster.up(2)
            assert (await reports.next())[0] is True
            sender.send(3)
            assert sorted(int(event.data) for event in await read(connection, 3)) == [3, 4, 5]

    with mock_cluster({"ticks": 3}, brokers=3) as made:
        asyncio.run(scenario(made))


def test_closing_is_bounded_while_the_broker_is_down(cluster: MockCluster, sender: Sender) -> None:
    async def scenario() -> None:
        sender.send(30)
        reports = Reports()
        connection = feed(cluster.bootstrap).open(context(reports))
        await connection.connect({})
        await connection.commit(marks_of(await read(connection, 30)))
        cluster.down()
        async with asyncio.timeout(feed_module.CLOSE_S - 1):  # without being left alone
            await connection.aclose()
        await connection.aclose()  # again is no harm

    asyncio.run(scenario())


def test_where_nobody_listens_the_feed_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "REACH_S", 0.3)

    async def scenario(cluster: MockCluster) -> None:
        cluster.down()
        connection = feed(cluster.bootstrap).open(context())
        with pytest.raises(FeedLost, match=r"no broker answers at .*refused"):
            await connection.connect({})
        # The same connection may be used again.
        cluster.up()
        monkeypatch.setattr(feed_module, "REACH_S", 20)
        await connection.connect({})
        await connection.aclose()

    with mock_cluster({"ticks": 1}) as made:
        asyncio.run(scenario(made))


def test_a_topic_that_is_not_there_is_lost(cluster: MockCluster) -> None:
    async def scenario() -> None:
        connection = feed(cluster.bootstrap, "nowhere").open(context())
        with pytest.raises(FeedLost, match="nowhere"):
            async with asyncio.timeout(20):
                await connection.connect({})

    asyncio.run(scenario())


def test_a_broker_that_dies_for_good(cluster: MockCluster) -> None:
    async def scenario() -> None:
        reports = Reports()
        with mock_process({"ticks": 1}) as made:
            async with connected(feed(made.bootstrap), reports=reports) as connection:
                made.kill()
                assert (await reports.next())[0] is False
                await nothing_comes(connection)

    asyncio.run(scenario())


# The pace


def test_who_takes_slowly_is_waited_for(
    cluster: MockCluster, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading stops, polling does not, and nothing is lost or repeated."""
    monkeypatch.setattr(reader_module, "PAUSE_AFTER_S", 0.01)

    async def scenario() -> None:
        sender.send(600)
        # Who does not poll for so long is put out of the group.
        options = {**CLIENT, "max.poll.interval.ms": 6_000}
        declared = kafka("ticks", servers=cluster.bootstrap, options=options, batch=20)
        async with connected(declared) as connection:
            seen: list[int] = []
            for _ in range(4):
                seen += [int(event.data) for event in await connection.receive()]
                await until(lambda: connection.statistics().paused)
                assert connection.statistics().batches_waiting <= reader_module.AHEAD
            seen += [int(event.data) for event in await read(connection, 600 - len(seen))]
            assert sorted(seen) == list(range(600))

    asyncio.run(scenario())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_partition_that_comes_back_goes_on_where_it_was(
    cluster: MockCluster, strategy: str
) -> None:
    """Another member of the group takes partitions for a while: our marks decide, not its."""

    async def scenario() -> None:
        topic = "quotes"
        cluster.topic(topic, 4)
        sender = Sender(cluster.bootstrap, 4)
        declared = kafka(
            topic,
            servers=cluster.bootstrap,
            options={**CLIENT, "partition.assignment.strategy": strategy},
        )
        async with connected(declared) as ours:
            sender.send(100, topic=topic)
            seen = await read(ours, 100)
            async with connected(declared, marks_of(seen)) as theirs:
                await until(lambda: len(ours.statistics().assigned) == 2)
                sender.send(100, topic=topic)
                await theirs.commit(marks_of(await read(theirs, 50)))
                seen += await read(ours, 50)
            sender.send(100, topic=topic)
            seen += await read(ours, 150)
            assert sorted(int(event.data) for event in seen) == list(range(300))
            for stream in marks_of(seen):
                offsets = [event.offset for event in seen if event.stream == stream]
                assert offsets == list(range(1, 76))

    asyncio.run(scenario())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_partition_that_is_taken_while_paused_is_read_when_it_comes_back(
    cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(reader_module, "PAUSE_AFTER_S", 0.01)

    async def scenario() -> None:
        sender = Sender(cluster.bootstrap, 3)
        sender.send(300)
        options = {**CLIENT, "partition.assignment.strategy": strategy}
        declared = kafka("ticks", servers=cluster.bootstrap, options=options, batch=5)
        async with connected(declared) as ours:
            await until(lambda: ours.statistics().paused)
            async with connected(declared):
                await until(lambda: 0 < len(ours.statistics().assigned) < 3)
                seen = list(await ours.receive())
                seen += await ours.receive()
                await until(lambda: not ours.statistics().paused)
            seen += await read(ours, 300 - len(seen))
            assert sorted(int(event.data) for event in seen) == list(range(300))

    asyncio.run(scenario())


# Declarations


def test_the_group_is_named_after_the_source() -> None:
    declared = kafka("ticks", servers="nowhere:9092")
    for tenant, group in (("", "graph.source"), ("acme", "acme.graph.source")):
        connection = declared.open(context(tenant=tenant))
        assert connection.statistics().group == group
    named = kafka("ticks", servers="nowhere:9092", group="mine").open(context())
    assert named.statistics().group == "mine"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"topics": []}, "at least one topic"),
        ({"servers": ""}, "servers is empty"),
        ({"start": "middle"}, "earliest or latest"),
        ({"batch": 0}, "at least 1"),
        ({"options": {"enable.auto.commit": True}}, "when the graph has consumed it"),
        ({"options": {"group.id": "g"}}, "give group"),
        ({"options": {"stats_cb": print}}, "whether the brokers are there"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], text: str) -> None:
    right: dict[str, Any] = {"topics": "ticks", "servers": "nowhere:9092"}
    with pytest.raises(InvalidConfig, match=text):
        kafka(**{**right, **wrong})


def test_an_option_that_librdkafka_does_not_know() -> None:
    async def scenario() -> None:
        declared = kafka("ticks", servers="nowhere:9092", options={"no.such.option": 1})
        with pytest.raises(InvalidConfig, match=r"no\.such\.option"):
            await declared.open(context()).connect({})

    asyncio.run(scenario())


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = kafka("ticks", servers="nowhere:9092")  # declaring needs nothing
    monkeypatch.delitem(sys.modules, "fairway.graphs.feeds.kafka_reader")
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(InvalidConfig, match=r"pip install 'fairway\[kafka\]'"):
        declared.open(context())


def test_there_is_no_kafka_on_virtual_time() -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidConfig, match="not simulated"):
            await kafka("ticks", servers="nowhere:9092").open(context()).connect({})

    run(scenario)

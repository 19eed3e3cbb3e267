"""The consumer of a Kafka feed and the thread that it lives in. Nobody else touches it.

It reads a little ahead of whoever takes the events, keeps polling when they are taken slowly (who
does not is put out of the group), commits what it is told, and says whether the brokers are there.

Of that, messages are no sign: many are still in memory when the broker is gone. What librdkafka
tells of itself is: each partition that we read needs a connection to the broker that leads it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from fairway.errors import FeedLost, InvalidConfig
from fairway.graphs.feed import Event
from fairway.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from confluent_kafka import Message

    from fairway.graphs.boundary import Marks

POLL_S: Final = 0.1
"""How long it takes to notice a stop or something to commit while no messages come."""
AHEAD: Final = 2
"""Batches that may wait to be taken."""
PAUSE_AFTER_S: Final = 1.0
"""How long to wait for one to be taken before the partitions are paused and polling goes on."""
COMMIT_EVERY_NS: Final = 200_000_000
LAST_COMMIT_NS: Final = 2_000_000_000
ASK_S: Final = 10.0
"""How long the broker may take to say where a partition ends, or was committed."""
BLIPS: Final = 2
"""In how many reports on end a leader is missing before that counts: they also move."""

_UP: Final = {"UP", "UPDATE", "REAUTH"}
_NO_TOPIC: Final = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
}


class ReaderListener(Protocol):
    """What a reader calls on the event loop when something happened."""

    def has_reached(self) -> None: ...

    def has_joined(self) -> None: ...

    def arrived(self, events: list[Event]) -> None: ...

    def health(self, connected: bool, why: str) -> None: ...


class _Broker(msgspec.Struct):
    nodeid: int
    state: str


class _Partition(msgspec.Struct):
    leader: int


class _Topic(msgspec.Struct):
    partitions: dict[str, _Partition]


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker]
    topics: dict[str, _Topic] = {}


_statistics = msgspec.json.Decoder(_Statistics).decode


class KafkaReader:
    """Reads from `run` to `stop`. Only the methods up to `run` are for other threads."""

    def __init__(
        self,
        settings: dict[str, Any],
        topics: Sequence[str],
        marks: Marks,
        *,
        from_end: bool,
        batch: int,
        listener: ReaderListener,
        call_on_loop: Callable[..., None],
    ) -> None:
        self.why = ""
        """What went wrong last, in the words of librdkafka."""
        self._settings = settings
        self._topics = list(topics)
        self._from_end = from_end
        self._batch = batch
        self._listener = listener
        self._call_on_loop = call_on_loop
        self._marks = dict(marks)
        self._positions = dict(marks)  # where to go on, by stream
        self._assigned: dict[str, TopicPartition] = {}
        self._streams: dict[tuple[str | None, int | None], str] = {}  # names, made once
        self._open: Consumer | None = None
        self._stopping = False
        # Places for batches that wait to be taken
        self._free_places = threading.Semaphore(AHEAD)
        self._has_place = False
        self._paused = False
        self._spare: list[Event] = []
        # Whether the brokers are there
        self._reached = self._joined = False
        self._connected = True
        self._missing = 0
        self._fatal: KafkaError | None = None
        # Commits
        self._lock = threading.Lock()
        self._to_commit: Marks = {}
        self._committing = False
        self._committed_ns = 0

    @property
    def assigned(self) -> tuple[str, ...]:
        """The partitions that the group has given to this reader, as `topic/number`."""
        return tuple(self._assigned)

    @property
    def paused(self) -> bool:
        """Whether it reads no more until somebody takes what it has read."""
        return self._paused

    def batch_taken(self) -> None:
        """A batch was taken."""
        self._free_places.release()

    def commit(self, marks: Marks) -> None:
        """Commit these soon, and with them what was to be committed before."""
        with self._lock:
            self._to_commit.update(marks)

    def stop(self) -> None:
        """Let `run` return soon."""
        self._stopping = True
        self._free_places.release()

    # In the thread

    def run(self) -> None:
        """Read until stopped. Raises `FeedLost` where starting over may help."""
        callbacks = {
            "error_cb": self._on_error,
            "stats_cb": self._on_statistics,
            "on_commit": self._on_commit,
        }
        try:
            self._open = Consumer({**self._settings, **callbacks})
        except (KafkaException, TypeError, ValueError) as error:
            raise InvalidConfig(f"kafka: {error}") from error
        try:
            self._consumer.subscribe(
                self._topics,
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_revoke,
            )
            while not self._stopping:
                self._turn()
        finally:
            self._let_go()

    @property
    def _consumer(self) -> Consumer:
        # Always asked for and never kept, so that `_let_go` drops the last that is left of it.
        assert self._open is not None
        return self._open

    def _let_go(self) -> None:
        """End the consumer, and leave the group if that can be done now.

        `close` does not return while a commit is not answered, and one whose broker is gone is
        retried for ever. Then it is dropped, which ends it without a word to anybody: the group
        misses it after the session timeout.
        """
        try:
            self._commit_last()
            if self._connected and not self._committing:
                self._consumer.close()
        finally:
            self._open = None

    def _turn(self) -> None:
        if not self._has_place:
            self._wait_for_place()
        events = self._read()
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        if events and not self._stopping:
            self._has_place = False
            self._call_on_loop(self._listener.arrived, events)
        self._commit_some()

    def _read(self) -> list[Event]:
        # First one and then what else is there: `consume` alone would wait for a full batch. Each
        # is noted before the next call, which may assign partitions anew, from where they stand.
        events, self._spare = self._spare, []
        first = self._consumer.poll(0 if events else POLL_S)
        if first is not None:
            events += self._events_of([first])
            if self._batch > 1:
                events += self._events_of(self._consumer.consume(self._batch - 1, 0))
        return events

    def _events_of(self, messages: list[Message[Any, Any]]) -> list[Event]:
        events = []
        positions = self._positions
        for message in messages:
            error = message.error()
            if error is not None:
                self._judge(error)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert offset is not None
            stream = self._streams.get((topic, partition))
            if stream is None:
                stream = self._streams[topic, partition] = f"{topic}/{partition}"
            if offset < positions.get(stream, 0):
                raise self._gone_back(stream, offset)
            positions[stream] = offset + 1
            events.append(Event(message.value(), stream, offset + 1))
        return events

    def _gone_back(self, stream: str, offset: int) -> Exception:
        mark = self._marks.get(stream, 0)
        if offset >= mark:  # starting over from the marks may explain it
            return FeedLost(f"{stream} stood at {self._positions[stream]} and gives {offset} again")
        # Going on would be to pass over all of it without a word: it seems to be consumed.
        return InvalidConfig(
            f"{stream} was consumed up to {mark} and now begins at {offset}:"
            " the topic was deleted and created again, or its log was cut off"
        )

    def _judge(self, error: KafkaError) -> None:
        """Raise unless librdkafka goes on by itself."""
        if error.fatal():
            raise KafkaException(error)
        if error.code() in _NO_TOPIC:
            raise FeedLost(f"there is no such topic: {error.str()}")
        if error.code() == KafkaError._PARTITION_EOF:
            return
        if not error.retriable() and error.code() != KafkaError._MAX_POLL_EXCEEDED:
            raise FeedLost(error.str())
        self.why = error.str()

    def _wait_for_place(self) -> None:
        self._has_place = self._free_places.acquire(timeout=PAUSE_AFTER_S)
        if self._has_place:
            return
        # A pause throws away what was fetched ahead, so it comes only after `PAUSE_AFTER_S`.
        self._paused = True
        self._consumer.pause(self._consumer.assignment())
        while not self._stopping and not self._has_place:
            message = self._consumer.poll(0)  # only for its callbacks
            if message is not None:  # it was under way, or its partition is new
                self._spare += self._events_of([message])
            self._commit_some()
            self._has_place = self._free_places.acquire(timeout=POLL_S)
        self._paused = False
        self._consumer.resume(self._consumer.assignment())

    # Partitions

    @property
    def _incremental(self) -> bool:
        """Whether partitions come and go one by one, as the user may have chosen."""
        strategy = str(self._settings.get("partition.assignment.strategy", ""))
        newer = self._settings.get("group.protocol", "classic") != "classic"
        return newer or "cooperative" in strategy

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        fresh = []
        for each in partitions:
            stream = f"{each.topic}/{each.partition}"
            self._assigned[stream] = each
            if stream in self._positions:
                each.offset = self._positions[stream]
            else:
                fresh.append(each)
        if fresh and self._from_end:
            self._begin_at_end(consumer, fresh)
        if self._incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        # Said either way: librdkafka remembers of a partition that it was paused when it was taken.
        if self._paused:
            consumer.pause(partitions)
        else:
            consumer.resume(partitions)
        self._missing = 0
        if not self._joined:
            self._joined = True
            self._call_on_loop(self._listener.has_joined)

    def _begin_at_end(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin where partitions that were never read end now.

        The offset is looked up and not left to the broker: what comes after `connect` has returned
        is read. It is committed as well, or what comes until the first mark were skipped by a
        restart, and again by the next.
        """
        for each, known in zip(partitions, consumer.committed(partitions, ASK_S), strict=True):
            if known.offset >= 0:
                each.offset = known.offset
                continue
            found = consumer.get_watermark_offsets(each, ASK_S)
            if found is None:
                raise FeedLost(f"the end of {each.topic}/{each.partition} is not known")
            each.offset = found[1]
            stream = f"{each.topic}/{each.partition}"
            self._positions[stream] = each.offset
            self.commit({stream: each.offset})

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # The library unassigns them. They are not committed first: whoever gets them next and has
        # no marks of its own repeats what was not committed, and that is what it asks for.
        for each in partitions:
            self._assigned.pop(f"{each.topic}/{each.partition}", None)

    # Whether the brokers are there

    def _on_error(self, error: KafkaError) -> None:
        all_down = error.code() == KafkaError._ALL_BROKERS_DOWN
        if not (all_down and self.why):  # what is wrong with one of them says more
            self.why = error.str()
        if error.fatal():
            self._fatal = error
        elif all_down:
            self._missing = BLIPS
            self._say(False)

    def _on_statistics(self, text: str) -> None:
        statistics = _statistics(text)
        up = {broker.nodeid for broker in statistics.brokers.values() if broker.state in _UP}
        if up and not self._reached:
            self._reached = True
            self._call_on_loop(self._listener.has_reached)
        without = self._without_leader(statistics, up)
        if not without and up:
            self._missing = 0
            self.why = ""
            self._say(True)
            return
        self._missing += 1
        if self._missing >= BLIPS:
            if without and not self.why:
                self.why = f"the leader of {without} is not connected"
            self._say(False)

    def _without_leader(self, statistics: _Statistics, up: set[int]) -> str:
        """A partition of ours whose leader is not connected, if there is one."""
        for stream, each in self._assigned.items():
            topic = statistics.topics.get(each.topic)
            partition = topic.partitions.get(str(each.partition)) if topic is not None else None
            # Negative: there is none. A broker that is not known yet has such a number as well.
            if partition is None or partition.leader < 0 or partition.leader not in up:
                return stream
        return ""

    def _say(self, connected: bool) -> None:
        if self._joined and connected is not self._connected:
            self._connected = connected
            self._call_on_loop(self._listener.health, connected, "" if connected else self.why)

    # Commits

    def _commit_some(self) -> None:
        """One at a time, and not more often than anybody looks."""
        if not self._to_commit or self._committing or not self._connected:
            return
        now_ns = SYSTEM_CLOCK.now_ns()
        if now_ns - self._committed_ns >= COMMIT_EVERY_NS:
            self._committed_ns = now_ns
            self._commit_all()

    def _commit_all(self) -> None:
        with self._lock:
            marks, self._to_commit = self._to_commit, {}
        # Only of our own partitions: another member of the group may be further in the others.
        offsets = [
            TopicPartition(each.topic, each.partition, marks[stream])
            for stream, each in self._assigned.items()
            if stream in marks
        ]
        if offsets:
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
                self._committing = True
            except KafkaException as error:
                self._not_committed(error.args[0], offsets)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._committing = False
        failed = error or next((each.error for each in partitions if each.error), None)
        if failed is not None:
            self._not_committed(failed, partitions)

    def _not_committed(self, error: KafkaError, partitions: list[TopicPartition]) -> None:
        """Nothing is lost by it, since our own marks decide: try again with the next ones."""
        self.why = f"offsets were not committed: {error.str()}"
        with self._lock:
            for each in partitions:
                self._to_commit.setdefault(f"{each.topic}/{each.partition}", each.offset)

    def _commit_last(self) -> None:
        """Commit what was asked for last, unless that takes too long or nobody is there."""
        until_ns = SYSTEM_CLOCK.now_ns() + LAST_COMMIT_NS
        asked = False
        while self._connected and SYSTEM_CLOCK.now_ns() < until_ns:
            if not self._committing:
                if asked or not self._to_commit:
                    return
                asked = True
                self._commit_all()
                continue
            self._consumer.poll(POLL_S)  # for the answer; messages are read another time

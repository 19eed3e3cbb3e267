"""What a watch has seen, what it asks for next, and what it hands to its user. Pure.

A `Follower` is fed bytes and gives out records in order, each once, and tombstones in their place.
Its plan says how the stream is opened: one topic by its URL, several by a session. A stream that
breaks is opened again with the id of the last event; a session that the server has forgotten is
made anew from where the follower stands in each topic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from fairway.client import protocol
from fairway.client.events import EventParser
from fairway.client.problems import event_error
from fairway.client.records import Cursor, Position, Record
from fairway.client.retry import AGAIN
from fairway.errors import FairwayError, InvalidRequest, NotFound, Stop
from fairway.wire import events as wire
from fairway.wire.topics import TopicState, WatchReply, WatchRequest, WatchTopic, match_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.client.events import ServerSentEvent
    from fairway.client.protocol import Call, Query
    from fairway.client.records import RecordDecoder
    from fairway.wire.topics import Match

T = TypeVar("T")

HEARTBEAT_MS: Final = 15_000
HEARTBEAT_MIN_MS: Final = 1000
HEARTBEAT_MAX_MS: Final = 60_000
SLACK_MS: Final = 5000

_record = msgspec.json.Decoder(wire.RecordEvent).decode
_tombstone = msgspec.json.Decoder(wire.TombstoneEvent).decode
_caught_up = msgspec.json.Decoder(wire.CaughtUpEvent).decode
_deleted = msgspec.json.Decoder(wire.TopicDeletedEvent).decode


def silence_s(heartbeat_ms: int) -> float:
    """How long a stream may be silent before it counts as dead: two heartbeats, and some."""
    clamped = min(max(heartbeat_ms, HEARTBEAT_MIN_MS), HEARTBEAT_MAX_MS)
    return (2 * clamped + SLACK_MS) / 1000


class StreamCall(NamedTuple):
    """How to open the stream."""

    path: str
    query: Query = ()
    last_id: str = ""


class Places:
    """How far each topic was seen. A seq of one incarnation says nothing of another."""

    def __init__(self) -> None:
        self.seen: dict[str, Position] = {}

    def passed(self, topic: str, epoch: int, seq: int) -> bool:
        """Whether that seq was seen before."""
        known = self.seen.get(topic)
        return known is not None and known.epoch == epoch and known.seq >= seq

    def move(self, topic: str, epoch: int, seq: int) -> None:
        if not self.passed(topic, epoch, seq):
            self.seen[topic] = Position(epoch, seq)


class WatchPlan(Protocol):
    """How a watch is opened, and what is left of it when something is gone."""

    def prepare(self) -> Call[Any] | None:
        """What to ask before the stream is opened; None if there is nothing to ask."""
        ...

    def prepared(self, reply: Any) -> bool:
        """The answer to `prepare`. Whether something is left to follow."""
        ...

    def stream(self, last_id: str) -> StreamCall: ...

    def missing(self, error: NotFound, *, opened: bool) -> bool:
        """Something is not there. True to ask again; False if nothing is left to follow.

        Raises the error if it means that there never was anything.
        """
        ...

    def deleted(self, topic: str) -> bool:
        """A topic is gone. Whether something is left to follow."""
        ...


class OneTopic:
    """A topic by its URL. Its end is the end of the watch."""

    def __init__(
        self,
        topic: str,
        start: Cursor,
        places: Places,
        *,
        node: str | None,
        match: Match | None,
        heartbeat_ms: int,
        touch: bool = True,
    ) -> None:
        self._topic = topic
        self._path = f"{protocol.topic_path(topic)}/watch"
        self._start = start
        self._places = places
        query = [("include_tags", "true"), ("heartbeat_ms", str(heartbeat_ms))]
        if node is not None:
            query.append(("node", node))
        if match is not None:
            query.append(("match", protocol.match_text(match)))
        if not touch:
            query.append(("touch", "false"))
        self._query: Query = tuple(query)

    def prepare(self) -> Call[Any] | None:
        # Where the tail is gets settled once, before anything is opened: a first connection that
        # breaks before its first event then loses nothing.
        return protocol.state(self._topic) if self._start == "tail" else None

    def prepared(self, reply: TopicState) -> bool:
        self._start = Position(reply.epoch, reply.head_seq)
        return True

    def stream(self, last_id: str) -> StreamCall:
        start = self._places.seen.get(self._topic, self._start)
        if last_id:
            return StreamCall(self._path, self._query, last_id)
        if isinstance(start, Position):
            where: Query = (("from_seq", str(start.seq)), ("epoch", str(start.epoch)))
        else:
            where = (("from_seq", str(start)),)
        return StreamCall(self._path, (*where, *self._query))

    def missing(self, error: NotFound, *, opened: bool) -> bool:
        if not opened:
            raise error
        return False  # it was deleted while we were away

    def deleted(self, topic: str) -> bool:
        return False


class ManyTopics:
    """Topics by name, by prefix, or both, in a session of the server."""

    def __init__(
        self,
        topics: Mapping[str, Cursor] | Iterable[str],
        places: Places,
        *,
        prefix: str | None,
        node: str | None,
        match: Match | None,
        heartbeat_ms: int,
        touch: bool = True,
    ) -> None:
        self._wanted = starts_of(topics)
        if not self._wanted and prefix is None:
            raise InvalidRequest("a watch names topics, a prefix, or both")
        self._places = places
        self._prefix = prefix
        self._node = node
        self._match = match_of(match)
        self._heartbeat_ms = heartbeat_ms
        self._touch = touch
        self._path: str | None = None
        self._known = False  # the server has told us once what there is

    def prepare(self) -> Call[Any] | None:
        if self._path is not None:
            return None
        starts = {**self._wanted, **self._places.seen}
        request = WatchRequest(
            topics={name: _watch_topic(start) for name, start in starts.items()},
            prefix=self._prefix,
            node=self._node,
            match=self._match,
            heartbeat_ms=self._heartbeat_ms,
            include_tags=True,
            touch=self._touch,
        )
        # A topic that was there once and is not now was deleted, which is no error of the user's.
        return protocol.create_watch(request, lenient=self._known)

    def prepared(self, reply: WatchReply) -> bool:
        followed = {*self._wanted, *self._places.seen}
        for name in followed - reply.topics.keys():
            self._forget(name)
        fresh = reply.topics.keys() - followed if self._known else ()
        for name, position in reply.topics.items():
            if not isinstance(self._wanted.get(name), Position):
                self._wanted[name] = Position(position.epoch, position.from_seq)
        if fresh:
            # They came while there was no session to notice: all they hold is new. Asked again.
            self._wanted |= dict.fromkeys(fresh, 0)
            return True
        self._known = True
        self._path = reply.stream_url
        return self._left

    def stream(self, last_id: str) -> StreamCall:
        assert self._path is not None
        return StreamCall(self._path, (), last_id)

    def missing(self, error: NotFound, *, opened: bool) -> bool:
        if error.kind != "watch" or not self._known:
            raise error
        self._path = None
        return True

    def deleted(self, topic: str) -> bool:
        self._forget(topic)
        return self._left

    @property
    def _left(self) -> bool:
        return bool(self._wanted or self._places.seen) or self._prefix is not None

    def _forget(self, topic: str) -> None:
        self._wanted.pop(topic, None)
        self._places.seen.pop(topic, None)


def _watch_topic(start: Cursor) -> WatchTopic:
    if start == "tail":
        return WatchTopic(tail=True)
    if isinstance(start, Position):
        return WatchTopic(from_seq=start.seq, epoch=start.epoch)
    return WatchTopic(from_seq=start)


def starts_of(topics: Mapping[str, Cursor] | Iterable[str]) -> dict[str, Cursor]:
    """Topics with where they begin; those that are only named begin at their first record."""
    return dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 0)


class _Waiting(NamedTuple):
    """A record whose data is decoded when it is handed out, so that a bad one harms no other."""

    topic: str
    epoch: int
    record: wire.DeliveredRecord


Item: TypeAlias = Record[T] | wire.TombstoneEvent


class Follower(Generic[T]):
    """The state of one watch, whatever happens to its connections."""

    def __init__(self, plan: WatchPlan, decoder: RecordDecoder[T], places: Places) -> None:
        self.plan = plan
        self.ended = False
        """Nothing is left to follow."""
        self.opened = False
        """A stream has been open once."""
        self.delivered: dict[str, Position] = {}
        """The last record that was handed out, by topic."""
        self._decoder = decoder
        self._places = places
        self._parser = EventParser()
        self._resume_id = ""
        self._waiting: deque[_Waiting | wire.TombstoneEvent | FairwayError] = deque()

    @property
    def retry_ms(self) -> int | None:
        return self._parser.retry_ms

    def stream(self) -> StreamCall:
        """How to open the stream now."""
        return self.plan.stream(self._resume_id)

    def open(self) -> None:
        """A new response begins."""
        self.opened = True
        retry_ms = self.retry_ms  # a server's wish outlives the connection it came by
        self._parser = EventParser(self._resume_id)
        self._parser.retry_ms = retry_ms

    def missing(self, error: NotFound) -> None:
        """The server does not know the topic or the session. Raises if it never did."""
        self._resume_id = ""  # it belongs to what is gone
        if not self.plan.missing(error, opened=self.opened):
            self.ended = True

    def feed(self, chunk: bytes) -> bool:
        """Take what came. Whether an event was among it."""
        events = self._parser.feed(chunk)
        for event in events:
            try:
                self._take(event)
            except (msgspec.DecodeError, RecursionError) as error:
                raise Stop(f"an event {event.kind!r} cannot be read: {error}") from None
            self._resume_id = event.id
        return bool(events)

    def next_nowait(self) -> Item[T] | None:
        """The next record or tombstone; None if none has come.

        Raises `BadRecord` for a record that does not fit its type, and what the server said in an
        `error` event. What comes after it can still be had.
        """
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        if isinstance(item, FairwayError):
            raise item
        if isinstance(item, wire.TombstoneEvent):
            self.delivered[item.topic] = Position(item.epoch, item.gap_to)
            return item
        self.delivered[item.topic] = Position(item.epoch, item.record.seq)
        return self._decoder(*item)

    def _take(self, event: ServerSentEvent) -> None:
        if event.kind == wire.RECORD:
            self._take_records(_record(event.data))
        elif event.kind == wire.TOMBSTONE:
            self._take_tombstone(_tombstone(event.data))
        elif event.kind == wire.CAUGHT_UP:
            caught_up = _caught_up(event.data)
            self._places.move(caught_up.topic, abs(caught_up.epoch), caught_up.head_seq)
        elif event.kind == wire.TOPIC_DELETED:
            if not self.plan.deleted(_deleted(event.data).topic):
                self.ended = True
        elif event.kind == wire.ERROR:
            error = event_error(event.data)
            if not isinstance(error, AGAIN):
                self._waiting.append(error)

    def _take_records(self, event: wire.RecordEvent) -> None:
        topic, epoch, places = event.topic, abs(event.epoch), self._places
        for record in event.records:
            if not places.passed(topic, epoch, record.seq):
                places.seen[topic] = Position(epoch, record.seq)
                self._waiting.append(_Waiting(topic, epoch, record))
        places.move(topic, epoch, event.to_seq)

    def _take_tombstone(self, event: wire.TombstoneEvent) -> None:
        topic, epoch = event.topic, abs(event.epoch)
        if event.reason == "recreated":
            # Believed even of the incarnation we know: a server whose data was replaced by older
            # data may number it the same.
            self._places.seen[topic] = Position(epoch, event.gap_to)
        elif self._places.passed(topic, epoch, event.gap_to):
            return
        self._places.move(topic, epoch, event.gap_to)
        self._waiting.append(event)

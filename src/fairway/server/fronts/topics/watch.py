"""The routes that stream: one topic by its URL, several by a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import Forbidden, InvalidRequest
from fairway.server.fronts.topics.api import nodes_of
from fairway.server.fronts.topics.events import (
    SHARED,
    EventEncoder,
    MultiStream,
    TopicStream,
    parse_id,
    parse_positions,
)
from fairway.server.fronts.topics.sessions import (
    SESSION_TTL_MS,
    Followed,
    WatchSession,
    WatchSessions,
    define,
)
from fairway.server.http.exchange import Reply, Request, flag, json_reply, number
from fairway.server.http.sse import Frame, problem_event, require_event_stream
from fairway.settings import UNLIMITED
from fairway.topics.batch import Projection
from fairway.topics.engine import Topics
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.topic import Gap
from fairway.topics.watching import SharedView, Watcher
from fairway.wire.requests import INT_MAX
from fairway.wire.topics import (
    LIMIT_MAX,
    NAME,
    WATCH_BYTES_DEFAULT,
    WATCH_BYTES_MAX,
    WATCH_TOPICS_MAX,
    Match,
    WatchPosition,
    WatchReply,
    WatchRequest,
    check_name,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.server.host import Host
    from fairway.topics.topic import Topic

_WATCH = msgspec.json.Decoder(WatchRequest)
_MULTI: Final = EventEncoder(ids=False)
_QUERY: Final = (
    "from_seq",
    "epoch",
    "tail",
    "node",
    "match",
    "limit",
    "max_batch_bytes",
    "heartbeat_ms",
    "include_meta",
    "include_tags",
    "include_data",
    "touch",
    "last_event_id",
)


async def watch_topic(host: Host, request: Request, topic: str) -> Reply | None:
    """`GET /v0/topics/{t}/watch`: an EventSource on one topic, without a session."""
    query = request.query(_QUERY)
    check_name(topic)
    request.identity.require("read", topic)
    require_event_stream(request)
    found = host.part(Topics).get(topic)
    match = TagMatch.of(_match(query["match"])) if "match" in query else None
    view = SharedView(
        SHARED,
        Selection(nodes_of(query.get("node")) if found.config.dedupe_node else NO_NODES, match),
        Projection(
            flag(query.get("include_tags"), "include_tags", default=False),
            flag(query.get("include_meta"), "include_meta", default=True),
            flag(query.get("include_data"), "include_data", default=True),
        ),
        min(number(query.get("limit"), "limit", default=256) or 256, LIMIT_MAX),
        min(
            number(query.get("max_batch_bytes"), "max_batch_bytes", default=WATCH_BYTES_DEFAULT)
            or WATCH_BYTES_DEFAULT,
            WATCH_BYTES_MAX,
        ),
        flag(query.get("touch"), "touch", default=True),
    )
    heartbeat_ms = number(query.get("heartbeat_ms"), "heartbeat_ms", default=15_000)
    epoch, cursor = _start(request, query, found)
    connection = host.connection_of(request)
    watchers: list[Watcher] = []

    def closed() -> None:
        host.disconnect(guest)
        host.heartbeats.remove(stream)
        for watcher in watchers:
            host.part(Topics).unwatch(watcher)

    stream = TopicStream(connection, closed)
    guest = host.connect(request.identity, stream.end)
    try:
        stream.open(host.cors_headers(request))
        host.heartbeats.add(stream, min(max(heartbeat_ms, 1000), 60_000))
        if (epoch is not None and epoch != found.epoch) or cursor > found.assigned:
            cursor = found.evict_floor - 1
            stream.send(SHARED.gap(found, Gap(1, cursor, "recreated")))
        watchers.append(host.part(Topics).watch(found, view, stream, min(cursor, found.head)))
        await connection.wait_ended()
    finally:
        closed()
    return None


def _start(request: Request, query: Mapping[str, str], topic: Topic) -> tuple[int | None, int]:
    """(epoch, seq) to begin after. What the browser remembers wins over what the page says."""
    epoch = number(query["epoch"], "epoch", default=0) if "epoch" in query else None
    from_seq = number(query.get("from_seq"), "from_seq", default=0, most=INT_MAX)
    tail = flag(query.get("tail"), "tail", default=False)
    last_id = request.header(b"last-event-id") or query.get("last_event_id")
    if last_id:
        return parse_id(last_id)
    return (None, topic.head) if tail else (epoch, from_seq)


def _match(text: str) -> Match:
    return ("tag", "Glob", text) if text.endswith("*") else text


async def create_watch(host: Host, request: Request) -> Reply:
    """`POST /v0/watch`: say once what a stream follows, and get an URL to open it."""
    query = request.query(("lenient",))
    message = await request.json(_WATCH)
    identity = request.identity
    identity.require("read")
    lenient = flag(query.get("lenient"), "lenient", default=False)
    if len(message.topics) > WATCH_TOPICS_MAX:
        raise InvalidRequest(f"at most {WATCH_TOPICS_MAX} topics in one watch")
    if not message.topics and message.prefix is None:
        raise InvalidRequest("a watch names topics, a prefix, or both")
    prefix = check_prefix(message.prefix) if message.prefix is not None else None
    if prefix is not None:
        identity.require_prefix("read", prefix)
    followed: dict[str, Followed] = {}
    for name, wanted in message.topics.items():
        check_name(name)
        identity.require("read", name)
        topic = host.part(Topics).find(name)
        if topic is None:
            if lenient:
                continue
            topic = host.part(Topics).get(name)
        start = topic.head if wanted.tail else wanted.from_seq
        epoch = wanted.epoch if wanted.epoch is not None else topic.epoch
        followed[name] = Followed(name, epoch, start)
    if prefix is not None:
        for topic in host.part(Topics).ordered(prefix=prefix, limit=WATCH_TOPICS_MAX + 1):
            followed.setdefault(topic.name, Followed(topic.name, topic.epoch, topic.head))
        if len(followed) > WATCH_TOPICS_MAX:
            raise InvalidRequest(
                f"more than {WATCH_TOPICS_MAX} topics begin with {prefix!r}: name a longer prefix"
            )
    definition = define(
        message,
        list(followed.values()),
        prefix=prefix,
        identity=identity.id,
        limits=(LIMIT_MAX, WATCH_BYTES_MAX),
    )
    positions = {name: _position(host, one) for name, one in followed.items()}
    host.kernel.writability.check()  # it is stored, and what is left of a full disk is for deletes
    session = await host.state(WatchSessions).create(
        definition,
        host.now_ms(),
        most=identity.quota.watch_sessions,
        keyed=identity.quota is not UNLIMITED,
    )
    return json_reply(
        WatchReply(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=SESSION_TTL_MS,
            topics=positions,
        )
    )


def check_prefix(text: str) -> str:
    """What names must begin with, from `orders.*` or `orders.`; `*` is every name."""
    prefix = text.removesuffix("*")
    if prefix and not NAME.fullmatch(prefix):
        raise InvalidRequest(f"no topic's name begins with {prefix[:80]!r}")
    return prefix


def _position(host: Host, followed: Followed) -> WatchPosition:
    topic = host.part(Topics).get(followed.topic)
    return WatchPosition(
        from_seq=followed.from_seq,
        epoch=topic.epoch,
        head_seq=topic.head,
        earliest_seq=topic.earliest,
    )


async def open_watch(host: Host, request: Request, wid: str) -> Reply | None:
    """`GET /v0/watch/{wid}`: the stream of a session."""
    query = request.query(("last_event_id",))
    identity = request.identity
    session = host.state(WatchSessions).get(wid, host.now_ms())
    definition = session.definition
    if definition.identity != identity.id:
        raise Forbidden("this watch was made with another key")
    identity.require("read", *(followed.topic for followed in definition.topics))
    if definition.prefix is not None:
        identity.require_prefix("read", definition.prefix)
    require_event_stream(request)
    last_id = request.header(b"last-event-id") or query.get("last_event_id")
    # Without an id nothing is known to have arrived: it begins where its definition says.
    cursors = parse_positions(last_id) if last_id else {}
    connection = host.connection_of(request)
    follower: _Follower

    def closed() -> None:
        host.disconnect(guest)
        host.heartbeats.remove(stream)
        follower.stop()

    stream = MultiStream(connection, closed)
    guest = host.connect(identity, stream.end)
    follower = _Follower(host, session, stream, cursors)
    try:
        stream.open(host.cors_headers(request))
        host.heartbeats.add(stream, definition.heartbeat_ms)
        follower.start()
        await connection.wait_ended()
    finally:
        closed()
    return None


class _Follower:
    """The watchers of one multi-topic stream."""

    def __init__(
        self, host: Host, session: WatchSession, stream: MultiStream, cursors: dict[int, int]
    ) -> None:
        """`cursors` says, by epoch, how far the reader is, as far as it told."""
        self._host = host
        self._session = session
        self._stream = stream
        self._cursors = cursors
        self._topics = host.part(Topics)
        self._writability = host.kernel.writability
        self._sessions = host.state(WatchSessions)
        self._watchers: list[Watcher] = []
        self._to_begin = {followed.topic: followed for followed in session.definition.topics}
        self._open = False
        stream.on_room = self._begin_more

    def start(self) -> None:
        """Follow every topic from where the reader is, and those that bear the prefix as they come.

        An incarnation that its cursors do not mention is followed as the definition says; one that
        the definition does not mention either came into being while nobody read, and is followed
        from its first record.
        """
        self._open = True
        self._sessions.opened(self._session)
        topics, definition = self._topics, self._session.definition
        named = set(self._to_begin)
        for followed in self._to_begin.values():
            # Before anything is said: whoever comes back with the first id is as far in all topics.
            topic = topics.find(followed.topic)
            cursor = self._cursor_of(topic, followed) if topic is not None else None
            if topic is not None and cursor is not None:
                self._stream.place(topic.epoch, cursor)
        self._begin_more()
        if definition.prefix is not None:
            self._topics.created.append(self._joined)
            for topic in topics.ordered(prefix=definition.prefix, limit=WATCH_TOPICS_MAX + 1):
                if topic.name not in named:
                    self._join(topic)

    def _begin_more(self) -> None:
        """Begin with topics, as far as there is room to say what became of each.

        A reader that is not told that one was made anew would take it for the old one.
        """
        for name, followed in list(self._to_begin.items()):
            if not self._begin(followed):
                return
            del self._to_begin[name]

    def _begin(self, followed: Followed) -> bool:
        """Follow a topic, or say that it is gone; False if there is no room for what to say."""
        topic = self._topics.find(followed.topic)
        if topic is None:
            return self._stream.say(_deleted(followed))
        cursor = self._cursor_of(topic, followed)
        if cursor is None:
            cursor = topic.evict_floor - 1
            recreated = _MULTI.gap(topic, Gap(1, cursor, "recreated"))
            if not self._stream.say(recreated, at=(topic.epoch, cursor)):
                return False
        self._follow(topic, cursor)
        return True

    def _cursor_of(self, topic: Topic, followed: Followed) -> int | None:
        """How far the reader is in this incarnation; None if it was in another one."""
        cursor = self._cursors.get(topic.epoch)
        if cursor is None and topic.epoch == followed.epoch:
            cursor = followed.from_seq
        if cursor is None or cursor > topic.assigned:
            return None
        return min(cursor, topic.head)

    def stop(self) -> None:
        """Safe to call twice."""
        if not self._open:
            return
        self._open = False
        for watcher in self._watchers:
            self._topics.unwatch(watcher)
        if self._joined in self._topics.created:
            self._topics.created.remove(self._joined)
        self._sessions.closed(self._session, self._host.now_ms())

    def _follow(self, topic: Topic, cursor: int) -> None:
        self._stream.place(topic.epoch, cursor)
        view = self._session.definition.view(_MULTI, dedupe_node=topic.config.dedupe_node)
        watcher = Watcher(topic, view, self._stream, cursor)
        self._watchers = [one for one in self._watchers if not one.closed]
        self._watchers.append(watcher)
        self._topics.follow(watcher)

    def _joined(self, topic: Topic) -> None:
        """A topic came into being; if it bears the prefix it is followed from its first record."""
        prefix = self._session.definition.prefix
        if prefix is not None and topic.name.startswith(prefix):
            self._join(topic)

    def _join(self, topic: Topic) -> None:
        definition = self._session.definition
        if topic.name not in {followed.topic for followed in definition.topics}:
            if len(definition.topics) >= WATCH_TOPICS_MAX:
                # What was deleted makes room; told so already, nobody waits to hear it again.
                definition.topics = [
                    followed
                    for followed in definition.topics
                    if self._topics.find(followed.topic) is not None
                ]
            if len(definition.topics) >= WATCH_TOPICS_MAX:
                full = InvalidRequest(
                    f"topic {topic.name!r} is not followed: a watch has {WATCH_TOPICS_MAX} topics",
                    code="watch_full",
                )
                self._stream.say(problem_event(full, topic=topic.name))
                return
            definition.topics.append(Followed(topic.name, topic.epoch, 0))
            if self._writability.trouble is None:  # else it is found again by its prefix
                self._topics.start(self._sessions.try_save(self._session))
        # One that waits to be told of keeps its place: its reader knows another incarnation of it.
        self._to_begin.setdefault(topic.name, Followed(topic.name, topic.epoch, 0))
        self._begin_more()


def _deleted(followed: Followed) -> Frame:
    """That a topic went while nobody read: it cannot say it itself any more."""
    facts = {"topic": followed.topic, "epoch": followed.epoch, "reason": "deleted"}
    return Frame(b"event: topic-deleted\ndata: %b\n\n" % msgspec.json.encode(facts))

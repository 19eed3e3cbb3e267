"""`GET /v0/ws`: subscribe, publish and be told, in JSON messages over one WebSocket.

    -> {"op":"subscribe","topic":"orders","from_seq":0}     <- {"op":"subscribed", ...}
    -> {"op":"publish","topic":"orders","records":[...]}    <- {"op":"published","last_seq":7, ...}
    -> {"op":"unsubscribe","topic":"orders"}                <- {"op":"unsubscribed", ...}
    -> {"op":"ping"}                                        <- {"op":"pong"}
    <- {"op":"record", ...}  {"op":"tombstone", ...}  {"op":"caught-up", ...}
    <- {"op":"topic-deleted", ...}

A request's `id`, if it has one, comes back with its answer. Frames that find no room in the
outbound buffer are not queued: the subscription falls behind and catches up from the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from fairway.errors import FairwayError, InvalidRequest
from fairway.server.exchange import TRACE_BYTES_MAX
from fairway.server.problems import detail_of, status_of
from fairway.server.socket_protocol import WRITTEN_MAX
from fairway.server.streams.protocol import refuse_append
from fairway.server.topics_api import nodes_of
from fairway.topics.batch import Projection, encode_record
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.topic import Gap
from fairway.topics.watching import View
from fairway.topics.writing import NewBatch
from fairway.wire.records import parse_records
from fairway.wire.topics import LIMIT_MAX, Count, Match, check_name, check_writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.server.auth import Identity
    from fairway.server.exchange import Receive, Reply, Request, Send
    from fairway.server.host import Host
    from fairway.server.quotas import Allowance
    from fairway.topics.batch import Record
    from fairway.topics.topic import Topic
    from fairway.topics.watching import Watcher

BUFFER_BYTES: Final = 256 * 1024
"""What a socket may have queued and unsent, pongs included."""
QUEUE_BYTES: Final = BUFFER_BYTES - WRITTEN_MAX
SUBSCRIPTIONS_MAX: Final = 256

Trace = Annotated[str, msgspec.Meta(min_length=1, max_length=TRACE_BYTES_MAX)]


class Subscribe(msgspec.Struct, tag_field="op", tag="subscribe", forbid_unknown_fields=True):
    topic: str
    from_seq: Count = 0
    epoch: Count | None = None
    tail: bool = False
    node: str | None = None
    match: Match | None = None
    limit: Count = 256
    include_meta: bool = True
    include_tags: bool = False
    touch: bool = True
    """Whether it counts as consuming, for the topic's automatic priority."""
    id: str | int | None = None


class Unsubscribe(msgspec.Struct, tag_field="op", tag="unsubscribe", forbid_unknown_fields=True):
    topic: str
    id: str | int | None = None


class Publish(msgspec.Struct, tag_field="op", tag="publish", forbid_unknown_fields=True):
    topic: str
    records: msgspec.Raw
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    traceparent: Trace | None = None
    """That of the handshake if it has none."""
    id: str | int | None = None


class Ping(msgspec.Struct, tag_field="op", tag="ping", forbid_unknown_fields=True):
    id: str | int | None = None


_REQUEST = msgspec.json.Decoder(Subscribe | Unsubscribe | Publish | Ping)


class _JsonEncoder:
    def records(
        self, topic: Topic, records: Sequence[Record], from_seq: int, to_seq: int, view: View
    ) -> bytes:
        return (
            b'{"op":"record","topic":"%b","epoch":%d,"records":[%b],"from_seq":%d,"to_seq":%d,'
            b'"head_seq":%d}'
            % (
                topic.name.encode(),
                topic.epoch,
                b",".join([encode_record(record, view.projection) for record in records]),
                from_seq,
                to_seq,
                topic.head,
            )
        )

    def gap(self, topic: Topic, gap: Gap) -> bytes:
        return _message(
            "tombstone",
            topic=topic.name,
            epoch=topic.epoch,
            reason=gap.reason,
            gap_from=gap.first,
            gap_to=gap.last,
            missed_estimate=gap.last - gap.first + 1,
            earliest_seq=topic.earliest,
            head_seq=topic.head,
        )

    def caught_up(self, topic: Topic) -> bytes:
        return _message("caught-up", topic=topic.name, epoch=topic.epoch, head_seq=topic.drained)

    def deleted(self, topic: Topic) -> bytes:
        return _message(
            "topic-deleted",
            topic=topic.name,
            epoch=abs(topic.epoch),
            head_seq=topic.head,
            reason="deleted",
        )


_ENCODER: Final = _JsonEncoder()


class Socket:
    """One WebSocket: a sink for its subscriptions, and the answers to its requests."""

    def __init__(
        self, host: Host, identity: Identity, send: Send, trace: str | None = None
    ) -> None:
        """`trace` is the `traceparent` of what is published without one."""
        self._host = host
        self._identity = identity
        self._send = send
        self._trace = trace
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._end: str | None = None
        self._over = False
        """Nothing is sent any more."""
        self._stalled: list[Watcher] = []
        self._watchers: dict[str, Watcher] = {}

    # As a sink

    def write(self, watcher: Watcher, frame: bytes, to_seq: int) -> bool:
        if self._over or (self._out_bytes and self._out_bytes + len(frame) > QUEUE_BYTES):
            self._stalled.append(watcher)
            return False
        self._queue(frame)
        return True

    def _queue(self, message: bytes) -> None:
        if self._over:
            return
        self._out.append(message)
        self._out_bytes += len(message)
        self._more.set()

    async def flush(self) -> None:
        """Send what is queued, for as long as the socket lives."""
        try:
            while self._end is None or self._out:
                await self._more.wait()
                while self._out:
                    message = self._out.popleft()
                    await self._send({"type": "websocket.send", "text": message.decode()})
                    self._out_bytes -= len(message)
                    if self._out_bytes <= QUEUE_BYTES // 2:
                        self._drained()
                self._more.clear()
            await self._send({"type": "websocket.close", "code": 1008, "reason": self._end})
        except (OSError, RuntimeError):
            return  # the client is gone, which the reading side is told too
        finally:
            self._over = True
            self._room.set()  # the reading side may wait for it, and would never be told

    def _drained(self) -> None:
        self._room.set()
        stalled, self._stalled = self._stalled, []
        for watcher in stalled:
            watcher.resume()

    async def wait_room(self) -> None:
        """Whoever sends requests without reading the answers waits until it has read some."""
        if self._out_bytes > QUEUE_BYTES and not self._over:
            self._room.clear()
            await self._room.wait()

    def end(self, reason: FairwayError) -> None:
        """Send what is queued, then close and say why."""
        self._end = status_of(reason)[1]
        self._more.set()

    def begin(self) -> Allowance | None:
        """Count a request, as `Host.begin` does, for the key as it is now.

        Its quota may be another one than when the socket was opened, and that is no reason to end
        it: what is counted by an old quota would bring that back for all who use the key.
        """
        host = self._host
        self._identity = host.access.confirm(self._identity, host.clock.wall_ns())
        return host.begin(self._identity)

    def close(self) -> None:
        for watcher in self._watchers.values():
            self._host.topics.unwatch(watcher)

    # Requests

    async def answer(self, text: bytes) -> None:
        """Do what one message asks; whatever is wrong with it is told, and the socket lives on."""
        number: Any = None
        try:
            try:
                request = _REQUEST.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidRequest(str(error)) from None
            number = request.id
            allowance = self.begin()
            try:
                answer = await self._do(request)
            finally:
                if allowance is not None:
                    allowance.end()
            if answer:  # a subscription was answered before its first frame
                self._queue(answer)
        except FairwayError as error:
            status, code = status_of(error)
            facts: dict[str, Any] = {"status": status, "code": code, "message": str(error)}
            if detail := detail_of(error):
                facts["detail"] = detail
            self._queue(_message("error", id=number, **facts))

    async def _do(self, request: Subscribe | Unsubscribe | Publish | Ping) -> bytes:
        if isinstance(request, Ping):
            return _message("pong", id=request.id)
        check_name(request.topic)
        if isinstance(request, Publish):
            return await self._publish(request)
        if isinstance(request, Unsubscribe):
            watcher = self._watchers.pop(request.topic, None)
            if watcher is not None:
                self._host.topics.unwatch(watcher)
            return _message("unsubscribed", id=request.id, topic=request.topic)
        return self._subscribe(request)

    async def _publish(self, request: Publish) -> bytes:
        self._identity.require("write", request.topic)
        refuse_append(request.topic)
        records = parse_records(bytes(request.records))
        check_writer(request.node, request.idempotency_key)
        self._host.charge(
            self._identity, request.topic, records=records.count, size=len(records.raw)
        )
        new = NewBatch(
            records=records,
            node=request.node,
            key=request.idempotency_key,
            trace=request.traceparent or self._trace,
        )
        topic, appended, created = await self._host.topics.append(
            request.topic, new, create=request.create, owner=self._identity.name
        )
        return _message(
            "published",
            id=request.id,
            topic=topic.name,
            epoch=abs(topic.epoch),
            first_seq=appended.first_seq,
            last_seq=appended.last_seq,
            created=created,
            deduped=appended.deduped,
        )

    def _subscribe(self, request: Subscribe) -> bytes:
        self._identity.require("read", request.topic)
        topic = self._host.topics.get(request.topic)
        self._watchers = {name: one for name, one in self._watchers.items() if not one.closed}
        if request.topic in self._watchers:
            raise InvalidRequest(f"{request.topic!r} is subscribed already")
        if len(self._watchers) >= SUBSCRIPTIONS_MAX:
            raise InvalidRequest(f"at most {SUBSCRIPTIONS_MAX} subscriptions on one socket")
        view = View(
            _ENCODER,
            Selection(
                nodes_of(request.node) if topic.config.dedupe_node else NO_NODES,
                TagMatch.of(request.match) if request.match is not None else None,
            ),
            Projection(request.include_tags, request.include_meta),
            min(request.limit or 256, LIMIT_MAX),
            touch=request.touch,
        )
        cursor = topic.head if request.tail else request.from_seq
        self._queue(
            _message(
                "subscribed",
                id=request.id,
                topic=topic.name,
                epoch=topic.epoch,
                head_seq=topic.head,
                earliest_seq=topic.earliest,
            )
        )
        if (request.epoch not in (None, topic.epoch)) or cursor > topic.assigned:
            cursor = topic.evict_floor - 1
            self._queue(_ENCODER.gap(topic, Gap(1, cursor, "recreated")))
        watcher = self._host.topics.watch(topic, view, self, min(cursor, topic.head))
        self._watchers[request.topic] = watcher
        return b""


async def open_socket(host: Host | None, request: Request) -> Reply:
    """The answer to whoever comes to a socket's address with a plain request."""
    raise InvalidRequest(
        "this is a WebSocket: connect with a client of those", code="upgrade_required"
    )


async def serve_socket(
    host: Host, identity: Identity, request: Request, receive: Receive, send: Send
) -> None:
    """Accept a WebSocket and serve it until it closes. Raises `Throttled` before it is accepted."""
    socket = Socket(host, identity, send, request.trace)
    guest = host.connect(identity, socket.end)
    try:
        await send({"type": "websocket.accept"})
        async with asyncio.TaskGroup() as group:
            flushing = group.create_task(socket.flush(), name="websocket-flush")
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                await socket.answer(text.encode() if text is not None else message["bytes"])
                await socket.wait_room()
            flushing.cancel()
    finally:
        socket.close()
        host.disconnect(guest)


def _message(op: str, **facts: Any) -> bytes:
    shown = {name: value for name, value in facts.items() if value is not None or name != "id"}
    return msgspec.json.encode({"op": op, **shown})

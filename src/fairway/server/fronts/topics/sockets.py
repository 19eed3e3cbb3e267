"""`GET /v0/ws`: subscribe, publish and be told, in messages of `wire.sockets` over one WebSocket.

Frames that find no room in the outbound buffer are not queued: the subscription falls behind and
catches up from the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import FairwayError, InvalidRequest
from fairway.server.fronts.streams.protocol import refuse_append
from fairway.server.fronts.topics.api import nodes_of
from fairway.server.fronts.topics.quotas import TopicQuotas
from fairway.server.http.problems import detail_of, status_of
from fairway.server.http.websocket import QUEUE_BYTES, Socket, given
from fairway.topics.batch import Projection, encode_record
from fairway.topics.engine import Topics
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.topic import Gap
from fairway.topics.watching import SharedView
from fairway.topics.writing import NewBatch
from fairway.wire.records import parse_records
from fairway.wire.sockets import (
    CaughtUpMessage,
    ErrorMessage,
    Ping,
    Pong,
    Publish,
    Published,
    SocketRequest,
    Subscribe,
    Subscribed,
    TombstoneMessage,
    TopicDeletedMessage,
    Unsubscribe,
    Unsubscribed,
)
from fairway.wire.topics import LIMIT_MAX, check_name, check_writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.server.access.auth import Identity
    from fairway.server.host import Host
    from fairway.server.http.exchange import Receive, Reply, Request, Send
    from fairway.topics.batch import RawRecord
    from fairway.topics.topic import Topic
    from fairway.topics.watching import Watcher
    from fairway.wire.requests import RequestId

SUBSCRIPTIONS_MAX: Final = 256

_REQUEST = msgspec.json.Decoder(SocketRequest)
_encode = msgspec.json.Encoder().encode


class _JsonEncoder:
    def records(
        self,
        topic: Topic,
        records: Sequence[RawRecord],
        from_seq: int,
        to_seq: int,
        view: SharedView,
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
        return _encode(
            TombstoneMessage(
                topic=topic.name,
                epoch=topic.epoch,
                reason=gap.reason,
                gap_from=gap.first,
                gap_to=gap.last,
                missed_estimate=gap.last - gap.first + 1,
                earliest_seq=topic.earliest,
                head_seq=topic.head,
            )
        )

    def caught_up(self, topic: Topic) -> bytes:
        return _encode(CaughtUpMessage(topic=topic.name, epoch=topic.epoch, head_seq=topic.drained))

    def deleted(self, topic: Topic) -> bytes:
        return _encode(
            TopicDeletedMessage(topic=topic.name, epoch=abs(topic.epoch), head_seq=topic.head)
        )


_ENCODER: Final = _JsonEncoder()


class TopicSocket(Socket):
    """A sink for the subscriptions of one WebSocket, and the answers to its requests."""

    def __init__(
        self, host: Host, identity: Identity, send: Send, trace: str | None = None
    ) -> None:
        """`trace` is the `traceparent` of what is published without one."""
        super().__init__(host, identity, send)
        self._topics = host.part(Topics)
        self._trace = trace
        self._stalled: list[Watcher] = []
        self._watchers: dict[str, Watcher] = {}

    # As a sink

    def write(self, watcher: Watcher, frame: bytes, to_seq: int) -> bool:
        if self._over or (self._out_bytes and self._out_bytes + len(frame) > QUEUE_BYTES):
            self._stalled.append(watcher)
            return False
        self._queue(frame)
        return True

    def _drained(self) -> None:
        super()._drained()
        stalled, self._stalled = self._stalled, []
        for watcher in stalled:
            watcher.resume()

    def close(self) -> None:
        for watcher in self._watchers.values():
            self._topics.unwatch(watcher)

    # Requests

    async def answer(self, text: bytes) -> None:
        """Do what one message asks; whatever is wrong with it is told, and the socket lives on."""
        number: RequestId | None = None
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
            problem = ErrorMessage(
                id=given(number),
                status=status,
                code=code,
                message=str(error),
                detail=detail_of(error) or msgspec.UNSET,
            )
            self._queue(_encode(problem))

    async def _do(self, request: SocketRequest) -> bytes:
        if isinstance(request, Ping):
            return _encode(Pong(id=given(request.id)))
        check_name(request.topic)
        if isinstance(request, Publish):
            return await self._publish(request)
        if isinstance(request, Unsubscribe):
            watcher = self._watchers.pop(request.topic, None)
            if watcher is not None:
                self._topics.unwatch(watcher)
            return _encode(Unsubscribed(id=given(request.id), topic=request.topic))
        return self._subscribe(request)

    async def _publish(self, request: Publish) -> bytes:
        self._identity.require("write", request.topic)
        refuse_append(request.topic)
        records = parse_records(bytes(request.records))
        check_writer(request.node, request.idempotency_key)
        self._host.state(TopicQuotas).charge(
            self._identity, request.topic, records=records.count, size=len(records.raw)
        )
        new = NewBatch(
            records=records,
            node=request.node,
            key=request.idempotency_key,
            trace=request.traceparent or self._trace,
        )
        topic, appended, created = await self._topics.append(
            request.topic, new, create=request.create, owner=self._identity.name
        )
        return _encode(
            Published(
                id=given(request.id),
                topic=topic.name,
                epoch=abs(topic.epoch),
                first_seq=appended.first_seq,
                last_seq=appended.last_seq,
                created=created,
                deduped=appended.deduped,
            )
        )

    def _subscribe(self, request: Subscribe) -> bytes:
        self._identity.require("read", request.topic)
        topic = self._topics.get(request.topic)
        self._watchers = {name: one for name, one in self._watchers.items() if not one.closed}
        if request.topic in self._watchers:
            raise InvalidRequest(f"{request.topic!r} is subscribed already")
        if len(self._watchers) >= SUBSCRIPTIONS_MAX:
            raise InvalidRequest(f"at most {SUBSCRIPTIONS_MAX} subscriptions on one socket")
        view = SharedView(
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
            _encode(
                Subscribed(
                    id=given(request.id),
                    topic=topic.name,
                    epoch=topic.epoch,
                    head_seq=topic.head,
                    earliest_seq=topic.earliest,
                )
            )
        )
        if (request.epoch not in (None, topic.epoch)) or cursor > topic.assigned:
            cursor = topic.evict_floor - 1
            self._queue(_ENCODER.gap(topic, Gap(1, cursor, "recreated")))
        watcher = self._topics.watch(topic, view, self, min(cursor, topic.head))
        self._watchers[request.topic] = watcher
        return b""


async def open_socket(host: Host | None, request: Request) -> Reply:
    """The answer to whoever comes to a socket's address with a plain request."""
    raise InvalidRequest(
        "this is a WebSocket: connect with a client of those", code="upgrade_required"
    )


async def serve_socket(host: Host, request: Request, receive: Receive, send: Send) -> None:
    """Accept a WebSocket and serve it until it closes. Raises `Throttled` before it is accepted."""
    socket = TopicSocket(host, request.identity, send, request.trace)
    guest = host.connect(request.identity, socket.end)
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

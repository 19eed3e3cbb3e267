"""Graphs over WebSocket: one socket that takes boundaries, and one that takes commands.

`GET /v0/graphs/{graph}/accumulators/{source}`

    -> {"data": {"bid": 1.5}, "id": 1}      <- {"op":"ack","id":1}
                                            <- {"op":"refused","id":1,"retry_after_ms":5, ...}

An `ack` says that the boundary was accepted: durably, if the graph is checkpointed. `refused` says
that it was not, because the source is full, or because so many of this socket's messages are still
unanswered; it is to be sent again, so late. Nothing is dropped without a word.

`GET /v0/graphs/{graph}/reactor`

    -> {"command": "force_fire", "id": 2}   <- {"op":"fired","id":2,"firing":7,"outputs":{...}, ...}
    -> {"command": "fire_with", "cache": {"quotes": {...}}}
    -> {"command": "get_state"}             <- {"op":"state","state":"live", ...}
    -> {"command": "pause"}                 <- {"op":"paused", ...}
    -> {"command": "resume"}                <- {"op":"resumed", ...}

Messages are text or binary, and are answered in order, each once; only a refusal for want of room
overtakes. A request's `id`, if it has one, comes back. What is wrong with a message, or not allowed
to this key, is an `{"op":"error","status":...,"code":...,"message":...}`, and the socket stays
open; it also outlives a reload of the graph.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import asdict

from fairway.errors import Backpressure, FairwayError, InvalidRequest
from fairway.runtime.usercode import without_task
from fairway.server.access.audit import Audit
from fairway.server.fronts.graphs.api import fire, graph_of, pause, wait_kept, wait_room
from fairway.server.fronts.graphs.views import firing_view, state_of, summary_of
from fairway.server.http.exchange import parse
from fairway.server.http.problems import detail_of, status_of
from fairway.server.http.websocket import Socket, given
from fairway.wire.graphs import (
    PUSH_WAIT_MS,
    AckMessage,
    CommandMessage,
    FiredMessage,
    PausedMessage,
    PushMessage,
    RefusedMessage,
    ResumedMessage,
    StateMessage,
)
from fairway.wire.sockets import ErrorMessage

if TYPE_CHECKING:
    from fairway.graphs.running import RunningGraph
    from fairway.server.access.auth import Identity
    from fairway.server.context import ServerContext
    from fairway.server.http.exchange import Receive, Request, Send
    from fairway.wire.graphs import CommandAnswer, PushAnswer
    from fairway.wire.requests import RequestId

WINDOW: Final = 64
"""Messages of one socket that are not answered yet."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
RETRY_FLOOR_NS: Final = 1_000_000
RETRY_CAP_NS: Final = 5_000_000_000

_PUSH = msgspec.json.Decoder(PushMessage)
_COMMAND = msgspec.json.Decoder(CommandMessage)
_encode = msgspec.json.Encoder().encode


class _Id(msgspec.Struct):
    id: str | int | None = None


_ID = msgspec.json.Decoder(_Id)


async def serve_pushes(
    context: ServerContext, request: Request, receive: Receive, send: Send, graph: str, source: str
) -> None:
    """Accept a WebSocket that gives a source boundaries, and serve it until it closes.

    Raises before it is accepted if there is no such graph or source, or the key may not touch it.
    """
    managed = graph_of(context, request.identity, None, graph, request.parameters.get("tenant"))
    managed.running().accumulator(source)
    socket = PushSocket(context, request.identity, send, graph, managed.graph.tenant, source)
    await _serve(context, request, receive, send, socket)


async def serve_commands(
    context: ServerContext, request: Request, receive: Receive, send: Send, graph: str
) -> None:
    """Accept a WebSocket that takes commands to a graph, and serve it until it closes.

    Raises before it is accepted if there is no such graph, or the key may not touch it.
    """
    managed = graph_of(context, request.identity, None, graph, request.parameters.get("tenant"))
    socket = ReactorSocket(context, request.identity, send, graph, managed.graph.tenant)
    await _serve(context, request, receive, send, socket)


async def _serve(
    context: ServerContext, request: Request, receive: Receive, send: Send, socket: GraphSocket
) -> None:
    open_stream = context.connect(request.identity, socket.end)
    try:
        await send({"type": "websocket.accept"})
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(socket.flush(), name="graph-socket-flush"),
                group.create_task(socket.work(), name="graph-socket"),
            ]
            while (message := await receive())["type"] == "websocket.receive":
                text = message.get("text")
                socket.take(text.encode() if text is not None else message["bytes"])
                await socket.wait_room()
            for task in tasks:
                task.cancel()
    finally:
        context.disconnect(open_stream)


class GraphSocket(Socket):
    """Messages of one socket, a bounded number of them under way, answered in order."""

    def __init__(
        self, context: ServerContext, identity: Identity, send: Send, graph: str, tenant: str
    ) -> None:
        super().__init__(context, identity, send)
        self.graph = graph
        self.tenant = tenant
        self._waiting: deque[bytes] = deque()
        self._unanswered = 0
        self._unanswered_bytes = 0
        self._some = asyncio.Event()
        self._took_ns = RETRY_FLOOR_NS

    def take(self, message: bytes) -> None:
        """A message came: it waits its turn, or is refused at once."""
        full = self._unanswered >= WINDOW
        full = full or self._unanswered_bytes + len(message) > WINDOW_BYTES
        if full and self._unanswered:
            depth = self._unanswered
            retry_ns = min(max(self._took_ns * depth // 2, RETRY_FLOOR_NS), RETRY_CAP_NS)
            self.answer_error(
                _id_of(message),
                Backpressure(
                    "of this socket",
                    depth=depth,
                    limit=f"{WINDOW} messages that are not answered",
                    retry_after_ns=retry_ns,
                ),
            )
            return
        self._unanswered += 1
        self._unanswered_bytes += len(message)
        self._waiting.append(message)
        self._some.set()

    async def work(self) -> None:
        """Do what messages ask, in order, for as long as the socket lives."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                began_ns = self._context.clock.now_ns()
                done = await self.do_next()
                self._took_ns = (self._context.clock.now_ns() - began_ns) // max(1, done)

    async def do_next(self) -> int:
        """Do what the next message asks, or the next few; how many."""
        raise AssertionError("a socket does something")

    def next_message(self) -> bytes:
        return self._waiting.popleft()

    def answered(self, message: bytes) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= len(message)

    def answer(self, message: PushAnswer | CommandAnswer) -> None:
        """Answer a message."""
        self._queue(_encode(message))

    def answer_error(self, number: RequestId | None, error: FairwayError) -> None:
        """Answer a message with an error, or a refusal that says when to try again."""
        self._context.count_refusal(error)
        status, code = status_of(error)
        detail: dict[str, Any] = detail_of(error)
        facts: dict[str, Any] = {
            "id": given(number),
            "status": status,
            "code": code,
            "message": str(error),
            "detail": detail or msgspec.UNSET,
        }
        if status == 429:
            self.answer(RefusedMessage(retry_after_ms=detail["retry_after_ms"], **facts))
        else:
            self.answer(ErrorMessage(**facts))


class PushSocket(GraphSocket):
    """Boundaries for one source.

    What has come is taken in without waiting in between, and acknowledged together once all of it
    is durable: the messages of a socket share a sync.
    """

    def __init__(
        self,
        context: ServerContext,
        identity: Identity,
        send: Send,
        graph: str,
        tenant: str,
        source: str,
    ) -> None:
        super().__init__(context, identity, send, graph, tenant)
        self.source = source
        self._accepted: list[tuple[bytes, RequestId | None, asyncio.Future[Any] | None]] = []

    async def do_next(self) -> int:
        done = 0
        while self._waiting and done < WINDOW:
            await self._take_in(self.next_message())
            done += 1
        await self._acknowledge()
        return done

    async def _take_in(self, raw: bytes) -> None:
        number = None
        try:
            message = parse(_PUSH, raw)
            number = message.id
            managed = graph_of(self._context, self._identity, "write", self.graph, self.tenant)
            instance = managed.running()
            schema = instance.accumulator(self.source).source.event_schema
            value = without_task(schema.of_json, bytes(message.data))
            usage = self.begin()
            try:
                self._context.charge(self._identity, records=1, size=len(raw))
                await self._wait_room(instance)
                kept = instance.accept(self.source, value)
            finally:
                if usage is not None:
                    usage.end()
        except FairwayError as error:
            if number is None:
                number = _id_of(raw)
            await self._acknowledge()  # answers keep the order of the messages
            self.answered(raw)
            self.answer_error(number, error)
        else:
            self._accepted.append((raw, number, kept))

    async def _wait_room(self, instance: RunningGraph) -> None:
        accumulator = instance.accumulator(self.source)
        if not accumulator.room():
            await self._acknowledge()  # those before it do not wait for it
            await wait_room(self._context, instance, self.source, PUSH_WAIT_MS)

    async def _acknowledge(self) -> None:
        accepted, self._accepted = self._accepted, []
        unknown: FairwayError | None = None
        try:
            await wait_kept([kept for _, _, kept in accepted])
        except FairwayError as error:
            unknown = error
        for raw, number, kept in accepted:
            self.answered(raw)
            failure = _outcome(kept, unknown)
            if failure is None:
                self.answer(AckMessage(id=given(number)))
            else:
                self.answer_error(number, failure)


class ReactorSocket(GraphSocket):
    """Commands to one graph, each authorised and audited by itself."""

    async def do_next(self) -> int:
        raw = self.next_message()
        number = None
        try:
            message = parse(_COMMAND, raw)
            number = message.id
            usage = self.begin()
            try:
                answer = await self._carry_out(message)
            finally:
                if usage is not None:
                    usage.end()
        except FairwayError as error:
            self.answer_error(_id_of(raw) if number is None else number, error)
        else:
            self.answer(answer)
        self.answered(raw)
        return 1

    async def _carry_out(self, message: CommandMessage) -> CommandAnswer:
        context, identity, graph, tenant = self._context, self._identity, self.graph, self.tenant
        command, id = message.command, given(message.id)
        if (message.cache is not None) != (command == "fire_with"):
            raise InvalidRequest("`cache` goes with fire_with, and with nothing else")
        if command in ("force_fire", "fire_with"):
            firing = firing_view(await fire(context, identity, graph, tenant, message.cache))
            return FiredMessage(id=id, **asdict(firing))
        if command == "get_state":
            with context.state(Audit).command(identity, command, graph, tenant, kept=False):
                managed = graph_of(context, identity, "read", graph, tenant)
                return StateMessage(id=id, **asdict(state_of(managed, context.clock.now_ns())))
        paused = command == "pause"
        managed = await pause(context, identity, graph, tenant, paused=paused)
        kind = PausedMessage if paused else ResumedMessage
        return kind(id=id, **asdict(summary_of(managed)))


def _outcome(kept: asyncio.Future[Any] | None, unknown: FairwayError | None) -> FairwayError | None:
    if kept is None:
        return None
    if not kept.done():
        return unknown
    error = kept.exception()
    if error is not None and not isinstance(error, FairwayError):
        raise error
    return error


def _id_of(message: bytes) -> RequestId | None:
    """The id of a message, if it can be read at all."""
    try:
        return _ID.decode(message).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

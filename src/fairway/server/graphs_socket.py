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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from fairway.errors import Backpressure, FairwayError, InvalidRequest
from fairway.server.exchange import parse
from fairway.server.graph_views import firing_view, state_of, summary_of
from fairway.server.graphs_api import fire, graph_of, pause, wait_kept, wait_room
from fairway.server.problems import detail_of, status_of
from fairway.server.websocket import Socket
from fairway.wire.graphs import PUSH_WAIT_MS, CommandMessage, PushMessage

if TYPE_CHECKING:
    from fairway.graphs.live import LiveGraph
    from fairway.server.auth import Identity
    from fairway.server.exchange import Receive, Request, Send
    from fairway.server.host import Host

WINDOW: Final = 64
"""Messages of one socket that are not answered yet."""
WINDOW_BYTES: Final = 4 * 1024 * 1024
RETRY_FLOOR_NS: Final = 1_000_000
RETRY_CAP_NS: Final = 5_000_000_000

_PUSH = msgspec.json.Decoder(PushMessage)
_COMMAND = msgspec.json.Decoder(CommandMessage)


class _Id(msgspec.Struct):
    id: str | int | None = None


_ID = msgspec.json.Decoder(_Id)


class Place(NamedTuple):
    """What a socket is about."""

    graph: str
    source: str | None
    """None for the socket of the reactor."""


def place_of(path: str) -> Place | None:
    """What a path is the socket of."""
    match path.strip("/").split("/"):
        case ["v0", "graphs", graph, "reactor"]:
            return Place(graph, None)
        case ["v0", "graphs", graph, "accumulators", source]:
            return Place(graph, source)
    return None


async def serve_graph_socket(
    host: Host, identity: Identity, request: Request, place: Place, receive: Receive, send: Send
) -> None:
    """Accept a WebSocket of a graph and serve it until it closes.

    Raises before it is accepted if there is no such graph or source, or the key may not touch it.
    """
    tenant = request.parameters.get("tenant")
    managed = graph_of(host, identity, None, place.graph, tenant)
    tenant = managed.graph.tenant
    socket: GraphSocket
    if place.source is None:
        socket = ReactorSocket(host, identity, send, place.graph, tenant)
    else:
        managed.running().accumulator(place.source)
        socket = PushSocket(host, identity, send, place.graph, tenant, place.source)
    guest = host.connect(identity, socket.end)
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
        host.disconnect(guest)


class GraphSocket(Socket):
    """Messages of one socket, a bounded number of them under way, answered in order."""

    def __init__(self, host: Host, identity: Identity, send: Send, graph: str, tenant: str) -> None:
        super().__init__(host, identity, send)
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
            self.tell(
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
                began_ns = self._host.clock.now_ns()
                done = await self.do_next()
                self._took_ns = (self._host.clock.now_ns() - began_ns) // max(1, done)

    async def do_next(self) -> int:
        """Do what the next message asks, or the next few; how many."""
        raise AssertionError("a socket does something")

    def next_message(self) -> bytes:
        return self._waiting.popleft()

    def answered(self, message: bytes) -> None:
        self._unanswered -= 1
        self._unanswered_bytes -= len(message)

    def say(self, op: str, number: str | int | None, facts: object = None) -> None:
        """Answer a message."""
        head: dict[str, Any] = {"op": op}
        if number is not None:
            head["id"] = number
        more = msgspec.json.encode(facts) if facts is not None else b"{}"
        comma = b"," if more != b"{}" else b""
        self._queue(msgspec.json.encode(head)[:-1] + comma + more[1:])

    def tell(self, number: str | int | None, error: FairwayError) -> None:
        """Answer a message with an error, or a refusal that says when to try again."""
        self._host.count_refusal(error)
        status, code = status_of(error)
        detail = detail_of(error)
        facts: dict[str, Any] = {"status": status, "code": code, "message": str(error)}
        retry_ms = detail.get("retry_after_ms")
        if retry_ms is not None:
            facts["retry_after_ms"] = retry_ms
        if detail:
            facts["detail"] = detail
        self.say("refused" if status == 429 else "error", number, facts)


class PushSocket(GraphSocket):
    """Boundaries for one source.

    What has come is taken in without waiting in between, and acknowledged together once all of it
    is durable: the messages of a socket share a sync.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        send: Send,
        graph: str,
        tenant: str,
        source: str,
    ) -> None:
        super().__init__(host, identity, send, graph, tenant)
        self.source = source
        self._accepted: list[tuple[bytes, str | int | None, asyncio.Future[Any] | None]] = []

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
            managed = graph_of(self._host, self._identity, "write", self.graph, self.tenant)
            live = managed.running()
            schema = live.accumulator(self.source).source.event_schema
            value = schema.of_json(bytes(message.data))
            allowance = self.begin()
            try:
                self._host.charge_pushes(self._identity, 1, len(raw))
                await self._wait_room(live)
                kept = live.accept(self.source, value)
            finally:
                if allowance is not None:
                    allowance.end()
        except FairwayError as error:
            if number is None:
                number = _id_of(raw)
            await self._acknowledge()  # answers keep the order of the messages
            self.answered(raw)
            self.tell(number, error)
        else:
            self._accepted.append((raw, number, kept))

    async def _wait_room(self, live: LiveGraph) -> None:
        accumulator = live.accumulator(self.source)
        if not accumulator.room():
            await self._acknowledge()  # those before it do not wait for it
            await wait_room(self._host, live, self.source, PUSH_WAIT_MS)

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
                self.say("ack", number)
            else:
                self.tell(number, failure)


class ReactorSocket(GraphSocket):
    """Commands to one graph, each authorised and audited by itself."""

    async def do_next(self) -> int:
        raw = self.next_message()
        number = None
        try:
            message = parse(_COMMAND, raw)
            number = message.id
            allowance = self.begin()
            try:
                op, facts = await self._carry_out(message)
            finally:
                if allowance is not None:
                    allowance.end()
        except FairwayError as error:
            self.tell(_id_of(raw) if number is None else number, error)
        else:
            self.say(op, number, facts)
        self.answered(raw)
        return 1

    async def _carry_out(self, message: CommandMessage) -> tuple[str, object]:
        host, identity, graph, tenant = self._host, self._identity, self.graph, self.tenant
        command = message.command
        if (message.cache is not None) != (command == "fire_with"):
            raise InvalidRequest("`cache` goes with fire_with, and with nothing else")
        if command in ("force_fire", "fire_with"):
            return "fired", firing_view(await fire(host, identity, graph, tenant, message.cache))
        if command == "get_state":
            with host.audit.command(identity, command, graph, tenant, kept=False):
                managed = graph_of(host, identity, "read", graph, tenant)
                return "state", state_of(managed, host.clock.now_ns())
        paused = command == "pause"
        managed = await pause(host, identity, graph, tenant, paused=paused)
        return "paused" if paused else "resumed", summary_of(managed)


def _outcome(kept: asyncio.Future[Any] | None, unknown: FairwayError | None) -> FairwayError | None:
    if kept is None:
        return None
    if not kept.done():
        return unknown
    error = kept.exception()
    if error is not None and not isinstance(error, FairwayError):
        raise error
    return error


def _id_of(message: bytes) -> str | int | None:
    """The id of a message, if it can be read at all."""
    try:
        return _ID.decode(message).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

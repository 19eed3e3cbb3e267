"""The ASGI application: who asks, which route, and what a failure looks like.

Bare ASGI, no framework: the hot routes (append, diff) cost a dictionary look-up and a call.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from fairway import errors
from fairway.runtime.turn import TURN
from fairway.server.http import problems
from fairway.server.http.door import Door
from fairway.server.http.exchange import UNCOUNTED, Disconnected, Reply, Request
from fairway.server.http.peers import KNOWN
from fairway.server.http.response import check_header
from fairway.settings import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fairway.runtime.turn import TurnBudget
    from fairway.server.access.auth import Identity
    from fairway.server.context import ServerContext
    from fairway.server.http.door import LineState
    from fairway.server.http.exchange import Message, Receive, Scope, Send
    from fairway.server.http.peers import Peer
    from fairway.server.http.response import ResponseCycle
    from fairway.server.http.router import Route, Routes
    from fairway.server.http.same_head import SameHead
    from fairway.storage.ownership import Ownership

    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("fairway.server")

REFUSAL: Final = "fairway.refusal"
"""Where a scope holds why its request is not let in."""
WAITS: Final = "fairway.waits"
"""Where a scope says what a server that is not ready waits for."""
OF_NO_LOG: Final = "fairway.of_no_log"
"""Where a scope says that nothing was served when its request came: its answer is of no log, and
true whoever owns one."""
IDENTITY: Final = "fairway.identity"
"""Where a scope holds who asks, once that is known."""
SHUTTING_DOWN: Final = "the server is shutting down"
CONNECTIONS_RETRY_NS: Final = 1_000_000_000
SECURITY_HEADERS: Final = ((b"x-content-type-options", b"nosniff"),)


class Mount(NamedTuple):
    """An ASGI application that serves paths by a protocol of its own, behind the same door."""

    application: Application
    lasts: Callable[[Request], bool]
    """Whether the answer to a request is an event stream, which a ticket may open."""


class ReplyWithoutTask:
    """Answers a request that is under way without a task: `send` is its callback."""

    __slots__ = ("_context", "_cycle", "_request", "finish")

    def __init__(self, context: ServerContext, cycle: ResponseCycle, request: Request) -> None:
        self._context = context
        self._cycle = cycle
        self._request = request
        self.finish: Callable[[Any], Reply]
        """Makes the reply of the outcome."""

    def send(self, outcome: object, error: BaseException | None) -> None:
        """Answer with the reply that `finish` makes of the outcome, or with the failure."""
        if self._cycle.response_complete:
            return  # it was answered otherwise
        if error is None:
            try:
                reply = self.finish(outcome)
            except Exception as fault:
                reply = failure(self._context, fault, self._request)
        else:
            reply = failure(self._context, error, self._request)
        write(self._cycle, reply)


class HttpApp:
    """Serves HTTP requests. `context` is None until the data is recovered."""

    def __init__(
        self,
        routes: Routes,
        progress: Callable[[], dict[str, object]],
        *,
        turn: TurnBudget = TURN,
    ) -> None:
        self.context: ServerContext | None = None
        self.mounts: dict[str, Mount] = {}
        """Other ASGI applications by the beginning of their paths."""
        self.ownership: Ownership | None = None
        """Of the log that is answered from, if it is owned for a time only."""
        self.fenced_by: errors.Fenced | None = None
        """Why it ends: another process owns the log, and this one was not asked to stand by."""
        self.stopping = False
        """It was asked to end: there is nothing to come that is worth waiting for."""
        self.door: Door | None = Door(self._line_state, turn=turn)
        self._routes = routes
        self._progress = progress

    def withholds(self, scope: Scope) -> bool:
        """Whether what was made ready for a request must not go out: it was read, and another
        process may own the log by now. What was written is true whoever owns it."""
        ownership = self.ownership
        if ownership is None or not ownership.overdue or OF_NO_LOG in scope:
            return False
        return self._reads(scope["method"], scope["path"])

    def _reads(self, method: str, path: str) -> bool:
        """Whether the answer to such a request tells what is, and not what was done."""
        if path in self._routes.vital:
            return False
        if method in ("GET", "HEAD"):
            return True
        found = self._routes.find(path)
        route = found[0].get(method) if found is not None else None
        return route is not None and route.reads

    def _line_state(self) -> LineState | None:
        return self.context.gate.line_state if self.context is not None else None

    def admit(self, peer: Peer, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        """Begin a request in its turn. Strangers, and whoever finds the line full, are told so."""
        context = self.context
        if context is None:
            begin()
            return
        if context.access.keyed:
            if not self._identified(context, peer, cycle, begin):
                return
        elif peer.standing is not KNOWN:
            peer.show(None)
        if context.gate.passes():
            if peer.due_ns:
                context.gate.forget(peer)
            begin()
            return
        try:
            context.wait_turn(context.fair_key_of(cycle.scope["path"]), begin, peer)
        except errors.Throttled as refusal:
            self._refuse(context, cycle, begin, refusal)

    def line_up(self, peer: Peer, head: SameHead, begin: Callable[[], object]) -> bool:
        """Let a request wait whose connection is known and sends the same again. False if it would
        begin at once, or is refused: then it is admitted like any other.
        """
        context = self.context
        if context is None or peer.standing is not KNOWN or context.gate.idle:
            return False
        if head.fair_key is None:
            head.fair_key = context.fair_key_of(head.path)
        try:
            context.wait_turn(head.fair_key, begin, peer)
        except errors.Throttled:
            return False  # it is told the same again
        return True

    def let_in(self, peer: Peer, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        """Begin a request that has waited in line. Who asks is decided now: they may have lost
        their key meanwhile."""
        context = self.context
        if (
            context is None
            or not context.access.keyed
            or self._identified(context, peer, cycle, begin)
        ):
            begin()

    def end_cut_off(self, cycle: ResponseCycle) -> bool:
        """Answer a request whose task was cancelled, if that is because the server stops.

        What only reads is refused. Anything else may have been done, or be done yet by the stop
        itself: a refusal would promise that nothing changed, and clients would repeat it.
        """
        if not self.stopping:
            return False
        cycle.keep_alive = False
        if cycle.disconnected or cycle.response_complete:
            return True
        if cycle.response_started:  # half an answer cannot be mended
            cycle.disconnected = True
            cycle.transport.close()
            return True
        scope: Scope = cycle.scope  # type: ignore[assignment]
        error: errors.FairwayError
        if self._reads(scope["method"], scope["path"]):
            error = errors.Closing(SHUTTING_DOWN)
        else:
            error = errors.OutcomeUnknown(
                "the server is shutting down: whether this was carried out is not known"
            )
        head, body = _parts(error)
        cycle.reply(head, b"" if scope["method"] == "HEAD" else body)
        return True

    def lost(self, peer: Peer) -> None:
        if self.context is not None:
            self.context.gate.forget(peer)

    def _identified(
        self, context: ServerContext, peer: Peer, cycle: ResponseCycle, begin: Callable[[], object]
    ) -> bool:
        """Whether it is known who asks, or need not be. Decided before the line, and once."""
        scope: Scope = cycle.scope  # type: ignore[assignment]
        found = self._routes.find(scope["path"])
        if found is None:
            private = scope["method"] != "OPTIONS" and self._mount_of(scope["path"]) is not None
        else:
            route = found[0].get("GET" if scope["method"] == "HEAD" else scope["method"])
            private = route is not None and not route.public
        # A ticket is used up when it is looked at, so that is left to whoever serves its request.
        if not private or b"ticket=" in scope["query_string"]:
            peer.seems_strange()
            return True
        try:
            identity = identify(context, Request(scope, cycle.receive))
            if not peer.show(identity.name):
                raise errors.Throttled(
                    f"key {identity.name!r} has too many connections",
                    retry_after_ns=CONNECTIONS_RETRY_NS,
                    limit="connections_per_key",
                    maximum=peer.key_connections_max,
                )
        except errors.FairwayError as refusal:
            peer.seems_strange()
            self._refuse(context, cycle, begin, refusal)
            return False
        scope[IDENTITY] = identity
        return True

    def _refuse(
        self,
        context: ServerContext,
        cycle: ResponseCycle,
        begin: Callable[[], object],
        refusal: errors.FairwayError,
    ) -> None:
        """Tell it in as few steps as can be, unless something about the request is special."""
        scope: Scope = cycle.scope  # type: ignore[assignment]
        has_cached_reply = isinstance(refusal, errors.Throttled | errors.Unauthorized)
        if (
            not has_cached_reply
            or cycle.more_body
            or scope["method"] == "HEAD"
            or context.cors.enabled
        ):
            scope[REFUSAL] = refusal
            begin()
            return
        context.count_refusal(refusal)
        if isinstance(refusal, errors.Throttled):
            # In steps of a hundredth of a second, of which few are remembered.
            retry_after_ns = -(-refusal.retry_after_ns // 10**7) * 10**7
            cycle.reply(*_throttled(str(refusal), retry_after_ns, refusal.limit, refusal.maximum))
        else:
            cycle.reply(*_unauthorized(str(refusal)))

    def answer_without_task(self, cycle: ResponseCycle) -> bool:
        """Answer a request without a task if its route can, and nothing about it is special."""
        context = self.context
        scope: Scope = cycle.scope  # type: ignore[assignment]
        found = self._routes.find(scope["path"])
        if found is None or context is None or REFUSAL in scope:
            return False
        if self.ownership is not None and self.ownership.overdue:
            return False
        route = found[0].get(scope["method"])
        if route is None or route.answer_without_task is None:
            return False
        query = scope["query_string"]
        if b"ticket=" in query or context.cors.enabled or cycle.flow.write_paused:
            return False
        request = Request(scope, cycle.receive)
        try:
            if query:
                request.query(route.parameters)
            identity = request.identity = identify(context, request)
            if identity.quota is not UNLIMITED:
                return False  # it is counted while it lasts
            reply = ReplyWithoutTask(context, cycle, request)
            return route.answer_without_task(context, request, bytes(cycle.body), reply, *found[1])
        except Exception as error:
            write(cycle, failure(context, error, request))
            return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        reply: Reply | None
        cors: list[tuple[bytes, bytes]] = []
        try:
            if REFUSAL in scope:
                raise scope[REFUSAL]
            context = self.context
            mount = self._mount_of(scope["path"])
            if context is not None and context.cors.enabled:
                cors = context.cors_headers(request)
            if scope["path"] not in self._routes.vital:
                self.check_owned(scope)
            if mount is None:
                reply = await self._serve(context, request)
            elif context is not None:
                await self._serve_mount(context, request, mount, scope, receive, send)
                return
            else:
                reply = self.not_ready()
        except Disconnected:
            return
        except Exception as error:
            reply = failure(self.context, error, request)
        if reply is None:
            return  # it was streamed
        await respond(send, reply, cors, head_only=request.method == "HEAD")

    async def _serve(self, context: ServerContext | None, request: Request) -> Reply | None:
        found = self._routes.find(request.path)
        if found is None:
            return problems.reply(404, "not_found", f"there is nothing at {request.path[:200]}")
        routes, arguments = found
        head = request.method == "HEAD"
        route = routes.get("GET" if head else request.method)
        if route is None or (head and route.stream):
            return self._other_method(context, request, routes)
        if route.public:
            if context is None:
                request.scope[WAITS] = self._waits_for()
            return await route.handler(context, request)
        if context is None:
            return self.not_ready()
        if request.scope["query_string"]:
            # Before anything else is done: what is refused changes nothing and uses no ticket up.
            request.query(route.parameters)
        identity = request.identity = identify(context, request, lasts=route.stream)
        usage = context.begin(identity)
        if usage is None:
            return await route.handler(context, request, *arguments)
        if route.stream:
            usage.end()  # it is counted as a connection from here on
            return await route.handler(context, request, *arguments)
        try:
            return await route.handler(context, request, *arguments)
        finally:
            usage.end()

    def check_owned(self, scope: Scope) -> None:
        """Raises `Fenced` if the log is not to be answered from any more. Before anything is done:
        so it is a refusal, whatever was asked."""
        if self.context is None:
            # The ownership that is still known then is the former one: it is over for good, and
            # kept for the answers that were under way.
            scope[OF_NO_LOG] = True
            if self.fenced_by is not None:
                raise self.fenced_by.again()
        elif self.ownership is not None:
            self.ownership.check()

    def _waits_for(self) -> str:
        if self.fenced_by is not None:
            return "fenced: another process owns the log"
        if self.stopping:
            return "shutting down"
        return "standing by" if "standing_by" in self._progress() else "recovering"

    def not_ready(self) -> Reply:
        """What is told while there is nothing to serve yet, or nothing any more."""
        if self.stopping:
            again = (b"retry-after", b"1")
            return problems.reply(
                503, "shutting_down", SHUTTING_DOWN, headers=(again, problems.CLOSE)
            )
        stands_by = "standing_by" in self._progress()
        return problems.reply(
            503,
            "not_ready",
            "another process owns the data: this one stands by"
            if stands_by
            else "the data is being recovered",
            self._progress(),
            ((b"retry-after", b"1"), problems.CLOSE),
        )

    def _other_method(
        self, context: ServerContext | None, request: Request, routes: dict[str, Route]
    ) -> Reply:
        methods = {*routes, "OPTIONS"}
        if "GET" in routes and not routes["GET"].stream:
            methods.add("HEAD")
        allowed = ", ".join(sorted(methods)).encode()
        if request.method == "OPTIONS" and context is not None:
            pairs = context.cors.preflight_headers(
                request.header(b"origin"), request.header(b"access-control-request-headers")
            )
            # Those that go with every answer are added by whoever sends it.
            every = {name for name, _ in context.cors.response_headers(request.header(b"origin"))}
            headers = [
                (name.lower().encode(), value.encode())
                for name, value in pairs
                if name not in every
            ]
            return Reply(204, b"", ((b"allow", allowed), *headers))
        return problems.reply(
            405,
            "method_not_allowed",
            f"{request.method[:40]} does nothing here; {allowed.decode()} would",
            headers=((b"allow", allowed),),
        )

    def _mount_of(self, path: str) -> Mount | None:
        for beginning, mount in self.mounts.items():
            if path.startswith(beginning):
                return mount
        return None

    async def _serve_mount(
        self,
        context: ServerContext,
        request: Request,
        mount: Mount,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        origin = [
            pair
            for pair in context.cors_headers(request)
            if pair[0] in (b"access-control-allow-origin", b"vary")
        ]
        if origin:
            send = _adding(send, origin)
        if request.method != "OPTIONS":
            identity = identify(context, request, lasts=mount.lasts(request))
            identity.require(_scope_of(request.method))
            scope[IDENTITY] = identity
            usage = context.begin(identity)
            if usage is not None:
                with ExitStack() as counted:
                    counted.callback(usage.end)
                    scope[UNCOUNTED] = counted.close
                    return await mount.application(scope, receive, send)
        await mount.application(scope, receive, send)


def failure(context: ServerContext | None, error: BaseException, request: Request) -> Reply:
    """What a client sees of an error."""
    if isinstance(error, errors.FairwayError):
        if context is not None:
            context.count_refusal(error)
        return problems.problem(error)
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    return problems.reply(500, "internal", "the server failed; its log says how")


def write(cycle: ResponseCycle, reply: Reply) -> None:
    """A whole reply in one write, without ASGI."""
    headers = reply.headers
    if reply.status == 503 and problems.CLOSE in headers:
        cycle.keep_alive = False  # which says so, too
        headers = tuple(one for one in headers if one != problems.CLOSE)
    head = b"%b%d\r\n\r\n" % (head_of(reply.status, headers), len(reply.body))
    cycle.reply(head, reply.body)


@lru_cache(maxsize=256)
def head_of(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The head of a reply, up to its length."""
    lines = [STATUS_LINE[status]]
    for name, value in (*headers, *SECURITY_HEADERS):
        check_header(name, value)
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"content-length: ")
    return b"".join(lines)


@lru_cache(maxsize=1024)
def _throttled(
    message: str, retry_after_ns: int, limit: str | None, maximum: int | None
) -> tuple[bytes, bytes]:
    """The head and the body of a refusal for the time being."""
    return _parts(
        errors.Throttled(message, retry_after_ns=retry_after_ns, limit=limit, maximum=maximum)
    )


@lru_cache(maxsize=64)
def _unauthorized(message: str) -> tuple[bytes, bytes]:
    """The head and the body of what strangers are told."""
    return _parts(errors.Unauthorized(message))


def _parts(error: errors.FairwayError) -> tuple[bytes, bytes]:
    reply = problems.problem(error)
    return b"%b%d\r\n\r\n" % (head_of(reply.status, reply.headers), len(reply.body)), reply.body


def _adding(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """`send` with these headers on whatever response goes through it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return sending


def _scope_of(method: str) -> Any:
    return {"GET": "read", "HEAD": "read", "DELETE": "delete"}.get(method, "write")


def identify(context: ServerContext, request: Request, *, lasts: bool = False) -> Identity:
    """Who asks: by key, or by a ticket where no header can be sent.

    `lasts` says that the answer is an event stream or a WebSocket, which a ticket may open.
    """
    if IDENTITY in request.scope:
        known_before: Identity = request.scope[IDENTITY]
        return known_before
    headers = request.headers
    if b"origin" not in headers and b"authorization" not in headers:
        known = context.access.known(headers.get(b"host"))
        if known is not None and b"ticket=" not in request.scope["query_string"]:
            return known
    wall_ns = context.clock.wall_ns()
    if b"ticket=" in request.scope["query_string"] and b"authorization" not in request.headers:
        if not lasts:
            # Not redeemed, or whoever finds one in a log could change it for another without end.
            raise errors.Unauthorized(
                "tickets open event streams and WebSockets only;"
                " send a key here, as Authorization: Bearer"
            )
        secret = request.parameters.get("ticket", "")
        identity = context.tickets.redeem(secret, context.clock.now_ns(), path=request.path)
        return context.access.confirm(identity, wall_ns)
    return context.access.admit(
        authorization=request.header(b"authorization"),
        host=request.header(b"host"),
        origin=request.header(b"origin"),
        wall_ns=wall_ns,
    )


async def respond(
    send: Send, reply: Reply, more: Sequence[tuple[bytes, bytes]] = (), *, head_only: bool = False
) -> None:
    status, body, headers = reply
    length = () if status == 204 else ((b"content-length", b"%d" % len(body)),)
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, *length, *SECURITY_HEADERS, *more],
        }
    )
    await send({"type": "http.response.body", "body": b"" if head_only else body})

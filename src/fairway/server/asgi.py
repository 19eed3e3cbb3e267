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
from fairway.server import problems
from fairway.server.connection import check_header
from fairway.server.door import PLENTY, Door
from fairway.server.exchange import UNCOUNTED, Disconnected, Reply, Request
from fairway.server.peers import KNOWN
from fairway.settings import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fairway.server.auth import Identity
    from fairway.server.connection import Answer
    from fairway.server.door import Room
    from fairway.server.exchange import Message, Receive, Scope, Send
    from fairway.server.host import Host
    from fairway.server.peers import Peer
    from fairway.storage.ownership import Ownership

    Handler = Callable[..., Awaitable[Reply | None]]
    Express = Callable[..., bool]

logger = logging.getLogger("fairway.server")

PATHS_REMEMBERED: Final = 1024
REFUSAL: Final = "fairway.refusal"
"""Where a scope holds why its request is not let in."""
UNOWNED: Final = frozenset({"/healthz", "/readyz"})
"""What is answered whoever owns the log: it is about this process."""
WAITS: Final = "fairway.waits"
"""Where a scope says what a server that is not ready waits for."""
OF_NO_LOG: Final = "fairway.of_no_log"
"""Where a scope says that nothing was served when its request came: its answer is of no log, and
true whoever owns one."""
IDENTITY: Final = "fairway.identity"
"""Where a scope holds who asks, once that is known."""
CONNECTIONS_RETRY_NS: Final = 1_000_000_000
SECURITY_HEADERS: Final = ((b"x-content-type-options", b"nosniff"),)


class Route(NamedTuple):
    """One operation: how it is called, what serves it, and what the API document says of it."""

    method: str
    path: str
    """Segments in braces are arguments, in order."""
    handler: Handler
    summary: str
    body: Any = None
    """The type of the request's body, for the document."""
    reply: Any = None
    statuses: Mapping[int, str] = {}
    query: Sequence[tuple[str, str, str]] = ()
    """(name, type, meaning)"""
    public: bool = False
    """Needs no key."""
    stream: bool = False
    """Its answer lasts."""
    socket: bool = False
    """It is a WebSocket: what is served here are plain requests to it."""
    express: Express | None = None
    """Begins it without waiting for anything, if it can: `ExpressReply` is told what becomes of it.
    False if it cannot, and then nothing was done."""

    @property
    def parameters(self) -> list[str]:
        """The names that its query may have."""
        return [name for name, _, _ in self.query]


class Routes:
    """Finds the route of a path: by its segments, arguments in between."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.all = tuple(routes)
        self._tree: dict[tuple[str | None, ...], dict[str, Route]] = {}
        for route in routes:
            parts = route.path.strip("/").split("/")
            # None, since it is no text: no segment of a path is taken for it.
            key = tuple(None if part.startswith("{") else part for part in parts)
            self._tree.setdefault(key, {})[route.method] = route
        self._found: dict[str, tuple[dict[str, Route], tuple[str, ...]] | None] = {}

    def find(self, path: str) -> tuple[dict[str, Route], tuple[str, ...]] | None:
        """The routes of a path by method, and the arguments in it."""
        try:
            return self._found[path]
        except KeyError:
            if len(self._found) >= PATHS_REMEMBERED:
                self._found.clear()
            found = self._found[path] = self._look_up(path)
            return found

    def _look_up(self, path: str) -> tuple[dict[str, Route], tuple[str, ...]] | None:
        parts = tuple(path.strip("/").split("/"))
        found = self._tree.get(parts)
        if found is not None:
            return found, ()
        count = len(parts)
        if count == 3:  # /v0/topics/{t}, by far the most common
            found = self._tree.get((parts[0], parts[1], None))
            return (found, (parts[2],)) if found is not None else None
        if count == 4:
            found = self._tree.get((parts[0], parts[1], None, parts[3]))
            return (found, (parts[2],)) if found is not None else None
        if count == 5:  # /v0/graphs/{graph}/accumulators/{source}
            found = self._tree.get((parts[0], parts[1], None, parts[3], None))
            if found is not None:
                return found, (parts[2], parts[4])
        if count >= 5:  # /v0/jobs/by-key/{key}/signal: a key may have slashes in it
            found = self._tree.get((*parts[:3], None, parts[-1]))
            return (found, ("/".join(parts[3:-1]),)) if found is not None else None
        return None


class ExpressReply:
    """Answers a request that is under way without a task. It stands where a future would."""

    __slots__ = ("_answer", "_host", "_request", "finish")

    def __init__(self, host: Host, answer: Answer, request: Request) -> None:
        self._host = host
        self._answer = answer
        self._request = request
        self.finish: Callable[[Any], Reply]
        """Makes the reply of the outcome."""

    def done(self) -> bool:
        return self._answer.response_complete

    def set_result(self, outcome: object) -> None:
        try:
            reply = self.finish(outcome)
        except Exception as error:
            reply = failure(self._host, error, self._request)
        write(self._answer, reply)

    def set_exception(self, error: BaseException) -> None:
        write(self._answer, failure(self._host, error, self._request))


class HttpApp:
    """Serves HTTP requests. `host` is None until the data is recovered."""

    def __init__(self, routes: Routes, progress: Callable[[], dict[str, object]]) -> None:
        self.host: Host | None = None
        self.mounts: dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {}
        """Other ASGI applications by the beginning of their paths."""
        self.ownership: Ownership | None = None
        """Of the log that is answered from, if it is owned for a time only."""
        self.fenced_by: errors.Fenced | None = None
        """Why it ends: another process owns the log, and this one was not asked to stand by."""
        self.door: Door | None = Door(self._room)
        self._routes = routes
        self._progress = progress

    def withholds(self, scope: Scope) -> bool:
        """Whether what was made ready for a request must not go out: it was read, and another
        process may own the log by now. What was written is true whoever owns it."""
        ownership = self.ownership
        if ownership is None or not ownership.overdue or OF_NO_LOG in scope:
            return False
        return reads(scope["method"], scope["path"])

    def _room(self) -> Room:
        return self.host.gate.room if self.host is not None else PLENTY

    def admit(self, peer: Peer, answer: Answer, begin: Callable[[], object]) -> None:
        """Begin a request in its turn. Strangers, and whoever finds the line full, are told so."""
        host = self.host
        if host is None:
            begin()
            return
        if host.access.keyed:
            if not self._identified(host, peer, answer, begin):
                return
        elif peer.standing is not KNOWN:
            peer.show(None)
        if host.gate.passes():
            if peer.due_ns:
                host.gate.forget(peer)
            begin()
            return
        try:
            host.wait_turn(answer.scope["path"], begin, peer)
        except errors.Throttled as refusal:
            self._refuse(host, answer, begin, refusal)

    def lost(self, peer: Peer) -> None:
        if self.host is not None:
            self.host.gate.forget(peer)

    def _identified(
        self, host: Host, peer: Peer, answer: Answer, begin: Callable[[], object]
    ) -> bool:
        """Whether it is known who asks, or need not be. Decided before the line, and once."""
        scope: Scope = answer.scope  # type: ignore[assignment]
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
            identity = identify(host, Request(scope, answer.receive))
            if not peer.show(identity.name):
                raise errors.Throttled(
                    f"key {identity.name!r} has too many connections",
                    retry_after_ns=CONNECTIONS_RETRY_NS,
                    limit="connections_per_key",
                    maximum=peer.key_connections_max,
                )
        except errors.FairwayError as refusal:
            peer.seems_strange()
            self._refuse(host, answer, begin, refusal)
            return False
        scope[IDENTITY] = identity
        return True

    def _refuse(
        self, host: Host, answer: Answer, begin: Callable[[], object], refusal: errors.FairwayError
    ) -> None:
        """Tell it in as few steps as can be, unless something about the request is special."""
        scope: Scope = answer.scope  # type: ignore[assignment]
        plain = isinstance(refusal, errors.Throttled | errors.Unauthorized)
        if not plain or answer.more_body or scope["method"] == "HEAD" or host.cors.enabled:
            scope[REFUSAL] = refusal
            begin()
            return
        host.count_refusal(refusal)
        if isinstance(refusal, errors.Throttled):
            # In steps of a hundredth of a second, of which few are remembered.
            retry_after_ns = -(-refusal.retry_after_ns // 10**7) * 10**7
            answer.reply(*_throttled(str(refusal), retry_after_ns, refusal.limit, refusal.maximum))
        else:
            answer.reply(*_unauthorized(str(refusal)))

    def express(self, answer: Answer) -> bool:
        """Serve a request without a task if its route can, and nothing about it is special."""
        host = self.host
        scope: Scope = answer.scope  # type: ignore[assignment]
        found = self._routes.find(scope["path"])
        if found is None or host is None or REFUSAL in scope:
            return False
        if self.ownership is not None and self.ownership.overdue:
            return False
        route = found[0].get(scope["method"])
        if route is None or route.express is None:
            return False
        query = scope["query_string"]
        if b"ticket=" in query or host.cors.enabled or answer.flow.write_paused:
            return False
        request = Request(scope, answer.receive)
        try:
            if query:
                request.query(route.parameters)
            identity = request.identity = identify(host, request)
            if identity.quota is not UNLIMITED:
                return False  # it is counted while it lasts
            reply = ExpressReply(host, answer, request)
            return route.express(host, request, bytes(answer.body), reply, *found[1])
        except Exception as error:
            write(answer, failure(host, error, request))
            return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        reply: Reply | None
        cors: list[tuple[bytes, bytes]] = []
        try:
            if REFUSAL in scope:
                raise scope[REFUSAL]
            host = self.host
            mount = self._mount_of(scope["path"])
            if host is not None and host.cors.enabled:
                cors = host.cors_headers(request)
            if scope["path"] not in UNOWNED:
                self.check_owned(scope)
            if mount is None:
                reply = await self._serve(host, request)
            elif host is not None:
                await self._serve_mount(host, request, mount, scope, receive, send)
                return
            else:
                reply = self.not_ready()
        except Disconnected:
            return
        except Exception as error:
            reply = failure(self.host, error, request)
        if reply is None:
            return  # it was streamed
        await respond(send, reply, cors, head_only=request.method == "HEAD")

    async def _serve(self, host: Host | None, request: Request) -> Reply | None:
        found = self._routes.find(request.path)
        if found is None:
            return problems.reply(404, "not_found", f"there is nothing at {request.path[:200]}")
        routes, arguments = found
        head = request.method == "HEAD"
        route = routes.get("GET" if head else request.method)
        if route is None or (head and route.stream):
            return self._other_method(host, request, routes)
        if route.public:
            if host is None:
                request.scope[WAITS] = self._waits_for()
            return await route.handler(host, request)
        if host is None:
            return self.not_ready()
        if request.scope["query_string"]:
            # Before anything else is done: what is refused changes nothing and uses no ticket up.
            request.query(route.parameters)
        identity = request.identity = identify(host, request, lasts=route.stream)
        allowance = host.begin(identity)
        if allowance is None:
            return await route.handler(host, request, *arguments)
        if route.stream:
            allowance.end()  # it is counted as a connection from here on
            return await route.handler(host, request, *arguments)
        try:
            return await route.handler(host, request, *arguments)
        finally:
            allowance.end()

    def check_owned(self, scope: Scope) -> None:
        """Raises `Fenced` if the log is not to be answered from any more. Before anything is done:
        so it is a refusal, whatever was asked."""
        if self.host is None:
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
        return "standing by" if "standing_by" in self._progress() else "recovering"

    def not_ready(self) -> Reply:
        """What is told while there is nothing to serve yet, or nothing any more."""
        stands_by = "standing_by" in self._progress()
        return problems.reply(
            503,
            "not_ready",
            "another process owns the data: this one stands by"
            if stands_by
            else "the data is being recovered",
            self._progress(),
            ((b"retry-after", b"1"),),
        )

    def _other_method(self, host: Host | None, request: Request, routes: dict[str, Route]) -> Reply:
        methods = {*routes, "OPTIONS"}
        if "GET" in routes and not routes["GET"].stream:
            methods.add("HEAD")
        allowed = ", ".join(sorted(methods)).encode()
        if request.method == "OPTIONS" and host is not None:
            pairs = host.cors.preflight_headers(
                request.header(b"origin"), request.header(b"access-control-request-headers")
            )
            # Those that go with every answer are added by whoever sends it.
            every = {name for name, _ in host.cors.response_headers(request.header(b"origin"))}
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

    def _mount_of(self, path: str) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        for beginning, application in self.mounts.items():
            if path.startswith(beginning):
                return application
        return None

    async def _serve_mount(
        self,
        host: Host,
        request: Request,
        mount: Callable[[Scope, Receive, Send], Awaitable[None]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        origin = [
            pair
            for pair in host.cors_headers(request)
            if pair[0] in (b"access-control-allow-origin", b"vary")
        ]
        if origin:
            send = _adding(send, origin)
        if request.method != "OPTIONS":
            identity = identify(host, request, lasts=_reads_events(request))
            identity.require(_scope_of(request.method))
            scope[IDENTITY] = identity
            allowance = host.begin(identity)
            if allowance is not None:
                with ExitStack() as counted:
                    counted.callback(allowance.end)
                    scope[UNCOUNTED] = counted.close
                    return await mount(scope, receive, send)
        await mount(scope, receive, send)


def failure(host: Host | None, error: BaseException, request: Request) -> Reply:
    """What a client sees of an error."""
    if isinstance(error, errors.FairwayError):
        if host is not None:
            host.count_refusal(error)
        return problems.problem(error)
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    return problems.reply(500, "internal", "the server failed; its log says how")


def reads(method: str, path: str) -> bool:
    """Whether the answer to such a request tells what is, and not what was done."""
    if path in UNOWNED:
        return False
    return method in ("GET", "HEAD") or path.endswith("/diff")


def write(answer: Answer, reply: Reply) -> None:
    """A whole reply in one write, without ASGI."""
    head = b"%b%d\r\n\r\n" % (head_of(reply.status, reply.headers), len(reply.body))
    answer.reply(head, reply.body)


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


def _reads_events(request: Request) -> bool:
    """Whether an EventSource asks this of a Durable Stream, with a ticket."""
    # Looked into only with a ticket: their protocol takes queries that are refused elsewhere.
    asked = request.method == "GET" and b"ticket=" in request.scope["query_string"]
    return asked and request.parameters.get("live") == "sse"


def _scope_of(method: str) -> Any:
    return {"GET": "read", "HEAD": "read", "DELETE": "delete"}.get(method, "write")


def identify(host: Host, request: Request, *, lasts: bool = False) -> Identity:
    """Who asks: by key, or by a ticket where no header can be sent.

    `lasts` says that the answer is an event stream or a WebSocket, which a ticket may open.
    """
    if IDENTITY in request.scope:
        known_before: Identity = request.scope[IDENTITY]
        return known_before
    headers = request.headers
    if b"origin" not in headers and b"authorization" not in headers:
        known = host.access.known(headers.get(b"host"))
        if known is not None and b"ticket=" not in request.scope["query_string"]:
            return known
    wall_ns = host.clock.wall_ns()
    if b"ticket=" in request.scope["query_string"] and b"authorization" not in request.headers:
        if not lasts:
            # Not redeemed, or whoever finds one in a log could change it for another without end.
            raise errors.Unauthorized(
                "tickets open event streams and WebSockets only;"
                " send a key here, as Authorization: Bearer"
            )
        secret = request.parameters.get("ticket", "")
        identity = host.tickets.redeem(secret, host.clock.now_ns(), path=request.path)
        return host.access.confirm(identity, wall_ns)
    return host.access.admit(
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

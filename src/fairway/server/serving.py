"""Runs an app behind HTTP: uvicorn with our protocol class, from the first byte to the last.

The socket is open before the data is recovered, and answers 503 `not_ready` until then. A stop
refuses new work, ends streams and long polls, drains what was accepted, and closes; a second one
ends at once. A server whose log was taken over by another answers 503 from then on, ends its
streams, and stands by again if that was asked for; else it ends.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import sys
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError, Fenced, NotFound
from fairway.runtime.blocking import BlockingPool
from fairway.server.access.auth import OpenAccess, ReloadedKeys, check_bind
from fairway.server.access.cors import Cors
from fairway.server.context import ServerContext
from fairway.server.fronts import FRONTS
from fairway.server.http.asgi import HttpApp, Mount, identify
from fairway.server.http.exchange import Request
from fairway.server.http.limits import HttpLimits
from fairway.server.http.listener import HttpListener, listening
from fairway.server.http.problems import problem
from fairway.server.http.protocol import HttpProtocol
from fairway.server.http.socket_protocol import SocketProtocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import uvicorn

    from fairway.app import Fairway
    from fairway.runtime.service import StopSwitch
    from fairway.runtime.turn import TurnBudget
    from fairway.server.front import Fronts
    from fairway.server.http.exchange import Receive, Reply, Scope, Send
    from fairway.server.http.held_bytes import HeldBytes
    from fairway.settings import ServerSettings
    from fairway.storage.partitions import Partitions

logger = logging.getLogger("fairway.server")

EXPOSED: Final = ("fairway-gap", "retry-after", "location", "etag")


class Server:
    """One app on one address."""

    def __init__(
        self,
        app: Fairway,
        settings: ServerSettings,
        *,
        limits: HttpLimits | None = None,
        fronts: Fronts = FRONTS,
    ) -> None:
        check_bind(settings.host, keyed=settings.keyed, allow_insecure=settings.allow_insecure)
        self.app = app
        self.settings = settings
        self.ready = asyncio.Event()
        """Set once requests are served."""
        self.port = settings.port
        self._fronts = fronts
        self._http = HttpApp(fronts.routes, lambda: app.progress, turn=app.turn)
        self._limits = limits or HttpLimits()
        self._protocol = HttpProtocol.limited_to(self._limits, self._http)
        for front in fronts:
            if front.mount is not None:  # a path that is known, before it can be served
                self._http.mounts[front.mount] = Mount(_not_mounted, front.lasts)

    @property
    def url(self) -> str:
        scheme = "https" if self.settings.tls_cert is not None else "http"
        host = self.settings.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def context(self) -> ServerContext | None:
        """What requests share; None before the server is ready, and while it stands by."""
        return self._http.context

    @property
    def held(self) -> HeldBytes:
        """What all connections make it hold."""
        return self._protocol.held

    async def run(self, stop: StopSwitch) -> None:
        """Serve until `stop` is requested; if again, or before it is ready, end at once.

        Raises what kept it from starting as itself (`AlreadyOwned`, `InvalidConfig`).
        """
        try:
            with _interpreter_for_serving(self.app.turn):
                async with asyncio.TaskGroup() as group:
                    serving = group.create_task(self._serve(stop), name="server")
                    ending = group.create_task(self._end(stop, serving), name="server-end")
                    await asyncio.wait({serving})
                    ending.cancel()
        except BaseExceptionGroup as failures:
            cause: BaseException = failures
            while isinstance(cause, BaseExceptionGroup) and len(cause.exceptions) == 1:
                cause = cause.exceptions[0]
            raise cause from None

    async def _end(self, stop: StopSwitch, serving: asyncio.Task[None]) -> None:
        await stop.wait_requested()
        self._http.stopping = True
        if self.ready.is_set():
            await stop.wait_forced()
        serving.cancel()

    async def _serve(self, stop: StopSwitch) -> None:
        uvicorn_server = HttpListener(self._config(), turn=self.app.turn)
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(BlockingPool(1, name="server"))
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(uvicorn_server.run_until_asked(), name="http")
                await uvicorn_server.wait_listening()
                if serving.done():
                    return  # the group raises what it met
                self.port = uvicorn_server.port
                while (lost := await self._own(stop, pool, uvicorn_server, serving)) is not None:
                    if not self.app.stands_by_again:
                        self._http.stopping = True
                        uvicorn_server.should_exit = True
                        await asyncio.wait({serving})
                        raise Fenced(f"{lost}; this server ends (--standby would take over again)")
                    logger.warning("standing by again: %s", lost)

    async def _own(
        self,
        stop: StopSwitch,
        pool: BlockingPool,
        uvicorn_server: HttpListener,
        serving: asyncio.Task[None],
    ) -> Fenced | None:
        """Serve while the log is ours. Returns why it is not any more; None after a stop."""
        async with self.app:
            kernel = self.app.kernel
            kernel.acknowledge_in_turns()
            async with self._context_of(pool, uvicorn_server) as context:
                self.ready.set()
                await self._until(stop, serving)
                lost = kernel.partitions.lost
                if lost is not None:
                    self.ready.clear()
                    self._http.fenced_by = None if self.app.stands_by_again else lost
                    self._http.context = None  # from here on: not ready
                    context.dismiss(lost)
                context.stop_admitting()
                if lost is None:
                    uvicorn_server.should_exit = True
                    await asyncio.wait({serving})
            self._http.context = None
        return lost

    async def _until(self, stop: StopSwitch, listening: asyncio.Task[None]) -> None:
        """Until there is a reason to serve no longer: a stop, or the loss of the log."""
        async with asyncio.TaskGroup() as group:
            requested = group.create_task(stop.wait_requested())
            replaced = group.create_task(_wait_lost(self.app.kernel.partitions))
            awaited = {requested, listening, replaced}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            requested.cancel()
            replaced.cancel()

    def _context_of(self, pool: BlockingPool, uvicorn_server: HttpListener) -> ServerContext:
        """What requests share from here on, while the log is ours."""

        def withhold_unsent() -> None:
            for connection in list(uvicorn_server.server_state.connections):
                if isinstance(connection, HttpProtocol):
                    connection.withhold_unsent()

        settings = self.settings
        cors = Cors(settings.cors_origins, exposed=EXPOSED)
        keys = ReloadedKeys(settings.key_source(), pool=pool) if settings.keyed else None
        context = ServerContext(
            self.app,
            self._fronts,
            settings,
            access=keys.access if keys else OpenAccess(cors, insecure=settings.allow_insecure),
            keys=keys,
            cors=cors,
            random_bytes=secrets.token_bytes,
            pool=pool,
            held=self.held,
            withhold_unsent=withhold_unsent,
        )
        gauge = self.app.kernel.telemetry.gauge
        gauge("fairway_connections", "Open connections", lambda: len(self._protocol.peers))
        gauge(
            "fairway_connections_strangers",
            "Open connections that have shown no key that is good",
            lambda: self._protocol.peers.strangers,
        )
        gauge(
            "fairway_held_bytes",
            "Bytes of bodies, of answers being built and of unread ones that are in memory",
            lambda: self._protocol.held.used,
        )
        for front in self._fronts:
            if front.mount is not None:
                self._http.mounts[front.mount] = Mount(front.application(context), front.lasts)
        self._http.ownership = context.ownership
        self._http.context = context
        return context

    def _config(self) -> uvicorn.Config:
        settings = self.settings
        config = listening(
            self._asgi,
            settings.host,
            settings.port,
            http=self._protocol,
            ws=type(
                "SocketProtocol",
                (SocketProtocol,),
                {"site": self._http, "turn": self.app.turn},
            ),
            ws_max_size=self._limits.body_bytes_max,
            backlog=2048,
        )
        config.load()
        tls = settings.tls_context()
        if tls is not None:
            config.ssl = tls
        return config

    async def _asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["method"] = "GET"
        request = Request(scope, receive)
        await receive()
        try:
            found = self._fronts.sockets.find(scope["path"])
            if found is None:
                raise NotFound("socket", scope["path"][:200])
            route, arguments = found[0]["GET"], found[1]
            self._http.check_owned(scope)
            context = self._http.context
            if context is None:
                await _refuse(send, self._http.not_ready())
                return
            request.query(route.parameters)
            request.identity = identify(context, request, lasts=True)
            scope["query_string"] = b""  # uvicorn logs it, and it may hold a ticket
            await route.handler(context, request, receive, send, *arguments)
        except FairwayError as error:
            scope["query_string"] = b""
            await _refuse(send, problem(error))


async def _refuse(send: Send, reply: Reply) -> None:
    """Answer a handshake as a request, since it becomes no WebSocket."""
    await send(
        {
            "type": "websocket.http.response.start",
            "status": reply.status,
            "headers": list(reply.headers),
        }
    )
    await send({"type": "websocket.http.response.body", "body": reply.body})


@contextmanager
def _interpreter_for_serving(turn: TurnBudget) -> Iterator[None]:
    """The interpreter's settings of a process that serves, for as long as it does."""
    before = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(min(before[0], turn.switch_interval_ns / 1e9))
    gc.set_threshold(*turn.gc_thresholds)
    try:
        yield
    finally:
        sys.setswitchinterval(before[0])
        gc.set_threshold(*before[1])


async def _wait_lost(log: Partitions) -> None:
    """Until the log belongs to another process."""
    lost = asyncio.Event()

    def on_lost(error: Fenced) -> None:
        lost.set()

    log.when_lost.append(on_lost)
    try:
        if log.lost is None:
            await lost.wait()
    finally:
        log.when_lost.remove(on_lost)


async def _not_mounted(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nothing is served before there is a context")

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
from fairway.graphs.loading import Folder
from fairway.runtime.blocking import BlockingPool
from fairway.server.asgi import HttpApp, identify
from fairway.server.auth import Cors, LiveKeys, OpenAccess, check_bind
from fairway.server.exchange import Request
from fairway.server.graphs_socket import place_of, serve_graph_socket
from fairway.server.host import Host
from fairway.server.http_limits import HttpLimits
from fairway.server.http_protocol import HttpProtocol
from fairway.server.listener import Listener, listening
from fairway.server.problems import problem
from fairway.server.routes import ROUTES
from fairway.server.socket_protocol import SocketProtocol
from fairway.server.streams.app import StreamsApp
from fairway.server.streams.protocol import PREFIX
from fairway.server.websocket import serve_socket

if TYPE_CHECKING:
    from collections.abc import Iterator

    import uvicorn

    from fairway.app import Fairway
    from fairway.runtime.service import StopSwitch
    from fairway.server.auth import Access
    from fairway.server.exchange import Receive, Reply, Scope, Send
    from fairway.server.held_bytes import HeldBytes
    from fairway.server.streams.live import StreamsConfig
    from fairway.settings import ServerSettings
    from fairway.storage.log import Log

logger = logging.getLogger("fairway.server")

SWITCH_S: Final = 0.0001
"""How long a thread that writes to the disk waits for the interpreter while the loop is busy.

Python's own 5 ms would be most of a write's time under load: a write needs it several times.
"""
TOLD_PER_TURN: Final = 12
"""Writes answered in one turn of the loop: about half a millisecond of work."""
COLLECT_AFTER: Final = (10_000, 20, 50)
"""How often the collector looks: almost nothing of a request is in a cycle."""
EXPOSED: Final = ("fairway-gap", "retry-after", "location", "etag")


class Server:
    """One app on one address."""

    def __init__(
        self,
        app: Fairway,
        settings: ServerSettings,
        *,
        limits: HttpLimits | None = None,
        streams: StreamsConfig | None = None,
    ) -> None:
        check_bind(settings.host, keyed=settings.keyed, allow_insecure=settings.allow_insecure)
        self.app = app
        self.settings = settings
        self.ready = asyncio.Event()
        """Set once requests are served."""
        self.port = settings.port
        self._http = HttpApp(ROUTES, lambda: app.progress)
        self._limits = limits or HttpLimits()
        self._protocol = HttpProtocol.limited_to(self._limits, self._http)
        self._streams = streams
        self._host: Host | None = None
        self._http.mounts[PREFIX] = _not_mounted  # a path that is known, before it can be served

    @property
    def url(self) -> str:
        scheme = "https" if self.settings.tls_cert is not None else "http"
        host = self.settings.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def held(self) -> HeldBytes:
        """What all connections make it hold."""
        return self._protocol.held

    async def run(self, stop: StopSwitch) -> None:
        """Serve until `stop` is pressed; pressed again, or before it is ready, end at once.

        Raises what kept it from starting as itself (`AlreadyOwned`, `InvalidConfig`).
        """
        try:
            with _interpreter_for_serving():
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
        await stop.wait_pressed()
        if self.ready.is_set():
            await stop.wait_insisted()
        serving.cancel()

    async def _serve(self, stop: StopSwitch) -> None:
        uvicorn_server = Listener(self._config())
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(BlockingPool(1, name="server"))
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(uvicorn_server.run_until_asked(), name="http")
                await uvicorn_server.wait_listening()
                if serving.done():
                    return  # the group raises what it met
                self.port = uvicorn_server.port
                while (
                    lost := await self._own(stop, group, pool, uvicorn_server, serving)
                ) is not None:
                    if not self.app.stands_by_again:
                        uvicorn_server.should_exit = True
                        await asyncio.wait({serving})
                        raise Fenced(f"{lost}; this server ends (--standby would take over again)")
                    logger.warning("standing by again: %s", lost)

    async def _own(
        self,
        stop: StopSwitch,
        group: asyncio.TaskGroup,
        pool: BlockingPool,
        uvicorn_server: Listener,
        serving: asyncio.Task[None],
    ) -> Fenced | None:
        """Serve while the log is ours. Returns why it is not any more; None after a stop."""
        async with self.app:
            log = self.app.log
            log.told_per_turn = TOLD_PER_TURN
            services = [*self._start(group, pool)]
            if self.settings.graphs is not None:
                folder = Folder(self.app.graphs, self.settings.graphs, pool=pool)
                await folder.look(at_once=True)
                services.append(group.create_task(folder.run(), name=folder.name))
            self.ready.set()
            await self._until(stop, serving)
            host, lost = self._host, log.lost
            assert host is not None
            if lost is not None:
                self.ready.clear()
                self._http.fenced_by = None if self.app.stands_by_again else lost
                self._http.host = None  # from here on: not ready
                host.dismiss(lost)
            self.app.topics.stop_admitting()
            host.polls.stop()
            if lost is None:
                uvicorn_server.should_exit = True
                await asyncio.wait({serving})
            for service in services:
                service.cancel()
            self._http.host = None
        return lost

    async def _until(self, stop: StopSwitch, listening: asyncio.Task[None]) -> None:
        """Until there is a reason to serve no longer: a stop, or the loss of the log."""
        async with asyncio.TaskGroup() as group:
            pressed = group.create_task(stop.wait_pressed())
            replaced = group.create_task(_wait_lost(self.app.log))
            awaited = {pressed, listening, replaced}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            pressed.cancel()
            replaced.cancel()

    def _start(self, group: asyncio.TaskGroup, pool: BlockingPool) -> Iterator[asyncio.Task[None]]:
        settings = self.settings
        cors = Cors(settings.cors_origins, exposed=EXPOSED)
        access: Access
        if settings.keyed:
            keys = LiveKeys(settings.key_source(), pool=pool)
            access = keys.access
            yield group.create_task(keys.run(), name="keys")
        else:
            access = OpenAccess(cors, insecure=settings.allow_insecure)
        host = Host(
            self.app.topics,
            self.app.jobs,
            self.app.flows,
            self.app.graphs,
            access=access,
            cors=cors,
            random_bytes=secrets.token_bytes,
            pool=pool,
            held=self.held,
            meanwhile=self.app.log.press_on,
        )
        if settings.keyed:
            keys.access.listen(lambda gone: host.quotas.retain(keys.access.keyring.names))
            keys.access.listen(lambda gone: host.review())
        gauge = self.app.topics.telemetry.gauge
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
        yield group.create_task(host.run(), name="host")
        streams = StreamsApp(self.app.topics, config=self._streams, meter=host, pages=host.pages)
        streams.start()  # not at the first request: what expired meanwhile goes though nobody asks
        self._http.mounts[PREFIX] = streams
        self._http.ownership = self.app.log.ownership
        self._http.host = self._host = host

    def _config(self) -> uvicorn.Config:
        settings = self.settings
        config = listening(
            self._asgi,
            settings.host,
            settings.port,
            http=self._protocol,
            ws=type("SocketProtocol", (SocketProtocol,), {"site": self._http}),
            ws_max_size=self._limits.body_bytes_max,
            backlog=2048,
        )
        config.load()
        context = settings.tls_context()
        if context is not None:
            config.ssl = context
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
            place = place_of(scope["path"])
            if place is None and scope["path"] != "/v0/ws":
                raise NotFound("socket", scope["path"][:200])
            self._http.check_owned(scope)
            host = self._http.host
            if host is None:
                await _refuse(send, self._http.not_ready())
                return
            request.query(() if place is None else ("tenant",))
            identity = identify(host, request, lasts=True)
            scope["query_string"] = b""  # uvicorn logs it, and it may hold a ticket
            if place is None:
                await serve_socket(host, identity, request, receive, send)
            else:
                await serve_graph_socket(host, identity, request, place, receive, send)
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
def _interpreter_for_serving() -> Iterator[None]:
    """The interpreter's settings of a process that serves, for as long as it does."""
    before = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(min(before[0], SWITCH_S))
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        sys.setswitchinterval(before[0])
        gc.set_threshold(*before[1])


async def _wait_lost(log: Log) -> None:
    """Until the log belongs to another process."""
    lost = asyncio.Event()

    def tell(error: Fenced) -> None:
        lost.set()

    log.when_lost.append(tell)
    try:
        if log.lost is None:
            await lost.wait()
    finally:
        log.when_lost.remove(tell)


async def _not_mounted(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("nothing is served before the host is there")

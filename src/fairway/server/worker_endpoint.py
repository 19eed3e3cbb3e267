"""What a worker process shows of itself over HTTP: health, readiness and metrics, nothing else.

Rendered as the server renders them. There are no keys: it listens on loopback, and answers web
pages of other origins there as little as a server without keys does, unless it was told otherwise.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fairway.errors import InvalidConfig
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.runtime.lifecycle import Lifecycle
from fairway.server.access.auth import OpenAccess
from fairway.server.access.cors import Cors, is_loopback
from fairway.server.http import metrics
from fairway.server.http.asgi import HttpApp
from fairway.server.http.exchange import Reply, json_reply
from fairway.server.http.limits import HttpLimits
from fairway.server.http.listener import HttpListener, listening
from fairway.server.http.protocol import HttpProtocol
from fairway.server.http.router import Route, Routes
from fairway.wire.server import Health, WorkerReadiness

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.telemetry import Telemetry
    from fairway.server.context import ServerContext
    from fairway.server.http.exchange import Request

LIMITS: Final = HttpLimits(body_bytes_max=65_536, connections_max=64)
"""Whoever scrapes needs few connections and no body."""


async def healthz(context: ServerContext | None, request: Request) -> Reply:
    return json_reply(Health(status="ok"))


def _starting() -> WorkerReadiness:
    return WorkerReadiness(ready=False, reason="starting")


class WorkerEndpoint(Lifecycle):
    """Answers `/healthz`, `/readyz` and `/metrics` while it is entered.

    `port` 0 takes any free one; `port` is the one it has from then on. Raises `InvalidConfig` for
    an address that is not its own, or not on loopback unless `allow_insecure`.
    """

    def __init__(
        self, telemetry: Telemetry, host: str, port: int, *, allow_insecure: bool = False
    ) -> None:
        if not allow_insecure and not is_loopback(host.lower().removesuffix(".")):
            raise InvalidConfig(
                f"refusing to show metrics on {host}: whoever can reach it could read them."
                " Listen on 127.0.0.1, or say --allow-insecure"
            )
        self.host = host
        self.port = port
        self.readiness: Callable[[], WorkerReadiness] = _starting
        """Asked at each look; set once there is a worker."""
        self._telemetry = telemetry
        self._access = OpenAccess(Cors(()), insecure=allow_insecure)
        routes = [
            Route("GET", "/healthz", healthz, "Whether it lives", public=True, vital=True),
            Route("GET", "/readyz", self._readyz, "Whether it takes work", public=True, vital=True),
            Route("GET", "/metrics", self._metrics, "Metrics for Prometheus", public=True),
        ]
        self._http = HttpApp(Routes(routes), dict)

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def open(self) -> None:
        config = listening(
            self._http,
            self.host,
            self.port,
            http=HttpProtocol.limited_to(LIMITS, self._http),
            ws="none",
        )
        config.load()
        self._listener = listener = HttpListener(config)
        self._serving = self.spawn(listener.run_until_asked(), "worker-endpoint")
        await listener.wait_listening()
        if self._serving.done():  # it could not listen
            await self._serving
        self.port = listener.port

    async def drain(self) -> None:
        """Answer what was asked, then stop listening."""
        self._listener.should_exit = True
        await asyncio.wait({self._serving})

    async def _readyz(self, context: ServerContext | None, request: Request) -> Reply:
        readiness = self.readiness()
        return json_reply(readiness, 200 if readiness.ready else 503)

    async def _metrics(self, context: ServerContext | None, request: Request) -> Reply:
        self._access.admit(
            authorization=None,
            host=request.header(b"host"),
            origin=request.header(b"origin"),
            wall_ns=SYSTEM_CLOCK.wall_ns(),
        )
        return metrics.reply(self._telemetry)

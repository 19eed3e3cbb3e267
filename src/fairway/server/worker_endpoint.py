"""What a worker process shows of itself over HTTP: health, readiness and metrics, nothing else.

Rendered as the server renders them. There are no keys: it listens on loopback, and answers web
pages of other origins there as little as a server without keys does, unless it was told otherwise.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fairway.errors import InvalidConfig
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.server.asgi import HttpApp, Route, Routes
from fairway.server.auth import Cors, OpenAccess, is_loopback
from fairway.server.exchange import Reply, json_reply
from fairway.server.http_limits import HttpLimits
from fairway.server.http_protocol import HttpProtocol
from fairway.server.listener import Listener, listening
from fairway.server.system_api import healthz, metrics_reply
from fairway.wire.server import WorkerReadiness

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from fairway.runtime.telemetry import Telemetry
    from fairway.server.exchange import Request
    from fairway.server.host import Host

LIMITS: Final = HttpLimits(body_bytes_max=65_536, connections_max=64)
"""Whoever scrapes needs few connections and no body."""


def _starting() -> WorkerReadiness:
    return WorkerReadiness(ready=False, reason="starting")


class WorkerEndpoint:
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
            Route("GET", "/healthz", healthz, "Whether the process answers", public=True),
            Route("GET", "/readyz", self._readyz, "Whether it takes work", public=True),
            Route("GET", "/metrics", self._metrics, "Metrics for Prometheus", public=True),
        ]
        self._http = HttpApp(Routes(routes), dict)
        self._group = asyncio.TaskGroup()

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        config = listening(
            self._http,
            self.host,
            self.port,
            http=HttpProtocol.limited_to(LIMITS, self._http),
            ws="none",
        )
        config.load()
        self._listener = listener = Listener(config)
        await self._group.__aenter__()
        serving = self._group.create_task(listener.run_until_asked(), name="worker-endpoint")
        await listener.wait_listening()
        if serving.done():  # it could not listen
            try:
                await self._group.__aexit__(None, None, None)
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
        self.port = listener.port
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.should_exit = True
        await self._group.__aexit__(None, None, None)

    async def _readyz(self, host: Host | None, request: Request) -> Reply:
        readiness = self.readiness()
        return json_reply(readiness, 200 if readiness.ready else 503)

    async def _metrics(self, host: Host | None, request: Request) -> Reply:
        self._access.admit(
            authorization=None,
            host=request.header(b"host"),
            origin=request.header(b"origin"),
            wall_ns=SYSTEM_CLOCK.wall_ns(),
        )
        return metrics_reply(self._telemetry)

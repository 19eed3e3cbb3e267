"""uvicorn as we host it: with our protocol class, without its signals, logs and headers."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from fairway.errors import InvalidConfig
from fairway.runtime.turn import TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.runtime.turn import TurnBudget

GRACE_S: Final = 2
"""How long a stop waits for requests under way before it cuts them off."""


def listening(
    app: Callable[..., Any], host: str, port: int, *, http: Any, **options: Any
) -> uvicorn.Config:
    """How to listen there; `options` are further ones of uvicorn's."""
    return uvicorn.Config(
        app,
        host=host,
        port=port,
        http=http,
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE_S,
        **options,
    )


class HttpListener(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs the server owns those."""

    def __init__(self, config: uvicorn.Config, *, turn: TurnBudget = TURN) -> None:
        super().__init__(config)
        self._accepted_per_turn = turn.connections_per_turn
        self.listening = asyncio.Event()

    async def run_until_asked(self) -> None:
        """Serve until `should_exit`; whoever waits for it to listen does not wait in vain."""
        try:
            await self.serve()
        finally:
            self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # the reason is in its log
            config = self.config
            raise InvalidConfig(
                f"cannot listen on {config.host}:{config.port}: it is taken, or not ours"
            ) from None
        await self._accept_faster()
        self.listening.set()

    async def _accept_faster(self) -> None:
        """Listen on the same sockets through more handles: libuv takes one connection in a turn for
        each. With one handle, the last of a few thousand that come at once would wait for seconds.
        """
        loop = asyncio.get_running_loop()
        if loop.__class__.__module__.partition(".")[0] != "uvloop":
            return  # asyncio takes all that wait
        config = self.config
        for listener in [held for server in self.servers for held in server.sockets]:
            for _ in range(self._accepted_per_turn - 1):
                again = socket.socket(fileno=os.dup(listener.fileno()))
                self.servers.append(
                    await loop.create_server(
                        self._make_protocol, sock=again, ssl=config.ssl, backlog=config.backlog
                    )
                )

    def _make_protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        return protocol

    async def wait_listening(self) -> None:
        await self.listening.wait()

    @property
    def port(self) -> int:
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

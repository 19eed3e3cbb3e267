"""uvicorn as we host it: with our protocol class, without its signals, logs and headers."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from fairway.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs the server owns those."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
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
        self.listening.set()

    async def wait_listening(self) -> None:
        await self.listening.wait()

    @property
    def port(self) -> int:
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

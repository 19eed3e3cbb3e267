"""A proxy before PostgreSQL that passes everything on at once, and the end of a session later.

So it is behind a pooler, or on a network that loses packets: the server answered that it ended the
session, the client has read that, and the connection is still open.

    async with LateClose(server.directory) as proxy:
        ... proxy.url ...
        await proxy.wait_ended(2)      # the server has ended so many sessions
        proxy.let_close()              # now clients see it
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.support.postgres import USER

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

PORT = 5432
"""In the name of the server's socket."""


class LateClose:
    def __init__(self, directory: Path, *, delay_s: float | None = None) -> None:
        """Clients see the end of a session after `delay_s`; without it, when they are let."""
        self._delay_s = delay_s
        self._socket = directory / f".s.PGSQL.{PORT}"
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._may_close = asyncio.Event()
        self.ended = 0
        """Sessions that the server ended; their clients were sent all its answers before."""

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{USER}@127.0.0.1:{port}/postgres"

    async def wait_ended(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.ended >= count)

    def let_close(self) -> None:
        self._may_close.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server, to_server = await asyncio.open_unix_connection(self._socket)
        try:
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(_pass(client, to_server))
                answering = group.create_task(_pass(server, to_client))
                await asyncio.wait({asking, answering}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    async with self._changed:
                        self.ended += 1
                        self._changed.notify_all()
                    closing = group.create_task(self._may_close.wait())
                    await asyncio.wait(
                        {asking, closing},
                        timeout=self._delay_s,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    closing.cancel()
                asking.cancel()
                answering.cancel()
        finally:
            to_server.close()
            to_client.close()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until the source ends. What the sink no longer takes is thrown away, as a network does."""
    while data := await _read(source):
        try:
            sink.write(data)
            await sink.drain()
        except OSError:
            continue


async def _read(source: asyncio.StreamReader) -> bytes:
    try:
        return await source.read(65_536)
    except OSError:
        return b""

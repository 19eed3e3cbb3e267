"""The sending half of a WebSocket: a bounded queue of messages, and the key it is open under."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.server.http.problems import status_of
from fairway.server.http.socket_protocol import WRITTEN_MAX

if TYPE_CHECKING:
    from fairway.errors import FairwayError
    from fairway.server.access.auth import Identity
    from fairway.server.access.quotas import KeyUsage
    from fairway.server.context import ServerContext
    from fairway.server.http.exchange import Send
    from fairway.wire.requests import RequestId

BUFFER_BYTES: Final = 256 * 1024
"""What a socket may have queued and unsent, pongs included."""
QUEUE_BYTES: Final = BUFFER_BYTES - WRITTEN_MAX


class Socket:
    """One WebSocket. What it says, and what it does for a message, is for a front to add."""

    def __init__(self, context: ServerContext, identity: Identity, send: Send) -> None:
        self._context = context
        self._identity = identity
        self._send = send
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._end: str | None = None
        self._over = False
        """Nothing is sent any more."""

    def _queue(self, message: bytes) -> None:
        if self._over:
            return
        self._out.append(message)
        self._out_bytes += len(message)
        self._more.set()

    @property
    def queued_bytes(self) -> int:
        """What was said and not sent yet."""
        return self._out_bytes

    async def flush(self) -> None:
        """Send what is queued, for as long as the socket lives."""
        try:
            while self._end is None or self._out:
                await self._more.wait()
                while self._out:
                    message = self._out.popleft()
                    await self._send({"type": "websocket.send", "text": message.decode()})
                    self._out_bytes -= len(message)
                    if self._out_bytes <= QUEUE_BYTES // 2:
                        self._drained()
                self._more.clear()
            await self._send({"type": "websocket.close", "code": 1008, "reason": self._end})
        except (OSError, RuntimeError):
            return  # the client is gone, which the reading side is told too
        finally:
            self._over = True
            self._room.set()  # the reading side may wait for it, and would never be told

    def _drained(self) -> None:
        """There is room again."""
        self._room.set()

    async def wait_room(self) -> None:
        """Whoever sends requests without reading the answers waits until it has read some."""
        if self._out_bytes > QUEUE_BYTES and not self._over:
            self._room.clear()
            await self._room.wait()

    def end(self, reason: FairwayError) -> None:
        """Send what is queued, then close and say why."""
        self._end = status_of(reason)[1]
        self._more.set()

    def begin(self) -> KeyUsage | None:
        """Count a request, as `ServerContext.begin` does, for the key as it is now.

        Its quota may be another one than when the socket was opened, and that is no reason to end
        it: what is counted by an old quota would bring that back for all who use the key.
        """
        context = self._context
        self._identity = context.access.confirm(self._identity, context.clock.wall_ns())
        return context.begin(self._identity)


def given(number: RequestId | None) -> RequestId | msgspec.UnsetType:
    """The id of an answer: that of its request, or none."""
    return msgspec.UNSET if number is None else number

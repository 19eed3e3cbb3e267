"""The floors, each a process of its own: `fanout`, `echo`, and `fairway` itself beside them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
import uvloop


class Fanout(asyncio.Protocol):
    """Whatever is posted goes to every socket that asked, in one write each, and nowhere else."""

    watching: ClassVar[set[asyncio.Transport]] = set()
    seq = 0

    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.Transport
        self.transport = transport
        self.buffer = b""

    def connection_lost(self, error: Exception | None) -> None:
        self.watching.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
                b"transfer-encoding: chunked\r\n\r\n" + _chunk(b"event: caught-up\n\n")
            )
            self.watching.add(self.transport)
            return
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self.buffer.find(b"content-length: ")
        length = int(self.buffer[at + 16 : self.buffer.find(b"\r", at)])
        if len(self.buffer) < end + 4 + length:
            return
        body, self.buffer = self.buffer[end + 4 :], b""
        Fanout.seq += 1
        record = body[len(b'{"records":[{"data":') : -len(b"}]}")]
        frame = _chunk(
            b'id: 1.%d\nevent: record\ndata: {"topic":"bench","epoch":1,"records":[{"$seq":%d,'
            b'"$ts":1794787200000,"data":%b}],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n'
            % (self.seq, self.seq, record, self.seq - 1, self.seq, self.seq)
        )
        for watcher in self.watching:
            watcher.write(frame)
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def fanout() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Fanout, "127.0.0.1", 0, backlog=2048)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def echo_app(scope: Any, receive: Any, send: Any) -> None:
    """The least an ASGI application does: read the body, decode it, answer JSON."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    import msgspec

    answer = msgspec.json.encode(msgspec.json.decode(body))
    length = (b"content-length", b"%d" % len(answer))
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"application/json"), length],
        }
    )
    await send({"type": "http.response.body", "body": answer})


class _AtOnce:
    """A site where every request begins at once and is the app's."""

    door = None
    ownership = None

    def admit(self, peer: Any, cycle: Any, begin: Any) -> None:
        begin()

    def line_up(self, peer: Any, head: Any, begin: Any) -> bool:
        return False

    def let_in(self, peer: Any, cycle: Any, begin: Any) -> None:
        begin()

    def lost(self, peer: Any) -> None: ...

    def answer_without_task(self, cycle: Any) -> bool:
        return False


async def echo(knows_heads: str = "") -> None:
    """On the server's own stack: uvicorn with our protocol class, as any app has it.

    With an argument it also knows the head of a request by the one before, as our server does.
    """
    from fairway.server.http.limits import HttpLimits
    from fairway.server.http.listener import listening
    from fairway.server.http.protocol import HttpProtocol

    config = listening(
        echo_app,
        "127.0.0.1",
        0,
        http=HttpProtocol.limited_to(HttpLimits(), _AtOnce() if knows_heads else None),
        ws="none",
    )
    config.load()
    await _Announcing(config).serve()


class _Announcing(uvicorn.Server):
    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print("port", self.servers[0].sockets[0].getsockname()[1], flush=True)


async def fairway(directory: str, topics: str = "{}", key: str = "") -> None:
    """The server itself, with the topics given as JSON: name to configuration.

    With a key it takes no request without it.
    """
    from fairway.app import Fairway
    from fairway.runtime.service import StopSwitch
    from fairway.server.serving import Server
    from fairway.settings import KeyEntry, ServerSettings

    app = Fairway(Path(directory))
    for name, config in json.loads(topics).items():
        app.topic(name, **config)
    digest = hashlib.sha256(key.encode()).digest()
    entry = KeyEntry(name="bench", digest=digest, scopes=frozenset({"admin"}))
    keys = (entry,) if key else ()
    server = Server(app, ServerSettings(port=0, data=Path(directory), api_keys=keys))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(StopSwitch()))
        await server.ready.wait()
        print("port", server.port, flush=True)


if __name__ == "__main__":
    uvloop.run(globals()[sys.argv[1]](*sys.argv[2:]))

"""What tests of Durable Streams share: a client of the bare app, and a server process to kill.

Run as a module, `python -m tests.support.streams DIRECTORY`, it serves streams and says its port.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairway.app import Fairway
from fairway.runtime.service import StopSwitch
from fairway.server.serving import Server
from fairway.server.streams.app import StreamsApp
from fairway.server.streams.live import StreamsConfig
from fairway.server.streams.protocol import PREFIX
from fairway.settings import ServerSettings
from tests.support.topics import topics_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fairway.server.auth import Identity
    from fairway.storage.wal import Wal
    from fairway.topics.engine import Topics, TopicsConfig

ROOT = Path(__file__).parents[2]
TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
LONG_POLL_NS = 2_000_000_000


@dataclass
class Answer:
    """One response, as far as it has come."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False

    @property
    def offset(self) -> str:
        return self.headers["stream-next-offset"]

    @property
    def events(self) -> list[tuple[str, str]]:
        """(event, data) of an event stream, joined as a browser joins them."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            name, *lines = block.split("\n")
            data = "\n".join(line.removeprefix("data:") for line in lines)
            found.append((name.removeprefix("event: "), data))
        return found

    @property
    def data(self) -> list[str]:
        return [data for name, data in self.events if name == "data"]

    @property
    def control(self) -> dict[str, Any]:
        """The last control event."""
        found: dict[str, Any] = json.loads(
            [data for name, data in self.events if name == "control"][-1]
        )
        return found


class Client:
    """Asks an ASGI app, without sockets: on virtual time if need be."""

    def __init__(self, app: StreamsApp, topics: Topics) -> None:
        self.app = app
        self.topics = topics
        self.identity: Identity | None = None

    async def __call__(
        self, method: str, path: str, body: bytes | str = b"", **headers: str
    ) -> Answer:
        """One request and its whole answer. `stream_seq="1"` is the header `stream-seq: 1`."""
        answer = Answer()
        await self.follow(answer, asyncio.Event(), method, path, body, **headers)
        return answer

    async def follow(
        self,
        answer: Answer,
        leave: asyncio.Event,
        method: str,
        path: str,
        body: bytes | str = b"",
        **headers: str,
    ) -> None:
        """The same, for an answer that lasts: `answer` grows as it comes."""
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if not asked:
                asked = True
                return {"type": "http.request", "body": sent, "more_body": False}
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {k.decode(): v.decode("latin-1") for k, v in message["headers"]}
            else:
                answer.body += message.get("body", b"")
                answer.ended = not message.get("more_body", False)

        sent = body.encode() if isinstance(body, str) else body
        where, _, query = path.partition("?")
        pairs = {name.replace("_", "-"): value for name, value in headers.items()}
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": PREFIX + where,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs.items()],
        }
        if self.identity is not None:
            scope["fairway.identity"] = self.identity
        await self.app(scope, receive, send)

    async def put(self, path: str, body: bytes | str = b"", **headers: str) -> Answer:
        return await self("PUT", path, body, **{"content_type": "text/plain", **headers})

    async def post(self, path: str, body: bytes | str = b"", **headers: str) -> Answer:
        return await self("POST", path, body, **{"content_type": "text/plain", **headers})

    async def get(self, path: str, **headers: str) -> Answer:
        return await self("GET", path, **headers)

    async def read_all(self, path: str, offset: str = "-1") -> bytes:
        """Everything behind an offset, chunk by chunk."""
        found = b""
        while True:
            answer = await self.get(f"{path}?offset={offset}")
            assert answer.status == 200, answer
            found += answer.body
            offset = answer.offset
            if "stream-up-to-date" in answer.headers:
                return found


@asynccontextmanager
async def streams_on(
    wal: Wal | None = None,
    *,
    config: StreamsConfig | None = None,
    topics_config: TopicsConfig | None = None,
) -> AsyncIterator[Client]:
    """A client of streams on a store in memory."""
    async with topics_on(wal, topics_config) as topics:
        yield Client(StreamsApp(topics, config=config), topics)


# A process


async def serve(directory: str) -> None:
    """The whole server, as `fairway serve` runs it."""
    settings = ServerSettings(port=0, data=Path(directory))
    config = StreamsConfig(long_poll_ns=LONG_POLL_NS)
    server = Server(Fairway(settings.data), settings, streams=config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(StopSwitch()))
        await server.ready.wait()
        print(server.port, flush=True)


class ServerProcess:
    """Serves the streams of a directory, in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.streams", str(directory)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._child.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._child.stdout.readline())}"

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        self._child.send_signal(how)
        assert self._child.stdout is not None
        self._child.stdout.close()
        return self._child.wait(timeout=30)


@contextmanager
def server_process(directory: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(directory)
    try:
        yield process
    finally:
        process.end()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

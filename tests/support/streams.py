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
from fairway.errors import FairwayError
from fairway.runtime.service import StopSwitch
from fairway.server.front import Fronts
from fairway.server.fronts import FRONTS
from fairway.server.fronts.streams.app import StreamsApp
from fairway.server.fronts.streams.front import StreamsFront
from fairway.server.fronts.streams.live import StreamsFrontConfig
from fairway.server.fronts.streams.protocol import PREFIX
from fairway.server.serving import Server
from fairway.settings import ServerSettings
from fairway.storage.wals.memory import MemoryWal
from fairway.streams.engine import Streams
from fairway.topics.engine import TopicsConfig
from fairway.topics.port import TopicsPort
from fairway.topics.retention import RetentionConfig
from fairway.wire.topics import TopicPatch
from tests.support.topics import topics_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from fairway.server.access.auth import Identity
    from fairway.server.fronts.streams.app import Meter
    from fairway.storage.wal import Wal
    from fairway.topics.engine import Topics

ROOT = Path(__file__).parents[2]
TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}
LONG_POLL_NS = 2_000_000_000
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
RETENTION_S = 2
"""Of virtual time: by then what a cap or a deletion leaves behind is trimmed, and let go."""
LOOK_AGAIN_S = 0.001
RETRY_S = 0.1
CLOSE = {"stream_closed": "true"}


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

    def __init__(self, app: StreamsApp, streams: Streams, topics: Topics) -> None:
        self.app = app
        self.streams = streams
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
    config: StreamsFrontConfig | None = None,
    topics_config: TopicsConfig | None = None,
    meter: Meter | None = None,
) -> AsyncIterator[Client]:
    """A client of streams on a store in memory."""
    async with (
        topics_on(wal, topics_config) as topics,
        Streams(TopicsPort(topics)) as streams,
    ):
        yield Client(StreamsApp(streams, config=config, meter=meter), streams, topics)


# Scenes


def producer(epoch: int, seq: int, name: str = "p") -> dict[str, str]:
    return {"producer_id": name, "producer_epoch": str(epoch), "producer_seq": str(seq)}


def small_chunks() -> TopicsConfig:
    return TopicsConfig(retention=RetentionConfig(chunk=1), hot_bytes=1)


async def capped(client: Client, path: str, appends: int, keep: int) -> list[str]:
    """A stream of single letters, of which the last few are kept; the offset after each."""
    await client.put(path)
    await client.topics.put(f"ds:{path}", TopicPatch(cap_records=keep))
    return [(await client.post(path, chr(97 + n))).offset for n in range(appends)]


async def settle_retention() -> None:
    await asyncio.sleep(RETENTION_S)


async def read_parts(client: Client, path: str, offset: str = "-1") -> list[Any]:
    """What a reader from `offset` on gets, bodies and losses, up to the end."""
    found: list[Any] = []
    while True:
        answer = await client.get(f"{path}?offset={offset}")
        if "stream-gap-from" in answer.headers:
            lost = answer.headers["stream-gap-from"], answer.headers["stream-gap-to"]
            found.append(tuple(map(int, lost)))
        if answer.status == 410:
            found.append(json.loads(answer.body)["error"]["detail"]["reason"])
        else:
            assert answer.status == 200, answer
            if answer.body:
                found.append(answer.body)
        if "stream-up-to-date" in answer.headers:
            return found
        assert answer.offset > offset
        offset = answer.offset


class Live:
    """An event stream that is being read."""

    def __init__(self, client: Client, path: str) -> None:
        self.client, self.path = client, path
        self.answer = Answer()
        self.leave = asyncio.Event()

    async def run(self) -> None:
        await self.client.follow(self.answer, self.leave, "GET", self.path)

    async def until(self, condition: Callable[[Answer], object]) -> None:
        async with asyncio.timeout(30):
            while not condition(self.answer):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_AGAIN_S)


class Ill:
    """A store whose next writes fail."""

    def __init__(self) -> None:
        self.full = False
        self.fails_in = 0
        """The write that fails, counted from the next as 1; 0 if none does."""
        self.wal = MemoryWal(before_write=self._check)

    def _check(self) -> None:
        self.fails_in = max(0, self.fails_in - 1)
        if self.full or self.fails_in == 1:
            raise OSError(28, "no space left on device")

    def fail_once(self, after: int = 0) -> None:
        self.fails_in = after + 2


async def recovered(client: Client) -> None:
    """Wait until the engine takes writes again."""
    async with asyncio.timeout(60):
        while True:
            try:
                client.topics.check_admits()
                return
            except FairwayError:
                await asyncio.sleep(RETRY_S)


# A process


async def serve(directory: str) -> None:
    """The whole server, as `fairway serve` runs it."""
    settings = ServerSettings(port=0, data=Path(directory))
    config = StreamsFrontConfig(long_poll_ns=LONG_POLL_NS)
    fronts = [StreamsFront(config) if front.mount else front for front in FRONTS]
    server = Server(Fairway(settings.data), settings, fronts=Fronts(fronts))
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

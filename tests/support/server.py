"""Servers for tests: one on the test's own loop, one as a process, and a client of raw sockets.

The client is small on purpose. It shows the bytes of an answer, holds a socket open without reading
it, closes half of it: what a library would hide is what these tests are about.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairway.app import Fairway
from fairway.runtime.service import StopSwitch
from fairway.server.fronts import FRONTS
from fairway.server.serving import Server
from fairway.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from fairway.server.front import Fronts
    from fairway.server.http.limits import HttpLimits

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0
"""How long anything here waits before it gives up: a hang, not a measure of speed."""
JSON = {"content-type": "application/json"}
STREAM_LINE_MAX = 64 * 1024 * 1024
WIRES: list[Wire] = []
"""Connections of the scenario that runs now."""


def run(scenario: Coroutine[Any, Any, Any], *, within_s: float = WAIT_S) -> Any:
    """Run a scenario on a loop of its own, as the server runs: on uvloop, within a deadline."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_tidy(scenario, within_s))


async def _tidy(scenario: Coroutine[Any, Any, Any], within_s: float) -> Any:
    """Run a scenario and close what it left open."""
    try:
        return await asyncio.wait_for(scenario, within_s)
    finally:
        while WIRES:
            wire = WIRES.pop()
            wire.abort()
            await wire.close()


async def until(condition: Callable[[], object], *, within_s: float = WAIT_S) -> None:
    """Let the loop turn until `condition` holds; it has no event of its own, and is near."""
    tick_s = 0.002
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(tick_s)


# --- a client


@dataclass(frozen=True)
class Answer:
    """A whole response, as it came."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for known, value in self.headers if known == name]
        assert len(found) <= 1, f"{name} is there {len(found)} times: {found}"
        return found[0] if found else None

    @property
    def json(self) -> Any:
        assert self.header("content-type") == "application/json", self.headers
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """What an error says; asserts that it is one, and nothing but one."""
        assert self.status >= 400, self
        body = self.json
        assert body.keys() == {"error"}, body
        error = body["error"]
        assert {"code", "message"} <= error.keys() <= {"code", "message", "detail"}, error
        assert isinstance(error["message"], str)
        assert error["message"]
        assert error.get("detail", {"": 0}), "an empty detail is left out"
        return error

    @property
    def code(self) -> str:
        return str(self.error["code"])


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        WIRES.append(self)

    @classmethod
    async def open(cls, port: int, *, receive_buffer: int | None = None) -> Wire:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            # A small limit stops reading early: then the sender feels that nobody reads.
            limit = STREAM_LINE_MAX if receive_buffer is None else 4096
            return cls(*await asyncio.open_connection(sock=sock, limit=limit))
        except BaseException:
            sock.close()
            raise

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        lines = [f"{method} {path} HTTP/1.1"]
        given = {"host": "localhost", **(headers or {})}
        if body is not None and "transfer-encoding" not in given:
            given.setdefault("content-length", str(len(body)))
        lines += [f"{name}: {value}" for name, value in given.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    async def head(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        async with asyncio.timeout(WAIT_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw.decode("latin-1").split("\r\n")
        pairs = [line.partition(": ") for line in lines[1:] if line]
        headers = tuple((name.lower(), value) for name, _, value in pairs)
        return int(lines[0].split()[1]), headers

    async def answer(self, *, head_only: bool = False) -> Answer:
        status, headers = await self.head()
        length = dict(headers).get("content-length")
        if head_only or length is None:
            assert head_only or status in (204, 304), headers
            return Answer(status, headers, b"")
        async with asyncio.timeout(WAIT_S):
            return Answer(status, headers, await self.reader.readexactly(int(length)))

    async def ended(self) -> bytes:
        """What comes until the other side closes."""
        async with asyncio.timeout(WAIT_S):
            return await self.reader.read()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        if self in WIRES:
            WIRES.remove(self)
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


async def deaf_socket(port: int, path: str) -> Wire:
    """A WebSocket whose client reads nothing but the answer to its handshake."""
    wire = await Wire.open(port, receive_buffer=4096)
    upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13"}
    wire.send("GET", path, headers={**upgrade, "sec-websocket-key": "eA" * 11 + "=="})
    assert (await wire.head())[0] == 101
    return wire


def text_frame(**message: Any) -> bytes:
    """A message for such a socket: a masked text frame whose mask is zero, so that its payload is
    itself."""
    text = json.dumps(message).encode()
    size = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2)
    return b"\x81" + size + bytes(4) + text


@dataclass(frozen=True)
class Event:
    """One server-sent event."""

    name: str
    data: Any = None
    id: str | None = None
    lines: tuple[bytes, ...] = ()

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]


class Ended(Exception):
    """The stream is over."""


class Events:
    """An open event stream. It is read only when somebody asks for the next event."""

    def __init__(self, wire: Wire, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        self.wire = wire
        self.status = status
        self.headers = dict(headers)
        self.last_id: str | None = None
        self.retry: int | None = None
        self.heartbeats = 0
        self._text = b""

    async def next(self, *, within_s: float = WAIT_S) -> Event:
        """The next event; comments and `retry` are counted and passed over. Raises `Ended`."""
        async with asyncio.timeout(within_s):
            while True:
                while b"\n\n" not in self._text:
                    await self._more()
                raw, _, self._text = self._text.partition(b"\n\n")
                event = self._event(raw)
                if event is not None:
                    return event

    async def named(self, *names: str) -> Event:
        """The next event of these names."""
        while (event := await self.next()).name not in names:
            pass
        return event

    async def records(self, count: int) -> list[dict[str, Any]]:
        """The next `count` records, whatever frames they come in."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            event = await self.named("record")
            found += event.data["records"]
        assert len(found) == count, f"{len(found)} records, {count} were due"
        return found

    async def seqs(self, count: int) -> list[int]:
        return [record["$seq"] for record in await self.records(count)]

    async def comment(self) -> None:
        """Wait for a heartbeat; an event that comes before it is an error."""
        before = self.heartbeats
        async with asyncio.timeout(WAIT_S):
            while self.heartbeats == before:
                while b"\n\n" not in self._text:
                    await self._more()
                raw, _, self._text = self._text.partition(b"\n\n")
                event = self._event(raw)
                assert event is None, event

    async def ended(self) -> list[Event]:
        """Every event until the stream ends."""
        events = []
        while True:
            try:
                events.append(await self.next())
            except Ended:
                return events

    async def close(self) -> None:
        await self.wire.close()

    async def _more(self) -> None:
        reader = self.wire.reader
        try:
            size = int((await reader.readuntil(b"\r\n")).strip(), 16)
            chunk = await reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Ended("cut off") from None
        if not size:
            raise Ended("properly")
        self._text += chunk[:-2]

    def _event(self, raw: bytes) -> Event | None:
        name, data, lines = "message", [], tuple(raw.split(b"\n"))
        for line in lines:
            field_name, _, value = line.partition(b": ")
            if field_name == b"id":
                self.last_id = value.decode()
            elif field_name == b"event":
                name = value.decode()
            elif field_name == b"data":
                data.append(value)
            elif field_name == b"retry":
                self.retry = int(value)
            elif line.startswith(b":"):
                self.heartbeats += 1
            else:
                raise AssertionError(f"not a line of an event stream: {line!r}")
        if not data:
            return None
        return Event(name, json.loads(b"\n".join(data)), self.last_id, lines)


class Api:
    """Calls to one server, each on a connection of its own."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.port = port
        self.headers = headers or {}

    def using(self, key: str) -> Api:
        """The same, with a key."""
        return Api(self.port, {**self.headers, "authorization": f"Bearer {key}"})

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {**self.headers, **(headers or {})}
        if body is not None:
            raw, sent = json.dumps(body).encode(), {**JSON, **sent}
        wire = await Wire.open(self.port)
        try:
            wire.send(method, path, raw, sent)
            return await wire.answer(head_only=method == "HEAD")
        finally:
            await wire.close()

    async def get(self, path: str, **more: Any) -> Answer:
        return await self.call("GET", path, **more)

    async def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return await self.call("POST", path, body, **more)

    async def put(self, path: str, body: Any = None, **more: Any) -> Answer:
        return await self.call("PUT", path, body, **more)

    async def delete(self, path: str, **more: Any) -> Answer:
        return await self.call("DELETE", path, **more)

    async def append(self, topic: str, *values: Any, **more: Any) -> Any:
        """Append values as records; the reply, which must be a success."""
        body = {"records": [{"data": value} for value in values], **more}
        answer = await self.post(f"/v0/topics/{topic}", body)
        assert answer.status in (200, 201), answer
        return answer.json

    async def diff(self, topic: str, from_seq: int = 0, **more: Any) -> Any:
        answer = await self.post(f"/v0/topics/{topic}/diff", {"from_seq": from_seq, **more})
        assert answer.status == 200, answer
        return answer.json

    async def state(self, topic: str) -> Any:
        answer = await self.get(f"/v0/topics/{topic}?touch=false")
        assert answer.status == 200, answer
        return answer.json

    async def read_all(self, topic: str) -> list[int]:
        """Every seq that can be read now."""
        found: list[int] = []
        page = await self.diff(topic, 0, limit=1000)
        while True:
            found += [record["$seq"] for record in page["records"]]
            if page["caught_up"]:
                return found
            page = await self.diff(topic, page["next_from_seq"], limit=1000)

    async def stream(
        self, path: str, *, receive_buffer: int | None = None, headers: dict[str, str] | None = None
    ) -> Events:
        """Open an event stream; the answer must be one."""
        wire = await Wire.open(self.port, receive_buffer=receive_buffer)
        wire.send("GET", path, headers={**self.headers, **(headers or {})})
        status, found = await wire.head()
        if status != 200:
            raise AssertionError(f"{path} answered {status}: {await wire.ended()!r}")
        return Events(wire, status, found)

    async def watch(self, topic: str, query: str = "", **more: Any) -> Events:
        return await self.stream(f"/v0/topics/{topic}/watch{query}", **more)

    async def session(self, **body: Any) -> str:
        """Make a watch session; the path of its stream."""
        answer = await self.post("/v0/watch", body)
        assert answer.status == 200, answer
        return str(answer.json["stream_url"])


# --- a server on the test's loop


@dataclass
class Served:
    """A running server, and everything behind it."""

    server: Server
    stop: StopSwitch
    api: Api = field(init=False)

    def __post_init__(self) -> None:
        self.api = Api(self.server.port)

    @property
    def app(self) -> Fairway:
        return self.server.app


@asynccontextmanager
async def serving(
    place: Any,
    *,
    limits: HttpLimits | None = None,
    app: Fairway | None = None,
    fronts: Fronts = FRONTS,
    **settings: Any,
) -> AsyncIterator[Served]:
    """A server on a free port of loopback, until the block is left."""
    made = app if app is not None else Fairway(place)
    server = Server(made, ServerSettings(port=0, **settings), limits=limits, fronts=fronts)
    stop = StopSwitch()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run(stop))
        ready = group.create_task(server.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.done():
            return
        try:
            yield Served(server, stop)
        finally:
            stop.request_stop()
            await asyncio.wait({running})


class Site:
    """A server that several tests share, on a loop that turns only while one of them runs."""

    def __init__(self, runner: asyncio.Runner, served: Served) -> None:
        self._runner = runner
        self.served = served
        self.api = served.api

    def run(self, scenario: Coroutine[Any, Any, Any], *, within_s: float = WAIT_S) -> Any:
        return self._runner.run(_tidy(scenario, within_s))


@contextmanager
def shared_site(place: Any, **options: Any) -> Iterator[Site]:
    """For a fixture that lasts a module. Tests keep apart by the names of their topics."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        context = serving(place, **options)
        served = runner.run(context.__aenter__())
        try:
            yield Site(runner, served)
        finally:
            runner.run(context.__aexit__(None, None, None))


# --- a server as a process


class ServerProcess:
    """A real `fairway serve`. Whoever starts it ends it: `with server_process(...)` does so."""

    def __init__(self, data: Path, *options: str, port: int = 0, module: str = "fairway") -> None:
        self.started_s = time.monotonic()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", module, "serve"),
                *("--data", str(data), "--port", str(port), *options),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.port = port

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def errors(self) -> str:
        """What it wrote to its standard error so far."""
        self._log.seek(0)
        return self._log.read().decode()

    def wait_ready(self) -> ServerProcess:
        """Until it says where it serves, which it does once requests are served."""
        assert self._child.stdout is not None
        while not (line := self._child.stdout.readline().decode()).startswith("Fairway serves "):
            assert line, f"it ended with {self._child.wait()}: {self.errors}"
        self.port = int(line.rsplit(":", 1)[1].strip("/\n"))
        return self

    def wait_standing_by(self) -> ServerProcess:
        """Until it says where it listens while another process has the data."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline().decode()
        assert line.startswith("Fairway stands by for "), f"{line}{self.errors}"
        self.port = int(line.partition(" at http://")[2].split()[0].rsplit(":", 1)[1])
        return self

    @property
    def api(self) -> Api:
        return Api(self.port)

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self, within_s: float = WAIT_S) -> int:
        return self._child.wait(within_s)

    @property
    def ended(self) -> bool:
        return self._child.poll() is not None

    def kill(self) -> None:
        self._child.kill()
        assert self._child.wait() == -signal.SIGKILL, f"it had died before: {self.errors}"

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._log.close()


@contextmanager
def server_process(data: Path, *options: str, port: int = 0) -> Iterator[ServerProcess]:
    """A process that serves `data`, ready when this is entered and gone when it is left."""
    process = ServerProcess(data, *options, port=port)
    try:
        yield process.wait_ready()
    finally:
        process.close()


def free_port() -> int:
    """A port that nobody listens on now, for a server that is to come back on the same one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

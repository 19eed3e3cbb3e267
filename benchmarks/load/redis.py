"""Redis Streams beside ours: a server of its own, `appendfsync always`, spoken to in bare RESP."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def installed() -> bool:
    return shutil.which("redis-server") is not None


@contextmanager
def redis() -> Iterator[int]:
    """A server on a free port, its data in a directory that goes with it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", directory]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + 10
                while time.monotonic() < deadline:
                    try:
                        socket.create_connection(("127.0.0.1", port), 1).close()
                        break
                    except OSError:
                        time.sleep(0.02)
                yield port
            finally:
                process.kill()
                process.wait()


def command(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)


async def batch_rate(port: int, payload: bytes, connections: int, seconds: float) -> float:
    """Records a second, each connection adding a hundred in one go and waiting for their ids."""
    request = command(b"XADD", b"bench", b"*", b"data", payload) * 100
    done = 0
    begin = time.monotonic()

    async def one() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() - begin < seconds:
            writer.write(request)
            for _ in range(100):
                await reader.readuntil(b"\r\n")
                await reader.readuntil(b"\r\n")
            done += 100
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(one())
    return done / (time.monotonic() - begin)


class Reader(asyncio.Protocol):
    """One client in XREAD BLOCK; every stamp in what it reads becomes a delay."""

    def __init__(self, delays: list[int]) -> None:
        self.transport: Any = None
        self._delays = delays

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._ask(b"$")

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        at = data.find(b'"t":')
        if at < 0:
            return
        while at >= 0:
            end = data.find(b",", at)
            self._delays.append(now_ns - int(data[at + 4 : end]))
            at = data.find(b'"t":', end)
        last = data.rfind(b"-0\r\n")
        self._ask(data[data.rfind(b"\n", 0, last) + 1 : last + 2])

    def _ask(self, after: bytes) -> None:
        self.transport.write(command(b"XREAD", b"BLOCK", b"0", b"STREAMS", b"live", after))


async def deliver(port: int, count: int, rate: float, seconds: float) -> list[int]:
    """Delays from before the write to each reader's parsed reply."""
    loop = asyncio.get_running_loop()
    delays: list[int] = []
    readers = [
        (await loop.create_connection(lambda: Reader(delays), "127.0.0.1", port))[1]
        for _ in range(count)
    ]
    _reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.sleep(0.2)
    begin = time.monotonic()
    sent = round(rate * seconds)
    for number in range(sent):
        wait = begin + number / rate - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        value = b'{"t":%d,"text":"%064d"}' % (time.monotonic_ns(), number)
        writer.write(command(b"XADD", b"live", b"*", b"data", value))
    deadline = time.monotonic() + 5
    while len(delays) < sent * count and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    for one in readers:
        one.transport.abort()
    writer.close()
    return delays

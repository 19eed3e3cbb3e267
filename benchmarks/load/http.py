"""HTTP clients on bare asyncio protocols: cheap enough that the server is what is measured."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STAMP = re.compile(rb'"t":(\d+)')


def post(path: str, body: bytes, *, key: str | None = None) -> bytes:
    """A whole POST request."""
    bearer = f"authorization: Bearer {key}\r\n" if key is not None else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"{bearer}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Poster(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.busy = False
        self.answered: Callable[[Poster, int, int], None] | None = None
        self._sent_ns = 0
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.Transport
        self.transport = transport

    def send(self, request: bytes, since_ns: int | None = None) -> None:
        self.busy = True
        self._sent_ns = time.monotonic_ns() if since_ns is None else since_ns
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            self._buffer = buffer
            return
        at = buffer.find(b"content-length: ")
        length = int(buffer[at + 16 : buffer.find(b"\r", at)])
        if len(buffer) < end + 4 + length:
            self._buffer = buffer
            return
        self._buffer = b""
        self.busy = False
        status = int(buffer[9:12])
        if self.answered is not None:
            self.answered(self, status, time.monotonic_ns() - self._sent_ns)


async def posters(port: int, count: int) -> list[Poster]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Poster, "127.0.0.1", port))[1] for _ in range(count)]


async def closed_loop(
    port: int, connections: int, seconds: float, request: Callable[[int], bytes]
) -> tuple[float, Counter[int]]:
    """(answers a second, answers by status) with every connection always busy."""
    clients = await posters(port, connections)
    statuses: Counter[int] = Counter()
    begin = time.monotonic_ns()
    end = begin + round(seconds * 1e9)
    left = asyncio.Event()
    active = connections
    number = 0

    def answered(client: Poster, status: int, _: int) -> None:
        nonlocal active, number
        statuses[status] += 1
        if time.monotonic_ns() < end:
            number += 1
            client.send(request(number))
        else:
            active -= 1
            if not active:
                left.set()

    for client in clients:
        client.answered = answered
        number += 1
        client.send(request(number))
    await left.wait()
    elapsed = (time.monotonic_ns() - begin) / 1e9
    for client in clients:
        client.transport.close()
    return sum(statuses.values()) / elapsed, statuses


class Watcher(asyncio.Protocol):
    """One event stream; every stamp in it becomes a delay."""

    def __init__(self, path: str, delays: list[int]) -> None:
        self.transport: asyncio.Transport
        self.live = asyncio.Event()
        self.events = 0
        self._path = path
        self._delays = delays
        self._rest = b""

    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.Transport
        self.transport = transport
        transport.write(
            f"GET {self._path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            "accept: text/event-stream\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\n\n") + 2
        if end < 2:
            self._rest = data
            return
        self._rest = data[end:]
        whole = data[:end]
        if not self.live.is_set() and b"event: caught-up" in whole:
            self.live.set()
        now_ns = time.monotonic_ns()
        for stamp in STAMP.finditer(whole):
            self.events += 1
            self._delays.append(now_ns - int(stamp[1]))


async def watchers(port: int, path: str, count: int, delays: list[int]) -> list[Watcher]:
    """Watchers that have all received that they are caught up."""
    loop = asyncio.get_running_loop()
    made = [
        (await loop.create_connection(lambda: Watcher(path, delays), "127.0.0.1", port))[1]
        for _ in range(count)
    ]
    for one in made:
        await asyncio.wait_for(one.live.wait(), 5)
    return made


def percentile(samples: list[int], share: float) -> float:
    """In milliseconds."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1e6


async def paced(
    clients: list[Poster], rate: float, seconds: float, request: Callable[[int], bytes]
) -> int:
    """Send at a steady rate, from the intended moment on, whoever is free first; how many."""
    turns = deque(clients)  # in turn, or the server closes those that never speak
    begin = time.monotonic_ns()
    count = round(rate * seconds)
    for number in range(count):
        due_ns = begin + round(number / rate * 1e9)
        wait = due_ns - time.monotonic_ns()
        if wait > 0:
            await asyncio.sleep(wait / 1e9)
        while all(client.busy for client in turns):
            await asyncio.sleep(0.0005)
        while turns[0].busy:
            turns.rotate(-1)
        turns[0].send(request(number))
        turns.rotate(-1)
    return count

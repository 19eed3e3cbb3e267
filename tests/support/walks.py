"""Walks the three ways that data takes, and prints the calls of our functions that each made.

`python -m tests.support.walks append` prints a JSON list of names for each of some tries: which way
a single one takes depends on what is under way beside it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

import fairway
from fairway import Fairway, FiringContext, any_
from fairway.runtime.service import StopSwitch
from fairway.server.serving import Server
from fairway.settings import ServerSettings

if TYPE_CHECKING:
    from types import FrameType

TRIES = 8
SRC = str(Path(fairway.__file__).parent) + "/"


class Calls:
    """The functions of ours that are called in any thread, in order, while it listens."""

    def __init__(self) -> None:
        self.tries: list[list[str]] = []
        self._heard: list[str] | None = None

    def hear(self, frame: FrameType, event: str, _: Any) -> None:
        heard = self._heard
        if event != "call" or heard is None:
            return
        code = frame.f_code
        if code.co_filename.startswith(SRC):
            module = code.co_filename.removeprefix(SRC).removesuffix(".py").replace("/", ".")
            heard.append(f"{module.removesuffix('.__init__')}.{code.co_qualname}")

    def listen(self) -> None:
        self._heard = []

    def note(self) -> None:
        assert self._heard is not None
        heard, self._heard = self._heard, None
        self.tries.append(heard)


def post(connection: socket.socket, records: bytes) -> bytes:
    return ask(connection, "POST", "/v0/topics/orders", b'{"records":%b}' % records)


def ask(connection: socket.socket, method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = until(connection, b"\r\n\r\n")
    head_, _, rest = answer.partition(b"\r\n\r\n")
    assert head_.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), head_
    length = int(head_.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(rest) < length:
        rest += connection.recv(65_536)
    return rest


def until(connection: socket.socket, mark: bytes) -> bytes:
    got = b""
    while mark not in got:
        got += connection.recv(65_536)
    return got


def append_to_watcher(port: int, calls: Calls) -> None:
    """The client's side, in a thread that is not listened to."""
    sys.setprofile(None)
    with (
        socket.create_connection(("127.0.0.1", port)) as client,
        socket.create_connection(("127.0.0.1", port)) as watcher,
    ):
        ask(client, "PUT", "/v0/topics/orders", b'{"durability":"fsync"}')
        watcher.sendall(
            b"GET /v0/topics/orders/watch?from_seq=0 HTTP/1.1\r\nhost: localhost\r\n"
            b"accept: text/event-stream\r\n\r\n"
        )
        for number in range(100, 100 + TRIES):
            calls.listen()
            post(client, b'[{"data":{"a":%d}}]' % number)
            until(watcher, b'{"a":%d}' % number)
            calls.note()


async def append(calls: Calls, directory: str) -> None:
    stop = StopSwitch()
    server = Server(Fairway(directory), ServerSettings(host="127.0.0.1", port=0))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(stop))
        await server.ready.wait()
        try:
            await asyncio.to_thread(append_to_watcher, server.port, calls)
        finally:
            stop.request_stop()


async def enqueue(calls: Calls, directory: str) -> None:
    app = Fairway(directory)

    @app.job(queue="mail")
    async def send(id: int) -> None:
        pass

    async with app:
        for number in range(TRIES):
            calls.listen()
            job = await send.enqueue(id=number)
            await job.result()
            calls.note()


class Quote(msgspec.Struct, frozen=True):
    price: int


async def event(calls: Calls, directory: str) -> None:
    app = Fairway(directory)
    quotes, alarms = app.topic("quotes", Quote), app.topic("alarms", Quote)
    graph = app.graph("alarms", when=any_(quotes), checkpoint=True)

    @graph.node
    def alarm(quotes: Quote, firing: FiringContext) -> None:
        firing.append(alarms, Quote(quotes.price + 1))

    async with app, alarms.watch() as watched:
        records = aiter(watched)
        for number in range(TRIES):
            calls.listen()
            await quotes.append(Quote(number))
            await anext(records)
            calls.note()


WALKS = {"append": append, "enqueue": enqueue, "event": event}


async def main(walk: str) -> None:
    calls = Calls()
    threading.setprofile(calls.hear)
    sys.setprofile(calls.hear)
    with tempfile.TemporaryDirectory() as directory:
        await WALKS[walk](calls, f"{directory}/data")
    sys.setprofile(None)
    print(json.dumps(calls.tries))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))

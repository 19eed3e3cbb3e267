"""A crowd of rude clients in one process or thread: raw sockets under one epoll, and no asyncio.

A closed loop: each client has one request under way and sends the next when it is answered. What it
does with a refusal is its manner. Requests are made once and answers are hardly looked at, so that
the crowd is not what limits a measurement. `python -m tests.support.crowd` runs one from a line of
JSON, for measurements that need a process of their own.
"""

from __future__ import annotations

import enum
import json
import re
import resource
import select
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ANSWER_MAX = 256 * 1024
LOOK_S = 0.05
"""How often it is asked whether it is enough."""
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")
_RETRY_MS = re.compile(rb'"retry_after_ms":(\d+)')


class Manner(enum.Enum):
    """What a client does with its connection."""

    IMPATIENT = "impatient"
    """Sends again at once, whatever it was answered."""
    PATIENT = "patient"
    """After a refusal it waits for as long as the answer says."""
    SILENT = "silent"
    """Connects, and sends nothing."""
    SLOW_WRITER = "slow_writer"
    """Sends its request a few bytes at a time."""
    DEAF = "deaf"
    """Sends its request and never reads an answer."""


@dataclass(slots=True)
class Outcome:
    """What the clients of one group met."""

    statuses: Counter[int] = field(default_factory=Counter)
    returned: Counter[int] = field(default_factory=Counter)
    """Statuses of those requests that came back after the time they were asked to wait."""
    slowest_ns: int = 0
    closed: int = 0
    """Connections that the server ended."""
    seconds: float = 0.0

    def rate(self, status: int = 200) -> float:
        return self.statuses[status] / self.seconds if self.seconds else 0.0


class _Client:
    __slots__ = ("buffer", "due_ns", "group", "left", "returns", "sent_ns", "sock")

    def __init__(self, group: Group, sock: socket.socket) -> None:
        self.group = group
        self.sock = sock
        self.buffer = b""
        self.left = b""  # of a request that is sent slowly
        self.returns = False
        self.sent_ns = 0
        self.due_ns = 0


@dataclass(slots=True)
class Group:
    """Clients of one manner that send one request."""

    manner: Manner
    count: int
    request: bytes = b""
    piece: int = 16
    """Bytes at once, of a slow writer."""
    every_s: float = 0.05
    """How often it sends so many."""
    outcome: Outcome = field(default_factory=Outcome)


class Crowd:
    """Groups of clients of one server. Not for two threads at once."""

    def __init__(self, port: int, groups: Iterable[Group]) -> None:
        self.groups = list(groups)
        self._port = port
        self._epoll = select.epoll()
        self._clients: dict[int, _Client] = {}
        self._due: list[tuple[int, int]] = []  # (moment, file descriptor)

    def __enter__(self) -> Crowd:
        for group in self.groups:
            for _ in range(group.count):
                self._connect(group)
        return self

    def __exit__(self, *_: object) -> None:
        for client in list(self._clients.values()):
            client.sock.close()
        self._clients.clear()
        self._epoll.close()

    @property
    def connected(self) -> int:
        return len(self._clients)

    def _connect(self, group: Group) -> None:
        sock = socket.socket()
        if group.manner is Manner.DEAF:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", self._port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self._clients[sock.fileno()] = _Client(group, sock)
        # Of the deaf only the end of the connection is heard.
        reads = group.manner is not Manner.DEAF
        self._epoll.register(sock, select.EPOLLIN if reads else select.EPOLLRDHUP)

    def begin(self) -> None:
        """Send the first request of everybody."""
        for client in list(self._clients.values()):
            self._send(client)

    def run(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Go on for so long, or until it is `enough`. What was counted before is forgotten."""
        for group in self.groups:
            group.outcome = Outcome()
        begin_ns = time.monotonic_ns()
        end_ns = begin_ns + int(seconds * 1e9)
        now_ns = begin_ns
        while now_ns < end_ns and self._clients and not enough():
            wait_ns = min(end_ns, self._due[0][0] if self._due else end_ns) - now_ns
            for fd, event in self._epoll.poll(min(max(wait_ns, 0) / 1e9, LOOK_S)):
                client = self._clients.get(fd)
                if client is None:
                    continue
                if event & select.EPOLLIN:
                    self._receive(client)
                elif event & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                    self._drop(client)
            now_ns = time.monotonic_ns()
            while self._due and self._due[0][0] <= now_ns:
                client = self._clients.get(heappop(self._due)[1])
                if client is None:
                    continue
                if client.left:
                    self._go_on(client)
                elif client.due_ns:
                    client.returns, client.due_ns = True, 0
                    self._send(client)
        for group in self.groups:
            group.outcome.seconds = (time.monotonic_ns() - begin_ns) / 1e9

    def _send(self, client: _Client) -> None:
        group = client.group
        if group.manner is Manner.SILENT:
            return
        client.sent_ns = time.monotonic_ns()
        if group.manner is Manner.SLOW_WRITER:
            client.left = group.request
            self._go_on(client)
            return
        try:
            client.sock.send(group.request)
        except BlockingIOError:
            client.left = group.request  # its buffer is full: nobody reads it
        except OSError:
            self._drop(client)

    def _go_on(self, client: _Client) -> None:
        group = client.group
        piece, client.left = client.left[: group.piece], client.left[group.piece :]
        try:
            client.sock.send(piece)
        except OSError:
            self._drop(client)
            return
        if client.left:
            moment = time.monotonic_ns() + int(group.every_s * 1e9)
            heappush(self._due, (moment, client.sock.fileno()))

    def _receive(self, client: _Client) -> None:
        try:
            data = client.sock.recv(ANSWER_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        if client.buffer:
            data = client.buffer + data
        end = data.find(b"\r\n\r\n")
        length = _LENGTH.search(data, 0, end) if end >= 0 else None
        if length is None or len(data) < end + 4 + int(length[1]):
            client.buffer = data
            return
        client.buffer = b""
        status = int(data[9:12])
        outcome = client.group.outcome
        outcome.statuses[status] += 1
        now_ns = time.monotonic_ns()
        outcome.slowest_ns = max(outcome.slowest_ns, now_ns - client.sent_ns)
        if client.returns:
            client.returns = False
            outcome.returned[status] += 1
        if client.group.manner is Manner.PATIENT and status in (429, 503):
            after = _RETRY_MS.search(data, end)
            client.due_ns = now_ns + (int(after[1]) if after else 1000) * 1_000_000
            heappush(self._due, (client.due_ns, client.sock.fileno()))
        else:
            self._send(client)

    def _drop(self, client: _Client) -> None:
        client.group.outcome.closed += 1
        del self._clients[client.sock.fileno()]
        client.sock.close()


def request(method: str, target: str, body: bytes = b"", *, key: str | None = None) -> bytes:
    """The bytes of one request."""
    lines = [f"{method} {target} HTTP/1.1", "host: 127.0.0.1"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def raise_open_files() -> int:
    """Let this process open as many files as it may; how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def main() -> None:
    """Reads `{"port", "seconds", "warm", "groups": [...]}` a line; prints outcomes a line each."""
    raise_open_files()
    for line in sys.stdin:
        asked = json.loads(line)
        groups = [
            Group(Manner(one["manner"]), one["count"], one.get("request", "").encode())
            for one in asked["groups"]
        ]
        with Crowd(asked["port"], groups) as crowd:
            crowd.begin()
            crowd.run(asked["warm"])
            crowd.run(asked["seconds"])
        outcomes = [
            {
                "statuses": group.outcome.statuses,
                "returned": group.outcome.returned,
                "slowest_ms": group.outcome.slowest_ns / 1e6,
                "closed": group.outcome.closed,
                "seconds": group.outcome.seconds,
            }
            for group in groups
        ]
        print(json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main()

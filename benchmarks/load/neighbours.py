"""What one topic's trouble does to the delivery of another, and what a router adds to it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import TYPE_CHECKING

import httpx

from benchmarks.load.http import paced, post, posters, watchers

if TYPE_CHECKING:
    from benchmarks.load.child import Child

RATE = 200
RECORDS = 10_000
BATCHES = 100


async def delays(port: int, seconds: float, *, write: str, watch: str) -> list[int]:
    """The delays, in nanoseconds, of records written to one topic and watched in another."""
    seen: list[int] = []
    streams = await watchers(port, f"/v0/topics/{watch}/watch?tail=true", 10, seen)
    clients = await posters(port, 8)

    def stamped(number: int) -> bytes:
        body = b'{"records":[{"data":{"t":%d}}]}' % time.monotonic_ns()
        return post(f"/v0/topics/{write}", body)

    await paced(clients, RATE, 0.5, stamped)
    deadline = time.monotonic() + 10
    while len(seen) < RATE // 2 * len(streams) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    seen.clear()
    sent = await paced(clients, RATE, seconds, stamped)
    while len(seen) < sent * len(streams) and time.monotonic() < deadline + seconds:
        await asyncio.sleep(0.01)
    for one in (*streams, *clients):
        one.transport.abort()
    if len(seen) < sent * len(streams):
        raise RuntimeError(f"{sent * len(streams) - len(seen)} deliveries did not come")
    return seen


def make_routers(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for name in ("hop0", "hop1", "hop2"):
            client.put(f"/v0/topics/{name}").raise_for_status()
        for source, dest in (("hop0", "hop1"), ("hop1", "hop2")):
            answer = client.put(
                f"/v0/routers/{source}-{dest}", json={"source": source, "dest": dest}
            )
            answer.raise_for_status()


def fill(port: int, topic: str) -> None:
    """A topic of 1,000,000 records."""
    records = [{"data": {"number": number}} for number in range(RECORDS)]
    body = json.dumps({"records": records}, separators=(",", ":")).encode()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for _ in range(BATCHES):
            answer = client.post(
                f"/v0/topics/{topic}?return_seqs=false",
                content=body,
                headers={"content-type": "application/json"},
            )
            answer.raise_for_status()


async def delays_while_deleting(port: int, topic: str, seconds: float) -> list[int]:
    """As `delays`, while a topic is deleted and its rows are swept away."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        async with asyncio.TaskGroup() as group:
            measured = group.create_task(delays(port, seconds, write="calm", watch="calm"))
            await asyncio.sleep(1)
            (await client.delete(f"/v0/topics/{topic}")).raise_for_status()
        return measured.result()


async def delays_beside_a_stalled_watcher(server: Child, seconds: float) -> tuple[list[int], int]:
    """As `delays`, with a watcher of the same topic that never reads; and by how much RSS grew."""
    stalled = socket.create_connection(("127.0.0.1", server.port))
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.sendall(b"GET /v0/topics/calm/watch?from_seq=0 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
    before = server.rss_bytes
    try:
        seen = await delays(server.port, seconds, write="calm", watch="calm")
    finally:
        stalled.close()
    return seen, server.rss_bytes - before

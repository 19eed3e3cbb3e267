"""An urgent topic written and watched by a process of its own, so that no other load delays it."""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

from benchmarks.load.http import paced, post, posters, watchers


async def probe(port: int, rate: float, seconds: float) -> None:
    """Prints the delays, in nanoseconds, once all of them are known."""
    delays: list[int] = []
    await watchers(port, "/v0/topics/urgent/watch?tail=true", 1, delays)
    clients = await posters(port, 32)

    def urgent(number: int) -> bytes:
        body = b'{"records":[{"data":{"t":%d}}]}' % time.monotonic_ns()
        return post("/v0/topics/urgent", body)

    sent = await paced(clients, rate, seconds, urgent)
    deadline = time.monotonic() + 10
    while len(delays) < sent and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    print(json.dumps({"sent": sent, "delays": delays}), flush=True)


if __name__ == "__main__":
    uvloop.run(probe(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))

"""A server whose log is in PostgreSQL under a short lease: what the tests of ownership start, stop
and continue. Run with

    python -m tests.support.owner_child URL SCHEMA LEASE_MS PORT [--standby]

It says over stdout where it serves, each time it has become the owner.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from fairway.app import Fairway
from fairway.errors import FairwayError
from fairway.runtime.service import StopSwitch, stop_on_signals
from fairway.server.serving import Server
from fairway.settings import ServerSettings
from fairway.storage.wals.postgres import PostgresWal


async def main(url: str, schema: str, lease_ms: str, port: str, *flags: str) -> int:
    def store() -> PostgresWal:
        return PostgresWal(url, schema=schema, lease_ttl_ns=int(lease_ms) * 1_000_000)

    app = Fairway(store, standby="--standby" in flags)
    server = Server(app, ServerSettings(port=int(port)))
    stop = StopSwitch()
    failure = 0
    with stop_on_signals(stop):
        async with asyncio.TaskGroup() as group:
            announcing = group.create_task(announce(server))
            try:
                await server.run(stop)
            except FairwayError as error:
                print(f"ended: {error}", file=sys.stderr, flush=True)
                failure = 1
            announcing.cancel()
    return failure


async def announce(server: Server) -> None:
    await server.ready.wait()
    print(f"serves at {server.url}", flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main(*sys.argv[1:])))

"""Streams that are over go by themselves."""

from __future__ import annotations

import asyncio

from fairway.testing import run
from tests.support.streams import HOUR_NS, streams_on


def test_idle_streams_go_by_themselves_and_used_ones_stay() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("idle", stream_ttl="10")
            await client.put("used", stream_ttl="10")
            await client.put("kept")
            for _ in range(4):
                await asyncio.sleep(6)
                assert (await client.get("used")).status == 200
                await client("HEAD", "idle")
            assert client.topics.find("ds:idle") is None
            assert client.topics.find("ds:used") is not None
            assert client.topics.find("ds:kept") is not None

    run(scenario, limit_ns=HOUR_NS, quiet=True)

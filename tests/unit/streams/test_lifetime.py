"""How long a stream lives."""

from __future__ import annotations

import asyncio
from typing import Any

from fairway.server.fronts.streams.live import StreamsFrontConfig
from fairway.storage.wals.memory import MemoryWal
from fairway.streams.stored import StreamMeta
from fairway.streams.stream import Stream
from fairway.testing import run
from fairway.topics.topic import Topic
from fairway.wire.topics import TopicConfig
from tests.support.streams import HOUR_NS, SECOND_NS, streams_on


def stream(*, ttl_s: int | None = None, expires_at: str | None = None) -> Stream:
    meta = StreamMeta(1, "s", "text/plain", 0, ttl_s, expires_at)
    topic: Any = Topic("ds:s", 5, TopicConfig())
    return Stream(meta, topic, touched_ms=0)


def test_ttl_slides_and_a_date_does_not() -> None:
    idle = stream(ttl_s=10)
    assert not idle.expired(9_999)
    assert idle.expired(10_000)
    idle.readers = 1
    assert not idle.expired(10_000)
    idle.readers = 0
    assert idle.touch(9_000)
    assert not idle.expired(18_999)
    dated = stream(expires_at="1970-01-01T00:00:10Z")
    dated.touch(9_999)
    dated.readers = 1
    assert not dated.expired(9_999)
    assert dated.expired(10_000)


def test_a_restart_never_shortens_a_life() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", stream_ttl="80")
            await asyncio.sleep(50)
            await client.get("a")
            await asyncio.sleep(5)
            await client.get("a")
            killed = wal.kill()
        async with streams_on(killed) as client:
            await asyncio.sleep(75)
            assert (await client("HEAD", "a")).status == 200
            await asyncio.sleep(20)
            assert client.topics.find("ds:a") is None

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_live_reader_keeps_a_stream_alive() -> None:
    async def scenario() -> None:
        config = StreamsFrontConfig(long_poll_ns=30 * SECOND_NS)
        async with streams_on(config=config) as client:
            await client.put("a", stream_ttl="5")
            answer = await client.get("a?offset=now&live=long-poll")
            assert answer.status == 204
            assert (await client("HEAD", "a")).status == 200
            await asyncio.sleep(7)
            assert (await client("HEAD", "a")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)

"""The part: it lives with the app, whether or not anybody serves it, and stops in order."""

from __future__ import annotations

import asyncio

import pytest

from fairway.app import Fairway
from fairway.errors import Closing
from fairway.storage.wals.memory import MemoryWal
from fairway.streams.engine import Streams
from fairway.streams.lifetime import Lifetime
from fairway.streams.requests import StreamAppend, StreamCreate
from fairway.testing import run
from fairway.topics.port import TopicsPort
from fairway.wire.records import NO_RECORDS
from tests.support.streams import HOUR_NS, Ill, Live, recovered, settle_retention, streams_on
from tests.support.topics import topics_on

PLAIN = StreamCreate("text/plain", Lifetime(), False, None, None, 0)
CLOSING = StreamAppend("text/plain", True, None, None)


def test_what_is_over_goes_from_an_app_that_nobody_serves() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("old", stream_ttl="10")
            await client.put("kept")
            killed = wal.kill()
        async with Fairway(killed, jobs="memory:", worker=None) as app:
            await app.streams.store.create("new", PLAIN._replace(lifetime=Lifetime(20)), b"x")
            assert app.topics.find("ds:old") is not None
            await asyncio.sleep(15)
            assert app.topics.find("ds:old") is None
            assert app.topics.find("ds:new") is not None
            await asyncio.sleep(10)
            assert app.topics.find("ds:new") is None
            assert app.topics.find("ds:kept") is not None
        with pytest.raises(Closing):
            _ = app.streams

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_stop_refuses_what_would_be_stored_and_reads_go_on() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a", "x")
            client.streams.stop_admitting()
            store = client.streams.store
            stream = await store.get("a")
            with pytest.raises(Closing):
                await store.create("b", PLAIN, b"")
            with pytest.raises(Closing):
                await client.streams.appending.append(stream, CLOSING, NO_RECORDS, empty=True)
            assert (await client.post("a", "y")).status == 503
            assert await client.read_all("a") == b"x"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_stop_lets_live_readers_go(live: str) -> None:
    async def scenario() -> None:
        async with streams_on() as client, asyncio.TaskGroup() as group:
            await client.put("a")
            reader = group.create_task(Live(client, f"a?offset=now&live={live}").run())
            await asyncio.sleep(1)
            assert not reader.done()
            client.streams.stop_admitting()
            await asyncio.sleep(1)
            assert reader.done()

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_drain_finishes_what_follows_from_a_deletion() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            async with Streams(TopicsPort(topics)) as streams:
                await streams.store.create("a", PLAIN, b"data")
                await streams.store.create("f", PLAIN._replace(source="a"), b"")
                assert topics.get("ds:a").pin == 1
                await streams.store.delete("f")
                assert topics.get("ds:a").pin == 1  # a little later, and not after the end
            assert topics.get("ds:a").pin == 0

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_topics_that_go_when_the_part_is_closed_are_none_of_its_business() -> None:
    async def scenario() -> None:
        async with topics_on() as topics:
            async with Streams(TopicsPort(topics)) as streams:
                await streams.store.create("a", PLAIN, b"data")
                await streams.store.create("f", PLAIN._replace(source="a"), b"")
            await streams.aclose()  # a second time changes nothing
            await topics.delete("ds:f")
            assert topics.get("ds:a").pin == 1
            async with Streams(TopicsPort(topics)):
                await settle_retention()
                assert topics.get("ds:a").pin == 0

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_stream_that_cannot_be_removed_is_told_by_the_health_of_the_part(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a", stream_ttl="5")
            assert client.streams.health() == ("ok", None, True)
            ill.full = True
            await asyncio.sleep(10)
            health = client.streams.health()
            assert (health.state, health.ready) == ("degraded", True)
            assert health.reason is not None
            assert "stream a was not removed" in health.reason
            ill.full = False
            await recovered(client)
            await settle_retention()
            assert client.topics.find("ds:a") is None
            assert client.streams.health() == ("ok", None, True)

    run(scenario, limit_ns=HOUR_NS, quiet=True)

"""Streams are made, found and deleted, and survive kills and failures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from tests.support.streams import CLOSE, HOUR_NS, Ill, producer, recovered, streams_on
from tests.support.topics import new

if TYPE_CHECKING:
    from fairway.topics.topic import Topic


def test_everything_survives_a_kill() -> None:
    async def scenario() -> None:
        wal = MemoryWal()
        async with streams_on(wal) as client:
            await client.put("a", "one ", stream_expires_at="2090-01-01T00:00:00Z")
            await client.post("a", "two ", stream_seq="5")
            await client.post("a", "three ", **producer(3, 0))
            await client("PUT", "j", b"[1,2]", content_type="application/json")
            await client.post("a", "four", **producer(3, 1), **CLOSE)
            before = await client("HEAD", "a")
            killed = wal.kill()
        async with streams_on(killed) as client:
            after = await client("HEAD", "a")
            assert after == before
            assert await client.read_all("a") == b"one two three four"
            assert (await client.post("a", "no")).status == 409
            again = await client.post("a", "four", **producer(3, 1), **CLOSE)
            assert (again.status, again.headers["producer-seq"]) == (204, "1")
            assert (await client.post("a", "x", **producer(2, 0))).status == 403
            assert await client.read_all("j") == b"[1,2]"
            await client("POST", "j", b"3", content_type="application/json", stream_seq="1")
        async with streams_on(killed.reopened()) as client:
            repeated = await client(
                "POST", "j", b"4", content_type="application/json", stream_seq="1"
            )
            assert repeated.status == 409
            assert await client.read_all("j") == b"[1,2,3]"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_stream_is_a_topic_that_shows_its_bytes_as_base64() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client("PUT", "b/in", b"\x00\xff", content_type="application/octet-stream")
            diff = await client.topics.reading.diff("ds:b:in", 0)
            assert [json.loads(record.data) for record in diff.page.records] == ["AP8="]
            await client.topics.delete("ds:b:in")
            assert (await client.get("b/in")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_topic_that_is_no_stream_is_left_alone() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.topics.append("ds:a", new(1))
            assert (await client.get("a")).status == 404
            assert (await client.put("a")).status == 409
            await client.topics.create("ds:b")
            assert (await client.put("b", "adopted")).status == 201

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_stream_deleted_as_a_topic_before_it_is_known_is_not_remembered() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            append = client.topics.writing.append

            async def lose_at_once(topic: Topic, new: Any) -> Any:
                appended = await append(topic, new)
                await client.topics.delete(topic.name)
                return appended

            client.topics.writing.append = lose_at_once  # type: ignore[method-assign]
            assert (await client.put("a", "x")).status == 201
            assert not list(client.streams.store)
            assert (await client.get("a")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_a_failed_create_leaves_nothing_behind(ill: Ill) -> None:
    async def scenario() -> None:
        async with streams_on(ill.wal) as client:
            await client.put("a", "x")
            ill.full = True
            assert (await client.put("b", "y")).status == 503
            assert (await client("PUT", "f", stream_forked_from="/v1/stream/a")).status == 503
            assert (await client("DELETE", "a")).status == 503
            ill.full = False
            await recovered(client)
            assert (await client.get("b")).status == 404
            assert await client.read_all("a") == b"x"
            assert (await client("DELETE", "a")).status == 204
            assert (await client.get("a")).status == 404

    run(scenario, limit_ns=HOUR_NS, quiet=True)

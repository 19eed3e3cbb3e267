"""Who may ask, what it costs them, and what every answer carries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import FairwayError, Throttled, Unauthorized
from fairway.server.access.auth import ANYONE, Identity
from fairway.streams.paths import topic_name
from fairway.testing import run
from tests.support.streams import HOUR_NS, Live, streams_on

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_key_reaches_only_its_own_paths() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("team/a", "x")
            await client.put("other/b", "y")
            client.identity = Identity(
                name="k", scopes=frozenset({"read", "write"}), prefixes=("ds:team:",), id="k"
            )
            assert (await client.get("team/a")).status == 200
            assert (await client.get("other/b")).status == 403
            assert (await client.post("other/b", "z")).status == 403
            assert (await client("DELETE", "team/a")).status == 403
            fork = await client("PUT", "team/f", stream_forked_from="/v1/stream/other/b")
            assert fork.status == 403
            assert (await client.put("team/ü", "hashed")).status == 201
            assert client.topics.get(topic_name("team/ü")).owner == "k"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


class Gate:
    """A meter that lets one reader in at a time, and can turn it away."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, int]] = []
        self.ends: list[Callable[[FairwayError], None]] = []

    def charge(self, identity: Identity, topic: str, *, records: int, size: int) -> None:
        self.charged.append((topic, records))

    def connect(self, identity: Identity, end: Callable[[FairwayError], None]) -> object:
        if self.ends:
            raise Throttled("one at a time", retry_after_ns=1, limit="connections", maximum=1)
        self.ends.append(end)
        return end

    def disconnect(self, open_stream: Any) -> None:
        self.ends.remove(open_stream)


def test_what_a_key_uses_is_counted() -> None:
    async def scenario() -> None:
        gate = Gate()
        async with streams_on(meter=gate) as client:
            await client("PUT", "j", content_type="application/json")
            await client("PUT", "j", content_type="application/json")
            await client("POST", "j", b"[1,2,3]", content_type="application/json")
            await client("PUT", "k", b"[1,2]", content_type="application/json")
            await client("PUT", "k", b"[1,2]", content_type="application/json")
            assert client.topics.get("ds:j").owner == ANYONE.name
            assert gate.charged == [
                *(("ds:j", 0), ("ds:j", 0), ("ds:j", 3)),
                *(("ds:k", 2), ("ds:k", 0)),  # the second one appended nothing
            ]

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_reader_whose_key_is_withdrawn_is_turned_away(live: str) -> None:
    async def scenario() -> None:
        gate = Gate()
        async with streams_on(meter=gate) as client, asyncio.TaskGroup() as group:
            await client.put("a")
            reader = Live(client, f"a?offset=now&live={live}")
            task = group.create_task(reader.run())
            await asyncio.sleep(1)
            assert (await client.get(f"a?offset=now&live={live}")).status == 429
            gate.ends[0](Unauthorized("the key is gone"))
            await asyncio.sleep(0.1)
            assert task.done()
            assert reader.answer.status == (200 if live == "sse" else 401)
            assert gate.ends == []

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "HEAD", "DELETE", "OPTIONS", "PATCH"])
def test_every_answer_is_safe_for_browsers(method: str) -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            await client.put("a", "x")
            for path in ("a", "missing"):
                answer = await client(method, path)
                assert answer.status < 500
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert (
                    "stream-next-offset" in answer.headers["access-control-expose-headers"].lower()
                )
                if method == "HEAD":
                    assert answer.body == b""

    run(scenario, limit_ns=HOUR_NS, quiet=True)


def test_the_trace_of_a_request_is_stored_with_what_it_appends() -> None:
    async def scenario() -> None:
        async with streams_on() as client:
            trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
            await client.put("a", "1", traceparent=trace)
            await client.post("a", "2", traceparent=trace)
            await client.put("b", "1", traceparent="x" * 257)
            await client.post("b", "2", traceparent="x" * 257)
            for path, stored in (("a", trace), ("b", None)):
                topic = client.topics.get(topic_name(path))
                batches = [await client.topics.reading.batch_at(topic, seq) for seq in (1, 2)]
                assert [batch.trace for batch in batches if batch is not None] == [stored] * 2

    run(scenario, limit_ns=HOUR_NS, quiet=True)

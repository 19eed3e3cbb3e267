"""What a reader at a position gets, and what it is told of losses."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from fairway.server.fronts.streams.live import StreamsFrontConfig
from fairway.testing import run
from tests.support.streams import (
    CLOSE,
    HOUR_NS,
    SECOND_NS,
    capped,
    settle_retention,
    small_chunks,
    streams_on,
)


def test_what_a_cap_took_is_answered_410_and_where_to_go_on() -> None:
    async def scenario() -> None:
        async with streams_on(topics_config=small_chunks()) as client:
            offsets = await capped(client, "a", 6, keep=2)
            await settle_retention()
            for live in ("", "&live=long-poll", "&live=sse"):
                lost = await client.get(f"a?offset={offsets[0]}{live}")
                assert (lost.status, lost.offset) == (410, offsets[3])
                assert lost.headers["stream-gap-from"] == "2"
                assert lost.headers["stream-gap-to"] == "4"
                assert await client.read_all("a", lost.offset) == b"ef"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize(
    "query", ["", "?offset=-1", "?offset=-1&live=long-poll", "?offset=-1&live=sse"]
)
def test_a_reader_from_the_start_is_told_what_a_cap_took(query: str) -> None:
    async def scenario() -> None:
        async with streams_on(topics_config=small_chunks()) as client:
            await capped(client, "a", 6, keep=2)
            await settle_retention()
            await client.post("a", **CLOSE)  # so that an event stream ends, too
            whole = await client.get(f"a{query}")
            assert whole.status == 200
            assert (whole.headers["stream-gap-from"], whole.headers["stream-gap-to"]) == ("1", "4")
            assert ("".join(whole.data).encode() if "sse" in query else whole.body) == b"ef"

    run(scenario, limit_ns=HOUR_NS, quiet=True)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_what_lands_between_reading_and_waiting_is_pushed(live: str) -> None:
    """Readers come and go while single letters are appended; none misses or repeats one."""

    async def scenario() -> None:
        letters = "abcdefghijklmnop"
        config = StreamsFrontConfig(long_poll_ns=SECOND_NS, sse_cycle_ns=SECOND_NS // 50)
        async with streams_on(config=config) as client:
            await client.put("a")
            random = Random(asyncio.get_running_loop().clock.now_ns())  # type: ignore[attr-defined]

            async def write() -> None:
                for letter in letters:
                    await asyncio.sleep(random.random() * 0.01)
                    await client.post("a", letter)
                await client.post("a", **CLOSE)

            async def read() -> None:
                found, offset, closed = "", "-1", False
                while not closed:
                    answer = await client.get(f"a?offset={offset}&live={live}")
                    if live == "sse":
                        found += "".join(answer.data)
                        offset = answer.control["streamNextOffset"]
                        closed = answer.control.get("streamClosed", False)
                    else:
                        found += answer.body.decode()
                        offset = answer.offset
                        closed = "stream-closed" in answer.headers
                assert found == letters

            async with asyncio.TaskGroup() as group:
                group.create_task(write())
                for _ in range(3):
                    group.create_task(read())

    for seed in range(150):
        run(scenario, limit_ns=HOUR_NS, quiet=True, seed=seed, shuffle=True)

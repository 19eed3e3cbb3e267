"""Caps of topics over every store, without upkeep: who writes keeps them, after a start too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairway.runtime.completion import resolve
from fairway.topics.engine import TopicsConfig
from fairway.topics.match import TagMatch
from fairway.topics.retention import RetentionConfig
from fairway.wire.records import RECORD_OVERHEAD
from fairway.wire.topics import RouterConfig, TopicPatch
from tests.support.topics import new, read_all, topics_on, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.topics.engine import Topics
    from fairway.topics.outcome import Appended
    from tests.conformance.backends import Backend

NEVER_NS = 10**18
NO_UPKEEP = TopicsConfig(retention=RetentionConfig(period_ns=NEVER_NS))
CAP = 20
CAP_BYTES = 2_000
WAIT_S = 30.0


async def fill(topics: Topics) -> None:
    await topics.put("records", TopicPatch(cap_records=CAP))
    await topics.put("bytes", TopicPatch(cap_bytes=CAP_BYTES))
    await topics.put("disk", TopicPatch(cap_records=CAP, durability="disk"))
    await topics.put("copies", TopicPatch(cap_records=CAP))
    for number in range(5):
        for name in ("records", "bytes", "disk", "copies"):
            await topics.append(name, new(*(number * 10 + one for one in range(10))))


def check_caps(topics: Topics) -> None:
    for topic in topics:
        topic.check()
        assert not topic.over_cap, (topic.name, topic.count, topic.stored)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0)


def append_now(topics: Topics, name: str, *data: int) -> asyncio.Future[Appended]:
    """As the server does it: at once, if nothing must be known first."""
    reply: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    batch = new(*data)
    if topics.append_now(resolve(reply), topics.get(name), batch):
        return reply

    async def append() -> Appended:
        return (await topics.append(name, batch))[1]

    return asyncio.ensure_future(append())


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_cap_holds_from_the_first_append_after_a_start(backend: Backend, end: str) -> None:
    async def main() -> None:
        wal = backend.fresh()
        async with topics_on(wal, NO_UPKEEP) as topics:
            await fill(topics)
            check_caps(topics)
            if end == "kill":
                wal = backend.kill(wal)
        wal = wal if end == "kill" else backend.rival(wal)
        async with topics_on(wal, NO_UPKEEP) as topics:
            check_caps(topics)
            for number in range(8):
                for name in ("records", "bytes", "disk"):
                    await append_now(topics, name, number)
                    check_caps(topics)
            await append_now(topics, "records", *range(2000))
            check_caps(topics)
            found = await read_all(topics, "records")
            assert values(found) == list(range(1980, 2000))

    asyncio.run(main())


def test_many_writers_at_once_and_routers_keep_a_cap_after_a_start(backend: Backend) -> None:
    async def main() -> None:
        wal = backend.fresh()
        async with topics_on(wal, NO_UPKEEP) as topics:
            await fill(topics)
            await topics.create("source")
            await topics.put_router("router", RouterConfig(source="source", dest="copies"))
        async with topics_on(backend.rival(wal), NO_UPKEEP) as topics:
            await asyncio.gather(*(append_now(topics, "records", n) for n in range(15)))
            check_caps(topics)
            await topics.append("source", new(*range(15)))
            copies = topics.get("copies")
            await until(lambda: copies.head >= 65)
            check_caps(topics)
            found = await read_all(topics, "copies")
            assert values(found) == [*range(45, 50), *range(15)]

    asyncio.run(main())


def test_what_is_deleted_by_tag_is_counted_once_while_a_cap_is_kept(backend: Backend) -> None:
    async def main() -> None:
        wal = backend.fresh()
        async with topics_on(wal, NO_UPKEEP) as topics:
            await topics.put("t", TopicPatch(cap_bytes=CAP_BYTES))
            for number in range(40):
                await topics.append("t", new(number, tag="odd" if number % 2 else "even"))
        async with topics_on(backend.rival(wal)) as topics:
            topic = topics.get("t")
            await append_now(topics, "t", *range(60))  # so its front is in memory
            await topics.delete_records("t", match=TagMatch("odd"))
            await until(lambda: not topic.to_reclaim)
            for number in range(20):
                await append_now(topics, "t", number)
            # Upkeep may have been at it, and takes the rest then.
            await until(lambda: not topic.over_cap)
            topic.check()
            found = await read_all(topics, "t")
            assert topic.count == len(found.records)
            assert (
                topic.stored
                == topic.bytes
                == sum(
                    RECORD_OVERHEAD + len(record.data) + len(record.tag or "")
                    for record in found.records
                )
            )

    asyncio.run(main())

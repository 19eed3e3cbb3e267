"""What parts are to each other, as the app introduces them: topics, as a graph reads them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairway.errors import FeedLost
from fairway.graphs.feed import FeedContext
from fairway.graphs.feeds.topic import TopicReading, topic
from fairway.parts import TopicArrivals
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from tests.support.topics import new, topics_on

if TYPE_CHECKING:
    from fairway.topics.engine import Topics


def reading_of(topics: Topics, name: str) -> TopicReading:
    def report(connected: bool, why: str = "") -> None:
        raise AssertionError("a lost feed is raised")

    arrivals = TopicArrivals(topics)
    return topic(name).open(FeedContext("graph", "source", "", report, lambda: None, arrivals))


def test_a_topic_that_does_not_exist_is_created_and_then_read() -> None:
    async def scenario() -> None:
        async with topics_on(MemoryWal()) as topics:
            reading = reading_of(topics, "orders")
            await reading.connect({})
            assert topics.find("orders") is None
            async with asyncio.TaskGroup() as group:
                received = group.create_task(reading.receive())
                while topics.find("orders") is None:  # noqa: ASYNC110  (on virtual time)
                    await asyncio.sleep(0.1)
                assert not received.done()
                await topics.writing.append(topics.get("orders"), new("first"))
            (event,) = received.result()
            assert event == (b'"first"', str(topics.get("orders").epoch), 1)
            await reading.aclose()

    run(scenario)


def test_a_topic_that_is_deleted_is_lost_and_created_when_the_source_connects_again() -> None:
    async def scenario() -> None:
        async with topics_on(MemoryWal()) as topics:
            former, _ = await topics.create("orders")
            await topics.writing.append(former, new("old"))
            reading = reading_of(topics, "orders")
            await reading.connect({})
            assert await reading.receive() == [(b'"old"', str(former.epoch), 1)]
            async with asyncio.TaskGroup() as group:
                lost = group.create_task(lost_of(reading))
                await topics.delete("orders")
            assert "topic 'orders' was deleted" in lost.result()
            await reading.connect({str(former.epoch): 1})
            async with asyncio.TaskGroup() as group:
                received = group.create_task(reading.receive())
                while topics.find("orders") is None:  # noqa: ASYNC110  (on virtual time)
                    await asyncio.sleep(0.1)
                later = topics.get("orders")
                assert later.epoch > former.epoch
                await topics.writing.append(later, new("young"))
            assert received.result() == [(b'"young"', str(later.epoch), 1)]
            await reading.aclose()

    run(scenario)


async def lost_of(reading: TopicReading) -> str:
    with pytest.raises(FeedLost) as lost:
        await reading.receive()
    return str(lost.value)

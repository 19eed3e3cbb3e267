"""Topics embedded in a process: the same rules as over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import InvalidRequest
from fairway.testing import run
from fairway.topics.handle import Record, TopicHandle
from fairway.wire.topics import TopicPatch
from tests.support.topics import topics_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.topics.engine import Topics


@dataclass
class App:
    topics: Topics
    remote_topics: None = None


def with_handle(body: Callable[[TopicHandle[int]], Awaitable[None]], **config: Any) -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await body(TopicHandle(App(topics), "t", int, TopicPatch(**config)))

    run(main, seed=1, quiet=True, limit_ns=10**12)


@pytest.mark.parametrize("wrong", [{"key": ""}, {"key": "é" * 129}, {"node": "é" * 65}], ids=str)
def test_who_writes_and_under_which_key_has_the_same_limits(wrong: dict[str, str]) -> None:
    async def body(topic: TopicHandle[int]) -> None:
        with pytest.raises(InvalidRequest):
            await topic.append(1, **wrong)
        await topic.append(2, key="é" * 128, node="é" * 64)
        assert [record.data for record in (await topic.read()).records] == [2]

    with_handle(body)


@pytest.mark.parametrize(("spared", "seen"), [(True, [1]), (False, [1, 2])])
def test_a_reader_is_spared_its_own_records_if_the_topic_says_so(
    spared: bool, seen: list[int]
) -> None:
    async def body(topic: TopicHandle[int]) -> None:
        await topic.append(1, node="other")
        await topic.append(2, node="own")
        await topic.append(3)
        assert [record.data for record in (await topic.read(node="own")).records] == [*seen, 3]
        watched: list[int] = []
        async for found in topic.watch(node="own"):
            assert isinstance(found, Record)
            watched.append(found.data)
            if found.data == 3:
                break
        assert watched == [*seen, 3]

    with_handle(body, dedupe_node=spared)

"""Topics embedded in a process: the same rules as over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import InvalidRequest
from fairway.testing import run
from fairway.topics.handle import INBOX_BYTES_MAX, Lost, Record, TopicHandle, consumed
from fairway.wire.topics import TopicPatch
from tests.support.topics import new, topics_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.topics.engine import Topics
    from fairway.topics.watching import Watcher


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


@pytest.mark.parametrize("cap", [0, 2])
def test_a_place_that_a_recreated_topic_never_had_is_told_and_all_of_it_follows(cap: int) -> None:
    async def main() -> None:
        async with topics_on() as topics:
            topic: TopicHandle[int] = TopicHandle(App(topics), "t", int, TopicPatch())
            await topic.append(*range(10))
            await topics.delete("t")
            await topics.put("t", TopicPatch(cap_records=cap))
            await topic.append(1, 2, 3)
            await asyncio.sleep(1)
            first = topic.state.evict_floor
            found = topic.watch(from_seq=10)
            assert await anext(found) == Lost(1, first - 1, "recreated")
            for seq in range(first, 4):
                record = await anext(found)
                assert isinstance(record, Record)
                assert (record.seq, record.data) == (seq, seq)

    run(main, seed=1, quiet=True, limit_ns=10**12)


def test_whoever_turns_records_into_other_work_hears_that_their_topic_is_gone() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.append("t", new(1))
            reading = consumed(topics, "t", None, 0)
            assert await anext(reading) == (topics.get("t").epoch, [(1, b"1")])
            await topics.delete("t")
            with pytest.raises(StopAsyncIteration):
                await anext(reading)

    run(main, seed=1, quiet=True, limit_ns=10**12)


def test_a_reader_falls_behind_by_the_bytes_that_wait_and_still_reads_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with topics_on() as topics:
            watchers: list[Watcher] = []

            def watch(*args: Any) -> Watcher:
                watchers.append(real(*args))
                return watchers[-1]

            real = topics.watch
            monkeypatch.setattr(topics, "watch", watch)
            topic: TopicHandle[str] = TopicHandle(App(topics), "t", str, TopicPatch())
            await topic.append("first")
            large = "x" * 1_000_000
            async with topic.watch() as found:
                await anext(found)
                for _ in range(30):
                    await topic.append(large)
                    await asyncio.sleep(0.1)
                (watcher,) = watchers
                assert watcher.stalled
                held = (watcher.cursor - 1) * len(large)
                # The first waits uncounted, and the last is taken whatever its size.
                assert INBOX_BYTES_MAX <= held <= INBOX_BYTES_MAX + 2 * len(large)
                for seq in range(2, 32):
                    record = await anext(found)
                    assert isinstance(record, Record)
                    assert (record.seq, record.data) == (seq, large)

    run(main, seed=1, quiet=True, limit_ns=10**12)

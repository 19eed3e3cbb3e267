"""Where the records of a tag are: never past one that matches, and within a byte budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics.active import ActiveTopic
from fairway.topics.batch import VERSION, RecordBatch
from fairway.topics.engine import TopicsConfig
from fairway.topics.idempotency import KeyMemory
from fairway.topics.match import TagMatch
from fairway.topics.reading import Selection
from fairway.topics.tags import BATCH_COST, TAG_COST, TagMemory
from fairway.topics.tail import BatchTail
from fairway.wire.topics import TopicPatch
from tests.support.topics import new, read_all, topics_on, values

if TYPE_CHECKING:
    from collections.abc import Coroutine

TAGS = ["", "a", "ab", "b"]
BATCHES = st.lists(st.lists(st.sampled_from(TAGS), min_size=1, max_size=4), max_size=30)
MATCHES = st.builds(TagMatch, st.sampled_from(["a", "ab", "b", "c", ""]), st.booleans())


def batch_of(first_seq: int, tags: list[str]) -> RecordBatch:
    records = [{"data": 1, "tag": tag} if tag else {"data": 1} for tag in tags]
    return RecordBatch(VERSION, first_seq, len(tags), 0, 0, msgspec.json.encode(records))


@given(BATCHES, MATCHES, st.integers(0, 2000), st.data())
def test_nothing_that_matches_is_skipped(
    batches: list[list[str]], match: TagMatch, budget: int, data: Any
) -> None:
    active: Any = _active()
    memory = TagMemory(budget)
    tag_of: dict[int, str] = {}
    for tags in batches:
        first = len(tag_of) + 1
        tag_of.update(enumerate(tags, first))
        memory.note(active, batch_of(first, tags))
        assert memory.used <= budget
    if active.tags is None:
        return
    head = len(tag_of)
    after = data.draw(st.integers(0, head))
    upto = data.draw(st.integers(after, head))
    skipped = active.tags.skip(after, upto, match)
    assert after <= skipped <= max(upto, after)
    assert not any(match(tag_of[seq] or None) for seq in range(after + 1, skipped + 1))
    if active.tags.since <= after + 1 and skipped < upto:
        ends = [sum(map(len, batches[: at + 1])) for at in range(len(batches))]
        end = next(end for end in ends if end > skipped)
        begin = max(end for end in [0, *ends] if end <= skipped) + 1
        assert any(match(tag_of[seq] or None) for seq in range(begin, end + 1)), (
            "skipped too little"
        )


def test_what_was_forgotten_is_not_spoken_of() -> None:
    active: Any = _active()
    cost = BATCH_COST + TAG_COST + 1
    memory = TagMemory(2 * cost)
    for first in (1, 2, 3):
        memory.note(active, batch_of(first, ["a"]))
    assert memory.used == 2 * cost
    assert active.tags.skip(0, 3, TagMatch("b")) == 0, "the first one is not known any more"
    assert active.tags.skip(1, 3, TagMatch("b")) == 3


def test_a_batch_that_was_not_noted_begins_a_new_index() -> None:
    active: Any = _active()
    memory = TagMemory(10_000)
    memory.note(active, batch_of(1, ["a"]))
    memory.note(active, batch_of(3, ["b"]))
    assert active.tags.skip(0, 3, TagMatch("c")) == 0
    assert active.tags.skip(2, 3, TagMatch("c")) == 3


def test_a_name_spelled_with_escapes_is_a_tag_too() -> None:
    active: Any = _active()
    raw = rb'[{"data":1,"\u0074ag":"a"}]'
    TagMemory(10_000).note(active, RecordBatch(VERSION, 1, 1, 0, 0, raw))
    assert active.tags.skip(0, 1, TagMatch("a")) == 0


class CountingWal(MemoryWal):
    """Counts what is read."""

    entries_read = 0

    def read(self, partition: int, **options: Any) -> Any:
        found = super().read(partition, **options)
        self.entries_read += len(found)
        return found


def test_reading_a_rare_tag_of_a_long_topic_reads_little() -> None:
    async def main() -> None:
        wal = CountingWal()
        async with topics_on(wal, config=TopicsConfig(hot_bytes=1)) as topics:
            topic, _ = await topics.create("t")
            for number in range(500):
                tag = "rare" if number % 100 == 7 else "common"
                await topics.writing.append(topic, new(number, tag=tag))
            assert topic.active is not None
            assert topic.active.tags is not None
            wal.entries_read = 0
            rare = Selection(match=TagMatch("rare"))
            found = await read_all(topics, "t", selection=rare, limit=10)
            assert values(found) == [7, 107, 207, 307, 407]
            assert wal.entries_read <= 60
            wal.entries_read = 0
            assert await topics.delete_records("t", match=TagMatch("none")) == (topic, 0)
            assert wal.entries_read == 0
            assert (await topics.delete_records("t", match=TagMatch("rare")))[1] == 5
            assert values(await read_all(topics, "t", selection=rare)) == []

    virtually(main())


def test_a_class_that_a_crash_may_take_is_not_indexed() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(hot_bytes=1)) as topics:
            topic, _ = await topics.create("t")
            await topics.writing.append(topic, new(1, tag="a"))
            await topics.create("t", TopicPatch(durability="memory"))
            await topics.writing.append(topic, new(2, tag="b"))
            await topics.writing.append(topic, new(3, tag="b"))
            match = Selection(match=TagMatch("b"))
            assert values(await read_all(topics, "t", selection=match)) == [2, 3]
            await topics.create("t", TopicPatch(durability="fsync"))
            await topics.writing.append(topic, new(4, tag="b"))
            assert values(await read_all(topics, "t", selection=match)) == [2, 3, 4]

    virtually(main())


def _active() -> ActiveTopic:
    async def made() -> ActiveTopic:
        return ActiveTopic(BatchTail(1), KeyMemory(0, lambda epoch: 0))

    return virtually(made())


def virtually(main: Coroutine[Any, Any, Any]) -> Any:
    async def run_it() -> Any:
        return await main

    return run(run_it, seed=1, quiet=True, limit_ns=10**13)

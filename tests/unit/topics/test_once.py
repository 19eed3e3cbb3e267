"""Appends under a key that are begun at once: as single as those that take the long way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import NotFound, TopicFull, WriteFailed
from fairway.kernel.kernel import Kernel
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics.engine import Topics
from fairway.wire.topics import TopicPatch
from tests.support.topics import Forced, new, read_all, topics_on, until_idle, values

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairway.topics.topic import Topic


class Reply:
    """What was told."""

    def __init__(self) -> None:
        self.told: Any = None

    def done(self) -> bool:
        return self.told is not None

    def set_result(self, appended: Any) -> None:
        self.told = appended

    def set_exception(self, error: BaseException) -> None:
        self.told = error


def with_topic(
    body: Callable[[Topics, Topic, MemoryWal], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            topic, _ = await topics.create("t", TopicPatch(idempotency_window_ms=60_000))
            await body(topics, topic, wal)

    run(main, seed=1, quiet=True, limit_ns=10**13)


def test_a_repeat_is_answered_as_the_first_one_was() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        first, again = Reply(), Reply()
        assert topics.append_now(first, topic, new("a", key="k"))
        assert not topics.append_now(again, topic, new("a", key="k")), "it waits for the first"
        slow = await topics.writing.append(topic, new("a", key="k"))
        assert (first.told.first_seq, first.told.deduped) == (1, False)
        assert (slow.first_seq, slow.deduped) == (1, True)
        assert topics.append_now(again, topic, new("a", key="k"))
        assert (again.told.first_seq, again.told.deduped) == (1, True)
        assert values(await read_all(topics, "t")) == ["a"]

    with_topic(body)


def test_after_a_failure_the_key_is_free_again() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        def full() -> None:
            raise OSError(28, "no space")

        wal.before_write = full
        failed, repeated = Reply(), Reply()
        assert topics.append_now(failed, topic, new("a", key="k"))
        await until_idle(topics, topic)
        assert isinstance(failed.told, WriteFailed)
        wal.before_write = None
        while topics.writability.trouble:  # noqa: ASYNC110  (on virtual time, until the probe succeeds)
            await asyncio.sleep(0.1)
        assert topics.append_now(repeated, topic, new("a", key="k"))
        await until_idle(topics, topic)
        assert (repeated.told.first_seq, repeated.told.deduped) == (1, False)
        assert values(await read_all(topics, "t")) == ["a"]

    with_topic(body)


def test_while_memory_may_have_forgotten_the_store_is_asked() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        topics._keys.doubt(2**62)
        assert not topics.append_now(Reply(), topic, new("a", key="k"))
        assert topics.append_now(Reply(), topic, new("b"))
        await until_idle(topics, topic)

    with_topic(body)


def test_after_a_restart_a_repeat_is_still_single() -> None:
    async def main() -> None:
        async with Log(MemoryWal()) as log:
            async with Kernel(log, governor=Forced()) as kernel, Topics(kernel) as topics:
                topic, _ = await topics.create("t")
                assert topics.append_now(Reply(), topic, new("a", key="k"))
                await until_idle(topics, topic)
            async with Kernel(log, governor=Forced()) as kernel, Topics(kernel) as topics:
                topic = topics.get("t")
                assert not topics.append_now(Reply(), topic, new("a", key="k"))
                answer = await topics.writing.append(topic, new("a", key="k"))
                assert (answer.first_seq, answer.deduped) == (1, True)

    run(main, seed=1, quiet=True, limit_ns=10**13)


def test_a_key_whose_append_was_refused_is_free() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        await topics.put("t", TopicPatch(cap_records=1, discard="reject"))
        await topics.append("t", new("full"))
        with pytest.raises(TopicFull):
            topics.append_now(Reply(), topic, new("a", key="k"))
        await topics.delete_records("t", before_seq=2)
        reply = Reply()
        assert topics.append_now(reply, topic, new("a", key="k"))
        await until_idle(topics, topic)
        assert (reply.told.first_seq, reply.told.deduped) == (2, False)

    with_topic(body)


@pytest.mark.parametrize("create", [None, True, False])
def test_a_topic_that_is_deleted_while_its_keys_are_looked_for_is_made_anew(
    create: bool | None,
) -> None:
    """As if the append had come after the delete; unless it makes no topics."""

    class Slow(Log):
        async def meta(self, partition: int, name: str) -> bytes | None:
            found = await super().meta(partition, name)
            if name.endswith("k") and not deleted:
                deleted.append(await topics.delete("t"))
            return found

    async def main() -> None:
        nonlocal topics
        async with (
            Slow(MemoryWal()) as log,
            Kernel(log, governor=Forced()) as kernel,
            Topics(kernel) as topics,
        ):
            await topics.append("t", new("old"))
            topics._keys.doubt(2**62)  # as after a restart: the store is asked for keys
            if create is False:
                with pytest.raises(NotFound):
                    await topics.append("t", new("a", key="k"), create=create)
                assert topics.find("t") is None
                return
            _, appended, created = await topics.append("t", new("a", key="k"), create=create)
            assert (appended.first_seq, appended.deduped, created) == (1, False, True)
            assert values(await read_all(topics, "t")) == ["a"]

    topics: Any = None
    deleted: list[Any] = []
    run(main, seed=1, quiet=True, limit_ns=10**13)

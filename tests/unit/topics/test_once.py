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
from fairway.testing.loop import VirtualLoop
from fairway.topics.engine import Topics, TopicsConfig
from fairway.wire.topics import TopicPatch
from tests.support.topics import Forced, new, read_all, topics_on, until_idle, values

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairway.topics.outcome import Appended
    from fairway.topics.topic import Topic


class Reply:
    """What became of an append, once that is known."""

    def __init__(self) -> None:
        self.outcome: Any = None

    def on_done(self, appended: Appended | None, error: BaseException | None) -> None:
        assert self.outcome is None, "notified twice"
        self.outcome = error or appended


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
        assert topics.append_now(first.on_done, topic, new("a", key="k"))
        assert not topics.append_now(again.on_done, topic, new("a", key="k")), (
            "it waits for the first"
        )
        slow = await topics.writing.append(topic, new("a", key="k"))
        assert (first.outcome.first_seq, first.outcome.deduped) == (1, False)
        assert (slow.first_seq, slow.deduped) == (1, True)
        assert topics.append_now(again.on_done, topic, new("a", key="k"))
        assert (again.outcome.first_seq, again.outcome.deduped) == (1, True)
        assert values(await read_all(topics, "t")) == ["a"]

    with_topic(body)


def test_after_a_failure_the_key_is_free_again() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        def full() -> None:
            raise OSError(28, "no space")

        wal.before_write = full
        failed, repeated = Reply(), Reply()
        assert topics.append_now(failed.on_done, topic, new("a", key="k"))
        await until_idle(topics, topic)
        assert isinstance(failed.outcome, WriteFailed)
        wal.before_write = None
        while topics.writability.trouble:  # noqa: ASYNC110  (on virtual time, until the probe succeeds)
            await asyncio.sleep(0.1)
        assert topics.append_now(repeated.on_done, topic, new("a", key="k"))
        await until_idle(topics, topic)
        assert (repeated.outcome.first_seq, repeated.outcome.deduped) == (1, False)
        assert values(await read_all(topics, "t")) == ["a"]

    with_topic(body)


def test_while_memory_may_have_forgotten_the_store_is_asked() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        topics._keys.doubt(2**62)
        assert not topics.append_now(Reply().on_done, topic, new("a", key="k"))
        assert topics.append_now(Reply().on_done, topic, new("b"))
        await until_idle(topics, topic)

    with_topic(body)


def test_after_a_restart_a_repeat_is_still_single() -> None:
    async def main() -> None:
        async with Log(MemoryWal()) as log:
            async with Kernel(log, governor=Forced()) as kernel, Topics(kernel) as topics:
                topic, _ = await topics.create("t")
                assert topics.append_now(Reply().on_done, topic, new("a", key="k"))
                await until_idle(topics, topic)
            async with Kernel(log, governor=Forced()) as kernel, Topics(kernel) as topics:
                topic = topics.get("t")
                assert not topics.append_now(Reply().on_done, topic, new("a", key="k"))
                answer = await topics.writing.append(topic, new("a", key="k"))
                assert (answer.first_seq, answer.deduped) == (1, True)

    run(main, seed=1, quiet=True, limit_ns=10**13)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(("after_ms", "deduped"), [(9_999, True), (10_000, False)])
def test_the_window_of_a_key_is_counted_from_its_append_whatever_came_behind_it(
    restart: bool, after_ms: int, deduped: bool
) -> None:
    """Others are accepted while it is being written, and the topic has their time then."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            topic, _ = await topics.create("t", TopicPatch(idempotency_window_ms=10_000))
            used_ms = topics._now_ms()
            first = asyncio.ensure_future(topics.append("t", new("a", key="k")))
            await asyncio.sleep(0.4)
            await asyncio.gather(first, topics.append("t", new("behind it")))
            assert topic.last_ts >= used_ms + 400, "no other was accepted meanwhile"
            if not restart:
                await repeat(topics, used_ms)
        if restart:
            async with topics_on(wal.kill()) as topics:
                await repeat(topics, used_ms)

    async def repeat(topics: Topics, used_ms: int) -> None:
        await asyncio.sleep((used_ms + after_ms - topics._now_ms()) / 1e3)
        assert topics._now_ms() == used_ms + after_ms
        _, answer, _ = await topics.append("t", new("a", key="k"))
        assert answer.deduped is deduped

    run(main, seed=1, quiet=True, limit_ns=10**13, latency_ns=(5 * 10**8, 5 * 10**8))


def test_a_key_is_looked_up_after_a_start_with_a_clock_that_was_set_back() -> None:
    async def main() -> None:
        wal, loop = MemoryWal(), asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(idempotency_window_ms=10_000))
            await topics.append("t", new("a", key="k"))
        loop.clock.shift_wall(-3600 * 10**9)
        async with topics_on(wal.kill()) as topics:
            await asyncio.sleep(11)
            _, answer, _ = await topics.append("t", new("a", key="k"))
            assert (answer.first_seq, answer.deduped) == (1, True)

    run(main, seed=1, quiet=True, limit_ns=10**13)


def test_a_window_that_is_raised_holds_for_keys_that_memory_has_forgotten() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(key_bytes=1)) as topics:
            await topics.put("t", TopicPatch(idempotency_window_ms=60_000))
            await topics.append("t", new("a", key="k"))
            await asyncio.sleep(50)
            await topics.put("t", TopicPatch(idempotency_window_ms=120_000))
            await asyncio.sleep(50)
            _, answer, _ = await topics.append("t", new("a", key="k"))
            assert (answer.first_seq, answer.deduped) == (1, True)

    run(main, seed=1, quiet=True, limit_ns=10**13)


def test_a_key_whose_records_were_lost_after_they_were_seen_is_free() -> None:
    """A class that is told within the call has its record taken back when the write fails."""

    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        await topics.put("t", TopicPatch(durability="memory"))
        await topics.append("t", new("before"))
        await until_idle(topics, topic)

        def full() -> None:
            raise OSError(28, "no space")

        wal.before_write = full
        lost = await topics.writing.append(topic, new("a", key="k"))
        await until_idle(topics, topic)
        wal.before_write = None
        while topics.writability.trouble:  # noqa: ASYNC110  (on virtual time, until the probe succeeds)
            await asyncio.sleep(0.1)
        again = await topics.writing.append(topic, new("a", key="k"))
        assert (lost.deduped, again.deduped) == (False, False)
        assert values(await read_all(topics, "t")) == ["before", "a"]

    with_topic(body)


def test_a_key_whose_append_was_refused_is_free() -> None:
    async def body(topics: Topics, topic: Topic, wal: MemoryWal) -> None:
        await topics.put("t", TopicPatch(cap_records=1, discard="reject"))
        await topics.append("t", new("full"))
        with pytest.raises(TopicFull):
            topics.append_now(Reply().on_done, topic, new("a", key="k"))
        await topics.delete_records("t", before_seq=2)
        reply = Reply()
        assert topics.append_now(reply.on_done, topic, new("a", key="k"))
        await until_idle(topics, topic)
        assert (reply.outcome.first_seq, reply.outcome.deduped) == (2, False)

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

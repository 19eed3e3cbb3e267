"""Seqs of the weaker classes: reserved before they are given out, ahead of need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import WriteFailed
from fairway.runtime.completion import resolve
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics import names
from fairway.topics.reserving import SEQS_MAX, SEQS_MIN, step
from fairway.wire.topics import TopicPatch
from tests.support.topics import new, read_all, topics_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.topics.engine import Topics
    from fairway.topics.outcome import Appended
    from fairway.topics.topic import Topic


def virtually(main: Callable[[], Any]) -> None:
    run(main, quiet=True, limit_ns=10**12)


async def reserved_in_store(topics: Topics, topic: Topic) -> int:
    stored = await topics.kernel.partitions.meta(topic.epoch, names.RESERVED)
    return names.decode_number(stored) if stored is not None else 0


def test_a_clean_stop_gives_back_what_was_reserved() -> None:
    async def main() -> None:
        wal = MemoryWal()
        for _ in range(3):
            async with topics_on(wal) as topics:
                await topics.put("d", TopicPatch(durability="disk"))
                await topics.append("d", new(1))
            wal = wal.kill()
        async with topics_on(wal) as topics:
            found = await read_all(topics, "d")
            assert (found.seqs, found.gaps) == ([1, 2, 3], [])

    virtually(main)


def test_a_class_that_changes_twice_still_reserves() -> None:
    """What memory believes to be reserved must be so in the store."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            for durability in ("disk", "fsync", "memory"):
                await topics.put("t", TopicPatch(durability=durability))  # type: ignore[arg-type]
                await topics.append("t", new(durability))
            dead = wal.crash()
        async with topics_on(dead) as topics:
            found = await read_all(topics, "t")
            assert found.cursor >= 3
            assert {1, 2, 3} <= set(found.seqs) | found.lost
            _, answer, _ = await topics.append("t", new("next"))
            assert answer.first_seq > 3

    virtually(main)


def test_reservations_made_at_once_do_not_undo_each_other() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(durability="disk"))
            async with asyncio.TaskGroup() as group:
                group.create_task(topics.append("t", new(*range(3_000))))
                group.create_task(topics.append("t", new(1)))
            topic = topics.get("t")
            stored = await topics.kernel.partitions.meta(topic.epoch, names.RESERVED)
            assert stored is not None
            assert names.decode_number(stored) >= topic.reserved

    virtually(main)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
def test_hardly_an_append_of_a_weaker_class_waits_for_a_reservation(
    durability: Any, keyed: bool
) -> None:
    """The express way takes them, as it takes those of the strongest."""

    async def main() -> None:
        async with topics_on() as topics:
            topic, _ = await topics.put("t", TopicPatch(durability=durability))
            await topics.append("t", new(1))
            waited = 0
            await asyncio.sleep(200)  # until memory knows all keys that count
            for number in range(500):
                batch = new(*range(100), key=f"key-{number}" if keyed else None)
                for repeated in (False, True) if keyed else (False,):
                    reply: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
                    if topics.append_now(resolve(reply), topic, batch):
                        assert (await reply).deduped is repeated
                    else:
                        waited += 1
                        await topics.append("t", batch)
                assert topic.assigned <= topic.reserved <= await reserved_in_store(topics, topic)
            assert waited == 0
            assert topic.head == 1 + 500 * 100

    virtually(main)


def test_many_who_need_a_reservation_share_one() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(durability="disk"))
            before = topics.kernel.partitions.statistics()[0].operations
            async with asyncio.TaskGroup() as group:
                for number in range(64):
                    group.create_task(topics.append("t", new(number)))
            assert topics.kernel.partitions.statistics()[0].operations == before + 64 + 1

    virtually(main)


def test_a_busy_topic_reserves_more_at_a_time_within_bounds() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            topic, _ = await topics.put("t", TopicPatch(durability="disk"))
            assert step(topic) == SEQS_MIN
            for _ in range(20):
                await topics.append("t", new(*range(5_000)))
            assert step(topic) == SEQS_MAX
            assert topic.reserved <= topic.assigned + SEQS_MAX

    virtually(main)


def test_a_failed_reservation_gives_out_nothing_and_makes_the_server_read_only_for_a_while() -> (
    None
):
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            topic, _ = await topics.put("t", TopicPatch(durability="memory"))
            wal.fail_shard(0, write=OSError("no room"))
            answers = await asyncio.gather(
                *(topics.append("t", new(number)) for number in range(5)), return_exceptions=True
            )
            assert {type(answer) for answer in answers} == {WriteFailed}
            assert (topic.assigned, topic.reserved) == (0, 0)

            assert topics.writability.trouble is not None
            wal.fail_shard(0)
            await asyncio.sleep(2)
            assert topics.writability.trouble is None
            await topics.append("t", new("after"))
            assert topic.reserved == await reserved_in_store(topics, topic) > 0
            assert (await read_all(topics, "t")).seqs == [1]

    virtually(main)

"""What a topic is configured as: said by its own partition, and then by the catalog."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway.errors import Conflict, OutcomeUnknown, Unavailable, WriteFailed
from fairway.storage.log import Log
from fairway.storage.wal import Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics import names
from fairway.topics.operations import (
    ProducerPosition,
    Reserved,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from fairway.wire.topics import TopicPatch
from tests.support.topics import new, read_all, topics_on, values

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fairway.topics.engine import Topics

HOUR_NS = 3_600_000_000_000
CAP = TopicPatch(cap_records=2)


def virtually(main: Coroutine[Any, Any, None]) -> None:
    run(main, seed=1, limit_ns=HOUR_NS, quiet=True)


async def stored(topics: Topics) -> Snapshot:
    found = await topics.kernel.partitions.meta(topics.get("t").epoch, names.SNAPSHOT)
    assert found is not None
    return decode_snapshot(found)


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_after_a_crash_between_its_two_writes_the_partition_says_how_a_topic_is(
    durability: Any, power_lost: bool
) -> None:
    """What the old configuration made of it is in the same snapshot, and so is the class."""

    async def main() -> None:
        wal, heirs = MemoryWal(), []
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(durability="disk", cap_records=2))
            await topics.append("t", new(1, 2, 3))
            catalog = topics.kernel.catalog
            real = catalog.put

            async def put(*args: Any, **options: Any) -> None:
                heirs.append(wal.crash() if power_lost else wal.kill())
                await real(*args, **options)

            catalog.put = put  # type: ignore[method-assign]
            patch = TopicPatch(durability=durability, cap_records=0)
            await topics.put("t", patch)
            expected = topics.get("t").config
            assert (expected.durability, expected.cap_records) == (durability, 0)
        async with topics_on(heirs[0]) as topics:
            assert topics.get("t").config == expected
            assert values(await read_all(topics, "t")) == [2, 3], "what was lost stays lost"
            await topics.append("t", new(4, 5))
        async with topics_on(heirs[0].reopened()) as topics:
            assert topics.get("t").config == expected
            assert values(await read_all(topics, "t")) == [2, 3, 4, 5]

    virtually(main())


def test_a_change_that_the_catalog_could_not_take_is_made() -> None:
    """It is durable where a start looks first."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.create("t")

            async def refused(*args: Any, **options: Any) -> None:
                raise WriteFailed("no space")

            topics.kernel.catalog.put = refused  # type: ignore[method-assign]
            await topics.put("t", CAP)
            assert topics.get("t").config.cap_records == 2
        async with topics_on(wal.kill()) as topics:
            assert topics.get("t").config.cap_records == 2

    virtually(main())


def test_a_store_of_an_older_release_is_configured_as_its_catalog_says() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", CAP)
            await topics.append("t", new(1))
            epoch = topics.get("t").epoch
        wal = wal.reopened()
        async with Log(wal) as log:
            snapshot = decode_snapshot(await log.meta(epoch, names.SNAPSHOT) or b"")
            known = list(msgspec.to_builtins(snapshot))[
                : Snapshot.__struct_fields__.index("config")
            ]
            await log.submit(epoch, Operation(meta={names.SNAPSHOT: encode_snapshot(known)}))
        async with topics_on(wal.reopened()) as topics:
            assert (await stored(topics)).config is None
            assert topics.get("t").config.cap_records == 2
            await topics.append("t", new(2, 3))
            assert await topics.retention.save(topics.get("t")) is False
            assert (await stored(topics)).config == topics.get("t").config

    virtually(main())


def test_a_snapshot_behind_a_change_that_is_being_written_tells_of_it() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.append("t", new(1))
            topic = topics.get("t")
            changing = asyncio.ensure_future(topics.put("t", CAP))
            while topic.active is None or topic.active.writes.config is None:  # noqa: ASYNC110  (a step at a time)
                await asyncio.sleep(0)
            assert topic.config.cap_records == 0, "it is not durable yet"
            await topics.retention.save(topic)
            config = (await stored(topics)).config
            assert config is not None
            assert config.cap_records == 2
            await changing
            assert topic.config == config

    virtually(main())


def test_a_topic_with_ephemeral_records_under_way_does_not_cease_to_be_ephemeral() -> None:
    """They come behind something that is written first, and nobody sees them yet."""

    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(durability="ephemeral"))
            topic = topics.get("t")
            gap = topics.writing.enqueue_gap(topic, 1, "source_trim", ProducerPosition("p", 1, 1))
            topic.apply(Reserved(10))
            behind = topics.writing.enqueue(topic, new(1))
            assert topic.count == 0
            with pytest.raises(Conflict):
                await topics.put("t", TopicPatch(durability="memory"))
            await gap
            await behind
            assert values(await read_all(topics, "t")) == [1]
            assert topic.config.durability == "ephemeral"

    virtually(main())


class Ill(MemoryWal):
    """Raises while it writes a snapshot with a cap, before it is written or after."""

    how = ""

    def write(self, group: Any, *, sync: bool) -> Any:
        snapshots = [
            decode_snapshot(one.meta[names.SNAPSHOT])
            for operations in group.values()
            for one in operations
            if one.meta.get(names.SNAPSHOT)
        ]
        how = self.how if any(one.config and one.config.cap_records for one in snapshots) else ""
        if how == "before":
            raise RuntimeError(how)
        failures = super().write(group, sync=sync)
        if how == "after":
            raise RuntimeError(how)
        return failures


@pytest.mark.parametrize("how", ["before", "after"])
def test_the_store_says_whether_a_change_of_unknown_outcome_was_made(how: str) -> None:
    async def main() -> None:
        wal = Ill()
        async with topics_on(wal) as topics:
            await topics.append("t", new(1, 2, 3))
            wal.how = how
            with pytest.raises(OutcomeUnknown):
                await topics.put("t", CAP)
            wal.how = ""
            await asyncio.sleep(3)
            made = how == "after"
            assert topics.get("t").config.cap_records == (2 if made else 0)
            assert values(await read_all(topics, "t")) == ([2, 3] if made else [1, 2, 3])
            await topics.append("t", new(4))
            expected = values(await read_all(topics, "t"))
        async with topics_on(wal.kill()) as topics:
            assert topics.get("t").config.cap_records == (2 if made else 0)
            assert values(await read_all(topics, "t")) == expected

    virtually(main())


def test_no_seqs_are_reserved_while_nobody_knows_which_class_a_topic_has() -> None:
    """It may need none any more, and the next one that does would take what is left for lost."""

    async def main() -> None:
        wal = Ill()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(durability="disk"))
            topic = topics.get("t")
            wal.how = "after"
            with pytest.raises(OutcomeUnknown):
                await topics.put("t", TopicPatch(durability="fsync", cap_records=2))
            with pytest.raises(Unavailable):
                await topics.writing.reserving.reserve(topic, 1)
            wal.how = ""
            await asyncio.sleep(3)
            assert (topic.config.durability, topic.reserved) == ("fsync", 0)
            partitions = topics.kernel.partitions
            assert await partitions.meta(topic.epoch, names.RESERVED) is None

    virtually(main())

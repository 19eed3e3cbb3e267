"""A process that owns topics: what `test_topics_crash` starts, listens to and kills. Run with

    python -m tests.support.topics_child PLACE SEED [PLANT]

It appends to several topics of every class until it is killed, and says over stdout what was
acknowledged, each time after it was: one line of JSON, shorter than what a pipe writes at once.
`PLANT` is a deliberate bug that the check after a kill must find.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.errors import FairwayError
from fairway.kernel.kernel import Kernel
from fairway.storage.log import Log
from fairway.storage.wals import wal_at
from fairway.storage.wals.postgres import PostgresWal
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.match import TagMatch
from fairway.topics.retention import RetentionConfig
from fairway.topics.writing import Writing
from fairway.wire.topics import RouterConfig, TopicPatch
from tests.support.topics import new

if TYPE_CHECKING:
    from fairway.storage.wal import Wal

CLASSES = ("fsync", "disk", "memory", "ephemeral")
NAMES = [f"{durability}-{number}" for durability in CLASSES for number in range(2)]
CONFIG = TopicsConfig(hot_bytes=100_000, retention=RetentionConfig(chunk=20, snapshot_records=50))


def store_at(place: str) -> Wal:
    """Where the topics live: as for a user, or `SCHEMA@postgresql://…`, whose dead owner's lease
    is not waited for."""
    schema, at, url = place.partition("@")
    return PostgresWal(url, schema=schema, takeover=True) if at else wal_at(place)


def report(**fields: Any) -> None:
    os.write(1, msgspec.json.encode(fields) + b"\n")


async def appender(topics: Topics, name: str, worker: int, chance: random.Random) -> None:
    while True:
        tags = [chance.choice("xyz") for _ in range(chance.choice((1, 1, 3, 10)))]
        word = f"{os.getpid()}/{worker}/{chance.getrandbits(48)}"
        records = [([word, at, "p" * chance.choice((0, 100))], tag) for at, tag in enumerate(tags)]
        key = word if chance.random() < 0.3 else None
        if key is not None:
            report(topic=name, trying=word, count=len(tags), tags="".join(tags))
        try:
            _, answer, _ = await topics.append(name, new(*records, key=key))
        except FairwayError as error:
            report(failed=str(error))
            return
        report(topic=name, word=word, first=answer.first_seq, tags="".join(tags), key=key)
        if name.startswith(("memory", "ephemeral")):
            # They wait for no disk; with a look into the store the others have a say, too.
            await topics.extras(topics.get(name), "pace")


async def deleter(topics: Topics, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.random() * 0.2)
        name = chance.choice(NAMES)
        tag = chance.choice("xy")
        head = topics.get(name).head
        report(topic=name, deleting=tag)
        await topics.delete_records(name, match=TagMatch(tag))
        report(topic=name, deleted=tag, upto=head)


async def main(place: str, seed: str, plant: str = "") -> None:
    if plant == "early":  # PLANTED: acknowledged, and shown, before it is written

        def early(self: Writing, topic: Any, new: Any, enqueue: Any = Writing.enqueue) -> Any:
            config = topic.config
            topic.config = msgspec.structs.replace(config, durability="memory")
            topic.reserved = max(topic.reserved, topic.assigned + new.records.count)
            try:
                return enqueue(self, topic, new)
            finally:
                topic.config = config

        Writing.enqueue = early  # type: ignore[method-assign]
    chance = random.Random(seed)
    async with (
        Log(store_at(place)) as log,
        Kernel(log) as kernel,
        Topics(kernel, config=CONFIG) as topics,
    ):
        for name in NAMES:
            durability: Any = name.split("-", maxsplit=1)[0]
            await topics.put(name, TopicPatch(durability=durability))
        await topics.put_router("copies", RouterConfig(source="fsync-0", dest="copy"))
        report(open=True)
        async with asyncio.TaskGroup() as group:
            for name in NAMES:
                for worker in range(3):
                    own = random.Random(f"{seed}/{name}/{worker}")
                    group.create_task(appender(topics, name, worker, own))
            group.create_task(deleter(topics, chance))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

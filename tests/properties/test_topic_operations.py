"""A topic is the sum of its operations: whoever adds up what its partition was written finds the
very topic that ran, from nothing, from any earlier point once more, and after any death."""

from __future__ import annotations

import ast
import asyncio
import random
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import fairway
from fairway.errors import FairwayError, WriteFailed
from fairway.kernel.catalog import CATALOG, NUMBER_BYTES
from fairway.kernel.kernel import Kernel
from fairway.runtime.clock import clock_of
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics import names, writing
from fairway.topics.active import ActiveTopic
from fairway.topics.batch import RecordBatch
from fairway.topics.changes import TOPIC
from fairway.topics.doubts import Doubts
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.idempotency import KeyMemory
from fairway.topics.match import TagMatch
from fairway.topics.operations import (
    KeySeen,
    ProducerPosition,
    Removal,
    Snapshot,
    changes_of,
    decode_snapshot,
)
from fairway.topics.producers import Producers
from fairway.topics.recovery import decode_topic
from fairway.topics.reserving import SeqReservation
from fairway.topics.retention import RetentionConfig
from fairway.topics.subscribers import Subscribers
from fairway.topics.tail import BatchTail
from fairway.topics.topic import Topic
from fairway.topics.writes import Writes
from fairway.topics.writing import Writing
from fairway.wire.topics import TopicPatch
from tests.support.planted import expect_seen, plant
from tests.support.promises import Broken, broken_by, demand
from tests.support.topics import Forced, new, until_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from fairway.storage.wal import Operation
    from fairway.wire.topics import TopicConfig
    from tests.conftest import Campaign

TAGS = (None, "a", "ab", "b")
CLASSES = ("fsync", "fsync", "disk", "memory", "ephemeral")
KEYS = [f"k{number}" for number in range(6)]
PRODUCERS = "pq"
MS = 0.001


class RecordedWal(MemoryWal):
    """Writes down every operation that it keeps, and which of them a loss of power spares."""

    def __init__(self, chance: random.Random, tally: Counter[str]) -> None:
        super().__init__()
        self.chance = chance
        self.tally = tally
        self.operations: dict[int, list[Operation]] = {}
        self.synced: dict[int, int] = {}
        self.fault_rate = 0.0
        self.faulted = False

    def write(self, group: Any, *, sync: bool) -> Any:
        fault = self.chance.random() < self.fault_rate
        kind = self.chance.choice(("refused", "raised before", "raised after")) if fault else ""
        self.tally[kind or "written"] += 1
        self.faulted |= fault
        if kind == "refused":
            return dict.fromkeys(group, WriteFailed("no space"))
        if kind == "raised before":
            raise RuntimeError(kind)
        failures = super().write(group, sync=sync)
        assert not failures
        for partition, operations in group.items():
            self.operations.setdefault(partition, []).extend(operations)
        if sync:
            self.note_sync()
        if kind:
            raise RuntimeError(kind)
        return failures

    def maintain(self) -> None:
        super().maintain()
        self.note_sync()

    @property
    def began_as(self) -> TopicConfig:
        """What the catalog said of the topic when it was made, and nobody had configured it."""
        values = (one.meta.get(f"{TOPIC}/t") for one in self.operations[CATALOG])
        first = next(value for value in values if value is not None)
        return decode_topic(first[NUMBER_BYTES:]).config

    def note_sync(self) -> None:
        self.synced = {number: len(some) for number, some in self.operations.items()}

    def heir(self, *, power_lost: bool = False) -> RecordedWal:
        """The store as the next life finds it."""
        survivor = self.crash() if power_lost else self.kill()
        heir = RecordedWal(self.chance, self.tally)
        heir._shards = survivor._shards
        heir.unsynced_kept = survivor.unsynced_kept
        for partition, operations in self.operations.items():
            kept = self.synced.get(partition, 0) if power_lost else len(operations)
            heir.operations[partition] = operations[:kept]
            heir.synced[partition] = kept
        return heir


class Follower:
    """Adds up operations, as a life that begins or a machine that follows would."""

    def __init__(
        self, topic: Topic, began_as: TopicConfig, operations: Iterable[Operation]
    ) -> None:
        self.topic = Topic(topic.name, abs(topic.epoch), began_as)
        self.active = self.topic.begin_use(
            ActiveTopic(BatchTail(1), KeyMemory(1 << 20, lambda epoch: 0))
        )
        self.meta: dict[str, bytes] = {}
        self.batches: dict[int, RecordBatch] = {}
        for operation in operations:
            self.follow(operation)
        self.deleted = {
            seq
            for batch in (self.stored if self.topic.rules else ())
            for seq, record in enumerate(batch.parse(), batch.first_seq)
            if self.topic.rules is not None and self.topic.rules.hides(seq, record.tag)
        }

    def follow(self, operation: Operation) -> None:
        for change in changes_of(operation.entries, operation.meta, topic=self.topic.name):
            self.topic.apply(change)
            if isinstance(change, RecordBatch):
                self.batches[change.last_seq] = change
        for name, value in operation.meta.items():
            if value is None:
                self.meta.pop(name, None)
            else:
                self.meta[name] = value
        for key, batch in list(self.batches.items()):
            compacted = operation.compact_before is not None and key < operation.compact_before
            removed = any(first <= key <= last for first, last in operation.remove)
            if (compacted or removed) and batch:
                del self.batches[key]
        self.topic.check()

    @property
    def all_written(self) -> bool:
        reserved = self.meta.get(names.RESERVED)
        return reserved is not None and self.meta.get(names.RESERVED_DISK) == reserved

    @property
    def stored(self) -> list[RecordBatch]:
        return [self.batches[key] for key in sorted(self.batches)]

    def decide(self, now_ms: int) -> None:
        """What the owner of a topic decides by itself, at once: see `operations`."""
        topic = self.topic
        self.begin_at_a_live_record()
        for batch in self.stored:
            while batch.last_seq >= topic.floor and topic.count:
                due = topic.eviction_due(batch, now_ms)
                if due is None:
                    break
                topic.evict(batch, due)
        self.begin_at_a_live_record()

    def begin_at_a_live_record(self) -> None:
        topic = self.topic
        if topic.thinned and not topic.count:
            topic.skip_all()
        for batch in self.stored if topic.rules else ():
            if batch.last_seq >= topic.floor and not topic.skip_deleted(batch):
                break
        found = (topic.first_live_in(batch) for batch in self.stored)
        topic.start_at(next((seq for seq in found if seq is not None), topic.head + 1))

    def seen(self, topic: Topic) -> dict[str, Any]:
        """What readers of a topic are told, if it holds what is stored here."""
        live = [
            seq
            for batch in self.stored
            for seq, record in enumerate(batch.parse(), batch.first_seq)
            if topic.is_live(seq, record.tag)
        ]
        lost: set[int] = set()
        seq = 0
        while seq < topic.head:
            gap = topic.gap_after(seq)
            if gap is not None:
                lost.update(range(gap.first, gap.last + 1))
            seq = gap.last if gap is not None else max(topic.end_of_run(seq), seq + 1)
        return {
            "head": topic.head,
            "count": topic.count,
            "bytes": topic.bytes,
            "earliest": topic.earliest,
            "live": live,
            "lost": lost - self.deleted,  # those are passed over, or told if a floor came first
            "pin": topic.pin,
        }


def exact(topic: Topic) -> tuple[Snapshot, dict[Any, int], int]:
    """Everything that operations say of a topic, but for keys and producers.

    What lies below the floor hides nothing: rules that end there go when upkeep comes by, and a
    deleted prefix may be counted before what was lost behind it, or with it.
    """
    rules = topic.rules.all() if topic.rules else {}
    rules = {rule: upto for rule, upto in rules.items() if upto >= topic.floor}
    state = msgspec.structs.replace(topic.snapshot(), rules=bool(rules), delete_floor=topic.floor)
    return state, rules, topic.reserved


def check_redone(topic: Topic, wal: RecordedWal) -> None:
    """Adding an operation twice, or a run of them again, changes nothing."""
    operations = wal.operations[topic.epoch]

    def added(*runs: list[Operation]) -> Any:
        follower = Follower(topic, wal.began_as, [one for run in runs for one in run])
        keys = [follower.active.keys.get(topic.epoch, key) for key in KEYS]
        positions = [follower.active.producers.at(producer) for producer in PRODUCERS]
        return exact(follower.topic), keys, positions

    once = added(operations)
    again = operations[wal.chance.randint(0, len(operations)) :]
    demand(added(operations, again) == once, "redone from an earlier point")
    demand(added(*([one, one] for one in operations)) == once, "each applied twice")


async def check(topics: Topics, wal: RecordedWal, tally: Counter[str]) -> None:
    """Compare the topic that runs with the sum of its operations."""
    topic = topics.get("t")
    wal.fault_rate = 0
    await quiet(topics, topic)
    # One more, so that what failed from memory shows: the seqs jump.
    await append_one(topics, topic)
    await quiet(topics, topic)
    now_ms = await expired(topics, topic)
    follower = Follower(topic, wal.began_as, wal.operations[topic.epoch])
    config, added = topic.config, follower.topic.config
    demand(config == added, f"what ran is configured as {config}, the sum as {added}")
    if topic.config.durability != "ephemeral":
        check_records(topic, follower, wal, tally, now_ms)
    else:
        reserved = follower.topic.reserved
        demand(topic.head <= reserved, f"{topic.head} was given out, up to {reserved} is reserved")
        tally["ephemeral"] += 1
    if topic.config.durability != "ephemeral" or not wal.faulted:
        # Else what nobody could write down is known to this life alone, like the records.
        await check_noted(topics, follower, now_ms)
    tally["compared"] += 1


def check_records(
    topic: Topic, follower: Follower, wal: RecordedWal, tally: Counter[str], now_ms: int
) -> None:
    follower.decide(now_ms)
    mine, theirs = (exact(one) for one in (topic, follower.topic))
    ran, added = follower.seen(topic), follower.seen(follower.topic)
    demand(len(ran["live"]) == topic.count, "what is counted is there")
    # A cap that takes records as they come passes over deleted ones between them, and leaves to
    # the TTL what is too old by then; one that takes all of them at once counts them as its own.
    at_once = topic.capped and (follower.deleted or topic.config.ttl_ms)
    if mine == theirs or not (wal.faulted or at_once):
        tally["the very state"] += 1
        demand(mine == theirs, f"the state that ran is {mine}, the sum is {theirs}")
        demand(ran == added, f"the topic that ran shows {ran}, the sum shows {added}")
    elif wal.faulted and topic.capped and ran != added:
        # A cap may have taken old records for new ones that were shown and could not be written.
        tally["evicted for nothing"] += 1
        demand(ran["head"] == added["head"], f"the head is {ran['head']}, not {added['head']}")
        demand(set(ran["live"]) <= set(added["live"]), "a record is there that nobody wrote")
    else:
        # What failed leaves its traces in memory: a later clock, or why seqs are lost.
        tally["the same to readers"] += 1
        demand(ran == added, f"the topic that ran shows {ran}, the sum shows {added}")


async def check_noted(topics: Topics, follower: Follower, now_ms: int) -> None:
    """Keys and positions: as memory knows them, and as whoever asks is answered."""
    topic, active = topics.get("t"), topics.activate(topics.get("t"))
    for producer in PRODUCERS:
        known, added = active.producers.at(producer), follower.active.producers.at(producer)
        demand(known in (None, added), f"{producer} stands at {known}, the sum says {added}")
        at = await topics.writing.position_of(topic, producer)
        demand(at == added, f"{producer} stood at {at}, the sum says {added}")
    for key in KEYS:
        used, seen = (one.keys.get(topic.epoch, key) for one in (active, follower.active))
        demand(used in (None, seen), f"{key} is known as {used}, the sum says {seen}")
        if seen is not None and now_ms - seen.ts < topic.config.idempotency_window_ms - 1_000:
            _, answer, _ = await topics.append("t", new(0, key=key))
            demand(answer.deduped, f"{key} is not known")
            demand(answer.first_seq == seen.first_seq, f"{key} is of another append")


async def check_deletion(clients: Clients, wal: RecordedWal, tally: Counter[str]) -> None:
    """Compare the two again before a later snapshot of the topic could say what it has become."""
    topics, topic = clients.topics, clients.topics.get("t")
    await quiet(topics, topic)
    begun, count = len(wal.operations[topic.epoch]), topic.count
    await clients.delete()
    written = wal.operations[topic.epoch]
    at = begun
    while at < len(written) and _count_said(written[at], count) >= count:
        at += 1  # of upkeep
    if at < len(written) and written[at].compact_before is None:
        now_ms = await expired(topics, topic)
        follower = Follower(topic, wal.began_as, written[: at + 1])
        follower.decide(now_ms)
        ran, added = follower.seen(topic), follower.seen(follower.topic)
        demand(ran == added, f"deleted from what ran: {ran}; from the sum: {added}")
        tally["deletion compared"] += 1


def _count_said(operation: Operation, otherwise: int) -> int:
    snapshot = operation.meta.get(names.SNAPSHOT)
    return decode_snapshot(snapshot).count if snapshot is not None else otherwise


async def quiet(topics: Topics, topic: Topic) -> None:
    """Nothing is under way or in doubt, and what must go by now is gone."""
    active = topics.activate(topic)
    while (
        active.writes or active.doubts or active.reservation.under_way or topics.writability.trouble
    ):
        await until_idle(topics, topic)
        await asyncio.sleep(10 * MS)
    if topic.thinned:
        await asyncio.sleep(1_000 * MS)  # upkeep begins at a live record
        await until_idle(topics, topic)


async def append_one(topics: Topics, topic: Topic) -> None:
    """What upkeep has under way may fail yet, and refuses what is queued behind it."""
    while True:
        with suppress(WriteFailed):
            await topics.append("t", new(0))
            return
        await quiet(topics, topic)


async def expired(topics: Topics, topic: Topic) -> int:
    """Have everything go that must by now, and say when that is."""
    while True:
        now_ms = clock_of().wall_ns() // 1_000_000
        await topics.retention.expire(topic)
        if clock_of().wall_ns() // 1_000_000 == now_ms:
            return now_ms


def patch_of(chance: random.Random) -> TopicPatch:
    return TopicPatch(
        durability=chance.choice(CLASSES),  # type: ignore[arg-type]
        cap_records=chance.choice((0, 0, 5, 20)),
        cap_bytes=chance.choice((0, 0, 0, 900)),
        ttl_ms=chance.choice((0, 0, 0, 40)),
    )


class Death(Exception):
    """The process is no more."""


class Clients:
    """Whatever can be asked of a topic, at random, mostly without waiting for it."""

    def __init__(
        self, topics: Topics, wal: RecordedWal, chance: random.Random, tally: Counter[str]
    ) -> None:
        self.topics = topics
        self.wal = wal
        self.chance = chance
        self.tally = tally
        self.number = clock_of().wall_ns()  # further than any life before
        self.configuring = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.chance.randint(1, 30)):
                group.create_task(self.act())
                if self.chance.random() < 0.5:
                    await asyncio.sleep(self.chance.choice((0, 0, 1, 5)) * MS)

    async def act(self) -> None:
        chance = self.chance
        what = chance.choices(
            (self.append, self.delete, self.gap, self.note, self.configure, self.pin, self.wait),
            weights=(50, 14, 5, 5, 4, 3, 15),
        )[0]
        self.tally[what.__name__] += 1
        with suppress(FairwayError):
            await what()

    async def write(self) -> None:
        with suppress(FairwayError):
            await self.chance.choice(
                (self.append, self.append, self.delete, self.gap, self.configure)
            )()

    async def append(self) -> None:
        chance = self.chance
        records = [
            ("x" * chance.choice((0, 40)), chance.choice(TAGS)) for _ in range(chance.randint(1, 4))
        ]
        options: dict[str, Any] = {}
        if chance.random() < 0.2:
            options["key"] = chance.choice(KEYS)
        elif chance.random() < 0.3:
            options["position"] = self.position()
        await self.topics.append("t", new(*records, **options))

    def position(self) -> ProducerPosition:
        self.number += 1
        return ProducerPosition(self.chance.choice(PRODUCERS), 1, self.number)

    async def delete(self) -> None:
        chance, head = self.chance, self.topics.get("t").head
        ways: list[dict[str, Any]] = [
            {"before_seq": chance.randint(1, head + 2)},
            {"seq": chance.randint(1, head + 1)},
            {"match": TagMatch(chance.choice("ab"), chance.random() < 0.3)},
            {"match": TagMatch("a"), "before_seq": chance.randint(1, head + 2)},
        ]
        await self.topics.delete_records("t", **chance.choice(ways))

    async def gap(self) -> None:
        topic, position = self.topics.get("t"), self.position()
        await self.topics.writing.position_of(topic, position.producer)
        await self.topics.writing.enqueue_gap(
            topic, self.chance.randint(1, 4), "source_trim", position
        )

    async def note(self) -> None:
        topic, position = self.topics.get("t"), self.position()
        await self.topics.writing.position_of(topic, position.producer)
        await self.topics.writing.enqueue_meta(topic, {"u/note": b"1"}, position)

    async def configure(self) -> None:
        self.configuring += 1
        try:
            await self.topics.put("t", patch_of(self.chance))
        finally:
            self.configuring -= 1

    async def pin(self) -> None:
        if self.wal.fault_rate:
            return  # after a failure it is held, and nobody knows whether that is durable
        topic = self.topics.get("t")
        seq = self.chance.choice((0, 0, topic.floor, topic.head + 1))
        await self.topics.pin(topic, seq, {})

    async def wait(self) -> None:
        await asyncio.sleep(self.chance.choice((0, 1, 30, 400, 6_000)) * MS)


async def one_life(
    wal: RecordedWal, chance: random.Random, tally: Counter[str]
) -> tuple[TopicConfig | None, RecordedWal]:
    """What the topic was configured as when the life ended, if that is certain; and its store."""
    config = TopicsConfig(
        hot_bytes=chance.choice((1, 2_000, 1 << 20)),
        key_bytes=chance.choice((1, 1 << 20)),
        retention=RetentionConfig(
            chunk=chance.choice((2, 500)), snapshot_records=chance.choice((5, 2000))
        ),
    )
    heirs: list[RecordedWal] = []
    clean = chance.random() < 0.3
    power_lost = not clean and chance.random() < 0.5
    tally["clean stop"] += clean
    tally["power lost"] += power_lost
    dying: list[asyncio.Future[None]] = []
    try:
        async with (
            Log(wal) as log,
            Kernel(log, governor=Forced()) as kernel,
            Topics(kernel, config=config) as topics,
        ):
            topic = topics.find("t")
            if topic is None:
                topic, _ = await topics.put("t", patch_of(chance))
            else:
                await recovered(topics, topic, wal)
                tally["recovered"] += 1
            clients = Clients(topics, wal, chance, tally)
            for _ in range(chance.randint(1, 3)):
                wal.fault_rate = chance.choice((0, 0, 0.03, 0.1))
                await clients.run()
                await check(topics, wal, tally)
                if topic.config.durability != "ephemeral":
                    await check_deletion(clients, wal, tally)
                check_redone(topic, wal)
            if not clean:
                dying += [asyncio.ensure_future(clients.write()) for _ in range(9)]
                await asyncio.sleep(chance.choice((0, 0, 1, 5)) * MS)
                heirs.append(wal.heir(power_lost=power_lost))
                settled = topic.config if not clients.configuring else None
                raise Death
    except (Death, FairwayError):
        if not heirs:
            raise
    await asyncio.gather(*dying, return_exceptions=True)
    return (settled, heirs[0]) if heirs else (topic.config, wal.heir())


async def recovered(topics: Topics, topic: Topic, wal: RecordedWal) -> None:
    """What a start finds in the store is the sum of the operations, taken over."""
    now_ms = await expired(topics, topic)
    follower = Follower(topic, wal.began_as, wal.operations[topic.epoch])
    follower.topic.take_over(all_written=wal.unsynced_kept and follower.all_written)
    follower.decide(now_ms)
    # Not the very state: upkeep goes on where it was, and counts again what is hidden.
    config, added = topic.config, follower.topic.config
    demand(config == added, f"recovered is configured as {config}, the sum as {added}")
    mine, theirs = follower.seen(topic), follower.seen(follower.topic)
    demand(mine == theirs, f"recovered was {mine}, the sum is {theirs}")
    await check_noted(topics, follower, now_ms)


async def history(chance: random.Random, tally: Counter[str]) -> None:
    wal = RecordedWal(chance, tally)
    for _ in range(chance.randint(1, 3)):
        config, wal = await one_life(wal, chance, tally)
    async with Log(wal) as log, Kernel(log, governor=Forced()) as kernel, Topics(kernel) as topics:
        if config is not None:
            demand(topics.get("t").config == config, "the configuration is another")
        await recovered(topics, topics.get("t"), wal)


def play(
    seed: int,
    tally: Counter[str] | None = None,
    *,
    mutate: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """One history; `mutate` plants a bug in it."""
    chance = random.Random(f"operations/{seed}")
    tally = Counter() if tally is None else tally
    with mutate():
        try:
            run(
                lambda: history(chance, tally), seed=seed, quiet=True, shuffle=True, limit_ns=10**14
            )
        except BaseExceptionGroup as several:
            raise broken_by(several, "a service died") from several


@pytest.mark.timeout(3600)
def test_the_sum_of_its_operations_is_the_topic_that_ran(campaign: Campaign) -> None:
    for number in range(campaign.rounds(share=25, full=2_000)):
        play(campaign.seed + number, campaign.tally)
    assert campaign.tally["the very state"]


# Planted bugs


@contextmanager
def a_gap_is_not_in_the_snapshot() -> Iterator[None]:
    """What was lost before it came here moves the head, and no hole is written."""
    with plant(Writes, "begin_gap", lambda self, gap: None):
        yield


@contextmanager
def what_was_added_is_added_again() -> Iterator[None]:
    """A batch counts as often as it is applied."""
    real = Topic.apply

    def apply(self: Topic, change: Any) -> None:
        if isinstance(change, RecordBatch) and change.last_seq <= self.head:
            self.count += change.count
        real(self, change)

    with plant(Topic, "apply", apply):
        yield


@contextmanager
def a_deletion_is_not_applied_by_who_made_it() -> Iterator[None]:
    """It is written, and seen after the next start."""
    real = Topic.apply

    def apply(self: Topic, change: Any) -> None:
        if not (isinstance(change, Removal) and change.rule is None):
            real(self, change)

    with plant(Topic, "apply", apply):
        yield


@contextmanager
def the_window_of_a_key_begins_when_its_append_is_settled() -> Iterator[None]:
    """Its row has the time of its append; by then the topic may have a later one."""
    real = Writing._publish

    def publish(
        self: Writing,
        topic: Topic,
        active: ActiveTopic,
        batch: RecordBatch,
        tagged: bool,
        noted: Any = (),
    ) -> None:
        late = msgspec.structs.replace
        noted = [
            KeySeen(one.key, late(one.seen, ts=topic.last_ts)) if isinstance(one, KeySeen) else one
            for one in noted
        ]
        real(self, topic, active, batch, tagged, noted)

    with plant(Writing, "_publish", publish):
        yield


@contextmanager
def what_a_failed_append_noted_is_believed() -> Iterator[None]:
    """Its key and its position stay in memory, and are not in the store."""
    with plant(ActiveTopic, "lose", lambda self, epoch, changes, unknown: None):
        yield


@contextmanager
def a_position_is_not_in_the_operation() -> Iterator[None]:
    """Memory alone knows how far a producer is."""
    real = writing.rows_of

    def rows_of(noted: Any) -> dict[str, bytes | None]:
        return {row: value for row, value in real(noted).items() if row[:2] != names.PRODUCER}

    with plant(writing, "rows_of", rows_of):
        yield


@contextmanager
def a_snapshot_behind_a_new_configuration_tells_the_former_one() -> Iterator[None]:
    """Its own snapshot does, too."""
    with plant(Writes, "begin_config", lambda self, config: None):
        yield


@pytest.mark.parametrize(
    "bug",
    [
        a_gap_is_not_in_the_snapshot,
        what_was_added_is_added_again,
        a_deletion_is_not_applied_by_who_made_it,
        the_window_of_a_key_begins_when_its_append_is_settled,
        what_a_failed_append_noted_is_believed,
        a_position_is_not_in_the_operation,
        a_snapshot_behind_a_new_configuration_tells_the_former_one,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_seen(bug: Callable[[], Any]) -> None:
    print(f"{bug.__name__}: {expect_seen(play, bug, Broken, histories=30)}")


# Each piece of state has one owner


OWNED_BY: dict[str, tuple[str, ...]] = {
    "topics/topic.py": Topic.__slots__,
    "topics/active.py": ActiveTopic.__slots__,
    "topics/writes.py": Writes.__slots__,
    "topics/subscribers.py": Subscribers.__slots__,
    "topics/reserving.py": SeqReservation.__slots__,
    "topics/doubts.py": Doubts.__slots__,
    "topics/producers.py": Producers.__slots__,
}
OTHERS = {
    "topics/reclaiming.py: found.upto": "how far a pass goes",
    "topics/reclaiming.py: found.hidden": "what a pass has counted",
    "server/fronts/topics/sessions.py: held.count": "sessions, of one key and of all",
    "server/fronts/topics/sessions.py: self._all.count": "the same",
    "server/fronts/topics/sessions.py: self._by_key.setdefault(key, _Held()).count": "the same",
}
"""What has a field of the same name and is nobody's state of a topic."""


def test_nobody_but_its_owner_assigns_to_the_state_of_a_topic() -> None:
    """By the names of its fields, whatever it is called where that is done."""
    source = Path(fairway.__file__).parent
    places = ("topics", "streams", "server", "kernel")
    paths = [
        source / "app.py",
        *(path for place in places for path in source.glob(f"{place}/**/*.py")),
    ]
    found = {
        f"{name}: {ast.unparse(target)}"
        for path in paths
        for name in [path.relative_to(source).as_posix()]
        for target in ast.walk(ast.parse(path.read_text()))
        if isinstance(target, ast.Attribute)
        and not isinstance(target.ctx, ast.Load)
        and ast.unparse(target.value) != "self"
        and any(name != owner and target.attr in fields for owner, fields in OWNED_BY.items())
    }
    assert not found - OTHERS.keys(), "it has methods for that"
    assert not OTHERS.keys() - found, "nobody does that any more"

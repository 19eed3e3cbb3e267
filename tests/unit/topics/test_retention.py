"""Upkeep of topics on virtual time: budgets, chunks, snapshots, keys, and a store that fails."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from fairway.errors import (
    Conflict,
    FairwayError,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    TopicFull,
    TryLater,
    Unavailable,
    WriteFailed,
)
from fairway.runtime.turn import TURN, TurnBudget
from fairway.storage.wal import Entry, Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics import batch as batch_module
from fairway.topics import names
from fairway.topics.engine import TopicsConfig
from fairway.topics.idempotency import KEY_OVERHEAD, KeyMemory
from fairway.topics.match import TagMatch
from fairway.topics.names import SeenKey
from fairway.topics.old_batches import BATCH_WORK
from fairway.topics.operations import KeySeen, ProducerPosition, Ruling
from fairway.topics.reserving import SEQS_MIN
from fairway.topics.retention import RetentionConfig
from fairway.topics.topic import Topic
from fairway.wire.records import RECORD_OVERHEAD
from fairway.wire.topics import TopicPatch
from tests.support.topics import PLAIN, Notes, new, read_all, topics_on, values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.topics.batch import RawRecord
    from fairway.topics.engine import Topics


def virtually(main: Any) -> Any:
    return run(main, seed=1, quiet=True, limit_ns=10**13)


class Counting(MemoryWal):
    """Writes down what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.compactions: list[tuple[int, int]] = []
        self.reads: Counter[int] = Counter()
        self.entries_read: Counter[int] = Counter()

    def write(self, group: Any, *, sync: bool) -> Any:
        for partition, operations in group.items():
            for operation in operations:
                if operation.compact_before is not None:
                    floor = self.tail(partition).floor
                    self.compactions.append((partition, operation.compact_before - floor))
        return super().write(group, sync=sync)

    def read(self, partition: int, **options: Any) -> Any:
        found = super().read(partition, **options)
        self.reads[partition] += 1
        self.entries_read[partition] += len(found)
        return found


# --- memory


def gauge(topics: Topics, name: str) -> Any:
    (value,) = [
        series.value for series in topics.kernel.telemetry.snapshot() if series.name == name
    ]
    return value


def test_hot_records_stay_within_their_budget_over_all_topics() -> None:
    async def main() -> None:
        wal = Counting()
        async with topics_on(wal, TopicsConfig(hot_bytes=20_000)) as topics:
            for number in range(200):
                await topics.append(f"t{number % 10}", new("x" * 500))
            assert gauge(topics, "fairway_hot_bytes") <= 20_000
            kept = sum(len(t.active.tail) for t in topics if t.active is not None)
            assert 10 < kept < 40
            assert not wal.reads
            assert len((await read_all(topics, "t3")).records) == 20
            assert wal.reads[topics.get("t3").epoch] > 0

    virtually(main)


def test_an_ephemeral_topic_tells_what_memory_had_no_room_for() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(hot_bytes=5_000)) as topics:
            await topics.put("e", TopicPatch(durability="ephemeral"))
            for _ in range(20):
                await topics.append("e", new("x" * 500))
            topic = topics.get("e")
            topic.check()
            found = await read_all(topics, "e")
            assert 0 < len(found.records) < 20
            assert found.lost == set(range(1, 21)) - set(found.seqs)
            assert topic.count == len(found.records)

    virtually(main)


def test_an_ephemeral_topic_has_a_cap_though_it_names_none() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(ephemeral_cap_bytes=5_000)) as topics:
            topic, _ = await topics.put("e", TopicPatch(durability="ephemeral"))
            own, _ = await topics.put("own", TopicPatch(durability="ephemeral", cap_bytes=2_000))
            assert (topic.config.cap_bytes, own.config.cap_bytes) == (5_000, 2_000)
            for _ in range(20):
                await topics.append("e", new("x" * 500))
            found = await read_all(topics, "e")
            assert 0 < len(found.records) < 10
            assert [gap.reason for gap in found.gaps] == ["cap"]

    virtually(main)
    assert TopicsConfig().ephemeral_cap_bytes == 64 << 20


def test_an_ephemeral_topic_that_was_emptied_deletes_and_evicts_after_a_crash() -> None:
    """What a crash took lies behind a deleted prefix; its new records are in memory alone."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("e", TopicPatch(durability="ephemeral", cap_records=4))
            await topics.append("e", new(1, 2, 3))
            await topics.delete_records("e", before_seq=4)
            await asyncio.sleep(10)  # until it is snapshotted
            dead = wal.kill()
        async with topics_on(dead) as topics:
            await topics.append("e", new("x", tag="a"))
            await topics.append("e", new("y", "z"))
            _, deleted = await topics.delete_records("e", match=TagMatch("a"))
            assert deleted == 1
            assert values(await read_all(topics, "e")) == ["y", "z"]
            await topics.append("e", new(4, 5, 6))
            assert values(await read_all(topics, "e")) == ["z", 4, 5, 6]

    virtually(main)


def test_keys_are_forgotten_oldest_first_and_then_looked_up() -> None:
    keys = KeyMemory(3 * (KEY_OVERHEAD + 1), lambda epoch: 100)
    for number in range(5):
        keys.apply(1, KeySeen(str(number), SeenKey(1, 1, number)))
    assert [keys.get(1, str(number)) is not None for number in range(5)] == [False] * 2 + [True] * 3
    assert keys.used == 3 * (KEY_OVERHEAD + 1)
    assert [keys.unsure(now_ms, window_ms=100) for now_ms in (100, 101)] == [True, False]
    assert keys.unsure(149, window_ms=150), "one that counts for longer may have been forgotten"
    assert keys.forgotten == {1: 101}
    assert keys.expire(103) == [(1, "2"), (1, "3")]
    assert keys.holds(1, "4")
    assert not keys.holds(1, "2")
    keys.apply(1, KeySeen("4", None))
    assert (keys.holds(1, "4"), keys.used) == (False, 0)


def test_forgotten_keys_still_dedupe_and_their_rows_go_after_the_window() -> None:
    async def main() -> None:
        config = TopicsConfig(key_bytes=2 * KEY_OVERHEAD)
        async with topics_on(config=config) as topics:
            await topics.put("t", TopicPatch(idempotency_window_ms=10_000))
            epoch = topics.get("t").epoch
            for number in range(20):
                await topics.append("t", new(number, key=f"k{number}"))
            assert gauge(topics, "fairway_key_bytes") == KEY_OVERHEAD + len("k19"), "one of them"
            for number in range(20):
                _, answer, _ = await topics.append("t", new(number, key=f"k{number}"))
                assert (answer.first_seq, answer.deduped) == (number + 1, True)
            rows = await topics.kernel.partitions.meta_scan(epoch, prefix=names.KEY)
            assert len(rows) == 20
            await asyncio.sleep(25)
            assert await topics.kernel.partitions.meta_scan(epoch, prefix=names.KEY) == []
            _, answer, _ = await topics.append("t", new("anew", key="k3"))
            assert (answer.first_seq, answer.deduped) == (21, False)

    virtually(main)


def test_keys_of_an_earlier_life_dedupe_and_are_removed_after_their_window() -> None:
    async def main() -> None:
        wal = Counting()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(idempotency_window_ms=5_000))
            for number in range(30):
                await topics.append("t", new(number, key=f"k{number}"))
        heir = Counting()
        heir.inherit(wal.kill())
        scans = 0
        scan = heir.meta_scan

        def counted(partition: int, **options: Any) -> Any:
            nonlocal scans
            scans += options.get("prefix") == names.KEY
            return scan(partition, **options)

        heir.meta_scan = counted  # type: ignore[method-assign]
        async with topics_on(heir) as topics:
            epoch = topics.get("t").epoch
            _, answer, _ = await topics.append("t", new(7, key="k7"))
            assert (answer.first_seq, answer.deduped) == (8, True)
            await asyncio.sleep(3)
            assert scans <= 6, "keys are scanned again and again until they expire"
            await asyncio.sleep(10)
            assert await topics.kernel.partitions.meta_scan(epoch, prefix=names.KEY) == []

    virtually(main)


def test_a_key_that_is_used_again_keeps_its_row() -> None:
    """Its old row has expired and is about to be removed, when the new one is written."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(idempotency_window_ms=1_000))
            epoch = topics.get("t").epoch
            for round_ in range(40):
                await topics.append("t", new(round_, key="k"))
                await asyncio.sleep(1.001)
                await topics.append("t", new(round_, key="k"))
                assert await topics.kernel.partitions.meta(epoch, names.KEY + "k") is not None
                await asyncio.sleep(0.3 + round_ * 0.005)

    virtually(main)


def test_a_retry_while_the_first_is_under_way_and_its_caller_gone() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.create("t")
            first = asyncio.ensure_future(topics.append("t", new(1, 2, key="k")))
            await asyncio.sleep(0)
            others = [asyncio.ensure_future(topics.append("t", new(1, 2, key="k"))) for _ in "abc"]
            await asyncio.sleep(0)
            first.cancel()
            for other in others:
                _, answer, _ = await other
                assert answer.first_seq == 1
            assert topics.get("t").head == 2

    virtually(main)


# --- rows


def test_rows_are_removed_in_chunks() -> None:
    async def main() -> None:
        wal = Counting()
        config = TopicsConfig(retention=RetentionConfig(chunk=50))
        async with topics_on(wal, config) as topics:
            await topics.put("t", TopicPatch(cap_records=100))
            for number in range(1_000):
                await topics.append("t", new(number))
            await asyncio.sleep(3)
            epoch = topics.get("t").epoch
            assert wal.tail(epoch).floor == 901
            assert len(wal.read(epoch)) == 100
            steps = [size for partition, size in wal.compactions if partition == epoch]
            assert max(steps) <= 50
            assert sum(steps) == 900

    virtually(main)


def test_one_large_trim_does_not_hold_up_the_others() -> None:
    """Between two chunks of one topic the caps and deadlines of all others have a turn."""

    async def main() -> None:
        wal = Counting()
        config = TopicsConfig(hot_bytes=1, retention=RetentionConfig(chunk=2, snapshot_records=9))
        async with topics_on(wal, config) as topics:
            for _ in range(5):
                await topics.append("large", new(*range(1_000)))
            await topics.delete_records("large", before_seq=5_000)
            await topics.put("small", TopicPatch(cap_records=3))
            await asyncio.sleep(0.3)
            for number in range(10):
                await topics.append("small", new(number))
            await asyncio.sleep(0.5)
            assert topics.get("small").count == 3
            large = topics.get("large")
            assert wal.tail(large.epoch).floor < 4_900, "it was over too soon to tell"

    virtually(main)


def test_deleting_a_large_topic_is_no_long_write_for_the_others() -> None:
    async def main() -> None:
        wal = Counting()
        async with topics_on(wal) as topics:
            for _ in range(20):
                await topics.append("large", new(*range(1_000)))
            epoch = topics.get("large").epoch
            assert await topics.delete("large") == []
            assert topics.find("large") is None
            loop: Any = asyncio.get_running_loop()
            started = loop.now_ns
            await topics.append("other", new(1))
            assert loop.now_ns - started < 10_000_000
            await asyncio.sleep(2)
            assert not wal.read(epoch)
            _, answer, created = await topics.append("large", new(1))
            assert created
            assert answer.first_seq == 1
            assert topics.get("large").epoch > epoch

    virtually(main)


def test_snapshots_bound_what_is_replayed() -> None:
    async def main() -> None:
        wal = Counting()
        config = TopicsConfig(retention=RetentionConfig(snapshot_records=100))
        async with topics_on(wal, config) as topics:
            await topics.put("m", TopicPatch(durability="memory"))
            for number in range(1_030):
                await topics.append("t", new(number))
                if number % 100 == 99:
                    await asyncio.sleep(0.3)
            await topics.append("m", new(1))
            state = (topics.get("t").count, topics.get("t").bytes)
            dead = wal.kill()
        heir = Counting()
        heir.inherit(dead)
        async with topics_on(heir, config) as topics:
            epoch = topics.get("t").epoch
            assert heir.entries_read[epoch] <= 130
            assert (topics.get("t").count, topics.get("t").bytes) == state
            clean = heir
        last = Counting()
        last.inherit(clean.kill())
        async with topics_on(last, config) as topics:
            assert last.entries_read[topics.get("t").epoch] == 0, "a clean stop leaves no replay"
            assert (await read_all(topics, "m")).gaps == [
                gap for gap in (await read_all(topics, "m")).gaps if gap.reason == "crash"
            ]

    virtually(main)


def test_a_ttl_is_kept_to_when_nobody_writes() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(hot_bytes=1)) as topics:
            await topics.put("t", TopicPatch(ttl_ms=1_000))
            for number in range(5):
                await topics.append("t", new(number))
                await asyncio.sleep(0.4)
            found = await read_all(topics, "t")
            assert found.seqs == [4, 5]
            assert [(gap.first, gap.last, gap.reason) for gap in found.gaps] == [(1, 3, "ttl")]
            await asyncio.sleep(2)
            assert topics.get("t").count == 0

    virtually(main)


@pytest.mark.parametrize("hot_bytes", [1, 1 << 20])
def test_no_read_returns_a_record_from_the_moment_its_time_is_over(hot_bytes: int) -> None:
    """Upkeep, which removes its row, comes much later here."""

    async def main() -> None:
        rarely = RetentionConfig(period_ns=3_600_000_000_000)
        async with topics_on(config=TopicsConfig(hot_bytes=hot_bytes, retention=rarely)) as topics:
            await topics.put("t", TopicPatch(ttl_ms=1_000))
            await topics.append("t", new("x" * 100))
            await asyncio.sleep(0.99)
            assert (await read_all(topics, "t")).seqs == [1]
            await asyncio.sleep(0.011)
            found = await read_all(topics, "t")
            assert (found.seqs, found.lost) == ([], {1})

    virtually(main)


def test_a_raised_cap_does_not_bring_back_what_was_lost() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(cap_records=5))
            for number in range(20):
                await topics.append("t", new(number))
            await topics.put("t", TopicPatch(cap_records=100))
            dead = wal.crash()
        async with topics_on(dead) as topics:
            found = await read_all(topics, "t")
            assert found.seqs == [16, 17, 18, 19, 20]
            assert found.lost == set(range(1, 16))

    virtually(main)


def test_nothing_is_evicted_by_a_cap_while_it_is_being_raised() -> None:
    """What was evicted after the floors were written, and before the new cap was, came back."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(cap_records=5))
            await topics.append("t", new(*range(5)))
            raised = asyncio.create_task(topics.put("t", TopicPatch(cap_records=100)))
            while not raised.done():
                await topics.append("t", new("more"))
            await raised
            lost = (await read_all(topics, "t")).lost
            dead = wal.crash()
        async with topics_on(dead) as topics:
            assert (await read_all(topics, "t")).lost == lost

    virtually(main)


def test_a_lower_cap_counts_as_soon_as_it_is_set() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(cap_records=5))
            await topics.append("t", new(*range(5)))
            await topics.put("t", TopicPatch(cap_records=2))
            assert topics.get("t").count == 2

    virtually(main)


def test_a_cap_holds_from_the_first_moment_after_a_crash() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(cap_records=5))
            for number in range(20):
                await topics.append("t", new(number))
            dead = wal.crash()
        async with topics_on(dead) as topics:
            assert topics.get("t").evict_floor == 16

    virtually(main)


# --- requests


def test_reject_refuses_before_anything_is_numbered() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(cap_records=3, discard="reject"))
            await topics.append("t", new(1, 2))
            with pytest.raises(TopicFull):
                await topics.append("t", new(3, 4))
            _, answer, _ = await topics.append("t", new(3))
            assert answer.first_seq == 3

    virtually(main)


def test_a_topic_with_records_neither_becomes_ephemeral_nor_ceases_to_be() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("e", TopicPatch(durability="ephemeral"))
            await topics.append("e", new(1))
            await topics.append("f", new(1))
            for name, durability in (("e", "fsync"), ("f", "ephemeral")):
                with pytest.raises(Conflict):
                    await topics.put(name, TopicPatch(durability=durability))  # type: ignore[arg-type]
            await topics.delete_records("e", before_seq=2)
            await topics.put("e", TopicPatch(durability="fsync"))
            _, answer, _ = await topics.append("e", new(2))
            assert answer.first_seq == 2
            dead = wal.crash()
        async with topics_on(dead) as topics:
            assert values(await read_all(topics, "e")) == [2]

    virtually(main)


def test_a_tag_deletion_survives_a_crash_from_the_first_on() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.append("t", new((1, "x"), (2, "y"), (3, "x")))
            _, deleted = await topics.delete_records("t", match=TagMatch("x"))
            assert deleted == 2
            dead = wal.crash()
        async with topics_on(dead) as topics:
            assert values(await read_all(topics, "t")) == [2]
            assert topics.get("t").count == 1
            await topics.append("t", new((4, "x")))
            assert values(await read_all(topics, "t")) == [2, 4]

    virtually(main)


def test_a_snapshot_taken_during_a_deletion_knows_of_it() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.append("t", new(1, 2, 3, 4))
            deleting = asyncio.ensure_future(topics.delete_records("t", before_seq=3))
            topic = topics.get("t")
            while topic.active is None or topic.active.writes.removal is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            meta = topics.retention.snapshot_meta(topic)  # queued behind the deletion
            from fairway.storage.wal import Operation

            saving = topics.kernel.partitions.submit(topic.epoch, Operation(meta=meta))
            await deleting
            await saving
            dead = wal.crash()
        async with topics_on(dead) as topics:
            assert values(await read_all(topics, "t")) == [3, 4]
            assert topics.get("t").count == 2

    virtually(main)


# --- a store that fails


class Ill(MemoryWal):
    """Fails while told to."""

    how = ""

    def write(self, group: Any, *, sync: bool) -> Any:
        if self.how == "full":
            return dict.fromkeys(group, WriteFailed("no space"))
        if self.how:
            if self.how == "after":
                super().write(group, sync=sync)
            raise RuntimeError(self.how)
        return super().write(group, sync=sync)


def test_an_ephemeral_topic_keeps_its_records_when_a_write_of_others_is_in_doubt() -> None:
    """The store is asked where the topic ends; its records are in memory, and stay there."""

    async def main() -> None:
        wal = Ill()
        async with topics_on(wal) as topics:
            topic, _ = await topics.put("e", TopicPatch(durability="ephemeral"))
            await topics.append("e", new(1, 2))
            wal.how = "before"
            gap = topics.writing.enqueue_gap(
                topic, 9_000, "source_trim", ProducerPosition("p", 1, 1)
            )
            with pytest.raises(OutcomeUnknown):
                await gap
            wal.how = ""
            assert topics.activate(topic).doubts
            await asyncio.sleep(10)
            assert not topics.activate(topic).doubts
            await topics.append("e", new(3))
            assert values(await read_all(topics, "e")) == [1, 2, 3]

    virtually(main)


@pytest.mark.parametrize("how", ["full", "before", "after"])
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_a_failing_store_loses_nothing_that_was_acknowledged_in_silence(
    how: str, durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        wal = Ill()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(durability=durability))
            notes = Notes()
            topics.watch(topics.get("t"), PLAIN, notes, 0)
            await topics.append("t", new("good"))
            await asyncio.sleep(0.1)
            wal.how = how
            acked: list[int] = []
            told: list[bool] = []
            failed = 0
            for number in range(3):
                try:
                    _, answer, _ = await topics.append("t", new(f"ill{number}", key=f"k{number}"))
                    acked.append(answer.first_seq)
                except FairwayError as error:
                    failed += 1
                    expected = OutcomeUnknown if how != "full" else WriteFailed
                    told.append(isinstance(error, expected))
            assert failed == (0 if durability == "memory" else 3)
            assert all(told[:1])
            await asyncio.sleep(0.1)
            wal.how = ""
            await asyncio.sleep(3)
            # By itself it takes writes again, under seqs that nobody else has.
            _, answer, _ = await topics.append("t", new("healed"))
            topics.get("t").check()
            found = await read_all(topics, "t")
            assert found.seqs[-1] == answer.first_seq
            assert set(acked) <= set(found.seqs) | found.lost
            assert all(gap.reason == "crash" for gap in found.gaps)
            if durability != "memory":
                assert not found.gaps
                there = ["ill0"] if how == "after" else []
                assert values(found) == ["good", *there, "healed"]
                _, again, _ = await topics.append("t", new("ill0", key="k0"))
                assert again.deduped is (how == "after"), "the key was not asked for"
            assert sorted(set(notes.seqs)) == notes.seqs
            await asyncio.sleep(0.1)
            assert set((await read_all(topics, "t")).seqs) <= set(notes.seqs)
            before = (await read_all(topics, "t"), topics.get("t").count)
            dead = wal.kill()
        async with topics_on(dead) as topics:
            after = await read_all(topics, "t")
            assert after.seqs == before[0].seqs
            assert before[0].lost <= after.lost
            assert topics.get("t").count == before[1]

    virtually(main)


class Unreachable(Ill):
    """Cannot be asked where its partitions end while it is `away`, and what it wrote last is seen
    only when it is back: a database that goes down in a commit."""

    away = False

    def tail(self, partition: int) -> Any:
        if self.away:
            raise TryLater("the database does not answer")
        return super().tail(partition)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_doubt_is_not_settled_before_the_store_could_be_asked(
    there: bool, durability: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does a number that the store has used go out again, nor is a record hidden."""
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        wal = Unreachable()
        async with topics_on(wal) as topics:
            topic, _ = await topics.put("t", TopicPatch(durability=durability))
            await topics.append("t", new("good"))
            notes = Notes()
            topics.watch(topic, PLAIN, notes, 0)
            wal.how, wal.away = "after" if there else "before", True
            with pytest.raises(OutcomeUnknown):
                await topics.append("t", new("doubtful"))
            wal.how = ""
            await asyncio.sleep(5)  # upkeep looks many times
            assert topics.activate(topic).doubts.end
            for _ in range(3):
                with pytest.raises(FairwayError) as refused:
                    await topics.append("t", new("refused"))
                assert isinstance(refused.value, ReadOnly | Unavailable)
            wal.away = False
            await asyncio.sleep(2)
            _, answer, _ = await topics.append("t", new("healed", "twice"))
            topic.check()
            found = await read_all(topics, "t")
            doubtful = ["doubtful"] if there else []
            assert values(found) == ["good", *doubtful, "healed", "twice"]
            assert found.seqs == [1, *[2 for _ in doubtful], answer.first_seq, answer.last_seq]
            assert not found.gaps
            await asyncio.sleep(0.1)
            assert notes.seqs == found.seqs
            dead = wal.kill()
        async with topics_on(dead) as topics:
            assert (await read_all(topics, "t")).records == found.records

    virtually(main)


@pytest.mark.parametrize("how", ["one", "several", "gap"])
def test_a_topic_that_meets_a_key_of_its_own_looks_again(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever made it forget: whoever writes is told to come back, and finds it whole."""
    caplog.set_level(logging.CRITICAL)

    async def main() -> None:
        async with topics_on() as topics:
            topic, _, _ = await topics.append("t", new("good"))
            under_way = await topics.writing.begin(topic, new("under way"))
            raw = new("forgotten", "too").records.raw
            forgotten = batch_module.RecordBatch(
                1, 3, 2, topic.last_ts, 2, raw, None, None, 0, 0, -1
            )
            entry = Entry(4, batch_module.encode_batch(forgotten))
            stored = topics.kernel.partitions.submit(topic.epoch, Operation((entry,)))

            async def write() -> None:
                if how == "gap":
                    await topics.writing.enqueue_gap(
                        topic, 3, "source_trim", ProducerPosition("p", 1, 1)
                    )
                else:
                    await topics.append("t", new("a") if how == "one" else new("a", "b", "c"))

            with pytest.raises(Unavailable, match="is being looked up"):
                await write()
            assert (topic.head, topic.assigned) == (1, 2)
            assert (await under_way).first_seq == 2
            assert await stored == 4
            await asyncio.sleep(1)
            _, answer, _ = await topics.append("t", new("b"))
            assert answer.first_seq == 5
            topic.check()
            found = await read_all(topics, "t")
            assert values(found) == ["good", "under way", "forgotten", "too", "b"]

    for seed in range(10):  # the store answers in any order
        run(main, seed=seed, quiet=True, limit_ns=10**13, latency_ns=(0, 50_000_000))


def test_a_delete_in_doubt_is_settled_one_way_or_the_other() -> None:
    async def main(how: str) -> list[Any]:
        wal = Ill()
        async with topics_on(wal) as topics:
            await topics.append("t", new((1, "x"), (2, "y")))
            await topics.delete_records("t", match=TagMatch("nothing"))
            wal.how = how
            with pytest.raises(OutcomeUnknown):
                await topics.delete_records("t", match=TagMatch("x"))
            wal.how = ""
            await asyncio.sleep(2)
            topics.get("t").check()
            found = values(await read_all(topics, "t"))
            assert topics.get("t").count == len(found)
            await topics.append("t", new((3, "x")))
            await asyncio.sleep(10)
            dead = wal.kill()
        async with topics_on(dead) as topics:
            assert values(await read_all(topics, "t")) == [*found, 3]
            assert topics.get("t").count == len(found) + 1
            return found

    assert virtually(lambda: main("before")) == [1, 2]
    assert virtually(lambda: main("after")) == [2]


def test_only_a_deletion_that_happens_is_told() -> None:
    async def main() -> None:
        wal = Ill()
        gone: list[str] = []
        async with topics_on(wal) as topics:
            topics.deleted.append(lambda topic: gone.append(topic.name))
            for name in ("full", "failing", "deleted"):
                await topics.append(name, new(1))
            with pytest.raises(Conflict):
                await topics.delete("full", if_empty=True)
            assert await topics.delete("absent") is None
            wal.how = "full"
            with pytest.raises(FairwayError):
                await topics.delete("failing")
            wal.how = ""
            await topics.delete("deleted")
            assert gone == ["deleted"]

    virtually(main)


def test_deleting_a_topic_in_doubt_does_not_leave_a_ghost() -> None:
    async def main() -> None:
        wal = Ill()
        gone: list[Topic] = []
        async with topics_on(wal) as topics:
            topics.deleted.append(gone.append)
            topic, _, _ = await topics.append("t", new(1))
            wal.how = "after"
            with pytest.raises(OutcomeUnknown):
                await topics.delete("t")
            assert gone == [topic]  # whoever keeps something for it must not do so for ever
            wal.how = ""
            await asyncio.sleep(2)
            # The catalog has forgotten it: taking writes for it would lose them.
            _, answer, created = await topics.append("t", new(2))
            assert created
            dead = wal.kill()
        async with topics_on(dead) as topics:
            assert values(await read_all(topics, "t")) == [2]
            assert answer.first_seq == 1

    virtually(main)


def test_a_start_on_a_store_that_cannot_be_written_can_still_read() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("d", TopicPatch(durability="disk"))
            await topics.append("d", new(1))
            dead = wal.kill()
        ill = Ill()
        ill.inherit(dead)
        ill.how = "full"
        async with topics_on(ill) as topics:
            found = await read_all(topics, "d")
            assert values(found) == [1]
            assert [gap.reason for gap in found.gaps] == ["crash"]

    with patch.object(logging.getLogger("fairway.topics"), "disabled", True):
        virtually(main)


def test_a_loss_is_told_although_what_is_behind_it_was_deleted() -> None:
    """A deletion that ends inside a hole does not swallow the tombstone, hot or cold. One that ends
    in what was skipped finds none: only the process died."""

    async def main(hot_bytes: int, *, killed: bool) -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("d", TopicPatch(durability="disk"))
            await topics.append("d", new(1, 2, 3))
            dead = wal.kill() if killed else wal.crash(keep=1_000)
        async with topics_on(dead, TopicsConfig(hot_bytes=hot_bytes)) as topics:
            await topics.append("d", new(4))
            await topics.append("d", new(5))
            await topics.delete_records("d", before_seq=1_000)
            for start in (0, 1, 3):
                found = await read_all(topics, "d", start)
                assert values(found) == [4, 5]
                told = [] if killed else [(4, "crash")]
                assert [(gap.first, gap.reason) for gap in found.gaps] == told

    for killed in (False, True):
        virtually(lambda killed=killed: main(1, killed=killed))
        virtually(lambda killed=killed: main(1 << 20, killed=killed))


def test_what_was_skipped_is_passed_over_by_every_reader() -> None:
    """From any cursor, with a cap that evicts up to it and behind it, over restarts; in an empty
    topic, too. Its seqs are never given out."""

    async def main(hot_bytes: int) -> None:
        config = TopicsConfig(hot_bytes=hot_bytes)
        wal = MemoryWal()
        async with topics_on(wal, config) as topics:
            await topics.put("d", TopicPatch(durability="disk"))
            await topics.put("empty", TopicPatch(durability="disk"))
            await topics.append("d", new(1, 2))
            await topics.append("empty", new(1))
            await topics.delete_records("empty", before_seq=2)
            wal = wal.kill()
        for life in range(3):
            async with topics_on(wal, config) as topics:
                topic = topics.get("d")
                for start in (0, 1, 2, 3, topic.head - 1, topic.head):
                    topic.check()
                    found = await read_all(topics, "d", start)
                    assert found.gaps == []
                    assert found.cursor == topic.head
                    assert found.seqs == [s for s in found.seqs if s > start]
                assert len((await read_all(topics, "d")).seqs) == 2 + life
                assert (await read_all(topics, "empty")).gaps == []
                _, answer, _ = await topics.append("d", new("more"))
                assert answer.first_seq > topic.evict_floor + (life + 1) * SEQS_MIN // 2
                wal = wal.kill()
        async with topics_on(wal, config) as topics:
            topic = topics.get("d")
            for cap, kept in ((3, 3), (1, 1)):
                await topics.put("d", TopicPatch(cap_records=cap))
                await topics.retention.expire(topic)
                topic.check()
                found = await read_all(topics, "d")
                assert len(found.seqs) == kept
                assert [gap.reason for gap in found.gaps] == ["cap"]
                assert topic.earliest == found.seqs[0]
                # Two were lost at first: what was skipped behind them is not counted as lost.
                assert cap == 1 or found.gaps[0].last == 2

    virtually(lambda: main(1))
    virtually(lambda: main(1 << 20))


def test_upkeep_behind_a_deletion_does_not_remove_the_rule_it_extends() -> None:
    """The rule in memory only hides what is gone; the one that is being written does not."""

    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.append("t", new((1, "x"), (2, "y")))
            await topics.delete_records("t", match=TagMatch("x"))
            await topics.delete_records("t", before_seq=3)
            await topics.append("t", new((3, "x"), (4, "y")))
            topic = topics.get("t")
            deleting = asyncio.ensure_future(topics.delete_records("t", match=TagMatch("x")))
            while topic.active is None or topic.active.writes.removal is None:  # noqa: ASYNC110
                await asyncio.sleep(0.00001)  # upkeep may be at it, and its write takes time
            await topics.retention.save(topic)
            await deleting
            dead = wal.crash()
        async with topics_on(dead) as topics:
            assert values(await read_all(topics, "t")) == [4]
            assert topics.get("t").count == 1

    virtually(main)


# --- in small steps


@contextmanager
def work_per_step() -> Iterator[Counter[int]]:
    """Batches evicted and records parsed, counted by the step of the loop they were in."""
    done: Counter[int] = Counter()
    loop: Any = asyncio.get_running_loop()
    evict, parse = Topic.evict, batch_module.decode_records

    def counted_evict(topic: Topic, *args: Any) -> bool:
        done[loop.steps] += 1
        return evict(topic, *args)

    def counted_parse(raw: bytes) -> Any:
        records = parse(raw)
        done[loop.steps] += len(records)
        return records

    with (
        patch.object(Topic, "evict", counted_evict),
        patch.object(batch_module, "decode_records", counted_parse),
    ):
        yield done


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
@pytest.mark.parametrize("limit", [{"cap_records": 7}, {"cap_bytes": 400}, {"ttl_ms": 1}])
def test_evicting_from_memory_is_done_in_small_steps(durability: Any, limit: Any) -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(durability=durability))
            for number in range(3_000):
                await topics.append("t", new(number))
            topic = topics.get("t")
            await asyncio.sleep(0.01)
            with work_per_step() as done:
                await topics.put("t", TopicPatch(**limit))
                floor = topic.evict_floor
                while topic.over_cap or (topic.config.ttl_ms and topic.count):
                    assert topic.evict_floor >= floor
                    assert topic.count == 3_000 - topic.evict_floor + 1
                    floor = topic.evict_floor
                    topic.check()
                    await asyncio.sleep(0.000_01)
            assert max(done.values()) <= TURN.scan_records_per_turn, "the others wait meanwhile"
            left = topic.count
            assert left == (7 if "cap_records" in limit else left)
            found = await read_all(topics, "t")
            assert found.seqs == list(range(3_001 - left, 3_001))
            assert found.lost == set(range(1, 3_001 - left))

    virtually(main)


def test_an_append_over_a_cap_evicts_no_more_than_a_step_itself() -> None:
    """The upkeep takes the rest at once, and goes on while there is more."""

    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(cap_records=2_000))
            for number in range(2_000):
                await topics.append("t", new(number))
            topic = topics.get("t")
            with work_per_step() as done:
                await topics.append("t", new(*range(1_500)))
                assert topic.count > 2_000, "it was over too soon to tell"
                itself, *_ = done.values()  # the step in which it was added to the topic
                assert itself == TURN.scan_records_per_append // BATCH_WORK
                loop: Any = asyncio.get_running_loop()
                started = loop.now_ns
                while topic.over_cap:  # noqa: ASYNC110
                    await asyncio.sleep(0.000_01)
                assert loop.now_ns - started < 50_000_000, "it was left alone for a while"
            assert max(done.values()) <= TURN.scan_records_per_turn
            assert topic.count == 2_000
            assert (await read_all(topics, "t")).lost == set(range(1, 1_501))

    virtually(main)


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
@pytest.mark.parametrize("what", [{"match": TagMatch("x")}, {"before_seq": 9_001}])
def test_deleting_what_memory_holds_is_done_in_small_steps(durability: Any, what: Any) -> None:
    async def main() -> None:
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(durability=durability))
            for number in range(1_000):
                await topics.append("t", new(*[(number, tag) for tag in "xyxyxyxyxy"]))
            await topics.delete_records("t", match=TagMatch("none of them, yet a rule"))
            topic = topics.get("t")
            topic.apply(Ruling(TagMatch("another"), 9_999))
            with work_per_step() as done:
                deleting = asyncio.ensure_future(topics.delete_records("t", **what))
                for _ in range(8):
                    await asyncio.sleep(0)
                assert not deleting.done()
                await topics.append("t", new(("late", "x")))
                _, deleted = await deleting
            assert max(done.values()) <= TURN.scan_records_per_turn + 10, (
                "the others wait meanwhile"
            )
            assert deleted == (5_000 if "match" in what else 9_000)
            found = await read_all(topics, "t")
            assert len(found.records) == topic.count == 10_001 - deleted
            assert sum(map(size_in_topic, found.records)) == topic.bytes
            assert not found.gaps
            topic.check()

    virtually(main)


def size_in_topic(record: RawRecord) -> int:
    return RECORD_OVERHEAD + len(record.data) + len(record.tag or "")


@pytest.mark.parametrize("what", [{"match": TagMatch("x")}, {"before_seq": 1_200}])
def test_memory_may_run_out_under_a_delete_that_is_counting(what: Any) -> None:
    """What an ephemeral topic loses meanwhile is lost, and not deleted as well."""

    async def main() -> None:
        config = TopicsConfig(hot_bytes=500_000)
        async with topics_on(config=config) as topics:
            await topics.put("e", TopicPatch(durability="ephemeral"))
            for number in range(1_500):
                await topics.append("e", new((number, "x"), (number, "y")))
            topic = topics.get("e")
            assert topic.evict_floor == 1
            deleting = asyncio.ensure_future(topics.delete_records("e", **what))
            for _ in range(8):
                await asyncio.sleep(0)
            assert not deleting.done()
            await topics.append("e", new("x" * 300_000))
            assert 1 < topic.evict_floor < 2_500, "nothing was lost, or all"
            before = topic.count
            assert not deleting.done()
            _, deleted = await deleting
            topic.check()
            found = await read_all(topics, "e")
            assert topic.count == len(found.records) == before - deleted
            assert sum(map(size_in_topic, found.records)) == topic.bytes

    virtually(main)


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
def test_a_topic_may_go_while_its_records_are_being_deleted_or_evicted(durability: Any) -> None:
    slowly = TurnBudget(scan_records_per_turn=8, scan_records_per_append=8)

    async def main() -> None:
        async with topics_on(turn=slowly) as topics:
            for name in ("deleted", "evicted"):
                await topics.put(name, TopicPatch(durability=durability))
                for number in range(1_000):
                    await topics.append(name, new((number, "x")))
            deleting = asyncio.ensure_future(topics.delete_records("deleted", match=TagMatch("x")))
            await topics.put("evicted", TopicPatch(cap_records=10))
            await asyncio.sleep(0.3)
            assert 10 < topics.get("evicted").count < 900
            assert not deleting.done()
            for name in ("deleted", "evicted"):
                await topics.delete(name)
                await topics.append(name, new("anew"))
            with pytest.raises(NotFound):
                await deleting
            await asyncio.sleep(2)
            for name in ("deleted", "evicted"):
                assert values(await read_all(topics, name)) == ["anew"]

    virtually(main)


def test_a_large_eviction_holds_up_no_other_deadline() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(hot_bytes=1)) as topics:
            for _ in range(4):
                async with asyncio.TaskGroup() as group:
                    for number in range(1_000):
                        group.create_task(topics.append("large", new(number)))
            await topics.put("small", TopicPatch(ttl_ms=1_000))
            await topics.append("small", new(1))
            await topics.put("large", TopicPatch(cap_records=1))
            large, small = topics.get("large"), topics.get("small")
            taken = 0
            read = topics.kernel.partitions.read

            async def slow_read(epoch: int, **options: Any) -> Any:
                nonlocal taken
                taken += 1
                await asyncio.sleep(0.001)
                return await read(epoch, **options)

            with patch.object(topics.kernel.partitions, "read", slow_read):
                await asyncio.sleep(2.3)
                assert large.over_cap, "it was over too soon to tell"
                assert small.count == 0
                await asyncio.sleep(10)
            assert large.count == 1

    virtually(main)


# --- when records grow too old


def heir_of(wal: Counting) -> Counting:
    heir = Counting()
    heir.inherit(wal.kill())
    return heir


def test_idle_topics_with_a_ttl_are_not_read_until_it_is_over() -> None:
    async def main() -> None:
        wal = Counting()
        async with topics_on(wal) as topics:
            for number in range(20):
                await topics.put(f"t{number}", TopicPatch(ttl_ms=60_000))
                await topics.append(f"t{number}", new(1))
                await asyncio.sleep(0.1)
        heir = heir_of(wal)
        async with topics_on(heir) as topics:
            assert heir.reads.total() == 20, "one look at the oldest record of each"
            await asyncio.sleep(57)
            assert heir.reads.total() == 20
            assert all(topic.active is None for topic in topics), "looking made them larger"
            assert {topic.count for topic in topics} == {1}
            await asyncio.sleep(1.25)
            assert topics.get("t0").count == 0
            assert topics.get("t19").count == 1
            await asyncio.sleep(2)
            assert {topic.count for topic in topics} == {0}
            assert heir.reads.total() <= 40
            assert not len(topics.retention._expiries)

    virtually(main)


def test_a_lowered_ttl_and_a_clock_that_jumps_are_noticed() -> None:
    async def main() -> None:
        wal = Counting()
        async with topics_on(wal) as topics:
            for name in ("lowered", "jumped", "shortened"):
                await topics.put(name, TopicPatch(ttl_ms=3_600_000))
                for number in range(3):
                    await topics.append(name, new(number))
                    await asyncio.sleep(1)
        async with topics_on(heir_of(wal), TopicsConfig(hot_bytes=1)) as topics:
            await asyncio.sleep(5)
            await topics.put("lowered", TopicPatch(ttl_ms=2_000))
            await asyncio.sleep(0.3)
            assert topics.get("lowered").count == 0
            await topics.delete_records("shortened", before_seq=3)
            loop: Any = asyncio.get_running_loop()
            loop.clock.shift_wall(3_600_000_000_000)
            await asyncio.sleep(0.3)
            assert topics.get("jumped").count == 0
            assert topics.get("shortened").count == 0
            loop.clock.shift_wall(-3_600_000_000_000)

    virtually(main)


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_that_was_ahead_once_keeps_later_records_no_longer(restart: bool) -> None:
    day_ms = 86_400_000

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(ttl_ms=60_000))
            await topics.append("t", new("before"))
            loop.clock.shift_wall(day_ms * 1_000_000)
            await topics.append("t", new("ahead"))
            loop.clock.shift_wall(-day_ms * 1_000_000)
            for number in range(3):
                await asyncio.sleep(10)
                await topics.append("t", new(number))
            if not restart:
                await expired(topics)
        if restart:
            async with topics_on(wal.kill()) as topics:
                await expired(topics)

    async def expired(topics: Topics) -> None:
        """Each goes a minute after it came, and what was accepted before the first is gone by then:
        it is no younger, whatever its time says."""
        times = [record.ts for record in (await read_all(topics, "t")).records]
        assert times == sorted(times), "time never runs backwards in a topic"
        seen = []
        for _ in range(10):
            await asyncio.sleep(10)
            seen.append(values(await read_all(topics, "t")))
        assert seen[3] == [1, 2]
        assert seen[4] == [2]
        assert seen[5] == []

    virtually(main)


def test_a_clock_that_falls_behind_for_a_while_costs_nothing_that_was_there() -> None:
    year_ns = 31_536_000 * 10**9

    async def main() -> None:
        loop: Any = asyncio.get_running_loop()
        async with topics_on() as topics:
            await topics.put("t", TopicPatch(ttl_ms=3_600_000))
            await topics.append("t", new("there"))
            loop.clock.shift_wall(-year_ns)
            await topics.append("t", new("meanwhile"))
            await asyncio.sleep(5)
            loop.clock.shift_wall(year_ns)
            await asyncio.sleep(5)
            await topics.append("t", new("after"))
            assert "there" in values(await read_all(topics, "t"))

    virtually(main)


def test_a_record_behind_a_deleted_front_is_lost_in_its_own_time() -> None:
    async def main() -> None:
        async with topics_on(config=TopicsConfig(hot_bytes=1)) as topics:
            await topics.put("t", TopicPatch(ttl_ms=10_000))
            await topics.append("t", new(1))
            await asyncio.sleep(5)
            await topics.append("t", new(2))
            await topics.delete_records("t", before_seq=2)
            await asyncio.sleep(9.9)
            assert topics.get("t").count == 1
            await asyncio.sleep(0.4)
            assert topics.get("t").count == 0
            # It was empty for a while: the next record is the oldest again.
            await asyncio.sleep(30)
            await topics.append("t", new(3))
            await asyncio.sleep(10.3)
            assert topics.get("t").count == 0

    virtually(main)


def test_what_is_remembered_of_deadlines_is_bounded_by_the_topics_that_have_one() -> None:
    async def main() -> None:
        async with topics_on() as topics:
            expiries = topics.retention._expiries
            for number in range(3_000):
                await topics.put("t", TopicPatch(ttl_ms=10**9 + number))
                await topics.append("t", new(1))
                await topics.put(f"gone{number}", TopicPatch(ttl_ms=10**9))
                await topics.append(f"gone{number}", new(1))
                await topics.delete(f"gone{number}")
                if number % 100 == 0:
                    await asyncio.sleep(0.3)
            assert len(expiries) < 3_000
            assert len(expiries._order) < 3_000

    virtually(main)

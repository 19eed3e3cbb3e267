"""Particular moments in the life of a topic."""

from __future__ import annotations

import time

from fairway.topics.batch import VERSION, RecordBatch
from fairway.topics.match import TagMatch
from fairway.topics.operations import Hole, Removal, Reserved, Ruling
from fairway.topics.topic import Eviction, Gap, Topic
from fairway.wire.records import parse_records
from fairway.wire.topics import TopicConfig


def topic_with(*counts: int, **config: object) -> tuple[Topic, list[RecordBatch]]:
    topic = Topic("t", 1, TopicConfig(**config))  # type: ignore[arg-type]
    batches = []
    for count in counts:
        records = parse_records(b'[{"data":1}' + b',{"data":1}' * (count - 1) + b"]")
        first, ts = topic.place(count, 1000)
        batches.append(RecordBatch(VERSION, first, count, ts, records.size(None), records.raw))
        topic.apply(batches[-1])
    topic.check()
    return topic, batches


def evict(topic: Topic, front: RecordBatch, now_ms: int) -> bool:
    eviction = topic.eviction_due(front, now_ms)
    assert eviction is not None
    return topic.evict(front, eviction)


def test_a_cap_takes_part_of_a_batch() -> None:
    topic, (first, second) = topic_with(4, 4, cap_records=5)
    assert not evict(topic, first, 0)
    assert (topic.count, topic.evict_floor, topic.earliest) == (5, 4, 4)
    assert topic.gap_after(0) == Gap(1, 3, "cap")
    assert topic.gap_after(3) is None
    assert topic.live_in(first) == (1, 25)
    assert topic.live_in(second) == (4, 100)


def test_a_record_larger_than_the_cap_is_lost_at_once_and_told() -> None:
    topic, (batch,) = topic_with(1, cap_bytes=5)
    assert evict(topic, batch, 0)
    assert (topic.count, topic.bytes, topic.earliest, topic.head) == (0, 0, 2, 1)
    assert topic.gap_after(0) == Gap(1, 1, "cap")


def test_a_small_cap_and_a_large_batch_take_one_pass() -> None:
    """One record after the other, each with a look at all, took half a minute."""
    topic, (batch,) = topic_with(10_000, cap_records=100)
    tagged, (other,) = topic_with(10_000, cap_records=100, cap_bytes=2000)
    tagged.apply(Ruling(TagMatch("none"), 5))
    started = time.process_time()
    assert not evict(topic, batch, 0)
    assert not evict(tagged, other, 0)
    assert time.process_time() - started < 2
    assert (topic.count, topic.evict_floor) == (100, 9901)
    assert tagged.bytes <= 2000


def test_time_never_runs_backwards_inside_a_topic() -> None:
    topic, _ = topic_with(1)
    assert topic.place(1, 500) == (2, 1000)
    assert topic.place(1, 2000) == (3, 2000)


def test_reasons_are_mixed_when_they_differ() -> None:
    topic, (first, second) = topic_with(2, 2, cap_records=3, ttl_ms=10)
    evict(topic, first, 0)
    assert topic.floor_reason == "cap"
    evict(topic, second, 5000)
    assert (topic.floor_reason, topic.evict_floor) == ("mixed", 5)


def test_a_crash_leaves_a_hole_that_the_floor_swallows() -> None:
    topic, (first,) = topic_with(3)
    topic.apply(Hole(4, 10, "crash"))
    assert topic.holes == (Hole(4, 10, "crash"),)
    assert (topic.gap_after(2), topic.gap_after(3)) == (None, Gap(4, 10, "crash"))
    assert topic.gap_after(6) == Gap(7, 10, "crash")
    assert topic.end_of_run(0) == 3
    assert topic.place(1, 1000)[0] == 11
    topic.unassign()
    topic.evict(first, Eviction(first.last_seq, "cap"))
    assert (topic.holes, topic.evict_floor, topic.earliest) == ((), 11, 11)
    topic.check()


def test_what_is_deleted_is_not_told() -> None:
    topic, _ = topic_with(5)
    topic.apply(Removal(4, 4, 3, 75))
    assert (topic.count, topic.earliest, topic.evict_floor) == (2, 4, 1)
    assert topic.gap_after(0) is None


def test_a_deletion_up_to_a_hole_begins_behind_it() -> None:
    topic, _ = topic_with(3)
    topic.apply(Hole(4, 10, "crash"))
    topic.apply(Removal(4, 4, 3, 75))
    assert topic.earliest == 11


def test_replay_takes_a_jump_for_a_loss() -> None:
    _, batches = topic_with(2, 3, 4)
    topic = Topic("t", 1, TopicConfig())
    topic.apply(batches[0])
    topic.apply(batches[2])
    assert topic.holes == (Hole(3, 5, "crash"),)
    assert (topic.head, topic.count) == (9, 6)
    topic.check()


def test_a_crash_takes_what_was_reserved_last_as_the_store_keeps_it() -> None:
    """A change of the class that failed took a reservation back, and the next one is smaller."""
    topic, _ = topic_with(1, durability="memory")
    topic.apply(Reserved(9_000))
    topic.apply(Reserved(5_000))
    topic.take_over(all_written=False)
    assert topic.gap_after(1) == Gap(2, 5_000, "crash")


def test_adjacent_gaps_are_one() -> None:
    topic, _ = topic_with(1)
    for first in (2, 4, 6):
        topic.place(2, 0)
        topic.apply(Hole(first, first + 1, "source_trim"))
    assert topic.holes == (Hole(2, 7, "source_trim"),)


def test_a_full_topic_counts_what_is_under_way() -> None:
    from fairway.topics.active import ActiveTopic
    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.tail import BatchTail
    from fairway.topics.writes import Write

    topic, _ = topic_with(2, cap_records=4)
    assert not topic.would_overflow(2, 50)
    assert topic.would_overflow(3, 75)
    topic.active = ActiveTopic(BatchTail(3), KeyMemory(0, lambda epoch: 0))
    topic.active.writes.add(Write(topic.active.writes, lambda _: None, count=2))
    assert topic.would_overflow(1, 25)

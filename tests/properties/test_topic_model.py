"""The pure topic against a twin that keeps every record and works everything out anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairway.topics.batch import VERSION, RecordBatch, size_of
from fairway.topics.match import SeqMatch, TagMatch
from fairway.topics.operations import Hole, Removal, decode_snapshot, encode_snapshot
from fairway.topics.topic import Topic
from fairway.wire.records import decode_records, parse_records
from fairway.wire.topics import TopicConfig

TAGS = st.sampled_from([None, "a", "ab", "b"])
State = Literal["live", "lost", "deleted"]


@dataclass
class Twin:
    """One entry for each seq: its state, its time, its size and its tag."""

    states: dict[int, State] = field(default_factory=dict)
    facts: dict[int, tuple[int, int, str | None]] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)
    """What the clock showed when the first seq of each append was accepted."""

    @property
    def live(self) -> list[int]:
        return [seq for seq in sorted(self.states) if self.states[seq] == "live"]

    @property
    def bytes(self) -> int:
        return sum(self.facts[seq][1] for seq in self.live)

    def in_doubt(self, seq: int, ttl_ms: int, now_ms: int) -> bool:
        """Whether the clock was ahead when it was accepted, or is behind now: nobody knows, and it
        may go with what was accepted after it by a clock that was set back."""
        return now_ms < self.facts[seq][0] and any(
            first > seq and clock_ms + ttl_ms <= now_ms for first, clock_ms in self.clocks.items()
        )

    def evict(
        self, config: TopicConfig, now_ms: int, batches: list[RecordBatch], floor: int, topic: Topic
    ) -> None:
        """Lose the oldest until nothing is too old and the caps hold: of live records, and of the
        bytes that are stored, live or not. Where that is in doubt the topic has its way."""
        for batch in batches:
            seqs = range(max(batch.first_seq, floor), batch.last_seq + 1)
            if not any(self.states[seq] == "live" for seq in seqs):
                floor = max(floor, batch.last_seq + 1)
                continue
            for seq in seqs:
                old = bool(config.ttl_ms) and (
                    self.facts[seq][0] + config.ttl_ms <= now_ms
                    or (seq < topic.floor and self.in_doubt(seq, config.ttl_ms, now_ms))
                )
                many = bool(config.cap_records) and len(self.live) > config.cap_records
                stored = sum(
                    self.facts[one][1]
                    for each in batches
                    for one in range(max(each.first_seq, floor), each.last_seq + 1)
                )
                large = bool(config.cap_bytes) and stored > config.cap_bytes
                if not (old or many or large):
                    return
                if self.states[seq] == "live":
                    self.states[seq] = "lost"
                floor = seq + 1


class TopicMachine(RuleBasedStateMachine):
    """Everything that can happen to a topic, in any order."""

    @initialize(
        cap_records=st.sampled_from([0, 1, 4, 10]),
        cap_bytes=st.sampled_from([0, 30, 200, 500]),
        ttl_ms=st.sampled_from([0, 0, 20]),
    )
    def start(self, **config: int) -> None:
        self.topic = Topic("t", 1, TopicConfig(**config))
        self.twin = Twin()
        self.batches: list[RecordBatch] = []
        self.now_ms = 1_000

    @rule(tags=st.lists(TAGS, min_size=1, max_size=6), pad=st.integers(0, 60), node=st.booleans())
    def append(self, tags: list[str | None], pad: int, node: bool) -> None:
        first, ts = self.topic.place(len(tags), self.now_ms)
        self.twin.clocks[first] = self.now_ms
        records = [{"data": "x" * pad} | ({"tag": tag} if tag else {}) for tag in tags]
        parsed = parse_records(msgspec.json.encode(records))
        name = "host" if node else None
        batch = RecordBatch(VERSION, first, len(tags), ts, parsed.size(name), parsed.raw, name)
        self.topic.apply(batch)
        self.batches.append(batch)
        for seq, record in enumerate(decode_records(parsed.raw), first):
            self.twin.states[seq] = "live"
            self.twin.facts[seq] = (ts, size_of(record, name), record.tag)
        self.evict()

    @rule(jump=st.integers(-50, 100))
    def time_passes(self, jump: int) -> None:
        self.now_ms += jump
        self.evict()

    def evict(self) -> None:
        topic, floor = self.topic, self.topic.floor
        for batch in self.batches:
            while batch.last_seq >= topic.floor and (due := topic.eviction_due(batch, self.now_ms)):
                behind = 0
                if topic.must_look_behind(batch, due.upto):
                    behind = self.first_live_behind(batch)
                topic.evict(batch, due, behind)
                assert topic.earliest == self.first_live_behind(None), "at once, and not later"
            if batch.last_seq >= topic.floor:
                break
        self.twin.evict(topic.config, self.now_ms, self.batches, floor, topic)
        self.settle()

    def first_live_behind(self, front: RecordBatch | None) -> int:
        for batch in self.batches:
            first = self.topic.first_live_in(batch, front.last_seq if front is not None else 0)
            if first is not None:
                return first
        return self.topic.head + 1

    def settle(self) -> None:
        """What the shell does after whatever may leave a deleted record in front."""
        topic = self.topic
        if topic.rules and not topic.count:
            topic.skip_all()
        for batch in self.batches if topic.rules else ():
            if batch.last_seq >= topic.floor and not topic.skip_deleted(batch):
                return

    @rule(before=st.integers(0, 60))
    def delete_before(self, before: int) -> None:
        upto = min(before - 1, self.topic.head)
        if upto < self.topic.floor:
            return
        gone = [seq for seq in self.twin.live if seq <= upto]
        size = sum(self.twin.facts[seq][1] for seq in gone)
        hidden = sum(self.topic.held_in(batch, upto)[2] for batch in self.batches)
        self.topic.apply(Removal(upto + 1, upto + 1, len(gone), size, hidden=-hidden))
        for seq in gone:
            self.twin.states[seq] = "deleted"
        self.settle()

    @rule(text=st.sampled_from(["a", "b"]), prefix=st.booleans())
    def delete_tagged(self, text: str, prefix: bool) -> None:
        match = TagMatch(text, prefix)
        gone = [seq for seq in self.twin.live if match(self.twin.facts[seq][2])]
        if not gone:
            return
        size = sum(self.twin.facts[seq][1] for seq in gone)
        self.topic.apply(Removal(1, 1, len(gone), size, match, gone[-1], size))
        for seq in gone:
            self.twin.states[seq] = "deleted"
        self.settle()

    @rule(data=st.data())
    def delete_one(self, data: Any) -> None:
        if not self.twin.live:
            return
        seq = data.draw(st.sampled_from(self.twin.live))
        size = self.twin.facts[seq][1]
        self.topic.apply(Removal(1, 1, 1, size, SeqMatch(seq), seq, size))
        self.twin.states[seq] = "deleted"
        self.settle()

    @rule()
    def reclaim(self) -> None:
        """Batches in which nothing lives go, wherever they are."""
        topic = self.topic
        gone = [batch for batch in self.batches if topic.first_live_in(batch) is None]
        for batch in gone:
            topic.reclaim(batch.last_seq, topic.held_in(batch)[2])
            self.batches.remove(batch)

    @rule(count=st.integers(1, 5))
    def crash(self, count: int) -> None:
        """Seqs that were reserved are skipped, and told to be lost."""
        head = self.topic.head
        self.topic.apply(Hole(head + 1, head + count, "crash"))
        for seq in range(head + 1, head + count + 1):
            self.twin.states[seq] = "lost"
            self.twin.facts[seq] = (0, 0, None)

    @rule(count=st.integers(1, 5))
    def gap(self, count: int) -> None:
        first, _ = self.topic.place(count, self.now_ms)
        self.twin.clocks[first] = self.now_ms
        self.topic.apply(Hole(first, first + count - 1, "source_trim"))
        for seq in range(first, first + count):
            self.twin.states[seq] = "lost"
            self.twin.facts[seq] = (0, 0, None)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def lose_a_batch(self, data: Any) -> None:
        """A batch of the memory class that could not be written."""
        batch = data.draw(st.sampled_from(self.batches))
        if any(
            self.twin.states[seq] != "live" for seq in range(batch.first_seq, batch.last_seq + 1)
        ):
            return
        topic = self.topic
        topic.lose_range(batch.first_seq, batch.last_seq, *topic.held_in(batch))
        self.batches.remove(batch)
        for seq in range(batch.first_seq, batch.last_seq + 1):
            self.twin.states[seq] = "lost"
        self.settle()

    @rule()
    def restart(self) -> None:
        """A snapshot says it all, but the rules, which are kept apart."""
        stored = encode_snapshot(self.topic.snapshot())
        again = Topic("t", 1, self.topic.config)
        again.apply(decode_snapshot(stored))
        again.rules = self.topic.rules
        assert bool(again.rules) <= decode_snapshot(stored).rules
        assert encode_snapshot(again.snapshot()) == stored
        self.topic = again

    @rule()
    def restart_by_replay(self) -> None:
        """Without a snapshot the entries tell, and a jump in the seqs tells of a loss."""
        states = set(self.twin.states.values())
        if states == {"live"} and not self.topic.rules and self.topic.evict_floor == 1:
            again = Topic("t", 1, self.topic.config)
            for batch in self.batches:
                again.apply(batch)
            assert again.count == self.topic.count
            assert again.bytes == self.topic.bytes
            assert again.head == self.topic.head

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "topic"):
            return
        topic, twin = self.topic, self.twin
        topic.check()
        assert topic.head == max(twin.states, default=0)
        assert (topic.count, topic.bytes) == (len(twin.live), twin.bytes)
        live = twin.live
        assert topic.earliest == (live[0] if live else topic.head + 1)
        assert topic.hidden == sum(topic.held_in(batch)[2] for batch in self.batches)
        assert self.read() == live
        lost = {seq for seq, state in twin.states.items() if state == "lost"}
        told = self.told()
        assert lost <= told, "a loss is not told"
        assert not told & set(live), "a live record is told to be lost"

    def read(self) -> list[int]:
        topic = self.topic
        return [
            seq
            for batch in self.batches
            for seq, record in enumerate(batch.parse(), batch.first_seq)
            if topic.is_live(seq, record.tag)
        ]

    def told(self) -> set[int]:
        """What a reader from the start is told to be lost, gap by gap."""
        topic, told, seq = self.topic, set(), 0
        while seq < topic.head:
            gap = topic.gap_after(seq)
            if gap is not None:
                assert gap.first == seq + 1 <= gap.last <= topic.head
                told.update(range(gap.first, gap.last + 1))
                seq = gap.last
            else:
                end = topic.end_of_run(seq)
                assert end > seq
                seq = end
        return told


TopicMachine.TestCase.settings = settings(stateful_step_count=30)
TestTopic = TopicMachine.TestCase


def test_what_was_lost_behind_the_records_that_a_cap_takes_is_passed_over() -> None:
    """A history that the machine finds once in a while: what is left of a batch was deleted."""
    machine = TopicMachine()
    machine.start(cap_records=4, cap_bytes=0, ttl_ms=0)
    machine.append(tags=[None, "b"], pad=0, node=False)
    machine.crash(count=1)
    machine.delete_tagged(text="b", prefix=False)
    machine.append(tags=[None] * 4, pad=0, node=False)
    machine.agrees()
    assert machine.topic.earliest == 4
    machine.restart()
    machine.agrees()


def test_what_was_accepted_before_the_clock_was_set_back_goes_with_what_came_after() -> None:
    """By how long it was there it is as old as that, although the clock has not come so far."""
    machine = TopicMachine()
    machine.start(cap_records=0, cap_bytes=0, ttl_ms=20)
    machine.append(tags=[None], pad=0, node=False)
    machine.time_passes(jump=-21)
    machine.gap(count=1)
    machine.time_passes(jump=19)
    machine.agrees()
    assert machine.twin.live == [1]
    machine.time_passes(jump=1)
    machine.agrees()
    assert machine.twin.live == []

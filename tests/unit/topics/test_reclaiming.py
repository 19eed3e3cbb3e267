"""Room from deletions: rows in which nothing lives go, and what is hidden but stored is counted."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway.storage.log import Log
from fairway.storage.wal import Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics import names
from fairway.topics.batch import decode_batch, size_of
from fairway.topics.engine import TopicsConfig
from fairway.topics.match import TagMatch
from fairway.topics.old_batches import FRONT_BATCHES
from fairway.topics.operations import decode_snapshot, encode_snapshot
from fairway.topics.reading import DELETED_AT_ONCE
from fairway.topics.reclaiming import RULES_FEW
from fairway.wire.topics import TopicPatch
from tests.support.topics import new, read_all, topics_on

if TYPE_CHECKING:
    import random

    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic
    from tests.conftest import Campaign

COLD = TopicsConfig(hot_bytes=2_000)


def virtually(main: Any) -> Any:
    return run(main, seed=1, quiet=True, limit_ns=10**13)


def stored(wal: MemoryWal, topic: Topic) -> list[tuple[int, int]]:
    """The batches that the store holds, by their first and last seqs."""
    batches = [decode_batch(entry.payload, topic="t") for entry in wal.read(topic.epoch)]
    return [(batch.first_seq, batch.last_seq) for batch in batches]


async def upkeep() -> None:
    """Longer than it needs, by the clock of the test."""
    await asyncio.sleep(30)


def test_rows_in_which_nothing_lives_go_wherever_they_are() -> None:
    async def main() -> None:
        for config in (COLD, None):
            wal = MemoryWal()
            async with topics_on(wal, config) as topics:
                for number in range(60):
                    tag = "keep" if number % 20 == 0 else "drop"
                    await topics.append("t", new("x" * 90, "y" * 90, tag=tag))
                topic = topics.get("t")
                before = topic.stored
                _, deleted = await topics.delete_records("t", match=TagMatch("drop"))
                assert deleted == 114
                assert topic.stored == before, "it is stored, and counts"
                await upkeep()
                assert stored(wal, topic) == [(1, 2), (41, 42), (81, 82)]
                assert (topic.stored, topic.hidden) == (topic.bytes, 0)
                found = await read_all(topics, "t")
                assert found.seqs == [1, 2, 41, 42, 81, 82]
                assert not found.gaps
                await topics.append("t", new(1, tag="drop"))
            async with topics_on(wal.reopened(), config) as topics:
                assert (await read_all(topics, "t")).seqs == [1, 2, 41, 42, 81, 82, 121]

    virtually(main)


def test_pages_are_the_same_before_and_after_the_room_is_given_back() -> None:
    async def main() -> None:
        async with topics_on(MemoryWal()) as topics:
            for number in range(40):
                await topics.append(
                    "t", new((number, "drop" if number % 7 in (1, 3, 4) else "keep"))
                )
            await topics.append("t", new((1, "keep"), (2, "drop"), (3, "keep"), (4, "drop")))
            await topics.delete_records("t", match=TagMatch("drop"))

            async def pages() -> list[tuple[list[int], int]]:
                found = []
                for after in range(44):
                    for limit in (1, 2, 5, 100):
                        page = (await topics.reading.diff("t", after, limit=limit)).page
                        assert len(page.records) == limit or page.next_seq == 44
                        found.append(([record.seq for record in page.records], page.next_seq))
                return found

            before = await pages()
            await upkeep()
            assert await pages() == before

    virtually(main)


def test_a_page_passes_over_so_many_deleted_records_at_most() -> None:
    async def main() -> None:
        async with topics_on(MemoryWal()) as topics:
            many = DELETED_AT_ONCE + 10
            await topics.append("t", new(("x", "keep"), *[(1, "drop")] * many, ("y", "keep")))
            await topics.delete_records("t", match=TagMatch("drop"))
            first = (await topics.reading.diff("t", 0)).page
            assert ([one.seq for one in first.records], first.next_seq) == ([1], many - 9)
            rest = (await topics.reading.diff("t", first.next_seq)).page
            assert ([one.seq for one in rest.records], rest.next_seq) == ([many + 2], many + 2)

    virtually(main)


def test_rules_that_hide_nothing_any_more_go() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            await topics.append("t", new("first", ("beside", "once")))
            await topics.delete_records("t", match=TagMatch("once"))
            for number in range(400):
                await topics.append("t", new(number, tag=f"order-{number}"))
                if number % 2:
                    await topics.delete_records("t", match=TagMatch(f"order-{number}"))
                else:
                    await topics.delete_records("t", seq=number + 3)
            await upkeep()
            topic = topics.get("t")
            assert topic.rules is not None
            assert len(topic.rules) <= 1 + 2 * RULES_FEW + 1
            assert len(wal.meta_scan(topic.epoch, prefix=names.RULE)) == len(topic.rules)
            assert TagMatch("once") in topic.rules.all(), "it still hides something"
            assert stored(wal, topic) == [(1, 2)]
            assert (await read_all(topics, "t")).seqs == [1]
        async with topics_on(wal.reopened()) as topics:
            assert (await read_all(topics, "t")).seqs == [1]

    virtually(main)


def test_what_is_hidden_beside_a_live_record_counts_against_the_cap() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            cap = TopicPatch(cap_bytes=10_000, discard="reject")
            await topics.append("t", new(("x" * 8_000, "drop"), ("y", "keep")), config=cap)
            await topics.delete_records("t", match=TagMatch("drop"))
            await upkeep()
            topic = topics.get("t")
            assert topic.hidden > 8_000 > topic.bytes
            assert topic.would_overflow(1, 3_000)
            await topics.put("t", TopicPatch(discard="old"))
            await topics.append("t", new("z" * 3_000))
            assert (await read_all(topics, "t")).seqs == [2, 3], "the hidden one went first"
            assert (topic.hidden, topic.earliest) == (0, 2)
            await topics.append("t", new("z" * 7_000))
            assert (await read_all(topics, "t")).seqs == [4]

    virtually(main)


def test_a_store_of_an_older_release_is_reclaimed_too() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            for number in range(30):
                await topics.append("t", new((number, f"{number % 3}"), tag="x"))
            await topics.append("t", new((1, "0"), (2, "live")))
            epoch = topics.get("t").epoch
        # As an older release would have left it: the rule, the snapshot of its fields, all rows.
        wal = wal.reopened()
        async with Log(wal) as log:
            old = decode_snapshot(await log.meta(epoch, names.SNAPSHOT) or b"")
            at = {name: place for place, name in enumerate(old.__struct_fields__)}
            fields = list(msgspec.to_builtins(old))[: at["hidden"]]
            fields[at["rules"]], fields[at["count"]] = True, old.count - 11
            sizes = [
                size_of(record, batch.node)
                for entry in wal.read(epoch)
                for batch in [decode_batch(entry.payload, topic="t")]
                for record in batch.parse()
                if record.tag == "0"
            ]
            fields[at["bytes"]] = old.bytes - sum(sizes)
            meta = {names.RULE + "=0": names.encode_number(31)}
            await log.submit(
                epoch, Operation(meta={**meta, names.SNAPSHOT: encode_snapshot(fields)})
            )
        wal = wal.reopened()
        async with topics_on(wal) as topics:
            topic = topics.get("t")
            await upkeep()
            kept = [(seq, seq) for seq in range(1, 31) if (seq - 1) % 3]
            assert stored(wal, topic) == [*kept, (31, 32)]
            assert topic.hidden == sizes[-1]
            assert topic.earliest == 2
            seqs = [seq for seq, _ in kept]
            assert (await read_all(topics, "t")).seqs == [*seqs, 32]

    virtually(main)


def test_rows_that_a_reader_found_expired_go() -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal) as topics:
            patch = TopicPatch(ttl_ms=60_000)
            await topics.append("t", new(1, 2), config=patch)
            await topics.append("t", new(3))
            topic = topics.get("t")
            await asyncio.sleep(59.99)
            while topic.count:  # so often that it finds them before upkeep does
                await asyncio.sleep(0.001)
                await read_all(topics, "t")
            await upkeep()
            assert stored(wal, topic) == []

    virtually(main)


def test_a_cap_holds_while_rows_are_being_removed() -> None:
    """Whenever a record comes during it, a reader sees no more than the cap."""

    async def main() -> None:
        async with topics_on(wal := MemoryWal()) as topics:
            met = 0
            for moment in range(60):
                topic, _ = await topics.put(f"t{moment}", TopicPatch(cap_records=3))
                for number in range(1, 4):
                    await topics.append(topic.name, new(number))
                await topics.delete_records(topic.name, seq=2)
                await asyncio.sleep(moment / 10_000)
                assert topic.active is not None
                met += topic.active.reclaiming
                await topics.append(topic.name, new(4, 5))
                assert (await read_all(topics, topic.name)).seqs == [3, 4, 5], moment
            assert met, "some came while it was under way"
            await upkeep()
            for moment in range(60):
                topic = topics.get(f"t{moment}")
                assert stored(wal, topic) == [(3, 3), (4, 5)]
                assert (topic.stored, topic.hidden) == (topic.bytes, 0)

    virtually(main)


def test_rows_that_could_not_be_removed_go_later() -> None:
    async def main() -> None:
        refused = 0
        full = False

        def before_write() -> None:
            nonlocal refused
            if full:
                refused += 1
                raise OSError(errno.ENOSPC, "the disk is full")

        wal = MemoryWal(before_write=before_write)
        async with topics_on(wal) as topics:
            for number in range(1, 6):
                await topics.append("t", new(number))
            await topics.delete_records("t", seq=2)
            await topics.delete_records("t", seq=4)
            topic = topics.get("t")
            full = True
            await asyncio.sleep(3)
            assert refused
            assert len(stored(wal, topic)) == 5
            assert (await read_all(topics, "t")).seqs == [1, 3, 5]
            full = False
            await upkeep()
            assert stored(wal, topic) == [(1, 1), (3, 3), (5, 5)]
            assert (topic.stored, topic.hidden) == (topic.bytes, 0)

    virtually(main)


class Onlooker:
    """Looks at a topic whenever somebody else could: after every callback of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._watched: tuple[MemoryWal, Topic] | None = None
        self._seen: tuple[int, ...] = ()
        self.wrong: list[str] = []
        run_callback = asyncio.Handle._run

        def run_and_look(handle: asyncio.Handle) -> None:
            run_callback(handle)
            self._look()

        monkeypatch.setattr(asyncio.Handle, "_run", run_and_look)

    def watch(self, wal: MemoryWal, topic: Topic) -> None:
        self._watched = wal, topic

    def _look(self) -> None:
        if self._watched is None:
            return
        wal, topic = self._watched
        seen = (topic.epoch, topic.head, topic.floor, topic.earliest, topic.count)
        if seen != self._seen:  # a look goes through all that is stored
            self._seen = seen
            first = first_live(wal, topic)
            if topic.earliest != first:
                self.wrong.append(f"{topic.earliest} was named, {first} was the first")


def first_live(wal: MemoryWal, topic: Topic) -> int:
    """The hard way: through all that is stored, and all that memory holds."""
    batches = [decode_batch(entry.payload, topic="t") for entry in wal.read(topic.epoch)]
    if topic.active is not None:
        batches += topic.active.tail.after(topic.active.tail.first_seq - 1)
    found = [topic.first_live_in(batch) for batch in batches if batch.last_seq <= topic.head]
    return min((first for first in found if first is not None), default=topic.head + 1)


@pytest.fixture
def onlooker(monkeypatch: pytest.MonkeyPatch) -> Onlooker:
    return Onlooker(monkeypatch)


def test_a_delete_of_the_first_names_the_next_live_record_at_once(onlooker: Onlooker) -> None:
    async def main() -> None:
        for config in (COLD, None):
            async with topics_on(wal := MemoryWal(), config) as topics:
                topic, _ = await topics.put("t")
                for number in range(1, 31):
                    tag = "drop" if number % 3 else "keep"
                    await topics.append("t", new((number, tag), ("x" * 90, tag)))
                onlooker.watch(wal, topic)
                await topics.delete_records("t", match=TagMatch("drop"))
                assert topic.earliest == 5
                await topics.delete_records("t", seq=5)
                await topics.delete_records("t", seq=6)
                assert topic.earliest == 11
                await topics.delete_records("t", before_seq=13)
                assert topic.earliest == 17
                await topics.delete_records("t", match=TagMatch("keep"), before_seq=20)
                assert topic.earliest == 23
                await topics.delete_records("t", seq=29)
                assert topic.earliest == 23, "another one went"
                await upkeep()
                await topics.delete_records("t", before_seq=61)
                assert topic.earliest == 61
                await topics.append("t", new(1))
                assert topic.earliest == 61

    virtually(main)
    assert not onlooker.wrong


def test_an_append_that_evicts_names_the_next_live_record_at_once(onlooker: Onlooker) -> None:
    """What it evicts was read ahead, and what was deleted lies just behind the end of that."""

    async def main() -> None:
        wal = MemoryWal()
        ahead, cap = FRONT_BATCHES, FRONT_BATCHES + 20
        async with topics_on(wal) as topics:
            await topics.put("t", TopicPatch(cap_records=cap))
            for number in range(1, cap + 1):
                await topics.append("t", new((number, "drop" if number == ahead + 1 else "keep")))
        wal = wal.reopened()
        async with topics_on(wal) as topics:  # memory holds nothing of it
            topic = topics.get("t")
            onlooker.watch(wal, topic)
            await topics.delete_records("t", match=TagMatch("drop"))
            await upkeep()
            await topics.append("t", new(0))  # fills it again
            for gone in range(1, cap):
                await topics.append("t", new(0))
                assert topic.count == cap, "what had to go went at once"
                assert topic.earliest == gone + (1 if gone < ahead else 2)

    virtually(main)
    assert not onlooker.wrong


@pytest.mark.parametrize("patch", [TopicPatch(cap_records=30), TopicPatch(ttl_ms=60_000)])
def test_upkeep_that_evicts_names_the_next_live_record_at_once(
    onlooker: Onlooker, patch: TopicPatch
) -> None:
    async def main() -> None:
        wal = MemoryWal()
        async with topics_on(wal, COLD) as topics:
            for number in range(60):
                tag = "drop" if number % 5 else "keep"
                await topics.append("t", new((number, tag), ("x" * 90, tag), ("y", "keep")))
                await asyncio.sleep(1)
            topic = topics.get("t")
            onlooker.watch(wal, topic)
            await topics.delete_records("t", match=TagMatch("drop"))
            await topics.put("t", patch)  # much has to go: upkeep does it, from the store
            for _ in range(300):
                await asyncio.sleep(0.2)
                reading = await read_all(topics, "t")
                assert topic.earliest == (reading.seqs[0] if reading.seqs else topic.head + 1)
            assert topic.evict_floor > 100

    virtually(main)
    assert not onlooker.wrong


def test_memory_that_is_short_names_the_next_live_record_at_once(onlooker: Onlooker) -> None:
    """An ephemeral topic loses its oldest to others, which lie beside what was deleted."""

    async def main() -> None:
        async with topics_on(wal := MemoryWal(), COLD) as topics:
            patch = TopicPatch(durability="ephemeral")
            topic, _ = await topics.put("t", patch)
            onlooker.watch(wal, topic)
            for number in range(4):
                await topics.append("t", new((number, "drop" if number % 2 else "keep")))
            await topics.delete_records("t", match=TagMatch("drop"))
            for _ in range(4):
                await topics.append("other", new("x" * 300))
            assert topic.evict_floor > 1
            assert topic.earliest == first_live(wal, topic)

    virtually(main)
    assert not onlooker.wrong


@pytest.mark.timeout(600)
def test_any_mix_of_deletes_leaves_the_first_live_record_first(
    campaign: Campaign, onlooker: Onlooker
) -> None:
    """Against a twin that keeps every record; and in the end no row is left in which none lives."""
    for number in range(campaign.rounds(share=3, full=200)):
        rng = campaign.random(number)
        virtually(lambda rng=rng: _mix(rng, campaign, onlooker))
        assert not onlooker.wrong


async def _mix(rng: random.Random, campaign: Campaign, onlooker: Onlooker) -> None:
    wal = MemoryWal()
    config = rng.choice([COLD, None])
    patch = rng.choice([TopicPatch(), TopicPatch(cap_records=40), TopicPatch(ttl_ms=60_000)])
    tags: dict[int, str] = {}
    deleted: set[int] = set()
    for _ in range(2):
        async with topics_on(wal, config) as topics:
            topic, _ = await topics.put("t", patch)
            onlooker.watch(wal, topic)
            for _ in range(40):
                kind = rng.choice(["append"] * 4 + ["tag", "seq", "seq", "before", "wait", "both"])
                campaign.tally[kind] += 1
                before = {record.seq for record in (await read_all(topics, "t")).records}
                gone: set[int] = set()
                if kind == "append":
                    some = [rng.choice("abcd") for _ in range(rng.choice([1, 1, 3, 8]))]
                    answer = (await topics.append("t", new(*((1, tag) for tag in some))))[1]
                    tags.update(
                        zip(range(answer.first_seq, answer.last_seq + 1), some, strict=True)
                    )
                elif kind == "wait":
                    await asyncio.sleep(rng.choice([0.3, 5, 30]))
                else:
                    tag = rng.choice("abcd") if kind in ("tag", "both") else None
                    below = rng.randint(0, topic.head + 1) if kind in ("before", "both") else None
                    seq = rng.randint(1, topic.head + 1) if kind == "seq" else None
                    gone = {
                        one
                        for one in before
                        if (tag is None or tags[one] == tag)
                        and (below is None or one < below)
                        and seq in (None, one)
                    }
                    match = TagMatch(tag) if tag is not None else None
                    _, count = await topics.delete_records(
                        "t", match=match, before_seq=below, seq=seq
                    )
                    # Upkeep may have evicted some of them since they were read.
                    stayed = {one for one in gone if one >= topic.evict_floor}
                    assert len(stayed) <= count <= len(gone), kind
                    deleted |= gone
                await _check(topics, topic, gone, deleted)
            # Else some might expire between the last upkeep and the look at what it left.
            await topics.put("t", TopicPatch(ttl_ms=0))
            await upkeep()
            reading = await _check(topics, topic, set(), deleted)
            alive = set(reading)
            for first, last in stored(wal, topic):
                assert alive & set(range(first, last + 1)), f"{first} to {last} are worthless"
        wal = wal.reopened() if rng.random() < 0.5 else wal.kill()


async def _check(topics: Topics, topic: Topic, gone: set[int], deleted: set[int]) -> list[int]:
    reading = await read_all(topics, "t")
    assert not set(reading.seqs) & deleted
    assert topic.count == len(reading.seqs)
    assert topic.earliest == (reading.seqs[0] if reading.seqs else topic.head + 1)
    topic.check()
    return reading.seqs

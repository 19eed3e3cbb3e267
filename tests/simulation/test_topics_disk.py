"""Topics on SQLite on a simulated disk: the power goes in any write or sync of the store.

After each loss: what was acknowledged as synced is there, everything else that was acknowledged is
there or told to be lost, batches are whole, and no seq is ever used for another record.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import apsw
import msgspec
import pytest

from fairway.errors import FairwayError
from fairway.kernel.kernel import Kernel
from fairway.storage.log import Log
from fairway.storage.wals.sqlite import SqliteWal
from fairway.testing import run
from fairway.testing.disk import SimulatedDisk
from fairway.testing.vfs import SimulatedVFS
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.match import TagMatch
from fairway.topics.reserving import SEQS_MIN
from fairway.topics.retention import RetentionConfig
from fairway.wire.topics import RouterConfig, TopicPatch
from tests.support.topics import Forced, Reading, new, read_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Campaign

Survival = Literal["random", "lose", "prefix", "keep"]
SURVIVALS: list[Survival] = ["random", "random", "lose", "prefix", "keep"]
CLASSES = {"sync": "fsync", "disk": "disk", "memory": "memory", "volatile": "ephemeral"}
CONFIG = TopicsConfig(
    hot_bytes=2_000,
    key_bytes=1_000,
    tag_bytes=1_000,
    retention=RetentionConfig(period_ns=5_000_000, chunk=3, snapshot_records=5),
)


@dataclass
class Book:
    """What clients were told about the topics of one store."""

    acked: dict[str, dict[int, Any]] = field(default_factory=lambda: {name: {} for name in CLASSES})
    seen: dict[str, dict[int, Any]] = field(default_factory=lambda: {name: {} for name in CLASSES})
    deleted: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in CLASSES})
    maybe: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in CLASSES})
    numbers: int = 0


class Store:
    """One directory on one disk, through all its lives."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.disk = SimulatedDisk(seed)
        self.directory = directory
        self.wal: SqliteWal | None = None
        self.boots = 1
        self.boot: bytes | None = self.boots.to_bytes(16)

    def start(self) -> SqliteWal:
        self._vfs = SimulatedVFS(self.disk)
        self.wal = SqliteWal(self.directory, shards=1, vfs=self._vfs.name, boot=lambda: self.boot)
        return self.wal

    def restart(self, survival: Survival) -> None:
        """The power goes, and comes back."""
        self.disk.restart(survival)
        self.boots += 1
        self.boot = self.boots.to_bytes(16)
        self._bury()

    def kill(self) -> None:
        """Only the process dies: the system has what it wrote."""
        self.disk.restart("keep")
        self._bury()

    def _bury(self) -> None:
        assert self.wal is not None
        shards = list(self.wal.shards)
        with suppress(apsw.Error):  # its connections died with the power
            self.wal.close()
        for shard in shards:
            shard._mark.close()
        self.wal._lock.release()  # as the kernel does for the dead
        self._vfs.unregister()  # or SQLite keeps every disk there ever was


async def live(store: Store, book: Book, chance: random.Random, steps: int, tally: Any) -> None:
    wal = store.start()
    async with (
        Log(wal) as log,
        Kernel(log, governor=Forced()) as kernel,
        Topics(kernel, config=CONFIG) as topics,
    ):
        for name, durability in CLASSES.items():
            await topics.put(name, TopicPatch(durability=durability))  # type: ignore[arg-type]
        if "r" not in topics.routers():
            await topics.put_router("r", RouterConfig(source="sync", dest="copy"))
        await look(topics, book, tally)
        async with asyncio.TaskGroup() as clients:
            for _ in range(3):
                clients.create_task(client(topics, book, chance, steps))
        await asyncio.sleep(0.2)
        await look(topics, book, tally)
        source, copy = await read_all(topics, "sync"), await read_all(topics, "copy")
        kept = [r.data for r in source.records]
        # Deleted ones may have been copied before; what is live was, once and in order.
        assert [data for data in (r.data for r in copy.records) if data in set(kept)] == kept
        assert len({r.data for r in copy.records}) == len(copy.records), "copied twice"


async def client(topics: Topics, book: Book, chance: random.Random, steps: int) -> None:
    for _ in range(steps):
        name = chance.choice(list(CLASSES))
        if chance.random() < 0.08:
            tag = chance.choice("xy")
            book.maybe[name].add(tag)
            certain = {s for s, (_, _, own) in book.acked[name].items() if own == tag}
            head = topics.get(name).head
            await topics.delete_records(name, match=TagMatch(tag))
            book.deleted[name] |= {seq for seq in certain if seq <= head}
            continue
        book.numbers += 1
        number = book.numbers
        tags = [chance.choice("xyz") for _ in range(chance.choice((1, 2, 5)))]
        records = [([number, at, tag], tag) for at, tag in enumerate(tags)]
        key = f"k{number}" if chance.random() < 0.3 else None
        batch = new(*records, key=key)
        with suppress(FairwayError):
            _, answer, _ = await topics.append(name, batch)
            for at, (value, _) in enumerate(records):
                book.acked[name][answer.first_seq + at] = tuple(value)
            if key is not None:
                _, again, _ = await topics.append(name, batch)
                assert (again.first_seq, again.deduped) == (answer.first_seq, True)
        await asyncio.sleep(chance.choice((0, 0, 0.001)))


async def look(topics: Topics, book: Book, tally: Any) -> None:
    for name, durability in CLASSES.items():
        topic = topics.get(name)
        topic.check()
        found = await read_all(topics, name, limit=7)
        there = {r.seq: tuple(msgspec.json.decode(r.data)) for r in found.records}
        assert len(set(there.values())) == len(there), "appended twice"
        assert topic.count == len(there)
        whole: dict[int, int] = {}
        for seq, value in there.items():
            assert book.seen[name].setdefault(seq, value) == value, "a seq was used again"
            whole.setdefault(value[0], seq - value[1])
            assert whole[value[0]] == seq - value[1], "a batch is torn"
        for seq, value in book.acked[name].items():
            assert book.seen[name].setdefault(seq, value) == value, "a seq was used again"
            if seq in there or seq in book.deleted[name] or value[2] in book.maybe[name]:
                continue
            assert seq in found.lost, f"{name}: {seq} was acknowledged and nobody says it is lost"
            assert durability != "fsync", f"{seq} was synced and is lost"
            tally[f"lost {durability}"] += 1
        assert not book.deleted[name] & there.keys(), "deleted and there"
        tally["records checked"] += len(there)


@pytest.mark.timeout(3600)
def test_power_loss_at_any_step(campaign: Campaign, tmp_path: Path) -> None:
    events = ("died", "ended", "lost disk", "lost memory", "records checked")
    rounds = campaign.rounds(share=20, full=400)
    for number in range(max(rounds, 100)):
        one_store(campaign.random(number), campaign.seed + number, tmp_path / str(number), campaign)
        if number >= rounds and all(campaign.tally[event] for event in events):
            break
    for event in events:
        assert campaign.tally[event], event


def one_store(chance: random.Random, seed: int, directory: Path, campaign: Campaign) -> None:
    store, book, tally = Store(seed, directory), Book(), campaign.tally
    for life in range(4):
        if life < 3:
            store.disk.crash_at(chance.choice((chance.randrange(30), chance.randrange(600))))
        with store.disk.life():
            run(
                lambda life=life: live(store, book, chance, 12 if life < 3 else 1, tally),
                seed=seed + life,
                quiet=True,
                limit_ns=10**12,
            )
        if store.disk.powered:
            tally["ended"] += 1
        else:
            tally["died"] += 1
        store.restart(chance.choice(SURVIVALS))


@pytest.mark.parametrize("how", ["killed", "power lost", "boot unknown", "sync failed"])
def test_a_reservation_is_lost_only_if_more_than_the_process_died(how: str, tmp_path: Path) -> None:
    """After kill -9 the rest of a reservation of class `disk` was never written: it is skipped, in
    this life and the next, and no seq is given out twice. After a restart of the system, where that
    is not known, or after a failed sync, as many may be lost. The weaker classes always tell."""
    store = Store(1, tmp_path / "store")
    if how == "boot unknown":
        store.boot = None

    lives: list[dict[str, Reading]] = []

    async def live(*numbers: int) -> None:
        """Append, look, and die without a word."""
        async with (
            Log(store.start()) as log,
            Kernel(log, governor=Forced()) as kernel,
            Topics(kernel, config=CONFIG) as topics,
        ):
            found = {}
            for name, durability in CLASSES.items():
                await topics.put(name, TopicPatch(durability=durability))  # type: ignore[arg-type]
                for number in numbers:
                    await topics.append(name, new(number))
                topics.get(name).check()
                found[name] = await read_all(topics, name)
            lives.append(found)
            if how == "sync failed":
                store.disk.fail("sync", times=None)
                with suppress(FairwayError):
                    await topics.append("sync", new(0))
            store.disk.crash()

    for numbers in ((1, 2), (3,), (4,), ()):
        with store.disk.life():
            run(lambda numbers=numbers: live(*numbers), seed=1, quiet=True, limit_ns=10**12)  # type: ignore[misc]
        store.restart("keep") if how == "power lost" else store.kill()
    first, *_, last = lives
    for name in CLASSES:
        assert first[name].gaps == []
    assert last["sync"].gaps == []
    seqs = last["disk"].seqs
    assert len(seqs) == 4, "all that was written is there"
    assert seqs[:2] == [1, 2]
    assert all(later > SEQS_MIN for later in seqs[2:]), "no seq of a reservation is used again"
    if how == "killed":
        assert last["disk"].gaps == []
    else:
        assert [gap.reason for gap in last["disk"].gaps] == ["crash"] * 3
    for name in ("memory", "volatile"):
        assert {gap.reason for gap in last[name].gaps} == {"crash"}


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """Nothing acknowledged is lost; with room again, writing goes on by itself."""
    book = Book()
    store = Store(1, tmp_path / "store")

    async def main() -> None:
        wal = store.start()
        async with (
            Log(wal) as log,
            Kernel(log, governor=Forced()) as kernel,
            Topics(kernel, config=CONFIG) as topics,
        ):
            for name, durability in CLASSES.items():
                await topics.put(name, TopicPatch(durability=durability))  # type: ignore[arg-type]
            chance = random.Random(1)
            await client(topics, book, chance, 15)
            store.disk.fail("write", times=None, error=errno.ENOSPC)
            refused = 0
            for number in range(5):
                try:
                    await topics.append("sync", new([f"full{number}", 0, "z"]))
                except FairwayError:
                    refused += 1
                await asyncio.sleep(0.1)
            assert refused == 5
            store.disk.heal()
            await asyncio.sleep(3)
            _, answer, _ = await topics.append("sync", new(["room", 0, "z"]))
            book.acked["sync"][answer.first_seq] = ("room", 0, "z")
            await look(topics, book, Counter())
            assert b"full" not in b"".join(r.data for r in (await read_all(topics, "sync")).records)

    run(main, seed=1, quiet=True, limit_ns=10**12)

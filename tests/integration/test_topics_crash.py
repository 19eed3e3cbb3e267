"""kill -9 of a real process that appends to topics of every class: what was acknowledged is there.

One log goes through all rounds. Checked after each kill: acknowledged records of the synced
and the written class are there, those of the weaker ones are there or told to be lost; no seq holds
another record than before; batches are whole; a retry with its key appends nothing; what was
deleted stays so; the copies of a router are there once and in order.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway.errors import NotFound
from fairway.kernel.kernel import Kernel
from fairway.storage.log import Log
from fairway.topics.engine import Topics
from tests.support.postgres import Unavailable, postgres_url
from tests.support.topics import new, read_all
from tests.support.topics_child import CONFIG, NAMES, store_at

if TYPE_CHECKING:
    import random
    from collections import Counter

    from tests.conftest import Campaign

ROOT = Path(__file__).parents[2]


_SCHEMAS = itertools.count(1)


class Broken(AssertionError):
    """The topics do not hold what they have to hold."""


def demand(held: bool, promise: str) -> None:
    if not held:
        raise Broken(promise)


class Child:
    """A running `topics_child`, and what it said."""

    def __init__(self, place: str, seed: float, plant: str) -> None:
        args = [place, str(seed), *([plant] if plant else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.topics_child", *args],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._rest = b""
        self.said: list[dict[str, Any]] = []

    def listen(self) -> bool:
        assert self._process.stdout is not None
        raw = os.read(self._process.stdout.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + raw).split(b"\n")
        self.said += (msgspec.json.decode(line) for line in lines)
        return bool(raw)

    def listen_until(self, count: int) -> None:
        while len(self.said) < count:
            if not self.listen():
                raise Broken(f"it ended by itself: {self._process.wait()} {self.said[-3:]}")

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        while self.listen():
            pass
        assert self._process.wait() == -signal.SIGKILL

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Ledger:
    """What all children together were told, life after life."""

    def __init__(self, tally: Counter[str]) -> None:
        self.tally = tally
        self.held: dict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
        self.acked: dict[str, dict[int, tuple[str, int, str]]] = defaultdict(dict)
        self.keys: list[tuple[str, str, str, int]] = []
        self.tried: list[tuple[str, str, str]] = []
        self.deleted: dict[str, set[int]] = defaultdict(set)
        self.maybe: dict[str, set[str]] = defaultdict(set)

    def note(self, said: list[dict[str, Any]]) -> None:
        for word in said:
            demand("failed" not in word, f"an append failed: {word}")
            name = word.get("topic", "")
            if "word" in word:
                for at, tag in enumerate(word["tags"]):
                    self.acked[name][word["first"] + at] = (word["word"], at, tag)
                if word["key"] is not None:
                    self.keys.append((name, word["key"], word["tags"], word["first"]))
            elif "trying" in word:
                self.tried.append((name, word["trying"], word["tags"]))
            elif "deleting" in word:
                self.maybe[name].add(word["deleting"])
            elif "deleted" in word:
                self.deleted[name] |= {
                    seq
                    for seq, (_, _, tag) in self.acked[name].items()
                    if tag == word["deleted"] and seq <= word["upto"]
                }

    async def check(self, place: str) -> None:
        async with (
            Log(store_at(place)) as log,
            Kernel(log) as kernel,
            Topics(kernel, config=CONFIG) as topics,
        ):
            for name in NAMES:
                with suppress(NotFound):
                    await self._check_topic(topics, name)
            if topics.find("copy") is not None:
                await self._check_copies(topics)
            await self._retry(topics)

    async def _check_topic(self, topics: Topics, name: str) -> None:
        topic = topics.get(name)
        topic.check()
        found = await read_all(topics, name, limit=1000)
        there: dict[int, tuple[str, int]] = {}
        for record in found.records:
            word, at, _ = msgspec.json.decode(record.data)
            there[record.seq] = (word, at)
        demand(len(set(there.values())) == len(there), f"{name}: a record is there twice")
        demand(topic.count == len(there), f"{name}: {topic.count} records, not {len(there)}")
        starts: dict[str, int] = {}
        for seq, (word, at) in there.items():
            demand(starts.setdefault(word, seq - at) == seq - at, f"{name}: {word} is torn")
            known = self.held[name].setdefault(seq, (word, at))
            demand(known == (word, at), f"{name}: seq {seq} was {known} and is {(word, at)}")
        promised = name.startswith(("fsync", "disk"))
        lost = found.lost  # once: it is a set of every seq, of which a crash may skip very many
        for seq, (word, at, tag) in self.acked[name].items():
            known = self.held[name].setdefault(seq, (word, at))
            demand(known == (word, at), f"{name}: seq {seq} was {known} and is {(word, at)}")
            self.tally["acks checked"] += 1
            if seq in there or seq in self.deleted[name] or tag in self.maybe[name]:
                continue
            demand(seq in lost, f"{name}: {seq} was acknowledged, and nothing tells of it")
            demand(not promised, f"{name}: {seq} was acknowledged and is lost")
            self.tally["weak ones lost"] += 1
        back = self.deleted[name] & there.keys()
        demand(not back, f"{name}: {sorted(back)[:5]} were deleted and are there")
        unheard = {word for word, _ in there.values()} - {
            w for w, _, _ in self.acked[name].values()
        }
        self.tally["written and not told"] += len(unheard)

    async def _check_copies(self, topics: Topics) -> None:
        while topics.router("copies").state().lag:
            await topics.reading.diff("copy", topics.get("copy").head, wait_ns=50_000_000)
        source = [r.data for r in (await read_all(topics, "fsync-0", limit=1000)).records]
        copied = [r.data for r in (await read_all(topics, "copy", limit=1000)).records]
        demand(len(set(copied)) == len(copied), "something was copied twice")
        live = set(source)
        demand([data for data in copied if data in live] == source, "the copies are not the source")
        self.tally["copies checked"] += len(copied)

    async def _retry(self, topics: Topics) -> None:
        """Keys of this life: acknowledged ones are known, the others are used once at most."""
        for name, key, tags, first in self.keys[-200:]:
            if name.startswith(("fsync", "disk")):
                batch = new(*[([key, at, ""], tag) for at, tag in enumerate(tags)], key=key)
                _, answer, _ = await topics.append(name, batch)
                demand(answer.deduped, f"{name}: {key} was appended again")
                demand(answer.first_seq == first, f"{name}: {key} is at {first}")
                self.tally["retries deduped"] += 1
        acked = {key for _, key, _, _ in self.keys}
        for name, key, tags in self.tried[-50:]:
            if key not in acked and name.startswith("fsync"):
                batch = new(*[([key, at, ""], tag) for at, tag in enumerate(tags)], key=key)
                _, answer, _ = await topics.append(name, batch)
                for at, tag in enumerate(tags):
                    self.acked[name][answer.first_seq + at] = (key, at, tag)
                self.tally["retried in doubt"] += 1
        self.keys.clear()
        self.tried.clear()


def kill_one(place: str, ledger: Ledger, rng: random.Random, plant: str = "") -> None:
    child = Child(place, rng.random(), plant)
    try:
        child.listen_until(int(10 ** rng.uniform(0.5, 3.8)))
        child.kill()
    finally:
        child.close()
    ledger.tally["kills"] += 1
    ledger.note(child.said)
    asyncio.run(ledger.check(place))


@pytest.fixture(params=["sqlite", "rocksdb", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the topics live, in words that `store_at` knows."""
    if request.param == "rocksdb":
        pytest.importorskip("rocksdict")
    if request.param != "postgres":
        return f"{request.param}:{tmp_path / 'log'}"
    try:
        return f"topics_crash_{os.getpid()}_{next(_SCHEMAS)}@{postgres_url()}"
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.timeout(1800)
def test_what_was_acknowledged_survives_kill_9(campaign: Campaign, place: str) -> None:
    rng, ledger = campaign.random(), Ledger(campaign.tally)
    rounds = campaign.rounds(share=3, full=30 if place.startswith("sqlite") else 10)
    events = ("written and not told", "acks checked", "copies checked", "retries deduped")
    while campaign.tally["kills"] < rounds or not all(campaign.tally[event] for event in events):
        kill_one(place, ledger, rng)
        # A slow machine gets little done in one life, so a few may not be enough to see all.
        assert campaign.tally["kills"] < rounds + 10, f"not all of {events} occurred"


def test_an_early_acknowledgement_would_be_noticed(campaign: Campaign, tmp_path: Path) -> None:
    rng, ledger = campaign.random(), Ledger(campaign.tally)

    def until_caught() -> None:
        for _ in range(10):
            kill_one(str(tmp_path / "log"), ledger, rng, "early")

    with pytest.raises(Broken, match=r"acknowledged|appended again"):
        until_caught()

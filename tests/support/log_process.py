"""Starts processes that own a log, follows what they say, kills them, and checks what they left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fairway.storage.log import Log
from fairway.storage.writer import Durability
from tests.support.log_child import (
    ENTRY,
    LEFT,
    OPEN,
    OPENING,
    PARTITIONS,
    RECORD,
    REPORT,
    RIGHT,
    Ack,
    digest_of,
)
from tests.support.log_places import log_at

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Iterator

    from fairway.storage.wal import Entry

ROOT = Path(__file__).parents[2]


class LogProcess:
    """A running `log_child`. Whoever starts it ends it: `with log_process(...)` does so."""

    def __init__(self, *args: object) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.log_child", *map(str, args)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""
        self.acks: list[Ack] = []
        self.reports: list[tuple[int, int]] = []
        self.heard: set[int] = set()

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_until(self, kind: int) -> None:
        """Read until the process has reported `kind`."""
        while kind not in self.heard:
            assert self._read(), f"the process ended without a word: {self._child.wait()}"

    def wait_for_acks(self, count: int) -> None:
        while len(self.acks) < count:
            assert self._read(), f"the process ended by itself: {self._child.wait()}"

    def kill(self) -> None:
        """SIGKILL, and read what was reported before it."""
        self._child.send_signal(signal.SIGKILL)
        while self._read():
            pass
        assert self._child.wait() == -signal.SIGKILL, "it had died before it was killed"

    def finish(self) -> None:
        """Let it come to its own end, and read what it says."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        while self._read():
            pass
        assert self._child.wait() == 0

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> bool:
        assert self._child.stdout is not None
        raw = os.read(self._child.stdout.fileno(), 1 << 16)
        self._rest += raw
        whole = len(self._rest) // RECORD.size * RECORD.size
        for kind, partition, key, durability, digest in RECORD.iter_unpack(self._rest[:whole]):
            self.heard.add(kind)
            if kind == ENTRY:
                self.acks.append(Ack(partition, key, Durability(durability), digest))
            elif kind == REPORT:
                self.reports.append((partition, key))
        self._rest = self._rest[whole:]
        return bool(raw)


@contextmanager
def log_process(*args: object) -> Iterator[LogProcess]:
    process = LogProcess(*args)
    try:
        yield process
    finally:
        process.close()


class Broken(AssertionError):
    """The log does not hold what it has to hold."""


class Ledger:
    """What a log of killed processes must hold, life after life."""

    def __init__(self, place: str, tally: Counter[str]) -> None:
        self.place = place
        self.tally = tally
        self._known: dict[int, dict[int, bytes]] = {}  # what was there when it was last looked at

    def check(self, acks: list[Ack]) -> None:
        """Open what is left, look at everything, and remember it for the next life."""
        asyncio.run(self._check(acks))

    async def _check(self, acks: list[Ack]) -> None:
        by_partition: dict[int, list[Ack]] = {number: [] for number in range(PARTITIONS)}
        for ack in acks:
            by_partition[ack.partition].append(ack)
        async with Log(log_at(self.place)) as log:
            for partition, own in by_partition.items():
                entries = [entry async for entry in _everything(log, partition)]
                await self._check_keys(log, partition, entries)
                self._check_acks(partition, entries, own)
                await self._check_pairs(log, partition, entries)

    async def _check_keys(self, log: Log, partition: int, entries: list[Entry]) -> None:
        last_key, _, floor = await log.tail(partition)
        keys = [entry.key for entry in entries]
        if keys != list(range(floor, last_key + 1)):
            raise Broken(f"partition {partition} has holes between {floor} and {last_key}: {keys}")
        if last_key != log.last_key(partition):
            raise Broken(f"partition {partition}: the writer and the store disagree on the end")

    def _check_acks(self, partition: int, entries: list[Entry], acks: list[Ack]) -> None:
        found = {entry.key: digest_of(entry.payload) for entry in entries}
        before = self._known.get(partition, {})
        first = min(found, default=0)
        for key, digest in before.items():
            if key >= first and found.get(key) != digest:
                raise Broken(f"partition {partition}: entry {key} of an earlier life is gone")
        for ack in acks:
            self.tally["acks_checked"] += 1
            if found.get(ack.key) == ack.digest:
                continue
            if ack.key in found or ack.durability is not Durability.MEMORY:
                name = ack.durability.name
                raise Broken(f"partition {partition}: {name} entry {ack.key} is lost or changed")
            self.tally["memory_acks_lost"] += 1
        fresh = found.keys() - before.keys() - {ack.key for ack in acks}
        self.tally["unacked_survivors"] += len(fresh)
        self._known[partition] = found

    async def _check_pairs(self, log: Log, partition: int, entries: list[Entry]) -> None:
        """Both entries of a pair and both names are there, or none of them."""
        rights = [entry.key for entry in entries if entry.payload[:1] == RIGHT]
        lefts = [entry.key for entry in entries if entry.payload[:1] == LEFT]
        if [key + 1 for key in lefts] != rights:
            raise Broken(f"partition {partition}: half of a pair: {lefts} {rights}")
        names = dict(await log.meta_scan(partition))
        if rights and names != dict.fromkeys(("left", "right"), b"%d" % rights[-1]):
            raise Broken(f"partition {partition}: torn metadata: {names}, not {rights[-1]}")
        if names.get("left") != names.get("right"):
            raise Broken(f"partition {partition}: torn metadata: {names}")
        self.tally["pairs_whole"] += len(rights)


async def _everything(log: Log, partition: int) -> AsyncIterator[Entry]:
    first = 1
    while entries := await log.read(partition, first=first):
        for entry in entries:
            yield entry
        first = entries[-1].key + 1


__all__ = ["OPEN", "OPENING", "REPORT", "Broken", "Ledger", "LogProcess", "log_process"]

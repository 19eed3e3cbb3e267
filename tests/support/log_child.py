"""A process that owns a log: what `log_process` starts, watches and kills. Run as a module, with

    write PLACE SEED [PLANT]    saturates the log until it is killed
    hold PLACE                  owns the log until stdin ends
    limited PLACE               appends until files may not grow, then with room again
    soak PLACE WARM_UP COUNT    appends, then says how much memory that took
    flood PLACE                 offers one lane far too much, then says how much memory that took

`write` reports over stdout what was acknowledged, each time after the future of it resolved. A
`PLANT` is a deliberate bug that the check after a kill must find.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import resource
import signal
import struct
import sys
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from fairway.core.lanes import LaneLimits
from fairway.errors import Backpressure, WriteFailed
from fairway.storage.log import Log
from fairway.storage.wal import Entry, Operation
from fairway.storage.writer import Durability, WriterConfig
from tests.support.log_places import MemoryUse, log_at, stalled_log_at, torn_log_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

OPENING, OPEN, ENTRY, REPORT = range(4)
RECORD = struct.Struct("<BqqB8s")  # kind, partition, key, durability, digest; REPORT: two numbers
PARTITIONS = 64
WINDOW = 12  # operations in flight in each partition
LEFT, RIGHT, ALONE = b"L", b"R", b"."
MIB = 1024 * 1024


class Ack(NamedTuple):
    partition: int
    key: int
    durability: Durability
    digest: bytes


def digest_of(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=8).digest()


def report(
    kind: int, partition: int = 0, key: int = 0, durability: int = 0, digest: bytes = b""
) -> None:
    # One system call and less than a pipe's atomic size: it is read whole or not at all.
    os.write(1, RECORD.pack(kind, partition, key, durability, digest))


class Appender:
    """Keeps one partition busy: appends of all durabilities, and pairs with metadata beside."""

    def __init__(self, log: Log, partition: int, rng: random.Random, plant: str) -> None:
        self.log = log
        self.partition = partition
        self.rng = rng
        self.plant = plant
        self.start = log.last_key(partition)
        self.compacted = False

    async def run(self) -> None:
        pending: deque[tuple[asyncio.Future[int], list[Ack]]] = deque()
        while True:
            while len(pending) < WINDOW:
                pending.append(self.submit())
            future, acks = pending.popleft()
            await future
            for ack in acks:
                report(ENTRY, *ack)

    def submit(self) -> tuple[asyncio.Future[int], list[Ack]]:
        durability = self.rng.choice(list(Durability))
        lot = self.rng.random()
        if lot < 0.1:
            return self.pair(durability)
        if lot < 0.12 and not self.compacted:
            # What earlier lives left behind. Entries of this life are all looked at after it.
            self.compacted = True
            operation = Operation(compact_before=self.start + 1)
            return self.log.submit(self.partition, operation, durability=durability), []
        payload = self.payload(ALONE)
        ack = self.ack(self.log.last_key(self.partition) + 1, durability, payload)
        return self.log.append(self.partition, payload, durability=self.really(durability)), [ack]

    def pair(self, durability: Durability) -> tuple[asyncio.Future[int], list[Ack]]:
        """Two entries and two names, all or nothing."""
        key = self.log.last_key(self.partition) + 1
        left, right = self.payload(LEFT), self.payload(RIGHT)
        value = b"%d" % (key + 1)
        entries = Entry(key, left), Entry(key + 1, right)
        names = {"left": value, "right": value}
        acks = [self.ack(key, durability, left), self.ack(key + 1, durability, right)]
        operation = Operation(entries, names)
        future = self.log.submit(self.partition, operation, durability=self.really(durability))
        return future, acks

    def really(self, durability: Durability) -> Durability:
        return Durability.MEMORY if self.plant == "early" else durability  # PLANTED: too early

    def payload(self, kind: bytes) -> bytes:
        size = self.rng.choice((0, 10, 100, 300, 300, 1000))
        if self.rng.random() < 0.01:
            size = 20_000  # several pages
        return kind + self.rng.randbytes(size)

    def ack(self, key: int, durability: Durability, payload: bytes) -> Ack:
        return Ack(self.partition, key, durability, digest_of(payload))


async def write(place: str, seed: str, plant: str = "") -> None:
    report(OPENING)
    wal = torn_log_at(place) if plant == "torn" else log_at(place)
    # Groups far smaller than what is in flight: the store always has the next one at hand.
    config = WriterConfig(max_group_partitions=16, max_batch=4)
    async with Log(wal, writer=config) as log:
        report(OPEN)
        async with asyncio.TaskGroup() as group:
            for partition in range(PARTITIONS):
                rng = random.Random(f"{seed}/{partition}")
                group.create_task(Appender(log, partition, rng, plant).run())


async def hold(place: str) -> None:
    async with Log(log_at(place)):
        report(OPEN)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def soak(place: str, warm_up: str, count: str) -> None:
    """Append `warm_up` entries, then `count` more; report memory before and after those."""
    async with Log(log_at(place)) as log:
        memory = MemoryUse()
        await _append(log, int(warm_up))
        memory.sample()
        await _append(log, int(count))
        memory.sample()
        report(REPORT, memory.samples[0], memory.samples[1])


async def _append(log: Log, count: int) -> None:
    async def one_partition(partition: int) -> None:
        payload = bytes(256)
        for _ in range(count // (PARTITIONS * 16)):
            futures = [
                log.append(partition, payload, durability=Durability.DISK) for _ in range(16)
            ]
            for future in futures:
                await future

    async with asyncio.TaskGroup() as group:
        for partition in range(PARTITIONS):
            group.create_task(one_partition(partition))


async def limited(place: str) -> None:
    """Append until files may not grow any more; then a little more, and then with room again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    refused = 0
    async with Log(log_at(place)) as log:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 * 1024, resource.RLIM_INFINITY))
        while refused < 20:
            try:
                await log.append(1, bytes(5000))
            except WriteFailed:
                refused += 1
        full = log.last_key(1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert await log.append(1, b"room again") == full + 1
        assert [entry.key async for entry in _all(log)] == list(range(1, full + 2))
        report(REPORT, refused, full + 1)


async def _all(log: Log) -> AsyncIterator[Entry]:
    first = 1
    while entries := await log.read(1, first=first):
        for entry in entries:
            yield entry
        first = entries[-1].key + 1


async def flood(place: str) -> None:
    """Offer one lane many times what it may hold, while the store stands still."""
    bound = LaneLimits(items=4096, size=16 * MIB)
    wal, release = stalled_log_at(place)
    async with Log(wal, writer=WriterConfig(lane=bound)) as log:
        memory = MemoryUse()
        memory.sample()
        refused = largest = 0
        for number in range(8 * bound.size // (64 * 1024)):
            try:
                log.append(7, number.to_bytes(4, "big") * (16 * 1024))
            except Backpressure:
                refused += 1
            largest = max(largest, log.statistics()[0].size)
        memory.sample()
        report(REPORT, refused, largest)
        report(REPORT, *memory.samples)
        release()


MODES: dict[str, Callable[..., object]] = {
    "write": write,
    "hold": hold,
    "limited": limited,
    "soak": soak,
    "flood": flood,
}

if __name__ == "__main__":
    asyncio.run(MODES[sys.argv[1]](*sys.argv[2:]))

"""Read-only and writable again, on virtual time: what is written meanwhile, and where."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import Corrupt, FairwayError, WriteFailed
from fairway.kernel.kernel import Kernel
from fairway.storage import reserve
from fairway.storage.log import Log
from fairway.storage.reserve import DiskReserve
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from fairway.topics.engine import Topics
from tests.support.topics import Forced, new

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from fairway.storage.wal import Failures, Group

KIB = 1024
MIB = 1024 * KIB
SIZE = 64 * KIB
"""Of the reserve."""
LARGE = 64 * KIB


class RoomyWal(MemoryWal):
    """Has room inside, and notes when it must not grow. While it must not, nothing large fits."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.kept: list[int] = []
        self.fault: FairwayError | None = None

    def free_inside_bytes(self) -> int:
        return self.inside

    def forbid_growth(self, keep_bytes: int) -> None:
        self.kept.append(keep_bytes)
        if keep_bytes and self.fault is not None:
            raise self.fault

    def write(self, group: Group, *, sync: bool) -> Failures:
        size = sum(operation.size for operations in group.values() for operation in operations)
        if self.kept and self.kept[-1] and size > LARGE:
            return dict.fromkeys(group, WriteFailed("the disk is full, and so are the files"))
        return super().write(group, sync=sync)


class Disk:
    """What the file system says, and what is written to the reserve on it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reserve = DiskReserve(directory / "reserve", SIZE)
        self.path = directory / "reserve"
        self.free = 100 * MIB  # without the reserve
        self.written = 0
        write = os.write

        def count(handle: int, data: bytes) -> int:
            self.written += len(data)
            return write(handle, data)

        monkeypatch.setattr(reserve.os, "write", count)
        monkeypatch.setattr(reserve.os, "statvfs", self._statvfs)

    def held(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _statvfs(self, _: object) -> Any:
        return SimpleNamespace(f_bavail=max(self.free - self.held(), 0), f_frsize=1)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def on_topics(
    disk: Disk, body: Callable[[Topics, RoomyWal], Coroutine[Any, Any, None]], *, begin: int
) -> None:
    """`body` is given topics on a disk with `begin` free, whose reserve was given up to start."""

    async def main() -> None:
        wal = RoomyWal()
        async with Log(wal) as log:
            disk.free = begin
            disk.reserve.release()
            async with (
                Kernel(log, governor=Forced(), reserve=disk.reserve) as kernel,
                Topics(kernel) as topics,
            ):
                await body(topics, wal)

    run(main, seed=1, quiet=True, limit_ns=10**13)


async def wait_writable(topics: Topics) -> None:
    while topics.writability.trouble is not None:  # noqa: ASYNC110  (virtual time)
        await asyncio.sleep(0.01)


async def try_append(topics: Topics, size: int) -> str:
    try:
        await topics.append("t", new("x" * size))
    except FairwayError as error:
        return type(error).__name__
    return "done"


def test_what_fails_for_another_reason_leaves_the_reserve_alone(disk: Disk) -> None:
    async def body(topics: Topics, wal: RoomyWal) -> None:
        await wait_writable(topics)
        await topics.append("t", new(1))
        assert disk.held() == SIZE
        wal.fail_shard(0, write=OSError(5, "input/output error"))
        assert await try_append(topics, 1) == "WriteFailed"
        disk.written = 0
        await asyncio.sleep(60)
        assert topics.writability.trouble is not None
        assert disk.written == 0, "to make it for every probe would wear the disk out"
        wal.fail_shard(0)
        await wait_writable(topics)
        assert disk.held() == SIZE

    on_topics(disk, body, begin=100 * MIB)


def test_half_of_the_reserve_is_not_taken_where_nothing_could_be_written_beside_it(
    disk: Disk,
) -> None:
    async def body(topics: Topics, wal: RoomyWal) -> None:
        wal.inside = 10 * MIB
        await asyncio.sleep(60)
        assert topics.writability.trouble is not None
        assert disk.written == 0
        disk.free = SIZE // 2 + 2 * MIB
        await wait_writable(topics)
        assert (disk.held(), wal.kept) == (SIZE // 2, [MIB])

    on_topics(disk, body, begin=SIZE // 2 + 10 * KIB)


def test_files_with_less_room_than_a_group_takes_are_not_written_to(disk: Disk) -> None:
    async def body(topics: Topics, wal: RoomyWal) -> None:
        wal.inside = 5 * MIB - 1
        await asyncio.sleep(60)
        assert (topics.writability.trouble is None, disk.written) == (False, 0)
        wal.inside = 5 * MIB
        await wait_writable(topics)
        wal.inside = 0
        disk.free = SIZE + 5 * MIB
        while disk.held() < SIZE or wal.kept[-1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert wal.kept == [MIB, 0], "all of it is there, so the files may grow"

    on_topics(disk, body, begin=SIZE // 2 + 2 * MIB)


def test_a_client_that_repeats_what_does_not_fit_has_the_reserve_made_ever_more_rarely(
    disk: Disk,
) -> None:
    told: Counter[str] = Counter()

    async def body(topics: Topics, wal: RoomyWal) -> None:
        wal.inside = 10 * MIB
        for _ in range(600 * 5):
            told[await try_append(topics, LARGE)] += 1
            await asyncio.sleep(0.2)
        # After 0.5, 1, 2, 4, 8 and then every 16 seconds.
        assert 35 * SIZE // 2 <= disk.written <= 45 * SIZE // 2
        wal.inside = 0
        disk.free = 100 * MIB
        await wait_writable(topics)
        assert await try_append(topics, LARGE) == "done"

    on_topics(disk, body, begin=SIZE // 2 + 2 * MIB)
    assert set(told) == {"ReadOnly", "WriteFailed"}


def test_a_store_that_did_not_forbid_growth_is_asked_to_allow_it(disk: Disk) -> None:
    async def body(topics: Topics, wal: RoomyWal) -> None:
        wal.inside = 10 * MIB
        wal.fault = Corrupt("a page cannot be read", place="shard-1")
        while not wal.kept:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        disk.free = 100 * MIB
        await wait_writable(topics)
        assert wal.kept[-1] == 0, "whatever it did before it failed is undone"
        assert await try_append(topics, LARGE) == "done"

    on_topics(disk, body, begin=SIZE // 2 + 2 * MIB)


def test_a_disk_that_promises_too_much_is_not_tried_twice_a_second(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a quota, of which the file system does not tell."""
    real = os.fsync

    def refuse(handle: int) -> None:
        if os.fstat(handle).st_size > SIZE // 2:
            raise OSError(122, "Disk quota exceeded")
        real(handle)

    async def body(topics: Topics, wal: RoomyWal) -> None:
        wal.inside = 10 * MIB
        await wait_writable(topics)
        monkeypatch.setattr(reserve.os, "fsync", refuse)
        disk.free, disk.written = 100 * MIB, 0
        await asyncio.sleep(600)
        assert disk.held() == SIZE // 2
        assert 0 < disk.written <= 45 * SIZE
        assert topics.writability.trouble is None

    on_topics(disk, body, begin=SIZE // 2 + 2 * MIB)

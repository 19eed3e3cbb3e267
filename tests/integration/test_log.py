"""The fair log on real stores and in real processes: what its promises look like to a user."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from fairway.app import Fairway
from fairway.errors import (
    AlreadyOwned,
    Backpressure,
    Closing,
    Corrupt,
    InvalidConfig,
    InvalidOperation,
    OutcomeUnknown,
    WriteFailed,
)
from fairway.storage.log import Log
from fairway.storage.wal import Entry, HardState, Operation, Tail
from fairway.storage.wals import directory_of, sqlite_shard, wal_at
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.wals.sqlite import SqliteWal
from fairway.storage.writer import Durability
from tests.support.fingerprint import fingerprint
from tests.support.log_files import flip_bit
from tests.support.log_places import KINDS, log_at, stalled_log_at
from tests.support.log_process import OPEN, REPORT, log_process
from tests.support.log_vfs import HookedVFS, fail_full, fail_sync, hooked_vfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Campaign

MIB = 1024 * 1024
TICKS = 100


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'log'}"


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedVFS]:
    with hooked_vfs(monkeypatch) as made:
        yield made


async def keys(log: Log, partition: int) -> list[int]:
    return [entry.key for entry in await log.read(partition, limit=100_000)]


# --- as in the docs


@pytest.mark.parametrize("scheme", ["", "sqlite:", "rocksdb:"])
def test_what_was_appended_is_there_the_next_time(scheme: str, tmp_path: Path) -> None:
    where = f"{scheme}{tmp_path / 'data'}"

    async def first() -> None:
        async with Log(wal_at(where)) as log:
            assert await log.append(7, b"hello") == 1
            assert await log.append(7, b"world", term=3) == 2
            assert await log.read(7) == [Entry(1, b"hello"), Entry(2, b"world", 3)]

    async def second() -> None:
        async with Log(wal_at(where)) as log:
            assert log.partitions() == [7]
            assert log.last_key(7) == 2
            assert await log.tail(7) == Tail(2, 3, 1)
            assert await log.append(7, b"again") == 3

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.parametrize(("held", "other"), [("sqlite", "rocksdb"), ("rocksdb", "sqlite")])
def test_a_directory_that_holds_another_store_s_log_is_refused(
    held: str, other: str, tmp_path: Path
) -> None:
    """Naming both: else there would be an empty log beside the data, and old cursors fit it."""

    async def scenario() -> None:
        async with Log(wal_at(f"{held}:{tmp_path}")) as log:
            await log.append(7, b"hello")
        before = fingerprint(tmp_path)
        for _ in range(2):
            with pytest.raises(InvalidConfig) as refused:
                async with Log(wal_at(f"{other}:{tmp_path}")):
                    pass
            for told in ("SQLite", "RocksDB", f"{held}:{tmp_path}"):
                assert told in str(refused.value)
            assert fingerprint(tmp_path) == before
        async with Log(wal_at(f"{held}:{tmp_path}")) as log:
            assert await log.read(7) == [Entry(1, b"hello")]

    asyncio.run(scenario())


def test_a_cursor_of_another_log_does_not_fit_by_accident(tmp_path: Path) -> None:
    """Epochs of a new log begin anywhere; those of an old one, and of one that is opened again, go
    on from where they are."""

    async def begin(place: Path) -> list[int]:
        async with Fairway(place, worker=None) as app:
            topics = [await app.topics.create(name) for name in "ab"]
            return [topic.epoch for topic, _ in topics]

    async def scenario() -> None:
        first, second = await begin(tmp_path / "one"), await begin(tmp_path / "two")
        assert not set(first) & set(second)
        assert max(*first, *second) < 2**53, "exact in the JSON of every client"
        async with Fairway(tmp_path / "one", worker=None) as app:
            topic, _ = await app.topics.create("c")
            assert topic.epoch == first[-1] + 1
        async with Fairway(tmp_path / "two", worker=None) as app:
            reader = app.topic("a")
            await reader.append("new")
            page = await reader.read(1, epoch=first[0])
            assert page.lost is not None
            assert page.lost.reason == "recreated"
            assert [record.data for record in page.records] == ["new"]

    asyncio.run(scenario())


def test_a_path_names_a_sqlite_log(tmp_path: Path) -> None:
    assert isinstance(wal_at(tmp_path / "a:b"), SqliteWal)
    assert isinstance(wal_at("memory:"), MemoryWal)
    for nonsense in ("mysql://host", "sqlite:"):
        with pytest.raises(InvalidConfig):
            wal_at(nonsense)
        with pytest.raises(InvalidConfig):
            directory_of(nonsense)


def test_a_place_in_a_directory_is_known_however_it_is_spelled(tmp_path: Path) -> None:
    for scheme in ("", "sqlite:", "rocksdb:"):
        assert directory_of(f"{scheme}{tmp_path}") == tmp_path
    assert directory_of(tmp_path / "a:b") == tmp_path / "a:b"
    assert directory_of("memory:") is None
    assert directory_of("postgresql://host/log") is None


def test_one_operation_carries_everything(place: str) -> None:
    async def first() -> None:
        async with Log(log_at(place)) as log:
            for _ in range(5):
                await log.append(1, b"old")
            operation = Operation(
                [Entry(10, b"ten", 2)],
                {"cursor": b"5", "absent": None},
                truncate_after=4,
                compact_before=3,
                hard_state=HardState(2, "me"),
            )
            assert await log.submit(1, operation) == 10

    async def second() -> None:
        async with Log(log_at(place)) as log:
            assert await keys(log, 1) == [3, 4, 10]
            assert await log.term_at(1, 10) == 2
            assert await log.meta(1, "cursor") == b"5"
            assert await log.meta_scan(1) == [("cursor", b"5")]
            assert await log.hard_state(1) == HardState(2, "me")
            assert [found async for found in log.verify()] == [(1, 3)]

    asyncio.run(first())
    asyncio.run(second())


async def until_swept(log: Log) -> int:
    while True:
        try:
            return await log.append(1, b"new")
        except InvalidOperation:  # rows of the former one are still being swept away
            await asyncio.sleep(0)


def test_a_deleted_partition_is_gone_and_its_number_returns(place: str) -> None:
    async def main() -> None:
        async with Log(log_at(place)) as log:
            for number in range(10):
                await log.append(1, b"%d" % number, durability=Durability.DISK)
            await log.delete(1)
            assert log.partitions() == []
            assert await log.read(1) == []
            async with asyncio.timeout(20):
                assert await until_swept(log) == 1
            assert await log.read(1) == [Entry(1, b"new")]

    asyncio.run(main())


# --- durability


def test_memory_resolves_at_once_and_a_group_syncs_only_if_a_member_asks(place: str) -> None:
    async def main() -> None:
        wal = log_at(place)
        async with Log(wal) as log:
            await log.append(0, b"")  # the first write of a life may sync more
            before = wal.syncs  # type: ignore[attr-defined]
            soon = log.append(0, b"", durability=Durability.MEMORY)
            assert soon.done()
            assert soon.result() == 2
            for _ in range(50):
                await log.append(0, b"", durability=Durability.DISK)
            unsynced = wal.syncs - before  # type: ignore[attr-defined]
            assert unsynced < 25  # upkeep may sync now and then; the groups did not ask
            groups = log.statistics()[0].syncs
            assert groups == 1
            for _ in range(50):
                await log.append(0, b"", durability=Durability.FSYNC)
            assert wal.syncs - before - unsynced >= 50  # type: ignore[attr-defined]
            assert log.statistics()[0].syncs == groups + 50

    asyncio.run(main())


def test_one_sync_serves_everyone_who_waits(place: str) -> None:
    async def main() -> None:
        wal = log_at(place)
        async with Log(wal) as log:
            futures = [log.append(number % 64, b"x") for number in range(6400)]
            await asyncio.wait(futures)
            assert {future.result() for future in futures} == set(range(1, 101))
            statistics = log.statistics()[0]
            assert statistics.entries == 6400
            assert statistics.syncs_per_entry < 1 / 30

    asyncio.run(main())


def test_leaving_completes_everything_that_was_accepted(place: str) -> None:
    async def main() -> list[asyncio.Future[int]]:
        async with Log(log_at(place)) as log:
            futures = [
                log.append(number % 7, b"x" * 100, durability=Durability(number % 3))
                for number in range(20_000)
            ]
        with pytest.raises(Closing):
            log.append(1, b"too late")
        return futures

    futures = asyncio.run(main())
    assert all(future.done() and future.exception() is None for future in futures)
    wal = log_at(place)
    tails = wal.open()
    assert sum(tail.last_key for tail in tails.values()) == 20_000
    wal.close()


# --- one owner


def test_a_second_opener_is_refused_with_the_pid(place: str) -> None:
    async def enter() -> None:
        async with Log(log_at(place)) as log:
            await log.append(1, b"mine now")

    with log_process("hold", place) as holder:
        holder.wait_until(OPEN)
        with pytest.raises(AlreadyOwned, match=f"process {holder.pid}") as refused:
            asyncio.run(enter())
        assert refused.value.pid == holder.pid
        holder.kill()
        asyncio.run(enter())  # the kernel dropped the lock with the process

    with log_process("hold", place) as holder:
        holder.wait_until(OPEN)
        holder.finish()
        asyncio.run(enter())


def test_a_second_opener_in_the_same_process_is_refused_too(place: str) -> None:
    async def main() -> None:
        async with Log(log_at(place)) as log:
            await log.append(1, b"x")
            rival = Log(log_at(place))
            with pytest.raises(AlreadyOwned, match=f"process {os.getpid()}"):
                async with rival:
                    pass
            with pytest.raises(AlreadyOwned):
                rival.append(1, b"y")
            assert await log.append(1, b"z") == 2

    asyncio.run(main())


# --- a log that cannot be restored


def test_a_failed_restore_refuses_all_work(tmp_path: Path) -> None:
    async def furnish() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            for number in range(200):
                await log.append(number % 5, bytes(500), durability=Durability.DISK)

    asyncio.run(furnish())
    path = tmp_path / "shard-0-of-1.db"
    for offset in range(4096 * 3 + 2000, path.stat().st_size, 4096):
        flip_bit(path, 8 * offset)

    async def refused() -> None:
        log = Log(SqliteWal(tmp_path))
        with pytest.raises(Corrupt) as told:
            async with log:
                raise AssertionError("it was let in")
        assert told.value.place == str(path)
        for work in (
            lambda: log.append(1, b"x"),
            lambda: log.submit(1, Operation(meta={"a": b"b"})),
            lambda: log.last_key(1),
            log.partitions,
            log.statistics,
        ):
            with pytest.raises(Corrupt, match=re.escape(str(path))) as again:
                work()
            assert again.value is told.value
        with pytest.raises(Corrupt):
            await log.read(1)
        with pytest.raises(Corrupt):
            await log.delete(1)

    asyncio.run(refused())


def test_verify_finds_damage_that_opening_does_not(tmp_path: Path) -> None:
    async def furnish() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            entries = [Entry(key, b"<%d>" % key + bytes(300)) for key in range(1, 1001)]
            await log.submit(5, Operation(entries))

    asyncio.run(furnish())
    path = tmp_path / "shard-0-of-1.db"
    flip_bit(path, 8 * path.read_bytes().find(b"<500>"))

    async def verify() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            with pytest.raises(Corrupt) as told:
                _ = [found async for found in log.verify()]
            assert (told.value.place, told.value.partition) == (str(path), 5)

    asyncio.run(verify())


# --- disks that are full, broken or slow


def test_a_full_disk_fails_what_does_not_fit_and_passes(tmp_path: Path, vfs: HookedVFS) -> None:
    async def main() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            assert await log.append(1, b"one") == 1
            vfs.hook = lambda step, path: fail_full() if step == "write" else None
            futures = [log.append(partition, bytes(100)) for partition in (1, 1, 2)]
            for future in futures:
                with pytest.raises(WriteFailed):
                    await future
            assert await keys(log, 1) == [1]
            vfs.hook = lambda step, path: None
            assert await log.append(1, b"two") == 2
            assert await log.append(2, b"one") == 1
            assert log.statistics()[0].failed == 3

    asyncio.run(main())
    wal = SqliteWal(tmp_path)
    assert wal.open() == {1: Tail(2, 0, 1), 2: Tail(1, 0, 1)}
    wal.close()


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """In a process of its own, whose files may not grow beyond a limit."""
    with log_process("limited", f"sqlite:{tmp_path}") as process:
        process.finish()
    ((refused, accepted),) = process.reports
    assert refused > 0
    wal = SqliteWal(tmp_path)
    (tail,) = wal.open().values()
    assert tail.last_key == accepted
    wal.close()


def test_a_failed_sync_leaves_doubt_and_stops_one_shard(tmp_path: Path, vfs: HookedVFS) -> None:
    def fail(step: str, path: str) -> None:
        if step == "sync" and path.endswith("shard-1-of-2.db-wal"):
            fail_sync()

    async def main() -> None:
        async with Log(SqliteWal(tmp_path, shards=2)) as log:
            for partition in range(4):
                await log.append(partition, b"one")
            vfs.hook = fail
            doubtful, behind = log.append(1, b"two"), log.append(1, b"three")
            with pytest.raises(OutcomeUnknown):
                await doubtful
            with pytest.raises((OutcomeUnknown, WriteFailed)):
                await behind
            vfs.hook = lambda step, path: None
            with pytest.raises(WriteFailed):
                await log.append(3, b"two")
            assert await log.append(0, b"two") == 2
            assert await log.append(2, b"two") == 2
            assert await keys(log, 1) == [1]

    asyncio.run(main())

    async def again() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            for partition in range(4):
                assert await log.append(partition, b"next") == log.last_key(partition)
            assert await keys(log, 0) == [1, 2, 3]
            assert (await keys(log, 1))[0] == 1

    asyncio.run(again())


def test_a_slow_sync_leaves_the_loop_turning(tmp_path: Path, vfs: HookedVFS) -> None:
    release = threading.Event()

    async def main() -> None:
        loop, entered = asyncio.get_running_loop(), asyncio.Event()

        def hold(step: str, path: str) -> None:
            if step == "sync" and path.endswith("-wal"):
                loop.call_soon_threadsafe(entered.set)
                release.wait()

        async with Log(SqliteWal(tmp_path)) as log:
            await log.append(1, b"one")
            vfs.hook = hold
            try:
                future = log.append(1, b"two")
                await entered.wait()
                for _ in range(TICKS):
                    await asyncio.sleep(0)
                    assert not future.done()
                # And not only the loop: what came before can be read meanwhile.
                assert await asyncio.wait_for(keys(log, 1), timeout=10) == [1]
                assert not future.done()
            finally:
                release.set()
            assert await future == 2

    asyncio.run(main())


def test_sqlite_works_without_the_interpreter_lock(tmp_path: Path) -> None:
    """Somebody else holds the file, and SQLite waits for it in C, as it waits for a disk."""

    async def main() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            await log.append(1, b"one")
            path = tmp_path / "shard-0-of-1.db"
            other = apsw.Connection(str(path), vfs=sqlite_shard.checksum_vfs())
            other.execute("BEGIN IMMEDIATE")
            future = log.append(1, b"two")
            for _ in range(TICKS):
                await asyncio.sleep(0)
            assert not future.done()
            other.execute("ROLLBACK")
            other.close()
            assert await future == 2

    asyncio.run(main())


# --- memory


def test_appends_leave_no_memory_behind(campaign: Campaign, tmp_path: Path) -> None:
    count = campaign.rounds(share=50_000, full=1_000_000)
    with log_process("soak", f"sqlite:{tmp_path}", 100_000, count) as process:
        process.finish()
    ((before, after),) = process.reports
    campaign.tally["appends"] = count
    campaign.tally["growth_kib"] = (after - before) // 1024
    assert after - before < 4 * MIB


def test_a_full_lane_stays_within_its_bytes(campaign: Campaign) -> None:
    with log_process("flood", "memory:") as process:
        process.finish()
    (refused, largest), (before, after) = process.reports
    campaign.tally["refused"] = refused
    campaign.tally["lane_kib"] = largest // 1024
    campaign.tally["growth_kib"] = (after - before) // 1024
    assert REPORT in process.heard
    assert refused > 1000
    assert largest <= 16 * MIB
    assert after - before < 20 * MIB  # eight times that was offered


def test_a_full_lane_refuses_and_says_when_to_return(tmp_path: Path) -> None:
    async def main() -> None:
        wal, release = stalled_log_at(f"sqlite:{tmp_path}")
        async with Log(wal) as log:
            accepted = [log.append(3, b"x") for _ in range(4096)]
            with pytest.raises(Backpressure) as full:
                log.append(3, b"x")
            assert full.value.depth == 4096
            assert full.value.retry_after_ns > 0
            assert log.last_key(3) == 4096  # the refused one has changed nothing
            log.append(4, b"x")  # and it was about one lane only
            release()
            await asyncio.wait(accepted)
            assert await log.append(3, b"y") == 4097

    asyncio.run(main())


def test_many_partitions_open_as_a_log(campaign: Campaign, tmp_path: Path) -> None:
    count = campaign.rounds(share=5_000, full=100_000)

    async def first() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            futures = []
            for partition in range(count):
                futures.append(log.append(partition, b"x", durability=Durability.DISK))
                if len(futures) == 10_000:
                    await asyncio.wait(futures)
                    futures.clear()

    async def second() -> None:
        async with Log(SqliteWal(tmp_path)) as log:
            assert log.partitions() == list(range(count))
            assert await log.append(count - 1, b"y") == 2

    asyncio.run(first())
    asyncio.run(second())
    campaign.tally["partitions"] = count

"""The RocksDB log against the outside world: death, damage, slow and failing disks."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import (
    Closing,
    Corrupt,
    InvalidConfig,
    OutcomeUnknown,
    UnknownFormat,
    WriteFailed,
)
from fairway.storage.wal import DELETE, Entry, HardState, Operation, Tail
from fairway.storage.wals import rocksdb, rocksdb_log
from fairway.storage.wals.rocksdb import RocksdbWal
from fairway.storage.wals.rocksdb_batch import POINT_DELETES_MAX
from fairway.storage.wals.rocksdb_rows import (
    ENTRY,
    SEGMENTS_KEPT,
    entry_head,
    entry_key,
    head,
    space_key,
)
from fairway.storage.watermark import Watermark
from tests.support import rocksdb_process
from tests.support.fingerprint import watch_refusals
from tests.support.history import Draw, Twin, contents
from tests.support.rocksdb_files import (
    FewFlushes,
    copy_live,
    files,
    flip,
    log_files,
    raw,
    records,
    space_of,
    spoil_format,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Campaign


@pytest.fixture(autouse=True)
def refusals_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused in here, for whichever reason: its files are as they were."""
    watch_refusals(monkeypatch, RocksdbWal)


SMALL = 64 * 1024  # the smallest memtable RocksDB allows: log files come and go


@contextmanager
def opened(directory: Path, **settings: Any) -> Iterator[RocksdbWal]:
    with closing(RocksdbWal(directory, **settings)) as wal:
        wal.open()
        yield wal


def append(*keys: int, payload: bytes = b"x", term: int = 0) -> list[Operation]:
    return [Operation([Entry(key, payload, term) for key in keys])]


def keys(wal: RocksdbWal, partition: int, **how: Any) -> list[int]:
    return [entry.key for entry in wal.read(partition, **how)]


def program(*arguments: object, **how: Any) -> subprocess.Popen[str]:
    """A program of `rocksdb_process` in a process of its own."""
    path = os.pathsep.join(dict.fromkeys(["src", ".", *filter(None, sys.path)]))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.rocksdb_process", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        **how,
    )


# --- death of the process


def test_a_copy_after_every_write_holds_every_acknowledged_operation_whole(
    tmp_path: Path, campaign: Campaign
) -> None:
    draw = Draw(campaign.random())
    twins = {partition: Twin() for partition in range(3)}
    tally = campaign.tally
    with closing(FewFlushes(tmp_path / "live", memtable_bytes=SMALL)) as wal:
        wal.open()
        for number in range(campaign.rounds(share=60, full=400)):
            group = {}
            for partition in draw.rng.sample(sorted(twins), draw.rng.randint(1, 3)):
                group[partition] = draw.run(twins[partition])
                for operation in group[partition]:
                    twins[partition].apply(operation)
            group[9] = [Operation([Entry(number + 1, draw.rng.randbytes(8000))])]
            assert wal.write(group, sync=draw.rng.random() < 0.5) == {}
            copy = tmp_path / "copy"
            copy_live(tmp_path / "live", copy)
            tally["log files in copies"] += len(log_files(copy))
            with opened(copy) as found:
                for partition, twin in twins.items():
                    assert contents(found, partition) == twin.contents(), (number, partition)
                assert keys(found, 9) == list(range(1, number + 2))
            tally["copies"] += 1
    assert tally["log files in copies"] > tally["copies"] > 0, "no copy had two log files"


@pytest.mark.parametrize("sync", [True, False])
def test_kill_9_keeps_every_acknowledged_group(
    tmp_path: Path, campaign: Campaign, sync: bool
) -> None:
    rng = campaign.random()
    for _ in range(campaign.rounds(share=3, full=20)):
        writer = program("write", tmp_path / "log", sync)
        assert writer.stdout is not None
        acknowledged = 0
        for _ in range(rng.randint(1, 300)):
            acknowledged = int(writer.stdout.readline())
        writer.kill()
        for line in writer.stdout.read().splitlines():
            acknowledged = int(line)
        writer.wait()
        writer.stdout.close()
        campaign.tally["kills"] += 1
        with opened(tmp_path / "log") as wal:
            last = wal.tail(0).last_key // 2
            assert last in (acknowledged, acknowledged + 1)
            campaign.tally["groups written but not acknowledged"] += last - acknowledged
            for partition in range(rocksdb_process.PARTITIONS):
                written = [
                    entry
                    for number in range(1, last + 1)
                    for entry in rocksdb_process.operation(number, partition).entries
                ]
                tail = wal.tail(partition)
                expected = [entry for entry in written if entry.key >= tail.floor]
                assert len(expected) > 2 * min(last, rocksdb_process.KEPT) - 2
                assert wal.read(partition, limit=10**9) == expected
                assert tail == Tail(2 * last + 1, last, tail.floor)
                assert wal.meta(partition, "last") == str(last).encode()
            campaign.tally["acknowledged groups"] = acknowledged


# --- damage


class Looker:
    """Looks at damaged stores from another process, which may die or hang of it."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[str] | None = None

    def __call__(self, directory: Path) -> tuple[str, str]:
        if self._program is None:
            self._program = program("look", stdin=subprocess.PIPE)
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{directory}\n")
        self._program.stdin.flush()
        if line := self._program.stdout.readline():
            kind, text = json.loads(line)
            return kind, text
        self.close()
        return "died", ""

    def close(self) -> None:
        if self._program is not None:
            with self._program:
                assert self._program.stdin is not None
                self._program.stdin.close()
            self._program = None


@pytest.fixture
def look() -> Iterator[Looker]:
    with closing(Looker()) as looker:
        yield looker


def stores(directory: Path, kind: type[RocksdbWal], groups: int) -> tuple[Path, Path, str]:
    """A store copied while it lived, the same one closed, and the digest of what it holds."""
    with closing(kind(directory / "closed", memtable_bytes=SMALL)) as wal:
        wal.open()
        rocksdb_process.build(wal, groups)
        copy_live(directory / "closed", directory / "live")
        tails = {partition: wal.tail(partition) for partition in range(rocksdb_process.PARTITIONS)}
        return directory / "live", directory / "closed", rocksdb_process.digest(wal, tails)


def judge(
    look: Callable[[Path], tuple[str, str]], store: Path, target: Path, bit: int, digest: str
) -> str:
    """Flip one bit of a copy, and say what came of it."""
    copy = store.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    flip(copy / target.relative_to(store), bit // 8, bit % 8)
    kind, text = look(copy)
    if kind == "read" and text == digest:
        return "intact"
    assert kind == "refused", f"bit {bit} of {target}: {kind} {text}"
    return "refused"


def test_one_flipped_bit_anywhere_is_refused_or_harmless(
    tmp_path: Path, campaign: Campaign, look: Looker
) -> None:
    rng = campaign.random()
    tally = campaign.tally
    live, closed, digest = stores(tmp_path, RocksdbWal, 130)
    for store in (live, closed):
        newest = max((one.name for one in files(store) if one.suffix == ".log"), default="")
        for target in files(store):
            kind = target.suffix if target.suffix in (".log", ".sst") else target.stem.split("-")[0]
            if kind == ".log" and target.name != newest:
                kind = "former log"  # all in tables by now, perhaps, and about to be removed
            share = 20 if kind in (".log", ".sst", "MANIFEST") else 4
            for _ in range(campaign.rounds(share=share, full=share * 10)):
                bit = rng.randrange(8 * target.stat().st_size)
                tally[f"{kind} {judge(look, store, target, bit, digest)}"] += 1
    for kind in (".log", ".sst", "MANIFEST", "CURRENT"):
        assert tally[f"{kind} refused"] > 0, kind
        assert kind != ".log" or tally[f"{kind} intact"] == 0
    for kind in ("LOG", "IDENTITY", "OPTIONS", "watermark", "owner", "rocksdict"):
        assert tally[f"{kind} refused"] == 0, kind
        assert tally[f"{kind} intact"] > 0, kind


def test_one_flipped_bit_in_the_head_of_a_record_never_shortens_the_log(
    tmp_path: Path, campaign: Campaign, look: Looker
) -> None:
    """Lengths are outside RocksDB's checksum: it takes a wrong one for the end of the file, even if
    another file follows; and certain types it would read for ever."""
    rng = campaign.random()
    for kind in (RocksdbWal, FewFlushes):
        live, _, digest = stores(tmp_path / kind.__name__, kind, 110)
        logs = log_files(live)
        assert len(logs) > 2 or kind is RocksdbWal
        for target in [*(live / "rocksdb").glob("MANIFEST-*"), *logs]:
            places = list(records(target))
            for record in places if campaign.full else places[-4:]:
                bits = [8 * record.offset + bit for bit in range(32, 56)]
                for bit in bits if campaign.full else rng.sample(bits, 3):
                    said = judge(look, live, target, bit, digest)
                    assert said == "refused" or target not in logs
                    campaign.tally[f"{kind.__name__} {target.suffix or 'manifest'} {said}"] += 1


def test_a_log_file_that_ends_early_before_another_is_a_hole(tmp_path: Path) -> None:
    live, _, _ = stores(tmp_path, FewFlushes, 110)
    *_, log, newest = log_files(live)
    end = [record for record in records(log) if record.kind in (1, 2)][-1]
    os.truncate(log, end.offset)
    assert newest.stat().st_size > 0
    with pytest.raises(Corrupt, match="groups are missing"):
        RocksdbWal(live).open()


def test_a_manifest_that_ends_early_is_a_hole(tmp_path: Path) -> None:
    """Without the edit that names the second table file, RocksDB opens with what is around it."""
    with opened(tmp_path / "log") as wal:
        for number in (1, 2):
            wal.write({1: append(number), number + 1: append(1)}, sync=True)
            wal._db.flush()
        wal.write({1: append(3)}, sync=True)
        copy_live(tmp_path / "log", tmp_path / "live")
    (manifest,) = (tmp_path / "live" / "rocksdb").glob("MANIFEST-*")
    _, edit = [record for record in records(manifest) if record.length > 60]
    os.truncate(manifest, edit.offset)
    with pytest.raises(Corrupt, match="groups are missing"):
        RocksdbWal(tmp_path / "live").open()


def test_a_refused_store_is_left_as_it_was(tmp_path: Path) -> None:
    live, _, _ = stores(tmp_path, FewFlushes, 110)
    log = log_files(live)[0]
    os.truncate(log, [record for record in records(log) if record.kind in (1, 2)][-1].offset)
    before = {path: path.read_bytes() for path in files(live) if path.name != "owner.lock"}
    for _ in range(2):
        with pytest.raises(Corrupt):
            RocksdbWal(live).open()
    assert {path: path.read_bytes() for path in before} == before
    assert {path.name for path in files(live)} == {path.name for path in before} | {"owner.lock"}


def test_lost_groups_are_noticed_in_the_segments() -> None:
    whole = [(1, 1, 3), (1, 1, 4), (2, 5, 5), (3, 6, 8), (3, 6, 7)]
    assert head([], "") == (0, 0)
    assert head(whole, "") == (3, 8)
    for row in whole[:-2]:
        with pytest.raises(Corrupt):
            head([other for other in whole if other != row], "")
    with pytest.raises(Corrupt):
        head([*whole[:-1], (3, 6, 5)], "")
    first = SEGMENTS_KEPT * 5
    kept = [(first + n, 10 * n, 10 * n + 9 - slot) for n in range(SEGMENTS_KEPT) for slot in (0, 1)]
    assert head(kept, "") == (first + SEGMENTS_KEPT - 1, 10 * SEGMENTS_KEPT - 1)
    with pytest.raises(Corrupt):
        head(kept[2:], "")


def test_segments_are_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rocksdb", "rocksdb_rows"):
        monkeypatch.setattr(f"fairway.storage.wals.{module}.SEGMENTS_KEPT", 3)
    for number in range(1, 8):
        with opened(tmp_path) as wal:
            assert wal.write({1: append(number)}, sync=False) == {}
    with opened(tmp_path) as wal:
        assert keys(wal, 1) == list(range(1, 8))
    with raw(tmp_path) as rows:
        segments = {key for key in rows.keys() if key.startswith(b"\xffS")}  # noqa: SIM118
    assert 3 <= len(segments) <= 6


@pytest.mark.parametrize("file", ["rocksdb/MANIFEST-*", "rocksdb/CURRENT", "rocksdb-log/*.log"])
def test_a_damaged_file_is_named_at_opening(tmp_path: Path, file: str) -> None:
    with opened(tmp_path / "log") as wal:
        wal.write({1: append(1)}, sync=True)
        copy_live(tmp_path / "log", tmp_path / "live")
    (path,) = (tmp_path / "live").glob(file)
    flip(path, path.stat().st_size - 1, 3)
    with pytest.raises(Corrupt) as refusal:
        RocksdbWal(tmp_path / "live").open()
    assert refusal.value.place == str(path)


def test_missing_files_are_noticed(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as wal:
        assert wal.write({1: append(1, 2, 3)}, sync=True) == {}
        copy_live(tmp_path / "log", tmp_path / "live")
    for store, gone in [
        ("log", "rocksdb"),
        ("log", "watermark"),
        ("log", "rocksdb/CURRENT"),
        ("live", "rocksdb-log"),
    ]:
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / store, copy)
        if (copy / gone).is_dir():
            shutil.rmtree(copy / gone)
        else:
            (copy / gone).unlink()
        for _ in range(2):
            with pytest.raises(Corrupt):
                RocksdbWal(copy).open()
        shutil.rmtree(copy)


def begin_mark(directory: Path) -> None:
    mark = Watermark(directory / "watermark")
    mark.create()
    mark.close()


def test_a_creation_that_broke_off_is_begun_anew(tmp_path: Path) -> None:
    with opened(tmp_path / "whole"):
        pass
    (tmp_path / "half").mkdir()
    wal = RocksdbWal(tmp_path / "half")
    begin_mark(tmp_path / "half")
    assert wal.open() == {}
    wal.close()
    # Or RocksDB was there already, but not the first group.
    (tmp_path / "later").mkdir()
    wal = RocksdbWal(tmp_path / "later")
    begin_mark(tmp_path / "later")
    wal._connect(create=True).close()
    assert wal.open() == {}
    wal.close()


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    spoil_format(tmp_path)
    with pytest.raises(UnknownFormat, match="999"):
        RocksdbWal(tmp_path).open()


@pytest.mark.parametrize("backwards", [False, True])
def test_missing_and_changed_entries_are_noticed_on_reading(
    tmp_path: Path, backwards: bool
) -> None:
    with opened(tmp_path) as wal:
        wal.write({7: append(1, 3, 5, 9)}, sync=True)
    with raw(tmp_path) as rows:
        space = space_of(rows, 7)
        kept = {key: rows[entry_key(space, ENTRY, key)] for key in (1, 3, 5, 9)}
    for damaged, value in [
        (3, None),
        (1, None),
        (9, None),
        (5, entry_head.pack(0, 3, 12345) + b"x"),
        (5, kept[5][:-1] + b"y"),
        (5, b"short"),
    ]:
        with raw(tmp_path) as rows:
            for key, sound in kept.items():
                rows[entry_key(space, ENTRY, key)] = sound
            if value is None:
                del rows[entry_key(space, ENTRY, damaged)]
            else:
                rows[entry_key(space, ENTRY, damaged)] = value
        with opened(tmp_path) as wal:
            with pytest.raises(Corrupt, match="partition 7"):
                wal.read(7, backwards=backwards)
            # A range apart from the damage is sound; one that meets it is not.
            assert keys(wal, 7, first=4, last=6) == [5] if damaged < 5 else keys(wal, 7, last=2)
            with pytest.raises(Corrupt):
                wal.read(7, first=damaged, last=damaged, backwards=backwards)


def test_a_traceback_that_somebody_keeps_does_not_keep_the_store_open(tmp_path: Path) -> None:
    """RocksDB gives its lock back when its last iterator is gone, and frames know the iterator."""
    kept: list[BaseException] = []
    with opened(tmp_path) as wal:
        wal.write({7: append(1, 3)}, sync=True)
    with raw(tmp_path) as rows:
        space = space_of(rows, 7)
        rows[entry_key(space, ENTRY, 1)] = b"short"
    for _ in range(2):
        with opened(tmp_path) as wal:
            with pytest.raises(Corrupt) as read:
                wal.read(7)
            wal.write(
                {8: [Operation(meta={"a": b"b"})]}, sync=True
            )  # the damage was seen through a former view
            kept.append(read.value)
    spoil_format(tmp_path)
    for _ in range(2):
        with pytest.raises(UnknownFormat) as refused:
            RocksdbWal(tmp_path).open()
        kept.append(refused.value)
    assert all(one.__traceback__ is not None for one in kept)


def test_changed_metadata_is_noticed_on_reading(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        state = HardState(3, "a")
        wal.write({7: [Operation(meta={"name": b"value"}, hard_state=state)]}, sync=True)
    with raw(tmp_path) as rows:
        space = space_of(rows, 7)
        rows[space_key(space, 0)] = rows[space_key(space, 0)][:-1] + b"b"
        rows[space_key(space, 1) + b"name"] = rows[space_key(space, 1) + b"name"][:-1] + b"E"
    with opened(tmp_path) as wal:
        for read in (
            lambda: wal.hard_state(7),
            lambda: wal.meta(7, "name"),
            lambda: wal.meta_scan(7),
        ):
            with pytest.raises(Corrupt, match="partition 7"):
                read()


def test_a_damaged_table_file_is_named_by_whoever_reads_it(tmp_path: Path) -> None:
    noise = random.Random(1)
    with opened(tmp_path) as wal:
        meta = {f"name-{n:03}": noise.randbytes(100) for n in range(300)}
        wal.write({1: [Operation(meta=meta)], 7: append(1)}, sync=True)
    (table,) = (tmp_path / "rocksdb").glob("*.sst")
    flip(table, table.stat().st_size // 2, 3)
    with opened(tmp_path) as wal:
        assert keys(wal, 7) == [1]
        with pytest.raises(Corrupt) as refusal:
            wal.meta_scan(1)
    assert refusal.value.place == str(table)
    assert refusal.value.partition == 1


# --- syncs


class Disk:
    """A `sync_file` that remembers how much of each file was synced, and can be told to fail."""

    def __init__(self) -> None:
        self.synced: dict[int, int] = {}
        self.syncs = 0
        self.fault: OSError | None = None

    def __call__(self, fd: int) -> None:
        if self.fault is not None:
            raise self.fault
        status = os.fstat(fd)
        self.synced[status.st_ino] = status.st_size
        self.syncs += 1

    def unsynced(self, directory: Path) -> list[str]:
        """Log files that hold more than was synced of them."""
        found = [(path, path.stat()) for path in log_files(directory)]
        return [p.name for p, status in found if self.synced.get(status.st_ino) != status.st_size]


def test_a_synced_group_leaves_nothing_unsynced_in_any_log_file(
    tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = campaign.random()
    disk = Disk()
    directories: list[Path] = []
    monkeypatch.setattr(rocksdb_log, "sync_directory", directories.append)
    with closing(FewFlushes(tmp_path, memtable_bytes=SMALL, sync_file=disk)) as wal:
        wal.open()
        known = set(log_files(tmp_path))
        for number in range(1, 201):
            sync = rng.random() < 0.3
            payload = rng.randbytes(rng.choice([10, 100, 20_000]))
            assert wal.write({1: append(number, payload=payload)}, sync=sync) == {}
            new = set(log_files(tmp_path)) - known
            if new:
                # Everything before the group that met the new file has to be safe at once.
                known |= new
                assert directories.pop() == tmp_path / "rocksdb-log"
                campaign.tally["new log files"] += 1
            if sync or new:
                assert disk.unsynced(tmp_path) == []
                assert wal.statistics().groups_marked == wal.statistics().groups
            else:
                campaign.tally["groups left unsynced"] += bool(disk.unsynced(tmp_path))
    assert campaign.tally["new log files"] > 5
    assert campaign.tally["groups left unsynced"] > 50


def test_one_sync_for_a_group_and_none_for_one_that_does_not_ask(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path, sync_file=disk) as wal:
        before = disk.syncs
        group = {partition: append(1, 2, 3) for partition in range(64)}
        assert wal.write(group, sync=True) == {}
        assert disk.syncs == before + 1 == wal.syncs
        assert wal.write({1: append(4)}, sync=False) == {}
        assert disk.syncs == before + 1
        assert disk.unsynced(tmp_path)
        wal.maintain()
        assert disk.unsynced(tmp_path) == []
        assert wal.statistics().groups_marked == wal.statistics().groups
        wal.maintain()
        assert disk.syncs == before + 2
        assert wal.write({1: [Operation(hard_state=HardState(1))]}, sync=False) == {}
        assert disk.syncs == before + 3, "hard state is always synced"
        assert wal.write({1: append(5)}, sync=False) == {}
    assert disk.syncs == before + 4, "closing syncs the rest"


def test_the_event_loop_turns_while_a_sync_waits_and_nobody_sees_the_group(tmp_path: Path) -> None:
    started, release = threading.Event(), threading.Event()
    slow = False

    def sync_file(fd: int) -> None:
        if slow:
            started.set()
            assert release.wait(60)
        os.fsync(fd)

    async def scenario(wal: RocksdbWal) -> None:
        write = asyncio.to_thread(wal.write, {1: append(2), 2: append(1)}, sync=True)
        async with asyncio.TaskGroup() as group:
            written = group.create_task(write)
            turns = 0
            while not started.is_set() or turns < 1000:
                turns += 1
                await asyncio.sleep(0)
            # What is visible is durable, so nothing of it is visible yet. Nor does a read wait.
            assert await asyncio.to_thread(keys, wal, 1) == [1]
            assert wal.tail(1).last_key == 1
            assert wal.tail(2) == Tail()
            assert not written.done()
            release.set()
        assert written.result() == {}

    with opened(tmp_path, sync_file=sync_file) as wal:
        wal.write({1: append(1)}, sync=True)
        slow = True
        asyncio.run(scenario(wal))
        slow = False
        assert keys(wal, 1) == [1, 2]
        assert keys(wal, 2) == [1]


def test_a_failed_sync_leaves_doubt_and_refuses_writes_until_reopened(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path, sync_file=disk) as wal:
        assert wal.write({1: append(1), 2: append(1)}, sync=True) == {}
        disk.fault = OSError(errno.EIO, "the platter came off")
        failures = wal.write({1: append(2), 2: append(2)}, sync=True)
        assert {p: type(error) for p, error in failures.items()} == dict.fromkeys(
            (1, 2), OutcomeUnknown
        )
        disk.fault = None
        for sync in (True, False):
            (failure,) = wal.write({3: append(1)}, sync=sync).values()
            assert isinstance(failure, WriteFailed)
            assert "the platter came off" in str(failure)
        assert keys(wal, 1) == keys(wal, 2) == [1]
        assert wal.sweep() is False
        wal.maintain()
        synced = wal.statistics().groups_marked
    with opened(tmp_path) as wal:
        assert keys(wal, 1) == keys(wal, 2) in ([1], [1, 2])
        assert wal.statistics().groups >= synced
        assert wal.write({3: append(1)}, sync=True) == {}


def test_a_failed_sync_beside_writes_refuses_them_too(tmp_path: Path) -> None:
    disk = Disk()
    with opened(tmp_path, sync_file=disk) as wal:
        assert wal.write({1: append(1)}, sync=False) == {}
        disk.fault = OSError(errno.EIO, "the platter came off")
        wal.maintain()
        (failure,) = wal.write({1: append(2)}, sync=False).values()
        assert isinstance(failure, WriteFailed)
    with opened(tmp_path) as wal:
        assert keys(wal, 1) == [1]


def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    with program("fill", tmp_path, 300_000) as filler:
        report = json.loads(filler.communicate()[0])
    assert filler.returncode == 0
    acknowledged = report["acknowledged"]
    assert acknowledged > 100
    assert all(text.startswith("WriteFailed") for text in report["failures"].values())
    assert set(report["failures"]) == {"1", "2"}
    assert report["later"]["3"].startswith("WriteFailed")
    assert "File too large" in report["later"]["3"]
    assert report["readable"] > 0
    with opened(tmp_path) as wal:
        for partition in (1, 2):
            assert wal.tail(partition).last_key == 2 * acknowledged + 1
            assert wal.meta(partition, "last") == str(acknowledged).encode()
        assert wal.tail(3) == Tail()
        assert wal.write({3: append(1)}, sync=True) == {}


class Stalling:
    """A store whose flushes lag behind: it refuses a few batches before it takes one."""

    def __init__(self, db: Any, refusals: int) -> None:
        self._db = db
        self.refusals = refusals

    def write(self, batch: Any, options: Any) -> None:
        self._db.write(batch.__class__(raw_mode=True) if self.refusals else batch, options)
        if self.refusals:
            self.refusals -= 1
            raise Exception("Result incomplete: Write stall")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class FullDisk:
    """A RocksDB whose disk has no room left."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def write(self, batch: Any, options: Any) -> None:
        raise Exception("IO error: No space left on device: While appending to file: x.log")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def test_a_full_disk_says_what_to_do_and_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 0
    monkeypatch.setattr(rocksdb, "free_bytes", lambda _: free)
    with opened(tmp_path) as wal:
        assert wal.write({1: append(1, 2)}, sync=True) == {}
        wal._db = FullDisk(wal._db)
        for operations in (append(3), [Operation(compact_before=2)], [DELETE]):
            refused = wal.write({1: operations}, sync=True)[1]
            assert isinstance(refused, WriteFailed)
            assert "needs 9 MiB of it to go on, for deletes as well: make room" in str(refused)
        wal.maintain()  # there is still no room
        assert isinstance(wal.write({1: append(3)}, sync=True)[1], WriteFailed)
        assert keys(wal, 1) == [1, 2]
        free = 9 * 1024 * 1024
        wal.maintain()
        assert wal.write({1: append(3)}, sync=True) == {}
        assert keys(wal, 1) == [1, 2, 3]
    with opened(tmp_path) as wal:
        assert keys(wal, 1) == [1, 2, 3]


def test_a_start_on_a_full_disk_reads_and_writes_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as wal:
        assert wal.write({1: append(1, 2)}, sync=True) == {}
    free = 0
    monkeypatch.setattr(rocksdb, "free_bytes", lambda _: free)
    connect = RocksdbWal._connect

    def full(wal: RocksdbWal, *, create: bool, read_only: bool = False) -> Any:
        if not read_only and not free:
            raise WriteFailed("No space left on device")
        return connect(wal, create=create, read_only=read_only)

    monkeypatch.setattr(RocksdbWal, "_connect", full)
    with opened(tmp_path) as wal:
        assert keys(wal, 1) == [1, 2]
        wal.maintain()
        assert "make room" in str(wal.write({1: append(3)}, sync=True)[1])
        free = 1 << 30
        wal.maintain()
        assert wal.write({1: append(3)}, sync=True) == {}
        assert keys(wal, 1) == [1, 2, 3]


def test_a_stalled_write_is_tried_again(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        wal._db = stalling = Stalling(wal._db, 3)
        assert wal.write({1: append(1, 2), 2: append(1)}, sync=True) == {}
        assert stalling.refusals == 0
        assert wal.statistics().stalls == 3
        assert keys(wal, 1) == [1, 2]
    with raw(tmp_path) as rows:
        assert space_of(rows, 1) != space_of(rows, 2)


def test_a_stall_of_rocksdb_itself_is_waited_for_outside(tmp_path: Path) -> None:
    """With room for two memtables only, some writes must meet a stall."""

    class Narrow(RocksdbWal):
        def _options(self) -> Any:
            options = super()._options()
            options.set_max_write_buffer_number(2)
            options.set_level_zero_stop_writes_trigger(4)
            options.set_level_zero_slowdown_writes_trigger(4)
            return options

    with closing(Narrow(tmp_path, memtable_bytes=SMALL)) as wal:
        wal.open()
        payload = random.Random(1).randbytes(60_000)
        number = 0
        while not wal.statistics().stalls:
            number += 1
            assert wal.write({1: append(number, payload=payload)}, sync=False) == {}
        assert wal.tail(1).last_key == number
        assert keys(wal, 1, limit=10**6) == list(range(1, number + 1))


# --- rows come and go


def rows_of(directory: Path) -> int:
    with raw(directory) as rows:
        return sum(1 for key in rows.keys() if key[0] != 0xFF)  # noqa: SIM118


def test_a_deleted_partition_is_swept_in_chunks_over_restarts(tmp_path: Path) -> None:
    with opened(tmp_path) as wal:
        meta = {f"name-{n}": b"" for n in range(20)}
        wal.write({1: append(*range(1, 101)), 2: append(1)}, sync=True)
        wal.write({1: [Operation(meta=meta, hard_state=HardState(1))]}, sync=True)
        # Gone at once, and there again at once, without its former rows.
        assert wal.write({1: [DELETE, *append(7)]}, sync=True) == {}
        assert keys(wal, 1) == [7]
        assert wal.meta_scan(1) == []
        assert wal.hard_state(1) is None
        assert wal.sweep(limit=50)
    assert rows_of(tmp_path) == 4 + 122 - 50  # two partitions with an entry and a fence each
    with opened(tmp_path) as wal:
        assert keys(wal, 1) == [7]
        assert wal.sweep(limit=50)
        assert wal.sweep(limit=50) is False
        assert wal.sweep(limit=50) is False
    assert rows_of(tmp_path) == 4
    with opened(tmp_path) as wal:
        assert wal.statistics().spaces_deleted == 0
        assert keys(wal, 1) == [7]
        assert keys(wal, 2) == [1]


@pytest.mark.parametrize("gone", [POINT_DELETES_MAX - 1, POINT_DELETES_MAX, POINT_DELETES_MAX + 1])
def test_compaction_removes_rows_singly_or_as_a_range(tmp_path: Path, gone: int) -> None:
    with opened(tmp_path) as wal:
        wal.write({1: append(*range(1, 600)), 2: append(1)}, sync=True)
        wal.write({1: [Operation(compact_before=gone + 1)]}, sync=True)
        assert keys(wal, 1) == list(range(gone + 1, 600))
        assert keys(wal, 1, backwards=True) == list(range(599, gone, -1))
        # In one group: entries that are gone before anybody saw them, and a truncation.
        operations = [
            *append(*range(600, 700), term=1),
            Operation(truncate_after=660),
            Operation([Entry(670, b"new", 2)], compact_before=650),
        ]
        wal.write({1: operations}, sync=True)
        assert keys(wal, 1) == [*range(650, 661), 670]
        assert wal.tail(1) == Tail(670, 2, 650)
        wal.write({1: [Operation(compact_before=671)]}, sync=True)
        assert keys(wal, 1) == []
        assert wal.tail(1) == Tail(670, 0, 671)
    assert rows_of(tmp_path) == 3  # two fences and the entry of the other partition


def test_readers_see_operations_whole_while_partitions_change(tmp_path: Path) -> None:
    """Each operation moves the window of a partition on, or makes the partition anew."""
    with opened(tmp_path) as wal:
        wal.write({1: [Operation([Entry(1, b"0"), Entry(2, b"0")], {"n": b"0"})]}, sync=False)
        done = threading.Event()
        seen = Counter[int]()
        wrong: list[object] = []

        def read() -> None:
            while not done.is_set() or len(seen) < 2:
                found = wal.read(1, backwards=bool(len(seen) % 2))
                stamps = {entry.payload for entry in found}
                if len(found) != 2 or len(stamps) != 1:
                    wrong.append(found)
                    return
                seen[int(stamps.pop())] += 1

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for number in range(1, 400):
            stamp = str(number).encode()
            entries = [Entry(2 * number + 1, stamp), Entry(2 * number + 2, stamp)]
            change = Operation(entries, {"n": stamp}, compact_before=2 * number + 1)
            group = [DELETE, Operation(entries)] if number % 9 == 0 else [change]
            assert wal.write({1: group}, sync=False) == {}
            if number % 20 == 0:
                wal.sweep()
        done.set()
        for reader in readers:
            reader.join()
        assert wrong == []
        assert len(seen) > 1


def test_closing_waits_for_readers_and_refuses_afterwards(tmp_path: Path) -> None:
    wal = RocksdbWal(tmp_path)
    wal.open()
    wal.write({1: append(1)}, sync=True)
    with wal._reading():
        closer = threading.Thread(target=wal.close)
        closer.start()
        while wal._view is not None:
            pass  # the closer takes the view away first
        closer.join(0.2)  # time enough for one that does not wait
        assert closer.is_alive()
        with pytest.raises(Closing):
            wal.read(1)
    closer.join()
    wal.close()
    for call in (
        lambda: wal.write({1: append(2)}, sync=True),
        lambda: wal.tail(1),
        wal.sweep,
        wal.maintain,
    ):
        with pytest.raises(Closing):
            call()
    with opened(tmp_path) as again:
        assert keys(again, 1) == [1]


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(InvalidConfig, match=r"pip install 'fairway\[rocksdb\]'"):
        RocksdbWal(tmp_path)

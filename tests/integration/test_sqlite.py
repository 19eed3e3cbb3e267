"""The SQLite log on real files: damage, full and failing disks, the size of the -wal, creation."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import apsw
import pytest

from fairway.errors import (
    AlreadyOwned,
    Corrupt,
    InvalidConfig,
    OutcomeUnknown,
    UnknownFormat,
    WriteFailed,
)
from fairway.storage import watermark
from fairway.storage.wal import DELETE, Entry, Operation, Tail
from fairway.storage.wals import sqlite_shard, sqlite_tables, sqlite_walfile
from fairway.storage.wals.sqlite import SqliteWal
from fairway.storage.wals.sqlite_shard import Shard
from tests.support.fingerprint import watch_refusals
from tests.support.log_files import NEVER, flip_bit, look, random_bit, states
from tests.support.log_vfs import HookedVFS, fail_full, fail_sync, hooked_vfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Campaign
    from tests.support.log_files import State

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture(autouse=True)
def refusals_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused in here, for whichever reason: its files are as they were."""
    watch_refusals(monkeypatch, SqliteWal)


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedVFS]:
    with hooked_vfs(monkeypatch) as made:
        yield made


def append(*keys: int, size: int = 10) -> list[Operation]:
    return [Operation([Entry(key, b"%d" % key + bytes(size)) for key in keys])]


def put(wal: SqliteWal, partition: int, *keys: int, sync: bool = True, size: int = 10) -> None:
    assert wal.write({partition: append(*keys, size=size)}, sync=sync) == {}


def keys(wal: SqliteWal, partition: int) -> list[int]:
    return [entry.key for entry in wal.read(partition, limit=1 << 40)]


def checkpoint(wal: SqliteWal) -> None:
    """What upkeep does once the -wal is long or the log idle."""
    for shard in wal.shards:
        shard.checkpoint()


def frames(shard: Shard) -> tuple[int, int]:
    """How many pages SQLite itself finds in the -wal, and how many of them were moved."""
    with closing(apsw.Connection(shard.place, vfs=sqlite_shard.checksum_vfs())) as witness:
        witness.execute("SELECT 1 FROM state LIMIT 1").fetchall()  # or it knows of no -wal
        return witness.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)


def opened(directory: Path, **options: int) -> SqliteWal:
    wal = SqliteWal(directory, **{"checkpoint_bytes": 0, **options})
    wal.open()
    return wal


# --- one flipped bit


STATES = ("closed", "live", "unsynced", "moved", "half-moved", "half-moved-unsynced")


def damage(state: State, name: str, scratch: Path, campaign: Campaign, rounds: int) -> None:
    """Flip one random bit of one file, again and again; each time, look at everything."""
    rng = campaign.random(name)
    for _ in range(rounds):
        shutil.copytree(state.directory, scratch)
        bit = random_bit(scratch / name, state, rng)
        flip_bit(scratch / name, bit)
        outcome, refusal = look(scratch, state.allowed)
        if outcome == "refused_at_open":
            # The one file put back from a copy is enough: a refusal took nothing from the others.
            shutil.copy(state.directory / name, scratch / name)
            assert look(scratch, state.allowed) == ("intact", None)
        shutil.rmtree(scratch)
        campaign.tally[f"{name.rpartition('.')[2]} {outcome}"] += 1
        campaign.tally[outcome] += 1
        if isinstance(refusal, Corrupt) and "acknowledged data is gone" in refusal.reason:
            campaign.tally["refused_by_the_watermark"] += 1


@pytest.mark.parametrize("name", STATES)
def test_a_flipped_bit_is_refused_or_harmless(
    name: str, campaign: Campaign, tmp_path: Path, vfs: HookedVFS
) -> None:
    for number in range(campaign.rounds(share=1, full=10)):
        home = tmp_path / str(number)
        state = states(home, campaign.random(number), vfs)[name]
        for path in sorted(state.directory.iterdir()):
            hot = path.suffix in (".db", ".db-wal")
            rounds = campaign.rounds(share=30 if hot else 5, full=50 if hot else 10)
            damage(state, path.name, tmp_path / "scratch", campaign, rounds)
        shutil.rmtree(home)
    assert campaign.tally["CHANGED"] == 0
    assert campaign.tally["intact"] > 0
    assert campaign.tally["refused_at_open"] > 0
    if name in ("live", "unsynced"):
        assert campaign.tally["refused_by_the_watermark"] > 0


def test_without_the_watermark_a_flipped_bit_shortens_the_log(
    campaign: Campaign, tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PLANTED: what SQLite does with a bad frame when nobody looks. The check above sees it."""
    state = states(tmp_path, campaign.random(), vfs)["live"]
    monkeypatch.setattr(Shard, "_verify_groups", lambda shard, *_: shard._mark.open())
    damage(state, "shard-0-of-1.db-wal", tmp_path / "scratch", campaign, 30)
    assert campaign.tally["CHANGED"] > 0


def test_without_the_note_a_half_moved_file_passes_for_a_whole_one(
    campaign: Campaign, tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PLANTED: killed in a checkpoint, then one bit of the first frames: old and new pages mix."""
    monkeypatch.setattr(watermark.Watermark, "note", None)
    for number in range(20):
        scratch = tmp_path / str(number)
        state = states(scratch, campaign.random(number), vfs)["half-moved"]
        damage(state, "shard-0-of-1.db-wal", scratch / "scratch", campaign, 5)
        if campaign.tally["CHANGED"]:
            break
    assert campaign.tally["CHANGED"] > 0


@pytest.mark.parametrize("bit", range(8))
def test_a_header_that_denies_the_page_checksums_is_refused(bit: int, tmp_path: Path) -> None:
    """The one byte that turns them off would leave the rest of the file without protection."""
    wal = opened(tmp_path)
    put(wal, 1, 1)
    wal.close()
    flip_bit(tmp_path / "shard-0-of-1.db", 8 * 20 + bit)
    with pytest.raises(Corrupt):
        SqliteWal(tmp_path).open()


def test_an_entry_that_was_altered_with_care_fails_its_checksum(tmp_path: Path) -> None:
    """By somebody who wrote whole pages: the file is sound, the entry is not what was appended."""
    wal = opened(tmp_path)
    put(wal, 1, 1, 2, 3)
    put(wal, 2, 1)
    wal.close()
    path = tmp_path / "shard-0-of-1.db"
    for change in ("payload = x'00'", "term = 1", "partition = 3"):
        shutil.copytree(tmp_path, tmp_path / "altered")
        altered = tmp_path / "altered" / path.name
        connection = apsw.Connection(str(altered), vfs=sqlite_shard.checksum_vfs())
        connection.execute(f"UPDATE entry SET {change} WHERE partition = 1 AND key = 2")
        connection.close()
        wal = opened(tmp_path / "altered")
        partition = 3 if "partition" in change else 1
        with pytest.raises(Corrupt, match="entry 2 fails its checksum") as refused:
            keys(wal, partition)
        assert (refused.value.place, refused.value.partition) == (str(altered), partition)
        assert keys(wal, 2) == [1]
        put(wal, 2, 2)
        assert keys(wal, 2) == [1, 2]  # the refusal, still alive, holds no reader in the past
        wal.close()
        shutil.rmtree(tmp_path / "altered")


def test_a_refusal_leaves_the_files_as_they_are(
    campaign: Campaign, tmp_path: Path, vfs: HookedVFS
) -> None:
    state = states(tmp_path, campaign.random(), vfs)["live"]
    files = [state.directory / f"shard-0-of-1.{suffix}" for suffix in ("db", "db-wal", "mark")]
    flip_bit(files[1], 8 * 5000)
    before = [path.read_bytes() for path in files]
    for _ in range(2):
        outcome, refusal = look(state.directory, state.allowed)
        assert outcome == "refused_at_open"
        assert "acknowledged data is gone" in str(refusal)
        assert [path.read_bytes() for path in files] == before
    flip_bit(files[1], 8 * 5000)  # so that it can still be mended
    assert look(state.directory, state.allowed) == ("intact", None)


@pytest.mark.parametrize("name", STATES)
def test_a_missing_or_shortened_file_is_refused_or_harmless(
    name: str, campaign: Campaign, tmp_path: Path, vfs: HookedVFS
) -> None:
    state = states(tmp_path, campaign.random(), vfs)[name]
    for suffix in ("db", "db-wal", "mark"):
        path = tmp_path / "scratch" / f"shard-0-of-1.{suffix}"
        for left in (None, 0, 0.3, 0.9):
            shutil.copytree(state.directory, tmp_path / "scratch")
            if not path.exists():
                shutil.rmtree(tmp_path / "scratch")
                continue
            if left is None:
                path.unlink()
            else:
                os.truncate(path, int(path.stat().st_size * left))
            outcome, refusal = look(tmp_path / "scratch", state.allowed)
            shutil.rmtree(tmp_path / "scratch")
            campaign.tally[f"{suffix} {outcome}"] += 1
            if suffix == "db-wal" and not left and name.startswith("half-moved"):
                continue  # no -wal at all looks like a checkpoint that was completed
            assert outcome != "CHANGED", (suffix, left)
            if suffix == "mark" and left:
                assert outcome == "intact"  # one slot of two is enough
            elif suffix == "db" and left == 0.9 and outcome == "intact":
                pass  # every page that was cut off has its newest version in the -wal
            elif suffix != "db-wal" or (name == "live" and left != 0.9):
                assert isinstance(refusal, Corrupt)
                assert str(path.parent) in refusal.place


@pytest.mark.parametrize("key", [2, 50, 100])
def test_damage_names_its_partition_and_spares_the_others(key: int, tmp_path: Path) -> None:
    wal = opened(tmp_path)
    for partition in range(20):
        entries = [Entry(key, b"<%d/%d>" % (partition, key) + bytes(300)) for key in range(1, 101)]
        assert wal.write({partition: [Operation(entries)]}, sync=True) == {}
    wal.close()
    path = tmp_path / "shard-0-of-1.db"
    flip_bit(path, 8 * path.read_bytes().find(b"<7/%d>" % key))
    wal = SqliteWal(tmp_path, checkpoint_bytes=0)
    refusals: list[Corrupt] = []
    try:
        wal.open()
    except Corrupt as error:  # opening looks at the end of each partition
        refusals.append(error)
    for partition in range(0 if refusals else 20):
        try:
            assert keys(wal, partition) == list(range(1, 101))
        except Corrupt as error:
            refusals.append(error)
    wal.close()
    assert {error.place for error in refusals} == {str(path)}
    named = [error.partition for error in refusals]
    assert named in ([6], [7], [6, 7], [7, 8])  # neighbours may share the damaged page


# --- watermark and sync


def test_power_loss_after_a_checkpoint_that_a_reader_cut_short_is_no_corruption(
    tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watermark never runs ahead of what is synced, or a healthy log would be refused."""
    sync_data = sqlite_walfile.sync_data
    home = tmp_path / "log"
    log = home / "shard-0-of-1.db-wal"
    synced = 0

    def note(step: str = "sync", path: str = str(log)) -> None:
        nonlocal synced
        if step == "sync" and path == str(log):
            synced = log.stat().st_size

    vfs.hook = note
    monkeypatch.setattr(sqlite_walfile, "sync_data", lambda fd: (sync_data(fd), note()))
    wal = opened(home, wal_bytes_max=NEVER)
    for key in range(1, 100):
        put(wal, 1, key, sync=key % 10 == 0)
        if key % 7 == 0:
            checkpoint(wal)
        if key == 50:
            reader = apsw.Connection(str(home / "shard-0-of-1.db"), vfs=vfs.name)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM entry").fetchall()
        lost = tmp_path / str(key)
        shutil.copytree(home, lost)
        os.truncate(lost / log.name, min(synced, log.stat().st_size))
        survivor = opened(lost)
        assert len(keys(survivor, 1)) >= key // 10 * 10
        survivor.close()
    reader.close()
    wal.close()


@pytest.mark.parametrize("occasion", ["beside", "alone", "close", "open"])
def test_what_a_checkpoint_moves_is_synced_and_marked_before(
    occasion: str, tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first page is moved the file needs every frame, also those nobody had synced."""
    home = tmp_path / "log"
    log = home / "shard-0-of-1.db-wal"
    synced, seen = [], []
    sync_data = sqlite_walfile.sync_data
    monkeypatch.setattr(
        sqlite_walfile, "sync_data", lambda fd: (synced.append(log.stat().st_size), sync_data(fd))
    )

    def watch(step: str, path: str) -> None:
        if step == "write" and path.endswith(".db"):
            mark = watermark.Watermark(home / "shard-0-of-1.mark")
            mark.open()
            mark.close()
            seen.append((mark.value, mark.note, synced[-1:]))

    wal = opened(home)
    for key in range(1, 6):
        put(wal, 1, key, sync=False)
    groups, size = wal.shards[0].groups, log.stat().st_size
    generation = sqlite_walfile.generation(str(home / "shard-0-of-1.db"))
    vfs.hook = watch
    if occasion == "beside":
        checkpoint(wal)
    elif occasion == "alone":
        wal.shards[0].checkpoint(wait=True)
    elif occasion == "open":
        shutil.copytree(home, tmp_path / "killed")
        home = tmp_path / "killed"
        opened(home).close()
        home = tmp_path / "log"
        vfs.hook = lambda step, path: None
    wal.close()
    assert seen
    assert set(map(str, seen)) == {str((groups, generation, [size]))}


def test_a_checkpoint_leaves_groups_alone_that_come_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are neither synced nor on the mark, so their pages must stay where they are."""
    wal = opened(tmp_path)
    (shard,) = wal.shards
    sync_data = sqlite_walfile.sync_data
    put(wal, 1, 1, sync=False)
    marked = shard.groups

    def sync_and_write(fd: int) -> None:
        sync_data(fd)
        put(wal, 1, 2, sync=False)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_walfile, "sync_data", sync_and_write)
        checkpoint(wal)
    written, moved = frames(shard)
    assert 0 < moved < written
    assert shard.statistics().groups_marked == marked < shard.groups
    checkpoint(wal)
    written, moved = frames(shard)
    assert written == moved
    assert shard.statistics().groups_marked == shard.groups
    wal.close()


def test_groups_are_synced_when_asked_and_not_otherwise(tmp_path: Path, vfs: HookedVFS) -> None:
    syncs = []
    wal = opened(tmp_path)
    put(wal, 1, 1)  # the first group after a start also syncs the header of the -wal
    vfs.hook = lambda step, path: syncs.append(Path(path).name) if step == "sync" else None
    put(wal, 1, 2)
    assert syncs == ["shard-0-of-1.db-wal"]
    put(wal, 1, 3, sync=False)
    assert len(syncs) == 1
    put(wal, 1, 4)
    assert len(syncs) == 2
    assert wal.syncs == 3
    assert wal.shards[0]._writer is not None
    assert wal.shards[0]._writer.pragma("synchronous") == 2
    put(wal, 1, 5, sync=False)
    assert wal.shards[0]._writer.pragma("synchronous") == 1  # NORMAL, never OFF
    wal.close()


# --- the size of the -wal


def test_the_wal_file_stays_within_its_bound(
    campaign: Campaign, tmp_path: Path, vfs: HookedVFS
) -> None:
    bound = MIB
    wal = opened(tmp_path, wal_bytes_max=bound)
    log = tmp_path / "shard-0-of-1.db-wal"
    frames = 0

    def count(step: str, path: str) -> None:
        nonlocal frames
        frames += step == "write" and path == str(log)

    vfs.hook = count
    largest = largest_group = written = 0
    while written < campaign.rounds(share=10, full=100) * bound:
        number = written + 1
        group = {partition: append(number, size=1000) for partition in range(number % 60 + 1)}
        frames = 0
        assert wal.write(group, sync=number % 3 == 0) == {}
        largest = max(largest, log.stat().st_size)
        largest_group = max(largest_group, frames // 2 * 4120)  # a frame is written in two pieces
        written += 1000 * len(group)
        if number % 5 == 0:
            checkpoint(wal)
    assert bound < largest <= bound + largest_group + 32
    campaign.tally["bytes_written"] = written
    campaign.tally["largest_wal"] = largest
    campaign.tally["largest_group"] = largest_group
    wal.close()
    assert not log.exists()


def test_a_sweep_keeps_the_wal_file_within_its_bound(tmp_path: Path) -> None:
    bound = 256 * KIB
    wal = opened(tmp_path, wal_bytes_max=bound)
    log = tmp_path / "shard-0-of-1.db-wal"
    for first in range(1, 20_000, 1000):
        put(wal, 1, *range(first, first + 1000), sync=False, size=200)
    assert wal.write({1: [DELETE]}, sync=True) == {}
    wal.shards[0].checkpoint(wait=True)
    chunks = largest = 0
    more = True
    while more:
        before = wal.shards[0].statistics().wal_bytes
        more = wal.sweep(limit=250)
        assert before <= bound, "it was made to start over"
        chunks += 1
        largest = max(largest, log.stat().st_size)
    assert chunks > 50
    assert largest <= 2 * bound, "the bound, and what one chunk added to it"
    wal.close()


@pytest.mark.parametrize(
    ("free", "bound"),
    [(3 * MIB, 768 * KIB), (0, 256 * KIB), (60 * MIB, 4 * MIB), (1024 * MIB, 64 * MIB)],
)
def test_the_fuller_the_disk_the_shorter_the_wal(
    free: int, bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that nobody waits for must not use up what appends could still be written to."""
    wal = opened(tmp_path)
    for first in (1, 1001, 2001):
        put(wal, 1, *range(first, first + 1000), sync=False, size=200)
    assert wal.write({1: [DELETE]}, sync=True) == {}
    monkeypatch.setattr(sqlite_shard, "free_bytes", lambda _: free)
    assert wal.sweep(limit=250)
    assert wal.shards[0].statistics().wal_bytes_bound == bound
    wal.close()


def test_upkeep_moves_pages_once_the_log_is_idle_or_the_wal_long(tmp_path: Path) -> None:
    wal = opened(tmp_path, wal_bytes_max=64 * KIB)

    def moved() -> bool:
        written, done = frames(wal.shards[0])
        return written == done

    put(wal, 1, 1)
    assert not moved()
    wal.maintain()
    wal.maintain()
    assert moved()
    put(wal, 1, 2, size=20 * KIB)
    wal.maintain()
    assert moved()
    wal.close()


def test_the_length_of_the_wal_is_known_without_asking(tmp_path: Path) -> None:
    wal = opened(tmp_path)
    shard = wal.shards[0]
    for key in range(1, 40):
        put(wal, key % 3, key, size=key * 500)
        written, _ = frames(shard)
        assert shard.statistics().wal_bytes == written * sqlite_shard.FRAME_SIZE
        if key % 13 == 0:
            shard.checkpoint(wait=True)
            assert shard.statistics().wal_bytes == 0
    wal.close()


def test_upkeep_leaves_a_short_wal_alone_while_the_log_is_busy(tmp_path: Path) -> None:
    wal = opened(tmp_path, checkpoint_bytes=64 * KIB)
    shard = wal.shards[0]
    put(wal, 1, 1)
    wal.maintain()
    assert shard.statistics().wal_bytes, "busy, and not long: nothing was moved"
    wal.maintain()
    assert not shard.statistics().wal_bytes, "idle: everything was moved and the file starts over"
    put(wal, 1, 2, size=100 * KIB)
    wal.maintain()
    assert not shard.statistics().wal_bytes, "busy, but long"
    wal.close()


def test_upkeep_does_not_wait_for_a_reader_nor_forget_the_bound(tmp_path: Path) -> None:
    bound = 128 * KIB
    wal = opened(tmp_path, wal_bytes_max=bound)
    shard = wal.shards[0]
    put(wal, 1, 1)
    reader = apsw.Connection(str(tmp_path / "shard-0-of-1.db"), vfs=sqlite_shard.checksum_vfs())
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entry WHERE partition = 1").get == 1
    put(wal, 1, 2)
    wal.maintain()
    assert shard.statistics().wal_bytes, "the reader is in the way of starting over"
    assert not shard.statistics().wal_bytes_blocked, (
        "which a commit past the bound has to find out for itself"
    )
    reader.close()
    wal.maintain()
    assert not shard.statistics().wal_bytes
    wal.close()


def test_a_long_reader_lets_the_wal_grow_and_it_shrinks_after_it(
    tmp_path: Path,
) -> None:
    bound = 256 * KIB
    wal = opened(tmp_path, wal_bytes_max=bound)
    log = tmp_path / "shard-0-of-1.db-wal"
    put(wal, 1, 1)
    reader = apsw.Connection(str(tmp_path / "shard-0-of-1.db"), vfs=sqlite_shard.checksum_vfs())
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entry WHERE partition = 1").get == 1
    for key in range(2, 100):
        put(wal, 1, key, size=10 * KIB)
        checkpoint(wal)
    assert log.stat().st_size > 3 * bound  # nothing failed for that
    attempts = wal.shards[0].statistics().checkpoints_alone
    assert attempts <= log.stat().st_size // bound  # and few writes had to wait for it
    assert reader.execute("SELECT count(*) FROM entry WHERE partition = 1").get == 1
    reader.close()
    for key in range(100, 200):
        put(wal, 1, key, size=10 * KIB)
    assert log.stat().st_size <= bound + 20 * 4120
    assert keys(wal, 1) == list(range(1, 200))
    wal.close()


# --- a full disk


def test_a_full_disk_refuses_the_group_and_nothing_else(tmp_path: Path, vfs: HookedVFS) -> None:
    wal = opened(tmp_path)
    put(wal, 1, 1)

    def fill(step: str, path: str) -> None:
        if step == "write":
            fail_full()

    for operations in (append(2), [Operation(meta={"name": b"value"})], [DELETE]):
        vfs.hook = fill
        refused = wal.write({1: operations, 2: append(1)}, sync=True)
        assert set(map(type, refused.values())) == {WriteFailed}
        checkpoint(wal)  # no room for that either, and nobody's fault
        assert keys(wal, 1) == [1]
        assert (wal.tail(2), wal.meta(1, "name"), wal.deleting()) == (Tail(), None, set())
        vfs.hook = lambda step, path: None
        put(wal, 3, wal.tail(3).last_key + 1)
    wal.close()
    wal = SqliteWal(tmp_path, checkpoint_bytes=0)
    assert wal.open() == {1: Tail(1, 0, 1), 3: Tail(3, 0, 1)}
    wal.close()


def test_rows_of_deleted_partitions_are_swept_once_there_is_room(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    wal = opened(tmp_path)
    put(wal, 1, *range(1, 50))
    assert wal.write({1: [DELETE]}, sync=True) == {}
    vfs.hook = lambda step, path: fail_full() if step == "write" else None
    assert not wal.sweep()
    assert wal.deleting() == {1}
    vfs.hook = lambda step, path: None
    assert not wal.sweep()
    assert wal.deleting() == set()
    wal.close()


# --- a failing disk


def test_a_failed_sync_stops_its_shard_and_spares_the_others(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    wal = opened(tmp_path, shards=2)
    put(wal, 0, 1)
    put(wal, 1, 1)
    vfs.hook = lambda step, path: (
        fail_sync() if step == "sync" and path.endswith("shard-1-of-2.db-wal") else None
    )
    outcome = wal.write({0: append(2), 1: append(2), 3: append(1)}, sync=True)
    assert {number: type(error) for number, error in outcome.items()} == {
        1: OutcomeUnknown,
        3: OutcomeUnknown,
    }
    vfs.hook = lambda step, path: None
    # The system may call the next sync a success although it dropped the pages of the last one.
    assert type(wal.write({1: append(2)}, sync=True)[1]) is WriteFailed
    put(wal, 0, 3)
    checkpoint(wal)
    assert (keys(wal, 0), keys(wal, 1)) == ([1, 2, 3], [1])
    wal.close()
    wal = opened(tmp_path)
    assert keys(wal, 0) == [1, 2, 3]
    assert keys(wal, 1) in ([1], [1, 2])
    put(wal, 1, wal.tail(1).last_key + 1)
    wal.close()


@pytest.mark.parametrize("place", ["ours", "sqlite's"])
def test_a_failed_sync_in_a_checkpoint_stops_the_shard(
    place: str, tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path)
    put(wal, 1, 1, sync=False)
    with monkeypatch.context() as patch:
        if place == "ours":

            def fail(fd: int) -> None:
                raise OSError(5, "input/output error")

            patch.setattr(sqlite_walfile, "sync_data", fail)
        else:
            vfs.hook = lambda step, path: fail_sync() if step == "sync" else None
        checkpoint(wal)
    vfs.hook = lambda step, path: None
    failure = wal.write({1: append(2)}, sync=True)[1]
    assert type(failure) is WriteFailed
    assert "checkpoint" in str(failure)
    wal.close()
    wal = opened(tmp_path)
    assert keys(wal, 1) == [1]
    wal.close()


def test_an_error_that_may_come_after_the_commit_is_doubt_and_not_refusal(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    """No room to grow the -shm is noticed when the transaction is in the -wal already."""
    wal = opened(tmp_path)
    put(wal, 1, 1)

    def fail(step: str, path: str) -> None:
        if step == "sync":
            raise apsw.exception_for(apsw.SQLITE_IOERR_SHMSIZE)

    vfs.hook = fail
    assert type(wal.write({1: append(2)}, sync=True)[1]) is OutcomeUnknown
    vfs.hook = lambda step, path: None
    assert type(wal.write({1: append(2)}, sync=True)[1]) is WriteFailed
    shutil.copytree(tmp_path, tmp_path / "killed")
    wal.close()
    wal = opened(tmp_path / "killed")
    assert keys(wal, 1) == [1, 2]  # it was written: to call it a refusal would have been a lie
    wal.close()


def test_a_watermark_that_cannot_be_written_stops_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path)
    with monkeypatch.context() as patch:

        def fail(*_: object) -> int:
            raise OSError(5, "input/output error")

        patch.setattr(os, "pwrite", fail)
        assert type(wal.write({1: append(1)}, sync=True)[1]) is OutcomeUnknown
    assert type(wal.write({1: append(2)}, sync=True)[1]) is WriteFailed
    wal.close()


@pytest.mark.parametrize(
    "poison",
    [
        Operation([Entry(1, b"")], meta={"\ud800": b""}),
        Operation([Entry(1, b"")], meta={"name": object()}),  # type: ignore[dict-item]
        Operation([Entry(1, b"")], {"name": b""}, hard_state=(2**70, "vote")),  # type: ignore[arg-type]
    ],
    ids=["name", "value", "term"],
)
def test_an_operation_that_cannot_be_bound_leaves_no_transaction_open(
    poison: Operation, tmp_path: Path
) -> None:
    """Or the groups after it would be acknowledged inside a transaction that never commits."""
    wal = opened(tmp_path)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        wal.write({1: [Operation([Entry(1, b"")]), poison], 2: append(1)}, sync=True)
    put(wal, 3, 1)
    shutil.copytree(tmp_path, tmp_path / "killed")
    wal.close()
    wal = SqliteWal(tmp_path / "killed")
    assert wal.open() == {3: Tail(1, 0, 1)}
    wal.close()


def test_a_key_used_twice_replaces_nothing(tmp_path: Path) -> None:
    wal = opened(tmp_path)
    put(wal, 1, 1, 2)
    assert type(wal.write({1: append(2), 2: append(1)}, sync=True)[1]) is WriteFailed
    assert (keys(wal, 1), keys(wal, 2)) == ([1, 2], [])
    wal.close()


# --- creation, format, shards


def test_a_creation_that_broke_off_is_completed(
    campaign: Campaign, tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the directory before every step that changes it: as if killed there."""
    home, photos = tmp_path / "log", []

    def photograph(*_: object) -> None:
        photo = tmp_path / f"step-{len(photos)}"
        shutil.copytree(home, photo)
        photos.append(photo)

    def photographed(name: str) -> None:
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args: (photograph(), call(*args))[1])

    with monkeypatch.context() as patch:
        monkeypatch = patch
        for name in ("pwrite", "fsync", "rename", "ftruncate"):
            photographed(name)
        vfs.hook = photograph
        made = SqliteWal(home, shards=2)
        assert made.open() == {}
        vfs.hook = lambda step, path: None
    made.close()
    photograph()
    campaign.tally["steps"] = len(photos)
    assert len(photos) > 20
    for photo in photos:
        pinned = len(list(photo.glob("*.mark")))
        campaign.tally[f"killed_with_{pinned}_of_2_files_complete"] += 1
        wal = SqliteWal(photo, shards=2)
        assert wal.open() == {}
        put(wal, 0, 1)
        put(wal, 1, 1)
        wal.close()
        wal = SqliteWal(photo)
        assert wal.open() == {0: Tail(1, 0, 1), 1: Tail(1, 0, 1)}
        wal.close()


def test_the_shard_count_is_pinned(tmp_path: Path) -> None:
    opened(tmp_path, shards=3).close()
    with pytest.raises(InvalidConfig, match=r"created with 3 shards.*2 were asked for"):
        SqliteWal(tmp_path, shards=2).open()
    wal = opened(tmp_path)
    assert wal.parallelism == 3
    wal.close()
    opened(tmp_path, shards=3).close()


@pytest.mark.parametrize("shards", [0, 65, -1])
def test_a_senseless_shard_count_is_refused(shards: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="1 to 64 shards"):
        SqliteWal(tmp_path, shards=shards)


@pytest.mark.parametrize("suffixes", [(".db",), (".mark",), (".db", ".mark")])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_missing_shard_is_refused_by_name(
    index: int, suffixes: tuple[str, ...], tmp_path: Path
) -> None:
    wal = opened(tmp_path, shards=3)
    for partition in range(3):
        put(wal, partition, 1)
    wal.close()
    for suffix in suffixes:
        (tmp_path / f"shard-{index}-of-3{suffix}").unlink()
    before = sorted(os.listdir(tmp_path))
    for _ in range(2):  # the refusal changes nothing, so it is the same the next time
        with pytest.raises(Corrupt, match="missing") as refused:
            SqliteWal(tmp_path).open()
        assert f"shard-{index}-of-3." in refused.value.place
        assert sorted(os.listdir(tmp_path)) == before


def test_shards_that_changed_places_are_refused(tmp_path: Path) -> None:
    wal = opened(tmp_path, shards=2)
    put(wal, 0, 1)
    put(wal, 1, 1)
    wal.close()
    for suffix in ("db", "mark"):
        first, second = (tmp_path / f"shard-{index}-of-2.{suffix}" for index in range(2))
        first.rename(tmp_path / "aside")
        second.rename(first)
        (tmp_path / "aside").rename(second)
    with pytest.raises(Corrupt, match="another shard"):
        SqliteWal(tmp_path).open()


def test_shards_of_two_logs_are_refused(tmp_path: Path) -> None:
    opened(tmp_path / "one", shards=1).close()
    opened(tmp_path / "two", shards=2).close()
    for path in (tmp_path / "one").glob("shard*"):
        path.rename(tmp_path / "two" / path.name)
    with pytest.raises(Corrupt, match=r"different counts \[1, 2\]"):
        SqliteWal(tmp_path / "two").open()


@pytest.mark.parametrize(
    ("name", "value"), [("user_version", 2), ("user_version", 0), ("application_id", 7)]
)
def test_an_unknown_format_is_refused(name: str, value: int, tmp_path: Path) -> None:
    wal = opened(tmp_path)
    put(wal, 1, 1)
    wal.close()
    path = tmp_path / "shard-0-of-1.db"
    connection = apsw.Connection(str(path), vfs=sqlite_shard.checksum_vfs())
    connection.pragma(name, value)
    connection.close()
    with pytest.raises(UnknownFormat, match=str(path)):
        SqliteWal(tmp_path).open()


def test_somebody_else_in_the_file_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path)
    put(wal, 1, 1)
    shutil.copytree(tmp_path, tmp_path / "killed")
    wal.close()
    monkeypatch.setattr(sqlite_shard, "BUSY_MS", 1)
    path = tmp_path / "killed" / "shard-0-of-1.db"
    reader = apsw.Connection(str(path), vfs=sqlite_shard.checksum_vfs())
    reader.execute("BEGIN IMMEDIATE")
    with pytest.raises(AlreadyOwned, match=str(path)):
        SqliteWal(tmp_path / "killed").open()
    reader.close()
    opened(tmp_path / "killed").close()


# --- many partitions, many threads


def test_a_hundred_thousand_partitions(campaign: Campaign, tmp_path: Path) -> None:
    count = campaign.rounds(share=20_000, full=100_000)
    wal = opened(tmp_path)
    for first in range(0, count, 1000):
        group = {partition: append(1, 5) for partition in range(first, first + 1000)}
        assert wal.write(group, sync=False) == {}
    wal.close()
    wal = SqliteWal(tmp_path, checkpoint_bytes=0)
    tails = wal.open()
    assert tails == dict.fromkeys(range(count), Tail(5, 0, 1))
    assert keys(wal, count - 1) == [1, 5]
    wal.close()
    campaign.tally["partitions"] = count


def test_readers_never_see_a_tail_that_never_was(campaign: Campaign, tmp_path: Path) -> None:
    """While every entry is compacted away and new ones come, the end only moves forward."""
    wal = opened(tmp_path)
    put(wal, 1, 1)
    done = threading.Event()
    broken: list[str] = []

    def read() -> None:
        highest = 0
        while not done.is_set():
            last_key = wal.tail(1).last_key
            if last_key < highest:
                broken.append(f"{last_key} after {highest}")
            highest = max(highest, last_key)
            campaign.tally["tails_read"] += 1

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for key in range(2, campaign.rounds(share=500, full=10_000)):
            operations = [Operation(compact_before=key), *append(key)]
            assert wal.write({1: operations[:1]}, sync=False) == {}
            assert wal.write({1: operations[1:]}, sync=False) == {}
            checkpoint(wal)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not broken
    wal.close()


def test_a_sweep_is_bounded_in_bytes_as_well_as_in_rows(tmp_path: Path) -> None:
    """Writers wait for a chunk: large rows must not make it a long one."""
    wal = SqliteWal(tmp_path)
    wal.open()
    try:
        large = bytes(sqlite_tables.SWEEP_BYTES // 2)
        for key in range(1, 11):
            wal.write({1: [Operation((Entry(key, large),))]}, sync=False)
        wal.write({1: [DELETE]}, sync=True)
        chunks = 1
        while wal.sweep(limit=1000):
            chunks += 1
        assert chunks == 6, "two rows in each, and then nothing is left"
        assert wal.deleting() == set()
    finally:
        wal.close()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are told by /proc")
def test_every_file_is_closed_whatever_one_shard_raises(tmp_path: Path) -> None:
    wal = SqliteWal(tmp_path, shards=2)
    wal.open()
    wal.write({0: [Operation((Entry(1, b"a"),))], 1: [Operation((Entry(1, b"b"),))]}, sync=True)
    with (
        patch.object(wal.shards[0], "checkpoint", side_effect=MemoryError("no more")),
        pytest.raises(MemoryError),
    ):
        wal.close()
    left = {name for name in _open_files() if name.startswith(str(tmp_path))}
    # Its connections were not reached, and go with their shard; nothing else is left.
    assert {Path(name).name for name in left} <= {
        "shard-0-of-2.db",
        "shard-0-of-2.db-wal",
        "shard-0-of-2.db-shm",
    }


def _open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found

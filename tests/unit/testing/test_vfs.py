"""SQLite on the simulated disk: what it acknowledged survives, unless disk or setup lie."""

from __future__ import annotations

import asyncio
import errno
import gc
from typing import TYPE_CHECKING, Literal

import apsw
import pytest

from fairway.testing import PowerLoss, SimulatedDisk, SimulatedVFS, run
from fairway.testing.loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.testing.platter import Survival
    from tests.conftest import Campaign

Synchronous = Literal["FULL", "OFF"]
TRANSACTIONS = 5
SURVIVALS: tuple[Survival, ...] = ("random", "lose", "keep", "prefix")


def connect(vfs: SimulatedVFS, synchronous: Synchronous = "FULL") -> apsw.Connection:
    db = apsw.Connection("shard.db", vfs=vfs.name)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    assert db.execute("PRAGMA journal_mode = WAL").get == "wal"
    db.execute(f"PRAGMA synchronous = {synchronous}")
    return db


def commit(disk: SimulatedDisk, acknowledged: list[int], synchronous: Synchronous = "FULL") -> None:
    """A small life of a database: create, commit some, checkpoint, commit more, close."""
    vfs = SimulatedVFS(disk)
    db = connect(vfs, synchronous)
    db.execute("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, data BLOB)")
    for number in range(TRANSACTIONS):
        with db:
            db.execute("INSERT INTO entry VALUES (?, ?)", (2 * number, bytes([number]) * 3000))
            db.execute("INSERT INTO entry VALUES (?, ?)", (2 * number + 1, b"small"))
        acknowledged.append(number)
        if number == TRANSACTIONS // 2:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def recover(disk: SimulatedDisk) -> list[int]:
    """The transactions found after a restart; raises or asserts if the database is damaged."""
    vfs = SimulatedVFS(disk)
    db = apsw.Connection("shard.db", vfs=vfs.name)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        assert db.execute("PRAGMA integrity_check").get == "ok"
        if db.execute("SELECT count(*) FROM sqlite_schema").get == 0:
            return []
        found: dict[int, bytes] = dict(db.execute("SELECT id, data FROM entry"))
        for number in range(TRANSACTIONS):
            assert (2 * number in found) == (2 * number + 1 in found), "half a transaction"
            assert found.get(2 * number, bytes([number]) * 3000) == bytes([number]) * 3000
        return sorted(row // 2 for row in found if row % 2 == 0)
    finally:
        db.close()


def crash_at(
    operation: int,
    *,
    seed: int,
    survival: Survival = "random",
    synchronous: Synchronous = "FULL",
    lie_from: int | None = None,
) -> tuple[SimulatedDisk, str]:
    """Cut the power at one operation; the disk, and what became of the acknowledged commits."""
    disk = SimulatedDisk(seed + operation)
    disk.crash_at(operation)
    if lie_from is not None:
        disk.lie(nth=lie_from)
    acknowledged: list[int] = []
    with disk.life():
        commit(disk, acknowledged, synchronous)
    assert not disk.powered
    disk.restart(survival)
    try:
        found = recover(disk)
    except (AssertionError, apsw.Error):
        return disk, "damaged"
    lost = [number for number in acknowledged if number not in found]
    return disk, "lost" if lost else "intact"


def operations(synchronous: Synchronous = "FULL") -> int:
    """How many operations the workload has when nothing happens to it."""
    disk = SimulatedDisk()
    acknowledged: list[int] = []
    commit(disk, acknowledged, synchronous)
    last = disk.ops
    assert acknowledged == list(range(TRANSACTIONS)) == recover(disk)
    return last


def seeds(campaign: Campaign, *, share: int, full: int) -> Iterator[int]:
    source = campaign.random()
    for _ in range(campaign.rounds(share=share, full=full)):
        yield source.randrange(2**32)


# Campaigns


def test_acknowledged_commits_survive_a_power_loss_at_every_operation(campaign: Campaign) -> None:
    last = operations()
    for seed in seeds(campaign, share=3, full=50):
        for survival in SURVIVALS:
            for operation in range(last):
                disk, outcome = crash_at(operation, seed=seed, survival=survival)
                assert outcome == "intact", f"{seed=} {survival=} {operation=}"
                campaign.tally += disk.counts
                campaign.tally["crash_points"] += 1
    tally = campaign.tally
    assert tally["power_loss"] == tally["crash_points"] >= 3 * 4 * last
    for fate in ("write_kept", "write_lost", "write_torn", "name_change_lost"):
        assert tally[fate] > 10, fate


def test_a_disk_that_lies_about_syncs_is_found_out(campaign: Campaign) -> None:
    last = operations()
    for seed in seeds(campaign, share=2, full=20):
        for operation in range(last):
            disk, outcome = crash_at(operation, seed=seed, lie_from=4)
            campaign.tally[outcome] += 1
            campaign.tally += disk.counts
    assert campaign.tally["lying_sync"] > 50
    assert campaign.tally["lost"] > 10
    assert campaign.tally["intact"] > 10


def test_a_backend_that_does_not_sync_is_found_out(campaign: Campaign) -> None:
    last = operations("OFF")
    for seed in seeds(campaign, share=5, full=20):
        for operation in range(last):
            disk, outcome = crash_at(operation, seed=seed, synchronous="OFF")
            campaign.tally[outcome] += 1
            campaign.tally += disk.counts
    assert campaign.tally["lost"] > 20


def test_a_killed_process_needs_no_sync(campaign: Campaign) -> None:
    for operation in range(operations("OFF")):
        _, outcome = crash_at(operation, seed=campaign.seed, synchronous="OFF", survival="keep")
        assert outcome == "intact", operation
        campaign.tally[outcome] += 1


def test_a_failing_operation_at_any_point_loses_no_acknowledged_commit(campaign: Campaign) -> None:
    for seed in seeds(campaign, share=3, full=30):
        for operation, error in (
            ("write", errno.EIO),
            ("write", errno.ENOSPC),
            ("sync", errno.EIO),
            ("truncate", errno.EIO),
            ("create", errno.EIO),
        ):
            for nth in range(1, 25):
                disk = SimulatedDisk(seed)
                disk.fail(operation, nth=nth, error=error)  # type: ignore[arg-type]
                acknowledged: list[int] = []
                try:
                    commit(disk, acknowledged)
                except (apsw.IOError, apsw.FullError, apsw.CantOpenError) as raised:
                    campaign.tally[f"seen_{type(raised).__name__}"] += 1
                disk.restart()  # closes what the failed life left open
                assert set(acknowledged) <= set(recover(disk)), f"{seed=} {operation=} {nth=}"
                campaign.tally += disk.counts
    tally = campaign.tally
    for fault in ("write_EIO", "write_ENOSPC", "sync_EIO", "truncate_EIO", "create_EIO"):
        assert tally[fault] > 0, fault
    assert tally["seen_IOError"] > 10
    assert tally["seen_FullError"] > 10
    assert tally["seen_CantOpenError"] > 0


# Errors


def test_errors_carry_the_extended_code_of_their_operation() -> None:
    for operation, code in (
        ("write", apsw.SQLITE_IOERR_WRITE),
        ("sync", apsw.SQLITE_IOERR_FSYNC),
        ("read", apsw.SQLITE_IOERR_READ),
    ):
        disk = SimulatedDisk()
        commit(disk, [])
        vfs = SimulatedVFS(disk)
        db = connect(vfs)
        db.execute("PRAGMA cache_size = 0")
        disk.fail(operation)  # type: ignore[arg-type]
        with pytest.raises(apsw.IOError) as caught:
            db.execute("UPDATE entry SET data = zeroblob(9000)")
        assert caught.value.extendedresult == code
        disk.restart()


def test_a_full_disk_and_a_short_write_are_reported_as_full() -> None:
    for fault in ("capacity", "short"):
        disk = SimulatedDisk(3)
        acknowledged: list[int] = []
        commit(disk, acknowledged)
        if fault == "capacity":
            disk.capacity_bytes = sum(map(len, disk.image().values())) + 5000
        else:
            disk.shorten(nth=4)
        vfs = SimulatedVFS(disk)
        db = connect(vfs)
        with pytest.raises(apsw.FullError):
            db.execute("UPDATE entry SET data = zeroblob(9000)")
        disk.restart()
        assert recover(disk) == acknowledged
        assert disk.counts["disk_full"] + disk.counts["short_write"] > 0


def test_a_missing_database_is_not_created_by_a_reader() -> None:
    vfs = SimulatedVFS(SimulatedDisk())
    with pytest.raises(apsw.CantOpenError):
        apsw.Connection("absent.db", vfs=vfs.name, flags=apsw.SQLITE_OPEN_READONLY)


# One life, one owner, one VFS


def test_a_second_connection_is_refused_as_busy() -> None:
    disk = SimulatedDisk()
    vfs = SimulatedVFS(disk)
    first = connect(vfs)
    first.execute("CREATE TABLE entry (id)")
    second = apsw.Connection("shard.db", vfs=vfs.name)
    with pytest.raises(apsw.BusyError):
        second.execute("SELECT * FROM entry")
    first.close()
    assert second.execute("PRAGMA locking_mode = EXCLUSIVE").get == "exclusive"
    assert second.execute("SELECT count(*) FROM entry").get == 0
    second.close()


def test_rollback_journals_work_without_exclusive_locking() -> None:
    disk = SimulatedDisk()
    vfs = SimulatedVFS(disk)
    first = apsw.Connection("shard.db", vfs=vfs.name)
    first.execute("CREATE TABLE entry (id)")
    second = apsw.Connection("shard.db", vfs=vfs.name)
    with first:
        first.execute("INSERT INTO entry VALUES (1)")
        assert second.execute("SELECT count(*) FROM entry").get == 0
        with pytest.raises(apsw.BusyError):
            second.execute("INSERT INTO entry VALUES (2)")
    assert second.execute("SELECT count(*) FROM entry").get == 1
    first.close()
    second.close()
    assert disk.names() == ["shard.db"]


def test_a_dead_connection_is_closed_in_silence_and_harms_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = SimulatedDisk()
    old = SimulatedVFS(disk)
    dead = connect(old)
    dead.execute("CREATE TABLE entry (id)")
    dead.execute("BEGIN; INSERT INTO entry VALUES (1)")
    disk.crash()
    with pytest.raises(PowerLoss):
        dead.execute("COMMIT")
    disk.restart("keep")
    with pytest.raises(apsw.ConnectionClosedError):
        dead.execute("SELECT 1")
    with pytest.raises(apsw.CantOpenError):  # the name belongs to a program that is gone
        apsw.Connection("shard.db", vfs=old.name)
    with pytest.raises(apsw.IOError):
        old.xDelete("shard.db", True)
    with pytest.raises(apsw.IOError):
        old.xAccess("shard.db", apsw.SQLITE_ACCESS_EXISTS)
    del dead
    gc.collect()
    fresh = connect(SimulatedVFS(disk))
    assert fresh.execute("SELECT count(*) FROM entry").get == 0
    fresh.close()
    assert capsys.readouterr().err == ""


def test_temporary_files_come_and_go() -> None:
    disk = SimulatedDisk()
    db = connect(SimulatedVFS(disk))
    db.execute("PRAGMA temp_store = FILE; PRAGMA cache_size = 0; PRAGMA temp.cache_size = 1")
    db.execute("CREATE TEMP TABLE big (data)")
    for _ in range(200):
        db.execute("INSERT INTO big VALUES (zeroblob(5000))")
    assert any(name.startswith("temporary") for name in disk.names())
    db.close()
    assert not any(name.startswith("temporary") for name in disk.names())


def test_sqlite_reads_the_clock_it_is_given() -> None:
    db = connect(SimulatedVFS(SimulatedDisk()))
    assert db.execute("SELECT datetime('now')").get == "2026-01-01 00:00:00"
    db.close()

    async def main() -> str:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await asyncio.sleep(3600)
        db = connect(SimulatedVFS(SimulatedDisk(), clock=loop.clock))
        try:
            return str(db.execute("SELECT datetime('now')").get)
        finally:
            db.close()

    assert run(main, seed=1) == "2026-01-01 01:00:00"


def test_operations_depend_on_nothing_but_the_program() -> None:
    assert len({operations() for _ in range(3)}) == 1

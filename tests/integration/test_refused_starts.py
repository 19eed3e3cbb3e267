"""An app that refuses to start over damage leaves every file as it was.

Most damage is met only when topics are read, after the store itself was opened: by then nothing
may have changed, or what was acknowledged last would be moved into the damaged file and be gone.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from fairway import Fairway
from fairway.errors import Corrupt, InvalidConfig, UnknownFormat, WriteFailed
from fairway.storage.wal import Entry, Holding, Operation
from fairway.storage.wals.rocksdb import RocksdbWal
from fairway.storage.wals.sqlite import SqliteWal
from fairway.storage.wals.sqlite_shard import Shard
from tests.support.fingerprint import fingerprint
from tests.support.log_files import flip_bit

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.storage.wal import Group
    from tests.conftest import Campaign

PLACES = {"sqlite": ("", "shard-*.db"), "rocksdb": ("rocksdb:", "*.sst")}
TOPICS = 20
ONCE = "in the log alone"


async def late_job() -> None: ...


def app_at(kind: str, directory: Path) -> Fairway:
    return Fairway(f"{PLACES[kind][0]}{directory}", worker=None)


async def fill(kind: str, directory: Path, killed: Path) -> None:
    """Some topics in the large files, and a record and a job that are only in the logs beside
    them; then what is left if the process is killed."""
    app = app_at(kind, directory)
    job = app.job(late_job)
    async with app:
        for number in range(TOPICS):
            for part in range(4):
                values = [f"{number}/{part}/{n}" + "x" * 900 for n in range(10)]
                await app.topic(f"topic-{number}").append(*values)
        wal: Any = app.log._wal
        if kind == "rocksdb":
            await asyncio.to_thread(wal._db.flush)
        else:
            await asyncio.to_thread(wal.maintain)
            await asyncio.to_thread(wal.maintain)
        await app.topic("late").append(ONCE)
        await job.enqueue()
        shutil.copytree(directory, killed)


async def start(kind: str, directory: Path) -> list[Any]:
    async with app_at(kind, directory) as app:
        return [record.data for record in (await app.topic("late").read()).records]


@pytest.mark.parametrize("kind", PLACES)
def test_an_app_that_is_refused_over_damage_leaves_every_file_as_it_was(
    kind: str, campaign: Campaign, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    asyncio.run(fill(kind, tmp_path / "live", killed))
    rng = campaign.random()
    files = sorted(killed.rglob(PLACES[kind][1]))
    for number in range(campaign.rounds(share=10, full=200)):
        directory = tmp_path / str(number)
        shutil.copytree(killed, directory)
        path = directory / rng.choice(files).relative_to(killed)
        sound = path.read_bytes()
        at = rng.randrange(4096, len(sound))
        path.write_bytes(sound[:at] + bytes((sound[at] ^ 4,)) + sound[at + 1 :])
        before = fingerprint(directory)
        try:
            assert asyncio.run(start(kind, directory)) == [ONCE]
            campaign.tally["harmless"] += 1
        except Corrupt:
            campaign.tally["refused"] += 1
            assert fingerprint(directory) == before
            path.write_bytes(sound)
            assert asyncio.run(start(kind, directory)) == [ONCE], "it was all there"
        shutil.rmtree(directory)
    assert campaign.tally["refused"]


def cut_off(jobs: Path) -> None:
    """Behind its first frames the -wal is damaged, and what was acknowledged last is gone."""
    wal = jobs.with_name(f"{jobs.name}-wal")
    flip_bit(wal, 8 * (wal.stat().st_size // 2))


def renew(jobs: Path) -> None:
    """As a later release might leave it."""
    with closing(apsw.Connection(str(jobs))) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("user_version", 99)


def overwrite(jobs: Path) -> None:
    jobs.with_name(f"{jobs.name}-wal").unlink()  # or all of it would still be in there
    jobs.write_bytes(b"something else".ljust(4096))


def away(jobs: Path) -> None:
    """On a disk that is not mounted."""
    jobs.unlink()
    jobs.symlink_to("/nonexistent/disk/jobs.db")


def turn_away(jobs: Path) -> None:
    turn = jobs.with_name("jobs.db-turn")
    turn.unlink()
    turn.symlink_to("/nonexistent/disk/jobs.db-turn")


def turn_taken(jobs: Path) -> None:
    turn = jobs.with_name("jobs.db-turn")
    turn.unlink()
    turn.mkdir()


JOB_DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut off": cut_off,
    "missing": Path.unlink,
    "not a database": overwrite,
    "of a later release": renew,
    "on a disk that is away": away,
    "beside a turn that is away": turn_away,
    "beside a turn that is no file": turn_taken,
}


@pytest.mark.parametrize("damage", JOB_DAMAGE)
@pytest.mark.parametrize("kind", PLACES)
def test_an_app_that_is_refused_over_its_jobs_leaves_the_log_as_it_was(
    kind: str, damage: str, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    asyncio.run(fill(kind, tmp_path / "live", killed))
    JOB_DAMAGE[damage](killed / "jobs.db")
    before = fingerprint(killed)
    for _ in range(2):
        with pytest.raises((Corrupt, UnknownFormat, InvalidConfig)):
            asyncio.run(start(kind, killed))
        assert fingerprint(killed) == before


@pytest.mark.parametrize("kind", PLACES)
def test_no_log_is_made_beside_jobs_that_are_refused(kind: str, tmp_path: Path) -> None:
    with closing(apsw.Connection(str(tmp_path / "jobs.db"))) as connection:
        connection.execute("CREATE TABLE of_somebody_else (x)")
    before = fingerprint(tmp_path)
    with pytest.raises(Corrupt, match="not a Fairway job store"):
        asyncio.run(start(kind, tmp_path))
    assert fingerprint(tmp_path) == before


def test_a_log_that_is_removed_whole_begins_anew_beside_its_jobs(tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    asyncio.run(fill("sqlite", tmp_path / "live", killed))
    jobs = killed / "jobs.db"
    for path in killed.glob("shard-*"):
        path.unlink()
    assert asyncio.run(start("sqlite", killed)) == []
    assert jobs.stat().st_size


def test_what_keeps_the_reserve_from_being_made_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "reserve").mkdir()

    async def scenario() -> None:
        async with app_at("sqlite", tmp_path) as app:
            while app.kernel.writability.trouble is None:  # noqa: ASYNC110
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    (said,) = [one.getMessage() for one in caplog.records if "read-only" in one.getMessage()]
    assert "Is a directory" in said
    assert "full" not in said


STORES: dict[str, Callable[[Path], Any]] = {
    "sqlite": SqliteWal,
    "sqlite-3": lambda directory: SqliteWal(directory, shards=3),
    "rocksdb": RocksdbWal,
}


@pytest.mark.parametrize("kind", STORES)
def test_a_store_that_is_held_can_be_read_and_stays_as_it_was(kind: str, tmp_path: Path) -> None:
    make, killed = STORES[kind], tmp_path / "killed"
    wal = make(tmp_path / "live")
    wal.open()
    for key in range(1, 30):
        wal.write({7: [Operation((Entry(key, b"%d" % key),))]}, sync=True)
    shutil.copytree(tmp_path / "live", killed)
    wal.close()

    before = fingerprint(killed)
    held = make(killed)
    assert isinstance(held, Holding)
    assert held.open_held()[7].last_key == 29
    assert [entry.key for entry in held.read(7)] == list(range(1, 30))
    held.maintain()
    held.sweep()
    held.close()
    assert fingerprint(killed) == before

    held.open_held()
    assert held.write({7: [Operation((Entry(30, b"30"),))]}, sync=True) == {}, "it is released"
    held.close()
    assert fingerprint(killed) != before

    held.open_held()
    held.release()
    held.release()
    assert held.write({7: [Operation((Entry(31, b"31"),))]}, sync=True) == {}
    assert [entry.key for entry in held.read(7)] == list(range(1, 32))
    held.close()


@pytest.mark.parametrize("kind", STORES)
def test_a_new_store_is_made_although_it_is_held(kind: str, tmp_path: Path) -> None:
    held = STORES[kind](tmp_path / "new")
    assert held.open_held() == {}
    held.release()
    assert held.write({7: [Operation((Entry(1, b"1"),))]}, sync=True) == {}
    held.close()


def test_a_write_that_finds_no_room_to_recover_in_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = SqliteWal(tmp_path / "live")
    wal.open()
    wal.write({7: [Operation((Entry(1, b"1"),))]}, sync=True)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    wal.close()
    held = SqliteWal(tmp_path / "killed")
    held.open_held()
    second: Group = {7: [Operation((Entry(2, b"2"),))]}

    def full(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Shard, "_move_pages", full)
        assert isinstance(held.write(second, sync=True)[7], WriteFailed)
    assert held.write(second, sync=True) == {}, "it goes on once there is room"
    assert [entry.key for entry in held.read(7)] == [1, 2]
    held.close()

"""Acknowledged jobs that are gone from the SQLite file are noticed, and nothing else is.

The file counts the groups that were synced, and a mark beside it remembers the last of them. Every
state here is what kill -9 leaves behind: the files of a store that was open, copied.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from fairway.errors import Corrupt, OutcomeUnknown
from fairway.jobs.job import Filter, NewJob
from fairway.jobs.store import Want
from fairway.jobs.stores.sqlite import SqliteStore, schema
from fairway.storage.wals.sqlite_shard import FRAME_SIZE
from fairway.storage.watermark import Watermark
from tests.integration.test_jobs_sqlite import (
    JOB,
    LINE,
    SECOND_NS,
    break_commits,
    opened,
    play,
    writing,
)
from tests.support.fingerprint import fingerprint
from tests.support.log_files import flip_bit

if TYPE_CHECKING:
    from tests.conftest import Campaign

ROOT = Path(__file__).parents[2]
FILE, WAL, MARK = "jobs.db", "jobs.db-wal", "jobs.db-mark"
STATES = ("live", "moved", "restarted", "closed")
JOBS = 24

Jobs = dict[int, bytes]


@dataclass
class State:
    directory: Path
    jobs: Jobs
    older: Path
    """The same files as they were a few jobs before."""


def copy(source: Path, target: Path) -> None:
    target.mkdir()
    for name in (FILE, WAL, MARK):
        if (source / name).exists():
            shutil.copy(source / name, target / name)


def made(home: Path, name: str) -> State:
    """Files with `JOBS` acknowledged jobs: all in the -wal (`live`), all moved into the database
    but in the -wal as well (`moved`), or half of them so and the -wal begun anew (`restarted`)."""
    live = home / "live"
    live.mkdir(parents=True)
    jobs: Jobs = {}

    async def add(store: SqliteStore, count: int) -> None:
        for number in range(len(jobs), len(jobs) + count):
            state = b"%06d" % number * (1 + number * 40)
            (one,) = await store.enqueue([NewJob(kind="noop", state=state)])
            jobs[one.id] = state
            await store.register(f"w{number}", 1)  # not synced

    async def scene() -> None:
        async with opened(live / FILE) as store:
            await add(store, JOBS // 2)
            if name == "restarted":
                writing(store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
            await add(store, 2)
            copy(live, home / "older")
            await add(store, JOBS // 2 - 2)
            if name == "moved":
                writing(store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if name != "closed":
                copy(live, home / "killed")
        if name == "closed":
            copy(live, home / "killed")

    asyncio.run(scene())
    return State(home / "killed", jobs, home / "older")


def look(directory: Path, opening: list[str] | None = None) -> Jobs:
    """Every job, found by both ways. `opening` is told once the store is open."""
    found: Jobs = {}

    async def scene(store: SqliteStore) -> None:
        if opening is not None:
            opening.append("done")
        for job in await store.browse(Filter(limit=1_000_000)):
            found[job.id] = job.state
            again = await store.find(job.id)
            assert again is not None
            assert again.state == job.state

    play(directory / FILE, scene)
    return found


def outcome(directory: Path, jobs: Jobs) -> str:
    """What comes of these files: `intact`, `refused` (when they are opened, with every file as it
    was, or when they are read) or `CHANGED`."""
    before = fingerprint(directory)
    opening: list[str] = []
    refused: Corrupt | None = None
    found: Jobs = {}
    try:
        found = look(directory, opening)
    except Corrupt as refusal:
        refused = refusal
    if refused is None:
        return "intact" if found == jobs else "CHANGED"
    assert refused.place == str(directory / FILE)
    if opening:
        return "refused when read"
    assert fingerprint(directory) == before, "a refused start changed files"
    gone = "acknowledged jobs are gone" in refused.reason
    return "refused by the mark" if gone else "refused"


def flip(state: State, name: str, scratch: Path, campaign: Campaign, rounds: int) -> None:
    rng = campaign.random(name)
    for _ in range(rounds):
        copy(state.directory, scratch)
        size = (scratch / name).stat().st_size
        flip_bit(scratch / name, rng.randrange(8 * rng.choice((size, min(size, 600)))))
        ended = outcome(scratch, state.jobs)
        campaign.tally[f"{name} {ended}"] += 1
        if ended in ("refused", "refused by the mark"):
            # The one file put back from a copy is enough: a refusal took nothing from the others.
            shutil.copy(state.directory / name, scratch / name)
            assert outcome(scratch, state.jobs) == "intact"
        shutil.rmtree(scratch)


@pytest.mark.parametrize("name", STATES)
def test_a_flipped_bit_beside_the_jobs_is_refused_or_harmless(
    name: str, campaign: Campaign, tmp_path: Path
) -> None:
    state = made(tmp_path / "made", name)
    rounds = campaign.rounds(share=16, full=600)
    if name != "closed":
        flip(state, WAL, tmp_path / "scratch", campaign, rounds)
        assert campaign.tally[f"{WAL} CHANGED"] == 0
        assert campaign.tally[f"{WAL} refused by the mark"] > 0
    flip(state, MARK, tmp_path / "scratch", campaign, rounds // 4)
    assert campaign.tally[f"{MARK} intact"] == rounds // 4


def test_a_flipped_bit_in_the_file_of_jobs_is_harmless_as_long_as_all_are_in_the_wal(
    campaign: Campaign, tmp_path: Path
) -> None:
    """Once they have been moved there, SQLite alone looks after them: see "durability"."""
    state = made(tmp_path / "made", "live")
    flip(state, FILE, tmp_path / "scratch", campaign, campaign.rounds(share=20, full=300))
    assert campaign.tally[f"{FILE} CHANGED"] == 0


def test_without_the_mark_a_flipped_bit_loses_jobs_in_silence(
    campaign: Campaign, tmp_path: Path
) -> None:
    """PLANTED: what SQLite does with a bad frame when nobody looks. The check above sees it."""
    state = made(tmp_path / "made", "live")
    (state.directory / MARK).unlink()
    flip(state, WAL, tmp_path / "scratch", campaign, 20)
    assert campaign.tally[f"{WAL} CHANGED"] > 0


@pytest.mark.parametrize("first", ["claim", "guest"])
def test_damage_behind_a_commit_that_was_not_marked_is_noticed(first: str, tmp_path: Path) -> None:
    """Everything is in the database. But SQLite shows what it can still read of the -wal in front
    of it: the page of jobs as it was before the last of them came."""
    live, killed = tmp_path / "live", tmp_path / "killed"
    live.mkdir()

    async def scene(store: SqliteStore) -> None:
        await store.enqueue([JOB] * 3)
        worker = await store.register("w", 60 * SECOND_NS)
        writing(store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        if first == "claim":
            assert (await store.exchange(worker, 1, wants=[Want(LINE, 1)])).claims
        else:
            theirs = apsw.Connection(str(live / FILE))
            theirs.execute("BEGIN IMMEDIATE")
            await store.enqueue([JOB], within=theirs)
            theirs.execute("COMMIT")
            theirs.close()
        await store.enqueue([JOB] * 3)
        writing(store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        copy(live, killed)

    play(live / FILE, scene)
    jobs = look(live)
    raw = (killed / WAL).read_bytes()
    committed = next(
        start for start in range(32, len(raw), FRAME_SIZE) if any(raw[start + 4 : start + 8])
    )
    flip_bit(killed / WAL, 8 * (committed + FRAME_SIZE + 100))
    assert outcome(killed, jobs) == "refused by the mark"


@pytest.mark.parametrize("name", STATES)
def test_a_missing_shortened_or_older_file_beside_the_jobs_is_refused_or_harmless(
    name: str, campaign: Campaign, tmp_path: Path
) -> None:
    state = made(tmp_path / "made", name)
    scratch = tmp_path / "scratch"
    for damaged in (FILE, WAL, MARK):
        for left in (None, 0, 0.3, 0.9, "older"):
            source = state.older / damaged if left == "older" else state.directory / damaged
            if not source.exists() or not (state.directory / damaged).exists():
                continue
            copy(state.directory, scratch)
            if left is None:
                (scratch / damaged).unlink()
            elif isinstance(left, str):
                shutil.copy(source, scratch / damaged)
            else:
                os.truncate(scratch / damaged, int((scratch / damaged).stat().st_size * left))
            ended = outcome(scratch, state.jobs)
            campaign.tally[f"{damaged} {left}: {ended}"] += 1
            shutil.rmtree(scratch)
            if damaged == MARK:
                assert ended == "intact", left
            elif damaged == WAL:
                # What was moved into the database is there without the -wal; else it is missed.
                harmless = left in (None, 0) if name == "moved" else left == 0.9
                assert ended == "refused by the mark" or (harmless and ended == "intact"), left
            elif left in (None, 0):
                assert ended == "refused by the mark"
            elif left == "older":  # it has the schema, or not even that: the rest is in the -wal
                assert ended == ("refused by the mark" if name == "closed" else "intact")
            else:
                assert ended in ("intact", "refused", "refused when read"), left


def test_the_whole_directory_put_back_from_a_copy_is_no_loss(tmp_path: Path) -> None:
    """Files of one moment agree with each other, however old they are."""
    state = made(tmp_path / "made", "live")
    before = {id: value for id, value in state.jobs.items() if id <= JOBS // 2 + 2}
    assert outcome(state.older, before) == "intact"
    (state.directory / MARK).unlink()  # and so does a database that comes without a mark
    assert outcome(state.directory, state.jobs) == "intact"


def test_without_its_mark_a_shortened_file_goes_on_with_what_is_left(tmp_path: Path) -> None:
    state = made(tmp_path / "made", "restarted")
    (state.directory / WAL).unlink()
    with pytest.raises(Corrupt, match=r"the file ends at group 24, but group 47 was synced"):
        look(state.directory)
    (state.directory / MARK).unlink()
    assert sorted(look(state.directory)) == list(range(1, JOBS // 2 + 1))
    play(state.directory / FILE, lambda store: store.set_paused("q", True))
    assert Watermark(state.directory / MARK).peek() == 25


def test_jobs_that_are_there_are_never_taken_for_lost(campaign: Campaign, tmp_path: Path) -> None:
    """Two processes add jobs and are killed, one or both; whoever opens the file finds it sound,
    whether the other is alive or not."""
    rng = campaign.random()
    path = tmp_path / FILE
    running: list[subprocess.Popen[str]] = []
    acknowledged: set[int] = set()
    try:
        for _ in range(campaign.rounds(share=3, full=60)):
            while len(running) < 2:
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.support.jobs_adding_child", str(path)],
                        cwd=ROOT,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
            for child in running:
                assert child.stdout is not None
                for _ in range(rng.randint(1, 60)):
                    acknowledged.add(int(child.stdout.readline()))
            rng.shuffle(running)
            for _ in range(rng.randint(1, 2)):
                child = running.pop()
                child.send_signal(signal.SIGKILL)
                said, _ = child.communicate()
                assert child.returncode == -signal.SIGKILL
                whole = said[: said.rfind("\n") + 1]  # the last line may have been cut short
                acknowledged.update(map(int, whole.split()))
            assert acknowledged <= set(look(tmp_path))
            assert Watermark(tmp_path / MARK).peek() > 0
    finally:
        for child in running:
            child.kill()
            child.communicate()
    campaign.tally["acknowledged"] = len(acknowledged)
    assert acknowledged <= set(look(tmp_path))


def test_a_guest_who_commits_and_closes_last_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / FILE

    async def scene() -> None:
        async with opened(path) as store:
            theirs = apsw.Connection(str(path))
            theirs.pragma("synchronous", "OFF")
            theirs.execute("SELECT count(*) FROM job").fetchall()
            await store.enqueue([NewJob(kind="noop")])
        theirs.execute("BEGIN IMMEDIATE")
        await SqliteStore(path).enqueue([NewJob(kind="noop")], within=theirs)
        theirs.execute("COMMIT")
        theirs.close()  # which moves the -wal into the file, and deletes it

    for number in range(3):
        asyncio.run(scene())
        assert not (tmp_path / WAL).exists()
        assert sorted(look(tmp_path)) == list(range(1, 2 * number + 3))
    assert Watermark(tmp_path / MARK).peek() == 5  # the guest's commits count and mark nothing


def test_everything_that_changes_something_counts_and_what_was_synced_is_marked(
    tmp_path: Path,
) -> None:
    mark = Watermark(tmp_path / MARK)

    async def scene(store: SqliteStore) -> None:
        assert mark.peek() == 0
        await store.register("w", 10**12)
        await store.promote(10)
        assert mark.peek() == 0
        await store.enqueue([NewJob(kind="noop", unique_key="u")])
        assert mark.peek() == 2
        (again,) = await store.enqueue([NewJob(kind="noop", unique_key="u")])
        assert not again.fresh
        assert mark.peek() == 2
        await asyncio.gather(*(store.enqueue([NewJob(kind="noop")]) for _ in range(50)))
        assert mark.peek() == 3
        store.lease_renewer().renew(1, {}, 1, 0)
        await store.set_paused("q", True)
        assert mark.peek() == 5

    play(tmp_path / FILE, scene)


def test_a_commit_in_doubt_is_not_marked(tmp_path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        await store.enqueue([NewJob(kind="noop")])
        break_commits(store, apsw.SQLITE_IOERR_FSYNC)
        with pytest.raises(OutcomeUnknown):
            await store.enqueue([NewJob(kind="noop")])
        break_commits(store, None)

    play(tmp_path / FILE, scene)
    assert Watermark(tmp_path / MARK).peek() == 1
    assert sorted(look(tmp_path)) == [1]


def test_a_mark_that_cannot_be_written_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The jobs are on the disk, and their caller is told so: the mark is about what comes later."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    async def scene(store: SqliteStore) -> None:
        await store.enqueue([NewJob(kind="noop")])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            for _ in range(3):
                await store.enqueue([NewJob(kind="noop")])
        assert mark.peek() == 1
        await store.enqueue([NewJob(kind="noop")])
        assert mark.peek() == 5

    mark = Watermark(tmp_path / MARK)
    play(tmp_path / FILE, scene)
    assert sorted(look(tmp_path)) == [1, 2, 3, 4, 5]
    (said,) = [record for record in caplog.records if record.name == "fairway.jobs"]
    assert f"{tmp_path / MARK} cannot be written" in said.getMessage()


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
def test_a_file_of_an_earlier_format_beside_a_mark_is_older_than_it(
    tmp_path: Path, version: int
) -> None:
    """Formats without a count: alone they are brought up to date, in place of a newer file not."""
    connection = apsw.Connection(str(tmp_path / FILE))
    for migration in schema.MIGRATIONS[:version]:
        connection.execute(migration)
    connection.pragma("user_version", version)
    connection.close()
    mark = Watermark(tmp_path / MARK)
    mark.share()
    mark.advance(7)
    mark.close()
    assert outcome(tmp_path, {}) == "refused by the mark"
    (tmp_path / MARK).unlink()
    assert outcome(tmp_path, {}) == "intact"
    play(tmp_path / FILE, lambda store: store.set_paused("q", True))
    assert mark.peek() == 1

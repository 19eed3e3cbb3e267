"""The job store on SQLite, in what is SQLite's alone: files, processes, commits and syncs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import apsw
import msgspec
import pytest

from fairway.core.priority import Band
from fairway.errors import (
    Closing,
    Corrupt,
    Invalid,
    InvalidConfig,
    OutcomeUnknown,
    Unavailable,
    UnknownFormat,
    WriteFailed,
)
from fairway.jobs.job import Fate, Filter, Limits, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.store import TopicCursor, Want
from fairway.jobs.stores.sqlite import (
    SqliteStore,
    browsing,
    claiming,
    connections,
    schema,
    settling,
    tenants,
    transaction,
    upkeep,
    writer_queue,
)
from fairway.testing import run as run_virtually
from tests.support.fingerprint import fingerprint
from tests.support.jobs_sqlite_child import ChildReport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

SECOND_NS = 1_000_000_000
LINE = ReadyLine("default", "", Band.B1)
JOB = NewJob(kind="noop")
FULL = 2
"""What `PRAGMA synchronous` answers."""


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


def play(path: Path, scene: Callable[[SqliteStore], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with opened(path) as store:
            await scene(store)

    asyncio.run(main())


def writing(store: SqliteStore) -> apsw.Connection:
    """The connection of the writer's thread; ours as long as no call is under way."""
    assert store._writer is not None
    connection = store._writer._committer._connection
    assert connection is not None
    return connection


async def together(*calls: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


# --- several processes


def start(path: Path, name: str, jobs: int, everybody: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable, "-m", "tests.support.jobs_sqlite_child",
            str(path), name, str(jobs), ",".join(everybody),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_processes_share_a_file_and_every_job_runs_once(path: Path) -> None:
    """They also make the file, all at once."""
    names, jobs = ["anna", "ben", "cleo"], 140
    children = [start(path, name, jobs, names) for name in names]
    report = []
    for child in children:
        out, _ = child.communicate(timeout=100)
        assert child.returncode == 0
        report.append(msgspec.json.decode(out, type=ChildReport))
    added = sorted(id for one in report for id in one.added)
    ran = sorted(id for one in report for id in one.ran)
    assert len(added) == len(set(added)) == jobs * len(names)
    assert ran == added
    assert not any(one.stale for one in report)

    async def look(store: SqliteStore) -> None:
        found = await store.browse(Filter(limit=10_000))
        assert sorted(job.id for job in found) == added
        assert {job.status for job in found} == {Status.DONE}

    play(path, look)


def test_nobody_writes_while_another_waits_with_the_turn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_queue, "BUSY_MS", 3)

    async def scene(store: SqliteStore) -> None:
        other = os.open(f"{path}-turn", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable):
            await store.enqueue([JOB])
        fcntl.flock(other, fcntl.LOCK_UN)
        assert [one.id for one in await store.enqueue([JOB])] == [1]
        # Once SQLite has let somebody in, the turn is free for the next.
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)

    play(path, scene)


def test_a_file_held_too_long_is_a_refusal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BUSY_MS", 20)

    async def scene(store: SqliteStore) -> None:
        worker = await store.register("w", 60 * SECOND_NS)
        renewer = store.lease_renewer()
        assert renewer.renew(worker, {}, 60 * SECOND_NS, 0).alive
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            await store.enqueue([JOB])
        with pytest.raises(Unavailable):
            renewer.renew(worker, {}, 60 * SECOND_NS, 0)
        assert await store.browse(Filter()) == []  # who only looks waits for nobody
        other.execute("COMMIT")
        assert [one.id for one in await store.enqueue([JOB])] == [1]
        assert renewer.renew(worker, {}, 60 * SECOND_NS, 0).alive
        renewer.close()
        other.close()

    play(path, scene)


# --- groups


def test_calls_that_wait_together_share_one_commit(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        commits = 0

        def committed() -> bool:
            nonlocal commits
            commits += 1
            return False

        writing(store).set_commit_hook(committed)
        added = await together(*(store.enqueue([JOB, JOB]) for _ in range(50)))
        assert sorted(one.id for answer in added for one in answer) == list(range(1, 101))
        assert commits == 1
        await store.enqueue([JOB])
        assert commits == 2

    play(path, scene)


def test_calls_that_come_during_a_commit_share_the_next(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        commits = 0
        begun, go_on = threading.Event(), threading.Event()

        def committed() -> bool:
            nonlocal commits
            commits += 1
            begun.set()
            go_on.wait(10)
            return False

        writing(store).set_commit_hook(committed)
        async with asyncio.TaskGroup() as group:
            group.create_task(store.enqueue([JOB]))
            await asyncio.to_thread(begun.wait, 10)
            for _ in range(20):
                group.create_task(store.enqueue([JOB]))
            await asyncio.sleep(0)
            go_on.set()
        assert commits == 2
        assert len(await store.browse(Filter())) == 21

    play(path, scene)


def test_a_call_that_fails_is_undone_alone(path: Path) -> None:
    wrong: Any = NewJob(kind="noop", queue="new", unique_key="u", state="no bytes")  # type: ignore[arg-type]

    async def scene(store: SqliteStore) -> None:
        first, failed, last = await together(
            store.enqueue([NewJob(kind="noop", queue="other")]),
            store.enqueue([NewJob(kind="noop", queue="new"), wrong], cursor=TopicCursor("c", 1, 1)),
            store.enqueue([NewJob(kind="noop", queue="new", unique_key="u")]),
        )
        assert isinstance(failed, WriteFailed)
        assert [one.id for one in (*first, *last)] == [1, 2]
        assert [job.queue for job in await store.browse(Filter())] == ["new", "other"]
        assert await store.cursor("c") is None
        with pytest.raises(WriteFailed):  # alone in its group
            await store.enqueue([msgspec.structs.replace(wrong, unique_key="v")])
        with pytest.raises(OverflowError):
            await store.enqueue([NewJob(kind="noop", at_wall_ns=1 << 70)])
        assert [one.id for one in await store.enqueue([NewJob(kind="noop", queue="new")])] == [3]

    play(path, scene)


def test_jobs_that_are_added_together_fail_alone(path: Path) -> None:
    wrong: Any = NewJob(kind="noop", state="no bytes")  # type: ignore[arg-type]

    async def scene(store: SqliteStore) -> None:
        good = [NewJob(kind="noop", state=b"%d" % number) for number in range(20)]
        calls = [[*good[:10]], [wrong], [], good[10:15], [*good[15:], wrong]]
        first, failed, empty, second, half = await together(
            *(store.enqueue(jobs) for jobs in calls)
        )
        assert isinstance(failed, WriteFailed)
        assert isinstance(half, WriteFailed)
        assert [one.id for one in first] == [*range(1, 11)]
        assert [one.id for one in second] == [*range(11, 16)]
        assert empty == []
        found = await store.browse(Filter())
        assert {job.id: job.state for job in found} == {n + 1: b"%d" % n for n in range(15)}

    play(path, scene)


def test_jobs_that_are_added_together_keep_their_order_and_their_keys(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        jobs = [
            NewJob(
                kind="noop",
                queue=f"queue {number % 3 if number < 30 else 0}",
                state=b"" if number % 20 == 7 else b"%d" % number,
                unique_key=f"key {number % 40}" if number % 2 else None,
                priority=number // 50,
            )
            for number in range(100)
        ]
        answers = await together(*(store.enqueue([job]) for job in jobs))
        known: dict[str, int] = {}
        for job, (answer,) in zip(jobs, answers, strict=True):
            stored = await store.find(answer.id)
            assert stored is not None
            assert answer.fresh is (job.unique_key not in known)
            if job.unique_key is not None:
                assert known.setdefault(job.unique_key, answer.id) == answer.id
            if answer.fresh:
                kept = (stored.state, stored.queue, stored.unique_key, stored.priority)
                assert kept == (job.state, job.queue, job.unique_key, job.priority)

    play(path, scene)


def test_a_cancelled_call_that_had_not_begun_does_nothing(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(store.enqueue([JOB]))
            await asyncio.sleep(0)
            gone.cancel()
        assert await store.browse(Filter()) == []

    play(path, scene)


def test_what_others_were_promised_is_synced_and_the_rest_is_not(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        worker = await store.register("w", 600 * SECOND_NS)
        token = 0

        async def syncs(call: Awaitable[Any]) -> bool:
            await call
            return bool(writing(store).pragma("synchronous") == FULL)

        async def exchange(*settlements: Settlement) -> Any:
            nonlocal token
            token += 1
            return await store.exchange(worker, token, settlements, [Want(LINE, 1)])

        assert await syncs(store.enqueue([JOB, JOB, JOB]))
        unsynced: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.register("v", SECOND_NS),
            exchange,
            lambda: store.promote(10),
            lambda: store.reap(10),
            lambda: store.age(10),
            lambda: store.progress(worker, {1: b"half"}),
            lambda: store.prune(SECOND_NS),
        ]
        for call in unsynced:
            assert not await syncs(call())
        (claim,) = (await exchange()).claims
        assert await syncs(exchange(Settlement(claim=claim, fate=Fate.DONE)))
        assert not await syncs(store.promote(10))
        synced: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.signal(1, "s", b""),
            lambda: store.cancel([3]),
            lambda: store.retry([3]),
            lambda: store.set_paused("q", True),
            lambda: store.set_limits("q", Limits()),
        ]
        for call in synced:
            assert await syncs(call())
            assert not await syncs(store.promote(10))
        # One in a group that needs it is enough.
        await together(store.promote(10), store.enqueue([JOB]), store.age(10))
        assert writing(store).pragma("synchronous") == FULL

    play(path, scene)


class Breaking:
    """A connection whose commits fail."""

    def __init__(self, connection: apsw.Connection, code: int) -> None:
        self._connection = connection
        self._code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *bindings: Any) -> Any:
        if statement == "COMMIT":
            raise apsw.exception_for(self._code)
        return self._connection.execute(statement, *bindings)


def break_commits(store: SqliteStore, code: int | None) -> None:
    connection: Any = writing(store)
    assert store._writer is not None
    whole = getattr(connection, "_connection", connection)
    store._writer._committer._connection = Breaking(whole, code) if code else whole  # type: ignore[assignment]


def test_a_commit_that_failed_failed_for_the_whole_group(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        break_commits(store, apsw.SQLITE_FULL)
        failed = await together(
            store.enqueue([JOB]), store.enqueue([JOB]), store.set_paused("q", True)
        )
        assert [type(one) for one in failed] == [WriteFailed] * 3
        break_commits(store, None)
        assert [one.id for one in await store.enqueue([JOB])] == [1]

    play(path, scene)


def test_a_sync_that_failed_leaves_the_outcome_unknown_and_nothing_is_trusted(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        break_commits(store, apsw.SQLITE_IOERR_FSYNC)
        failed = await together(store.enqueue([JOB]), store.enqueue([JOB]))
        assert [type(one) for one in failed] == [OutcomeUnknown] * 2
        break_commits(store, None)
        with pytest.raises(WriteFailed):
            await store.enqueue([JOB])

    play(path, scene)
    play(path, lambda store: store.set_paused("q", True))


# --- files


def test_a_file_of_a_newer_release_is_refused(path: Path) -> None:
    play(path, lambda store: store.set_paused("q", True))
    with apsw.Connection(str(path)) as newer:
        newer.pragma("user_version", len(schema.MIGRATIONS) + 1)
    newer.close()
    with pytest.raises(UnknownFormat):
        play(path, lambda store: store.set_paused("q", True))


def test_a_file_that_is_not_ours_is_refused_and_left_alone(path: Path) -> None:
    with apsw.Connection(str(path)) as foreign:
        foreign.execute("CREATE TABLE job (id INTEGER PRIMARY KEY)")
    foreign.close()
    before = path.read_bytes()
    with pytest.raises(Corrupt):
        play(path, lambda store: store.set_paused("q", True))
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["no database", "damaged"])
def test_a_damaged_file_is_refused(path: Path, damage: str) -> None:
    if damage == "no database":
        path.write_bytes(b"these are not the pages you are looking for" * 100)
    else:
        play(path, lambda store: store.set_paused("q", True))
        data = bytearray(path.read_bytes())
        data[100:4096] = bytes(3996)
        path.write_bytes(data)
    with pytest.raises(Corrupt):
        play(path, lambda store: store.set_paused("q", True))


NEWER = len(schema.MIGRATIONS) + 1


@pytest.mark.parametrize(
    ("offset", "written"),
    [
        (0, b"no SQLite file  "),
        (60, NEWER.to_bytes(4)),  # `user_version`
        (68, b"ours"),  # `application_id`
        (100, bytes(3996)),  # the schema
    ],
    ids=["no database", "newer", "foreign", "damaged"],
)
def test_a_refused_file_is_left_as_it_was_and_its_wal_too(
    path: Path, tmp_path: Path, offset: int, written: bytes
) -> None:
    """As kill -9 left it, with jobs that are in the -wal alone: a sound copy of the file, put back,
    has them all."""
    killed = tmp_path / "killed"
    killed.mkdir()

    async def scene() -> None:
        async with opened(path):
            pass
        async with opened(path) as store:
            await store.enqueue([JOB])
            for suffix in ("", "-wal"):
                shutil.copy(f"{path}{suffix}", killed / f"{path.name}{suffix}")

    asyncio.run(scene())
    sound = (killed / path.name).read_bytes()
    damaged = bytearray(sound)
    damaged[offset : offset + len(written)] = written
    (killed / path.name).write_bytes(damaged)
    before = fingerprint(killed)
    assert before[f"{path.name}-wal"]
    for _ in range(2):
        with pytest.raises((Corrupt, UnknownFormat)):
            play(killed / path.name, lambda store: store.set_paused("q", True))
        assert fingerprint(killed) == before
    (killed / path.name).write_bytes(sound)

    async def look(store: SqliteStore) -> None:
        found = await store.find(1)
        assert found is not None
        assert found.kind == JOB.kind

    play(killed / path.name, look)


def test_a_file_that_is_inspected_stays_as_it_was_and_is_not_made(
    path: Path, tmp_path: Path
) -> None:
    new, killed = tmp_path / "new", tmp_path / "killed"
    new.mkdir()
    killed.mkdir()

    async def scene() -> None:
        await SqliteStore(new / path.name).inspect()
        assert fingerprint(new) == {}
        async with opened(path) as store:
            await store.enqueue([JOB])
            for suffix in ("", "-wal", "-mark"):
                shutil.copy(f"{path}{suffix}", killed / f"{path.name}{suffix}")
            await SqliteStore(path).inspect()  # beside somebody who uses it
            await store.enqueue([JOB])
        for directory in (killed, path.parent):
            before = fingerprint(directory)
            await SqliteStore(directory / path.name).inspect()
            assert fingerprint(directory) == before
        async with opened(killed / path.name) as store:
            assert await store.find(1) is not None

    asyncio.run(scene())


def test_a_place_that_cannot_be_opened_is_a_wrong_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        play(tmp_path / "missing" / "jobs.db", lambda store: store.set_paused("q", True))
    for name in (":memory:", "", "file:jobs.db?mode=memory"):
        with pytest.raises(InvalidConfig):
            SqliteStore(name)


def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    async def scene() -> None:
        store = SqliteStore(path)
        with pytest.raises(Closing):
            await store.enqueue([JOB])
        async with opened(path) as store:
            pass
        with pytest.raises(Closing):
            await store.find(1)
        await store.aclose()

    asyncio.run(scene())


def test_jobs_outlive_the_store(path: Path) -> None:
    async def add(store: SqliteStore) -> None:
        await store.enqueue([NewJob(kind="noop", tenant="t", state=b'{"n":1}')])

    async def look(store: SqliteStore) -> None:
        job = await store.find(1)
        assert job is not None
        assert (job.tenant, job.state, job.status) == ("t", b'{"n":1}', Status.READY)
        assert [one.id for one in await store.enqueue([JOB])] == [2]

    play(path, add)
    play(path, look)


def test_it_runs_on_virtual_time(path: Path) -> None:
    async def scene() -> None:
        async with opened(path) as store:
            worker = await store.register("w", 600 * SECOND_NS)
            await store.enqueue([NewJob(kind="noop", delay_ns=60 * SECOND_NS)])
            assert (await store.promote(10)).moved == 0
            await asyncio.sleep(60)
            assert (await store.promote(10)).moved == 1
            (claim,) = (await store.exchange(worker, 1, wants=[Want(LINE, 5)])).claims
            assert store.lease_renewer().renew(worker, {}, SECOND_NS, 0).released == 1
            assert claim.id == 1

    run_virtually(scene, seed=1)


# --- the caller's transaction


def at(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(5_000)
    return connection


def test_jobs_are_added_in_a_transaction_of_the_caller(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        theirs = at(path)
        theirs.execute("CREATE TABLE customer (name TEXT)")
        new = [NewJob(kind="mail", queue="mail", tenant="t", unique_key="u"), JOB]

        theirs.execute("BEGIN IMMEDIATE")
        theirs.execute("INSERT INTO customer VALUES ('rolled back')")
        assert [one.id for one in await store.enqueue(new, within=theirs)] == [1, 2]
        assert await store.browse(Filter()) == []
        theirs.execute("ROLLBACK")
        assert await store.browse(Filter()) == []

        theirs.execute("BEGIN")
        theirs.execute("INSERT INTO customer VALUES ('kept')")
        added = await store.enqueue(new, within=theirs, cursor=TopicCursor("c", 1, 7))
        assert [(one.id, one.fresh) for one in added] == [(1, True), (2, True)]
        assert await store.enqueue(new, within=theirs, cursor=TopicCursor("c", 1, 7)) == []
        assert await store.browse(Filter()) == []
        theirs.execute("COMMIT")
        assert theirs.execute("SELECT name FROM customer").fetchall() == [("kept",)]
        assert await store.cursor("c") == TopicCursor("c", 1, 7)
        again = await store.enqueue(new[:1])
        assert [(one.id, one.fresh) for one in again] == [(1, False)]

        worker = await store.register("w", 60 * SECOND_NS)
        want = [Want(ReadyLine("mail", "t", Band.B1), 9), Want(LINE, 9)]
        assert [one.id for one in (await store.exchange(worker, 1, wants=want)).claims] == [1, 2]
        theirs.close()

    play(path, scene)


def test_what_cannot_be_added_leaves_the_callers_transaction_as_it_was(path: Path) -> None:
    wrong: Any = NewJob(kind="noop", state="no bytes")  # type: ignore[arg-type]

    async def scene(store: SqliteStore) -> None:
        theirs = at(path)
        theirs.execute("BEGIN")
        await store.enqueue([JOB], within=theirs)
        with pytest.raises(WriteFailed):
            await store.enqueue([JOB, wrong], within=theirs)
        assert theirs.in_transaction
        theirs.execute("COMMIT")
        assert [job.id for job in await store.browse(Filter())] == [1]
        theirs.close()

    play(path, scene)


def test_jobs_are_added_through_the_sqlite3_of_a_process_that_has_no_store_open(path: Path) -> None:
    async def scene() -> None:
        async with opened(path):
            pass
        store = SqliteStore(path)
        theirs = sqlite3.connect(path)
        theirs.execute("CREATE TABLE customer (name TEXT)")
        theirs.execute("INSERT INTO customer VALUES ('rolled back')")
        assert [one.id for one in await store.enqueue([JOB], within=theirs)] == [1]
        theirs.rollback()
        theirs.execute("INSERT INTO customer VALUES ('kept')")
        new = [NewJob(kind="mail", unique_key="u"), JOB]
        assert [one.id for one in await store.enqueue(new, within=theirs)] == [1, 2]
        theirs.commit()
        theirs.execute("INSERT INTO customer VALUES ('again')")
        again = await store.enqueue(new, within=theirs)
        assert [(one.id, one.fresh) for one in again] == [(1, False), (3, True)]
        theirs.rollback()
        theirs.close()
        async with opened(path) as store:
            assert [job.id for job in await store.browse(Filter())] == [2, 1]

    asyncio.run(scene())


def test_two_sqlites_in_one_process_are_kept_apart(path: Path) -> None:
    """They do not see each other's locks, so both would write at once; see `within`."""

    async def scene(store: SqliteStore) -> None:
        theirs = sqlite3.connect(":memory:")
        with pytest.raises(Invalid, match="apsw"):
            await store.enqueue([JOB], within=theirs)
        theirs.close()

    play(path, scene)


def test_a_transaction_that_cannot_hold_the_jobs_is_refused(path: Path, tmp_path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        theirs = at(path)
        with pytest.raises(Invalid, match="begin one"):
            await store.enqueue([JOB], within=theirs)
        theirs.close()
        elsewhere = apsw.Connection(str(tmp_path / "other.db"))
        elsewhere.execute("BEGIN")
        with pytest.raises(Invalid, match="the jobs are in"):
            await store.enqueue([JOB], within=elsewhere)
        elsewhere.close()
        with pytest.raises(Invalid, match="not str"):
            await store.enqueue([JOB], within="connection")
        with pytest.raises(Invalid, match="not Cursor"):
            await store.enqueue([JOB], within=apsw.Connection(":memory:").cursor())

    play(path, scene)


def as_dict(cursor: apsw.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {one[0]: value for one, value in zip(cursor.get_description(), row, strict=True)}


def test_a_connection_of_apsw_may_make_of_its_rows_what_it_likes(path: Path) -> None:
    class Loud(apsw.Cursor):
        def execute(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("a cursor of theirs was used")

    async def scene(store: SqliteStore) -> None:
        theirs = at(path)
        new = [NewJob(kind="mail", unique_key="u"), JOB]
        theirs.execute("BEGIN")
        theirs.set_row_trace(as_dict)
        theirs.set_exec_trace(lambda *_: False)
        theirs.cursor_factory = Loud
        added = await store.enqueue(new, within=theirs, cursor=TopicCursor("c", 1, 7))
        assert [(one.id, one.fresh) for one in added] == [(1, True), (2, True)]
        (again,) = await store.enqueue(new[:1], within=theirs)
        assert (again.id, again.fresh) == (1, False)
        assert theirs.get_row_trace() is as_dict
        theirs.cursor_factory = apsw.Cursor
        theirs.set_exec_trace(None)
        theirs.execute("COMMIT")
        assert [job.id for job in await store.browse(Filter())] == [2, 1]
        theirs.close()

    play(path, scene)


def test_a_connection_whose_temporary_tables_hide_ours_is_refused(path: Path) -> None:
    """What is added would be in them, and go with the connection."""

    async def scene(store: SqliteStore) -> None:
        theirs = at(path)
        theirs.execute("CREATE TEMP TABLE Job AS SELECT * FROM main.job; CREATE TEMP TABLE own (a)")
        theirs.execute("BEGIN")
        with pytest.raises(Invalid, match=r"hide them: \['Job'\]"):
            await store.enqueue([JOB], within=theirs)
        theirs.execute("COMMIT; DROP TABLE temp.Job; BEGIN")
        (added,) = await store.enqueue([JOB], within=theirs)
        theirs.execute("COMMIT")
        theirs.close()
        assert await store.find(added.id) is not None

    play(path, scene)


def test_a_connection_that_is_closed_is_refused(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        theirs = at(path)
        theirs.close()
        with pytest.raises(Invalid, match="cannot be used"):
            await store.enqueue([JOB], within=theirs)

    async def scene_of_sqlite3() -> None:
        theirs = sqlite3.connect(path)
        theirs.close()
        with pytest.raises(Invalid, match="cannot be used"):
            await SqliteStore(path).enqueue([JOB], within=theirs)

    play(path, scene)
    asyncio.run(scene_of_sqlite3())


def test_a_connection_of_sqlite3_may_make_of_its_rows_what_it_likes(path: Path) -> None:
    async def scene() -> None:
        async with opened(path):
            pass
        store = SqliteStore(path)
        theirs = sqlite3.connect(path, isolation_level=None)
        theirs.row_factory = lambda cursor, row: {"row": row}
        theirs.text_factory = bytes
        theirs.execute("BEGIN")
        new = [NewJob(kind="mail", unique_key="u"), JOB]
        assert [one.id for one in await store.enqueue(new, within=theirs)] == [1, 2]
        again = await store.enqueue(new[:1], within=theirs)
        assert [(one.id, one.fresh) for one in again] == [(1, False)]
        assert theirs.execute("SELECT 'a'").fetchone() == {"row": (b"a",)}
        with pytest.raises(Invalid, match="not Cursor"):
            await store.enqueue([JOB], within=theirs.cursor())
        theirs.execute("COMMIT")
        theirs.close()

    asyncio.run(scene())


# --- the work behind a statement


def test_pruning_goes_on_where_the_chunk_before_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "PRUNE_CHUNK", 3)

    async def scene(store: SqliteStore) -> None:
        (parent,) = await store.enqueue([NewJob(kind="parent", delay_ns=60 * SECOND_NS)])
        kept = await store.enqueue([NewJob(kind="kept", parent=parent.id)] * 4)
        gone = await store.enqueue([JOB] * 10)
        await store.cancel([one.id for one in (*kept, *gone)])
        assert await store.prune(0) == 10
        left = {job.id for job in await store.browse(Filter())}
        assert left == {parent.id, *(one.id for one in kept)}

    play(path, scene)


@pytest.mark.parametrize(
    "statement",
    [
        claiming.HEAD,
        claiming.READY_LINES,
        claiming.BUSY_KEYS,
        claiming.EARLIER,
        claiming.CHILDREN,
        claiming.TAKE,
        transaction.FIRST_BLOCKED,
        transaction.WAITS,
        transaction.KEYED,
        settling.STANDING,
        settling.MANY_END,
        settling.SET_ASIDE,
        settling.CONSUME_KEYS,
        upkeep.AGE,
        *upkeep.PRUNABLE_OF.values(),
        upkeep.FORGET_SIGNAL_KEYS,
        upkeep.ORPHAN,
        tenants.TENANTS,
        settling.LEAVE_ALONE,
        settling.KEEP_ATTEMPT,
        transaction.FORGET_ATTEMPTS,
        upkeep.LOST,
        upkeep.COUNT_LOST,
        browsing.ATTEMPTS,
        browsing.PENDING,
        browsing.HOLDER,
        browsing.EARLIER,
        f"{browsing.SELECT_JOB} WHERE {schema.TRACE_ID} = ?1 AND trace IS NOT NULL"
        " ORDER BY job.id DESC LIMIT 50",
    ],
)
def test_no_statement_of_the_daily_work_reads_the_whole_table(path: Path, statement: str) -> None:
    numbered = [int(number) for number in re.findall(r"\?(\d)", statement)]
    values = [None] * (max(numbered) if numbered else statement.count("?"))

    async def scene(store: SqliteStore) -> None:
        plan = writing(store).execute(f"EXPLAIN QUERY PLAN {statement}", values)
        steps = [str(step) for *_, step in plan.fetchall()]
        assert any(step.startswith("SEARCH") for step in steps)
        tables = ("job", "lease", "signal", "signal_key", "unique_key", "parent", "child")
        for table in (*tables, "attempt"):
            assert not any(step.startswith(f"SCAN {table}") for step in steps), steps

    play(path, scene)


def test_attempts_leave_the_file_with_their_jobs(path: Path) -> None:
    async def scene(store: SqliteStore) -> None:
        added = [one.id for one in await store.enqueue([JOB] * 3)]
        worker = await store.register("w", 60 * SECOND_NS)
        claims = (await store.exchange(worker, 1, wants=[Want(LINE, 9)])).claims
        failed = [Settlement(claim=one, fate=Fate.FAILED, log=b"it began") for one in claims]
        await store.exchange(worker, 2, failed)

        def left() -> set[int]:
            rows = writing(store).execute("SELECT job FROM attempt").fetchall()
            return {job for (job,) in rows}

        assert left() == {*added}
        await store.discard(added[:1])
        assert left() == {*added[1:]}
        await store.retry(added[1:2])
        await store.prune(0)
        assert left() == {added[1]}

    play(path, scene)

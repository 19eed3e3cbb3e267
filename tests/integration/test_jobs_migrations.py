"""Stores of earlier formats: their jobs are there after an upgrade, and go on."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from fairway.core.priority import Band
from fairway.errors import UnknownFormat
from fairway.jobs.job import Fate, Filter, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.store import Want
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.stores.postgres import schema as postgres_schema
from fairway.jobs.stores.sqlite import SqliteStore
from fairway.jobs.stores.sqlite import schema as sqlite_schema
from fairway.storage.watermark import Watermark
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from pathlib import Path

    from fairway.jobs.store import JobStore

SCHEMA = "jobs_migrations"
FIRST = ReadyLine("mail", "t", Band.B1)


async def goes_on(store: JobStore, old: int) -> None:
    """A job that an earlier release enqueued is claimed, set aside, failed, retried and done."""
    await store.open()
    try:
        job = await store.find(old)
        assert job is not None
        assert (job.queue, job.tenant, job.status) == ("mail", "t", Status.READY)
        assert (job.retries, job.state) == (0, b"{}")
        worker = await store.register("new", 10**12)
        token = 0
        line = FIRST
        for fate, fields in (
            (Fate.RELEASE, {"skill": "mail"}),
            (Fate.FAILED, {"error": "no"}),
            (Fate.DONE, {"result": b"7"}),
        ):
            token += 1
            out = await store.exchange(worker, token, wants=[Want(line, 5)])
            (claim,) = out.claims
            assert claim.id == old
            one = Settlement(claim=claim, fate=fate, **fields)  # type: ignore[arg-type]
            await store.exchange(worker, token, [one])
            if fate is Fate.FAILED:
                assert await store.retry([old]) == [old]
            line = FIRST._replace(skill="mail")
        (fresh,) = await store.enqueue([NewJob(kind="send", queue="mail", tenant="t")])
        out = await store.exchange(worker, token + 1, wants=[Want(FIRST, 5)])
        assert [claim.id for claim in out.claims] == [fresh.id]
        done = await store.find(old)
        assert done is not None
        assert (done.status, done.retries, done.result) == (Status.DONE, 1, b"7")
    finally:
        await store.aclose()


def old_file(path: Path, version: int) -> apsw.Connection:
    """A file of an earlier format, with a queue and a tenant."""
    connection = apsw.Connection(str(path))
    for migration in sqlite_schema.MIGRATIONS[:version]:
        connection.execute(migration)
    connection.pragma("user_version", version)
    connection.execute(
        "INSERT INTO queue (id, name) VALUES (1, 'mail');"
        "INSERT INTO tenant (id, name) VALUES (1, 't');"
    )
    return connection


def add_job(connection: apsw.Connection, status: int, error: str | None = None) -> None:
    line = 1 << sqlite_schema.QUEUE_SHIFT | 1 << sqlite_schema.TENANT_SHIFT | Band.B1
    connection.execute(
        "INSERT INTO job (status, lane, since_ns, enqueued_ns, priority, version, max_attempts,"
        " max_crashes, strict, window_ns, kind, step, state, error)"
        f" VALUES ({status}, {line}, 1, 1, 0, 1, 20, 5, 0, 0, 'send', 'run', x'7b7d', ?)",
        (error,),
    )


def make_old_schema(
    connection: psycopg.Connection, schema: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema of an earlier format."""

    async def migrate() -> None:
        connections = PostgresStore(postgres_url(), schema=schema)._connections
        await connections.open()
        await postgres_schema.migrate(connections)
        await connections.aclose()

    connection.execute(f"drop schema if exists {schema} cascade".encode())
    with monkeypatch.context() as patch:
        known = postgres_schema.MIGRATIONS[:version]
        patch.setattr(postgres_schema, "MIGRATIONS", known)
        asyncio.run(migrate())


def test_a_file_of_the_first_format_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection = old_file(path, 1)
    add_job(connection, sqlite_schema.READY)
    connection.close()
    asyncio.run(goes_on(SqliteStore(path), 1))
    newest = apsw.Connection(str(path))
    assert newest.pragma("user_version") == len(sqlite_schema.MIGRATIONS)
    newest.close()


def test_a_schema_of_the_first_format_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        make_old_schema(connection, SCHEMA, 1, monkeypatch)
        connection.execute(
            f"with lane as (insert into {SCHEMA}.lane (queue, tenant, band)"
            " values ('mail', 't', 1) returning id),"
            f" job as (insert into {SCHEMA}.job (id, kind, version, step, state, lane, priority,"
            " max_attempts, max_crashes, enqueued_at)"
            f" select nextval('{SCHEMA}.job_id'), 'send', 1, 'run', '{{}}', id, 0, 20, 5, now()"
            " from lane returning id, lane)"
            f" insert into {SCHEMA}.ready (lane, id, priority, strict, since)"
            " select lane, id, 0, false, now() from job".encode()
        )
        asyncio.run(goes_on(PostgresStore(postgres_url(), schema=SCHEMA), 1))
        connection.execute(f"insert into {SCHEMA}.migration (version) values (99)".encode())
        with pytest.raises(UnknownFormat, match="is at version 99"):
            asyncio.run(goes_on(PostgresStore(postgres_url(), schema=SCHEMA), 1))


# The second format knew dedup keys as long as their signals waited, and had one history for all.


async def keeps_keys_and_failures(store: JobStore, waits: int, failed: int, done: int) -> None:
    await store.open()
    try:
        assert not (await store.signal(waits, "pay", b"2", dedup="d")).fresh
        assert (await store.signal(waits, "pay", b"3", dedup="e")).fresh
        assert {job.id for job in await store.browse(Filter(status=Status.FAILED))} == {failed}
        assert await store.prune(10**9, failed_older_than_ns=4 * 10**18) == 1
        assert await store.find(done) is None
        job = await store.find(failed)
        assert job is not None
        assert (job.status, job.error) == (Status.FAILED, "no")
        assert await store.retry([failed]) == [failed]
    finally:
        await store.aclose()


def test_a_file_of_the_second_format_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    connection = old_file(path, 2)
    for status in (sqlite_schema.WAITING, sqlite_schema.FAILED, sqlite_schema.DONE):
        add_job(connection, status, "no")
    connection.execute("INSERT INTO signal (job, name, payload, dedup) VALUES (1, 's', x'31', 'd')")
    connection.close()
    asyncio.run(keeps_keys_and_failures(SqliteStore(path), 1, 2, 3))


def test_a_file_of_the_third_format_is_brought_up_to_date(tmp_path: Path) -> None:
    """It counted nothing and had no mark, as kill -9 left it: with its job in the -wal alone."""
    connection = old_file(tmp_path / "old.db", 3)
    connection.pragma("journal_mode", "WAL")
    add_job(connection, sqlite_schema.READY)
    path = tmp_path / "jobs.db"
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"old.db{suffix}", f"{path}{suffix}")
    connection.close()
    asyncio.run(goes_on(SqliteStore(path), 1))
    newest = apsw.Connection(str(path))
    assert newest.pragma("user_version") == len(sqlite_schema.MIGRATIONS)
    counted = newest.execute("SELECT seq FROM sqlite_sequence WHERE name = 'commit'").get
    newest.close()
    # Every commit was counted; the last, a claim, was not synced.
    assert Watermark(tmp_path / "jobs.db-mark").peek() == counted - 1 > 0


def test_a_schema_of_the_second_format_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = f"{SCHEMA}_2"
    job = "kind, version, step, state, lane, priority, max_attempts, max_crashes, enqueued_at"
    values = "'send', 1, 'run', '{}', 1, 0, 20, 5, now()"

    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        make_old_schema(connection, schema, 2, monkeypatch)
        connection.execute(
            f"insert into {schema}.lane (queue, tenant, band) values ('mail', 't', 1);"
            f"insert into {schema}.job (id, status, {job}) select 1, 'w', {values};"
            f"insert into {schema}.signal (job, name, payload, dedup) values (1, 's', '1', 'd');"
            f"create table {schema}.history_20010101 partition of {schema}.history"
            "    for values from ('2001-01-01') to ('2001-01-02');"
            f"insert into {schema}.history (id, status, finished_at, error, attempt, crashes,"
            f"    strict, window_us, {job})"
            "    select id, status, at::timestamptz, 'no', 1, 0, false, 0,"
            f"    {values} from unnest(array[2, 3]) with ordinality as i (id, n)"
            "    join unnest(array['f', 'd']::\"char\"[]) with ordinality as s (status, n)"
            "    using (n),"
            "    unnest(array['2001-01-01 12:00+00']) as a (at);".encode()
        )
        asyncio.run(keeps_keys_and_failures(PostgresStore(postgres_url(), schema=schema), 1, 2, 3))


def test_a_schema_of_the_third_format_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It did not keep what jobs that ended badly had waited for."""
    schema = f"{SCHEMA}_3"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        make_old_schema(connection, schema, 3, monkeypatch)
        fill_schema(connection, schema)
        asyncio.run(all_go_on(PostgresStore(postgres_url(), schema=schema)))


def test_a_file_of_the_fourth_format_is_brought_up_to_date(tmp_path: Path) -> None:
    """It did not keep what jobs that ended badly had waited for."""
    path = tmp_path / "jobs.db"
    fill_file(path, 4)
    asyncio.run(all_go_on(SqliteStore(path)))


# Jobs in every status, of which attempts and traces are told from the newest format on.

STATUSES = {status: number for number, status in enumerate(sqlite_schema.STATUSES, 1)}
"""The job that is in each status, with an attempt and a crash behind it."""
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


def fill_file(path: Path, version: int) -> None:
    """A file of an earlier format with a job in each status, and a worker that runs one."""
    connection = old_file(path, version)
    for status, id in STATUSES.items():
        add_job(connection, sqlite_schema.CODES[status], "no")
        connection.execute(
            "UPDATE job SET attempt = 1, crashes = 1, trace = ?, names = ?, partition_key = ?,"
            " due_ns = ?, since_ns = ? WHERE id = ?",
            (
                PARENT,
                '["go"]' if status is Status.WAITING else None,
                "k" if status in (Status.RUNNING, Status.BLOCKED) else None,
                10**19 // 2 if status is Status.SCHEDULED else None,
                time.time_ns(),
                id,
            ),
        )
    line = 1 << sqlite_schema.QUEUE_SHIFT | 1 << sqlite_schema.TENANT_SHIFT | Band.B1
    connection.execute(
        "INSERT INTO worker (id, name, until_ns) VALUES (7, 'old', 0);"
        "INSERT INTO lease (job, worker, token, claimed_ns, lane)"
        f" VALUES ({STATUSES[Status.RUNNING]}, 7, 1, 5000, {line})"
    )
    connection.close()


def fill_schema(connection: psycopg.Connection, schema: str) -> None:
    """A job in each status, and a worker that runs one."""
    columns = (
        "id, status, kind, version, step, state, lane, priority, max_attempts, max_crashes,"
        " attempt, crashes, trace, error, enqueued_at"
    )
    values = "'send', 1, 'run', '{}'::bytea, 1, 0::smallint, 20, 5, 1, 1, %(trace)s, 'no', now()"
    ids = {"trace": PARENT, **{status.name.lower(): id for status, id in STATUSES.items()}}
    for statement in (
        "insert into fw.lane (queue, tenant, band) values ('mail', 't', 1)",
        f"insert into fw.job ({columns}, names, pkey) select id, status, {values}, names, pkey"
        " from (values (%(scheduled)s, 's'::\"char\", null, null),"
        " (%(waiting)s, 'w', '{go}'::text[], null), (%(blocked)s, 'r', null, 'k'),"
        " (%(ready)s, 'r', null, null), (%(running)s, 'r', null, 'k'))"
        " as v (id, status, names, pkey)",
        f"insert into fw.history ({columns}, finished_at, strict, window_us)"
        f" select id, status, {values}, now(), false, 0 from (values (%(done)s, 'd'::\"char\"),"
        " (%(failed)s, 'f'), (%(dead)s, 'k'), (%(cancelled)s, 'c')) as v (id, status)",
        "select setval('fw.job_id', %(cancelled)s)",
        "insert into fw.timer (id, due) values (%(scheduled)s, now() + interval '1 day')",
        "insert into fw.ready (lane, id, priority, strict, since)"
        " values (1, %(ready)s, 0, false, now())",
        "insert into fw.blocked (pkey, id, lane, priority, strict, since)"
        " values ('k', %(blocked)s, 1, 0, false, now())",
        "insert into fw.key_slot (pkey, id) values ('k', %(running)s)",
        "insert into fw.worker (id, name, started_at, expires_at) overriding system value"
        " values (7, 'old', now(), 'epoch')",
        "insert into fw.lease (id, worker, token, lane, claimed_at)"
        " values (%(running)s, 7, 1, 1, 'epoch')",
    ):
        connection.execute(statement.replace("fw.", f"{schema}.").encode(), ids)


async def all_go_on(store: JobStore) -> None:
    """Jobs of every status are there after an upgrade, and what is told now is told of them."""
    await store.open()
    try:
        jobs = {job.id: job for job in await store.browse(Filter(trace=TRACE))}
        assert {id: job.status for id, job in jobs.items()} == {
            id: status for status, id in STATUSES.items()
        }
        assert {(job.attempt, job.crashes, job.runs) for job in jobs.values()} == {(1, 1, 2)}
        for status, id in STATUSES.items():  # what went before is counted and not told
            attempts = await store.attempts(id)
            assert [one.number for one in attempts] == ([3] if status is Status.RUNNING else [])
        (worker,) = await store.workers()
        assert (worker.id, worker.name, worker.alive) == (7, "old", False)
        assert (worker.beat_wall_ns, worker.queues, worker.kinds) == (None, None, None)
        assert await store.kinds() == []
        assert (await store.reap(10)).returned == 1
        ended_badly = [STATUSES[one] for one in (Status.FAILED, Status.DEAD, Status.CANCELLED)]
        assert await store.retry(ended_badly) == ended_badly
        assert (await store.signal(STATUSES[Status.WAITING], "go", b"1")).fresh
        hand = await store.register("new", 10**12)
        ran: set[int] = set()
        for token in range(1, 4):  # the two of one key run one after the other
            claims = (await store.exchange(hand, token, wants=[Want(FIRST, 20)])).claims
            done = [Settlement(claim=one, fate=Fate.DONE) for one in claims]
            await store.exchange(hand, token, done)
            ran |= {one.id for one in claims}
        assert ran == {*STATUSES.values()} - {STATUSES[Status.SCHEDULED], STATUSES[Status.DONE]}
        for id in ran:
            lost = [(3, "lost")] if id == STATUSES[Status.RUNNING] else []
            told = [(one.number, one.fate and one.fate.value) for one in await store.attempts(id)]
            assert told == [*lost, (3 + len(lost), "done")]
    finally:
        await store.aclose()


def test_a_file_of_the_fifth_format_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    fill_file(path, 5)
    asyncio.run(all_go_on(SqliteStore(path)))
    newest = apsw.Connection(str(path))
    assert newest.pragma("user_version") == len(sqlite_schema.MIGRATIONS) == 6
    newest.close()


def test_a_schema_of_the_fourth_format_is_brought_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = f"{SCHEMA}_4"
    with psycopg.connect(postgres_url(), autocommit=True) as connection:
        make_old_schema(connection, schema, 4, monkeypatch)
        fill_schema(connection, schema)
        asyncio.run(all_go_on(PostgresStore(postgres_url(), schema=schema)))
        (at,) = connection.execute(
            f"select max(version) from {schema}.migration".encode()
        ).fetchone()  # type: ignore[misc]
        assert at == len(postgres_schema.MIGRATIONS) == 5

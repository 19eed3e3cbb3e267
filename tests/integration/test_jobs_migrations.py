"""Stores of earlier formats: their jobs are there after an upgrade, and go on."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from fairway.core.priority import Band
from fairway.errors import UnknownFormat
from fairway.jobs.job import Fate, Filter, Lane, NewJob, Settlement, Status
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
FIRST = Lane("mail", "t", Band.B1)


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
        lane = FIRST
        for fate, fields in (
            (Fate.RELEASE, {"skill": "mail"}),
            (Fate.FAILED, {"error": "no"}),
            (Fate.DONE, {"result": b"7"}),
        ):
            token += 1
            out = await store.exchange(worker, token, wants=[Want(lane, 5)])
            (claim,) = out.claims
            assert claim.id == old
            one = Settlement(claim=claim, fate=fate, **fields)  # type: ignore[arg-type]
            await store.exchange(worker, token, [one])
            if fate is Fate.FAILED:
                assert await store.retry([old]) == [old]
            lane = FIRST._replace(skill="mail")
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
    lane = 1 << sqlite_schema.QUEUE_SHIFT | 1 << sqlite_schema.TENANT_SHIFT | Band.B1
    connection.execute(
        "INSERT INTO job (status, lane, since_ns, enqueued_ns, priority, version, max_attempts,"
        " max_crashes, strict, window_ns, kind, step, state, error)"
        f" VALUES ({status}, {lane}, 1, 1, 0, 1, 20, 5, 0, 0, 'send', 'run', x'7b7d', ?)",
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

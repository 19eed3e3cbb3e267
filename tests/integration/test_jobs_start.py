"""A worker that starts before its database does: it waits, and says so; or ends, and says why."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pytest

from fairway.errors import FairwayError, InvalidConfig, UnknownFormat
from fairway.jobs.engine import Kinds
from fairway.jobs.part import JobsPart
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.stores.sqlite import SqliteStore, connections
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S = 0.01
ROOT = Path(__file__).parents[2]
APP = """
from fairway import Fairway

app = Fairway("data", jobs=PLACE)

@app.job(queue="mail")
async def send(id: int) -> int:
    return id
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@contextmanager
def command(place: Path, url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    (place / "early.py").write_text(APP.replace("PLACE", repr(url)))
    process = subprocess.Popen(
        [sys.executable, "-m", "fairway", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_line(pipe: Any, part: str) -> str:
    for line in pipe:
        if part in line:
            return str(line)
    raise AssertionError(f"it ended without a line of {part!r}")


@pytest.mark.parametrize(
    "words",
    [("worker", "early:app"), ("serve", "early:app", "--port", "0")],
    ids=lambda words: words[0],
)
def test_a_worker_waits_at_its_start_for_a_database_that_is_not_there(
    words: tuple[str, ...], server: PostgresServer, tmp_path: Path
) -> None:
    url = server.url()
    server.stop("immediate")
    with command(tmp_path, url, *words) as process:
        line = wait_for_line(process.stderr, "waiting for the database of the jobs")
        assert "PostgreSQL cannot be reached" in line
        process.send_signal(signal.SIGTERM)
        rest = process.communicate()[1]
        assert "Traceback" not in rest
        assert process.returncode == 0
    with command(tmp_path, url, *words) as process:
        wait_for_line(process.stderr, "waiting for the database of the jobs")
        server.start()
        wait_for_line(process.stdout, "Ctrl-C stops")
        process.send_signal(signal.SIGTERM)
        assert "Traceback" not in process.communicate()[1]
        assert process.returncode == 0


def test_what_waiting_does_not_mend_ends_the_start_at_once(
    server: PostgresServer, tmp_path: Path
) -> None:
    def part_at(url: str) -> JobsPart:
        return JobsPart(PostgresStore(url), Kinds(), None, {}, wait_for_store=True)

    async def refused(part: JobsPart, kind: type[FairwayError], said: str) -> None:
        with pytest.raises(kind, match=said):
            async with part:
                pass

    url = server.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create role locked login password 'right'")
    rules = server.directory / "data" / "pg_hba.conf"
    rules.write_text("local all locked scram-sha-256\n" + rules.read_text())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("select pg_reload_conf()")
        while True:
            rows = connection.execute("select user_name[1] from pg_hba_file_rules").fetchall()
            if ("locked",) in rows:
                break
    wrong = url.replace("fairway@", "locked:wrong@")
    asyncio.run(refused(part_at(wrong), InvalidConfig, "28P01"))
    with command(tmp_path, wrong, "worker", "early:app") as process:
        said = process.communicate()[1]
        assert process.returncode == 1
        assert "Error: PostgreSQL: 28P01" in said
        assert "Traceback" not in said
    asyncio.run(refused(part_at(server.url("nowhere")), InvalidConfig, "3D000"))

    async def newer() -> None:
        async with part_at(url):
            pass
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("insert into fairway_jobs.migration (version) values (999)")
        await refused(part_at(url), UnknownFormat, "version 999")

    asyncio.run(newer())


def test_a_file_that_another_process_has_locked_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "BUSY_MS", 20)
    path = tmp_path / "jobs.db"
    other = apsw.Connection(str(path))
    other.execute("BEGIN EXCLUSIVE")

    async def scenario() -> None:
        part = JobsPart(SqliteStore(path), Kinds(), None, {}, wait_for_store=True)
        async with asyncio.TaskGroup() as group:
            entering = group.create_task(part.__aenter__())
            while not caplog.records:
                assert not entering.done()
                await asyncio.sleep(LOOK_S)
            assert "waiting for the database of the jobs" in caplog.records[0].message
            other.execute("ROLLBACK")
            await entering
            await part.__aexit__(None, None, None)

    asyncio.run(scenario())
    other.close()


def test_an_app_that_was_not_told_to_wait_does_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        part = JobsPart(PostgresStore(f"postgresql:///?host={tmp_path}"), Kinds(), None, {})
        with pytest.raises(FairwayError, match="cannot be reached"):
            await part.__aenter__()

    asyncio.run(scenario())

"""What a job is enqueued with reaches every store: a new option cannot be forgotten in one."""

from __future__ import annotations

from pathlib import Path

import apsw
from msgspec import structs

import fairway
from fairway.jobs.job import CLAIM_FIELDS, GIVEN, Claim, NewJob
from fairway.jobs.stores.postgres.columns import COLUMNS, arrays_of, values_of
from fairway.jobs.stores.postgres.schema import statements
from fairway.jobs.stores.sqlite import columns as sqlite
from fairway.jobs.stores.sqlite.schema import MIGRATIONS

LINE = {"queue", "tenant"}
TIMES = {"delay_ns", "at_wall_ns"}
RENAMED = {"pkey": "partition_key", "ukey": "unique_key", "window_us": "window_ns"}
FIELDS = {one.name for one in structs.fields(NewJob)}


def test_sqlite_has_a_column_for_every_option() -> None:
    connection = apsw.Connection(":memory:")
    for migration in MIGRATIONS:
        connection.execute(migration)
    columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(job)")}
    assert LINE | TIMES | {"state", "parent"} == sqlite.ELSEWHERE
    assert columns >= {*sqlite.COLUMNS} >= FIELDS - LINE - TIMES
    assert len(set(sqlite.COLUMNS)) == len(sqlite.COLUMNS)
    assert (sqlite.COLUMNS[0], sqlite.COLUMNS[-1]) == ("id", "state")  # what `INSERT_UNIFORM` is by


def test_postgres_has_a_column_for_every_option() -> None:
    stored = {RENAMED.get(name, name) for name in COLUMNS}
    assert stored | LINE | TIMES | {"state"} == FIELDS


def test_every_statement_that_moves_a_whole_job_takes_all_columns_along() -> None:
    text = statements("s")
    for name in ("enqueue", "enqueue_uniform", "trade", "finish", "end_jobs", "revive"):
        assert text[name].count(", ".join(COLUMNS)) >= 1, name


def test_what_a_claim_is_read_from_is_all_of_it_but_what_stands_in_other_rows() -> None:
    fields = Claim.__struct_fields__
    assert {*fields[len(CLAIM_FIELDS) :]} == {"signals", "children", "skill"}
    assert fields[: len(CLAIM_FIELDS)] == CLAIM_FIELDS
    assert FIELDS - {*GIVEN} - LINE - TIMES == {
        *("state", "step", "max_crashes", "strict", "unique_key", "window_ns", "notify"),
    }


def test_an_option_is_written_down_in_six_files() -> None:
    """Where it is declared, what it is stored as in each database, and where something is decided
    by it. `max_crashes` has all of those and is shown nowhere, so it is as good as a toy."""
    package = Path(fairway.__file__).parent
    naming = {
        str(path.relative_to(package))
        for path in package.rglob("*.*")
        if path.suffix in (".py", ".sql") and "max_crashes" in path.read_text(encoding="utf-8")
    }
    assert naming == {
        "jobs/job.py",  # what a job is enqueued with
        "jobs/kinds.py",  # what is declared
        "jobs/moves.py",  # what it decides
        "jobs/stores/postgres/columns.py",  # its type
        "jobs/stores/postgres/migrations/0001.sql",  # a column; for a new one, a new migration
        "jobs/stores/sqlite/schema.py",
    }


def test_columns_have_the_values_of_their_options() -> None:
    job = NewJob(kind="k", partition_key="p", unique_key="u", window_ns=1_001, trace="t", parent=9)
    values = dict(zip(COLUMNS, values_of(job), strict=True))
    assert values["window_us"] == 2
    for name, value in values.items():
        if name != "window_us":
            assert value == getattr(job, RENAMED.get(name, name)), name
    assert arrays_of([job, job]) == [[value, value] for value in values_of(job)]

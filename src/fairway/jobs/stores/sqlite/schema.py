"""The tables jobs live in, the numbers for what is in them, and how older files are brought along.

One table holds every job, whatever its state; partial indexes find those that are ready, parked,
due, keyed or ended. Who has a running job stands beside it, in `lease`: a claim then changes one
byte of the job's row in place, however large the row. `since_ns` is when a job became ready or,
once it has ended, when it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from fairway.core.priority import BONUS_MAX, MANUAL_MAX, MANUAL_MIN, POINT_NS, THRESHOLDS
from fairway.jobs.job import Status
from fairway.jobs.stores.sqlite.mark import NAME

if TYPE_CHECKING:
    from collections.abc import Collection

APPLICATION_ID: Final = 0x46574A42  # "FWJB"

# Numbers, not the letters: each kind is a range, and every change of a status asks each index below
# which side it is on. As lists of letters that costs more than the change.
SCHEDULED, WAITING, BLOCKED, READY, RUNNING, DONE, FAILED, DEAD, CANCELLED = range(9)
STATUSES: Final = (
    Status.SCHEDULED,
    Status.WAITING,
    Status.BLOCKED,
    Status.READY,
    Status.RUNNING,
    Status.DONE,
    Status.FAILED,
    Status.DEAD,
    Status.CANCELLED,
)
CODES: Final = {status: code for code, status in enumerate(STATUSES)}

# As the partial indexes have them: SQLite uses one only for a statement with the very same words.
PARKED: Final = f"status < {READY}"
IS_READY: Final = f"status = {READY}"
UNFINISHED: Final = f"status < {DONE}"
ENDED: Final = f"status >= {DONE}"
IS_DONE: Final = f"status = {DONE}"
UNHAPPY: Final = f"status > {DONE}"


def status_in(statuses: Collection[Status]) -> str:
    """A condition of SQL: one of these."""
    codes = sorted(CODES[status] for status in statuses)
    (first, *others) = codes
    return f"status IN ({', '.join(map(str, codes))})" if others else f"status = {first}"


FIRST = f"""
CREATE TABLE job (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    status INTEGER NOT NULL,
    lane INTEGER NOT NULL,
    since_ns INTEGER NOT NULL,
    due_ns INTEGER,
    enqueued_ns INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    timed_out INTEGER NOT NULL DEFAULT 0,
    cancelling INTEGER NOT NULL DEFAULT 0,
    priority INTEGER NOT NULL,
    version INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    max_crashes INTEGER NOT NULL,
    strict INTEGER NOT NULL,
    window_ns INTEGER NOT NULL,
    parent INTEGER,
    kind TEXT NOT NULL,
    step TEXT NOT NULL,
    partition_key TEXT,
    unique_key TEXT,
    notify TEXT,
    trace TEXT,
    names TEXT,
    error TEXT,
    progress BLOB,
    result BLOB,
    state BLOB NOT NULL
) STRICT;
CREATE INDEX job_ready ON job (lane) WHERE {IS_READY};
CREATE INDEX job_parked ON job (status, lane) WHERE {PARKED};
CREATE INDEX job_due ON job (due_ns) WHERE due_ns IS NOT NULL;
CREATE INDEX job_partition ON job (partition_key, status)
    WHERE partition_key IS NOT NULL AND {UNFINISHED};
CREATE INDEX job_parent ON job (parent) WHERE parent IS NOT NULL;
CREATE INDEX job_awaited ON job (parent)
    WHERE parent IS NOT NULL AND notify IS NULL AND {UNFINISHED};
CREATE INDEX job_cancelling ON job (cancelling) WHERE cancelling = 1;
CREATE INDEX job_ended ON job (since_ns) WHERE {ENDED};
CREATE INDEX job_unhappy ON job (status) WHERE {UNHAPPY};
CREATE TABLE lease (
    job INTEGER PRIMARY KEY,
    worker INTEGER NOT NULL,
    token INTEGER NOT NULL,
    claimed_ns INTEGER NOT NULL,
    lane INTEGER NOT NULL
) STRICT;
CREATE TABLE signal (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    payload BLOB NOT NULL,
    dedup TEXT
) STRICT;
CREATE INDEX signal_job ON signal (job);
CREATE TABLE unique_key (
    key TEXT PRIMARY KEY,
    job INTEGER NOT NULL,
    until_ns INTEGER NOT NULL,
    orphaned INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX unique_key_orphaned ON unique_key (until_ns) WHERE orphaned = 1;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    concurrency INTEGER,
    rate_per_s REAL,
    burst INTEGER NOT NULL DEFAULT 1,
    tokens REAL NOT NULL DEFAULT 0,
    refilled_ns INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE tenant (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    until_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    spec TEXT NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    handled_ns INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE firing (
    schedule TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    noted_ns INTEGER NOT NULL,
    job INTEGER,
    tries INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (schedule, at_ns)
) WITHOUT ROWID;
CREATE INDEX firing_lost ON firing (noted_ns) WHERE job IS NULL;
CREATE TABLE topic_cursor (
    name TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO sqlite_sequence VALUES ('job', 0);
PRAGMA application_id = {APPLICATION_ID};
"""

SECOND = """
ALTER TABLE job ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;
CREATE TABLE tenant_with_skill (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    skill TEXT NOT NULL DEFAULT '',
    UNIQUE (name, skill)
) STRICT;
INSERT INTO tenant_with_skill (id, name) SELECT id, name FROM tenant;
DROP TABLE tenant;
ALTER TABLE tenant_with_skill RENAME TO tenant;
"""
"""Jobs count how often they were retried by hand, and lines may be for those who know a kind."""

THIRD = f"""
CREATE TABLE signal_key (
    job INTEGER NOT NULL,
    key TEXT NOT NULL,
    consumed_ns INTEGER,
    PRIMARY KEY (job, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX signal_key_consumed ON signal_key (consumed_ns) WHERE consumed_ns IS NOT NULL;
INSERT INTO signal_key (job, key) SELECT DISTINCT job, dedup FROM signal WHERE dedup IS NOT NULL;
DROP INDEX job_ended;
CREATE INDEX job_done ON job (since_ns) WHERE {IS_DONE};
DROP INDEX job_unhappy;
CREATE INDEX job_unhappy ON job (status, since_ns) WHERE {UNHAPPY};
"""
"""The dedup key of a signal outlives it, and failures are forgotten later than successes."""

FOURTH = f"""
INSERT INTO sqlite_sequence VALUES ('{NAME}', 0);
"""
"""The file says how many transactions it has seen, to be compared with its mark: `mark`."""
COUNTING: Final = 4

FIFTH = """
ALTER TABLE job ADD COLUMN waited_until_ns INTEGER;
"""
"""What a job waited for when it ended badly, to be taken up by a retry; 0 without a timer."""

TRACE_ID: Final = "substr(trace, 4, 32)"
"""Of a `traceparent`, what all jobs of a trace share; as its index has it."""

SIXTH = f"""
ALTER TABLE job ADD COLUMN runs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN ran_by INTEGER;
ALTER TABLE job ADD COLUMN started_ns INTEGER;
UPDATE job SET runs = attempt + crashes WHERE attempt + crashes > 0;
UPDATE unique_key SET orphaned = 1
WHERE NOT EXISTS (SELECT 1 FROM job WHERE job.id = unique_key.job);
CREATE INDEX job_trace ON job ({TRACE_ID}) WHERE trace IS NOT NULL;
CREATE TABLE attempt (
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,
    step TEXT NOT NULL,
    worker INTEGER NOT NULL,
    started_ns INTEGER NOT NULL,
    ended_ns INTEGER NOT NULL,
    fate TEXT NOT NULL,
    error TEXT,
    log BLOB,
    PRIMARY KEY (job, number)
) STRICT;
CREATE TABLE kind (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    schema BLOB,
    seen_ns INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;
ALTER TABLE worker ADD COLUMN started_ns INTEGER;
ALTER TABLE worker ADD COLUMN beat_ns INTEGER;
ALTER TABLE worker ADD COLUMN queues TEXT;
ALTER TABLE worker ADD COLUMN kinds TEXT;
"""
"""What is kept of attempts, of workers and of what they know. Attempts of earlier formats are
counted, as far as the job knew of them, and not listed."""

MIGRATIONS: Final = (FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH)
"""The n-th of them brings a file from version n to n + 1."""

# A ready line is a number: the queue, the tenant, the band. So the lines of a queue lie side by
# side, and those with something ready are found by skipping from one to the next. A tenant whose
# jobs wait for workers of some skill has another number for those. The columns that hold such a
# number are called `lane`, as in the files that earlier releases wrote.
QUEUE_SHIFT: Final = 32
TENANT_SHIFT: Final = 3
BAND_MASK: Final = (1 << TENANT_SHIFT) - 1
TENANT_OF_LINE: Final = f"((lane & {(1 << QUEUE_SHIFT) - 1 - BAND_MASK}) >> {TENANT_SHIFT})"


def _band(points: str, unit: int) -> str:
    return "(" + " + ".join(f"({points} >= {least * unit})" for least in THRESHOLDS) + ")"


HOME: Final = f"((lane & ~{BAND_MASK}) | {_band('priority', 1)})"
"""The line a job becomes ready in: `band_of` in SQL."""
AGED_BAND: Final = _band(
    f"(max({MANUAL_MIN}, min({MANUAL_MAX}, priority)) * {POINT_NS}"
    f" + max(0, min({BONUS_MAX * POINT_NS}, ?1 - since_ns)))",
    POINT_NS,
)
"""The band of a ready job at the time ?1: `band_at` in SQL."""


class Sql(Protocol):
    """What `apsw.Connection` and `sqlite3.Connection` have in common."""

    def execute(self, statement: str, bindings: Any = ..., /) -> Any: ...

    def executemany(self, statement: str, bindings: Any, /) -> Any: ...


class Tables(Sql, Protocol):
    """What we use of `apsw.Connection`. Rows come as they are: the schema is strict."""

    def changes(self) -> int: ...

    def last_insert_rowid(self) -> int: ...

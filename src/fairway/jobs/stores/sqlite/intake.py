"""How jobs come in: rows for new ones, and what a unique key or a cursor keeps out.

Runs on the store's connection, or on one of a caller whose transaction decides. That one may be of
Python's own `sqlite3`, so the statements here are such that both understand.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from fairway.jobs.job import Enqueued
from fairway.jobs.stores.sqlite.columns import COLUMNS, options
from fairway.jobs.stores.sqlite.schema import READY, SCHEDULED
from fairway.jobs.stores.sqlite.transaction import KEYED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.job import NewJob
    from fairway.jobs.store import TopicCursor
    from fairway.jobs.stores.sqlite.ready_lines import Names
    from fairway.jobs.stores.sqlite.schema import Sql
    from fairway.jobs.stores.sqlite.transaction import Transaction

INSERT = f"INSERT INTO job ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"

# Jobs that differ in their id and state alone, and follow one another: one statement for all of
# them, which costs the interpreter's lock once.
INSERT_UNIFORM = f"""
INSERT INTO job ({", ".join(COLUMNS)})
SELECT ? + rowid - 1, {", ".join("?" * (len(COLUMNS) - 2))}, value FROM carray(?)
"""
UNIFORM_MIN = 8
"""Fewer are cheaper one by one."""


class SqliteIntake(NamedTuple):
    """Where new jobs go, and when that is."""

    connection: Sql
    names: Names
    now_ns: int
    arrays: bool = False
    """Whether the connection knows `carray`, as ours do."""

    def advance(self, cursor: TopicCursor) -> bool:
        """Move a cursor forward; False if it did not stand before what comes with it."""
        name, epoch, seq, first = cursor
        moved = self.connection.execute(
            "INSERT INTO topic_cursor (name, epoch, seq) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, seq = excluded.seq"
            " WHERE (?2, ?4) > (epoch, seq) RETURNING 1",
            (name, epoch, seq, seq if first is None else first),
        )
        return bool(moved.fetchall())

    def add(self, jobs: Sequence[NewJob], parent: int | None = None) -> list[Enqueued]:
        """Insert jobs, as children of `parent` if there is one."""
        (last,) = self.connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = 'job'"
        ).fetchone()
        now_ns = self.now_ns
        home = self.names.home
        added = []
        rows = []
        keys: dict[str, tuple[int, int]] = {}
        for new in jobs:
            key = new.unique_key
            if key is not None and (known := self._keyed(key, keys)) is not None:
                added.append(Enqueued(known, False))
                continue
            last += 1
            if key is not None:
                keys[key] = (last, now_ns + new.window_ns)
            due_ns = now_ns + new.delay_ns if new.at_wall_ns is None else new.at_wall_ns
            later = due_ns > now_ns
            status = SCHEDULED if later else READY
            line = home(new.queue, new.tenant, new.priority)
            timer_ns = due_ns if later else None
            above = new.parent if parent is None else parent
            rows.append(
                (last, status, line, now_ns, timer_ns, now_ns, above, *options(new), new.state)
            )
            added.append(Enqueued(last, True))
        if rows:
            self._insert(rows)
        if keys:
            self.connection.executemany(
                "INSERT OR REPLACE INTO unique_key (key, job, until_ns) VALUES (?, ?, ?)",
                [(key, id, until_ns) for key, (id, until_ns) in keys.items()],
            )
        return added

    def _insert(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if not self.arrays or len(rows) < UNIFORM_MIN:
            self.connection.executemany(INSERT, rows)
            return
        for shape, some in groupby(rows, _all_but_id_and_state):
            uniform = list(some)
            states = tuple(row[-1] for row in uniform)
            if len(uniform) < UNIFORM_MIN or not all(states):  # an array has no empty values
                self.connection.executemany(INSERT, uniform)
            else:
                self.connection.execute(
                    INSERT_UNIFORM, (uniform[0][0], *shape, apsw.carray(states))
                )

    def _keyed(self, key: str, ours: dict[str, tuple[int, int]]) -> int | None:
        if key in ours:
            return ours[key][0]
        job: int | None
        (job,) = self.connection.execute(KEYED, (key, self.now_ns)).fetchone() or (None,)
        return job


def intake_of(transaction: Transaction) -> SqliteIntake:
    return SqliteIntake(transaction.connection, transaction.names, transaction.now_ns, arrays=True)


def _all_but_id_and_state(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row[1:-1]

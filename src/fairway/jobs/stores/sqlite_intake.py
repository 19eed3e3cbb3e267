"""How jobs come in: rows for new ones, and what a unique key or a cursor keeps out.

Runs on the store's connection, or on one of a caller whose transaction decides. That one may be of
Python's own `sqlite3`, so the statements here are such that both understand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fairway.jobs.job import Enqueued
from fairway.jobs.stores.sqlite_moves import KEYED
from fairway.jobs.stores.sqlite_schema import READY, SCHEDULED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.job import NewJob
    from fairway.jobs.store import Cursor
    from fairway.jobs.stores.sqlite_names import Names
    from fairway.jobs.stores.sqlite_schema import Sql

COLUMNS = (
    "id", "status", "lane", "since_ns", "due_ns", "enqueued_ns", "priority", "version",
    "max_attempts", "max_crashes", "strict", "window_ns", "parent", "kind", "step",
    "partition_key", "unique_key", "notify", "trace", "state",
)  # fmt: skip
INSERT = f"INSERT INTO job ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"


class Intake(NamedTuple):
    """Where new jobs go, and when that is."""

    connection: Sql
    names: Names
    now_ns: int

    def advance(self, cursor: Cursor) -> bool:
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
            rows.append(
                (
                    last,
                    SCHEDULED if later else READY,
                    home(new.queue, new.tenant, new.priority),
                    now_ns,
                    due_ns if later else None,
                    now_ns,
                    new.priority,
                    new.version,
                    new.max_attempts,
                    new.max_crashes,
                    new.strict,
                    new.window_ns,
                    new.parent if parent is None else parent,
                    new.kind,
                    new.step,
                    new.partition_key,
                    key,
                    new.notify,
                    new.trace,
                    new.state,
                )
            )
            added.append(Enqueued(last, True))
        if rows:
            self.connection.executemany(INSERT, rows)
        if keys:
            self.connection.executemany(
                "INSERT OR REPLACE INTO unique_key (key, job, until_ns) VALUES (?, ?, ?)",
                [(key, id, until_ns) for key, (id, until_ns) in keys.items()],
            )
        return added

    def _keyed(self, key: str, ours: dict[str, tuple[int, int]]) -> int | None:
        if key in ours:
            return ours[key][0]
        found = self.connection.execute(KEYED, (key, self.now_ns)).fetchone()
        return found[0] if found is not None else None

"""What happens to single jobs inside a transaction: they become ready, end, receive a signal.

The twin of these methods in memory says what they mean; here each is a statement or two. Where
many jobs go the same way the callers have statements of their own, for all of them at once.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import apsw
from msgspec import json

from fairway.jobs.attempts import ATTEMPTS_MAX
from fairway.jobs.job import Status, ending
from fairway.jobs.moves import (
    Facts,
    child_ended,
    key_is_free,
    signalled,
    still_waits,
    waits_for_children,
    where,
)
from fairway.jobs.store import Delivered
from fairway.jobs.stores.sqlite.schema import (
    CODES,
    DONE,
    HOME,
    IS_READY,
    RUNNING,
    STATUSES,
    UNFINISHED,
    WAITING,
    status_in,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from fairway.jobs.job import ReadyLine
    from fairway.jobs.stores.sqlite.ready_lines import Names
    from fairway.jobs.stores.sqlite.schema import Tables

REASON = "iif(cancelling, coalesce(error, 'cancelled'), NULL)"
"""Why a job is to end, if somebody cancelled it: its error says so until it has."""
WHY = f"SELECT {REASON} FROM job WHERE id = ?"
BECOME_READY = f"{IS_READY}, due_ns = NULL, since_ns = ?, lane = {HOME}"
READY_ONE = f"UPDATE job SET {BECOME_READY} WHERE id = ?"
UNBLOCK = f"UPDATE job SET {IS_READY} WHERE id IN carray(?)"

# What ended badly keeps what it waited for, or was given: a retry by hand takes it up.
END_ONE = f"""
UPDATE job SET status = ?1, result = ?2, error = ?3, since_ns = ?4, due_ns = NULL,
    names = iif(?1 = {DONE}, NULL, names), cancelling = 0,
    waited_until_ns = iif(?1 > {DONE} AND status = {WAITING}, coalesce(due_ns, 0), NULL)
WHERE id = ?5 RETURNING partition_key, parent, notify
"""

IN_LINE = status_in(where(key_is_free))
# The first that waits for each key, if nobody has it. Looked for before anything is changed: mostly
# there is none, and a statement that might write costs ten times as much.
FIRST_BLOCKED = f"""
SELECT first FROM (
    SELECT (
        SELECT id FROM job WHERE partition_key = value AND {UNFINISHED} AND {IN_LINE}
        ORDER BY id LIMIT 1
    ) AS first
    FROM json_each(?) WHERE NOT EXISTS (
        SELECT 1 FROM job WHERE partition_key = value AND {UNFINISHED} AND status = {RUNNING}
    )
) WHERE first IS NOT NULL
"""
AWAITED = f"""EXISTS (
    SELECT 1 FROM job AS child WHERE child.parent = job.id AND child.notify IS NULL
    AND child.{UNFINISHED}
)"""
WAITS = f"SELECT id, status, names, {AWAITED} FROM job WHERE id IN carray(?)"

FORGET_ATTEMPTS = f"""
DELETE FROM attempt WHERE job = ?1 AND number <= (
    SELECT number FROM attempt WHERE job = ?1 ORDER BY number DESC LIMIT 1 OFFSET {ATTEMPTS_MAX}
)
"""
"""Of one job, all but the last."""

# What a unique key stands for: its job is unfinished, or its window is.
KEYED = f"""
SELECT unique_key.job FROM unique_key LEFT JOIN job ON job.id = unique_key.job
WHERE unique_key.key = ?
AND (unique_key.until_ns > ? OR job.{UNFINISHED})
"""


def numbers(ids: Collection[int]) -> Any:
    """Ids as one parameter, for `carray(?)`: SQLite reads them without the interpreter's lock."""
    return apsw.carray(array("q", ids or (0,)))  # an empty one has no address; no job is 0


def names_column(names: Collection[str | None]) -> str | None:
    return json.encode(names).decode() if names else None


def names_in(column: str | None) -> tuple[str | None, ...]:
    return json.decode(column, type=tuple[str | None, ...]) if column is not None else ()


class Transaction:
    """One call's work on the tables, at one moment, inside a transaction that others began."""

    __slots__ = ("connection", "names", "now_ns", "readied")

    def __init__(self, connection: Tables, names: Names, now_ns: int) -> None:
        self.connection = connection
        self.names = names
        self.now_ns = now_ns
        self.readied: set[int] = set()
        """Jobs this call may have made ready; `woken` looks which of them are."""

    def let_go(self, ids: Collection[int]) -> None:
        """Nobody has these any more; their status is set by who says so."""
        self.connection.execute("DELETE FROM lease WHERE job IN carray(?)", (numbers(ids),))

    def make_ready(self, id: int) -> None:
        self.connection.execute(READY_ONE, (self.now_ns, id))
        self.readied.add(id)

    def give_back(self, id: int, key: str | None) -> None:
        """A job that a worker had is ready again, and its key is free."""
        self.make_ready(id)
        self.unblock(key)

    def unblock(self, *keys: str | None) -> None:
        """For each key, the first job that waits for it may try for it."""
        wanted = [key for key in keys if key is not None]
        if not wanted:
            return
        found = self.connection.execute(FIRST_BLOCKED, (json.encode(wanted).decode(),)).fetchall()
        if found:
            ids = [id for (id,) in found]
            self.connection.execute(UNBLOCK, (numbers(ids),))
            self.readied.update(ids)

    def park(self, id: int, key: str | None, status: Status, delay_ns: int | None) -> None:
        due_ns = None if delay_ns is None else self.now_ns + delay_ns
        self.connection.execute(
            "UPDATE job SET status = ?, due_ns = ? WHERE id = ?",
            (CODES[status], due_ns, id),
        )
        self.unblock(key)

    def end(self, id: int, status: Status, result: bytes | None, error: str | None) -> None:
        """End a job and notify its parent."""
        key, parent, notify = self.connection.execute(
            END_ONE, (CODES[status], result, error, self.now_ns, id)
        ).fetchall()[0]
        if status is Status.DONE:
            self.connection.execute("DELETE FROM signal WHERE job = ?", (id,))
        self.unblock(key)
        if parent is None:
            return
        if notify is not None:
            self.deliver(parent, notify, ending(id, status, result, error), None)
            return
        self.wake_parents([parent])

    def wake_parents(self, ids: Collection[int]) -> None:
        """Of these, make ready who waited for children and has none left to wait for."""
        found = self.connection.execute(WAITS, (numbers(ids),)).fetchall()
        for id, code, names, awaited in found:
            parent = Facts(STATUSES[code], names=names_in(names))
            if child_ended(parent, bool(awaited)) is not None:
                self.make_ready(id)

    def deliver(self, id: int, name: str, payload: bytes, dedup: str | None) -> Delivered:
        """Put a signal into a job's inbox, and wake the job if it waits for that."""
        found = self.connection.execute(
            "SELECT status, names FROM job WHERE id = ?", (id,)
        ).fetchone()
        code, names = found or (DONE, None)
        if code >= DONE:
            return Delivered(None, False, None)
        if dedup is not None:
            self.connection.execute(
                "INSERT OR IGNORE INTO signal_key (job, key) VALUES (?, ?)", (id, dedup)
            )
            if not self.connection.changes():
                return Delivered(id, False, None)
        self.connection.execute(
            "INSERT INTO signal (job, name, payload, dedup) VALUES (?, ?, ?, ?)",
            (id, name, payload, dedup),
        )
        if signalled(Facts(STATUSES[code], names=names_in(names)), name) is not None:
            self.make_ready(id)
            return Delivered(id, True, self._line(id))
        return Delivered(id, True, None)

    def still_waits(self, id: int, names: Collection[str | None]) -> bool:
        """Whether what a job that has these names waits for has not come."""
        if not waits_for_children(names):
            rows = self.connection.execute("SELECT name FROM signal WHERE job = ?", (id,))
            return still_waits(names, [name for (name,) in rows.fetchall()], False)
        (awaited,) = self.connection.execute(
            f"SELECT {AWAITED} FROM job WHERE id = ?", (id,)
        ).fetchone()
        return still_waits(names, (), bool(awaited))

    def keyed(self, key: str) -> int | None:
        """The job a unique key stands for, as long as it does."""
        job: int | None
        (job,) = self.connection.execute(KEYED, (key, self.now_ns)).fetchone() or (None,)
        return job

    def alive(self, worker: int) -> bool:
        found = self.connection.execute(
            "SELECT 1 FROM worker WHERE id = ? AND until_ns > ?", (worker, self.now_ns)
        ).fetchone()
        return found is not None

    def woken(self) -> set[ReadyLine]:
        """The ready lines of those that became ready and still are."""
        return self.ready_lines(self.readied) if self.readied else set()

    def ready_lines(self, ids: Collection[int]) -> set[ReadyLine]:
        found = self.connection.execute(
            f"SELECT DISTINCT lane FROM job WHERE id IN carray(?) AND {IS_READY}", (numbers(ids),)
        )
        return self.names.lines(line for (line,) in found.fetchall())

    def _line(self, id: int) -> ReadyLine:
        (line,) = self.connection.execute("SELECT lane FROM job WHERE id = ?", (id,)).fetchone()
        return self.names.line(line)

"""Jobs that are added on a connection of the caller, in a transaction that the caller commits or
not.

A connection of `apsw` is always welcome: it is the same library, which knows its own locks.
Python's `sqlite3` is another copy of SQLite, and two copies in one process do not see each other's
locks on one file: both would write at once and commits would be lost. So it is welcome only in a
process that has not opened the store itself, one that adds jobs and leaves running them to others.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import apsw

from fairway.errors import Corrupt, Invalid, Unavailable, UnknownFormat, WriteFailed
from fairway.jobs.stores.sqlite.intake import SqliteIntake
from fairway.jobs.stores.sqlite.mark import COUNT
from fairway.jobs.stores.sqlite.ready_lines import Names
from fairway.jobs.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.job import Enqueued, NewJob
    from fairway.jobs.store import TopicCursor
    from fairway.jobs.stores.sqlite.schema import Sql

HIDDEN = """
SELECT name FROM temp.sqlite_master AS theirs WHERE type IN ('table', 'view') AND EXISTS (
    SELECT 1 FROM main.sqlite_master AS ours
    WHERE ours.type = 'table' AND ours.name = theirs.name COLLATE NOCASE
) ORDER BY name
"""
OPENED: Counter[str] = Counter()
"""The files that stores of this process have open."""


def add_within(
    given: Any, place: str, now_ns: int, jobs: Sequence[NewJob], cursor: TopicCursor | None
) -> list[Enqueued]:
    """Insert jobs on the connection `given`; whether they stay is up to its transaction."""
    if not _is_sqlite3(given):
        return _add(given, place, now_ns, jobs, cursor)
    theirs, given.text_factory = given.text_factory, str
    try:
        return _add(given, place, now_ns, jobs, cursor)
    finally:
        given.text_factory = theirs


def _add(
    given: Any, place: str, now_ns: int, jobs: Sequence[NewJob], cursor: TopicCursor | None
) -> list[Enqueued]:
    connection, errors, busy = _recognize(given, place)
    try:
        connection.execute("SAVEPOINT fairway_enqueue")
        try:
            # A write first: from here on nobody else can, so what is read now stays true.
            connection.execute(COUNT)
            intake = SqliteIntake(connection, Names(connection), now_ns)
            fresh = cursor is None or intake.advance(cursor)
            added = intake.add(jobs) if fresh else []
        except BaseException:
            if given.in_transaction:
                connection.execute("ROLLBACK TO fairway_enqueue")
                connection.execute("RELEASE fairway_enqueue")
            raise
        connection.execute("RELEASE fairway_enqueue")
    except errors as error:
        if busy(error):
            raise Unavailable(f"{place} is held by somebody else: {error}") from error
        raise WriteFailed(f"{place}: {error}; nothing was enqueued") from error
    return added


def _recognize(given: Any, place: str) -> tuple[Sql, type[Exception], Any]:
    """The connection, the errors it raises, and which of them mean to try later."""
    errors: type[Exception]
    if isinstance(given, apsw.Connection):
        errors, busy, closed = apsw.Error, _apsw_busy, _apsw_closed
    elif _is_sqlite3(given):
        import sqlite3

        if OPENED[place]:
            raise Invalid(
                f"{place} is open in this process, and sqlite3 would not see its locks:"
                " give a connection of apsw"
            )
        errors, busy, closed = sqlite3.Error, _sqlite3_busy, _sqlite3_closed
    else:
        raise Invalid(
            "`within` takes a connection of apsw or sqlite3 that has the job store open,"
            f" not {type(given).__name__}"
        )
    connection = _CallerConnection(given)
    try:
        files = {name: file for _, name, file in connection.execute("PRAGMA database_list")}
        file = files["main"]
        if not file or os.path.realpath(file) != place:
            raise Invalid(f"the connection is to {file or 'memory'}, and the jobs are in {place}")
        if not given.in_transaction:
            raise Invalid("the connection is in no transaction: begin one, to be committed by you")
        if hidden := [name for (name,) in connection.execute(HIDDEN)]:
            raise Invalid(
                f"the connection has temporary tables named like ours, which hide them: {hidden}"
            )
        if next(iter(connection.execute("PRAGMA application_id")))[0] != APPLICATION_ID:
            raise Corrupt("the file is not a Fairway job store", place=place)
        version = next(iter(connection.execute("PRAGMA user_version")))[0]
        if version != len(MIGRATIONS):
            raise UnknownFormat(
                f"{place} has format {version}; this release writes {len(MIGRATIONS)}"
            )
    except errors as error:
        if closed(error):
            raise Invalid(f"the connection cannot be used: {error}") from error
        raise Unavailable(f"{place}: {error}") from error
    return connection, errors, busy


class _CallerConnection:
    """A connection of the caller, asked by cursors of ours: rows come as they are, whatever the
    caller's own cursors would make of them."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def execute(self, statement: str, bindings: Any = (), /) -> Any:
        return self._cursor().execute(statement, bindings)

    def executemany(self, statement: str, bindings: Any, /) -> Any:
        return self._cursor().executemany(statement, bindings)

    def _cursor(self) -> Any:
        if isinstance(self._given, apsw.Connection):
            cursor = apsw.Cursor(self._given)
            # With none of its own, a cursor of apsw would go by those of its connection.
            cursor.row_trace = _as_it_is
            cursor.exec_trace = _go_on
            return cursor
        import sqlite3

        return sqlite3.Cursor(self._given)  # which, unlike `cursor()`, has no row factory


def _as_it_is(cursor: apsw.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    return row


def _go_on(cursor: apsw.Cursor, statement: str, bindings: Any) -> bool:
    return True


def _is_sqlite3(given: Any) -> bool:
    module = sys.modules.get("sqlite3")  # whoever has a connection of it has imported it
    return module is not None and isinstance(given, module.Connection)


def _apsw_closed(error: Exception) -> bool:
    return isinstance(error, apsw.ConnectionClosedError)


def _sqlite3_closed(error: Exception) -> bool:
    return type(error).__name__ == "ProgrammingError"  # or of another thread: the caller's, too


def _apsw_busy(error: Exception) -> bool:
    return isinstance(error, (apsw.BusyError, apsw.LockedError))


def _sqlite3_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

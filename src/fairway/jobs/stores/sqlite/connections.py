"""How the file of the jobs is opened and looked into, and what an error of SQLite's means."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import apsw

from fairway.errors import Closing, Corrupt, InvalidConfig, Unavailable, UnknownFormat
from fairway.jobs.stores.sqlite.mark import Witness, size_of
from fairway.jobs.stores.sqlite.schema import APPLICATION_ID, COUNTING, MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUSY_MS: Final = 5_000  # how long another process may hold the file before a call is refused
CHECKPOINT_PAGES: Final = 4_000
WAL_BYTES_MAX: Final = 64 * 1024 * 1024


@contextmanager
def answering(place: str) -> Iterator[None]:
    """Turn what SQLite says into what our callers understand, where nothing was written."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise Unavailable(f"{place} is held by somebody else: {error}") from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise Corrupt(str(error), place=place) from error
    except apsw.ConnectionClosedError as error:
        raise Closing(f"{place} is not open") from error
    except apsw.CantOpenError as error:
        raise InvalidConfig(f"{place} cannot be opened: {error}") from error
    except apsw.Error as error:
        code = getattr(error, "extendedresult", 0)
        raise Unavailable(f"{place}: {type(error).__name__} {error} (code {code})") from error


def connect(place: str) -> apsw.Connection:
    """A connection to a file that is ours, or new."""
    logged = os.path.exists(f"{place}-wal")
    connection = apsw.Connection(place)
    try:
        _configure(connection)
    except BaseException:  # not let go of: it would be closed some time, with a checkpoint
        leave_as_it_is(connection, place, logged)
        raise
    return connection


def _configure(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(BUSY_MS)
    connection.pragma("fullfsync", True)
    connection.pragma("checkpoint_fullfsync", True)
    connection.pragma("synchronous", "FULL")
    connection.pragma("temp_store", "MEMORY")
    connection.pragma("cache_size", -32 * 1024)
    connection.pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
    connection.pragma("journal_size_limit", WAL_BYTES_MAX)


def create(place: str, begin: Callable[[apsw.Connection], None]) -> apsw.Connection:
    """Open the file, make it if it is not there, and bring its tables up to date."""
    witness = Witness(place)
    connection = _look_into(place, witness)
    try:
        _log_ahead(connection, place)
        # Whoever else opens the file now waits here, and finds it done.
        begin(connection)
        try:
            for version in range(_verify(connection, place), len(MIGRATIONS)):
                connection.execute(MIGRATIONS[version])
                connection.pragma("user_version", version + 1)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
    except BaseException:
        leave_as_it_is(connection, place, witness.logged)
        raise
    return connection


def inspect(place: str) -> None:
    """Refuse a file that `create` would refuse, and change nothing, whatever it is."""
    for path in (place, f"{place}-wal", f"{place}-shm", f"{place}-turn"):
        _refuse_unusable(os.path.realpath(path))
    witness = Witness(place)
    witness.refuse_missing()
    if size_of(place):  # else SQLite would make it
        leave_as_it_is(_look_into(place, witness), place, witness.logged)


def _refuse_unusable(path: str) -> None:
    """Raises `InvalidConfig` for what can be no file to write, and could not be made one either.

    Asked, not tried: closing any descriptor of the jobs' file would end SQLite's locks on it.
    """
    if os.path.lexists(path):
        if not os.path.isfile(path):
            raise InvalidConfig(f"{path} cannot be opened: it is not a file")
        if not os.access(path, os.R_OK | os.W_OK):
            raise InvalidConfig(f"{path} cannot be opened: it may not be written")
    elif not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise InvalidConfig(f"{path} cannot be made: its directory is missing or not ours")


def _look_into(place: str, witness: Witness) -> apsw.Connection:
    """A connection to a file that is sound, as far as can be seen before it is used."""
    witness.refuse_missing()
    connection = connect(place)
    try:
        witness.refuse_shortened(connection, _verify(connection, place) >= COUNTING)
    except BaseException:
        leave_as_it_is(connection, place, witness.logged)
        raise
    return connection


def leave_as_it_is(connection: apsw.Connection, place: str, logged: bool) -> None:
    """Close the connection to a file that was only looked at, and change nothing of it. `logged`
    if it had a -wal before: an empty one that SQLite has made to look at the file goes with it.

    SQLite would move what is in the -wal into the file when the last one leaves, and delete it. A
    sound copy of the file, put back in place of a damaged one, would then lack what was in it.
    """
    if logged or size_of(f"{place}-wal"):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(force=True)


def _verify(connection: apsw.Connection, place: str) -> int:
    """The version of the file, 0 if it is empty."""
    version: int = connection.pragma("user_version")
    if connection.pragma("application_id") != APPLICATION_ID:
        if version or connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise Corrupt("the file is not a Fairway job store", place=place)
        return 0
    if version > len(MIGRATIONS):
        raise UnknownFormat(
            f"{place} has format {version}; this release knows up to {len(MIGRATIONS)}"
        )
    return version


def _log_ahead(connection: apsw.Connection, place: str) -> None:
    """Put the file into WAL mode; two that do it at once get in each other's way."""
    for last in (False, False, True):
        try:
            mode = connection.pragma("journal_mode", "WAL")
        except apsw.BusyError:
            if last:
                raise
            connection.execute("BEGIN IMMEDIATE")  # waits for the other
            connection.execute("COMMIT")
        else:
            if mode != "wal":
                raise InvalidConfig(f"{place} cannot be put into WAL mode")
            return

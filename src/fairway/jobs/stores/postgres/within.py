"""Taking part in a transaction of the caller: whose connection it is, and how it is asked.

Whether what is done here stays is up to the caller, and so is what to do when others are in the
way: we cannot repeat a caller's transaction. What is SQLAlchemy's is known by its module, not by
import: nobody needs it to enqueue with asyncpg.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import asyncpg
import psycopg
from asyncpg.pool import PoolConnectionProxy
from psycopg.rows import tuple_row
from psycopg.types.numeric import IntLoader
from psycopg.types.string import TextLoader

from fairway.errors import (
    FairwayError,
    Invalid,
    InvalidConfig,
    LockTimeout,
    TransactionConflict,
    Unavailable,
    WriteFailed,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairway.jobs.stores.postgres.connections import Connections

_PSYCOPG = (psycopg.Connection, psycopg.AsyncConnection)
_ASYNCPG = (asyncpg.Connection, PoolConnectionProxy)
_RAISED = ("asyncpg", "psycopg", "sqlalchemy")
_IN_THE_WAY = ("40001", "40P01")
_LOCKED = "55P03"
_FAILED_BEFORE = "25P02"
_ELSEWHERE = ("3F000", "42P01")
_REFUSED = "42501"


class CallerConnections:
    """Connections of callers, and whether they are to the database of the jobs."""

    def __init__(self, connections: Connections, lock_timeout_ms: int) -> None:
        self._connections = connections
        self._sql = connections.sql
        self._lock_timeout_ms = lock_timeout_ms
        self._known: WeakSet[Any] = WeakSet()

    async def recognize(self, connection: Any) -> CallerConnection:
        """Something with `fetch(statement, *arguments)` in the transaction of the caller.

        Takes an asyncpg connection, a psycopg connection (of either kind), or a connection or
        session of SQLAlchemy (of either kind) over one of those. Raises `Invalid` if it is in no
        transaction, or connected to another database.
        """
        try:
            driver = connection
            if _is_sqlalchemy(connection):
                driver = await _driver_connection(connection)
            if not isinstance(driver, _PSYCOPG + _ASYNCPG):
                raise _no_connection(driver)
            if isinstance(driver, _PSYCOPG) and driver.closed and not driver.broken:
                raise Invalid("the connection cannot be used: it is closed")
            begun = _in_transaction(driver) or _begins_by_itself(driver)
        except Exception as error:
            if _origin(error) not in _RAISED:
                raise
            error_text = f"{type(error).__name__} {error}"
            raise Invalid(f"the connection cannot be used: {error_text}") from error
        if not begun:
            raise Invalid("the connection is in no transaction: begin one, to be committed by you")
        caller = CallerConnection(driver)
        lasting = getattr(driver, "_con", None) or driver  # a pool wraps it anew for each borrower
        if lasting not in self._known:
            await self._check_place(caller)
            self._known.add(lasting)
        return caller

    async def _check_place(self, caller: CallerConnection) -> None:
        ((name, table, began),) = await caller.fetch(self._sql["place"])
        ((our_name, *ours),) = await self._connections.fetch("place")
        # Numbers as numbers: asyncpg reads them by a codec of the caller's, if there is one.
        same = table is not None and [int(table), int(began)] == ours
        if same and name != our_name:
            raise Invalid(
                "the connection has a codec of its own for text, which changes what is read:"
                f" {our_name!r} becomes {name!r}"
            )
        if not same:
            raise Invalid(
                f"the connection is to another database (it is {name!r} there): the jobs are"
                f" in schema {self._connections.schema} of {our_name!r}"
            )

    @asynccontextmanager
    async def all_or_none(self, caller: CallerConnection) -> AsyncIterator[None]:
        """What is done in it waits for locks no longer than we do, and leaves nothing if it fails:
        the caller's transaction is as it was."""
        await caller.execute("savepoint fairway_enqueue")
        try:
            ((before, _),) = await caller.fetch(self._sql["wait_less"], self._lock_timeout_ms)
            yield
            await caller.fetch(self._sql["wait_as_before"], before)
        except FairwayError:
            if not caller.lost:
                await caller.execute("rollback to savepoint fairway_enqueue")
                await caller.execute("release savepoint fairway_enqueue")
            raise
        await caller.execute("release savepoint fairway_enqueue")


class CallerConnection:
    """A connection of the caller's, asked as an asyncpg one is."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._psycopg = isinstance(connection, _PSYCOPG)

    @property
    def lost(self) -> bool:
        """Whether the connection is gone, and the transaction with it."""
        if self._psycopg:
            return bool(self._connection.closed)
        return bool(self._connection.is_closed())

    async def fetch(self, text: str, *args: Any) -> list[Any]:
        return await self._ask(text, args, rows=True)

    async def fetchval(self, text: str, *args: Any) -> Any:
        rows = await self.fetch(text, *args)
        return rows[0][0] if rows else None

    async def execute(self, text: str, *args: Any) -> None:
        await self._ask(text, args, rows=False)

    async def _ask(self, text: str, args: tuple[Any, ...], *, rows: bool) -> list[Any]:
        try:
            if self._psycopg:
                return await self._ask_psycopg(text, args, rows=rows)
            if rows:
                found: list[Any] = await self._connection.fetch(text, *args)
                return found
            await self._connection.execute(text, *args)
            return []
        except Exception as error:
            if _origin(error) not in _RAISED and not isinstance(error, OSError):
                raise
            raise self._meaning(error) from error

    async def _ask_psycopg(self, text: str, args: tuple[Any, ...], *, rows: bool) -> list[Any]:
        # Rows come as ours do, whatever the caller's own cursors make of theirs.
        if isinstance(self._connection, psycopg.AsyncConnection):
            async with psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row) as cursor:
                _read_as_it_is(cursor.adapters)
                await cursor.execute(text.encode(), args)
                return await cursor.fetchall() if rows else []
        with psycopg.RawCursor(self._connection, row_factory=tuple_row) as cursor:
            _read_as_it_is(cursor.adapters)
            cursor.execute(text.encode(), args)
            return cursor.fetchall() if rows else []

    def _meaning(self, error: BaseException) -> FairwayError:
        """What an error of a driver means to the caller. Nothing of the call stays."""
        state = getattr(error, "sqlstate", None)
        error_text = f"{state or type(error).__name__} {error}".strip()
        if state in _IN_THE_WAY:
            return TransactionConflict(
                "your transaction met others: roll it back and repeat the whole of it"
                f" ({error_text})"
            )
        if state == _LOCKED:
            return LockTimeout(
                f"a transaction of somebody else is in the way for too long: {error_text}"
            )
        if state == _FAILED_BEFORE:
            return Invalid(f"your transaction has failed already: roll it back ({error_text})")
        if state in _ELSEWHERE:
            return Invalid(
                f"the connection is to another database than that of the jobs: {error_text}"
            )
        if state == _REFUSED:
            return InvalidConfig(f"PostgreSQL: {error_text}")
        if self.lost:
            return Unavailable(
                f"the connection was lost, and your transaction with it: {error_text}"
            )
        if state is None:
            return Invalid(f"the connection cannot be used: {error_text}")
        return WriteFailed(f"PostgreSQL: {error_text}; nothing was enqueued")


def _read_as_it_is(adapters: psycopg.adapt.AdaptersMap) -> None:
    """Values of a cursor come as they are, whatever loaders the caller's connection has."""
    adapters.register_loader("int8", IntLoader)
    adapters.register_loader("text", TextLoader)


def _origin(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _is_sqlalchemy(thing: Any) -> bool:
    """Whether it is SQLAlchemy's, or of a class that was made of one of its."""
    return any(kind.__module__.partition(".")[0] == "sqlalchemy" for kind in type(thing).__mro__)


def _no_connection(thing: Any) -> Invalid:
    return Invalid(
        f"a job cannot be enqueued within a {type(thing).__module__}."
        f"{type(thing).__qualname__}: give an asyncpg, psycopg or SQLAlchemy connection to"
        " the database of the jobs"
    )


def _in_transaction(connection: Any) -> bool:
    """Whether a connection of a driver is in a transaction now."""
    if isinstance(connection, _PSYCOPG):
        idle: bool = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        return not idle
    return bool(connection.is_in_transaction())


def _begins_by_itself(connection: Any) -> bool:
    """Whether its first statement begins a transaction: with psycopg, unless it commits by
    itself."""
    return isinstance(connection, _PSYCOPG) and not connection.autocommit


async def _driver_connection(connection: Any) -> Any:
    """The connection below one of SQLAlchemy.

    Its transaction begins with its first statement, and only if it is said through SQLAlchemy will
    that commit it. So one is said, if nothing was yet. What is no connection, such as an engine,
    is given back as it is.
    """
    given = connection
    if hasattr(connection, "sync_session"):  # AsyncSession
        connection = await connection.connection()
    if hasattr(connection, "get_raw_connection"):  # AsyncConnection
        raw = (await connection.get_raw_connection()).driver_connection
        if isinstance(raw, _PSYCOPG + _ASYNCPG) and not _in_transaction(raw):
            await connection.exec_driver_sql("select 1")
        return raw
    if hasattr(connection, "get_bind"):  # Session
        connection = connection.connection()
    raw = getattr(getattr(connection, "connection", None), "driver_connection", given)
    if isinstance(raw, _PSYCOPG + _ASYNCPG) and not _in_transaction(raw):
        connection.exec_driver_sql("select 1")
    return raw

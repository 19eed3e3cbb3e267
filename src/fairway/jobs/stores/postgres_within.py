"""Taking part in a transaction of the caller: whose connection it is, and how it is asked.

Known by their modules, not by import: nobody needs SQLAlchemy to enqueue with asyncpg.
"""

from __future__ import annotations

from typing import Any

from fairway.errors import Invalid


class _Psycopg:
    """A psycopg connection, asked as an asyncpg one is."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, text: str, *args: Any) -> list[Any]:
        import psycopg

        if isinstance(self._connection, psycopg.AsyncConnection):
            async with psycopg.AsyncRawCursor(self._connection) as cursor:
                await cursor.execute(text.encode(), args)
                return await cursor.fetchall()
        with psycopg.RawCursor(self._connection) as cursor:
            cursor.execute(text.encode(), args)
            return cursor.fetchall()


async def unwrapped(connection: Any) -> Any:
    """Something with `fetch(statement, *arguments)` in the transaction of the caller.

    Takes an asyncpg connection, a psycopg connection (of either kind), or a connection or session
    of SQLAlchemy (of either kind) over one of those.
    """
    origin = type(connection).__module__.partition(".")[0]
    if origin == "sqlalchemy":
        connection = await _driver_connection(connection)
        origin = type(connection).__module__.partition(".")[0]
    if origin == "asyncpg":
        return connection
    if origin == "psycopg":
        return _Psycopg(connection)
    raise Invalid(
        f"a job cannot be enqueued within a {type(connection).__module__}."
        f"{type(connection).__qualname__}: give an asyncpg, psycopg or SQLAlchemy connection to"
        " the database of the jobs"
    )


async def _driver_connection(connection: Any) -> Any:
    if hasattr(connection, "sync_session"):  # AsyncSession
        connection = await connection.connection()
    if hasattr(connection, "get_raw_connection"):  # AsyncConnection
        raw = await connection.get_raw_connection()
        return raw.driver_connection
    if hasattr(connection, "get_bind"):  # Session
        connection = connection.connection()
    return connection.connection.driver_connection

"""Connections to PostgreSQL: how they are made, what they are set to, and a few for reading.

The statements are in `postgres.sql`; they name no schema, the search path of a connection does.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, Format
from psycopg.types.numeric import Int8BinaryDumper

from fairway.errors import Closing, Corrupt, FairwayError, InvalidConfig, TryLater
from fairway.masking import masked
from fairway.storage.address import NO_ADDRESS, check_address
from fairway.storage.named_sql import named_sql
from fairway.storage.wals.postgres_rows import ByteaArray, Int8Array

if TYPE_CHECKING:
    from collections.abc import Mapping

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]
Backend: TypeAlias = "dict[str, object]"
"""The server's side of a connection: `pid`, and `start`, since a pid is used again."""

# A peer that vanished without a word is noticed after about 20 s. The dsn may say otherwise.
TIMEOUTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


SQL = {name: text.encode() for name, text in named_sql(__package__, "postgres.sql").items()}


class _Int8ArrayDumper(Dumper):
    format = Format.BINARY
    oid = psycopg.adapters.types["int8"].array_oid

    def dump(self, obj: bytearray) -> bytearray:
        return obj  # packed by hand already, see `postgres_rows`


class _ByteaArrayDumper(_Int8ArrayDumper):
    oid = psycopg.adapters.types["bytea"].array_oid


class Dialler:
    """Makes connections to one schema of one database."""

    def __init__(self, dsn: str, *, schema: str) -> None:
        check_address(dsn)
        try:
            wanted = conninfo_to_dict(dsn)
        except psycopg.ProgrammingError:
            raise InvalidConfig(NO_ADDRESS) from None  # what libpq says quotes the address
        self._conninfo = make_conninfo("", **{**TIMEOUTS, **wanted})
        self.schema = schema
        self.path = sql.Identifier(schema).as_string()
        self.place = f"database {wanted.get('dbname') or 'default'}, schema {schema}"

    def dial(self, role: str) -> tuple[Connection, Backend]:
        """A connection, and the backend behind it. Raises `psycopg.Error`."""
        name = f"fairway {self.schema} {role}"
        connection = psycopg.connect(self._conninfo, autocommit=True, application_name=name)
        try:
            adapters = connection.adapters
            adapters.register_dumper(int, Int8BinaryDumper)  # one type, one prepared statement
            adapters.register_dumper(Int8Array, _Int8ArrayDumper)
            adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
            row = connection.execute(SQL["session"], {"path": self.path}).fetchone()
            assert row is not None
            return connection, {"pid": row[0], "start": row[1]}
        except BaseException:
            connection.close()
            raise


def is_alive(connection: Connection) -> bool:
    """False if the server has hung up while the connection was idle. Does not wait."""
    try:
        for _ in range(2):  # its last words come first, the end of the stream after them
            connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return connection.pgconn.status == ConnStatus.OK


class ReadConnections:
    """A few connections for reading, each used by one thread at a time."""

    def __init__(self, dialler: Dialler, *, size: int) -> None:
        self._dialler = dialler
        self._free = threading.BoundedSemaphore(size)
        self._idle: list[Connection] = []
        self._closed = False

    def ask(self, name: str, parameters: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows a statement finds. A lost connection is replaced once; a read can be repeated.

        Raises `TryLater` if the server does not answer, `Corrupt` if it finds its files damaged.
        """
        with self._free:
            try:
                try:
                    return self._ask(self._take(), name, parameters)
                except psycopg.OperationalError:
                    connection, _ = self._dialler.dial("reader")
                    return self._ask(connection, name, parameters)
            except psycopg.Error as error:
                raise trouble(error, self._dialler.place) from error

    def close(self) -> None:
        self._closed = True
        with suppress(IndexError):  # two threads may empty it together
            while True:
                self._idle.pop().close()

    def _take(self) -> Connection:
        if self._closed:
            raise Closing(f"{self._dialler.place} is closed")
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if is_alive(connection):
                    return connection
                connection.close()
        return self._dialler.dial("reader")[0]

    def _ask(
        self, connection: Connection, name: str, parameters: Mapping[str, object]
    ) -> list[tuple[Any, ...]]:
        try:
            rows = connection.execute(SQL[name], parameters, binary=True).fetchall()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        if self._closed:
            self.close()
        return rows


def trouble(error: psycopg.Error, place: str) -> FairwayError:
    """Why nothing could be found out, sorted by what the caller can do."""
    kind = (error.sqlstate or "")[:2]
    if kind == "XX":  # the server found its own files damaged
        return Corrupt(message_of(error), place=place)
    if kind in ("28", "3D", "42"):  # no such user, database or table, or no right to it
        return InvalidConfig(f"{place}: {message_of(error)}")
    return TryLater(f"{place}: {message_of(error)}")


def message_of(error: psycopg.Error) -> str:
    return masked(f"{error.sqlstate or type(error).__name__} {error}".strip())

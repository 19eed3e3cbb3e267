"""Connections to PostgreSQL for jobs: transactions, and what its errors mean.

`asyncpg` for everything on the event loop; the heartbeat uses `psycopg`, which may block its
thread.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import asyncpg
import psycopg

from fairway.errors import (
    Closing,
    FairwayError,
    InvalidConfig,
    LockTimeout,
    OutcomeUnknown,
    Unavailable,
    WriteFailed,
)
from fairway.jobs.stores.postgres.schema import statements
from fairway.masking import masked
from fairway.storage.address import NO_ADDRESS, check_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

T = TypeVar("T")

AsyncpgConnection: TypeAlias = "asyncpg.Connection[Any]"

TRIES = 20
"""How often a transaction is tried that others' locks stood in the way of."""
CONNECT_TIMEOUT_S = 10
COMMAND_TIMEOUT_S = 60
CLOSE_TIMEOUT_S = 5
QUERIES_MAX = 10_000_000
"""After which a connection is replaced by a fresh one."""

_DRIVERS = frozenset({"asyncpg", "psycopg", "psycopg_pool"})
_ENDED = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # the server is a standby now, and stays one
)
"""What the server says when it ends a session, or is to be asked no more."""
IN_THE_WAY = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_UNDONE = (*IN_THE_WAY, asyncpg.QueryCanceledError)
"""Nothing was changed, and the next try may succeed. A cancel that was meant for the statement of a
caller who left may arrive at the next one on that connection."""
_FULL = (asyncpg.TooManyConnectionsError,)
_NOT_SET_UP = (
    asyncpg.ClientConfigurationError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedTableError,
    asyncpg.InvalidSchemaNameError,
)


class Connections:
    """A few connections to one database, made again when they break."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        size: int,
        options: Mapping[str, Any],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        check_address(dsn)
        self._dsn = dsn
        self._size = size
        self._options = dict(options)
        self._settings = {
            "application_name": f"fairway {schema}",
            "jit": "off",
            # Every statement was written for its generic plan; planning again would cost more
            # than running it.
            "plan_cache_mode": "force_generic_plan",
            # The small tables turn over all the time: what is left of them while somebody holds an
            # old snapshot must not be read from end to end by every claim.
            "enable_seqscan": "off",
            **(settings or {}),
        }
        self._pool: asyncpg.Pool[Any] | None = None
        self.schema = schema
        self.sql = statements(schema)

    async def open(self) -> None:
        with answering(sent=False):
            try:
                self._pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=0,  # it would go on asking for one, and log each refusal
                    max_size=self._size,
                    timeout=CONNECT_TIMEOUT_S,
                    command_timeout=COMMAND_TIMEOUT_S,
                    max_queries=QUERIES_MAX,
                    reset=_as_it_is,
                    server_settings=self._settings,
                    **self._options,
                )
            except ValueError:
                raise InvalidConfig(NO_ADDRESS) from None  # what it says quotes the address

    async def aclose(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await pool.close()
            except Exception:  # nobody answers to the goodbye
                pool.terminate()

    @asynccontextmanager
    async def connection(self, *, sent: bool = True) -> AsyncIterator[AsyncpgConnection]:
        """A connection for one or more statements. `sent`: whether a loss leaves us in doubt."""
        pool = self._pool
        if pool is None:
            raise Closing("the job store is closed")
        with answering(sent=False):
            connection = await pool.acquire()
        try:
            with answering(sent=sent):
                yield connection
        except LockTimeout:
            raise
        except (Unavailable, OutcomeUnknown):
            # The server may have ended the session, and the end is still on its way to us. The next
            # one to be given this connection would fail as well.
            with suppress(Exception):
                connection.terminate()
                await pool.expire_connections()  # seldom is one lost alone
            raise
        finally:
            # What was done is done. A connection that cannot be given back is closed by the pool.
            with suppress(Exception):
                await pool.release(connection)

    async def fetch(self, name: str, *args: Any) -> list[Any]:
        """The rows of one statement that changes nothing."""
        async with self.connection(sent=False) as connection:
            rows: list[Any] = await connection.fetch(self.sql[name], *args)
            return rows

    async def change(self, name: str, *args: Any) -> list[Any]:
        """The rows of one statement that commits itself, tried again as a transaction is."""

        async def ask(connection: AsyncpgConnection) -> list[Any]:
            rows: list[Any] = await connection.fetch(self.sql[name], *args)
            return rows

        return await self.statement(ask)

    async def transaction(self, work: Callable[[AsyncpgConnection], Awaitable[T]]) -> T:
        """Run `work` in a transaction, again from the start if locks of others stood in its way."""

        async def within(connection: AsyncpgConnection) -> T:
            async with connection.transaction():
                return await work(connection)

        return await self.statement(within)

    async def statement(self, work: Callable[[AsyncpgConnection], Awaitable[T]]) -> T:
        """Run `work`, whose first statement commits itself, as `transaction` does."""
        tries = 0
        while True:
            tries += 1
            async with self.connection() as connection:
                try:
                    return await work(connection)
                except _UNDONE:
                    if tries == TRIES:
                        raise


async def _as_it_is(connection: AsyncpgConnection) -> None:
    """Nothing here changes a session, so nothing has to be undone: that saves a round trip."""


@contextmanager
def answering(*, sent: bool) -> Iterator[None]:
    """Every error of a driver becomes one of ours. `sent`: whether a loss leaves us in doubt."""
    try:
        yield
    except FairwayError:
        raise
    except Exception as error:
        if not _of_driver(error):
            raise
        raise trouble(error, sent=sent) from error


def _of_driver(error: Exception) -> bool:
    """Whether a driver raised it, or something that the driver called.

    Their own errors are not all of it: what a socket, a codec or the event loop raises in the
    middle of a call comes through as it is, and an internal error of theirs has a type of its own.
    """
    if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, psycopg.Error)):
        return True
    trace = error.__traceback__
    while trace is not None:
        module: str = trace.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in _DRIVERS:
            return True
        trace = trace.tb_next
    return False


def _is_hopeless(error: Exception) -> bool:
    """Whether it cannot be connected to, however long one waits: a port that no machine has, a
    server that does not speak TLS to those who want nothing else."""
    return isinstance(error, OverflowError) or "rejected SSL upgrade" in str(error)


def trouble(error: Exception, *, sent: bool) -> FairwayError:
    """What an error of the database means to whoever asked."""
    error_text = masked(
        f"{getattr(error, 'sqlstate', None) or type(error).__name__} {error}".strip()
    )
    if isinstance(error, (asyncpg.LockNotAvailableError, *IN_THE_WAY)):
        return LockTimeout(
            f"a transaction of somebody else is in the way for too long: {error_text}"
        )
    if isinstance(error, _NOT_SET_UP) or (not sent and _is_hopeless(error)):
        return InvalidConfig(f"PostgreSQL: {error_text}")
    if isinstance(error, asyncpg.PostgresError) and not isinstance(error, _ENDED):
        if isinstance(error, _FULL) and not sent:
            return Unavailable(f"PostgreSQL cannot be reached: {error_text}")
        return WriteFailed(f"PostgreSQL: {error_text}")
    if isinstance(error, ValueError):  # it was never sent: it could not be written as bytes
        return InvalidConfig(f"PostgreSQL: {error_text}")
    if sent:
        return OutcomeUnknown(f"the connection to PostgreSQL was lost: {error_text}")
    return Unavailable(f"PostgreSQL cannot be reached: {error_text}")

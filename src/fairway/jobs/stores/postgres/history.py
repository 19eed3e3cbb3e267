"""Jobs that ended, in PostgreSQL: a part of the table for each day, which is dropped whole.

Before that they go one by one, as soon as they are old enough, but not too many in one call: who
ends more than that between two calls keeps some until their day is dropped. Jobs that failed or
died are kept longer, and lie in a part of their own.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from fairway.jobs.stores.postgres.columns import us
from fairway.jobs.stores.postgres.schema import in_schema

if TYPE_CHECKING:
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections

PRUNE_ROWS = 5_000
"""Jobs that one statement forgets."""
PRUNE_MAX = 100_000
"""Jobs that a call forgets one by one, if it need not be exact."""
DAYS_AHEAD = 3
MADE_BY_ANOTHER = (
    asyncpg.DuplicateTableError,
    asyncpg.UniqueViolationError,
    asyncpg.InvalidObjectDefinitionError,
)
"""What `if not exists` raises for a table that somebody else has made a moment ago: by its name, in
the catalogs, or by the rows that it is for."""


class History:
    """Makes the days to come and drops those that are old enough."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = connections.sql

    async def prune(self, older_than_ns: int, failed_ns: int, *, exact: bool) -> int:
        """Forget what ended longer ago; without `exact`, whole days and `PRUNE_MAX` of the rest."""
        count = await self.turn_days(older_than_ns)
        count += await self._prune_all("prune_failed", failed_ns)
        if exact:
            count += await self._prune_all("prune", older_than_ns)
            # Those that a parent might have read go after it.
            while some := await self._prune_all("prune_failed", failed_ns):
                count += some + await self._prune_all("prune", older_than_ns)
        else:
            count += await self._prune_first(older_than_ns)
        while await self._connections.transaction(self._forget_keys) == PRUNE_ROWS:
            pass
        return count

    async def _prune_first(self, older_than_ns: int) -> int:
        """Go through jobs by their ids, which is about the order of their ending, as long as some
        are old enough.

        An index by the time of the end would find them all; but every job that ends would pay for
        it, and what is left out goes with its day.
        """
        count = last = 0
        while count < PRUNE_MAX:
            async with self._connections.connection() as connection:
                ((reached, some),) = await connection.fetch(
                    self._sql["prune_first"], us(older_than_ns), PRUNE_ROWS, last
                )
            count += some
            if not some:
                break
            last = reached
        return count

    async def _prune_all(self, statement: str, older_than_ns: int) -> int:
        """In several transactions, so that nobody waits long for one of them."""
        count = 0
        while True:
            async with self._connections.connection() as connection:
                status = await connection.execute(
                    self._sql[statement], us(older_than_ns), PRUNE_ROWS
                )
            count += (some := int(status.split()[-1]))
            if not some:
                break
        return count

    async def forget_attempts(self, *, exact: bool) -> None:
        """Forget the attempts of jobs that are gone: those have the lowest ids, so without `exact`
        it ends where none is."""
        last = 0
        while True:
            async with self._connections.connection() as connection:
                ((reached, some),) = await connection.fetch(
                    self._sql["forget_attempts"], last, PRUNE_ROWS
                )
            if reached is None or not (some or exact):
                break
            last = reached

    async def _forget_keys(self, connection: AsyncpgConnection) -> int:
        """Forget some unique keys that stand for nothing; how many.

        Held first, looked at again then: somebody may have taken one while we waited to hold it.
        """
        keys = [row["key"] for row in await connection.fetch(self._sql["old_keys"], PRUNE_ROWS)]
        if not keys:
            return 0
        status = await connection.execute(self._sql["forget_keys"], keys)
        return int(status.split()[-1])

    async def turn_days(self, older_than_ns: int | None = None) -> int:
        """Make the parts of history for the next days, and drop those that are old enough."""
        schema = self._connections.schema
        count = 0
        async with self._connections.connection() as connection:
            today = await connection.fetchval(self._sql["today"])
            for ahead in range(DAYS_AHEAD):
                day = today + timedelta(days=ahead)
                text = (
                    f"create table if not exists fw.history_{day:%Y%m%d}"
                    " partition of fw.history_by_day for values"
                    f" from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')"
                )
                # After days with nobody to make them, the rest holds rows of that day: so be it.
                with suppress(asyncpg.CheckViolationError, *MADE_BY_ANOTHER):
                    await connection.execute(in_schema(text, schema))
            if older_than_ns is None:
                return 0
            last = today - timedelta(microseconds=older_than_ns // 1000, days=1)
            for (part,) in await connection.fetch(self._sql["parts"]):
                if part >= f"history_{last:%Y%m%d}":
                    continue
                with suppress(asyncpg.UndefinedTableError):  # another one has dropped it
                    count += await self._drop(connection, part)
        return count

    async def _drop(self, connection: AsyncpgConnection, part: str) -> int:
        """Drop a day of history, but for what a parent may read; how many rows went.

        No parent becomes one that may read: what is done or gone does not come back.
        """
        table = in_schema(f"fw.{part}", self._connections.schema)
        needed = f"select 1 from {table} h where {self._sql['readable']} limit 1"
        if await connection.fetchval(needed):
            return await self._delete_rest(connection, table)
        count: int = await connection.fetchval(f"select count(*) from {table}")
        await connection.execute(f"drop table {table}")
        return count

    async def _delete_rest(self, connection: AsyncpgConnection, table: str) -> int:
        """Delete what no parent may read of a day that cannot be dropped."""
        text = (
            f"delete from {table} where ctid = any(array(select h.ctid from {table} h"
            f" where not ({self._sql['readable']}) limit {PRUNE_ROWS}))"
        )
        count = 0
        while some := int((await connection.execute(text)).split()[-1]):
            count += some
        return count

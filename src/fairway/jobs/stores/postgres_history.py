"""Jobs that ended, in PostgreSQL: a part of the table for each day, which is dropped whole."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from fairway.jobs.stores.postgres_connections import in_schema, us

if TYPE_CHECKING:
    from fairway.jobs.stores.postgres_connections import Connection, Connections

PRUNE_ROWS = 5_000
DAYS_AHEAD = 3


class History:
    """Makes the days to come and drops those that are old enough."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = connections.sql

    async def prune(self, older_than_ns: int, *, exact: bool) -> int:
        """Forget what ended longer ago; without `exact`, only whole days of it."""
        count = await self.turn_days(older_than_ns)
        while exact:
            async with self._connections.connection() as connection:
                said = await connection.execute(self._sql["prune"], us(older_than_ns), PRUNE_ROWS)
            count += (some := int(said.split()[-1]))
            if some < PRUNE_ROWS:
                break
        while await self._connections.transaction(self._forget_keys) == PRUNE_ROWS:
            pass
        return count

    async def _forget_keys(self, connection: Connection) -> int:
        """Forget some unique keys that stand for nothing; how many.

        Held first, looked at again then: somebody may have taken one while we waited to hold it.
        """
        keys = [row[0] for row in await connection.fetch(self._sql["old_keys"], PRUNE_ROWS)]
        if not keys:
            return 0
        said = await connection.execute(self._sql["forget_keys"], keys)
        return int(said.split()[-1])

    async def turn_days(self, older_than_ns: int | None = None) -> int:
        """Make the parts of history for the next days, and drop those that are old enough."""
        schema = self._connections.schema
        count = 0
        async with self._connections.connection() as connection:
            today = await connection.fetchval(self._sql["today"])
            for ahead in range(DAYS_AHEAD):
                day = today + timedelta(days=ahead)
                text = (
                    f"create table if not exists fw.history_{day:%Y%m%d} partition of fw.history"
                    f" for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')"
                )
                # After days with nobody to make them, the rest holds rows of that day: so be it.
                with suppress(asyncpg.CheckViolationError):
                    await connection.execute(in_schema(text, schema))
            if older_than_ns is None:
                return 0
            last = today - timedelta(microseconds=older_than_ns // 1000, days=1)
            for (part,) in await connection.fetch(self._sql["parts"]):
                if part >= f"history_{last:%Y%m%d}":
                    continue
                text = f"select 1 from fw.{part} h join fw.job p on p.id = h.parent limit 1"
                needed = await connection.fetchval(in_schema(text, schema))
                if not needed:
                    count += await connection.fetchval(
                        in_schema(f"select count(*) from fw.{part}", schema)
                    )
                    await connection.execute(in_schema(f"drop table fw.{part}", schema))
        return count

"""A timetable in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.jobs.timetable import Scheduled, ScheduleFiring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections


class PostgresTimetable:
    """A `Timetable` beside the jobs of a `PostgresStore`."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._sql = connections.sql

    async def put(self, name: str, spec: str) -> Scheduled:
        async with self._connections.connection() as connection:
            rows = await connection.fetch(self._sql["put_schedule"], name, spec)
        return _scheduled(rows[0])

    async def entries(self) -> list[Scheduled]:
        return [_scheduled(row) for row in await self._connections.fetch("schedules")]

    async def set_paused(self, name: str, paused: bool) -> bool:
        async with self._connections.connection() as connection:
            return bool(await connection.fetch(self._sql["pause_schedule"], name, paused))

    async def record(self, name: str, times: Sequence[int], handled_wall_ns: int) -> list[int]:
        async def note(connection: AsyncpgConnection) -> list[int]:
            await connection.execute(self._sql["handled"], name, handled_wall_ns)
            rows = await connection.fetch(self._sql["note_firings"], name, list(times))
            return sorted(row["at_ns"] for row in rows)

        return await self._connections.transaction(note)

    async def link(self, name: str, at_wall_ns: int, job: int) -> None:
        async with self._connections.connection() as connection:
            await connection.execute(self._sql["link_firing"], name, at_wall_ns, job)

    async def lost(self, older_than_ns: int, limit: int) -> list[ScheduleFiring]:
        async with self._connections.connection() as connection:
            rows = await connection.fetch(self._sql["lost_firings"], older_than_ns // 1000, limit)
        return sorted(
            (ScheduleFiring(*row) for row in rows), key=lambda one: (one.schedule, one.at_wall_ns)
        )

    async def firings(self, name: str, limit: int) -> list[ScheduleFiring]:
        return [
            ScheduleFiring(*row) for row in await self._connections.fetch("firings", name, limit)
        ]

    async def forget(self, older_than_ns: int) -> int:
        async with self._connections.connection() as connection:
            status: str = await connection.execute(self._sql["forget_firings"], older_than_ns)
        return int(status.split()[-1])


def _scheduled(row: Any) -> Scheduled:
    return Scheduled(row["name"], row["spec"], row["paused"], row["handled_ns"])

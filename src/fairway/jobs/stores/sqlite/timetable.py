"""A timetable in the file of a `SqliteStore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.jobs.stores.sqlite.calls import SETTING, Caller
from fairway.jobs.timetable import Scheduled, ScheduleFiring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.stores.sqlite.browsing import SqliteReader
    from fairway.jobs.stores.sqlite.transaction import Transaction
    from fairway.jobs.stores.sqlite.writer import SqliteWriter

CALLER = Caller(SETTING, "timetable")
_ENTRY = "SELECT name, spec, paused, handled_ns FROM schedule"


class SqliteTimetable:
    """A `Timetable` whose changes share the commits of the jobs'."""

    def __init__(self, write: SqliteWriter, read: SqliteReader) -> None:
        self._write = write
        self._read = read

    async def put(self, name: str, spec: str) -> Scheduled:
        def put(transaction: Transaction) -> Scheduled:
            transaction.connection.execute(
                "INSERT INTO schedule (name, spec, handled_ns) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET spec = excluded.spec",
                (name, spec, transaction.now_ns),
            )
            return _scheduled(
                *transaction.connection.execute(f"{_ENTRY} WHERE name = ?", (name,)).get
            )

        return await self._write.run(put, CALLER, durable=True)

    async def entries(self) -> list[Scheduled]:
        rows = await self._read.rows(f"{_ENTRY} ORDER BY name")
        return [_scheduled(*row) for row in rows]

    async def set_paused(self, name: str, paused: bool) -> bool:
        def set_paused(transaction: Transaction) -> bool:
            transaction.connection.execute(
                "UPDATE schedule SET paused = ? WHERE name = ?", (paused, name)
            )
            return bool(transaction.connection.changes())

        return await self._write.run(set_paused, CALLER, durable=True)

    async def record(self, name: str, times: Sequence[int], handled_wall_ns: int) -> list[int]:
        def record(transaction: Transaction) -> list[int]:
            transaction.connection.execute(
                "UPDATE schedule SET handled_ns = max(handled_ns, ?) WHERE name = ?",
                (handled_wall_ns, name),
            )
            fresh = []
            for at in times:
                transaction.connection.execute(
                    "INSERT OR IGNORE INTO firing (schedule, at_ns, noted_ns) VALUES (?, ?, ?)",
                    (name, at, transaction.now_ns),
                )
                if transaction.connection.changes():
                    fresh.append(at)
            return fresh

        return await self._write.run(record, CALLER, durable=True)

    async def link(self, name: str, at_wall_ns: int, job: int) -> None:
        def link(transaction: Transaction) -> None:
            transaction.connection.execute(
                "UPDATE firing SET job = ? WHERE schedule = ? AND at_ns = ?",
                (job, name, at_wall_ns),
            )

        await self._write.run(link, CALLER, durable=True)

    async def lost(self, older_than_ns: int, limit: int) -> list[ScheduleFiring]:
        def lost(transaction: Transaction) -> list[ScheduleFiring]:
            rows = transaction.connection.execute(
                "UPDATE firing SET tries = tries + 1 WHERE (schedule, at_ns) IN ("
                "SELECT schedule, at_ns FROM firing WHERE job IS NULL AND noted_ns <= ?"
                " ORDER BY schedule, at_ns LIMIT ?) RETURNING schedule, at_ns, job, tries",
                (transaction.now_ns - older_than_ns, limit),
            ).fetchall()
            return sorted((ScheduleFiring(*row) for row in rows), key=_order)

        return await self._write.run(lost, CALLER, durable=False)

    async def firings(self, name: str, limit: int) -> list[ScheduleFiring]:
        rows = await self._read.rows(
            "SELECT schedule, at_ns, job, tries FROM firing WHERE schedule = ?"
            " ORDER BY at_ns DESC LIMIT ?",
            (name, limit),
        )
        return [ScheduleFiring(*row) for row in rows]

    async def forget(self, older_than_ns: int) -> int:
        def forget(transaction: Transaction) -> int:
            transaction.connection.execute(
                "DELETE FROM firing WHERE at_ns <= ?", (transaction.now_ns - older_than_ns,)
            )
            return transaction.connection.changes()

        return await self._write.run(forget, CALLER, durable=False)


def _scheduled(name: str, spec: str, paused: int, handled_ns: int) -> Scheduled:
    return Scheduled(name, spec, bool(paused), handled_ns)


def _order(firing: ScheduleFiring) -> tuple[str, int]:
    return firing.schedule, firing.at_wall_ns

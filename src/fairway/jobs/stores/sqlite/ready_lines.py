"""Numbers for the names of queues and tenants, and so for ready lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.core.priority import Band, band_of
from fairway.jobs.job import ReadyLine
from fairway.jobs.stores.sqlite.schema import BAND_MASK, QUEUE_SHIFT, TENANT_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.jobs.stores.sqlite.schema import Sql

REMEMBERED_MAX = 100_000  # then start over: a store may have more tenants than we have memory
_TENANT_MASK = (1 << QUEUE_SHIFT) - 1


class Names:
    """What numbers one connection gave to names or read.

    Numbers are never taken back, except by a rollback: after one, `forget`.
    """

    def __init__(self, connection: Sql) -> None:
        self._connection = connection
        self.forget()

    def forget(self) -> None:
        self._queues: dict[str, int] = {}
        self._tenants: dict[tuple[str, str], int] = {}
        self._homes: dict[tuple[str, str, int], int] = {}
        self._lines: dict[int, ReadyLine] = {}

    def queue(self, name: str) -> int:
        """The number of a queue, which exists from now on."""
        number = self._queues.get(name)
        if number is None:
            number = self._queues[name] = self._intern("queue", name=name)
        return number

    def home(self, queue: str, tenant: str, priority: int) -> int:
        """The ready line of a job that has just become ready."""
        key = (queue, tenant, priority)
        line = self._homes.get(key)
        if line is None:
            line = self.number(ReadyLine(queue, tenant, band_of(priority)))
            if len(self._homes) > REMEMBERED_MAX:
                self.forget()
            self._homes[key] = line
        return line

    def number(self, line: ReadyLine) -> int:
        key = (line.tenant, line.skill)
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._intern("tenant", name=line.tenant, skill=line.skill)
            self._tenants[key] = tenant
        return self.queue(line.queue) << QUEUE_SHIFT | tenant << TENANT_SHIFT | line.band

    def line(self, number: int) -> ReadyLine:
        line = self._lines.get(number)
        if line is None:
            queue, tenant, skill = self._connection.execute(
                "SELECT queue.name, tenant.name, skill FROM queue JOIN tenant"
                " WHERE queue.id = ? AND tenant.id = ?",
                (number >> QUEUE_SHIFT, (number & _TENANT_MASK) >> TENANT_SHIFT),
            ).fetchone()
            if len(self._lines) > REMEMBERED_MAX:
                self.forget()
            line = self._lines[number] = ReadyLine(queue, tenant, Band(number & BAND_MASK), skill)
        return line

    def lines(self, numbers: Iterable[int]) -> set[ReadyLine]:
        return {self.line(number) for number in numbers}

    def _intern(self, table: str, **named: str) -> int:
        values = tuple(named.values())
        find = f"SELECT id FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in named)}"
        found = self._connection.execute(find, values).fetchone()
        if found is None:
            places = ", ".join("?" * len(named))
            self._connection.execute(
                f"INSERT INTO {table} ({', '.join(named)}) VALUES ({places})", values
            )
            found = self._connection.execute(find, values).fetchone()
        (number,) = found
        return int(number)


def lines_of(queue: int) -> tuple[int, int]:
    """The first ready line of a queue, and the first that is not one."""
    return queue << QUEUE_SHIFT, (queue + 1) << QUEUE_SHIFT

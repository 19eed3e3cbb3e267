"""Numbers for the names of queues and tenants, and so for lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.core.priority import Band, band_of
from fairway.jobs.job import Lane
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
        self._lanes: dict[int, Lane] = {}

    def queue(self, name: str) -> int:
        """The number of a queue, which exists from now on."""
        number = self._queues.get(name)
        if number is None:
            number = self._queues[name] = self._intern("queue", name=name)
        return number

    def home(self, queue: str, tenant: str, priority: int) -> int:
        """The lane of a job that has just become ready."""
        key = (queue, tenant, priority)
        lane = self._homes.get(key)
        if lane is None:
            lane = self.number(Lane(queue, tenant, band_of(priority)))
            if len(self._homes) > REMEMBERED_MAX:
                self.forget()
            self._homes[key] = lane
        return lane

    def number(self, lane: Lane) -> int:
        key = (lane.tenant, lane.skill)
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._intern("tenant", name=lane.tenant, skill=lane.skill)
            self._tenants[key] = tenant
        return self.queue(lane.queue) << QUEUE_SHIFT | tenant << TENANT_SHIFT | lane.band

    def lane(self, number: int) -> Lane:
        lane = self._lanes.get(number)
        if lane is None:
            queue, tenant, skill = self._connection.execute(
                "SELECT queue.name, tenant.name, skill FROM queue JOIN tenant"
                " WHERE queue.id = ? AND tenant.id = ?",
                (number >> QUEUE_SHIFT, (number & _TENANT_MASK) >> TENANT_SHIFT),
            ).fetchone()
            if len(self._lanes) > REMEMBERED_MAX:
                self.forget()
            lane = self._lanes[number] = Lane(queue, tenant, Band(number & BAND_MASK), skill)
        return lane

    def lanes(self, numbers: Iterable[int]) -> set[Lane]:
        return {self.lane(number) for number in numbers}

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


def lanes_of(queue: int) -> tuple[int, int]:
    """The first lane of a queue, and the first that is not one."""
    return queue << QUEUE_SHIFT, (queue + 1) << QUEUE_SHIFT

"""Lanes in PostgreSQL: their numbers, and where in each the next claim begins to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.core.priority import Band
from fairway.jobs.job import Lane

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fairway.jobs.stores.postgres.connections import Connection, Connections

LOW_WATER_NS = 1_000_000_000


class LaneNumbers:
    """Every lane has a number, made when it is first needed and never changed."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._numbers: dict[Lane, int] = {}
        self._lanes: dict[int, Lane] = {}

    def __getitem__(self, lane: Lane) -> int:
        return self._numbers[lane]

    def lane(self, number: int) -> Lane:
        return self._lanes[number]

    async def load(self) -> None:
        self._learn(await self._connections.fetch("known_lanes"))

    async def ensure(self, lanes: Collection[Lane]) -> None:
        """Give lanes their numbers, committed at once: no caller's transaction holds them.

        In two statements: of two that make the same lane, the one that waited for the other sees
        it only then.
        """
        new = sorted({lane for lane in lanes if lane not in self._numbers})
        if not new:
            return
        sql, columns = self._connections.sql, [list(column) for column in zip(*new, strict=True)]

        async def make(connection: Connection) -> list[Any]:
            await connection.execute(sql["make_lanes"], *columns)
            rows: list[Any] = await connection.fetch(sql["lanes"], *columns)
            return rows

        self._learn(await self._connections.statement(make))

    async def of(self, numbers: Collection[int]) -> set[Lane]:
        """The lanes of some numbers; others may have made them."""
        if not all(number in self._lanes for number in numbers):
            await self.load()
        return {self._lanes[number] for number in numbers}

    def _learn(self, rows: Sequence[Any]) -> None:
        for number, queue, tenant, band, skill in rows:
            lane = Lane(queue, tenant, Band(band), skill)
            self._numbers[lane] = number
            self._lanes[number] = lane


class LowWater:
    """Where in each lane the next claim begins to look.

    While an old transaction is open somewhere, rows that were claimed long ago cannot be cleaned
    away, and every claim would step over all of them. It looks from the start again after a second,
    when a lane was not full, and when something came back into it: those have lower numbers.
    """

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int]] = {}

    def first(self, lane: int, now_ns: int) -> int:
        id, until_ns = self._at.get(lane, (0, 0))
        return id if now_ns < until_ns else 0

    def reached(self, lane: int, last: int, now_ns: int) -> None:
        """A claim got as far as `last`; 0 if it found the lane's end."""
        _, until_ns = self._at.get(lane, (0, 0))
        if not last:
            self._at.pop(lane, None)
        elif now_ns < until_ns:
            self._at[lane] = (last, until_ns)
        else:
            self._at[lane] = (last, now_ns + LOW_WATER_NS)

    def forget(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._at.pop(lane, None)

    def clear(self) -> None:
        self._at.clear()

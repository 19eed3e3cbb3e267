"""Ready lines in PostgreSQL: their numbers, and where in each the next claim begins to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.core.priority import Band
from fairway.jobs.job import ReadyLine

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections

LOW_WATER_NS = 1_000_000_000


class ReadyLineNumbers:
    """Every ready line has a number, made when it is first needed and never changed."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._numbers: dict[ReadyLine, int] = {}
        self._lines: dict[int, ReadyLine] = {}

    def __getitem__(self, line: ReadyLine) -> int:
        return self._numbers[line]

    def line(self, number: int) -> ReadyLine:
        return self._lines[number]

    async def load(self) -> None:
        self._learn(await self._connections.fetch("known_lines"))

    async def ensure(self, lines: Collection[ReadyLine]) -> None:
        """Give lines their numbers, committed at once: no caller's transaction holds them.

        In two statements: of two that make the same ready line, the one that waited for the other
        sees it only then.
        """
        new = sorted({line for line in lines if line not in self._numbers})
        if not new:
            return
        sql, columns = self._connections.sql, [list(column) for column in zip(*new, strict=True)]

        async def make(connection: AsyncpgConnection) -> list[Any]:
            await connection.execute(sql["make_lines"], *columns)
            rows: list[Any] = await connection.fetch(sql["lines"], *columns)
            return rows

        self._learn(await self._connections.statement(make))

    async def of(self, numbers: Collection[int]) -> set[ReadyLine]:
        """The lines of some numbers; others may have made them."""
        if not all(number in self._lines for number in numbers):
            await self.load()
        return {self._lines[number] for number in numbers}

    def _learn(self, rows: Sequence[Any]) -> None:
        # Rows of the table `lane`; columns that hold such a number are called so, too. These names
        # are in databases that earlier releases made.
        for number, queue, tenant, band, skill in rows:
            line = ReadyLine(queue, tenant, Band(band), skill)
            self._numbers[line] = number
            self._lines[number] = line


class LowWater:
    """Where in each ready line the next claim begins to look.

    While an old transaction is open somewhere, rows that were claimed long ago cannot be cleaned
    away, and every claim would step over all of them. It looks from the start again after a second,
    when a line was not full, and when something came back into it: those have lower numbers.
    """

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int]] = {}

    def first(self, line: int, now_ns: int) -> int:
        id, until_ns = self._at.get(line, (0, 0))
        return id if now_ns < until_ns else 0

    def reached(self, line: int, last: int, now_ns: int) -> None:
        """A claim got as far as `last`; 0 if it found the line's end."""
        _, until_ns = self._at.get(line, (0, 0))
        if not last:
            self._at.pop(line, None)
        elif now_ns < until_ns:
            self._at[line] = (last, until_ns)
        else:
            self._at[line] = (last, now_ns + LOW_WATER_NS)

    def forget(self, lines: Iterable[int]) -> None:
        for line in lines:
            self._at.pop(line, None)

    def clear(self) -> None:
        self._at.clear()

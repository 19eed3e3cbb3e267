"""Every order in which PostgreSQL may be given the statements of several callers.

Each caller is a store with connections of its own. A statement is a step, and a commit is one: a
caller waits before each until it is its turn, and what one does alone in between is no step. So a
schedule is a list of choices, and the same choices give the same history. A statement that waits
for a lock of another caller is seen as such in the database (`pg_blocking_pids`): then the others
go on, and it ends when they let it.

    Caller       one store, stopped before each of its statements
    Orders       all schedules, one after the other: depth first over the choices of the last run
    Drawn        random schedules
    Standing     a caller stands still after some steps, and the others do all they have to
    interleave   one run of some calls under a schedule
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg

if TYPE_CHECKING:
    import random
    from collections import Counter
    from collections.abc import Awaitable, Callable, Sequence

_SPELL_S = 0.002
"""How long a statement may take before we look whether it waits for a lock. Nothing depends on it
but how often we look."""
_BLOCKED = "select p from unnest($1::int[]) as t (p) where cardinality(pg_blocking_pids(p)) > 0"


class Schedule(Protocol):
    def choose(self, able: Sequence[int]) -> int:
        """Which of these callers goes on."""
        ...


class Orders:
    """Schedules, each another one, until there is no other.

    With `switches`, those in which no more often than that a caller is left though it could go on.
    """

    def __init__(self, switches: int | None = None) -> None:
        self._switches = switches
        self._path: list[tuple[int, int]] = []
        self._begin()

    def _begin(self) -> None:
        self._at = 0
        self._last = -1
        self._left = self._switches

    def choose(self, able: Sequence[int]) -> int:
        if self._last in able:
            others = [number for number in able if number != self._last]
            able = [self._last, *(others if self._left is None or self._left > 0 else ())]
        if self._at == len(self._path):
            self._path.append((0, len(able)))
        choice = min(self._path[self._at][0], len(able) - 1)
        self._path[self._at] = (choice, len(able))
        self._at += 1
        if self._left is not None and self._last in able and able[choice] != self._last:
            self._left -= 1
        self._last = able[choice]
        return self._last

    def another(self) -> bool:
        """Go on to the next one; False if that was the last."""
        del self._path[self._at :]
        while self._path and self._path[-1][0] + 1 >= self._path[-1][1]:
            self._path.pop()
        if not self._path:
            return False
        choice, options = self._path[-1]
        self._path[-1] = (choice + 1, options)
        self._begin()
        return True


class Drawn:
    """A schedule that is drawn as it goes: one takes turns often, another stays with a caller for
    long, since some errors show only when one does much while another stands still."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._stays = rng.choice([0.0, 0.5, 0.8, 0.95])
        self._last = -1

    def choose(self, able: Sequence[int]) -> int:
        if self._last not in able or self._rng.random() >= self._stays:
            self._last = self._rng.choice(list(able))
        return self._last


class Standing:
    """One caller stands still after so many steps, until the others have ended, one by one."""

    def __init__(self, order: Sequence[int], steps: int) -> None:
        self._order = order
        self._steps = steps

    def choose(self, able: Sequence[int]) -> int:
        one, *rest = self._order
        if one in able and self._steps > 0:
            self._steps -= 1
            return one
        return next(number for number in (*rest, one) if number in able)


class Caller:
    """One of several at the same database, stopped before each statement while it is stepped."""

    def __init__(self, name: str, spins: str = "") -> None:
        """`spins` is part of a statement that is repeated until others have gone on."""
        self.name = name
        self.stepped = False
        self.pid = 0
        self.ready = asyncio.Event()
        """It is stopped before a statement, or has done all it had to."""
        self.spun = False
        self._spins = spins
        self._step = asyncio.Event()

    @property
    def connection_class(self) -> type[asyncpg.Connection[Any]]:
        caller = self

        class Stepped(asyncpg.Connection):  # type: ignore[misc]
            async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
                ask = super().fetch
                return await caller.step(self, query, lambda: ask(query, *args, **options))

            async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
                ask = super().fetchval
                return await caller.step(self, query, lambda: ask(query, *args, **options))

            async def execute(self, query: str, *args: Any, **options: Any) -> Any:
                ask = super().execute
                return await caller.step(self, query, lambda: ask(query, *args, **options))

        return Stepped

    async def step(self, connection: Any, text: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask, when it is our turn. A statement that commits itself does so in a step of its own:
        between the two it holds what it changed, and others may come."""
        if not self.stepped or text.startswith("BEGIN"):  # that sees nothing and holds nothing
            return await ask()
        control = asyncpg.Connection.execute
        alone = not connection.is_in_transaction()
        await self._wait_for_step(connection)
        if alone:
            await control(connection, "begin")
        try:
            answer = await ask()
            if alone:
                await self._wait_for_step(connection)
        except BaseException:
            if alone:
                await control(connection, "rollback")
            raise
        if alone:
            await control(connection, "commit")
        self.spun = bool(self._spins and self._spins in text and answer)
        return answer

    async def _wait_for_step(self, connection: Any) -> None:
        self.pid = connection.get_server_pid()
        self._step.clear()
        self.ready.set()
        await self._step.wait()

    def go(self) -> None:
        self.ready.clear()
        self._step.set()

    async def perform(self, call: Awaitable[Any]) -> Any:
        self.spun = False
        self.stepped = True
        try:
            return await call
        except Exception as error:  # an answer like any other, for whoever compares them
            return error
        finally:
            self.stepped = False
            self.ready.set()


async def interleave(
    look: Any,
    callers: Sequence[Caller],
    calls: Sequence[Callable[[], Awaitable[Any]]],
    schedule: Schedule,
    tally: Counter[str],
) -> tuple[list[Any], list[int]]:
    """Run calls, one for each caller, under a schedule: their answers, and whose turn it was.

    `look` is a connection that asks the database who waits.
    """
    for caller in callers:
        caller.ready.clear()
    tasks = [
        asyncio.create_task(caller.perform(call()))
        for caller, call in zip(callers, calls, strict=True)
    ]
    turns: list[int] = []
    blocked: set[int] = set()
    was_blocked = False
    try:
        while True:
            waiting = await _settled(look, callers, blocked)
            was_blocked = was_blocked or bool(waiting)
            blocked = waiting
            able = [n for n, task in enumerate(tasks) if not task.done() and n not in blocked]
            if not able:
                if all(task.done() for task in tasks):
                    break
                blocked = set()  # they wait for each other: the database ends one of them
                tally["deadlock"] += 1
                await _first_of(look, callers, {n for n, t in enumerate(tasks) if not t.done()})
                continue
            moving = [n for n in able if not callers[n].spun] or able
            number = schedule.choose(moving)
            caller = callers[number]
            for other in callers:
                if other is not caller:
                    other.spun = False
            turns.append(number)
            caller.go()
        answers = [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
    tally["interleaving"] += 1
    tally["blocked interleaving"] += was_blocked
    return answers, turns


async def _settled(look: Any, callers: Sequence[Caller], known: set[int]) -> set[int]:
    """Until each caller is stopped, or done, or waits for a lock; those that wait."""
    while True:
        running = [n for n, caller in enumerate(callers) if not caller.ready.is_set()]
        if not running:
            return set()
        if not known.issuperset(running):
            waits = [asyncio.create_task(callers[n].ready.wait()) for n in running]
            await asyncio.wait(waits, timeout=_SPELL_S)
            for wait in waits:
                wait.cancel()
        pids = {callers[n].pid: n for n in running if not callers[n].ready.is_set()}
        rows = await look.fetch(_BLOCKED, list(pids))
        stuck = {pids[pid] for (pid,) in rows}
        if all(n in stuck or callers[n].ready.is_set() for n in running):
            return {n for n in stuck if not callers[n].ready.is_set()}
        known = set()


async def _first_of(look: Any, callers: Sequence[Caller], numbers: set[int]) -> None:
    waits = [asyncio.create_task(callers[n].ready.wait()) for n in numbers]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()

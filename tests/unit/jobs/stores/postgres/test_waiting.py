"""Callers who wait for a key, on virtual time: when they are answered, on what connections."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import LockTimeout
from fairway.jobs.stores.postgres.waiting import FREE, TRY_MS, WaitingLine
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LOCK_TIMEOUT_MS = 5_000
CALLERS = 100


class Database:
    """Some connections, and keys that somebody holds until they are freed."""

    def __init__(self, size: int, *held: str) -> None:
        self._connections = asyncio.Semaphore(size)
        self._freed = {key: asyncio.Event() for key in held}
        self.in_use = 0
        self.looks = 0

    async def transaction(self, work: Callable[[Any], Awaitable[str]]) -> str:
        async with self.connection():
            return await work(None)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        async with self._connections:
            self.in_use += 1
            try:
                yield
            finally:
                self.in_use -= 1

    def free(self, key: str) -> None:
        self._freed[key].set()

    def asks_for(self, key: str) -> Callable[[Any, int], Awaitable[str]]:
        async def ask(_: Any, lock_wait_ms: int) -> str:
            self.looks += 1
            try:
                async with asyncio.timeout(lock_wait_ms / 1000):
                    await self._freed[key].wait()
            except TimeoutError:
                raise LockTimeout(key) from None
            return key

        return ask


def line_of(size: int, *held: str) -> tuple[WaitingLine, Database]:
    database = Database(size, *held)
    return WaitingLine(database, size, LOCK_TIMEOUT_MS), database  # type: ignore[arg-type]


async def answer(line: WaitingLine, ask: Callable[[Any, int], Awaitable[str]]) -> tuple[str, float]:
    """What a call comes to, and when, in milliseconds."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        outcome = await line.transaction(ask)
    except LockTimeout:
        outcome = "refused"
    return outcome, (loop.time() - began_s) * 1000


def test_each_of_a_hundred_callers_is_answered_when_its_own_time_is_over() -> None:
    """Those that do not wait in the database look once more: a millisecond, on what is left."""

    async def scene() -> None:
        line, database = line_of(8, "held")
        calls = [answer(line, database.asks_for("held")) for _ in range(CALLERS)]
        answers = await asyncio.gather(*calls)
        assert {outcome for outcome, _ in answers} == {"refused"}
        last_looks = CALLERS / (8 - FREE)
        for _, ms in answers:
            assert LOCK_TIMEOUT_MS - 1 <= ms <= LOCK_TIMEOUT_MS + 2 * last_looks
        assert database.looks == 2 * CALLERS

    run(scene())


def test_each_of_thousands_of_callers_is_answered_when_its_own_time_is_over() -> None:
    """Each tries for a shorter time: in turn, tries of 50 ms would take a minute and a half."""

    async def scene() -> None:
        line, database = line_of(8, "held")
        callers = 40 * CALLERS
        answers = await asyncio.gather(
            *(answer(line, database.asks_for("held")) for _ in range(callers))
        )
        assert {outcome for outcome, _ in answers} == {"refused"}
        last_looks = callers / (8 - FREE)
        assert max(ms for _, ms in answers) <= LOCK_TIMEOUT_MS + 2 * last_looks

    run(scene())


def test_callers_who_wait_leave_half_of_the_connections_and_those_who_try_two() -> None:
    async def scene() -> None:
        line, database = line_of(8, "held")
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(answer(line, database.asks_for("held"))) for _ in range(CALLERS)
            ]
            loop = asyncio.get_running_loop()
            for _ in range(TRY_MS):
                await asyncio.sleep(0.001)
                assert database.in_use <= 8 - FREE
            await asyncio.sleep(CALLERS * TRY_MS / 1000 / 2)  # two at a time, all have tried
            assert database.in_use == 4
            at = loop.time()
            async with database.connection():
                assert loop.time() == at, "who asks for no key waits for nobody"
            database.free("held")
        assert {call.result()[0] for call in calls} == {"held"}
        assert database.in_use == 0

    run(scene())


def test_a_key_that_is_free_is_behind_no_line_of_another() -> None:
    async def scene() -> None:
        line, database = line_of(8, "held", "free")
        database.free("free")
        async with asyncio.TaskGroup() as group:
            calls = [
                group.create_task(answer(line, database.asks_for("held"))) for _ in range(CALLERS)
            ]
            await asyncio.sleep(LOCK_TIMEOUT_MS / 1000 - 1)
            assert await answer(line, database.asks_for("free")) == ("free", 0)
        assert {call.result()[0] for call in calls} == {"refused"}

    run(scene())


def test_a_key_that_was_freed_behind_the_line_of_another_is_not_refused() -> None:
    async def scene() -> None:
        line, database = line_of(8, "held", "behind")
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(answer(line, database.asks_for("held")))
            await asyncio.sleep(1)
            behind = group.create_task(answer(line, database.asks_for("behind")))
            await asyncio.sleep(1)
            database.free("behind")
        assert behind.result()[0] == "behind"

    run(scene())


def test_who_is_cancelled_leaves_the_line() -> None:
    async def scene() -> None:
        line, database = line_of(8, "held")
        calls = [
            asyncio.create_task(answer(line, database.asks_for("held"))) for _ in range(CALLERS)
        ]
        await asyncio.sleep(3)
        for call in calls[:-1]:
            call.cancel()
        await asyncio.wait(calls[:-1])
        await asyncio.sleep(0.001)
        assert database.in_use == 1
        database.free("held")
        assert (await calls[-1])[0] == "held"

    run(scene())


@pytest.mark.parametrize(("size", "waiting"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (8, 4)])
def test_how_many_wait_in_the_database(size: int, waiting: int) -> None:
    async def scene() -> None:
        line, database = line_of(size, "held")
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(answer(line, database.asks_for("held")))
            await asyncio.sleep(LOCK_TIMEOUT_MS / 1000 - 1)
            assert database.in_use == waiting

    run(scene())

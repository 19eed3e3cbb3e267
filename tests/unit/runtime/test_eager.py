"""A coroutine in a shared task ends as it does in one of its own, whatever it does there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from fairway.runtime.eager import EagerTask
from fairway.runtime.usercode import CancelledItself
from fairway.testing import run as play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
who: ContextVar[str] = ContextVar("who", default="nobody")


def run(main: Callable[[], Coroutine[Any, Any, None]], loop: Any) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


class Odd(BaseException):
    pass


async def returns() -> str:
    return "done"


async def raises() -> str:
    raise Odd("at once")


async def gives_way() -> str:
    await asyncio.sleep(0)
    return "done"


async def raises_later() -> str:
    await asyncio.sleep(0)
    raise Odd("later")


async def waits_for_what_is_done() -> str:
    future = asyncio.get_running_loop().create_future()
    future.set_result("done")
    return str(await future)


async def waits_twice() -> str:
    first = current()
    for _ in range(2):
        await asyncio.sleep(0)
        assert current() is first
    return "done"


async def waits_for_a_failure() -> str:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, OSError("gone"))
    try:
        await future
    except OSError:
        return "caught"
    return "done"


async def takes_too_long() -> str:
    try:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    except TimeoutError:
        await asyncio.sleep(0)
        return "in time"
    return "late"


async def takes_no_time_at_all() -> str:
    async with asyncio.timeout(0):
        await asyncio.Event().wait()
    return "late"


async def has_a_group_that_fails() -> str:
    async def fails() -> None:
        raise OSError("gone")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.Event().wait()
    except* OSError:
        pass
    assert not current().cancelling()
    return "done"


async def gathers() -> str:
    return "".join(await asyncio.gather(gives_way(), returns()))


async def cancels_itself_and_returns() -> str:
    current().cancel()
    return "done"


async def cancels_itself_and_waits() -> str:
    current().cancel()
    await asyncio.Event().wait()
    return "done"


async def cancels_itself_and_gives_way() -> str:
    current().cancel()
    await asyncio.sleep(0)
    return "done"


async def cancels_itself_and_changes_its_mind() -> str:
    current().cancel()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        current().uncancel()
    await asyncio.sleep(0)
    return "done"


async def cancels_itself_twice() -> str:
    for _ in range(2):
        current().cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            continue
    return "done"


async def cancels_itself_later() -> str:
    await asyncio.sleep(0)
    current().cancel()
    await asyncio.Event().wait()
    return "done"


async def is_cancelled_by_another() -> str:
    asyncio.get_running_loop().call_soon(current().cancel)
    await asyncio.Event().wait()
    return "done"


async def raises_a_cancel() -> str:
    raise asyncio.CancelledError


async def waits_for_what_is_cancelled() -> str:
    task = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task
    return "done"


async def waits_for_what_cannot_be_cancelled() -> str:
    future = asyncio.get_running_loop().create_future()
    future.set_result(None)
    current().cancel()
    await asyncio.shield(future)
    await asyncio.sleep(0)
    return "done"


class Nonsense:
    """Waits for what nobody can wait for."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield 7


async def waits_for_nonsense() -> str:
    await Nonsense()
    return "done"


async def cancels_itself_and_waits_for_nonsense() -> str:
    current().cancel()
    await Nonsense()
    return "done"


async def leaves() -> str:
    raise SystemExit(3)


async def leaves_as_a_generator() -> str:
    await asyncio.sleep(0)
    raise GeneratorExit


EVERY = [
    returns,
    raises,
    gives_way,
    raises_later,
    waits_for_what_is_done,
    waits_twice,
    waits_for_a_failure,
    takes_too_long,
    takes_no_time_at_all,
    has_a_group_that_fails,
    gathers,
    cancels_itself_and_returns,
    cancels_itself_and_waits,
    cancels_itself_and_gives_way,
    cancels_itself_and_changes_its_mind,
    cancels_itself_twice,
    cancels_itself_later,
    is_cancelled_by_another,
    raises_a_cancel,
    waits_for_what_is_cancelled,
    waits_for_what_cannot_be_cancelled,
    waits_for_nonsense,
    cancels_itself_and_waits_for_nonsense,
    leaves,
    leaves_as_a_generator,
]


async def in_a_task_of_its_own(function: Callable[[], Coroutine[Any, Any, str]]) -> str:
    """What to compare with: a task for it alone, which holds nothing that could end the loop."""
    told: list[tuple[str, BaseException | None]] = []

    async def tell() -> None:
        try:
            told.append((await function(), None))
        except BaseException as error:
            told.append(("", error))

    await asyncio.wait({asyncio.ensure_future(tell())})
    [(result, error)] = told
    if isinstance(error, asyncio.CancelledError):
        raise CancelledItself from error
    if error is not None:
        raise error
    return result


async def ending(attempt: Awaitable[str]) -> object:
    try:
        return await attempt
    except BaseException as error:
        return type(error)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("second", [False, True], ids=["first", "after-another"])
@pytest.mark.parametrize("function", EVERY, ids=lambda function: function.__name__)
def test_it_ends_as_in_a_task_of_its_own(
    function: Callable[[], Coroutine[Any, Any, str]], second: bool, loop: Any
) -> None:
    async def main() -> None:
        eager = EagerTask()
        if second:
            await ending(eager.run(cancels_itself_and_returns))
        expected = await ending(in_a_task_of_its_own(function))
        assert await ending(eager.run(function)) == expected
        assert current().cancelling() == 0
        # And whoever comes next finds nothing of it.
        assert await eager.run(waits_twice) == "done"
        assert await eager.run(has_a_group_that_fails) == "done"
        await eager.aclose()
        assert asyncio.all_tasks() == {current()}

    run(main, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_never_waits_takes_no_turn_of_the_loop(loop: Any) -> None:
    async def main() -> None:
        eager = EagerTask()
        await eager.run(returns)
        turned = False

        def turn() -> None:
            nonlocal turned
            turned = True

        asyncio.get_running_loop().call_soon(turn)
        for _ in range(10):
            assert await eager.run(returns) == "done"
        assert not turned
        await eager.aclose()

    run(main, loop)


def test_it_sees_a_task_that_is_not_ours() -> None:
    async def main() -> None:
        eager, ours, seen = EagerTask(), current(), set[asyncio.Task[Any]]()

        async def look() -> None:
            seen.add(current())
            await asyncio.sleep(0)
            seen.add(current())

        await eager.run(look)
        assert ours not in seen
        assert len(seen) == 1
        assert current() is ours
        await eager.aclose()

    run(main, asyncio.new_event_loop)


def test_its_context_is_its_own_to_the_end() -> None:
    async def main() -> None:
        eager = EagerTask()
        who.set("caller")

        async def sets() -> tuple[str, str]:
            before = who.get()
            who.set("coroutine")
            await asyncio.sleep(0)
            return before, who.get()

        async def sets_and_returns() -> str:
            who.set("another")
            return who.get()

        assert await eager.run(sets) == ("caller", "coroutine")
        assert await eager.run(sets_and_returns) == "another"
        assert who.get() == "caller"
        await eager.aclose()

    run(main, asyncio.new_event_loop)


def test_a_cancel_that_comes_too_late_is_nobody_elses() -> None:
    async def main() -> None:
        eager, tasks = EagerTask(), []

        async def tells() -> None:
            tasks.append(current())

        for wait in (returns, waits_twice, gives_way):
            await eager.run(tells)
            tasks[-1].cancel()
            assert await eager.run(wait) == "done"
            tasks[-1].cancel()
            await asyncio.sleep(0)
            assert await eager.run(wait) == "done"
        await eager.aclose()

    run(main, asyncio.new_event_loop)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_cancelling_us_cancels_it(turns: int) -> None:
    async def main() -> None:
        eager, told = EagerTask(), []

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told.append("cancelled")
                await asyncio.sleep(0)
                told.append("gone")
                raise

        async def begin() -> None:
            await eager.run(returns)
            await eager.run(waits)

        task = asyncio.ensure_future(begin())
        await asyncio.sleep(0)
        for _ in range(turns + 2):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told == ["cancelled", "gone"]
        assert asyncio.all_tasks() == {current()}
        assert await eager.run(waits_twice) == "done"  # in another task
        await eager.aclose()

    run(main, asyncio.new_event_loop)


def test_one_that_swallows_its_cancel_is_let_go_of_and_disturbs_nobody() -> None:
    async def scene() -> None:
        eager, leave = EagerTask(), asyncio.Event()

        async def stays() -> str:
            while not leave.is_set():
                with suppress(asyncio.CancelledError):
                    await leave.wait()
            return "too late"

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await eager.run(stays)
        assert asyncio.get_running_loop().time() == 2, "its timeout, and a second's grace"
        assert await eager.run(waits_twice) == "done"
        [left] = asyncio.all_tasks() - {current(), eager._task}
        leave.set()
        await asyncio.wait({left})  # it does not go on to run what is ours
        assert await eager.run(waits_twice) == "done"
        await eager.aclose()
        assert asyncio.all_tasks() == {current()}

    play(scene)


def test_the_end_of_a_loop_does_not_wait_for_a_parked_task() -> None:
    async def main() -> None:
        assert await EagerTask().run(gives_way) == "done"

    asyncio.run(asyncio.wait_for(main(), 5))


def test_a_coroutine_that_raises_what_is_no_exception_is_told_so() -> None:
    async def main() -> None:
        eager = EagerTask()
        with pytest.raises(CancelledItself):
            await eager.run(raises_a_cancel)
        with pytest.raises(Odd, match="later"):
            await eager.run(raises_later)
        await eager.aclose()

    run(main, asyncio.new_event_loop)

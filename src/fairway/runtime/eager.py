"""Coroutines of the user's, one after the other, whose first step is taken at once.

Each ends as it would in a task of its own. But most never wait for anything, and then a task for
each, and two turns of the loop, would be most of the work. Here they share a task. It is
parked; a coroutine takes its first step where it is called, though it sees that task as its own.
Only if it waits does the task go on with it. So `asyncio.timeout`, a task group, or whoever kept
`current_task()` find what they know, and a cancel arrives where the coroutine waits.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from fairway.runtime.usercode import CancelledItself, let_go, reraise_interrupt
from fairway.runtime.words import is_a

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _Begun:
    """A coroutine that has taken its first step: the rest of it is awaited, and `over` resolves.

    It is stepped in its own context, as `yield from` would.
    """

    __slots__ = ("_context", "_coroutine", "_thrown", "_waits_for", "over")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        context: Context,
        waits_for: asyncio.Future[Any] | None,
        over: asyncio.Future[tuple[Any, BaseException | None]],
    ) -> None:
        self._coroutine = coroutine
        self._context = context
        self._waits_for = waits_for
        self._thrown: BaseException | None = None
        self.over = over

    def cancel(self) -> None:
        """Of its first step. What it waits for is cancelled; failing that, the coroutine is."""
        if not (asyncio.isfuture(self._waits_for) and self._waits_for.cancel()):
            self._thrown = asyncio.CancelledError()

    def __await__(self) -> Generator[Any, Any, Any]:
        step, value, waits_for, thrown = self._context.run, None, self._waits_for, self._thrown
        while True:
            if thrown is None:
                try:
                    value = yield waits_for
                except BaseException as error:
                    thrown = error
            try:
                if thrown is None:
                    waits_for = step(self._coroutine.send, value)
                else:
                    raised, thrown = thrown, None
                    waits_for = step(self._coroutine.throw, raised)
            except StopIteration as end:
                return end.value


class EagerTask:
    """Runs coroutines of the user's; one at a time."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        """For whom it runs them."""
        self._task: asyncio.Task[None] | None = None
        self._is_parked = asyncio.Event()
        self.parked: asyncio.Future[None]
        """What the task waits for while it has nothing to do."""
        self._begun: _Begun | None = None

    async def run(self, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Raises what it raises; or `CancelledItself` if it was cancelled, and not by us.
        Cancelling us cancels it; if it goes on all the same it is let go of."""
        loop = asyncio.get_running_loop()
        task = self._task
        if task is None or task.done() or not self._is_parked.is_set():
            task = await self._park(loop)
        while task.cancelling():  # by one that is over, too late
            task.uncancel()
        ours = asyncio.current_task()
        assert ours is not None
        coroutine, context = function(*args), copy_context()
        asyncio._leave_task(loop, ours)
        asyncio._enter_task(loop, task)
        try:
            waits_for = context.run(coroutine.send, None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except asyncio.CancelledError as error:
            raise CancelledItself("it was cancelled from within") from error
        finally:
            asyncio._leave_task(loop, task)
            asyncio._enter_task(loop, ours)
        return await self._finish(loop, task, coroutine, context, waits_for)

    async def aclose(self) -> None:
        """End the task. Nothing runs in it."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await let_go({task})

    async def _park(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """A task that has begun: one that has not would lose what is cancelled before."""
        if self._task is None or self._task.done():
            self._is_parked.clear()
            self.parked = loop.create_future()
            self._task = loop.create_task(self._go_on(loop))
        await self._is_parked.wait()
        return self._task

    async def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        task: asyncio.Task[None],
        coroutine: Coroutine[Any, Any, T],
        context: Context,
        waits_for: asyncio.Future[Any] | None,
    ) -> T:
        over: asyncio.Future[tuple[T, BaseException | None]] = loop.create_future()
        self._begun = _Begun(coroutine, context, waits_for, over)
        if not self.parked.done():  # else it wakes by itself: somebody cancelled it
            self.parked.set_result(None)
        try:
            result, error = await over
        except BaseException:
            await self.aclose()
            raise
        if is_a(error, asyncio.CancelledError):
            raise CancelledItself("it was cancelled from within") from error
        if error is not None:
            raise error
        return result

    async def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """What the task does: wait for a coroutine that waits, and see it to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._is_parked.set()
        while True:
            try:
                await self.parked
            except asyncio.CancelledError:
                if self._begun is None:
                    return
            begun, self._begun = self._begun, None
            self.parked = loop.create_future()
            assert begun is not None
            result, error = None, None
            try:
                if task.cancelling():
                    begun.cancel()
                result = await begun
            except BaseException as raised:
                reraise_interrupt(raised)
                error = raised
            if not begun.over.done():
                begun.over.set_result((result, error))
            if self._task is not task:  # it was let go of, and another may be parked by now
                return

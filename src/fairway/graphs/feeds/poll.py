"""A feed that asks: a function is called again and again, and what it returns is the next event.

Source("rates", Rate, feed=poll(fetch_rates, every_s=5))
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

from fairway.errors import FeedLost, InvalidConfig
from fairway.graphs.feed import Event
from fairway.runtime.amounts import SECOND_NS, length_ns
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.runtime.eager import EagerTask
from fairway.runtime.usercode import reraise_interrupt
from fairway.runtime.words import is_a, named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import FeedContext


def poll(function: Callable[[], Any], *, every_s: float, blocking: bool = False) -> Poll:
    """Ask `function` at once and then every `every_s`, which counts from one asking to the next.

    What it returns is the value of one event, also if that is a list; None says that nothing is
    new. It may be a coroutine function; a plain one that waits for something is `blocking` and runs
    in a thread. It is never asked twice at a time, nor sooner because an asking took long or its
    events were taken slowly. When it raises, the source is disconnected until an asking succeeds.
    """
    return Poll(function, every_s=every_s, blocking=blocking)


class Poll:
    """The declaration of a function to ask. See `poll`."""

    kind: Final = "polling"

    def __init__(
        self, function: Callable[[], Any], *, every_s: float, blocking: bool = False
    ) -> None:
        if not callable(function):
            raise InvalidConfig(f"poll asks a function, and {function!r} is none")
        self.every_ns = length_ns("poll: every_s", every_s)
        if blocking and inspect.iscoroutinefunction(function):
            raise InvalidConfig(
                f"poll: {_name(function)} is a coroutine function, which no thread can run;"
                " leave blocking out"
            )
        self.function = function
        self.blocking = blocking

    def __repr__(self) -> str:
        return f"poll({_name(self.function)}, every_s={self.every_ns / SECOND_NS:g})"

    def open(self, context: FeedContext) -> Polling:
        return Polling(self, context)


class Polling:
    """Asks while it is open."""

    def __init__(self, declared: Poll, context: FeedContext) -> None:
        self._declared = declared
        self._context = context
        self._clock = clock_of()
        self._due_ns = 0
        self._eager = EagerTask()

    async def connect(self, marks: Marks) -> Sequence[Event]:
        # Asked here and not by the first `receive`: a source is not live before it ever answered.
        first = await self._ask()
        return [] if first is None else [Event(first)]

    async def receive(self) -> Sequence[Event]:
        value = None
        while value is None:
            await sleep_ns(self._due_ns - self._clock.now_ns())
            value = await self._ask()
        return [Event(value)]

    async def commit(self, marks: Marks) -> None:
        """What was asked for cannot be asked for again: there is nobody to tell."""

    async def aclose(self) -> None:
        await self._eager.aclose()

    async def _ask(self) -> Any:
        function = self._declared.function
        self._due_ns = self._clock.now_ns() + self._declared.every_ns
        try:
            if self._declared.blocking:
                return await self._context.in_thread(function)
            return await self._eager.run(_asked, function)
        except BaseException as error:
            reraise_interrupt(error)
            task = asyncio.current_task()
            if is_a(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # it is asked in another task, so this is the end of the asking
            raise FeedLost(f"{_name(function)} raised {named(error)}") from error


async def _asked(function: Callable[[], Any]) -> Any:
    value = function()
    return await value if inspect.isawaitable(value) else value


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)

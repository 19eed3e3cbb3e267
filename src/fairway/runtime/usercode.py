"""Where user code ends and ours begins: whatever it raises is its own failure, and nothing else's.

Three rules, kept by everybody who calls a function of the user's:

* Any `BaseException` out of it is a failure like any other, `GeneratorExit`, `SystemExit` and
  `KeyboardInterrupt` included. One is not its own: the `KeyboardInterrupt` that a real SIGINT
  brought. `interrupts` marks it, and `reraise_interrupt` lets it through to the process.
* It is never in a task of ours, which it could cancel. A coroutine gets a task (`UserTasks`,
  `eager.EagerTask`) that nobody but we cancel, so a cancel that we did not ask for is the user's
  own; a plain function sees no task (`without_task`).
* A stop does not wait for it for ever. What goes on although it was cancelled is let go of after a
  moment, and what it says then counts for nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from fairway.runtime.blocking import abandoned_calls
from fairway.runtime.words import is_a, is_wild, named

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

logger = logging.getLogger("fairway")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GRACE_S: Final = 1.0
"""How long user code that was cancelled may take to end. More would hold up every stop."""
_MARK: Final = "__fairway_interrupt__"


class CancelledItself(Exception):
    """A coroutine of the user's was cancelled, and not by us. The cause is what it raised."""


# What it raises


def is_interrupt(error: BaseException) -> bool:
    """Whether a real SIGINT raised this, not code."""
    try:
        return is_a(error, KeyboardInterrupt) and getattr(error, _MARK, False)
    except BaseException:  # its own code was asked
        return False


def may_be_interrupt(error: BaseException) -> bool:
    """The same, where nobody marks them: a SIGINT would raise it here and now."""
    return is_interrupt(error) or (
        is_a(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


def reraise_interrupt(error: BaseException) -> None:
    """Raise it again if it is meant for the process and not a word of the user's code."""
    if is_interrupt(error):
        raise error


def as_exception(error: BaseException) -> Exception:
    """What user code raised, as something that may leave a task without ending the loop."""
    reraise_interrupt(error)
    if is_wild(error):
        return RuntimeError(f"it raised {named(error)}")
    if is_a(error, Exception):
        return error  # type: ignore[return-value]
    wrapped = RuntimeError(f"it raised {named(error)}")
    wrapped.__cause__ = error
    return wrapped


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Let a real SIGINT stop what is done inside, wherever the process is when it comes.

    Embedded in a loop of the user's, we do not own the signal: whatever was set up for it goes on
    to decide. But if that raises `KeyboardInterrupt`, it does so in the middle of anything, also
    of user code, where one raised by hand is that code's failure; so it is marked. Where nothing
    was set up the first SIGINT cancels the task that is inside, as `asyncio.run` does, and is
    raised when that has left; the second is raised at once.
    """
    previous = signal.getsignal(signal.SIGINT)
    task = asyncio.current_task()
    if (
        not callable(previous)
        or task is None
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    loop = asyncio.get_running_loop()
    asked = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if previous is signal.default_int_handler and not asked and not task.done():
            asked = True
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # it may be asleep, with nothing to wake it
            return
        try:
            previous(number, frame)
        except KeyboardInterrupt as error:
            setattr(error, _MARK, True)
            raise

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if asked and task.uncancel() == 0:
            raise KeyboardInterrupt from None
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, previous)


# Where it runs


def without_task(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a plain function that must not see the task it is called in: it could cancel it."""
    loop = asyncio._get_running_loop()  # there may be none: a type and a replay work without
    task = asyncio.current_task(loop) if loop is not None else None
    if loop is None or task is None:
        return function(*args)
    asyncio._leave_task(loop, task)
    try:
        return function(*args)
    finally:
        asyncio._enter_task(loop, task)


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the user's on a loop of its own; where there is none, in a process.

    As `asyncio.run`, whose task does not hold what was raised: to end, it asks that for its `repr`,
    and if that raises the next coroutine cannot be run.
    """
    outcome: list[tuple[Any, BaseException | None]] = []

    async def main() -> None:
        try:
            outcome.append((await coroutine, None))
        except BaseException as error:
            outcome.append((None, error))

    with contextlib.suppress(asyncio.CancelledError):  # it cancelled its task, and returned
        asyncio.run(main())
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


class UserTasks:
    """Tasks that run code of the user's. Nobody but us cancels them, and none holds up a stop.

    What is started is ours, with user code inside: it catches what that raises. If it fails all the
    same it is a fault of ours, and `watch` raises it. It says itself that it ends, by `ended`: a
    callback of each task costs a turn of the loop and as much as many a job.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: asyncio.Queue[BaseException] = asyncio.Queue()

    def start(
        self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop
    ) -> asyncio.Task[None]:
        task = loop.create_task(coroutine)
        self._tasks.add(task)
        return task

    def ended(self, task: asyncio.Task[None], fault: BaseException | None = None) -> None:
        """The last that a task does; `fault` is what it failed of."""
        self._tasks.discard(task)
        if fault is not None:
            self._faults.put_nowait(fault)

    async def watch(self) -> None:
        """Raise what one of them failed of, and should not have."""
        raise await self._faults.get()

    async def end(self) -> None:
        """Cancel all of them. Who has not ended a moment later is let go of."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await let_go(tasks)


async def let_go(tasks: set[asyncio.Task[None]]) -> None:
    """Wait a moment for tasks that were cancelled, then leave them. What is left had its own."""
    if waited_for := tasks - _LEFT:
        _, pending = await asyncio.wait(waited_for, timeout=GRACE_S)
        leave(pending)


def leave(tasks: set[asyncio.Task[None]]) -> None:
    """They were cancelled and had their moment: nobody gives them another."""
    if tasks:
        logger.warning("%d tasks of user code go on although they were cancelled", len(tasks))
    _LEFT.update(tasks)
    for task in tasks:
        task.add_done_callback(_LEFT.discard)


_LEFT: set[asyncio.Task[Any]] = set()  # the loop itself would not keep them alive


# A process of our own


def run_process(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` as all that this process does, on the fastest loop: it alone decides the end.

    A task or callback of user code that raises `SystemExit` or `KeyboardInterrupt` breaks the loop,
    as asyncio has it: that is logged, and the loop goes on. When `main` has ended, what is left of
    user code is not waited for: neither tasks that outlive their cancellation nor calls in threads.
    """
    make_loop: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        import uvloop

        make_loop = uvloop.new_event_loop
    except ImportError:
        make_loop = None
    with asyncio.Runner(loop_factory=make_loop) as runner, _marking():
        loop = runner.get_loop()
        task = loop.create_task(main)
        while not task.done():
            try:
                loop.run_until_complete(task)
            except (KeyboardInterrupt, SystemExit) as error:
                if task.done() or is_interrupt(error):
                    raise
                logger.error("a task or callback of user code raised %s", named(error))
        left = asyncio.all_tasks(loop)
        for each in left:
            each.cancel()
        if waited_for := left - _LEFT:
            loop.run_until_complete(asyncio.wait(waited_for, timeout=GRACE_S))
        if not all(each.done() for each in left) or abandoned_calls():
            # To leave as usual is to wait for them, for as long as they like.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


@contextlib.contextmanager
def _marking() -> Iterator[None]:
    """Mark what a SIGINT raises, until `main` sees to signals itself and after that."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt()
        setattr(error, _MARK, True)
        raise error

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

"""How callers learn that what they asked for is done: one callback, and its adapters.

It is a callback and not a future. A future calls its callbacks one turn of the loop later, and the
end of an append passes through the log, its topic and the server: three turns, each of which is
long where much is going on. It also costs more, to make and to resolve.

The contract of an `OnDone`, wherever one is passed: it is called on the loop, within the turn that
hears of the end, exactly once, with the result or with an error, and never before the call that was
given it returns. A call that promises less says so. An `OnDone` must not wait, and it must not
raise: a fault of it is logged, and keeps nobody else from being notified.
"""

from __future__ import annotations

import asyncio
import logging
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fairway.runtime.words import is_a

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.errors import FairwayError

logger = logging.getLogger("fairway")

T = TypeVar("T")

OnDone: TypeAlias = "Callable[[T | None, BaseException | None], None]"
"""Called with the result and None, or with None and the error."""


def notify(on_done: OnDone[T], result: T | None, error: BaseException | None = None) -> None:
    """Call `on_done`; if it raises, that is logged and goes no further."""
    try:
        on_done(result, error)
    except Exception:
        logger.exception("a callback failed when it was notified that something is done")


def notify_failure(on_done: OnDone[Any], failure: FairwayError) -> None:
    """As `notify`, where several callers hear of one failure: each has an error of its own."""
    notify(on_done, None, failure.again())


def resolve(future: asyncio.Future[T]) -> OnDone[T]:
    """A callback that settles `future`, for callers who await one."""
    return MethodType(settle, future)  # smaller than a `partial`, and quicker to make and to call


def settle(future: asyncio.Future[T], result: T | None, error: BaseException | None) -> None:
    """Give a future its outcome. One that is done or cancelled stays so: its caller is gone."""
    if future.done():
        return
    if error is None:
        future.set_result(result)  # type: ignore[arg-type]  # None only if that is a `T`
    elif is_a(error, asyncio.CancelledError):
        future.cancel()
    else:
        fail(future, error)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Let a future fail, unless it is done. If its caller is gone, that is nothing to warn of."""
    if not future.done():
        future.set_exception(error)
        future.exception()  # it counts as seen

"""Callbacks are called once, guarded, and settle futures whose callers may be gone."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import Backpressure, WriteFailed
from fairway.runtime.completion import fail, notify, notify_failure, resolve, settle
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def with_future(body: Callable[[asyncio.Future[int]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await body(asyncio.get_running_loop().create_future())

    run(main, quiet=True)


def test_a_callback_is_given_the_result_or_the_error() -> None:
    heard: list[tuple[int | None, BaseException | None]] = []

    def on_done(result: int | None, error: BaseException | None) -> None:
        heard.append((result, error))

    refused = Backpressure("lane", depth=1, limit="1 call", retry_after_ns=5)
    notify(on_done, 7)
    notify(on_done, None, refused)
    assert heard == [(7, None), (None, refused)]


def test_each_of_several_callers_has_an_error_of_its_own() -> None:
    heard: list[BaseException | None] = []
    refused = Backpressure("lane", depth=1, limit="1 call", retry_after_ns=5)
    for _ in range(2):
        notify_failure(lambda _, error: heard.append(error), refused)
    assert len({id(error) for error in (refused, *heard)}) == 3
    for error in heard:
        assert isinstance(error, Backpressure)
        assert (str(error), error.retry_after_ns) == (str(refused), 5)


def test_a_callback_that_raises_is_logged_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(result: object, error: BaseException | None) -> None:
        raise ZeroDivisionError

    notify(broken, 1)
    notify_failure(broken, WriteFailed("disk full"))
    assert caplog.text.count("a callback failed") == 2


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through(interrupt: type[BaseException]) -> None:
    def interrupted(result: object, error: BaseException | None) -> None:
        raise interrupt

    with pytest.raises(interrupt):
        notify(interrupted, 1)


def test_a_future_is_resolved_within_the_call() -> None:
    async def body(future: asyncio.Future[int]) -> None:
        notify(resolve(future), 7)
        assert future.result() == 7

    with_future(body)


def test_a_future_fails_within_the_call() -> None:
    async def body(future: asyncio.Future[int]) -> None:
        failed = WriteFailed("disk full")
        notify(resolve(future), None, failed)
        assert future.exception() is failed

    with_future(body)


def test_a_future_of_what_was_cancelled_is_cancelled() -> None:
    async def body(future: asyncio.Future[int]) -> None:
        notify(resolve(future), None, asyncio.CancelledError())
        assert future.cancelled()

    with_future(body)


@pytest.mark.parametrize(
    ("result", "error"), [(1, None), (None, WriteFailed("no")), (None, asyncio.CancelledError())]
)
def test_a_caller_who_is_gone_changes_nothing(
    caplog: pytest.LogCaptureFixture, result: int | None, error: BaseException | None
) -> None:
    async def body(future: asyncio.Future[int]) -> None:
        future.cancel()
        notify(resolve(future), result, error)
        assert future.cancelled()

    async def answered(future: asyncio.Future[int]) -> None:
        future.set_result(7)
        settle(future, result, error)
        fail(future, WriteFailed("no"))
        assert future.result() == 7

    with_future(body)
    with_future(answered)
    assert not caplog.records


def test_nobody_is_warned_of_a_failure_that_no_caller_is_there_to_hear() -> None:
    async def body(future: asyncio.Future[int]) -> None:
        complaints: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        caller = asyncio.ensure_future(asyncio.wait([future]))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        notify(resolve(future), None, WriteFailed("no"))
        del future, caller
        gc.collect()
        await asyncio.sleep(0)
        assert not complaints

    with_future(body)

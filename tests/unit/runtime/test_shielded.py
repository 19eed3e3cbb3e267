"""What is waited for behind a shield."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import Any

import pytest

from fairway.errors import Fenced
from fairway.runtime.shielded import shielded


async def wait(future: asyncio.Future[int]) -> int:
    return await shielded(future)


def test_a_failure_after_the_wait_was_cancelled_is_no_loose_end() -> None:
    told: list[Any] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        future: asyncio.Future[int] = loop.create_future()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(wait(future))
            await asyncio.sleep(0)
            waiting.cancel()
        assert not future.done(), "it goes on"
        future.set_exception(Fenced("another has it"))
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        del future, waiting
        gc.collect()

    asyncio.run(scenario())
    assert told == []


def test_who_still_waits_is_told() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        loop.call_soon(future.set_exception, Fenced("another has it"))
        with pytest.raises(Fenced, match="another has it"):
            await wait(future)

    asyncio.run(scenario())

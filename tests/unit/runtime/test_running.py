"""`running`: services beside a block of code, and whose errors leave it how."""

from __future__ import annotations

import asyncio

import pytest

from fairway.runtime.service import running
from fairway.testing import run


class Endless:
    ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


class Broken:
    async def run(self) -> None:
        raise ValueError("the service is broken")


def test_what_is_raised_inside_leaves_as_it_is() -> None:
    service = Endless()

    async def body() -> None:
        async with running(service):
            await asyncio.sleep(0)
            raise KeyError("mine")

    async def main() -> None:
        with pytest.raises(KeyError, match="mine"):
            await body()
        assert service.ended

    run(main)


def test_a_service_that_fails_ends_the_block_and_leaves_in_a_group() -> None:
    async def body() -> None:
        async with running(Broken()):
            await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await body()
        assert isinstance(caught.value.exceptions[0], ValueError)

    run(main)


def test_a_cancel_passes_through() -> None:
    service = Endless()

    async def body() -> None:
        async with running(service):
            await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(body())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        assert task.cancelled()
        assert service.ended

    run(main)

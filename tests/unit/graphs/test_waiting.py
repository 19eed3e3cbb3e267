"""Those who wait for a graph."""

from __future__ import annotations

import asyncio

import pytest

from fairway.errors import Closing
from fairway.graphs.waiting import Broadcast, Promises, fail, resolve
from fairway.testing import run


def test_a_broadcast_wakes_all_who_wait_and_nobody_who_comes_later() -> None:
    async def main() -> None:
        broadcast, woken = Broadcast(), []

        async def wait(name: str) -> None:
            await broadcast.wait()
            woken.append(name)
            if name == "first":
                await broadcast.wait()
                woken.append("first again")

        async with asyncio.TaskGroup() as group:
            for name in ("first", "second"):
                group.create_task(wait(name))
            await asyncio.sleep(0.1)
            assert len(broadcast.waiters) == 2
            broadcast.notify_all()
            await asyncio.sleep(0.1)
            assert sorted(woken) == ["first", "second"]
            broadcast.notify_all()
        assert woken[-1] == "first again"
        broadcast.notify_all()
        assert not broadcast.waiters

    run(main)


def test_who_no_longer_waits_is_forgotten() -> None:
    async def main() -> None:
        broadcast = Broadcast()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await broadcast.wait()
        assert not broadcast.waiters

    run(main)


def test_a_waiter_that_is_cancelled_during_a_broadcast_harms_nobody() -> None:
    async def main() -> None:
        broadcast = Broadcast()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(broadcast.wait())
            await asyncio.sleep(0.1)
            broadcast.notify_all()
            waiting.cancel()
        assert not broadcast.waiters

    run(main)


def test_a_promise_is_kept_or_told_the_end() -> None:
    async def main() -> None:
        promises = Promises()
        kept, left, gone = promises.make(), promises.make(), promises.make()
        resolve(kept, "told")
        gone.cancel()
        await asyncio.sleep(0)
        promises.fail_all(Closing("the end"))
        assert await kept == "told"
        with pytest.raises(Closing, match="the end"):
            await left
        assert gone.cancelled()
        await asyncio.sleep(0)
        assert not promises._made, "nobody is told twice"

    run(main)


def test_what_is_over_is_told_nothing_more() -> None:
    async def main() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        resolve(future, "first")
        resolve(future, "second")
        fail(future, Closing("late"))
        assert await future == "first"

    run(main)

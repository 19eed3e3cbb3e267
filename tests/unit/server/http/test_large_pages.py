"""Room and turns for large answers: what is reserved is given back, and keys take turns."""

from __future__ import annotations

import asyncio

import pytest

from fairway.errors import Throttled
from fairway.runtime.turn import TURN
from fairway.server.http.held_bytes import FREE, HeldBytes
from fairway.server.http.large_pages import LargePages
from fairway.testing import run

MIB = 2**20


def test_an_answer_has_its_room_before_it_is_built_or_is_refused() -> None:
    held = HeldBytes(3 * MIB)
    pages = LargePages(held)
    with pages.reserve(2 * MIB):
        assert held.used == 2 * MIB
        with pytest.raises(Throttled) as refused, pages.reserve(2 * MIB):
            pytest.fail("there was no room")
        assert (refused.value.limit, refused.value.maximum) == ("held_bytes_max", 3 * MIB)
        assert held.used == 2 * MIB, "a refusal takes nothing"
        with pages.reserve(FREE):
            assert held.used == 2 * MIB, "small ones go on, uncounted"
    assert held.used == 0


def test_room_grows_with_what_turns_out_to_be_there_and_is_given_back_whole() -> None:
    held = HeldBytes(3 * MIB)

    def build() -> None:
        with LargePages(held).reserve(MIB) as room:
            assert room.cover(MIB // 2)
            assert held.used == MIB
            assert room.cover(2 * MIB)
            assert not room.cover(4 * MIB)
            assert held.used == room.size == 2 * MIB
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build()
    assert held.used == 0


def test_few_pages_are_built_at_once_and_keys_take_turns() -> None:
    async def scenario() -> None:
        pages = LargePages(HeldBytes(MIB))
        order: list[str] = []
        begun = under_way = 0

        async def build(key: str) -> None:
            nonlocal begun, under_way
            async with pages.turn(key):
                under_way += 1
                assert under_way <= TURN.pages_at_once
                order.append(key)
                begun += 1
                await asyncio.sleep(0)
                under_way -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(build("mob"))
            await asyncio.sleep(0)
            group.create_task(build("vip"))
        assert begun == 51
        assert order.index("vip") <= TURN.pages_at_once + 3 * TURN.pages_at_once, (
            "not behind all of the others"
        )

    run(scenario())


def test_whoever_leaves_while_it_waits_takes_nobodys_turn() -> None:
    async def scenario() -> None:
        pages = LargePages(HeldBytes(MIB))
        go_on = asyncio.Event()
        done: list[int] = []

        async def build(number: int) -> None:
            async with pages.turn("k"):
                await go_on.wait()
                done.append(number)

        tasks = [asyncio.ensure_future(build(number)) for number in range(TURN.pages_at_once * 3)]
        await asyncio.sleep(0)
        tasks[TURN.pages_at_once].cancel()  # while it waits
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.sleep(0)  # the turns are handed on, and not taken yet
        tasks[TURN.pages_at_once + 1].cancel()
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(done) >= TURN.pages_at_once * 3 - 3
        async with asyncio.TaskGroup() as group:
            for number in range(TURN.pages_at_once + 1):
                group.create_task(build(100 + number))
        assert done[-1] >= 100, "all turns are free again"

    run(scenario())

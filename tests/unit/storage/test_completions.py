"""Callers are notified a few in each turn of the loop, in order, none after a flood of others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.runtime.completion import resolve
from fairway.runtime.turn import TURN
from fairway.storage.completions import Completions
from fairway.testing import run

if TYPE_CHECKING:
    import pytest

    from fairway.runtime.completion import OnDone


PER_TURN = 8


def spread() -> Completions:
    completions = Completions()
    completions.per_turn = PER_TURN
    return completions


def noting(name: str, log: list[tuple[str, int, int]]) -> OnDone[int]:
    """A callback that remembers when it was called with what, by turns of the loop."""

    def on_done(last_key: int | None, error: BaseException | None) -> None:
        assert last_key is not None, error
        log.append((name, last_key, turns()))

    return on_done


_turns = 0


def turns() -> int:
    return _turns


async def count_turns(turns: int) -> None:
    global _turns
    for _ in range(turns):
        await asyncio.sleep(0)
        _turns += 1


def test_a_flood_is_notified_over_many_turns_and_a_single_one_in_the_first() -> None:
    log: list[tuple[str, int, int]] = []

    async def main() -> None:
        global _turns
        _turns = 0
        completions = spread()
        flood = noting("flood", log)
        completions.add(1, [(flood, key) for key in range(6 * PER_TURN)])
        completions.add(2, [(noting("single", log), 1)])
        completions.notify()
        assert len(log) == PER_TURN
        assert ("single", 1, 0) in log
        completions.notify()  # in the same turn: nobody else has waited for them yet
        assert len(log) == PER_TURN
        await count_turns(20)

    run(main, quiet=True)
    assert [key for name, key, _ in log if name == "flood"] == list(range(6 * PER_TURN))
    in_one_turn = [sum(turn == at for _, _, turn in log) for at in range(1, 20)]
    assert max(in_one_turn) == PER_TURN
    assert sum(1 for count in in_one_turn if count) >= 4
    assert TURN.acks_per_partition < PER_TURN


def test_callers_wait_for_a_turn_only_where_that_is_wanted() -> None:
    log: list[tuple[str, int, int]] = []

    async def main() -> None:
        completions = Completions()
        assert not completions.holds_back(1, 1, False)
        completions.per_turn = PER_TURN
        assert completions.holds_back(1, 1, False)
        completions.add(1, [(noting("flood", log), key) for key in range(100)])
        completions.notify()
        completions.per_turn = None
        assert completions.holds_back(1, 1, False), "what waits is not overtaken"
        completions.add(1, [(noting("flood", log), key) for key in range(100, 200)])
        await count_turns(2)
        assert not completions.holds_back(1, 1, False)

    run(main, quiet=True)
    assert [key for _, key, _ in log] == list(range(200))


def test_a_few_urgent_callers_do_not_wait_for_a_turn() -> None:
    async def main() -> None:
        completions = spread()
        assert not completions.holds_back(1, PER_TURN, True)
        assert completions.holds_back(1, PER_TURN + 1, True), "those would be a flood themselves"
        completions.add(1, [(noting("flood", []), key) for key in range(100)])
        assert completions.holds_back(1, 1, True), "what waits is not overtaken"
        assert completions.holds_back(2, 1, True), "as many as may be were notified in this turn"
        await count_turns(1)
        assert not completions.holds_back(2, 1, True)
        assert not completions.holds_back(3, PER_TURN - 1, True)
        assert completions.holds_back(4, 1, True)

    run(main, quiet=True)


def test_a_backlog_cannot_grow_for_ever() -> None:
    log: list[tuple[str, int, int]] = []

    async def main() -> int:
        completions = spread()
        on_done = noting("each", log)
        most = 0
        for _ in range(200):  # ten times what a turn notifies at least, in each turn
            completions.add(1, [(on_done, 0)] * (10 * PER_TURN))
            completions.notify()
            most = max(most, completions.waiting)
            await asyncio.sleep(0)
        return most

    assert run(main, quiet=True) <= (TURN.acks_backlog_share + 2) * 10 * PER_TURN


def test_flushing_notifies_the_rest_at_once_and_in_order() -> None:
    log: list[tuple[str, int, int]] = []

    async def main() -> None:
        completions = spread()
        completions.add(1, [(noting("a", log), key) for key in range(3 * PER_TURN)])
        completions.add(2, [(noting("b", log), key) for key in range(3 * PER_TURN)])
        completions.notify()
        completions.flush(1)
        assert [key for name, key, _ in log if name == "a"] == list(range(3 * PER_TURN))
        assert sum(name == "b" for name, _, _ in log) < PER_TURN
        completions.flush_all()
        assert [key for name, key, _ in log if name == "b"] == list(range(3 * PER_TURN))
        await asyncio.sleep(0)  # the turn that was due finds nothing

    run(main, quiet=True)


def test_a_callback_that_fails_keeps_nobody_from_being_notified(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[tuple[str, int, int]] = []

    def broken(last_key: int | None, error: BaseException | None) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        completions = spread()
        gone: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        gone.cancel()
        completions.add(1, [(broken, 1), (resolve(gone), 2), (noting("last", log), 3)])
        completions.notify()

    run(main, quiet=True)
    assert log == [("last", 3, turns())]
    assert "a callback failed" in caplog.text

"""The doors of the kernel: what whoever stands on it may ask of the log, without having it."""

from __future__ import annotations

from fairway.kernel.kernel import Kernel
from fairway.runtime.turn import TurnBudget
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run

TURN = TurnBudget(acks_per_turn=5, acks_per_partition=4)


def test_acknowledgements_come_in_turns_once_that_is_asked_for() -> None:
    async def main() -> None:
        async with Log(MemoryWal(), turn=TURN) as log, Kernel(log) as kernel:
            assert log.acks_per_turn is None, "alone, all of a group are told at once"
            kernel.acknowledge_in_turns()
            assert log.acks_per_turn == TURN.acks_per_turn

    run(main)


def test_what_waits_is_expedited() -> None:
    asked: list[bool] = []

    class Asked(Log):
        def expedite(self) -> None:
            asked.append(True)

    async def main() -> None:
        async with Asked(MemoryWal()) as log, Kernel(log) as kernel:
            kernel.expedite()

    run(main)
    assert asked == [True]

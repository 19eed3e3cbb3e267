"""The part of jobs on a kernel, and without one in a process that only works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairway.core.pressure import Ladder
from fairway.errors import ReadOnly
from fairway.jobs import part as part_module
from fairway.jobs.effects import KIND, JobDestination
from fairway.jobs.engine import Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.part import JobsPart
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import Worker, WorkerConfig
from fairway.kernel.kernel import Kernel
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import run
from tests.support.topics import Forced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def on_kernel(body: Callable[[Kernel, Forced], Awaitable[None]]) -> None:
    async def main() -> None:
        governor = Forced(Ladder(pressure=0.7))
        async with Log(MemoryWal()) as log, Kernel(log, governor=governor) as kernel:
            await body(kernel, governor)

    run(main, seed=1)


def part(kernel: Kernel | None, *, on_disk_of_log: bool = False) -> JobsPart:
    config = WorkerConfig(queues={"default": FeederConfig()})
    return JobsPart(
        MemoryStore(), Kinds(), config, {}, kernel=kernel, on_disk_of_log=on_disk_of_log
    )


@pytest.mark.parametrize("on_disk_of_log", [True, False])
def test_jobs_on_the_disk_of_the_log_leave_its_reserve_alone(
    on_disk_of_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(kernel: Kernel, governor: Forced) -> None:
        def full() -> None:
            raise ReadOnly("the disk is full")

        monkeypatch.setattr(kernel.writability, "check_room", full)
        async with part(kernel, on_disk_of_log=on_disk_of_log) as jobs:
            if on_disk_of_log:
                with pytest.raises(ReadOnly):
                    await jobs.engine.enqueue([])
            else:
                assert await jobs.engine.enqueue([]) == []

    on_kernel(body)


def test_its_worker_feels_the_pressure_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    felt: list[Callable[[], float]] = []

    class Feeling(Worker):
        def __init__(self, *given: Any, pressure: Callable[[], float], **more: Any) -> None:
            felt.append(pressure)
            super().__init__(*given, pressure=pressure, **more)

    monkeypatch.setattr(part_module, "Worker", Feeling)

    async def body(kernel: Kernel, governor: Forced) -> None:
        part(kernel)
        part(None)
        within, alone = felt
        assert (within(), alone()) == (0.7, 0.0)
        governor.force(Ladder(pressure=0.2))
        assert (within(), alone()) == (0.2, 0.0)

    on_kernel(body)


def test_it_takes_effects_of_other_parts_of_its_kernel_only() -> None:
    async def body(kernel: Kernel, governor: Forced) -> None:
        part(None)
        assert KIND not in kernel.destinations
        part(kernel)
        assert isinstance(kernel.destinations[KIND], JobDestination)

    on_kernel(body)


def test_without_a_kernel_nothing_presses_it_and_there_is_room() -> None:
    async def main() -> None:
        async with part(None) as jobs:
            assert await jobs.engine.enqueue([]) == []

    run(main, seed=1)

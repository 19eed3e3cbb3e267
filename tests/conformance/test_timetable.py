"""Every store keeps schedules alike: each time is recorded once, and none is lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairway.jobs.clockwork import Clockwork, Every, FiringRecovery, Schedule
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.job import Filter, NewJob
from fairway.jobs.schedule import Catchup, CatchupConfig
from fairway.jobs.timetable import ScheduleFiring
from tests.conformance.job_backends import JOB_STORES, SECOND_NS, opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.job_backends import JobRig

MINUTE_NS = 60 * SECOND_NS


@pytest.fixture(params=list(JOB_STORES))
def opened_rig(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[JobRig, asyncio.Runner]]:
    with opened(request.param, tmp_path) as pair:
        yield pair


def minutely(catchup: Catchup = Catchup.RUN_ALL) -> Schedule:
    return Schedule(
        name="tick",
        times=Every(MINUTE_NS),
        job=lambda at_ns: NewJob(kind="tick", state=b'{"at":%d}' % at_ns),
        catchup=CatchupConfig(policy=catchup),
    )


def clockwork(rig: JobRig, *, recovery: FiringRecovery | None = None) -> Clockwork:
    jobs = Jobs(rig.store, Kinds())
    return Clockwork(jobs, rig.store.timetable, {"tick": minutely()}, recovery, clock=rig.clock)


def test_a_new_schedule_owes_nothing_before_now(
    opened_rig: tuple[JobRig, asyncio.Runner],
) -> None:
    rig, runner = opened_rig

    async def play() -> None:
        entry = await rig.store.timetable.put("tick", "every minute")
        assert entry.handled_wall_ns == rig.wall_ns()
        assert not entry.paused
        again = await rig.store.timetable.put("tick", "every other minute")
        assert (again.spec, again.handled_wall_ns) == ("every other minute", rig.wall_ns())
        assert await rig.store.timetable.entries() == [again]

    runner.run(play())


def test_each_time_is_recorded_once_and_handled_never_goes_back(
    opened_rig: tuple[JobRig, asyncio.Runner],
) -> None:
    rig, runner = opened_rig
    now = rig.wall_ns()

    async def play() -> None:
        table = rig.store.timetable
        await table.put("tick", "x")
        assert await table.record("tick", [now + 1, now + 2], now + 2) == [now + 1, now + 2]
        assert await table.record("tick", [now + 2, now + 3], now + 1) == [now + 3]
        (entry,) = await table.entries()
        assert entry.handled_wall_ns == now + 2

    runner.run(play())


def test_a_firing_without_a_job_is_found_and_counted(
    opened_rig: tuple[JobRig, asyncio.Runner],
) -> None:
    rig, runner = opened_rig
    now = rig.wall_ns()

    async def play() -> None:
        table = rig.store.timetable
        await table.put("tick", "x")
        await table.record("tick", [now, now + 1], now + 1)
        await table.link("tick", now, 7)
        assert await table.lost(MINUTE_NS, 10) == []
        await rig.advance(MINUTE_NS)
        assert await table.lost(MINUTE_NS, 10) == [ScheduleFiring("tick", now + 1, None, 1)]
        assert await table.lost(MINUTE_NS, 10) == [ScheduleFiring("tick", now + 1, None, 2)]
        assert await table.firings("tick", 10) == [
            ScheduleFiring("tick", now + 1, None, 2),
            ScheduleFiring("tick", now, 7, 0),
        ]
        assert await table.forget(MINUTE_NS) == 1
        assert await table.firings("tick", 10) == [ScheduleFiring("tick", now + 1, None, 2)]

    runner.run(play())


def test_a_paused_schedule_fires_nothing(opened_rig: tuple[JobRig, asyncio.Runner]) -> None:
    rig, runner = opened_rig

    async def play() -> None:
        table = rig.store.timetable
        works = clockwork(rig)
        await works.declare()
        assert await table.set_paused("tick", True)
        assert not await table.set_paused("tock", True)
        await rig.advance(3 * MINUTE_NS)
        await works.fire_due()
        assert await rig.store.browse(Filter()) == []
        assert await table.set_paused("tick", False)
        await works.fire_due()
        assert len(await rig.store.browse(Filter())) == 3

    runner.run(play())


def test_a_schedule_that_nobody_declares_any_more_fires_nothing_and_its_row_stays(
    opened_rig: tuple[JobRig, asyncio.Runner],
) -> None:
    rig, runner = opened_rig

    async def play() -> None:
        await rig.store.timetable.put("former", "every minute")
        works = clockwork(rig)
        await works.declare()
        await rig.advance(3 * MINUTE_NS)
        await works.fire_due()
        assert {job.kind for job in await rig.store.browse(Filter())} == {"tick"}
        assert await rig.store.timetable.firings("former", 10) == []
        assert {entry.name for entry in await rig.store.timetable.entries()} == {"former", "tick"}

    runner.run(play())


def test_two_runners_fire_each_time_once(opened_rig: tuple[JobRig, asyncio.Runner]) -> None:
    rig, runner = opened_rig

    async def play() -> None:
        one, other = clockwork(rig), clockwork(rig)
        await one.declare()
        await other.declare()
        for _ in range(5):
            await rig.advance(MINUTE_NS)
            async with asyncio.TaskGroup() as group:
                group.create_task(one.fire_due())
                group.create_task(other.fire_due())
        jobs = await rig.store.browse(Filter())
        assert len({job.state for job in jobs}) == len(jobs) == 5
        firings = await rig.store.timetable.firings("tick", 10)
        assert {firing.job for firing in firings} == {job.id for job in jobs}

    runner.run(play())


@pytest.mark.parametrize("enqueued", [False, True], ids=["before", "after"])
def test_a_runner_that_dies_between_the_phases_loses_nothing(
    opened_rig: tuple[JobRig, asyncio.Runner], enqueued: bool
) -> None:
    """Dead before its job was enqueued, or after that and before it was linked."""
    rig, runner = opened_rig

    async def play() -> None:
        table = rig.store.timetable
        works = clockwork(rig, recovery=FiringRecovery(lost_after_ns=MINUTE_NS))
        await works.declare()
        await rig.advance(MINUTE_NS)
        (entry,) = await table.entries()
        at_ns = Every(MINUTE_NS).after(entry.handled_wall_ns)
        assert await table.record("tick", [at_ns], at_ns) == [at_ns]
        if enqueued:
            key = f"schedule:tick:{at_ns}"
            job = NewJob(kind="tick", unique_key=key, window_ns=48 * 60 * MINUTE_NS)
            await rig.store.enqueue([job])
        assert await works.recover() == 0
        await rig.advance(MINUTE_NS)
        assert await works.recover() == 1
        assert await works.recover() == 0
        (run,) = await rig.store.browse(Filter())
        assert [firing.job for firing in await table.firings("tick", 5)] == [run.id]

    runner.run(play())


def test_what_is_too_old_or_failed_too_often_is_left(
    opened_rig: tuple[JobRig, asyncio.Runner],
) -> None:
    rig, runner = opened_rig

    async def play() -> None:
        table = rig.store.timetable
        works = clockwork(rig, recovery=FiringRecovery(lost_after_ns=0, tries_max=1))
        await works.declare()
        now = rig.wall_ns()
        await table.record("tick", [now - 25 * 60 * MINUTE_NS, now], now)
        await table.lost(0, 10)
        assert await works.recover() == 0
        assert await rig.store.browse(Filter()) == []

    runner.run(play())

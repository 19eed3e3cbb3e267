"""Fires schedules: looks at what each owes, records the times, enqueues their jobs.

Every worker does this, and each time fires once: see `timetable`. What a time means is a cron
expression or an interval; what is owed after a pause is decided in `schedule`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from fairway.errors import FairwayError, InvalidConfig
from fairway.jobs.cron import Cron, time_zone
from fairway.jobs.schedule import Catchup, CatchupConfig, Times, due
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.runtime.words import brief

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairway.jobs.engine import Jobs
    from fairway.jobs.job import NewJob
    from fairway.jobs.timetable import Timetable
    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.jobs")

SECOND_NS: Final = 1_000_000_000
EVERY_MAX_S: Final = 100 * 365 * 86_400
LOOK_MAX_NS: Final = 60 * SECOND_NS
LOST_BATCH: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringRecovery:
    """How firings that a crash cut in half are found again."""

    interval_ns: int = 300 * SECOND_NS
    """How often they are looked for."""
    lost_after_ns: int = 600 * SECOND_NS
    """How long a recorded time may be without its job before it counts as lost. Raising it spares
    work that is still under way; a lost one is replayed later."""
    age_max_ns: int = 24 * 3600 * SECOND_NS
    """Times longer ago are not replayed."""
    tries_max: int = 3
    """How often one is tried."""

    def __post_init__(self) -> None:
        check_amounts(self, interval_ns=1, lost_after_ns=0, age_max_ns=0, tries_max=1)


class Every:
    """A schedule at a fixed interval, aligned to it: every 10 s is at :00, :10, :20."""

    def __init__(self, interval_ns: int) -> None:
        if interval_ns < 1:
            raise InvalidConfig("an interval is positive")
        self._interval_ns = interval_ns

    def __str__(self) -> str:
        return f"every {self._interval_ns / SECOND_NS:g} s"

    def after(self, wall_ns: int) -> int:
        return (wall_ns // self._interval_ns + 1) * self._interval_ns

    def latest(self, start_ns: int, end_ns: int) -> int | None:
        last_ns = end_ns // self._interval_ns * self._interval_ns
        return last_ns if last_ns > start_ns else None

    def between(self, start_ns: int, end_ns: int, limit: int) -> list[int]:
        first_ns = self.after(start_ns)
        count = min(limit, max(0, (end_ns - first_ns) // self._interval_ns + 1))
        return [first_ns + at * self._interval_ns for at in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When to enqueue what."""

    name: str
    times: Times
    job: Callable[[int], NewJob]
    """The job for a time, given as nanoseconds since 1970 in UTC."""
    catchup: CatchupConfig = field(default_factory=CatchupConfig)

    def __str__(self) -> str:
        return f"{self.times} ({Catchup(self.catchup.policy).value})"


def catchup_of(policy: Any) -> CatchupConfig:
    """`skip`, `latest_only` or `run_all`, as people write it, or all that there is to say."""
    return policy if isinstance(policy, CatchupConfig) else CatchupConfig(policy=policy)


class Clockwork:
    """A service that fires the schedules of this app until it is cancelled."""

    name = "job-schedules"

    def __init__(
        self,
        jobs: Jobs,
        timetable: Timetable,
        schedules: Mapping[str, Schedule],
        recovery: FiringRecovery | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._given_clock = clock
        self._jobs = jobs
        self._timetable = timetable
        self._schedules = schedules
        self._recovery = recovery or FiringRecovery()

    async def run(self) -> None:
        """Fire until cancelled."""
        if not self._schedules:
            await asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fire_forever(), name="job-schedules-fire")
            group.create_task(self._recover_forever(), name="job-schedules-recover")

    async def _fire_forever(self) -> None:
        known = False
        while True:
            wait_ns = LOOK_MAX_NS
            try:
                if not known:
                    await self.declare()
                    known = True
                next_ns = await self.fire_due()
                if next_ns is not None:
                    wait_ns = min(wait_ns, max(0, next_ns - self._clock.wall_ns()))
            except FairwayError as error:
                logger.warning("schedules could not be looked at: %s", error)
                wait_ns = SECOND_NS
            await sleep_ns(wait_ns)

    async def _recover_forever(self) -> None:
        while True:
            try:
                await self.recover()
                await self._timetable.forget(2 * self._recovery.age_max_ns)
            except FairwayError as error:
                logger.warning("lost firings could not be looked for: %s", error)
            await sleep_ns(self._recovery.interval_ns)

    @property
    def _clock(self) -> Clock:
        return self._given_clock or clock_of()

    async def declare(self) -> None:
        """Make the schedules known to the store."""
        for schedule in self._schedules.values():
            await self._timetable.put(schedule.name, str(schedule))

    async def fire_due(self) -> int | None:
        """Fire what is owed now; when the next time is."""
        soonest_ns = None
        for entry in await self._timetable.entries():
            schedule = self._schedules.get(entry.name)
            if schedule is None or entry.paused:
                continue
            now_ns = self._clock.wall_ns()
            owed = due(schedule.times, entry.handled_wall_ns, now_ns, schedule.catchup)
            if owed.handled_ns > entry.handled_wall_ns:
                mine = await self._timetable.record(entry.name, owed.fire, owed.handled_ns)
                for at_ns in mine:
                    await self._enqueue(schedule, at_ns)
            if owed.next_ns is not None:
                soonest_ns = min(soonest_ns or owed.next_ns, owed.next_ns)
        return soonest_ns

    async def recover(self) -> int:
        """Enqueue the jobs of firings that were recorded and not finished; how many."""
        recovery = self._recovery
        count = 0
        for firing in await self._timetable.lost(recovery.lost_after_ns, LOST_BATCH):
            schedule = self._schedules.get(firing.schedule)
            too_old = self._clock.wall_ns() - firing.at_wall_ns > recovery.age_max_ns
            if schedule is None or too_old or firing.tries > recovery.tries_max:
                continue
            logger.warning("schedule %s: a lost run is made up for", firing.schedule)
            await self._enqueue(schedule, firing.at_wall_ns)
            count += 1
        return count

    async def _enqueue(self, schedule: Schedule, at_ns: int) -> None:
        """The second phase. Its key makes it safe to do again, by anybody, for long enough."""
        job = structs.replace(
            schedule.job(at_ns),
            unique_key=f"schedule:{schedule.name}:{at_ns}",
            window_ns=2 * self._recovery.age_max_ns,
        )
        (added,) = await self._jobs.enqueue([job])
        await self._timetable.link(schedule.name, at_ns, added.id)


def times_of(cron: str | None, every_s: float | None, zone: str) -> Times:
    """When, as people write it."""
    if (cron is None) == (every_s is None):
        raise InvalidConfig("a schedule has a cron expression or an interval, and not both")
    if cron is not None:
        return Cron.parse(cron, zone)
    time_zone(f"every_s {brief(every_s)}", zone)
    if not isinstance(every_s, int | float) or not 0 < every_s <= EVERY_MAX_S:  # nan is neither
        raise InvalidConfig(f"every_s is a positive number of seconds, not {brief(every_s)}")
    return Every(round(every_s * SECOND_NS))


def scheduled_context(at_ns: int, context: Mapping[str, Any] | None) -> dict[str, Any]:
    """The context of a run that a schedule starts."""
    return {**(context or {}), "scheduled_at_ms": at_ns // 1_000_000}

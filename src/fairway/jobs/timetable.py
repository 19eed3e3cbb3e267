"""The contract of a timetable: schedules, and a record of every time each of them fired.

Firing is in two phases, so that no time is lost and none runs twice, whoever dies when. First the
times are recorded, each once: of several workers that look at the same schedule, one gets each
time. Then its job is enqueued under a unique key made of schedule and time, and linked. A recorded
time without a job is found again and its job enqueued again, which the key makes harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence


class Scheduled(Struct, frozen=True):
    """One schedule in the store."""

    name: str
    spec: str
    """What it says, for people to read."""
    paused: bool
    handled_wall_ns: int
    """All times up to here are dealt with."""


class ScheduleFiring(Struct, frozen=True):
    """One time a schedule fired."""

    schedule: str
    at_wall_ns: int
    job: int | None
    """The job that came of it; None if nobody got so far yet."""
    tries: int


class Timetable(Protocol):
    """Where schedules live. As a job store, every call is one transaction."""

    async def put(self, name: str, spec: str) -> Scheduled:
        """Make a schedule known, or change its spec. A new one owes nothing before now."""
        ...

    async def entries(self) -> list[Scheduled]: ...

    async def set_paused(self, name: str, paused: bool) -> bool:
        """False if there is no such schedule."""
        ...

    async def record(self, name: str, times: Sequence[int], handled_wall_ns: int) -> list[int]:
        """Note times to fire; those that nobody else had noted. `handled` never goes back."""
        ...

    async def link(self, name: str, at_wall_ns: int, job: int) -> None:
        """The job of a firing is enqueued."""
        ...

    async def lost(self, older_than_ns: int, limit: int) -> list[ScheduleFiring]:
        """Firings noted longer ago that have no job; each answer counts as a try."""
        ...

    async def firings(self, name: str, limit: int) -> list[ScheduleFiring]:
        """The latest firings of a schedule, newest first."""
        ...

    async def forget(self, older_than_ns: int) -> int:
        """Forget firings that were for times longer ago."""
        ...

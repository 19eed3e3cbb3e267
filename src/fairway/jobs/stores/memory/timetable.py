"""A timetable in the memory of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from fairway.jobs.timetable import Scheduled, ScheduleFiring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class MemoryTimetable:
    """A `Timetable` that ends with its process."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._entries: dict[str, Scheduled] = {}
        self._firings: dict[tuple[str, int], ScheduleFiring] = {}
        self._noted_ns: dict[tuple[str, int], int] = {}

    async def put(self, name: str, spec: str) -> Scheduled:
        known = self._entries.get(name) or Scheduled(name, spec, False, self._now_ns())
        self._entries[name] = structs.replace(known, spec=spec)
        return self._entries[name]

    async def entries(self) -> list[Scheduled]:
        return [entry for _, entry in sorted(self._entries.items())]

    async def set_paused(self, name: str, paused: bool) -> bool:
        if name in self._entries:
            self._entries[name] = structs.replace(self._entries[name], paused=paused)
        return name in self._entries

    async def record(self, name: str, times: Sequence[int], handled_wall_ns: int) -> list[int]:
        entry = self._entries[name]
        handled_ns = max(entry.handled_wall_ns, handled_wall_ns)
        self._entries[name] = structs.replace(entry, handled_wall_ns=handled_ns)
        fresh = [at for at in times if (name, at) not in self._firings]
        for at in fresh:
            self._firings[name, at] = ScheduleFiring(name, at, None, 0)
            self._noted_ns[name, at] = self._now_ns()
        return fresh

    async def link(self, name: str, at_wall_ns: int, job: int) -> None:
        if (firing := self._firings.get((name, at_wall_ns))) is not None:
            self._firings[name, at_wall_ns] = structs.replace(firing, job=job)

    async def lost(self, older_than_ns: int, limit: int) -> list[ScheduleFiring]:
        horizon_ns = self._now_ns() - older_than_ns
        found: list[ScheduleFiring] = []
        for key, firing in sorted(self._firings.items()):
            if firing.job is None and self._noted_ns[key] <= horizon_ns and len(found) < limit:
                self._firings[key] = structs.replace(firing, tries=firing.tries + 1)
                found.append(self._firings[key])
        return found

    async def firings(self, name: str, limit: int) -> list[ScheduleFiring]:
        found = [firing for (of, _), firing in sorted(self._firings.items()) if of == name]
        return found[::-1][:limit]

    async def forget(self, older_than_ns: int) -> int:
        horizon_ns = self._now_ns() - older_than_ns
        old = [key for key in self._firings if key[1] <= horizon_ns]
        for key in old:
            del self._firings[key], self._noted_ns[key]
        return len(old)

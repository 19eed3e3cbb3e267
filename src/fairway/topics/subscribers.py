"""Who reads a topic, and since when they wait for what is new in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.core.priority import Band

if TYPE_CHECKING:
    from fairway.topics.watching import SharedView, Watcher


class Subscribers:
    """The watchers, routers and waiting requests of one topic."""

    __slots__ = ("band", "by_view", "held_ns", "routers", "since_ns", "waiters")

    def __init__(self) -> None:
        self.by_view: dict[SharedView, list[Watcher]] = {}
        self.routers: list[Watcher] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.since_ns = 0
        """Since when they have waited for delivery; 0 if they do not."""
        self.band = Band.B0
        """Where the topic got in line then."""
        self.held_ns = 0
        """How long that band had been withheld by then."""

    def __len__(self) -> int:
        """How many watch it."""
        return sum(map(len, self.by_view.values()))

    def attach(self, watcher: Watcher, *, router: bool = False) -> None:
        if router:
            self.routers.append(watcher)
        else:
            self.by_view.setdefault(watcher.view, []).append(watcher)

    def detach(self, watcher: Watcher) -> None:
        if watcher in self.routers:
            self.routers.remove(watcher)
            return
        group = self.by_view[watcher.view]
        group.remove(watcher)
        if not group:
            del self.by_view[watcher.view]

    def wait(self) -> asyncio.Future[None]:
        """A future that the next records resolve. Whoever goes before that calls `leave`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        return waiter

    def leave(self, waiter: asyncio.Future[None]) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def wake(self) -> None:
        """Whoever waits for something new looks again."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def get_in_line(self, now_ns: int, band: Band, held_ns: int) -> None:
        """There are new records, and they wait for those from now on."""
        self.since_ns, self.band, self.held_ns = now_ns, band, held_ns

    def served(self) -> None:
        self.since_ns = 0

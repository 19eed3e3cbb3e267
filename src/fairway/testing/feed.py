"""A feed that a test controls: it brings, loses, restores and dies as the test says."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Final

from fairway.errors import FeedLost
from fairway.graphs.feed import Event
from fairway.runtime.clock import clock_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import FeedContext


class TestFeed:
    """A feed that a test controls: a broker of one stream, which keeps what it was given.

        feed = TestFeed()
        ticks = Source("ticks", Tick, feed=feed)

        feed.push(Tick(1))          # an event, read once and again only after a crash
        feed.lose("cable cut")      # disconnected, until ...
        feed.restore()
        feed.die(OSError("bug"))    # the source dies of it, and is restarted

    It outlives the app, as a broker does. With `keeps=False` its events cannot be read again.
    """

    __test__ = False  # for pytest: it is no test itself
    kind: Final = "stream"

    def __init__(self, stream: str = "feed", *, keeps: bool = True) -> None:
        self.stream = stream
        self.events: list[Any] = []
        """All that was ever pushed. The offset of the first is 1."""
        self.committed: Marks = {}
        """How far a graph says it has consumed for good."""
        self.opened_ns: list[int] = []
        """When it was connected to, or that was tried."""
        self._keeps = keeps
        self._lost: str | None = None
        self._reports = False
        self._deaths: list[Exception] = []
        self._connections: weakref.WeakSet[_TestConnection] = weakref.WeakSet()

    def push(self, *values: Any) -> None:
        """Bring events: values, or JSON as bytes."""
        self.events += values
        self._wake()

    def lose(self, why: str = "lost", *, reports: bool = False) -> None:
        """Be gone until `restore`. With `reports` the connection says so and mends itself."""
        self._lost = why
        self._reports = reports
        if reports:
            for connection in list(self._connections):
                connection.context.report(False, why)
        self._wake()

    def restore(self) -> None:
        """Be there again."""
        self._lost = None
        if self._reports:
            for connection in list(self._connections):
                connection.context.report(True)
        self._reports = False
        self._wake()

    def die(self, error: Exception, *, times: int = 1) -> None:
        """Let the source die of `error`, and so often again when it is restarted."""
        self._deaths += [error] * times
        self._wake()

    def open(self, context: FeedContext) -> _TestConnection:
        connection = _TestConnection(self, context)
        self._connections.add(connection)
        return connection

    def check(self) -> None:
        """Raise what a connection would find."""
        if self._deaths:
            raise self._deaths.pop(0)
        if self._lost is not None and not self._reports:
            raise FeedLost(self._lost)

    def after(self, offset: int) -> Sequence[Event]:
        """What comes after an offset."""
        if self._lost is not None:
            return ()
        found = enumerate(self.events[offset:], offset + 1)
        return [Event(value, self.stream, at if self._keeps else 0) for at, value in found]

    def _wake(self) -> None:
        for connection in list(self._connections):
            connection.changed.set()


class _TestConnection:
    def __init__(self, feed: TestFeed, context: FeedContext) -> None:
        self.context = context
        self.changed = asyncio.Event()
        self._feed = feed
        self._offset = 0

    async def connect(self, marks: Marks) -> None:
        feed = self._feed
        feed.opened_ns.append(clock_of().now_ns())
        feed.check()
        self._offset = marks.get(feed.stream, 0) if feed._keeps else len(feed.events)

    async def receive(self) -> Sequence[Event]:
        while True:
            self._feed.check()
            events = self._feed.after(self._offset)
            if events:
                self._offset += len(events)
                return events
            self.changed.clear()
            await self.changed.wait()

    async def commit(self, marks: Marks) -> None:
        self._feed.committed.update(marks)

    async def aclose(self) -> None:
        self._feed._connections.discard(self)

"""Reads the feed of one source, and commits to it what was consumed.

A lost feed is reached for again, for ever. What it brings is the accumulator's, which outlives the
task that reads: one that dies is begun again after what was received.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.errors import FairwayError, FeedLost, ReadOnly
from fairway.graphs.health import SourceState
from fairway.runtime.clock import sleep_ns
from fairway.runtime.usercode import as_exception, without_task
from fairway.runtime.words import is_a

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fairway.graphs.accumulator import Accumulator
    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import Connection, Feed, FeedContext, Report
    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.graphs")

RECONNECT: Final = BackoffConfig(
    base_ns=500_000_000, cap_ns=30_000_000_000, jitter=0.25, reset_after_ns=1_000_000_000
)
COMMIT_NS: Final = 200_000_000
"""How long a commit to a feed waits, so that what is consumed next goes with it."""

READ_ONLY_NS: Final = 250_000_000
"""How often a feed looks whether its graph may write again."""


class FeedReader:
    """What reads one feed while its graph runs."""

    def __init__(
        self,
        feed: Feed,
        accumulator: Accumulator,
        clock: Clock,
        random: Random,
        *,
        check_writable: Callable[[], None] | None = None,
    ) -> None:
        """`check_writable` raises `ReadOnly` while nothing may be taken in."""
        self._check_writable = check_writable
        self._feed = feed
        self._accumulator = accumulator
        self._health = accumulator.health
        self._clock = clock
        self._random = random
        self._consumed: Marks = {}  # how far it is consumed, and not yet committed
        self._commits = asyncio.Event()
        self._reading: asyncio.Timeout | None = None  # ends what reads, and nothing else
        self._stopped = False
        self._lost: FeedLost | None = None

    def consumed(self, marks: Marks) -> None:
        """So far is consumed for good: it is committed to the feed, soon."""
        self._consumed.update(marks)
        self._commits.set()

    def stop_reading(self) -> None:
        """Read no more. The feed stays open: what is still consumed is committed to it."""
        self._stopped = True
        self._interrupt()

    async def run(self, context: FeedContext, healthy: Callable[[bool], None]) -> None:
        """Read until cancelled."""
        backoff = Backoff(RECONNECT, self._random)
        while True:
            self._health.move(SourceState.CONNECTING)
            report = _Report(context.report)
            connection = self._feed.open(context._replace(report=report))
            try:
                for event in await connection.connect(dict(self._accumulator.marks)) or ():
                    # Before it is live: what waits for it fires with it.
                    without_task(self._accumulator.event, event)
                self._health.move(SourceState.LIVE)
                healthy(True)
                backoff.recovered(self._clock.now_ns())
                why = str(await self._use(connection))
            except FeedLost as lost:
                why = str(lost)
                if backoff.failures(self._clock.now_ns()) == 0:  # once, until it is back
                    logger.warning(
                        "graph %s, source %s: lost, trying again: %s",
                        context.graph,
                        context.source,
                        why,
                    )
            finally:
                report.over = True
                with suppress(FairwayError):  # it may be gone: then it is committed next time
                    await self._commit_consumed(connection)
                await connection.aclose()
            healthy(False)
            self._health.move(SourceState.DISCONNECTED, why)
            await sleep_ns(backoff.failed(self._clock.now_ns()) or 0)

    async def _use(self, connection: Connection) -> FeedLost | None:
        """Read and commit until the other side is lost; how it was.

        That is not raised through the group: one that is cancelled while it ends by an error
        raises the error only (until Python 3.13), and a source that was to stop would go on.
        """
        self._lost = None
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(self._commit(connection))
            try:
                await self._read(connection)
                await committing
            except FeedLost as lost:
                self._lost = lost
            finally:
                committing.cancel()
        return self._lost

    async def _read(self, connection: Connection) -> None:
        """Take in what comes, until `stop_reading`."""
        accumulator = self._accumulator
        try:
            async with asyncio.timeout(None) as self._reading:
                while not self._stopped:
                    for event in await connection.receive():
                        if not accumulator.room():
                            # A feed can wait: nothing is refused, it is read later.
                            await accumulator.wait_room()
                        if self._check_writable is not None:
                            await self._wait_writable(self._check_writable)
                        without_task(accumulator.event, event)
        except TimeoutError:
            if not self._stopped and self._lost is None:
                raise  # the feed's own
        finally:
            self._reading = None

    async def _wait_writable(self, check: Callable[[], None]) -> None:
        while True:
            try:
                check()
                return
            except ReadOnly:  # a feed can wait
                await sleep_ns(READ_ONLY_NS)

    async def _commit(self, connection: Connection) -> None:
        while True:
            await self._commits.wait()
            await sleep_ns(COMMIT_NS)
            self._commits.clear()
            try:
                await self._commit_consumed(connection)
            except FeedLost as lost:
                self._lost = lost
                self._interrupt()
                return

    async def _commit_consumed(self, connection: Connection) -> None:
        marks = {stream: at for stream, at in self._consumed.items() if stream[:1] != "~"}
        self._consumed = {}
        if marks:
            try:
                await connection.commit(marks)
            except BaseException as error:
                self._consumed = {**marks, **self._consumed}
                self._commits.set()
                if is_a(error, asyncio.CancelledError):
                    raise
                raise as_exception(error) from error.__cause__

    def _interrupt(self) -> None:
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0)


class _Report:
    """What a connection says of itself, until it is closed: what a thread of it says later is old
    news, and would be taken for that of the next one."""

    def __init__(self, report: Report) -> None:
        self.over = False
        self._report = report

    def __call__(self, connected: bool, why: str = "") -> None:
        if not self.over:
            self._report(connected, why)

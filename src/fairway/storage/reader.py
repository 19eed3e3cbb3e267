"""The fair reader: synchronous reads of the store, in turns over partitions, FIFO inside each.

The same machine as the writer's with another service round it: a turn is up to `max_batch` reads
of one partition, made one after the other in one thread. A read that was submitted after a write
completed sees it, since it is made later than the commit.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fairway.core.groups import Groups
from fairway.core.lanes import LaneLimits
from fairway.errors import Closing, FairwayError, InvalidConfig
from fairway.runtime.clock import SYSTEM_CLOCK, Clock
from fairway.runtime.completion import fail, settle
from fairway.runtime.turn import TURN
from fairway.storage.group_service import GroupService
from fairway.storage.statistics import ReaderStatistics, ReaderTelemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.core.lanes import Drained
    from fairway.runtime.blocking import BlockingPool
    from fairway.runtime.completion import OnDone
    from fairway.runtime.telemetry import Telemetry
    from fairway.runtime.turn import TurnBudget

T = TypeVar("T")

READ_SIZE = 256
"""What a waiting read counts against byte limits: the call itself, not its result."""


READ_LANE = LaneLimits(items=4096, size=4096 * READ_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """How the reader bounds and groups."""

    max_batch: int = 64
    """Reads of one partition in a turn: how long a hot one may hold a thread."""
    lane: LaneLimits = READ_LANE
    """Bounds of one partition's lane, in flight included."""
    total: LaneLimits | None = None
    """Bounds over all lanes. None means only the lanes are bounded."""
    workers: int = 2
    """Turns under way at once. More help only where the store reads in parallel."""

    def __post_init__(self) -> None:
        if min(self.max_batch, self.workers) < 1:
            raise InvalidConfig("a turn has at least one read and there is at least one worker")


class _Read:
    __slots__ = ("accepted_ns", "call", "future")

    def __init__(
        self, call: Callable[[], Any], future: asyncio.Future[Any], accepted_ns: int
    ) -> None:
        self.call = call
        self.future = future  # its caller awaits it, and cancels it to withdraw the read
        self.accepted_ns = accepted_ns


class FairReader:
    """Makes synchronous reads in fair turns. Everything here runs on one event loop."""

    def __init__(
        self,
        pool: BlockingPool,
        *,
        config: ReaderConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        telemetry: Telemetry | None = None,
        turn: TurnBudget = TURN,
    ) -> None:
        self.config = config or ReaderConfig()
        self._pool = pool
        self._clock = clock
        self._create_future = asyncio.get_running_loop().create_future
        groups: Groups[int, _Read] = Groups(self.config.lane, total=self.config.total)
        self._stopped = False
        self._telemetry = ReaderTelemetry(telemetry, groups)
        self._service = GroupService(
            "reader",
            groups,
            self,
            pool,
            workers=self.config.workers,
            clock=clock,
            refused=self._telemetry.refused,
            turn=turn,
        )

    def submit(self, partition: int, call: Callable[[], T]) -> asyncio.Future[T]:
        """Accept a read and return a future of its result, or of its error.

        Raises `Backpressure` or `Closing` at once; then nothing was accepted. Reads of one
        partition are made, and resolve, in the order of submission. A read whose caller has gone
        before its turn is not made.
        """
        future: asyncio.Future[T] = self._create_future()
        now_ns = self._clock.now_ns()
        self._service.offer(partition, _Read(call, future, now_ns), READ_SIZE, now_ns)
        return future

    async def run(self) -> None:
        """Serve until cancelled (a service of `runtime`)."""
        await self._service.run()

    async def drain(self) -> None:
        """Stop admitting; return when every accepted read was made."""
        await self._service.drain()

    def statistics(self) -> ReaderStatistics:
        """A frozen snapshot."""
        return self._telemetry.statistics(self._service)

    # What the group service asks of its owner.

    def hurries(self) -> bool:
        return False

    def gathers(self) -> bool:
        return False

    def take(self, groups: Groups[int, _Read]) -> list[Drained[int, _Read]]:
        config = self.config
        return groups.take(keys=1, items=config.max_batch, size=config.lane.size)

    def serve(self, group: list[Drained[int, _Read]], on_done: OnDone[bool]) -> None:
        (part,) = group
        reads = [read for read in part.items if not read.future.done()]
        made = partial(self._made, part, reads, self._clock.now_ns(), on_done)
        try:
            self._pool.submit(made, _make, [read.call for read in reads])
        except FairwayError as error:  # the pool takes nothing more
            made(None, error)

    def _made(
        self,
        part: Drained[int, _Read],
        reads: list[_Read],
        started_ns: int,
        on_done: OnDone[bool],
        results: list[tuple[Any, Exception | None]] | None,
        error: BaseException | None,
    ) -> None:
        if self._stopped:
            return  # they were notified
        if error is not None and not isinstance(error, Exception):
            on_done(None, error)
            return
        if results is None:
            results = [(None, error)] * len(reads)
        else:
            self._telemetry.made(part, started_ns, self._clock.now_ns())
        for read, (result, failed) in zip(reads, results, strict=True):
            settle(read.future, result, failed)
        on_done(False, None)

    def interrupt(self, group: list[Drained[int, _Read]]) -> None:
        self._stopped = True
        for part in group:
            for read in part.items:
                fail(read.future, Closing("the log was closed during this read"))

    def abandon(self, item: _Read) -> None:
        fail(item.future, Closing("the log was closed before this read"))


def _make(calls: list[Callable[[], Any]]) -> list[tuple[Any, Exception | None]]:
    """Make the reads of one turn; a failing one fails alone."""
    results: list[tuple[Any, Exception | None]] = []
    for call in calls:
        try:
            results.append((call(), None))
        except Exception as error:  # it is the outcome of this read, not of its neighbours
            results.append((None, error))
    return results

"""The shell round `core.groups`: takes groups, has them served and settles them.

Knows admission, lingering, draining and what happens to accepted items when the service ends early.
What an item is and how a group is served is up to its owner, the writer or reader. All of it is
callbacks on the loop, no tasks: each hand-over to a task would cost a turn of a busy loop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fairway.errors import Backpressure, Closing
from fairway.runtime.turn import TURN

if TYPE_CHECKING:
    from fairway.core.groups import Groups
    from fairway.core.lanes import Drained
    from fairway.runtime.blocking import BlockingPool
    from fairway.runtime.clock import Clock
    from fairway.runtime.completion import OnDone
    from fairway.runtime.telemetry import Counter
    from fairway.runtime.turn import TurnBudget

T = TypeVar("T")


class GroupOwner(Protocol[T]):
    """What the owner of the items does with them. Nothing here may raise for a failing store."""

    def hurries(self) -> bool:
        """Whether something waits that is not to linger."""
        ...

    def gathers(self) -> bool:
        """Whether company is on its way in the loop's turns to come. Not for ever."""
        ...

    def take(self, groups: Groups[int, T]) -> list[Drained[int, T]]:
        """Take the next group, with the owner's limits."""
        ...

    def serve(self, group: list[Drained[int, T]], on_done: OnDone[bool]) -> None:
        """Begin the group's work; at its end notify its callers and call `on_done`.

        Its result says whether the next group is taken within the call, or a turn later. An error
        is no failure of a store: it ends the service, which interrupts the group. It may be called
        before this returns.
        """
        ...

    def interrupt(self, group: list[Drained[int, T]]) -> None:
        """The service ends while the group is being served: notify its callers."""
        ...

    def abandon(self, item: T) -> None:
        """The service ended before the item was served: notify its caller."""
        ...


class GroupService(Generic[T]):
    """Admits items into lanes and serves them in fair groups, a few at once, on one event loop.

    Admission, taking and settling happen on the loop and never overlap, so an item offered while
    the service stops is either refused or completed; there is no third case.
    """

    def __init__(
        self,
        name: str,
        groups: Groups[int, T],
        owner: GroupOwner[T],
        pool: BlockingPool,
        *,
        workers: int,
        clock: Clock,
        refused: Counter,
        linger_ns: int = 0,
        turn: TurnBudget = TURN,
    ) -> None:
        """`workers` is how many groups may be served at once, in threads of `pool`."""
        self.name = name
        self.groups = groups
        self.linger_ns = linger_ns
        self.refused = refused
        self._owner = owner
        self._pool = pool
        self._offered = 0  # while a group is under way
        self._offers_per_pause = turn.offers_per_pause
        self._pause_ns = 0  # when the loop is to pause for the threads of the pool
        self._workers = workers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._under_way: list[list[Drained[int, T]]] = []
        self._next: asyncio.Handle | None = None  # when the next group is to be taken
        self._lingering = False  # it is taken later than it could be
        self._busy = False  # a group will be taken, or as many as may be are under way
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._drained = asyncio.Event()
        self._running = False
        self._closing = False

    def offer(
        self, partition: int, item: T, size: int, now_ns: int, finishing: bool = False
    ) -> None:
        """Accept `item`, or raise `Backpressure` or `Closing` with nothing accepted."""
        if self._closing:
            raise Closing(f"{self.name} is closing")
        refusal = self.groups.offer(partition, item, size, now_ns, finishing)
        if refusal is not None:
            self.refused.add()
            raise Backpressure(
                f"{self.name}/{partition}",
                depth=refusal.depth,
                limit=refusal.limit,
                retry_after_ns=refusal.retry_after_ns,
            )
        if not self._busy:
            self._schedule()
            return
        self._offered += 1
        if self._offered >= self._offers_per_pause and now_ns >= self._pause_ns:
            self._offered = 0
            self._pause_ns = self._pool.yield_to_threads(now_ns)

    def hurry(self) -> None:
        """Do not wait for company any longer: something urgent was accepted."""
        if self._lingering and self._next is not None:
            self._next.cancel()
            self._lingering = False
            self._next = self._loop.call_soon(self._take)

    def go_on(self) -> None:
        """Take now what would be taken later, unless as many groups as may be are under way."""
        if self._next is not None and self._running:
            self._take()

    def under_way(self) -> tuple[tuple[int, ...], ...]:
        """The partitions of each group that is being served."""
        return tuple(tuple(drained.key for drained in group) for group in self._under_way)

    async def run(self) -> None:
        """Serve until cancelled. Whatever is still accepted then is abandoned, callers notified."""
        self._running = True
        self._schedule()
        try:
            await self._ended  # only by a fault of ours
        finally:
            self._closing = True
            self._running = False
            if self._next is not None:
                self._next.cancel()
            for group in list(self._under_way):
                self._owner.interrupt(group)
                self._settle(group)
            self._abandon_waiting()
            self._drained.set()

    async def drain(self) -> None:
        """Stop admitting and wait until everything accepted is settled, whatever the backlog."""
        self._closing = True
        # Nothing is admitted from here on, so the depth can only fall: it is zero once, for good.
        if self.groups.depth:
            self.hurry()  # nobody else will come
            self._schedule()
            await self._drained.wait()

    def _schedule(self) -> None:
        """Take the next group in the next turn, with what others offer in this one."""
        if self._running and len(self._under_way) < self._workers and self._next is None:
            self._busy = True
            patient = not (self._closing or self._owner.hurries())
            self._lingering = bool(self.linger_ns) and patient
            if self._lingering:
                self._next = self._loop.call_later(self.linger_ns / 1e9, self._take)
            else:
                self._next = self._loop.call_soon(self._take_in_company)

    def _take_in_company(self) -> None:
        if self._owner.gathers() and not self._closing:
            self._next = self._loop.call_soon(self._take_in_company)
        else:
            self._take()

    def _take(self) -> None:
        if self._next is not None:
            self._next.cancel()  # of no effect if it is what calls
            self._next = None
        self._offered = 0
        try:
            while len(self._under_way) < self._workers and (group := self._owner.take(self.groups)):
                self._under_way.append(group)
                self._owner.serve(group, partial(self._served, group))
        except Exception as error:
            self.crash(error)
        self._busy = len(self._under_way) >= self._workers

    def crash(self, error: BaseException) -> None:
        """End the service: `run` raises this. For what is no failure of a store."""
        if not self._ended.done():
            self._ended.set_exception(error)

    def _served(
        self, group: list[Drained[int, T]], at_once: bool | None, error: BaseException | None
    ) -> None:
        if error is not None:
            self.crash(error)
            return
        self._settle(group)
        if self.groups.waiting_keys and self._running:
            if at_once:
                self._take()
            else:
                self._schedule()  # a turn's company makes fewer and larger groups

    def _settle(self, group: list[Drained[int, T]]) -> None:
        self._under_way.remove(group)
        self._busy = self._next is not None
        now_ns = self._clock.now_ns()
        for drained in group:
            self.groups.settle(drained, now_ns)
        if self._closing and not self.groups.depth:
            self._drained.set()

    def _abandon_waiting(self) -> None:
        while group := self._owner.take(self.groups):
            self._under_way.append(group)
            for drained in group:
                for item in drained.items:
                    self._owner.abandon(item)
            self._settle(group)

"""The shell round `core.groups`: workers that take groups, serve them and settle them.

Knows admission, waking, lingering, draining and what happens to accepted items when the service
ends early. What an item is and how a group is served is told by its owner, the writer or reader.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from fairway.errors import Backpressure, Closing
from fairway.runtime.clock import Clock, sleep_ns

if TYPE_CHECKING:
    from fairway.core.groups import Groups
    from fairway.core.lanes import Drained
    from fairway.runtime.telemetry import Counter

T = TypeVar("T")


class GroupOwner(Protocol[T]):
    """What the owner of the items does with them."""

    def take(self, groups: Groups[int, T]) -> list[Drained[int, T]]:
        """Take the next group, with the owner's limits."""
        ...

    async def serve(self, group: list[Drained[int, T]]) -> None:
        """Do the group's work and resolve its callers. Must not raise for a failing store."""
        ...

    def abandon(self, item: T) -> None:
        """The service ended before the item was served: tell its caller."""
        ...


class GroupService(Generic[T]):
    """Admits items into lanes and serves them in fair groups, by a few workers on one event loop.

    Admission, taking and settling happen on the loop and never overlap, so an item offered while
    the service stops is either refused or completed; there is no third case.
    """

    def __init__(
        self,
        name: str,
        groups: Groups[int, T],
        owner: GroupOwner[T],
        *,
        workers: int,
        clock: Clock,
        refused: Counter,
        linger_ns: int = 0,
    ) -> None:
        self.name = name
        self.groups = groups
        self.linger_ns = linger_ns
        self.refused = refused
        self._owner = owner
        self._workers = workers
        self._clock = clock
        self._awake = asyncio.Event()
        self._drained = asyncio.Event()
        self._busy = False  # the same as `_awake`, without the call
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
            self._busy = True
            self._awake.set()

    async def run(self) -> None:
        """Serve until cancelled. Whatever is still accepted then is abandoned, callers told."""
        try:
            async with asyncio.TaskGroup() as workers:
                for number in range(self._workers):
                    workers.create_task(self._work(), name=f"{self.name}-{number}")
        finally:
            self._closing = True
            self._abandon_waiting()
            self._drained.set()

    async def drain(self) -> None:
        """Stop admitting and wait until everything accepted is settled, whatever the backlog."""
        self._closing = True
        # Nothing is admitted from here on, so the depth can only fall: it is zero once, for good.
        if self.groups.depth:
            await self._drained.wait()

    async def _work(self) -> None:
        while True:
            await self._awake.wait()
            if self.linger_ns and not self._closing:
                await sleep_ns(self.linger_ns)
            group = self._owner.take(self.groups)
            if not group:
                # Nothing waits; what others hold comes back through `_settle`, which wakes us.
                self._busy = False
                self._awake.clear()
                continue
            try:
                await self._owner.serve(group)
            finally:
                self._settle(group)

    def _settle(self, group: list[Drained[int, T]]) -> None:
        now_ns = self._clock.now_ns()
        for drained in group:
            self.groups.settle(drained, now_ns)
        if self._closing and not self.groups.depth:
            self._drained.set()
        elif self.groups.waiting_keys:
            self._busy = True
            self._awake.set()

    def _abandon_waiting(self) -> None:
        while group := self._owner.take(self.groups):
            for drained in group:
                for item in drained.items:
                    self._owner.abandon(item)
            self._settle(group)

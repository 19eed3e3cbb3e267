"""One lifecycle for everything that has services: open, stop admitting, drain, close.

Log, kernel, topics, jobs, graphs and their like live the same way. Entering opens them and starts
their services. Leaving takes four steps in an order that keeps every promise: refuse what is new,
finish what was accepted while the services still run, end the services, let go of resources. Those
who stand on each other are entered one in the other, so each is there until whoever stands on it
has finished.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType
    from typing import Self


class Lifecycle:
    """Base of what is entered once and left once. Subclasses fill in the steps that they have.

    A service that fails cancels whoever entered this, as in a `TaskGroup`, and its error leaves
    when this is left. Each step of leaving happens whatever the one before it raised.
    """

    _tasks: set[asyncio.Task[None]]
    _group: asyncio.TaskGroup
    cut_short: bool = False
    """It is left because of an error or a cancellation, not because its work is done."""

    async def open(self) -> None:
        """Take what is needed, and `spawn` the services."""

    def stop_admitting(self) -> None:
        """Refuse what is new. Safe to call twice."""

    async def drain(self) -> None:
        """Finish what was accepted. The services still run."""

    async def aclose(self) -> None:
        """Let go of what `open` took, also if that failed half-way. The services have ended."""

    def spawn(self, service: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a service, or a chore that ends by itself, until this is left."""
        task = self._group.create_task(service, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Self:
        self._tasks = set()
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        try:
            await self.open()
        except BaseException:
            try:
                await self._leave()
            except BaseExceptionGroup as failures:
                if len(failures.exceptions) == 1:  # a service could not begin: that is the reason
                    raise failures.exceptions[0] from None
                raise
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cut_short = kind is not None
        try:
            try:
                self.stop_admitting()
            finally:
                await self.drain()
        finally:
            await self._leave()

    async def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            await self.aclose()

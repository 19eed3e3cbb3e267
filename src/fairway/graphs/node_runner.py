"""Runs the nodes that must not run on the loop: in threads, and in warm processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fairway.runtime.blocking import BlockingPool
from fairway.runtime.processes import Processes
from fairway.runtime.targets import Target, found_at, target_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

THREADS: Final = 8
PROCESSES: Final = 2


class NodeRunner:
    """Threads and processes, made when the first node needs one."""

    def __init__(self, *, threads: int = THREADS, processes: int = PROCESSES) -> None:
        self._threads = threads
        self._processes = processes
        self._pool: BlockingPool | None = None
        self._warm: Processes | None = None

    async def in_thread(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Call it in a thread. A caller that is cancelled leaves the call to end by itself."""
        return await self.pool.run(_call, function, given)

    async def in_process(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Call it in a process. A caller that is cancelled kills the process."""
        if self._warm is None:
            self._warm = Processes(self._processes)
        target = target_of(function, f"node {function.__name__!r}")
        return await self._warm.run(_call_there, target, dict(given))

    @property
    def pool(self) -> BlockingPool:
        if self._pool is None:
            self._pool = BlockingPool(self._threads, name="graphs")
        return self._pool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._warm is not None:
            await self._warm.aclose()
        if self._pool is not None:
            await self._pool.aclose(abandon=True)


def _call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    return function(**given)


def _call_there(target: Target, given: Mapping[str, Any]) -> Any:
    return found_at(target)(**given)

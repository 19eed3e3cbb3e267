"""Lets one child of a graph crash at a chosen await: its reactor, or what reads one of its feeds.

Each child is a task. Its coroutine is driven through `Crashes`, which counts how often it is woken
and throws into it when its time has come; what the graph does about that is its own. A firing that
waits has a task of its own, and is woken in the reactor's name.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fairway.graphs.reactor import Reactor
from fairway.graphs.running import FeedService
from fairway.runtime.eager import EagerTask
from fairway.runtime.supervision import run_caught

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

REACTOR: Final = "reactor"


class InjectedCrash(Exception):
    """What a child of a graph dies of when a test wants it to."""


class _Thrown(BaseException):
    """What is thrown into a reactor."""


@dataclass(slots=True)
class _Child:
    steps_left: int | None = None
    """How often it is woken until it crashes, if it is to."""
    now: bool = False
    """It was cancelled for the sake of a crash."""
    task: asyncio.Task[Any] | None = None
    coroutine: Any = None


class Crashes:
    """The children of all graphs on one loop, and which of them are to crash."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        """Those that crashed: (graph, child)."""
        self._children: dict[tuple[str, str], _Child] = {}

    def plan(self, graph: str, child: str, at: int) -> None:
        """Let it crash the `at`-th time from now that it is woken; 0 is at once."""
        found = self._children.setdefault((graph, child), _Child())
        if at:
            found.steps_left = at
            return
        if found.task is None or not self.runs(graph, child):
            raise ValueError(f"{child!r} of graph {graph!r} does not run just now")
        found.now = True
        found.task.cancel()

    def runs(self, graph: str, child: str) -> bool:
        """Whether it is at work: it could crash at once."""
        found = self._children.get((graph, child))
        if found is None or found.task is None or found.task.done():
            return False
        return inspect.getcoroutinestate(found.coroutine) != inspect.CORO_CREATED

    def watched(self, coroutine: Any) -> tuple[Any, _Child | None]:
        """What a task is made of instead of `coroutine`, and the child it is, if it is one."""
        name = _child_of(coroutine)
        if name is None:
            return coroutine, None
        child = self._children.setdefault(name, _Child())
        if coroutine.cr_code is EagerTask._go_on.__code__:
            return self._driven_firing(child, coroutine), None
        child.coroutine = coroutine
        return self._driven(name, child, coroutine), child

    async def _driven_firing(self, child: _Child, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await self._stepped_firing(child, coroutine)

    @types.coroutine
    def _stepped_firing(self, child: _Child, coroutine: Any) -> Generator[Any, Any, Any]:
        eager: EagerTask = coroutine.cr_frame.f_locals["self"]
        thrown: BaseException | None = None
        fires = True  # the reactor waits for the task to begin, and for what is fired in it
        while True:
            try:
                step = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
            except StopIteration as end:
                return end.value
            thrown = None
            fired, fires = fires, step is not eager.parked
            if fired and not fires and child.steps_left is not None:
                child.steps_left += 1  # the reactor is woken by the end of it, and nobody else was
            try:
                yield step
                if fires and _is_due(child, None):
                    # The reactor dies at this await; what becomes of the node is up to it.
                    assert child.task is not None
                    child.now = True
                    child.task.cancel()
                    yield from asyncio.get_running_loop().create_future()
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                thrown = error

    async def _driven(
        self, name: tuple[str, str], child: _Child, coroutine: Coroutine[Any, Any, Any]
    ) -> Any:
        return await self._stepped(name, child, coroutine)

    @types.coroutine
    def _stepped(
        self, name: tuple[str, str], child: _Child, coroutine: Any
    ) -> Generator[Any, Any, Any]:
        thrown: BaseException | None = None
        passes = begun = False
        while True:
            if begun and _is_due(child, thrown):
                self.done.append(name)
                # What comes of it in a reactor is turned into a crash on the way out.
                passes = name[1] == REACTOR
                thrown = _Thrown() if passes else InjectedCrash("/".join(name))
            try:
                step = coroutine.send(None) if thrown is None else coroutine.throw(thrown)
            except StopIteration as end:
                return end.value
            except (asyncio.CancelledError, _Thrown, BaseExceptionGroup):
                if passes:
                    raise InjectedCrash("/".join(name)) from None
                raise
            thrown = None
            begun = True
            try:
                yield step
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                thrown = error


def _is_due(child: _Child, thrown: BaseException | None) -> bool:
    if child.now and isinstance(thrown, asyncio.CancelledError):
        child.now = False
        assert child.task is not None
        child.task.uncancel()
        return True
    if child.steps_left is None or thrown is not None:
        return False
    child.steps_left -= 1
    if child.steps_left:
        return False
    child.steps_left = None
    return True


def _child_of(coroutine: Any) -> tuple[str, str] | None:
    """Which child of which graph a new task is, if it is one."""
    code = getattr(coroutine, "cr_code", None)
    if code is Reactor.run.__code__:
        return coroutine.cr_frame.f_locals["self"]._graph.name, REACTOR
    if code is EagerTask._go_on.__code__:
        graph = coroutine.cr_frame.f_locals["self"].name
        return (graph, REACTOR) if graph is not None else None
    if code is run_caught.__code__:
        service = coroutine.cr_frame.f_locals["service"]
        if isinstance(service, FeedService):
            return service.context.graph, service.context.source
    return None

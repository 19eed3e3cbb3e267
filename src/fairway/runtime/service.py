"""Services that run beside other work, and how a process is asked to stop.

A service is an object with `async def run(self)` that lasts until it is cancelled. What owns
services and ends them in order is a `Lifecycle`.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator


class Service(Protocol):
    """Something that runs until it is cancelled."""

    async def run(self) -> None: ...


class StopSwitch:
    """How a process is asked to stop: asked once, it drains; asked again, it ends at once."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._forced = asyncio.Event()

    def request_stop(self) -> None:
        """Ask for a stop, or, if one is under way, for its immediate end."""
        if self._requested.is_set():
            self._forced.set()
        self._requested.set()

    @property
    def requested(self) -> bool:
        return self._requested.is_set()

    @property
    def forced(self) -> bool:
        return self._forced.is_set()

    async def wait_requested(self) -> None:
        await self._requested.wait()

    async def wait_forced(self) -> None:
        await self._forced.wait()


@asynccontextmanager
async def running(*services: Service) -> AsyncIterator[None]:
    """Run services beside what is done inside, and cancel them at its end.

    What is raised inside leaves as it is; only a service that fails leaves in a group.
    """
    raised: BaseException | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(service.run(), name=service_name(service)) for service in services
        ]
        try:
            yield
        except BaseException as error:
            raised = error
        for task in tasks:
            task.cancel()
    if raised is not None:
        raise raised


def service_name(service: Service) -> str:
    """What people call it: its `name` if it has one, else its class."""
    return str(getattr(service, "name", type(service).__name__))


@contextmanager
def stop_on_signals(
    stop: StopSwitch, signals: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
) -> Iterator[None]:
    """Request the stop at each of these signals: the first one drains, the second ends at once.

    After the second the signals have their usual effect again, so a third one ends a process that
    does not. Enter it on the main thread, with the loop running.
    """
    loop = asyncio.get_running_loop()
    wired = list(signals)

    def unwire() -> None:
        while wired:
            loop.remove_signal_handler(wired.pop())

    def request_stop() -> None:
        stop.request_stop()
        if stop.forced:
            unwire()

    for number in wired:
        loop.add_signal_handler(number, request_stop)
    try:
        yield
    finally:
        unwire()

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
    """How a process is asked to end: pressed once it drains, pressed again it ends at once."""

    def __init__(self) -> None:
        self._pressed = asyncio.Event()
        self._insisted = asyncio.Event()

    def press(self) -> None:
        """Ask for the stop, or, if one is under way, for its immediate end."""
        if self._pressed.is_set():
            self._insisted.set()
        self._pressed.set()

    @property
    def pressed(self) -> bool:
        return self._pressed.is_set()

    @property
    def insisted(self) -> bool:
        return self._insisted.is_set()

    async def wait_pressed(self) -> None:
        await self._pressed.wait()

    async def wait_insisted(self) -> None:
        await self._insisted.wait()


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
    """Press `stop` at each of these signals: the first one drains, the second ends at once.

    After the second the signals have their usual effect again, so a third one ends a process that
    does not. Enter it on the main thread, with the loop running.
    """
    loop = asyncio.get_running_loop()
    wired = list(signals)

    def unwire() -> None:
        while wired:
            loop.remove_signal_handler(wired.pop())

    def press() -> None:
        stop.press()
        if stop.insisted:
            unwire()

    for number in wired:
        loop.add_signal_handler(number, press)
    try:
        yield
    finally:
        unwire()

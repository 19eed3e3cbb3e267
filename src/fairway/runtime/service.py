"""Runs services together and ends them in order.

A service is an object with `async def run(self)` that lasts until it is cancelled. It may have
`drain` (stop admitting, then finish what was accepted; `run` is still running) and `aclose` (let
go of resources; `run` has ended). A stop takes the services in reverse order of start, and for
each one, before touching the next: drain, cancel `run` and await its end, aclose. So what admits
work is listed last and stops first, and what it depends on is there until it has finished.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator


class Service(Protocol):
    """Something that runs until it is cancelled. `drain` and `aclose` are optional."""

    async def run(self) -> None: ...


class StopSwitch:
    """How services are asked to end: pressed once they drain, pressed again they end at once."""

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


@dataclass(slots=True, eq=False)
class _Member:
    service: Service
    name: str
    task: asyncio.Task[None] | None = None
    failed: bool = False


async def serve(*services: Service, stop: StopSwitch) -> None:
    """Run every service until `stop` is pressed or one of them fails; then end them in order.

    A service fails by raising, or by returning before it was asked to. Its failure presses `stop`:
    the others are still drained and closed, the failed one is only closed. All errors, those from
    draining and closing included, leave in one ExceptionGroup when everything has ended.

    At the second press, or if `serve` itself is cancelled, every `run` and `drain` is cancelled at
    once and nothing more is closed: like a crash, it loses nothing that was acknowledged.
    """
    failures: list[Exception] = []
    members = [_Member(service, service_name(service)) for service in services]
    async with asyncio.TaskGroup() as group:
        for member in members:
            member.task = group.create_task(_run(member, stop, failures), name=member.name)
        await stop.wait_pressed()
        ordered = group.create_task(_end_in_order(members, failures), name="end-in-order")
        insisted = group.create_task(stop.wait_insisted(), name="insisted")
        await asyncio.wait({ordered, insisted}, return_when=asyncio.FIRST_COMPLETED)
        for task in (ordered, insisted, *(member.task for member in members)):
            assert task is not None
            task.cancel()
    if failures:
        raise ExceptionGroup("services failed", failures)


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


async def _run(member: _Member, stop: StopSwitch, failures: list[Exception]) -> None:
    try:
        await member.service.run()
        if not stop.pressed:
            raise RuntimeError(f"service {member.name} ended although nobody stopped it")
    except Exception as error:
        error.add_note(f"in service {member.name}")
        failures.append(error)
        member.failed = True
        if not stop.pressed:
            stop.press()


async def _end_in_order(members: list[_Member], failures: list[Exception]) -> None:
    for member in reversed(members):
        assert member.task is not None
        await _drain(member, failures)
        member.task.cancel()
        await asyncio.wait({member.task})
        await _attempt(member, "aclose", failures)


async def _drain(member: _Member, failures: list[Exception]) -> None:
    """Drain, but not for longer than there is somebody to do the work."""
    assert member.task is not None
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(_attempt(member, "drain", failures))
        await asyncio.wait({drain, member.task}, return_when=asyncio.FIRST_COMPLETED)
        if member.failed:
            drain.cancel()


async def _attempt(member: _Member, step: str, failures: list[Exception]) -> None:
    method: Callable[[], Awaitable[None]] | None = getattr(member.service, step, None)
    if method is None or (step == "drain" and member.failed):
        return
    try:
        await method()
    except Exception as error:
        error.add_note(f"in {step} of service {member.name}")
        failures.append(error)


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

"""Keeps one service running: restarts it after failures, and knows when to give up.

How long to wait and when to stop trying is `core.backoff`'s decision. What is restarted is made
anew each time, because a service that failed may have left its state half-changed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from fairway.core.backoff import Backoff, BackoffConfig, RandomSource
from fairway.errors import GaveUp, Stop
from fairway.runtime.clock import Clock, clock_of, sleep_ns
from fairway.runtime.usercode import as_exception
from fairway.runtime.words import is_a, named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.runtime.service import Service


class Happening(Enum):
    STARTED = "started"
    FAILED = "failed"
    RESTARTED = "restarted"
    GAVE_UP = "gave up"


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionEvent:
    """Something that happened to a supervised service, for logs and telemetry."""

    name: str
    happening: Happening
    at_ns: int
    failures: int
    """Failures in a row so far; health of sufficient length forgets them."""
    error: Exception | None = None
    delay_ns: int | None = None
    """After FAILED: how long until the restart. None if there will be none."""


def _ignore(event: SupervisionEvent) -> None:
    """The default report."""


class Supervised:
    """A service that runs another one, made by `make`, and makes it again when it fails.

    A failure is whatever comes out of `run`, or a return before anybody asked for it. The failed
    service is closed, then the restart waits by `config`. Staying up counts as health. When the
    attempts are used up `run` raises `GaveUp`. An error that says `Stop` is raised at once, since
    no restart repairs what a person has to look at, and so is any error while it drains. `report`
    is called for each event, in order.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Service],
        *,
        config: BackoffConfig,
        random: RandomSource,
        report: Callable[[SupervisionEvent], None] = _ignore,
        clock: Clock | None = None,
        tells_health: bool = False,
        heeds_stop: bool = True,
    ) -> None:
        """With `tells_health` a service counts as healthy only while it calls `healthy(True)`;
        otherwise from its start. Without `heeds_stop` an error that says `Stop` is a failure like
        any other: of a service of the user's, whatever it raises says no more than that."""
        self.name = name
        self._tells_health = tells_health
        self._heeds_stop = heeds_stop
        self._make = make
        self._report = report
        self._clock = clock
        self._backoff = Backoff(config, random)
        self._service: Service | None = None
        self._draining = False

    def healthy(self, is_healthy: bool) -> None:
        """What the service says of itself: failures are forgotten after long enough health."""
        now_ns = (self._clock or clock_of(asyncio.get_running_loop())).now_ns()
        if is_healthy:
            self._backoff.recovered(now_ns)
        else:
            self._backoff.ailing(now_ns)

    async def run(self) -> None:
        """Run until cancelled, or until it is hopeless."""
        clock = self._clock or clock_of(asyncio.get_running_loop())
        backoff = self._backoff
        happening = Happening.STARTED
        while True:
            now_ns = clock.now_ns()
            self._emit(happening, now_ns, backoff.failures(now_ns))
            if not self._tells_health:
                backoff.recovered(now_ns)
            error = await self._run_once()
            if error is None:
                return
            now_ns = clock.now_ns()
            delay_ns = backoff.failed(now_ns)
            failures = backoff.failures(now_ns)
            hopeless = self._draining or (self._heeds_stop and is_a(error, Stop))
            if hopeless or delay_ns is None:
                self._emit(Happening.FAILED, now_ns, failures, error)
                self._emit(Happening.GAVE_UP, now_ns, failures, error)
                if hopeless:
                    raise error
                raise GaveUp(f"{self.name} failed {failures} times in a row") from error
            self._emit(Happening.FAILED, now_ns, failures, error, delay_ns)
            await sleep_ns(delay_ns)
            happening = Happening.RESTARTED

    async def drain(self) -> None:
        """Drain the service that runs now. Between a failure and its restart there is none."""
        self._draining = True
        await self._delegate("drain")

    async def aclose(self) -> None:
        await self._delegate("aclose")
        self._service = None

    async def _run_once(self) -> Exception | None:
        """Why it failed, or None if it ended because it was drained."""
        try:
            self._service = self._make()
            failures: list[Exception] = []
            # In a task of its own, which does not raise. A task group inside the service that is
            # cancelled while it ends by an error raises the error only (until Python 3.13): here
            # that would pass for a failure, and what was to stop would be started again.
            async with asyncio.TaskGroup() as group:
                group.create_task(run_caught(self._service, failures), name=self.name)
            if failures:
                raise failures[0]
            if self._draining:
                return None
            raise RuntimeError(f"service {self.name} ended although nobody stopped it")
        except Exception as error:
            try:
                await self.aclose()
            except Exception as second:
                error.add_note(f"closing it failed too: {named(second)}")
            return error

    async def _delegate(self, step: str) -> None:
        method: Callable[[], Awaitable[None]] | None = getattr(self._service, step, None)
        if method is not None:
            await method()

    def _emit(
        self,
        happening: Happening,
        now_ns: int,
        failures: int,
        error: Exception | None = None,
        delay_ns: int | None = None,
    ) -> None:
        self._report(
            SupervisionEvent(
                name=self.name,
                happening=happening,
                at_ns=now_ns,
                failures=failures,
                error=error,
                delay_ns=delay_ns,
            )
        )


async def run_caught(service: Service, failures: list[Exception]) -> None:
    """Run a service, and keep what it fails of: it may run code of the user's."""
    try:
        await service.run()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        failures.append(as_exception(error))

"""A supervised service is restarted with growing pauses, and given up on in the end."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairway.core.backoff import BackoffConfig
from fairway.errors import Corrupt, GaveUp
from fairway.runtime.lifecycle import Lifecycle
from fairway.runtime.service import StopSwitch
from fairway.runtime.supervision import Happening, Supervised, SupervisionEvent
from fairway.testing import run

SECOND = 1_000_000_000
CONFIG = BackoffConfig(
    base_ns=SECOND, cap_ns=4 * SECOND, jitter=0, reset_after_ns=60 * SECOND, attempts_max=5
)


class Worker:
    """Runs for as long as it is told, then fails; made anew for each attempt."""

    def __init__(self, life: float | None, error: Exception | None = None) -> None:
        self.life = life
        self.error = error
        self.closed = False
        self.drained = False

    async def run(self) -> None:
        if self.life is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(self.life)
            if self.error is not None:
                raise self.error

    async def drain(self) -> None:
        self.drained = True

    async def aclose(self) -> None:
        self.closed = True
        if isinstance(self.error, UnicodeError):
            raise OSError("cannot close either")


class Alone(Lifecycle):
    """Runs one supervised service, and drains and closes it."""

    def __init__(self, supervised: Supervised) -> None:
        self._supervised = supervised

    async def open(self) -> None:
        self.spawn(self._supervised.run(), "supervised")

    async def drain(self) -> None:
        if not self.cut_short:
            await self._supervised.drain()

    async def aclose(self) -> None:
        if not self.cut_short:  # else the supervisor has closed what failed
            await self._supervised.aclose()


class Bench:
    """Makes the workers of one test and remembers what was reported."""

    def __init__(self, *workers: Worker, config: BackoffConfig = CONFIG) -> None:
        self.workers = list(workers)
        self.made: list[Worker] = []
        self.events: list[SupervisionEvent] = []
        self.supervised = Supervised(
            "worker", self.make, config=config, random=random.Random(1), report=self.events.append
        )

    def make(self) -> Worker:
        self.made.append(self.workers.pop(0))
        return self.made[-1]

    def run(self, *, stop_at: float | None = None) -> None:
        async def main() -> None:
            stop = StopSwitch()
            if stop_at is not None:
                asyncio.get_running_loop().call_at(stop_at, stop.request_stop)
            async with Alone(self.supervised):
                await stop.wait_requested()

        run(main, seed=1)

    @property
    def story(self) -> list[tuple[str, float, int]]:
        return [(e.happening.value, e.at_ns / SECOND, e.failures) for e in self.events]


def failing(life: float) -> Worker:
    return Worker(life, OSError("broke"))


def test_restarts_double_their_pause_up_to_the_cap_and_then_give_up() -> None:
    bench = Bench(*(failing(0) for _ in range(5)))
    with pytest.raises(ExceptionGroup) as caught:
        bench.run()
    (gave_up,) = caught.value.exceptions
    assert isinstance(gave_up, GaveUp)
    assert isinstance(gave_up.__cause__, OSError)
    assert bench.story == [
        ("started", 0, 0),
        ("failed", 0, 1),
        ("restarted", 1, 1),
        ("failed", 1, 2),
        ("restarted", 3, 2),
        ("failed", 3, 3),
        ("restarted", 7, 3),
        ("failed", 7, 4),
        ("restarted", 11, 4),
        ("failed", 11, 5),
        ("gave up", 11, 5),
    ]
    assert all(worker.closed for worker in bench.made)
    assert [event.delay_ns for event in bench.events if event.happening is Happening.FAILED] == [
        *(pause * SECOND for pause in (1, 2, 4, 4)),
        None,
    ]


def test_staying_up_forgets_earlier_failures() -> None:
    bench = Bench(*(failing(100) for _ in range(8)), Worker(None))
    bench.run(stop_at=2000)
    assert {event.failures for event in bench.events} == {0, 1}
    assert len(bench.made) == 9  # more than attempts_max, since each had been healthy


def test_a_service_that_returns_unasked_has_failed() -> None:
    bench = Bench(Worker(5), Worker(None))
    bench.run(stop_at=20)
    assert [event.happening.value for event in bench.events] == ["started", "failed", "restarted"]
    assert "ended although nobody" in str(bench.events[1].error)


def test_what_a_person_must_look_at_is_not_restarted() -> None:
    bench = Bench(Worker(5, Corrupt("bad page", place="shard-0")))
    with pytest.raises(ExceptionGroup) as caught:
        bench.run()
    assert caught.group_contains(Corrupt)
    assert bench.story == [("started", 0, 0), ("failed", 5, 1), ("gave up", 5, 1)]
    assert bench.events[1].delay_ns is None


def test_a_failure_to_make_or_to_close_counts_too() -> None:
    bench = Bench(Worker(0, UnicodeError("broke")), config=BackoffConfig(jitter=0, attempts_max=2))
    with pytest.raises(ExceptionGroup) as caught:  # there is no second worker: making it fails
        bench.run()
    assert caught.group_contains(GaveUp)
    assert isinstance(bench.events[1].error, UnicodeError)
    assert "closing it failed too" in bench.events[1].error.__notes__[0]
    assert isinstance(bench.events[3].error, IndexError)


def test_a_stop_reaches_the_service_inside() -> None:
    bench = Bench(failing(1), Worker(None))
    bench.run(stop_at=10)
    first, second = bench.made
    assert not first.drained
    assert second.drained
    assert second.closed


def test_a_stop_between_failure_and_restart_ends_the_wait() -> None:
    bench = Bench(failing(1))
    bench.run(stop_at=1.5)
    assert bench.story == [("started", 0, 0), ("failed", 1, 1)]


def test_a_service_that_ends_because_it_was_drained_has_not_failed() -> None:
    class Polite(Worker):
        def __init__(self) -> None:
            super().__init__(None)
            self.asked = asyncio.Event()

        async def run(self) -> None:
            await self.asked.wait()

        async def drain(self) -> None:
            self.asked.set()
            await asyncio.sleep(1)

    bench = Bench(Polite())
    bench.run(stop_at=3)
    assert bench.story == [("started", 0, 0)]


def test_a_failure_while_it_drains_is_raised_and_nothing_is_restarted() -> None:
    class Fragile(Worker):
        async def drain(self) -> None:
            await asyncio.sleep(1000)

    bench = Bench(Fragile(5, OSError("broke")))
    with pytest.raises(ExceptionGroup) as caught:
        bench.run(stop_at=3)
    assert caught.group_contains(OSError, match="broke")
    assert bench.story == [("started", 0, 0), ("failed", 5, 1), ("gave up", 5, 1)]

"""The sampling service behind the pressure governor.

Parts register signals and read the ladder; this service asks the signals at a steady interval on
the loop's clock and lets `core.pressure` decide. How late its own wake-ups are is a signal too.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.core.pressure import Governor, Ladder, PressureConfig
from fairway.errors import InvalidConfig
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import Clock, clock_of, sleep_ns

if TYPE_CHECKING:
    from collections.abc import Callable

LOOP_LAG = "loop_lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    period_ns: int = 100_000_000
    """Time between samples. Raising it costs less and reacts later; the ladder counts samples."""
    lag_full_ns: int = 100_000_000
    """A wake-up this late is full pressure. Raising it tolerates longer blocking of the loop."""

    def __post_init__(self) -> None:
        check_amounts(self, period_ns=1, lag_full_ns=1)


class PressureSampler:
    """A service that keeps `ladder` up to date.

    A signal is a callable that returns 0 (idle) to 1 (saturated) without waiting. One that raises
    counts as saturated, and `broken` names it. Listeners are called after each sample, in order of
    registration; an error in one is ours and ends the service.
    """

    name = "pressure"

    def __init__(
        self,
        *,
        ladder_config: PressureConfig | None = None,
        config: SamplingConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config or SamplingConfig()
        self._governor = Governor(ladder_config)
        self._clock = clock
        self._signals: dict[str, Callable[[], float]] = {}
        self._ingests: dict[str, Callable[[], bool]] = {}
        self._listeners: list[Callable[[Ladder], None]] = []
        self._lag_ns = 0
        self.broken: frozenset[str] = frozenset()
        self.samples = 0

    @property
    def ladder(self) -> Ladder:
        """What to do now; before the first sample, the ladder of an idle system."""
        return self._governor.ladder

    @property
    def pressure(self) -> float:
        """The smoothed pressure, 0..1."""
        return self._governor.ladder.pressure

    def add_signal(self, name: str, signal: Callable[[], float]) -> None:
        """Ask `signal` at each sample. The name appears as the ladder's cause and must be free."""
        if name == LOOP_LAG or name in self._signals:
            raise InvalidConfig(f"there is a signal {name} already")
        self._signals[name] = signal

    def remove_signal(self, name: str) -> None:
        """Ask it no more. Unknown names are ignored, so that closing twice is harmless."""
        self._signals.pop(name, None)

    def add_ingest(self, name: str, is_full: Callable[[], bool]) -> None:
        """Name a lane that takes in new work. Writes are refused only while one of them is full."""
        self._ingests[name] = is_full

    def remove_ingest(self, name: str) -> None:
        self._ingests.pop(name, None)

    def listen(self, listener: Callable[[Ladder], None]) -> None:
        """Call `listener` with the ladder after each sample."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Sample until cancelled, at multiples of the period from the start."""
        clock = self._clock or clock_of(asyncio.get_running_loop())
        due_ns = clock.now_ns() + self._config.period_ns
        while True:
            await sleep_ns(due_ns - clock.now_ns())
            now_ns = clock.now_ns()
            self._lag_ns = max(0, now_ns - due_ns)
            self.sample()
            # Samples missed by a late wake-up are skipped: a burst of them would count as history.
            due_ns += (1 + self._lag_ns // self._config.period_ns) * self._config.period_ns

    def sample(self) -> Ladder:
        """Take one sample now and publish it."""
        levels = {LOOP_LAG: self._lag_ns / self._config.lag_full_ns}
        broken = set()
        for name, signal in self._signals.items():
            try:
                levels[name] = signal()
            except Exception:
                levels[name] = math.nan  # the governor takes what cannot answer for overloaded
                broken.add(name)
        full = False
        for name, is_full in self._ingests.items():
            try:
                full = full or is_full()
            except Exception:
                broken.add(name)
        self.broken = frozenset(broken)
        self.samples += 1
        ladder = self._governor.sample(levels, full)
        for listener in self._listeners:
            listener(ladder)
        return ladder

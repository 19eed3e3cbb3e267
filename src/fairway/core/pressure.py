"""Decides how far to degrade under load: signals -> one pressure in [0, 1] -> rungs of a ladder.

Taking the samples is the caller's, at one steady interval (100 ms is intended); so is obeying the
ladder. Every rung costs latency or push-eagerness, never data: a refusal is made before acceptance.

Smoothing
---------
Each sample's pressure is the highest of its signals; the published pressure follows it by

    pressure += gain * (sample - pressure)        gain = rise if it goes up, fall if it goes down

so after n equal samples s the distance to s has shrunk to (1 - gain)^n. With the defaults a jump
from 0 to 1 passes 0.8 at the 3rd sample, defers at the 5th and reaches 0.99 at the 7th; a drop from
1 to 0 releases at the 3rd. It rises faster than it falls because a late rung costs a queue that is
already full, and an early release costs another climb.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.core.amounts import check_shares, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureConfig:
    rise: float = 0.5
    """Share of an upward step taken per sample. Higher reacts sooner and to shorter bursts."""
    fall: float = 0.2
    """Share of a downward step taken per sample. Higher releases sooner and swings more."""
    coalesce_above: float = 0.2
    """Deliveries are packed above this. Raising it keeps frames single, at more cost per record."""
    coalesce_window_max_ns: int = 20_000_000
    """The packing window at pressure 1. Raising it buys throughput and costs delivery latency."""
    commit_above: float = 0.4
    """Commits are delayed to share syncs above this. Raising it keeps acknowledgements early."""
    commit_window_min_ns: int = 500_000
    """The commit window where it begins. Raising it saves syncs under light pressure."""
    commit_window_max_ns: int = 10_000_000
    """The commit window at pressure 1: the most latency an acknowledgement pays for fewer syncs."""
    defer_above: float = 0.8
    """The lowest-value pushes pause above this. Raising it keeps them going longer."""
    defer_samples: int = 3
    """Consecutive samples above `defer_above` before deferring. Raising it rides out bursts."""
    release_below: float = 0.6
    """Deferred pushes resume below this. Lowering it means fewer, longer pauses."""
    refuse_from: float = 0.99
    """With a full ingest lane, writes are refused from here. Raising it refuses later."""

    def __post_init__(self) -> None:
        check_shares(self, "rise", "fall", "coalesce_above", "commit_above")
        check_shares(self, "defer_above", "release_below", "refuse_from")
        check_whole(self, coalesce_window_max_ns=0, commit_window_min_ns=1, commit_window_max_ns=1)
        check_whole(self, defer_samples=1)
        if not 0 < self.fall <= self.rise <= 1:
            raise ValueError("0 < fall <= rise <= 1: never slower to react than to relax")
        if not self.coalesce_above <= self.commit_above <= self.defer_above:
            raise ValueError("coalesce_above <= commit_above <= defer_above: rungs are in order")
        if not 0 < self.release_below < self.defer_above:
            raise ValueError("release_below must be under defer_above, or deferring flutters")
        if not self.defer_above < self.refuse_from < 1:
            raise ValueError("defer_above < refuse_from < 1: smoothing may never reach 1")
        if self.commit_window_min_ns > self.commit_window_max_ns:
            raise ValueError("commit_window_min_ns <= commit_window_max_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """What to do at one pressure. The rungs compose: a higher one keeps the lower ones."""

    pressure: float = 0.0
    """Smoothed, in [0, 1]."""
    cause: str | None = None
    """The signal that was highest in the last sample, for people; None if it had no signals."""
    coalesce_window_ns: int = 0
    """Pack what a key gathers in this time into one delivery; 0: deliver each record at once."""
    commit_window_ns: int = 0
    """Wait this long for others before a sync; 0: sync as soon as the last one is done."""
    defer: bool = False
    """Withhold turns from B0 and enqueue routers one band lower."""
    refuse: bool = False
    """Answer new writes with a refusal. Lanes refuse when full whether or not this is set."""


class Governor:
    """Turns samples into a ladder, remembering the smoothed pressure and whether it defers.

    Only deferring has hysteresis: it starts at the `defer_samples`-th consecutive sample above
    `defer_above` and ends at the first below `release_below`. The other rungs follow the pressure.
    """

    def __init__(self, config: PressureConfig | None = None) -> None:
        self._config = config or PressureConfig()
        self._pressure = 0.0
        self._samples_high = 0
        self._deferring = False
        self._ladder = Ladder()

    @property
    def ladder(self) -> Ladder:
        """The answer to the last sample; before the first, the ladder of an idle system."""
        return self._ladder

    def sample(self, signals: Mapping[str, float], ingest_full: bool) -> Ladder:
        """Take in one sample of named signals, each 0 (idle) to 1 (saturated).

        Signals are clamped to [0, 1]. NaN counts as 1: a meter that cannot answer is taken to be
        overloaded, which costs latency, where the opposite guess could cost the queue. No signals
        at all count as 0.
        """
        config = self._config
        cause, highest = None, 0.0
        for name, value in signals.items():
            level = _clamped(value)
            if cause is None or level > highest:
                cause, highest = name, level
        gain = config.rise if highest > self._pressure else config.fall
        self._pressure = _clamped(self._pressure + gain * (highest - self._pressure))
        self._samples_high = self._samples_high + 1 if self._pressure > config.defer_above else 0
        if self._samples_high >= config.defer_samples:
            self._deferring = True
        elif self._pressure < config.release_below:
            self._deferring = False
        self._ladder = Ladder(
            pressure=self._pressure,
            cause=cause,
            coalesce_window_ns=_window_ns(
                self._pressure, config.coalesce_above, 0, config.coalesce_window_max_ns
            ),
            commit_window_ns=_window_ns(
                self._pressure,
                config.commit_above,
                config.commit_window_min_ns,
                config.commit_window_max_ns,
            ),
            defer=self._deferring,
            refuse=ingest_full and self._pressure >= config.refuse_from,
        )
        return self._ladder

    def check(self) -> None:
        """Assert every invariant."""
        config, ladder = self._config, self._ladder
        assert 0.0 <= self._pressure <= 1.0
        assert self._samples_high >= 0
        assert (self._samples_high > 0) == (self._pressure > config.defer_above)
        assert self._deferring or self._samples_high < config.defer_samples
        assert not (self._deferring and self._pressure < config.release_below)
        assert (ladder.pressure, ladder.defer) == (self._pressure, self._deferring)
        assert 0 <= ladder.coalesce_window_ns <= config.coalesce_window_max_ns
        assert 0 <= ladder.commit_window_ns <= config.commit_window_max_ns
        assert not ladder.refuse or self._pressure >= config.refuse_from


def _clamped(value: float) -> float:
    return 1.0 if math.isnan(value) else max(0.0, min(1.0, value))


def _window_ns(pressure: float, above: float, least_ns: int, most_ns: int) -> int:
    """0 up to `above`; then from `least_ns` in a straight line to `most_ns` at pressure 1."""
    if pressure <= above:
        return 0
    return least_ns + round((most_ns - least_ns) * (pressure - above) / (1.0 - above))

"""The one telemetry seam: counters, gauges and histograms that exporters read as plain data.

A part asks the registry once for an instrument and keeps it. `snapshot()` returns frozen values
that know nothing of Prometheus or OpenTelemetry. Instruments belong to the event loop: a thread
hands its numbers over with its result. Labels have few values: a series is never forgotten. What
comes and goes, and keeps numbers of its own, is added by a collector when the snapshot is taken.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from fairway.errors import InvalidConfig
from fairway.runtime.usercode import reraise_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairway.runtime.spans import SpanSink

Labels = tuple[tuple[str, str], ...]
Kind = Literal["counter", "gauge", "histogram"]
Family = tuple[Kind, tuple[int, ...]]  # what all series of one name share: kind and bounds

# Bucket bounds for durations, 10 microseconds to 10 seconds, and for counts, 1 to 65,536.
LATENCY_NS = (*(step * 10**power for power in range(4, 10) for step in (1, 2, 5)), 10**10)
SIZES = tuple(2**power for power in range(17))


@dataclass(frozen=True, slots=True)
class Distribution:
    """`counts[i]` values were up to `bounds[i]` and above the one before; the last is the rest."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    sum: int | float

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Series:
    """One instrument at the moment of the snapshot."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    value: int | float | Distribution


class Counter:
    """A number that only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount

    def read(self) -> int:
        return self.value


class Gauge:
    """A number that goes up and down, set by its owner or read when the snapshot is taken."""

    __slots__ = ("source", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self.source: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self.value = value

    def read(self) -> float:
        if self.source is None:
            return self.value
        try:
            return self.source()
        except BaseException as error:  # a broken gauge must not take the other series with it
            reraise_interrupt(error)
            return math.nan


class Histogram:
    """Counts values in fixed buckets, each up to and including its bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[int]) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise InvalidConfig("histogram bounds must rise and there must be one")
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: int | float = 0

    def record(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def read(self) -> Distribution:
        return Distribution(self.bounds, tuple(self.counts), self.sum)


I = TypeVar("I", Counter, Gauge, Histogram)  # noqa: E741  (an instrument)


class Telemetry:
    """The registry. The same name and labels give the same instrument back."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._help: dict[str, str] = {}
        self._instruments: dict[tuple[str, Labels], Counter | Gauge | Histogram] = {}
        self.collectors: list[Callable[[], Iterable[Series]]] = []
        """Asked for further series at each snapshot."""
        self.spans: SpanSink | None = None
        """Called with each span, of what took how long; see `fairway.runtime.spans`."""

    def counter(self, name: str, help: str = "", **labels: str) -> Counter:
        return self._register(name, ("counter", ()), help, labels, Counter())

    def gauge(
        self, name: str, help: str = "", source: Callable[[], float] | None = None, **labels: str
    ) -> Gauge:
        """A gauge. With `source` its value is asked for at each snapshot; the newest one counts."""
        gauge = self._register(name, ("gauge", ()), help, labels, Gauge())
        gauge.source = source or gauge.source
        return gauge

    def histogram(
        self, name: str, help: str = "", bounds: Sequence[int] = LATENCY_NS, **labels: str
    ) -> Histogram:
        new = Histogram(bounds)
        return self._register(name, ("histogram", new.bounds), help, labels, new)

    def snapshot(self) -> tuple[Series, ...]:
        """Every series, sorted by name and labels. Later changes do not show in it."""
        found = [
            Series(name, self._families[name][0], self._help[name], labels, instrument.read())
            for (name, labels), instrument in self._instruments.items()
        ]
        for collector in self.collectors:
            found += collector()
        return tuple(sorted(found, key=lambda series: (series.name, series.labels)))

    def _register(self, name: str, family: Family, help: str, labels: dict[str, str], new: I) -> I:
        if self._families.setdefault(name, family) != family:
            raise InvalidConfig(f"{name} is taken by another {self._families[name][0]}")
        self._help[name] = self._help.get(name) or help
        found = self._instruments.setdefault((name, tuple(sorted(labels.items()))), new)
        assert isinstance(found, type(new))
        return found

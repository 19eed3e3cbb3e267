"""Obvious slow twins of the machines in `core`: lists, sums and scans, and nothing kept for speed.

Each has the methods of the machine it stands beside, so a test drives both and compares answers.
`histories` makes the lists of steps they are driven by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from fairway.core.lanes import RETRY_MAX_NS, RETRY_MIN_NS, RETRY_UNMEASURED_NS, Drained, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fairway.core.lanes import LaneLimits

S = TypeVar("S")

MANY = settings(max_examples=4 * settings().max_examples)
"""For comparisons with a twin, which are cheap: four times what the profile says."""


@st.composite
def histories(draw: st.DrawFn, step: Callable[[int, int, int, int], S], longest: int) -> list[S]:
    """Lists of up to `longest` steps, each made of four bytes.

    Any length is likely (`st.lists` hardly ever makes more than ten), and drawing all the bytes at
    once is many times faster than drawing each part of each step.
    """
    length = draw(st.integers(0, longest))
    drawn = draw(st.binary(min_size=4 * length, max_size=4 * length))
    return [step(*drawn[at : at + 4]) for at in range(0, len(drawn), 4)]


def slow_weights(
    weights: Mapping[str, int], minimum: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    """Try every set of bands to raise; a right one lowers nobody and leaves nobody short."""
    found = []
    for count in range(len(minimum) + 1):
        for raised in combinations(minimum, count):
            free = sum(weight for band, weight in weights.items() if band not in raised)
            whole = free / (1 - sum((minimum[band] for band in raised), Fraction(0)))
            shares = {
                band: minimum[band] * whole if band in raised else Fraction(weight)
                for band, weight in weights.items()
            }
            lowered = any(shares[band] < weights[band] for band in weights)
            short = any(shares[band] < least * whole for band, least in minimum.items())
            if free and not lowered and not short:
                found.append(shares)
    assert found
    assert all(shares == found[0] for shares in found)
    return found[0]


class SlowTurns:
    """Deficit round-robin, one band and one grant at a time: a large debt takes as many rounds."""

    def __init__(
        self, weights: Mapping[str, int], minimum: Mapping[str, Fraction] | None = None
    ) -> None:
        self.ring = list(weights)
        self.weights = slow_weights(weights, minimum or {})
        self.credit = dict.fromkeys(self.ring, Fraction(0))
        self.awake: set[str] = set()
        self.withheld: set[str] = set()
        self.at = len(self.ring) - 1
        self.rounds_begun = 0

    @property
    def here(self) -> str:
        return self.ring[self.at]

    def may_go(self, band: str) -> bool:
        return band in self.awake and band not in self.withheld

    def wake(self, band: str) -> None:
        self.awake.add(band)

    def rest(self, band: str) -> None:
        self.awake.discard(band)
        self._no_savings()

    def withhold(self, band: str) -> None:
        self.withheld.add(band)
        self._no_savings()

    def restore(self, band: str) -> None:
        self.withheld.discard(band)

    def take(self, cost: int = 1) -> str | None:
        if not any(self.may_go(band) for band in self.ring):
            return None
        while not self.may_go(self.here) or self.credit[self.here] <= 0:
            self.at = (self.at + 1) % len(self.ring)
            self.rounds_begun += self.at == 0
            if self.may_go(self.here):
                self.credit[self.here] += self.weights[self.here]
        self.credit[self.here] -= cost
        return self.here

    def charge(self, band: str, cost: int) -> None:
        self.credit[band] = min(self.credit[band] - cost, self.weights[band])
        self._no_savings()

    def _no_savings(self) -> None:
        for band in self.ring:
            if band != self.here or not self.may_go(band):
                self.credit[band] = min(self.credit[band], Fraction(0))


@dataclass
class Wait:
    """One waiting key of `SlowReady`."""

    key: str
    band: str
    order: int
    since_ns: int
    due_ns: int | None


class SlowReady:
    """Every wait in one list, sorted whenever somebody asks."""

    def __init__(
        self, weights: Mapping[str, int], minimum: Mapping[str, Fraction] | None = None
    ) -> None:
        self.turns = SlowTurns(weights, minimum)
        self.waits: list[Wait] = []
        self.taken: dict[str, str | None] = {}
        self.count = 0
        self.now_ns = 0

    def find(self, key: str) -> Wait | None:
        return next((wait for wait in self.waits if wait.key == key), None)

    def mark(self, key: str, band: str, now_ns: int = 0, *, due_ns: int | None = None) -> bool:
        if self.find(key) is not None:
            return False
        if key in self.taken:
            self.taken[key] = band
            return False
        self.count += 1
        self.now_ns = max(self.now_ns, now_ns)
        self.waits.append(Wait(key, band, self.count, self.now_ns, due_ns))
        self._tell_turns()
        return True

    def take(self, cost: int = 1) -> str | None:
        for band, depth in self.depths().items():
            if not depth:
                self.turns.rest(band)
        chosen = self.turns.take(cost)
        if chosen is None:
            return None
        eldest = min((wait for wait in self.waits if wait.band == chosen), key=lambda it: it.order)
        self.waits.remove(eldest)
        self.taken[eldest.key] = None
        return eldest.key

    def charge(self, band: str, cost: int) -> None:
        self.turns.charge(band, cost)

    def release(self, key: str, now_ns: int = 0, *, due_ns: int | None = None) -> bool:
        band = self.taken.pop(key)
        return band is not None and self.mark(key, band, now_ns, due_ns=due_ns)

    def move(self, key: str, band: str, *, due_ns: int | None = None) -> None:
        wait = self.find(key)
        assert wait is not None
        wait.band, wait.due_ns = band, due_ns
        self._tell_turns()

    def due(self, now_ns: int) -> Iterator[tuple[str, str, int]]:
        while True:
            late = [w for w in self.waits if w.due_ns is not None and w.due_ns <= now_ns]
            if not late:
                return
            first = min(late, key=lambda wait: (wait.due_ns, wait.order))
            first.due_ns = None
            yield first.key, first.band, first.since_ns

    def withhold(self, band: str) -> None:
        self.turns.withhold(band)

    def restore(self, band: str) -> None:
        self.turns.restore(band)

    def forget(self, key: str) -> None:
        self.waits = [wait for wait in self.waits if wait.key != key]
        if key in self.taken:
            self.taken[key] = None

    def waiting_in(self, key: str) -> str | None:
        wait = self.find(key)
        return None if wait is None else wait.band

    def depths(self) -> dict[str, int]:
        return {band: sum(w.band == band for w in self.waits) for band in self.turns.ring}

    def _tell_turns(self) -> None:
        for band, depth in self.depths().items():
            if depth:
                self.turns.wake(band)


@dataclass
class SlowLane:
    """One lane of `SlowLanes`: what waits, what is in flight, what was settled since it woke."""

    woke_ns: int
    waiting: list[tuple[object, int]] = field(default_factory=list)
    flying: list[tuple[object, int]] = field(default_factory=list)
    settled: list[tuple[int, int]] = field(default_factory=list)
    room: int = 0

    @property
    def depth(self) -> int:
        return len(self.waiting) + len(self.flying)

    @property
    def size(self) -> int:
        return sum(size for _, size in self.waiting + self.flying)


def slow_pace(settled: list[tuple[int, int]]) -> Fraction | None:
    """Nanoseconds an item, from (nanoseconds, items) of groups; each counts half the next one."""
    if not settled:
        return None
    weights = [Fraction(1, 2**age) for age in reversed(range(len(settled)))]
    busy = sum(weight * busy_ns for weight, (busy_ns, _) in zip(weights, settled, strict=True))
    items = sum(weight * count for weight, (_, count) in zip(weights, settled, strict=True))
    return busy / items


class SlowLanes:
    """Lanes that count everything again at each offer."""

    def __init__(
        self,
        limits: LaneLimits,
        *,
        total: LaneLimits | None = None,
        reserve: tuple[int, int] = (0, 0),
    ) -> None:
        self.limits = limits
        self.total = total
        self.reserve = reserve
        self.lanes: dict[str, SlowLane] = {}
        self.settled: list[tuple[int, int]] = []

    @property
    def depth(self) -> int:
        return sum(lane.depth for lane in self.lanes.values())

    @property
    def size(self) -> int:
        return sum(lane.size for lane in self.lanes.values())

    def offer(
        self, key: str, item: object, size: int, now_ns: int, finishing: bool = False
    ) -> Refusal | None:
        lane = self.lanes.get(key, SlowLane(now_ns))
        more_items, more_bytes = self.reserve if finishing else (0, 0)
        bounds = [(self.limits, lane.depth, lane.size, "")]
        if self.total is not None:
            bounds.append((self.total, self.depth, self.size, " in all lanes"))
        for limits, depth, used, where in bounds:
            average = self.depth // len(self.lanes) if where and self.lanes else 0
            if depth + 1 > limits.items + more_items:
                return self.refusal(key, lane, f"{limits.items} items{where}", average)
            if used + size > limits.size + more_bytes:
                return self.refusal(key, lane, f"{limits.size} bytes{where}", average)
        self.lanes[key] = lane
        lane.waiting.append((item, size))
        return None

    def refusal(self, key: str, lane: SlowLane, limit: str, average: int) -> Refusal:
        quarter = max(lane.depth // 4, average // 4, 1)
        pace = slow_pace(lane.settled) if lane.settled else slow_pace(self.settled)
        wait_ns = RETRY_UNMEASURED_NS if pace is None else int(pace * quarter)
        return Refusal(key, lane.depth, limit, sorted((RETRY_MIN_NS, wait_ns, RETRY_MAX_NS))[1])

    def drain(self, key: str, *, items: int, size: int) -> Drained[str, object]:
        lane = self.lanes[key]
        # The longest run from the front that keeps within both limits, or else one item.
        fitting = [
            count
            for count in range(min(items, len(lane.waiting)) + 1)
            if count <= 1 or sum(size for _, size in lane.waiting[:count]) <= size
        ]
        gone = lane.waiting[: max(fitting)]
        del lane.waiting[: max(fitting)]
        lane.flying += gone
        lane.room = len(gone) if lane.waiting else items
        return Drained(key, [item for item, _ in gone], sum(size for _, size in gone))

    def withdraw(self, key: str) -> list[object]:
        lane = self.lanes[key]
        items = [item for item, _ in lane.waiting]
        lane.waiting.clear()
        self._forget_empty()
        return items

    def settle(self, drained: Drained[str, object], now_ns: int) -> bool:
        lane = self.lanes[drained.key]
        lane.flying = [pair for pair in lane.flying if pair[0] not in drained.items]
        if drained.items:
            pace = (max(now_ns - lane.woke_ns, 0), max(len(drained.items), lane.room))
            lane.room = 0
            lane.settled.append(pace)
            self.settled.append(pace)
            lane.woke_ns = now_ns
        self._forget_empty()
        return bool(lane.waiting)

    def _forget_empty(self) -> None:
        self.lanes = {key: lane for key, lane in self.lanes.items() if lane.depth}

    def depths(self) -> dict[str, tuple[int, int]]:
        return {key: (lane.depth, lane.size) for key, lane in self.lanes.items()}


class SlowGroups:
    """Lanes and one line of keys."""

    def __init__(
        self,
        limits: LaneLimits,
        *,
        total: LaneLimits | None = None,
        reserve: tuple[int, int] = (0, 0),
    ) -> None:
        self.lanes = SlowLanes(limits, total=total, reserve=reserve)
        self.line: list[str] = []
        self.held: set[str] = set()

    def offer(
        self, key: str, item: object, size: int, now_ns: int, finishing: bool = False
    ) -> Refusal | None:
        refusal = self.lanes.offer(key, item, size, now_ns, finishing=finishing)
        if refusal is None and key not in self.line and key not in self.held:
            self.line.append(key)
        return refusal

    def take(
        self, *, keys: int, items: int, size: int, total_size: int | None = None
    ) -> list[Drained[str, object]]:
        group: list[Drained[str, object]] = []
        while self.line and len(group) < keys:
            room = size
            if total_size is not None:
                room = min(size, total_size - sum(part.size for part in group))
            if room <= 0:
                break
            key = self.line.pop(0)
            self.held.add(key)
            group.append(self.lanes.drain(key, items=items, size=room))
        return group

    def settle(self, drained: Drained[str, object], now_ns: int) -> None:
        self.held.remove(drained.key)
        if self.lanes.settle(drained, now_ns):
            self.line.append(drained.key)

    def withdraw(self, key: str) -> list[object]:
        assert key in self.held
        return self.lanes.withdraw(key)

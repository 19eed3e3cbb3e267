"""Which key is next: keys with work, each at most once, never in two hands, drained by weight.

Built on `turns`, which picks the band; inside a band the key that has waited longest goes first.
Leaves to the caller what a key's work is, how long it takes and which band it deserves. Whether a
band has anything ready is asked when the next key is taken: a lone key that is back by then has all
the turns of its band's weight.

A key is *idle*, *waiting* in one band, or *taken*:

    idle --mark--> waiting --take--> taken --release--> idle, or waiting again if marked meanwhile

Costs: `mark`, `take` and `release` are O(1) amortised, whatever waits. `move` costs O(log m) for m
keys that were moved into the band and still wait there, and naming a due time O(log d) for d keys
that have one. `due` costs that for each key it yields and nothing for others, so an aging tick
costs only the keys that cross a band. What keys leave behind when they move or go is cleared away
as it piles up: memory stays within a constant factor of the most keys that waited at once.

Bounds, for a waiting key whose band b is not withheld, with n keys ahead of it in b, elders who
move in later included (weights w_i, sum W):

* *Turns of cost 1*: it is taken after at most n + ceil((n + 1) / w_b) * (W - w_b) other turns.
* *Costs up to c*: with k = ceil((n + 1) * c / w_b), the n keys ahead spend at most n * c and the
  other bands at most the sum over i != b of (k * w_i + c - 1) before it.

With minimum shares the weights are the raised ones, and k * w_i is rounded up. A key that changes
band keeps its age, so its place is among its elders there, never behind those that came after it;
the bounds then begin anew with its new band.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fairway.core.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping
    from fractions import Fraction

K = TypeVar("K", bound="Hashable")
B = TypeVar("B", bound="Hashable")


class _Wait(Generic[K, B]):
    """One key's wait. It is stale once the key was taken, moved or forgotten."""

    __slots__ = ("band", "due_ns", "key", "order", "since_ns", "stale")

    def __init__(self, key: K, band: _Band[K, B], since_ns: int, order: int) -> None:
        self.key = key
        self.band = band
        self.since_ns = since_ns
        self.order = order
        self.due_ns: int | None = None
        self.stale = False

    def __lt__(self, other: _Wait[K, B]) -> bool:
        return self.order < other.order


class _Band(Generic[K, B]):
    """The waits of one band: those that began here come in order, the moved ones lie in a heap."""

    __slots__ = ("began", "live", "moved", "name")

    def __init__(self, name: B) -> None:
        self.name = name
        self.began: deque[_Wait[K, B]] = deque()
        self.moved: list[_Wait[K, B]] = []
        self.live = 0

    def pop(self) -> _Wait[K, B]:
        """Remove and return the oldest wait that is not stale."""
        began, moved = self.began, self.moved
        while moved and moved[0].stale:
            heappop(moved)
        while began and began[0].stale:
            began.popleft()
        if moved and (not began or moved[0].order < began[0].order):
            return heappop(moved)
        return began.popleft()

    def drop_stale(self) -> None:
        """Forget stale waits once they outnumber the live, so moves cannot pile up memory."""
        if len(self.began) + len(self.moved) > 2 * self.live + 16:
            self.began = deque(wait for wait in self.began if not wait.stale)
            self.moved = [wait for wait in self.moved if not wait.stale]
            heapify(self.moved)


class Ready(Generic[K, B]):
    """Keys with work: each waits at most once and is in nobody else's hands while taken."""

    def __init__(
        self, weights: Mapping[B, int], *, minimum: Mapping[B, Fraction] | None = None
    ) -> None:
        self._turns: Turns[B] = Turns(weights, minimum=minimum)
        self._bands: dict[B, _Band[K, B]] = {band: _Band(band) for band in weights}
        self._waiting: dict[K, _Wait[K, B]] = {}
        self._taken: dict[K, _Band[K, B] | None] = {}  # where to wait next, if marked meanwhile
        # A wait may be in here more than once: only the entry with its newest due time counts.
        self._due: list[tuple[int, int, _Wait[K, B]]] = []
        self._emptied: set[_Band[K, B]] = set()  # their last key went since the last take
        self._order = 0
        self._now_ns = 0

    def __len__(self) -> int:
        """How many keys wait."""
        return len(self._waiting)

    def mark(self, key: K, band: B, now_ns: int = 0, *, due_ns: int | None = None) -> bool:
        """Note that `key` has work; True if it began to wait.

        A key that already waits keeps its band, its age and its due time. A taken key becomes ready
        in `band` at its release. `due_ns` is when the caller wants to reconsider its band (see
        `due`).
        """
        target = self._bands[band]
        if key in self._waiting:
            return False
        if key in self._taken:
            self._taken[key] = target
            return False
        self._enqueue(key, target, now_ns, due_ns)
        return True

    def take(self, cost: int = 1) -> K | None:
        """Take the key whose turn it is, charging its band `cost`; None if nothing may go."""
        if self._emptied:
            self._rest_empty()
        name = self._turns.take(cost)
        if name is None:
            return None
        band = self._bands[name]
        wait = band.pop()
        wait.stale = True
        key = wait.key
        del self._waiting[key]
        # Taken before anybody works on it: a mark arriving meanwhile must wait for the release, or
        # two workers could hold one key.
        self._taken[key] = None
        band.live -= 1
        if not band.live:
            self._emptied.add(band)
        return key

    def _rest_empty(self) -> None:
        for band in self._emptied:
            if not band.live:
                self._turns.rest(band.name)
        self._emptied.clear()

    def charge(self, band: B, cost: int) -> None:
        """Charge a band more for a turn whose true cost is known only now; see `Turns.charge`."""
        self._turns.charge(band, cost)

    def release(self, key: K, now_ns: int = 0, *, due_ns: int | None = None) -> bool:
        """Give a taken key back; True if it was marked meanwhile and waits again.

        Its new wait begins now, behind those that became ready while it was being served.
        """
        band = self._taken.pop(key)
        if band is None:
            return False
        self._enqueue(key, band, now_ns, due_ns)
        return True

    def move(self, key: K, band: B, *, due_ns: int | None = None) -> None:
        """Put a waiting key into `band`, among its elders: it keeps its age.

        `due_ns` replaces its due time, whether the band changes or not; None takes it away.
        """
        wait = self._waiting[key]
        target = self._bands[band]
        if wait.band is not target:
            self._withdraw(wait)
            wait = _Wait(key, target, wait.since_ns, wait.order)
            self._waiting[key] = wait
            heappush(target.moved, wait)
            self._joined(target)
        wait.due_ns = None
        if due_ns is not None:
            self._fall_due(wait, due_ns)

    def due(self, now_ns: int) -> Iterator[tuple[K, B, int]]:
        """Keys whose time to be reconsidered has come: (key, band, waiting since).

        The caller answers each with `move`, naming the next due time, after `now_ns`, if there is
        one. A key is yielded once: unanswered, it is not due again.
        """
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, wait = heappop(self._due)
            if wait.due_ns == due_ns and not wait.stale:
                wait.due_ns = None
                yield wait.key, wait.band.name, wait.since_ns

    def withhold(self, band: B) -> None:
        """Give a band no turns until `restore`; its keys go on waiting and aging."""
        self._turns.withhold(band)

    def restore(self, band: B) -> None:
        """End a `withhold`."""
        self._turns.restore(band)

    def forget(self, key: K) -> None:
        """Drop a key that has no work any more; a taken key will not wait again at release."""
        wait = self._waiting.pop(key, None)
        if wait is not None:
            self._withdraw(wait)
        elif key in self._taken:
            self._taken[key] = None

    def waiting_in(self, key: K) -> B | None:
        """The band in which `key` waits, or None."""
        wait = self._waiting.get(key)
        return wait.band.name if wait is not None else None

    def is_taken(self, key: K) -> bool:
        """Whether somebody holds `key`."""
        return key in self._taken

    def depths(self) -> dict[B, int]:
        """How many keys wait in each band."""
        return {name: band.live for name, band in self._bands.items()}

    def _enqueue(self, key: K, target: _Band[K, B], now_ns: int, due_ns: int | None) -> None:
        # A clock that steps back must not let a key jump the queue: age never runs backwards.
        self._now_ns = now_ns = max(now_ns, self._now_ns)
        self._order += 1
        wait = _Wait(key, target, now_ns, self._order)
        self._waiting[key] = wait
        target.began.append(wait)
        self._joined(target)
        if due_ns is not None:
            self._fall_due(wait, due_ns)

    def _fall_due(self, wait: _Wait[K, B], due_ns: int) -> None:
        wait.due_ns = due_ns
        heappush(self._due, (due_ns, wait.order, wait))
        if len(self._due) > 2 * len(self._waiting) + 64:
            # One entry for each wait that is due some day: copies of one wait go as well.
            newest = {due[2]: due for due in self._due if due[2].due_ns == due[0]}
            self._due = [due for wait, due in newest.items() if not wait.stale]
            heapify(self._due)

    def _joined(self, band: _Band[K, B]) -> None:
        band.live += 1
        if band.live == 1:
            self._turns.wake(band.name)

    def _withdraw(self, wait: _Wait[K, B]) -> None:
        wait.stale = True
        band = wait.band
        band.live -= 1
        if not band.live:
            self._emptied.add(band)
        band.drop_stale()

    def check(self) -> None:
        """Assert every invariant."""
        self._turns.check()
        assert not self._waiting.keys() & self._taken.keys(), "a key is in two places"
        for name, band in self._bands.items():
            live = [wait for wait in (*band.began, *band.moved) if not wait.stale]
            assert len(live) == band.live == len({wait.key for wait in live})
            assert all(self._waiting[wait.key] is wait for wait in live)
            assert [wait.order for wait in band.began] == sorted(w.order for w in band.began)
            assert all(wait.band.name == name for wait in live)
            assert _is_heap(band.moved), "the eldest of those moved is not first"
        assert sum(band.live for band in self._bands.values()) == len(self._waiting)
        assert _is_heap(self._due), "the earliest due time is not first"
        dues = {(wait, due_ns) for due_ns, _, wait in self._due}
        for wait in self._waiting.values():
            assert wait.due_ns is None or (wait, wait.due_ns) in dues, "a due time was lost"


def _is_heap(items: list[Any]) -> bool:
    return not any(items[at] < items[(at - 1) // 2] for at in range(1, len(items)))

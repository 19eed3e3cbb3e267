"""Bounded FIFO lanes, one per key, counted in items *and* bytes, drained in groups.

Decides whether an item may enter and which items leave together. What was drained still counts
against the bounds until it is settled, so memory is bounded whatever the store is doing. Which key
goes first is `ready`'s business; raising the refusal as an error is the shell's.

A refusal says when to come back: when a quarter of the lane will have drained, so that those who
come back find room for more than one of them. The pace is measured while the lane has something; a
turn that emptied it counts with as many items as it had room for. A lane that was not seen draining
yet borrows the pace of the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from fairway.core.amounts import check_whole

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")
T = TypeVar("T")

RETRY_UNMEASURED_NS = 50_000_000
"""What a full lane answers before it was ever seen draining."""
RETRY_MIN_NS, RETRY_MAX_NS = 1_000_000, 10_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneLimits:
    """What one lane (or all together) may hold, in flight included."""

    items: int = 4096
    """Raising it buys longer bursts before a refusal; costs latency: a full lane is waited for."""
    size: int = 64 * 1024 * 1024
    """Bytes. Raising it buys larger bursts; costs exactly that much memory per full lane."""

    def __post_init__(self) -> None:
        check_whole(self, items=1, size=1)


NO_RESERVE = (0, 0)


class Refusal(NamedTuple):
    """Why an item was not accepted. Nothing changed."""

    lane: object
    depth: int
    limit: str
    retry_after_ns: int


class Drained(NamedTuple, Generic[K, T]):
    """What left one lane together, in order. It counts against the bounds until settled."""

    key: K
    items: list[T]
    size: int


class _Pace:
    """How long an item takes to drain, of late."""

    __slots__ = ("busy_ns", "settled")

    def __init__(self) -> None:
        self.busy_ns = 0.0
        self.settled = 0.0

    def note(self, busy_ns: int, settled: int) -> None:
        # Half the weight to the newest group: a lane's speed changes with its neighbours'. Time and
        # items are halved apart, and only then divided: the mean of the groups' own paces would let
        # one group of a single item outweigh one of hundreds.
        self.busy_ns = self.busy_ns / 2 + busy_ns
        self.settled = self.settled / 2 + settled

    def for_items(self, count: int) -> int | None:
        """The time that `count` items need; None if none was ever seen."""
        return int(self.busy_ns / self.settled * count) if self.settled else None


class _Lane(Generic[T]):
    __slots__ = ("depth", "pace", "queue", "room", "settled_ns", "size", "sizes")

    def __init__(self) -> None:
        self.queue: deque[T] = deque()
        self.sizes: deque[int] = deque()  # of the items in `queue`; a pair each would cost more
        self.depth = 0  # waiting and in flight
        self.size = 0
        self.pace = _Pace()
        self.room = 0  # how many items the last drain would have taken of a full lane
        self.settled_ns = 0  # when items last left, or when the first came


class Lanes(Generic[K, T]):
    """A bounded FIFO per key, an optional bound on all of them, and a reserve for finishing work.

    Finishing work (say, the commit of something already prepared) may use the reserve beyond the
    limits: refusing it under overload would strand what it is about to free.
    """

    def __init__(
        self,
        limits: LaneLimits,
        *,
        total: LaneLimits | None = None,
        reserve: tuple[int, int] = NO_RESERVE,
    ) -> None:
        """`reserve` is (items, bytes) on top of each limit, for finishing work only."""
        if min(reserve) < 0:
            raise ValueError("a reserve is not negative")
        self._limits = limits
        self._items_max, self._size_max = limits.items, limits.size
        self._total_limits = total
        self._total_items = total.items if total is not None else inf
        self._total_size = total.size if total is not None else inf
        self._reserve = reserve
        self._lanes: dict[K, _Lane[T]] = {}
        self._pace = _Pace()  # of any lane, for those not yet measured
        self.depth = 0
        self.size = 0

    def __len__(self) -> int:
        """How many lanes hold something."""
        return len(self._lanes)

    def offer(
        self, key: K, item: T, size: int, now_ns: int, finishing: bool = False
    ) -> Refusal | None:
        """Append `item` to the lane of `key`, or say why not. A refused offer changed nothing."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = _Lane()
        depth = lane.depth
        used = lane.size + size
        # One comparison each for the common case; why not is found out only if it is refused.
        if (
            finishing
            or depth >= self._items_max
            or used > self._size_max
            or self.depth >= self._total_items
            or self.size + size > self._total_size
        ):
            refusal = self._check_limits(key, lane, size, finishing)
            if refusal is not None:
                return refusal
        if not depth:
            self._lanes[key] = lane
            lane.settled_ns = now_ns  # busy from now on: the drain rate is measured over busy time
        lane.queue.append(item)
        lane.sizes.append(size)
        lane.depth = depth + 1
        lane.size = used
        self.depth += 1
        self.size += size
        return None

    def _check_limits(self, key: K, lane: _Lane[T], size: int, finishing: bool) -> Refusal | None:
        items_over, size_over = self._reserve if finishing else NO_RESERVE
        limits = self._limits
        if lane.depth >= limits.items + items_over:
            return self._refusal(key, lane, f"{limits.items} items")
        if lane.size + size > limits.size + size_over:
            return self._refusal(key, lane, f"{limits.size} bytes")
        total = self._total_limits
        if total is not None:
            if self.depth >= total.items + items_over:
                return self._refusal(key, lane, f"{total.items} items in all lanes", shared=True)
            if self.size + size > total.size + size_over:
                return self._refusal(key, lane, f"{total.size} bytes in all lanes", shared=True)
        return None

    def drain(self, key: K, *, items: int, size: int) -> Drained[K, T]:
        """Take up to `items` items and `size` bytes from a lane, in order.

        An item is never split: one that is larger than `size` leaves alone.
        """
        lane = self._lanes[key]
        queue, sizes = lane.queue, lane.sizes
        if len(queue) <= items and len(queue) == lane.depth and lane.size <= size:
            everything = list(queue)
            queue.clear()
            sizes.clear()
            lane.room = items
            return Drained(key, everything, lane.size)
        taken: list[T] = []
        taken_size = 0
        while queue and len(taken) < items:
            if taken_size + sizes[0] > size and taken:
                break
            taken.append(queue.popleft())
            taken_size += sizes.popleft()
        lane.room = len(taken) if queue else items
        return Drained(key, taken, taken_size)

    def withdraw(self, key: K) -> list[T]:
        """Take out everything that waits in a lane and settle it at once: it will not be done."""
        lane = self._lanes[key]
        items = list(lane.queue)
        size = sum(lane.sizes)
        lane.queue.clear()
        lane.sizes.clear()
        lane.depth -= len(items)
        lane.size -= size
        self.depth -= len(items)
        self.size -= size
        if not lane.depth:
            del self._lanes[key]
        return items

    def settle(self, key: K, count: int, size: int, now_ns: int) -> bool:
        """`count` drained items of `size` bytes are done with; True if the lane still has items."""
        lane = self._lanes[key]
        assert len(lane.queue) + count <= lane.depth, "more was settled than drained"
        if count:
            busy_ns = max(now_ns - lane.settled_ns, 0)
            # A lane that was emptied could have given more in the same time, most of which goes
            # into one sync. Judged by what it gave, a quiet lane would look slow once it is full.
            could = max(count, lane.room)
            lane.room = 0
            lane.pace.note(busy_ns, could)
            self._pace.note(busy_ns, could)
            lane.settled_ns = now_ns
        lane.depth -= count
        lane.size -= size
        self.depth -= count
        self.size -= size
        if not lane.depth:
            del self._lanes[key]
        return bool(lane.queue)

    def has_items(self, key: K) -> bool:
        """Whether the lane has items that are not drained yet."""
        lane = self._lanes.get(key)
        return lane is not None and bool(lane.queue)

    def depth_of(self, key: K) -> int:
        """Items of this lane, waiting and in flight."""
        lane = self._lanes.get(key)
        return lane.depth if lane is not None else 0

    def depths(self) -> dict[K, tuple[int, int]]:
        """(items, bytes) of every lane that holds something, in flight included."""
        return {key: (lane.depth, lane.size) for key, lane in self._lanes.items()}

    def waiting(self) -> tuple[int, int]:
        """(items, bytes) that are not drained yet; counted, so it takes a while."""
        lanes = self._lanes.values()
        return sum(len(lane.queue) for lane in lanes), sum(sum(lane.sizes) for lane in lanes)

    def _refusal(self, key: K, lane: _Lane[T], limit: str, *, shared: bool = False) -> Refusal:
        depth = lane.depth
        if shared and self._lanes:
            # This lane may be empty and still has to wait for the others, who drain side by side.
            depth = max(depth, self.depth // len(self._lanes))
        items = max(depth // 4, 1)
        wait_ns = lane.pace.for_items(items)
        if wait_ns is None:
            wait_ns = self._pace.for_items(items)
        if wait_ns is None:
            wait_ns = RETRY_UNMEASURED_NS
        return Refusal(key, lane.depth, limit, min(max(wait_ns, RETRY_MIN_NS), RETRY_MAX_NS))

    def check(self) -> None:
        """Assert every invariant."""
        items_over, size_over = self._reserve
        assert self.depth == sum(lane.depth for lane in self._lanes.values())
        assert self.size == sum(lane.size for lane in self._lanes.values())
        for lane in self._lanes.values():
            assert len(lane.queue) <= lane.depth <= self._limits.items + items_over
            assert len(lane.queue) == len(lane.sizes)
            assert sum(lane.sizes) <= lane.size
            assert lane.size <= self._limits.size + size_over
            assert lane.depth > 0, "an empty lane is forgotten"
        if self._total_limits is not None:
            assert self.depth <= self._total_limits.items + items_over
            assert self.size <= self._total_limits.size + size_over

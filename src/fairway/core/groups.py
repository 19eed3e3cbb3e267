"""Which items go together next: `lanes` that fill, `ready` that rotates, joined into one machine.

The writer and the reader of the log are this machine with a thin shell round it. It promises, for
any order of calls: items of a key leave in the order they came (FIFO); a key is in at most one
group at a time (one owner); a key with items is waiting or in a group (nothing is stranded); every
accepted item leaves exactly once; while a key waits, no other key of its band has two turns (nobody
starves). Bands, if there are several, share the turns by weight, as `ready` states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from fairway.core.lanes import NO_RESERVE, Drained, LaneLimits, Lanes, Refusal
from fairway.core.ready import Ready

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

K = TypeVar("K", bound="Hashable")
T = TypeVar("T")

ONE_BAND = {"": 1}


class Groups(Generic[K, T]):
    """Bounded lanes whose keys take turns; each turn is a part of a group."""

    def __init__(
        self,
        limits: LaneLimits,
        *,
        total: LaneLimits | None = None,
        reserve: tuple[int, int] = NO_RESERVE,
        bands: Mapping[str, int] = ONE_BAND,
    ) -> None:
        """`bands` are the weights of the bands that keys wait in; a key is always of the same."""
        self._lanes: Lanes[K, T] = Lanes(limits, total=total, reserve=reserve)
        self._ready: Ready[K, str] = Ready(bands)
        self._taken = self._taken_size = 0

    @property
    def depth(self) -> int:
        """Accepted items that are not settled, in flight included."""
        return self._lanes.depth

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._lanes.size

    @property
    def waiting(self) -> tuple[int, int]:
        """(items, bytes) that are in no group yet."""
        return self._lanes.depth - self._taken, self._lanes.size - self._taken_size

    @property
    def waiting_keys(self) -> int:
        """Keys that a group could take now."""
        return len(self._ready)

    def offer(
        self, key: K, item: T, size: int, now_ns: int, finishing: bool = False, band: str = ""
    ) -> Refusal | None:
        """Accept an item, or say why not (then nothing changed)."""
        refusal = self._lanes.offer(key, item, size, now_ns, finishing)
        if refusal is None:
            self._ready.mark(key, band, now_ns)
        return refusal

    def take(
        self,
        *,
        keys: int,
        items: int,
        size: int,
        total_items: int | None = None,
        total_size: int | None = None,
    ) -> list[Drained[K, T]]:
        """The next group: up to `keys` keys, up to `items` items or `size` bytes of each.

        Once `total_items` items or `total_size` bytes are gathered no further key joins; a key that
        joins brings at least one item, whatever its size. Each key is in the caller's hands alone
        until `settle`.
        """
        group: list[Drained[K, T]] = []
        left, left_items = total_size, total_items
        while (
            len(group) < keys
            and (left is None or left > 0)
            and (left_items is None or left_items > 0)
        ):
            key = self._ready.take()
            if key is None:
                break
            room = size if left is None else min(size, left)
            most = items if left_items is None else min(items, left_items)
            drained = self._lanes.drain(key, items=most, size=room)
            if left is not None:
                left -= drained.size
            if left_items is not None:
                left_items -= len(drained.items)
            self._taken += len(drained.items)
            self._taken_size += drained.size
            group.append(drained)
        return group

    def settle(self, drained: Drained[K, T], now_ns: int, band: str = "") -> None:
        """A key's part of a group is done: free its room, and let it wait again if it has more."""
        more = self._lanes.settle(drained.key, len(drained.items), drained.size, now_ns)
        self._taken -= len(drained.items)
        self._taken_size -= drained.size
        if more:
            self._ready.mark(drained.key, band, now_ns)
        self._ready.release(drained.key, now_ns)

    def withdraw(self, key: K) -> list[T]:
        """Take out everything that waits in a lane, which its caller holds, without a turn."""
        assert self._ready.is_taken(key), "only the holder of a key may empty its lane"
        self._ready.forget(key)  # it was marked for what is being taken out
        return self._lanes.withdraw(key)

    def depths(self) -> dict[K, tuple[int, int]]:
        """(items, bytes) of every lane that holds something."""
        return self._lanes.depths()

    def depth_of(self, key: K) -> int:
        """Items of this lane, waiting and in flight."""
        return self._lanes.depth_of(key)

    def check(self) -> None:
        """Assert every invariant."""
        self._lanes.check()
        self._ready.check()
        assert self.waiting == self._lanes.waiting(), "what waits and what is taken is all there is"
        for key in self._lanes.depths():
            waits = self._ready.waiting_in(key) is not None
            assert waits or self._ready.is_taken(key), f"{key} is stranded"

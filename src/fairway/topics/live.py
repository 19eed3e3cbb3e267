"""What only a topic in use has: writes under way, who reads it, and its newest records.

A topic that nobody uses is a `Topic` and nothing else, so that very many of them fit in memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from fairway.core.priority import Band

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.topics.tags import TagIndex
    from fairway.topics.tail import Tail
    from fairway.topics.topic import Gap, Removal
    from fairway.topics.watching import View, Watcher


class Write:
    """A write under way, told its outcome by the log itself; `then` is given its error, or None.

    It stands where a future would, without the turn of the loop that a future's callback costs.
    """

    __slots__ = ("_decided", "_live", "error", "known", "then")

    def __init__(self, live: LivePart, then: Callable[[BaseException | None], None]) -> None:
        self._live = live
        self._decided: asyncio.Future[None] | None = None
        self.then = then
        self.known = False
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.known

    def set_result(self, last_key: int) -> None:
        self.known = True
        self._live.settle()
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(None)

    def set_exception(self, error: BaseException) -> None:
        self.known = True
        self.error = error
        self._live.settle()
        if self._decided is not None and not self._decided.done():
            self._decided.set_exception(error)
            self._decided.exception()  # whoever waited may be gone

    def decided(self) -> asyncio.Future[None]:
        """Resolves with the outcome, once `then` was told. Shared: shield it."""
        if self._decided is None:
            self._decided = asyncio.get_running_loop().create_future()
        return self._decided


class Doubt(NamedTuple):
    """A change of unknown outcome: the snapshot it wrote tells, and then it is applied."""

    snapshot: bytes
    seq: int
    """It comes after records below this seq."""
    apply: Callable[[], None]


class LivePart:
    """What only a topic in use has: its hot tail, what is under way, and who reads it."""

    __slots__ = (
        "changing",
        "dirty_band",
        "dirty_ns",
        "doubt",
        "failures",
        "front",
        "gaps",
        "held_ns",
        "in_doubt",
        "lock",
        "pending_bytes",
        "pending_count",
        "producers",
        "quick",
        "readers",
        "reclaiming",
        "removal",
        "reservation",
        "reserving",
        "routers",
        "tags",
        "tail",
        "under_way",
        "unsaved",
        "waiters",
    )

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.front: Tail | None = None  # its oldest batches, if the tail does not reach them
        self.tags: TagIndex | None = None
        self.pending_count = 0
        self.pending_bytes = 0
        self.producers: dict[str, tuple[int, int]] = {}
        self.readers: dict[View, list[Watcher]] = {}
        self.routers: list[Watcher] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.dirty_ns = 0  # since when it has waited for delivery; 0 if it does not
        self.dirty_band = Band.B0  # where it got in line then
        self.held_ns = 0  # how long that band had been withheld by then
        self.changing = False  # its class is being changed, and nothing may be numbered meanwhile
        self.doubt = False  # a write's outcome is unknown: the store must be asked before the next
        self.unsaved = False  # it is on the list of topics to be snapshotted
        self.lock = asyncio.Lock()  # held while it is worked out what to evict or delete
        self.reclaiming = False  # by who holds the lock: what memory holds may be evicted meanwhile
        self.removal: Removal | None = None
        self.reservation: asyncio.Future[int] | None = None  # the newest under way
        self.reserving = 0  # the highest seq whose reservation is written or being written
        self.quick = 0  # batches that readers may see and that are not written yet
        self.failures = 0  # writes that failed so far: what was read before one proves nothing
        self.under_way: list[Write] = []  # an empty deque would be half of all this
        self.gaps: list[Gap] = []  # numbered, and not shown yet
        self.in_doubt: list[Doubt] = []

    @property
    def all_shown(self) -> bool:
        """Whether readers may see everything that was numbered."""
        return len(self.under_way) == self.quick

    def settle(self) -> None:
        """Take in every write that is decided, in the order of the log."""
        under_way = self.under_way
        while under_way and under_way[0].known:
            write = under_way.pop(0)
            write.then(write.error)

    async def wait_written(self) -> None:
        """Return when everything that readers may see by now can be read from the store."""
        if self.quick and self.under_way:
            await asyncio.wait([self.under_way[-1].decided()])

    @property
    def pending(self) -> tuple[int, int]:
        """(records, bytes) of appends under way."""
        return self.pending_count, self.pending_bytes

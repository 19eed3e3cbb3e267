"""The writes of a topic that are under way: numbered and queued, and not decided yet.

They are taken in in the order of the log, so a topic changes in that order, whichever of them the
store answers first. What they will change once they are written is known here: snapshots are queued
behind them and include it.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.runtime.completion import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.topics.operations import Hole, Removal
    from fairway.wire.topics import TopicConfig


class Write(msgspec.Struct, eq=False):
    """A write under way. The log calls `settled`; once all before it are settled as well, `then` is
    given its error, or None."""

    writes: Any
    """The `Writes` that it is one of."""
    then: Callable[[BaseException | None], None]
    count: int = 0
    """Records that readers see once it is written."""
    size: int = 0
    shown: bool = False
    """There are none of them, or readers see them already."""
    known: bool = False
    error: BaseException | None = None
    waited: asyncio.Future[None] | None = None

    def settled(self, last_key: int | None, error: BaseException | None) -> None:
        """The log has written it, or failed to: its `OnDone`."""
        self.known = True
        self.error = error
        self.writes.settle()
        if self.waited is not None:
            settle(self.waited, None, error)

    def decided(self) -> asyncio.Future[None]:
        """Resolves with the outcome, once `then` was called. Shared: shield it."""
        if self.waited is None:
            self.waited = asyncio.get_running_loop().create_future()
        return self.waited


class Writes:
    """The writes of one topic that are under way, in the order of the log."""

    __slots__ = (
        "_shown",
        "_under_way",
        "config",
        "failures",
        "gaps",
        "halted",
        "pending_bytes",
        "pending_count",
        "pins",
        "removal",
    )

    def __init__(self) -> None:
        self._under_way: list[Write] = []  # an empty deque would be half of all this
        self._shown = 0  # how many of them readers may see already, or have nothing to show
        self.pending_count = 0
        """Records that readers may not see yet."""
        self.pending_bytes = 0
        self.gaps: tuple[Hole, ...] = ()
        """Seqs without records that are numbered, and not shown yet."""
        self.removal: Removal | None = None
        """The deletion that is being written."""
        self.pins: tuple[int, ...] = ()
        """From where on rows stay stored once that is written, in the order of the log."""
        self.config: TopicConfig | None = None
        """The configuration that is being written."""
        self.failures = 0
        """Writes that failed so far: what was read before one proves nothing."""
        self.halted = False
        """Nothing may be numbered now: the class of the topic is being changed."""

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, write: Write) -> None:
        """A write is queued, behind all others."""
        self._under_way.append(write)
        if write.shown:
            self._shown += 1
        else:
            self.pending_count += write.count
            self.pending_bytes += write.size

    def settle(self) -> None:
        """Take in every write that is decided, in the order of the log."""
        under_way = self._under_way
        while under_way and under_way[0].known:
            write = under_way.pop(0)
            if write.shown:
                self._shown -= 1
            else:
                self.pending_count -= write.count
                self.pending_bytes -= write.size
            write.then(write.error)

    @property
    def all_shown(self) -> bool:
        """Whether readers may see everything that was numbered."""
        return len(self._under_way) == self._shown

    async def wait_written(self) -> None:
        """Return when everything that readers may see by now can be read from the store."""
        if self._shown:
            await self.wait_decided()

    async def wait_decided(self) -> None:
        """Return when everything that is under way by now is written, or has failed."""
        if self._under_way:
            await asyncio.wait([self._under_way[-1].decided()])

    # What they will change

    def begin_gap(self, gap: Hole) -> None:
        self.gaps = (*self.gaps, gap)

    def end_gap(self, gap: Hole) -> None:
        self.gaps = tuple(one for one in self.gaps if one is not gap)

    def begin_removal(self, removal: Removal) -> None:
        """Snapshots that are written from now on come after it and must know of it."""
        self.removal = removal

    def end_removal(self) -> None:
        self.removal = None

    def begin_config(self, config: TopicConfig) -> None:
        """It is being written what the topic is configured as from there on."""
        self.config = config

    def end_config(self) -> None:
        self.config = None

    @contextmanager
    def pinning(self, seq: int) -> Iterator[None]:
        """It is being written that rows from `seq` on stay stored."""
        self.pins = (*self.pins, seq)
        try:
            yield
        finally:
            self.pins = self.pins[1:]  # they are written in order

    # Failures

    def note_failure(self) -> None:
        """A write failed: what was read before proves nothing."""
        self.failures += 1

    def halt(self) -> None:
        self.halted = True

    def resume(self) -> None:
        self.halted = False

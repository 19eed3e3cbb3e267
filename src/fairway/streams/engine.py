"""`Streams`, the part: every Durable Stream of an app, kept in its topics, and their upkeep.

It runs with the app, whether or not a server does: what expires goes, though nobody asks. A stop
refuses what would be stored and lets live readers go; what follows from a deletion is finished.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairway.errors import Closing
from fairway.kernel.part import OK, Part, PartHealth
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import clock_of
from fairway.streams.appending import StreamAppender
from fairway.streams.reading import StreamReader
from fairway.streams.store import StreamStore
from fairway.streams.upkeep import StreamUpkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fairway.streams.port import BackingTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    sweep_ns: int = 1_000_000_000
    """How often expired streams are removed. Raising it keeps their data a little longer."""

    def __post_init__(self) -> None:
        check_amounts(self, sweep_ns=1)


class Streams(Part):
    """Every stream of an app. Enter it once its topics are open."""

    name = "streams"

    def __init__(self, topics: BackingTopics, *, config: StreamsConfig | None = None) -> None:
        config = config or StreamsConfig()
        self._topics = topics
        self._upkeep = StreamUpkeep(topics, period_ns=config.sweep_ns)
        self.store = StreamStore(
            topics,
            clock_of(),
            check_admits=self.check_admits,
            start=self._start,
            loaded=self._upkeep.note,
        )
        self.appending = StreamAppender(check_admits=self.check_admits, reload=self.store.reload)
        self.reading = StreamReader(topics, closing=lambda: self.closing)
        self._closing = True
        self._chores: set[asyncio.Task[None]] = set()
        self._unlisten: Callable[[], None] = lambda: None

    # Life

    async def open(self) -> None:
        """Begin with the upkeep, which looks at what a crash left."""
        self._closing = False
        self._unlisten = self._topics.when_deleted(self.store.forget)
        self.spawn(self._upkeep.run(self.store), self._upkeep.name)

    def stop_admitting(self) -> None:
        """Refuse what would be stored, and let whoever waits for records go."""
        self._closing = True
        for stream in self.store:
            stream.topic.wake()

    async def drain(self) -> None:
        """Finish what follows from deletions; cut short, the next start finds it."""
        if self._chores and not self.cut_short:
            await asyncio.wait(self._chores)

    async def aclose(self) -> None:
        self._closing = True
        self._unlisten()

    @property
    def closing(self) -> bool:
        """Whether it is not yet, or no longer, open: whoever waits for records should go."""
        return self._closing or self._topics.closing

    def check_admits(self) -> None:
        """Raise what an append or a new stream would be refused with now, whichever it is."""
        if self._closing:
            raise Closing("streams are closing")
        self._topics.check_admits()

    def health(self) -> PartHealth:
        """Degraded while a stream that is over cannot be removed; requests are served all the
        same."""
        trouble = self._upkeep.trouble
        return OK if trouble is None else PartHealth("degraded", trouble)

    def _start(self, chore: Coroutine[Any, Any, None]) -> None:
        if self.closing:
            chore.close()  # the next start finds the loose end
            return
        task = self.spawn(chore, "streams-chore")
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

"""The contract of a feed: where the events of a source come from, if they are not pushed.

Write one of these to read from a broker of your own; `feeds/` has those that Fairway brings.

A `Feed` is a declaration: what to read, and how to reach it. It is opened each time the source is
started, and what it opens, a `Connection`, is used by one task from `connect` to `aclose`:

    connect(marks)   begin after these offsets; an empty dict begins where the feed thinks best.
                     Events that it returns are taken in before the source is live
    receive()        the next events, at least one; wait for them
    commit(marks)    all up to these offsets is consumed for good: the broker may be told
    aclose()         let go

Losing the other side is no failure: raise `FeedLost` and the source is `Disconnected`, and
`connect` is called again after a while, for ever. A connection that mends itself calls
`report(False, why)` when it is lost and `report(True)` when it is back, and just goes on waiting.
Any other exception is the death of the source, which is restarted a few times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from fairway.graphs.boundary import Marks


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Event(NamedTuple):
    """One event of a feed."""

    data: Any
    """JSON as bytes, or the value itself."""
    stream: str = ""
    offset: int = 0
    """Rises within the stream, from 1. 0: it cannot be read again."""


class Report(Protocol):
    """Tell whether the other side is there."""

    def __call__(self, connected: bool, why: str = "") -> None: ...


class Connection(Protocol):
    """An open feed."""

    async def connect(self, marks: Marks) -> Sequence[Event] | None: ...

    async def receive(self) -> Sequence[Event]: ...

    async def commit(self, marks: Marks) -> None: ...

    async def aclose(self) -> None: ...


class InThread(Protocol):
    """Run a call that blocks, off the event loop."""

    async def __call__(self, call: Callable[[*Ts], T], *args: *Ts) -> T: ...


class Arrivals(Protocol):
    """Records of a topic as they come: its incarnation, then seqs and JSON; a port of the app."""

    def __call__(
        self, topic: str, epoch: int | None, seq: int
    ) -> AsyncIterator[tuple[int, Sequence[tuple[int, bytes]]]]: ...


class FeedContext(NamedTuple):
    """What a feed may use of the process it runs in."""

    graph: str
    source: str
    tenant: str
    report: Report
    in_thread: InThread
    """`await in_thread(function, *args)` runs a call that blocks."""
    arrivals: Arrivals | None = None
    """How topics are read; None where there are none."""


class Feed(Protocol):
    """What to read. Anything with `open` will do."""

    def open(self, context: FeedContext) -> Connection: ...

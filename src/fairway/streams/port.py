"""What streams need of topics, as Protocols: the app brings something that fits.

A stream is kept in a topic, its metadata in the same operations as its records. Names of metadata
are the stream's own: whoever fills this port keeps them apart from what the topic itself stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from fairway.runtime.completion import OnDone
    from fairway.streams.stored import Segment
    from fairway.wire.records import Records

    Meta = Mapping[str, bytes | None]
    """What is stored beside records, by name; None removes it."""


class TopicRecord(Protocol):
    @property
    def seq(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class TopicGap(Protocol):
    """Records `first` to `last` are lost against anybody's will."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def reason(self) -> str: ...


class TopicPage(Protocol):
    """Records after a seq, in order; a gap, if there is one, comes before them."""

    @property
    def records(self) -> Sequence[TopicRecord]: ...
    @property
    def gap(self) -> TopicGap | None: ...
    @property
    def next_seq(self) -> int:
        """Everything up to here was looked at."""
        ...


class BackingTopic(Protocol):
    """One incarnation of a topic that keeps a stream."""

    @property
    def name(self) -> str: ...
    @property
    def epoch(self) -> int:
        """The number of this incarnation: higher than that of any topic made before it."""
        ...

    @property
    def deleted(self) -> bool: ...
    @property
    def head(self) -> int:
        """The last seq that readers may see."""
        ...

    @property
    def last_ts(self) -> int:
        """When its last record was accepted, in milliseconds; 0 if there is none."""
        ...

    @property
    def durability(self) -> str: ...
    @property
    def evict_floor(self) -> int:
        """Records below it are lost, for `floor_reason`."""
        ...

    @property
    def floor_reason(self) -> str | None: ...
    @property
    def delete_floor(self) -> int:
        """Records below it were deleted on request, if they were not lost before."""
        ...

    @property
    def holes(self) -> Sequence[tuple[int, int, str]]:
        """Lost above the floor: first and last seq, and why."""
        ...

    # Writing

    async def prepare(self, records: Records) -> None:
        """Fetch what `submit` needs to know of the store before it can number these records."""
        ...

    def submit(
        self,
        records: Records,
        on_done: OnDone[int],
        *,
        meta: Meta,
        position: tuple[str, int, int] | None = None,
        trace: str | None = None,
    ) -> None:
        """Number and queue records with metadata, or metadata alone, in one step of the loop.

        `position` is a producer, its epoch and the number of this append. `on_done` is given
        the last seq once all of it is durable, and not before this returns.
        """
        ...

    async def append(self, records: Records, *, meta: Meta, trace: str | None = None) -> None:
        """Prepare, submit and wait until it is durable."""
        ...

    def note(self, meta: Meta) -> None:
        """Queue metadata that a crash may take; raises if it is refused."""
        ...

    async def position_of(self, producer: str) -> tuple[int, int] | None:
        """The (epoch, number) of a producer's last append, under way or written."""
        ...

    def queued_position_of(self, producer: str) -> tuple[int, int] | None:
        """The same, as far as memory knows it, once every write that is decided was taken in."""
        ...

    async def meta(self, prefix: str) -> dict[str, bytes]:
        """The stored metadata whose names begin with `prefix`."""
        ...

    # Keeping what forks need

    def hold(self, seq: int) -> None:
        """Trim nothing from `seq` on, as of now; a crash forgets it."""
        ...

    def hold_only(self, seq: int) -> None:
        """Go back to holding what is there from `seq` on, and nothing below it; 0 lets it go."""
        ...

    async def pin(self, seq: int, meta: Meta) -> None:
        """Hold what is stored from `seq` on, durably, and write `meta` with that; 0 lets it go."""
        ...

    # Reading

    async def page(self, after: int, *, limit: int, max_bytes: int) -> TopicPage:
        """Live records after a seq, up to the head."""
        ...

    async def page_as_of(
        self, segment: Segment, after: int, *, limit: int, max_bytes: int
    ) -> TopicPage:
        """The same, of what there was when a fork was made: what it holds is stored still."""
        ...

    async def append_at(self, seq: int) -> tuple[int, Iterable[bytes]] | None:
        """The stored append that holds `seq`, or the first one behind it: its first seq and the
        data of its records."""
        ...

    def about_behind(self, seq: int) -> int:
        """About how many bytes of records lie behind a seq."""
        ...

    async def wait_written(self) -> None:
        """Wait until what readers may see by now is stored, or known to be lost."""
        ...

    def change(self) -> AbstractContextManager[asyncio.Future[None]]:
        """A future that resolves when there is news, or no more reason to wait for any."""
        ...

    def wake(self) -> None:
        """Whoever waits for a change looks again."""
        ...

    def touch(self) -> None:
        """Somebody uses it: recency."""
        ...


class BackingTopics(Protocol):
    """Every topic of an app."""

    @property
    def closing(self) -> bool:
        """Whether it is no longer open: whoever waits for news should go."""
        ...

    def check_admits(self) -> None:
        """Raise what an append would be refused with now, whichever its topic."""
        ...

    def find(self, name: str) -> BackingTopic | None: ...
    def ordered(self, prefix: str, after: str) -> Sequence[BackingTopic]:
        """Some of the topics whose name begins with `prefix` and lies above `after`, in order."""
        ...

    async def create(self, name: str, *, owner: str) -> tuple[BackingTopic, bool]:
        """Make a topic if there is none of that name; True if this call did."""
        ...

    async def delete(self, name: str) -> None: ...
    def when_deleted(self, listener: Callable[[str, int], None]) -> Callable[[], None]:
        """Tell `listener` the name and epoch of every topic that is gone, whoever deleted it,
        until what this returns is called."""
        ...

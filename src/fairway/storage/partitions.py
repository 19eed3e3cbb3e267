"""The port between a part and its log: what may be asked of partitions, wherever they are kept.

A part sees ordered partitions of entries with metadata beside them, each changed by one operation
at a time, all or nothing. Whether one machine keeps them or several agree on them is not its
business: `Log` fills the port on one machine, and whoever replicates partitions fills it too. How
a store is driven (its threads, how long a group lingers, whether its files may grow) is no part of
it; those knobs belong to the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from fairway.storage.wal import INT_MAX
from fairway.storage.writer import Durability

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from fairway.errors import Fenced
    from fairway.runtime.completion import OnDone
    from fairway.storage.ownership import Ownership
    from fairway.storage.wal import Entry, Operation, Tail

T = TypeVar("T")


class StoredPartitions(Protocol):
    """What is stored, as `Partitions.read_many` shows it: read off the event loop, in one go."""

    def read(
        self, partition: int, *, first: int = 1, limit: int = 1000, max_bytes: int = 8 * 1024 * 1024
    ) -> list[Entry]: ...

    def meta(self, partition: int, name: str) -> bytes | None: ...


class Partitions(Protocol):
    """Ordered partitions that survive a crash. A partition exists once something was written to it.

    `append`, `submit` and `submit_for` accept at once and in order, or raise with nothing accepted
    (`Backpressure`, `Closing`, `InvalidOperation`, `Fenced`). What was accepted is then written, or
    its caller hears how it failed: `WriteFailed` if nothing of it was written, `OutcomeUnknown` if
    nobody can say.
    """

    def append(
        self,
        partition: int,
        payload: bytes,
        *,
        term: int = 0,
        durability: Durability = Durability.FSYNC,
    ) -> asyncio.Future[int]:
        """Append one entry under the next key. The result is the key, once it is durable."""
        ...

    def submit(
        self,
        partition: int,
        operation: Operation,
        *,
        durability: Durability = Durability.FSYNC,
        finishing: bool = False,
    ) -> asyncio.Future[int]:
        """Accept an operation; the result is the last key of the partition.

        `finishing` work, which completes what was accepted before, may use the reserve beyond the
        bounds of its lane.
        """
        ...

    def submit_for(
        self,
        on_done: OnDone[int],
        partition: int,
        operation: Operation,
        *,
        durability: Durability = Durability.FSYNC,
        finishing: bool = False,
        urgent: bool = False,
    ) -> None:
        """As `submit`, with a callback: it costs no future and no turn of the loop.

        It is called within this call if the durability is MEMORY, and never before otherwise. What
        is `urgent` does not linger for company.
        """
        ...

    async def delete(self, partition: int) -> None:
        """Delete a partition durably. Its rows go later."""
        ...

    async def read(
        self,
        partition: int,
        *,
        first: int = 1,
        last: int = INT_MAX,
        limit: int = 1000,
        max_bytes: int = 8 * 1024 * 1024,
        backwards: bool = False,
    ) -> list[Entry]:
        """Entries with `first <= key <= last`, rising, or falling if `backwards`."""
        ...

    def entries(
        self, partition: int, *, first: int = 1, last: int = INT_MAX
    ) -> AsyncIterator[Entry]:
        """Every such entry, rising, read a page at a time."""
        ...

    async def read_many(self, call: Callable[[StoredPartitions], T]) -> T:
        """One call, off the loop, that reads many partitions at once: for recovery, when nobody
        else reads, so that there is nothing to be fair about."""
        ...

    async def meta(self, partition: int, name: str) -> bytes | None:
        """The metadata value under `name`, or None."""
        ...

    async def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Metadata names with `prefix`, above `after`, in order of their UTF-8 bytes."""
        ...

    async def tail(self, partition: int) -> Tail:
        """Where the partition ends in the store."""
        ...

    def last_key(self, partition: int) -> int:
        """The last key, once everything accepted so far is written. Asks no disk.

        Raises `WriteFailed` while nobody knows, after a write of unknown outcome: until the store
        was asked, what it said before is no answer.
        """
        ...

    def floor(self, partition: int) -> int:
        """The lowest key that may be there, once everything accepted so far is written."""
        ...

    def partitions(self) -> list[int]:
        """Every partition that exists, in order."""
        ...

    @property
    def unsynced_kept(self) -> bool:
        """Whether what was written without a sync is known to be there still: the machine did not
        go down since."""
        ...

    @property
    def ownership(self) -> Ownership | None:
        """Until when partitions may be answered from; None if for as long as they are open."""
        ...

    def check_owned(self) -> None:
        """Raises `Fenced` once another process may own them. For whoever answers from memory; what
        `read` and its like return was checked."""
        ...

    @property
    def lost(self) -> Fenced | None:
        """Set once they belong to somebody else."""
        ...

    @property
    def when_lost(self) -> list[Callable[[Fenced], None]]:
        """Called when that is noticed."""
        ...

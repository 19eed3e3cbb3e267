"""The fair log: a `Wal` with a fair writer and a fair reader in front of it.

It fills the port `Partitions` on one machine. It owns the store from its opening to its close and
the upkeep that no caller waits for; it decides nothing itself. What the port does not name (how
long a group lingers, how many callers are notified in a turn, whether files may grow) is for the
kernel.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fairway.errors import Closing, FairwayError, Fenced
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.runtime.lifecycle import Lifecycle
from fairway.runtime.telemetry import Telemetry
from fairway.runtime.turn import TURN
from fairway.storage.reader import FairReader, ReaderConfig
from fairway.storage.tails import Tails
from fairway.storage.wal import (
    DELETE,
    INT_MAX,
    Entry,
    HardState,
    Holding,
    Leased,
    Operation,
    Tail,
    Vouching,
)
from fairway.storage.writer import Durability, FairWriter, WriterConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fairway.runtime.completion import OnDone
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.ownership import Ownership
    from fairway.storage.partitions import StoredPartitions
    from fairway.storage.statistics import ReaderStatistics, WriterStatistics
    from fairway.storage.wal import Wal

T = TypeVar("T")

logger = logging.getLogger("fairway.log")

UPKEEP_S = (
    0.2  # short, so that a checkpoint has little to move and no commit waits long for the disk
)
SWEEP_ROWS = 250
SWEEP_NS = 1_000_000_000
"""How long rows are swept before the store's other upkeep has a turn."""


class Log(Lifecycle):
    """Many ordered partitions in one store, written and read fairly.

        async with Log(wal_at("./data")) as log:
            key = await log.append(7, b"hello")
            entries = await log.read(7)

    Entering takes ownership of the store and restores it; if that fails, the error names the file
    and partition and the log refuses all work. Leaving stops admission, completes **everything**
    that was accepted, and closes the store.
    """

    def __init__(
        self,
        wal: Wal,
        *,
        writer: WriterConfig | None = None,
        reader: ReaderConfig | None = None,
        telemetry: Telemetry | None = None,
        turn: TurnBudget = TURN,
        held: bool = False,
    ) -> None:
        """If it is `held`, the files of the store stay as they are found until `release`: for
        whoever has to see first whether what is in them makes sense. The first write releases."""
        self._wal = wal
        self._held = wal if held and isinstance(wal, Holding) else None
        self._released = asyncio.Event()
        self._writer_config = writer or WriterConfig()
        self._reader_config = reader or ReaderConfig()
        self._telemetry = telemetry
        self.turn = turn
        self._refusal: FairwayError = Closing("the log is not open")
        self._writer: FairWriter | None = None
        self._reader: FairReader | None = None
        self._opened = False
        self.ownership: Ownership | None = wal.ownership if isinstance(wal, Leased) else None
        """Until when it may be answered from; None if a lock decides, for as long as it is open."""
        self.lost: Fenced | None = None
        """Set once the store belongs to somebody else."""
        self.when_lost: list[Callable[[Fenced], None]] = []
        """Called when that is noticed, at the next upkeep if nothing is written meanwhile."""

    async def open(self) -> None:
        assert self._writer is None, "a log is entered once"
        try:
            async with BlockingPool(1, name="log-open") as opener:
                open_ = self._wal.open if self._held is None else self._held.open_held
                self._tails = Tails(await opener.run(open_))
                for partition in await opener.run(self._wal.deleting):
                    self._tails.deleted(partition)
        except BaseException as error:
            if isinstance(error, FairwayError):
                self._refusal = error
            self._wal.close()
            raise
        self._opened = True
        clock = clock_of()
        writers = self._writer_config.workers or self._wal.parallelism
        threads = writers + self._reader_config.workers + 1
        self._pool = BlockingPool(threads, name="log", turn=self.turn)
        self._writer = FairWriter(
            self._wal,
            self._pool,
            self._tails,
            config=self._writer_config,
            clock=clock,
            telemetry=self._telemetry,
            turn=self.turn,
        )
        self._reader = FairReader(
            self._pool,
            config=self._reader_config,
            clock=clock,
            telemetry=self._telemetry,
            turn=self.turn,
        )
        self._sweep = asyncio.Event()
        if self._held is None:
            self._released.set()
        self.spawn(self._writer.run(), "log-writer")
        self.spawn(self._reader.run(), "log-reader")
        self.spawn(self._keep_up(), "log-upkeep")

    async def drain(self) -> None:
        assert self._writer is not None
        assert self._reader is not None
        try:
            # Writes first: a reader may be waiting for one of them, never the other way round.
            await self._writer.drain()
            await self._reader.drain()
        finally:
            self._refusal = Closing("the log is closed")
            self._writer = self._reader = None

    async def aclose(self) -> None:
        if self._opened:
            await asyncio.shield(self._close_store())

    async def _close_store(self) -> None:
        await self._pool.run(self._wal.close)
        await self._pool.aclose()

    def append(
        self,
        partition: int,
        payload: bytes,
        *,
        term: int = 0,
        durability: Durability = Durability.FSYNC,
    ) -> asyncio.Future[int]:
        """Append one entry under the next key. Await the result for the key, once it is durable.

        The entry is accepted, in order, when this returns; awaiting only waits. Raises at once,
        with nothing accepted, `Backpressure`, `Closing` or `InvalidOperation`; awaiting may raise
        `WriteFailed` (nothing was written) or `OutcomeUnknown`.
        """
        writer = self._writer
        if writer is None:
            raise self._refusal
        return writer.append(partition, payload, term, durability)

    def submit(
        self,
        partition: int,
        operation: Operation,
        *,
        durability: Durability = Durability.FSYNC,
        finishing: bool = False,
    ) -> asyncio.Future[int]:
        """Accept any operation: entries, metadata, truncation, compaction, hard state, together.

        Raises and resolves like `append`, with the partition's last key. `finishing` work may use
        the reserve beyond the lane's bounds.
        """
        return self._open_writer().submit(
            partition, operation, durability=durability, finishing=finishing
        )

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
        """As `submit`, with a callback (see `fairway.runtime.completion`): it costs no future and
        no turn of the loop. It is called within this call if the durability is MEMORY.

        What is `urgent` does not wait for company, however long the others linger; and up to
        `acks_per_turn` such callers do not wait for their turn to be notified.
        """
        writer = self._writer
        if writer is None:
            raise self._refusal
        writer.accept(on_done, partition, operation, durability, finishing, urgent)

    async def delete(self, partition: int) -> None:
        """Delete a partition durably. Its rows are swept away later, in chunks; its number can be
        used again once they are (`InvalidOperation` until then)."""
        await self._open_writer().submit(partition, DELETE)
        self._sweep.set()

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
        """Entries with `first <= key <= last`, rising, or falling if `backwards`.

        At most `limit`, and as many as fit in `max_bytes` of payload, but always at least one.
        """
        call = partial(
            self._wal.read,
            partition,
            first=first,
            last=last,
            limit=limit,
            max_bytes=max_bytes,
            backwards=backwards,
        )
        return await self._read(partition, call)

    async def term_at(self, partition: int, key: int) -> int | None:
        """The term of the entry at `key`, or None if there is none."""
        return await self._read(partition, partial(self._wal.term_at, partition, key))

    async def meta(self, partition: int, name: str) -> bytes | None:
        """The metadata value under `name`, or None."""
        return await self._read(partition, partial(self._wal.meta, partition, name))

    async def meta_scan(
        self, partition: int, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Metadata names with `prefix`, above `after`, in order of their UTF-8 bytes."""
        call = partial(self._wal.meta_scan, partition, prefix=prefix, after=after, limit=limit)
        return await self._read(partition, call)

    async def hard_state(self, partition: int) -> HardState | None:
        """The hard state last written, or None."""
        return await self._read(partition, partial(self._wal.hard_state, partition))

    async def tail(self, partition: int) -> Tail:
        """Where the partition ends on disk."""
        return await self._read(partition, partial(self._wal.tail, partition))

    def last_key(self, partition: int) -> int:
        """See `Partitions.last_key`."""
        return self._open_writer().last_key(partition)

    def floor(self, partition: int) -> int:
        """The lowest key that may be there, once everything accepted so far is written."""
        return self._open_writer().tail(partition).floor

    def fill(self) -> float:
        """How full the lanes of the writer are together, 0 to 1; 0 if they have no common bound."""
        return self._open_writer().fill

    @property
    def refused(self) -> int:
        """How many operations were refused for want of room so far."""
        return self._open_writer().refused

    def expedite(self) -> None:
        """If something urgent waits: hear of what the store has done now, not a turn later; hand
        it the next group; pause a moment so that it can go on. The same, without the pause, if a
        group's worth waits.

        For whoever makes a turn of the loop long, between two of its parts. Else it is better to
        wait: more comes together in the next group.
        """
        if self._writer is not None:
            self._writer.expedite()

    @property
    def unsynced_kept(self) -> bool:
        """See `Vouching`; False for a store that cannot tell."""
        return isinstance(self._wal, Vouching) and self._wal.unsynced_kept

    @property
    def pool(self) -> BlockingPool:
        """The threads that call the store, once the log is open."""
        return self._pool

    @property
    def busy_ratio(self) -> float:
        """The share of its threads' time in use of late, 0 to 1."""
        return self._pool.statistics().busy_ratio if self._writer is not None else 0.0

    def partitions(self) -> list[int]:
        """Every partition that exists, in order."""
        self._open_writer()
        return self._tails.existing()

    async def entries(
        self, partition: int, *, first: int = 1, last: int = INT_MAX
    ) -> AsyncIterator[Entry]:
        """Every entry with `first <= key <= last`, rising, read a page at a time."""
        while page := await self.read(partition, first=first, last=last):
            for entry in page:
                yield entry
            first = page[-1].key + 1

    async def verify(self) -> AsyncIterator[tuple[int, int]]:
        """Read everything and check it: yields (partition, entries), or raises `Corrupt`."""
        for partition in self.partitions():
            count = 0
            async for _ in self.entries(partition):
                count += 1
            after = ""
            while names := await self.meta_scan(partition, after=after):
                after = names[-1][0]
            await self.hard_state(partition)
            yield partition, count

    @property
    def linger_ns(self) -> int:
        """How long a group waits for company before it is written; movable at run time."""
        return self._open_writer().linger_ns

    @linger_ns.setter
    def linger_ns(self, value: int) -> None:
        self._open_writer().linger_ns = value

    @property
    def acks_per_turn(self) -> int | None:
        """How many callers are notified in one turn of the loop that their write is done.

        None, as it begins, notifies all of a group at once. A number keeps the loop responsive
        where each of them has much to do; it costs throughput.
        """
        return self._open_writer().acks_per_turn

    @acks_per_turn.setter
    def acks_per_turn(self, value: int | None) -> None:
        self._open_writer().acks_per_turn = value

    def statistics(self) -> tuple[WriterStatistics, ReaderStatistics]:
        """Frozen snapshots of the writer and the reader."""
        return self._open_writer().statistics(), self._open_reader().statistics()

    async def read_many(self, call: Callable[[StoredPartitions], T]) -> T:
        """One call that reads many partitions at once, past the lanes: for recovery, when nobody
        else reads."""
        self._open_reader()
        return await self._pool.run(call, self._wal)

    async def room(self) -> int:
        """See `Wal.room`."""
        self._open_writer()
        return await self._pool.run(self._wal.room)

    async def confine(self, leave: int) -> None:
        """See `Wal.confine`."""
        self._open_writer()
        await self._pool.run(self._wal.confine, leave)

    @property
    def group_bytes_max(self) -> int:
        """How much is written at once at most, but for a single operation that is larger."""
        return self._writer_config.max_group_bytes

    def check_owned(self) -> None:
        """Raises `Fenced` once another process may own the store: what is known here may be out of
        date then. For whoever answers from memory; what `read` and its like return was checked."""
        if self.ownership is not None:
            self.ownership.check()

    async def _read(self, partition: int, call: Callable[[], T]) -> T:
        found = await self._open_reader().submit(partition, call)
        self.check_owned()  # behind the read: it may have waited for long
        return found

    async def release(self) -> None:
        """What was read makes sense: recover the store. Nothing, if it was not held."""
        if self._held is not None:
            await self._pool.run(self._held.release)
            self._held = None
        self._released.set()

    async def _keep_up(self) -> None:
        """Checkpoints and sweeps: what keeps the files small and makes nobody wait."""
        registry = self._telemetry if self._telemetry is not None else Telemetry()
        failures = registry.counter("fairway_log_upkeep_failures", "Failed checkpoints and sweeps")
        await self._released.wait()
        while True:
            self._sweep.clear()  # first: what is deleted meanwhile sets it again
            try:
                if self._writer is not None:
                    await self._writer.clear_doubts()
                await self._pool.run(self._wal.maintain)
                await self._sweep_deleted()
            except (
                Exception
            ) as error:  # the next write meets the trouble, and its caller hears of it
                if isinstance(error, Fenced):
                    self._lose(error)
                    return  # nothing is left to keep up: the store is somebody else's
                failures.add()
                logger.warning("upkeep of the log failed, will try again: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(UPKEEP_S):
                    await self._sweep.wait()

    def _lose(self, error: Fenced) -> None:
        logger.error("the log belongs to another process: %s", error)
        self.lost = error
        if self.ownership is not None:
            self.ownership.lost = error
        for listener in list(self.when_lost):
            listener(error)

    async def _sweep_deleted(self) -> None:
        clock = clock_of()
        until_ns = clock.now_ns() + SWEEP_NS
        while True:
            begin_ns = clock.now_ns()
            if not await self._pool.run(partial(self._wal.sweep, limit=SWEEP_ROWS)):
                break
            if begin_ns >= until_ns:
                # The rest has its turn behind `maintain`, which may have a lease to renew.
                self._sweep.set()
                break
            # Writers wait for each chunk: let them have as much of the store's time as it took.
            await sleep_ns(clock.now_ns() - begin_ns)
        # Taken before the store is asked: what is deleted after it answered is not in its answer.
        deleted = self._tails.to_sweep()
        for partition in deleted - await self._pool.run(self._wal.deleting):
            self._tails.swept(partition)

    def _open_writer(self) -> FairWriter:
        if self._writer is None:
            raise self._refusal
        return self._writer

    def _open_reader(self) -> FairReader:
        if self._reader is None:
            raise self._refusal
        return self._reader

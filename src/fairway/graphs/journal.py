"""Writes the records of one graph to its partition of the log, in order, in groups.

While one entry is being synced the records that come meanwhile gather for the next: the sync under
way is the window. Whoever appended is notified once its record is durable, in order. A write that
fails is tried again, the same bytes under the same key, until it succeeds or the graph is fenced:
nobody is notified in between, and nothing after it overtakes it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.core.backoff import BackoffConfig
from fairway.errors import (
    Closing,
    FairwayError,
    Fenced,
    InvalidOperation,
    InvalidRequest,
    OutcomeUnknown,
)
from fairway.graphs.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    decode_records,
    encode_checkpoint,
    encode_record,
    encode_records,
)
from fairway.graphs.waiting import Bell
from fairway.runtime.completion import notify
from fairway.storage.wal import Entry, Operation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from fairway.graphs.checkpoint import Limits, Record
    from fairway.runtime.completion import OnDone
    from fairway.storage.partitions import Partitions

logger = logging.getLogger("fairway.graphs")

SNAPSHOT: Final = "snapshot/"
"""What snapshots are called, with the number of records that each adds up."""
SNAPSHOT_RECORDS: Final = 10_000
"""A snapshot after so many records: what a restart replays at most."""
PAGE_BYTES: Final = 4 * 1024 * 1024
PENDING_MAX: Final = 4096
"""Records that are not durable yet; the graph stops firing beyond."""
BYTES_MAX: Final = 4 * 1024 * 1024
"""The same in bytes."""
FAILURES_MAX: Final = 5
"""Failed writes in a row that make a graph degraded."""
BACKOFF: Final = BackoffConfig(base_ns=50_000_000, cap_ns=2_000_000_000, jitter=0.0)

RECORD_BYTES_MAX: Final = 32 * 1024 * 1024
"""One record. An entry holds more than that only if it holds one."""
OPERATION_BYTES_MAX: Final = 60 * 1024 * 1024
"""What the log takes at once, an entry and a snapshot."""


def encode_fitting(record: Record) -> bytes:
    """A record as it is written. Raises `InvalidRequest` if it is too large for any journal."""
    data = encode_record(record)
    if len(data) > RECORD_BYTES_MAX:
        raise InvalidRequest(
            f"a record of {len(data):,} bytes does not fit a journal: at most {RECORD_BYTES_MAX:,}"
        )
    return data


class Loaded(NamedTuple):
    """What was kept of a graph."""

    checkpoint: Checkpoint
    snapshots: list[int]
    """The records that each snapshot adds up, rising."""


async def load(log: Partitions, partition: int, limits: Limits) -> Loaded:
    """The state that the records in a partition add up to."""
    found = await log.meta_scan(partition, prefix=SNAPSHOT)
    checkpoint = _decoded(partition, *found[-1]) if found else Checkpoint()
    async for entry in log.entries(partition, first=checkpoint.records + 1):
        for record in _records_of(partition, entry):
            checkpoint.apply(record, limits)
    return Loaded(checkpoint, [int(name.removeprefix(SNAPSHOT)) for name, _ in found])


async def history(log: Partitions, partition: int) -> AsyncIterator[Checkpoint | Record]:
    """What is still there of a journal: the state that it begins with, then each record."""
    found = await log.meta_scan(partition, prefix=SNAPSHOT, limit=1)
    first = _decoded(partition, *found[0]) if found else Checkpoint()
    yield first
    async for entry in log.entries(partition, first=first.records + 1):
        for record in _records_of(partition, entry):
            yield record


def _decoded(partition: int, name: str, snapshot: bytes) -> Checkpoint:
    return decode_checkpoint(snapshot, f"checkpoint {name!r} of partition {partition}")


def _records_of(partition: int, entry: Entry) -> list[Record]:
    return decode_records(entry.payload, f"journal entry {entry.key} of partition {partition}")


async def page(
    log: Partitions, partition: int, after: int, limit: int
) -> tuple[bytes | None, list[bytes], int | None]:
    """A part of a journal as it is stored: the first snapshot (if `after` is negative), entries
    after a key, and the key to go on after."""
    snapshot = None
    if after < 0:
        found = await log.meta_scan(partition, prefix=SNAPSHOT, limit=1)
        snapshot = found[0][1] if found else None
        after = int(found[0][0].removeprefix(SNAPSHOT)) if found else 0
    entries = await log.read(partition, first=after + 1, limit=limit, max_bytes=PAGE_BYTES)
    more = entries[-1].key if entries and entries[-1].key < log.last_key(partition) else None
    return snapshot, [entry.payload for entry in entries], more


def decoded(snapshot: bytes | None, entries: Iterable[bytes]) -> Iterator[Checkpoint | Record]:
    """The same, as `history` has it."""
    if snapshot is not None:
        yield decode_checkpoint(snapshot)
    for entry in entries:
        yield from decode_records(entry)


class Journal:
    """The journal of one graph."""

    def __init__(
        self,
        log: Partitions,
        partition: int,
        loaded: Loaded,
        limits: Limits,
        *,
        keep_records: int = 0,
        health: Callable[[int], None],
        room: Callable[[], None],
        lost: Callable[[FairwayError], None],
    ) -> None:
        """`health` is given how many writes in a row have failed; `room` is called when there is
        some again after `full`, and `lost` when the graph belongs to somebody else, or the log is
        closed."""
        self.checkpoint = loaded.checkpoint
        self._snapshots = loaded.snapshots
        self._log = log
        self._partition = partition
        self._limits = limits
        self._keep_records = keep_records
        self._health = health
        self._room = room
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._records: list[bytes] = []
        self._waiting: list[OnDone[None] | None] = []  # the callbacks of these
        self._bytes = 0
        self._writing: tuple[Operation, list[OnDone[None] | None]] | None = None
        self._submitted = False
        self._scheduled = False
        self._failures = 0
        self._doubtful = False  # what is being written may be there already
        self._full = False
        self._closed = False
        self._snapshot_at = self._snapshots[-1] if self._snapshots else 0
        self._idle = Bell()

    @property
    def full(self) -> bool:
        """Whether so much waits to be written that no more should be made."""
        return self._full

    @property
    def pending(self) -> int:
        """Records that are not durable yet."""
        return len(self._records) + (len(self._writing[1]) if self._writing is not None else 0)

    def append(
        self, record: Record, on_done: OnDone[None] | None = None, data: bytes | None = None
    ) -> None:
        """Accept a record, encoded already or not. `on_done` is called once it is durable; if the
        journal is lost, never. Raises `InvalidRequest` if it is too large."""
        if data is None:
            data = encode_fitting(record)
        self.checkpoint.apply(record, self._limits)
        self._records.append(data)
        self._waiting.append(on_done)
        self._bytes += len(data)
        if len(self._records) >= PENDING_MAX or self._bytes >= BYTES_MAX:
            self._full = True
        if self._writing is None and not self._scheduled and not self._closed:
            # Not at once: what the same turn of the loop brings shares the sync.
            self._scheduled = True
            self._loop.call_soon(self._write)

    async def wait_durable(self) -> None:
        """Wait until everything appended so far is durable. Raises `Closing` if it never will."""
        while self.pending:
            if self._closed:
                raise Closing("the journal was closed before all of it was written")
            await self._idle.wait()

    @property
    def writing(self) -> bool:
        """Whether the log has an entry of it, and has not said what became of that."""
        return self._submitted

    async def wait_settled(self) -> None:
        """Wait until the log has nothing of it under way: what it holds then is all of it."""
        while self._submitted:
            await self._idle.wait()

    def close(self) -> None:
        """Write no more. What was not written is lost, as by a crash."""
        self._closed = True
        self._idle.ring()

    # Writing

    def _write(self) -> None:
        self._scheduled = False
        if self._closed or self._writing is not None or not self._records:
            return
        count = self._fitting()
        left = len(self._records) - count
        key = self.checkpoint.records - left
        entry = Entry(key, encode_records(self._records[:count]))
        operation = Operation((entry,))
        if not left and key - self._snapshot_at >= SNAPSHOT_RECORDS:
            operation = self._with_snapshot(entry)
        self._writing = (operation, self._waiting[:count])
        self._records, self._waiting = self._records[count:], self._waiting[count:]
        self._bytes = sum(map(len, self._records))
        self._submit()

    def _fitting(self) -> int:
        """How many of the records fit one entry."""
        if self._bytes <= RECORD_BYTES_MAX:
            return len(self._records)
        size = count = 0
        for data in self._records:
            size += len(data)
            if count and size > RECORD_BYTES_MAX:
                break
            count += 1
        return count

    def _with_snapshot(self, entry: Entry) -> Operation:
        """Sum up, and let go of what is older than the records that are kept.

        The state holds every record that was appended, so all of this entry and no more. What is
        left begins right after a snapshot, so that it can be replayed.
        """
        records = self.checkpoint.records
        self._snapshot_at = records
        snapshot = encode_checkpoint(self.checkpoint)
        if len(entry.payload) + len(snapshot) > OPERATION_BYTES_MAX:
            logger.error(
                "the state of a graph has %d bytes, too many for a snapshot: its journal grows",
                len(snapshot),
            )
            return Operation((entry,))
        self._snapshots.append(records)
        name = f"{SNAPSHOT}{records:020d}"
        meta: dict[str, bytes | None] = {name: snapshot}
        while len(self._snapshots) > 1 and self._snapshots[1] <= records - self._keep_records:
            meta[f"{SNAPSHOT}{self._snapshots.pop(0):020d}"] = None
        first = self._snapshots[0]
        return Operation((entry,), meta, None, first + 1)

    def _submit(self) -> None:
        if self._closed:
            return
        assert self._writing is not None
        try:
            if self._doubtful and self._is_there():
                self._written()
                return
            self._submitted = True
            self._log.submit_for(self._settled, self._partition, self._writing[0])
        except FairwayError as error:
            self._submitted = False
            self._failed(error)

    def _settled(self, last_key: int | None, error: BaseException | None) -> None:
        self._submitted = False
        if self._closed:
            self._idle.ring()
            return
        if isinstance(error, OutcomeUnknown):
            self._doubtful = True
            self._look_up(error)
        elif error is not None:
            self._failed(error)
        else:
            self._written()

    def _written(self) -> None:
        assert self._writing is not None
        written = self._writing[1]
        self._writing = None
        if self._failures:
            self._failures = 0
            self._health(0)
        if self._records:
            self._write()
        for on_done in written:
            if on_done is not None:
                notify(on_done, None)
        if self._full and len(self._records) < PENDING_MAX // 2 and self._bytes < BYTES_MAX:
            self._full = False
            self._room()
        self._idle.ring()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, Fenced | Closing | InvalidOperation):
            self._closed = True
            self._idle.ring()
            self._lost(error)
            return
        self._failures += 1
        if self._failures in (1, FAILURES_MAX):
            logger.warning("a record of a graph was not written, will try again: %s", error)
        self._health(self._failures)
        self._loop.call_later(BACKOFF.ceiling_ns(self._failures) / 1e9, self._submit)

    def _look_up(self, error: OutcomeUnknown) -> None:
        """The writer has asked the store already where the partition ends, if it could."""
        try:
            there = self._is_there()
        except FairwayError as unknown:  # it is looked up again before it is written again
            self._failed(unknown)
            return
        if there:
            self._written()
        else:
            self._failed(error)

    def _is_there(self) -> bool:
        """Whether what was in doubt is written. Raises while nobody can tell."""
        assert self._writing is not None
        there = self._log.last_key(self._partition) >= self._writing[0].entries[0].key
        self._doubtful = False
        return there

    @property
    def failing(self) -> bool:
        return self._failures >= FAILURES_MAX

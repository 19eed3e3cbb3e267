"""The fair writer: group commit over many partitions, FIFO inside each.

Whoever appends waits in the lane of its partition; partitions take turns; one `Wal` write, and at
most one sync, serves everybody who was waiting. After a failure, what was queued behind the failed
operation of that partition fails with it: a log has no holes that its writer did not ask for.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairway.core.amounts import WHOLE_MAX
from fairway.core.groups import Groups
from fairway.core.lanes import LaneLimits
from fairway.errors import (
    Closing,
    FairwayError,
    InvalidConfig,
    InvalidOperation,
    OutcomeUnknown,
    WriteFailed,
)
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import SYSTEM_CLOCK, Clock
from fairway.runtime.completion import fail, notify, notify_failure, resolve
from fairway.runtime.turn import TURN
from fairway.storage.completions import Completions
from fairway.storage.group_service import GroupService
from fairway.storage.statistics import WriterStatistics, WriterTelemetry
from fairway.storage.urgency import Urgency
from fairway.storage.wal import INT_MAX, Entry, Operation, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairway.core.lanes import Drained
    from fairway.runtime.blocking import BlockingPool
    from fairway.runtime.completion import OnDone
    from fairway.runtime.telemetry import Telemetry
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.tails import Tails
    from fairway.storage.wal import Wal

logger = logging.getLogger("fairway.log")

MIB = 1024 * 1024
WRITE_LANE = LaneLimits(items=4096, size=64 * MIB)
ENTRY_OVERHEAD = Operation((Entry(1, b""),)).size


class Durability(IntEnum):
    """What an acknowledgement promises."""

    MEMORY = 0
    """Accepted: acknowledged at once, lost if the process dies before the next group."""
    DISK = 1
    """Written: survives the death of the process, not the loss of power."""
    FSYNC = 2
    """Synced: survives power loss."""


MEMORY, FSYNC = (
    Durability.MEMORY,
    Durability.FSYNC,
)  # a member costs more to look up than to compare


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterConfig:
    """How the writer bounds, groups and waits."""

    max_group_partitions: int = 64
    """Partitions in one write. Raising it buys fewer syncs per entry, costs longer groups."""
    max_batch: int = 256
    """Operations of one partition in one write: how long a hot one may hold up the others."""
    max_batch_bytes: int = 1 * MIB
    """The same in bytes; a single larger operation still goes through, alone."""
    max_group_bytes: int = 4 * MIB
    """Bytes in one write over all partitions."""
    lane: LaneLimits = WRITE_LANE
    """Bounds of one partition's lane, in flight included."""
    total: LaneLimits | None = None
    """Bounds over all lanes. None means only the lanes are bounded."""
    reserve_items: int = 64
    """Room beyond the bounds that only finishing work may use."""
    reserve_bytes: int = 1 * MIB
    linger_ns: int = 0
    """How long a worker waits for company before it writes. 0: the sync under way is the window."""
    workers: int | None = None
    """Writes under way at once. None means what the store can do in parallel."""

    def __post_init__(self) -> None:
        check_amounts(self, count_max=WHOLE_MAX, max_group_partitions=1, max_batch=1)
        check_amounts(self, max_batch_bytes=1, max_group_bytes=1, linger_ns=0)
        check_amounts(self, count_max=WHOLE_MAX, reserve_items=0, reserve_bytes=0)
        if self.workers is not None:
            check_amounts(self, workers=1)
        if self.max_batch_bytes > self.lane.size:
            raise InvalidConfig("max_batch_bytes lies within the lane's bytes")
        if self.total is not None and self.total.size < self.lane.size:
            raise InvalidConfig("the total bound is below the bound of a single lane")


class _Pending(msgspec.Struct, gc=False):
    """One accepted operation, where it leaves its partition, and the callback of whoever waits.

    Not the collector's business: there are very many, and what they refer to knows nothing of them.
    Nor are the tuples of a plain append, which are made when it is written: thousands that wait
    would have the collector stop everything, for longer than a write takes.
    """

    what: Operation | bytes  # of a plain append the payload of its entry, whose key is `last_key`
    last_key: int
    floor: int
    on_done: Any  # an `OnDone[int]`, or None
    sync: bool
    accepted_ns: int
    future: Any = None
    """Of an `append`, instead of a callback that resolves it. That would be another call, and
    another object for the collector: 5 % of what an append costs the loop."""


class _GroupWrite(NamedTuple):
    """A group that the store is writing, and the callback for when its callers are notified."""

    group: list[Drained[int, _Pending]]
    sync: bool
    started_ns: int
    on_done: OnDone[bool]


class FairWriter:
    """Writes operations to a `Wal` in fair groups. Everything here runs on one event loop."""

    def __init__(
        self,
        wal: Wal,
        pool: BlockingPool,
        tails: Tails,
        *,
        config: WriterConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        telemetry: Telemetry | None = None,
        turn: TurnBudget = TURN,
    ) -> None:
        config = config or WriterConfig()
        self.config = config
        self._wal = wal
        self._pool = pool
        self._clock = clock
        self._now_ns = clock.now_ns
        self._create_future = asyncio.get_running_loop().create_future
        self._completions = Completions(turn=turn)
        self._enough_bytes = turn.group_enough_bytes
        self._lane_size_max = config.lane.size
        self._stopped = False
        self._tails = tails
        self._urgent = Urgency(pool, clock, turn=turn)
        groups: Groups[int, _Pending] = Groups(
            config.lane,
            total=config.total,
            reserve=(config.reserve_items, config.reserve_bytes),
        )
        self._telemetry = WriterTelemetry(telemetry, groups)
        self._service = GroupService(
            "writer",
            groups,
            self,
            pool,
            workers=config.workers or wal.parallelism,
            clock=clock,
            refused=self._telemetry.refused,
            linger_ns=config.linger_ns,
            turn=turn,
        )

    @property
    def linger_ns(self) -> int:
        """How long a worker waits for company; the pressure governor moves it at run time."""
        return self._service.linger_ns

    @linger_ns.setter
    def linger_ns(self, value: int) -> None:
        self._service.linger_ns = value

    @property
    def expedites(self) -> bool:
        """Whether something urgent waits to be written, and few such came of late."""
        return self._urgent.expedites

    def expedite(self) -> None:
        """See `Log.expedite`. Not while callers are notified: that may be what makes a request
        begin, and callers of another group would be notified in the middle of this one.
        """
        if self._completions.notifying:
            return
        if self._urgent.waiting:
            self._urgent.expedite(self._service.go_on)
        if self._pool.ended and self._enough:
            self._pool.collect()  # the store has company at hand, and need not wait for the turn

    @property
    def acks_per_turn(self) -> int | None:
        """How many callers are notified in one turn of the loop; None: all of a group."""
        return self._completions.per_turn

    @acks_per_turn.setter
    def acks_per_turn(self, value: int | None) -> None:
        self._completions.per_turn = value

    @property
    def fill(self) -> float:
        """How full all lanes are together, of what `total` allows; 0 without such a bound."""
        total = self.config.total
        if total is None:
            return 0.0
        groups = self._service.groups
        return max(groups.depth / total.items, groups.size / total.size)

    @property
    def refused(self) -> int:
        """Operations refused for want of room so far."""
        return self._telemetry.refused.value

    def submit(
        self,
        partition: int,
        operation: Operation,
        *,
        durability: Durability = Durability.FSYNC,
        finishing: bool = False,
    ) -> asyncio.Future[int]:
        """Accept an operation and return a future of the partition's last key once it is durable.

        Raises at once, with nothing accepted: `Backpressure`, `Closing`, `InvalidOperation`. The
        future fails with `WriteFailed` or `Fenced` (nothing was written) or `OutcomeUnknown`.
        Futures of one partition resolve in the order of submission. Cancelling one withdraws
        nothing.
        """
        future = self._create_future()
        self.accept(resolve(future), partition, operation, durability, finishing)
        return future

    def accept(
        self,
        on_done: OnDone[int],
        partition: int,
        operation: Operation,
        durability: Durability = Durability.FSYNC,
        finishing: bool = False,
        urgent: bool = False,
    ) -> None:
        """As `submit`, with a callback: called within this call if the durability is MEMORY.

        What is urgent does not linger for company; nor does its caller wait for a turn, where
        callers are notified in turns (`acks_per_turn`) and not more than those are urgent.
        """
        state = self._tails.find(partition)
        if state is None or type(partition) is not int:
            state = self._tails.of(partition)
        if state.refusal is not None:
            raise state.refusal.again()
        entries, meta, truncate, compact, hard_state, delete, remove = operation
        last_key, floor = state.last_key, state.floor
        single = truncate is None and compact is None
        single = single and not (meta or hard_state or delete or remove)
        if single and len(entries) == 1:
            # By far the most common, and checked without a call. All others, right or wrong, below.
            key, payload, term = entries[0]
            single = type(key) is int and last_key < key <= INT_MAX
            single = single and term == 0 and type(payload) is bytes
        else:
            single = False
        what: Operation | bytes = operation
        if single:
            size = len(payload) + ENTRY_OVERHEAD
            last_key = key
            what = payload
        else:
            last_key, _, floor = operation.after(Tail(last_key, 0, floor))
            size = operation.size
        if size > self._lane_size_max:
            raise InvalidOperation(
                f"an operation of {size} bytes never fits a lane of {self._lane_size_max}"
            )
        now_ns = self._now_ns()
        quick = durability is MEMORY
        item = _Pending(
            what, last_key, floor, None if quick else on_done, durability is FSYNC, now_ns
        )
        self._service.offer(partition, item, size, now_ns, finishing)
        state.last_key = last_key
        state.floor = floor
        if urgent:
            self._urgent.accepted(partition, item, now_ns)
            self._service.hurry()
        if delete:
            self._tails.refuse(partition)
        if quick:
            notify(on_done, last_key)

    def append(
        self,
        partition: int,
        payload: bytes,
        term: int = 0,
        durability: Durability = Durability.FSYNC,
    ) -> asyncio.Future[int]:
        """Append one entry under the next key; see `submit`."""
        state = self._tails.find(partition)
        if state is None:
            state = self._tails.of(partition)
        key = state.last_key + 1
        if (
            state.refusal
            or term
            or type(partition) is not int
            or key > INT_MAX
            or type(payload) is not bytes
            or len(payload) > MIB
            or durability is MEMORY
        ):
            operation = Operation.appending(key, payload, term)
            return self.submit(partition, operation, durability=durability)
        # The common case, without the calls: everything else goes the long way round.
        future = self._create_future()
        now_ns = self._now_ns()
        sync = durability is FSYNC
        item = _Pending(payload, key, state.floor, None, sync, now_ns, future)
        self._service.offer(partition, item, len(payload) + ENTRY_OVERHEAD, now_ns)
        state.last_key = key
        return future

    def tail(self, partition: int) -> Tail:
        """Where the partition ends once everything accepted is written (its last term aside)."""
        state = self._tails.find(partition)
        return Tail(state.last_key, 0, state.floor) if state is not None else Tail()

    def last_key(self, partition: int) -> int:
        """See `Partitions.last_key`."""
        state = self._tails.find(partition)
        if state is None:
            return 0
        if isinstance(state.refusal, WriteFailed):  # what is known dates from before the doubt
            raise state.refusal.again()
        return state.last_key

    async def run(self) -> None:
        """Serve until cancelled (a service of `runtime`)."""
        try:
            await self._service.run()
        finally:
            self._completions.flush_all()

    async def drain(self) -> None:
        """Stop admitting; return when everything is written that was accepted, and its callers
        are notified."""
        await self._service.drain()
        self._completions.flush_all()

    async def clear_doubts(self) -> None:
        """Ask the store again about partitions whose end it could not tell after a failure.

        Raises as the store does; those it has answered for by then are writable again.
        """
        for partition in self._tails.doubtful():
            self._tails.cleared(partition, await self._pool.run(self._wal.tail, partition))

    def statistics(self) -> WriterStatistics:
        """A frozen snapshot."""
        return self._telemetry.statistics(self._service, enough=self._enough, urgent=self.expedites)

    # What the group service asks of its owner.

    def hurries(self) -> bool:
        return bool(self._urgent.waiting)

    def gathers(self) -> bool:
        # Those who are being notified are the company: most of them ask for the next thing then.
        return bool(self._completions.waiting) and not (self._urgent.waiting or self._enough)

    @property
    def _enough(self) -> bool:
        """Whether so much waits that nobody is worth waiting for."""
        count, size = self._service.groups.waiting
        return size >= self._enough_bytes or count >= self.config.max_batch

    def take(self, groups: Groups[int, _Pending]) -> list[Drained[int, _Pending]]:
        config = self.config
        return groups.take(
            keys=config.max_group_partitions,
            items=config.max_batch,
            size=config.max_batch_bytes,
            total_size=config.max_group_bytes,
        )

    def serve(self, group: list[Drained[int, _Pending]], on_done: OnDone[bool]) -> None:
        operations = {part.key: _operations(part.items) for part in group}
        sync = any(item.sync for part in group for item in part.items)
        write = _GroupWrite(group, sync, self._clock.now_ns(), on_done)
        wrote = partial(self._wrote, write)
        try:
            self._pool.submit(wrote, _write, self._wal, operations, sync)
        except FairwayError as error:  # the pool takes nothing more
            asyncio.get_running_loop().call_soon(wrote, None, error)

    def _wrote(
        self,
        write: _GroupWrite,
        failures: Mapping[int, FairwayError] | None,
        error: BaseException | None,
    ) -> None:
        """The store has answered, or raised; whatever it does, the next group follows."""
        if error is not None and not isinstance(error, Exception):
            write.on_done(None, error)
            return
        if error is not None:
            doubt = OutcomeUnknown(f"the store raised {type(error).__name__}: {error}")
            doubt.__cause__ = error
            failures = {part.key: doubt for part in write.group}
        assert failures is not None
        doubtful = [key for key, why in failures.items() if isinstance(why, OutcomeUnknown)]
        self._look_again(write, failures, doubtful)

    def _look_again(
        self, write: _GroupWrite, failures: Mapping[int, FairwayError], doubtful: list[int]
    ) -> None:
        """Ask the store where doubtful partitions end now, before their callers are notified.

        Whoever is notified is then free to go on, under keys that the store really has room for.
        """
        if not doubtful:
            self._finish(write, failures)
            return
        partition, *others = doubtful

        def looked(tail: Tail | None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, Exception):
                write.on_done(None, error)
                return
            if tail is None:
                why = f"partition {partition} is in doubt: {failures[partition]}"
                self._tails.doubt(partition, f"{why}; looking again failed: {error}")
            else:
                self._tails.of(partition).found(tail)
            self._look_again(write, failures, others)

        try:
            self._pool.submit(looked, self._wal.tail, partition)
        except FairwayError as error:
            looked(None, error)

    def _finish(self, write: _GroupWrite, failures: Mapping[int, FairwayError]) -> None:
        if self._stopped:
            return  # callers were notified that nobody knows
        group = write.group
        group.sort(key=_count)  # whoever asked for little is notified before a flood is
        left = group[::-1]
        with self._completions.exclusive():
            try:
                self._settle(write, failures, left)
            except Exception as error:  # our fault: better no writer than one that stands still
                self._service.crash(error)
                self._completions.flush_all()
                unknown = OutcomeUnknown("the log failed when this was written")
                for part in reversed(left):
                    for item in part.items:
                        _notify_failure(item, unknown)
                for part in group:
                    for item in part.items:
                        if item.on_done is not None:
                            item.on_done = _notified  # not once more when the group is interrupted

    def _settle(
        self,
        write: _GroupWrite,
        failures: Mapping[int, FairwayError],
        left: list[Drained[int, _Pending]],
    ) -> None:
        """Notify the callers of each part; whom this has not come to is `left`, in reverse."""
        group = write.group
        written = [part for part in group if part.key not in failures] if failures else group
        self._telemetry.wrote(written, write.sync, write.started_ns, self._clock.now_ns())
        # With enough at hand the store goes on while callers are notified. With less, those who
        # are notified now are the company that the next group waits for.
        ahead = not (failures or self.linger_ns) and self._enough
        if ahead:
            write.on_done(True, None)
        while left:
            failure = failures.get(left[-1].key)
            if failure is None:
                self._complete(left[-1])
            else:
                self._fail(left[-1], failure)
            left.pop()
        self._completions.notify()
        if not ahead:
            write.on_done(self.expedites and not failures, None)

    def interrupt(self, group: list[Drained[int, _Pending]]) -> None:
        self._stopped = True
        for part in group:
            self._fail(part, OutcomeUnknown("the log was stopped during this write"))

    def abandon(self, item: _Pending) -> None:
        self._completions.flush_all()  # nobody overtakes those
        _notify_failure(item, Closing("the log was closed before this was written"))

    def _complete(self, part: Drained[int, _Pending]) -> None:
        newest = part.items[-1]
        if type(newest.what) is Operation and newest.what.delete:
            self._tails.deleted(part.key)
        self._tails.of(part.key).wrote(newest.last_key, newest.floor)
        urgent = self._urgent.written(part.key, part.items)
        if self._completions.holds_back(part.key, len(part.items), urgent):
            self._completions.add(
                part.key,
                [
                    (item.on_done or resolve(item.future), item.last_key)
                    for item in part.items
                    if item.on_done is not None or item.future is not None
                ],
            )
            return
        for item in part.items:
            future = item.future
            if future is not None:
                if not future.done():
                    future.set_result(item.last_key)
            elif item.on_done is not None:
                notify(item.on_done, item.last_key)

    def _fail(self, part: Drained[int, _Pending], failure: FairwayError) -> None:
        # At once: whoever goes on before it knows would leave a hole where this was to be.
        self._completions.flush(part.key)
        self._urgent.failed(part.key)
        behind = self._service.groups.withdraw(part.key)
        self._telemetry.failed(len(part.items) + len(behind))
        lost = sum(item.on_done is None and item.future is None for item in (*part.items, *behind))
        if lost:  # chosen by whoever asked for no more than memory; yet it is counted and logged
            self._telemetry.lost(lost)
            logger.warning("%d operations acknowledged from memory are lost: %s", lost, failure)
        self._tails.of(part.key).failed()
        consequence = WriteFailed(f"an earlier operation of the partition failed: {failure}")
        for item in part.items:
            _notify_failure(item, failure)
        for item in behind:
            _notify_failure(item, consequence)


def _notify_failure(item: _Pending, failure: FairwayError) -> None:
    if item.future is not None:
        fail(item.future, failure.again())
    elif item.on_done is not None:
        notify_failure(item.on_done, failure)


def _notified(last_key: int | None, error: BaseException | None) -> None:
    """Stands where the callback of an operation was: it has been called."""


def _count(part: Drained[int, _Pending]) -> int:
    return len(part.items)


def _operations(items: Iterable[_Pending]) -> list[Operation]:
    """What to write for one partition; its plain appends as one operation.

    A group is all or nothing for each of its partitions, so nobody can tell them apart, and the
    store has one to look at instead of hundreds.
    """
    operations: list[Operation] = []
    entries: list[Entry] = []
    for item in items:
        what = item.what
        if isinstance(what, bytes):
            entries.append(tuple.__new__(Entry, (item.last_key, what, 0)))
            continue
        if entries:
            operations.append(Operation(entries))
            entries = []
        operations.append(what)
    if entries:
        operations.append(Operation(entries))
    return operations


def _write(
    wal: Wal, operations: Mapping[int, list[Operation]], sync: bool
) -> Mapping[int, FairwayError]:
    return wal.write(operations, sync=sync)

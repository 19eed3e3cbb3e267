"""The one connection that writes, and the lanes before it: whoever waits shares a commit, in turns.

The event loop decides what is in a group (`calls`); one thread runs it as one transaction. A group
is made of what came while the one before was committed, so nothing waits for company and no timer
runs. Decides what a failure means: of one call, of the whole group, or nobody knows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import apsw

from fairway.errors import (
    Backpressure,
    Closing,
    Corrupt,
    FairwayError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
    WriteFailed,
)
from fairway.jobs.job import NO_TENANT
from fairway.jobs.stores.sqlite.calls import (
    ALONE,
    COMMAND,
    SORTED_MAX,
    TOTAL,
    Caller,
    CallLanes,
    StoreCall,
    Unsorted,
    unsorted_commands,
)
from fairway.jobs.stores.sqlite.connections import answering, create
from fairway.jobs.stores.sqlite.intake import intake_of
from fairway.jobs.stores.sqlite.mark import CommitCount, Mark
from fairway.jobs.stores.sqlite.ready_lines import Names
from fairway.jobs.stores.sqlite.tenants import TenantReader
from fairway.jobs.stores.sqlite.transaction import Transaction
from fairway.jobs.stores.sqlite.writer_queue import WriterQueue
from fairway.runtime.blocking import BlockingPool
from fairway.storage.wals.sqlite_shard import UNDONE_ERRORS, UNDONE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fairway.core.lanes import Drained, Refusal
    from fairway.jobs.job import Enqueued, NewJob
    from fairway.jobs.stores.sqlite.tenants import JobRef
    from fairway.runtime.clock import Clock

T = TypeVar("T")
CallOutcome: TypeAlias = "tuple[Any, BaseException | None]"
CallGroup: TypeAlias = "list[Drained[Caller, StoreCall[Any]]]"


class Commits(Protocol):
    """What a `SqliteWriter` needs of its thread: see `Committer`."""

    def open(self) -> None: ...

    def commit(self, group: Sequence[StoreCall[Any]]) -> list[CallOutcome]: ...

    def close(self) -> None: ...


class LooksUp(Protocol):
    """What it needs of its other thread: see `TenantReader`."""

    def tenants(self, targets: Sequence[JobRef]) -> list[str]: ...

    def close(self) -> None: ...


class SqliteWriter:
    """Runs calls on the tables, each all or nothing; those of one caller in the order they came."""

    def __init__(
        self,
        place: str,
        clock: Clock,
        committer: Commits | None = None,
        tenants: LooksUp | None = None,
    ) -> None:
        self._place = place
        self._clock = clock
        self._lanes = CallLanes()
        self._unsorted = unsorted_commands()
        self._sorting = False
        self._busy = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._pool = BlockingPool(1, name="fairway-jobs-writer", clock=clock)
        self._committer: Commits = Committer(place, clock) if committer is None else committer
        self._sorters = BlockingPool(1, name="fairway-jobs-tenants", clock=clock)
        self._tenants: LooksUp = TenantReader(place) if tenants is None else tenants

    async def open(self) -> None:
        await self._pool.run(self._committer.open)

    async def aclose(self) -> None:
        """Refuse new calls, commit those that wait, close."""
        self._closing = True
        await self._idle.wait()
        await self._sorters.run(self._tenants.close)
        await self._sorters.aclose()
        await self._pool.run(self._committer.close)
        await self._pool.aclose()

    async def run(
        self,
        function: Callable[[Transaction], T],
        caller: Caller,
        *,
        durable: bool,
        size: int = 0,
    ) -> T:
        """Run `function` in a transaction that others may share; returns when it is committed.

        `durable` syncs the disk. Raises `Backpressure`, with nothing accepted, if too much of this
        caller waits already, or of all. If the caller is cancelled before its turn, nothing
        happens.
        """
        return await self._wait(StoreCall(function, durable, size=size), caller)

    async def command(
        self, function: Callable[[Transaction], T], target: JobRef, *, durable: bool, size: int = 0
    ) -> T:
        """As `run`, in the lane of the tenant whose job this is; those of one job stay in order."""
        call = StoreCall(function, durable, size=size)
        if not self._busy and not self._sorting:  # nobody waits whom it might have to let pass
            return await self._wait(call, ALONE)
        if self._closing:
            raise Closing(f"{self._place} is closing")
        now_ns, unsorted = self._clock.now_ns(), Unsorted(call, target)
        refusal = self._unsorted.offer(None, unsorted, call.size, now_ns)
        if refusal is not None:
            raise self._refused(Caller(COMMAND), refusal)
        loop = asyncio.get_running_loop()
        call.outcome = outcome = loop.create_future()
        if not self._sorting:
            self._sorting = True
            self._idle.clear()
            loop.call_soon(self._sort)
        result: T = await outcome
        return result

    def _sort(self) -> None:
        """Look up whose jobs the next commands are about."""
        if not self._unsorted.has_items(None):
            self._sorting = False
            if not self._busy:
                self._idle.set()
            return
        part = self._unsorted.drain(None, items=SORTED_MAX, size=TOTAL.size)

        def done(tenants: list[str] | None, error: BaseException | None) -> None:
            self._unsorted.settle(None, len(part.items), part.size, self._clock.now_ns())
            # What stands in the way of looking is raised by the transaction, which meets it, too.
            known = [NO_TENANT] * len(part.items) if tenants is None else tenants
            for (call, _), tenant in zip(part.items, known, strict=True):
                caller = Caller(COMMAND, tenant)
                if not call.cancelled and (refusal := self._offer(call, caller)) is not None:
                    _resolve(call, None, self._refused(caller, refusal))
            self._sort()

        self._sorters.submit(done, self._tenants.tenants, [one.target for one in part.items])

    async def enqueue(self, jobs: Sequence[NewJob], caller: Caller, size: int) -> list[Enqueued]:
        """Add jobs, as `run` would; with the jobs of others that wait, if there are any."""

        def add(transaction: Transaction) -> list[Enqueued]:
            return intake_of(transaction).add(jobs)

        return await self._wait(StoreCall(add, True, jobs, size), caller)

    async def _wait(self, call: StoreCall[T], caller: Caller) -> T:
        if self._closing:
            raise Closing(f"{self._place} is closing")
        call.outcome = outcome = asyncio.get_running_loop().create_future()
        refusal = self._offer(call, caller)
        if refusal is not None:
            raise self._refused(caller, refusal)
        result: T = await outcome
        return result

    def _offer(self, call: StoreCall[Any], caller: Caller) -> Refusal | None:
        refusal = self._lanes.offer(caller, call, self._clock.now_ns())
        if refusal is None and not self._busy:
            self._busy = True
            self._idle.clear()
            # With whoever else comes in this turn of the loop.
            asyncio.get_running_loop().call_soon(self._start)
        return refusal

    def _refused(self, caller: Caller, refusal: Refusal) -> Backpressure:
        return Backpressure(
            f"{self._place}/{caller.kind}/{caller.who}",
            depth=refusal.depth,
            limit=refusal.limit,
            retry_after_ns=refusal.retry_after_ns,
        )

    def _start(self) -> None:
        while group := self._lanes.next_group():
            calls = [call for part in group for call in part.items if not call.cancelled]
            if calls:
                self._commit(group, calls)
                return
            self._settle(group)
        self._busy = False
        if not self._sorting:
            self._idle.set()

    def _commit(self, group: CallGroup, calls: Sequence[StoreCall[Any]]) -> None:
        def done(outcomes: list[CallOutcome] | None, error: BaseException | None) -> None:
            # The next group goes to the thread before those of this one wake.
            self._settle(group)
            self._start()
            for number, call in enumerate(calls):
                _resolve(call, *((None, error) if outcomes is None else outcomes[number]))

        self._pool.submit(done, self._committer.commit, calls)

    def _settle(self, group: CallGroup) -> None:
        now_ns = self._clock.now_ns()
        for part in group:
            self._lanes.settle(part, now_ns)


def _resolve(call: StoreCall[Any], result: Any, error: BaseException | None) -> None:
    outcome = call.outcome
    if outcome is None or outcome.done():
        return  # its caller is gone
    if isinstance(error, asyncio.CancelledError):
        outcome.cancel()
    elif error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


class Committer:
    """The half of the writer that is in its thread."""

    def __init__(self, place: str, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._connection: apsw.Connection | None = None
        self._names: Names | None = None
        self._writer_queue = WriterQueue(place)
        self._commit_count = CommitCount()
        self._mark = Mark(place)
        self._synced = True  # what the connection's `synchronous` stands at
        self._failed: str | None = None

    def open(self) -> None:
        with answering(self._place):
            self._connection = create(self._place, self._writer_queue.begin)
        self._names = Names(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None
        self._writer_queue.close()
        self._mark.close()

    def commit(self, group: Sequence[StoreCall[Any]]) -> list[CallOutcome]:
        """Run the calls in one transaction; how each ended."""
        connection = self._connection
        if connection is None:
            raise Closing(f"{self._place} is not open")
        if self._failed is not None:
            raise WriteFailed(f"{self._place} stopped: {self._failed}")
        committing = False
        number = 0
        try:
            self._begin(connection, any(call.durable for call in group))
            changes = connection.total_changes()
            if len(group) == 1:
                outcomes = [self._run(connection, group[0])]
                if outcomes[0][1] is not None:
                    self._roll_back(connection)
                    return outcomes
            else:
                outcomes = [
                    outcome
                    for calls in together(group)
                    for outcome in self._run_several(connection, calls)
                ]
            if connection.total_changes() != changes:  # else there is nothing to write or sync
                number = self._commit_count.add(connection)
            committing = True
            connection.execute("COMMIT")
        except apsw.Error as error:
            raise self._failure(connection, error, committing) from error
        except BaseException:
            self._roll_back(connection)
            raise
        if number:
            self._commit_count.committed(connection, number)
            if self._synced:
                self._mark.advance(number)  # before anybody is answered
        return outcomes

    def _begin(self, connection: apsw.Connection, durable: bool) -> None:
        if durable is not self._synced:
            connection.pragma("synchronous", "FULL" if durable else "NORMAL")
            self._synced = durable
        try:
            self._writer_queue.begin(connection)
        except (apsw.BusyError, apsw.LockedError) as error:
            raise Unavailable(f"{self._place} is held by somebody else: {error}") from error

    def _run_several(
        self, connection: apsw.Connection, calls: Sequence[StoreCall[Any]]
    ) -> list[CallOutcome]:
        """Run calls that go `together`: if that fails, each by itself, to see whose fault it is."""
        if len(calls) > 1:
            jobs = [job for call in calls for job in call.jobs or ()]
            added, error = self._run_apart(
                connection, StoreCall(lambda transaction: intake_of(transaction).add(jobs), True)
            )
            if error is None:
                rest = iter(added)
                return [([next(rest) for _ in call.jobs or ()], None) for call in calls]
        return [self._run_apart(connection, call) for call in calls]

    def _run_apart(self, connection: apsw.Connection, call: StoreCall[Any]) -> CallOutcome:
        """Run one of several calls: if it fails, it alone is undone."""
        connection.execute("SAVEPOINT call")
        outcome = self._run(connection, call)
        if outcome[1] is not None:
            connection.execute("ROLLBACK TO call")
            assert self._names is not None
            self._names.forget()
        connection.execute("RELEASE call")
        return outcome

    def _run(self, connection: apsw.Connection, call: StoreCall[Any]) -> CallOutcome:
        assert self._names is not None
        try:
            return call.function(Transaction(connection, self._names, self._clock.wall_ns())), None
        except apsw.TooBigError as error:
            return None, Invalid(f"more than {self._place} can take: {error}")
        except apsw.Error as error:
            if not connection.in_transaction or not isinstance(error, apsw.ConstraintError):
                raise  # not about this call: the file, the disk or the memory
            return None, WriteFailed(f"{self._place}: {error}; nothing was written")
        except Exception as error:  # a value that cannot be bound, for instance
            return None, error

    def _roll_back(self, connection: apsw.Connection) -> None:
        assert self._names is not None
        self._names.forget()
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _failure(
        self, connection: apsw.Connection, error: apsw.Error, committing: bool
    ) -> FairwayError:
        """What a failed transaction means. Known to be undone, or in doubt and therefore final."""
        code = getattr(error, "extendedresult", 0)
        reason = f"{type(error).__name__} {error} (code {code})"
        undone = isinstance(error, UNDONE_KINDS) or code in UNDONE_ERRORS
        doubtful = committing and not undone
        try:
            self._roll_back(connection)
        except apsw.Error as second:
            reason += f", and the rollback failed: {second}"
            self._failed = reason
            doubtful = committing
        if doubtful:
            # After a failed sync the system may have dropped the pages and will call the next one
            # a success. Nothing can be acknowledged until the file was opened anew.
            self._failed = reason
            return OutcomeUnknown(f"{self._place}: {reason}; reopen the store to recover")
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            self._failed = reason
            return Corrupt(reason, place=self._place)
        return WriteFailed(f"{self._place}: {reason}; nothing was written")


def together(calls: Sequence[StoreCall[Any]]) -> Iterator[Sequence[StoreCall[Any]]]:
    """The calls in order, those that only enqueue side by side: their jobs are added in one go."""
    start = 0
    for at, call in enumerate(calls):
        if call.jobs is None:
            if start < at:
                yield calls[start:at]
            yield (call,)
            start = at + 1
    if start < len(calls):
        yield calls[start:]

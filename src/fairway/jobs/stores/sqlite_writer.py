"""The one connection that writes, and the queue before it: whoever waits shares a commit.

The event loop decides what is in a group; one thread runs it as one function. A group is as large
as what came while the one before was committed, so nothing waits for company and no timer runs.
Decides what a failure means: of one call, of the whole group, or nobody knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

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
from fairway.jobs.stores.sqlite_mark import Count, Mark
from fairway.jobs.stores.sqlite_moves import Moves
from fairway.jobs.stores.sqlite_names import Names
from fairway.jobs.stores.sqlite_schema import answering, create
from fairway.jobs.stores.sqlite_turn import Turn
from fairway.runtime.blocking import BlockingPool
from fairway.storage.wals.sqlite_shard import UNDONE_ERRORS, UNDONE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.runtime.clock import Clock

T = TypeVar("T")
Outcome: TypeAlias = "tuple[Any, BaseException | None]"

WAITING_CALLS_MAX = 16_384
WAITING_BYTES_MAX = 64 * 1024 * 1024
GROUP_CALLS_MAX = 256
GROUP_BYTES_MAX = 4 * 1024 * 1024
RETRY_AFTER_NS = 10_000_000


class _Call(Generic[T]):
    """One call that waits for its commit."""

    __slots__ = ("durable", "function", "outcome", "size")

    def __init__(
        self, function: Callable[[Moves], T], durable: bool, size: int, outcome: asyncio.Future[T]
    ) -> None:
        self.function = function
        self.durable = durable
        self.size = size
        self.outcome = outcome


class Writer:
    """Runs calls on the tables, each all or nothing, in the order of their coming."""

    def __init__(self, place: str, clock: Clock) -> None:
        self._place = place
        self._waiting: deque[_Call[Any]] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._pool = BlockingPool(1, name="fairway-jobs-writer", clock=clock)
        self._committer = Committer(place, clock)

    async def open(self) -> None:
        await self._pool.run(self._committer.open)

    async def aclose(self) -> None:
        """Refuse new calls, commit those that wait, close."""
        self._closing = True
        await self._idle.wait()
        await self._pool.run(self._committer.close)
        await self._pool.aclose()

    async def run(self, function: Callable[[Moves], T], *, durable: bool, size: int = 0) -> T:
        """Run `function` in a transaction that others may share; returns when it is committed.

        `durable` syncs the disk. If the caller is cancelled before its turn, nothing happens.
        """
        if self._closing:
            raise Closing(f"{self._place} is closing")
        if len(self._waiting) >= WAITING_CALLS_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            raise Backpressure(
                self._place,
                depth=len(self._waiting),
                limit=f"{WAITING_CALLS_MAX} calls or {WAITING_BYTES_MAX} bytes",
                retry_after_ns=RETRY_AFTER_NS,
            )
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        call = _Call(function, durable, size, outcome)
        self._waiting.append(call)
        self._waiting_bytes += size
        if not self._busy:
            self._busy = True
            self._idle.clear()
            loop.call_soon(self._start)  # with whoever else comes in this turn of the loop
        return await outcome

    def _start(self) -> None:
        group: list[_Call[Any]] = []
        size = 0
        while self._waiting and len(group) < GROUP_CALLS_MAX and size < GROUP_BYTES_MAX:
            call = self._waiting.popleft()
            self._waiting_bytes -= call.size
            if not call.outcome.cancelled():
                group.append(call)
                size += call.size
        if not group:
            self._busy = False
            self._idle.set()
            return

        def done(outcomes: list[Outcome] | None, error: BaseException | None) -> None:
            # The next group goes to the thread before those of this one wake.
            self._start()
            for number, call in enumerate(group):
                _resolve(call, *((None, error) if outcomes is None else outcomes[number]))

        self._pool.submit(done, self._committer.commit, group)


def _resolve(call: _Call[Any], result: Any, error: BaseException | None) -> None:
    if call.outcome.done():
        return  # its caller is gone
    if isinstance(error, asyncio.CancelledError):
        call.outcome.cancel()
    elif error is not None:
        call.outcome.set_exception(error)
    else:
        call.outcome.set_result(result)


class Committer:
    """The half of the writer that is in its thread."""

    def __init__(self, place: str, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._connection: apsw.Connection | None = None
        self._names: Names | None = None
        self._turn = Turn(place)
        self._count = Count()
        self._mark = Mark(place)
        self._synced = True  # what the connection's `synchronous` stands at
        self._failed: str | None = None

    def open(self) -> None:
        with answering(self._place):
            self._connection = create(self._place, self._turn.begin)
        self._names = Names(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None
        self._turn.close()
        self._mark.close()

    def commit(self, group: Sequence[_Call[Any]]) -> list[Outcome]:
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
                outcomes = [self._run_apart(connection, call) for call in group]
            if connection.total_changes() != changes:  # else there is nothing to write or sync
                number = self._count.add(connection)
            committing = True
            connection.execute("COMMIT")
        except apsw.Error as error:
            raise self._failure(connection, error, committing) from error
        except BaseException:
            self._roll_back(connection)
            raise
        if number:
            self._count.committed(connection, number)
            if self._synced:
                self._mark.advance(number)  # before anybody is told
        return outcomes

    def _begin(self, connection: apsw.Connection, durable: bool) -> None:
        if durable is not self._synced:
            connection.pragma("synchronous", "FULL" if durable else "NORMAL")
            self._synced = durable
        try:
            self._turn.begin(connection)
        except (apsw.BusyError, apsw.LockedError) as error:
            raise Unavailable(f"{self._place} is held by somebody else: {error}") from error

    def _run_apart(self, connection: apsw.Connection, call: _Call[Any]) -> Outcome:
        """Run one of several calls: if it fails, it alone is undone."""
        connection.execute("SAVEPOINT call")
        outcome = self._run(connection, call)
        if outcome[1] is not None:
            connection.execute("ROLLBACK TO call")
            assert self._names is not None
            self._names.forget()
        connection.execute("RELEASE call")
        return outcome

    def _run(self, connection: apsw.Connection, call: _Call[Any]) -> Outcome:
        assert self._names is not None
        try:
            return call.function(Moves(connection, self._names, self._clock.wall_ns())), None
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

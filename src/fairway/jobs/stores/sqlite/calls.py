"""Which calls share the next transaction: callers have lanes, and kinds of calls take turns.

Pure. A transaction is short, and everybody who waits has a part in it: the more of them, the
smaller the part of whoever has most to say. So who has little to say waits for the transaction that
is under way and for their own, however many calls of others wait; and for one of bulk, if some is
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from fairway.core.groups import Groups
from fairway.core.lanes import LaneLimits, Lanes
from fairway.jobs.job import states_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from fairway.core.lanes import Drained, Refusal
    from fairway.jobs.job import NewJob, Settlement
    from fairway.jobs.stores.sqlite.tenants import JobRef
    from fairway.jobs.stores.sqlite.transaction import Transaction

T = TypeVar("T")

WORKER: Final = "worker"
"""What a worker has to say and to ask: above all its exchanges."""
COMMAND: Final = "command"
"""Signals, cancels, retries and discards, from people and other parts."""
SETTING: Final = "setting"
"""Settings of a queue or a schedule."""
ENQUEUE: Final = "enqueue"
BULK: Final = "bulk"
"""Enqueues of many jobs in one call: no other kind is in their transactions."""
UPKEEP: Final = "upkeep"
WEIGHTS: Final = {WORKER: 8, COMMAND: 4, ENQUEUE: 4, SETTING: 2, UPKEEP: 2}
"""How the kinds share a transaction that cannot have a call of every caller."""

GROUP_CALLS_MAX: Final = 256
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""One transaction. Raising them buys throughput where a sync is slow, and costs latency: everybody
waits for two of them."""
PART_CALLS_MAX: Final = GROUP_CALLS_MAX // 2
"""Of one caller, even if nobody else waits: somebody may come before the transaction has ended."""
CALL_BYTES_MAX: Final = 64 * 1024 * 1024
"""What the largest call counts as; a larger one is as welcome as this one."""
BULK_BYTES_MIN: Final = GROUP_BYTES_MAX // 4
"""What adds more is bulk. Raising it puts longer calls into the transactions that others share."""
BULK_BYTES_MAX: Final = GROUP_BYTES_MAX // 2
"""Of one caller's bulk in a transaction, unless one call alone is more."""
JOB_BYTES: Final = 1024
"""What a job costs beside its state: time in the transaction rather than memory."""

LANE: Final = LaneLimits(items=16_384, size=2 * CALL_BYTES_MAX)
"""What may wait of one caller: of one tenant that enqueues or commands, of one worker."""
TOTAL: Final = LaneLimits(items=65_536, size=4 * CALL_BYTES_MAX)
"""What may wait of all of them; of bulk, as much again."""
RESERVE: Final = (1_024, CALL_BYTES_MAX)
"""Beyond that, for workers: what they settle frees more than it takes."""


class Caller(NamedTuple):
    """Whose calls stay in order, and what kind they are."""

    kind: str
    who: str | int = ""


ALONE: Final = Caller(COMMAND, 0)
"""Of a command that came while nobody waited: a lane of its own, which is never anybody else's. So
it is done before the next one about the same job."""


class StoreCall(Generic[T]):
    """One call that waits for its commit."""

    __slots__ = ("durable", "function", "jobs", "outcome", "size")

    def __init__(
        self,
        function: Callable[[Transaction], T],
        durable: bool,
        jobs: Sequence[NewJob] | None = None,
        size: int = 0,
    ) -> None:
        """`jobs`, if adding those is all that it does."""
        self.function = function
        self.durable = durable
        self.jobs = jobs
        self.size = min(size, CALL_BYTES_MAX)
        self.outcome: asyncio.Future[T] | None = None

    @property
    def cancelled(self) -> bool:
        return self.outcome is not None and self.outcome.cancelled()


class Unsorted(NamedTuple):
    """A command of which nobody knows yet whose job it is about."""

    call: StoreCall[Any]
    target: JobRef


SORTED_MAX: Final = 1_024
"""Commands that are looked up together. Raising it holds up the loop for longer at a time; with
fewer, a command behind a flood waits longer for its own lookup."""


def unsorted_commands() -> Lanes[None, Unsorted]:
    """The one line before the lanes of commands."""
    return Lanes(TOTAL)


class CallLanes:
    """The lanes that calls wait in.

    A call is never split, so one that adds thousands of jobs is a long transaction. Nobody else is
    in that, and between two of those is one of all the others.
    """

    def __init__(self) -> None:
        self._shared: Groups[Caller, StoreCall[Any]] = Groups(
            LANE, total=TOTAL, reserve=RESERVE, bands=WEIGHTS
        )
        self._bulk: Groups[Caller, StoreCall[Any]] = Groups(LANE, total=TOTAL)
        self._was_bulk = False

    def offer(self, caller: Caller, call: StoreCall[Any], now_ns: int) -> Refusal | None:
        """Accept a call, or say why not (then nothing changed)."""
        if caller.kind is BULK:
            return self._bulk.offer(caller, call, call.size, now_ns)
        finishing = caller.kind is WORKER
        return self._shared.offer(caller, call, call.size, now_ns, finishing, caller.kind)

    def next_group(self) -> list[Drained[Caller, StoreCall[Any]]]:
        """The calls of the next transaction, by caller, fewest first; empty if none waits.

        Whoever is first in a transaction is answered first.
        """
        parts = self._shared.waiting_keys
        self._was_bulk = bool(self._bulk.waiting_keys) and not (self._was_bulk and parts)
        if self._was_bulk:
            return self._bulk.take(keys=1, items=PART_CALLS_MAX, size=BULK_BYTES_MAX)
        if not parts:
            return []
        group = self._shared.take(
            keys=GROUP_CALLS_MAX,
            items=max(1, min(PART_CALLS_MAX, GROUP_CALLS_MAX // parts)),
            size=GROUP_BYTES_MAX // parts,
            total_items=GROUP_CALLS_MAX,
            total_size=GROUP_BYTES_MAX,
        )
        return sorted(group, key=_calls)

    def settle(self, part: Drained[Caller, StoreCall[Any]], now_ns: int) -> None:
        """A caller's part of a group is done."""
        if part.key.kind is BULK:
            self._bulk.settle(part, now_ns)
        else:
            self._shared.settle(part, now_ns, part.key.kind)

    def check(self) -> None:
        """Assert every invariant."""
        self._shared.check()
        self._bulk.check()


def who_enqueues(tenant: str, size: int) -> Caller:
    """Whose call it is to add jobs of this size."""
    return Caller(BULK if size > BULK_BYTES_MIN else ENQUEUE, tenant)


def _calls(part: Drained[Caller, StoreCall[Any]]) -> int:
    return len(part.items)


def size_of_jobs(jobs: Sequence[NewJob]) -> int:
    return JOB_BYTES * len(jobs) + sum(map(len, states_of(jobs)))


def size_of_settlements(settlements: Sequence[Settlement]) -> int:
    size = JOB_BYTES * len(settlements)
    for one in settlements:
        if one.result is not None:
            size += len(one.result)
        if one.state is not None:
            size += len(one.state)
        if one.log is not None:
            size += len(one.log)
        if one.children:
            size += size_of_jobs(one.children)
    return size

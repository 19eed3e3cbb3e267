"""Which calls share the next transaction: callers have lanes, and kinds of calls take turns.

Pure. A transaction is short, and everybody who waits has a part in it: the more of them, the
smaller the part of whoever has most to say. So who has little to say waits for the transaction that
is under way and for their own, however many calls of others wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from fairway.core.groups import Groups
from fairway.core.lanes import LaneLimits
from fairway.jobs.job import states_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from fairway.core.lanes import Drained
    from fairway.jobs.job import NewJob, Settlement
    from fairway.jobs.stores.sqlite.transaction import Transaction

T = TypeVar("T")

WORKER: Final = "worker"
"""What a worker has to say and to ask: above all its exchanges."""
COMMAND: Final = "command"
"""Signals, cancels and settings, from people and other parts."""
ENQUEUE: Final = "enqueue"
UPKEEP: Final = "upkeep"
WEIGHTS: Final = {WORKER: 8, COMMAND: 4, ENQUEUE: 4, UPKEEP: 2}
"""How the kinds share a transaction that cannot have a call of every caller."""

GROUP_CALLS_MAX: Final = 256
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""One transaction. Raising them buys throughput where a sync is slow, and costs latency: everybody
waits for two of them."""
PART_CALLS_MAX: Final = GROUP_CALLS_MAX // 2
"""Of one caller, even if nobody else waits: somebody may come before the transaction has ended."""
CALL_BYTES_MAX: Final = 64 * 1024 * 1024
"""What the largest call counts as; a larger one is as welcome as this one."""
JOB_BYTES: Final = 1024
"""What a job costs beside its state: time in the transaction rather than memory."""

LANE: Final = LaneLimits(items=16_384, size=2 * CALL_BYTES_MAX)
"""What may wait of one caller: one tenant that enqueues, one worker."""
TOTAL: Final = LaneLimits(items=65_536, size=4 * CALL_BYTES_MAX)
RESERVE: Final = (1_024, CALL_BYTES_MAX)
"""Beyond that, for workers: what they settle frees more than it takes."""


class Caller(NamedTuple):
    """Whose calls stay in order, and what kind they are."""

    kind: str
    who: str | int = ""

    @property
    def finishing(self) -> bool:
        """Whether the calls end what was begun, and may use the reserve."""
        return self.kind is WORKER


class StoreCall(Generic[T]):
    """One call that waits for its commit."""

    __slots__ = ("durable", "function", "jobs", "outcome")

    def __init__(
        self,
        function: Callable[[Transaction], T],
        durable: bool,
        jobs: Sequence[NewJob] | None = None,
    ) -> None:
        """`jobs`, if adding those is all that it does."""
        self.function = function
        self.durable = durable
        self.jobs = jobs
        self.outcome: asyncio.Future[T] | None = None

    @property
    def cancelled(self) -> bool:
        return self.outcome is not None and self.outcome.cancelled()


def lanes_of_calls() -> Groups[Caller, StoreCall[Any]]:
    return Groups(LANE, total=TOTAL, reserve=RESERVE, bands=WEIGHTS)


def next_group(lanes: Groups[Caller, StoreCall[Any]]) -> list[Drained[Caller, StoreCall[Any]]]:
    """The calls of the next transaction, by caller, fewest first; empty if none waits.

    Whoever is first in a transaction hears of it first.
    """
    parts = max(1, lanes.waiting_keys)
    group = lanes.take(
        keys=GROUP_CALLS_MAX,
        items=max(1, min(PART_CALLS_MAX, GROUP_CALLS_MAX // parts)),
        size=GROUP_BYTES_MAX // parts,
        total_items=GROUP_CALLS_MAX,
        total_size=GROUP_BYTES_MAX,
    )
    return sorted(group, key=_calls)


def _calls(part: Drained[Caller, StoreCall[Any]]) -> int:
    return len(part.items)


def weight(size: int) -> int:
    """What a call of this size counts as."""
    return min(size, CALL_BYTES_MAX)


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

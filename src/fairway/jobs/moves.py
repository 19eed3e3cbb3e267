"""Where a job goes when something happens to it: facts and an event in, a move out.

Pure, and written once. The store in memory does what a `Move` says; those in databases do the same
for many jobs at once, by statements made from the tables here. What only a store can see comes in
as a fact: whether a child lives, whether a signal is there, who has a key.

Two questions decide nearly everything. *Does the job wait?* It waits as long as what it waits for
has not come (`still_waits`). *Has it ended?* Then its partition key is free, and its parent is sent
a signal if the job reports by one, or is woken if it waited for this child alone
(`child_ended`). And for whoever looks at it: *why* does it wait (`why_waits`)?
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from fairway.jobs.job import ENDED, Fate, Status
from fairway.jobs.limits import allowance

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from fairway.jobs.job import Claim, Job, Limits, Settlement
    from fairway.jobs.presence import WorkerState

MOVES: Final = MappingProxyType(
    {
        Status.SCHEDULED: {Status.READY: "due", Status.CANCELLED: "cancel"},
        Status.READY: {
            Status.RUNNING: "claim",
            Status.BLOCKED: "key is taken",
            Status.CANCELLED: "cancel",
        },
        Status.BLOCKED: {Status.READY: "key is free", Status.CANCELLED: "cancel"},
        Status.RUNNING: {
            Status.DONE: "done",
            Status.FAILED: "stop, or attempts used up",
            Status.DEAD: "crashed too often",
            Status.CANCELLED: "cancel",
            Status.READY: "next, release, or worker died",
            Status.SCHEDULED: "retry",
            Status.WAITING: "wait, spawn",
        },
        Status.WAITING: {
            Status.READY: "signal, timeout, or children ended",
            Status.CANCELLED: "cancel",
        },
        Status.DONE: {},
        Status.FAILED: {
            Status.READY: "retry by hand",
            Status.WAITING: "retry by hand, if a child has not ended",
        },
        Status.DEAD: {
            Status.READY: "retry by hand",
            Status.WAITING: "retry by hand, if a child has not ended",
        },
        Status.CANCELLED: {
            Status.READY: "retry by hand",
            Status.WAITING: "retry by hand, if it waited",
        },
    }
)
"""From each state, where a job may go and why. Nothing else ever happens to one."""

UNHAPPY: Final = frozenset(status for status in ENDED if MOVES[status])
"""Ways to end that can be retried or discarded by hand."""

END: Final = MappingProxyType(
    {Fate.DONE: Status.DONE, Fate.FAILED: Status.FAILED, Fate.CANCELLED: Status.CANCELLED}
)
"""How a job has ended whose run ended so."""

DEATH: Final = ((("crashes",), "max_crashes"), (("attempt", "crashes"), "max_attempts"))
"""A job whose worker died is dead as soon as one of these sums reaches its limit."""

TRIES: Final = ("attempt", "crashes")
TRIES_MAX: Final = tuple(most for _, most in DEATH)
"""What `DEATH` adds up of a job, and the limits that it was enqueued with."""

DEATH_ERROR: Final = ("its worker died ", " times")
"""What stands before and behind the number of crashes."""


CHILDREN: Final = None
"""Stands among the names of a job that waits for its children, and is given its signals then: it
was taken up by hand in a step that it had come to by a signal or a timer."""


class Move(NamedTuple):
    """What becomes of a job. All that it was given by whoever ran it is in the settlement."""

    to: Status
    """`WAITING` means: unless what it waits for is there, then it is ready."""
    counts: bool = True
    """Whether what its run said counts: state, progress, result, error, and the signals used up."""
    steps: bool = False
    """Whether it goes on with the step that its run named."""
    tries: int = 0
    """Attempts that are added."""
    begins: bool = False
    """A step begins: attempts, timeout and the signals that it waits for start over."""
    ends: bool = False


class Facts(NamedTuple):
    """What decides about a job beside the event."""

    status: Status
    attempt: int = 0
    crashes: int = 0
    max_attempts: int = 1
    max_crashes: int = 1
    reason: str | None = None
    """Why it is to end, if somebody has cancelled it."""
    names: Collection[str | None] = ()
    """The signals that it waits for; or was given, if it waits no more."""
    waited_until_ns: int | None = None
    """If it has ended badly and waited then: until when, 0 without a timer."""


READY: Final = Move(Status.READY)
_ENDS: Final = {fate: Move(status, ends=True) for fate, status in END.items()}
_CANCELLED: Final = Move(Status.CANCELLED, counts=False, ends=True)
_DEAD: Final = Move(Status.DEAD, counts=False, ends=True)
_NEXT: Final = Move(Status.READY, steps=True, begins=True)
_WAIT: Final = Move(Status.WAITING, steps=True, begins=True)
_RETRY: Final = {
    (later, counts): Move(
        Status.SCHEDULED if later else Status.READY, steps=True, tries=int(counts)
    )
    for later in (False, True)
    for counts in (False, True)
}


def settled(settlement: Settlement, cancelling: bool = False) -> Move:
    """Its worker said how a run ended. Somebody's cancel wins over all but an end."""
    fate = settlement.fate
    ends = _ENDS.get(fate)
    if ends is not None:
        return ends
    if cancelling:
        return _CANCELLED
    if fate is Fate.RELEASE:
        return READY
    if fate is Fate.RETRY:
        return _RETRY[settlement.delay_ns > 0, settlement.counts]
    if fate is Fate.SPAWN or (fate is Fate.WAIT and settlement.names):
        return _WAIT
    return _NEXT


def is_just_done(settlement: Settlement) -> bool:
    """Whether a run says only that its job is done and what it returned, and no key or parent
    stands beside the job. Most runs end so: a store may settle them all in one statement."""
    claim = settlement.claim
    return (
        settlement.fate is Fate.DONE
        and settlement.state is None
        and settlement.progress is None
        and settlement.error is None
        and not settlement.log
        and claim.partition_key is None
        and claim.parent is None
    )


def worker_died(job: Facts) -> Move:
    """Its worker was lost with it; `job` has that crash counted already."""
    if job.reason is not None:
        return _CANCELLED
    dies = any(
        sum(getattr(job, one) for one in terms) >= getattr(job, most) for terms, most in DEATH
    )
    return _DEAD if dies else READY


def cancelled(job: Facts) -> Move | None:
    """Somebody cancels it; None if its worker has to be asked, or if it has ended."""
    return None if job.status is Status.RUNNING or job.status.ended else _CANCELLED


def reason_to_end(job: Facts, reason: str) -> str:
    """Why it ends: the first of several reasons stands."""
    return reason if job.reason is None else job.reason


def signalled(job: Facts, name: str) -> Move | None:
    """A signal has come into its inbox; None if it does not wait for that."""
    waits = job.status is Status.WAITING and not waits_for_children(job.names)
    return READY if waits and name in job.names else None


def child_ended(parent: Facts, pending: bool) -> Move | None:
    """A child that it counts has ended; `pending` if another one has not."""
    waits = parent.status is Status.WAITING and waits_for_children(parent.names)
    return READY if waits and not pending else None


def key_is_free(job: Facts) -> Move | None:
    """Nobody has its partition key any more, and it is the first that waits for it."""
    return READY if job.status is Status.BLOCKED else None


def waits_for_children(names: Collection[str | None]) -> bool:
    """Whether one that waits does so for its children, and not for signals of these names."""
    return not names or CHILDREN in names


def signals_awaited(names: Collection[str | None]) -> tuple[str, ...]:
    """The signals that one waits for that has these names."""
    return () if waits_for_children(names) else tuple(name for name in names if name is not None)


def still_waits(names: Collection[str | None], inbox: Iterable[str], pending: bool) -> bool:
    """Whether what a job waits for has not come: one of the signals, or the end of its children."""
    if waits_for_children(names):
        return pending
    return not any(name in names for name in inbox)


def may_be_retried(job: Facts, *, parent_lives: bool, reporters_live: bool) -> bool:
    """Whether a job that ended may be taken up again, if its unique key is free.

    A parent that lives has counted it already. Children that report to it and have not ended
    belong to the attempt that is over.
    """
    return job.status in UNHAPPY and not parent_lives and not reporters_live


def may_be_discarded(job: Facts, *, parent_lives: bool) -> bool:
    """Whether a job that ended may be forgotten: its parent may still read how it ended."""
    return job.status in UNHAPPY and not parent_lives


def names_again(job: Facts) -> Collection[str | None]:
    """What one waits for that is taken up by hand: what it waited for when it ended. One that had
    its signals, or waited in vain, is given the same again, but waits for its children first."""
    had = job.waited_until_ns is None and not waits_for_children(job.names)
    return (*job.names, CHILDREN) if had else job.names


def retried(*, anew: bool, waits: bool) -> Move:
    """It is taken up by hand; `waits` if that which `names_again` says has not come."""
    return _WAIT if not anew and waits else READY


class Why(Enum):
    """Why a job waits. Of several reasons, the first in this order that holds is returned."""

    TIMER = "timer"
    """It is not due."""
    BACKOFF = "backoff"
    """It failed, and is tried again later."""
    SIGNAL = "signal"
    CHILDREN = "children"
    KEY = "key"
    """Another job of its partition key runs or, in strict order, was enqueued before it."""
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    """No living worker works on its queue."""
    UNKNOWN_KIND = "unknown_kind"
    """Of the living workers of its queue none knows its kind, version or step."""
    LIMIT = "limit"
    """As many run, or have started, as its queue or all queues together allow."""
    TURN = "turn"
    """Nothing is in its way but those before it, or a worker that has not looked yet."""


class WaitReason(Struct, frozen=True, kw_only=True):
    """Why a job waits, and what for."""

    why: Why
    until_wall_ns: int | None = None
    """When its timer ends the wait, if it has one."""
    names: tuple[str, ...] = ()
    """The signals that it waits for."""
    children: int = 0
    """How many of its children it waits for."""
    holder: int | None = None
    """The job that has its key, or stands before it."""
    queue: str | None = None
    """What is paused, is at its limit (`*` is all queues together) or has no worker for it."""
    wait_ns: int = 0
    """Until a rate lets the next one start; 0 until one that runs has ended."""


class QueueFacts(NamedTuple):
    """How a queue stands under its limits, as a store has it."""

    name: str
    limits: Limits
    running: int
    tokens: float
    since_ns: int
    """How long ago it held those tokens."""


class WaitFacts(NamedTuple):
    """What decides why a job waits, beside the job itself."""

    paused: bool = False
    """Whether its queue is."""
    queues: Sequence[QueueFacts] = ()
    """Those whose limits it is under: its own, and all together."""
    holder: int | None = None
    """The job of its partition key that runs or, in strict order, the first that lives."""
    children: int = 0
    """Children that it counts and that have not ended."""
    workers: Sequence[WorkerState] = ()
    """All that are registered."""


def why_waits(job: Job, facts: WaitFacts) -> WaitReason | None:
    """Why a job waits; None if it does not: it runs, or has ended."""
    due_ns = job.due_wall_ns
    if job.status is Status.RUNNING or job.status.ended:
        return None
    if job.status is Status.SCHEDULED:
        why = Why.TIMER if job.error is None else Why.BACKOFF
        return WaitReason(why=why, until_wall_ns=due_ns)
    if job.status is Status.WAITING:
        if job.waits_for:
            return WaitReason(why=Why.SIGNAL, names=job.waits_for, until_wall_ns=due_ns)
        return WaitReason(why=Why.CHILDREN, children=facts.children, until_wall_ns=due_ns)
    if facts.holder is not None:
        return WaitReason(why=Why.KEY, holder=facts.holder)
    if facts.paused:
        return WaitReason(why=Why.PAUSED, queue=job.queue)
    here = [worker for worker in facts.workers if worker.works_on(job.queue)]
    if not here:
        return WaitReason(why=Why.NO_WORKER, queue=job.queue)
    if not any(worker.knows(job.kind, job.version, job.step) for worker in here):
        return WaitReason(why=Why.UNKNOWN_KIND, queue=job.queue)
    for one in facts.queues:
        may = allowance(one.limits, one.running, one.tokens, one.since_ns)
        if not may.free:
            return WaitReason(why=Why.LIMIT, queue=one.name, wait_ns=may.wait_ns)
    return WaitReason(why=Why.TURN)


def death_error(crashes: int) -> str:
    before, behind = DEATH_ERROR
    return f"{before}{crashes}{behind}"


LIKE: Final = ("kind", "version", "step")
"""What jobs have in common that are set aside together."""


def like(claim: Claim) -> tuple[object, ...]:
    """What a job has of `LIKE`."""
    return tuple(getattr(claim, name) for name in LIKE)


def where(decide: Callable[[Facts], object]) -> frozenset[Status]:
    """The states in which something is decided to happen to a job, other facts being for it."""
    return frozenset(status for status in Status if decide(Facts(status)))

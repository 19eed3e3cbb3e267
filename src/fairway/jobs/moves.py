"""Where a job goes when something happens to it: facts and an event in, a move out.

Pure, and written once. The store in memory does what a `Move` says; those in databases do the same
for many jobs at once, by statements made from the tables here. What only a store can see comes in
as a fact: whether a child lives, whether a signal is there, who has a key.

Two questions decide nearly everything. *Does the job wait?* It waits as long as what it waits for
has not come (`still_waits`). *Has it ended?* Then its partition key is free, and its parent is told
by a signal if the job reports by one, or is woken if it waited for this child alone
(`child_ended`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.jobs.job import ENDED, Fate, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from fairway.jobs.job import Claim, Settlement

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
    """Its worker told how a run ended. Somebody's cancel wins over all but an end."""
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

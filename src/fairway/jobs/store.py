"""The contract of a job store: what a database must do for jobs, and what it promises.

Every call is one transaction. Its effects are durable when it returns; a call that raises changed
nothing, except `OutcomeUnknown`, which says so. Times are the store's own: callers give durations.
One conformance suite holds every store to this.

What a store decides by itself, because only it sees all workers: who gets a ready job, who holds a
partition key, whether a lease still stands, whether a settlement is stale, when a parked job wakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from fairway.jobs.presence import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from fairway.jobs.attempts import JobAttempt
    from fairway.jobs.job import (
        Claim,
        Enqueued,
        Filter,
        Job,
        LeaseRenewal,
        Limits,
        NewJob,
        QueueState,
        ReadyLine,
        Reaped,
        Settlement,
        Status,
    )
    from fairway.jobs.moves import WaitReason
    from fairway.jobs.presence import KindState, WorkerState
    from fairway.jobs.timetable import Timetable

NO_OFFER: Final = Offer()


class TopicCursor(NamedTuple):
    """How far the reader `name` has come in a topic: an incarnation of it, and a seq there."""

    name: str
    epoch: int
    seq: int
    first: int | None = None
    """Where what comes with it begins, if that is more than one; it is not kept. A reader that was
    overtaken, after it looked how far it was, must not bring again the first of several."""


class Want(NamedTuple):
    """How many jobs a worker would take from one ready line."""

    line: ReadyLine
    most: int


class Ended(NamedTuple):
    """A job that ended in an exchange, for whoever waits for its result."""

    id: int
    status: Status
    result: bytes | None
    error: str | None


class Exchanged(Struct, kw_only=True):
    """What an exchange brought."""

    claims: list[Claim]
    stale: list[int]
    """Jobs whose settlement was refused: the claim was no longer ours, nothing was committed."""
    lines: Mapping[str, Sequence[ReadyLine]]
    """For each queue that was probed: its lines with something ready, after the claims."""
    woken: Collection[ReadyLine]
    """Lines that got ready jobs by what was settled, and nobody claimed those; perhaps more."""
    held_back_ns: Mapping[str, int]
    """Queues at one of their limits, and when to ask again."""
    ended: list[Ended]
    """Jobs that ended with this exchange."""
    contended: int = 0
    """Jobs that were not claimed because another of their partition key runs."""
    postponed: Sequence[Settlement] = ()
    """What was not settled now, to be settled a little later: a transaction of somebody else holds
    the unique key of a child. Its claims stand, nothing of it was committed."""
    cancelling: Mapping[int, str] = {}
    """With a probe: jobs of this worker that somebody cancelled, and why."""


class Delivered(NamedTuple):
    """What came of a signal."""

    job: int | None
    """The job it reached; None if there is none that could still read it."""
    fresh: bool
    """False if the job had one with the same dedup key, in its inbox still or dealt with."""
    woken: ReadyLine | None


class CancelResult(NamedTuple):
    """What came of a cancel: jobs that ended at once, and those whose workers are to stop them."""

    ended: tuple[int, ...]
    running: tuple[int, ...]


class Promoted(NamedTuple):
    """What timers brought."""

    moved: int
    lines: frozenset[ReadyLine]
    next_due_ns: int | None
    """How long until the next timer; None if there is none."""


class LeaseRenewer(Protocol):
    """A connection of its own that keeps one worker alive. Used by one thread, which may block."""

    def renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        """Renew the worker's lease, unless it has run out.

        `held` maps the jobs the worker knows it has to their tokens. Leases in the store that it
        does not know of, and that are older than `grace_ns`, are released: the reply that named
        them was lost. Those that the worker knew of before it asked, and that the store does not
        have, are named in the answer. Raises `TryLater` if the store does not answer.
        """
        ...

    def close(self) -> None: ...


class JobStore(Protocol):
    """Where jobs live."""

    @property
    def timetable(self) -> Timetable:
        """The schedules beside them."""
        ...

    async def open(self) -> None:
        """Connect, and bring the tables to the version of this release."""
        ...

    async def aclose(self) -> None: ...

    async def enqueue(
        self, jobs: Sequence[NewJob], *, within: Any = None, cursor: TopicCursor | None = None
    ) -> list[Enqueued]:
        """Add jobs, all or none. `within` is a connection of the caller in a transaction of theirs.

        With `cursor` they are added only if it stood before the first of them, and it moves with
        them; otherwise the answer is empty and nothing changed.
        """
        ...

    async def cursor(self, name: str) -> TopicCursor | None:
        """How far a reader of a topic has come."""
        ...

    async def register(self, name: str, ttl_ns: int, offer: Offer = NO_OFFER) -> int:
        """A number for a worker, never given to another; its lease begins.

        What it offers is listed by `workers` and `kinds` from then on.
        """
        ...

    async def unregister(self, worker: int) -> None:
        """The worker ends. What it still holds is the reaper's at once."""
        ...

    async def exchange(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Collection[str] = (),
    ) -> Exchanged:
        """Settle what was claimed, then claim what is wanted under `token`: one commit.

        `token` is above every token this worker used before. A worker whose lease ran out gets
        nothing and all it settles is stale.
        """
        ...

    async def count_lost(self, worker: int, claims: Sequence[Claim]) -> None:
        """Count a crash for each of these: the worker began it, and the store lost its claim.

        Once for a claim, however often it is called; not if the worker has the lease after all, and
        not if the job has come further since, or ended. Nobody's lease changes, and no job is dead
        of it.
        """
        ...

    def lease_renewer(self) -> LeaseRenewer: ...

    async def promote(self, limit: int) -> Promoted:
        """Make ready what is due, at most `limit` of them."""
        ...

    async def reap(self, limit: int) -> Reaped:
        """Take the jobs of workers whose lease ran out, at most `limit`: back to ready, or dead."""
        ...

    async def age(self, limit: int) -> int:
        """Move what has waited long up a band, at most `limit` from the head of each ready line."""
        ...

    async def signal(
        self, target: int | str, name: str, payload: bytes, *, dedup: str | None = None
    ) -> Delivered:
        """Put a signal into the inbox of a job, named by its id or its unique key.

        A `dedup` key stands as long as its signal is in the inbox and, once the step that was
        given it has committed, until `prune` forgets it: a repeat changes nothing. A signal that
        goes with the inbox of a job that ends, not dealt with, takes its key with it.
        """
        ...

    async def cancel(self, jobs: Sequence[int], *, reason: str = "cancelled") -> CancelResult:
        """End jobs and the children they have, or ask the workers that run them to.

        The reason is their error, of those that run from now on; the first of several stands.
        """
        ...

    async def retry(self, jobs: Sequence[int], *, anew: bool = False) -> list[int]:
        """Take failed, dead or cancelled jobs up again, attempts forgotten; those it could.

        Each goes on where it stood. Its inbox is as it was: the step that failed is given the same
        signals. One that waited waits again, with what is left of its time, unless a signal that it
        waits for is there. One that failed and has children waits until all of them have ended,
        those that were retried as well, whatever had brought it to its step. With `anew` they are
        ready at once, whatever they waited for, and begin with an empty inbox.

        One whose unique key belongs to another job by now stays as it is, and so does a child whose
        parent lives: the parent has counted it. And so does a parent with children that report to
        it and have not ended: they belong to the attempt that is over. Of several that are given,
        each is looked at in the order of `retry_order`.
        """
        ...

    async def discard(self, jobs: Sequence[int]) -> list[int]:
        """Forget jobs that failed, died or were cancelled; those it could.

        A child whose parent lives stays: the parent may still read how it ended.
        """
        ...

    async def progress(self, worker: int, values: Mapping[int, bytes]) -> None:
        """Note how far running jobs are."""
        ...

    async def find(self, id: int) -> Job | None: ...

    async def find_by_key(self, unique_key: str) -> Job | None: ...

    async def browse(self, filter: Filter) -> list[Job]: ...

    async def attempts(self, id: int) -> list[JobAttempt]:
        """The attempts of a job, oldest first, the one under way with them.

        Those are listed that failed, were cancelled, were lost or logged something, the last
        `ATTEMPTS_MAX` of them, and the last one of a job that is done. None of a job that is not
        there.
        """
        ...

    async def attempt_log(self, id: int, number: int) -> bytes | None:
        """What an attempt logged, in UTF-8, at most the last `LOG_BYTES_MAX` of it."""
        ...

    async def why_waits(self, id: int) -> WaitReason | None:
        """Why a job waits, as it looks now; None if it does not, or is not there."""
        ...

    async def workers(self) -> list[WorkerState]:
        """Every worker that is registered, those among them whose lease ran out."""
        ...

    async def kinds(self) -> list[KindState]:
        """Every kind that a worker has known, by name and version."""
        ...

    async def queues(self) -> list[QueueState]: ...

    async def set_paused(self, queue: str, paused: bool) -> None: ...

    async def set_limits(self, queue: str, limits: Limits) -> None:
        """Set what a queue may do; the queue `*` is all of them together."""
        ...

    async def prune(
        self,
        older_than_ns: int,
        *,
        failed_older_than_ns: int | None = None,
        dedup_older_than_ns: int | None = None,
        exact: bool = True,
    ) -> int:
        """Forget jobs that ended longer ago; how many. What a parent may read stays: one that
        has not ended, or that ended badly and is kept, since it may be retried.

        Those that failed or died go by a time of their own, if one is given; and so do the dedup
        keys of signals, counted from when the signal was dealt with: without one they all stay.
        With `exact` off a store may leave some for the next time, so that one call is not too long.
        """
        ...


def retry_order(
    jobs: Iterable[int], parents: Mapping[int, int | None], reporting: Collection[int]
) -> list[int]:
    """In which order jobs are retried that were given at once: as they were given, but for two.

    Children come before the parents that wait for them: the parent sees them live, and waits. Those
    that report to their parent (the tasks of a workflow) come last: it starts them again itself.
    """
    asked = dict.fromkeys(jobs)

    def depth(job: int) -> int:
        above = parents.get(job)
        return 0 if above is None or above not in asked else 1 + depth(above)

    return [
        *sorted((job for job in asked if job not in reporting), key=depth, reverse=True),
        *sorted((job for job in asked if job in reporting), key=depth),
    ]


@runtime_checkable
class KeysMayGo(Protocol):
    """A store that may lose partition keys of claims whose leases stand."""

    def on_keys_lost(self, notify: Callable[[Mapping[int, int]], None]) -> Callable[[], None]:
        """Call `notify` on the event loop, with jobs and the tokens of their claims, as soon as it
        is known that their keys may be others' now. What these runs say is refused, and their jobs
        go back. Returns a call that ends the subscription."""
        ...


@runtime_checkable
class Inspected(Protocol):
    """A store in files, which can be looked at before anything is changed: a start that is refused
    over one file leaves the others as they were, too."""

    async def inspect(self) -> None:
        """Raise what `open` would raise over damage or an unknown format. The files stay as they
        are, also if there are none yet."""
        ...

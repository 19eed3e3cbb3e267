"""What a job is, in every place that speaks of one: states, ready lines, claims, settlements.

Plain data. Where a job goes from which state, and why, is in `moves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from msgspec import Raw, Struct, json, structs

from fairway.core.priority import band_of
from fairway.wire.jobs import TEXT_MAX, check_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairway.core.priority import Band

RUN: Final = "run"
WORKFLOW: Final = "workflow:"
"""What the kind of a workflow's run begins with."""
"""The step of a job that is a plain function."""
NO_TENANT: Final = ""
MAX_ATTEMPTS: Final = 20
MAX_CRASHES: Final = 5
KEY_MAX: Final = TEXT_MAX
"""Characters of a key, a tenant or a queue."""
CANCELLED: Final = "cancelled"
"""The reason of a cancel that was given none."""


def last_line(error: str) -> str:
    """What a traceback comes to; of a group of them, the last."""
    lines = error.strip().split("\n")
    return next((text for line in reversed(lines) if (text := line.strip(" |+-"))), "")


class Status(Enum):
    """Where a job is. The value is the letter the stores keep."""

    SCHEDULED = "s"
    """A timer brings it back: it starts later, or is tried again."""
    READY = "r"
    BLOCKED = "b"
    """Another job with its partition key runs."""
    RUNNING = "x"
    """A worker has it, running or in its buffer, under a lease."""
    WAITING = "w"
    """For signals, or for its children."""
    DONE = "d"
    FAILED = "f"
    """It said so, or used up its attempts."""
    DEAD = "k"
    """Its worker died with it too often."""
    CANCELLED = "c"

    @property
    def ended(self) -> bool:
        return self in ENDED

    @property
    def word(self) -> str:
        return self.name.lower()


ENDED: Final = frozenset({Status.DONE, Status.FAILED, Status.DEAD, Status.CANCELLED})


class ReadyLine(NamedTuple):
    """What ready jobs wait in, first enqueued first: one queue, one tenant, one band.

    It is not bounded: its jobs are rows in the database.
    """

    queue: str
    tenant: str
    band: Band
    skill: str = ""
    """What a worker must know to be given them; anybody is, where it is empty. Jobs that a worker
    met and knew nothing of wait here, out of the way of the others."""


class Skill(NamedTuple):
    """What a worker must know to run a job: its kind and version, or one step of those."""

    kind: str
    version: int
    step: str | None = None

    def __str__(self) -> str:
        return json.encode(self).decode()


def skill_in(text: str) -> Skill:
    """The skill that `ReadyLine.skill` names."""
    return json.decode(text, type=Skill)


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to enqueue."""

    kind: str
    state: bytes = b"{}"
    """Arguments of a function, or the state of a machine, as JSON."""
    version: int = 1
    step: str = RUN
    queue: str = "default"
    tenant: str = NO_TENANT
    priority: int = 0
    delay_ns: int = 0
    """How much later than now it may start."""
    at_wall_ns: int | None = None
    """Or the time it may start; a time that has passed is now."""
    max_attempts: int = MAX_ATTEMPTS
    max_crashes: int = MAX_CRASHES
    partition_key: str | None = None
    strict: bool = False
    """Whether later jobs of the key wait while this one is between attempts or waits."""
    unique_key: str | None = None
    window_ns: int = 0
    """How long after its enqueueing the unique key stands, even if the job has ended."""
    parent: int | None = None
    notify: str | None = None
    """The signal its parent is sent when it ends; without one the parent counts it."""
    trace: str | None = None
    """The `traceparent` of who enqueued it."""


class JobBatch(Sequence[NewJob]):
    """Jobs that differ in their state alone; each is made when somebody looks at it, and only then.

    Who can take all of them at once looks at the first and at the states.
    """

    __slots__ = ("first", "states")

    def __init__(self, first: NewJob, states: Sequence[bytes]) -> None:
        self.first = first
        self.states = states

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[NewJob]:
        first = self.first
        return (structs.replace(first, state=state) for state in self.states)

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> JobBatch: ...
    def __getitem__(self, at: int | slice) -> NewJob | JobBatch:
        if isinstance(at, slice):
            return JobBatch(self.first, self.states[at])
        return structs.replace(self.first, state=self.states[at])


def distinct(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Of jobs that differ in their state alone, one."""
    return (jobs.first,) if isinstance(jobs, JobBatch) else jobs


def states_of(jobs: Sequence[NewJob]) -> Sequence[bytes]:
    return jobs.states if isinstance(jobs, JobBatch) else [job.state for job in jobs]


def line_of(job: NewJob | Claim | Job) -> ReadyLine:
    """The line a job becomes ready in."""
    return ReadyLine(job.queue, job.tenant, band_of(job.priority))


class Enqueued(Struct, frozen=True, gc=False):
    id: int
    fresh: bool
    """False if a job with the unique key was there already: `id` is that one."""


class Signal(Struct, frozen=True, gc=False):
    """What waits in a job's inbox."""

    id: int
    name: str
    payload: bytes


class Child(Struct, frozen=True, gc=False):
    """How a child of a job stands."""

    id: int
    kind: str
    status: Status
    result: bytes | None
    error: str | None


class Ending(Struct, frozen=True):
    """The payload of the signal that says to a parent how its child ended."""

    id: int
    status: str
    result: Raw = Raw(b"null")
    error: str | None = None


def ending(id: int, status: Status, result: bytes | None, error: str | None) -> bytes:
    """How a job ended, as the payload of a signal."""
    return json.encode(Ending(id, status.word, Raw(result or b"null"), error))


class Claim(Struct, gc=False):
    """A job that a worker has: what is needed to run it, and the token that proves the claim."""

    id: int
    token: int
    kind: str
    version: int
    step: str
    state: bytes
    attempt: int
    """Failed attempts of this step so far."""
    crashes: int
    max_attempts: int
    queue: str
    tenant: str
    priority: int
    partition_key: str | None
    parent: int | None
    trace: str | None
    timed_out: bool
    """Whether it was woken by the end of its waiting time, and nothing it waited for is there."""
    cancelling: str | None
    """Why it is to end, if somebody cancelled it."""
    retries: int = 0
    """How often it was retried by hand after it had ended."""
    signals: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()
    skill: str = ""
    """That of the line it came from."""


CLAIM_FIELDS: Final = Claim.__struct_fields__[: Claim.__struct_fields__.index("signals")]
"""What of a claim is in the row of its job, or common to many, in this order. What stands in rows
beside that one comes after it."""
GIVEN: Final = tuple(
    name
    for name in CLAIM_FIELDS
    if name in NewJob.__struct_fields__ and name not in ("step", "state")  # which change
)
"""What a claim has of its `NewJob` as it is."""


class Fate(Enum):
    """How one run of a claimed job ended, as far as its store is concerned."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NEXT = "next"
    RETRY = "retry"
    WAIT = "wait"
    SPAWN = "spawn"
    RELEASE = "release"
    """Not run: back where it came from, its attempts unchanged."""


TERMINAL: Final = frozenset({Fate.DONE, Fate.FAILED, Fate.CANCELLED})
GOES_ON: Final = frozenset({Fate.NEXT, Fate.WAIT, Fate.SPAWN})


class Settlement(Struct, gc=False, kw_only=True):
    """What to commit for one claim. Only the holder of `token` can: the others are stale."""

    claim: Claim
    fate: Fate
    step: str = RUN
    state: bytes | None = None
    """None leaves it as it is."""
    result: bytes | None = None
    error: str | None = None
    delay_ns: int = 0
    """Before the next attempt (retry), or until a timeout wakes it (wait; 0 is never)."""
    counts: bool = True
    """Whether a retry uses up an attempt. Waiting for a condition does not."""
    ran: bool = True
    """Whether the job was run, as it is unless this is a release."""
    log: bytes | None = None
    """The end of what the run logged, in UTF-8."""
    names: tuple[str, ...] = ()
    """The signals it waits for."""
    children: tuple[NewJob, ...] = ()
    progress: bytes | None = None
    skill: str | None = None
    """Of a release, next, wait or spawn: only workers that know this are given it from now on, or
    anybody is if it is empty; None leaves that as it is. A release takes others of its kind,
    version and step along, from the head of its ready lines, at most `ASIDE_MAX` of each."""

    @property
    def is_run(self) -> bool:
        """Whether it is of a run."""
        return self.ran and self.fate is not Fate.RELEASE

    @property
    def consumed(self) -> tuple[int, ...]:
        """The signals that this commit uses up: those the step was given, if it goes on.

        A step that failed is given them again, and so is one that was not run. When a job ends its
        whole inbox goes; but one that stopped in order, its state saved, has dealt with these.
        """
        fate = self.fate
        if not self.claim.signals or not (
            fate in GOES_ON
            or (fate is Fate.RETRY and not self.counts)
            or (fate is Fate.FAILED and self.state is not None)
        ):
            return ()
        return tuple(signal.id for signal in self.claim.signals)


ASIDE_MAX: Final = 1_000


class LeaseRenewal(NamedTuple):
    """The answer to a heartbeat: what came of renewing the lease of a worker."""

    alive: bool
    """False: the lease ran out and the worker's jobs are others' now."""
    cancel: Mapping[int, str] = MappingProxyType({})
    """Jobs of this worker that somebody cancelled, and why."""
    released: int = 0
    """Leases the store had for this worker that the worker knew nothing of."""
    lost: Mapping[int, int] = MappingProxyType({})
    """Jobs, by token, that the worker has and the store has no lease of: what the worker settled a
    moment ago, and claims that a crash of the database undid."""


class DeadJob(NamedTuple):
    """A job that is dead: its worker died with it too often."""

    id: int
    kind: str
    attempt: int
    """Which try it was, deaths included."""
    error: str


class Reaped(NamedTuple):
    """What came of workers that died."""

    workers: int = 0
    returned: int = 0
    dead: int = 0
    lines: frozenset[ReadyLine] = frozenset()
    died: tuple[DeadJob, ...] = ()
    """Those that are dead now, by id."""


class Limits(Struct, frozen=True, kw_only=True):
    """What a queue may do, over all workers together. None is no limit.

    Raises `Invalid` for what cannot be kept, such as a rate of 0 or one that is no number.
    """

    concurrency: int | None = None
    rate_per_s: float | None = None
    """Starts per second on average."""
    burst: int = 1
    """How many starts a quiet queue saves up."""

    def __post_init__(self) -> None:
        check_limits(self.concurrency, self.rate_per_s, self.burst)


class QueueState(Struct, frozen=True, kw_only=True):
    """One queue as the store sees it."""

    name: str
    paused: bool
    limits: Limits
    ready: int
    scheduled: int
    waiting: int
    blocked: int
    running: int


class Job(Struct, frozen=True, kw_only=True):
    """Everything known of one job, for whoever looks at it."""

    id: int
    kind: str
    version: int
    status: Status
    queue: str
    tenant: str
    priority: int
    step: str
    state: bytes
    attempt: int
    crashes: int
    max_attempts: int
    partition_key: str | None
    unique_key: str | None
    parent: int | None
    trace: str | None
    enqueued_wall_ns: int
    due_wall_ns: int | None = None
    finished_wall_ns: int | None = None
    worker: int | None = None
    cancelling: bool = False
    retries: int = 0
    """How often it was retried by hand after it had ended."""
    runs: int = 0
    """How many runs of it have ended, of any step and however."""
    ran_by: int | None = None
    """The worker that runs it or, once it is done, that ran it last."""
    started_wall_ns: int | None = None
    """When that worker was given it."""
    waits_for: tuple[str, ...] = ()
    progress: bytes | None = None
    result: bytes | None = None
    error: str | None = None


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs to list, newest first."""

    queue: str | None = None
    kind: str | None = None
    status: Status | None = None
    tenant: str | None = None
    parent: int | None = None
    trace: str | None = None
    """The id of a trace, 32 hexadecimal digits: jobs whose `traceparent` is of that trace."""
    since_wall_ns: int | None = None
    """Enqueued then or later."""
    until_wall_ns: int | None = None
    """Enqueued before."""
    before: int | None = None
    """Ids below this one: where the page before ended."""
    limit: int = 50

"""The messages of jobs and queues: what is asked, what is answered, and the limits of both.

Times are milliseconds since 1970, in UTC. Arguments, states, results and payloads are JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from fairway.errors import Invalid

JOBS_MAX: Final = 1_000
ARGS_BYTES_MAX: Final = 1024 * 1024
PROGRESS_BYTES_MAX: Final = 64 * 1024
"""What a job says of how far it is. A worker holds the last of each job that runs."""
TEXT_MAX: Final = 500
"""Characters of a kind, a key or a tenant: what is in an index of a database has an end there."""
QUEUE_MAX: Final = 255
REASON_MAX: Final = 1_000
TRACE_MAX: Final = 256
PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200
DURATION_MS_MAX: Final = 3_153_600_000_000
"""A hundred years: with it, every time still fits 63 bits of nanoseconds."""
AT_MS_MAX: Final = 7_258_118_400_000
"""The year 2200."""
LIMIT_MAX: Final = 1_000_000
RATE_MIN: Final = 1e-6
"""One start in eleven and a half days. A queue that is to start nothing is paused."""
VERSION_MAX: Final = 2**31 - 1

NO_NUL: Final = {"pattern": "^[^\\u0000]*$"}
"""Not every store can keep a NUL."""
Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, extra_json_schema=NO_NUL)]
QueueName: TypeAlias = Annotated[
    str,
    Meta(
        max_length=QUEUE_MAX, extra_json_schema={"pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"}
    ),
]
"""As the name of a topic; `check_name` says what is wrong with one."""
Duration: TypeAlias = Annotated[int, Meta(ge=0, le=DURATION_MS_MAX)]
StatusName: TypeAlias = Literal[
    "scheduled", "ready", "blocked", "running", "waiting", "done", "failed", "dead", "cancelled"
]
ENDED: Final = frozenset({"done", "failed", "dead", "cancelled"})
"""What a job comes to. Only a retry by hand leads out of the last three."""


class JobOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A job to enqueue. What is not given is as its kind declares it, where the kind is known."""

    kind: Text
    args: dict[str, Raw] = {}
    """The arguments of a function, or the state of a machine."""
    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)] | None = None
    """The newest that the server knows, or 1."""
    step: Text | None = None
    """Where a machine that the server does not know begins."""
    queue: QueueName | None = None
    tenant: Annotated[str, Meta(max_length=TEXT_MAX, extra_json_schema=NO_NUL)] | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    delay_ms: Duration | None = None
    at: Annotated[int, Meta(ge=0, le=AT_MS_MAX)] | None = None
    """The time it may start, instead of a delay; one that has passed is now."""
    key: Text | None = None
    """At most one job has it, while that job lives and for `window_ms` after its enqueueing."""
    window_ms: Duration | None = None
    partition_key: Text | None = None
    """At most one job with it runs at a time."""
    max_attempts: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] | None = None
    traceparent: (
        Annotated[str, Meta(min_length=1, max_length=TRACE_MAX, extra_json_schema=NO_NUL)] | None
    ) = None
    """Stored with the job; the header of the request if not given."""


class EnqueueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/jobs`: one job or several, all or none of them."""

    jobs: Annotated[list[JobOrder], Meta(min_length=1, max_length=JOBS_MAX)]


class EnqueuedJob(Struct, frozen=True, kw_only=True):
    id: int
    fresh: bool
    """False if a job with the key was there already: `id` is that one."""


class EnqueueReply(Struct, frozen=True, kw_only=True):
    jobs: list[EnqueuedJob]
    """In the order in which they were given."""


class JobSummary(Struct, frozen=True, kw_only=True):
    """What a list shows of a job."""

    id: int
    kind: str
    version: int
    status: StatusName
    queue: str
    tenant: str
    priority: int
    step: str
    attempt: int
    """Failed attempts of this step so far."""
    crashes: int
    """How often a worker died with it."""
    max_attempts: int
    key: str | None
    partition_key: str | None
    parent: int | None
    traceparent: str | None
    enqueued_at: int
    due_at: int | None
    """When a timer brings it back."""
    finished_at: int | None
    worker: int | None
    """Who has it."""
    cancelling: bool
    """Whether it is being stopped; `error` says why."""
    retries: int
    """How often it was retried by hand after it had ended."""
    waits_for: list[str]
    """The signals it waits for."""
    progress: Any
    """What the job said of how far it is."""
    error: str | None


class JobView(JobSummary, frozen=True, kw_only=True):
    """Everything known of one job."""

    state: Any
    """Arguments of a function, or the state of a machine."""
    result: Any


class JobList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of jobs, newest first. One that is short or empty may still have a next one."""

    jobs: list[JobSummary]
    next_cursor: str | UnsetType = UNSET


def _null() -> Raw:
    return Raw(b"null")


class SignalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/jobs/{id}/signal`."""

    name: Text
    payload: Raw = field(default_factory=_null)
    dedup: Text | None = None
    """Sent again under the same one, it changes nothing."""


class SignalReply(Struct, frozen=True, kw_only=True):
    id: int
    """The job it reached."""
    fresh: bool
    """False if the job had one of that `dedup` already."""


class CancelRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_MAX, extra_json_schema=NO_NUL)] = (
        "cancelled"
    )
    """Kept as the error of what it ends, and told to what runs."""


class CancelReply(Struct, frozen=True, kw_only=True):
    id: int
    ended: list[int]
    """Jobs that ended at once: this one and children of it. None if it had ended before."""
    running: list[int]
    """Jobs whose workers are told to stop."""


class RetryReply(Struct, frozen=True, kw_only=True):
    id: int


class QueueLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue may do, over all workers together. Null is no limit."""

    concurrency: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] | None = None
    """How many of its jobs run at once."""
    rate_per_s: Annotated[float, Meta(ge=RATE_MIN, le=LIMIT_MAX)] | None = None
    """Starts per second on average."""
    burst: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = 1
    """How many starts a quiet queue saves up."""


def check_limits(concurrency: object, rate_per_s: object, burst: object) -> None:
    """Refuse limits that cannot be kept. Raises `Invalid`.

    A number that is none (NaN) would be written as null in JSON, and null is no limit at all.
    """
    if concurrency is not None and not _count(concurrency, 0):
        raise Invalid(f"concurrency is a number from 0 to {LIMIT_MAX:,}, not {concurrency!r}")
    if rate_per_s is not None and not (
        isinstance(rate_per_s, (int, float))
        and not isinstance(rate_per_s, bool)
        and RATE_MIN <= rate_per_s <= LIMIT_MAX
    ):
        raise Invalid(
            f"rate_per_s is from {RATE_MIN:g} to {LIMIT_MAX:,}, not {rate_per_s!r}:"
            " pause a queue that is to start nothing"
        )
    if not _count(burst, 1):
        raise Invalid(f"burst is a number from 1 to {LIMIT_MAX:,}, not {burst!r}")


def _count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LIMIT_MAX


class QueueView(Struct, frozen=True, kw_only=True):
    """One queue, and how many of its jobs are where."""

    queue: str
    paused: bool
    limits: QueueLimits
    ready: int
    scheduled: int
    waiting: int
    blocked: int
    running: int


class QueueList(Struct, frozen=True, kw_only=True):
    queues: list[QueueView]


class QueueSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `PUT /v0/queues/{queue}`: what is not given stays as it is."""

    paused: bool | UnsetType = UNSET
    """A paused queue starts nothing more; what runs goes on."""
    limits: QueueLimits | UnsetType = UNSET
    """All of them: one that is not named is no limit."""


class PruneRequest(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    older_than_ms: Duration
    """Forget jobs that ended longer ago; what an unfinished parent may still read stays."""
    failed_older_than_ms: Duration | None = None
    """The same for those that failed or are dead; null takes the other."""


class PruneReply(Struct, frozen=True, kw_only=True):
    pruned: int

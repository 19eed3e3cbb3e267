"""Every request about jobs and queues, as a value. Pure; `client.jobs` carries them out.

Enqueueing again is safe only under a key that stands longer than the client repeats itself: without
one a lost answer is `OutcomeUnknown` at once. So it is with a signal without `dedup`, and a retry.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeAlias, TypedDict, TypeVar
from urllib.parse import quote

import msgspec

from fairway.client.protocol import MS_NS, Call, Query, reading
from fairway.errors import InvalidRequest, JobFailed
from fairway.wire import jobs as wire
from fairway.wire.encoding import encode_given
from fairway.wire.topics import WAIT_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    Arguments: TypeAlias = Mapping[str, Any] | msgspec.Struct | None

JOBS: Final = "/v0/jobs"
REPEAT_MS: Final = 60_000
"""A key that stands so long is there when a call is repeated: 30 s are the default deadline."""

EnqueuedList: TypeAlias = list[wire.EnqueuedJob]
QueueViews: TypeAlias = list[wire.QueueView]

_encode = msgspec.json.Encoder().encode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_enqueued = reading(wire.EnqueueReply)
_view = reading(wire.JobView)
_list = reading(wire.JobList)
_signalled = reading(wire.SignalReply)
_cancelled = reading(wire.CancelReply)
_retried = reading(wire.RetryReply)
_queue = reading(wire.QueueView)
_queues = reading(wire.QueueList)
_pruned = reading(wire.PruneReply)


class _HasStatus(Protocol):
    @property
    def status(self) -> str: ...


View = TypeVar("View", bound=_HasStatus)


class EnqueueOptions(TypedDict, total=False):
    """How a job is enqueued; what is not given is as its kind declares it."""

    queue: str
    tenant: str
    priority: int
    delay_s: float
    at: datetime
    key: str
    window_s: float
    partition_key: str
    max_attempts: int
    version: int
    step: str
    traceparent: str


class JobFilter(TypedDict, total=False):
    """Which jobs to list."""

    queue: str | None
    kind: str | None
    status: wire.StatusName | None
    tenant: str | None
    parent: int | None


def order(kind: str, args: Arguments, options: EnqueueOptions) -> wire.JobOrder:
    """A job to enqueue. Times are given as people have them, and checked as the server would."""
    given: dict[str, Any] = dict(options)
    at: datetime | None = given.pop("at", None)
    if at is not None and at.tzinfo is None:
        raise InvalidRequest("`at` needs a time zone, such as datetime.now(UTC)")
    for name in ("delay", "window"):
        seconds = given.pop(f"{name}_s", None)
        if seconds is not None:
            given[f"{name}_ms"] = round(max(0.0, seconds) * 1000)
    if at is not None:
        given["at"] = round(at.timestamp() * 1000)
    try:
        encoded = _object(encode_given({} if args is None else args, f"job {kind!r}: an argument"))
        checked = msgspec.convert({"kind": kind, **given}, wire.JobOrder)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"job {kind!r}: {error}") from None
    return msgspec.structs.replace(checked, args=encoded)


def enqueue(orders: Iterable[wire.JobOrder]) -> Call[wire.EnqueueReply]:
    jobs = list(orders)
    if not jobs:
        raise InvalidRequest("there is nothing to enqueue")
    return Call(
        method="POST",
        path=JOBS,
        body=_encode(wire.EnqueueRequest(jobs=jobs)),
        decode=_enqueued,
        mutates=True,
        repeatable=all(job.key and (job.window_ms or 0) >= REPEAT_MS for job in jobs),
    )


def get(id: int, wait_ms: int = 0) -> Call[wire.JobView]:
    return Call(
        method="GET",
        path=f"{JOBS}/{id}",
        query=(("wait_ms", str(wait_ms)),) if wait_ms else (),
        decode=_view,
        wait_ns=wait_ms * MS_NS,
    )


def page(filter: JobFilter, page_size: int, cursor: str | None) -> Call[wire.JobList]:
    wanted = {**filter, "page_size": page_size, "cursor": cursor}
    query: Query = tuple((name, str(value)) for name, value in wanted.items() if value is not None)
    return Call(method="GET", path=JOBS, query=query, decode=_list)


def signal(
    target: int | str, name: str, payload: Any = None, dedup: str | None = None
) -> Call[wire.SignalReply]:
    """To a job by its id, or by its unique key."""
    place = str(target) if isinstance(target, int) else f"by-key/{quote(target, safe='')}"
    message = {"name": name, "payload": payload, "dedup": dedup}
    return Call(
        method="POST",
        path=f"{JOBS}/{place}/signal",
        body=encode_given(message, "the payload of a signal"),
        decode=_signalled,
        mutates=True,
        repeatable=dedup is not None,
    )


def cancel(id: int, reason: str = "cancelled") -> Call[wire.CancelReply]:
    return Call(
        method="POST",
        path=f"{JOBS}/{id}/cancel",
        body=_encode(wire.CancelRequest(reason=reason)),
        decode=_cancelled,
        mutates=True,
    )


def retry(id: int) -> Call[wire.RetryReply]:
    return Call(
        method="POST",
        path=f"{JOBS}/{id}/retry",
        decode=_retried,
        mutates=True,
        repeatable=False,
    )


def prune(older_than_s: float, failed_older_than_s: float | None = None) -> Call[wire.PruneReply]:
    return Call(
        method="POST",
        path=f"{JOBS}/prune",
        body=_encode(
            wire.PruneRequest(
                older_than_ms=round(older_than_s * 1000),
                failed_older_than_ms=(
                    None if failed_older_than_s is None else round(failed_older_than_s * 1000)
                ),
            )
        ),
        decode=_pruned,
        mutates=True,
    )


def queues() -> Call[wire.QueueList]:
    return Call(method="GET", path="/v0/queues", decode=_queues)


def queue(name: str) -> Call[wire.QueueView]:
    return Call(method="GET", path=_queue_path(name), decode=_queue)


def pause(name: str, paused: bool) -> Call[wire.QueueView]:
    return _put_queue(name, wire.QueueSettings(paused=paused))


def limit(
    name: str, concurrency: int | None, rate_per_s: float | None, burst: int
) -> Call[wire.QueueView]:
    wire.check_limits(concurrency, rate_per_s, burst)
    limits = wire.QueueLimits(concurrency=concurrency, rate_per_s=rate_per_s, burst=burst)
    return _put_queue(name, wire.QueueSettings(limits=limits))


def _put_queue(name: str, settings: wire.QueueSettings) -> Call[wire.QueueView]:
    return Call(
        method="PUT", path=_queue_path(name), body=_encode(settings), decode=_queue, mutates=True
    )


def _queue_path(name: str) -> str:
    return f"/v0/queues/{quote(name, safe='')}"


class EndWaiter(Generic[View]):
    """Asks for a job or a run until it has ended, a long poll at a time."""

    noun: str
    ask: Callable[[int, int], Call[View]]

    def __init__(self, id: int, timeout_s: float | None, now_ns: int) -> None:
        if timeout_s is not None and not (
            isinstance(timeout_s, int | float) and 0 <= timeout_s < math.inf
        ):
            raise InvalidRequest(f"timeout_s is a number of seconds, not {timeout_s!r:.80}")
        self._id = id
        self._ends_ns = None if timeout_s is None else now_ns + round(timeout_s * 1e9)

    def next_call(self, now_ns: int) -> Call[View]:
        left_ms = WAIT_MS_MAX
        if self._ends_ns is not None:
            left_ms = min(left_ms, max(0, -(-(self._ends_ns - now_ns) // MS_NS)))
        return self.ask(self._id, left_ms)

    def over(self, seen: View, now_ns: int) -> bool:
        """Whether it has ended. Raises `TimeoutError` if not, and the time is up."""
        if seen.status in wire.ENDED:
            return True
        if self._ends_ns is not None and now_ns >= self._ends_ns:
            raise TimeoutError(f"{self.noun} {self._id} is still {seen.status}")
        return False


class JobWaiter(EndWaiter[wire.JobView]):
    noun = "job"
    ask = staticmethod(get)


def result_of(job: wire.JobView, type: Any = Any) -> Any:
    """What a job that has ended came to. Raises `JobFailed`."""
    if job.status != "done":
        raise JobFailed(job.id, job.status, job.error)
    return msgspec.convert(job.result, type)

"""The routes of jobs and queues: from messages to the engine and back.

The prefixes of a key are prefixes of queue names. `read` looks; `write` adds work and steers single
jobs (signal, cancel, retry: who may add work may take it back); `admin` pauses and limits a queue,
which is about everybody's work; `delete` forgets ended jobs, and only without prefixes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.errors import Conflict, InvalidRequest, JobFailed, NotFound
from fairway.jobs.engine import Jobs
from fairway.jobs.job import RUN, Filter, Limits, NewJob, Status
from fairway.server.http.exchange import Reply, Request, json_reply, number, parse
from fairway.server.http.paging import make_cursor, read_cursor
from fairway.wire.jobs import (
    ARGS_BYTES_MAX,
    PAGE_DEFAULT,
    PAGE_MAX,
    TEXT_MAX,
    TRACE_MAX,
    CancelReply,
    CancelRequest,
    EnqueuedJob,
    EnqueueReply,
    EnqueueRequest,
    JobList,
    JobOrder,
    JobSummary,
    JobView,
    PruneReply,
    PruneRequest,
    QueueLimits,
    QueueList,
    QueueSettings,
    QueueView,
    RetryReply,
    SignalReply,
    SignalRequest,
)
from fairway.wire.requests import INT_MAX
from fairway.wire.topics import WAIT_MS_MAX, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairway.jobs.job import Job, QueueState
    from fairway.jobs.kinds import Kind
    from fairway.server.access.auth import Identity
    from fairway.server.context import ServerContext
    from fairway.settings import Scope

_ENQUEUE = msgspec.json.Decoder(EnqueueRequest)
_SIGNAL = msgspec.json.Decoder(SignalRequest)
_CANCEL = msgspec.json.Decoder(CancelRequest)
_SETTINGS = msgspec.json.Decoder(QueueSettings)
_PRUNE = msgspec.json.Decoder(PruneRequest)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANY = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode

MS_NS: Final = 1_000_000
ALL_QUEUES: Final = "*"
WORDS: Final = {status.word: status for status in Status}
LOOKED_THROUGH_MAX: Final = 10
"""Pages of others' jobs that one request looks through; the next one goes on from there."""


# Enqueueing


async def enqueue_jobs(context: ServerContext, request: Request) -> Reply:
    message = await request.json(_ENQUEUE)
    identity = request.identity
    identity.require("write")
    trace = _trace_of(request)
    jobs = []
    for at, order in enumerate(message.jobs):
        try:
            jobs.append(_new_job(context, order, trace))
        except InvalidRequest as error:
            if len(message.jobs) == 1:
                raise
            raise InvalidRequest(f"jobs[{at}]: {error}", code=error.code) from None
    identity.require("write", *{job.queue for job in jobs})
    for job in jobs:
        if identity.prefixes and job.unique_key is not None:
            with suppress(NotFound):
                _refuse_foreign(identity, await context.part(Jobs).find_by_key(job.unique_key))
    charge_jobs(context, identity, jobs)
    added = await context.part(Jobs).enqueue(jobs)
    if identity.prefixes and not any(one.fresh for one in added):
        for one in added:  # somebody else may have come first since we looked
            with suppress(NotFound):
                _refuse_foreign(identity, await context.part(Jobs).find(one.id))
    reply = EnqueueReply(jobs=[EnqueuedJob(id=one.id, fresh=one.fresh) for one in added])
    return json_reply(reply, 201 if any(one.fresh for one in added) else 200)


def charge_jobs(context: ServerContext, identity: Identity, jobs: Sequence[NewJob]) -> None:
    """Count jobs as records against their key's quota. Raises `Throttled`."""
    context.charge(identity, records=len(jobs), size=sum(len(job.state) for job in jobs))


def _refuse_foreign(identity: Identity, job: Job) -> None:
    """Keys are shared by all: who asks is told of no job of others, nor that its own is one."""
    if not identity.may_touch(job.queue):
        raise Conflict("the key of a job is taken by a job of others", code="key_taken")


def _new_job(context: ServerContext, order: JobOrder, trace: str | None) -> NewJob:
    if order.delay_ms is not None and order.at is not None:
        raise InvalidRequest("a job starts after `delay_ms` or `at` a time, not both")
    if order.queue is not None:
        check_name(order.queue, what="queue")
    for name in ("kind", "step", "tenant", "key", "partition_key", "traceparent"):
        _check_text(name, getattr(order, name))
    state = _checked(_encode(order.args), "args")
    values = parse(_OBJECT, state)
    given: dict[str, Any] = {
        "queue": order.queue,
        "tenant": order.tenant,
        "priority": order.priority,
        "delay_ns": None if order.delay_ms is None else order.delay_ms * MS_NS,
        "at_wall_ns": None if order.at is None else order.at * MS_NS,
        "unique_key": order.key,
        "window_ns": None if order.window_ms is None else order.window_ms * MS_NS,
        "partition_key": order.partition_key,
        "trace": order.traceparent or trace,
    }
    given = {name: value for name, value in given.items() if value is not None}
    kind = _kind_of(context, order)
    if kind is None:
        made = NewJob(
            kind=order.kind,
            version=order.version or 1,
            state=state,
            step=order.step or RUN,
            **given,
        )
    else:
        if order.step not in (None, kind.initial):
            raise InvalidRequest(
                f"job {order.kind!r} begins with the step {kind.initial!r}, as it is declared"
            )
        made = kind.job(values, **given)
    if order.max_attempts is not None:
        made = msgspec.structs.replace(made, max_attempts=order.max_attempts)
    return made


def _kind_of(context: ServerContext, order: JobOrder) -> Kind | None:
    """The kind as it is declared here; None if perhaps a worker elsewhere knows it."""
    kinds = context.part(Jobs).kinds
    if order.version is None:
        return kinds.newest.get(order.kind)
    return kinds.by_version.get((order.kind, order.version))


def _trace_of(request: Request) -> str | None:
    trace = request.header(b"traceparent")
    return trace if trace and len(trace) <= TRACE_MAX and trace.isascii() else None


# Looking


async def list_jobs(context: ServerContext, request: Request) -> Reply:
    query = request.query(("queue", "kind", "status", "tenant", "parent", "page_size", "cursor"))
    identity = request.identity
    queue = query.get("queue")
    identity.require("read", *(() if queue is None else (queue,)))
    size = min(number(query.get("page_size"), "page_size", default=PAGE_DEFAULT, least=1), PAGE_MAX)
    filter = _filter_of(query, size + 1)
    found: list[Job] = []
    more = True
    for _ in range(LOOKED_THROUGH_MAX):
        page = await context.part(Jobs).browse(filter)
        found += [job for job in page if identity.may_touch(job.queue)]
        more = len(page) == filter.limit
        if not more or len(found) > size:
            break
        filter = msgspec.structs.replace(filter, before=page[-1].id)
    last = filter.before
    if len(found) > size:
        found, more = found[:size], True
        last = found[-1].id
    return json_reply(
        JobList(
            jobs=[JobSummary(**_facts(job)) for job in found],
            next_cursor=make_cursor(str(last)) if more else msgspec.UNSET,
        )
    )


def _filter_of(query: Mapping[str, str], limit: int) -> Filter:
    for name in ("queue", "kind", "tenant"):
        _check_text(name, query.get(name))
    status = query.get("status")
    if status is not None and status not in WORDS:
        raise InvalidRequest(f"status is one of {', '.join(WORDS)}, not {status[:40]!r}")
    parent = number(query.get("parent"), "parent", default=0)
    cursor = read_cursor(query.get("cursor"))
    before = number(cursor, "cursor", default=0, least=1) if cursor else None
    return Filter(
        queue=query.get("queue"),
        kind=query.get("kind"),
        status=WORDS[status] if status is not None else None,
        tenant=query.get("tenant"),
        parent=parent if "parent" in query else None,
        before=before,
        limit=limit,
    )


async def get_job(context: ServerContext, request: Request, id: str) -> Reply:
    query = request.query(("wait_ms",))
    wait_ms = min(number(query.get("wait_ms"), "wait_ms", default=0), WAIT_MS_MAX)
    job = await _job(context, request, "read", id)
    if wait_ms and not job.status.ended:
        with suppress(JobFailed):  # how it failed is what the answer tells
            await context.polls.wait(lambda: context.part(Jobs).result(job.id), wait_ms)
        context.confirm(request)
        job = await _job(context, request, "read", id)
    return json_reply(view_of(job))


async def _job(context: ServerContext, request: Request, scope: Scope, text: str) -> Job:
    """The job of an id, if the key may do this to the jobs of its queue."""
    id = number(text, "id", default=0, least=1, most=INT_MAX)
    request.identity.require(scope)
    job = await context.part(Jobs).find(id)
    if not request.identity.may_touch(job.queue):
        raise NotFound("job", str(id))  # as if it were not there: ids cannot be tried out
    return job


def view_of(job: Job) -> JobView:
    return JobView(state=msgspec.Raw(job.state), result=_raw(job.result), **_facts(job))


def _facts(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "version": job.version,
        "status": job.status.word,
        "queue": job.queue,
        "tenant": job.tenant,
        "priority": job.priority,
        "step": job.step,
        "attempt": job.attempt,
        "crashes": job.crashes,
        "max_attempts": job.max_attempts,
        "key": job.unique_key,
        "partition_key": job.partition_key,
        "parent": job.parent,
        "traceparent": job.trace,
        "enqueued_at": job.enqueued_wall_ns // MS_NS,
        "due_at": _ms(job.due_wall_ns),
        "finished_at": _ms(job.finished_wall_ns),
        "worker": job.worker,
        "cancelling": job.cancelling,
        "retries": job.retries,
        "waits_for": list(job.waits_for),
        "progress": _raw(job.progress),
        "error": job.error,
    }


# Steering


async def signal_job(context: ServerContext, request: Request, id: str) -> Reply:
    message = await request.json(_SIGNAL)
    return await _signal(context, message, await _job(context, request, "write", id))


async def signal_job_by_key(context: ServerContext, request: Request, key: str) -> Reply:
    message = await request.json(_SIGNAL)
    if not 0 < len(key) <= TEXT_MAX:
        raise InvalidRequest(f"a key has 1 to {TEXT_MAX} characters")
    _check_text("key", key)
    request.identity.require("write")
    job = await context.part(Jobs).find_by_key(key)
    if not request.identity.may_touch(job.queue):
        raise NotFound("job", key)
    return await _signal(context, message, job)


async def _signal(context: ServerContext, message: SignalRequest, job: Job) -> Reply:
    _check_text("name", message.name)
    _check_text("dedup", message.dedup)
    parse(_ANY, _checked(bytes(message.payload), "payload"))
    if job.status.ended:
        raise Conflict(
            f"job {job.id} is {job.status.word}: it reads no signals any more",
            code="job_ended",
            detail={"status": job.status.word},
        )
    # By id, whatever it was found by: a key may be another job's by now.
    fresh = await context.part(Jobs).signal(
        job.id, message.name, message.payload, dedup=message.dedup
    )
    return json_reply(SignalReply(id=job.id, fresh=fresh))


async def cancel_job(context: ServerContext, request: Request, id: str) -> Reply:
    message = await request.json(_CANCEL, empty=b"{}")
    _check_text("reason", message.reason)
    job = await _job(context, request, "write", id)
    cancelled = await context.part(Jobs).cancel(job.id, reason=message.reason)
    return json_reply(
        CancelReply(id=job.id, ended=list(cancelled.ended), running=list(cancelled.running))
    )


async def retry_job(context: ServerContext, request: Request, id: str) -> Reply:
    job = await _job(context, request, "write", id)
    await context.part(Jobs).retry_one(job.id)
    return json_reply(RetryReply(id=job.id))


async def prune_jobs(context: ServerContext, request: Request) -> Reply:
    message = await request.json(_PRUNE)
    request.identity.require_prefix("delete", "")
    failed_ms = message.failed_older_than_ms
    pruned = await context.part(Jobs).prune(
        message.older_than_ms * MS_NS,
        failed_older_than_ns=None if failed_ms is None else failed_ms * MS_NS,
    )
    return json_reply(PruneReply(pruned=pruned))


# Queues


async def list_queues(context: ServerContext, request: Request) -> Reply:
    request.query()
    identity = request.identity
    identity.require("read")
    found = await context.part(Jobs).queues()
    return json_reply(
        QueueList(queues=[_queue_view(one) for one in found if identity.may_touch(one.name)])
    )


async def get_queue(context: ServerContext, request: Request, queue: str) -> Reply:
    request.query()
    _check_queue(queue)
    request.identity.require("read", queue)
    return json_reply(await _queue(context, queue))


async def put_queue(context: ServerContext, request: Request, queue: str) -> Reply:
    settings = await request.json(_SETTINGS)
    _check_queue(queue)
    request.identity.require("admin", queue)
    paused, limits = settings.paused, settings.limits
    if paused is msgspec.UNSET and limits is msgspec.UNSET:
        raise InvalidRequest("say `paused`, `limits`, or both")
    if queue == ALL_QUEUES and paused is not msgspec.UNSET:
        raise Conflict("queues are paused one by one; `*` has limits only", code="all_queues")
    # The careful order: nothing starts under limits that are about to change.
    if paused is True:
        await context.part(Jobs).pause(queue)
    if limits is not msgspec.UNSET:
        await context.part(Jobs).limit(queue, Limits(**msgspec.structs.asdict(limits)))
    if paused is False:
        await context.part(Jobs).resume(queue)
    if queue == ALL_QUEUES:
        assert limits is not msgspec.UNSET
        return json_reply(_together(await context.part(Jobs).queues(), limits))
    return json_reply(await _queue(context, queue))


async def _queue(context: ServerContext, name: str) -> QueueView:
    for state in await context.part(Jobs).queues():
        if state.name == name:
            return _queue_view(state)
    raise NotFound("queue", name)


def _queue_view(state: QueueState) -> QueueView:
    return QueueView(
        queue=state.name,
        paused=state.paused,
        limits=QueueLimits(**msgspec.structs.asdict(state.limits)),
        ready=state.ready,
        scheduled=state.scheduled,
        waiting=state.waiting,
        blocked=state.blocked,
        running=state.running,
    )


def _together(states: list[QueueState], limits: QueueLimits) -> QueueView:
    return QueueView(
        queue=ALL_QUEUES,
        paused=False,
        limits=limits,
        ready=sum(one.ready for one in states),
        scheduled=sum(one.scheduled for one in states),
        waiting=sum(one.waiting for one in states),
        blocked=sum(one.blocked for one in states),
        running=sum(one.running for one in states),
    )


# Small things


def _check_queue(name: str) -> None:
    if name != ALL_QUEUES:
        check_name(name, what="queue")


def _check_text(name: str, text: str | None) -> None:
    if text is not None and "\0" in text:
        raise InvalidRequest(f"{name} has a NUL in it, which not every store can keep")


def _checked(raw: bytes, name: str) -> bytes:
    if len(raw) > ARGS_BYTES_MAX:
        raise InvalidRequest(
            f"{name} has {len(raw):,} bytes, at most {ARGS_BYTES_MAX:,}", code="payload_too_large"
        )
    return raw


def _raw(json: bytes | None) -> msgspec.Raw | None:
    return msgspec.Raw(json) if json is not None else None


def _ms(wall_ns: int | None) -> int | None:
    return wall_ns // MS_NS if wall_ns is not None else None

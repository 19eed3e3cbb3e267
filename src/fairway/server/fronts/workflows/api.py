"""The routes of workflows and schedules.

A run is a job of the queue `workflows`, and the prefixes of a key are prefixes of the workflow's
name. `read` looks, `write` starts and steers runs, `admin` pauses a schedule.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import InvalidRequest, JobFailed, NotFound
from fairway.jobs.engine import Jobs
from fairway.jobs.flows import TASKS_MAX, drawn, state_of, steer
from fairway.jobs.job import WORKFLOW, Filter, Status
from fairway.jobs.workflow import RunState, tree
from fairway.server.http.exchange import Reply, Request, json_reply, number, parse
from fairway.wire.records import too_deep
from fairway.wire.requests import INT_MAX
from fairway.wire.topics import WAIT_MS_MAX
from fairway.wire.workflows import (
    RunAction,
    RunActionReply,
    RunList,
    RunSummary,
    RunView,
    ScheduleFiringView,
    ScheduleList,
    ScheduleSettings,
    ScheduleView,
    StartReply,
    StartRequest,
    TaskView,
    WorkflowList,
    WorkflowView,
)

if TYPE_CHECKING:
    from fairway.jobs.flows import Flow
    from fairway.jobs.job import Job
    from fairway.server.context import ServerContext
    from fairway.settings import Scope

_ANY = msgspec.json.Decoder()
_START = msgspec.json.Decoder(StartRequest)
_ACTION = msgspec.json.Decoder(RunAction)
_SETTINGS = msgspec.json.Decoder(ScheduleSettings)

MS_NS: Final = 1_000_000
RUNS_DEFAULT: Final = 50
RUNS_MAX: Final = 200
FIRINGS_SHOWN: Final = 10


async def list_workflows(context: ServerContext, request: Request) -> Reply:
    request.query()
    request.identity.require("read")
    shown = [
        flow for name, flow in sorted(context.app.flows.items()) if request.identity.may_touch(name)
    ]
    return json_reply(WorkflowList(workflows=[_view(flow) for flow in shown]))


def _view(flow: Flow) -> WorkflowView:
    return WorkflowView(
        name=flow.name,
        version=flow.version,
        structure=flow.graph.structure,
        tasks=[task.name for task in flow.graph.tasks],
        tree=tree(flow.graph),
    )


def _flow(context: ServerContext, request: Request, scope: Scope, name: str) -> Flow:
    request.identity.require(scope, name)
    if name not in context.app.flows:
        raise NotFound("workflow", name)
    return context.app.flows[name]


async def start_run(context: ServerContext, request: Request, workflow: str) -> Reply:
    message = await request.json(_START, empty=b"{}")
    flow = _flow(context, request, "write", workflow)
    for name, value in message.context.items():
        if too_deep(value):
            raise InvalidRequest(f"context.{name[:100]} is nested too deeply")
    values = {name: parse(_ANY, bytes(value)) for name, value in message.context.items()}
    run = await flow.start(
        values,
        key=message.key,
        window_s=message.window_ms / 1000,
        delay_s=message.delay_ms / 1000,
    )
    return json_reply(StartReply(id=run.id, fresh=run.fresh), 201 if run.fresh else 200)


async def list_runs(context: ServerContext, request: Request, workflow: str) -> Reply:
    query = request.query(("status", "page_size"))
    _flow(context, request, "read", workflow)
    words = {status.word: status for status in Status}
    status = query.get("status")
    if status is not None and status not in words:
        raise InvalidRequest(f"status is one of {', '.join(words)}, not {status[:40]!r}")
    size = number(query.get("page_size"), "page_size", default=RUNS_DEFAULT, least=1)
    jobs = await context.part(Jobs).browse(
        Filter(
            kind=WORKFLOW + workflow,
            status=words[status] if status is not None else None,
            limit=min(size, RUNS_MAX),
        )
    )
    return json_reply(RunList(runs=[_summary(job) for job in jobs]))


def _summary(job: Job) -> RunSummary:
    return RunSummary(
        id=job.id,
        workflow=job.kind.removeprefix(WORKFLOW),
        status=job.status.word,  # type: ignore[arg-type]
        started_at=job.enqueued_wall_ns // MS_NS,
        finished_at=_ms(job.finished_wall_ns),
        error=job.error,
    )


def _ms(wall_ns: int | None) -> int | None:
    return None if wall_ns is None else wall_ns // MS_NS


async def get_run(context: ServerContext, request: Request, id: str) -> Reply:
    query = request.query(("wait_ms",))
    wait_ms = min(number(query.get("wait_ms"), "wait_ms", default=0), WAIT_MS_MAX)
    job = await _run(context, request, "read", id)
    if wait_ms and not job.status.ended:
        run_id = job.id
        with suppress(JobFailed):  # how it failed is what the answer tells
            await context.polls.wait(lambda: context.part(Jobs).result(run_id), wait_ms)
        context.confirm(request)
        job = await _run(context, request, "read", id)
    run = state_of(job)
    name = job.kind.removeprefix(WORKFLOW)
    state = run.run
    if state is None and name in context.app.flows:
        state = RunState.of(context.app.flows[name].graph)
    children = await context.part(Jobs).browse(Filter(parent=job.id, limit=TASKS_MAX))
    # Newest last, so that it counts: an earlier attempt of the run had jobs of its own.
    by_task = {child.kind.removeprefix(f"{name}."): child for child in reversed(children)}
    tasks = []
    for task, stand in (state.tasks if state is not None else {}).items():
        child = by_task.get(task)
        tasks.append(
            TaskView(
                name=task,
                state=stand.state.value,
                job=child.id if child is not None else None,
                attempt=child.attempt + child.crashes + 1 if child is not None else 0,
                error=stand.error or (child.error if child is not None else None),
                started_at=_ms(stand.started_wall_ns),
                finished_at=_ms(stand.ended_wall_ns),
            )
        )
    summary = _summary(job)
    return json_reply(
        RunView(
            id=summary.id,
            workflow=summary.workflow,
            status=summary.status,
            paused=state is not None and state.paused,
            retries=job.retries,
            context=msgspec.Raw(job.result) if job.result is not None else run.context,
            tasks=tasks,
            tree=drawn(context.app.flows, job) if name in context.app.flows else "",
            started_at=summary.started_at,
            finished_at=summary.finished_at,
            error=summary.error,
        )
    )


async def steer_run(context: ServerContext, request: Request, id: str) -> Reply:
    message = await request.json(_ACTION)
    job = await _run(context, request, "write", id)
    if message.action == "retry":
        await context.part(Jobs).retry_one(job.id)
    else:
        await steer(context.part(Jobs), job.id, message.action, message.reason)
    return json_reply(RunActionReply(id=job.id, action=message.action))


async def _run(context: ServerContext, request: Request, scope: Scope, text: str) -> Job:
    id = number(text, "id", default=0, least=1, most=INT_MAX)
    request.identity.require(scope)
    job = await context.part(Jobs).find(id)
    name = job.kind.removeprefix(WORKFLOW) if job.kind.startswith(WORKFLOW) else job.queue
    if not request.identity.may_touch(name):
        raise NotFound("job", str(id))  # as if it were not there: ids cannot be tried out
    state_of(job)
    return job


async def list_schedules(context: ServerContext, request: Request) -> Reply:
    request.query()
    identity = request.identity
    identity.require("read")
    table = context.part(Jobs).store.timetable
    shown = []
    for entry in await table.entries():
        if identity.may_touch(entry.name):
            firings = await table.firings(entry.name, FIRINGS_SHOWN)
            shown.append(
                ScheduleView(
                    name=entry.name,
                    spec=entry.spec,
                    paused=entry.paused,
                    handled_at=entry.handled_wall_ns // MS_NS,
                    firings=[
                        ScheduleFiringView(at=one.at_wall_ns // MS_NS, job=one.job, tries=one.tries)
                        for one in firings
                    ],
                )
            )
    return json_reply(ScheduleList(schedules=shown))


async def put_schedule(context: ServerContext, request: Request, schedule: str) -> Reply:
    message = await request.json(_SETTINGS)
    request.identity.require("admin", schedule)
    if not await context.part(Jobs).store.timetable.set_paused(schedule, message.paused):
        raise NotFound("schedule", schedule)
    return json_reply(message)

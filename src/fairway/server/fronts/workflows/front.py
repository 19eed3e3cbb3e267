"""What workflows and schedules show in the server. They run as jobs, and are shown by no others."""

from __future__ import annotations

from typing import Final, get_args

from fairway.server.front import Front
from fairway.server.fronts.workflows import api
from fairway.server.http.paging import page_size
from fairway.server.http.router import QueryParameter, Route
from fairway.wire import workflows as wire
from fairway.wire.jobs import StatusName
from fairway.wire.requests import INT_MAX

_ID: Final = {"type": "integer", "minimum": 1, "maximum": INT_MAX}
_NO_WORKFLOW: Final = {404: "the server declares no such workflow"}
_WRITE_JOBS: Final = {
    429: "over a quota; `Retry-After` says when",
    503: "the store cannot be written now",
}


ROUTES: Final = (
    Route(
        "GET",
        "/v0/workflows",
        api.list_workflows,
        "The workflows that the server declares",
        reply=wire.WorkflowList,
    ),
    Route(
        "POST",
        "/v0/workflows/{workflow}",
        api.start_run,
        "Start a run of a workflow",
        body=wire.StartRequest,
        body_optional=True,
        reply=wire.StartReply,
        statuses={201: "started", **_NO_WORKFLOW, **_WRITE_JOBS},
    ),
    Route(
        "GET",
        "/v0/workflows/{workflow}/runs",
        api.list_runs,
        "The runs of a workflow, newest first",
        reply=wire.RunList,
        statuses=_NO_WORKFLOW,
        query=(
            QueryParameter(
                "status",
                "string",
                "only runs that are so",
                {"enum": list(get_args(StatusName))},
            ),
            page_size(api.RUNS_MAX),
        ),
    ),
    Route(
        "GET",
        "/v0/runs/{id}",
        api.get_run,
        "One run, its tasks, and a tree of them, waiting for its end if asked",
        reply=wire.RunView,
        statuses={404: "there is no such run", 409: "the job is no run of a workflow"},
        query=(QueryParameter("wait_ms", "integer", "wait so long for it to end, 30,000 at most"),),
        arguments={"id": _ID},
    ),
    Route(
        "POST",
        "/v0/runs/{id}",
        api.steer_run,
        "Pause, resume or cancel a run",
        body=wire.RunAction,
        reply=wire.RunActionReply,
        statuses={404: "there is no such run", 409: "it has ended, or is no run of a workflow"},
        arguments={"id": _ID},
    ),
    Route(
        "GET",
        "/v0/schedules",
        api.list_schedules,
        "Schedules, and what came of their latest times",
        reply=wire.ScheduleList,
    ),
    Route(
        "PUT",
        "/v0/schedules/{schedule}",
        api.put_schedule,
        "Pause or resume a schedule",
        body=wire.ScheduleSettings,
        reply=wire.ScheduleSettings,
        statuses={404: "there is no such schedule"},
    ),
)


class WorkflowsFront(Front):
    name = "workflows"
    routes = ROUTES

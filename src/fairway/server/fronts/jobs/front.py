"""What jobs and queues show in the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from fairway.jobs.engine import Jobs
from fairway.runtime.clock import sleep_ns
from fairway.server.front import FairKeyRule, Front
from fairway.server.fronts.jobs import api
from fairway.server.http.paging import CURSOR, page_size
from fairway.server.http.router import NAME, QueryParameter, Route
from fairway.wire import jobs as wire
from fairway.wire.requests import INT_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.app import Fairway
    from fairway.server.context import ServerContext
    from fairway.server.front import Shown

PATH: Final = "/v0/jobs/"
PROBE_NS: Final = 2_000_000_000
"""How often the store is asked whether it answers."""

_ID: Final = {"type": "integer", "minimum": 1, "maximum": INT_MAX}
_KEY: Final = {"type": "string", "minLength": 1, "maxLength": wire.TEXT_MAX, **wire.NO_NUL}
_QUEUE: Final = {**NAME, "pattern": "^([A-Za-z0-9][A-Za-z0-9._:-]{0,254}|[*])$"}
_NO_JOB: Final = {404: "there is no such job"}
_ENDED: Final = {409: "the job has ended, and reads no signals any more"}


ROUTES: Final = (
    Route(
        "POST",
        "/v0/jobs",
        api.enqueue_jobs,
        "Enqueue 1 to 1,000 jobs, all or none",
        body=wire.EnqueueRequest,
        reply=wire.EnqueueReply,
        statuses={
            201: "enqueued, at least one of them anew",
            409: "a key stands for a job that the caller may not touch",
        },
    ),
    Route(
        "GET",
        "/v0/jobs",
        api.list_jobs,
        "Jobs, newest first, a page at a time",
        reply=wire.JobList,
        query=(
            QueryParameter("queue", "string", "only those of this queue", wire.NO_NUL),
            QueryParameter("kind", "string", "only those of this kind", wire.NO_NUL),
            QueryParameter(
                "status",
                "string",
                "only those that are so: ready, running, failed and so on",
                {"enum": list(get_args(wire.StatusName))},
            ),
            QueryParameter("tenant", "string", "only those of this tenant", wire.NO_NUL),
            QueryParameter("parent", "integer", "only the children of this job"),
            page_size(wire.PAGE_MAX),
            CURSOR,
        ),
    ),
    Route(
        "GET",
        "/v0/jobs/{id}",
        api.get_job,
        "Everything known of a job, waiting for its end if asked",
        reply=wire.JobView,
        statuses=_NO_JOB,
        query=(QueryParameter("wait_ms", "integer", "wait so long for it to end, 30,000 at most"),),
        arguments={"id": _ID},
    ),
    Route(
        "POST",
        "/v0/jobs/{id}/signal",
        api.signal_job,
        "Send a job a signal",
        body=wire.SignalRequest,
        reply=wire.SignalReply,
        statuses={**_NO_JOB, **_ENDED},
        arguments={"id": _ID},
    ),
    Route(
        "POST",
        "/v0/jobs/by-key/{key...}/signal",
        api.signal_job_by_key,
        "Send a signal to the job that has a key",
        body=wire.SignalRequest,
        reply=wire.SignalReply,
        statuses={**_NO_JOB, **_ENDED},
        arguments={"key": _KEY},
    ),
    Route(
        "POST",
        "/v0/jobs/{id}/cancel",
        api.cancel_job,
        "End a job and its children; what runs is told to stop",
        body=wire.CancelRequest,
        body_optional=True,
        reply=wire.CancelReply,
        statuses=_NO_JOB,
        arguments={"id": _ID},
    ),
    Route(
        "POST",
        "/v0/jobs/{id}/retry",
        api.retry_job,
        "Make a failed, dead or cancelled job ready again, its attempts forgotten",
        reply=wire.RetryReply,
        statuses={**_NO_JOB, 409: "it is not one that can be retried"},
        arguments={"id": _ID},
    ),
    Route(
        "POST",
        "/v0/jobs/prune",
        api.prune_jobs,
        "Forget jobs that ended long ago",
        body=wire.PruneRequest,
        reply=wire.PruneReply,
    ),
    Route(
        "GET",
        "/v0/queues",
        api.list_queues,
        "Queues, and how many of their jobs are where",
        reply=wire.QueueList,
    ),
    Route(
        "GET",
        "/v0/queues/{queue}",
        api.get_queue,
        "One queue",
        reply=wire.QueueView,
        statuses={404: "there is no such queue"},
        arguments={"queue": _QUEUE},
    ),
    Route(
        "PUT",
        "/v0/queues/{queue}",
        api.put_queue,
        "Pause or resume a queue, or limit it; `*` limits all of them together",
        body=wire.QueueSettings,
        reply=wire.QueueView,
        statuses={409: "queues are paused one by one, not all of them"},
        arguments={"queue": _QUEUE},
    ),
)
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "QueueSettings": {"anyOf": [{"required": ["paused"]}, {"required": ["limits"]}]},
    "JobOrder": {
        "not": {
            "required": ["delay_ms", "at"],
            "properties": {"delay_ms": {"type": "integer"}, "at": {"type": "integer"}},
        }
    },
}


class JobsFront(Front):
    name = "jobs"
    routes = ROUTES
    fair_key_rules = (FairKeyRule(PATH, lambda path: PATH),)
    """All that is about single jobs is one key, or many ids would be many turns."""
    schemas = SCHEMAS

    def parts(self, app: Fairway) -> Sequence[Shown]:
        return (app.jobs,)

    async def run(self, context: ServerContext) -> None:
        while True:
            await context.part(Jobs).probe()
            await sleep_ns(PROBE_NS)

"""Every route of the server, once: what serves it and what its document says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairway.server import jobs_api, system_api, topics_api, watch_api, workflows_api
from fairway.server.asgi import Route, Routes
from fairway.server.exchange import Reply, Request, json_reply
from fairway.server.openapi import document
from fairway.wire import jobs as jobs_wire
from fairway.wire import server as server_wire
from fairway.wire import topics as wire
from fairway.wire import workflows as workflows_wire

if TYPE_CHECKING:
    from fairway.server.host import Host

_NOT_FOUND: Final = {404: "there is no such topic"}
_WRITE: Final = {
    422: "the topic is full and refuses rather than discards",
    429: "saturated, or over a quota; `Retry-After` says when",
    503: "the store cannot be written now",
}
_NO_WORKFLOW: Final = {404: "the server declares no such workflow"}
_WRITE_JOBS: Final = {
    429: "over a quota; `Retry-After` says when",
    503: "the store cannot be written now",
}
_WATCH_QUERY: Final = (
    ("from_seq", "integer", "deliver what comes after this seq"),
    ("epoch", "integer", "the incarnation `from_seq` belongs to"),
    ("tail", "boolean", "begin at the head instead"),
    ("node", "string", "leave out records of this node"),
    ("match", "string", "only records of this tag, or of tags with this prefix if it ends in *"),
    ("limit", "integer", "records in one frame at most"),
    ("max_batch_bytes", "integer", "bytes in one frame at most"),
    ("heartbeat_ms", "integer", "a comment this often when nothing else comes"),
    ("include_meta", "boolean", "send `meta`"),
    ("include_tags", "boolean", "send `$tag`"),
    ("include_data", "boolean", "send `data`"),
    ("last_event_id", "string", "as the header Last-Event-ID"),
)
_PAGING: Final = (
    ("prefix", "string", "only names that begin with this"),
    ("page_size", "integer", "at most 1000"),
    ("cursor", "string", "`next_cursor` of the page before"),
)
_NO_JOB: Final = {404: "there is no such job"}
_ENDED: Final = {409: "the job has ended, and reads no signals any more"}


async def openapi_json(host: Host | None, request: Request) -> Reply:
    return json_reply(document(ROUTES.all))


ROUTES: Final = Routes(
    [
        Route(
            "POST",
            "/v0/topics/{topic}",
            topics_api.append,
            "Append 1 to 10,000 records, all or none",
            body=wire.AppendRequest,
            reply=wire.AppendReply,
            statuses={201: "appended, and the topic is new", **_NOT_FOUND, **_WRITE},
            query=(("return_seqs", "boolean", "false leaves out `seqs`"),),
            express=topics_api.append_express,
        ),
        Route(
            "POST",
            "/v0/topics/{topic}/diff",
            topics_api.diff,
            "Read what comes after a cursor, waiting for it if asked",
            body=wire.DiffRequest,
            reply=wire.DiffReply,
            statuses=_NOT_FOUND,
        ),
        Route(
            "POST",
            "/v0/topics/{topic}/delete",
            topics_api.delete_records,
            "Delete records that are there now, by seq, by tag, or both",
            body=wire.DeleteRequest,
            reply=wire.DeleteReply,
            statuses=_NOT_FOUND,
        ),
        Route(
            "PUT",
            "/v0/topics/{topic}",
            topics_api.put_topic,
            "Create a topic, or change its configuration",
            body=wire.TopicPatch,
            reply=wire.PutTopicReply,
            statuses={201: "created", 409: "the change does not fit what is there"},
        ),
        Route(
            "GET",
            "/v0/topics/{topic}",
            topics_api.get_topic,
            "The state of a topic",
            reply=wire.TopicState,
            statuses=_NOT_FOUND,
            query=(("touch", "boolean", "false leaves its recency alone"),),
        ),
        Route(
            "DELETE",
            "/v0/topics/{topic}",
            topics_api.delete_topic,
            "Delete a topic with all it holds and the routers that name it",
            reply=wire.DeleteTopicReply,
            statuses={409: "it holds records and `if_empty` was asked"},
            query=(("if_empty", "boolean", "only if it holds no records"),),
        ),
        Route(
            "GET",
            "/v0/topics",
            topics_api.list_topics,
            "Topics in order of their names, a page at a time",
            reply=wire.TopicList,
            query=_PAGING,
        ),
        Route(
            "GET",
            "/v0/topics/{topic}/watch",
            watch_api.watch_topic,
            "Follow a topic as server-sent events",
            statuses=_NOT_FOUND,
            stream=True,
            query=_WATCH_QUERY,
        ),
        Route(
            "POST",
            "/v0/watch",
            watch_api.create_watch,
            "Say what a stream of several topics follows",
            body=wire.WatchRequest,
            reply=wire.WatchReply,
            statuses=_NOT_FOUND,
            query=(("lenient", "boolean", "leave out topics that do not exist"),),
        ),
        Route(
            "GET",
            "/v0/watch/{wid}",
            watch_api.open_watch,
            "Follow several topics as server-sent events",
            stream=True,
            statuses={404: "the session is unknown or expired: make a new one"},
            query=(("last_event_id", "string", "as the header Last-Event-ID"),),
        ),
        Route(
            "PUT",
            "/v0/routers/{router}",
            topics_api.put_router,
            "Create or replace a router",
            body=wire.RouterConfig,
            reply=wire.PutRouterReply,
            statuses={201: "created", 404: "no such topic", 409: "it would close a cycle"},
        ),
        Route(
            "GET",
            "/v0/routers/{router}",
            topics_api.get_router,
            "The state of a router",
            reply=wire.RouterState,
            statuses={404: "there is no such router"},
        ),
        Route(
            "GET",
            "/v0/routers",
            topics_api.list_routers,
            "Routers in order of their names, a page at a time",
            reply=wire.RouterList,
            query=(
                *_PAGING,
                ("source", "string", "only those that read this topic"),
                ("dest", "string", "only those that write this topic"),
            ),
        ),
        Route(
            "DELETE",
            "/v0/routers/{router}",
            topics_api.delete_router,
            "Stop forwarding",
            reply=wire.DeleteRouterReply,
        ),
        Route(
            "POST",
            "/v0/jobs",
            jobs_api.enqueue_jobs,
            "Enqueue 1 to 1,000 jobs, all or none",
            body=jobs_wire.EnqueueRequest,
            reply=jobs_wire.EnqueueReply,
            statuses={201: "enqueued, at least one of them anew"},
        ),
        Route(
            "GET",
            "/v0/jobs",
            jobs_api.list_jobs,
            "Jobs, newest first, a page at a time",
            reply=jobs_wire.JobList,
            query=(
                ("queue", "string", "only those of this queue"),
                ("kind", "string", "only those of this kind"),
                ("status", "string", "only those that are so: ready, running, failed and so on"),
                ("tenant", "string", "only those of this tenant"),
                ("parent", "integer", "only the children of this job"),
                ("page_size", "integer", "at most 200"),
                ("cursor", "string", "`next_cursor` of the page before"),
            ),
        ),
        Route(
            "GET",
            "/v0/jobs/{id}",
            jobs_api.get_job,
            "Everything known of a job, waiting for its end if asked",
            reply=jobs_wire.JobView,
            statuses=_NO_JOB,
            query=(("wait_ms", "integer", "wait so long for it to end, 30,000 at most"),),
        ),
        Route(
            "POST",
            "/v0/jobs/{id}/signal",
            jobs_api.signal_job,
            "Send a job a signal",
            body=jobs_wire.SignalRequest,
            reply=jobs_wire.SignalReply,
            statuses={**_NO_JOB, **_ENDED},
        ),
        Route(
            "POST",
            "/v0/jobs/by-key/{key}/signal",
            jobs_api.signal_job_by_key,
            "Send a signal to the job that has a key",
            body=jobs_wire.SignalRequest,
            reply=jobs_wire.SignalReply,
            statuses={**_NO_JOB, **_ENDED},
        ),
        Route(
            "POST",
            "/v0/jobs/{id}/cancel",
            jobs_api.cancel_job,
            "End a job and its children; what runs is told to stop",
            body=jobs_wire.CancelRequest,
            reply=jobs_wire.CancelReply,
            statuses=_NO_JOB,
        ),
        Route(
            "POST",
            "/v0/jobs/{id}/retry",
            jobs_api.retry_job,
            "Make a failed, dead or cancelled job ready again, its attempts forgotten",
            reply=jobs_wire.RetryReply,
            statuses={**_NO_JOB, 409: "it is not one that can be retried"},
        ),
        Route(
            "POST",
            "/v0/jobs/prune",
            jobs_api.prune_jobs,
            "Forget jobs that ended long ago",
            body=jobs_wire.PruneRequest,
            reply=jobs_wire.PruneReply,
        ),
        Route(
            "GET",
            "/v0/queues",
            jobs_api.list_queues,
            "Queues, and how many of their jobs are where",
            reply=jobs_wire.QueueList,
        ),
        Route(
            "GET",
            "/v0/queues/{queue}",
            jobs_api.get_queue,
            "One queue",
            reply=jobs_wire.QueueView,
            statuses={404: "there is no such queue"},
        ),
        Route(
            "PUT",
            "/v0/queues/{queue}",
            jobs_api.put_queue,
            "Pause or resume a queue, or limit it; `*` limits all of them together",
            body=jobs_wire.QueueSettings,
            reply=jobs_wire.QueueView,
        ),
        Route(
            "GET",
            "/v0/workflows",
            workflows_api.list_workflows,
            "The workflows that the server declares",
            reply=workflows_wire.WorkflowList,
        ),
        Route(
            "POST",
            "/v0/workflows/{workflow}",
            workflows_api.start_run,
            "Start a run of a workflow",
            body=workflows_wire.StartRequest,
            reply=workflows_wire.StartReply,
            statuses={201: "started", **_NO_WORKFLOW, **_WRITE_JOBS},
        ),
        Route(
            "GET",
            "/v0/workflows/{workflow}/runs",
            workflows_api.list_runs,
            "The runs of a workflow, newest first",
            reply=workflows_wire.RunList,
            statuses=_NO_WORKFLOW,
            query=(
                ("status", "string", "only runs that are so"),
                ("page_size", "integer", "at most 200"),
            ),
        ),
        Route(
            "GET",
            "/v0/runs/{id}",
            workflows_api.get_run,
            "One run, its tasks, and a tree of them",
            reply=workflows_wire.RunView,
            statuses={404: "there is no such run", 409: "the job is no run of a workflow"},
        ),
        Route(
            "POST",
            "/v0/runs/{id}",
            workflows_api.steer_run,
            "Pause, resume or cancel a run",
            body=workflows_wire.RunAction,
            reply=workflows_wire.RunActionReply,
            statuses={404: "there is no such run", 409: "the job is no run of a workflow"},
        ),
        Route(
            "GET",
            "/v0/schedules",
            workflows_api.list_schedules,
            "Schedules, and what came of their latest times",
            reply=workflows_wire.ScheduleList,
        ),
        Route(
            "PUT",
            "/v0/schedules/{schedule}",
            workflows_api.put_schedule,
            "Pause or resume a schedule",
            body=workflows_wire.ScheduleSettings,
            reply=workflows_wire.ScheduleSettings,
            statuses={404: "there is no such schedule"},
        ),
        Route(
            "POST",
            "/v0/tickets",
            system_api.issue_ticket,
            "A single-use ticket for EventSource and WebSocket, good for a minute",
            body=server_wire.TicketRequest,
            reply=server_wire.TicketReply,
            statuses={201: "issued"},
        ),
        Route(
            "GET",
            "/healthz",
            system_api.healthz,
            "Whether the process lives",
            reply=server_wire.Health,
            public=True,
        ),
        Route(
            "GET",
            "/readyz",
            system_api.readyz,
            "Whether requests are served and writes taken",
            reply=server_wire.Readiness,
            statuses={503: "recovering, or read-only"},
            public=True,
        ),
        Route("GET", "/metrics", system_api.render_metrics, "Prometheus metrics"),
        Route("GET", "/openapi.json", openapi_json, "This document", public=True),
        Route("GET", "/docs", system_api.docs_page, "This API, to try out", public=True),
    ]
)

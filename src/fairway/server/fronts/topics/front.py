"""What topics show in the server: routes, a socket, and the turns of requests to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fairway.runtime.clock import sleep_ns
from fairway.server.front import FairKeyRule, Front
from fairway.server.fronts.topics import api, shown, sockets, watch
from fairway.server.fronts.topics.quotas import TopicQuotas
from fairway.server.fronts.topics.sessions import KIND, WatchSessions
from fairway.server.http.paging import CURSOR, page_size
from fairway.server.http.router import NAME, QueryParameter, Route
from fairway.topics.engine import Topics
from fairway.wire import topics as wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairway.app import Fairway
    from fairway.core.priority import Band
    from fairway.server.context import ServerContext
    from fairway.server.front import Shown

PATH: Final = "/v0/topics/"
PURGE_NS: Final = 10_000_000_000
"""How often watch sessions that nobody reads are looked for."""

_ROUTER: Final = {**NAME, "pattern": "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"}
_NOT_FOUND: Final = {404: "there is no such topic"}
_UNWRITABLE: Final = {503: "the store cannot be written now"}
_WRITE: Final = {
    422: "the topic is full and refuses rather than discards",
    429: "saturated, or over a quota; `Retry-After` says when",
    **_UNWRITABLE,
}
_LAST_EVENT_ID: Final = QueryParameter(
    "last_event_id",
    "string",
    "as the header Last-Event-ID",
    {"pattern": "^[A-Za-z0-9_.-]*$", "format": "fairway-token"},
)
_WATCH_QUERY: Final = (
    QueryParameter("from_seq", "integer", "deliver what comes after this seq"),
    QueryParameter("epoch", "integer", "the incarnation `from_seq` belongs to"),
    QueryParameter("tail", "boolean", "begin at the head instead"),
    QueryParameter("node", "string", "leave out records of this node"),
    QueryParameter(
        "match", "string", "only records of this tag, or of tags with this prefix if it ends in *"
    ),
    QueryParameter("limit", "integer", "records in one frame at most"),
    QueryParameter("max_batch_bytes", "integer", "bytes in one frame at most"),
    QueryParameter("heartbeat_ms", "integer", "a comment this often when nothing else comes"),
    QueryParameter("include_meta", "boolean", "send `meta`"),
    QueryParameter("include_tags", "boolean", "send `$tag`"),
    QueryParameter("include_data", "boolean", "send `data`"),
    QueryParameter("touch", "boolean", "false leaves its recency alone"),
    _LAST_EVENT_ID,
)
_PAGING: Final = (
    QueryParameter("prefix", "string", "only names that begin with this"),
    page_size(wire.PAGE_MAX),
    CURSOR,
)


def _one_of(*fields: str) -> list[dict[str, Any]]:
    """At least one of these fields is there, and not null."""
    return [
        {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in fields
    ]


def _topic_in(path: str) -> str:
    return path[len(PATH) :].partition("/")[0]


def _band_of(context: ServerContext, key: str) -> Band | None:
    """That of the topic, if the key is the name of one."""
    topics = context.part(Topics)
    topic = topics.find(key)
    return topics.delivery.band_of(topic) if topic is not None else None


ROUTES: Final = (
    Route(
        "POST",
        "/v0/topics/{topic}",
        api.append,
        "Append 1 to 10,000 records, all or none",
        body=shown.AppendBody,
        reply=wire.AppendReply,
        statuses={
            201: "appended, and the topic is new",
            409: "it is the topic of a Durable Stream",
            **_NOT_FOUND,
            **_WRITE,
        },
        query=(QueryParameter("return_seqs", "boolean", "false leaves out `seqs`"),),
        answer_without_task=api.append_without_task,
    ),
    Route(
        "POST",
        "/v0/topics/{topic}/diff",
        api.diff,
        "Read what comes after a cursor, waiting for it if asked",
        body=wire.DiffRequest,
        body_optional=True,
        reply=shown.DiffBody,
        reads=True,
        statuses=_NOT_FOUND,
    ),
    Route(
        "POST",
        "/v0/topics/{topic}/delete",
        api.delete_records,
        "Delete records that are there now, by seq, by tag, or both",
        body=wire.DeleteRequest,
        reply=wire.DeleteReply,
        statuses=_NOT_FOUND,
    ),
    Route(
        "PUT",
        "/v0/topics/{topic}",
        api.put_topic,
        "Create a topic, or change its configuration",
        body=wire.TopicPatch,
        body_optional=True,
        reply=wire.PutTopicReply,
        statuses={
            201: "created",
            409: "the change does not fit what is there",
            **_UNWRITABLE,
        },
    ),
    Route(
        "GET",
        "/v0/topics/{topic}",
        api.get_topic,
        "The state of a topic",
        reply=wire.TopicState,
        statuses=_NOT_FOUND,
        query=(QueryParameter("touch", "boolean", "false leaves its recency alone"),),
    ),
    Route(
        "DELETE",
        "/v0/topics/{topic}",
        api.delete_topic,
        "Delete a topic with all it holds and the routers that name it",
        reply=wire.DeleteTopicReply,
        statuses={409: "it holds records and `if_empty` was asked"},
        query=(QueryParameter("if_empty", "boolean", "only if it holds no records"),),
    ),
    Route(
        "GET",
        "/v0/topics",
        api.list_topics,
        "Topics in order of their names, a page at a time",
        reply=wire.TopicList,
        query=_PAGING,
    ),
    Route(
        "GET",
        "/v0/topics/{topic}/watch",
        watch.watch_topic,
        "Follow a topic as server-sent events",
        statuses=_NOT_FOUND,
        stream=True,
        query=_WATCH_QUERY,
    ),
    Route(
        "POST",
        "/v0/watch",
        watch.create_watch,
        "Say what a stream of several topics follows",
        body=wire.WatchRequest,
        reply=wire.WatchReply,
        statuses={**_NOT_FOUND, **_UNWRITABLE},
        query=(QueryParameter("lenient", "boolean", "leave out topics that do not exist"),),
    ),
    Route(
        "GET",
        "/v0/watch/{wid}",
        watch.open_watch,
        "Follow several topics as server-sent events",
        stream=True,
        statuses={404: "the session is unknown or expired: make a new one"},
        query=(_LAST_EVENT_ID,),
        arguments={"wid": {"type": "string"}},
    ),
    Route(
        "GET",
        "/v0/ws",
        sockets.open_socket,
        "Subscribe, publish and be told, in JSON messages over one WebSocket",
        statuses={
            401: "no key or ticket, or not one that counts",
            403: "a foreign `Host` or `Origin`, without keys",
            426: "not a WebSocket; `Upgrade` says so",
        },
        public=True,  # a plain request learns what this is; the handshake asks for a key
        socket=True,
    ),
    Route(
        "PUT",
        "/v0/routers/{router}",
        api.put_router,
        "Create or replace a router",
        body=wire.RouterConfig,
        reply=wire.PutRouterReply,
        statuses={
            201: "created",
            404: "no such topic",
            409: "it would close a cycle, or append to a Durable Stream",
            **_UNWRITABLE,
        },
        arguments={"router": _ROUTER},
    ),
    Route(
        "GET",
        "/v0/routers/{router}",
        api.get_router,
        "The state of a router",
        reply=wire.RouterState,
        statuses={404: "there is no such router"},
        arguments={"router": _ROUTER},
    ),
    Route(
        "GET",
        "/v0/routers",
        api.list_routers,
        "Routers in order of their names, a page at a time",
        reply=wire.RouterList,
        query=(
            *_PAGING,
            QueryParameter("source", "string", "only those that read this topic"),
            QueryParameter("dest", "string", "only those that write this topic"),
        ),
    ),
    Route(
        "DELETE",
        "/v0/routers/{router}",
        api.delete_router,
        "Stop forwarding",
        reply=wire.DeleteRouterReply,
        arguments={"router": _ROUTER},
    ),
)
SOCKETS: Final = (Route("GET", "/v0/ws", sockets.serve_socket, "Subscribe, publish and be told"),)
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "DeleteRequest": {"anyOf": _one_of("before_seq", "match", "seq")},
    "WatchRequest": {
        "anyOf": [
            {"required": ["topics"], "properties": {"topics": {"minProperties": 1}}},
            *_one_of("prefix"),
        ]
    },
}


class TopicsFront(Front):
    name = "topics"
    routes = ROUTES
    sockets = SOCKETS
    fair_key_rules = (FairKeyRule(PATH, _topic_in, _band_of),)
    schemas = SCHEMAS

    def parts(self, app: Fairway) -> Sequence[Shown]:
        return (app.topics,)

    def start(self, context: ServerContext) -> None:
        topics = context.part(Topics)
        sessions = context.keep(WatchSessions(context.kernel.catalog, context.random_bytes))
        sessions.restore(context.kernel.catalog.take(KIND), context.now_ms())
        context.telemetry.gauge("fairway_watch_sessions", "Watch sessions", lambda: len(sessions))
        context.keep(TopicQuotas(topics, context.quotas, context.access, context.clock)).enforce()

    async def run(self, context: ServerContext) -> None:
        while True:
            await sleep_ns(PURGE_NS)
            await context.state(WatchSessions).purge(context.now_ms())

    def readiness(self, context: ServerContext) -> Mapping[str, int]:
        return {"topics": len(context.part(Topics))}

    def review(self, context: ServerContext) -> None:
        context.state(TopicQuotas).review()

    def stop_admitting(self, context: ServerContext) -> None:
        context.part(Topics).stop_admitting()

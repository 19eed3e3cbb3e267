"""What graphs show in the server: their routes, and a socket for pushes and one for commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fairway.graphs.engine import Graphs
from fairway.graphs.loading import Folder
from fairway.server.access.audit import Audit
from fairway.server.front import FairKeyRule, Front
from fairway.server.fronts.graphs import api, sockets
from fairway.server.http.router import QueryParameter, Route
from fairway.wire import graphs as wire

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.app import Fairway
    from fairway.server.context import ServerContext
    from fairway.server.front import Shown

_NO_GRAPH: Final = {404: "there is no such graph", 409: "several tenants have one of that name"}
_GRAPH: Final = {404: "there is no such graph", 409: "it does not run, or the name is ambiguous"}
_TENANT: Final = (
    QueryParameter("tenant", "string", "only that of this tenant; empty if it is nobody's"),
)
_LIMIT: Final = (QueryParameter("limit", "integer", "as many at most, the newest"),)
_CACHE: Final = (QueryParameter("cache", "boolean", "false leaves out the values"),)


def _graph_in(path: str) -> str:
    """All that is about one graph is one key."""
    return "/".join(path.split("/", 4)[:4])


ROUTES: Final = (
    Route(
        "GET",
        "/v0/graphs",
        api.list_graphs,
        "The graphs that are loaded",
        reply=wire.GraphList,
        query=_TENANT,
    ),
    Route(
        "POST",
        "/v0/graphs",
        api.load_graph,
        "Run a graph that a module declares",
        body=wire.LoadRequest,
        reply=wire.GraphSummary,
        statuses={
            201: "loaded",
            409: "there is one of that name, or it cannot be loaded or start",
        },
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}",
        api.get_graph,
        "A graph as it is declared, with its numbers",
        reply=wire.GraphView,
        statuses=_NO_GRAPH,
        query=_TENANT,
    ),
    Route(
        "DELETE",
        "/v0/graphs/{graph}",
        api.unload_graph,
        "Drain a graph and stop it",
        reply=wire.UnloadReply,
        statuses=_NO_GRAPH,
        query=(*_TENANT, QueryParameter("forget", "boolean", "what was kept of it goes as well")),
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/state",
        api.get_graph_state,
        "The state of a graph: its cache, its sources and its nodes",
        reply=wire.GraphStateView,
        statuses=_NO_GRAPH,
        query=(*_TENANT, *_CACHE),
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/firings",
        api.list_firings,
        "Its last firings, newest first",
        reply=wire.FiringList,
        statuses=_GRAPH,
        query=(*_TENANT, *_LIMIT),
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/dead",
        api.list_dead,
        "What could not be used, newest first",
        reply=wire.DeadLetterList,
        statuses=_GRAPH,
        query=(*_TENANT, *_LIMIT),
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/recoveries",
        api.list_recoveries,
        "What of it failed, was restarted or given up, newest first",
        reply=wire.RecoveryList,
        statuses=_NO_GRAPH,
        query=_TENANT,
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/journal",
        api.read_journal,
        "What its journal still holds, as it is stored: to be replayed",
        reply=wire.JournalPage,
        statuses={**_NO_GRAPH, 409: "the graph is not checkpointed"},
        query=(*_TENANT, QueryParameter("after", "integer", "`next` of the page before")),
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/audit",
        api.list_audit,
        "The last commands it was given, newest first",
        reply=wire.AuditList,
        query=_TENANT,
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/graph.svg",
        api.draw_svg,
        "A picture of it, with its numbers",
        statuses=_NO_GRAPH,
        query=_TENANT,
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/graph.mmd",
        api.draw_mermaid,
        "The same as Mermaid",
        statuses=_NO_GRAPH,
        query=_TENANT,
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/watch",
        api.watch_graph,
        "Follow its state and its firings as server-sent events",
        statuses=_NO_GRAPH,
        stream=True,
        query=(
            *_TENANT,
            *_CACHE,
            QueryParameter("every_ms", "integer", "look for news so often, 50 to 60,000"),
            QueryParameter(
                "heartbeat_ms", "integer", "a comment this often when nothing else comes"
            ),
        ),
    ),
    Route(
        "POST",
        "/v0/graphs/{graph}/fire",
        api.fire_graph,
        "Fire it now, with the cache it has or with another",
        body=wire.FireRequest,
        body_optional=True,
        reply=wire.FiringView,
        statuses={
            404: "there is no such graph or source",
            409: "it does not run, or the firing failed",
        },
        query=_TENANT,
    ),
    Route(
        "POST",
        "/v0/graphs/{graph}/pause",
        api.pause_graph,
        "Fire no more by itself; sources go on",
        reply=wire.GraphSummary,
        statuses=_GRAPH,
        query=_TENANT,
    ),
    Route(
        "POST",
        "/v0/graphs/{graph}/resume",
        api.resume_graph,
        "Fire by itself again, at once if it is due",
        reply=wire.GraphSummary,
        statuses=_GRAPH,
        query=_TENANT,
    ),
    Route(
        "POST",
        "/v0/graphs/{graph}/restart",
        api.restart_graph,
        "Start it anew, or a source that was given up",
        body=wire.RestartRequest,
        body_optional=True,
        reply=wire.GraphSummary,
        statuses={
            404: "there is no such graph or source",
            409: "it cannot start, or the source runs",
        },
        query=_TENANT,
    ),
    Route(
        "POST",
        "/v0/graphs/{graph}/accumulators/{source}",
        api.push_boundaries,
        "Give a source one boundary or several; accepted when it is answered",
        body=wire.PushRequest,
        reply=wire.PushReply,
        statuses={
            404: "there is no such graph or source",
            409: "it does not run, or the name is ambiguous",
            429: "the source is full, or over a quota; `Retry-After` says when",
        },
        query=(
            *_TENANT,
            QueryParameter("wait_ms", "integer", "wait so long for room, 30,000 at most"),
        ),
    ),
)
SOCKETS: Final = (
    Route(
        "GET",
        "/v0/graphs/{graph}/accumulators/{source}",
        sockets.serve_pushes,
        "Give a source boundaries",
        query=_TENANT,
    ),
    Route(
        "GET",
        "/v0/graphs/{graph}/reactor",
        sockets.serve_commands,
        "Fire it, look at it, pause and resume it",
        query=_TENANT,
    ),
)
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "PushRequest": {"oneOf": [{"required": ["data"]}, {"required": ["events"]}]}
}


class GraphsFront(Front):
    name = "graphs"
    routes = ROUTES
    sockets = SOCKETS
    fair_key_rules = (FairKeyRule("/v0/graphs/", _graph_in),)
    schemas = SCHEMAS

    def parts(self, app: Fairway) -> Sequence[Shown]:
        return (app.graphs,)

    def start(self, context: ServerContext) -> None:
        context.keep(Audit("graph", context.now_ms))
        if (folder := context.settings.of_parts.get("graphs")) is not None:
            context.keep(Folder(context.part(Graphs), folder, pool=context.pool))

    async def prepare(self, context: ServerContext) -> None:
        if "graphs" in context.settings.of_parts:
            await context.state(Folder).look(at_once=True)

    async def run(self, context: ServerContext) -> None:
        if "graphs" in context.settings.of_parts:
            await context.state(Folder).run()

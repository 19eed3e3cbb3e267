"""The routes of graphs: from messages to the engine and back.

`read` looks; `write` brings data and has it computed, by push or by fire; `admin` decides whether a
graph runs at all, which is about everybody's work: pause, resume, restart, load, unload, and the
audit. Loading imports code, so it takes a key without prefixes. The prefixes of a key are compared
with `name`, or with `tenant/name` if a graph has a tenant: a key for `acme/` reaches the graphs of
that tenant and of no other. Without `?tenant=` a name must be that of one graph the key may touch.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.errors import (
    Conflict,
    FairwayError,
    GraphFailed,
    InvalidConfig,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
)
from fairway.graphs.engine import Graphs
from fairway.graphs.loading import graph_at
from fairway.runtime.usercode import without_task
from fairway.server.access.audit import Audit
from fairway.server.fronts.graphs import views
from fairway.server.fronts.graphs.views import full_name, summary_of
from fairway.server.fronts.graphs.watch import EVERY_MS, EVERY_MS_MIN, GraphStream
from fairway.server.http.exchange import Reply, Request, flag, json_reply, number
from fairway.server.http.problems import detail_of, status_of
from fairway.server.http.sse import require_event_stream
from fairway.wire.graphs import (
    DEAD_DEFAULT,
    DEAD_MAX,
    FIRINGS_DEFAULT,
    FIRINGS_MAX,
    PUSH_WAIT_MS,
    AuditEntry,
    AuditList,
    DeadLetterList,
    FireRequest,
    FiringList,
    GraphList,
    JournalPage,
    LoadRequest,
    PushRefusal,
    PushReply,
    PushRequest,
    RecoveryList,
    RestartRequest,
    UnloadReply,
)
from fairway.wire.topics import WAIT_MS_MAX, check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairway.graphs.accumulator import Accumulator
    from fairway.graphs.engine import Managed
    from fairway.graphs.firing import Firing
    from fairway.graphs.running import RunningGraph
    from fairway.server.access.auth import Identity
    from fairway.server.context import ServerContext
    from fairway.settings import Scope

_PUSH = msgspec.json.Decoder(PushRequest)
_FIRE = msgspec.json.Decoder(FireRequest)
_RESTART = msgspec.json.Decoder(RestartRequest)
_LOAD = msgspec.json.Decoder(LoadRequest)

JOURNAL_PAGE: Final = 500
"""Entries of a journal in one answer; an entry may hold many records."""
START_WAIT_MS: Final = 10_000
"""How long a load or a restart waits for the graph to run before it answers how it is."""
KEPT_WAIT_S: Final = 30
"""How long we wait for a record to be durable before its outcome is unknown."""
SVG: Final = (
    (b"content-type", b"image/svg+xml; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
)


def graph_of(
    context: ServerContext, identity: Identity, scope: Scope | None, name: str, tenant: str | None
) -> Managed:
    """The graph that is meant, if the key may do this to it."""
    if scope is not None:
        identity.require(scope)
    if tenant is not None:
        _require_name(identity, full_name(tenant, name))
        return context.part(Graphs).get(name, tenant)
    mine = [
        each
        for each in context.part(Graphs)
        if each.graph.name == name and may_touch(identity, each)
    ]
    if len(mine) > 1:
        tenants = ", ".join(repr(managed.graph.tenant) for managed in mine)
        raise Conflict(
            f"several tenants have a graph {name[:255]!r}: {tenants}; say which",
            code="graph_ambiguous",
        )
    if not mine:  # no word of those that others have
        _require_name(identity, name)
        raise NotFound("graph", name[:255])
    return mine[0]


def _require_name(identity: Identity, name: str) -> None:
    identity.require(next(iter(identity.scopes)), name)


def may_touch(identity: Identity, managed: Managed) -> bool:
    return identity.may_touch(full_name(managed.graph.tenant, managed.graph.name))


def _asked(context: ServerContext, request: Request, scope: Scope, name: str) -> Managed:
    return graph_of(context, request.identity, scope, name, request.parameters.get("tenant"))


# Looking


async def list_graphs(context: ServerContext, request: Request) -> Reply:
    request.identity.require("read")
    tenant = request.parameters.get("tenant")
    found = [
        managed
        for managed in context.part(Graphs)
        if tenant in (None, managed.graph.tenant) and may_touch(request.identity, managed)
    ]
    return json_reply(GraphList(graphs=[summary_of(managed) for managed in found]))


async def get_graph(context: ServerContext, request: Request, graph: str) -> Reply:
    managed = _asked(context, request, "read", graph)
    return json_reply(views.view_of(managed, context.clock.now_ns()))


async def get_graph_state(context: ServerContext, request: Request, graph: str) -> Reply:
    cache = flag(request.parameters.get("cache"), "cache", default=True)
    managed = _asked(context, request, "read", graph)
    return json_reply(views.state_of(managed, context.clock.now_ns(), cache=cache))


async def list_firings(context: ServerContext, request: Request, graph: str) -> Reply:
    limit = number(request.parameters.get("limit"), "limit", default=FIRINGS_DEFAULT)
    instance = _asked(context, request, "read", graph).running()
    found = views.last_firings(instance, min(limit, FIRINGS_MAX))
    return json_reply(FiringList(firings=[views.firing_view(each) for each in reversed(found)]))


async def list_dead(context: ServerContext, request: Request, graph: str) -> Reply:
    limit = number(request.parameters.get("limit"), "limit", default=DEAD_DEFAULT)
    letters = _asked(context, request, "read", graph).running().checkpoint.letters()
    newest = letters[::-1][: min(limit, DEAD_MAX)]
    return json_reply(
        DeadLetterList(dead=[views.dead_view(each) for each in newest], total=len(letters))
    )


async def list_recoveries(context: ServerContext, request: Request, graph: str) -> Reply:
    records = reversed(_asked(context, request, "read", graph).recoveries)
    return json_reply(RecoveryList(recoveries=[views.recovery_view(each) for each in records]))


async def read_journal(context: ServerContext, request: Request, graph: str) -> Reply:
    managed = _asked(context, request, "read", graph)
    after = number(request.parameters.get("after"), "after", default=-1)
    first, entries, last = await context.part(Graphs).journal(managed, after, JOURNAL_PAGE)
    return json_reply(JournalPage(snapshot=first, entries=entries, next=last))


async def draw_svg(context: ServerContext, request: Request, graph: str) -> Reply:
    managed = _asked(context, request, "read", graph)
    return Reply(200, views.svg_of(managed, context.clock.now_ns()).encode(), SVG)


async def draw_mermaid(context: ServerContext, request: Request, graph: str) -> Reply:
    text = views.mermaid_of(_asked(context, request, "read", graph).graph)
    return Reply(200, text.encode(), ((b"content-type", b"text/plain; charset=utf-8"),))


async def list_audit(context: ServerContext, request: Request, graph: str) -> Reply:
    """The commands to a graph, whether or not it is still there."""
    identity = request.identity
    identity.require("admin")
    check_name(graph, what="graph")
    tenant = request.parameters.get("tenant")
    entries = [
        AuditEntry(
            at=one.at_ms,
            who=one.who,
            command=one.command,
            tenant=one.tenant,
            graph=one.target,
            outcome=one.outcome,
            detail=one.detail,
        )
        for one in context.state(Audit).of(graph)
        if tenant in (None, one.tenant) and identity.may_touch(full_name(one.tenant, one.target))
    ]
    return json_reply(AuditList(entries=entries))


async def watch_graph(context: ServerContext, request: Request, graph: str) -> Reply | None:
    """`GET /v0/graphs/{graph}/watch`: its state whenever it changes, and its firings."""
    query = request.parameters
    cache = flag(query.get("cache"), "cache", default=True)
    every_ms = number(query.get("every_ms"), "every_ms", default=EVERY_MS)
    heartbeat_ms = number(query.get("heartbeat_ms"), "heartbeat_ms", default=15_000)
    managed = _asked(context, request, "read", graph)
    require_event_stream(request)
    response = context.response_stream_of(request)

    def closed() -> None:
        context.disconnect(open_stream)
        context.keep_alives.remove(stream)
        stream.stop()

    stream = GraphStream(
        response,
        closed,
        context.part(Graphs),
        managed,
        context.clock,
        every_ms=min(max(every_ms, EVERY_MS_MIN), 60_000),
        cache=cache,
    )
    open_stream = context.connect(request.identity, stream.end)
    try:
        stream.open(context.cors_headers(request))
        context.keep_alives.add(stream, min(max(heartbeat_ms, 1000), 60_000))
        stream.start()
        await response.wait_ended()
    finally:
        closed()
    return None


# Pushing


async def push_boundaries(
    context: ServerContext, request: Request, graph: str, source: str
) -> Reply:
    query = request.parameters
    wait_ms = number(query.get("wait_ms"), "wait_ms", default=PUSH_WAIT_MS)
    message = await request.json(_PUSH)
    instance = _asked(context, request, "write", graph).running()
    accumulator = instance.accumulator(source)
    values, size = _boundaries(accumulator, message)
    context.charge(request.identity, records=len(values), size=size)
    reply = await _push(context, instance, source, values, min(wait_ms, WAIT_MS_MAX))
    return json_reply(reply)


def _boundaries(accumulator: Accumulator, message: PushRequest) -> tuple[list[Any], int]:
    """The values of a push, all of them decoded before any is taken; and their bytes."""
    data, events = message.data, message.events
    if isinstance(data, msgspec.UnsetType) == isinstance(events, msgspec.UnsetType):
        raise InvalidRequest("a push has `data`, one boundary, or `events`, a list of them")
    raws = [data] if isinstance(events, msgspec.UnsetType) else events
    values, size = [], 0
    for at, raw in enumerate(raws):
        encoded = bytes(raw)  # type: ignore[arg-type]
        size += len(encoded)
        try:
            values.append(without_task(accumulator.source.event_schema.of_json, encoded))
        except InvalidRequest as error:
            if raws is not events:
                raise
            raise InvalidRequest(f"events[{at}]: {error}") from None
    return values, size


async def _push(
    context: ServerContext, instance: RunningGraph, source: str, values: Sequence[Any], wait_ms: int
) -> PushReply:
    """Take values in, in order, up to the first that is refused; and wait until they are kept."""
    kept: list[asyncio.Future[Any] | None] = []
    refusal: FairwayError | None = None
    per_turn = context.turn.pushes_per_turn
    for value in values:
        if len(kept) % per_turn == per_turn - 1:
            await asyncio.sleep(0)
        try:
            await wait_room(context, instance, source, wait_ms)
            kept.append(instance.accept(source, value))
        except FairwayError as error:
            refusal = error
            break
    await wait_kept(kept)
    accepted = 0
    for future in kept:
        if future is not None and (failure := _failure(future)) is not None:
            if isinstance(failure, OutcomeUnknown):
                raise failure  # of those after it nothing is known either
            refusal = failure
            break
        accepted += 1
    if refusal is None:
        return PushReply(accepted=accepted)
    if not accepted:
        raise refusal
    detail = detail_of(refusal)
    return PushReply(
        accepted=accepted,
        refused=PushRefusal(
            code=status_of(refusal)[1],
            message=str(refusal),
            retry_after_ms=detail.get("retry_after_ms"),  # type: ignore[arg-type]
        ),
    )


async def wait_room(
    context: ServerContext, instance: RunningGraph, source: str, wait_ms: int
) -> None:
    """Wait for room if the source says so, for so long at most: whoever pushes is far away."""
    accumulator = instance.accumulator(source)
    if wait_ms and not accumulator.room() and accumulator.source.on_full == "block":
        await context.polls.wait(lambda: instance.reactor.wait_room(source), wait_ms)


async def wait_kept(kept: Sequence[asyncio.Future[Any] | None]) -> None:
    """Wait until what was accepted is durable, or known not to be. Raises `OutcomeUnknown`."""
    waiting = {future for future in kept if future is not None and not future.done()}
    if not waiting:
        return
    _, late = await asyncio.wait(waiting, timeout=KEPT_WAIT_S)
    if late:
        raise OutcomeUnknown("it was accepted, and whether it is durable is not known")


def _failure(future: asyncio.Future[Any]) -> FairwayError | None:
    error = future.exception()
    if error is not None and not isinstance(error, FairwayError):
        raise error
    return error


# Steering


async def fire_graph(context: ServerContext, request: Request, graph: str) -> Reply:
    message = await request.json(_FIRE, empty=b"{}")
    tenant = request.parameters.get("tenant")
    firing = await fire(context, request.identity, graph, tenant, message.cache)
    return json_reply(views.firing_view(firing))


async def fire(
    context: ServerContext,
    identity: Identity,
    graph: str,
    tenant: str | None,
    cache: Mapping[str, msgspec.Raw] | None,
) -> Firing:
    """ForceFire, or FireWith if there is a cache: what it came to, once it is recorded."""
    command = "force_fire" if cache is None else "fire_with"
    with context.state(Audit).command(identity, command, graph, tenant) as note:
        managed = graph_of(context, identity, "write", graph, tenant)
        note.tenant = managed.graph.tenant
        instance = managed.running()
        firing = await instance.force(None if cache is None else _cache_of(managed, cache))
        note.detail = f"firing {firing.number}"
        return firing


def _cache_of(managed: Managed, cache: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    values = {}
    for name, raw in cache.items():
        if name not in managed.graph.sources:
            raise NotFound("source", name)
        try:
            schema = managed.graph.sources[name].schema
            values[name] = without_task(schema.of_json, bytes(raw))
        except InvalidRequest as error:
            raise InvalidRequest(f"cache.{name}: {error}") from None
    return values


async def pause_graph(context: ServerContext, request: Request, graph: str) -> Reply:
    return json_reply(summary_of(await steer(context, request, graph, paused=True)))


async def resume_graph(context: ServerContext, request: Request, graph: str) -> Reply:
    return json_reply(summary_of(await steer(context, request, graph, paused=False)))


async def steer(context: ServerContext, request: Request, graph: str, *, paused: bool) -> Managed:
    tenant = request.parameters.get("tenant")
    return await pause(context, request.identity, graph, tenant, paused=paused)


async def pause(
    context: ServerContext, identity: Identity, graph: str, tenant: str | None, *, paused: bool
) -> Managed:
    """Pause, or Resume, which looks again at once whether to fire; recorded when it returns."""
    with context.state(Audit).command(
        identity, "pause" if paused else "resume", graph, tenant
    ) as note:
        managed = graph_of(context, identity, "admin", graph, tenant)
        note.tenant = managed.graph.tenant
        reactor = managed.running().reactor
        recorded = reactor.pause(identity.name) if paused else reactor.resume(identity.name)
        await wait_kept([recorded])
        if (failure := _failure(recorded)) is not None:
            raise failure
        return managed


async def restart_graph(context: ServerContext, request: Request, graph: str) -> Reply:
    message = await request.json(_RESTART, empty=b"{}")
    identity, tenant = request.identity, request.parameters.get("tenant")
    with context.state(Audit).command(identity, "restart", graph, tenant) as note:
        managed = graph_of(context, identity, "admin", graph, tenant)
        note.tenant = managed.graph.tenant
        if message.source is not None:
            note.detail = f"source {message.source}"
            managed.running().restart_source(message.source)
        else:
            managed = await context.part(Graphs).restart(graph, managed.graph.tenant, wait=False)
            await _wait_started(context, managed)
    return json_reply(summary_of(managed))


async def load_graph(context: ServerContext, request: Request) -> Reply:
    message = await request.json(_LOAD)
    with context.state(Audit).command(request.identity, "load", message.graph, None) as note:
        request.identity.require_prefix("admin", "")
        try:
            declared = await context.pool.run(graph_at, message.graph, message.fresh)
            note.target, note.tenant, note.detail = declared.name, declared.tenant, message.graph
            managed = await context.part(Graphs).load(declared, wait=False)
        except InvalidConfig as error:  # the request is well formed; what it names cannot be run
            raise Conflict(str(error), code="graph_not_loadable") from None
        try:
            await _wait_started(context, managed)
        except Conflict:
            await context.part(Graphs).withdraw(managed)
            raise
    return json_reply(summary_of(managed), 201)


async def _wait_started(context: ServerContext, managed: Managed) -> None:
    """Wait until a graph runs; one that takes long is told of as it is then."""
    try:
        await context.polls.wait(lambda: context.part(Graphs).wait_started(managed), START_WAIT_MS)
    except GraphFailed as error:
        raise Conflict(str(error), code="graph_failed") from None


async def unload_graph(context: ServerContext, request: Request, graph: str) -> Reply:
    identity, tenant = request.identity, request.parameters.get("tenant")
    forget = flag(request.parameters.get("forget"), "forget", default=False)
    with context.state(Audit).command(identity, "unload", graph, tenant) as note:
        managed = graph_of(context, identity, "admin", graph, tenant)
        note.tenant = managed.graph.tenant
        note.detail = "forgotten" if forget else ""
        await context.part(Graphs).unload(graph, managed.graph.tenant, forget=forget)
    return json_reply(UnloadReply(graph=graph, tenant=managed.graph.tenant, forgotten=forget))

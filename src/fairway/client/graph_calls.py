"""Every request about graphs, as a value. Pure; `client.graphs` carries them out.

A push or a fire whose answer was lost may have happened: it is repeated only after a refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import msgspec

from fairway.client.following import StreamCall
from fairway.client.problems import event_error
from fairway.client.protocol import MS_NS, Call, Query, reading
from fairway.errors import InvalidRequest, Throttled
from fairway.wire import graphs as wire
from fairway.wire.encoding import encode_given
from fairway.wire.topics import WAIT_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fairway.client.events import ServerSentEvent

GRAPHS: Final = "/v0/graphs"
FIRE_WAIT_NS: Final = 60_000 * MS_NS
"""A firing takes as long as its nodes do."""
DRAIN_WAIT_NS: Final = 15_000 * MS_NS
EVERY_MS: Final = 250
SILENCE_S: Final = 45.0
"""A watch that says nothing for so long is dead: its server says something every 15 s."""

Summaries: TypeAlias = list[wire.GraphSummary]
Firings: TypeAlias = list[wire.FiringView]
DeadLetters: TypeAlias = list[wire.DeadLetterView]
Recoveries: TypeAlias = list[wire.RecoveryView]
Audited: TypeAlias = list[wire.AuditEntry]
GraphNews: TypeAlias = wire.GraphStateView | wire.FiringsEvent

_encode = msgspec.json.Encoder().encode
_summary = reading(wire.GraphSummary)
_state_event = msgspec.json.Decoder(wire.GraphStateView).decode
_firings_event = msgspec.json.Decoder(wire.FiringsEvent).decode


def _path(graph: str, *more: str) -> str:
    return "/".join((GRAPHS, *map(_segment, (graph, *more))))


def _segment(name: str) -> str:
    """A name in a path. Raises `InvalidRequest` for one that would ask for something else."""
    if not isinstance(name, str):
        raise InvalidRequest(f"graphs and sources are named by texts, not a {type(name).__name__}")
    if name in ("", ".", ".."):
        raise InvalidRequest(f"{name!r} names neither a graph nor a source")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name[:80]!r} is no text that can be sent") from None


def _of(tenant: str | None, *more: tuple[str, str]) -> Query:
    return (*((("tenant", tenant),) if tenant is not None else ()), *more)


def graphs(tenant: str | None) -> Call[wire.GraphList]:
    return Call(method="GET", path=GRAPHS, query=_of(tenant), decode=reading(wire.GraphList))


def graph(name: str, tenant: str | None) -> Call[wire.GraphView]:
    return Call(method="GET", path=_path(name), query=_of(tenant), decode=reading(wire.GraphView))


def state(name: str, tenant: str | None, *, cache: bool = True) -> Call[wire.GraphStateView]:
    query = _of(tenant) if cache else _of(tenant, ("cache", "false"))
    return Call(
        method="GET", path=_path(name, "state"), query=query, decode=reading(wire.GraphStateView)
    )


def firings(name: str, tenant: str | None, limit: int) -> Call[wire.FiringList]:
    return Call(
        method="GET",
        path=_path(name, "firings"),
        query=_of(tenant, ("limit", str(limit))),
        decode=reading(wire.FiringList),
    )


def dead(name: str, tenant: str | None, limit: int) -> Call[wire.DeadLetterList]:
    return Call(
        method="GET",
        path=_path(name, "dead"),
        query=_of(tenant, ("limit", str(limit))),
        decode=reading(wire.DeadLetterList),
    )


def recoveries(name: str, tenant: str | None) -> Call[wire.RecoveryList]:
    return Call(
        method="GET",
        path=_path(name, "recoveries"),
        query=_of(tenant),
        decode=reading(wire.RecoveryList),
    )


def journal(name: str, after: int | None, tenant: str | None) -> Call[wire.JournalPage]:
    begin = (("after", str(after)),) if after is not None else ()
    return Call(
        method="GET",
        path=_path(name, "journal"),
        query=(*_of(tenant), *begin),
        decode=reading(wire.JournalPage),
    )


def audit(name: str, tenant: str | None) -> Call[wire.AuditList]:
    return Call(
        method="GET",
        path=_path(name, "audit"),
        query=_of(tenant),
        decode=reading(wire.AuditList),
    )


def svg(name: str, tenant: str | None) -> Call[str]:
    return Call(method="GET", path=_path(name, "graph.svg"), query=_of(tenant), decode=bytes.decode)


def _wait_ms(wait_s: float | None) -> int:
    """How long a push may wait for room, as the server has it: never longer than that allows."""
    if wait_s is None:
        return wire.PUSH_WAIT_MS
    if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not wait_s >= 0:
        raise InvalidRequest(f"wait_s is a number of seconds, not {str(wait_s)[:80]}")
    return round(min(wait_s, WAIT_MS_MAX / 1000) * 1000)


def push(
    name: str, source: str, events: Sequence[Any], tenant: str | None, wait_s: float | None
) -> Call[wire.PushReply]:
    if not events:
        raise InvalidRequest("there is nothing to push")
    wait_ms = _wait_ms(wait_s)
    more = () if wait_s is None else (("wait_ms", str(wait_ms)),)
    message = {"data": events[0]} if len(events) == 1 else {"events": events}
    return Call(
        method="POST",
        path=_path(name, "accumulators", source),
        query=_of(tenant, *more),
        body=encode_given(message, f"an event for source {source!r}"),
        decode=reading(wire.PushReply),
        mutates=True,
        repeatable=False,
        wait_ns=wait_ms * MS_NS,
    )


def all_accepted(reply: wire.PushReply, events: tuple[Any, ...]) -> int:
    """How many were accepted. Raises why the next one was not."""
    refused = reply.refused
    if refused is None:
        return reply.accepted
    message = f"{reply.accepted} of {len(events)} were accepted, and then: {refused.message}"
    if refused.retry_after_ms is None:
        raise InvalidRequest(message, code=refused.code)
    raise Throttled(message, retry_after_ns=refused.retry_after_ms * MS_NS)


def fire(name: str, cache: Mapping[str, Any] | None, tenant: str | None) -> Call[wire.FiringView]:
    return Call(
        method="POST",
        path=_path(name, "fire"),
        query=_of(tenant),
        body=encode_given({} if cache is None else {"cache": dict(cache)}, "the cache"),
        decode=reading(wire.FiringView),
        mutates=True,
        repeatable=False,
        wait_ns=FIRE_WAIT_NS,
    )


def steer(name: str, action: str, tenant: str | None) -> Call[wire.GraphSummary]:
    """`pause` or `resume`."""
    return Call(
        method="POST",
        path=_path(name, action),
        query=_of(tenant),
        decode=_summary,
        mutates=True,
    )


def restart(name: str, source: str | None, tenant: str | None) -> Call[wire.GraphSummary]:
    return Call(
        method="POST",
        path=_path(name, "restart"),
        query=_of(tenant),
        body=_encode(wire.RestartRequest(source=source)),
        decode=_summary,
        mutates=True,
        repeatable=source is None,
        wait_ns=DRAIN_WAIT_NS,
    )


def load(reference: str, fresh: bool) -> Call[wire.GraphSummary]:
    return Call(
        method="POST",
        path=GRAPHS,
        body=_encode({"graph": reference, "fresh": fresh}),
        decode=_summary,
        mutates=True,
        repeatable=False,
        wait_ns=DRAIN_WAIT_NS,
    )


def unload(name: str, tenant: str | None, forget: bool) -> Call[wire.UnloadReply]:
    more = (("forget", "true"),) if forget else ()
    return Call(
        method="DELETE",
        path=_path(name),
        query=_of(tenant, *more),
        decode=reading(wire.UnloadReply),
        mutates=True,
        repeatable=False,
        wait_ns=DRAIN_WAIT_NS,
    )


def watch(name: str, tenant: str | None, every_ms: int, *, cache: bool) -> StreamCall:
    more = (("every_ms", str(every_ms)), ("cache", "true" if cache else "false"))
    return StreamCall(_path(name, "watch"), _of(tenant, *more))


def news_of(event: ServerSentEvent) -> GraphNews | None:
    """What an event of a watch says; None if the graph was unloaded. Raises what the server says
    is wrong."""
    if event.kind == "state":
        return _state_event(event.data)
    if event.kind == "firings":
        return _firings_event(event.data)
    if event.kind == "error":
        raise event_error(event.data)
    return None

"""The routes about the server itself: health, readiness, metrics, tickets and the API document."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import FairwayError
from fairway.server.front import Front
from fairway.server.http import metrics
from fairway.server.http.asgi import WAITS, identify
from fairway.server.http.exchange import Reply, Request, json_reply
from fairway.server.http.router import Route
from fairway.wire.server import Health, PartReadiness, Readiness, TicketReply, TicketRequest

if TYPE_CHECKING:
    from fairway.server.context import ServerContext

_TICKET = msgspec.json.Decoder(TicketRequest)


async def healthz(context: ServerContext | None, request: Request) -> Reply:
    return json_reply(Health(status="ok"))


async def readyz(context: ServerContext | None, request: Request) -> Reply:
    if context is None:
        waits = request.scope.get(WAITS, "recovering")
        return json_reply(Readiness(ready=False, writable=False, reason=waits), 503)
    health = {part.name: part.health() for part in context.parts}
    unready = next((one for one in health.values() if not one.ready), None)
    shows_reasons = _may_see_reasons(context, request)
    ladder = context.kernel.ladder
    readiness = Readiness(
        ready=unready is None,
        writable=unready is None,
        reason=None if unready is None else unready.reason,
        pressure=round(ladder.pressure, 3),
        pressure_cause=ladder.cause,
        parts={
            name: PartReadiness(
                state=one.state, ready=one.ready, reason=one.reason if shows_reasons else None
            )
            for name, one in health.items()
        },
    )
    for front in context.fronts:
        readiness = msgspec.structs.replace(readiness, **front.readiness(context))
    return json_reply(readiness, 200 if unready is None else 503)


def _may_see_reasons(context: ServerContext, request: Request) -> bool:
    """Whether the client may see reasons, which name graphs and the like. Strangers may ask how the
    server is; they learn no more than that."""
    try:
        identify(context, request).require_prefix("read", "")
    except FairwayError:
        return False
    return True


async def render_metrics(context: ServerContext, request: Request) -> Reply:
    request.identity.require("read")
    return metrics.reply(context.telemetry)


async def issue_ticket(context: ServerContext, request: Request) -> Reply:
    message = await request.json(_TICKET, empty=b"{}")
    now_ns = context.clock.now_ns()
    ticket = context.tickets.issue(request.identity, now_ns, path=message.path)
    expires_in_ms = (ticket.expires_at_ns - now_ns) // 1_000_000
    return json_reply(TicketReply(ticket=ticket.secret, expires_in_ms=expires_in_ms), 201)


async def docs_page(context: ServerContext | None, request: Request) -> Reply:
    return _docs_page()


@cache
def _docs_page() -> Reply:
    page = files("fairway.server.http").joinpath("docs.html").read_bytes()
    policy = b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    policy += b" connect-src 'self'"
    return Reply(
        200,
        page,
        ((b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", policy)),
    )


ROUTES: Final = (
    Route(
        "POST",
        "/v0/tickets",
        issue_ticket,
        "A single-use ticket for EventSource and WebSocket, good for a minute",
        body=TicketRequest,
        body_optional=True,
        reply=TicketReply,
        statuses={201: "issued"},
    ),
    Route(
        "GET",
        "/healthz",
        healthz,
        "Whether the process lives",
        reply=Health,
        public=True,
        vital=True,
    ),
    Route(
        "GET",
        "/readyz",
        readyz,
        "Whether requests are served and writes taken",
        reply=Readiness,
        statuses={503: "not ready; `reason` says why"},
        replies=(503,),
        public=True,
        vital=True,
    ),
    Route("GET", "/metrics", render_metrics, "Prometheus metrics", probe=True),
    Route("GET", "/docs", docs_page, "This API, to try out", public=True),
)


class SystemFront(Front):
    """The server itself, which is no part."""

    name = "system"
    routes = ROUTES

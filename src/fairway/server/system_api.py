"""The routes about the server itself: health, readiness, metrics, tickets and the API document."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from fairway.server import metrics
from fairway.server.asgi import WAITS
from fairway.server.exchange import Reply, Request, json_reply
from fairway.wire.server import Health, Readiness, TicketReply, TicketRequest

if TYPE_CHECKING:
    from fairway.runtime.telemetry import Telemetry
    from fairway.server.host import Host

_TICKET = msgspec.json.Decoder(TicketRequest)


async def healthz(host: Host | None, request: Request) -> Reply:
    return json_reply(Health(status="ok"))


async def readyz(host: Host | None, request: Request) -> Reply:
    if host is None:
        waits = request.scope.get(WAITS, "recovering")
        return json_reply(Readiness(ready=False, writable=False, reason=waits), 503)
    topics = host.topics
    reason = "shutting down" if topics.closing else topics.read_only
    if topics.ownership is not None and topics.ownership.overdue:
        reason = "fenced: another process owns the log, or may own it by now"
    return json_reply(
        Readiness(
            ready=reason is None,
            writable=reason is None,
            reason=reason,
            topics=len(topics),
            pressure=round(topics.ladder.pressure, 3),
            pressure_cause=topics.ladder.cause,
        ),
        200 if reason is None else 503,
    )


async def render_metrics(host: Host, request: Request) -> Reply:
    request.identity.require("read")
    return metrics_reply(host.topics.telemetry)


def metrics_reply(telemetry: Telemetry) -> Reply:
    body = metrics.render(telemetry.snapshot())
    return Reply(200, body, ((b"content-type", metrics.CONTENT_TYPE),))


async def issue_ticket(host: Host, request: Request) -> Reply:
    message = await request.json(_TICKET, empty=b"{}")
    now_ns = host.clock.now_ns()
    ticket = host.tickets.issue(request.identity, now_ns, path=message.path)
    expires_in_ms = (ticket.expires_at_ns - now_ns) // 1_000_000
    return json_reply(TicketReply(ticket=ticket.secret, expires_in_ms=expires_in_ms), 201)


async def docs_page(host: Host | None, request: Request) -> Reply:
    page = files("fairway.server").joinpath("docs.html").read_bytes()
    policy = b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    policy += b" connect-src 'self'"
    return Reply(
        200,
        page,
        ((b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", policy)),
    )

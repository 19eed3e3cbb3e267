"""Every request about workflows and schedules, as a value. Pure; the clients carry them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

import msgspec

from fairway.client.protocol import Call, Query, reading
from fairway.wire import workflows as wire
from fairway.wire.encoding import encode_given

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKFLOWS: Final = "/v0/workflows"
RUNS: Final = "/v0/runs"
REPEAT_MS: Final = 60_000
"""A key that stands so long is there when a call is repeated."""

_encode = msgspec.json.Encoder().encode


def workflows() -> Call[wire.WorkflowList]:
    return Call(method="GET", path=WORKFLOWS, decode=reading(wire.WorkflowList))


def start(
    workflow: str, context: Mapping[str, Any] | None, key: str | None, window_s: float
) -> Call[wire.StartReply]:
    window_ms = round(window_s * 1000)
    message = {"context": dict(context or {}), "key": key, "window_ms": window_ms}
    return Call(
        method="POST",
        path=f"{WORKFLOWS}/{quote(workflow, safe='')}",
        body=encode_given(message, f"the context of workflow {workflow!r}"),
        decode=reading(wire.StartReply),
        mutates=True,
        repeatable=key is not None and window_ms >= REPEAT_MS,
    )


def runs(workflow: str, status: str | None, limit: int) -> Call[wire.RunList]:
    query: Query = (("page_size", str(limit)),)
    if status is not None:
        query += (("status", status),)
    path = f"{WORKFLOWS}/{quote(workflow, safe='')}/runs"
    return Call(method="GET", path=path, query=query, decode=reading(wire.RunList))


def run(id: int) -> Call[wire.RunView]:
    return Call(method="GET", path=f"{RUNS}/{id}", decode=reading(wire.RunView))


def steer(
    id: int, action: Literal["pause", "resume", "cancel", "retry"], reason: str = "cancelled"
) -> Call[wire.RunActionReply]:
    return Call(
        method="POST",
        path=f"{RUNS}/{id}",
        body=_encode(wire.RunAction(action=action, reason=reason)),
        decode=reading(wire.RunActionReply),
        mutates=True,
        repeatable=action != "retry",  # the second would be of a run that goes on
    )


def schedules() -> Call[wire.ScheduleList]:
    return Call(method="GET", path="/v0/schedules", decode=reading(wire.ScheduleList))


def pause_schedule(name: str, paused: bool) -> Call[wire.ScheduleSettings]:
    return Call(
        method="PUT",
        path=f"/v0/schedules/{quote(name, safe='')}",
        body=_encode(wire.ScheduleSettings(paused=paused)),
        decode=reading(wire.ScheduleSettings),
        mutates=True,
        repeatable=True,
    )

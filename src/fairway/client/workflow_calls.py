"""Every request about workflows and schedules, as a value. Pure; `client.workflows` does them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from fairway.client.job_calls import REPEAT_MS, EndWaiter
from fairway.client.protocol import MS_NS, Call, Query, reading
from fairway.errors import JobFailed, NotFound
from fairway.wire import workflows as wire
from fairway.wire.encoding import encode_given

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORKFLOWS: Final = "/v0/workflows"
RUNS: Final = "/v0/runs"
RUNS_DEFAULT: Final = 50

WorkflowViews: TypeAlias = list[wire.WorkflowView]
RunSummaries: TypeAlias = list[wire.RunSummary]
ScheduleViews: TypeAlias = list[wire.ScheduleView]

_encode = msgspec.json.Encoder().encode


def workflows() -> Call[wire.WorkflowList]:
    return Call(method="GET", path=WORKFLOWS, decode=reading(wire.WorkflowList))


def named(found: Iterable[wire.WorkflowView], name: str) -> wire.WorkflowView:
    """The one of that name. Raises `NotFound`."""
    for workflow in found:
        if workflow.name == name:
            return workflow
    raise NotFound("workflow", name)


def start(
    workflow: str,
    context: Mapping[str, Any] | None = None,
    key: str | None = None,
    window_s: float = 0.0,
    delay_s: float = 0.0,
) -> Call[wire.StartReply]:
    window_ms = round(window_s * 1000)
    message: dict[str, Any] = {"context": dict(context or {}), "key": key, "window_ms": window_ms}
    if delay_s:
        message["delay_ms"] = round(delay_s * 1000)
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


def run(id: int, wait_ms: int = 0) -> Call[wire.RunView]:
    return Call(
        method="GET",
        path=f"{RUNS}/{id}",
        query=(("wait_ms", str(wait_ms)),) if wait_ms else (),
        decode=reading(wire.RunView),
        wait_ns=wait_ms * MS_NS,
    )


class RunWaiter(EndWaiter[wire.RunView]):
    """Asks for a run until it has ended, a long poll at a time."""

    noun = "run"
    ask = staticmethod(run)


def result_of(run: wire.RunView, type: Any = Any) -> Any:
    """What a run that has ended came to. Raises `JobFailed`."""
    if run.status != "done":
        raise JobFailed(run.id, run.status, run.error)
    return msgspec.convert(run.context, type)


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

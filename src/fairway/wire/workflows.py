"""The messages of workflows and schedules: what is asked and what is answered.

Times are milliseconds since 1970, in UTC. Contexts are JSON objects.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from fairway.wire.jobs import Duration, StatusName, Text  # noqa: TC001  (read at run time)

TaskStateName: TypeAlias = Literal["pending", "running", "done", "failed", "skipped", "cancelled"]


class WorkflowView(Struct, frozen=True, kw_only=True):
    """A workflow that the server declares."""

    name: str
    version: int
    structure: str
    """A hash of its tasks, dependencies and rules: what runs of one structure share."""
    tasks: list[str]
    tree: str
    """The graph, for a terminal."""


class WorkflowList(Struct, frozen=True, kw_only=True):
    workflows: list[WorkflowView]


class StartRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start a run."""

    context: dict[str, Raw] = {}
    key: Text | None = None
    """At most one run of the workflow has it, while that run lives and for `window_ms`."""
    window_ms: Duration = 0
    delay_ms: Duration = 0


class StartReply(Struct, frozen=True, kw_only=True):
    id: int
    fresh: bool
    """False if a run with the key was there already: `id` is that one."""


class RunSummary(Struct, frozen=True, kw_only=True):
    """A run, as lists show it."""

    id: int
    workflow: str
    status: StatusName
    started_at: int
    finished_at: int | None
    error: str | None


class RunList(Struct, frozen=True, kw_only=True):
    runs: list[RunSummary]


class TaskView(Struct, frozen=True, kw_only=True):
    """A task of a run."""

    name: str
    state: TaskStateName
    job: int | None
    """The job that carries it out, if it has begun and is still known."""
    attempt: int
    error: str | None
    started_at: int | None = None
    """When the run started it; null if it has not, or an older release did."""
    finished_at: int | None = None


class RunView(Struct, frozen=True, kw_only=True):
    """A run with its tasks."""

    id: int
    workflow: str
    status: StatusName
    paused: bool
    retries: int
    """How often it was retried by hand."""
    context: Any
    """What it was started with, or, once it is done, what it came to."""
    tasks: list[TaskView]
    tree: str
    started_at: int
    finished_at: int | None
    error: str | None


class RunAction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steer a run."""

    action: Literal["pause", "resume", "cancel", "retry"]
    """A retry is of a run that failed or was cancelled."""
    reason: Annotated[str, Meta(max_length=1000)] = "cancelled"
    """Of a cancel: the error of whatever it ends, told to what runs."""


class RunActionReply(Struct, frozen=True, kw_only=True):
    id: int
    action: str


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule, and what came of its latest times."""

    name: str
    spec: str
    paused: bool
    handled_at: int
    """All times up to here are dealt with."""
    firings: list[ScheduleFiringView]


class ScheduleFiringView(Struct, frozen=True, kw_only=True):
    at: int
    job: int | None
    tries: int


class ScheduleList(Struct, frozen=True, kw_only=True):
    schedules: list[ScheduleView]


class ScheduleSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paused: bool

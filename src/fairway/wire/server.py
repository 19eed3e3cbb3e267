"""The messages about the server itself."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Health(Struct, frozen=True, kw_only=True):
    status: str


class PartReadiness(Struct, frozen=True, kw_only=True):
    """How one part is."""

    state: Literal["ok", "degraded", "failed"]
    ready: bool
    """False if it keeps the server from being ready."""
    reason: str | None = None
    """Why it is not `ok`. Told to keys that may read everything; it names what is theirs."""


class Readiness(Struct, frozen=True, kw_only=True):
    """Whether requests are served, and writes taken. `reason` says why not."""

    ready: bool
    writable: bool
    reason: str | None = None
    topics: int = 0
    pressure: float = 0.0
    pressure_cause: str | None = None
    parts: dict[str, PartReadiness] = {}
    """How each part is, by its name; none while there is nothing to serve."""


class WorkerReadiness(Struct, frozen=True, kw_only=True):
    """Whether a worker takes work. `reason` says why not."""

    ready: bool
    reason: str | None = None
    worker: int | None = None
    """Its number in the job store, while it is registered."""
    queues: list[str] = []
    running: int = 0
    buffered: int = 0
    """Claimed and not started."""


class TicketRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str | None = None
    """The only path the ticket is good for; any if not given."""


class TicketReply(Struct, frozen=True, kw_only=True):
    ticket: str
    expires_in_ms: int

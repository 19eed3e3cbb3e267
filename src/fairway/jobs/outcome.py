"""What a step may say when it is over. A step makes them with its context: `ctx.next("pay")`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from fairway.jobs.kinds import Order


class Outcome(Struct, frozen=True):
    """How a step ended."""


class Next(Outcome, frozen=True):
    """Go on with another step, at once."""

    step: str
    children: tuple[Order, ...] = ()
    """Jobs to start with it that nobody waits for."""


class Retry(Outcome, frozen=True):
    """The same step again."""

    after_ns: int | None = None
    """How long to wait; None leaves it to the job's backoff."""
    reason: str | None = None
    counts: bool = True
    """Whether this uses up an attempt."""


class Wait(Outcome, frozen=True):
    """Until a signal of one of these names comes, or for so long; then go on with `then`."""

    names: tuple[str, ...]
    then: str
    timeout_ns: int = 0
    """0 waits for ever."""


class Spawn(Outcome, frozen=True):
    """Start children; go on with `then` when they all have ended, or one of the signals came."""

    children: tuple[Order, ...]
    then: str
    names: tuple[str, ...] = ()
    timeout_ns: int = 0


class Done(Outcome, frozen=True):
    """The job has ended well."""

    result: Any = None


class Stopped(Outcome, frozen=True):
    """The job has failed for good: no attempt is left to it."""

    reason: str

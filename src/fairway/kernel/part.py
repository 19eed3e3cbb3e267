"""The contract of a part: a feature that stands on the kernel, such as topics, jobs or graphs.

A part is made, inspected, opened, and in the end left, as a `Lifecycle` is: it stops admitting,
drains and closes. Parts are opened in the order in which they are listed and left in the reverse
order, each of them whole before the next one is touched. So what a part depends on is there until
the part has finished with it.

Metrics of a part are instruments of `kernel.telemetry`, its pressure signals are signals of
`kernel.governor`, and what other parts may ask of it is offered with `kernel.offer`.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, TypeAlias

from fairway.runtime.lifecycle import Lifecycle

State: TypeAlias = Literal["ok", "degraded", "failed"]


class PartHealth(NamedTuple):
    """How a part is, in a line of `/readyz`."""

    state: State = "ok"
    reason: str | None = None
    """Why it is not `ok`."""
    ready: bool = True
    """Whether requests are to be sent to this server all the same."""


OK = PartHealth()


class Part(Lifecycle):
    """A feature of a running app."""

    name: ClassVar[str]
    """Its noun, the same in every layer: `jobs` is in `jobs/`, `wire/jobs.py` and so on."""

    async def inspect(self) -> None:
        """Raise what `open` would raise over damaged files, and change none of them. All parts are
        inspected before the first is opened: a refused start leaves every file as it was."""

    def progress(self) -> dict[str, object]:
        """How far `open` has come, for whoever waits for it."""
        return {}

    def health(self) -> PartHealth:
        """How it is now. Cheap: it is asked by whoever balances load, again and again."""
        return OK

"""What a node sees of the firing it runs in, and what it asks of the rest of the app.

Effects are not done at once: they are kept with the firing and go out when it is over and, in a
graph that is checkpointed, recorded. A firing that fails has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairway.errors import InvalidRequest
from fairway.wire.records import check_tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.graphs.boundary import Schema
    from fairway.graphs.source import Source


class Effect(NamedTuple):
    """Something that a firing asks of another part."""

    kind: str
    """Which destination takes it: `topic`, `job`, or what another part has offered."""
    asked: tuple[Any, ...]
    """What it is asked for, as that destination understands it."""


TOPIC = "topic"
JOB = "job"

_NONE: Mapping[str, Schema] = {}


class FiringContext:
    """One firing: its number, why it fires, what is stale; and its effects.

    A node gets it by a parameter of this type, whatever its name.
    """

    __slots__ = (
        "cause",
        "degraded",
        "effects",
        "fresh",
        "graph",
        "number",
        "states",
        "tenant",
        "wall_ns",
        "writes",
    )

    def __init__(
        self,
        graph: str,
        tenant: str,
        number: int,
        cause: str,
        wall_ns: int,
        degraded: tuple[str, ...] = (),
        fresh: tuple[str, ...] = (),
        states: Mapping[str, Schema] = _NONE,
    ) -> None:
        self.graph = graph
        self.tenant = tenant
        self.number = number
        """Rises by one with each firing that is not tried again."""
        self.cause = cause
        """`news`, `forced`, `injected` or `call`."""
        self.wall_ns = wall_ns
        """When it fires. A replay gives the time that was recorded."""
        self.degraded = degraded
        """Sources that are disconnected or stale: their values are old, or absent."""
        self.fresh = fresh
        """The sources that brought news: what this firing is about."""
        self.states = states
        self.effects: list[Effect] = []
        self.writes: list[tuple[str, Any]] = []

    def append(self, topic: Any, value: Any, *, tag: str | None = None) -> None:
        """Append to a topic, once, however often this firing is replayed.

        Raises `InvalidRequest` for a tag that no record can have.
        """
        check_tag(tag)
        self.effects.append(Effect(TOPIC, (topic, value, tag)))

    def enqueue(self, order: Any) -> None:
        """Enqueue `job.order(...)`, or start a workflow with `flow.order({...})`, once."""
        self.effects.append(Effect(JOB, (order,)))

    def emit(self, kind: str, *asked: Any) -> None:
        """Ask the part that takes effects of this kind for something, once.

        What may be asked is for that part to say. `append` and `enqueue` are the two that every app
        has: `emit("topic", topic, value, tag)` and `emit("job", order)`.
        """
        self.effects.append(Effect(kind, asked))

    def put(self, state: Source[Any] | str, value: Any) -> None:
        """Write to a state of this graph; it is news when the firing is over.

        Raises `InvalidRequest` if the value is not of the type of the state.
        """
        name = state if isinstance(state, str) else state.name
        if name not in self.states:
            raise InvalidRequest(
                f"graph {self.graph!r} keeps no state {name!r}: declare it with keep=, and name it"
                " in when= or uses="
            )
        try:
            self.writes.append((name, self.states[name].fitting(value)))
        except InvalidRequest as error:
            raise InvalidRequest(f"state {name!r}: {error}") from None

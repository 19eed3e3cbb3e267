"""What is written down of a firing: from what it was given and did to a record. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from fairway.graphs.checkpoint import Consumed, DeadLettered, Fired, StateWrite
from fairway.graphs.firing import INJECTED, packed
from fairway.graphs.inputs import PASSED
from fairway.graphs.journal import RECORD_BYTES_MAX
from fairway.graphs.repeats import size_of
from fairway.runtime.words import described

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.graphs.boundary import Stored
    from fairway.graphs.checkpoint import EffectRecord
    from fairway.graphs.context import FiringContext
    from fairway.graphs.firing import Firing
    from fairway.graphs.graph import Graph
    from fairway.graphs.inputs import Taken


SLACK: Final = 1024 * 1024
"""What a record has besides values, at most."""


class Sender(Protocol):
    """Who sends the effects: under which epoch, and how far it is."""

    epoch: int
    sent: int


def fired_of(
    graph: Graph,
    taken: Taken,
    ctx: FiringContext,
    effects: tuple[EffectRecord, ...],
    outputs: Mapping[str, Any],
    sender: Sender,
) -> Fired:
    """The record of a firing that succeeded. Raises `TypeError` if a value has no stored form."""
    sources = graph.sources
    replaced = ctx.cause == INJECTED
    news = tuple(
        [
            Consumed(
                source,
                marks,
                None if value is PASSED else sources[source].recorded(value),
                keys,
            )
            for source, value, marks, keys, _ in taken.updates
        ]
    )
    if replaced:
        news += tuple(
            Consumed(source, {}, sources[source].schema.store(value))
            for source, value in taken.values.items()
        )
    return Fired(
        ctx.number,
        sender.epoch,
        ctx.wall_ns,
        ctx.cause,
        news,
        tuple([StateWrite(name, sources[name].item_schema.store(v)) for name, v in ctx.writes]),
        effects,
        packed(outputs) if graph.record else None,
        sender.sent,
        replaced,
        ctx.degraded,
    )


def dead_lettered_of(graph: Graph, taken: Taken, firing: Firing) -> DeadLettered:
    """The record of a firing that failed for good: its inputs, kept aside."""
    stored: dict[str, Stored] = {}
    for name, value in taken.values.items():
        with suppress(Exception):  # perhaps that is why it failed
            stored[name] = graph.sources[name].schema.store(value)
    data = {
        name: stored[name].data if name in stored else described(value)
        for name, value in taken.values.items()
    }
    size = sum(
        len(stored[update.source].data) for update in taken.updates if update.source in stored
    )
    left = RECORD_BYTES_MAX - SLACK - sum(size_of(update.keys) for update in taken.updates)
    if size + sum(map(len, data.values())) > left:
        # A letter about something too large to be kept: its beginning must do.
        data = {name: each[: SLACK // (4 * len(data))] for name, each in data.items()}
        if size > left:
            stored = {}
    return DeadLettered(
        firing.wall_ns,
        "",
        firing.error or "",
        data,
        tuple(
            Consumed(source, marks, None if value is PASSED else stored.get(source), keys)
            for source, value, marks, keys, _ in taken.updates
        ),
        firing.number,
    )

"""The numbers of graphs, read when a scrape asks: they are counted where they happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.graphs.health import HEALTHY
from fairway.runtime.telemetry import Series

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairway.graphs.engine import Managed
    from fairway.graphs.running import RunningGraph
    from fairway.runtime.telemetry import Kind

STATES = ("starting", "warming", "live", "degraded", "stopped", "failed")

HELP: dict[str, tuple[Kind, str]] = {
    "fairway_graph_state": ("gauge", "1 for the state that the graph is in"),
    "fairway_graph_fired": ("counter", "Firings that succeeded"),
    "fairway_graph_failed": ("counter", "Tries of firings that failed"),
    "fairway_graph_filtered": ("counter", "Boundaries that `where` passed over (`sequential`)"),
    "fairway_graph_dead_letters": ("counter", "Boundaries and firings that were kept aside"),
    "fairway_graph_journal_pending": ("gauge", "Records that are not durable yet"),
    "fairway_graph_outbox": ("gauge", "Effects that have not gone out yet"),
    "fairway_graph_outbox_bytes": ("gauge", "Bytes of effects that have not gone out yet"),
    "fairway_graph_effects_dropped": ("counter", "Effects that their destination never takes"),
    "fairway_graph_source_healthy": ("gauge", "1 if the source is healthy"),
    "fairway_graph_source_events": ("counter", "Events that came, pushes included"),
    "fairway_graph_source_waiting": ("gauge", "Boundaries that wait for a firing"),
    "fairway_graph_source_waiting_bytes": (
        "gauge",
        "Bytes collected, and of boundaries behind the next one",
    ),
    "fairway_graph_source_age_seconds": ("gauge", "Time since the last event"),
    "fairway_graph_source_lost": ("counter", "Events that came to nothing, by reason"),
    "fairway_graph_node_runs": ("counter", "Runs of a node"),
    "fairway_graph_node_failed": ("counter", "Runs of a node that raised"),
    "fairway_graph_node_busy_seconds": ("counter", "Time spent in a node"),
    "fairway_graph_edge_passed": ("counter", "Values that went from a source or node to a node"),
}


def series_of(graphs: Iterable[Managed], now_ns: int) -> Iterator[Series]:
    """Every series of every graph."""
    for managed in graphs:
        labels = {"graph": managed.graph.name}
        if managed.graph.tenant:
            labels["tenant"] = managed.graph.tenant
        for state in STATES:
            yield _series("fairway_graph_state", int(managed.state == state), labels, state=state)
        if managed.instance is not None:
            yield from _of_instance(managed.instance, labels, now_ns)


def _of_instance(instance: RunningGraph, labels: dict[str, str], now_ns: int) -> Iterator[Series]:
    reactor = instance.reactor
    yield _series("fairway_graph_fired", reactor.fired, labels)
    yield _series("fairway_graph_failed", reactor.failed, labels)
    yield _series("fairway_graph_filtered", reactor.inputs.filtered, labels)
    yield _series("fairway_graph_dead_letters", instance.checkpoint.dead_ids, labels)
    yield _series("fairway_graph_outbox", instance.outbox.depth, labels)
    yield _series("fairway_graph_outbox_bytes", instance.outbox.bytes, labels)
    yield _series("fairway_graph_effects_dropped", instance.outbox.dropped, labels)
    if instance.journal is not None:
        yield _series("fairway_graph_journal_pending", instance.journal.pending, labels)
    for name, found in instance.accumulators.items():
        health = found.health
        yield _series(
            "fairway_graph_source_healthy",
            int(health.state in HEALTHY and not health.stale(now_ns)),
            labels,
            source=name,
        )
        yield _series("fairway_graph_source_events", found.events, labels, source=name)
        waiting = reactor.inputs.depth(name) + found.collected
        yield _series("fairway_graph_source_waiting", waiting, labels, source=name)
        size = reactor.inputs.size(name) + found.collected_bytes
        yield _series("fairway_graph_source_waiting_bytes", size, labels, source=name)
        if health.event_ns is not None:
            age_s = (now_ns - health.event_ns) / 1e9
            yield _series("fairway_graph_source_age_seconds", age_s, labels, source=name)
        for reason, count in (
            ("dropped", found.dropped),
            ("refused", found.refused),
            ("repeated", found.repeated),
            ("suppressed", found.suppressed),
            ("undecodable", found.undecodable),
            ("late", found.late),
        ):
            yield _series("fairway_graph_source_lost", count, labels, source=name, reason=reason)
    counts = instance.graph.build().counts
    for at, name in enumerate(counts.names):
        yield _series("fairway_graph_node_runs", counts.runs[at], labels, node=name)
        yield _series("fairway_graph_node_failed", counts.failed[at], labels, node=name)
        busy_s = counts.busy_ns[at] / 1e9
        yield _series("fairway_graph_node_busy_seconds", busy_s, labels, node=name)
    for edge, passed in counts.passed():
        yield _series("fairway_graph_edge_passed", passed, labels, edge=edge)


def _series(name: str, value: float, labels: dict[str, str], **more: str) -> Series:
    kind, help = HELP[name]
    return Series(name, kind, help, tuple(sorted({**labels, **more}.items())), value)

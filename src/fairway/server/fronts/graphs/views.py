"""A graph as clients see it: from what runs to messages. Nothing here changes anything."""

from __future__ import annotations

from base64 import b64encode
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.graphs.drawing import to_mermaid, to_svg
from fairway.graphs.node import named
from fairway.runtime.words import kind_of
from fairway.wire.encoding import encode_shown
from fairway.wire.graphs import (
    CheckpointView,
    DeadData,
    DeadLetterView,
    EdgeView,
    FiringSummary,
    FiringView,
    GraphStateView,
    GraphSummary,
    GraphView,
    NodeView,
    RecoveryView,
    SourceView,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fairway.graphs.checkpoint import Recovered
    from fairway.graphs.engine import Managed
    from fairway.graphs.firing import DeadLetter, Firing
    from fairway.graphs.graph import Graph
    from fairway.graphs.running import RunningGraph
    from fairway.graphs.source import Source

MS_NS: Final = 1_000_000
COUNTS: Final = (
    *("collected", "events", "dropped", "refused", "repeated"),
    *("suppressed", "late"),
)
_any_json = msgspec.json.Decoder().decode
_any_pack = msgspec.msgpack.Decoder().decode


def full_name(tenant: str, name: str) -> str:
    """What a graph is called where tenants must not be mixed up: in the prefixes of a key."""
    return f"{tenant}/{name}" if tenant else name


def shown(value: Any) -> msgspec.Raw:
    """Any value as JSON; one that has none, such as `nan`, as the text that Python shows of it."""
    try:
        return msgspec.Raw(encode_shown(value))
    except Exception:  # whatever its own code raises
        return msgspec.Raw(encode_shown(f"<{kind_of(value)}>"))


def shown_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: shown(value) for name, value in values.items()}


def summary_of(managed: Managed) -> GraphSummary:
    graph, instance = managed.graph, managed.instance
    reactor = instance.reactor if instance is not None else None
    return GraphSummary(
        graph=graph.name,
        tenant=graph.tenant,
        state=managed.state,  # type: ignore[arg-type]
        paused=reactor is not None and reactor.paused,
        halted=reactor.halted if reactor is not None else None,
        failed=managed.failed,
        checkpoint=graph.checkpoint,
        sources=len(graph.sources),
        nodes=len(graph.nodes),
        firing=reactor.number if reactor is not None else 0,
        fired=reactor.fired if reactor is not None else 0,
        failures=reactor.failed if reactor is not None else 0,
    )


def state_of(managed: Managed, now_ns: int, *, cache: bool = True) -> GraphStateView:
    instance = managed.instance
    summary = summary_of(managed)
    health = instance.health if instance is not None else None
    inputs = instance.reactor.inputs if instance is not None else None
    return GraphStateView(
        graph=summary.graph,
        tenant=summary.tenant,
        state=summary.state,
        paused=summary.paused,
        halted=summary.halted,
        failed=summary.failed,
        waiting=list(health.waiting(now_ns).waiting) if health is not None else [],
        degraded=list(health.degraded(now_ns)) if health is not None else [],
        firing=summary.firing,
        fired=summary.fired,
        failures=summary.failures,
        cache=shown_all(inputs.cache) if inputs is not None and cache else {},
        dirty=inputs.dirty if inputs is not None else {},
        sources=sources_of(managed.graph, instance, now_ns),
        nodes=nodes_of(managed.graph),
        checkpoint=_checkpoint_of(instance) if instance is not None else None,
        outbox=instance.outbox.depth if instance is not None else 0,
    )


def view_of(managed: Managed, now_ns: int) -> GraphView:
    graph = managed.graph
    summary = summary_of(managed)
    return GraphView(
        graph=graph.name,
        tenant=graph.tenant,
        state=summary.state,
        paused=summary.paused,
        inputs=graph.inputs,
        when=criterion_of(graph),
        checkpoint=graph.checkpoint,
        record=graph.record,
        firing=summary.firing,
        fired=summary.fired,
        failures=summary.failures,
        sources=sources_of(graph, managed.instance, now_ns),
        nodes=nodes_of(graph),
        mermaid=mermaid_of(graph),
    )


def criterion_of(graph: Graph) -> str:
    """When it fires, in words."""
    criterion = graph.criterion
    sources = [name for name in graph.sources if name in graph.firing_sources]
    listed = ", ".join(sources)
    if len(sources) == 1:
        words = listed
    elif criterion.need in (1, len(sources)):
        words = f"{'any' if criterion.need == 1 else 'all'} of {listed}"
    else:
        words = f"{criterion.need} of {listed}"
    if criterion.quiet_ns:
        words += f", quiet for {criterion.quiet_ns / 1e9:g} s"
    if criterion.most_ns:
        words += f" or waiting for {criterion.most_ns / 1e9:g} s"
    if criterion.period_ns:
        words += f", every {criterion.period_ns / 1e9:g} s" + (
            " in any case" if criterion.always else ""
        )
    return words + (", where a predicate holds" if criterion.predicates else "")


# Sources and nodes


def sources_of(graph: Graph, instance: RunningGraph | None, now_ns: int) -> list[SourceView]:
    return [
        _source(source, name in graph.firing_sources, instance, now_ns)
        for name, source in graph.sources.items()
    ]


def _source(
    source: Source[Any], fires: bool, instance: RunningGraph | None, now_ns: int
) -> SourceView:
    name = source.name
    accumulator = instance.accumulators[name] if instance is not None else None
    health = instance.healths[name] if instance is not None else None
    event_ns = health.event_ns if health is not None else None
    return SourceView(
        name=name,
        kind=source.kind,
        fires=fires,
        required=source.required,
        on_full=source.on_full,
        capacity=source.capacity,
        state=health.state.value if health is not None else "stopped",
        why=health.why if health is not None else "",
        stale=health is not None and health.stale(now_ns),
        last_event_ms=None if event_ns is None else max(0, now_ns - event_ns) // MS_NS,
        queue=instance.reactor.inputs.depth(name) if instance is not None else 0,
        buried=accumulator.undecodable if accumulator is not None else 0,
        **{each: getattr(accumulator, each, 0) for each in COUNTS},
    )


def nodes_of(graph: Graph) -> list[NodeView]:
    traversal = graph.build()
    wiring, counts = traversal.wiring, traversal.counts
    return [
        NodeView(
            name=node.name,
            takes=[
                EdgeView(
                    source=edge.source,
                    types=[named(each) for each in edge.accepts] if edge.routed else [],
                    optional=edge.optional,
                )
                for edge in wiring.into(node.name)
            ],
            result=node.name in wiring.terminal,
            runs_in="process"
            if node.isolation == "process"
            else "thread"
            if node.blocking
            else "loop",
            timeout_ms=None if node.timeout_s is None else round(node.timeout_s * 1000),
            runs=counts.runs[at],
            failed=counts.failed[at],
            busy_us=counts.busy_ns[at] // 1000,
        )
        for at, node in enumerate(wiring.nodes)
    ]


def _checkpoint_of(instance: RunningGraph) -> CheckpointView | None:
    journal, kept = instance.journal, instance.checkpoint
    if journal is None:
        return None
    return CheckpointView(
        epoch=kept.epoch,
        holder=kept.holder,
        records=kept.records,
        pending=journal.pending,
        failing=journal.failing,
        dead=len(kept.dead),
    )


# What happened


def summarised(firing: Firing) -> FiringSummary:
    return FiringSummary(**_facts(firing))


def firing_view(firing: Firing) -> FiringView:
    return FiringView(
        inputs=shown_all(firing.inputs), outputs=shown_all(firing.outputs), **_facts(firing)
    )


def _facts(firing: Firing) -> dict[str, Any]:
    return {
        "firing": firing.number,
        "cause": firing.cause,
        "at": firing.wall_ns // MS_NS,
        "duration_us": firing.duration_ns // 1000,
        "fresh": list(firing.fresh),
        "error": firing.error,
        "degraded": list(firing.degraded),
        "attempt": firing.attempt,
    }


def last_firings(instance: RunningGraph, count: int) -> list[Firing]:
    """The last firings, oldest first."""
    log = instance.reactor.log
    return list(islice(log, max(0, len(log) - count), None))


def dead_view(letter: DeadLetter) -> DeadLetterView:
    return DeadLetterView(
        id=letter.id,
        at=letter.wall_ns // MS_NS,
        source=letter.source,
        reason=letter.reason,
        data={
            name: DeadData(base64=b64encode(data).decode(), json=_read(data, letter.source))
            for name, data in letter.data.items()
        },
    )


def _read(data: bytes, source: str) -> Any:
    """What bytes say: JSON as it came from a feed, else what a journal keeps of a value."""
    for decode in (_any_json, _any_pack) if source else (_any_pack,):
        try:
            return shown(decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def recovery_view(record: Recovered) -> RecoveryView:
    return RecoveryView(
        at=record.wall_ns // MS_NS,
        what=record.what,
        happening=record.happening,
        failures=record.failures,
        error=record.error,
    )


# Pictures


def mermaid_of(graph: Graph) -> str:
    return to_mermaid(graph.build().wiring, _kinds(graph))


def svg_of(managed: Managed, now_ns: int) -> str:
    """The picture of a graph with its numbers in it."""
    graph = managed.graph
    numbers = {
        source.name: f"{source.events:,} events, {source.state}"
        for source in sources_of(graph, managed.instance, now_ns)
    }
    for node in nodes_of(graph):
        mean = f", {node.busy_us // node.runs:,} µs" if node.runs else ""
        failed = f", {node.failed:,} failed" if node.failed else ""
        numbers[node.name] = f"{node.runs:,} runs{mean}{failed}"
    return to_svg(graph.build().wiring, _kinds(graph), numbers)


def _kinds(graph: Graph) -> dict[str, str]:
    return {name: source.kind for name, source in graph.sources.items()}

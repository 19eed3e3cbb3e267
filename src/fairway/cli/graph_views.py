"""How graphs are shown in a terminal: from what the server says to lines, rows and facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fairway.cli.output import moment, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.wire.graphs import (
        DeadLetterView,
        FiringSummary,
        FiringView,
        GraphStateView,
        GraphSummary,
        GraphView,
        NodeView,
        RecoveryView,
        SourceView,
    )

GRAPHS = ("GRAPH", "TENANT", "STATE", "FIRING", "FAILURES", "SOURCES", "NODES", "WHY")
FIRINGS = ("FIRING", "CAUSE", "AT", "TOOK", "NEWS", "OUTPUTS")
RECOVERIES = ("AT", "WHAT", "HAPPENING", "FAILURES", "ERROR")
DEAD = ("ID", "AT", "SOURCE", "REASON", "DATA")
LINE_MAX = 100


# Rows of tables


def summary_row(one: GraphSummary) -> tuple[object, ...]:
    why = one.failed or one.halted or ""
    how = state(one.state, paused=one.paused, halted=one.halted)
    counts = (one.firing, one.failures, one.sources, one.nodes)
    return (one.graph, one.tenant, how, *counts, line(why))


def firing_row(one: FiringView) -> tuple[object, ...]:
    return (
        one.firing,
        one.cause if one.attempt == 1 else f"{one.cause}, try {one.attempt}",
        moment(one.at),
        f"{one.duration_us:,} µs",
        ", ".join(one.fresh),
        line(one.error or msgspec.json.encode(one.outputs).decode()),
    )


def dead_row(one: DeadLetterView) -> tuple[object, ...]:
    data = {
        source: data.json if data.json is not None else data.base64
        for source, data in one.data.items()
    }
    shown = line(msgspec.json.encode(data).decode())
    return (one.id, moment(one.at), one.source or "(firing)", line(one.reason), shown)


def recovery_row(one: RecoveryView) -> tuple[object, ...]:
    return (moment(one.at), one.what, one.happening, one.failures, line(one.error))


# One graph


def shown(found: GraphView) -> Iterator[str]:
    """A picture of a graph in lines, with numbers."""
    kept = ", checkpointed" if found.checkpoint else ""
    whose = f" of {found.tenant}" if found.tenant else ""
    how = state(found.state, paused=found.paused, halted=None)
    failures = count(found.failures, "failure")
    yield f"{found.graph}{whose}: {how}, firing {found.firing}, {failures}"
    yield f"fires on {found.when}, with {found.inputs} inputs{kept}"
    yield "\nsources"
    yield from aligned([source_line(source) for source in found.sources])
    yield "\nnodes"
    yield from aligned([node_line(node) for node in found.nodes])


def source_line(source: SourceView) -> tuple[str, ...]:
    counts = [] if source.kind == "state" else [count(source.events, "event")]
    if source.queue and source.fires:  # an input only is never waited for
        counts.append(f"{source.queue:,} waiting")
    for name in ("collected", "dropped", "refused", "repeated", "suppressed", "late"):
        if value := getattr(source, name):
            counts.append(f"{value:,} {name}")
    if source.buried:
        counts.append(f"{source.buried:,} undecodable")
    how = f"{source.state} ({source.why})" if source.why else source.state
    kind = f"{source.kind}{'' if source.fires else ', input only'}"
    return (f"  ({source.name})", kind, how, ", ".join(counts))


def node_line(node: NodeView) -> tuple[str, ...]:
    taken = []
    for edge in node.takes:
        types = f":{'|'.join(edge.types)}" if edge.types else ""
        taken.append(f"{edge.source}{types}{'?' if edge.optional else ''}")
    mark = f"[[{node.name}]]" if node.result else f"[{node.name}]"
    numbers = count(node.runs, "run")
    if node.runs:
        numbers += f", {node.busy_us // node.runs:,} µs each"
    if node.failed:
        numbers += f", {node.failed:,} failed"
    where = "" if node.runs_in == "loop" else f"in a {node.runs_in}"
    return (f"  {mark}", f"<- {', '.join(taken)}", numbers, where)


def facts(found: GraphStateView) -> Iterator[tuple[str, object]]:
    yield "graph", found.graph
    if found.tenant:
        yield "tenant", found.tenant
    yield "state", state(found.state, paused=found.paused, halted=found.halted)
    if found.failed:
        yield "failed", found.failed
    if found.halted is not None:
        yield "halted", f"{found.halted}; fairway graph resume {found.graph} tries again"
    if found.waiting:
        yield "waits for", ", ".join(found.waiting)
    if found.degraded:
        yield "old or missing", ", ".join(found.degraded)
    yield "firing", found.firing
    yield "fired", found.fired
    yield "failures", found.failures
    news = [name for name, dirty in found.dirty.items() if dirty]
    yield "news of", ", ".join(news) or "nothing"
    for name, value in found.cache.items():
        yield f"cache.{name}", line(msgspec.json.encode(value).decode())
    for source in found.sources:
        yield f"source.{source.name}", ", ".join(filter(None, source_line(source)[2:]))
    for node in found.nodes:
        yield f"node.{node.name}", node_line(node)[2]
    if (kept := found.checkpoint) is not None:
        failing = ", failing" if kept.failing else ""
        yield (
            "checkpoint",
            f"epoch {kept.epoch} held by {kept.holder}, {count(kept.records, 'record')},"
            f" {kept.pending:,} on their way{failing}",
        )
    yield "effects waiting", found.outbox


# Firings


def firing_line(firing: FiringSummary) -> str:
    error = f": {printable(line(firing.error))}" if firing.error else ""
    fresh = ", ".join(firing.fresh) or "no news"
    return f"firing {firing.firing} ({firing.cause}; {fresh}) {firing.duration_us:,} µs{error}"


def fired(firing: FiringView) -> str:
    lines = [f"firing {firing.firing} ({firing.cause}) took {firing.duration_us:,} µs"]
    for node, value in firing.outputs.items():
        lines.append(f"{node}: {printable(msgspec.json.encode(value).decode())}")
    if not firing.outputs:
        lines.append("no node had all that it takes: nothing was computed")
    return "\n".join(lines)


# Small things


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def state(name: str, *, paused: bool, halted: str | None) -> str:
    more = [word for word, so in (("paused", paused), ("halted", halted is not None)) if so]
    return f"{name} ({', '.join(more)})" if more else name


def line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LINE_MAX else f"{text[: LINE_MAX - 1]}…"


def aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = [printable(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()

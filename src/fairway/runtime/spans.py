"""What took how long, one by one: spans, handed as plain data to a listener.

Nobody listens by default, and then nothing is made. `opentelemetry_spans` is a listener that hands
them to OpenTelemetry, if that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from fairway.errors import InvalidConfig


class Span(NamedTuple):
    """Something that began, ended, and has a name."""

    name: str
    start_wall_ns: int
    end_wall_ns: int
    attributes: Mapping[str, str | int | float | bool]
    traceparent: str | None = None
    """The trace it belongs to, as W3C writes it."""
    error: str | None = None


SpanSink: TypeAlias = Callable[[Span], None]


def opentelemetry_spans(tracer: Any = None) -> SpanSink:
    """A listener that makes OpenTelemetry spans, with `tracer` or with the global one.

    app.telemetry.spans = opentelemetry_spans()
    """
    try:
        from opentelemetry import trace
        from opentelemetry.trace import Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError as error:
        raise InvalidConfig(
            f"spans need opentelemetry-api ({error}): pip install 'fairway[otel]'"
        ) from None
    tracer = tracer or trace.get_tracer("fairway")
    propagator = TraceContextTextMapPropagator()

    def export(span: Span) -> None:
        context = None
        if span.traceparent is not None:
            context = propagator.extract({"traceparent": span.traceparent})
        made = tracer.start_span(
            span.name,
            context=context,
            start_time=span.start_wall_ns,
            attributes=dict(span.attributes),
        )
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(end_time=span.end_wall_ns)

    return export

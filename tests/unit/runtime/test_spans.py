"""Spans of jobs: told to who listens, in the trace of who enqueued, and never in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairway import Fairway
from fairway.runtime.spans import Span, opentelemetry_spans
from fairway.testing import run_jobs

if TYPE_CHECKING:
    import pytest

    from fairway.testing import JobsUnderTest

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def shop() -> tuple[Fairway, object]:
    app = Fairway(jobs="memory:")

    @app.job(max_attempts=1)
    async def charge(cents: int) -> None:
        if cents < 0:
            raise ValueError("no such sum")

    return app, charge


def test_a_step_is_a_span_in_the_trace_of_who_enqueued_it() -> None:
    app, charge = shop()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app.telemetry.spans = opentelemetry_spans(provider.get_tracer("test"))

    async def play(jobs: JobsUnderTest) -> None:
        await charge.using(traceparent=TRACE).enqueue(cents=1)  # type: ignore[attr-defined]
        await charge.enqueue(cents=-1)  # type: ignore[attr-defined]
        await jobs.drain()

    run_jobs(app, play)
    spans = exporter.get_finished_spans()
    good, bad = (span for span in spans if span.name == "job charge")
    assert f"{good.context.trace_id:032x}" == TRACE.split("-")[1]
    assert good.attributes is not None
    assert good.attributes["job.fate"] == "done"
    assert good.status.is_ok or good.status.status_code.name == "UNSET"
    assert "no such sum" in (bad.status.description or "")
    assert any(span.name == "jobs.exchange" for span in spans)


def test_a_listener_that_fails_is_left_out_and_the_work_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, charge = shop()
    told: list[Span] = []

    def listen(span: Span) -> None:
        told.append(span)
        raise RuntimeError("no more")

    app.telemetry.spans = listen

    async def play(jobs: JobsUnderTest) -> None:
        await charge.enqueue(cents=1)  # type: ignore[attr-defined]
        assert await jobs.drain() == {"done": 1}

    run_jobs(app, play)
    assert len(told) == 1
    assert "a span could not be reported" in caplog.text

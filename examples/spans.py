"""Spans of jobs for OpenTelemetry, in the traces of whoever enqueued them."""

from __future__ import annotations

# --8<-- [start:spans]
from fairway import Fairway
from fairway.runtime.spans import opentelemetry_spans

app = Fairway()
app.telemetry.spans = opentelemetry_spans()  # or with a tracer of yours
# --8<-- [end:spans]

if __name__ == "__main__":
    print("spans are on")

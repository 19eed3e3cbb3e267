"""What Prometheus is shown: numbers as they are."""

from __future__ import annotations

import pytest

from fairway.runtime.telemetry import Telemetry
from fairway.server.http.metrics import render


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1_028_690_123, "1028690123"),
        (2**63 + 1, "9223372036854775809"),
        (1_028_690.25, "1028690.25"),
        (0.1, "0.1"),
        (0.0, "0"),
        (True, "1"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_shown_in_full(value: float, shown: str) -> None:
    telemetry = Telemetry()
    telemetry.gauge("shown", "A gauge").set(value)
    telemetry.histogram("spread", "A histogram", (1,)).record(value)
    lines = render(telemetry.snapshot()).decode().splitlines()
    assert f"shown {shown}" in lines
    assert f"spread_sum {shown}" in lines

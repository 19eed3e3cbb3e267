"""The telemetry snapshot in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairway.runtime.telemetry import Distribution
from fairway.server.http.exchange import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fairway.runtime.telemetry import Labels, Series, Telemetry

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def render(snapshot: Iterable[Series]) -> bytes:
    """Every series, each family with its help and type once."""
    return "".join(_lines(snapshot)).encode()


def reply(telemetry: Telemetry) -> Reply:
    return Reply(200, render(telemetry.snapshot()), ((b"content-type", CONTENT_TYPE),))


def _lines(snapshot: Iterable[Series]) -> Iterator[str]:
    family = ""
    for series in snapshot:
        name = series.name + "_total" if series.kind == "counter" else series.name
        if series.name != family:
            family = series.name
            yield f"# HELP {name} {_escaped(series.help)}\n# TYPE {name} {series.kind}\n"
        value = series.value
        if isinstance(value, Distribution):
            yield from _histogram(name, series.labels, value)
        else:
            yield f"{name}{_labels(series.labels)} {_number(value)}\n"


def _histogram(name: str, labels: Labels, value: Distribution) -> Iterator[str]:
    total = 0
    for bound, count in zip((*value.bounds, "+Inf"), value.counts, strict=True):
        total += count
        yield f"{name}_bucket{_labels((*labels, ('le', str(bound))))} {total}\n"
    yield f"{name}_sum{_labels(labels)} {_number(value.sum)}\n"
    yield f"{name}_count{_labels(labels)} {total}\n"


def _number(value: float) -> str:
    """In full: a counter that is rounded stands still, and then jumps."""
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')

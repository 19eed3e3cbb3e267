"""Instruments are cheap, and a snapshot is frozen data."""

from __future__ import annotations

import dataclasses
import math
import timeit

import pytest

from fairway.errors import InvalidConfig
from fairway.runtime.telemetry import LATENCY_NS, SIZES, Distribution, Series, Telemetry


def test_counters_gauges_and_histograms_are_read_in_one_snapshot() -> None:
    telemetry = Telemetry()
    syncs = telemetry.counter("log_syncs", "syncs made", shard="1")
    telemetry.counter("log_syncs", shard="0").add(4)
    syncs.add()
    syncs.add(2)
    telemetry.gauge("depth", "waiting").set(7)
    sizes = telemetry.histogram("batch", "operations in a group", bounds=(1, 2, 4))
    for size in (1, 2, 2, 3, 100):
        sizes.record(size)
    assert telemetry.snapshot() == (
        Series(
            "batch",
            "histogram",
            "operations in a group",
            (),
            Distribution(bounds=(1, 2, 4), counts=(1, 2, 1, 1), sum=108),
        ),
        Series("depth", "gauge", "waiting", (), 7),
        Series("log_syncs", "counter", "syncs made", (("shard", "0"),), 4),
        Series("log_syncs", "counter", "syncs made", (("shard", "1"),), 3),
    )


def test_a_snapshot_does_not_change_afterwards() -> None:
    telemetry = Telemetry()
    sizes = telemetry.histogram("batch", bounds=SIZES)
    taken = telemetry.snapshot()
    sizes.record(1)
    assert isinstance(taken[0].value, Distribution)
    assert taken[0].value.count == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        taken[0].name = "other"  # type: ignore[misc]


def test_the_same_name_and_labels_are_the_same_instrument() -> None:
    telemetry = Telemetry()
    assert telemetry.counter("a", x="1", y="2") is telemetry.counter("a", y="2", x="1")
    assert telemetry.counter("a", x="1") is not telemetry.counter("a", x="2")


def test_gauges_may_be_asked_at_the_snapshot_and_a_broken_one_is_not_a_number() -> None:
    telemetry = Telemetry()
    waiting = [1, 2, 3]
    telemetry.gauge("depth", source=lambda: len(waiting))
    telemetry.gauge("broken", source=lambda: 1 / 0)
    broken, depth = telemetry.snapshot()
    assert depth.value == 3
    assert isinstance(broken.value, float)
    assert math.isnan(broken.value)
    waiting.clear()
    assert telemetry.gauge("depth").read() == 0  # asking again without a source keeps the first


def test_a_name_has_one_kind_and_one_set_of_bounds() -> None:
    telemetry = Telemetry()
    telemetry.counter("a")
    with pytest.raises(InvalidConfig):
        telemetry.gauge("a", x="1")
    telemetry.histogram("h", bounds=(1, 2))
    with pytest.raises(InvalidConfig):
        telemetry.histogram("h", bounds=(1, 3), x="1")
    for bounds in ((), (2, 1), (1, 1)):
        with pytest.raises(InvalidConfig):
            telemetry.histogram("g", bounds=bounds)


def test_default_bounds_rise() -> None:
    assert list(LATENCY_NS) == sorted(set(LATENCY_NS))
    assert LATENCY_NS[0] == 10_000
    assert LATENCY_NS[-1] == 10_000_000_000


def test_an_increment_is_cheap() -> None:
    add = Telemetry().counter("a").add
    # About 60 ns where this was written; the bound only catches a change of kind, not of machine.
    assert min(timeit.repeat(add, number=10_000, repeat=20)) / 10_000 < 2e-6

"""Graphs: events through three nodes, against other libraries and a bare pipeline in the same run.

One graph throughout: three small functions after another and one source. Every event fires, and an
event counts when its firing is over. Each sample is a process of its own, ours as the peers'; ours
runs on uvloop, as `fairway serve` does. What is checkpointed is synced to the disk of temporary
files. Kafka is librdkafka's mock broker in a process of its own, filled beforehand.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT
from benchmarks.load.peers import graphs as peers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Report

EVENTS = {
    "inline": 200_000,
    "ask": 50_000,
    "sequential": 200_000,
    "checkpointed": 100_000,
    "pipeline": 400_000,
    "kafka": 100_000,
}
"""In a sample: one to three seconds on two cores."""
IDLE_GRAPHS = 1_000
TIMEOUT_S = 120
KAFKA_TOPIC = "ticks"
KAFKA_PARTITIONS = 4
KAFKA_EVENT = b'{"symbol":"ACME","bid":99.5,"ask":100.5}'


def run(report: Report, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as directory:
        _three_nodes(report, directory)
        _latency(report, directory)
        _sequential(report, directory)
        _kafka(report, directory)
        _idle(report, directory)


def ours(directory: str, measure: str, number: int, *more: str) -> dict[str, float]:
    """What `graphs_run` found in one measure."""
    return _measured("benchmarks.load.graphs_run", directory, measure, str(number), *more)


def _measured(module: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {arguments[1:]} failed: {done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def _rate(directory: str, measure: str) -> Callable[[], float]:
    return lambda: ours(directory, measure, EVENTS[measure])["events_per_s"]


# Three nodes


class Peers:
    """Samples of peers, and why there are none of one that cannot run."""

    def __init__(self) -> None:
        self.flows: dict[str, list[peers.Flow]] = {name: [] for name in peers.EVENTS}
        self.reasons: dict[str, str] = {}

    def sample(self, name: str) -> Callable[[], float]:
        def measure() -> float:
            if name in self.reasons:
                return math.nan
            flow, reason = peers.flow(name, peers.EVENTS[name])
            if flow is None:
                self.reasons[name] = reason
                return math.nan
            self.flows[name].append(flow)
            return flow.events_per_s

        return measure

    def figure(self, report: Report, name: str) -> None:
        flows = self.flows[name]
        if name in self.reasons:
            report.figure(f"{name}_events_s", None, "events/s", self.reasons[name])
            return
        rates = [flow.events_per_s for flow in flows]
        p50, p99 = (sorted(times)[len(times) // 2] for times in _times(flows))
        note = f"{name} {flows[0].version}; a call takes {p50:.3g} us, p99 {p99:.3g}"
        report.figure(f"{name}_events_s", rates, "events/s", note)

    def ratio(self, report: Report, name: str, mine: list[float], target: str | None) -> None:
        if name in self.reasons:
            report.ratio(f"vs_{name}", None, None, note=self.reasons[name])
            return
        theirs = [flow.events_per_s for flow in self.flows[name]]
        report.ratio(f"vs_{name}", mine, theirs, target)


def _times(flows: list[peers.Flow]) -> tuple[list[float], list[float]]:
    return [flow.p50_us for flow in flows], [flow.p99_us for flow in flows]


def _three_nodes(report: Report, directory: str) -> None:
    others = Peers()
    samples = report.alternate(
        report.rounds(full=7),
        ours=_rate(directory, "inline"),
        streamz=others.sample("streamz"),
        reactivex=others.sample("reactivex"),
    )
    report.figure(
        "events_s",
        samples["ours"],
        "events/s",
        "push_nowait, which has fired on return; no checkpoint",
    )
    for name in peers.EVENTS:
        others.figure(report, name)
    others.ratio(report, "streamz", samples["ours"], ">= 1.2")
    others.ratio(report, "reactivex", samples["ours"], None)


# Event to result


def _latency(report: Report, directory: str) -> None:
    measured = []
    rounds = report.rounds(full=5)
    for number in range(rounds):
        report.progress(f"round {number + 1}/{rounds}: event to result")
        measured.append(ours(directory, "ask", EVENTS["ask"]))
    note = "ask, from the call to the firing in hand; one after another"
    report.figure("event_p50_us", [one["p50_us"] for one in measured], "us", note, target="<= 50")
    report.figure(
        "event_p99_us", [one["p99_us"] for one in measured], "us", "the same", target="<= 500"
    )


# In order


def _sequential(report: Report, directory: str) -> None:
    samples = report.alternate(
        report.rounds(full=7),
        sequential=_rate(directory, "sequential"),
        checkpointed=_rate(directory, "checkpointed"),
        pipeline=lambda: _measured("benchmarks.load.graphs_floor", str(EVENTS["pipeline"]))[
            "events_per_s"
        ],
    )
    report.figure(
        "sequential_events_s",
        samples["sequential"],
        "firings/s",
        "every event fires, in order",
        target=">= 50000",
    )
    report.figure(
        "checkpointed_events_s",
        samples["checkpointed"],
        "firings/s",
        "the same, until the last record is synced",
    )
    report.figure(
        "pipeline_events_s",
        samples["pipeline"],
        "events/s",
        "three asyncio queues without bounds, a task behind each",
    )
    report.ratio("sequential_vs_pipeline", samples["sequential"], samples["pipeline"], ">= 0.12")
    report.ratio("checkpointed_vs_plain", samples["checkpointed"], samples["sequential"], ">= 0.3")


# Kafka


def _kafka(report: Report, directory: str) -> None:
    try:
        import confluent_kafka as client
    except ImportError as error:
        report.figure("kafka_events_s", None, "events/s", f"no client: {error}")
        return
    rates = []
    with _broker(client) as servers:
        rounds = report.rounds(full=5)
        for number in range(rounds):
            report.progress(f"round {number + 1}/{rounds}: kafka")
            measured = ours(directory, "kafka", EVENTS["kafka"], servers, KAFKA_TOPIC)
            rates.append(measured["events_per_s"])
    report.figure(
        "kafka_events_s",
        rates,
        "events/s",
        f"mock broker, {KAFKA_PARTITIONS} partitions, JSON; every event fires, in order",
        target=">= 30000",
    )


@contextmanager
def _broker(client: Any) -> Iterator[str]:
    """A mock broker that holds the events; the address of it."""
    from tests.support.kafka_mock import mock_process

    with mock_process({KAFKA_TOPIC: KAFKA_PARTITIONS}) as broker:
        producer = client.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "queue.buffering.max.messages": EVENTS["kafka"],
                "log_level": 0,
            }
        )
        for number in range(EVENTS["kafka"]):
            producer.produce(KAFKA_TOPIC, KAFKA_EVENT, partition=number % KAFKA_PARTITIONS)
        if left := producer.flush(60):
            raise RuntimeError(f"{left} events were not taken by the mock broker")
        yield broker.bootstrap


# Idle


def _idle(report: Report, directory: str) -> None:
    measured = []
    rounds = report.rounds(full=3)
    for number in range(rounds):
        report.progress(f"round {number + 1}/{rounds}: idle graphs")
        measured.append(ours(directory, "idle", IDLE_GRAPHS))
    report.figure(
        "idle_mb",
        [one["mb"] for one in measured],
        "MB",
        f"{IDLE_GRAPHS:,} graphs that fired once and wait, over one",
        target="<= 50",
    )
    bare = sorted(one["app_cpu_percent"] for one in measured)[len(measured) // 2]
    report.figure(
        "idle_cpu_percent",
        [one["cpu_percent"] - one["app_cpu_percent"] for one in measured],
        "%",
        f"of one core, over two seconds, beyond the {bare:.2g} of an app with one graph",
        target="<= 0.3",
    )

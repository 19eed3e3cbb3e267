"""The graphs benchmark reports every name that was promised, and null where a peer is missing."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import graphs
from benchmarks.harness import PeerEnvironment, Report
from benchmarks.load import graphs_work
from benchmarks.load.graphs_floor import pipeline
from benchmarks.load.peers import driver
from benchmarks.load.peers import graphs as peers
from fairway.testing import run

if TYPE_CHECKING:
    from pathlib import Path

FIGURES = {
    *("events_s", "streamz_events_s", "reactivex_events_s", "event_p50_us", "event_p99_us"),
    *("sequential_events_s", "checkpointed_events_s", "pipeline_events_s", "kafka_events_s"),
    *("idle_mb", "idle_cpu_percent"),
}
RATIOS = {"vs_streamz", "vs_reactivex", "sequential_vs_pipeline", "checkpointed_vs_plain"}
MEASURED = {"p50_us": 20.0, "p99_us": 90.0, "mb": 30.0, "cpu_percent": 0.1, "app_cpu_percent": 0.1}
RATES = {
    "inline": 120.0,
    "sequential": 60.0,
    "checkpointed": 30.0,
    "kafka": 40.0,
    "graphs_floor": 400.0,
}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    def measured(module: str, *arguments: str) -> dict[str, float]:
        measure = arguments[1] if len(arguments) > 1 else module.rpartition(".")[2]
        return {**MEASURED, "events_per_s": RATES.get(measure, 0.0)}

    def flow(peer: str, events: int) -> tuple[peers.Flow, None]:
        return peers.Flow(peer, events, 1.0, 100.0, 9.0, 20.0, "1.0"), None

    monkeypatch.setattr(graphs, "_measured", measured)
    monkeypatch.setattr(graphs, "_broker", lambda client: nullcontext("nowhere:9092"))
    monkeypatch.setattr(peers, "flow", flow)
    return Report("graphs", quick=True, progress_to=io.StringIO())


def test_every_name_is_reported(report: Report) -> None:
    graphs.run(report, quick=True)
    made = report.as_json()
    assert set(made) == {"name", "figures", "ratios"}
    assert set(made["figures"]) == FIGURES
    assert set(made["ratios"]) == RATIOS
    assert made["ratios"]["vs_streamz"] == pytest.approx(1.2)
    assert made["ratios"]["sequential_vs_pipeline"] == pytest.approx(0.15)
    assert made["ratios"]["checkpointed_vs_plain"] == pytest.approx(0.5)


def test_a_peer_that_cannot_run_is_null_with_the_reason(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def flow(peer: str, events: int) -> tuple[None, str]:
        tries.append(peer)
        return None, f"pip could not install {peer}"

    monkeypatch.setattr(peers, "flow", flow)
    graphs.run(report, quick=True)
    made = report.as_json()
    assert made["ratios"]["vs_streamz"] is None
    assert made["figures"]["reactivex_events_s"] is None
    assert made["reasons"]["vs_streamz"] == "pip could not install streamz"
    assert sorted(tries) == ["reactivex", "streamz"]  # not tried again in each round


def test_a_peer_without_an_environment_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "peer_environment", lambda name: PeerEnvironment(None, "offline"))
    assert peers.flow("streamz", 1) == (None, "offline")
    with pytest.raises(ValueError, match="no peer 'spark'"):
        peers.flow("spark", 1)


def test_what_a_driver_prints_is_read_from_its_last_line() -> None:
    said: dict[str, Any] = {
        **{"peer": "streamz", "events": 10, "seconds": 0.5, "events_per_s": 20.0},
        **{"p50_us": 9.0, "p99_us": 20.0, "version": "0.6"},
    }
    flow, reason = driver.parsed("streamz", f"a warning\n{json.dumps(said)}\n", peers.Flow)
    assert reason is None
    assert flow == peers.Flow("streamz", 10, 0.5, 20.0, 9.0, 20.0, "0.6")
    nothing = driver.parsed("streamz", "", peers.Flow)
    assert nothing == (None, "streamz printed no figures but 'nothing'")


def test_every_peer_has_a_driver_and_a_lock() -> None:
    for name in peers.EVENTS:
        assert (driver.HERE / f"{name}_graph.py").exists()
        assert (graphs.ROOT / "requirements" / "peers" / f"{name}.txt").exists()


def test_the_pipeline_takes_every_event_through() -> None:
    assert run(pipeline(50)) >= 0


def test_peers_compute_what_we_compute(tmp_path: Path) -> None:
    ours = (graphs.ROOT / "benchmarks" / "load" / "graphs_work.py").read_text()
    for name in peers.EVENTS:
        theirs = (driver.HERE / f"{name}_graph.py").read_text()
        for line in (") / 2\n", "    return mid - 100.0\n", "    return edge > 0.0\n"):
            assert line in ours
            assert line in theirs
    tick = graphs_work.ticks(8)[6]
    assert graphs_work.buys(graphs_work.edge(graphs_work.mid(tick))) is True

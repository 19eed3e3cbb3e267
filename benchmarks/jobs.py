"""Jobs: draining, enqueueing and starting, against floors and other queues in the same run.

No-op async jobs. Every drain is one process of its own, worker and driver together, ours as the
peers': it enqueues a backlog and then runs it, and the clock stops when the last job is committed
as done. Each has a backlog of its own size, so that it takes some seconds. Our worker is tuned as a
busy queue of short jobs should be, 500 at once and 500 prefetched; the peers as their documentation
says. PostgreSQL is one server for all, SQLite syncs every commit that somebody was promised.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import uvloop

from benchmarks.harness import ROOT
from benchmarks.load import jobs_backlog, jobs_enqueue, jobs_flood, jobs_latency, jobs_workflow
from benchmarks.load.jobs_drain import CONCURRENCY, PREFETCH
from benchmarks.load.jobs_postgres import database, postgres_server
from benchmarks.load.peers import drains
from benchmarks.load.peers.ceiling import ceiling
from fairway.jobs.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness import Report

JOBS = {
    "postgres": 80_000,
    "ceiling": 120_000,
    "pgqueuer": 40_000,
    "awa-pg": 12_000,
    "procrastinate": 1_500,
    **dict.fromkeys(("relaxed", "durable", "keyed", "limited"), 40_000),
    "sqlite": 150_000,
    "huey": 6_000,
    "dbos": 1_200,
}
"""How many each drains in a sample: two to four seconds on two cores."""
TUNED = f"our worker with concurrency={CONCURRENCY}, prefetch={PREFETCH}, uvloop"
CLAIMS = {
    "relaxed": "claims that are not waited for",
    "durable": 'claims="durable"',
    "keyed": "each job has a partition key of its own",
    "limited": "the queue has a concurrency limit",
}
ENQUEUED = 60_000
ENQUEUE_BATCH = 1_000
STARTS = 250
WORKFLOWS = 50
DEEP = 1_000_000
SHALLOW = 10_000


def run(report: Report, quick: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="fairway-bench-") as directory:
        with postgres_server() as server:
            with psycopg.connect(server) as connection:
                version = connection.info.server_version // 10_000
            report.figure(
                "postgres_version", version, "", "synchronous_commit=on, 256MB of buffers"
            )
            _drain_postgres(report, server)
            _drain_by_claims(report, server)
            _enqueue(report, server)
            _deep_backlog(report, server)
            _start(report, server, Path(directory))
            _workflow(report, server, Path(directory))
        _drain_sqlite(report, directory)
        _flood(report, Path(directory))


# Draining


class Drains:
    """Samples of drains, and why there are none of a peer that cannot run."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def peer(self, name: str, place: str) -> Callable[[], float]:
        def sample() -> float:
            if name in self.reasons:
                return math.nan
            drained, reason = drains.drain(name, place, JOBS[name])
            if drained is None:
                self.reasons[name] = reason
                return math.nan
            self.versions[name] = drained.version
            return drained.jobs_per_s

        return sample

    def figure(self, report: Report, name: str, samples: list[float]) -> None:
        figure = f"drained_{name.partition('-')[0]}"
        if name in self.reasons:
            report.figure(figure, None, "jobs/s", self.reasons[name])
        else:
            report.figure(figure, samples, "jobs/s", f"{name} {self.versions[name]}")

    def ratio(
        self, report: Report, name: str, ours: list[float], peer: str, theirs: list[float], to: str
    ) -> None:
        if peer in self.reasons:
            report.ratio(name, None, None, note=self.reasons[peer])
        else:
            report.ratio(name, ours, theirs, to)


def _ours(place: str, jobs: int, claims: str = "relaxed") -> dict[str, Any]:
    """What our own driver measured."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load.jobs_drain", place, str(jobs), claims],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=drains.TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"our own drain failed with {done.returncode}: {done.stderr[-2000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def _drain_postgres(report: Report, server: str) -> None:
    peers = Drains()
    measured: list[dict[str, Any]] = []

    def ours() -> float:
        with database(server, "ours") as url:
            measured.append(_ours(url, JOBS["postgres"]))
        return float(measured[-1]["jobs_per_s"])

    def floor() -> float:
        with database(server, "ceiling") as url:
            return ceiling(url, JOBS["ceiling"]).two_commits

    samples = report.alternate(
        report.rounds(full=5),
        ours=ours,
        ceiling=floor,
        pgqueuer=peers.peer("pgqueuer", server),
        awa=peers.peer("awa-pg", server),
        procrastinate=peers.peer("procrastinate", server),
    )
    report.figure("drained_postgres", samples["ours"], "jobs/s", TUNED)
    report.figure(
        "drained_ceiling",
        samples["ceiling"],
        "jobs/s",
        "claim 100, delete 100, two commits; no job",
    )
    for name, peer in (("pgqueuer", "pgqueuer"), ("awa", "awa-pg"), ("procrastinate",) * 2):
        peers.figure(report, peer, samples[name])
    report.figure(
        "cpu_us_per_job",
        [one["cpu_us_per_job"] for one in measured],
        "us",
        "of our process, PostgreSQL",
    )
    report.figure(
        "wal_bytes_per_job", [one["wal_bytes_per_job"] for one in measured], "B", "while it drains"
    )
    report.figure(
        "commits_per_job", [one["commits_per_job"] for one in measured], "", "while it drains"
    )
    mine = samples["ours"]
    peers.ratio(report, "vs_pgqueuer", mine, "pgqueuer", samples["pgqueuer"], ">= 1.25")
    peers.ratio(report, "vs_awa", mine, "awa-pg", samples["awa"], ">= 3")
    peers.ratio(
        report, "vs_procrastinate", mine, "procrastinate", samples["procrastinate"], ">= 20"
    )
    report.ratio("vs_ceiling", mine, samples["ceiling"], ">= 0.5")


def _drain_by_claims(report: Report, server: str) -> None:
    """What it costs that a claim is on disk before its job runs."""

    def drained(claims: str) -> Callable[[], float]:
        def sample() -> float:
            with database(server, claims) as url:
                return float(_ours(url, JOBS[claims], claims)["jobs_per_s"])

        return sample

    samples = report.alternate(
        report.rounds(full=5), **{claims: drained(claims) for claims in CLAIMS}
    )
    for claims, note in CLAIMS.items():
        report.figure(f"drained_{claims}_claims", samples[claims], "jobs/s", f"{note}; {TUNED}")
    report.ratio("durable_claims_vs_relaxed", samples["durable"], samples["relaxed"])


def _drain_sqlite(report: Report, directory: str) -> None:
    peers = Drains()
    measured: list[dict[str, Any]] = []

    def ours() -> float:
        with tempfile.TemporaryDirectory(dir=directory) as fresh:
            measured.append(_ours(fresh, JOBS["sqlite"]))
        return float(measured[-1]["jobs_per_s"])

    samples = report.alternate(
        report.rounds(full=5),
        ours=ours,
        huey=peers.peer("huey", directory),
        dbos=peers.peer("dbos", directory),
    )
    note = f"{TUNED}; {measured[0]['durability']}"
    report.figure("drained_sqlite", samples["ours"], "jobs/s", note)
    for peer in drains.SQLITE:
        peers.figure(report, peer, samples[peer])
    report.figure(
        "cpu_us_per_job_sqlite", [one["cpu_us_per_job"] for one in measured], "us", "of our process"
    )
    peers.ratio(report, "sqlite_vs_huey", samples["ours"], "huey", samples["huey"], ">= 4")
    peers.ratio(report, "sqlite_vs_dbos", samples["ours"], "dbos", samples["dbos"], ">= 20")


# Enqueueing


def _enqueue(report: Report, server: str) -> None:
    def measure(bare: bool) -> Callable[[], float]:
        def sample() -> float:
            with database(server, "enqueue") as url:
                uvloop.run(jobs_enqueue.ours(url, ENQUEUE_BATCH, ENQUEUE_BATCH))  # the tables
                enqueue = jobs_enqueue.bare if bare else jobs_enqueue.ours
                return uvloop.run(enqueue(url, ENQUEUED, ENQUEUE_BATCH))

        return sample

    samples = report.alternate(report.rounds(full=7), ours=measure(False), bare=measure(True))
    report.figure(
        "enqueued", samples["ours"], "jobs/s", "enqueue_many of 1,000, four typed arguments"
    )
    report.figure(
        "inserted", samples["bare"], "rows/s", "one INSERT of 1,000 encoded rows into both tables"
    )
    report.ratio("enqueue_vs_insert", samples["ours"], samples["bare"], ">= 0.6")


# A deep backlog


def _deep_backlog(report: Report, server: str) -> None:
    with database(server, "deep") as deep, database(server, "shallow") as shallow:
        report.progress(f"putting {DEEP:,} jobs in line")
        uvloop.run(jobs_backlog.fill(deep, DEEP))
        uvloop.run(jobs_backlog.fill(shallow, SHALLOW))
        samples = report.alternate(
            report.rounds(full=7),
            deep=lambda: uvloop.run(jobs_backlog.claim_ms(deep)),
            shallow=lambda: uvloop.run(jobs_backlog.claim_ms(shallow)),
        )
    report.figure("claim_shallow_ms", samples["shallow"], "ms", "claim 100 of 10,000")
    report.figure("claim_deep_ms", samples["deep"], "ms", "claim 100 of 1,000,000")
    report.ratio("deep_backlog_cost", samples["deep"], samples["shallow"], "<= 1.5")


# Starting


def _start(report: Report, server: str, directory: Path) -> None:
    p99: dict[str, list[float]] = {"postgres": [], "durable": [], "sqlite": []}
    numbers = count()

    def measure(store: str, jobs: str | Path | PostgresStore) -> float:
        fresh = directory / f"start{next(numbers)}"
        place = fresh if store == "sqlite" else jobs
        times = sorted(uvloop.run(jobs_latency.start_ms(fresh, place, STARTS)))
        p99[store].append(times[int(len(times) * 0.99)])
        return times[len(times) // 2]

    def postgres() -> float:
        with database(server, "start") as url:
            return measure("postgres", url)

    def durable() -> float:
        with database(server, "start") as url:
            return measure("durable", PostgresStore(url, claims="durable"))

    samples = report.alternate(
        report.rounds(full=5),
        postgres=postgres,
        durable=durable,
        sqlite=lambda: measure("sqlite", directory),
    )
    note = "from enqueue to the first line, its commit included"
    report.figure("start_p50_ms", samples["postgres"], "ms", f"{note}; PostgreSQL", target="<= 4")
    report.figure("start_p99_ms", p99["postgres"], "ms", "the same")
    report.figure("start_durable_p50_ms", samples["durable"], "ms", 'claims="durable"')
    report.figure("start_sqlite_p50_ms", samples["sqlite"], "ms", f"{note}; SQLite")
    report.figure("start_sqlite_p99_ms", p99["sqlite"], "ms", "the same")


# Beside a flood


def _flood(report: Report, directory: Path) -> None:
    numbers = count()
    later: dict[str, list[float]] = {name: [] for name in jobs_flood.Waits._fields}

    def sample() -> float:
        place = directory / f"flood{next(numbers)}.db"
        alone, beside = uvloop.run(jobs_flood.waits(place))
        for name, waited in later.items():
            waited.append(getattr(beside, name) - getattr(alone, name))
        return beside.enqueue

    report.alternate(report.rounds(full=5), beside=sample)
    for name, of_another in (
        ("enqueue", "enqueues"),
        ("exchange", "enqueues"),
        ("cancel", "cancels"),
        ("signal", "signals"),
    ):
        note = f"how much longer than alone, beside {jobs_flood.FLOOD:,} {of_another} of another"
        report.figure(f"flood_{name}_ms", later[name], "ms", f"{note} tenant", target="<= 20")


# Workflows


def _workflow(report: Report, server: str, directory: Path) -> None:
    numbers = count()

    def sqlite() -> float:
        fresh = directory / f"workflow{next(numbers)}"
        return uvloop.run(jobs_workflow.workflow_ms(fresh, fresh, WORKFLOWS))

    def postgres() -> float:
        fresh = directory / f"workflow{next(numbers)}"
        with database(server, "workflow") as url:
            return uvloop.run(jobs_workflow.workflow_ms(fresh, url, WORKFLOWS))

    samples = report.alternate(report.rounds(full=5), sqlite=sqlite, postgres=postgres)
    note = "three tasks in a row, from start to result"
    report.figure("workflow3_sqlite_ms", samples["sqlite"], "ms", note, target="<= 25")
    report.figure("workflow3_postgres_ms", samples["postgres"], "ms", note, target="<= 25")

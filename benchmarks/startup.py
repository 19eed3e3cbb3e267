"""What `import fairway` costs over a bare interpreter, each started as a fresh process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness import Report

STARTS = 10  # processes behind one sample


def run(report: Report, quick: bool) -> None:
    start_ms("import fairway")  # compiles the bytecode, which is paid once and not what is asked
    samples = report.alternate(
        report.rounds(full=7),
        bare=lambda: start_ms("pass"),
        fairway=lambda: start_ms("import fairway"),
        log=lambda: start_ms("from fairway import Log, wal_at; wal_at('data')"),
    )
    pairs = zip(samples["fairway"], samples["bare"], strict=True)
    report.figure("bare_ms", samples["bare"], "ms", "an interpreter that does nothing")
    report.figure(
        "import_ms",
        [fairway - bare for fairway, bare in pairs],
        "ms",
        "`import fairway` on top of it",
        target="<= 150",
    )
    report.figure(
        "log_import_ms",
        [log - bare for log, bare in zip(samples["log"], samples["bare"], strict=True)],
        "ms",
        "a log on SQLite, made and not opened",
    )
    report.ratio("start_vs_bare", samples["fairway"], samples["bare"])


def start_ms(code: str) -> float:
    """The median time of a process that runs `code` and ends."""
    times_ns = []
    for _ in range(STARTS):
        begin_ns = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], check=True)
        times_ns.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(times_ns) / 1e6

"""Processes that a benchmark starts, talks to and ends, by their id."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


class Child:
    """One process and the port it listens on."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def child(*arguments: str) -> Iterator[Child]:
    """Run a Python module that prints `port N` once it listens; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("port "):
                    yield Child(process, int(line.split()[1]))
                    return
            raise RuntimeError(f"{arguments} ended before it listened")
        finally:
            process.kill()
            process.wait()


def wait_until(seconds: float, ready: object) -> float:
    """Call `ready` until it is true; returns how long that took."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if ready():  # type: ignore[operator]
            return time.perf_counter() - begin
        time.sleep(0.005)
    raise TimeoutError("not ready in time")

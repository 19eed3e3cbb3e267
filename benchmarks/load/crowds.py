"""Rude clients by the thousand, from one process of their own that drives every measurement."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 8_000
FILES = 2 * CONNECTIONS + 1_000


@dataclass(frozen=True)
class Met:
    """What a group of clients met."""

    statuses: dict[int, int]
    returned: dict[int, int]
    slowest_ms: float
    closed: int
    seconds: float

    def rate(self, status: int = 200) -> float:
        return self.statuses.get(status, 0) / self.seconds


class Crowds:
    """One generator process; `begin` and `wait` are a measurement, one at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, port: int, *groups: dict[str, Any], warm: float, seconds: float) -> None:
        asked = {"port": port, "warm": warm, "seconds": seconds, "groups": groups}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def wait(self) -> list[Met]:
        assert self._process.stdout is not None
        outcomes = json.loads(self._process.stdout.readline())
        return [
            Met(
                {int(code): count for code, count in one["statuses"].items()},
                {int(code): count for code, count in one["returned"].items()},
                one["slowest_ms"],
                one["closed"],
                one["seconds"],
            )
            for one in outcomes
        ]

    def run(self, port: int, *groups: dict[str, Any], warm: float, seconds: float) -> list[Met]:
        self.begin(port, *groups, warm=warm, seconds=seconds)
        return self.wait()


def group(manner: str, count: int, request: bytes) -> dict[str, Any]:
    return {"manner": manner, "count": count, "request": request.decode()}


def open_files() -> bool:
    """Let this process and those it starts open enough files; False if they may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        return False
    if soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    return True


@contextmanager
def crowds() -> Iterator[Crowds]:
    command = [sys.executable, "-m", "tests.support.crowd"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield Crowds(process)
        finally:
            process.kill()
            process.wait()

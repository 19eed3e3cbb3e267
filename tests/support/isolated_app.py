"""Jobs that run in processes of their own, for a test that looks at those processes."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairway import Fairway
from fairway.core.backoff import BackoffConfig
from fairway.jobs import rules

if TYPE_CHECKING:
    from fairway.jobs.context import Context
    from fairway.jobs.outcome import Outcome

app = Fairway(jobs="memory:")
etl = app.workflow("etl")
stuck = app.workflow("stuck")
WAIT_S = 600
AT_ONCE = BackoffConfig(base_ns=1, cap_ns=1)


@app.job(isolation="process")
def whoami() -> int:
    return os.getpid()


@app.job(isolation="process", max_attempts=1)
def whoami_once() -> int:
    return os.getpid()


def spin(until_ns: int) -> int:
    """Until the machine's clock shows this."""
    while (now_ns := time.monotonic_ns()) < until_ns:
        pass
    return now_ns


@app.job(isolation="process")
def works(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@app.job(isolation="process", timeout=1.0, max_attempts=1)
def in_a_second() -> int:
    return os.getpid()


@app.job(isolation="process", max_attempts=1)
async def raises() -> None:
    print("what it prints is not an answer")
    raise ValueError("from another process")


@app.job(isolation="process", max_attempts=1)
async def logs(fails: bool) -> None:
    logging.getLogger("isolated").warning("it is told in %s", "a process")
    if fails:
        raise ValueError("from another process")


@app.job(isolation="process", max_attempts=1)
def dies() -> None:
    os._exit(7)


@app.job(isolation="process", timeout=1.0, max_attempts=1)
def too_long(pids: str) -> None:
    forever(pids)


@app.job(isolation="process", max_attempts=1)
def forever(pids: str) -> None:
    """Tells who it is and who its child is, and does not end."""
    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({WAIT_S})"])
    part = Path(f"{pids}.part")
    part.write_text(f"{os.getpid()} {child.pid}")
    part.rename(pids)
    time.sleep(WAIT_S)


@app.job(isolation="process", max_attempts=1)
def forgets() -> int:
    """Succeeds, and leaves a process that finds no job any more."""
    sys.modules["fairway.jobs.isolation"] = None  # type: ignore[assignment]
    return 0


@app.job(isolation="process", max_attempts=1)
def clears() -> int:
    sys.modules.clear()
    return 0


@app.job(isolation="process", max_attempts=1)
def closes() -> int:
    """Succeeds, and leaves a process that can open nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    return 0


@app.job(isolation="process", max_attempts=3, backoff=AT_ONCE)
def opens() -> int:
    with open(os.devnull):
        return os.getpid()


def plain(n: int) -> list[int]:
    return [n + 1, os.getpid()]


by_a_call = app.job(isolation="process")(plain)
"""Declared by a call: the function keeps its name."""


@app.machine(isolation="process")
class Counter(msgspec.Struct):
    count: int = 0
    pids: list[int] = []

    def start(self, ctx: Context[Any]) -> Outcome:
        self.count += 1
        self.pids.append(os.getpid())
        return ctx.next("start") if self.count < 3 else ctx.done([self.count, len(self.pids)])


class Rows(msgspec.Struct):
    """What another process returns need not be known to the worker: it comes as JSON."""

    rows: int
    extracted_by: int


@etl.task(isolation="process")
def extract(day: str) -> Any:
    return Rows(len(day), os.getpid())


@etl.task(isolation="process", after=extract)
async def load(ctx: Context[Any], rows: int) -> Any:
    if ctx.attempt == 1:
        raise ValueError("the first attempt is for nothing")
    return {"loaded": rows, "loaded_by": os.getpid(), "attempt": ctx.attempt}


@etl.task(after="load")
def publish(context: dict[str, Any]) -> dict[str, Any]:
    return {"published_by": os.getpid()}


@stuck.task(isolation="process", timeout=1.0, max_attempts=1)
def late(pids: str) -> None:
    forever(pids)


@stuck.task(isolation="process", after="late", rule=rules.failed("late"))
def later(again: str) -> None:
    forever(again)

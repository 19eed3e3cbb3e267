"""Jobs that run in processes of their own, for a test that looks at those processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fairway import Fairway

if TYPE_CHECKING:
    from fairway.jobs.context import Context
    from fairway.jobs.outcome import Outcome

app = Fairway(jobs="memory:")
WAIT_S = 600


@app.job(isolation="process")
def whoami() -> int:
    return os.getpid()


@app.job(isolation="process", max_attempts=1)
async def raises() -> None:
    print("what it prints is not an answer")
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


@app.machine(isolation="process")
class Counter(msgspec.Struct):
    count: int = 0
    pids: list[int] = []

    def start(self, ctx: Context[Any]) -> Outcome:
        self.count += 1
        self.pids.append(os.getpid())
        return ctx.next("start") if self.count < 3 else ctx.done([self.count, len(self.pids)])

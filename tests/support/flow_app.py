"""An app for tests in other processes: a workflow whose tasks note in a file what they do.

`FLOW_PLACE` is where its jobs live, `FLOW_FILE` the file, `FLOW_HOLD` a task that does not end.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from fairway import Fairway

PLACE = os.environ.get("FLOW_PLACE", "memory:")
FILE = Path(os.environ.get("FLOW_FILE", os.devnull))
HOLD = os.environ.get("FLOW_HOLD", "")

app = Fairway(jobs=PLACE)
flow = app.workflow("steps")


def note(task: str) -> None:
    """One line for each run of a task."""
    with FILE.open("a") as file:
        file.write(f"{task} {os.getpid()}\n")


async def begin(task: str) -> None:
    """Begin a task; the one that is held does not end."""
    note(task)
    if task == HOLD:
        await asyncio.get_running_loop().create_future()


@flow.task
async def one(start: int) -> dict[str, Any]:
    await begin("one")
    return {"sum": start + 1}


@flow.task(after=one)
async def two(sum: int) -> dict[str, Any]:
    await begin("two")
    return {"sum": sum * 10}


@flow.task(after=two)
async def three(sum: int) -> dict[str, Any]:
    await begin("three")
    return {"sum": sum + 3}

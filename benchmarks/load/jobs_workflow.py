"""How long a workflow of three tasks takes, one after the other, from its start to its result."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from fairway.app import Fairway

if TYPE_CHECKING:
    from pathlib import Path

WARM_UP = 10


async def workflow_ms(directory: Path, jobs: str | Path, count: int) -> float:
    """The median of many runs, each alone."""
    app = Fairway(directory, jobs=jobs)
    flow = app.workflow("three")

    @flow.task
    async def extract(number: int) -> dict[str, Any]:
        return {"rows": number + 1}

    @flow.task(after=extract)
    async def clean(rows: int) -> dict[str, Any]:
        return {"rows": rows + 1}

    @flow.task(after=clean)
    async def load(rows: int) -> dict[str, Any]:
        return {"loaded": rows + 1}

    times = []
    async with app:
        for number in range(WARM_UP + count):
            begin = time.perf_counter()
            run = await flow.start({"number": number})
            result = await run.result(30)
            times.append((time.perf_counter() - begin) * 1e3)
            if result["loaded"] != number + 3:
                raise RuntimeError(f"run {number} came to {result}")
    return statistics.median(times[WARM_UP:])

"""How soon a job starts: from the call that enqueues it to its first line, in one process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fairway.app import Fairway

if TYPE_CHECKING:
    from pathlib import Path

WARM_UP = 50


async def start_ms(directory: Path, jobs: str | Path, count: int) -> list[float]:
    """One job after the other, each awaited until it has ended: the worker is idle before each."""
    app = Fairway(directory, jobs=jobs)
    started = 0.0
    running: asyncio.Future[None] | None = None

    @app.job
    async def note(number: int) -> None:
        nonlocal started
        started = time.perf_counter()
        if running is not None:
            running.set_result(None)

    times = []
    async with app:
        loop = asyncio.get_running_loop()
        for number in range(WARM_UP + count):
            running = loop.create_future()
            begin = time.perf_counter()
            await note.enqueue(number=number)
            await running
            times.append((started - begin) * 1e3)
            await asyncio.sleep(0.005)  # its outcome is committed by then
    return times[WARM_UP:]

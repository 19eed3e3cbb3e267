"""An app whose jobs and nodes are met by a SIGINT, or stay when they are to end. Run it with

    python -m tests.support.interrupted_app HOW JOB TIMES

to have it embedded: in `asyncio.run`, or in a loop that nobody set up signals for. It says what
becomes of it on stdout. The data is in the working directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

from fairway.app import Fairway
from fairway.jobs.worker import WorkerConfig

app = Fairway("data", worker=WorkerConfig(drain_timeout_ns=500_000_000))
ticks = app.source("ticks", int)


def interrupted(times: int) -> str:
    """Send SIGINT to this process, as Ctrl-C does; whether that is felt here."""
    try:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10_000):
                pass
    except BaseException as error:
        say(f"felt {type(error).__name__}")
        raise
    return "not felt"


def say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


@app.job(max_attempts=1)
async def coroutine(times: int) -> str:
    return interrupted(times)


@app.job(max_attempts=1)
def thread(times: int) -> str:
    return interrupted(times)


@app.job(max_attempts=1)
async def by_hand(times: int) -> str:
    raise KeyboardInterrupt


@app.job(max_attempts=1)
async def in_a_task(times: int) -> str:
    """A task of the job's own raises: asyncio lets that out of the loop."""

    async def raises() -> None:
        raise KeyboardInterrupt

    await asyncio.create_task(raises())
    return "not reached"


@app.job
async def stays() -> None:
    say("stays")
    while True:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            say("stays though it was cancelled")


@app.job
def stays_in_a_thread() -> None:
    say("stays in a thread")
    threading.Event().wait()


@app.graph(when=ticks, on_error="dead_letter")
def node(ticks: int) -> str:
    return interrupted(ticks)


async def embedded(job: str, times: int) -> None:
    try:
        async with app:
            say("entered")
            if job == "node":
                node.push_nowait("ticks", times)
            else:
                jobs: dict[str, Any] = {"coroutine": coroutine, "thread": thread}
                await jobs.get(job, by_hand).enqueue(times=times)
            if job == "by_hand":
                await coroutine.enqueue(times=1)
            await asyncio.get_running_loop().create_future()
    finally:
        say("left")


def main(how: str, job: str, times: int) -> None:
    try:
        if how == "run":
            asyncio.run(embedded(job, times))
        else:
            asyncio.new_event_loop().run_until_complete(embedded(job, times))
    except KeyboardInterrupt:
        say("interrupted")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""Kill -9 of a runner between or within any two tasks: another one re-runs what had not committed.

The runner is a real `fairway worker`. It is killed while a task of its choice is at work; another
runner, which does not hold that task, takes over when the lease of the first has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.part import store_at
from tests.support.flow_app import flow
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
TASKS = ["one", "two", "three"]
TIMES = ["--lease-ttl", "900ms", "--heartbeat-interval", "300ms", "--reap-interval", "200ms"]
TIMES += ["--poll-interval", "50ms", "--max-poll-interval", "50ms"]


class Runner:
    """A worker process on the app of the tests."""

    def __init__(self, place: str, file: Path, hold: str = "") -> None:
        environ = {**os.environ, "FLOW_PLACE": place, "FLOW_FILE": str(file), "FLOW_HOLD": hold}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "fairway", "worker", "tests.support.flow_app:app", *TIMES],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()

    @property
    def pid(self) -> int:
        return self._child.pid


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "data") if request.param == "sqlite" else postgres_url()


async def wait_for(seen: Callable[[], bool]) -> None:
    while not seen():
        await asyncio.to_thread(os.stat, "/")  # another process is at work: let it


@pytest.mark.parametrize("held", TASKS)
def test_another_runner_repeats_only_what_had_not_committed(
    place: str, tmp_path: Path, held: str
) -> None:
    file = tmp_path / "told"
    file.touch()

    async def play() -> None:
        store = store_at(place)
        await store.open()
        first = Runner(place, file, hold=held)
        second = None
        try:
            jobs = Jobs(store, Kinds())
            (run,) = await jobs.enqueue([flow.order({"start": 1}).job])
            await wait_for(lambda: f"{held} {first.pid}\n" in file.read_text())
            first.kill()
            second = Runner(place, file)
            assert await jobs.result(run.id, timeout_s=60) == {"start": 1, "sum": 23}
        finally:
            first.kill()
            if second is not None:
                second.kill()
            await store.aclose()
        told = [tuple(line.split()) for line in file.read_text().splitlines()]
        at = TASKS.index(held)
        expected = [(task, str(first.pid)) for task in TASKS[: at + 1]]
        assert second is not None
        expected += [(task, str(second.pid)) for task in TASKS[at:]]
        assert told == expected

    asyncio.run(play())

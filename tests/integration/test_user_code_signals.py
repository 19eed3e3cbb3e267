"""A real SIGINT, and user code that does not want to end: in processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairway.app import Fairway
from fairway.jobs.job import Filter, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairway.jobs.job import Job

ROOT = Path(__file__).parents[2]
APP = "tests.support.interrupted_app"


@contextmanager
def process(place: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    paths = (str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def jobs_of(place: Path) -> dict[str, Job]:
    """What became of the jobs, by kind."""

    async def look() -> list[Job]:
        async with Fairway(place / "data", worker=None) as app:
            return await app.jobs.browse(Filter())

    return {job.kind: job for job in asyncio.run(look())}


def enqueued(place: Path, *kinds: str, **arguments: Any) -> None:
    from tests.support import interrupted_app

    async def enqueue() -> None:
        app = interrupted_app.app
        before = app.place, app._worker
        app.place, app._worker = place / "data", None
        try:
            async with app:
                for kind in kinds:
                    await getattr(interrupted_app, kind).enqueue(**arguments)
        finally:
            app.place, app._worker = before

    asyncio.run(enqueue())


@pytest.mark.parametrize(
    ("command", "job"), [(("worker",), "coroutine"), (("serve", "--port", "0"), "thread")]
)
def test_where_we_own_the_signals_user_code_never_feels_one(
    command: tuple[str, ...], job: str, tmp_path: Path
) -> None:
    """Two jobs raise `KeyboardInterrupt`, one in a task of its own: asyncio lets that out of the
    loop. They fail, and that is all. A third interrupts the process: it drains and ends, and the
    job comes to its end."""
    enqueued(tmp_path, "by_hand", "in_a_task", job, times=1)
    with process(tmp_path, "fairway", command[0], f"{APP}:app", *command[1:]) as child:
        said, errors = child.communicate()
        assert child.returncode == 0, errors
        assert "felt" not in said
    assert {kind: job.status for kind, job in jobs_of(tmp_path).items()} == {
        "by_hand": Status.FAILED,
        "in_a_task": Status.FAILED,
        job: Status.DONE,
    }


@pytest.mark.parametrize(
    ("how", "job"),
    [("run", "coroutine"), ("run", "node"), ("loop", "by_hand"), ("loop", "node")],
)
def test_embedded_a_real_interrupt_stops_the_app_cleanly(
    how: str, job: str, tmp_path: Path
) -> None:
    with process(tmp_path, APP, how, job, "1") as child:
        said, errors = child.communicate()
        assert child.returncode == 0, errors
        assert said.split() == ["entered", "left", "interrupted"]
    jobs = jobs_of(tmp_path)
    if job == "by_hand":
        assert jobs["by_hand"].status is Status.FAILED
        assert jobs["coroutine"].status is Status.DONE
    elif job != "node":
        assert jobs[job].status is Status.DONE, "it was let end"


@pytest.mark.parametrize(("how", "job"), [("run", "node"), ("loop", "coroutine")])
def test_embedded_a_second_interrupt_ends_the_app_and_fails_no_job(
    how: str, job: str, tmp_path: Path
) -> None:
    with process(tmp_path, APP, how, job, "2") as child:
        said, errors = child.communicate()
        assert child.returncode == 0, errors
        assert said.splitlines()[:2] == ["entered", "felt KeyboardInterrupt"]
        assert said.splitlines()[-1] == "interrupted"
    if job == "coroutine":
        assert jobs_of(tmp_path)["coroutine"].status in (Status.RUNNING, Status.READY)


def test_user_code_that_stays_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    """A job that swallows its cancellation and one that hangs in a thread: nobody waits for them.

    Without an end this test waits for ever.
    """
    enqueued(tmp_path, "stays", "stays_in_a_thread")
    with process(tmp_path, "fairway", "worker", f"{APP}:app", "--drain-timeout", "500ms") as child:
        assert child.stdout is not None
        waited = {"stays\n", "stays in a thread\n"}
        while waited:
            waited.discard(child.stdout.readline())
        child.send_signal(signal.SIGTERM)
        said, errors = child.communicate()
        assert child.returncode == 0, errors
        assert "stays though it was cancelled" in said
    jobs = jobs_of(tmp_path)
    assert {job.status for job in jobs.values()} == {Status.RUNNING}, "the reaper has them"

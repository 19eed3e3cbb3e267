"""Jobs in processes of their own: warm, apart, and gone with all they started when they must."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairway import Fairway
from fairway.errors import InvalidConfig, JobFailed, ProcessDied
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Status
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import WorkerConfig
from fairway.runtime.processes import Processes
from tests.support.isolated_app import (
    Counter,
    app,
    by_a_call,
    clears,
    closes,
    dies,
    etl,
    forever,
    forgets,
    in_a_second,
    logs,
    opens,
    raises,
    spin,
    stuck,
    too_long,
    whoami,
    whoami_once,
    works,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

FEEDER = FeederConfig(poll_interval_ns=50_000_000, max_poll_interval_ns=50_000_000)


def test_a_process_whose_worker_is_gone_ends_without_a_word() -> None:
    """It may be about to say that it has started: the pipe is broken, and nobody wants to know."""
    leash, held = os.pipe()  # held, so that the leash alone would not end it
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; sys.stdin.readline();"
            f" from fairway.runtime.processes import serve_calls; serve_calls({leash})",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=(leash,),
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stderr.read() == b""
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait(60)
        os.close(leash)
        os.close(held)
        for pipe in (child.stdin, child.stderr):
            if pipe is not None:
                pipe.close()


@asynccontextmanager
async def working(processes: int = 1) -> AsyncIterator[None]:
    config = WorkerConfig(queues=dict.fromkeys(app.queues, FEEDER), processes=processes)
    async with asyncio.timeout(60), app.working(config, store=MemoryStore()):
        yield


def ended(pid: int) -> bool:
    """Whether a process is no more, or only its name is left."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return True
    return state == "Z"


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.to_thread(os.stat, "/")  # other processes are at work: let them


async def pids_in(file: Path) -> list[int]:
    await until(file.exists)
    return [int(pid) for pid in (await asyncio.to_thread(file.read_text)).split()]


def test_a_process_is_used_again_and_is_not_ours() -> None:
    async def play() -> None:
        async with working():
            first = await (await whoami.enqueue()).result()
            second = await (await whoami.enqueue()).result()
            assert first == second != os.getpid()

    asyncio.run(play())


def test_what_it_raises_is_the_jobs_error_and_a_death_is_told() -> None:
    async def play() -> None:
        async with working():
            with pytest.raises(JobFailed, match="ValueError: from another process"):
                await (await raises.enqueue()).result()
            with pytest.raises(JobFailed, match="exit status 7"):
                await (await dies.enqueue()).result()
            assert await (await whoami.enqueue()).result() != os.getpid()

    asyncio.run(play())


def test_what_it_logs_is_kept_whether_it_fails_or_not() -> None:
    async def play() -> None:
        async with working():
            for fails in (False, True):
                job = await logs.enqueue(fails=fails)
                with contextlib.suppress(JobFailed):
                    await job.result()
                assert app.jobs is not None
                log = await app.jobs.attempt_log(job.id, 1) or b""
                assert log.endswith(b"Z WARNING isolated: it is told in a process\n")
                assert log.count(b"\n") == 1
                (one,) = await app.jobs.attempts(job.id)
                assert ("from another process" in (one.error or "")) == fails

    asyncio.run(play())


def test_a_job_is_not_blamed_for_what_another_did_to_its_process() -> None:
    async def play() -> None:
        async with working():
            first = await (await whoami.enqueue()).result()
            assert await (await forgets.enqueue()).result() == 0
            works_again = await whoami_once.enqueue()
            assert await works_again.result() != first
            assert (await works_again.look()).attempt == 0
            with pytest.raises(JobFailed, match="import of module"):
                await (await clears.enqueue()).result()
            await (await whoami_once.enqueue()).result()

    asyncio.run(play())


def test_a_process_in_which_a_job_failed_is_not_used_again() -> None:
    async def play() -> None:
        async with working():
            assert await (await closes.enqueue()).result() == 0
            again = await opens.enqueue()
            assert await again.result() != os.getpid()
            assert (await again.look()).attempt == 1  # of the process that it did not spoil
            warm = await (await opens.enqueue()).result()
            with pytest.raises(JobFailed):
                await (await raises.enqueue()).result()
            assert await (await opens.enqueue()).result() != warm

    asyncio.run(play())


def test_a_function_that_was_declared_by_a_call_is_found() -> None:
    async def play() -> None:
        async with working():
            found, pid = await (await by_a_call.enqueue(n=1)).result()
            assert (found, pid != os.getpid()) == (2, True)

    asyncio.run(play())


def test_a_machine_keeps_its_state_between_processes() -> None:
    async def play() -> None:
        async with working():
            counter = await Counter.start(Counter())
            assert await counter.result() == [3, 3]

    asyncio.run(play())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_a_timeout_ends_the_process_and_all_it_started(tmp_path: Path) -> None:
    async def play() -> None:
        async with working():
            await (await whoami.enqueue()).result()  # what it needs is imported
            job = await too_long.enqueue(pids=str(tmp_path / "pids"))
            with pytest.raises(JobFailed, match="took longer than 1 s"):
                await job.result()
            for pid in await pids_in(tmp_path / "pids"):
                await until(partial(ended, pid))

    asyncio.run(play())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_a_cancel_ends_the_process_and_all_it_started(tmp_path: Path) -> None:
    async def play() -> None:
        async with working():
            job = await forever.enqueue(pids=str(tmp_path / "pids"))
            pids = await pids_in(tmp_path / "pids")
            await job.cancel()
            with pytest.raises(JobFailed, match="cancelled"):
                await job.result()
            for pid in pids:
                await until(partial(ended, pid))
            assert await (await whoami.enqueue()).result() not in pids

    asyncio.run(play())


def test_the_wait_for_a_process_is_not_the_job_s_time() -> None:
    async def play() -> None:
        async with working(processes=1):
            busy = await works.enqueue(seconds=1.5)
            hasty = await in_a_second.enqueue()
            assert await hasty.result() != os.getpid()
            assert (await busy.look()).status is Status.DONE, "it had to wait for that one"

    asyncio.run(play())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_no_process_outlives_its_worker(tmp_path: Path) -> None:
    async def play() -> None:
        async with working():
            pid = await (await whoami.enqueue()).result()
        await until(partial(ended, pid))

    asyncio.run(play())


@contextmanager
def worker_with_a_job(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker whose job runs in a process of its own and does not end."""
    with subprocess.Popen([sys.executable, "-m", "tests.support.isolated_child", file]) as child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_no_process_outlives_a_worker_that_was_killed(tmp_path: Path) -> None:
    async def play() -> None:
        async with asyncio.timeout(60):
            with worker_with_a_job(tmp_path / "pids") as worker:
                pids = await pids_in(tmp_path / "pids")
                assert len(pids) == 2
                worker.kill()
                for pid in pids:
                    await until(partial(ended, pid))

    asyncio.run(play())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_a_process_ends_with_the_lease_of_a_worker_that_is_paused(tmp_path: Path) -> None:
    """Another worker has the job from then on. The one that is paused cannot see to it."""

    async def play() -> None:
        async with asyncio.timeout(60):
            with worker_with_a_job(tmp_path / "pids") as worker:
                pids = await pids_in(tmp_path / "pids")
                worker.send_signal(signal.SIGSTOP)
                for pid in pids:
                    await until(partial(ended, pid))
                worker.send_signal(signal.SIGCONT)

    asyncio.run(play())


def test_a_call_goes_on_for_as_long_as_it_is_renewed() -> None:
    async def play() -> None:
        processes = Processes(1)
        try:
            until_ns = time.monotonic_ns() + 2_000_000_000

            async def call() -> int:
                spun: int = await processes.run(
                    spin, until_ns + 200_000_000, until=lambda: until_ns
                )
                return spun

            with pytest.raises(ProcessDied, match="SIGKILL"):
                await call()
            until_ns = time.monotonic_ns() + 2_000_000_000
            going = asyncio.create_task(call())
            await until(lambda: processes.busy == 1)
            processes.renew(until_ns + 600_000_000_000)
            assert await going > until_ns
            # And one that is over is not ended later, nor the next one.
            until_ns = time.monotonic_ns() + 600_000_000_000
            assert await processes.run(spin, 0, until=lambda: until_ns)
        finally:
            await processes.aclose()

    asyncio.run(play())


def test_what_no_process_could_import_is_refused_when_it_is_declared() -> None:
    other = Fairway(jobs="memory:")
    with pytest.raises(InvalidConfig, match="needs a function another process can import"):

        @other.job(isolation="process")
        def inner() -> None: ...


def test_tasks_of_a_workflow_run_in_processes_and_exchange_json() -> None:
    async def play() -> None:
        async with working():
            run = await etl.start({"day": "monday"})
            done = await run.result()
            assert len({done.pop("extracted_by"), done.pop("loaded_by"), os.getpid()}) == 3
            assert done.pop("published_by") == os.getpid()
            assert done == {"day": "monday", "rows": 6, "loaded": 6, "attempt": 2}

    asyncio.run(play())


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_a_timeout_and_a_cancel_end_the_processes_of_tasks(tmp_path: Path) -> None:
    async def play() -> None:
        async with working():
            await (await whoami.enqueue()).result()  # what it needs is imported
            first, second = tmp_path / "first", tmp_path / "second"
            run = await stuck.start({"pids": str(first), "again": str(second)})
            for pid in await pids_in(first):
                await until(partial(ended, pid))
            pids = await pids_in(second)
            await run.cancel("the wrong day")
            with pytest.raises(JobFailed, match="the wrong day"):
                await run.result()
            for pid in pids:
                await until(partial(ended, pid))

    asyncio.run(play())


def test_a_task_that_no_process_could_find_is_refused() -> None:
    other = Fairway(jobs="memory:")
    flow = other.workflow("etl")
    with pytest.raises(InvalidConfig, match=r"task 'inner' of workflow 'etl'.*can import"):

        @flow.task(isolation="process")
        def inner() -> None: ...


def test_a_task_whose_name_is_another_s_is_refused_when_the_app_starts() -> None:
    """Two workflows of a module may both have a task `load`; only one of them is found by it."""
    other = Fairway(jobs="memory:")
    flow = other.workflow("etl")

    def whoami() -> None: ...

    whoami.__module__ = "tests.support.isolated_app"
    whoami.__qualname__ = "whoami"
    flow.task(whoami, isolation="process")
    with pytest.raises(InvalidConfig, match="'whoami' is something else in its module"):
        assert other.queues

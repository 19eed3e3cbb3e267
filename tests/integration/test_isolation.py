"""Jobs in processes of their own: warm, apart, and gone with all they started when they must."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairway import Fairway
from fairway.errors import InvalidConfig, JobFailed
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import WorkerConfig
from tests.support.isolated_app import Counter, app, dies, forever, raises, too_long, whoami

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

FEEDER = FeederConfig(poll_interval_ns=50_000_000, max_poll_interval_ns=50_000_000)


@asynccontextmanager
async def working(processes: int = 1) -> AsyncIterator[None]:
    config = WorkerConfig(queues={"default": FEEDER}, processes=processes)
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


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_no_process_outlives_its_worker(tmp_path: Path) -> None:
    async def play() -> None:
        async with working():
            pid = await (await whoami.enqueue()).result()
        await until(partial(ended, pid))

    asyncio.run(play())


def test_what_no_process_could_import_is_refused_when_it_is_declared() -> None:
    other = Fairway(jobs="memory:")
    with pytest.raises(InvalidConfig, match="needs a function another process can import"):

        @other.job(isolation="process")
        def inner() -> None: ...

"""A run that failed or was cancelled is retried, on every store: what succeeded is not repeated."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Fairway
from fairway.errors import Conflict, JobFailed, NotFound
from fairway.jobs.context import Context  # noqa: TC001  annotations of tasks are read
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.flows import state_of
from fairway.jobs.handles import JobHandle
from fairway.jobs.job import Filter, Status
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.stores.sqlite import SqliteStore
from fairway.jobs.worker import WorkerConfig
from fairway.jobs.workflow import TaskState
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fairway.jobs.flows import Flow
    from fairway.jobs.store import JobStore

FEEDER = FeederConfig(poll_interval_ns=50_000_000, max_poll_interval_ns=50_000_000)
schemas = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> JobStore:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "sqlite":
        return SqliteStore(tmp_path / "jobs.db")
    from fairway.jobs.stores.postgres import PostgresStore

    return PostgresStore(postgres_url(), schema=f"workflow_retry_{next(schemas)}")


class Etl:
    """A workflow whose tasks do as they are told, and who ran how often."""

    def __init__(self, **options: Any) -> None:
        self.app = Fairway(jobs="memory:")
        self.flow: Flow = self.app.workflow("etl", **options)
        self.ran: Counter[str] = Counter()
        self.broken = {"load"}
        self.held: dict[str, asyncio.Event] = {}
        self.began: dict[str, asyncio.Event] = {}
        self.told: list[str] = []
        for name, after in (("extract", ()), ("count", ("extract",)), ("load", ("extract",))):
            self._task(name, after)
        self._task("publish", ("load", "count"))

    def _task(self, name: str, after: tuple[str, ...]) -> None:
        async def run(ctx: Context[Any], context: dict[str, Any]) -> dict[str, Any]:
            self.ran[name] += 1
            if name in self.began:
                self.began[name].set()
                await self.held[name].wait()
            if name in self.broken:
                raise OSError(f"{name} broke")
            return {name: f"{self.ran[name]} of {len(context)}"}

        self.flow.task(run, name=name, after=after, max_attempts=1)

    def hold(self, name: str) -> None:
        self.began[name], self.held[name] = asyncio.Event(), asyncio.Event()

    def release(self, name: str) -> None:
        del self.began[name]
        self.held.pop(name).set()

    @asynccontextmanager
    async def working(self, store: JobStore) -> AsyncIterator[None]:
        config = WorkerConfig(queues=dict.fromkeys(self.app.queues, FEEDER))
        async with asyncio.timeout(60), self.app.working(config, store=store):
            yield


def test_what_failed_runs_again_and_what_succeeded_is_kept(store: JobStore) -> None:
    async def play() -> None:
        etl = Etl()

        @etl.flow.on_failure
        async def alarm(error: str) -> None:
            etl.told.append(error)

        async with etl.working(store):
            run = await etl.flow.start({"day": "monday"})
            with pytest.raises(JobFailed, match="task 'load' failed: OSError: load broke"):
                await run.result()
            await etl.flow.retry(run.id)  # still broken
            with pytest.raises(JobFailed, match="load broke"):
                await run.result()
            assert etl.ran == {"extract": 1, "count": 1, "load": 2}
            etl.broken.clear()
            await etl.flow.retry(run.id)
            assert await run.result() == {
                "day": "monday",
                "extract": "1 of 1",
                "count": "1 of 2",
                "load": "3 of 2",
                "publish": "1 of 4",
            }
            assert etl.ran == {"extract": 1, "count": 1, "load": 3, "publish": 1}
            assert (await run.look()).retries == 2
            for job in await etl.app.jobs.browse(Filter(kind="etl.on_failure")):
                await JobHandle(lambda: etl.app.jobs, job.id).result()
            assert len(etl.told) == 2
            with pytest.raises(Conflict, match="is done and stays so"):
                await etl.flow.retry(run.id)
            with pytest.raises(NotFound):
                await etl.flow.retry(10_000)

    asyncio.run(play())


def test_a_callback_that_does_not_end_changes_nothing_about_the_run(store: JobStore) -> None:
    """Its run ends, can be retried and gives up its key, whatever becomes of the callback."""

    async def play() -> None:
        etl, began = Etl(), asyncio.Semaphore(0)

        @etl.flow.on_failure
        async def alarm(error: str) -> None:
            began.release()
            await asyncio.Event().wait()

        @etl.flow.on_success
        async def cheer() -> None:
            began.release()
            raise OSError("nobody listens")

        async with etl.working(store):
            run = await etl.flow.start({}, key="one")
            with pytest.raises(JobFailed, match="load broke"):
                await run.result()
            await began.acquire()
            etl.broken.clear()
            await etl.flow.retry(run.id)
            assert "publish" in await run.result()
            await began.acquire()
            assert (await run.look()).status is Status.DONE
            again = await etl.flow.start({}, key="one")
            assert again.fresh
            assert "publish" in await again.result()

    asyncio.run(play())


def test_a_cancelled_run_is_retried_once_its_tasks_have_ended(store: JobStore) -> None:
    async def play() -> None:
        etl = Etl()
        etl.broken.clear()
        stubborn = asyncio.Event()

        async def stays(ctx: Context[Any]) -> dict[str, Any]:
            etl.ran["stays"] += 1
            stubborn.set()
            while not stayed.is_set():
                try:
                    await stayed.wait()
                except asyncio.CancelledError as error:
                    etl.told.append(str(error))
            return {"stays": etl.ran["stays"]}

        stayed = asyncio.Event()
        etl.flow.task(stays, name="stays")
        etl.hold("load")
        async with etl.working(store):
            run = await etl.flow.start()
            await etl.began["load"].wait()
            await stubborn.wait()
            await run.cancel("the wrong day")
            with pytest.raises(JobFailed, match="the wrong day"):
                await run.result()
            job = await run.look()
            shown = state_of(job).run
            assert shown is not None
            cut = {name for name, task in shown.tasks.items() if task.state is TaskState.CANCELLED}
            assert cut >= {"load", "stays", "publish"}
            assert {shown.tasks[name].ended_wall_ns for name in cut} == {job.finished_wall_ns}
            with pytest.raises(Conflict, match="its own tasks have ended"):
                await etl.flow.retry(run.id)  # one of them is at work still
            stayed.set()
            etl.release("load")
            children = await etl.app.jobs.browse(Filter(parent=run.id))
            for child in children:
                await etl.app.jobs._wait_ended(child.id)
            await etl.flow.retry(run.id)
            result = await run.result()
            assert result["load"] == "2 of 1"
            # It did not stop when it was asked to, and came to its end: that is not repeated.
            assert result["stays"] == 1
            assert etl.told == ["the wrong day"]
            assert etl.ran == {"extract": 1, "count": 1, "load": 2, "stays": 1, "publish": 1}

    asyncio.run(play())


def test_what_an_earlier_attempt_says_late_is_not_heard(store: JobStore) -> None:
    async def play() -> None:
        etl = Etl()
        async with etl.working(store):
            run = await etl.flow.start()
            with pytest.raises(JobFailed):
                await run.result()
            etl.hold("load")
            await etl.flow.retry(run.id)
            await etl.began["load"].wait()
            job = await run.look()
            while job.status is not Status.WAITING:
                job = await run.look()
            (waited,) = [name for name in job.waits_for if "load" in name]
            late = {"id": 1, "status": "done", "result": {"load": "an old one"}}
            await run.signal("task:load", late)
            assert waited != "task:load"
            etl.broken.clear()
            etl.release("load")
            assert (await run.result())["load"] == "2 of 1"

    asyncio.run(play())


def test_a_run_that_took_too_long_has_as_long_again(store: JobStore) -> None:
    async def play() -> None:
        etl = Etl(timeout=0.3)
        etl.broken.clear()
        etl.hold("load")
        async with etl.working(store):
            while not etl.began["load"].is_set():  # a busy machine may not come so far in time
                etl.ran.clear()
                run = await etl.flow.start()
                with pytest.raises(JobFailed, match=r"took longer than [\d.]+ s"):
                    await run.result()
                assert etl.flow._timeout_ns is not None
                etl.flow._timeout_ns *= 2
            etl.release("load")
            for child in await etl.app.jobs.browse(Filter(parent=run.id)):
                await etl.app.jobs._wait_ended(child.id)
            etl.flow._timeout_ns = 60 * 10**9
            await etl.flow.retry(run.id)
            assert (await run.result())["load"] == "2 of 1"
            assert etl.ran["extract"] == 1

    asyncio.run(play())

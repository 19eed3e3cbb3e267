"""Jobs in tests: the real worker on virtual time, drained until nothing more can happen.

    from fairway.testing import run_jobs

    def test_receipt():
        async def play(jobs):
            receipt = await send_receipt.enqueue(id=7)
            await jobs.drain()                      # retries and delays cost no time
            await jobs.assert_done(receipt, "sent")

        run_jobs(app, play)

Nothing is mocked: arguments are encoded, state is saved between steps, backoff is waited for; only
the store is in memory and time is virtual. Jobs run on one loop without threads or processes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Filter, Status
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.upkeep import Upkeep
from fairway.jobs.worker import WorkerConfig
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.testing.loop import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.app import Fairway
    from fairway.jobs.handles import JobHandle
    from fairway.jobs.job import Job

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
STEP_NS = 10_000_000
DAY_S = 24 * 3600.0
LISTED_MAX = 1_000_000
_BUSY = (Status.SCHEDULED, Status.READY, Status.BLOCKED, Status.RUNNING)


class NotQuiet(AssertionError):
    """Jobs go on for longer than the test allows."""


class JobsUnderTest:
    """The jobs of an app while a test plays with them."""

    def __init__(self, app: Fairway) -> None:
        self._app = app

    async def drain(self, limit_s: float = 30 * DAY_S) -> Counter[str]:
        """Run everything until nothing is ready, running or scheduled; how many jobs stand how.

        Virtual time leaps over delays and backoff. Jobs that wait for a signal are left waiting:
        they are quiet, and so are those of a kind that the app does not declare. Raises `NotQuiet`
        if that takes longer than `limit_s` of virtual time.
        """
        clock = clock_of()
        end_ns = clock.now_ns() + round(limit_s * SECOND_NS)
        step_ns = STEP_NS
        while True:
            await sleep_ns(step_ns)
            jobs = await self._all()
            busy = [job for job in jobs if job.status in _BUSY and not self._unknown(job)]
            if not busy:
                return Counter(job.status.word for job in jobs)
            if clock.now_ns() > end_ns:
                standing = ", ".join(
                    f"{job.kind} {job.id} is {job.status.word}" for job in busy[:5]
                )
                raise NotQuiet(f"after {limit_s:g} s there is no quiet: {standing}")
            due = [job.due_wall_ns for job in busy if job.due_wall_ns is not None]
            far = len(due) == len(busy) and min(due) - clock.wall_ns()
            step_ns = max(STEP_NS, int(far)) if far else STEP_NS

    async def advance(self, seconds: float) -> None:
        """Let virtual time pass: timeouts of waiting jobs are due, too."""
        await sleep_ns(round(seconds * SECOND_NS))

    async def assert_done(self, handle: JobHandle[Any], result: Any = ...) -> None:
        """The job is done, with this result if one is given."""
        job = await self._with_status(handle, Status.DONE)
        if result is not ...:
            found = msgspec.json.decode(job.result) if job.result is not None else None
            assert found == result, f"job {job.id} came to {found!r}, not {result!r}"

    async def assert_failed(self, handle: JobHandle[Any], match: str = "") -> None:
        """The job failed, and its error has `match` in it."""
        job = await self._with_status(handle, Status.FAILED)
        assert match in (job.error or ""), f"job {job.id} failed otherwise: {job.error}"

    async def assert_waiting(self, handle: JobHandle[Any], *signals: str) -> None:
        """The job waits for (at least) these signals."""
        job = await self._with_status(handle, Status.WAITING)
        missing = set(signals) - set(job.waits_for)
        assert not missing, f"job {job.id} waits for {job.waits_for}, not for {sorted(missing)}"

    async def assert_enqueued(self, kind: str, count: int = 1, **arguments: Any) -> None:
        """So many jobs of a kind, with these arguments among theirs, were ever enqueued."""
        found = 0
        for job in await self._all():
            state = msgspec.json.decode(job.state)
            found += job.kind == kind and arguments.items() <= state.items()
        assert found == count, f"{found} jobs {kind!r} with {arguments}, not {count}"

    def _unknown(self, job: Job) -> bool:
        """Whether it waits for a worker that knows it: here, none does."""
        kinds = self._app.jobs.kinds.by_version
        return job.status is Status.READY and (job.kind, job.version) not in kinds

    async def _with_status(self, handle: JobHandle[Any], status: Status) -> Job:
        job = await handle.look()
        error_text = f": {job.error}" if job.error else ""
        assert job.status is status, (
            f"job {job.id} is {job.status.word}, not {status.word}{error_text}"
        )
        return job

    async def _all(self) -> list[Job]:
        return await self._app.jobs.browse(Filter(limit=LISTED_MAX))


def run_jobs(
    app: Fairway,
    play: Callable[[JobsUnderTest], Awaitable[None]],
    *,
    seed: int = 0,
    concurrency: int = 10,
) -> None:
    """Play with the jobs of an app on virtual time, in memory. The same seed plays the same."""

    async def main() -> None:
        feeder = FeederConfig(concurrency=concurrency, max_poll_interval_ns=HOUR_NS)
        queues = dict.fromkeys(app.queues, feeder)
        # Nobody else is at work on the store, so nothing has to be looked for.
        upkeep = Upkeep(timer_interval_ns=HOUR_NS, age_interval_ns=HOUR_NS)
        config = WorkerConfig(queues=queues, upkeep=upkeep)
        async with app.working(config, store=MemoryStore()):
            await play(JobsUnderTest(app))

    run(main, seed=seed)

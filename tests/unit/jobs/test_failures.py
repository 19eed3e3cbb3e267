"""Jobs that nobody tries again are told in the log, once each, and kept for a while."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from fairway.core.priority import Band
from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.job import Fate, Filter, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.store import Want
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.upkeep import Upkeep
from tests.conformance.job_backends import ManualClock
from tests.unit.jobs.test_worker import Jobs, play, until

SECOND_NS = 1_000_000_000
DAY_NS = 24 * 3600 * SECOND_NS
OTHERS = ReadyLine("others", "", Band.B1)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "fairway.jobs" and record.levelno == logging.WARNING
    ]


def test_a_job_that_fails_for_good_is_told_in_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def fails(ctx: Context[Any]) -> None:
            raise ValueError(f"no {ctx.attempt}\nof two lines")

        async def stops(ctx: Context[Any]) -> Any:
            return ctx.stop("")

        async def works() -> None: ...

        for one in (fails, stops, works):
            jobs.kind(one)
        async with jobs.working() as part:
            ids = [
                await jobs.add(part, kind, max_attempts=3) for kind in ("fails", "stops", "works")
            ]
            cancelled = await jobs.add(part, "works", delay_ns=SECOND_NS)
            await part.engine.cancel(cancelled)
            await until(lambda: all(jobs.store.commits[id] for id in ids))
        assert warnings(caplog) == [
            f"job {ids[1]} (stops) failed for good at attempt 1: it said nothing",
            f"job {ids[0]} (fails) failed for good at attempt 3: of two lines",
        ]

    play(scene)


def test_a_job_that_is_dead_is_told_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        jobs = Jobs()
        async with jobs.working():
            (added,) = await jobs.store.enqueue(
                [NewJob(kind="bomb", queue="others", max_crashes=2)]
            )
            for _ in range(2):
                lost = await jobs.store.register("another", SECOND_NS)
                lines = [OTHERS._replace(band=band) for band in Band]  # waiting moves it up
                await jobs.store.exchange(lost, 1, wants=[Want(line, 1) for line in lines])
                row = jobs.store._rows[added.id]
                assert row.status is Status.RUNNING
                await until(lambda row=row: row.status is not Status.RUNNING, step_s=1)
            assert await jobs.status(added.id) is Status.DEAD
        deaths = [line for line in warnings(caplog) if "bomb" in line]
        assert deaths == [f"job {added.id} (bomb) is dead at attempt 2: its worker died 2 times"]

    play(scene)


@pytest.mark.parametrize(
    ("days", "kept"), [(0, {"d", "f", "k", "c"}), (1, {"f", "k"}), (29, {"f", "k"}), (30, set())]
)
def test_failures_are_kept_longer_than_successes(days: int, kept: set[str]) -> None:
    async def scene() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.open()
        for end in ("d", "f", "k", "c"):
            (added,) = await store.enqueue([NewJob(kind="old")])
            store._end(store._rows[added.id], Status(end), None, None)
        clock.ns += days * DAY_NS
        assert await Upkeep().prune(store) == 4 - len(kept)
        assert {job.status.value for job in await store.browse(Filter())} == kept

    asyncio.run(scene())


def test_the_dedup_key_of_a_signal_stands_for_a_week_after_it_was_dealt_with() -> None:
    async def scene() -> None:
        clock = ManualClock()
        store = MemoryStore(clock)
        await store.open()
        worker = await store.register("w", 100 * DAY_NS)
        (added,) = await store.enqueue([NewJob(kind="account", queue="others")])
        (claim,) = (await store.exchange(worker, 1, wants=[Want(OTHERS, 1)])).claims
        await store.exchange(worker, 2, [Settlement(claim=claim, fate=Fate.WAIT, names=("pay",))])
        assert (await store.signal(added.id, "pay", b"1", dedup="d")).fresh
        (claim,) = (await store.exchange(worker, 3, wants=[Want(OTHERS, 1)])).claims
        await store.exchange(worker, 4, [Settlement(claim=claim, fate=Fate.WAIT, names=("pay",))])
        clock.ns += 7 * DAY_NS - 1
        await Upkeep().prune(store)
        assert not (await store.signal(added.id, "pay", b"1", dedup="d")).fresh
        clock.ns += 1
        await Upkeep().prune(store)
        assert (await store.signal(added.id, "pay", b"1", dedup="d")).fresh

    asyncio.run(scene())

"""Workers with different code on one queue: what one does not know keeps it from nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway.core.priority import Band
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import ASIDE_MAX, Fate, Filter, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.store import Want
from fairway.jobs.stores.sqlite import SqliteStore
from fairway.jobs.worker import Worker, WorkerConfig
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fairway.jobs.store import Exchanged, JobStore

UNKNOWN = 10_000
POLL_NS = 50_000_000
LINE = ReadyLine("default", "", Band.B1)
schemas = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], JobStore]:
    """Opens the same store again and again, as processes would."""
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "jobs.db")
    from fairway.jobs.stores.postgres import PostgresStore

    schema = f"rolling_{next(schemas)}"
    return lambda: PostgresStore(postgres_url(), schema=schema)


class Deployed:
    """A worker with the code for some kinds, on a store of its own."""

    def __init__(self, store: JobStore, *names: str, concurrency: int = 10) -> None:
        self.store = store
        self.ran: Counter[str] = Counter()
        self.exchanges = 0
        self.claimed = 0
        kinds = Kinds()
        for name in names:
            kinds.add(function_kind(self._work(name), name, 1, Options()))
        self.jobs = Jobs(store, kinds)
        feeder = FeederConfig(
            concurrency=concurrency, poll_interval_ns=POLL_NS, max_poll_interval_ns=POLL_NS
        )
        config = WorkerConfig(queues={"default": feeder})
        self.worker = Worker(store, kinds.by_version, config, on_ended=self.jobs.on_ended)
        self.jobs.attach(self.worker)
        inner = store.exchange

        async def exchange(*args: Any, **options: Any) -> Exchanged:
            out = await inner(*args, **options)
            self.exchanges += 1
            self.claimed += len(out.claims)
            return out

        store.exchange = exchange  # type: ignore[method-assign]

    def _work(self, name: str) -> Callable[..., Any]:
        async def work() -> str:
            self.ran[name] += 1
            return name

        return work

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Deployed]:
        await self.store.open()
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(self.worker.run())
                await self.worker.wait_started()
                yield self
                await self.worker.drain()
                running.cancel()
        finally:
            await self.store.aclose()


def test_jobs_behind_thousands_of_an_unknown_kind_start_and_the_worker_does_not_spin(
    place: Callable[[], JobStore],
) -> None:
    async def play() -> None:
        async with asyncio.timeout(120):
            old = Deployed(place(), "x")
            await old.store.open()
            await old.store.enqueue([NewJob(kind="y") for _ in range(UNKNOWN)])
            (behind,) = await old.store.enqueue([NewJob(kind="x")])
            await old.store.aclose()
            async with old.working():
                assert await old.jobs.result(behind.id) == "x"
                # The bound of the documentation: a thousand of them an exchange, and a few looks.
                assert old.exchanges <= UNKNOWN // ASIDE_MAX + 8
                assert old.claimed <= (UNKNOWN // ASIDE_MAX + 2) * 10
                claimed = old.claimed
                for _ in range(5):  # none of them stands in the way of what comes later, either
                    (later,) = await old.jobs.enqueue([NewJob(kind="x")])
                    await old.jobs.result(later.id)
                assert old.claimed == claimed + 5
                (queue,) = await old.jobs.queues()
                assert (queue.ready, queue.scheduled, queue.running) == (UNKNOWN, 0, 0)
                shown = await old.jobs.browse(Filter(kind="y", limit=5))
                assert {(one.status, one.error, one.attempt) for one in shown} == {
                    (Status.READY, "waits for a worker that knows the kind 'y', version 1", 0)
                }
                async with Deployed(place(), "x", "y", concurrency=2_000).working() as new:
                    (last,) = await new.jobs.browse(Filter(kind="y", limit=1))
                    assert await new.jobs.result(last.id) == "y"
                    while (await new.jobs.queues())[0].ready:
                        await asyncio.to_thread(lambda: None)  # the new one is at work
                assert new.ran["y"] == UNKNOWN
                assert old.ran["y"] == 0

    asyncio.run(play())


def test_old_and_new_workers_share_a_queue_while_one_replaces_the_other(
    place: Callable[[], JobStore],
) -> None:
    async def play() -> None:
        async with asyncio.timeout(120):
            old, new = Deployed(place(), "x"), Deployed(place(), "x", "y")
            async with old.working(), new.working():
                for _ in range(10):
                    mixed = [NewJob(kind=kind) for kind in ("y", "x") * 10]
                    added = await old.jobs.enqueue(mixed)
                    results = [await new.jobs.result(one.id) for one in added]
                    assert results == ["y", "x"] * 10
            assert (old.ran["y"], new.ran["y"]) == (0, 100)
            assert old.ran["x"] + new.ran["x"] == 100

    asyncio.run(play())


def test_attempts_are_numbered_on_where_an_older_release_did_not_count(
    place: Callable[[], JobStore],
) -> None:
    """It ends jobs and forgets how often they ran, in PostgreSQL: a retry by hand finds it."""

    async def play() -> None:
        store = place()
        await store.open()
        worker = await store.register("new", 10**15)
        token = 0

        async def fail() -> None:
            nonlocal token
            token += 1
            (claim,) = (await store.exchange(worker, token, wants=[Want(LINE, 1)])).claims
            one = Settlement(claim=claim, fate=Fate.FAILED, error=f"no {token}")
            assert (await store.exchange(worker, token, [one])).stale == []

        (added,) = await store.enqueue([NewJob(kind="x")])
        for _ in range(3):
            await fail()
            await forget_runs(store)
            assert await store.retry([added.id]) == [added.id]
        attempts = await store.attempts(added.id)
        assert attempts[-1].error == "no 3"
        (claim,) = (await store.exchange(worker, 9, wants=[Want(LINE, 1)])).claims
        (running,) = [one for one in await store.attempts(claim.id) if one.fate is None]
        assert running.number > attempts[-1].number
        await store.aclose()

    asyncio.run(play())


async def forget_runs(store: JobStore) -> None:
    """What an older release leaves of jobs that it has ended: in SQLite, where their rows stay,
    all that is there."""
    if not isinstance(store, SqliteStore):
        connections = store._connections  # type: ignore[attr-defined]
        async with connections.connection() as connection:
            await connection.execute(f"update {connections.schema}.history set runs = 0")

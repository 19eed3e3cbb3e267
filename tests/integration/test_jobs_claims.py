"""PostgreSQL crashes and its workers do not: which claims it still has, and what becomes of runs.

The server writes its log ahead rarely here, so that what nobody waited for is gone with the crash.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from fairway.errors import FairwayError
from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.engine import Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Limits, NewJob, Status
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.worker import Worker, WorkerConfig
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conftest import Campaign

MILLISECOND_NS = 1_000_000
LOOK_S = 0.01
"""How often it is looked how far they are."""
CONFIG = WorkerConfig(
    queues={
        "default": FeederConfig(
            concurrency=4,
            poll_interval_ns=50 * MILLISECOND_NS,
            max_poll_interval_ns=100 * MILLISECOND_NS,
        )
    },
    heartbeat_interval_ns=500 * MILLISECOND_NS,
)
LIMIT = 2
schemas = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    with (made.directory / "data" / "postgresql.auto.conf").open("a") as conf:
        conf.write("wal_writer_delay = '10s'\nwal_writer_flush_after = '1GB'\n")
    with made:
        yield made


class Begun(NamedTuple):
    job: int
    attempt: int


class Floor:
    """Workers of their own processes' kind, each with its store, and what runs where."""

    def __init__(self, url: str, **options: Any) -> None:
        self.schema = f"claims_{next(schemas)}"
        self._url = url
        self._options = options
        self.begun: list[Begun] = []
        self.stopped: list[Begun] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.gate = asyncio.Event()
        self._kinds = Kinds()
        for name, options_of in (("plain", {}), ("keyed", {"partition_key": "{key}"})):
            kind = function_kind(self._held, name, 1, Options(**options_of))
            self._kinds.add(kind)

    async def _held(self, ctx: Context[Any], key: str) -> None:
        """Runs until the test lets it; noted by key, of which one may run, and all together."""
        this = Begun(ctx.id, ctx.attempt)
        self.begun.append(this)
        self.running.update((key, "all"))
        for name in (key, "all"):
            self.most[name] = max(self.most[name], self.running[name])
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped.append(this)
            raise
        finally:
            self.running.subtract((key, "all"))

    @asynccontextmanager
    async def store(self) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(self._url, schema=self.schema, **self._options)
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        async with self.store() as store, asyncio.TaskGroup() as group:
            worker = Worker(store, self._kinds.by_version, CONFIG)
            running = group.create_task(worker.run())
            try:
                yield
            finally:
                self.gate.set()
                await worker.drain()
                running.cancel()


def jobs(kind: str, count: int, keys: int = 1_000) -> list[NewJob]:
    return [
        NewJob(
            kind=kind,
            state=b'{"key": "k%d"}' % (n % keys),
            partition_key=f"k{n % keys}" if kind == "keyed" else None,
        )
        for n in range(count)
    ]


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)


async def crash(server: PostgresServer) -> None:
    """As a power cut of the database's machine: nothing is flushed, nobody is told."""
    await asyncio.to_thread(server.stop, "immediate")
    await asyncio.to_thread(server.start)


async def all_done(floor: Floor, ids: list[int]) -> list[int]:
    """Until they are; the crashes of each."""
    async with floor.store() as store:
        while True:
            found = [await store.find(id) for id in ids]
            if all(job is not None and job.status is Status.DONE for job in found):
                return [job.crashes for job in found if job is not None]
            await asyncio.sleep(LOOK_S)


def test_relaxed_claims_that_a_crash_undid_are_stopped_and_run_again_under_another_count(
    server: PostgresServer,
) -> None:
    async def scenario() -> None:
        floor = Floor(server.url())
        async with floor.store() as store:
            ids = [one.id for one in await store.enqueue(jobs("plain", 4))]
        async with floor.worker():
            await until(lambda: len(floor.begun) == 4)
            await crash(server)
            await until(lambda: len(floor.stopped) == 4)
            assert sorted(floor.stopped) == [(id, 1) for id in ids]
            await until(lambda: len(floor.begun) == 8)
            assert sorted(floor.begun[4:]) == [(id, 2) for id in ids]
            floor.gate.set()
            assert await all_done(floor, ids) == [1, 1, 1, 1]
        assert len(floor.begun) == 8

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "limits", "options"),
    [
        ("keyed", Limits(), {}),
        ("plain", Limits(concurrency=LIMIT), {}),
        ("plain", Limits(), {"claims": "durable"}),
    ],
    ids=["partition key", "limit", "durable"],
)
def test_claims_under_a_key_or_a_limit_and_durable_ones_outlive_a_crash(
    server: PostgresServer, kind: str, limits: Limits, options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        floor = Floor(server.url(), **options)
        async with floor.store() as store:
            await store.set_limits("default", limits)
            ids = [one.id for one in await store.enqueue(jobs(kind, LIMIT))]
        async with floor.worker():
            await until(lambda: len(floor.begun) == LIMIT)
            await crash(server)
            async with floor.worker():  # another one, which would have them if they were free
                async with floor.store() as store:
                    more = [one.id for one in await store.enqueue(jobs(kind, LIMIT, keys=LIMIT))]
                    found = [await store.find(id) for id in ids]
                assert [job and job.status for job in found] == [Status.RUNNING] * LIMIT
                floor.gate.set()
                assert await all_done(floor, [*ids, *more]) == [0] * 2 * LIMIT
        assert sorted(floor.begun) == [(id, 1) for id in (*ids, *more)]
        assert floor.stopped == []
        if kind == "keyed":
            assert max(floor.most[f"k{n}"] for n in range(LIMIT)) == 1
        if limits.concurrency is not None:
            assert floor.most["all"] <= limits.concurrency

    asyncio.run(scenario())


def test_no_key_overlaps_and_no_limit_is_passed_while_the_database_crashes(
    server: PostgresServer, campaign: Campaign
) -> None:
    rng = campaign.random()

    async def scenario() -> None:
        floor = Floor(server.url())
        ids: list[int] = []
        async with floor.store() as store:
            await store.set_limits("default", Limits(concurrency=3))
        async with floor.worker(), floor.worker():
            for _ in range(campaign.rounds(share=1, full=25)):
                floor.gate.clear()
                async with floor.store() as store:
                    ids += [one.id for one in await store.enqueue(jobs("keyed", 12, keys=4))]
                begun = len(floor.begun)
                await until(lambda begun=begun: len(floor.begun) > begun)
                for _ in range(rng.randint(0, 20)):
                    await asyncio.sleep(0)
                await crash(server)
                campaign.tally["crashes"] += 1
                floor.gate.set()
                crashes = await all_done_again(floor, ids)
        assert crashes == [0] * len(ids)
        assert {key: most for key, most in floor.most.items() if key != "all"} == {
            f"k{n}": 1 for n in range(4)
        }
        assert floor.most["all"] <= 3

    asyncio.run(scenario())


async def all_done_again(floor: Floor, ids: list[int]) -> list[int]:
    while True:
        try:
            return await all_done(floor, ids)
        except FairwayError:
            await asyncio.sleep(LOOK_S)

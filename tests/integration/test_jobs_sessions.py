"""PostgreSQL ends sessions in the middle of everything: callers get our errors, workers go on."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from fairway.core.priority import Band
from fairway.errors import FairwayError, InvalidConfig, OutcomeUnknown, Unavailable, WriteFailed
from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.engine import Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import NewJob, ReadyLine, Status
from fairway.jobs.kinds import Options, function_kind
from fairway.jobs.store import Want
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.stores.postgres.connections import answering, trouble
from fairway.jobs.worker import Worker, WorkerConfig
from tests.support.late_close import LateClose
from tests.support.postgres import postgres_server, postgres_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.conftest import Campaign

MILLISECOND_NS = 1_000_000
JOBS_A_ROUND = 40
WORK_S = 0.001
HANGS_S = 30
"""What takes longer would never come. A heartbeat is due sooner, and stops nothing here."""
LOOK_S = 0.01
"""How often it is looked how far they are."""
schemas = itertools.count(1)


def new_schema() -> str:
    return f"sessions_{next(schemas)}"


async def end_sessions(schema: str, *those: str) -> int:
    """End every session of a store, or those, as an administrator, a failover or a restart does."""
    names = [f"fairway {schema} {one}" for one in those] or [
        f"fairway {schema}",
        "fairway heartbeat",
    ]
    connection = await psycopg.AsyncConnection.connect(postgres_url(), autocommit=True)
    async with connection:
        cursor = await connection.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            " where application_name = any(%s)",
            (names,),
        )
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


@asynccontextmanager
async def opened(url: str, schema: str, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, schema=schema, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.aclose()


CALLS: dict[str, Callable[[PostgresStore], Any]] = {
    "enqueue": lambda store: store.enqueue([NewJob(kind="work")]),
    "enqueue_many": lambda store: store.enqueue([NewJob(kind="work")] * 3),
    "exchange": lambda store: store.exchange(1, 1, probe=["default"]),
    "find": lambda store: store.find(1),
    "queues": lambda store: store.queues(),
    "signal": lambda store: store.signal(1, "name", b"1"),
    "reap": lambda store: store.reap(10),
    "schedules": lambda store: store.timetable.entries(),
    "put_schedule": lambda store: store.timetable.put("s", "{}"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_session_that_ended_and_is_not_closed_yet_is_an_error_of_ours(call: str) -> None:
    """And the connection leaves the pool: the next call has another one."""

    async def scenario() -> None:
        schema = new_schema()
        async with (
            LateClose(postgres_server().directory) as proxy,
            opened(proxy.url, schema, connections=1) as store,
        ):
            await store.enqueue([NewJob(kind="work")])
            await CALLS[call](store)  # whichever session it uses is there then
            before = proxy.ended
            ended = await end_sessions(schema)
            await proxy.wait_ended(before + ended)
            for _ in range(100):  # what the server said last is on its way to us
                await asyncio.sleep(0)
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await CALLS[call](store)
            await CALLS[call](store)
            proxy.let_close()

    asyncio.run(scenario())


def test_runs_whose_keys_went_with_their_session_are_stopped_at_once() -> None:
    """Not at the next heartbeat, nor when they end: others may have the keys by now."""

    async def scenario() -> None:
        schema = new_schema()
        begun: asyncio.Queue[int] = asyncio.Queue()
        stopped: asyncio.Queue[str] = asyncio.Queue()
        kinds = Kinds()

        async def hold(ctx: Context[Any]) -> None:
            begun.put_nowait(ctx.attempt)
            if ctx.attempt == 1:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError as error:
                    stopped.put_nowait(str(error))
                    raise

        kinds.add(function_kind(hold, "hold", 1, Options()))
        async with opened(postgres_url(), schema, keys="advisory") as store:
            worker = Worker(store, kinds.by_version, WorkerConfig())
            async with asyncio.TaskGroup() as group:
                running = group.create_task(worker.run())
                added = await store.enqueue(
                    [NewJob(kind="hold", partition_key=f"k{n}") for n in range(3)]
                )
                worker.look("default")
                assert [await begun.get() for _ in added] == [1, 1, 1]
                assert await end_sessions(schema, "keys") == 1
                async with asyncio.timeout(HANGS_S):
                    told = {await stopped.get() for _ in added}
                    assert told == {"its partition key was lost"}
                    assert [await begun.get() for _ in added] == [2, 2, 2]
                while await unfinished(store):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
                for one in added:
                    job = await store.find(one.id)
                    assert job is not None
                    assert (job.status, job.attempt, job.crashes) == (Status.DONE, 0, 1)
                running.cancel()

    asyncio.run(scenario())


def test_a_claim_whose_key_went_before_the_worker_heard_of_it_is_given_back() -> None:
    async def scenario() -> None:
        async with opened(postgres_url(), new_schema(), keys="advisory") as store:
            worker = await store.register("w", 60_000 * MILLISECOND_NS)
            (added,) = await store.enqueue([NewJob(kind="hold", partition_key="k")])
            locks = store._locks
            assert locks is not None
            take = locks.take

            async def take_and_lose(wanted: Any) -> Any:
                won = await take(wanted)
                assert locks._connection is not None
                locks._connection.terminate()
                while locks._by_claim:  # noqa: ASYNC110  it is told by the loop
                    await asyncio.sleep(0)
                return won

            locks.take = take_and_lose  # type: ignore[method-assign]
            wants = [Want(ReadyLine("default", "", Band.B1), 1)]
            assert (await store.exchange(worker, 1, wants=wants)).claims == []
            job = await store.find(added.id)
            assert job is not None
            assert (job.status, job.attempt, job.crashes) == (Status.READY, 0, 0)
            locks.take = take  # type: ignore[method-assign]
            (claim,) = (await store.exchange(worker, 2, wants=wants)).claims
            assert claim.id == added.id

    asyncio.run(scenario())


@pytest.mark.parametrize("late", [False, True], ids=["direct", "late close"])
def test_a_worker_outlives_the_end_of_its_sessions_under_load(
    late: bool, campaign: Campaign
) -> None:
    rounds = campaign.rounds(share=8, full=120)

    async def scenario() -> None:
        schema = new_schema()
        kinds = Kinds()
        ran: set[int] = set()

        async def work() -> None:
            await asyncio.sleep(WORK_S)

        kinds.add(function_kind(work, "work", 1, Options()))
        feeder = FeederConfig(concurrency=8, poll_interval_ns=20 * MILLISECOND_NS)
        config = WorkerConfig(
            queues={"default": feeder}, heartbeat_interval_ns=100 * MILLISECOND_NS
        )
        async with (
            LateClose(postgres_server().directory, delay_s=0.3) as proxy,
            opened(proxy.url if late else postgres_url(), schema) as store,
            opened(postgres_url(), schema) as hand,
        ):
            worker = Worker(
                store,
                kinds.by_version,
                config,
                on_ended=lambda ended: ran.update(one.id for one in ended),
            )
            async with asyncio.TaskGroup() as group:
                running = group.create_task(worker.run())
                ids: list[int] = []
                ended = 0
                for _ in range(rounds):
                    while True:
                        try:
                            added = await hand.enqueue([NewJob(kind="work")] * JOBS_A_ROUND)
                        except FairwayError:  # of the hand, too, sessions were ended
                            continue
                        break
                    ids += [one.id for one in added]
                    target = len(ran) + JOBS_A_ROUND // 4
                    while len(ran) < target and not running.done():  # noqa: ASYNC110
                        await asyncio.sleep(LOOK_S)
                    ended += await end_sessions(schema)
                    assert not running.done()
                while await unfinished(hand):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
                campaign.tally["sessions ended"] += ended
                assert ended >= rounds
                await worker.drain()
                running.cancel()
            for id in ids:
                job = await hand.find(id)
                assert job is not None
                assert job.status is Status.DONE

    asyncio.run(scenario())


async def unfinished(store: PostgresStore) -> int:
    try:
        (queue,) = await store.queues()
    except FairwayError:
        return 1
    return queue.ready + queue.scheduled + queue.running


def of_the_driver(error: Exception) -> Exception:
    """As it comes out of asyncpg: raised in its code."""
    source = "def call(error):\n    raise error\n"
    namespace: dict[str, Any] = {"__name__": "asyncpg.somewhere"}
    exec(source, namespace)
    try:
        namespace["call"](error)
    except Exception as raised:
        return raised
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation is in progress"),
        asyncpg.InterfaceError("the underlying connection is closed"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        asyncpg.AdminShutdownError("terminating connection due to administrator command"),
        asyncpg.CrashShutdownError("terminating connection because of crash"),
        asyncpg.CannotConnectNowError("the database system is starting up"),
        ConnectionResetError("reset"),
        TimeoutError(),
        ssl.SSLError("bad record"),
        RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
        AttributeError("'NoneType' object has no attribute 'write'"),
        psycopg.OperationalError("server closed the connection unexpectedly"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_of_a_driver_is_one_of_ours(error: Exception) -> None:
    for sent, expected in ((True, OutcomeUnknown), (False, Unavailable)):
        with pytest.raises(expected), answering(sent=sent):
            raise of_the_driver(error)


def test_an_error_of_our_own_is_not_taken_for_one_of_the_driver() -> None:
    with pytest.raises(KeyError), answering(sent=True):
        raise KeyError("ours")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (asyncpg.InvalidPasswordError("password authentication failed"), InvalidConfig),
        (asyncpg.InvalidCatalogNameError("database does not exist"), InvalidConfig),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), Unavailable),
        (asyncpg.DiskFullError("no space left"), WriteFailed),
    ],
)
def test_what_the_server_says_is_told_by_what_can_be_done(
    error: Exception, expected: type[FairwayError]
) -> None:
    assert type(trouble(error, sent=False)) is expected

"""Jobs on one PostgreSQL that several processes use at the same moment.

Each store here has connections of its own, as in a process of its own. Whether one waits for
another is read in the database, never guessed from time. That every order of statements is right is
shown in `test_jobs_interleaved.py`, and with real processes in `test_jobs_storm.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fairway.core.priority import Band
from fairway.errors import FairwayError, Invalid, InvalidConfig, LockTimeout, TransactionConflict
from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.engine import Jobs, Kinds
from fairway.jobs.job import Fate, Filter, Limits, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.kinds import Options, Order, function_kind, machine_kind
from fairway.jobs.outcome import Outcome  # noqa: TC001  annotations of jobs are read
from fairway.jobs.store import Want
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.worker import Worker, WorkerConfig
from tests.support.postgres import empty, postgres_server, postgres_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

MILLISECOND_NS = 1_000_000
MINUTE_NS = 60_000 * MILLISECOND_NS
LINE = ReadyLine("default", "", Band.B1)
ONCE = NewJob(kind="mail", unique_key="once")
_schemas = itertools.count(1)
_free: list[str] = []
"""Schemas that are empty again: to make the tables takes longer than a test."""


@asynccontextmanager
async def stores(count: int = 2, **options: Any) -> AsyncIterator[list[PostgresStore]]:
    """Stores on one schema, each with connections of its own, as in so many processes."""
    schema = _free.pop() if _free else f"shared_postgres_{next(_schemas)}"
    made = [PostgresStore(postgres_url(), schema=schema, **options) for _ in range(count)]
    try:
        for store in made:
            await store.open()
        yield made
    finally:
        for store in made:
            await store.aclose()
        empty(postgres_url(), schema)
        _free.append(schema)


@asynccontextmanager
async def transaction() -> AsyncIterator[Any]:
    """A connection of the user's, in a transaction that is rolled back unless they committed."""
    connection = await asyncpg.connect(postgres_url())
    try:
        await connection.execute("begin")
        yield connection
    finally:
        await connection.close()


async def waits_for(holder: Any, task: asyncio.Task[Any]) -> None:
    """Until somebody waits for a lock that `holder` has. Fails if `task` ends instead."""
    look = await asyncpg.connect(postgres_url())
    try:
        pid = holder.get_server_pid() if hasattr(holder, "get_server_pid") else holder
        text = "select count(*) from pg_stat_activity where $1 = any(pg_blocking_pids(pid))"
        while not await look.fetchval(text, pid):
            assert not task.done(), f"it did not wait: {task}"
    finally:
        await look.close()


def scene(play: Coroutine[Any, Any, None]) -> None:
    asyncio.run(play)


# --- timers


def test_a_timer_that_was_left_ends_no_later_wait_and_is_removed() -> None:
    """Of the job that waits anew, and of a job that is gone."""

    async def play() -> None:
        async with stores(1) as (store,), transaction() as hand:
            worker = await store.register("w", MINUTE_NS)
            (waits,) = await store.enqueue([NewJob(kind="mail")])
            (claim,) = (await store.exchange(worker, 1, wants=[Want(LINE, 1)])).claims
            left = f"insert into {store._connections.schema}.timer values ($1, now())"
            await hand.executemany(left, [(waits.id,), (waits.id + 1,)])
            await hand.execute("commit")
            wait = Settlement(claim=claim, fate=Fate.WAIT, step="then", names=("go",))
            await store.exchange(worker, 2, [wait])
            promoted = await store.promote(1)
            assert (promoted.moved, promoted.next_due_ns) == (0, None)
            (job,) = await store.browse(Filter())
            assert (job.status, job.due_wall_ns) == (Status.WAITING, None)

    scene(play())


# --- unique keys


@pytest.mark.parametrize("window_ns", [0, MINUTE_NS])
@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
def test_a_key_that_an_open_transaction_holds_is_waited_for(kept: bool, window_ns: int) -> None:
    async def play() -> None:
        new = NewJob(kind="mail", unique_key="once", window_ns=window_ns)
        async with stores() as (one, other), transaction() as caller, asyncio.TaskGroup() as group:
            (first,) = await one.enqueue([new], within=caller)
            second = group.create_task(other.enqueue([new]))
            await waits_for(caller, second)
            await caller.execute("commit" if kept else "rollback")
            (answer,) = await second
            assert (answer.id == first.id, answer.fresh) == (kept, not kept)
            assert len(await one.browse(Filter())) == 1

    scene(play())


def test_a_statement_that_is_cancelled_for_somebody_else_is_tried_again() -> None:
    """PostgreSQL cancels what a session does when the request arrives: it may be the next one."""

    async def play() -> None:
        async with stores(1) as (store,), transaction() as other, asyncio.TaskGroup() as group:
            (added,) = await store.enqueue([NewJob(kind="mail")])
            await other.fetch(f"select 1 from {store._connections.schema}.job for update")
            sent = group.create_task(store.signal(added.id, "go", b"1"))
            await waits_for(other, sent)
            cancel = (
                "select pg_cancel_backend(pid) from pg_stat_activity"
                " where $1 = any(pg_blocking_pids(pid))"
            )
            assert await other.fetchval(cancel, other.get_server_pid())
            await waits_for(other, sent)
            await other.execute("rollback")
            assert (await sent).fresh

    scene(play())


def test_a_key_whose_job_has_ended_is_taken_by_one_of_two() -> None:
    """The row of the key is there: both could find that it stands for nothing any more."""

    async def play() -> None:
        async with stores() as (one, other), transaction() as caller, asyncio.TaskGroup() as group:
            (ended,) = await one.enqueue([ONCE])
            holds = await asyncpg.connect(postgres_url())
            await holds.execute("begin")
            schema = one._connections.schema
            await holds.execute(f"select * from {schema}.unique_key for update")
            await other.cancel([ended.id])  # it does not wait, and leaves the key to others
            await holds.close()
            (first,) = await one.enqueue([ONCE], within=caller)
            second = group.create_task(other.enqueue([ONCE]))
            await waits_for(caller, second)
            await caller.execute("commit")
            (answer,) = await second
            assert (first.fresh, answer.id, answer.fresh) == (True, first.id, False)

    scene(play())


def test_a_retry_waits_for_a_key_that_an_open_transaction_holds() -> None:
    async def play() -> None:
        async with stores() as (one, other), transaction() as caller, asyncio.TaskGroup() as group:
            (failed,) = await one.enqueue([ONCE])
            await one.cancel([failed.id])
            (fresh,) = await one.enqueue([ONCE], within=caller)
            retried = group.create_task(other.retry([failed.id]))
            await waits_for(caller, retried)
            await caller.execute("commit")
            assert await retried == []
            assert [job.id for job in await one.browse(Filter(status=Status.READY))] == [fresh.id]

    scene(play())


def test_of_two_ended_jobs_with_one_key_the_first_is_retried() -> None:
    async def play() -> None:
        async with stores(1) as (store,):
            ended = []
            for _ in range(2):
                (added,) = await store.enqueue([ONCE])
                await store.cancel([added.id])
                ended.append(added.id)
            assert await store.retry(ended) == ended[:1]

    scene(play())


def test_whoever_waits_for_a_key_for_too_long_is_refused_and_may_try_again() -> None:
    async def play() -> None:
        async with (
            stores(lock_timeout_ns=30 * MILLISECOND_NS) as (one, other),
            transaction() as caller,
        ):
            (first,) = await one.enqueue([ONCE], within=caller)
            with pytest.raises(LockTimeout, match="a transaction of somebody else is in the way"):
                await other.enqueue([NewJob(kind="mail"), ONCE])
            assert await other.browse(Filter()) == []
            await caller.execute("commit")
            (again,) = await other.enqueue([ONCE])
            assert (again.id, again.fresh) == (first.id, False)

    scene(play())


def test_whoever_waits_for_no_key_is_behind_nobody_who_does() -> None:
    """A hundred callers wait for a key: half of the connections wait, and all else goes on."""

    async def play() -> None:
        async with (
            stores(lock_timeout_ns=50_000 * MILLISECOND_NS) as (one, other),
            transaction() as caller,
            asyncio.TaskGroup() as group,
        ):
            (ended,) = await one.enqueue([NewJob(kind="mail", unique_key="retried")])
            await one.cancel([ended.id])
            await one.enqueue([ONCE, NewJob(kind="mail", unique_key="retried")], within=caller)
            calls = [group.create_task(other.enqueue([ONCE])) for _ in range(100)]
            retried = [group.create_task(other.retry([ended.id])) for _ in range(10)]
            in_line = len(calls) + len(retried) - 4
            while len(other._waiting_line._waiting._waiters or ()) < in_line:  # noqa: ASYNC110
                await asyncio.sleep(0)
            text = (
                "select count(*) from pg_stat_activity"
                " where wait_event_type = 'Lock' and application_name = $1"
            )
            async with other._connections.connection() as connection:
                name = await connection.fetchval("show application_name")
                while await connection.fetchval(text, name) != 4:
                    pass
            (plain,) = await other.enqueue([NewJob(kind="mail")])
            (another,) = await other.enqueue([NewJob(kind="mail", unique_key="another")])
            worker = await other.register("w", MINUTE_NS)
            (claim, _) = (await other.exchange(worker, 1, wants=[Want(LINE, 2)])).claims
            assert claim.id == plain.id
            out = await other.exchange(worker, 2, [Settlement(claim=claim, fate=Fate.DONE)])
            assert [one.id for one in out.ended] == [plain.id]
            assert await other.find(another.id) is not None
            assert not any(call.done() for call in (*calls, *retried))
            await caller.execute("rollback")
            answers = [(await call)[0] for call in calls]
            assert (len({one.id for one in answers}), sum(one.fresh for one in answers)) == (1, 1)
            assert sorted([await one for one in retried])[-1] == [ended.id]

    scene(play())


@pytest.mark.parametrize("before", ["0", "7min", "1ms"])
def test_a_refusal_leaves_the_callers_transaction_as_it_was(before: str) -> None:
    async def play() -> None:
        async with (
            stores(lock_timeout_ns=30 * MILLISECOND_NS) as (one, other),
            transaction() as caller,
            transaction() as second,
        ):
            await one.enqueue([ONCE], within=caller)
            await second.execute(f"set local lock_timeout = '{before}'")
            with pytest.raises(LockTimeout):
                await other.enqueue([ONCE], within=second)
            await other.enqueue([NewJob(kind="mail", unique_key="another")], within=second)
            assert await second.fetchval("show lock_timeout") == before
            await second.execute("commit")
            assert [job.unique_key for job in await one.browse(Filter())] == ["another"]

    scene(play())


def test_a_worker_does_not_wait_for_a_transaction_that_asked_for_the_key_of_its_job() -> None:
    async def play() -> None:
        async with stores() as (one, other), transaction() as caller:
            (new,) = await one.enqueue([ONCE])
            worker = await other.register("w", MINUTE_NS)
            (claim,) = (await other.exchange(worker, 1, wants=[Want(LINE, 1)])).claims
            (known,) = await one.enqueue([ONCE], within=caller)
            assert (known.id, known.fresh) == (new.id, False)
            out = await other.exchange(worker, 2, [Settlement(claim=claim, fate=Fate.DONE)])
            assert [ended.id for ended in out.ended] == [new.id]
            await caller.execute("commit")
            (next_one,) = await one.enqueue([ONCE])
            assert next_one.fresh

    scene(play())


def test_pruning_forgets_no_key_that_was_taken_while_it_looked() -> None:
    async def play() -> None:
        async with stores() as (one, other), transaction() as caller, asyncio.TaskGroup() as group:
            (ended,) = await one.enqueue([ONCE])
            async with one._connections.connection() as connection:
                await connection.execute(f"delete from {one._connections.schema}.job")
            assert await one.find(ended.id) is None
            await one.enqueue([ONCE], within=caller)
            pruned = group.create_task(other.prune(MINUTE_NS))
            await asyncio.wait({pruned}, timeout=0.2)  # it waits for the key, or passes it over
            await caller.execute("commit")
            await pruned
            (answer,) = await other.enqueue([ONCE])
            assert not answer.fresh

    scene(play())


@pytest.mark.parametrize("makes", [True, False])
def test_a_day_that_another_one_makes_or_drops_meanwhile_is_no_failure(makes: bool) -> None:
    async def play() -> None:
        async with stores() as (one, other), transaction() as caller, asyncio.TaskGroup() as group:
            today, *_ = await days(one)
            day = today if makes else "history_20200101"
            text = f"{day[-8:-4]}-{day[-4:-2]}-{day[-2:]}"
            schema = one._connections.schema
            drop = f"drop table {schema}.{day}"
            make = (
                f"create table {schema}.{day} partition of {schema}.history_by_day"
                f" for values from ('{text} 00:00+00') to ('{text} 23:59+00')"
            )
            async with one._connections.connection() as connection:
                await connection.execute(drop if makes else make)
            await caller.execute(make if makes else drop)
            pruned = group.create_task(other.prune(MINUTE_NS))
            await asyncio.wait({pruned}, timeout=0.2)  # it waits until it is known
            await caller.execute("commit")
            assert await pruned == 0
            assert (day in await days(one)) is makes

    scene(play())


async def days(store: PostgresStore) -> list[str]:
    async with store._connections.connection() as connection:
        return [row[0] for row in await connection.fetch(store._connections.sql["parts"])]


def test_a_call_that_is_cancelled_in_the_callers_transaction_leaves_it_to_be_rolled_back() -> None:
    """Its statement is cancelled in the database, too: nothing of it comes later."""

    async def play() -> None:
        async with stores() as (one, other), transaction() as caller, transaction() as second:
            (first,) = await one.enqueue([ONCE], within=caller)
            call = asyncio.ensure_future(other.enqueue([ONCE], within=second))
            await waits_for(caller, call)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            with pytest.raises(Invalid, match="your transaction has failed already"):
                await other.enqueue([NewJob(kind="mail")], within=second)
            await caller.execute("commit")
            await second.execute("rollback")
            await second.execute("begin")
            (again,) = await other.enqueue([ONCE], within=second)
            assert (again.id, again.fresh) == (first.id, False)

    scene(play())


def test_transactions_that_want_each_others_keys_are_told_to_begin_again() -> None:
    """PostgreSQL chooses which of them. When that one has done as told, the other goes on."""

    async def play() -> None:
        # Nobody waits for too long, however slow the machine is: what ends this is the deadlock.
        async with (
            stores(lock_timeout_ns=MINUTE_NS) as (one, other),
            transaction() as caller,
            transaction() as second,
        ):
            for connection in (caller, second):
                await connection.execute("set local deadlock_timeout = '20ms'")
            a, b = (NewJob(kind="mail", unique_key=key) for key in "ab")
            await one.enqueue([a], within=caller)
            await other.enqueue([b], within=second)
            ends = await asyncio.gather(
                enqueued_or_rolled_back(one, b, caller),
                enqueued_or_rolled_back(other, a, second),
            )
            (refused,) = [end for end in ends if end is not None]
            assert isinstance(refused, TransactionConflict)
            assert "roll it back and repeat the whole of it" in str(refused)

    async def enqueued_or_rolled_back(
        store: PostgresStore, job: NewJob, connection: Any
    ) -> FairwayError | None:
        try:
            await store.enqueue([job], within=connection)
        except FairwayError as refused:
            await connection.execute("rollback")
            return refused
        return None

    scene(play())


@pytest.mark.parametrize("keys", ["table", "advisory"])
def test_an_exchange_postpones_what_spawns_a_key_that_an_open_transaction_holds(keys: Any) -> None:
    async def play() -> None:
        async with stores(keys=keys) as (one, other), transaction() as caller:
            worker = await other.register("w", MINUTE_NS)
            await one.enqueue([NewJob(kind="parent", partition_key=f"p{n}") for n in range(5)])
            out = await other.exchange(worker, 1, wants=[Want(LINE, 5)])
            held = NewJob(kind="mail", unique_key="held")
            both = NewJob(kind="mail", unique_key="both")
            await one.enqueue([held, both], within=caller)
            children = [(held,), (), (held,), (ONCE, both), (ONCE,)]
            settlements = [
                Settlement(claim=claim, fate=Fate.SPAWN, step="then", children=spawned)
                if spawned
                else Settlement(claim=claim, fate=Fate.DONE)
                for claim, spawned in zip(out.claims, children, strict=True)
            ]
            first = await other.exchange(worker, 2, settlements)
            assert first.postponed == [settlements[n] for n in (0, 2, 3)]
            assert (first.stale, [ended.id for ended in first.ended]) == ([], [out.claims[1].id])
            ready = {job.unique_key for job in await one.browse(Filter(status=Status.READY))}
            assert "once" in ready
            running = await one.browse(Filter(status=Status.RUNNING))
            assert {job.id for job in running} == {out.claims[n].id for n in (0, 2, 3)}
            await caller.execute("rollback")
            second = await other.exchange(worker, 3, first.postponed)
            assert not second.postponed
            assert not second.stale
            assert await one.find_by_key("held") is not None
            assert not await one.browse(Filter(status=Status.RUNNING))

    scene(play())


def test_what_waits_after_a_spawn_waits_for_locks_as_long_as_before() -> None:
    async def play() -> None:
        async with stores(1) as (store,):
            worker = await store.register("w", MINUTE_NS)
            await store.enqueue([NewJob(kind="parent")])
            (claim,) = (await store.exchange(worker, 1, wants=[Want(LINE, 1)])).claims
            said = []
            probe: Any = store._claiming.probe

            async def look(connection: Any, *args: Any) -> None:
                said.append(await connection.fetchval("show lock_timeout"))
                await probe(connection, *args)

            store._claiming.probe = look  # type: ignore[method-assign]
            spawn = Settlement(claim=claim, fate=Fate.SPAWN, step="then", children=(ONCE,))
            await store.exchange(worker, 2, [spawn], probe=["default"])
            assert said == ["5s"]

    scene(play())


@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
def test_a_worker_goes_on_while_a_transaction_holds_the_key_of_a_child(kept: bool) -> None:
    class Parent(msgspec.Struct):
        async def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.spawn([Order(NewJob(kind="child", unique_key="once"))], then="after")

        async def after(self, ctx: Context[Any]) -> Outcome:
            return ctx.done("after")

    async def child() -> None:
        pass

    async def play() -> None:
        kinds = Kinds()
        kinds.add(machine_kind(Parent, "parent", 1, Options(), None))
        kinds.add(function_kind(child, "child", 1, Options()))
        async with stores() as (one, other), transaction() as caller:
            engine = Jobs(one, kinds)
            worker = Worker(one, kinds.by_version, WorkerConfig(), on_ended=engine.on_ended)
            engine.attach(worker)
            await other.enqueue([NewJob(kind="child", unique_key="once")], within=caller)
            async with asyncio.TaskGroup() as group:
                running = group.create_task(worker.run())
                (parent,) = await engine.enqueue([NewJob(kind="parent", step="start")])
                await waits_for(caller, running)
                rest = await engine.enqueue([NewJob(kind="child") for _ in range(10)])
                for each in rest:
                    await engine.result(each.id, 60)
                assert (await engine.find(parent.id)).status is Status.RUNNING
                await caller.execute("commit" if kept else "rollback")
                assert await engine.result(parent.id, 60) == "after"
                await worker.drain()
                running.cancel()
            ran = [job for job in await one.browse(Filter(kind="child")) if job.unique_key]
            assert [job.parent for job in ran] == [None if kept else parent.id]

    scene(play())


def test_a_lock_timeout_below_a_millisecond_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="at least a millisecond"):
        PostgresStore("postgresql://nowhere/none", lock_timeout_ns=0)


# --- lines


def test_two_that_need_the_same_new_line_both_get_it() -> None:
    async def play() -> None:
        async with stores() as (one, other), transaction() as caller, asyncio.TaskGroup() as group:
            new = NewJob(kind="mail", tenant="new")
            schema = one._connections.schema
            await caller.execute(
                f"insert into {schema}.lane (queue, tenant, band) values ('default', 'new', 1)"
            )
            second = group.create_task(other.enqueue([new, new]))
            await waits_for(caller, second)
            await caller.execute("commit")
            assert len(await second) == 2
            assert len(await one.enqueue([new])) == 1
            async with one._connections.connection() as connection:
                assert await connection.fetchval(f"select count(*) from {schema}.lane") == 1

    scene(play())


# --- limits


@pytest.mark.parametrize("queue", ["default", "*"])
@pytest.mark.parametrize("busy", [True, False])
def test_a_limit_counts_at_once_in_every_process(queue: str, busy: bool) -> None:
    """Also in a process that has looked at the queue before and found that it had none."""

    async def play() -> None:
        async with stores() as (one, other):
            await one.enqueue([NewJob(kind="mail") for _ in range(20)])
            worker = await other.register("w", MINUTE_NS)
            out = await other.exchange(worker, 1, wants=[Want(LINE, 2)], probe=["default"])
            await one.set_limits(queue, Limits(concurrency=3))
            done = [Settlement(claim=one, fate=Fate.DONE) for one in out.claims]
            ended = done[:1] if busy else []
            more = await other.exchange(worker, 2, ended, wants=[Want(LINE, 9)])
            assert len(more.claims) == (2 if busy else 1)
            assert len(more.ended) == len(ended)
            full = await other.exchange(worker, 3, wants=[Want(LINE, 9)])
            assert (full.claims, list(full.held_back_ns)) == ([], ["default"])

    scene(play())


def test_claims_under_a_limit_wait_for_those_that_had_not_seen_it() -> None:
    """A claim is under way that began before the limit was set: it is counted, or comes after."""

    async def play() -> None:
        async with stores(3) as (one, setter, other), asyncio.TaskGroup() as group:
            await one.enqueue([NewJob(kind="mail") for _ in range(9)])
            early, late = await one.register("e", MINUTE_NS), await one.register("l", MINUTE_NS)
            claimed, commit = asyncio.Event(), asyncio.Event()
            probe: Any = one._claiming.probe

            async def slow(*args: Any) -> None:
                claimed.set()
                await commit.wait()
                await probe(*args)

            one._claiming.probe = slow  # type: ignore[method-assign]
            wants = [Want(LINE, 2)]
            first = group.create_task(one.exchange(early, 1, wants=wants, probe=["default"]))
            await claimed.wait()
            limit = group.create_task(setter.set_limits("default", Limits(concurrency=2)))
            look = await asyncpg.connect(postgres_url())
            # The limit is there for all to see, and is not in force yet.
            text = f"select count(*) from {one._connections.schema}.queue"
            while not await look.fetchval(text):
                assert not limit.done()
            second = group.create_task(other.exchange(late, 1, wants=wants))
            text = (
                "select pg_blocking_pids(pid) from pg_stat_activity"
                " where wait_event_type = 'Lock' and wait_event = 'advisory'"
            )
            while not await look.fetch(text):
                assert not second.done()
                assert not limit.done()
            await look.close()
            commit.set()
            assert len((await first).claims) == 2
            assert (await second).claims == []

    scene(play())


def test_a_limit_waits_for_a_claim_that_hangs_no_longer_than_half_the_lock_timeout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        async with (
            stores(lock_timeout_ns=60 * MILLISECOND_NS) as (one, setter),
            asyncio.TaskGroup() as group,
        ):
            await one.enqueue([NewJob(kind="mail")])
            worker = await one.register("w", MINUTE_NS)
            claimed, commit = asyncio.Event(), asyncio.Event()
            probe: Any = one._claiming.probe

            async def hangs(*args: Any) -> None:
                claimed.set()
                await commit.wait()
                await probe(*args)

            one._claiming.probe = hangs  # type: ignore[method-assign]
            exchange = one.exchange(worker, 1, wants=[Want(LINE, 1)], probe=["default"])
            claim = group.create_task(exchange)
            await claimed.wait()
            await setter.set_limits("default", Limits(concurrency=2))
            assert not claim.done()
            assert "1 claims are under way for long" in caplog.text
            commit.set()

    scene(play())


# --- within


@pytest.mark.parametrize("driver", ["asyncpg", "pool", "psycopg", "psycopg-async"])
def test_a_connection_in_no_transaction_is_refused(driver: str) -> None:
    async def play() -> None:
        async with stores(1) as (store,):
            refused = pytest.raises(Invalid, match="the connection is in no transaction: begin one")
            if driver == "asyncpg":
                connection = await asyncpg.connect(postgres_url())
                with refused:
                    await store.enqueue([ONCE], within=connection)
                await connection.close()
            elif driver == "pool":
                async with (
                    asyncpg.create_pool(postgres_url(), min_size=1, max_size=1) as pool,
                    pool.acquire() as borrowed,
                ):
                    with refused:
                        await store.enqueue([ONCE], within=borrowed)
            elif driver == "psycopg":
                with psycopg.connect(postgres_url(), autocommit=True) as sync:
                    with refused:
                        await store.enqueue([ONCE], within=sync)
                    with sync.transaction():
                        await store.enqueue([NewJob(kind="kept")], within=sync)
            else:
                async with await psycopg.AsyncConnection.connect(
                    postgres_url(), autocommit=True
                ) as other:
                    with refused:
                        await store.enqueue([ONCE], within=other)
                    async with other.transaction():
                        await store.enqueue([NewJob(kind="kept")], within=other)
            assert {job.kind for job in await store.browse(Filter())} <= {"kept"}

    scene(play())


@pytest.mark.parametrize("kind", ["connection", "session", "async connection", "async session"])
def test_an_autocommit_connection_of_sqlalchemy_is_refused(kind: str) -> None:
    async def play() -> None:
        url = postgres_url().partition("://")[2]
        async with stores(1) as (store,):
            refused = pytest.raises(Invalid, match="the connection is in no transaction: begin one")
            if kind.startswith("async"):
                motor = create_async_engine(
                    f"postgresql+asyncpg://{url}", isolation_level="AUTOCOMMIT"
                )
                made: Any = AsyncSession(motor) if "session" in kind else motor.connect()
                async with made as caller:
                    with refused:
                        await store.enqueue([ONCE], within=caller)
                await motor.dispose()
            else:
                engine = create_engine(f"postgresql+psycopg://{url}", isolation_level="AUTOCOMMIT")
                sync: Any = Session(engine) if kind == "session" else engine.connect()
                with sync as caller, refused:
                    await store.enqueue([ONCE], within=caller)
                engine.dispose()
            assert await store.browse(Filter()) == []

    scene(play())


@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["connection", "session", "async connection", "async session"])
def test_a_job_may_be_the_first_thing_in_a_transaction_of_sqlalchemy(kind: str, kept: bool) -> None:
    async def play() -> None:
        url = postgres_url().partition("://")[2]
        async with stores(1) as (store,):
            if kind.startswith("async"):
                motor = create_async_engine(f"postgresql+asyncpg://{url}")
                made: Any = AsyncSession(motor) if "session" in kind else motor.connect()
                async with made as caller:
                    await store.enqueue([NewJob(kind="mail")], within=caller)
                    assert await store.browse(Filter()) == []
                    await (caller.commit() if kept else caller.rollback())
                await motor.dispose()
            else:
                engine = create_engine(f"postgresql+psycopg://{url}")
                sync: Any = Session(engine) if kind == "session" else engine.connect()
                with sync as caller:
                    await store.enqueue([NewJob(kind="mail")], within=caller)
                    assert await store.browse(Filter()) == []
                    caller.commit() if kept else caller.rollback()
                engine.dispose()
            assert len(await store.browse(Filter())) == kept

    scene(play())


@pytest.mark.parametrize("has_jobs", [True, False])
def test_a_connection_to_another_database_is_refused(has_jobs: bool) -> None:
    """Also if it has jobs of its own: these would be enqueued where nobody expects them."""

    async def play() -> None:
        name = f"elsewhere_{next(_schemas)}"
        with psycopg.connect(postgres_url(), autocommit=True) as hand:
            hand.execute(f"create database {name}")
        url = postgres_server().url(name)
        async with stores(1) as (store,):
            if has_jobs:
                other = PostgresStore(url, schema=store._connections.schema)
                await other.open()
                await other.aclose()
            connection = await asyncpg.connect(url)
            async with connection.transaction():
                with pytest.raises(Invalid, match=f"another database .*{name}.*the jobs are in"):
                    await store.enqueue([NewJob(kind="mail")], within=connection)
                assert await connection.fetchval("select 1") == 1
            await connection.close()
        with psycopg.connect(postgres_url(), autocommit=True) as hand:
            hand.execute(f"drop database {name}")

    scene(play())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_transaction_that_has_failed_is_told_so(driver: str) -> None:
    async def play() -> None:
        async with stores(1) as (store,):
            refused = pytest.raises(Invalid, match="your transaction has failed already")
            if driver == "asyncpg":
                async with transaction() as caller:
                    with pytest.raises(asyncpg.DivisionByZeroError):
                        await caller.execute("select 1/0")
                    with refused:
                        await store.enqueue([ONCE], within=caller)
            else:
                with psycopg.connect(postgres_url()) as sync:
                    with pytest.raises(psycopg.errors.DivisionByZero):
                        sync.execute("select 1/0")
                    with refused:
                        await store.enqueue([ONCE], within=sync)

    scene(play())


def test_a_caller_who_repeats_reads_is_told_to_begin_again() -> None:
    async def play() -> None:
        async with stores() as (one, other):
            caller = await asyncpg.connect(postgres_url())
            await caller.execute("begin isolation level repeatable read")
            await caller.fetchval("select 1")
            (added,) = await one.enqueue([ONCE])
            with pytest.raises(TransactionConflict):
                await other.enqueue([ONCE], within=caller)
            await caller.execute("rollback")
            await caller.execute("begin isolation level repeatable read")
            (again,) = await other.enqueue([ONCE], within=caller)
            assert (again.id, again.fresh) == (added.id, False)
            await caller.close()

    scene(play())

"""What is PostgreSQL's alone: interleaved transactions, advisory keys, callers' transactions."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import psycopg.rows
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fairway.core.priority import Band
from fairway.errors import Invalid
from fairway.jobs.job import Fate, Filter, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.store import Want
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.stores.postgres.claiming import PostgresClaiming
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

MINUTE_NS = 60 * 1_000_000_000
LINE = ReadyLine("default", "", Band.B1)
_schemas = itertools.count(1)


@asynccontextmanager
async def stores(count: int = 1, **options: Any) -> AsyncIterator[list[PostgresStore]]:
    """Stores on one schema, each with connections of its own, as in so many processes."""
    schema = f"only_postgres_{next(_schemas)}"
    made = [PostgresStore(postgres_url(), schema=schema, **options) for _ in range(count)]
    try:
        for store in made:
            await store.open()
        yield made
    finally:
        for store in made:
            await store.aclose()
        with psycopg.connect(postgres_url(), autocommit=True) as connection:
            connection.execute(f"drop schema if exists {schema} cascade")


async def claimed(store: PostgresStore, worker: int, token: int, most: int = 1) -> list[Any]:
    claims = (await store.exchange(worker, token, wants=[Want(LINE, most)])).claims
    # A claim may begin where the last one ended. One that found nothing looks from the start.
    return claims or (await store.exchange(worker, token, wants=[Want(LINE, most)])).claims


class Gate:
    """Stops a store before its n-th statement and lets others go first."""

    def __init__(self, store: PostgresStore, at: int) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        self.count = 0
        settling: Any = store._settling
        gate = self

        class Gated:
            def __init__(self, connection: Any) -> None:
                self._connection = connection

            def __getattr__(self, name: str) -> Any:
                method = getattr(self._connection, name)
                if name not in ("fetch", "fetchval", "execute"):
                    return method

                async def call(*args: Any) -> Any:
                    await gate.step(at)
                    return await method(*args)

                return call

        original = settling.settle

        async def settle(connection: Any, *args: Any) -> None:
            await original(Gated(connection), *args)
            await gate.step(at)  # all is done but the commit

        settling.settle = settle

    async def step(self, at: int) -> None:
        self.count += 1
        if self.count == at:
            self.reached.set()
            await self.open.wait()


async def interleave(
    store: PostgresStore, at: int, ours: Awaitable[Any], theirs: Callable[[], Awaitable[Any]]
) -> int:
    """Run `ours` to its n-th statement, then `theirs` as far as locks let it, then both to the end.

    How many statements `ours` had, so that the caller knows when it has tried every place.
    """
    gate = Gate(store, at)
    async with asyncio.TaskGroup() as group:
        mine = group.create_task(_as_task(ours))
        await asyncio.wait(
            {mine, group.create_task(gate.reached.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        other = group.create_task(_as_task(theirs()))
        # It ends by itself, or it waits for a lock of ours: then only we can go on.
        await asyncio.wait({other}, timeout=0.3)
        gate.open.set()
        gate.reached.set()
        await asyncio.wait({mine, other})
    return gate.count


async def _as_task(work: Awaitable[Any]) -> Any:
    return await work


@pytest.mark.parametrize("at", range(1, 5))
def test_a_signal_meets_a_job_that_parks_at_any_moment(at: int) -> None:
    """Before the fence, before the park, before its second look, before the commit: it wakes."""

    async def play() -> None:
        async with stores(2) as (one, other):
            (new,) = await one.enqueue([NewJob(kind="machine")])
            worker = await one.register("w", MINUTE_NS)
            (claim,) = await claimed(one, worker, 1)
            wait = Settlement(claim=claim, fate=Fate.WAIT, step="then", names=("go",))
            await interleave(
                one,
                at,
                one.exchange(worker, 2, [wait]),
                lambda: other.signal(new.id, "go", b"1"),
            )
            (woken,) = await claimed(one, worker, 3)
            assert [signal.name for signal in woken.signals] == ["go"]

    asyncio.run(play())


@pytest.mark.parametrize("at", range(1, 7))
def test_the_reaper_meets_a_job_that_spawns_at_any_moment(at: int) -> None:
    """Either the spawn counts or the crash does, never both and never half of one."""

    async def play() -> None:
        async with stores(2) as (one, other):
            await one.enqueue([NewJob(kind="machine")])
            worker = await one.register("w", MINUTE_NS)
            (claim,) = await claimed(one, worker, 1)
            children = (NewJob(kind="child"), NewJob(kind="child"))
            spawn = Settlement(claim=claim, fate=Fate.SPAWN, step="then", children=children)

            async def reap() -> None:
                await expire(other, worker)
                await other.reap(100)

            await interleave(one, at, one.exchange(worker, 2, [spawn]), reap)
            await other.reap(100)
            parent = await one.find(claim.id)
            jobs = await one.browse(Filter(kind="child"))
            assert parent is not None
            if jobs:
                assert (parent.status, parent.crashes, len(jobs)) == (Status.WAITING, 0, 2)
            else:
                assert (parent.status, parent.crashes) == (Status.READY, 1)

    asyncio.run(play())


@pytest.mark.parametrize("parent_first", [True, False])
def test_of_a_parent_and_a_child_that_reports_to_it_one_is_retried(parent_first: bool) -> None:
    """Also if neither sees the other: the first has done all but commit when the second comes."""

    async def play() -> None:
        async with stores(2) as (one, other), asyncio.TaskGroup() as group:
            (parent,) = await one.enqueue([NewJob(kind="run")])
            (child,) = await one.enqueue([NewJob(kind="task", parent=parent.id, notify="ended")])
            await one.cancel([parent.id])
            done, commit = asyncio.Event(), asyncio.Event()
            transaction: Any = one._connections.transaction

            async def held(work: Callable[[Any], Awaitable[Any]]) -> Any:
                async def all_but_commit(connection: Any) -> Any:
                    out = await work(connection)
                    done.set()
                    await commit.wait()
                    return out

                return await transaction(all_but_commit)

            one._connections.transaction = held  # type: ignore[assignment]
            ids = [parent.id, child.id] if parent_first else [child.id, parent.id]
            first = group.create_task(one.retry(ids[:1]))
            await done.wait()
            second = group.create_task(other.retry(ids[1:]))
            # It ends by itself, or it waits for a lock of the first: then only that can go on.
            await asyncio.wait({second}, timeout=0.3)
            commit.set()
            assert (await first, await second) == (ids[:1], [])
            assert len(await one.browse(Filter(status=Status.READY))) == 1
            assert len(await one.browse(Filter(status=Status.CANCELLED))) == 1

    asyncio.run(play())


@pytest.mark.parametrize("at", range(1, 5))
def test_two_children_that_end_together_wake_their_parent(at: int) -> None:
    async def play() -> None:
        async with stores(2) as (one, other):
            await one.enqueue([NewJob(kind="parent")])
            worker = await one.register("w", MINUTE_NS)
            second = await other.register("v", MINUTE_NS)
            (parent,) = await claimed(one, worker, 1)
            children = (NewJob(kind="child"), NewJob(kind="child"))
            spawn = Settlement(claim=parent, fate=Fate.SPAWN, step="then", children=children)
            await one.exchange(worker, 2, [spawn])
            (first,) = await claimed(one, worker, 3)
            (last,) = await claimed(other, second, 1)
            await interleave(
                one,
                at,
                one.exchange(worker, 4, [Settlement(claim=first, fate=Fate.DONE)]),
                lambda: other.exchange(second, 2, [Settlement(claim=last, fate=Fate.DONE)]),
            )
            (woken,) = await claimed(one, worker, 5)
            assert woken.id == parent.id
            assert [child.status for child in woken.children] == [Status.DONE, Status.DONE]

    asyncio.run(play())


async def expire(store: PostgresStore, worker: int) -> None:
    schema = store._connections.schema
    async with store._connections.connection() as connection:
        await connection.execute(
            f"update {schema}.worker set expires_at = now() - interval '1 s' where id = $1", worker
        )


# Keys as advisory locks


def keyed(count: int, key: str = "k") -> list[NewJob]:
    return [NewJob(kind="keyed", partition_key=key) for _ in range(count)]


def test_advisory_keys_let_one_job_of_a_key_run_over_all_processes() -> None:
    async def play() -> None:
        async with stores(2, keys="advisory") as (one, other):
            await one.enqueue(keyed(3))
            a = await one.register("a", MINUTE_NS)
            b = await other.register("b", MINUTE_NS)
            (mine,) = await claimed(one, a, 1, most=3)
            assert await claimed(other, b, 1, most=3) == []
            contended = [job for job in await one.browse(Filter()) if job.id != mine.id]
            assert {(job.status, job.attempt) for job in contended} == {(Status.SCHEDULED, 0)}
            await one.exchange(a, 2, [Settlement(claim=mine, fate=Fate.DONE)])
            theirs: list[Any] = []
            while not theirs:  # the others rest for 50 ms
                await other.promote(10)
                theirs = await claimed(other, b, 2, most=3)
            assert len(theirs) == 1

    asyncio.run(play())


def test_losing_the_lock_connection_fences_every_keyed_run() -> None:
    async def play() -> None:
        async with stores(2, keys="advisory") as (one, other):
            await one.enqueue([*keyed(1), NewJob(kind="plain")])
            a = await one.register("a", MINUTE_NS)
            claims = {claim.kind: claim for claim in await claimed(one, a, 1, most=2)}
            with psycopg.connect(postgres_url(), autocommit=True) as connection:
                schema = one._connections.schema
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name = %s",
                    (f"fairway {schema} keys",),
                )
            while one._locks is not None and one._locks.holds((claims["keyed"].id, 1)):
                await one.cursor("x")  # the loss is told to the loop by the socket
            out = await one.exchange(
                a, 2, [Settlement(claim=claim, fate=Fate.DONE) for claim in claims.values()]
            )
            assert out.stale == [claims["keyed"].id]
            assert [ended.id for ended in out.ended] == [claims["plain"].id]
            b = await other.register("b", MINUTE_NS)
            (again,) = await claimed(other, b, 1, most=2)
            assert (again.id, again.attempt, again.crashes) == (claims["keyed"].id, 0, 0)

    asyncio.run(play())


def test_strict_order_is_refused_where_keys_are_advisory_locks() -> None:
    async def play() -> None:
        async with stores(keys="advisory") as (store,):
            with pytest.raises(Invalid, match="strict order needs partition keys in the table"):
                await store.enqueue([NewJob(kind="keyed", partition_key="k", strict=True)])
            assert await store.browse(Filter()) == []

    asyncio.run(play())


# History


def test_days_that_are_old_enough_are_dropped_in_one_piece() -> None:
    """But what a parent may still read of one, whether it lives or may be retried, stays."""
    add = """
    create table {schema}.history_{day:%Y%m%d} partition of {schema}.history_by_day
        for values from ('{day}') to ('{next}');
    insert into {schema}.history (id, finished_at, kind, version, step, state, lane, priority,
            attempt, crashes, max_attempts, max_crashes, status, strict, window_us, parent,
            enqueued_at)
        select {first} + n, '{day}', 'old', 1, 'run', '', 1, 0, 0, 0, 1, 1, 'd', false, 0,
            case when n < 3 then {parent}::bigint end, now() from generate_series(1, 3) n;
    """

    async def play() -> None:
        async with stores() as (store,):
            lives, failed = await store.enqueue([NewJob(kind="parent")] * 2)
            await store.cancel([failed.id])
            schema = store._connections.schema
            async with store._connections.connection() as connection:
                today = await connection.fetchval("select (now() at time zone 'utc')::date")
                for ago, of in ((10, "null"), (9, lives.id), (8, failed.id), (1, "null")):
                    day = today - timedelta(days=ago)
                    await connection.execute(
                        add.format(
                            schema=schema,
                            day=day,
                            next=day + timedelta(days=1),
                            first=ago * 1000,
                            parent=of,
                        )
                    )
            assert await store.prune(2 * 24 * 60 * MINUTE_NS, exact=False) == 3 + 1 + 1
            left = Counter(job.id // 1000 for job in await store.browse(Filter(kind="old")))
            assert left == {9: 2, 8: 2, 1: 3}
            parts = [row[0] for row in await store._connections.fetch("parts")]
            gone = today - timedelta(days=10)
            assert f"history_{gone:%Y%m%d}" not in parts
            assert len(parts) == 6  # the three that stay, today and the next two days

    asyncio.run(play())


# Within the caller's transaction


@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg-async"])
def test_a_job_exists_when_the_callers_transaction_commits(driver: str, kept: bool) -> None:
    async def play() -> None:
        async with stores() as (store,):
            jobs = [NewJob(kind="mail", unique_key="once"), NewJob(kind="mail", delay_ns=MINUTE_NS)]
            if driver == "asyncpg":
                connection = await asyncpg.connect(postgres_url())
                transaction = connection.transaction()
                await transaction.start()
                await store.enqueue(jobs, within=connection)
                assert await store.browse(Filter()) == []
                await (transaction.commit() if kept else transaction.rollback())
                await connection.close()
            elif driver == "psycopg":
                with psycopg.connect(postgres_url()) as sync:
                    await store.enqueue(jobs, within=sync)
                    assert await store.browse(Filter()) == []
                    sync.commit() if kept else sync.rollback()
            else:
                async with await psycopg.AsyncConnection.connect(postgres_url()) as other:
                    await store.enqueue(jobs, within=other)
                    assert await store.browse(Filter()) == []
                    await (other.commit() if kept else other.rollback())
            found = {job.status for job in await store.browse(Filter())}
            assert found == ({Status.READY, Status.SCHEDULED} if kept else set())

    asyncio.run(play())


@pytest.mark.parametrize("kept", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["connection", "session", "async connection", "async session"])
def test_a_job_exists_when_the_callers_sqlalchemy_transaction_commits(
    kind: str, kept: bool
) -> None:
    async def play() -> None:
        url = postgres_url().partition("://")[2]
        jobs = [NewJob(kind="mail", unique_key="once"), NewJob(kind="mail")]
        async with stores() as (store,):
            if kind.startswith("async"):
                motor = create_async_engine(f"postgresql+asyncpg://{url}")
                made: Any = AsyncSession(motor) if "session" in kind else motor.connect()
                async with made as caller:
                    await caller.execute(text("select 1"))
                    await store.enqueue(jobs, within=caller)
                    assert await store.browse(Filter()) == []
                    await (caller.commit() if kept else caller.rollback())
                await motor.dispose()
            else:
                engine = create_engine(f"postgresql+psycopg://{url}")
                sync: Any = Session(engine) if kind == "session" else engine.connect()
                with sync as caller:
                    caller.execute(text("select 1"))
                    await store.enqueue(jobs, within=caller)
                    assert await store.browse(Filter()) == []
                    caller.commit() if kept else caller.rollback()
                engine.dispose()
            assert len(await store.browse(Filter())) == (2 if kept else 0)

    asyncio.run(play())


@pytest.mark.parametrize(
    "factory",
    [
        psycopg.rows.dict_row,
        psycopg.rows.namedtuple_row,
        psycopg.rows.scalar_row,
        psycopg.rows.args_row(lambda *values: None),
    ],
    ids=["dict", "namedtuple", "scalar", "nothing"],
)
def test_a_connection_of_psycopg_may_make_of_its_rows_what_it_likes(factory: Any) -> None:
    class Own(psycopg.Connection[Any]):
        pass

    async def play() -> None:
        job = NewJob(kind="mail", unique_key="once")
        async with stores() as (store,):
            with Own.connect(postgres_url(), row_factory=factory) as sync:
                (added,) = await store.enqueue([job], within=sync)
                assert added.fresh
            async with await psycopg.AsyncConnection.connect(
                postgres_url(), row_factory=factory
            ) as other:
                (again,) = await store.enqueue([job], within=other)
                assert (again.id, again.fresh) == (added.id, False)
                assert other.row_factory is factory

    asyncio.run(play())


class Nonsense(psycopg.adapt.Loader):
    def load(self, data: object) -> str:
        return "nonsense"


@pytest.mark.parametrize("type_name", ["int8", "text", "int4", "bool"])
def test_a_connection_may_read_its_own_values_as_it_likes(type_name: str) -> None:
    async def play() -> None:
        job = NewJob(kind="mail", unique_key="u")
        async with stores() as (store,):
            with psycopg.connect(postgres_url()) as theirs:
                theirs.adapters.register_loader(type_name, Nonsense)
                (added,) = await store.enqueue([job], within=theirs)
                (again,) = await store.enqueue([job], within=theirs)
                assert [(again.id, again.fresh), added.fresh] == [(added.id, False), True]
                assert theirs.execute("select 1::int8, 'a'::text, 1, true").fetchone() != (
                    *(1, "a", 1, True),
                )
                theirs.rollback()
            connection = await asyncpg.connect(postgres_url())
            await connection.set_type_codec(
                type_name, encoder=str, decoder=str, schema="pg_catalog"
            )
            async with connection.transaction():
                (added,) = await store.enqueue([job], within=connection)
                (plain,) = await store.enqueue([NewJob(kind="mail")], within=connection)
            await connection.close()
            found = await store.browse(Filter())
            assert [one.id for one in found] == [plain.id, added.id]

    asyncio.run(play())


def test_a_connection_whose_text_is_another_is_refused_and_told_why() -> None:
    async def play() -> None:
        async with stores() as (store,):
            connection = await asyncpg.connect(postgres_url())
            await connection.set_type_codec(
                "text", encoder=str, decoder=str.upper, schema="pg_catalog"
            )
            async with connection.transaction():
                with pytest.raises(Invalid, match="a codec of its own for text"):
                    await store.enqueue([NewJob(kind="mail")], within=connection)
            await connection.close()

    asyncio.run(play())


def test_what_only_leads_to_a_connection_is_refused() -> None:
    async def play() -> None:
        url = postgres_url()
        job = NewJob(kind="mail")
        async with stores() as (store,):
            refused = pytest.raises(Invalid, match="give an asyncpg, psycopg or SQLAlchemy conn")
            with psycopg.connect(url) as sync, refused:
                await store.enqueue([job], within=sync.cursor())
            async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
                with refused:
                    await store.enqueue([job], within=pool)
                async with pool.acquire() as borrowed:
                    pass
                with pytest.raises(Invalid, match="the connection cannot be used"):
                    await store.enqueue([job], within=borrowed)
            closed: Any = await asyncpg.connect(url)
            await closed.close()
            with pytest.raises(Invalid):
                await store.enqueue([job], within=closed)
            for closed in (psycopg.connect(url), await psycopg.AsyncConnection.connect(url)):
                if (closing := closed.close()) is not None:
                    await closing
                with pytest.raises(Invalid, match="the connection cannot be used: it is closed"):
                    await store.enqueue([job], within=closed)
            engine = create_engine(f"postgresql+psycopg://{url.partition('://')[2]}")
            with refused:
                await store.enqueue([job], within=engine)
            with engine.connect() as connection, refused:
                await store.enqueue([job], within=connection.execute(text("select 1")))
            with pytest.raises(Invalid, match="the connection cannot be used"):
                await store.enqueue([job], within=connection)
            engine.dispose()
            motor = create_async_engine(f"postgresql+asyncpg://{url.partition('://')[2]}")
            with refused:
                await store.enqueue([job], within=motor)
            with pytest.raises(Invalid, match="the connection cannot be used"):
                await store.enqueue([job], within=motor.connect())  # not begun
            await motor.dispose()
            assert await store.browse(Filter()) == []

    asyncio.run(play())


def test_a_session_of_a_class_of_ones_own_is_a_session() -> None:
    class Own(Session):
        pass

    async def play() -> None:
        async with stores() as (store,):
            engine = create_engine(f"postgresql+psycopg://{postgres_url().partition('://')[2]}")
            with Own(engine) as session:
                await store.enqueue([NewJob(kind="mail")], within=session)
                session.commit()
            engine.dispose()
            assert len(await store.browse(Filter())) == 1

    asyncio.run(play())


def test_what_is_no_connection_is_refused_by_name() -> None:
    async def play() -> None:
        async with stores() as (store,):
            with pytest.raises(Invalid, match=r"builtins\.dict: give an asyncpg, psycopg"):
                await store.enqueue([NewJob(kind="mail")], within={})

    asyncio.run(play())


def test_a_key_that_is_freed_while_a_claim_looks_at_it_blocks_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The holder settles between the claim's look at the key and its blocking of the job."""

    async def play() -> None:
        async with stores(2) as (one, other):
            await one.enqueue(keyed(2))
            a = await one.register("a", MINUTE_NS)
            b = await other.register("b", MINUTE_NS)
            (first,) = await claimed(one, a, 1)
            looked, go_on = asyncio.Event(), asyncio.Event()
            block = PostgresClaiming._block

            async def slow_block(self: PostgresClaiming, connection: Any, lost: Any) -> None:
                class Slow:
                    async def fetch(self, text: str, *args: Any) -> Any:
                        rows = await connection.fetch(text, *args)
                        if text == other._sql["earlier"]:
                            looked.set()
                            await go_on.wait()
                        return rows

                    async def execute(self, *args: Any) -> Any:
                        return await connection.execute(*args)

                await block(self, Slow(), lost)

            monkeypatch.setattr(PostgresClaiming, "_block", slow_block)
            async with asyncio.TaskGroup() as group:
                theirs = group.create_task(other.exchange(b, 1, wants=[Want(LINE, 1)]))
                await looked.wait()
                done = Settlement(claim=first, fate=Fate.DONE)
                ours = group.create_task(one.exchange(a, 2, [done]))
                await asyncio.wait({ours}, timeout=0.3)
                go_on.set()
            claims = theirs.result().claims or await claimed(other, b, 2)
            assert [claim.id for claim in claims] == [first.id + 1]

    asyncio.run(play())


@pytest.mark.parametrize("exact", [True, False])
def test_attempts_leave_the_tables_with_their_jobs(exact: bool) -> None:
    """With discarded jobs at once; with those that were pruned, and whole days, soon after."""

    async def play() -> None:
        async with stores(1) as (store,):
            added = [one.id for one in await store.enqueue([NewJob(kind="x")] * 4)]
            worker = await store.register("w", MINUTE_NS)
            claims = await claimed(store, worker, 1, 9)
            failed = [Settlement(claim=one, fate=Fate.FAILED, log=b"it began") for one in claims]
            await store.exchange(worker, 2, failed)

            async def left() -> set[int]:
                async with store._connections.connection() as connection:
                    schema = store._connections.schema
                    rows = await connection.fetch(f"select job from {schema}.attempt")
                return {job for (job,) in rows}

            assert await left() == {*added}
            await store.discard(added[:1])
            assert await left() == {*added[1:]}
            await store.retry(added[1:2])
            await store.prune(0, exact=exact)
            assert await left() == {added[1]}

    asyncio.run(play())

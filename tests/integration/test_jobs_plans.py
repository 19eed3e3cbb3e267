"""What jobs cost on PostgreSQL, counted in statements and in blocks, and never timed.

The plans are those of prepared statements that know nothing of their arguments, on tables of 20,000
rows.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from msgspec import structs

from fairway.core.priority import Band
from fairway.jobs.job import Fate, Filter, Limits, NewJob, ReadyLine, Settlement, Status
from fairway.jobs.store import Want
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.stores.postgres.browsing import IdSpan, browsing
from fairway.jobs.stores.postgres.schema import in_schema
from fairway.jobs.stores.postgres.store import _nothing
from tests.support.postgres import postgres_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from fairway.jobs.job import Claim

SECOND_NS = 1_000_000_000
TTL_NS = 600 * SECOND_NS
ROWS = 20_000
LINE = ReadyLine("default", "", Band.B1)

schemas = itertools.count(1)


class Bench:
    """A store, and what it says to the server."""

    def __init__(self, store: PostgresStore, statements: list[str]) -> None:
        self.store = store
        self.statements = statements
        self.token = 0
        self.worker = 0

    @property
    def schema(self) -> str:
        return self.store._connections.schema

    async def exchange(self, *args: Any, **options: Any) -> list[Claim]:
        self.token += 1
        out = await self.store.exchange(self.worker, self.token, *args, **options)
        assert not out.stale
        return out.claims

    def names(self) -> list[str]:
        """The statements that were said since the last time, by name."""
        known = {text: name for name, text in self.store._sql.items()}
        statements, self.statements[:] = list(self.statements), []
        return [known.get(text, text.strip(" ;").split()[0].lower()) for text in statements]


def scene(play: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened() as bench:
            await play(bench)

    asyncio.run(main())


@asynccontextmanager
async def opened() -> AsyncIterator[Bench]:
    statements: list[str] = []

    async def listen(connection: Any) -> None:
        connection.add_query_logger(lambda record: statements.append(record.query))

    schema = f"jobs_plans_{next(schemas)}"
    store = PostgresStore(postgres_url(), schema=schema, init=listen)
    await store.open()
    try:
        bench = Bench(store, statements)
        bench.worker = await store.register("bench", TTL_NS)
        yield bench
    finally:
        await store.aclose()
        with hand() as connection:
            connection.execute(f"drop schema {schema} cascade".encode())


@contextmanager
def hand() -> Iterator[psycopg.Connection[Any]]:
    """A connection of our own."""
    with psycopg.connect(postgres_url(), autocommit=True, prepare_threshold=None) as connection:
        yield connection


def done(claims: list[Claim]) -> list[Settlement]:
    return [Settlement(claim=claim, fate=Fate.DONE, result=b"null") for claim in claims]


# --- plans

HOT = (
    *("claim", "trade", "finish", "requeue", "enqueue", "enqueue_uniform", "promote"),
    *("next_due", "probe"),
    *("unblock", "block", "earlier", "pending", "inbox", "children", "take_keys", "lock_keys"),
    *(
        "park",
        "wake",
        "send_signal",
        "deliver",
        "notified",
        "heard",
        "consume",
        "fence",
        "end_jobs",
    ),
    *("queue_again", "give_back", "leases", "count_lost", "cancelled", "lock_parents"),
    *("set_timer", "progress"),
    *("find", "find_ended", "find_key", "set_aside", "revive"),
    *("lock_children", "forget_signal_keys", "prune_first", "prune_failed"),
    *("keep_attempts", "attempts", "attempt_log", "forget_attempts", "count_runs"),
    *("placed", "last_id", "around"),
)
TABLES = (
    "job",
    "ready",
    "blocked",
    "timer",
    "signal",
    "unique_key",
    "signal_key",
    "attempt",
    "history",
    "lease",
    "lane",
)

FILL = """
insert into fw.lane (queue, tenant, band)
    select 'default', 't' || n, 1 from generate_series(1, 20) n;
insert into fw.job (id, kind, version, step, state, lane, priority, max_attempts, max_crashes,
        status, pkey, ukey, parent, names, inbox, enqueued_at, trace)
    select nextval('fw.job_id'), 'work', 1, 'run', '{}', 1 + n % 20, 0, 20, 5,
        case when n % 4 = 0 then 'w' when n % 4 = 1 then 's' else 'r' end,
        case when n % 5 = 0 then 'k' || n % 1000 end, 'u' || n,
        case when n % 3 = 0 then n / 3 + 1 end,
        case when n % 4 = 0 then '{go}'::text[] end, (n % 4 = 0)::int, now(),
        '00-' || md5((n / 4)::text) || '-00f067aa0ba902b7-01'
    from generate_series(1, {rows}) n;
insert into fw.ready (lane, id, priority, pkey, strict, since)
    select lane, id, 0, pkey, false, now() from fw.job;
insert into fw.blocked (pkey, id, lane, priority, strict, since)
    select 'b' || id % 1000, id, lane, 0, false, now() from fw.job;
insert into fw.timer (id, due)
    select id, now() + (id - {rows} / 2) * interval '1 second' from fw.job;
insert into fw.signal (job, name, payload) select id, 'go', '' from fw.job;
insert into fw.signal_key (job, key, consumed_at)
    select id, 'd', case when id % 2 = 0 then now() end from fw.job;
insert into fw.unique_key (key, job, until) select ukey, id, now() from fw.job;
insert into fw.history (id, finished_at, kind, version, step, state, lane, priority, attempt,
        crashes, max_attempts, max_crashes, status, strict, window_us, parent, enqueued_at, trace)
    select -n, now(), 'work', 1, 'run', '{}', 1, 0, 0, 0, 20, 5, status, false, 0,
        case when n % 3 = 0 then n / 3 end, now(),
        '00-' || md5((n / 4)::text) || '-00f067aa0ba902b7-01'
    from generate_series(1, {rows}) n, unnest(array['d', 'f']::"char"[]) as status;
insert into fw.attempt (job, number, step, worker, started_at, ended_at, fate)
    select id, 1, 'run', 1, now(), now(), 'failed' from fw.job;
insert into fw.lease (id, worker, token, lane, claimed_at)
    select id, 1 + id % 10, 1, lane, now() from fw.job order by id limit 500;
"""


LISTINGS = (
    (Filter(trace="0" * 32), "job_trace"),
    (Filter(trace="0" * 32, status=Status.READY), "job_trace"),
    (Filter(since_wall_ns=1, until_wall_ns=2), "job_pkey"),
)
"""What jobs are listed by, and the index that finds them."""


def plan_of(connection: psycopg.Connection[Any], statement: str) -> dict[str, Any]:
    """The generic plan of a statement, prepared as the store's driver prepares it."""
    parameters = {int(number) for number in re.findall(r"\$(\d+)", statement)}
    connection.execute(b"deallocate all")
    connection.execute(f"prepare it as {statement}".encode())
    nothing = ", ".join(["null"] * len(parameters))
    call = f"it({nothing})" if parameters else "it"
    row = connection.execute(f"explain (format json) execute {call}".encode()).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


def sequential(plan: dict[str, Any], large: set[str]) -> set[str]:
    """The large tables that a plan reads from end to end."""
    read = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
    return read & large


def test_no_statement_of_the_hot_path_reads_a_table_from_end_to_end() -> None:
    async def play(bench: Bench) -> None:
        with hand() as connection:
            fill = FILL.replace("fw.", f"{bench.schema}.").replace("{rows}", str(ROWS))
            connection.execute(fill.encode())
            for table in TABLES:
                connection.execute(f"vacuum analyze {bench.schema}.{table}".encode())
            connection.execute(b"set plan_cache_mode = force_generic_plan")
            rows = connection.execute(
                "select relname from pg_class where relnamespace = %s::regnamespace"
                " and relkind = 'r' and reltuples >= %s",
                (bench.schema, ROWS),
            ).fetchall()
            large = {name for (name,) in rows}
            assert large >= {*TABLES} - {"history", "lease", "lane"}
            assert any(name.startswith("history_") for name in large)
            read = {
                name: sequential(plan_of(connection, bench.store._sql[name]), large) for name in HOT
            }
            assert not {name: tables for name, tables in read.items() if tables}
            for asked, used in LISTINGS:
                text, _ = browsing(asked, IdSpan(1, 2) if asked.since_wall_ns else IdSpan())
                plan = plan_of(connection, in_schema(text, bench.schema))
                assert not sequential(plan, large - {"timer", "lease", "blocked"}), asked
                names = {node.get("Index Name", "") for node in nodes(plan)}
                assert any(name.startswith(used) for name in names), (asked, names)
            # And it would be seen: this one asks what no index answers.
            text = f"select 1 from {bench.schema}.job where kind = $1"
            assert sequential(plan_of(connection, text), large) == {"job"}

    scene(play)


# --- statements


def test_an_idle_look_is_one_statement_and_writes_nothing() -> None:
    async def play(bench: Bench) -> None:
        await bench.exchange(probe=["default"])
        bench.names()
        with hand() as connection:

            def at() -> Any:
                row = connection.execute("select pg_current_wal_insert_lsn()").fetchone()
                assert row is not None
                return row[0]

            quiet = 0
            for _ in range(20):  # the server writes a line of its own now and then
                before = at()
                await bench.exchange(probe=["default"])
                quiet += at() == before
                assert bench.names() == ["begin", "probe", "commit"]
            assert quiet >= 15

    scene(play)


def test_a_steady_exchange_is_one_settlement_and_one_claim() -> None:
    async def play(bench: Bench) -> None:
        await bench.store.enqueue([NewJob(kind="work") for _ in range(800)])
        claims = await bench.exchange(wants=[Want(LINE, 50)])
        claims = await bench.exchange(done(claims), [Want(LINE, 50)])  # the driver learns the types
        again = [Settlement(claim=one, fate=Fate.RETRY, delay_ns=SECOND_NS) for one in claims]
        await bench.exchange(again[:1])
        claims = claims[1:]
        bench.names()
        for _ in range(3):
            claims = await bench.exchange(done(claims), [Want(LINE, 100)])
            assert len(claims) == 100
            assert bench.names() == ["trade"]
        for _ in range(2):
            bench.names()
            children = [
                structs.replace(one, parent=7) for one in claims
            ]  # then there is more to do
            claims = await bench.exchange(done(children), [Want(LINE, 10)])
        assert bench.names() == ["begin", "finish", "claim", "commit"]
        # One that comes back by itself costs no more than that; those that failed are kept at once.
        for counts, kept in ((False, []), (True, ["keep_attempts"])):
            again = [
                Settlement(claim=one, fate=Fate.RETRY, delay_ns=SECOND_NS, counts=counts)
                for one in claims
            ]
            claims = await bench.exchange(again, [Want(LINE, 10)])
            assert bench.names() == ["begin", "requeue", *kept, "claim", "commit"]

    scene(play)


def test_a_claim_alone_is_one_statement() -> None:
    async def play(bench: Bench) -> None:
        await bench.store.enqueue([NewJob(kind="work") for _ in range(50)])
        await bench.exchange(wants=[Want(LINE, 10)])
        bench.names()
        assert len(await bench.exchange(wants=[Want(LINE, 40)])) == 40
        assert bench.names() == ["claim"]

    scene(play)


@pytest.mark.parametrize("uniform", [True, False])
def test_many_jobs_are_enqueued_with_one_statement(uniform: bool) -> None:
    async def play(bench: Bench) -> None:
        jobs = [NewJob(kind="work", state=b"%d" % n) for n in range(1_000)]
        if not uniform:
            jobs[7] = NewJob(kind="other", partition_key="k")
        await bench.store.enqueue(jobs[:2])  # the line is made once
        await bench.store.enqueue(jobs[6:8])
        bench.names()
        await bench.store.enqueue(jobs)
        assert bench.names() == ["enqueue_uniform" if uniform else "enqueue"]

    scene(play)


def test_a_heartbeat_costs_the_same_however_many_jobs_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    statements: list[Any] = []
    execute = psycopg.RawCursor.execute

    def counted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        statements.append(query)
        return execute(self, query, *args, **options)

    async def play(bench: Bench) -> None:
        await bench.store.enqueue([NewJob(kind="work") for _ in range(500)])
        renewer = bench.store.lease_renewer()
        held: dict[int, int] = {}
        for most in (0, 1, 499):
            if most:
                claims = await bench.exchange(wants=[Want(LINE, most)])
                held |= {claim.id: claim.token for claim in claims}
            statements.clear()
            renewal = renewer.renew(bench.worker, held, TTL_NS, 0)
            assert (renewal.alive, renewal.released) == (True, 0)
            counts.append(len(statements))
        renewer.close()
        assert len(held) == 500

    monkeypatch.setattr(psycopg.RawCursor, "execute", counted)
    scene(play)
    assert counts == [3, 3, 3]  # renew, what I hold, what was cancelled


@pytest.mark.parametrize("limited", [False, True], ids=["keys", "keys under a limit"])
def test_an_exchange_that_claims_under_keys_or_a_limit_commits_once(limited: bool) -> None:
    """These wait for the disk: however many jobs and lines there are, once."""

    async def play(bench: Bench) -> None:
        lines = [ReadyLine("default", tenant, Band.B1) for tenant in ("a", "b", "c")]
        if limited:
            await bench.store.set_limits("default", Limits(concurrency=100))
            await bench.exchange(probe=["default"])
        for number in range(30):
            tenant = lines[number % 3].tenant
            key = f"k{number}"
            await bench.store.enqueue([NewJob(kind="work", tenant=tenant, partition_key=key)])
        claims = await bench.exchange(wants=[Want(line, 2) for line in lines])
        for settled in ([], done(claims)):
            bench.names()
            claims = await bench.exchange(settled, [Want(line, 4) for line in lines])
            assert len(claims) == 12
            statements = bench.names()
            if limited:
                assert statements[0] == "begin"
            if len(statements) > 1:  # else the statement commits itself
                assert (statements[0], statements[-1]) == ("begin", "commit")
                assert (statements.count("begin"), statements.count("commit")) == (1, 1)

    scene(play)


# --- locks

LOCKS = """
select locktype || ' ' || coalesce(relation::regclass::text, '') || ' ' || mode from pg_locks
where pid = $1 and (locktype not in ('relation', 'virtualxid', 'transactionid')
    or locktype = 'relation' and mode not in
        ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock'))
"""
SHARED = ("queue", "lane", "unique_key")
"""Tables whose rows others need, too."""


async def held_by(bench: Bench, pid: int) -> set[str]:
    """What a transaction holds beyond the rows that it writes and the right to write."""
    look = await asyncpg.connect(postgres_url())
    try:
        held = {row[0] for row in await look.fetch(LOCKS, pid)}
        for table in SHARED:
            name = f"{bench.schema}.{table}"
            free = await look.fetch(f"select from {name} for no key update skip locked")
            if len(free) < await look.fetchval(f"select count(*) from {name}"):
                held.add(f"rows of {table}")
        return held
    finally:
        await look.close()


def test_an_enqueue_without_a_key_and_a_claim_without_a_limit_hold_nothing_of_others() -> None:
    """While their transaction is open: no table, no advisory lock, no row that others write."""

    async def play(bench: Bench) -> None:
        store = bench.store
        await store.enqueue([NewJob(kind="work"), NewJob(kind="work", unique_key="u")])
        await store.set_limits("other", Limits(concurrency=1))
        guest = await asyncpg.connect(postgres_url())
        try:
            await guest.execute("begin")
            await store.enqueue([NewJob(kind="work")], within=guest)
            assert await held_by(bench, guest.get_server_pid()) == set()
        finally:
            await guest.close()
        async with store._connections.connection() as connection, connection.transaction():
            out = _nothing()
            await store._claiming.claim(connection, bench.worker, 1, {LINE: 5}, out, gated=False)
            assert len(out.claims) == 2
            assert await held_by(bench, connection.get_server_pid()) == set()
        # And it would be seen: these have something to hold.
        await store.set_limits("default", Limits(concurrency=10))
        async with store._connections.connection() as connection, connection.transaction():
            await store._claiming.pass_gate(connection)
            out = _nothing()
            await store._claiming.claim(connection, bench.worker, 2, {LINE: 5}, out, gated=True)
            assert "rows of queue" in await held_by(bench, connection.get_server_pid())

    scene(play)


# --- an old snapshot


def claim_blocks(bench: Bench, connection: psycopg.Connection[Any], low: int, most: int) -> int:
    """How many blocks a claim touches, undone."""
    line = bench.store._lines[LINE]
    connection.execute(b"deallocate all")
    connection.execute(f"prepare it as {bench.store._sql['claim']}".encode())
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            "explain (analyze, buffers, format json) execute it"
            f" ({bench.worker}, 1000000, '{{{line}}}', '{{{most}}}', '{{{low}}}', false,"
            " '{}')".encode()
        ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_a_transaction_that_is_never_ended_does_not_make_claims_dearer() -> None:
    """It keeps every row that was claimed since; the low-water hint steps over them."""

    async def play(bench: Bench) -> None:
        jobs, most = 12_000, 200
        await bench.store.enqueue([NewJob(kind="work") for _ in range(jobs)])
        with hand() as old, hand() as measuring:
            measuring.execute(b"set plan_cache_mode = force_generic_plan")
            old.execute(b"begin isolation level repeatable read")
            old.execute(f"select count(*) from {bench.schema}.ready".encode())
            line = bench.store._lines[LINE]
            costs = []
            claims: list[Claim] = []
            for drained in range(0, jobs, most):
                claims = await bench.exchange(done(claims), [Want(LINE, most)])
                assert len(claims) == most
                if drained % (most * 10) == 0:
                    low, _ = bench.store._low_water._at[line]
                    assert low == claims[-1].id, "the next claim begins where this one ended"
                    costs.append(claim_blocks(bench, measuring, low, most))
            await bench.exchange(done(claims))
            costs = costs[1:]  # the first of all fills caches
            assert max(costs) <= 2 * min(costs), costs
            await bench.store.enqueue([NewJob(kind="work") for _ in range(most)])
            without = claim_blocks(bench, measuring, 0, most)
            assert without > min(costs) + 50, "the dead rows are there, and would be walked over"
            old.execute(b"rollback")

    scene(play)

"""Jobs on PostgreSQL: every order of the statements of callers that meet.

For each pair of calls of each scene all orders are tried, for three calls random ones. What comes
of each must be what comes of the calls one after the other, in some order, on the twin in memory.
The second half is the proof that this finds what it looks for: statements with one bug each.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
from collections import Counter
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest

from fairway.jobs.job import Limits
from fairway.jobs.limits import allowance
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.stores.postgres import PostgresStore
from fairway.jobs.stores.postgres.claiming import PostgresClaiming
from fairway.jobs.stores.postgres.ready_lines import ReadyLineNumbers
from fairway.jobs.stores.postgres.schema import in_schema, statements
from tests.conformance.job_backends import ManualClock
from tests.support.interleaver import Caller, Drawn, Orders, Standing, interleave
from tests.support.job_scenes import (
    EVERYTHING,
    SCENES,
    Cast,
    Scene,
    enqueue,
    looks,
    new,
    unregister,
)
from tests.support.planted import plant
from tests.support.postgres import empty, postgres_url, tables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from fairway.jobs.job import ReadyLine
    from tests.conftest import Campaign
    from tests.support.interleaver import Schedule
    from tests.support.job_scenes import Act, Ask

MINUTE_NS = 60_000_000_000
ORDERS_MAX = 300
"""Beyond which the orders of a pair are too many to try them all."""
STEPS_MAX = 12
STRAY = """
select 'job ' || trace || ' is in ' || n || ' lines' from (
    select j.trace, (select count(*) from fw.ready r where r.id = j.id)
        + (select count(*) from fw.blocked b where b.id = j.id)
        + (select count(*) from fw.lease l where l.id = j.id) as n, j.status
    from fw.job j
) s where n <> (status = 'r')::int
union all
select 'key ' || pkey || ' is free and its first job is blocked' from fw.blocked b
where not exists (select 1 from fw.key_slot s where s.pkey = b.pkey)
    and not exists (select 1 from fw.ready r where r.pkey = b.pkey)
    and not exists (select 1 from fw.job e where b.strict and e.pkey = b.pkey and e.id < b.id)
union all
select 'key ' || pkey || ' is held for a job that does not run' from fw.key_slot s
where not exists (select 1 from fw.lease l where l.id = s.id)
union all
select 'key ' || ukey || ' does not stand for ' || trace from fw.job j
where ukey is not null and not exists (
    select 1 from fw.unique_key k where k.key = j.ukey and k.job = j.id)
union all
select ukey || ' has ' || count(*) || ' live jobs' from fw.job where ukey is not null
group by ukey having count(*) > 1
union all
select 'a timer of ' || coalesce(j.trace, t.id::text) || ' is left' from fw.timer t
left join fw.job j on j.id = t.id where j.status is null or j.status not in ('s', 'w')
"""
_schemas = itertools.count(1)


class NotInAnyOrder(AssertionError):
    """What came of calls that met does not come of them one after the other."""


class Theatre:
    """A store on PostgreSQL with several callers, and the twin; one scene after the other."""

    def __init__(self, tally: Counter[str]) -> None:
        self.tally = tally
        self.schema = f"interleaved_{next(_schemas)}"
        self.saved = f"{self.schema}_saved"
        """The schema that has the tables as they were when the scene was set up."""
        self.callers: list[Caller] = []
        self.stores: list[PostgresStore] = []

    async def open(self, callers: int) -> None:
        # A deadlock is looked for sooner than a second after it began.
        url = f"{postgres_url()}&options=-c%20deadlock_timeout%3D20ms"
        for number in range(callers):
            caller = Caller(f"caller {number}", spins="pg_locks")
            self.callers.append(caller)
            store = PostgresStore(
                url,
                schema=self.schema,
                connections=2,
                lock_timeout_ns=MINUTE_NS,
                connection_class=caller.connection_class,
            )
            # How long a caller is stopped is no matter of patience.
            store._settling.lock_wait_ms = MINUTE_NS // 1_000_000
            await store.open()
            self.stores.append(store)
        self.hand = await asyncpg.connect(postgres_url())
        await self.hand.execute("set synchronous_commit = off")

    async def stage(self, scene: Scene) -> None:
        """Set up a scene, on PostgreSQL and on the twin."""
        await self.hand.execute(f"drop schema if exists {self.saved} cascade")
        empty(postgres_url(), self.schema)
        self._forget({})
        self.clock = ManualClock()
        self.cast, self.twin_cast = Cast(), Cast()
        self.twin = MemoryStore(self.clock)
        await self._set_clock()
        await scene.set_up(self.stores[0], self.cast)
        await self.twin.open()
        await scene.set_up(self.twin, self.twin_cast)
        self.clock.ns += scene.wait_ns
        await self._set_clock()
        self.tables = tables(postgres_url(), self.schema)
        await self.hand.execute(f"create schema {self.saved}")
        for table in self.tables:
            await self.hand.execute(
                f"create table {self.saved}.{table} as table {self.schema}.{table}"
            )
        self._lines = dict(self.stores[0]._lines._numbers)

    async def aclose(self) -> None:
        for store in self.stores:
            await store.aclose()
        await self.hand.close()
        with psycopg.connect(postgres_url(), autocommit=True) as connection:
            connection.execute(f"drop schema if exists {self.saved} cascade".encode())
            connection.execute(f"drop schema {self.schema} cascade".encode())

    async def _set_clock(self) -> None:
        at = f"timestamptz 'epoch' + interval '1 microsecond' * {self.clock.ns // 1000}"
        await self.hand.execute(
            f"create or replace function {self.schema}.now_() returns timestamptz"
            f" language sql stable return {at}"
        )

    async def restore(self) -> None:
        """All is as it was when the scene was set up, and nobody remembers anything since."""
        await self.hand.execute(
            "begin;"
            + "".join(f"delete from {self.schema}.{table};" for table in self.tables)
            + "".join(
                f"insert into {self.schema}.{table} overriding system value"
                f" table {self.saved}.{table};"
                for table in self.tables
            )
            + "commit"
        )
        self._forget(self._lines)

    def _forget(self, lines: Mapping[ReadyLine, int]) -> None:
        for store in self.stores:
            store._lines._numbers.clear()
            store._lines._lines.clear()
            for line, number in lines.items():
                store._lines._numbers[line] = number
                store._lines._lines[number] = line
            store._low_water.clear()
            store._claiming.limited.clear()

    async def in_order(self, parts: Sequence[tuple[int, Any]], acts: Sequence[Act]) -> Any:
        """What comes of the parts of acts one after the other, on the twin."""
        twin = copy.deepcopy(self.twin)
        said = [(number, await ask(twin, self.twin_cast)) for number, ask in parts]
        names, state = await looks(twin, self.twin_cast)
        answers: list[Any] = [None] * len(acts)
        for number, answer in said:
            each = acts[number].summarize(answer, names)
            answers[number] = each if answers[number] is None else answers[number] + each
        return answers, state

    async def check(self, serial: Serial, schedule: Schedule) -> None:
        """Play acts at once. Raises `NotInAnyOrder`."""
        await self.restore()
        acts = serial.acts
        calls = [
            functools.partial(act.ask, store, self.cast)
            for act, store in zip(acts, self.stores, strict=False)
        ]
        answers, turns = await interleave(
            self.hand, self.callers[: len(acts)], calls, schedule, self.tally
        )
        for answer in answers:
            if isinstance(answer, Exception):
                raise NotInAnyOrder(f"{answer!r} after {turns}") from answer
        stray = await self.hand.fetch(STRAY.replace("fw.", f"{self.schema}."))
        if stray:
            raise NotInAnyOrder(f"{[row[0] for row in stray]} after {turns}")
        names, state = await looks(self.stores[0], self.cast)
        answers = [act.summarize(answer, names) for act, answer in zip(acts, answers, strict=True)]
        await serial.check((answers, state), turns)


class Serial:
    """What comes of some acts one after the other, in each order; found out as far as needed."""

    def __init__(self, scene: Theatre, acts: Sequence[Act]) -> None:
        self.acts = acts
        self._known: list[tuple[tuple[int, ...], Any]] = []
        self._scene = scene
        claimers = sum(bool(act.passing) for act in acts)
        parts = [
            [(number, ask) for ask in part]
            for number, act in enumerate(acts)
            for part in _parts(
                act,
                another_claims=claimers > bool(act.passing),
                twice=sum(each is act for each in acts) > 1,
            )
        ]
        self._orders = itertools.chain.from_iterable(
            itertools.permutations(chosen) for chosen in itertools.product(*parts)
        )

    async def check(self, found: Any, turns: Sequence[int]) -> None:
        """Raises `NotInAnyOrder` if this comes of no order that fits whose turns it was.

        Who had ended before another one began comes before that one.
        """
        first = {number: turns.index(number) for number in set(turns)}
        last = {number: len(turns) - turns[::-1].index(number) for number in set(turns)}
        before = {(a, b) for a in first for b in first if last[a] <= first[b]}

        def fits(order: Sequence[int]) -> bool:
            return not any((b, a) in before for a, b in itertools.combinations(order, 2))

        for order, came in self._known:
            if came == found and fits(order):
                return
        for parts in self._orders:
            order = tuple(number for number, _ in parts)
            came = await self._scene.in_order(parts, self.acts)
            self._known.append((order, came))
            if came == found and fits(order):
                return
        lines = [f"after {turns}:", f"  found {found[0]}"]
        for order, (answers, state) in self._known[:6]:
            lines.append(f"  {order}: {answers}")
            lines += [
                f"        {name}: found {found[1].get(name)}, not {state.get(name)}"
                for name in sorted(found[1].keys() | state.keys())
                if found[1].get(name) != state.get(name)
            ]
        raise NotInAnyOrder("\n".join(lines))


def _parts(act: Act, *, another_claims: bool, twice: bool) -> Sequence[tuple[Ask, ...]]:
    *first, last = act.parts or ((act.ask,),)
    instead = (*(act.passing if another_claims else ()), *(act.idle if twice else ()))
    return [*first, (*last, *instead)]


@asynccontextmanager
async def theatre(tally: Counter[str]) -> AsyncIterator[Theatre]:
    made = Theatre(tally)
    try:
        await made.open(3)
        yield made
    finally:
        await made.aclose()


async def meet(
    stage: Theatre, scene: Scene, names: Sequence[str], schedules: Iterable[Schedule]
) -> None:
    """Play acts at once under one schedule after the other."""
    serial = Serial(stage, [scene.acts[name] for name in names])
    try:
        for schedule in schedules:
            await stage.check(serial, schedule)
    except NotInAnyOrder as wrong:
        wrong.add_note(f"when these met: {', '.join(names)}")
        raise


def every_order(tally: Counter[str]) -> Iterator[Schedule]:
    """All orders; of a pair that has too many, those in which callers are left twice at most."""
    orders = Orders()
    for _ in range(ORDERS_MAX):
        yield orders
        if not orders.another():
            tally["pair in every order"] += 1
            return
    tally["pair in every order of two switches"] += 1
    orders = Orders(switches=2)
    yield orders
    while orders.another():
        yield orders


def standing(callers: int) -> Iterator[Schedule]:
    for order in itertools.permutations(range(callers)):
        yield from (Standing(order, steps) for steps in range(1, STEPS_MAX))


def test_a_signal_that_meets_its_wait_leaves_no_timer(campaign: Campaign) -> None:
    """The timer was committed while the signal waited for the job, so its statement did not see
    it. It ended a later wait, or stood in the way of the timer of that one."""

    async def play() -> None:
        async with theatre(campaign.tally) as stage:
            scene = SCENES["signals"]
            await stage.stage(scene)
            for names in (
                ("park the other for a time", "signal the other"),
                ("park the other for a time", "cancel the other"),
                ("signal", "promote"),
            ):
                await meet(stage, scene, names, every_order(campaign.tally))

    asyncio.run(play())
    assert campaign.tally["blocked interleaving"]


@pytest.mark.parametrize("part", range(2))
def test_what_callers_do_at_once_they_could_have_done_in_turn(
    part: int, campaign: Campaign
) -> None:
    """Of pairs of calls every order, of three calls random ones."""

    async def play() -> None:
        async with theatre(campaign.tally) as stage:
            for name in list(SCENES)[part::2]:
                rng, scene = campaign.random(name), SCENES[name]
                await stage.stage(scene)
                pairs = list(itertools.combinations_with_replacement(scene.acts, 2))
                for pair in pairs if campaign.full else rng.sample(pairs, 8):
                    every = every_order(campaign.tally) if campaign.full else [Drawn(rng)]
                    await meet(stage, scene, pair, every)
                for _ in range(campaign.rounds(share=6, full=400)):
                    three = rng.choices(list(scene.acts), k=3)
                    await meet(stage, scene, three, [Drawn(rng)])

    asyncio.run(play())
    assert campaign.tally["interleaving"] >= 60
    assert campaign.tally["blocked interleaving"] > 3


# --- planted bugs: how these statements were, or could be, written

KEYS_IN_ONE_LOOK = """
insert into fw.unique_key as k (key, job, until)
select w.key, w.job, fw.now_() + w.window_us * interval '1 microsecond'
from unnest($1::text[], $2::bigint[], $3::bigint[]) as w (key, job, window_us) order by w.key
on conflict (key) do update set job = excluded.job, until = excluded.until
    where k.until <= fw.now_() and not exists (select 1 from fw.job j where j.id = k.job)
returning key
"""
LINES_IN_ONE_LOOK = """
with wanted as (
    select * from unnest($1::text[], $2::text[], $3::smallint[], $4::text[])
        as w (queue, tenant, band, skill)
), added as (
    insert into fw.lane (queue, tenant, band, skill)
    select queue, tenant, band, skill from wanted order by queue, tenant, band, skill
    on conflict do nothing
    returning id, queue, tenant, band, skill
)
select id, queue, tenant, band, skill from added
union
select l.id, l.queue, l.tenant, l.band, l.skill from fw.lane l natural join wanted w
"""
LIMITS_IN_ONE_LOOK = """
select name, concurrency,
    case when name = '*' then (select count(*) from fw.lease)
         else (select count(*) from fw.lease s join fw.lane l on l.id = s.lane
               where l.queue = name) end
from fw.queue where name = any($1::text[]) and concurrency is not null
order by name for no key update
"""


async def _lines_in_one_look(self: ReadyLineNumbers, lines: Any) -> None:
    columns = [list(column) for column in zip(*sorted(set(lines) - {*self._numbers}), strict=True)]
    if columns:
        text = in_schema(LINES_IN_ONE_LOOK, self._connections.schema)
        async with self._connections.connection() as connection:
            self._learn(await connection.fetch(text, *columns))


async def _limits_in_one_look(self: PostgresClaiming, connection: Any, asked: Any, out: Any) -> Any:
    schema = self._sql["limits"].partition("from ")[2].partition(".")[0].strip('"')
    rows = await connection.fetch(
        in_schema(LIMITS_IN_ONE_LOOK, schema), sorted({line.queue for line in asked} | {"*"})
    )
    return {
        name: allowance(Limits(concurrency=concurrency), running, 0, 0)
        for name, concurrency, running in rows
    }


async def _nobody_waited_for(self: PostgresClaiming, connection: Any, most_ns: int) -> None:
    pass


async def _looked_for_once(self: PostgresStore, connection: Any, jobs: Any, rows: Any) -> set[int]:
    lines = list({row[1] for row in rows})
    keys = [row[2] for row in rows if row[2] is not None]
    free = await connection.fetch(self._sql["unqueue"], list(jobs), lines, keys)
    return {row[0] for row in free}


@contextmanager
def _with_statement(stage: Theatre, name: str, text: str) -> Iterator[None]:
    """A statement of every store is another one."""
    for store in stage.stores:
        store._connections.sql[name] = in_schema(text, stage.schema)
    try:
        yield
    finally:
        for store in stage.stores:
            store._connections.sql[name] = statements(stage.schema)[name]


def _limits_not_seen(stage: Theatre) -> Any:
    text = statements("fw")["claim"].replace('"fw".', "fw.")
    return _with_statement(
        stage, "claim", text.replace("limited as materialized (", NOTHING_LIMITED)
    )


NOTHING_LIMITED = "limited as materialized (select name from fw.queue where false), unused as ("

PLANTED: dict[str, tuple[str, tuple[str, ...], Callable[[Theatre], Any]]] = {
    "a key is looked at by the statement that waits for it": (
        "unique keys",
        ("enqueue u", "enqueue u again"),
        lambda stage: _with_statement(stage, "lock_keys", KEYS_IN_ONE_LOOK),
    ),
    "a line is looked for by the statement that waits for it": (
        "new ready lines",
        ("enqueue", "enqueue too"),
        lambda stage: plant(ReadyLineNumbers, "ensure", _lines_in_one_look),
    ),
    "what runs is counted by the statement that waits for the limit": (
        "limits",
        ("claim", "claim too"),
        lambda stage: plant(PostgresClaiming, "_allowances", _limits_in_one_look),
    ),
    "a limit is learned at the next look": (
        "new limits",
        ("limit q", "claim"),
        _limits_not_seen,
    ),
    "claims under way are not waited for": (
        "new limits",
        ("claim and look", "limit q", "claim too"),
        lambda stage: plant(PostgresClaiming, "wait_for_claims", _nobody_waited_for),
    ),
    "a parent comes back while its children end unseen": (
        "taken up again",
        ("retry the parent", "end one", "end two"),
        lambda stage: _with_statement(
            stage, "lock_children", "select 1 where $1::bigint[] is null"
        ),
    ),
    "a cancel looks once for a job that moves": (
        "partition keys",
        ("claim", "cancel k1"),
        lambda stage: plant(PostgresStore, "_unqueue", _looked_for_once),
    ),
}


def test_a_planted_bug_is_seen_by_some_order() -> None:
    async def play() -> None:
        tally: Counter[str] = Counter()
        async with theatre(tally) as stage:
            for what, (name, acts, bug) in PLANTED.items():
                await stage.stage(SCENES[name])
                with bug(stage):
                    try:
                        await meet(stage, SCENES[name], acts, standing(len(acts)))
                    except NotInAnyOrder:
                        continue
                pytest.fail(f"nobody noticed: {what}")

    asyncio.run(play())


IN_THE_ORDER_GIVEN = (
    statements("fw")["lock_keys"].replace('"fw".', "fw.").replace("order by w.key", "")
)
CROSSING = Scene(
    SCENES["unique keys"].set_up,
    {
        "second": enqueue(new("c1", unique_key="k2")),
        "all": enqueue(*(new(f"a{n}", unique_key=f"k{n}") for n in (1, 2, 3))),
        "third and first": enqueue(*(new(f"b{n}", unique_key=f"k{n}") for n in (3, 1))),
    },
)


@pytest.mark.parametrize("planted", [False, True], ids=["sorted", "as they come"])
def test_keys_that_are_locked_in_order_meet_no_deadlock(planted: bool) -> None:
    """One stands in the way of the second key of another, who has the first one by then."""

    async def play() -> None:
        tally: Counter[str] = Counter()
        async with theatre(tally) as stage:
            await stage.stage(CROSSING)
            with (
                _with_statement(stage, "lock_keys", IN_THE_ORDER_GIVEN)
                if planted
                else nullcontext()
            ):
                await meet(stage, CROSSING, tuple(CROSSING.acts), standing(3))
        assert tally["blocked interleaving"] > 3
        assert bool(tally["deadlock"]) == planted

    asyncio.run(play())


GONE = "select count(*) from fw.lease where worker <> all(array(select id from fw.worker))"
LEAVING = Scene(
    SCENES["limits"].set_up,
    {"claim": SCENES["limits"].acts["claim"], "v leaves": unregister("v")},
)


def test_a_claim_that_is_committed_after_its_worker_was_forgotten_is_taken_over() -> None:
    """As if its connection had stalled until then: nobody but the reaper can find such a lease."""

    async def play() -> None:
        tally: Counter[str] = Counter()
        async with theatre(tally) as stage:
            await stage.stage(LEAVING)
            serial = Serial(stage, [*LEAVING.acts.values()])
            count = GONE.replace("fw.", f"{stage.schema}.")
            for steps in range(1, STEPS_MAX):
                await stage.check(serial, Standing((0, 1), steps))
                tally["left behind"] += (await stage.hand.fetchval(count)) > 0
                await stage.stores[0].reap(100)
                assert await stage.hand.fetchval(count) == 0
                jobs = await stage.stores[0].browse(EVERYTHING)
                assert stage.cast.workers["v"] not in {job.worker for job in jobs}
        assert tally["left behind"]

    asyncio.run(play())

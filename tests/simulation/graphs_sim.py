"""One seed, one history: checkpointed graphs on virtual time, over several lives of their app.

A ledger reads a topic, a feed and pushes, sequentially, keeps a running digest in a state of its
own, and appends to a topic and enqueues a job with each firing; a mirror reads that topic. Clients
write and retry; meanwhile the app is killed or loses power, children crash at any await, the feed
is lost, the disk is full, and people pause and restart. Beside it runs a book of what everybody was
told. A broken promise raises `Broken`. `mutate` plants a bug.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from fairway import Batch, Fairway, FiringContext, Source, any_, retry
from fairway.errors import Closing, Conflict, FairwayError, GraphFailed, OutcomeUnknown
from fairway.graphs.engine import Graphs
from fairway.graphs.health import IllegalMove
from fairway.graphs.running import RunningGraph
from fairway.jobs.job import Filter
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import Deadlock, Livelock, TestFeed, run
from fairway.testing.graphs import GraphsUnderTest
from fairway.testing.jobs import NotQuiet
from tests.support.planted import ACCIDENTS, Drifted
from tests.support.promises import Broken, broken_by, demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 10**9


class Given(msgspec.Struct, frozen=True):
    id: int


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    digest: int = 0

    def after(self, ids: list[int]) -> Total:
        digest = self.digest
        for id in ids:
            digest = (digest * 31 + id) % (2**61 - 1)
        return Total(self.count + len(ids), digest)


class Line(msgspec.Struct, frozen=True):
    """What the ledger appends with each firing."""

    number: int
    source: str
    ids: list[int]
    total: Total


@dataclass(frozen=True)
class Scene:
    """Who writes, and how often what goes wrong. A narrow one reaches what is rare elsewhere."""

    writes: tuple[str, ...] = ("order", "tick", "push", "push")
    troubles: dict[str, float] = field(
        default_factory=lambda: {
            "kill": 4,
            "lose_power": 3,
            "crash_reactor": 4,
            "crash_source": 4,
            "lose": 2,
            "fill_disk": 2,
            "pause": 1,
            "command": 1,
            "force": 1,
        }
    )


EVERYTHING = Scene()


@dataclass
class World:
    seed: int
    random: random.Random
    tally: Counter[str]
    scene: Scene = EVERYTHING
    feed: TestFeed = field(default_factory=TestFeed)
    kit: GraphsUnderTest = None  # type: ignore[assignment]
    acked: dict[str, list[int]] = field(default_factory=lambda: {"orders": [], "pushes": []})
    """In the order in which they were acknowledged, by source."""
    tried: set[int] = field(default_factory=set)
    flaky: float = 0.0
    full_disk: bool = False
    healthy: bool = False
    clients: int = 0
    ids: int = 0

    def next_id(self) -> int:
        self.ids += 1
        return self.ids


def declare(world: World) -> Fairway:
    chance = world.random
    app = Fairway(MemoryWal())
    app.first_epoch = 1  # its digits count against the disk
    orders = app.topic("orders", Given)
    out, copies = app.topic("out", Line), app.topic("copies", int)

    @app.job
    async def note(ids: list[int]) -> None:
        return None

    batch = Batch(size=3, every_s=0.05) if chance.random() < 0.5 else None
    world.tally["batched"] += batch is not None
    ticks = Source("ticks", Given, feed=world.feed, batch=batch)
    pushes = Source("pushes", Given, dedupe=lambda given: given.id, capacity=chance.choice((2, 64)))
    total = Source("total", Total, keep=1)
    ledger = app.graph(
        "ledger",
        when=any_(orders, ticks, pushes),
        uses=[total],
        inputs="sequential",
        on_error=retry(MOST, base_s=0.001),
        checkpoint=True,
    )
    mirror = app.graph("mirror", when=out, inputs="sequential", checkpoint=True)
    list_of = list[Given] if batch is not None else Given

    def record(
        orders: Given | None,
        ticks: list_of | None,  # type: ignore[valid-type]
        pushes: Given | None,
        total: list[Total] | None,
        firing: FiringContext,
    ) -> int:
        given = {"orders": orders, "ticks": ticks, "pushes": pushes}
        found = [name for name in firing.fresh if name != "total"]
        demand(len(found) <= 1, f"one firing took {found}")
        if not found:
            demand(firing.cause == "forced", "a firing without news")
            return 0
        values: Any = given[found[0]]
        ids = [each.id for each in (values if isinstance(values, list) else [values])]
        now = (total[0] if total else Total()).after(ids)
        firing.put("total", now)
        firing.append(out, Line(firing.number, found[0], ids, now))
        firing.enqueue(note.order(ids=ids))
        if not world.healthy and chance.random() < world.flaky:
            world.tally["node failed"] += 1
            raise RuntimeError("by chance")
        return len(ids)

    async def waits(record: int) -> int:
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.02)))
        return record

    scope = {"list_of": list_of}
    ledger.add(record, scope=scope)
    if chance.random() < 0.7:
        ledger.add(waits)
        world.tally["async ledger"] += 1

    @mirror.node
    def copy(out: Line, firing: FiringContext) -> int:
        firing.append(copies, out.number)
        return out.number

    return app


def simulate(
    seed: int,
    tally: Counter[str] | None = None,
    *,
    scene: Scene = EVERYTHING,
    mutate: Callable[[], AbstractContextManager[Any]] | None = None,
) -> None:
    """Run one history. Raises `Broken` if a promise did not hold, `Drifted` if something died of
    code that does not fit: it would be restarted, and what comes of that proves nothing."""
    chance, counted = random.Random(f"graphs/{seed}"), tally if tally is not None else Counter()
    world = World(seed, chance, counted, scene)
    illegal: list[str] = []

    def note_it(self: IllegalMove, *args: Any) -> None:
        illegal.append(str(args))

    with (
        mutate() if mutate is not None else nullcontext(),
        patch.object(IllegalMove, "__init__", note_it),
        deaths_noted(),
    ):
        try:
            run(lambda: history(world), seed=seed, quiet=True, shuffle=True, limit_ns=3 * 10**12)
        except (Deadlock, Livelock, TimeoutError, NotQuiet) as stuck:
            raise Broken(f"somebody waits for ever: {stuck}") from stuck
        except BaseExceptionGroup as several:
            raise broken_by(several, "something died") from several
    demand(not illegal, f"health moved where it never may: {illegal}")


@contextmanager
def deaths_noted() -> Iterator[None]:
    """Raise `Drifted` at the end if a child of a graph died of code that does not fit."""
    died: list[BaseException] = []

    def noted(real: Any) -> Any:
        def happened(self: Any, *args: Any) -> None:
            error = args[-1].error
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, ACCIDENTS):
                died.append(error)
            real(self, *args)

        return happened

    with (
        patch.object(Graphs, "_happened", noted(Graphs._happened)),
        patch.object(RunningGraph, "_happened", noted(RunningGraph._happened)),
    ):
        try:
            yield
        finally:
            if died:
                raise Drifted(f"a child of a graph died of {died[0]!r}") from died[0]


async def history(world: World) -> None:
    world.kit = kit = GraphsUnderTest(declare(world), seed=world.seed)
    await kit._run(lambda kit: played(world, kit))


async def played(world: World, kit: GraphsUnderTest) -> None:
    chance = world.random
    world.flaky = chance.choice((0, 0, 0.05, 0.3))
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        clients = [
            group.create_task(client(world, kit, WRITES[write])) for write in world.scene.writes
        ]
        chaos = group.create_task(disturb(world, kit, over))
        person = group.create_task(look_after(world, kit))
        await asyncio.wait(clients)
        over.set()
        await chaos
        person.cancel()
    await heal(world, kit)
    await check(world, kit)
    await kit.restart(power_loss=chance.random() < 0.5)
    await kit.settled()
    await check(world, kit)


# Clients


async def client(world: World, kit: GraphsUnderTest, write: Any) -> None:
    for _ in range(world.random.randint(5, 30)):
        await write(world, kit)
        await asyncio.sleep(world.random.choice((0, 0.001, 0.01, 0.1)))


async def order(world: World, kit: GraphsUnderTest) -> None:
    """A record of the topic, retried under its key until it is there."""
    id = world.next_id()
    orders = kit.app.topic("orders")
    while True:
        try:
            await orders.append(Given(id), key=f"order-{id}")
        except FairwayError as error:
            world.tally[f"orders: {type(error).__name__}"] += 1
            await asyncio.sleep(0.01)
            continue
        world.acked["orders"].append(id)
        return


async def tick(world: World, kit: GraphsUnderTest) -> None:
    world.feed.push(*(Given(world.next_id()) for _ in range(world.random.choice((1, 1, 4)))))


async def push(world: World, kit: GraphsUnderTest) -> None:
    """A push, retried until it is accepted, or once and never again."""
    id = world.next_id()
    world.tried.add(id)
    retries = world.random.random() < 0.8
    asks = world.random.random() < 0.3
    ledger = kit._declared[0]
    while True:
        try:
            async with asyncio.timeout(300):
                if asks:
                    await ledger.ask("pushes", Given(id))
                else:
                    await ledger.push("pushes", Given(id))
        except TimeoutError:
            raise Broken(f"push {id} was never answered") from None
        except FairwayError as error:
            world.tally[f"pushes: {type(error).__name__}"] += 1
            if not retries:
                return
            await asyncio.sleep(0.01)
            continue
        world.acked["pushes"].append(id)
        return


WRITES = {write.__name__: write for write in (order, tick, push)}


# What goes wrong


async def disturb(world: World, kit: GraphsUnderTest, over: asyncio.Event) -> None:
    chance = world.random
    for _ in range(chance.randint(2, 12)):
        if over.is_set():
            return
        await asyncio.sleep(chance.choice((0, 0.003, 0.03, 0.3)) * chance.random())
        troubles = world.scene.troubles
        trouble = chance.choices(tuple(troubles), tuple(troubles.values()))[0]
        with suppress(Closing, Conflict, GraphFailed, OutcomeUnknown):
            await TROUBLES[trouble](world, kit)
        world.tally[trouble.replace("_", " ")] += 1


async def look_after(world: World, kit: GraphsUnderTest) -> None:
    """A person, who sooner or later restarts what failed and resumes what is paused."""
    while True:
        await asyncio.sleep(5)
        with suppress(FairwayError):
            await put_right(world, kit)


async def put_right(world: World, kit: GraphsUnderTest) -> None:
    for managed in kit.app.graphs:
        if managed.failed is not None:
            world.tally["failed graph restarted"] += 1
            await kit.app.graphs.restart(managed.graph.name)
        if managed.instance is not None and managed.instance.reactor.paused:
            await managed.instance.reactor.resume("person")


async def kill(world: World, kit: GraphsUnderTest) -> None:
    await kit.restart()


async def lose_power(world: World, kit: GraphsUnderTest) -> None:
    await kit.restart(power_loss=True)


async def crash_reactor(world: World, kit: GraphsUnderTest) -> None:
    name = world.random.choice(("ledger", "ledger", "mirror"))
    if world.random.random() < 0.4 and kit.runs(name):
        kit.crash(name)
    else:
        kit.crash(name, at=world.random.randint(1, 20))


async def crash_source(world: World, kit: GraphsUnderTest) -> None:
    name, child = world.random.choice(
        (("ledger", "orders"), ("ledger", "ticks"), ("mirror", "out"))
    )
    if world.random.random() < 0.3 and kit.runs(name, child=child):
        kit.crash(name, child=child)
    else:
        kit.crash(name, child=child, at=world.random.randint(1, 12))


async def lose(world: World, kit: GraphsUnderTest) -> None:
    chance = world.random
    world.feed.lose(reports=chance.random() < 0.5)
    await asyncio.sleep(chance.choice((0.001, 0.1, 3)))
    world.feed.restore()


async def fill_disk(world: World, kit: GraphsUnderTest) -> None:
    def full() -> None:
        raise OSError("no space")

    wal = kit._wal
    wal.before_write = full
    await asyncio.sleep(world.random.choice((0.01, 0.2, 1)))
    wal.before_write = None


async def pause(world: World, kit: GraphsUnderTest) -> None:
    reactor = kit._declared[0].running.reactor
    await asyncio.wait_for(reactor.pause("sim"), 60)
    await asyncio.sleep(world.random.choice((0.01, 0.2)))
    if world.random.random() < 0.5:
        await kit.restart()
    await asyncio.wait_for(kit._declared[0].running.reactor.resume("sim"), 60)


async def command(world: World, kit: GraphsUnderTest) -> None:
    await kit.app.graphs.restart(world.random.choice(("ledger", "mirror")))


async def force(world: World, kit: GraphsUnderTest) -> None:
    instance = kit._declared[0].running
    with suppress(FairwayError):
        await asyncio.wait_for(instance.force(), 60)


TROUBLES = {
    trouble.__name__: trouble
    for trouble in (
        *(kill, lose_power, crash_reactor, crash_source, lose),
        *(fill_disk, pause, command, force),
    )
}


# What must hold


async def heal(world: World, kit: GraphsUnderTest) -> None:
    """No more faults: everything that was accepted is fired, sent and done."""
    world.healthy = True
    world.feed.restore()
    kit._wal.before_write = None
    for child in kit._crashes._children.values():
        child.steps_left = None
    async with asyncio.timeout(600):
        await asyncio.sleep(1)  # the last crash may happen at this very instant
        while {managed.state for managed in kit.app.graphs} != {"live"}:
            await put_right(world, kit)
            await asyncio.sleep(1)
        await put_right(world, kit)
    await kit.settled()
    await asyncio.sleep(1)  # batches end by time
    await kit.settled()


async def check(world: World, kit: GraphsUnderTest) -> None:
    app = kit.app
    lines = [record.data for record in await everything(app, "out")]
    by_source: dict[str, list[int]] = {"orders": [], "ticks": [], "pushes": []}
    total = Total()
    last = 0
    for line in lines:
        demand(line.number > last, f"firing {line.number} after {last}")
        last = line.number
        total = total.after(line.ids)
        demand(line.total == total, f"firing {last}: the state was {line.total}, not {total}")
        by_source[line.source] += line.ids
    orders = [record.data.id for record in await everything(app, "orders")]
    demand(set(world.acked["orders"]) == set(orders), "the topic itself lost something")
    demand(by_source["orders"] == orders, differ("orders", by_source["orders"], orders))
    ticks = [given.id for given in world.feed.events]
    demand(by_source["ticks"] == ticks, differ("ticks", by_source["ticks"], ticks))
    pushed = by_source["pushes"]
    doubled = [id for id, times in Counter(pushed).items() if times > 1]
    demand(not doubled, f"pushes {doubled} fired twice")
    lost = set(world.acked["pushes"]) - set(pushed)
    demand(not lost, f"pushes {sorted(lost)} were accepted and never fired")
    demand(set(pushed) <= world.tried, "a push that nobody made")
    jobs = sorted(await app.jobs.browse(Filter(limit=1_000_000)), key=lambda job: job.id)
    noted = [msgspec.json.decode(job.state)["ids"] for job in jobs]
    demand(noted == [line.ids for line in lines], differ("jobs", noted, [x.ids for x in lines]))
    copies = [record.data for record in await everything(app, "copies")]
    demand(copies == [line.number for line in lines], "the mirror differs")
    state = kit.state("ledger")
    demand(state.windows["total"] == ([total] if lines else []), f"{state.windows} is not {total}")
    demand(not state.dead, f"dead letters: {state.dead}")
    for managed in app.graphs:
        assert managed.instance is not None
        managed.instance.reactor.inputs.check()
    world.tally["firings"] += len(lines)
    world.tally["checked"] += 1


async def everything(app: Fairway, topic: str) -> list[Any]:
    records: list[Any] = []
    while True:
        page = await app.topic(topic).read(len(records))
        demand(page.lost is None, f"{topic} lost {page.lost}")
        if not page.records:
            return records
        records += page.records


def differ(what: str, found: list[Any], wanted: list[Any]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), -1)
    return (
        f"{what}: {len(found)} of {len(wanted)};"
        f" at {at}: {found[at : at + 5]} instead of {wanted[at : at + 5]}"
        if at >= 0
        else f"{what}: {len(found)} of {len(wanted)}: {found[-3:]} {wanted[-3:]}"
    )

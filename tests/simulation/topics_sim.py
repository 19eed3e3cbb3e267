"""One seed, one history: the real topics engine on virtual time, over several lives of its store.

Clients append in every class, retry, go away, delete, reconfigure, delete and recreate; readers
follow by watching and by diff, stall, resume and change from one to the other; the store fails,
loses power and is killed. Beside it runs a book of what everybody was told. A broken promise raises
`Broken`. `mutate` plants a bug: one that it cannot see makes it worthless.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.core.pressure import Ladder
from fairway.errors import (
    Corrupt,
    FairwayError,
    NotFound,
    OutcomeUnknown,
    TopicFull,
    WriteFailed,
)
from fairway.kernel.kernel import Kernel
from fairway.runtime.completion import resolve
from fairway.runtime.turn import TURN, TurnBudget
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.testing import Deadlock, Livelock, run
from fairway.topics.batch import size_of
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.match import TagMatch
from fairway.topics.operations import Position
from fairway.topics.reading import Selection
from fairway.topics.retention import RetentionConfig
from fairway.topics.watching import View
from fairway.topics.writing import NewBatch
from fairway.wire.records import decode_records, parse_records
from fairway.wire.topics import TopicPatch
from tests.support.promises import Broken, broken_by, demand
from tests.support.topics import PLAIN, Forced

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.topics.outcome import Appended
    from fairway.topics.topic import Topic
    from fairway.topics.watching import Watcher

Mutation = "Callable[[], AbstractContextManager[Any]]"
TAGS = ("a", "ab", "b", None)
LADDERS = (
    Ladder(),
    Ladder(pressure=0.5, coalesce_window_ns=8_000_000, commit_window_ns=1_000_000),
    Ladder(pressure=0.9, coalesce_window_ns=17_000_000, commit_window_ns=8_000_000, defer=True),
)


@dataclass
class Attempt:
    """One append that a client tried: which records, and what is known of its fate."""

    number: int
    tags: list[str | None]
    classes: set[str] = field(default_factory=set)
    epoch: int = 0
    first_seq: int = 0
    told: str = "unknown"  # unknown, acked, refused
    sizes: list[int] = field(default_factory=list)
    repeats: bool = False
    """Whether it is made by name, and again: one that meets the deletion of its topic is made in
    the next of that name, too."""

    @property
    def seqs(self) -> range:
        return (
            range(self.first_seq, self.first_seq + len(self.tags)) if self.first_seq else range(0)
        )


@dataclass
class Book:
    """What is known of one incarnation of a topic."""

    name: str
    epoch: int
    at: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Which record a seq was seen to hold, or acknowledged for: never another one."""
    acked: set[int] = field(default_factory=set)
    safe: set[int] = field(default_factory=set)
    """Acknowledged ones that nothing but a request may take away."""
    disk: set[int] = field(default_factory=set)
    """Safe until the power fails."""
    deleted: set[int] = field(default_factory=set)
    maybe_deleted: set[int] = field(default_factory=set)
    requests: list[list[Any]] = field(default_factory=list)
    """Deletions: (before, match, up to which seq at most), for records that are heard of later."""
    told_lost: set[int] = field(default_factory=set)
    bounded: bool = False
    weak: bool = False
    gone: bool = False

    def hold(self, seq: int, record: tuple[int, int]) -> None:
        known = self.at.setdefault(seq, record)
        demand(known == record, f"{self.name}: seq {seq} was {known} and is {record}")


@dataclass(frozen=True)
class Scene:
    """What happens in a history, and how often. A narrow one reaches what is rare elsewhere."""

    names: tuple[str, ...] = ("one", "two", "three")
    classes: tuple[str, ...] = ("fsync", "fsync", "disk", "memory", "ephemeral")
    lives: tuple[int, int] = (1, 4)
    clean: float = 0.3
    """How many lives end well."""
    bounded: float = 1.0
    """How often topics have limits, of how often they have in a history of everything."""
    snapshots: tuple[int, ...] = (3, 2000)
    idle_ms: tuple[int, ...] = (1, 5_000)
    weights: tuple[float, ...] = (40, 15, 10, 8, 5, 1.5, 20, 4)
    """Append, retry, produce, delete, configure, recreate, consume, disturb."""


EVERYTHING = Scene()


@dataclass
class World:
    seed: int
    random: random.Random
    tally: Counter[str]
    attempts: dict[int, Attempt] = field(default_factory=dict)
    books: dict[int, Book] = field(default_factory=dict)
    consumers: list[Consumer] = field(default_factory=list)
    scene: Scene = field(default_factory=lambda: EVERYTHING)
    positions: dict[str, int] = field(default_factory=dict)
    repeats: list[tuple[str, int, Attempt, dict[str, Any]]] = field(default_factory=list)
    dead: bool = False
    healthy: bool = False
    turn: TurnBudget = TURN

    def book(self, topic: Topic) -> Book:
        epoch = abs(topic.epoch)
        if epoch not in self.books:
            self.books[epoch] = Book(topic.name, epoch)
        book = self.books[epoch]
        config = topic.config
        book.bounded |= bool(config.cap_records or config.cap_bytes or config.ttl_ms)
        book.weak |= config.durability != "fsync"
        return book

    def attempt(self, tags: list[str | None]) -> tuple[Attempt, NewBatch]:
        number = len(self.attempts) + 1
        made = self.attempts[number] = Attempt(number, tags)
        pad = "x" * self.random.choice((0, 0, 30, 300))
        records = [
            {"data": [number, at, pad], **({} if tag is None else {"tag": tag})}
            for at, tag in enumerate(tags)
        ]
        parsed = parse_records(msgspec.json.encode(records))
        made.sizes = [size_of(record, None) for record in decode_records(parsed.raw)]
        return made, NewBatch(records=parsed)


class Consumer:
    """A reader with a cursor that outlives the engine: it watches, or reads diffs, in turns."""

    def __init__(self, world: World, book: Book, cursor: int) -> None:
        self.world = world
        self.book = book
        self.start = self.cursor = cursor
        self.delivered: set[int] = set()
        self.lost: set[int] = set()
        self.watcher: Watcher | None = None
        self.patience = world.random.choice((1.0, 1.0, 0.7, 0.3))
        self.told_deleted = False
        self.reading = False

    # As a sink

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        world = self.world
        if world.dead or watcher is not self.watcher:
            return True
        if not world.healthy and world.random.random() > self.patience:
            world.tally["sink refused"] += 1
            loop = asyncio.get_running_loop()
            loop.call_later(world.random.choice((0, 0.001, 0.1)), watcher.resume)
            return False
        kind = frame[0]
        if kind == "records":
            for seq, data in frame[1]:
                self.take(seq, data)
            world.tally["pushed frames"] += 1
        elif kind == "gap":
            self.miss(frame[1].first, frame[1].last)
        elif kind == "deleted":
            self.told_deleted = True
        demand(to_seq >= self.cursor, f"a frame leads back from {self.cursor} to {to_seq}")
        self.cursor = to_seq
        return True

    def take(self, seq: int, data: bytes) -> None:
        demand(seq > self.cursor, f"{self.book.name}: {seq} after {self.cursor}: doubled")
        number, at, _ = msgspec.json.decode(data)
        see(self.world, self.book, seq, (number, at))
        demand(seq not in self.lost, f"{seq} was told to be lost and comes all the same")
        self.delivered.add(seq)
        self.cursor = seq

    def miss(self, first: int, last: int) -> None:
        # What was deleted on request before it is passed over in silence.
        demand(self.cursor < first <= last, f"gap {first}..{last} at {self.cursor}")
        self.lost.update(range(first, last + 1))
        lose(self.book, first, last)
        self.cursor = last

    async def read(self, topics: Topics) -> None:
        world = self.world
        diff = await topics.reading.diff(
            self.book.name,
            self.cursor,
            epoch=self.book.epoch,
            limit=world.random.choice((1, 3, 256)),
            max_bytes=world.random.choice((1, 500, 100_000)),
            wait_ns=world.random.choice((0, 5_000_000)),
        )
        if world.dead:
            return
        # Its epoch turns negative if it is deleted while it is read.
        demand(diff.recreated == (abs(diff.topic.epoch) != self.book.epoch), "recreated")
        if diff.recreated:
            self.book.gone = True
            return
        if diff.page.gap is not None:
            self.miss(diff.page.gap.first, diff.page.gap.last)
        for record in diff.page.records:
            self.take(record.seq, record.data)
        self.cursor = max(self.cursor, diff.page.next_seq)
        world.tally["diffs"] += 1

    def check(self, head: int) -> None:
        book, watcher = self.book, self.watcher
        # A watcher is not told when the last records were deleted before it came to them.
        cursor = self.cursor if watcher is None else max(self.cursor, watcher.cursor)
        demand(cursor == head, f"{book.name}: a reader stands at {cursor} of {head}")
        expected = {seq for seq in book.acked if seq > self.start}
        missing = expected - self.delivered - self.lost - book.deleted - book.maybe_deleted
        demand(not missing, f"{book.name}: a reader never heard of {sorted(missing)[:9]}")


def see(world: World, book: Book, seq: int, record: tuple[int, int]) -> None:
    """A reader was given a record: it must be one that somebody wrote, where it was put."""
    attempt = world.attempts[record[0]]
    demand(attempt.told != "refused", f"attempt {record[0]} was refused and is there")
    book.hold(seq, record)
    first = seq - record[1]
    if not attempt.first_seq:
        attempt.first_seq, attempt.epoch = first, book.epoch
        world.tally["unknown came true"] += 1
        demand(seq not in book.deleted, "a deleted record came back")
    other = world.books[attempt.epoch]
    if attempt.repeats and other is not book and other.name == book.name:
        world.tally["repeated in the next topic of its name"] += 1
        return
    demand(other is book, f"attempt {record[0]} is in two topics")
    if first > attempt.first_seq and book.weak:
        attempt.first_seq = first  # again, after a loss; that it is there once is checked later
    demand(attempt.first_seq == first, f"attempt {record[0]} was appended twice: at {first}")
    if attempt.classes == {"fsync"} and not book.bounded and not book.weak:
        book.safe.update(attempt.seqs)  # seen, so its class was met, acknowledged or not
    know(book, attempt)


def know(book: Book, attempt: Attempt) -> None:
    """All of a batch is there if any of it is; some may have been deleted before it was known."""
    book.acked.update(attempt.seqs)
    for at, own in enumerate(attempt.seqs):
        book.hold(own, (attempt.number, at))
        for before, match, upto in book.requests:
            hit = own <= upto and (before is None or own < before)
            if hit and (match is None or match(attempt.tags[at])):
                book.maybe_deleted.add(own)


def lose(book: Book, first: int, last: int) -> None:
    wrong = book.safe.intersection(range(first, last + 1)) - book.deleted - book.maybe_deleted
    demand(not wrong, f"{book.name}: safe records {sorted(wrong)[:9]} are told to be lost")
    book.told_lost.update(range(first, last + 1))


class FaultyWal(MemoryWal):
    """The reference store, with faults by chance."""

    world: World
    fault_rate = 0.0

    def write(self, group: Any, *, sync: bool) -> Any:
        world = self.world
        if world.healthy or world.dead or world.random.random() >= self.fault_rate:
            return super().write(group, sync=sync)
        kind = world.random.choice(("raised before", "raised after", "full disk", "full disk"))
        world.tally[f"fault: {kind}"] += 1
        if kind == "full disk":
            return dict.fromkeys(group, WriteFailed("no space"))
        if kind == "raised after":
            super().write(group, sync=sync)
        raise RuntimeError(kind)


def heir_of(wal: FaultyWal, made: MemoryWal, fault_rate: float) -> FaultyWal:
    heir = FaultyWal(shards=made.parallelism)
    heir.inherit(made)
    heir.world = wal.world
    heir.fault_rate = fault_rate
    return heir


def simulate(
    seed: int,
    tally: Counter[str] | None = None,
    *,
    scene: Scene = EVERYTHING,
    mutate: Callable[[], AbstractContextManager[Any]] | None = None,
) -> None:
    """Run one history. Raises `Broken` if a promise did not hold."""
    world = World(
        seed,
        random.Random(f"topics/{seed}"),
        tally if tally is not None else Counter(),
        scene=scene,
    )
    with mutate() if mutate is not None else nullcontext():
        try:
            run(lambda: history(world), seed=seed, quiet=True, shuffle=True, limit_ns=10**13)
        except (Deadlock, Livelock, TimeoutError) as stuck:
            raise Broken(f"somebody waits for ever: {stuck}") from stuck
        except (Corrupt, asyncio.CancelledError) as failed:
            raise Broken(f"a service died: {failed!r}") from failed
        except BaseExceptionGroup as several:
            raise broken_by(several, "a service died") from several


async def history(world: World) -> None:
    chance = world.random
    wal = FaultyWal(shards=chance.choice((1, 2)))
    wal.world = world
    tiny = chance.random() < 0.5
    world.tally["tiny memory"] += tiny
    hot, keys, tags = (
        chance.choice((1, size)) if tiny else 1 << 20 for size in (2_000, 1_000, 1_000)
    )
    world.turn = TurnBudget(delivery_ns=chance.choice((1, 2_000_000)))
    config = TopicsConfig(
        hot_bytes=hot,
        key_bytes=keys,
        tag_bytes=tags,
        retention=RetentionConfig(
            chunk=chance.choice((2, 500)),
            page_bytes=chance.choice((1, 10_000)),
            snapshot_records=chance.choice(world.scene.snapshots),
            snapshot_idle_ms=chance.choice(world.scene.idle_ms),
        ),
    )
    for _ in range(chance.randint(*world.scene.lives)):
        wal.fault_rate = chance.choice((0, 0, 0.02, 0.1))
        wal = await one_life(world, wal, config)
    world.healthy = True
    await one_life(world, wal, config, last=True)


async def one_life(
    world: World, wal: FaultyWal, config: TopicsConfig, *, last: bool = False
) -> FaultyWal:
    chance = world.random
    world.dead = False
    sampler = Forced(chance.choice(LADDERS))
    clean = last or chance.random() < world.scene.clean
    made: list[MemoryWal] = []
    try:
        async with (
            Log(wal, turn=world.turn) as log,
            Kernel(log, governor=sampler) as kernel,
            Topics(kernel, config=config) as topics,
        ):
            check_recovered(world, topics)
            for consumer in world.consumers:
                join(world, topics, consumer)
            async with asyncio.TaskGroup() as clients:
                for number in range(chance.randint(1, 6)):
                    clients.create_task(client(world, topics, sampler), name=f"client-{number}")
                if not clean:
                    await asyncio.sleep(chance.choice((0.001, 0.02, 0.2, 1)) * chance.random())
                    world.dead = True
                    if chance.random() < 0.5:
                        world.tally["killed"] += 1
                        made.append(wal.kill())
                    else:
                        world.tally["power lost"] += 1
                        made.append(wal.crash(chance))
                        for book in world.books.values():
                            book.safe -= book.disk
                            book.disk.clear()
            if clean:
                await quiesce(world, topics, wal)
                world.tally["clean stop"] += 1
    except BaseExceptionGroup as error:
        if not world.dead or error.subgroup(Broken) is not None:
            raise
    except FairwayError:
        if not world.dead:
            raise
    world.dead = True
    for consumer in world.consumers:
        consumer.watcher, consumer.reading = None, False
    heir = heir_of(wal, made[0] if made else wal.kill(), 0)
    return await recovered_twice(world, heir, config)


async def recovered_twice(world: World, wal: FaultyWal, config: TopicsConfig) -> FaultyWal:
    """Open it, look, and die at once; what is found the second time is the same."""
    states = []
    for _ in range(2):
        async with Log(wal, turn=world.turn) as log:
            kernel = Kernel(log, governor=Forced())
            await kernel.__aenter__()
            topics = Topics(kernel, config=config)
            await topics.__aenter__()
            states.append({t.name: state_of(t) for t in topics})
            for topic in topics:
                check_invariants(topic)
            heir = heir_of(wal, wal.kill(), 0)
            with suppress(FairwayError):
                await topics.__aexit__(RuntimeError, None, None)
            await kernel.__aexit__(RuntimeError, None, None)
        wal = heir
    for name, first in states[0].items():
        second = states[1][name]
        demand(first[0] == second[0], f"{name}: {first} is recovered as {second} again")
        for before, after in zip(first[1], second[1], strict=True):
            demand(after >= before, f"{name}: a floor went back from {first} to {second}")
    return wal


def state_of(topic: Topic) -> tuple[Any, tuple[int, ...]]:
    floors = (topic.evict_floor, topic.delete_floor, topic.earliest, topic.head)
    counts = (topic.count, topic.bytes, topic.holes) if not topic.config.ttl_ms else ()
    return (topic.epoch, topic.head, topic.config, *counts), floors


def check_recovered(world: World, topics: Topics) -> None:
    for topic in topics:
        check_invariants(topic)
        book = world.book(topic)
        demand(not book.gone, f"{topic.name} was deleted and is back")
        top = max(book.acked, default=0)
        demand(topic.head >= top, f"{topic.name}: head {topic.head} after {top} was acknowledged")


def join(world: World, topics: Topics, consumer: Consumer) -> None:
    """Let a consumer watch from where it stands."""
    topic = topics.find(consumer.book.name)
    if consumer.book.gone or topic is None or topic.epoch != consumer.book.epoch:
        consumer.book.gone = True
        return
    demand(topic.head >= consumer.cursor, "a reader is ahead of the topic")
    view = View(PLAIN.encoder, limit=world.random.choice((1, 4, 256)), max_bytes=10_000)
    consumer.watcher = topics.watch(topic, view, consumer, consumer.cursor)
    # Whoever made it knows it only now; what was pushed meanwhile went to nobody.
    world.tally["watching"] += 1


async def client(world: World, topics: Topics, sampler: Forced) -> None:
    chance = world.random
    for _ in range(chance.randint(3, 25)):
        if world.dead:
            return
        step = chance.choices(
            (append, retry, produce, delete, configure, recreate, consume, disturb),
            world.scene.weights,
        )[0]
        try:
            await step(world, topics, sampler)
        except (TopicFull, NotFound):
            continue
        except Corrupt as error:
            if not world.dead:
                raise Broken(f"corrupt: {error}") from error
        except FairwayError as error:
            world.tally[f"told {type(error).__name__}"] += 1
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.05)))


def draw_patch(chance: random.Random, scene: Scene, *, fresh: bool = False) -> TopicPatch:
    fields: dict[str, Any] = {}
    if fresh or chance.random() < 0.3:
        fields["durability"] = chance.choice(
            scene.classes if fresh else ("fsync", "disk", "memory")
        )
    if chance.random() < 0.3 * scene.bounded:
        fields["cap_records"] = chance.choice((0, 3, 10, 40))
    if chance.random() < 0.2 * scene.bounded:
        fields["cap_bytes"] = chance.choice((0, 200, 3_000))
    if chance.random() < 0.15 * scene.bounded:
        fields["ttl_ms"] = chance.choice((0, 30, 1_000))
    if chance.random() < 0.2:
        fields["discard"] = chance.choice(("old", "reject"))
    if chance.random() < 0.3:
        fields["priority"] = chance.choice((-1000, -1, 0, 800))
    return TopicPatch(**fields)


async def some_topic(world: World, topics: Topics) -> Topic:
    name = world.random.choice(world.scene.names)
    topic = topics.find(name)
    if topic is None:
        patch = draw_patch(world.random, world.scene, fresh=True)
        last = max(world.books, default=0)
        topic, fresh = await topics.create(name, patch)
        demand(world.dead or not fresh or topic.epoch > last, "an epoch was used again")
    if not world.dead:
        world.book(topic)
    return topic


async def append(world: World, topics: Topics, sampler: Forced) -> None:
    topic = await some_topic(world, topics)
    size = world.random.choice((1, 1, 2, 5, 30))
    attempt, new = world.attempt([world.random.choice(TAGS) for _ in range(size)])
    await carry_out(world, topics, topic, attempt, new)


async def retry(world: World, topics: Topics, sampler: Forced) -> None:
    """An append with a key, made several times: at once, later, in another life."""
    topic = await some_topic(world, topics)
    if world.repeats and world.random.random() < 0.6:
        name, epoch, attempt, options = world.random.choice(world.repeats[-30:])
        topic = topics.find(name) or topic
        if topic.epoch != epoch:
            return
        world.tally["retried"] += 1
    else:
        attempt, _ = world.attempt([world.random.choice(TAGS) for _ in range(3)])
        options = {"key": f"key-{attempt.number}"}
        world.repeats.append((topic.name, topic.epoch, attempt, options))
    await repeat(world, topics, topic, attempt, options)


async def repeat(
    world: World, topics: Topics, topic: Topic, attempt: Attempt, options: dict[str, Any]
) -> None:
    records = [
        {"data": [attempt.number, at, ""], **({} if tag is None else {"tag": tag})}
        for at, tag in enumerate(attempt.tags)
    ]
    parsed = parse_records(msgspec.json.encode(records))
    attempt.repeats = True
    attempt.sizes = [size_of(record, None) for record in decode_records(parsed.raw)]
    await carry_out(world, topics, topic, attempt, NewBatch(records=parsed, **options), again=True)


async def produce(world: World, topics: Topics, sampler: Forced) -> None:
    """An append under a producer's position: taken once, however often and late it comes."""
    topic = await some_topic(world, topics)
    producer = f"producer-{topic.epoch}"
    if world.random.random() < 0.4:
        old = [one for one in world.repeats if one[1] == topic.epoch and "position" in one[3]]
        if old:
            _, _, attempt, options = world.random.choice(old)
            world.tally["produced again"] += 1
            await repeat(world, topics, topic, attempt, options)
            return
    number = world.positions[producer] = world.positions.get(producer, 0) + 1
    attempt, _ = world.attempt([world.random.choice(TAGS)])
    options = {"position": Position(producer, 1, number)}
    world.repeats.append((topic.name, topic.epoch, attempt, options))
    await repeat(world, topics, topic, attempt, options)


def check_invariants(topic: Topic) -> None:
    """The engine's own assertions are promises, too."""
    try:
        topic.check()
    except AssertionError as broken:
        raise Broken(f"an invariant of {topic.name} does not hold: {broken!r}") from broken


async def append_either_way(world: World, topics: Topics, topic: Topic, new: NewBatch) -> Appended:
    """As a server does: at once where nothing must be waited for, else the long way."""
    if world.random.random() < 0.5 and topics.find(topic.name) is topic:
        reply: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if topics.append_now(resolve(reply), topic, new):
            world.tally["appended at once"] += 1
            return await reply
    _, answer, _ = await topics.append(topic.name, new)
    return answer


async def carry_out(
    world: World,
    topics: Topics,
    topic: Topic,
    attempt: Attempt,
    new: NewBatch,
    *,
    again: bool = False,
) -> None:
    """Append, perhaps going away meanwhile, and note what was told."""
    attempt.classes.add(topic.config.durability)
    epoch = topic.epoch
    book = world.book(topic) if epoch > 0 else None
    try:
        if world.random.random() < 0.1:
            world.tally["caller went away"] += 1
            async with asyncio.timeout(world.random.choice((0, 0.0005, 0.002))):
                _, answer, _ = await topics.append(topic.name, new)
        else:
            answer = await append_either_way(world, topics, topic, new)
    except TimeoutError:
        return
    except OutcomeUnknown:
        world.tally["outcome unknown"] += 1
        return
    except FairwayError:
        if not world.dead and not again and attempt.told == "unknown":
            attempt.told = "refused"
            world.tally["refused"] += 1
        raise
    if world.dead or book is None:
        return
    attempt.classes.add(topic.config.durability)
    if topic.epoch != epoch:
        return  # deleted meanwhile
    if answer.deduped and new.position is not None:
        world.tally["deduped"] += 1
        return
    demand(answer.last_seq - answer.first_seq + 1 == len(attempt.tags), "count")
    if answer.deduped:
        world.tally["deduped"] += 1
    if attempt.first_seq and attempt.first_seq != answer.first_seq:
        # Only after the first was lost, which is told; should it be seen all the same, `see` says.
        demand(book.weak, f"{attempt} was appended again: {answer}")
        world.tally["appended anew after its loss"] += 1
    attempt.told = "acked"
    attempt.epoch, attempt.first_seq = epoch, answer.first_seq
    book = world.book(topic)
    know(book, attempt)
    if not book.bounded and attempt.classes <= {"fsync", "disk"} and not answer.deduped:
        book.safe.update(attempt.seqs)
        if "disk" in attempt.classes:
            book.disk.update(attempt.seqs)
    world.tally[f"acked {topic.config.durability}"] += 1


async def delete(world: World, topics: Topics, sampler: Forced) -> None:
    chance = world.random
    topic = await some_topic(world, topics)
    book = world.book(topic)
    before = chance.randint(0, topic.head + 3) if chance.random() < 0.6 else None
    tag = chance.choice(("a", "b")) if before is None or chance.random() < 0.3 else None
    match = TagMatch(tag, chance.random() < 0.5) if tag is not None else None

    def hit() -> set[int]:
        found = set()
        for seq, (number, at) in book.at.items():
            below = seq <= topic.assigned and (before is None or seq < before)
            if below and (match is None or match(world.attempts[number].tags[at])):
                found.add(seq)
        return found

    certain = {seq for seq in hit() if seq <= topic.head}
    request = [before, match, 10**9]
    book.requests.append(request)
    book.maybe_deleted |= hit()
    await topics.delete_records(topic.name, before_seq=before, match=match)
    if not world.dead:
        request[2] = topic.head
        book.maybe_deleted |= hit()
    if not world.dead and topic.epoch == book.epoch:
        book.deleted |= certain
        world.tally["deleted by tag" if match else "deleted by seq"] += 1


async def configure(world: World, topics: Topics, sampler: Forced) -> None:
    topic = await some_topic(world, topics)
    book = world.book(topic)
    patch = draw_patch(world.random, world.scene)
    wanted = patch.over(topic.config)
    book.bounded |= bool(wanted.cap_records or wanted.cap_bytes or wanted.ttl_ms)
    if book.bounded:
        book.safe.clear()
        book.disk.clear()
    book.weak |= wanted.durability != "fsync"
    await topics.put(topic.name, patch)
    world.tally["configured"] += 1


async def recreate(world: World, topics: Topics, sampler: Forced) -> None:
    topic = await some_topic(world, topics)
    book = world.book(topic)
    book.safe.clear()
    await topics.delete(topic.name)
    if world.dead:
        return
    book.gone = True
    world.tally["recreated"] += 1


async def consume(world: World, topics: Topics, sampler: Forced) -> None:
    chance = world.random
    if world.consumers and chance.random() < 0.7:
        consumer = chance.choice(world.consumers)
        if consumer.watcher is not None:
            if chance.random() < 0.2:
                topics.unwatch(consumer.watcher)
                consumer.watcher = None
                world.tally["watch to diff"] += 1
            return
        if consumer.book.gone:
            return
        if chance.random() < 0.3 and not consumer.reading:
            join(world, topics, consumer)
            world.tally["diff to watch"] += 1
            return
        if not consumer.reading:
            consumer.reading = True
            try:
                await consumer.read(topics)
            finally:
                consumer.reading = False
        return
    if len(world.consumers) < 12:
        topic = await some_topic(world, topics)
        if world.dead:
            return
        cursor = chance.choice((0, topic.head, chance.randint(0, topic.head)))
        consumer = Consumer(world, world.book(topic), cursor)
        world.consumers.append(consumer)
        if chance.random() < 0.7:
            join(world, topics, consumer)


async def disturb(world: World, topics: Topics, sampler: Forced) -> None:
    """The clock is set, the pressure changes."""
    if world.random.random() < 0.5:
        sampler.force(world.random.choice(LADDERS))
        world.tally["pressure changed"] += 1
    else:
        clock: Any = asyncio.get_running_loop().clock  # type: ignore[attr-defined]
        clock.shift_wall(world.random.choice((-3_000, 500, 5_000)) * 1_000_000)
        world.tally["clock set"] += 1


async def quiesce(world: World, topics: Topics, wal: FaultyWal) -> None:
    """Heal, let everything settle, and compare all that can be read with the book."""
    rate, wal.fault_rate = wal.fault_rate, 0
    was_healthy, world.healthy = world.healthy, True
    await asyncio.sleep(15)
    for consumer in world.consumers:
        while consumer.watcher is None and not consumer.book.gone:
            topic = topics.find(consumer.book.name)
            if topic is None or topic.epoch != consumer.book.epoch:
                consumer.book.gone = True
                break
            await consumer.read(topics)
            if consumer.cursor >= topic.head:
                break
    for topic in list(topics):
        await check_topic(world, topics, topic)
        book = world.books[topic.epoch]
        for consumer in world.consumers:
            if consumer.book is book:
                consumer.check(topic.head)
                world.tally["consumers checked"] += 1
    for consumer in world.consumers:
        if consumer.watcher is not None and consumer.book.gone:
            demand(consumer.told_deleted, "nobody told a watcher that its topic was deleted")
    world.healthy = was_healthy
    wal.fault_rate = rate


async def check_topic(world: World, topics: Topics, topic: Topic) -> None:
    check_invariants(topic)
    book = world.book(topic)
    reader = Consumer(world, book, 0)
    while reader.cursor < topic.head:
        await reader.read(topics)
    reader.check(topic.head)
    owners = Counter(book.at[seq] for seq in reader.delivered)
    twice = [record for record, times in owners.items() if times > 1]
    demand(not twice, f"{topic.name}: {twice[:9]} are there twice")
    back = reader.delivered & book.deleted
    demand(not back, f"{topic.name}: {sorted(back)[:9]} were deleted and are there")
    unsafe = book.safe - reader.delivered - book.deleted - book.maybe_deleted
    demand(not unsafe, f"{topic.name}: {sorted(unsafe)[:9]} are gone without a reason")
    if not book.weak:
        again = reader.delivered & book.told_lost
        demand(not again, f"{topic.name}: {sorted(again)[:9]} were told to be lost and are there")
    demand(topic.count == len(reader.delivered), f"{topic.name}: count {topic.count}")
    size = 0
    for seq in reader.delivered:
        number, at = book.at[seq]
        size += world.attempts[number].sizes[at]
    demand(topic.bytes == size, f"{topic.name}: {topic.bytes} bytes, not {size}")
    if reader.delivered:
        demand(topic.earliest <= min(reader.delivered), f"{topic.name}: earliest")
        if topic.rules is None:
            demand(topic.earliest == min(reader.delivered), f"{topic.name}: earliest")
    config = topic.config
    demand(not config.cap_records or topic.count <= config.cap_records, f"{topic.name}: over")
    demand(not config.cap_bytes or topic.bytes <= config.cap_bytes, f"{topic.name}: over")
    picked = Selection(match=TagMatch("a", True))
    diff = await topics.reading.diff(topic.name, 0, limit=1000, max_bytes=1 << 20, selection=picked)
    demand(all((r.tag or "").startswith("a") for r in diff.page.records), "a filter let through")
    world.tally["topics checked"] += 1
    world.tally["records checked"] += len(reader.delivered)
    world.tally["gaps seen"] += len(reader.lost) > 0

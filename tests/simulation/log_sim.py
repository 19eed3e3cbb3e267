"""One seed, one history: the real log on virtual time over a store that fails in every way.

`simulate(seed)` drives a `Log` with many clients, random limits and random faults, and watches from
outside: the calls that reach the store, what callers were told and what the store holds at the end.
A broken promise raises `Broken`. `mutate` plants a bug: one that it cannot see makes it worthless.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from fairway.core.lanes import LaneLimits
from fairway.errors import (
    Backpressure,
    Closing,
    FairwayError,
    OutcomeUnknown,
    WriteFailed,
)
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.completion import settle
from fairway.storage.log import Log
from fairway.storage.reader import ReaderConfig
from fairway.storage.wal import Entry, Operation
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.writer import Durability, FairWriter, WriterConfig
from fairway.testing import Deadlock, Livelock, run

Mutation = Callable[[], AbstractContextManager[None]]
SPIN_LIMIT = 100_000
"""Callbacks at one virtual instant. A history that goes well has some hundreds."""


class Broken(AssertionError):
    """A promise of the log did not hold."""


def demand(held: bool, promise: str) -> None:
    if not held:
        raise Broken(promise)


@dataclass
class Attempt:
    """One operation that a client tried, and what it was told."""

    number: int
    partition: int
    operation: Operation
    durability: Durability
    accepted_at: int = -1
    cancelled: bool = False
    told: object = None  # a key, or the error
    told_at: int = -1
    notified: int = 0  # how often
    waiter: asyncio.Future[int] | None = field(default=None, repr=False)
    elders: list[Attempt] = field(default_factory=list, repr=False)
    """Accepted before this one and undecided when it came."""

    @property
    def accepted(self) -> bool:
        return self.accepted_at >= 0

    def on_done(self, key: int | None, error: BaseException | None) -> None:
        assert self.waiter is not None
        self.notified += 1
        settle(self.waiter, key, error)


@dataclass
class World:
    """Everything one simulated run decides by its seed, and everything it saw."""

    seed: int
    random: random.Random
    tally: Counter[str]
    attempts: dict[int, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    moment: int = 0  # rises with each acceptance and each thing a caller is told
    calm: bool = True  # no fault and no abrupt stop so far: then everything accepted is written

    def tick(self) -> int:
        self.moment += 1
        return self.moment


class WatchedWal(MemoryWal):
    """The reference store with faults by chance; the writer's own rules are checked at its door."""

    def __init__(self, world: World, *, shards: int, fault_rate: float) -> None:
        super().__init__(shards=shards)
        self.world = world
        self.fault_rate = fault_rate
        self.healthy = False

    def write(self, group: Any, *, sync: bool) -> Any:
        chance = self.world.random
        tally = self.world.tally
        if not self.healthy and chance.random() < self.fault_rate:
            kind = chance.choice(["raise before", "raise after", "full disk", "one shard", "sync"])
            tally[f"fault: {kind}"] += 1
            self.world.calm = False
            if kind == "raise before":
                raise RuntimeError("the store raised before it wrote")
            if kind == "raise after":
                super().write(group, sync=sync)
                raise RuntimeError("the store raised after it wrote")
            if kind == "full disk":
                failed = WriteFailed("no space")
                return dict.fromkeys(group, failed)
            shard = chance.randrange(self.parallelism)
            if kind == "one shard":
                self.fail_shard(shard, write=OSError(errno.EIO, "bad sector"))
            elif len({p % self.parallelism for p in group}) > 1 and self.parallelism > 1:
                self.fail_shard(shard, sync=OSError(errno.EIO, "sync failed"))
                tally["fault: sync failed for good"] += sync
            failures = super().write(group, sync=sync)
            self.fail_shard(shard)
            if failures and len(failures) < len(group):
                tally["group failed in part"] += 1
            return failures
        if len(group) > 1:
            tally["group over partitions"] += 1
        return super().write(group, sync=sync)


class WatchedPool(BlockingPool):
    """Sees each group from its submission to its completion: nobody may hold a key twice."""

    world: World
    held: dict[tuple[str, int], int]

    def submit(self, on_done: Any, call: Any, *args: Any) -> None:
        keys: list[tuple[str, int]] = []
        name = getattr(call, "__name__", "")
        if name == "_write":
            keys = [("write", partition) for partition in args[1]]
        elif name == "_make":
            keys = [("read", partition) for partition in {c.args[0] for c in args[0]}]
        for key in keys:
            demand(key not in self.held, f"two owners of {key}")
            self.held[key] = 1
        if len({key for key in self.held if key[0] == "write"}) > len(keys) > 0:
            self.world.tally["writes under way at once"] += 1

        def ended(result: Any, error: BaseException | None) -> None:
            for key in keys:
                del self.held[key]
            on_done(result, error)

        super().submit(ended, call, *args)


def simulate(
    seed: int, tally: Counter[str] | None = None, *, mutate: Mutation | None = None
) -> None:
    """Run one history. Raises `Broken` if a promise did not hold."""
    world = World(seed, random.Random(f"log/{seed}"), tally if tally is not None else Counter())
    with (
        mutate() if mutate is not None else _nothing(),
        _watched_pool(world),
        patch("fairway.testing.loop.SPIN_LIMIT", SPIN_LIMIT),
    ):
        try:
            run(lambda: _bounded(world), seed=seed, quiet=True, shuffle=True)
        except (Deadlock, Livelock, TimeoutError, asyncio.CancelledError) as stuck:
            raise Broken(f"somebody waits for ever: {stuck}") from stuck
        except BaseExceptionGroup as several:
            broken, others = several.split(Broken)
            if broken is not None:
                raise next(_leaves(broken)) from None
            raise Broken(f"a service of the log died: {others!r}") from several


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


@contextmanager
def _watched_pool(world: World) -> Iterator[None]:
    class Pool(WatchedPool):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.world = world
            self.held = {}

    with patch("fairway.storage.log.BlockingPool", Pool):
        yield


@contextmanager
def _nothing() -> Iterator[None]:
    yield


async def _bounded(world: World) -> None:
    """Give up after 100 virtual seconds; a whole history takes less than two."""
    task = asyncio.current_task()
    assert task is not None
    # More than one cancellation: the first only makes the log drain, which may be what hangs.
    loop = asyncio.get_running_loop()
    watchdogs = [loop.call_later(100 + again, task.cancel) for again in range(5)]
    try:
        await _history(world)
    finally:
        for watchdog in watchdogs:
            watchdog.cancel()


async def _history(world: World) -> None:
    chance = world.random
    shards = chance.choice([1, 2, 3])
    wal = WatchedWal(world, shards=shards, fault_rate=chance.choice([0, 0, 0.05, 0.3]))
    lane_bytes = chance.choice([600, 4_000, 1_000_000])
    writer = WriterConfig(
        max_group_partitions=chance.choice([1, 2, 64]),
        max_batch=chance.choice([1, 2, 7, 256]),
        max_batch_bytes=min(chance.choice([200, 2_000, 100_000]), lane_bytes),
        max_group_bytes=chance.choice([300, 5_000, 1_000_000]),
        lane=LaneLimits(items=chance.choice([2, 10, 4096]), size=lane_bytes),
        total=LaneLimits(items=60, size=1_000_000) if chance.random() < 0.2 else None,
        reserve_items=2,
        reserve_bytes=100,
        linger_ns=chance.choice([0, 0, 500_000]),
        workers=chance.choice([1, 2, 4]),
    )
    reader = ReaderConfig(
        max_batch=chance.choice([1, 3, 64]),
        lane=LaneLimits(items=chance.choice([2, 64]), size=1_000_000),
        workers=chance.choice([1, 3]),
    )
    partitions = chance.choice([1, 3, 20])
    log = Log(wal, writer=writer, reader=reader)
    stop_at = chance.choice([None, chance.randrange(1, 400)])
    manner = chance.choice(["drain", "drain", "drain", "cancel"])
    try:
        async with log, asyncio.TaskGroup() as clients:
            core_writer = log._writer
            assert core_writer is not None
            log.acks_per_turn = chance.choice([None, 1, 4])
            for number in range(chance.choice([1, 5, 30])):
                clients.create_task(
                    _client(world, log, random.Random(f"{world.seed}/{number}"), partitions)
                )
            if chance.random() < 0.5:
                clients.create_task(_flood(world, log, chance.randrange(partitions)))
            clients.create_task(_watch_bounds(world, core_writer, writer))
            if stop_at is not None:
                await asyncio.sleep(stop_at * 1e-5)
                if manner == "cancel":
                    world.tally["stopped at once"] += 1
                    world.calm = False
                    end_services()
                else:
                    world.tally["stop racing append"] += 1
                    backlog = core_writer.statistics().depth
                    if backlog > 4 * writer.max_batch * (writer.workers or 1):
                        world.tally["drained a backlog many times batch x workers"] += 1
                    await core_writer.drain()
                    demand(core_writer.statistics().depth == 0, "drain left accepted work behind")
            else:
                clients.create_task(_heal(world, log, wal, partitions))
    finally:
        _check(world, wal)


def end_services() -> None:
    """Cancel every service of the log, as nobody would who wants it to go on."""
    services = [task for task in asyncio.all_tasks() if task.get_name().startswith("log-")]
    assert services, "the services of a log have other names now"
    for service in sorted(services, key=lambda task: task.get_name()):
        service.cancel()


async def _heal(world: World, log: Log, wal: WatchedWal, partitions: int) -> None:
    """After the faults, liveness: every partition whose shard is not latched takes an append."""
    await asyncio.sleep(0.5)  # virtual: the clients are long done
    wal.healthy = True
    for partition in range(partitions):
        if wal.latched(partition):
            continue
        waiter = _attempt(world, log, partition, Durability.FSYNC, size=1)[1]
        try:
            await waiter
        except FairwayError as error:
            raise Broken(f"a healed partition refuses work: {error!r}") from error
        world.tally["healed"] += 1


async def _client(world: World, log: Log, chance: random.Random, partitions: int) -> None:
    for _ in range(chance.randrange(1, 25)):
        partition = chance.randrange(partitions)
        try:
            await _one_operation(world, log, chance, partition)
        except Closing:
            world.tally["refused: closing"] += 1
            return
        except Backpressure as refusal:
            world.tally["refused: backpressure"] += 1
            demand(refusal.retry_after_ns > 0, "a refusal says when to retry")
            await asyncio.sleep(refusal.retry_after_ns / 1e9)
        except FairwayError:
            pass
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 1e-3)


async def _flood(world: World, log: Log, partition: int) -> None:
    """Append without waiting until the lane is full."""
    waiters = []
    try:
        for _ in range(300):
            waiters.append(_attempt(world, log, partition, Durability.FSYNC, size=20)[1])
    except Backpressure:
        world.tally["refused: backpressure"] += 1
    except Closing:
        world.tally["refused: closing"] += 1
    for waiter in waiters:
        with suppress(FairwayError):
            await waiter


async def _one_operation(world: World, log: Log, chance: random.Random, partition: int) -> None:
    durability = chance.choice([Durability.FSYNC, Durability.FSYNC, Durability.DISK])
    if chance.random() < 0.1:
        durability = Durability.MEMORY
    attempt, waiter = _attempt(
        world, log, partition, durability, size=chance.choice([0, 10, 150, 400])
    )
    if chance.random() < 0.15:
        await asyncio.sleep(0)
        if waiter.cancel():
            attempt.cancelled = True
            world.tally["waiter cancelled"] += 1
        return
    key = await waiter
    if chance.random() < 0.4 and durability is not Durability.MEMORY:
        try:
            found = await log.read(partition, first=key, last=key)
        except (Backpressure, Closing):
            return
        demand(
            [entry.payload for entry in found] == [attempt.operation.entries[-1].payload],
            "a read submitted after a write's completion sees it",
        )
        world.tally["read after write"] += 1


def _attempt(
    world: World, log: Log, partition: int, durability: Durability, size: int
) -> tuple[Attempt, asyncio.Future[int]]:
    """Submit one operation with an entry and a metadata change that names it, and record it."""
    number = sum(map(len, world.attempts.values()))
    payload = b"%d/%d/" % (world.seed, number) + b"x" * size
    writer = log._writer
    if writer is None:
        raise Closing("the log is closed")
    key = writer.tail(partition).last_key + 1
    operation = Operation((Entry(key, payload),), meta={"newest": payload})
    attempt = Attempt(number, partition, operation, durability)
    elders = [
        a for a in world.attempts[partition] if a.accepted and a.waiter and not a.waiter.done()
    ]
    world.attempts[partition].append(attempt)
    waiter = attempt.waiter = asyncio.get_running_loop().create_future()
    log.submit_for(attempt.on_done, partition, operation, durability=durability)
    attempt.accepted_at = world.tick()
    attempt.elders = elders

    def told(future: asyncio.Future[int]) -> None:
        demand(attempt.told is None, "exactly one completion")
        if future.cancelled():
            attempt.cancelled = True
            attempt.told = "cancelled"
            return
        attempt.told_at = world.tick()
        attempt.told = future.exception() or future.result()

    waiter.add_done_callback(told)
    return attempt, waiter


async def _watch_bounds(world: World, writer: FairWriter, config: WriterConfig) -> None:
    for _ in range(40):
        seen = writer.statistics()
        for items, size in seen.depths.values():
            demand(items <= config.lane.items + config.reserve_items, "a lane exceeds its items")
            demand(size <= config.lane.size + config.reserve_bytes, "a lane exceeds its bytes")
        if config.total is not None:
            demand(seen.depth <= config.total.items + config.reserve_items, "the total bound")
        writer._service.groups.check()
        for attempts in world.attempts.values():
            held = [a for a in attempts if a.accepted and a.told is None]
            bytes_held = sum(attempt.operation.size for attempt in held)
            demand(
                bytes_held <= config.lane.size + config.reserve_bytes, "a lane exceeds its bytes"
            )
        await asyncio.sleep(1e-4)


def _check(world: World, wal: MemoryWal) -> None:
    """What the store holds against what callers were told."""
    survivor = wal.kill()
    survivor.open()
    for partition, attempts in world.attempts.items():
        stored = [entry.payload for entry in survivor.read(partition, limit=1_000_000)]
        at = {payload: index for index, payload in enumerate(stored)}
        accepted = [attempt for attempt in attempts if attempt.accepted]
        order = [at[a.operation.entries[0].payload] for a in accepted if _payload(a) in at]
        demand(order == sorted(order), "FIFO: the store's order is the order of submission")
        demand(len(stored) == len(set(stored)), "an operation was written twice")
        told = [a.told_at for a in accepted if a.told_at >= 0 and a.durability != Durability.MEMORY]
        demand(told == sorted(told), "completions of a partition come in order")
        for attempt in attempts:
            _check_attempt(world, attempt, _payload(attempt) in at)
            if _payload(attempt) in at:
                _check_no_hole(attempt, at)
        newest = survivor.meta(partition, "newest")
        demand(newest == (stored[-1] if stored else None), "an operation was applied in part")


def _check_no_hole(attempt: Attempt, at: dict[bytes, int]) -> None:
    """What was accepted while an elder was undecided fails if the elder does."""
    for elder in attempt.elders:
        failed = isinstance(elder.told, FairwayError) and _payload(elder) not in at
        demand(not failed, "written although an operation before it failed")


def _payload(attempt: Attempt) -> bytes:
    return attempt.operation.entries[0].payload


def _check_attempt(world: World, attempt: Attempt, present: bool) -> None:
    told = attempt.told
    if not attempt.accepted:
        demand(not present, "a refused operation was written")
        demand(not attempt.notified, "a refusal was notified as well")
        return
    demand(attempt.notified == 1, f"exactly one notification, not {attempt.notified}")
    demand(told is not None, "an accepted operation was never completed")
    world.tally[f"told: {type(told).__name__}"] += 1
    demand(present or not world.calm, "an accepted operation was withdrawn without a fault")
    if isinstance(told, int) and attempt.durability is not Durability.MEMORY:
        demand(present, "an acknowledged operation is not in the store")
    elif isinstance(told, WriteFailed | Closing):
        demand(not present, "told that nothing was written, but it was")
    elif not isinstance(told, int | str):
        demand(isinstance(told, OutcomeUnknown), f"an untyped answer: {told!r}")

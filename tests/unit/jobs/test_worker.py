"""The worker on virtual time, over a store in memory that fails, hangs and lies as told.

What needs real threads (a step that cannot be stopped, a heartbeat that hangs) runs on a real loop
and waits for events only.
"""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway.core.backoff import BackoffConfig
from fairway.core.lease import LeaseConfig
from fairway.core.priority import Band
from fairway.errors import Cancelled, InvalidConfig, OutcomeUnknown, Unavailable
from fairway.jobs import verdict
from fairway.jobs.context import Context  # noqa: TC001  annotations of jobs are read
from fairway.jobs.engine import Jobs as Engine
from fairway.jobs.engine import Kinds
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import (
    ASIDE_MAX,
    KEY_MAX,
    Claim,
    Filter,
    LeaseRenewal,
    Limits,
    NewJob,
    ReadyLine,
    Status,
)
from fairway.jobs.kinds import Options, Order, function_kind, machine_kind
from fairway.jobs.liveness import Liveness
from fairway.jobs.outcome import Outcome, Retry
from fairway.jobs.store import NO_OFFER, Want
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.stores.sqlite import SqliteStore
from fairway.jobs.worker import POSTPONED_MAX, Worker, WorkerConfig
from fairway.runtime.clock import clock_of
from fairway.runtime.telemetry import Distribution
from fairway.testing import VirtualLoop, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
    from pathlib import Path

    from fairway.jobs.job import Settlement
    from fairway.jobs.presence import Offer
    from fairway.jobs.store import Exchanged, JobStore
    from fairway.runtime.spans import Span
    from tests.conftest import Campaign

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
EXACT = BackoffConfig(base_ns=SECOND_NS, cap_ns=8 * SECOND_NS, jitter=0)


class Store(MemoryStore):
    """In memory, with everything that can go wrong between a store and its worker."""

    def __init__(self, clock: Any = None) -> None:
        super().__init__(clock)
        self.exchanges = 0
        self.tokens: list[int] = []
        self.registered: list[int] = []
        self.commits: Counter[int] = Counter()
        """How often each job was committed as ended."""
        self.stale: list[int] = []
        self.claims: list[Claim] = []
        self.lose: Callable[[Exchanged, Sequence[Settlement]], bool] = lambda out, settled: False
        """Whether the reply of an exchange that is committed is lost."""
        self.hold: asyncio.Event | None = None
        """If set, replies come when it is."""
        self.postpones: Callable[[Settlement], bool] = lambda one: False
        """What is not settled now."""
        self.answer: Callable[[LeaseRenewal], LeaseRenewal] = lambda renewal: renewal
        self.down = False

    async def register(self, name: str, ttl_ns: int, offer: Offer = NO_OFFER) -> int:
        worker = await super().register(name, ttl_ns, offer)
        self.registered.append(worker)
        return worker

    async def exchange(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Collection[str] = (),
    ) -> Exchanged:
        if self.down:
            raise Unavailable("the database is down")
        self.exchanges += 1
        self.tokens.append(token)
        postponed = [one for one in settlements if self.postpones(one)]
        now = [one for one in settlements if one not in postponed]
        out = await super().exchange(worker, token, now, wants, probe)
        out.postponed = postponed
        self.commits.update(one.id for one in out.ended)
        self.stale += out.stale
        self.claims += out.claims
        if self.hold is not None:
            await self.hold.wait()
        if self.lose(out, settlements):
            raise OutcomeUnknown("the reply was lost")
        return out

    def renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        if self.down:
            raise Unavailable("the database is down")
        return self.answer(super().renew(worker, held, ttl_ns, grace_ns))


class Part:
    """A worker, and whoever enqueues beside it."""

    def __init__(self, store: JobStore, kinds: Kinds, config: WorkerConfig) -> None:
        self.engine = Engine(store, kinds)
        self.worker = Worker(store, kinds.by_version, config, on_ended=self.engine.on_ended)
        self.engine.attach(self.worker)


class Jobs:
    """A store, kinds, and what ran when."""

    def __init__(self, store: JobStore | None = None, **config: Any) -> None:
        self.store: Any = Store() if store is None else store
        self.kinds = Kinds()
        feeder = {name: config.pop(name) for name in FEEDER if name in config}
        self.config = WorkerConfig(queues={"default": FeederConfig(**feeder)}, **config)
        self.ran: list[tuple[int, int, float]] = []
        """Of each run: job, attempt, and when it began."""
        self.running: Counter[int] = Counter()

    def kind(self, function: Callable[..., Any], **options: Any) -> None:
        self.kinds.add(function_kind(function, function.__name__, 1, Options(**options)))

    @asynccontextmanager
    async def working(self, kinds: Kinds | None = None) -> AsyncIterator[Part]:
        """A worker, and its orderly end."""
        await self.store.open()
        part = Part(self.store, self.kinds if kinds is None else kinds, self.config)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(part.worker.run())
            await part.worker.wait_started()
            yield part
            await part.worker.drain()
            running.cancel()
        await self.store.aclose()

    async def add(self, part: Part, kind: str, **given: Any) -> int:
        (added,) = await part.engine.enqueue([NewJob(kind=kind, **given)])
        return added.id

    async def status(self, id: int) -> Status:
        job = await self.store.find(id)
        assert job is not None
        found: Status = job.status
        return found

    @asynccontextmanager
    async def noted(self, ctx: Context[Any]) -> AsyncIterator[None]:
        """Note a run, and that the job runs nowhere else."""
        self.ran.append((ctx.id, ctx.attempt, asyncio.get_running_loop().time()))
        self.running[ctx.id] += 1
        assert self.running[ctx.id] == 1, "it runs twice at the same time"
        try:
            yield
        finally:
            self.running[ctx.id] -= 1


FEEDER = ("concurrency", "prefetch", "min_demand", "poll_interval_ns", "max_poll_interval_ns")


def play(scene: Callable[[], Coroutine[Any, Any, None]], limit_s: int = 100_000) -> None:
    run(scene, limit_ns=limit_s * SECOND_NS, quiet=True)


async def settled(turns: int = 50) -> None:
    """Everything that can happen at this moment has happened."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], Any], step_s: float = 0.05) -> None:
    while not condition():  # noqa: ASYNC110  a step of virtual time costs nothing
        await asyncio.sleep(step_s)


# --- attempts


def test_retries_follow_the_backoff() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def fails(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                raise ValueError("no")

        jobs.kind(fails, backoff=EXACT)
        async with jobs.working() as part:
            id = await jobs.add(part, "fails", max_attempts=6)
            await until(lambda: jobs.store.commits[id])
        times = [round(at, 3) for _, _, at in jobs.ran]
        assert [attempt for _, attempt, _ in jobs.ran] == [1, 2, 3, 4, 5, 6]
        assert [b - a for a, b in pairwise(times)] == [1, 2, 4, 8, 8]
        job = await jobs.store.find(id)
        assert job.status is Status.FAILED
        assert "ValueError: no" in job.error

    play(scene)


def test_a_retry_that_is_overdue_is_at_once_and_one_for_ever_is_in_a_hundred_years() -> None:
    kind = function_kind(lambda: None, "noop", 1, Options())
    source = type("Source", (), {"random": staticmethod(lambda: 0.0)})()
    claim = Claim(
        1, 1, "noop", 1, "run", b"{}", 0, 0, 20, "default", "", 0, None, None, None, False, False
    )
    for counts in (True, False):
        for after_ns, delay_ns in ((-5, 0), (7, 7), (1 << 80, verdict.DELAY_MAX_NS)):
            value = Retry(after_ns, counts=counts)
            assert verdict.of_return(kind, claim, None, value, source).delay_ns == delay_ns


def test_a_run_that_takes_too_long_is_stopped() -> None:
    async def scene() -> None:
        jobs = Jobs()
        ended: list[float] = []

        async def slow() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(round(asyncio.get_running_loop().time(), 3))

        jobs.kind(slow, timeout_ns=5 * SECOND_NS)
        async with jobs.working() as part:
            id = await jobs.add(part, "slow", max_attempts=1)
            await until(lambda: jobs.store.commits[id])
            job = await jobs.store.find(id)
        assert ended == [5]
        assert job.status is Status.FAILED
        assert job.error == "took longer than 5 s"

    play(scene)


def test_a_timeout_of_the_job_s_own_is_told_as_it_was() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def asks() -> None:
            raise TimeoutError("the other side was silent")

        jobs.kind(asks, timeout_ns=5 * SECOND_NS)
        async with jobs.working() as part:
            id = await jobs.add(part, "asks", max_attempts=1)
            await until(lambda: jobs.store.commits[id])
            job = await jobs.store.find(id)
        assert "the other side was silent" in job.error
        assert "took longer" not in job.error

    play(scene)


def test_the_wait_for_a_thread_is_not_the_job_s_time() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        jobs = Jobs(threads=1)
        cancelled = []

        def crunches(ctx: Context[Any]) -> None:
            cancelled.append(ctx.cancelled)
            loop.spend_ns(3 * SECOND_NS)

        jobs.kind(crunches, timeout_ns=5 * SECOND_NS)
        async with jobs.working() as part:
            ids = [await jobs.add(part, "crunches") for _ in range(5)]
            await until(lambda: all(jobs.store.commits[id] for id in ids))
            assert {await jobs.status(id) for id in ids} == {Status.DONE}
        assert cancelled == [False] * 5

    play(scene)


def test_a_step_in_a_thread_that_returns_after_its_time_took_too_long() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        jobs = Jobs(threads=1)

        def crunches(took_s: float) -> str:
            loop.spend_ns(round(took_s * SECOND_NS))
            return "done"

        jobs.kind(crunches, timeout_ns=SECOND_NS // 2)
        async with jobs.working() as part:
            late = await jobs.add(part, "crunches", state=b'{"took_s": 2.0}', max_attempts=1)
            good = await jobs.add(part, "crunches", state=b'{"took_s": 0.1}', max_attempts=1)
            await until(lambda: jobs.store.commits[late] and jobs.store.commits[good])
            job = await jobs.store.find(late)
            assert (job.status, job.error) == (Status.FAILED, "took longer than 0.5 s")
            assert await jobs.status(good) is Status.DONE

    play(scene)


def test_a_step_that_swallows_its_timeout_and_returns_took_too_long() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def swallows() -> str:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
            return "done"

        jobs.kind(swallows, timeout_ns=SECOND_NS // 2)
        async with jobs.working() as part:
            id = await jobs.add(part, "swallows", max_attempts=1)
            await until(lambda: jobs.store.commits[id])
            job = await jobs.store.find(id)
            assert (job.status, job.error) == (Status.FAILED, "took longer than 0.5 s")

    play(scene)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("unsaveable", "cannot be saved"),
        ("surrogate", "cannot be saved"),
        ("exits", "SystemExit"),
        ("beyond", "Beyond"),
        ("unspeakable", r"\x00 \udc80"),
        ("cancels", "CancelledError"),
    ],
)
def test_whatever_a_job_does_it_alone_fails(name: str, complaint: str) -> None:
    class Beyond(BaseException):
        pass

    async def unsaveable() -> object:
        return object()

    async def surrogate() -> str:
        return "\udc80"

    async def exits() -> None:
        raise SystemExit(1)

    async def beyond() -> None:
        raise Beyond

    async def unspeakable() -> None:
        raise ValueError("\x00 \udc80")

    async def cancels() -> None:
        raise asyncio.CancelledError

    async def fine() -> int:
        return 7

    async def scene() -> None:
        jobs = Jobs()
        for function in (unsaveable, surrogate, exits, beyond, unspeakable, cancels, fine):
            jobs.kind(function)
        async with jobs.working() as part:
            bad = await jobs.add(part, name, max_attempts=1)
            good = await jobs.add(part, "fine")
            await until(lambda: jobs.store.commits[bad] and jobs.store.commits[good])
            job = await jobs.store.find(bad)
            assert job.status is Status.FAILED
            assert complaint in job.error
            job.error.encode()
            assert "\x00" not in job.error
            assert await part.engine.result(good) == 7

    play(scene)


@pytest.mark.parametrize("what", ["unique_key", "partition_key", "tenant", "queue"])
def test_a_child_that_not_every_store_takes_fails_its_parent_alone(what: str) -> None:
    """In a commit it would stand in the way of whatever else the worker has to settle."""

    class Parent(msgspec.Struct):
        async def start(self, ctx: Context[Any]) -> Outcome:
            child: Any = {what: "k" * (KEY_MAX + 1)}
            return ctx.spawn([Order(NewJob(kind="child", **child))], then="start")

    async def scene() -> None:
        jobs = Jobs()
        jobs.kinds.add(machine_kind(Parent, "parent", 1, Options(), None))
        async with jobs.working() as part:
            id = await jobs.add(part, "parent", step="start")
            await until(lambda: jobs.store.commits[id])
            job = await jobs.store.find(id)
            assert job.status is Status.FAILED
            assert f"the {what} of a child is longer than {KEY_MAX} characters" in job.error

    play(scene)


def test_what_the_store_postpones_is_settled_later_and_bounds_what_is_claimed() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=10, prefetch=10)

        async def spawns(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                pass

        async def other() -> None:
            pass

        jobs.kind(spawns)
        jobs.kind(other)
        async with jobs.working() as part:
            jobs.store.postpones = lambda one: one.claim.kind == "spawns"
            few = [await jobs.add(part, "spawns") for _ in range(5)]
            id = await jobs.add(part, "other")
            await until(lambda: jobs.store.commits[id])
            assert {await jobs.status(one) for one in few} == {Status.RUNNING}
            added = await part.engine.enqueue([NewJob(kind="spawns") for _ in range(400)])
            await asyncio.sleep(50)
            assert POSTPONED_MAX <= len(jobs.ran) < 2 * POSTPONED_MAX
            jobs.store.postpones = lambda one: False
            ids = [*few, *(one.id for one in added)]
            await until(lambda: all(jobs.store.commits[one] for one in ids))
        assert [count for _, count in Counter(id for id, _, _ in jobs.ran).items()] == [1] * 405
        assert jobs.store.stale == []

    play(scene)


def test_a_worker_that_loses_its_lease_forgets_what_was_postponed() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def spawns(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                pass

        jobs.kind(spawns)
        async with jobs.working() as part:
            jobs.store.postpones = lambda one: True
            id = await jobs.add(part, "spawns")
            await until(lambda: jobs.ran)
            jobs.store.down = True
            await asyncio.sleep(200)
            jobs.store.down = False
            jobs.store.postpones = lambda one: False
            await until(lambda: jobs.store.commits[id])
        assert len(jobs.ran) == 2
        assert jobs.store.stale == []

    play(scene)


def test_an_unknown_kind_waits_and_is_seen_until_a_worker_knows_it() -> None:
    async def scene() -> None:
        jobs = Jobs()
        jobs.kind(named("other"))
        async with jobs.working() as part:
            id = await jobs.add(part, "later", version=2)
            await asyncio.sleep(25)
            job = await jobs.store.find(id)
            assert job.status is Status.READY
            assert job.error == "waits for a worker that knows the kind 'later', version 2"
            assert (job.attempt, job.crashes) == (0, 0)
            assert [claim.id for claim in jobs.store.claims] == [id], "it was looked at once"
        newer = Kinds()
        newer.add(function_kind(named("later"), "later", 2, Options()))
        async with jobs.working(newer):
            await settled()
            assert await jobs.status(id) is Status.DONE
        job = await jobs.store.find(id)
        assert (job.attempt, job.error) == (0, None)

    play(scene)


def test_an_unknown_step_waits_for_a_worker_that_has_it() -> None:
    class Old(msgspec.Struct):
        async def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.next("pay")

    class New(msgspec.Struct):
        async def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.next("pay")

        async def pay(self, ctx: Context[Any]) -> Outcome:
            return ctx.done("paid")

    async def scene() -> None:
        jobs = Jobs()
        jobs.kinds.add(machine_kind(Old, "order", 1, Options(), None))
        newer = Kinds()
        newer.add(machine_kind(New, "order", 1, Options(), None))
        async with jobs.working() as part:
            id = await jobs.add(part, "order", step="pay")
            await asyncio.sleep(25)
            job = await jobs.store.find(id)
            assert job.error == "waits for a worker that knows step 'pay' of 'order', version 1"
            assert len(jobs.store.claims) == 1, "it was looked at once"
        async with jobs.working(newer) as part:
            assert await part.engine.result(id) == "paid"

    play(scene)


@pytest.mark.parametrize("way", ["next", "wait", "spawn"])
def test_a_step_that_is_behind_a_job_keeps_nobody_from_it(way: str) -> None:
    """The new code was rolled back, or has lost a step that no job was at any more."""

    class Old(msgspec.Struct):
        async def ask(self, ctx: Context[Any]) -> Outcome:
            return ctx.done("asked again")

    class New(Old):
        async def ask(self, ctx: Context[Any]) -> Outcome:
            return ctx.done("asked by the new code")

        async def check(self, ctx: Context[Any]) -> Outcome:
            if way == "wait":
                return ctx.wait("go", then="ask")
            return ctx.spawn([], then="ask") if way == "spawn" else ctx.next("ask")

    async def scene() -> None:
        jobs = Jobs()
        jobs.kinds.add(machine_kind(Old, "order", 1, Options(), None))
        newer = Kinds()
        newer.add(machine_kind(New, "order", 1, Options(), None))
        async with jobs.working() as part:
            id = await jobs.add(part, "order", step="check")
            await settled()
        held = asyncio.Event()
        async with jobs.working(newer) as part:
            jobs.store.hold = held  # the new code claims it, and what it said is its last word
            await until(lambda: len(jobs.store.claims) == 2)
            async with asyncio.TaskGroup() as group:
                group.create_task(part.worker.drain())
                await settled()
                held.set()
            jobs.store.hold = None
        assert (await jobs.store.find(id)).step == "ask"
        async with jobs.working() as part:
            if way == "wait":
                await part.engine.signal(id, "go")
            assert await part.engine.result(id) == "asked again"

    play(scene)


def test_jobs_behind_thousands_that_nobody_here_knows_start_at_once_and_those_are_met_once() -> (
    None
):
    """Each is set aside once, by the thousand; after that it costs this worker nothing."""

    async def scene() -> None:
        jobs = Jobs(poll_interval_ns=SECOND_NS, max_poll_interval_ns=SECOND_NS)
        jobs.kind(named("known"))
        unknown = 10_000
        await jobs.store.open()
        await jobs.store.enqueue([NewJob(kind="unknown")] * unknown)
        (known,) = await jobs.store.enqueue([NewJob(kind="known")])
        async with jobs.working() as part:
            began = jobs.store.exchanges
            await part.engine.result(known.id)
            assert jobs.store.exchanges - began <= unknown // ASIDE_MAX + 5
            met = len(jobs.store.claims)
            assert met <= (unknown // ASIDE_MAX + 2) * jobs.config.queues["default"].concurrency
            before = jobs.store.exchanges
            await asyncio.sleep(60)
            assert len(jobs.store.claims) == met, "none of them is claimed again"
            assert jobs.store.exchanges - before <= 62, "it looks as often as an idle queue is"
            second = await jobs.add(part, "known")
            await part.engine.result(second, timeout_s=1)
        assert (await jobs.store.queues())[0].ready == unknown

    play(scene)


def named(name: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def function() -> None:
        pass

    function.__name__ = name
    return function


# --- cancelling


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_running_job_is_stopped(elsewhere: bool) -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=1)
        stopped = []
        seen = []

        async def endless(ctx: Context[Any]) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                seen.append((str(error), ctx.cancelled, ctx.cancel_reason))
                raise
            finally:
                stopped.append(asyncio.get_running_loop().time())

        jobs.kind(endless)
        jobs.kind(named("next_one"))
        async with jobs.working() as part:
            id = await jobs.add(part, "endless")
            after = await jobs.add(part, "next_one")
            await asyncio.sleep(3)
            if elsewhere:  # another process: heard of with the next look or heartbeat
                await jobs.store.cancel([id], reason="ordered twice")
            else:
                await part.engine.cancel(id, reason="ordered twice")
            await asyncio.sleep(1.001)
            job = await jobs.store.find(id)
            assert (job.status, job.error) == (Status.CANCELLED, "ordered twice")
            assert await jobs.status(after) is Status.DONE, "its slot is free"
        assert len(stopped) == 1
        assert stopped[0] <= (4 if elsewhere else 3)
        assert seen == [("ordered twice", True, "ordered twice")]

    play(scene)


def test_a_job_that_is_cancelled_before_its_first_turn_frees_its_slot() -> None:
    """Its task exists and has not run: cancelled then, it would end without a word."""

    class Hasty(Store):
        async def exchange(self, *args: Any, **options: Any) -> Exchanged:
            out = await super().exchange(*args, **options)
            for claim in out.claims:
                if claim.kind == "never":
                    cancel = {claim.id: "not needed"}
                    asyncio.get_running_loop().call_soon(part.worker.cancel, cancel)
            return out

    jobs = Jobs(Hasty(), concurrency=1)
    part: Any = None
    ran = []

    async def never() -> None:
        ran.append(1)

    async def scene() -> None:
        nonlocal part
        jobs.kind(never)
        jobs.kind(named("next_one"))
        async with jobs.working() as part:
            id = await jobs.add(part, "never")
            await asyncio.sleep(2)
            assert await jobs.status(id) is Status.CANCELLED
            after = await jobs.add(part, "next_one")
            await asyncio.sleep(2)
            assert await jobs.status(after) is Status.DONE
        assert not ran

    play(scene)


def test_a_job_that_is_cancelled_in_the_buffer_never_starts() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=1, prefetch=3)
        gate = asyncio.Event()
        ran = []

        async def waits() -> None:
            await gate.wait()

        async def never() -> None:
            ran.append(1)

        jobs.kind(waits)
        jobs.kind(never)
        async with jobs.working() as part:
            await jobs.add(part, "waits")
            id = await jobs.add(part, "never")
            await asyncio.sleep(0.1)
            assert await jobs.status(id) is Status.RUNNING
            await part.engine.cancel(id, reason="not needed")
            gate.set()
            await until(lambda: jobs.store.commits[id])
            job = await jobs.store.find(id)
            assert (job.status, job.error) == (Status.CANCELLED, "not needed")
        assert not ran

    play(scene)


def test_a_step_in_a_thread_is_asked_to_stop() -> None:
    async def scene() -> None:
        jobs = Jobs()
        began = threading.Event()
        never = threading.Event()
        seen = []

        def cooperative(ctx: Context[Any]) -> None:
            began.set()
            try:
                while True:
                    ctx.check()
                    never.wait(0.001)
            except Cancelled as error:
                seen.append(str(error))
                raise

        jobs.kind(cooperative)
        async with jobs.working() as part:
            id = await jobs.add(part, "cooperative")
            await asyncio.to_thread(began.wait)
            await part.engine.cancel(id, reason="ordered twice")
            ended = await part.engine._wait_ended(id)
            assert (ended.status, ended.error) == (Status.CANCELLED, "ordered twice")
            assert seen == ["ordered twice"]

    asyncio.run(scene())


def test_a_step_in_a_thread_that_takes_too_long_is_asked_to_stop() -> None:
    async def scene() -> None:
        jobs = Jobs()
        never = threading.Event()

        def cooperative(ctx: Context[Any]) -> None:
            while True:
                ctx.check()
                never.wait(0.001)

        jobs.kind(cooperative, timeout_ns=SECOND_NS // 20)
        async with jobs.working() as part:
            id = await jobs.add(part, "cooperative", max_attempts=1)
            ended = await part.engine._wait_ended(id)
            assert ended.status is Status.FAILED
            assert ended.error == "took longer than 0.05 s"

    asyncio.run(scene())


def test_a_cancelled_step_that_waits_for_a_thread_is_never_called() -> None:
    async def scene() -> None:
        jobs = Jobs(threads=1)
        began, go_on = threading.Event(), threading.Event()
        called = []

        def blocks() -> None:
            began.set()
            go_on.wait()

        def second() -> None:
            called.append(1)

        jobs.kind(blocks)
        jobs.kind(second)
        async with jobs.working() as part:
            first = await jobs.add(part, "blocks")
            await asyncio.to_thread(began.wait)
            id = await jobs.add(part, "second")
            while not part.worker._steps.pool.statistics().waiting:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0)
            await part.engine.cancel(id)
            go_on.set()
            await part.engine._wait_ended(first)
            ended = await part.engine._wait_ended(id)
            assert ended.status is Status.CANCELLED
        assert not called

    asyncio.run(scene())


# --- the lease


def raising(renewal: LeaseRenewal) -> LeaseRenewal:
    raise Unavailable("no answer")


@pytest.mark.parametrize("answer", [raising, lambda renewal: LeaseRenewal(alive=False)])
def test_a_worker_without_a_lease_stops_its_jobs_commits_nothing_and_starts_over(
    answer: Callable[[LeaseRenewal], LeaseRenewal],
) -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=3)
        stopped: list[float] = []
        blocked = True

        async def works(ctx: Context[Any]) -> str:
            async with jobs.noted(ctx):
                try:
                    await asyncio.sleep(HOUR_NS if blocked else 1)
                finally:
                    if blocked:
                        stopped.append(asyncio.get_running_loop().time())
            return f"attempt {ctx.attempt}"

        jobs.kind(works)
        async with jobs.working() as part:
            ids = [await jobs.add(part, "works") for _ in range(3)]
            await asyncio.sleep(100)
            assert len(jobs.ran) == 3
            jobs.store.answer = answer
            await until(lambda: len(stopped) == 3)
            assert not jobs.store.commits
            # Before the store could give them to anybody else: the last answer was at 80 s or
            # later, its lease is 60 s.
            assert max(stopped) < 140.1
            blocked = False
            jobs.store.answer = lambda renewal: renewal
            await until(lambda: all(jobs.store.commits[id] for id in ids), 1)
            assert len(jobs.store.registered) >= 2
            for id in ids:
                job = await jobs.store.find(id)
                assert (job.status, job.crashes) == (Status.DONE, 1)
                assert await part.engine.result(id) == "attempt 2"
        assert set(jobs.store.commits.values()) == {1}

    play(scene)


class Shifted:
    """A clock that is off, and may be set."""

    def __init__(self, by_ns: int) -> None:
        self.by_ns = by_ns

    def now_ns(self) -> int:
        return clock_of().now_ns() + self.by_ns

    def wall_ns(self) -> int:
        return clock_of().wall_ns() + self.by_ns


@pytest.mark.parametrize("off_ns", [HOUR_NS, -HOUR_NS])
def test_a_clock_that_is_an_hour_off_from_the_store_s_changes_nothing(off_ns: int) -> None:
    async def scene() -> None:
        jobs = Jobs(Store(Shifted(off_ns)))

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                if ctx.attempt == 1:
                    raise ValueError("once")
                await asyncio.sleep(600)

        jobs.kind(works, backoff=EXACT)
        async with jobs.working() as part:
            id = await jobs.add(part, "works", delay_ns=5 * SECOND_NS)
            await until(lambda: jobs.store.commits[id])
        assert [round(at, 3) for _, _, at in jobs.ran] == [5, 6]
        assert len(jobs.store.registered) == 1
        assert not jobs.store.stale

    play(scene)


def test_a_worker_that_slept_while_the_store_s_clock_went_on_starts_over() -> None:
    """As after a suspend. Until it hears of it, it is told of work and gets none."""

    async def scene() -> None:
        clock = Shifted(0)
        jobs = Jobs(Store(clock), concurrency=1)
        jobs.kind(named("quick"))
        async with jobs.working() as part:
            await asyncio.sleep(100)
            clock.by_ns = HOUR_NS
            before = jobs.store.exchanges
            ids = [await jobs.add(part, "quick") for _ in range(3)]
            await until(lambda: all(jobs.store.commits[id] for id in ids))
            assert len(jobs.store.registered) == 2
            assert jobs.store.exchanges - before < 20_000, "it asked without a pause"

    play(scene)


def test_an_old_run_commits_nothing_though_its_worker_has_the_job_again() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=2, lease_ttl_ns=60 * SECOND_NS)
        gates = [asyncio.Event(), asyncio.Event()]
        runs = iter(range(2))

        async def stubborn(ctx: Context[Any]) -> str:
            number = next(runs)
            while not gates[number].is_set():
                try:
                    await gates[number].wait()
                except asyncio.CancelledError:
                    continue  # it will not be stopped
            return f"run {number}"

        jobs.kind(stubborn)
        async with jobs.working() as part:
            id = await jobs.add(part, "stubborn")
            await asyncio.sleep(1)
            (worker,) = jobs.store.registered
            jobs.store._workers[worker].until_ns = 0  # its lease has ended, in the store
            await until(lambda: len(jobs.store.claims) == 2)
            old, new = jobs.store.claims
            assert (old.id, new.id) == (id, id)
            tokens = jobs.store.tokens
            assert tokens == sorted(set(tokens)), "the two could have had the same"
            gates[0].set()
            await asyncio.sleep(1)
            assert await jobs.status(id) is Status.RUNNING
            assert not jobs.store.commits
            (feeder,) = part.worker._feeding.feeders.values()
            assert len(feeder.running) == 1, "the new run has its slot"
            gates[1].set()
            await until(lambda: jobs.store.commits[id])
            assert await part.engine.result(id) == "run 1"
        assert jobs.store.commits == {id: 1}
        assert not jobs.store.stale, "the old run's word is not even sent"

    play(scene)


def test_a_lost_lease_does_not_keep_its_exchange_s_room() -> None:
    """The lease ends while an exchange is under way: what that asked for is free to ask again."""

    async def scene() -> None:
        jobs = Jobs(concurrency=2, poll_interval_ns=HOUR_NS, max_poll_interval_ns=HOUR_NS)
        jobs.kind(named("quick"))
        async with jobs.working() as part:
            await asyncio.sleep(1)
            jobs.store.hold = asyncio.Event()
            id = await jobs.add(part, "quick")
            await settled()
            assert part.worker._lease is not None
            part.worker._lease_lost(part.worker._lease, "as a test wishes")
            jobs.store.hold.set()
            jobs.store.hold = None
            await settled()
            other = await jobs.add(part, "quick")
            await asyncio.sleep(1)
            assert await jobs.status(other) is Status.DONE
            assert await jobs.status(id) is Status.RUNNING  # the lost one's, until it is reaped

    play(scene)


def test_a_heartbeat_that_hangs_does_not_keep_jobs_running() -> None:
    class Hanging(Store):
        def __init__(self) -> None:
            super().__init__()
            self.renewed = 0
            self.go_on = threading.Event()

        def renew(self, *args: Any) -> LeaseRenewal:
            self.renewed += 1
            if self.renewed > 2:
                self.go_on.wait()
            return super().renew(*args)

    async def scene() -> None:
        store = Hanging()
        jobs = Jobs(store, lease_ttl_ns=SECOND_NS // 4, heartbeat_interval_ns=SECOND_NS // 20)
        stopped = asyncio.Event()

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        jobs.kind(endless)
        async with jobs.working() as part:
            await jobs.add(part, "endless")
            await stopped.wait()
            assert not store.go_on.is_set()
            store.go_on.set()
        assert not store.commits

    asyncio.run(scene())


def test_the_heartbeat_sees_what_is_claimed_while_it_waits() -> None:
    """And spares what an exchange may have claimed whose reply is not here yet."""
    held: dict[int, int] = {}
    graces: list[int] = []
    renewals: list[LeaseRenewal] = []

    class Clock:
        ns = 0

        def now_ns(self) -> int:
            return self.ns

        wall_ns = now_ns

    class Slow:
        def renew(
            self, worker: int, book: Mapping[int, int], ttl_ns: int, grace_ns: int
        ) -> LeaseRenewal:
            graces.append(grace_ns)
            held[7] = 3  # the loop goes on while this thread waits for a lock
            return LeaseRenewal(alive=True, released=int(book.get(7) != 3))

        def close(self) -> None:
            pass

    clock = Clock()
    config = LeaseConfig(ttl_ns=60, heartbeat_ns=20, margin_ns=1)
    liveness = Liveness(
        Slow(),
        config,
        clock,
        on_renewed=lambda lease, renewal: renewals.append(renewal),
        on_lost=lambda lease, reason: pytest.fail(reason),
    )
    assert liveness.renew() == 20  # no lease yet: not later than the own interval of the heartbeat
    lease = liveness.begin(1, held, 0)
    assert liveness.renew() is None
    clock.ns = 30
    lease.asking_since_ns = 5
    assert liveness.renew() is None
    assert [renewal.released for renewal in renewals] == [0, 0]
    assert graces == [20, 45]


def test_a_lease_of_two_heartbeats_is_refused_at_once() -> None:
    with pytest.raises(InvalidConfig):
        WorkerConfig(lease_ttl_ns=40, heartbeat_interval_ns=20)
    assert WorkerConfig(lease_ttl_ns=41, heartbeat_interval_ns=20).lease.ttl_ns == 41


@pytest.mark.parametrize(
    "config",
    [
        {"queues": {}},
        {"queues": {"": FeederConfig()}},
        {"queues": {"*": FeederConfig()}},
        {"threads": 0},
        {"processes": 0},
        {"heartbeat_interval_ns": 0},
        {"reap_interval_ns": 0},
    ],
)
def test_a_worker_that_could_not_work_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        WorkerConfig(**config)


# --- replies that are lost


def test_claims_whose_reply_was_lost_are_given_back_by_the_heartbeat() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=4)
        lost: list[float] = []

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                await asyncio.sleep(1)

        def lose(out: Exchanged, settlements: Sequence[Settlement]) -> bool:
            if out.claims and not lost:
                lost.append(asyncio.get_running_loop().time())
                return True
            return False

        jobs.store.lose = lose
        jobs.kind(works)
        async with jobs.working() as part:
            ids = [
                one.id
                for one in await part.engine.enqueue([NewJob(kind="works") for _ in range(4)])
            ]
            await until(lambda: lost)
            await asyncio.sleep(15)
            assert {await jobs.status(id) for id in ids} == {Status.RUNNING}
            assert not jobs.ran
            await until(lambda: all(jobs.store.commits[id] for id in ids))
            for id in ids:
                job = await jobs.store.find(id)
                assert (job.status, job.attempt, job.crashes) == (Status.DONE, 0, 0)
        assert Counter(id for id, _, _ in jobs.ran) == dict.fromkeys(ids, 1)
        assert min(at for _, _, at in jobs.ran) >= lost[0] + 20  # one heartbeat of grace
        assert len(jobs.store.registered) == 1

    play(scene)


def test_settlements_whose_reply_was_lost_are_repeated_and_stale() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=4)
        lost = Counter[int]()

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                await asyncio.sleep(1)

        def lose(out: Exchanged, settlements: Sequence[Settlement]) -> bool:
            fresh = [one.claim.id for one in settlements if not lost[one.claim.id]]
            lost.update(fresh)
            return bool(fresh)

        jobs.store.lose = lose
        jobs.kind(works)
        async with jobs.working() as part:
            ids = [await jobs.add(part, "works") for _ in range(12)]
            await until(lambda: all(jobs.store.commits[id] for id in ids))
            await asyncio.sleep(60)
        assert Counter(id for id, _, _ in jobs.ran) == dict.fromkeys(ids, 1)
        assert jobs.store.commits == dict.fromkeys(ids, 1)
        assert set(jobs.store.stale) == set(ids)
        assert len(jobs.store.registered) == 1

    play(scene)


@pytest.mark.parametrize("seed", range(5))
def test_with_any_replies_lost_nothing_runs_twice_at_once_and_everything_ends_once(
    seed: int,
) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        jobs = Jobs(concurrency=5, prefetch=3)

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                await asyncio.sleep(loop.random.choice([0, 0.01, 3]))
                if loop.random.random() < 0.2:
                    raise ValueError("now and then")

        jobs.kind(works, max_attempts=50, backoff=EXACT)
        jobs.store.lose = lambda out, settlements: loop.random.random() < 0.3
        async with jobs.working() as part:
            ids = [await jobs.add(part, "works") for _ in range(60)]
            await until(lambda: all(jobs.store.commits[id] for id in ids), 1)
        assert jobs.store.commits == dict.fromkeys(ids, 1)
        assert not +jobs.running
        assert jobs.store.stale
        for id in ids:
            job = await jobs.store.find(id)
            assert job.status is Status.DONE
            assert job.crashes == 0
            assert max(attempt for one, attempt, _ in jobs.ran if one == id) == job.attempt + 1

    run(scene, seed=seed, limit_ns=HOUR_NS, quiet=True)


# --- the end


def test_a_drain_gives_back_what_did_not_start_and_lets_the_rest_end() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=1, prefetch=5, drain_timeout_ns=5 * SECOND_NS)

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                await asyncio.sleep(3)

        jobs.kind(works)
        async with jobs.working() as part:
            added = await part.engine.enqueue([NewJob(kind="works") for _ in range(6)])
            ids = [one.id for one in added]
            await asyncio.sleep(0.5)
            assert {await jobs.status(id) for id in ids} == {Status.RUNNING}
            async with asyncio.TaskGroup() as group:
                draining = group.create_task(part.worker.drain())
                await settled()
                assert [await jobs.status(id) for id in ids] == [
                    Status.RUNNING,
                    *[Status.READY] * 5,
                ]
                assert not draining.done()
            assert asyncio.get_running_loop().time() == pytest.approx(3)
            assert await jobs.status(ids[0]) is Status.DONE
            assert not jobs.store._workers, "it has signed off"
        for id in ids[1:]:
            job = await jobs.store.find(id)
            assert (job.status, job.attempt, job.crashes) == (Status.READY, 0, 0)
        assert len(jobs.ran) == 1

    play(scene)


def test_what_a_drain_could_not_wait_for_is_stopped_and_given_back() -> None:
    """As often as one likes: a job that takes longer than any drain does not die of it."""

    async def scene() -> None:
        jobs = Jobs(drain_timeout_ns=5 * SECOND_NS)

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                await asyncio.sleep(HOUR_NS if len(jobs.ran) <= 6 else 1)

        jobs.kind(works)
        loop = asyncio.get_running_loop()
        async with jobs.working() as part:
            id = await jobs.add(part, "works")
            await asyncio.sleep(1)
        assert loop.time() == pytest.approx(6)
        for _ in range(5):
            assert await jobs.status(id) is Status.READY
            assert not +jobs.running, "it was stopped with its worker"
            async with jobs.working():
                await asyncio.sleep(1)
        async with jobs.working():
            await until(lambda: jobs.store.commits[id], 1)
            job = await jobs.store.find(id)
            assert (job.status, job.attempt, job.crashes) == (Status.DONE, 0, 0)

    play(scene)


def test_a_job_that_swallows_its_cancellation_does_not_hold_up_a_drain() -> None:
    """What it says after that counts for nothing."""

    async def scene() -> None:
        jobs = Jobs(drain_timeout_ns=5 * SECOND_NS)
        ended = asyncio.Event()

        async def stays(ctx: Context[Any]) -> str:
            while not ended.is_set():
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    continue
            return "too late"

        jobs.kind(stays)
        loop = asyncio.get_running_loop()
        async with jobs.working() as part:
            id = await jobs.add(part, "stays")
            await asyncio.sleep(1)
        assert loop.time() == pytest.approx(7), "at its timeout, and a second after that"
        ended.set()
        await settled()
        assert not jobs.store.commits[id]
        assert await jobs.status(id) is Status.RUNNING
        async with jobs.working():
            await until(lambda: jobs.store.commits[id], 1)
            job = await jobs.store.find(id)
            assert (job.status, job.attempt, job.crashes) == (Status.DONE, 0, 1)

    play(scene)


def test_what_is_claimed_while_it_drains_is_given_back_too() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def works(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                pass

        jobs.kind(works)
        async with jobs.working() as part:
            await asyncio.sleep(1)
            jobs.store.hold = asyncio.Event()
            id = await jobs.add(part, "works")
            await settled()
            assert await jobs.status(id) is Status.RUNNING  # the reply is on its way
            async with asyncio.TaskGroup() as group:
                draining = group.create_task(part.worker.drain())
                await settled()
                assert not draining.done(), "it knows not yet what it has"
                jobs.store.hold.set()
            job = await jobs.store.find(id)
            assert (job.status, job.attempt, job.crashes) == (Status.READY, 0, 0)
        assert not jobs.ran

    play(scene)


def test_progress_is_seen_within_a_second() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def works(ctx: Context[Any]) -> None:
            for step in range(5):
                ctx.progress(step)
                await asyncio.sleep(10)

        jobs.kind(works)
        async with jobs.working() as part:
            id = await jobs.add(part, "works")
            for step in range(5):
                await asyncio.sleep(1.5 if not step else 10)
                assert (await jobs.store.find(id)).progress == b"%d" % step

    play(scene)


def test_a_worker_holds_the_last_progress_of_a_job_whatever_it_says() -> None:
    async def scene() -> None:
        jobs = Jobs()
        note = "x" * 50_000

        async def works(ctx: Context[Any]) -> None:
            for step in range(1_000):
                ctx.progress([step, note])
            await asyncio.sleep(10)

        jobs.kind(works)
        async with jobs.working() as part:
            tracemalloc.start()
            try:
                id = await jobs.add(part, "works")
                await asyncio.sleep(5)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert (await jobs.store.find(id)).progress == b'[999,"%s"]' % note.encode()
        assert peak < 100 * len(note), "it held far less than the thousand"

    play(scene)


def test_progress_that_the_store_did_not_take_is_told_again_unless_there_is_newer() -> None:
    async def scene() -> None:
        jobs = Jobs()
        taken: list[dict[int, bytes]] = []
        real = jobs.store.progress

        async def progress(worker: int, values: Mapping[int, bytes]) -> None:
            taken.append(dict(values))
            if len(taken) == 1:
                raise Unavailable("away")
            await real(worker, values)

        jobs.store.progress = progress  # type: ignore[method-assign]

        async def works(ctx: Context[Any]) -> None:
            ctx.progress("said once")
            await asyncio.sleep(100)

        jobs.kind(works)
        async with jobs.working() as part:
            id = await jobs.add(part, "works")
            await asyncio.sleep(60)
            assert (await jobs.store.find(id)).progress == b'"said once"'
        assert taken[:2] == [{id: b'"said once"'}] * 2

    play(scene)


# --- claims that a crash of the database undid


def forget_claims(store: Store) -> None:
    """A crash of the database: claims that were not on disk were never made."""
    for row in store._leased():
        store._make_ready(row)


@pytest.mark.parametrize("running_elsewhere", [False, True])
def test_a_run_whose_claim_the_store_lost_is_stopped_within_a_heartbeat(
    running_elsewhere: bool,
) -> None:
    async def scene() -> None:
        jobs = Jobs(
            concurrency=2, prefetch=2, poll_interval_ns=HOUR_NS, max_poll_interval_ns=HOUR_NS
        )
        ended: list[tuple[int, int, float]] = []
        gate = asyncio.Event()

        async def held(ctx: Context[Any]) -> None:
            jobs.ran.append((ctx.id, ctx.attempt, asyncio.get_running_loop().time()))
            try:
                await gate.wait()
            except asyncio.CancelledError:
                ended.append((ctx.id, ctx.attempt, asyncio.get_running_loop().time()))
                raise

        jobs.kind(held)
        async with jobs.working() as part:
            ids = [await jobs.add(part, "held") for _ in range(4)]
            await until(lambda: len(jobs.store._leased()) == 4)
            began = asyncio.get_running_loop().time()
            forget_claims(jobs.store)
            if running_elsewhere:  # and has them before we notice
                other = await jobs.store.register("other", 10 * HOUR_NS)
                out = await jobs.store.exchange(
                    other, 1, wants=[Want(ReadyLine("default", "", Band.B1), 4)]
                )
                assert [claim.id for claim in out.claims] == ids
            await until(lambda: len(ended) == 2, 0.5)
            assert asyncio.get_running_loop().time() - began <= 20.5
            if running_elsewhere:
                await asyncio.sleep(1)
                assert [jobs.store._rows[id].crashes for id in ids] == [1, 1, 1, 1]
                assert len(jobs.ran) == 2
                assert part.worker.readiness().running == 0
                await jobs.store.exchange(
                    other, 2, [verdict.release(claim) for claim in out.claims]
                )
            gate.set()
            part.worker.look("default")
            await until(lambda: all(jobs.store.commits[id] for id in ids), 1)
            reruns = {id: attempt for id, attempt, _ in jobs.ran}
            assert reruns == dict.fromkeys(ids, 2)  # one crash more, told by what it is shown
            assert jobs.store.stale == []  # what was stopped says nothing

    play(scene)


def test_what_was_settled_during_a_heartbeat_is_not_lost() -> None:
    """The store has no lease of it any more, and the worker has not heard so yet."""

    async def scene() -> None:
        jobs = Jobs()

        gate = asyncio.Event()

        async def held() -> None:
            await gate.wait()

        jobs.kind(held)
        async with jobs.working() as part:
            renewals: list[LeaseRenewal] = []

            def note(renewal: LeaseRenewal) -> LeaseRenewal:
                renewals.append(renewal)
                return renewal

            jobs.store.answer = note
            id = await jobs.add(part, "held")
            await until(lambda: part.worker._runs)
            jobs.store.hold = asyncio.Event()
            gate.set()
            await until(lambda: any(id in renewal.lost for renewal in renewals))
            jobs.store.hold.set()
            await until(lambda: not part.worker._held)
            assert (jobs.store.commits[id], jobs.store._rows[id].crashes) == (1, 0)

    play(scene)


def test_a_worker_whose_exchange_failed_claims_nothing_before_a_heartbeat() -> None:
    """The database may have crashed: it is told what was begun before anything is begun again."""

    async def scene() -> None:
        jobs = Jobs(concurrency=4)
        gate = asyncio.Event()

        async def held(ctx: Context[Any]) -> None:
            jobs.ran.append((ctx.id, ctx.attempt, 0.0))
            await gate.wait()

        jobs.kind(held)
        async with jobs.working() as part:
            ids = [await jobs.add(part, "held") for _ in range(2)]
            await until(lambda: len(jobs.ran) == 2)
            jobs.store.down = True
            await until(lambda: part.worker._failed_at_ns is not None, 0.001)
            forget_claims(jobs.store)
            jobs.store.down = False
            gate.set()
            await until(lambda: all(jobs.store.commits[id] for id in ids))
            assert sorted(jobs.ran) == sorted(
                (id, attempt, 0.0) for id in ids for attempt in (1, 2)
            )

    play(scene)


# --- fairness and limits


def test_a_queue_at_its_limit_is_looked_at_as_usual() -> None:
    async def scene() -> None:
        jobs = Jobs()

        async def works() -> None:
            await asyncio.sleep(600)

        jobs.kind(works)
        async with jobs.working() as part:
            await part.engine.limit("default", Limits(concurrency=1))
            ids = [await jobs.add(part, "works") for _ in range(3)]
            await until(lambda: all(jobs.store.commits[id] for id in ids), 1)
            assert asyncio.get_running_loop().time() < 1_802  # each begins when the last one ends
            assert jobs.store.exchanges < 2 * 1_800 + 50

    play(scene)


@pytest.mark.parametrize("queue", ["default", "*"])
@pytest.mark.parametrize("lifted", [Limits(), Limits(rate_per_s=1000.0, burst=10)])
@pytest.mark.parametrize(("here", "bound_s"), [(True, 0.0), (False, 1.0)])
def test_a_rate_that_is_raised_or_taken_away_counts_from_then_on(
    queue: str, lifted: Limits, here: bool, bound_s: float
) -> None:
    """At once where it is said, and at the next look in every other process."""

    async def scene() -> None:
        jobs = Jobs()

        async def plain(ctx: Context[Any]) -> None:
            async with jobs.noted(ctx):
                pass

        jobs.kind(plain)
        async with jobs.working() as part:
            await part.engine.limit(queue, Limits(rate_per_s=0.001))
            first = await jobs.add(part, "plain")
            await until(lambda: jobs.store.commits[first])
            second = await jobs.add(part, "plain")
            await asyncio.sleep(100.3)
            assert not jobs.store.commits[second]
            began = asyncio.get_running_loop().time()
            await (part.engine.limit if here else jobs.store.set_limits)(queue, lifted)
            await until(lambda: jobs.store.commits[second], 0.001)
            assert asyncio.get_running_loop().time() - began <= bound_s + 0.002

    play(scene)


def test_behind_a_key_that_is_taken_everybody_has_a_turn() -> None:
    """Tenants whose jobs give way to a key make every claim fall short; the ring goes on."""

    async def scene() -> None:
        jobs = Jobs(concurrency=3)
        order: list[str] = []
        gate = asyncio.Event()

        async def holds() -> None:
            await gate.wait()

        async def works(ctx: Context[Any]) -> None:
            order.append(ctx.tenant)
            await asyncio.sleep(0.01)

        jobs.kind(holds)
        jobs.kind(works)
        await jobs.store.open()
        hot = {"partition_key": "hot", "tenant": "a"}
        await jobs.store.enqueue([NewJob(kind="holds", **hot)])
        async with jobs.working() as part:
            await asyncio.sleep(0.5)
            await part.engine.enqueue([NewJob(kind="works", **hot) for _ in range(300)])
            await part.engine.enqueue(
                [NewJob(kind="works", tenant=f"t{n % 9}") for n in range(900)]
            )
            await until(lambda: len(order) >= 45)
            first = Counter(order[:45])
            gate.set()
        assert max(first.values()) - min(first.values()) <= 2
        assert len(first) == 9

    play(scene)


@pytest.mark.timeout(900)
def test_a_tenant_with_a_million_jobs_does_not_delay_another(
    tmp_path: Path, campaign: Campaign
) -> None:
    """Within the bound of the feeder: two tenants in one band, so one of the next two."""
    rows = campaign.rounds(share=20_000, full=1_000_000)
    campaign.tally["jobs ahead"] += rows

    async def scene() -> None:
        jobs = Jobs(SqliteStore(tmp_path / "jobs.db"), concurrency=4)
        order: list[str] = []

        async def works(ctx: Context[Any]) -> None:
            order.append(ctx.tenant)
            await asyncio.sleep(0.01)

        jobs.kind(works)
        await jobs.store.open()
        many = [NewJob(kind="works", tenant="many") for _ in range(5_000)]
        for _ in range(0, rows, len(many)):
            await jobs.store.enqueue(many)
        await jobs.store.enqueue([NewJob(kind="works", tenant="few")])
        await jobs.store.aclose()
        async with jobs.working():
            await until(lambda: len(order) >= 40, 0.01)
            assert "few" in order[:2]
            # Another process adds one. This one has all it can do and looks all the same.
            at_s = asyncio.get_running_loop().time()
            await jobs.store.enqueue([NewJob(kind="works", tenant="few")])
            await until(lambda: order.count("few") == 2, 0.01)
            assert asyncio.get_running_loop().time() - at_s < 1.1
            left = await jobs.store.browse(Filter(status=Status.READY, tenant="many", limit=1))
            assert left

    play(scene)


# --- what is counted


def test_whatever_happens_is_counted_and_told() -> None:
    async def scene() -> None:
        jobs = Jobs(concurrency=2, prefetch=2)
        gate = asyncio.Event()

        async def held() -> None:
            await gate.wait()

        jobs.kind(named("plain"))
        jobs.kind(held)
        async with jobs.working() as part:
            telemetry = part.worker._metrics._telemetry
            spans: list[Span] = []
            telemetry.spans = spans.append

            def counts() -> Counter[str]:
                found: Counter[str] = Counter()
                for one in telemetry.snapshot():
                    value = one.value.count if isinstance(one.value, Distribution) else one.value
                    found[one.name.removeprefix("fairway_jobs_")] += int(value)
                return found

            def named_series(name: str) -> dict[tuple[tuple[str, str], ...], Any]:
                return {one.labels: one.value for one in telemetry.snapshot() if one.name == name}

            await settled()
            assert set(counts().values()) <= {0, counts()["exchange_ns"]}, "nothing happened yet"

            plain = await jobs.add(part, "plain")
            await part.engine.result(plain)
            assert (counts()["claimed"], counts()["settled"], counts()["step_ns"]) == (1, 1, 1)
            assert named_series("fairway_jobs_settled") == {(("fate", "done"),): 1}

            await jobs.add(part, "held", partition_key="k")
            await jobs.add(part, "held", partition_key="k")
            await asyncio.sleep(2)
            assert (counts()["contended"], counts()["running"]) == (1, 1)
            gate.set()
            await asyncio.sleep(2)
            assert counts()["running"] == 0

            await jobs.add(part, "nobody knows")
            await asyncio.sleep(2)
            assert (counts()["set_aside"], counts()["claimed"]) == (1, 4)

            await jobs.store.set_limits("default", Limits(rate_per_s=0.001, burst=1))
            await jobs.add(part, "plain")
            await jobs.add(part, "plain")
            await asyncio.sleep(2)
            assert counts()["held_back"] >= 1
            await jobs.store.set_limits("default", Limits())
            part.worker.look("default")

            jobs.store.lose = lambda out, settlements: bool(settlements)
            lost = await jobs.add(part, "plain")
            await until(lambda: jobs.store.commits[lost])
            jobs.store.lose = lambda out, settlements: False
            await asyncio.sleep(5)
            assert counts()["exchange_failed"] >= 1
            assert counts()["stale"] >= 1

            dead = await jobs.store.register("another", SECOND_NS)
            for crashes in (1, 5):
                await jobs.store.enqueue([NewJob(kind="plain", queue="q", max_crashes=crashes)])
            await jobs.store.exchange(dead, 1, wants=[Want(ReadyLine("q", "", Band.B1), 2)])
            await asyncio.sleep(60)
            assert counts()["workers_reaped"] == 1
            assert (counts()["reaped"], counts()["dead"]) == (1, 1)

            span_names = Counter(span.name for span in spans)
            assert span_names["job plain"] == counts()["step_ns"] - 2
            assert span_names["job held"] == 2
            assert span_names["jobs.reap"] == 1
            (reap,) = [span for span in spans if span.name == "jobs.reap"]
            assert reap.attributes == {"workers": 1, "returned": 1, "dead": 1}
            picks = [span for span in spans if span.name == "jobs.exchange"]
            assert sum(int(span.attributes["stale"]) for span in picks) == counts()["stale"]
            assert sum(int(span.attributes["claimed"]) for span in picks) == counts()["claimed"]

    play(scene)

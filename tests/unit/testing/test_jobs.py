"""The testing kit for jobs: the whole life of jobs, machines and workflows in virtual time."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Fairway
from fairway.errors import Conflict, InvalidConfig, InvalidRequest, NotFound
from fairway.jobs import rules
from fairway.runtime.clock import clock_of
from fairway.testing import run_jobs
from fairway.testing.jobs import NotQuiet

if TYPE_CHECKING:
    from fairway.jobs.context import Context
    from fairway.jobs.outcome import Outcome
    from fairway.testing import JobsUnderTest

DAY_S = 24 * 3600


def test_retries_follow_the_backoff_and_cost_no_time() -> None:
    app = Fairway(jobs="memory:")
    at: list[int] = []

    @app.job(max_attempts=4)
    async def flaky(ctx: Context[Any]) -> str:
        at.append(clock_of().now_ns())
        if ctx.attempt < 4:
            raise ValueError(f"attempt {ctx.attempt}")
        return "sent"

    async def play(jobs: JobsUnderTest) -> None:
        receipt = await flaky.enqueue()
        assert await jobs.drain() == {"done": 1}
        await jobs.assert_done(receipt, "sent")
        with pytest.raises(AssertionError, match=r"is done, not failed"):
            await jobs.assert_failed(receipt)
        with pytest.raises(AssertionError, match=r"came to 'sent', not 'lost'"):
            await jobs.assert_done(receipt, "lost")

    run_jobs(app, play)
    waits_s = [(later - earlier) / 1e9 for earlier, later in pairwise(at)]
    for wait_s, ceiling_s in zip(waits_s, (1, 2, 4), strict=True):
        assert 0.75 * ceiling_s <= wait_s <= ceiling_s + 0.01


def test_a_context_that_does_not_fit_is_refused_or_fails_its_task_at_once() -> None:
    app = Fairway(jobs="memory:")
    flow = app.workflow("flow", context={"day": "monday"})
    ran: list[str] = []

    @flow.task
    async def first(day: str) -> dict[str, Any]:
        return {"rows": "many"}

    @flow.task(rule=rules.context("full", "equals", True))
    async def only_full(size: int) -> None: ...

    @flow.task(after=first)
    async def second(rows: int) -> None:
        ran.append("second")

    async def play(jobs: JobsUnderTest) -> None:
        for misfit, task in (({"day": 7}, "flow.first"), ({"full": True}, "flow.only_full")):
            with pytest.raises(InvalidRequest, match=f"workflow 'flow': task '{task}'"):
                await flow.start(misfit)
        run = await flow.start()
        assert await jobs.drain() == {"done": 1, "failed": 2}
        (task,) = [job for job in await app.jobs.browse() if job.kind == "flow.second"]
        assert (task.attempt, task.crashes) == (0, 0)
        assert "its context does not fit" in (task.error or "")
        for action in (flow.pause, flow.resume, flow.cancel):
            with pytest.raises(Conflict, match=f"run {run.id} had ended already: failed"):
                await action(run.id)
            with pytest.raises(NotFound):
                await action(987_654)

    run_jobs(app, play)
    assert not ran


def test_a_run_by_hand_has_what_the_schedule_gives() -> None:
    app = Fairway(jobs="memory:")
    one = app.workflow("one", cron="@yearly", context={"full": True})
    several = app.workflow("several", context={"full": False})
    app.schedule("small", several, cron="@yearly", values={"full": False, "size": 1})
    app.schedule("large", several, cron="@yearly", values={"full": False, "size": 2})
    seen: list[dict[str, Any]] = []

    @one.task(name="look")
    @several.task(name="look")
    async def look(context: dict[str, Any]) -> None:
        seen.append(context)

    async def play(jobs: JobsUnderTest) -> None:
        now_ms = clock_of().wall_ns() // 1_000_000
        await one.start()
        await one.start({"full": None, "scheduled_at_ms": 1})
        await several.start({"size": 3})
        await jobs.drain()
        assert seen == [
            {"full": True, "scheduled_at_ms": now_ms},
            {"full": None, "scheduled_at_ms": 1},
            {"full": False, "size": 3, "scheduled_at_ms": now_ms},
        ]

    run_jobs(app, play)


def test_a_schedule_whose_context_fits_no_first_task_is_refused_when_the_app_starts() -> None:
    app = Fairway(jobs="memory:")
    flow = app.workflow("flow", cron="@yearly", context={"day": 7})

    @flow.task
    async def first(day: str) -> None: ...

    async def play(jobs: JobsUnderTest) -> None: ...

    with pytest.raises(InvalidConfig, match="the schedule of workflow 'flow'"):
        run_jobs(app, play)


def test_a_machine_that_adds_up_is_given_each_signal_once() -> None:
    app = Fairway(jobs="memory:")

    @app.machine
    class Account(msgspec.Struct):
        total: int = 0
        failed: bool = False

        async def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.wait("pay", "close", then="paid", timeout_s=3600)

        async def paid(self, ctx: Context[Any]) -> Outcome:
            assert ctx.timed_out == (not ctx.signals)
            names = [signal.name for signal in ctx.signals]
            self.total += sum(signal.payload for signal in ctx.signals if signal.name == "pay")
            if self.total == 11 and ctx.attempt == 1:
                raise ValueError("what a failing step made of its signals is not committed")
            if "close" in names:
                return ctx.done(self.total)
            return ctx.wait("pay", "close", then="paid", timeout_s=3600)

    async def play(jobs: JobsUnderTest) -> None:
        account = await Account.start(Account())
        for amount in (1, 10, 100):
            await account.signal("pay", amount)
            await jobs.drain()
            await jobs.assert_waiting(account, "pay")
        await jobs.advance(3600)
        await jobs.drain()
        await account.signal("close")
        await jobs.drain()
        await jobs.assert_done(account, 111)

    run_jobs(app, play)


def test_a_machine_waits_for_signals_and_children() -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def pack(id: int) -> str:
        return f"packed {id}"

    @app.machine
    class Order(msgspec.Struct):
        id: int
        paid: bool = False

        async def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.wait("payment", then="paid_for", timeout_s=3 * DAY_S)

        async def paid_for(self, ctx: Context[Any]) -> Outcome:
            if ctx.timed_out:
                return ctx.stop("nobody paid")
            self.paid = True
            return ctx.spawn([pack.order(id=self.id), pack.order(id=-1)], then="packed")

        async def packed(self, ctx: Context[Any]) -> Outcome:
            return ctx.done([self.paid, *(child.result for child in ctx.children)])

    async def play(jobs: JobsUnderTest) -> None:
        order = await Order.start(Order(id=7))
        forgotten = await Order.start(Order(id=8))
        assert await jobs.drain() == {"waiting": 2}
        await jobs.assert_waiting(order, "payment")
        assert await order.signal("payment", {"cents": 1}, dedup="p1")
        assert not await order.signal("payment", {"cents": 1}, dedup="p1")
        await jobs.drain()
        await jobs.assert_done(order, [True, "packed 7", "packed -1"])
        await jobs.assert_enqueued("pack", 2)
        await jobs.assert_enqueued("pack", 1, id=7)
        await jobs.advance(3 * DAY_S)
        await jobs.drain()
        await jobs.assert_failed(forgotten, "nobody paid")

    run_jobs(app, play)


def test_a_workflow_with_rules_context_and_callbacks() -> None:
    app = Fairway(jobs="memory:")
    flow = app.workflow("etl")
    told: list[Any] = []

    @flow.task
    async def extract(day: str) -> dict[str, Any]:
        return {"rows": len(day)}

    @flow.task(after=extract, max_attempts=2)
    async def load(rows: int) -> None:
        raise OSError(f"{rows} rows did not fit")

    @flow.task(after=load, rule=rules.failed("load"))
    async def page(context: dict[str, Any]) -> dict[str, Any]:
        return {"paged": context["rows"]}

    @flow.task(after=load)
    async def publish() -> None:
        told.append("never")

    @flow.on_success
    async def hurray(context: dict[str, Any]) -> None:
        told.append(context["paged"])

    async def play(jobs: JobsUnderTest) -> None:
        run = await flow.start({"day": "monday"})
        await jobs.drain()
        await jobs.assert_done(run, {"day": "monday", "rows": 6, "paged": 6})

    run_jobs(app, play)
    assert told == [6]


def test_a_run_that_takes_too_long_is_stopped_with_its_tasks() -> None:
    app = Fairway(jobs="memory:")
    flow = app.workflow("slow", timeout=60)

    @flow.task
    async def poll(ctx: Context[Any]) -> Outcome:
        return ctx.defer(after_s=10)

    async def play(jobs: JobsUnderTest) -> None:
        run = await flow.start()
        tally = await jobs.drain()
        await jobs.assert_failed(run, "took longer than 60 s")
        assert tally == {"failed": 1, "cancelled": 1}

    run_jobs(app, play)


def test_a_paused_run_starts_nothing_until_it_is_resumed() -> None:
    app = Fairway(jobs="memory:")
    flow = app.workflow("two")
    ran: list[str] = []

    @flow.task
    async def first(ctx: Context[Any]) -> Outcome | None:
        ran.append("first")
        return ctx.defer(after_s=5) if len(ran) == 1 else None

    @flow.task(after=first)
    async def second() -> None:
        ran.append("second")

    async def play(jobs: JobsUnderTest) -> None:
        run = await flow.start()
        await jobs.advance(1)
        await flow.pause(run.id)
        await jobs.drain()
        assert ran == ["first", "first"]
        await flow.resume(run.id)
        await jobs.drain()
        await jobs.assert_done(run)

    run_jobs(app, play)
    assert ran == ["first", "first", "second"]


def test_schedules_fire_on_virtual_time() -> None:
    app = Fairway(jobs="memory:")
    at: list[int] = []
    flow = app.workflow("hourly", cron="30 * * * *", context={"why": "clock"})

    @flow.task
    async def note(context: dict[str, Any]) -> None:
        assert context["why"] == "clock"
        at.append(context["scheduled_at_ms"] // 60_000 % 60)

    @app.trigger(flow, every_s=600)
    async def news() -> dict[str, Any] | None:
        return None

    async def play(jobs: JobsUnderTest) -> None:
        await jobs.advance(3 * 3600)
        await jobs.drain()

    run_jobs(app, play)
    assert at == [30, 30, 30]


def test_a_trigger_that_takes_longer_than_its_interval_is_asked_once_at_a_time() -> None:
    """Those that came due meanwhile wait, and are asked one after the other."""
    app = Fairway("memory:", jobs="memory:")
    flow = app.workflow("flow")
    asked: list[tuple[str, int]] = []

    @flow.task
    def task() -> None: ...

    @app.trigger(flow, every_s=10, name="slow")
    async def slow() -> dict[str, Any] | None:
        loop = asyncio.get_running_loop()
        asked.append(("begin", round(loop.time())))
        await asyncio.sleep(25)
        asked.append(("end", round(loop.time())))
        return None

    async def play(kit: JobsUnderTest) -> None:
        await kit.advance(120)

    run_jobs(app, play)
    assert len(asked) >= 8
    assert [what for what, _ in asked[:8]] == ["begin", "end"] * 4
    begins, ends = asked[0:8:2], asked[1:8:2]
    gaps = [begin - end for (_, end), (_, begin) in zip(ends, begins[1:], strict=False)]
    assert gaps == [0, 0, 0], "the next has waited: it begins when the one before has ended"


def test_a_trigger_starts_one_run_for_one_context() -> None:
    app = Fairway(jobs="memory:")
    flow = app.workflow("import")
    runs: list[str] = []

    @flow.task
    async def work(ctx: Context[Any], file: str) -> Outcome | None:
        if ctx.attempt == 1 and file not in runs:
            runs.append(file)
        return ctx.defer(after_s=100) if len(runs) < 2 else None

    files = iter(["a", "a", "b", None, None])

    @app.trigger(flow, every_s=10)
    def look() -> dict[str, Any] | None:
        file = next(files, None)
        return None if file is None else {"file": file}

    async def play(jobs: JobsUnderTest) -> None:
        await jobs.advance(300)
        await jobs.assert_enqueued("workflow:import", 2)

    run_jobs(app, play)
    assert runs == ["a", "b"]


def test_what_never_gets_quiet_is_told() -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def forever(ctx: Context[Any]) -> Outcome:
        return ctx.defer(after_s=60)

    async def play(jobs: JobsUnderTest) -> None:
        await forever.enqueue()
        with pytest.raises(NotQuiet, match=re.escape("no quiet: forever 1 is")):
            await jobs.drain(limit_s=3600)

    run_jobs(app, play)

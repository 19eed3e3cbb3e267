"""Tests of jobs: the real worker, in memory, on virtual time."""

from typing import Any

import msgspec

from fairway import Fairway
from fairway.jobs.context import Context
from fairway.jobs.outcome import Outcome

app = Fairway(jobs="memory:")
DAY_S = 86_400


@app.job(max_attempts=4)
async def charge(ctx: Context[Any], order: int) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order} is charged"


class Order(msgspec.Struct):
    id: int

    async def placed(self, ctx: Context[Any]) -> Outcome:
        return ctx.wait("payment", then="paid", timeout_s=3 * DAY_S)

    async def paid(self, ctx: Context[Any]) -> Outcome:
        if ctx.timed_out:
            return ctx.stop("nobody paid")
        return ctx.spawn([charge.order(self.id)], then="charged")

    async def charged(self, ctx: Context[Any]) -> Outcome:
        return ctx.done(ctx.children[0].result)


orders = app.machine(Order)


# --8<-- [start:drain]
from fairway.testing import JobsUnderTest, run_jobs  # noqa: E402


def test_a_bank_that_is_away_for_a_moment() -> None:
    async def play(jobs: JobsUnderTest) -> None:
        job = await charge.enqueue(order=7)
        assert await jobs.drain() == {"done": 1}  # two retries, and no time was spent
        await jobs.assert_done(job, "order 7 is charged")

    run_jobs(app, play)


# --8<-- [end:drain]


# --8<-- [start:signals]
def test_an_order_is_paid_and_another_forgotten() -> None:
    async def play(jobs: JobsUnderTest) -> None:
        paid = await orders.start(Order(id=7))
        forgotten = await orders.start(Order(id=8))
        await jobs.drain()
        await jobs.assert_waiting(paid, "payment")
        await paid.signal("payment")
        await jobs.drain()
        await jobs.assert_done(paid, "order 7 is charged")
        await jobs.assert_enqueued("charge", 1, order=7)
        await jobs.advance(3 * DAY_S)  # the timeout of the other one
        await jobs.drain()
        await jobs.assert_failed(forgotten, "nobody paid")

    run_jobs(app, play)


# --8<-- [end:signals]


# --8<-- [start:plain]
def test_the_step_alone() -> None:
    async def play(jobs: JobsUnderTest) -> None:
        job = await charge.using(delay_s=3600, tenant="shop").enqueue(order=9)
        seen = await job.look()
        assert (seen.status.word, seen.tenant) == ("scheduled", "shop")

    run_jobs(app, play, seed=7)


# --8<-- [end:plain]

if __name__ == "__main__":
    test_a_bank_that_is_away_for_a_moment()
    test_an_order_is_paid_and_another_forgotten()
    test_the_step_alone()

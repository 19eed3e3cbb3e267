"""What the return value of a step means for its job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Fairway
from fairway.testing import run_jobs

if TYPE_CHECKING:
    from fairway.jobs.context import Context
    from fairway.testing import JobsUnderTest


@pytest.mark.parametrize(("value", "returned"), [(None, "nothing"), (7, "a int"), ("x", "a str")])
def test_a_step_of_a_machine_that_returns_no_outcome_fails_its_job_and_says_so(
    value: Any, returned: str
) -> None:
    app = Fairway(jobs="memory:")

    @app.machine
    class Order(msgspec.Struct):
        async def pay(self, ctx: Context[Any]) -> Any:
            return value

    async def play(jobs: JobsUnderTest) -> None:
        receipt = await Order.start(Order())
        assert await jobs.drain() == {"failed": 1}
        error = (await receipt.look()).error
        assert error is not None
        assert error.startswith(f"step 'pay' returned {returned}: a step of a machine returns")

    run_jobs(app, play)


def test_a_function_that_returns_nothing_is_done() -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def nothing() -> None: ...

    async def play(jobs: JobsUnderTest) -> None:
        receipt = await nothing.enqueue()
        assert await jobs.drain() == {"done": 1}
        assert await receipt.result() is None

    run_jobs(app, play)


@pytest.mark.parametrize("reason", ["\0" * 9_000, "\ud800" * 9_000, "x\0" * 5_000, "y" * 9_000])
@pytest.mark.parametrize("last", [False, True])
def test_an_error_has_its_bound_also_when_its_characters_are_escaped(
    reason: str, last: bool
) -> None:
    app = Fairway(jobs="memory:")

    @app.job(max_attempts=1 if last else 2)
    async def fails(ctx: Context[Any]) -> Any:
        return ctx.retry(after_s=60, reason=reason)

    async def play(jobs: JobsUnderTest) -> None:
        receipt = await fails.enqueue()
        await jobs.drain()
        error = (await receipt.look()).error
        assert error is not None
        assert 0 < len(error) <= 4_000

    run_jobs(app, play)


@pytest.mark.parametrize("reason", ["\0" * 9_000, "\ud800" * 9_000])
def test_the_reason_of_a_cancel_has_the_same_bound(reason: str) -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def later() -> None: ...

    async def play(jobs: JobsUnderTest) -> None:
        receipt = await later.using(delay_s=60).enqueue()
        await app.jobs.cancel(receipt.id, reason=reason)
        assert 0 < len((await receipt.look()).error or "") <= 4_000

    run_jobs(app, play)

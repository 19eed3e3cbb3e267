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


@pytest.mark.parametrize(("value", "said"), [(None, "nothing"), (7, "a int"), ("x", "a str")])
def test_a_step_of_a_machine_that_returns_no_outcome_fails_its_job_and_says_so(
    value: Any, said: str
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
        assert error.startswith(f"step 'pay' returned {said}: a step of a machine returns")

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

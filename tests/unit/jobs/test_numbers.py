"""Numbers that JSON has not, and times of no length: refused or kept, never something else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Fairway
from fairway.errors import FairwayError, InvalidRequest
from fairway.testing import run_jobs
from fairway.wire.encoding import encode, encode_shown

if TYPE_CHECKING:
    from fairway.jobs.context import Context
    from fairway.jobs.outcome import Outcome
    from fairway.testing import JobsUnderTest


@dataclass
class Point:
    x: float
    y: float | None = None


class Numbers(msgspec.Struct):
    deep: dict[str, list[Any]]


NONE = [
    math.nan,
    math.inf,
    [1.0, -math.inf],
    {"a": [None, {"b": math.nan}]},
    Point(math.nan),
    Numbers({"a": [(1, math.inf)]}),
    {"kept": msgspec.Raw(b"null"), "wide": 2**70, "x": math.nan},
]
SOME: list[Any] = [
    None,
    "nan",
    [None, 1e308, -0.0],
    {"null": None},
    Point(1.0),
    Numbers({"a": [None]}),
    msgspec.Raw(b"[null]"),
    [msgspec.Raw(b"null"), None],
    {"wide": 2**70, "none": None},
    {"bytes": b"\xcb\x7f\xf8", "number": 0xCB7FF800, "none": None, "kept": msgspec.Raw(b"1")},
]


@pytest.mark.parametrize("value", NONE)
def test_what_json_has_no_number_for_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON has no number -?(nan|inf)"):
        encode(value)


@pytest.mark.parametrize("value", SOME)
def test_everything_else_is_written_as_ever(value: Any) -> None:
    assert encode(value) == msgspec.json.encode(value)


@pytest.mark.parametrize("value", SOME)
def test_what_is_shown_is_what_json_has(value: Any) -> None:
    assert encode_shown(value) == msgspec.json.encode(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, b'"nan"'),
        ([None, math.inf, {"a": -math.inf}], b'[null,"inf",{"a":"-inf"}]'),
        (Point(math.nan), b'{"x":"nan","y":null}'),
        (Numbers({"a": [(1, math.nan)]}), b'{"deep":{"a":[[1,"nan"]]}}'),
        (
            {"kept": msgspec.Raw(b"[null]"), "wide": 2**70, "x": math.nan, 1: object},
            b'{"kept":[null],"wide":%d,"x":"nan","1":"<class \'object\'>"}' % 2**70,
        ),
    ],
)
def test_what_json_has_no_number_for_is_shown_as_text(value: Any, shown: bytes) -> None:
    assert encode_shown(value) == shown


def test_a_result_or_a_state_without_a_number_fails_its_job_and_says_why() -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def mean() -> float:
        return math.nan

    @app.machine
    class Average(msgspec.Struct):
        x: float = 0.0

        async def first(self, ctx: Context[Any]) -> Outcome:
            self.x = math.nan
            return ctx.next("second")

        async def second(self, ctx: Context[Any]) -> Outcome:
            return ctx.done("it went on")

    async def play(jobs: JobsUnderTest) -> None:
        receipts = [await mean.enqueue(), await Average.start(Average())]
        assert await jobs.drain() == {"failed": 2}
        for receipt in receipts:
            error = (await receipt.look()).error
            assert error is not None
            assert error == "cannot be saved: JSON has no number nan"

    run_jobs(app, play)


def test_an_argument_a_payload_and_a_context_without_a_number_are_refused() -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def takes(value: Any = None, number: float = 0.0) -> None: ...

    @app.machine
    class Waits(msgspec.Struct):
        async def first(self, ctx: Context[Any]) -> Outcome:
            return ctx.wait("go", then="first")

    flow = app.workflow("flow")

    @flow.task
    async def task() -> None: ...

    async def play(jobs: JobsUnderTest) -> None:
        with pytest.raises(InvalidRequest, match="JSON has no number nan"):
            await takes.enqueue(value=[math.nan])
        with pytest.raises(InvalidRequest, match="JSON has no number inf"):
            await takes.enqueue_many([{"number": 1.0}, {"number": math.inf}])
        waits = await Waits.start(Waits())
        with pytest.raises(InvalidRequest, match="JSON has no number nan"):
            await waits.signal("go", {"x": math.nan})
        with pytest.raises(FairwayError, match="JSON has no number inf"):
            await flow.start({"x": math.inf})
        await waits.cancel()

    run_jobs(app, play)


@pytest.mark.parametrize("timeout_s", [0, 0.0, -1.0, 1e-12])
def test_a_wait_of_no_time_is_over_at_once(timeout_s: float) -> None:
    app = Fairway(jobs="memory:")

    @app.job
    async def never() -> None: ...

    @app.machine
    class Impatient(msgspec.Struct):
        async def first(self, ctx: Context[Any]) -> Outcome:
            return ctx.wait("go", then="second", timeout_s=timeout_s)

        async def second(self, ctx: Context[Any]) -> Outcome:
            assert ctx.timed_out
            child = never.order()
            return ctx.spawn([child], then="third", timeout_s=timeout_s)

        async def third(self, ctx: Context[Any]) -> Outcome:
            return ctx.done(ctx.timed_out)

    async def play(jobs: JobsUnderTest) -> None:
        receipt = await Impatient.start(Impatient())
        await jobs.drain()
        assert await receipt.result() in (True, False)  # its child may have been quick

    run_jobs(app, play)

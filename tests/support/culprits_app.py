"""Jobs and nodes that raise what their argument names, wherever user code may run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from fairway.app import Fairway
from fairway.core.backoff import BackoffConfig
from fairway.jobs.context import Context  # noqa: TC001  (read when jobs are declared)
from fairway.jobs.outcome import Outcome  # noqa: TC001
from tests.support.culprits import CULPRITS, ends

SOON = BackoffConfig(base_ns=1_000_000, cap_ns=1_000_000, jitter=0.0)
OPTIONS: dict[str, Any] = {"max_attempts": 2, "backoff": SOON}

app = Fairway("memory:", jobs="memory:")
flow = app.workflow("flow")
threaded_flow = app.workflow("threaded_flow")
process_flow = app.workflow("process_flow")
ending_flow = app.workflow("ending_flow")


def is_up(ctx: Context[Any], name: str) -> bool:
    """Whether it is to raise: with a question mark behind its name, at the first attempt only."""
    return not name.endswith("?") or ctx.attempt == 1


def run_named(ctx: Context[Any], name: str) -> str:
    if is_up(ctx, name):
        CULPRITS[name.removesuffix("?")]()
    return f"attempt {ctx.attempt}"


async def run_named_async(ctx: Context[Any], name: str) -> str:
    ended = run_named(ctx, name)
    await asyncio.sleep(0)  # one that cancelled its own task ends here
    return ended


@app.job(**OPTIONS)
async def coroutine(ctx: Context[Any], name: str) -> str:
    return await run_named_async(ctx, name)


@app.job(**OPTIONS, timeout=60.0)
async def with_timeout(ctx: Context[Any], name: str) -> str:
    return await run_named_async(ctx, name)


@app.job(**OPTIONS)
def thread(ctx: Context[Any], name: str) -> str:
    return run_named(ctx, name)


@app.job(**OPTIONS, isolation="process")
def process(ctx: Context[Any], name: str) -> str:
    return run_named(ctx, name)


@app.job(**OPTIONS, isolation="process")
async def coroutine_in_a_process(ctx: Context[Any], name: str) -> str:
    return await run_named_async(ctx, name)


@app.machine(**OPTIONS)
class Steps(msgspec.Struct):
    name: str
    threaded: bool = False

    async def start(self, ctx: Context[Any]) -> Outcome:
        if self.threaded:
            return ctx.next("in_a_thread")
        return ctx.done(await run_named_async(ctx, self.name))

    def in_a_thread(self, ctx: Context[Any]) -> Outcome:
        return ctx.done(run_named(ctx, self.name))


class StepsInAProcess(msgspec.Struct):
    name: str

    async def start(self, ctx: Context[Any]) -> Outcome:
        return ctx.done(await run_named_async(ctx, self.name))


steps_in_a_process = app.machine(StepsInAProcess, **OPTIONS, isolation="process")


@flow.task(**OPTIONS)
async def task(ctx: Context[Any], name: str) -> dict[str, Any]:
    return {"said": await run_named_async(ctx, name)}


@threaded_flow.task(**OPTIONS)
def threaded_task(ctx: Context[Any], name: str) -> dict[str, Any]:
    return {"said": run_named(ctx, name)}


@process_flow.task(**OPTIONS, isolation="process")
def task_in_a_process(ctx: Context[Any], name: str) -> dict[str, Any]:
    return {"said": run_named(ctx, name)}


@app.job(max_attempts=1, isolation="process")
def ends_its_process(way: str) -> None:
    ends(way)


class Ending(msgspec.Struct):
    way: str

    def start(self, ctx: Context[Any]) -> Outcome:
        ends(self.way)
        return ctx.done()


ending_machine = app.machine(Ending, max_attempts=1, isolation="process")


@ending_flow.task(max_attempts=1, isolation="process")
def ending_task(way: str) -> None:
    ends(way)

"""Jobs and nodes that raise whatever they are told to, wherever user code may run."""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import Any

import msgspec

from fairway.app import Fairway
from fairway.core.backoff import BackoffConfig
from fairway.jobs.context import Context  # noqa: TC001  (read when jobs are declared)
from fairway.jobs.outcome import Outcome  # noqa: TC001
from tests.support.culprits import CULPRITS

SOON = BackoffConfig(base_ns=1_000_000, cap_ns=1_000_000, jitter=0.0)
DEEP = 200_000
OPTIONS: dict[str, Any] = {"max_attempts": 2, "backoff": SOON}

app = Fairway("memory:", jobs="memory:")
flow = app.workflow("flow")
threaded_flow = app.workflow("threaded_flow")


def is_up(ctx: Context[Any], name: str) -> bool:
    """Whether it is to raise: with a question mark behind its name, at the first attempt only."""
    return not name.endswith("?") or ctx.attempt == 1


def told(ctx: Context[Any], name: str) -> str:
    if is_up(ctx, name):
        CULPRITS[name.removesuffix("?")]()
    return f"attempt {ctx.attempt}"


async def told_async(ctx: Context[Any], name: str) -> str:
    said = told(ctx, name)
    await asyncio.sleep(0)  # one that cancelled its own task ends here
    return said


@app.job(**OPTIONS)
async def coroutine(ctx: Context[Any], name: str) -> str:
    return await told_async(ctx, name)


@app.job(**OPTIONS, timeout=60.0)
async def with_timeout(ctx: Context[Any], name: str) -> str:
    return await told_async(ctx, name)


@app.job(**OPTIONS)
def thread(ctx: Context[Any], name: str) -> str:
    return told(ctx, name)


@app.job(**OPTIONS, isolation="process")
def process(ctx: Context[Any], name: str) -> str:
    return told(ctx, name)


@app.job(**OPTIONS, isolation="process")
async def coroutine_in_a_process(ctx: Context[Any], name: str) -> str:
    return await told_async(ctx, name)


@app.machine(**OPTIONS)
class Steps(msgspec.Struct):
    name: str
    threaded: bool = False

    async def start(self, ctx: Context[Any]) -> Outcome:
        if self.threaded:
            return ctx.next("in_a_thread")
        return ctx.done(await told_async(ctx, self.name))

    def in_a_thread(self, ctx: Context[Any]) -> Outcome:
        return ctx.done(told(ctx, self.name))


@flow.task(**OPTIONS)
async def task(ctx: Context[Any], name: str) -> dict[str, Any]:
    return {"said": await told_async(ctx, name)}


@threaded_flow.task(**OPTIONS)
def threaded_task(ctx: Context[Any], name: str) -> dict[str, Any]:
    return {"said": told(ctx, name)}


# What ends the process it runs in.


def ends(way: str) -> None:
    if way == "os._exit":
        os._exit(13)
    if way == "SIGSEGV":
        ctypes.string_at(0)
    assert way == "stack overflow"
    # The C library's parser of expressions calls itself for each parenthesis, as many do.
    ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(4096), b"(" * DEEP + b")" * DEEP, 1)


@app.job(max_attempts=1, isolation="process")
def ends_its_process(way: str) -> None:
    ends(way)

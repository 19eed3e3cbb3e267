"""An app with a few jobs, for tests of what is in front of them: HTTP, client and commands."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.app import Fairway
from fairway.jobs.context import Context  # noqa: TC001  (read when jobs are declared)

if TYPE_CHECKING:
    from pathlib import Path

    from fairway.jobs.outcome import Outcome


class Gates:
    """Events by name: what a job waits for until its test lets it go on."""

    def __init__(self) -> None:
        self._open: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.runs: defaultdict[str, int] = defaultdict(int)

    def open(self, name: str) -> None:
        self._open[name].set()

    async def pass_through(self, name: str) -> None:
        self.runs[name] += 1
        await self._open[name].wait()


def jobs_app(place: Path, gates: Gates | None = None) -> Fairway:
    """Jobs that add, fail, wait to be let go on, wait for a signal, and have children."""
    app = Fairway(place)
    doors = gates if gates is not None else Gates()

    @app.job(queue="math", unique="sum-{a}-{b}-{nonce}")
    async def add(a: int, b: int = 1, nonce: str = "") -> int:
        return a + b

    @app.job(queue="math")
    async def held(ctx: Context[Any], name: str) -> str:
        ctx.progress({"held": name})
        await doors.pass_through(name)
        return name

    @app.job(queue="math", max_attempts=1)
    async def fails_once(name: str) -> str:
        doors.runs[name] += 1
        if doors.runs[name] == 1:
            raise RuntimeError(f"{name} is not\nto be had")
        return name

    @app.machine(queue="orders", partition_key="order-{id}")
    class Purchase(msgspec.Struct):
        id: int
        paid: Any = None

        def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.wait("payment", then="settle")

        def settle(self, ctx: Context[Any]) -> Outcome:
            self.paid = ctx.signals[0].payload
            return ctx.done(self.id)

    @app.machine(queue="orders")
    class Family(msgspec.Struct):
        names: list[str]

        def start(self, ctx: Context[Any]) -> Outcome:
            return ctx.spawn([held.order(name) for name in self.names], then="gather")

        def gather(self, ctx: Context[Any]) -> Outcome:
            return ctx.done([child.status for child in ctx.children])

    return app

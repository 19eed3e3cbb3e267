"""Calls that cannot be meant: each is refused with an error of our own, and changes nothing."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Context, Fairway, Outcome
from fairway.errors import FairwayError, Invalid, InvalidConfig
from fairway.jobs.job import Filter, Limits
from tests.support.postgres import postgres_url
from tests.support.server import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HALF = "\ud800"
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


class State(msgspec.Struct):
    n: int
    x: float = 0.0

    async def begin(self, ctx: Context[State]) -> Outcome:
        return ctx.done()


def made(place: str) -> tuple[Fairway, Any, Any, Any]:
    app = Fairway("memory:", jobs=place, worker=None)

    @app.job(unique="k-{x:d}")
    async def keyed(x: Any) -> None: ...

    @app.job
    async def plain(n: int, text: str = "", ratio: float = 0.0, any: Any = None) -> None: ...

    machine = app.machine(State)
    flow = app.workflow("flow")

    @flow.task
    async def only() -> None: ...

    return app, plain, machine, flow


USING = [
    {"priority": 5000},
    {"priority": -1001},
    {"priority": 1.5},
    {"priority": True},
    {"priority": "high"},
    {"queue": "*"},
    {"queue": ""},
    {"queue": 7},
    {"queue": "q" * 501},
    {"queue": HALF},
    {"queue": "a\0b"},
    {"tenant": HALF},
    {"tenant": "t" * 501},
    {"key": ""},
    {"key": "a\0b"},
    {"key": HALF},
    {"key": b"bytes"},
    {"partition_key": ""},
    {"partition_key": HALF},
    {"traceparent": HALF},
    {"delay_s": math.nan},
    {"delay_s": math.inf},
    {"delay_s": 1e300},
    {"delay_s": "5"},
    {"window_s": math.nan, "key": "k"},
    {"window_s": 1e12, "key": "k"},
    {"at": datetime(2030, 1, 1)},
    {"at": "2030-01-01"},
    {"at": datetime.max.replace(tzinfo=UTC)},
    {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay_s": 1},
]
CALLS: list[Callable[[Fairway, Any, Any, Any], Any]] = [
    lambda app, job, machine, flow: job.enqueue(1, n=2),
    lambda app, job, machine, flow: job.enqueue(n=1, text=HALF),
    lambda app, job, machine, flow: job.enqueue(n=1, ratio=math.nan),
    lambda app, job, machine, flow: job.enqueue(n=1, ratio=math.inf),
    lambda app, job, machine, flow: job.enqueue(n=1, any=object()),
    lambda app, job, machine, flow: job.enqueue(n=1, any=DEEP),
    lambda app, job, machine, flow: job.enqueue_many([1]),
    lambda app, job, machine, flow: job.enqueue_many(["ab"]),
    lambda app, job, machine, flow: job.enqueue_many([{"n": 1}, {"n": 1, "text": HALF}]),
    lambda app, job, machine, flow: job.enqueue_many([{"n": 1}, {"n": 1, "ratio": math.nan}]),
    lambda app, job, machine, flow: job.enqueue_many([{"n": 1}, {1: 2}]),
    lambda app, job, machine, flow: machine.start(State(1, math.nan)),
    lambda app, job, machine, flow: flow.start({"a": HALF}),
    lambda app, job, machine, flow: flow.start({"a": object()}),
    lambda app, job, machine, flow: flow.start({}, delay_s=math.nan),
    lambda app, job, machine, flow: flow.start({}, window_s=math.inf, key="k"),
    lambda app, job, machine, flow: flow.start({}, key=HALF),
    lambda app, job, machine, flow: app.enqueue(5),
    lambda app, job, machine, flow: app.jobs.limit("", Limits(concurrency=1)),
    lambda app, job, machine, flow: app.jobs.limit("q" * 9_999, Limits(concurrency=1)),
    lambda app, job, machine, flow: app.jobs.limit("a\0b", Limits(concurrency=1)),
    lambda app, job, machine, flow: app.jobs.limit(HALF, Limits(concurrency=1)),
    lambda app, job, machine, flow: app.jobs.limit(5, Limits(concurrency=1)),
    lambda app, job, machine, flow: app.jobs.find("x"),
    lambda app, job, machine, flow: app.jobs.cancel("x"),
    lambda app, job, machine, flow: app.jobs.cancel(1, reason=5),
    lambda app, job, machine, flow: app.jobs.retry("x"),
    lambda app, job, machine, flow: app.jobs.prune(-1),
    lambda app, job, machine, flow: app.jobs.prune(10**30),
    lambda app, job, machine, flow: app.jobs.prune(1, failed_older_than_ns=-1),
    lambda app, job, machine, flow: app.jobs.prune(0.5),
    lambda app, job, machine, flow: app.jobs.browse(Filter(status="ready")),
    lambda app, job, machine, flow: app.jobs.browse(Filter(limit=-1)),
    lambda app, job, machine, flow: app.jobs.browse(Filter(before="x")),
    lambda app, job, machine, flow: app.jobs.browse(Filter(kind="a\0b")),
    lambda app, job, machine, flow: app.jobs.browse(Filter(queue=HALF)),
    lambda app, job, machine, flow: app.jobs.find(2**70),
    lambda app, job, machine, flow: app.jobs.find(-1),
    lambda app, job, machine, flow: app.jobs.find_by_key(HALF),
    lambda app, job, machine, flow: app.jobs.find_by_key("a\0b"),
    lambda app, job, machine, flow: app.jobs.result(2**70),
    lambda app, job, machine, flow: app.jobs.signal(2**70, "x"),
    lambda app, job, machine, flow: app.jobs.signal(1, HALF),
    lambda app, job, machine, flow: app.jobs.signal(1, "x", object()),
    lambda app, job, machine, flow: app.jobs.signal(1, "x", HALF),
    lambda app, job, machine, flow: app.jobs.signal(1, "x", dedup=HALF),
    lambda app, job, machine, flow: app.jobs.signal(HALF, "x"),
    lambda app, job, machine, flow: app.jobs.retry_one(2**70),
    lambda app, job, machine, flow: app.jobs.pause(HALF),
    lambda app, job, machine, flow: app.topic("t").append(HALF),
    lambda app, job, machine, flow: app.topic("t").append(object()),
    lambda app, job, machine, flow: app.topic("t").append(DEEP),
    lambda app, job, machine, flow: app.topic("t").append(1, meta={"a": object()}),
    lambda app, job, machine, flow: app.topic("t").append(1, meta={"a": math.nan}),
    lambda app, job, machine, flow: app.topic("t").append(1, [math.inf]),
    lambda app, job, machine, flow: app.topic("t").append(1, tag=HALF),
    lambda app, job, machine, flow: app.topic("t").append(1, node=HALF),
    lambda app, job, machine, flow: app.topic("t").append(1, key=HALF),
    lambda app, job, machine, flow: app.topic("t").read(2**70),
    lambda app, job, machine, flow: app.topic("t").read(-1),
    lambda app, job, machine, flow: app.topic("t").read(wait_s=math.nan),
    lambda app, job, machine, flow: app.topic("t").read(wait_s=math.inf),
    lambda app, job, machine, flow: app.topic("t").delete(before_seq=2**70),
]


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_wrong_calls_are_refused_with_an_error_of_our_own(store: str, tmp_path: Path) -> None:
    place = {"memory": "memory:", "sqlite": str(tmp_path)}.get(store) or postgres_url()

    async def play() -> None:
        app, job, machine, flow = made(place)
        async with app:
            before = len(await app.jobs.browse())
            for options in USING:
                with pytest.raises(Invalid):
                    await job.using(**options).enqueue(n=1)
            wrong = []
            for call in CALLS:
                try:
                    await call(app, job, machine, flow)
                except FairwayError:
                    continue
                except Exception as error:
                    wrong.append(f"line {call.__code__.co_firstlineno}: {error!r:.200}")
                else:
                    wrong.append(f"line {call.__code__.co_firstlineno}: accepted")
            assert not wrong, "\n".join(wrong)
            assert len(await app.jobs.browse(Filter(before=2**70))) == before
            assert await app.jobs.cancel(2**70)
            assert await app.jobs.retry(2**70) == []
            assert await app.jobs.discard(2**70) == []
            assert len(await app.jobs.browse()) == before
            assert (await app.topic("t").read()).records == []
            assert (await job.using(priority=1000, delay_s=-1).enqueue(n=1)).fresh

    run(play())


@pytest.mark.parametrize(
    "options",
    [
        {"isolation": "thread"},
        {"queue": "*"},
        {"queue": ""},
        {"queue": HALF},
        {"priority": 5000},
        {"priority": "high"},
        {"timeout": math.nan},
        {"timeout": math.inf},
        {"timeout": "5s"},
        {"timeout": 0},
        {"max_attempts": 0},
        {"max_attempts": 2**70},
        {"max_attempts": 1.5},
        {"max_crashes": 0},
        {"partition_key": "order-{id"},
        {"partition_key": 7},
        {"tenant": "{"},
        {"unique": "order-}"},
        {"unique": "order-{nope}"},
        {"unique": 5},
        {"partition_key": "order-{nope}"},
        {"partition_key": "order-{id:{nope}}"},
        {"tenant": "{nope.name}"},
        {"backoff": 5},
        {"version": -1},
        {"version": "x"},
        {"name": "\0"},
    ],
)
def test_options_that_cannot_be_kept_are_refused_when_they_are_declared(
    options: dict[str, Any],
) -> None:
    app = Fairway("memory:")
    with pytest.raises(InvalidConfig):

        @app.job(**options)
        def work(id: int) -> None: ...


@pytest.mark.parametrize("every_s", [math.nan, math.inf, 0, -1, 1e300, "5"])
def test_an_interval_that_cannot_be_kept_is_refused(every_s: Any) -> None:
    app = Fairway("memory:")
    with pytest.raises(InvalidConfig):
        app.workflow("w", every_s=every_s)


def test_a_router_and_a_topic_that_are_misconfigured_are_refused() -> None:
    app = Fairway("memory:")
    with pytest.raises(InvalidConfig):
        app.route("a", "b", filtre="x")
    with pytest.raises(InvalidConfig):
        app.topic("a", cap_record=1)

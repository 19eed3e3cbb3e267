"""Calls that cannot be meant: each is refused with an error of our own, and changes nothing."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from fairway import (
    Batch,
    Context,
    Fairway,
    Graph,
    Outcome,
    Source,
    Window,
    any_,
    debounce,
    every,
    quorum,
    retry,
)
from fairway.errors import FairwayError, Invalid, InvalidConfig, InvalidRequest
from fairway.graphs.feeds.poll import poll
from fairway.jobs import rules
from fairway.jobs.clockwork import FiringRecovery
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Filter, Limits
from fairway.jobs.schedule import Catchup, CatchupConfig
from fairway.jobs.upkeep import SECOND_NS, Upkeep
from fairway.jobs.worker import WorkerConfig
from fairway.runtime.amounts import COUNT_MAX, LENGTH_MAX_NS
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.wire.jobs import PROGRESS_BYTES_MAX
from tests.support.postgres import postgres_url
from tests.support.server import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HALF = "\ud800"
HUGE = 10**5_000  # more digits than Python shows of a number


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("it cannot be shown")


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
    {"window_s": HUGE, "key": "k"},
    {"delay_s": HUGE},
    {"delay_s": -HUGE},
    {"priority": HUGE},
    {"priority": Unshowable()},
    {"queue": Unshowable()},
    {"tenant": Unshowable()},
    {"delay_s": Unshowable()},
    {"window_s": -1, "key": "k"},
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
    lambda app, job, machine, flow: job.enqueue_many([{"n": 1}, {HALF: 2}]),
    lambda app, job, machine, flow: job.enqueue_many(Unshowable()),
    lambda app, job, machine, flow: job.enqueue_many([Unshowable()]),
    lambda app, job, machine, flow: job.enqueue(**{"n": 1, HALF: 2}),
    lambda app, job, machine, flow: flow.start({}, delay_s=HUGE),
    lambda app, job, machine, flow: flow.start({}, key="k", window_s=HUGE),
    lambda app, job, machine, flow: flow.start(Unshowable()),
    lambda app, job, machine, flow: app.jobs.prune(None),
    lambda app, job, machine, flow: app.jobs.prune(HUGE),
    lambda app, job, machine, flow: app.jobs.result([]),
    lambda app, job, machine, flow: app.jobs.result(1, HUGE),
    lambda app, job, machine, flow: app.jobs.find(HUGE),
    lambda app, job, machine, flow: app.jobs.find(Unshowable()),
    lambda app, job, machine, flow: app.jobs.signal(1, None),
    lambda app, job, machine, flow: app.jobs.signal(1, Unshowable()),
    lambda app, job, machine, flow: app.enqueue(Unshowable()),
    lambda app, job, machine, flow: machine.start(State(1, math.nan)),
    lambda app, job, machine, flow: flow.start({"a": HALF}),
    lambda app, job, machine, flow: flow.start({"a": object()}),
    lambda app, job, machine, flow: flow.start({}, delay_s=math.nan),
    lambda app, job, machine, flow: flow.start({}, window_s=math.inf, key="k"),
    lambda app, job, machine, flow: flow.start({}, key=HALF),
    lambda app, job, machine, flow: flow.start({}, key="k", window_s=-1),
    lambda app, job, machine, flow: flow.start({}, key="k" * 490),  # `workflow:flow:` is before it
    lambda app, job, machine, flow: flow.start({}, key=5),
    lambda app, job, machine, flow: flow.start(5),
    lambda app, job, machine, flow: flow.start("ab"),
    lambda app, job, machine, flow: flow.start([("a", 1)]),
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
    lambda app, job, machine, flow: app.jobs.pause("*"),
    lambda app, job, machine, flow: app.jobs.pause(""),
    lambda app, job, machine, flow: app.jobs.resume("*"),
    lambda app, job, machine, flow: app.jobs.limit("q", 5),
    lambda app, job, machine, flow: app.jobs.browse(5),
    lambda app, job, machine, flow: app.jobs.limit("default", Limits(concurrency=0)),
    lambda app, job, machine, flow: app.jobs.browse(Filter(parent="x")),
    lambda app, job, machine, flow: app.jobs.result(1, math.nan),
    lambda app, job, machine, flow: app.jobs.result(1, math.inf),
    lambda app, job, machine, flow: app.jobs.result(1, -1),
    lambda app, job, machine, flow: app.jobs.result(1, "5"),
    lambda app, job, machine, flow: job.enqueue_many(5),
    lambda app, job, machine, flow: app.topic("t").append(HALF),
    lambda app, job, machine, flow: app.topic("t").append(object()),
    lambda app, job, machine, flow: app.topic("t").append(DEEP),
    lambda app, job, machine, flow: app.topic("t").append(1, meta={"a": object()}),
    lambda app, job, machine, flow: app.topic("t").append(1, meta={"a": math.nan}),
    lambda app, job, machine, flow: app.topic("t").append(1, [math.inf]),
    lambda app, job, machine, flow: app.topic("t").append(1, tag=HALF),
    lambda app, job, machine, flow: app.topic("t").append(1, node=HALF),
    lambda app, job, machine, flow: app.topic("t").append(1, key=HALF),
    lambda app, job, machine, flow: app.topic("t").append(1, tag=b"a"),
    lambda app, job, machine, flow: app.topic("t").append(1, tag="t" * 257),
    lambda app, job, machine, flow: app.topic("t").append(1, node=5),
    lambda app, job, machine, flow: app.topic("t").append(1, key=5),
    lambda app, job, machine, flow: app.topic("t").read(wait_s="1"),
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
            assert await app.jobs.browse(Filter(before=-(2**70))) == []
            assert await app.jobs.browse(Filter(parent=2**70)) == []
            assert await app.jobs.browse(Filter(parent=-(2**70))) == []
            assert not any(queue.paused for queue in await app.jobs.queues())
            assert await app.jobs.cancel(2**70)
            assert await app.jobs.retry(2**70) == []
            assert await app.jobs.discard(2**70) == []
            assert len(await app.jobs.browse()) == before
            assert (await app.topic("t").read()).records == []
            handle = await job.using(priority=1000, delay_s=-1).enqueue(n=1)
            assert handle.fresh
            for never in (math.nan, math.inf, -1, "5"):
                with pytest.raises(InvalidRequest, match="timeout_s"):
                    await asyncio.wait_for(handle.result(timeout_s=never), 5)
            with pytest.raises(TimeoutError):
                await handle.result(timeout_s=0)

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
        {"nonsense": 1},
        {"timeout_ns": 5},
        {"version": -1},
        {"version": "x"},
        {"name": "\0"},
        {"name": 5},
        {"name": 0},
        {"name": []},
        {"strict": "yes"},
        {"strict": None},
        {"timeout": HUGE},
        {"isolation": Unshowable()},
        {"priority": HUGE},
    ],
)
def test_options_that_cannot_be_kept_are_refused_when_they_are_declared(
    options: dict[str, Any],
) -> None:
    app = Fairway("memory:")
    with pytest.raises(InvalidConfig):

        @app.job(**options)
        def work(id: int) -> None: ...


CONFIGS: dict[Any, dict[str, list[Any]]] = {
    WorkerConfig: {
        "lease_ttl_ns": [0, -1],
        "heartbeat_interval_ns": [0, -1],
        "reap_interval_ns": [0, -1],
        "drain_timeout_ns": [-1],
        "threads": [0, 2**31],
        "processes": [0, 2**31],
        "log_bytes": [-1, 64 * 1024 + 1],
        "queues": [
            [],
            {},
            {"": FeederConfig()},
            {"*": FeederConfig()},
            {5: FeederConfig()},
            {"a": 5},
        ],
        "upkeep": [],
        "name": ["a\0b", HALF],
    },
    FeederConfig: {
        "concurrency": [0, 2**31],
        "prefetch": [-1, 2**31],
        "min_demand": [0, 2**31],
        "poll_interval_ns": [0, 6 * SECOND_NS],
        "max_poll_interval_ns": [0, 1],
    },
    Upkeep: {
        "timer_interval_ns": [0],
        "age_interval_ns": [0],
        "age_batch": [0, 2**31],
        "prune_interval_ns": [0],
        "retention_ns": [-1],
        "failed_retention_ns": [-1],
        "dedup_window_ns": [-1],
    },
    FiringRecovery: {
        "interval_ns": [0],
        "lost_after_ns": [-1],
        "age_max_ns": [-1],
        "tries_max": [0],
    },
    CatchupConfig: {"runs_max": [0, 2**31], "grace_ns": [-1]},
}
NEVER: Final = (2**63 - 1, 2**70, 1.5, math.nan, math.inf, None, True, b"5", HUGE, Unshowable())
"""What no field of a configuration is."""


@pytest.mark.parametrize("config", CONFIGS)
def test_configurations_that_cannot_be_kept_are_refused_when_they_are_made(config: Any) -> None:
    wrong = []
    for name, more in CONFIGS[config].items():
        for value in (*NEVER, *(["5"] if name != "name" else []), *more):
            try:
                config(**{name: value})
            except InvalidConfig:
                continue
            except Exception as error:
                wrong.append(f"{name}={value!r:.60}: {error!r:.200}")
            else:
                wrong.append(f"{name}={value!r:.60}: accepted")
    assert not wrong, "\n".join(wrong)


def test_every_amount_of_a_configuration_is_checked() -> None:
    for config, checked in CONFIGS.items():
        assert set(config.__dataclass_fields__) - set(checked) <= {"policy"}


@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
def test_a_worker_works_with_the_largest_amounts(store: str, tmp_path: Path) -> None:
    place = {"memory": "memory:", "sqlite": str(tmp_path)}.get(store) or postgres_url()
    most = {name: LENGTH_MAX_NS for name in Upkeep.__dataclass_fields__ if name.endswith("_ns")}
    config = WorkerConfig(
        queues={
            "default": FeederConfig(
                concurrency=COUNT_MAX,
                prefetch=COUNT_MAX,
                min_demand=COUNT_MAX,
                poll_interval_ns=LENGTH_MAX_NS,
                max_poll_interval_ns=LENGTH_MAX_NS,
            )
        },
        lease_ttl_ns=LENGTH_MAX_NS,
        heartbeat_interval_ns=LENGTH_MAX_NS // 2 - 1,
        reap_interval_ns=LENGTH_MAX_NS,
        drain_timeout_ns=LENGTH_MAX_NS,
        threads=COUNT_MAX,
        processes=COUNT_MAX,
        upkeep=Upkeep(**{**most, "age_batch": COUNT_MAX}),
    )

    async def play() -> None:
        app, job, _, _ = made(place)
        async with app.working(config):
            assert await (await job.enqueue(n=1)).result(timeout_s=30) is None

    run(play())


@pytest.mark.parametrize("every_s", [math.nan, math.inf, 0, -1, 1e300, "5"])
def test_an_interval_that_cannot_be_kept_is_refused(every_s: Any) -> None:
    app = Fairway("memory:")
    with pytest.raises(InvalidConfig):
        app.workflow("w", every_s=every_s)


def _work(id: int) -> None: ...


WRONG_DECLARATIONS: list[Callable[[Fairway, Any, Any], Any]] = [
    lambda app, job, flow: CatchupConfig(policy="never"),  # type: ignore[arg-type]
    lambda app, job, flow: CatchupConfig(policy=None),  # type: ignore[arg-type]
    lambda app, job, flow: CatchupConfig(runs_max=0),
    lambda app, job, flow: CatchupConfig(runs_max=1.5),  # type: ignore[arg-type]
    lambda app, job, flow: CatchupConfig(grace_ns=-1),
    lambda app, job, flow: CatchupConfig(grace_ns="5"),  # type: ignore[arg-type]
    lambda app, job, flow: app.job(5),
    lambda app, job, flow: app.job(int),
    lambda app, job, flow: app.job(_work, _work),
    lambda app, job, flow: app.job(partial(_work, 1)),
    lambda app, job, flow: app.job()(5),
    lambda app, job, flow: app.machine(5),
    lambda app, job, flow: app.machine(State, State),
    lambda app, job, flow: app.schedule("s", 5, every_s=1),
    lambda app, job, flow: app.schedule("s", _work, every_s=1),
    lambda app, job, flow: app.schedule(5, job, every_s=1),
    lambda app, job, flow: app.schedule("", job, every_s=1),
    lambda app, job, flow: app.schedule("a\0b", job, every_s=1),
    lambda app, job, flow: app.schedule("s", job, cron=5),
    lambda app, job, flow: app.schedule("s", job, cron="@daily", zone=None),
    lambda app, job, flow: app.schedule("s", job, cron="@daily", zone=5),
    lambda app, job, flow: app.schedule("s", job, every_s=1, zone=5),
    lambda app, job, flow: app.schedule("s", job, every_s=1, zone="Mars/X"),
    lambda app, job, flow: app.schedule("s", job, every_s=1, zone=""),
    lambda app, job, flow: app.schedule("s", job, every_s=1, values={HALF: 5}),
    lambda app, job, flow: app.schedule("s", job, every_s=1, values=5),
    lambda app, job, flow: app.schedule("s", job, every_s=1, catchup="never"),
    lambda app, job, flow: app.schedule("s", flow, every_s=1, catchup=[]),
    lambda app, job, flow: app.schedule("s", flow, every_s=1, values=5),
    lambda app, job, flow: app.workflow(5),
    lambda app, job, flow: app.workflow("x" * 600),
    lambda app, job, flow: app.workflow("w", timeout=math.nan),
    lambda app, job, flow: app.workflow("w", timeout=math.inf),
    lambda app, job, flow: app.workflow("w", timeout=-1),
    lambda app, job, flow: app.workflow("w", timeout=0),
    lambda app, job, flow: app.workflow("w", timeout=1e300),
    lambda app, job, flow: app.workflow("w", timeout="5"),
    lambda app, job, flow: app.workflow("w", queue=""),
    lambda app, job, flow: app.workflow("w", context=5),
    lambda app, job, flow: app.workflow("w", context={"a": math.nan}),
    lambda app, job, flow: app.workflow("w", cron="@daily", zone=None),
    lambda app, job, flow: flow.task(5),
    lambda app, job, flow: flow.task(_work, after=5),
    lambda app, job, flow: flow.task(_work, after=[5]),
    lambda app, job, flow: flow.task(_work, rule=5),
    lambda app, job, flow: flow.task(_work, rule=lambda context: True),
    lambda app, job, flow: flow.task(_work, foo=1),
    lambda app, job, flow: flow.on_success(5),
    lambda app, job, flow: app.trigger(5, every_s=1)(_work),
    lambda app, job, flow: app.trigger(flow, every_s=1)(5),
    lambda app, job, flow: app.trigger(flow, every_s=math.nan)(_work),
    lambda app, job, flow: rules.any_of(5),  # type: ignore[arg-type]
    lambda app, job, flow: rules.context(5, "exists"),  # type: ignore[arg-type]
    lambda app, job, flow: rules.context("a", "equals", math.nan),
    lambda app, job, flow: rules.context("a", "contains", [{"b": math.inf}]),
    lambda app, job, flow: rules.context("a", "equals", DEEP),
]


def test_declarations_that_cannot_be_kept_are_refused_and_declare_nothing() -> None:
    wrong = []
    for declare in WRONG_DECLARATIONS:
        app = Fairway("memory:")
        flow = app.workflow("flow")

        @app.job
        def plain() -> None: ...

        before = declared(app, flow)
        where = f"line {declare.__code__.co_firstlineno}"
        try:
            declare(app, plain, flow)
        except InvalidConfig:
            if declared(app, flow) != before:
                wrong.append(f"{where}: something stayed")
        except Exception as error:
            wrong.append(f"{where}: {error!r:.200}")
        else:
            wrong.append(f"{where}: accepted")
    assert not wrong, "\n".join(wrong)


def declared(app: Fairway, flow: Any) -> list[list[Any]]:
    kinds: Any = app._kinds.by_version
    things: list[Any] = [kinds, app._schedules, app.flows, flow._kinds, flow._callbacks]
    return [*map(list, things), list(flow._tasks), list(flow._scheduled)]


@pytest.mark.parametrize("policy", ["skip", "latest_only", "run_all"])
def test_a_policy_for_missed_times_may_be_written_as_text(policy: Any) -> None:
    assert CatchupConfig(policy=policy) == CatchupConfig(policy=Catchup(policy))
    app = Fairway("memory:")

    @app.job
    def plain() -> None: ...

    app.schedule("s", plain, cron="@monthly", catchup=CatchupConfig(policy=policy, runs_max=3))

    async def play() -> None:
        async with app:
            pass

    run(play())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "5", 1e300])
def test_a_step_that_waits_for_no_time_there_is_fails_with_an_error_of_our_own(wrong: Any) -> None:
    claim: Any = None
    context: Any = Context(claim, None, lambda id, value: None, SYSTEM_CLOCK)
    for call in (
        lambda: context.wait("go", then="on", timeout_s=wrong),
        lambda: context.spawn([], then="on", timeout_s=wrong),
        lambda: context.retry(after_s=wrong),
        lambda: context.defer(after_s=wrong),
    ):
        with pytest.raises(InvalidRequest, match=r"timeout_s|after_s"):
            call()


@pytest.mark.parametrize("wrong", [object(), math.nan, HALF, DEEP])
def test_progress_that_is_not_json_is_refused(wrong: Any) -> None:
    told: list[bytes] = []
    claim: Any = None
    context: Any = Context(claim, None, lambda id, value: told.append(value), SYSTEM_CLOCK)
    with pytest.raises(InvalidRequest, match="the progress of a job is not JSON"):
        context.progress(wrong)
    assert told == []


def test_progress_that_is_too_long_is_refused() -> None:
    told: list[bytes] = []
    claim: Any = SimpleNamespace(id=1)
    context: Any = Context(claim, None, lambda id, value: told.append(value), SYSTEM_CLOCK)
    longest = "x" * (PROGRESS_BYTES_MAX - 2)
    context.progress(longest)
    with pytest.raises(InvalidRequest, match="65,537 bytes of JSON: at most 65,536"):
        context.progress(longest + "x")
    assert told == [f'"{longest}"'.encode()]


def test_a_router_and_a_topic_that_are_misconfigured_are_refused() -> None:
    app = Fairway("memory:")
    with pytest.raises(InvalidConfig):
        app.route("a", "b", filtre="x")
    with pytest.raises(InvalidConfig):
        app.topic("a", cap_record=1)


N = Source("n", int)
WRONG_GRAPHS: list[Callable[[], Any]] = [
    lambda: Source(5, int),  # type: ignore[arg-type]
    lambda: Source("n", int, capacity=math.nan),  # type: ignore[arg-type]
    lambda: Source("n", int, capacity=0),
    lambda: Source("n", int, stale_after_s=math.nan),
    lambda: Source("n", int, stale_after_s=HUGE),
    lambda: Source("n", int, keep=1.5),  # type: ignore[arg-type]
    lambda: Source("n", int, keep=-2),
    lambda: Source("n", int, version="x"),  # type: ignore[arg-type]
    lambda: Batch(every_s=math.nan),
    lambda: Batch(size=1.5),  # type: ignore[arg-type]
    lambda: Batch(size=2, most=1),
    lambda: Window(seconds=math.inf),
    lambda: Window(seconds=1e-12),
    lambda: Window(count=1.5),  # type: ignore[arg-type]
    lambda: Window(seconds=1, step_s=math.nan),
    lambda: Window(seconds=1, at=lambda n: 1.0, lateness_s=-1),
    lambda: retry(1, base_s=math.nan),
    lambda: retry(1.5),  # type: ignore[arg-type]
    lambda: every(math.nan, any_(N)),
    lambda: every(0, any_(N)),
    lambda: debounce(any_(N), quiet_s=math.nan),
    lambda: debounce(any_(N), quiet_s=2, most_s=1),
    lambda: quorum(1.5, N),  # type: ignore[arg-type]
    lambda: quorum(2, N),
    lambda: poll(lambda: 1, every_s=math.inf),
    lambda: Graph("g", when=N, warm_timeout_s=math.nan),
    lambda: Graph("g", when=N, record=1.5, checkpoint=True),  # type: ignore[arg-type]
    lambda: Graph("g", when=N, tenant=5),  # type: ignore[arg-type]
    lambda: Graph("g", when=N, tenant=0),  # type: ignore[arg-type]
    lambda: Graph(5, when=N),  # type: ignore[call-overload]
    lambda: Graph("g", when=N).listen(None),  # type: ignore[arg-type]
    lambda: Fairway("memory:").topic(5),  # type: ignore[call-overload]
]


def test_graphs_that_cannot_be_kept_are_refused_when_they_are_declared() -> None:
    wrong = []
    for declare in WRONG_GRAPHS:
        line = declare.__code__.co_firstlineno
        try:
            declare()
        except Invalid:
            continue
        except Exception as error:
            wrong.append(f"line {line}: {error!r:.200}")
        else:
            wrong.append(f"line {line}: accepted")
    assert not wrong, "\n".join(wrong)


def test_pushes_and_graphs_of_no_such_type_are_refused() -> None:
    async def play() -> None:
        app = Fairway("memory:", worker=None)
        graph = app.graph("g", when=N)

        @graph.node
        def see(n: int) -> None: ...

        async with app:
            for wrong in (None, 5, Unshowable()):
                for call in (graph.push, graph.ask):
                    with pytest.raises(InvalidRequest, match="a source is given"):
                        await call(wrong, 1)  # type: ignore[arg-type]
                with pytest.raises(InvalidRequest, match="a Graph is loaded"):
                    await app.graphs.load(wrong)  # type: ignore[arg-type]

    run(play())

"""What user code may raise, in every place where it runs: it fails, and nothing else does.

Rows are the culprits of `tests.support.culprits`, columns are the tests here.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fairway.app import Fairway
from fairway.errors import InvalidRequest
from fairway.graphs.criteria import any_, where
from fairway.graphs.feed import Event
from fairway.graphs.feeds.poll import poll
from fairway.graphs.graph import Graph
from fairway.graphs.source import Source
from fairway.graphs.windows import Window
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Filter, Status
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import WorkerConfig
from fairway.runtime.clock import clock_of
from fairway.runtime.words import TRACED_MAX
from fairway.testing import run_graph, run_jobs
from tests.support import culprits_app as jobs
from tests.support.culprits import CULPRITS, ends_or_not

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import FeedContext
    from fairway.graphs.firing import DeadLetter
    from fairway.jobs.handles import JobHandle
    from fairway.testing import GraphsUnderTest, JobsUnderTest
    from tests.conftest import Campaign

NAMES = list(CULPRITS)
SLOTS = 3
EVERY = Filter(limit=1_000)


# Jobs


@asynccontextmanager
async def working() -> AsyncIterator[None]:
    """The app, with fewer slots than there are culprits: a slot that is lost is noticed."""
    feeder = FeederConfig(
        concurrency=SLOTS, poll_interval_ns=20_000_000, max_poll_interval_ns=20_000_000
    )
    config = WorkerConfig(queues=dict.fromkeys(jobs.app.queues, feeder), threads=2, processes=1)
    async with asyncio.timeout(120), jobs.app.working(config, store=MemoryStore()):
        yield


Starts = dict[str, "Callable[[str], Awaitable[JobHandle[Any]]]"]
STARTS: Starts = {
    "coroutine": lambda name: jobs.coroutine.enqueue(name=name),
    "coroutine with a timeout": lambda name: jobs.with_timeout.enqueue(name=name),
    "thread": lambda name: jobs.thread.enqueue(name=name),
    "process": lambda name: jobs.process.enqueue(name=name),
    "coroutine in a process": lambda name: jobs.coroutine_in_a_process.enqueue(name=name),
    "step": lambda name: jobs.Steps.start(jobs.Steps(name=name)),
    "step in a thread": lambda name: jobs.Steps.start(jobs.Steps(name=name, threaded=True)),
    "step in a process": lambda name: jobs.steps_in_a_process.start(
        jobs.StepsInAProcess(name=name)
    ),
    "task": lambda name: jobs.flow.start({"name": name}),
    "task in a thread": lambda name: jobs.threaded_flow.start({"name": name}),
    "task in a process": lambda name: jobs.process_flow.start({"name": name}),
}


async def ended(handles: Sequence[JobHandle[Any]]) -> None:
    for handle in handles:
        while not (await handle.look()).status.ended:
            await asyncio.to_thread(os.stat, "/")


@pytest.mark.parametrize("place", STARTS)
def test_whatever_a_job_raises_it_fails_is_tried_again_and_frees_its_slot(
    place: str, campaign: Campaign
) -> None:
    names = NAMES
    if place.endswith("process"):  # each run has one of its own, which takes its time
        most = campaign.rounds(share=8, full=len(NAMES))
        names = campaign.random().sample(NAMES, most)

    async def scene() -> None:
        async with working():
            always = [await STARTS[place](name) for name in names]
            once = [await STARTS[place](f"{name}?") for name in names]
            await ended([*always, *once])
            for name, handle in zip(names, always, strict=True):
                job = await handle.look()
                assert job.status is Status.FAILED, f"{name}: {job.status.word}"
                assert job.error
                assert len(job.error) <= TRACED_MAX
                job.error.encode()
            for name, handle in zip(names, once, strict=True):
                job = await handle.look()
                assert job.status is Status.DONE, f"{name}: {job.status.word}: {job.error}"
                assert b"attempt 2" in (job.result or b""), name

    asyncio.run(scene())


def test_a_job_that_asks_its_task_to_be_cancelled_and_returns_is_done() -> None:
    app = Fairway("memory:", jobs="memory:")

    @app.job
    async def hasty() -> int:
        CULPRITS["cancels_its_task"]()
        return 7

    async def scene() -> None:
        async with app.working(store=MemoryStore()):
            for _ in range(20):
                assert await (await hasty.enqueue()).result() == 7

    asyncio.run(scene())


async def waits_for_its_end() -> None:
    """Wait for a future that holds a `GeneratorExit`: it is thrown in, as by a `close`."""
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, GeneratorExit("from afar"))
    await future


def test_a_job_that_meets_a_future_with_its_end_fails_and_frees_its_slot() -> None:
    app = Fairway("memory:", jobs="memory:")

    @app.job(max_attempts=2, backoff=jobs.SOON)
    async def meets() -> None:
        await waits_for_its_end()

    async def scene() -> None:
        async with app.working(store=MemoryStore()):
            handles = await meets.enqueue_many([{}] * 20)
            await ended(handles)
            for handle in handles:
                job = await handle.look()
                assert job.status is Status.FAILED
                assert "GeneratorExit" in (job.error or "")

    asyncio.run(scene())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_a_trigger_raises_its_asking_fails_and_is_tried_again(asynchronous: bool) -> None:
    app = Fairway("memory:", jobs="memory:")
    flow = app.workflow("flow")
    asked: list[str] = []
    # One that cancels its task and returns has answered; where it waits for something, it has not.
    names = [name for name in NAMES if asynchronous or name != "cancels_its_task"]

    @flow.task
    def task() -> None: ...

    def plain() -> dict[str, Any]:
        name = next_name()
        CULPRITS[name]()
        return {}

    async def waits() -> dict[str, Any]:
        name = next_name()
        CULPRITS[name]()
        await asyncio.sleep(0)
        return {}

    def next_name() -> str:
        asked.append(names[len(asked) % len(names)])
        return asked[-1]

    trigger = app.trigger(flow, every_s=3600, name="ask")(waits if asynchronous else plain)

    async def play(kit: JobsUnderTest) -> None:
        while len(asked) < len(names):
            handle = await trigger.enqueue()
            await kit.drain()
            await kit.assert_failed(handle)
        assert len(asked) % 3 == 0, "each was asked three times"

    run_jobs(app, play)


ENDS = {
    "os._exit": "exit status 13",
    "SIGSEGV": "signal 11 (SIGSEGV)",
    "stack overflow": "signal 11 (SIGSEGV)",
}


ENDING: Starts = {
    "job": lambda way: jobs.ends_its_process.enqueue(way=way),
    "step": lambda way: jobs.ending_machine.start(jobs.Ending(way=way)),
    "task": lambda way: jobs.ending_flow.start({"way": way}),
}


def test_what_ends_a_process_of_its_own_is_that_job_s_failure() -> None:
    async def scene() -> None:
        async with working():
            bad = [await start(way) for start in ENDING.values() for way in ENDS]
            good = await jobs.process.enqueue(name="ValueError?")
            await ended([*bad, good])
            for handle, reason in zip(bad, [*ENDS.values()] * len(ENDING), strict=True):
                job = await handle.look()
                assert job.status is Status.FAILED, job.kind
                assert reason in (job.error or ""), job.kind
            assert (await good.look()).status is Status.DONE

    asyncio.run(scene())


# Graphs


def raises(name: str) -> int:
    if name != "fine":
        CULPRITS[name]()
    return 7


async def raises_async(name: str) -> int:
    value = raises(name)
    await asyncio.sleep(0)
    return value


def declared(node: str) -> Graph:
    """A graph of one node that runs as `node` says and does what it is told."""
    graph = Graph("g", when=Source("name", str), inputs="sequential", checkpoint=True,
                  on_error="dead_letter")  # fmt: skip
    options: dict[str, Any] = {
        "plain": {},
        "async": {},
        "async with a timeout": {"timeout_s": 60.0},
        "blocking": {"blocking": True},
        "process": {"isolation": "process"},
    }[node]
    graph.add(raises_async if "async" in node else raises, name="node", **options)
    return graph


def test_what_ends_the_process_of_a_node_is_a_dead_letter_with_its_reason() -> None:
    graph = Graph("g", when=Source("way", str), inputs="sequential", on_error="dead_letter")
    graph.add(ends_or_not, name="node", isolation="process")
    app = Fairway("memory:", jobs="memory:")
    app.add_graph(graph)

    async def scene() -> None:
        async with asyncio.timeout(120), app:
            for way in ENDS:
                await graph.push("way", way)
                await graph.push("way", "fine")
            await graph.settled()
            assert graph.fired == len(ENDS), "the fine ones between them"
            for letter, reason in zip(graph.dead_letters, ENDS.values(), strict=True):
                assert reason in letter.reason

    asyncio.run(scene())


def check_letters(letters: Sequence[DeadLetter], names: Sequence[str]) -> None:
    assert len(letters) == len(names)
    for name, letter in zip(names, letters, strict=True):
        assert letter.reason, name
        assert len(letter.reason) < 20_000
        assert name.encode() in letter.data["name"]


@pytest.mark.parametrize("node", ["plain", "async", "async with a timeout", "blocking", "process"])
def test_whatever_a_node_raises_is_a_dead_letter_also_after_a_restart(
    node: str, tmp_path: Path, campaign: Campaign
) -> None:
    names = NAMES
    if node == "process":  # each failure costs a process, which takes its time
        most = campaign.rounds(share=10, full=len(NAMES))
        names = campaign.random().sample(NAMES, most)

    async def scene() -> None:
        for life in range(2):
            graph = declared(node)
            app = Fairway(f"sqlite:{tmp_path}", jobs="memory:")
            app.add_graph(graph)
            async with asyncio.timeout(120), app:
                if life == 0:
                    for name in names:
                        await graph.push("name", name)
                        await graph.push("name", "fine")
                    await graph.settled()
                    assert graph.fired == len(names)
                check_letters(graph.dead_letters, names)
                firing = await graph.ask("name", "fine")
                assert firing is not None
                assert firing.output == 7

    asyncio.run(scene())


def test_what_a_node_raised_is_not_raised_again_at_the_next_start(tmp_path: Path) -> None:
    """A push was accepted and its node never came back: it is fired at the start, and fails."""

    async def scene(name: str) -> None:
        graph = declared("plain")
        app = Fairway(f"sqlite:{tmp_path}", jobs="memory:")
        app.add_graph(graph)
        async with app:
            if name == "pause":
                await graph.pause()
                await graph.push("name", "Panic")
                await graph.push("name", "fine")
            else:
                await graph.resume()
                await graph.settled()
                check_letters(graph.dead_letters, ["Panic"])
                assert graph.fired == 1

    asyncio.run(scene("pause"))
    asyncio.run(scene("resume"))


def test_a_graph_whose_nodes_cancel_or_close_themselves_fires_on() -> None:
    graph = Graph("g", when=Source("number", int), on_error="dead_letter", inputs="sequential")

    @graph.node(timeout_s=5.0)
    async def node(number: int) -> int:
        if number % 4 == 1:
            CULPRITS["cancels_its_task"]()
            await asyncio.sleep(0)
        elif number % 4 == 3:
            await waits_for_its_end()
        return number

    async def play(kit: GraphsUnderTest) -> None:
        for number in range(10):
            await kit.push(graph, "number", number)
        await kit.settled()
        assert kit.outputs(graph) == [0, 2, 4, 6, 8]
        errors = [firing.error for firing in kit.firings(graph) if firing.error is not None]
        assert len(errors) == 5
        assert all("node 'node'" in error for error in errors)

    run_graph(graph, play)


def with_function(part: str) -> Graph:
    """A graph of which one function besides the nodes does what it is told."""

    def through(name: str) -> str | None:
        raises(name)
        return name

    def at(name: str) -> float:
        raises(name)
        return 1.0

    def wanted(values: Any) -> bool:
        return raises(values["name"]) == 7

    options: dict[str, Any] = {}
    if part == "through":
        options["through"] = through
    elif part == "dedupe":
        options["dedupe"] = lambda name: raises(name) and object()
    elif part == "at":
        options["batch"] = Window(seconds=1.0, at=at)
    source = Source("name", str, **options)
    when = where(any_(source), wanted) if part == "where" else source
    graph = Graph("g", when=when, inputs="sequential", on_error="dead_letter")

    @graph.node
    def node(name: Any) -> str:
        return str(name)

    if part == "starts":
        graph.starts(lambda outputs: raises(outputs["node"]))
    elif part == "starts where":
        graph.starts(lambda outputs: None, where=lambda outputs: not raises(outputs["node"]))
    return graph


@pytest.mark.parametrize("part", ["where", "starts", "starts where"])
def test_whatever_a_function_of_a_firing_raises_is_a_dead_letter(part: str) -> None:
    graph = with_function(part)

    async def play(kit: GraphsUnderTest) -> None:
        for name in NAMES:
            await kit.push(graph, "name", name)
        await kit.settled()
        check_letters(kit.state(graph).dead, NAMES)
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


@pytest.mark.parametrize("part", ["through", "dedupe", "at"])
def test_whatever_a_function_of_a_source_raises_refuses_the_push(part: str) -> None:
    graph = with_function(part)

    async def play(kit: GraphsUnderTest) -> None:
        for name in NAMES:
            if name == "cancels_its_task":  # of the task that pushes, which is the test's own
                continue
            with pytest.raises(InvalidRequest, match=part):
                await kit.push(graph, "name", name)
        assert kit.state(graph).state == "live"

    run_graph(graph, play)


class Bringing:
    """A feed that brings names once, and then nothing."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def open(self, context: FeedContext) -> Bringing:
        return self

    async def connect(self, marks: Marks) -> None:
        self.at = marks.get("s", 0)

    async def receive(self) -> Sequence[Event]:
        if self.at >= len(self.names):
            await asyncio.get_running_loop().create_future()
        self.at += 1
        return [Event(self.names[self.at - 1], "s", self.at)]

    async def commit(self, marks: Marks) -> None: ...

    async def aclose(self) -> None: ...


@pytest.mark.parametrize("part", ["node", "through", "dedupe", "at", "where"])
def test_whatever_is_raised_by_what_a_feed_brings_the_feed_is_read_on(part: str) -> None:
    """Plain functions are called where the feed is read: they could cancel that, and do not."""
    if part == "node":
        graph = Graph("g", when=Source("name", str), inputs="sequential", on_error="dead_letter")
        graph.add(raises, name="node")
    else:
        graph = with_function(part)
    graph.sources["name"].feed = Bringing(NAMES)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.settled()
        check_letters(kit.state(graph).dead, NAMES)
        assert kit.state(graph).sources == {"name": "live"}
        assert not kit.state(graph).recoveries

    run_graph(graph, play)


class Failing(Bringing):
    """A feed that raises one culprit, once, in one of its methods, and brings a name after that."""

    def __init__(self, method: str, culprit: str) -> None:
        super().__init__(["fine"])
        self.method = method
        self.left = [culprit]

    def open(self, context: FeedContext) -> Failing:
        self._come("open")
        return self

    def _come(self, method: str) -> bool:
        if method != self.method or not self.left:
            return False
        CULPRITS[self.left.pop()]()
        return True

    async def connect(self, marks: Marks) -> None:
        if self._come("connect"):
            await asyncio.sleep(0)
        await super().connect(marks)

    async def receive(self) -> Sequence[Event]:
        if self._come("receive"):
            await asyncio.sleep(0)
        return await super().receive()

    async def commit(self, marks: Marks) -> None:
        if self._come("commit"):
            await asyncio.sleep(0)


@pytest.mark.parametrize("method", ["open", "connect", "receive", "commit"])
def test_whatever_a_feed_raises_it_alone_is_restarted(method: str) -> None:
    app = Fairway("memory:")
    graphs = []
    for number, name in enumerate(NAMES):
        graph = Graph(f"g{number}", when=Source("name", str, feed=Failing(method, name)))
        graph.add(raises, name="node")
        app.add_graph(graph)
        graphs.append(graph)

    async def play(kit: GraphsUnderTest) -> None:
        await kit.advance(10)
        for name, graph in zip(NAMES, graphs, strict=True):
            assert kit.outputs(graph) == [7], name
            feed = graph.sources["name"].feed
            assert isinstance(feed, Failing)
            assert not feed.left, name
            assert kit.state(graph).sources == {"name": "live"}, name
            assert {each.what for each in kit.state(graph).recoveries} <= {"name"}, name

    run_graph(app, play)


@pytest.mark.parametrize("kind", ["plain", "async", "blocking"])
def test_whatever_a_poll_raises_its_source_is_disconnected_until_it_answers(kind: str) -> None:
    app = Fairway("memory:")

    def asking(name: str) -> Any:
        left = [name]

        def asks() -> str:
            return str(raises(left.pop())) if left else "fine"

        async def asks_async() -> str:
            value = asks()
            await asyncio.sleep(0)
            return value

        return asks_async if kind == "async" else asks

    graphs = []
    for number, name in enumerate(NAMES):
        feed = poll(asking(name), every_s=5, blocking=kind == "blocking")
        graphs.append(Graph(f"g{number}", when=Source("name", str, feed=feed)))
        graphs[-1].add(raises, name="node")
        app.add_graph(graphs[-1])

    async def play(kit: GraphsUnderTest) -> None:
        await kit.advance(1)
        for name, graph in zip(NAMES, graphs, strict=True):
            if (name, kind) == ("cancels_its_task", "plain"):
                continue  # it returns: that is an answer
            assert kit.outputs(graph) == [7], name
            assert kit.state(graph).state == "live", name
            assert not kit.state(graph).recoveries, name  # it was asked again, and not restarted

    run_graph(app, play)


def test_whatever_a_listener_raises_firings_go_on() -> None:
    graph = Graph("g", when=Source("name", str), inputs="sequential")
    graph.add(length, name="node")
    told: list[Any] = []

    def listener(firing: Any) -> None:
        told.append(firing)
        raises(firing.inputs["name"])

    async def play(kit: GraphsUnderTest) -> None:
        graph.listen(listener)
        for name in NAMES:
            await kit.push(graph, "name", name)
        await kit.settled()
        assert len(told) == len(NAMES)
        assert kit.state(graph).fired == len(NAMES)

    run_graph(graph, play)


def length(name: str) -> int:
    return len(name)


# Routers


def test_whatever_the_arguments_of_a_router_raise_is_that_record_s_job_s_failure() -> None:
    app = Fairway("memory:", jobs="memory:")
    names = app.topic("names", str)

    @app.job(max_attempts=1)
    def takes(name: str) -> str:
        return name

    def arguments(name: str) -> dict[str, Any]:
        raises(name)
        return {"name": name}

    app.forward(names, takes, arguments=arguments)

    async def scene() -> None:
        async with asyncio.timeout(60), app:
            await names.append(*NAMES, "fine")
            while len(found := await app.jobs.browse(EVERY)) <= len(NAMES) or not all(
                job.status.ended for job in found
            ):
                await asyncio.to_thread(os.stat, "/")
            statuses = [job.status for job in sorted(found, key=lambda job: job.id)]
            assert statuses == [Status.FAILED] * len(NAMES) + [Status.DONE]

    asyncio.run(scene())


# A stop


def test_a_graph_is_left_although_a_node_does_not_want_to_end() -> None:
    graph = Graph("g", when=Source("number", int))
    stays = True

    @graph.node
    async def node(number: int) -> None:
        while stays:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    async def play(kit: GraphsUnderTest) -> None:
        nonlocal stays
        await kit.push(graph, "number", 1)
        began_ns = clock_of().now_ns()
        await kit.stop()
        assert clock_of().now_ns() - began_ns < 10e9
        stays = False  # or the loop of this test would wait for it
        await kit.start()

    run_graph(graph, play)

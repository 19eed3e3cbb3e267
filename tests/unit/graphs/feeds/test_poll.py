"""A function that is asked again and again, on virtual time."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Graph, Source
from fairway.errors import FeedLost, InvalidConfig
from fairway.graphs.feed import FeedContext
from fairway.graphs.feeds.poll import Polling, poll
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import clock_of
from fairway.testing import run, run_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.graphs.feed import Event
    from fairway.testing import GraphsUnderTest

SECOND_NS = 1_000_000_000


def context(in_thread: Callable[..., Any] | None = None) -> FeedContext:
    async def refuse(*call: Any) -> None:
        raise AssertionError("this blocks nobody")

    def report(connected: bool, why: str = "") -> None:
        raise AssertionError("a lost feed is raised")

    return FeedContext("graph", "source", "", report, in_thread or refuse)


class Reading:
    """Reads as a source does: first what `connect` brought."""

    def __init__(self, polling: Polling) -> None:
        self._polling = polling
        self.commit, self.aclose = polling.commit, polling.aclose
        self._first: Sequence[Event] = ()

    async def connect(self, marks: dict[str, int]) -> None:
        self._first = await self._polling.connect(marks)

    async def receive(self) -> Sequence[Event]:
        first, self._first = self._first, ()
        return first or await self._polling.receive()


class Asked:
    """Answers in turn, and remembers when it was asked. An exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.at_s: list[float] = []

    def __call__(self) -> Any:
        self.at_s.append(clock_of().now_ns() / SECOND_NS)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_it_asks_at_once_and_then_at_the_interval() -> None:
    async def scenario() -> None:
        asked = Asked("a", "b", "c")
        polling = Reading(poll(asked, every_s=5).open(context()))
        await polling.connect({"push": 3})
        assert asked.at_s == [0]
        received = [await polling.receive() for _ in range(3)]
        assert received == [[("a", "", 0)], [("b", "", 0)], [("c", "", 0)]]
        assert asked.at_s == [0, 5, 10]
        await polling.commit({})
        await polling.aclose()

    run(scenario)


def test_none_is_nothing_new_and_a_list_is_one_event() -> None:
    async def scenario() -> None:
        asked = Asked(None, None, [1, 2], None, 0)
        polling = Reading(poll(asked, every_s=1).open(context()))
        await polling.connect({})
        assert [event.data for event in await polling.receive()] == [[1, 2]]
        assert [event.data for event in await polling.receive()] == [0]
        assert asked.at_s == [0, 1, 2, 3, 4]

    run(scenario)


def test_a_coroutine_function_and_anything_else_that_is_awaited() -> None:
    async def scenario() -> None:
        async def fetch(number: int) -> int:
            await asyncio.sleep(2)
            return number

        for function in (partial(fetch, 7), lambda: fetch(7)):
            polling = Reading(poll(function, every_s=1).open(context()))
            await polling.connect({})
            assert [event.data for event in await polling.receive()] == [7]

    run(scenario)


def test_an_asking_that_takes_long_is_followed_by_one_and_not_by_those_missed() -> None:
    async def scenario() -> None:
        at_s = []

        async def fetch() -> int:
            at_s.append(clock_of().now_ns() / SECOND_NS)
            await asyncio.sleep(3 if len(at_s) == 1 else 0.25)
            return 1

        polling = Reading(poll(fetch, every_s=1).open(context()))
        await polling.connect({})
        for _ in range(4):
            await polling.receive()
        assert at_s == [0, 3, 4, 5]  # from one asking to the next, not from the end of one

    run(scenario)


def test_who_takes_slowly_is_asked_for_less_often() -> None:
    async def scenario() -> None:
        asked = Asked(*range(4))
        polling = Reading(poll(asked, every_s=1).open(context()))
        await polling.connect({})
        await polling.receive()
        await asyncio.sleep(10)
        await polling.receive()
        await polling.receive()
        assert asked.at_s == [0, 10, 11]

    run(scenario)


def test_what_it_raises_loses_the_feed_and_connecting_asks_again() -> None:
    async def scenario() -> None:
        asked = Asked(OSError("no route"), "a", ValueError("odd"), "b")
        polling = Reading(poll(asked, every_s=1).open(context()))
        with pytest.raises(FeedLost, match="no route") as lost:
            await polling.connect({})
        assert isinstance(lost.value.__cause__, OSError)
        await polling.connect({})
        assert [event.data for event in await polling.receive()] == ["a"]
        with pytest.raises(FeedLost, match="odd"):
            await polling.receive()
        await polling.connect({})
        assert [event.data for event in await polling.receive()] == ["b"]

    run(scenario)


def test_cancelling_is_no_loss() -> None:
    async def scenario() -> None:
        polling = Reading(poll(Asked("a", "b"), every_s=60).open(context()))
        await polling.connect({})
        await polling.receive()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await polling.receive()
        assert [event.data for event in await polling.receive()] == ["b"]
        assert clock_of().now_ns() == 60 * SECOND_NS

    run(scenario)


def test_one_that_blocks_runs_in_a_thread() -> None:
    async def scenario() -> None:
        answers = [1, None, 2]
        async with BlockingPool(1) as pool:
            polling = Reading(
                poll(lambda: answers.pop(0), every_s=1, blocking=True).open(context(pool.run))
            )
            await polling.connect({})
            received = [await polling.receive(), await polling.receive()]
            assert [[event.data for event in events] for events in received] == [[1], [2]]
            with pytest.raises(FeedLost, match="pop from empty list"):
                await polling.receive()
            assert pool.statistics().completed == 4

    run(scenario)


async def fetch_rates() -> None: ...


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: poll(print, every_s=0), "above 0"),
        (lambda: poll(print, every_s=float("nan")), "a number of seconds"),
        (lambda: poll(7, every_s=1), "7 is none"),  # type: ignore[arg-type]
        (lambda: poll(fetch_rates, every_s=1, blocking=True), "leave blocking out"),
    ],
)
def test_what_cannot_work_is_refused(declare: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        declare()


def test_it_says_what_it_is() -> None:
    assert poll(fetch_rates, every_s=2.5).kind == "polling"
    assert repr(poll(fetch_rates, every_s=2.5)) == "poll(fetch_rates, every_s=2.5)"


def test_what_waits_for_a_polled_source_fires_with_its_first_value() -> None:
    """It is live when its value is there, and not before: no event meets it absent."""

    async def slowly() -> int:
        await asyncio.sleep(2)
        return 3

    rates = Source("rates", int, feed=poll(slowly, every_s=10))
    number = Source("number", int)
    graph = Graph("priced", when=number, uses=[rates], inputs="sequential")

    def times(number: int, rates: int) -> int:
        return number * rates

    graph.add(times)

    async def play(kit: GraphsUnderTest) -> None:
        graph.push_nowait(number, 5)
        await kit.expect(graph, 15, within_s=5)

    run_graph(graph, play)

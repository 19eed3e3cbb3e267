"""The records of a topic as events, from arrivals that a test plays."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from fairway.errors import FeedLost, InvalidConfig, NotFound
from fairway.graphs.feed import FeedContext
from fairway.graphs.feeds.topic import last_read, topic
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import Arrivals

    Batch = tuple[int, Sequence[tuple[int, bytes]]]


def context(arrivals: Arrivals | None) -> FeedContext:
    def report(connected: bool, why: str = "") -> None:
        raise AssertionError("a lost feed is raised")

    return FeedContext("graph", "source", "", report, lambda: None, arrivals)


class Played:
    """Arrivals that give these batches and end, and remember how they were asked for."""

    def __init__(self, *batches: Batch, error: Exception | None = None) -> None:
        self.batches = batches
        self.error = error
        self.asked: list[tuple[str, int | None, int]] = []
        self.open = 0

    async def __call__(self, topic: str, epoch: int | None, seq: int) -> AsyncIterator[Batch]:
        self.asked.append((topic, epoch, seq))
        self.open += 1
        try:
            for batch in self.batches:
                yield batch
            if self.error is not None:
                raise self.error
        finally:
            self.open -= 1


def test_records_are_events_of_the_stream_of_their_incarnation() -> None:
    async def scenario() -> None:
        played = Played((4, [(1, b"1"), (2, b"2")]), (4, []), (5, [(1, b"{}")]))
        reading = topic("orders").open(context(played))
        await reading.connect({})
        assert await reading.receive() == [(b"1", "4", 1), (b"2", "4", 2)]
        assert await reading.receive() == [(b"{}", "5", 1)]
        assert played.asked == [("orders", None, 0)]
        await reading.commit({"5": 1})
        await reading.aclose()
        assert played.open == 0

    run(scenario)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({}, (None, 0)),
        ({"push": 9, "~window": 12}, (None, 0)),
        ({"4": 7, "push": 90}, (4, 7)),
        ({"9": 70, "10": 3, "~window": 5}, (10, 3)),  # by number and not by text
        ({"²": 1, "-3": 2, "": 3}, (None, 0)),
    ],
)
def test_it_goes_on_in_the_newest_incarnation(
    marks: Marks, expected: tuple[int | None, int]
) -> None:
    assert last_read(marks) == expected

    async def scenario() -> None:
        played = Played((10, [(4, b"0")]))
        reading = topic("orders").open(context(played))
        await reading.connect(marks)
        async with aclosing(reading):
            await reading.receive()
        assert played.asked == [("orders", *expected)]

    run(scenario)


def test_a_deleted_topic_is_lost_and_connecting_starts_over() -> None:
    async def scenario() -> None:
        played = Played((1, [(1, b"1")]))
        reading = topic("orders").open(context(played))
        for marks in ({}, {"1": 1}):
            await reading.connect(marks)
            await reading.receive()
            with pytest.raises(FeedLost, match="topic 'orders' was deleted"):
                await reading.receive()
        assert played.asked == [("orders", None, 0), ("orders", 1, 1)]
        await reading.aclose()
        await reading.aclose()
        assert played.open == 0

    run(scenario)


def test_a_topic_that_is_not_there_is_lost() -> None:
    async def scenario() -> None:
        played = Played(error=NotFound("topic", "orders"))
        reading = topic("orders").open(context(played))
        await reading.connect({})
        with pytest.raises(FeedLost, match="there is no topic 'orders'"):
            await reading.receive()

    run(scenario)


def test_any_other_failure_is_passed_on() -> None:
    async def scenario() -> None:
        reading = topic("orders").open(context(Played(error=OSError("disk"))))
        await reading.connect({})
        with pytest.raises(OSError, match="disk"):
            await reading.receive()

    run(scenario)


def test_an_iterator_that_is_no_generator_will_do() -> None:
    class Once:
        def __init__(self, *asked: Any) -> None:
            self.left = 1

        def __aiter__(self) -> Once:
            return self

        async def __anext__(self) -> Batch:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return 1, [(1, b"1")]

    async def scenario() -> None:
        reading = topic("orders").open(context(Once))
        await reading.connect({})
        assert await reading.receive() == [(b"1", "1", 1)]
        await reading.aclose()

    run(scenario)


def test_where_there_are_no_topics_it_says_so() -> None:
    with pytest.raises(InvalidConfig, match="there are no topics in this process"):
        topic("orders").open(context(None))


def test_a_topic_has_a_name() -> None:
    with pytest.raises(InvalidConfig, match="name of the topic is empty"):
        topic("")


def test_it_says_what_it_is() -> None:
    assert topic("orders").kind == "topic"
    assert repr(topic("orders")) == "topic('orders')"

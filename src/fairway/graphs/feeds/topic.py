"""A feed of the records of a Fairway topic, each once and in order.

    Source("orders", Order, feed=topic("orders"))

A topic that is deleted and created again is another incarnation and counts from 1 again. So the
streams of marks are named after incarnations, and the highest is where to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fairway.errors import FeedLost, InvalidConfig, NotFound
from fairway.graphs.feed import Event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fairway.graphs.boundary import Marks
    from fairway.graphs.feed import FeedContext


def topic(name: str) -> TopicFeed:
    """Read topic `name` from its oldest record on, and after a restart where it was left.

    The data of records are the JSON of events. An app creates a topic that does not exist. When
    the topic is deleted while the graph reads it, the source is disconnected; as soon as it
    connects again, it reads the topic that was created since, or creates it.
    """
    return TopicFeed(name)


class TopicFeed:
    """The declaration of a topic to read. See `topic`."""

    kind: Final = "topic"

    def __init__(self, name: str) -> None:
        if not name:
            raise InvalidConfig("topic: the name of the topic is empty")
        self.name = name

    def __repr__(self) -> str:
        return f"topic({self.name!r})"

    def open(self, context: FeedContext) -> TopicReading:
        if context.arrivals is None:
            raise InvalidConfig(
                f"source {context.source!r} of graph {context.graph!r} reads topic {self.name!r},"
                " and there are no topics in this process: run the graph in an app that has them"
            )
        return TopicReading(self.name, context.arrivals)


class TopicReading:
    """Reads one topic. Cancelling `receive` ends the reading: `connect` again to go on."""

    def __init__(self, name: str, arrivals: Any) -> None:
        self._name = name
        self._arrivals = arrivals
        self._records: AsyncIterator[tuple[int, Sequence[tuple[int, bytes]]]] | None = None

    async def connect(self, marks: Marks) -> None:
        await self.aclose()
        epoch, seq = last_read(marks)
        self._records = self._arrivals(self._name, epoch, seq)

    async def receive(self) -> Sequence[Event]:
        assert self._records is not None, "connect comes first"
        try:
            async for epoch, records in self._records:
                if records:
                    stream = str(epoch)
                    return [Event(data, stream, seq) for seq, data in records]
        except NotFound as error:
            raise FeedLost(f"there is no topic {self._name!r}") from error
        raise FeedLost(f"topic {self._name!r} was deleted")

    async def commit(self, marks: Marks) -> None:
        """A topic keeps what its retention says, whoever has read it."""

    async def aclose(self) -> None:
        records, self._records = self._records, None
        let_go = getattr(records, "aclose", None)  # what is no generator may have none
        if let_go is not None:
            await let_go()


def last_read(marks: Marks) -> tuple[int | None, int]:
    """The newest incarnation of which something was read, and how far; None if nothing was."""
    # Other streams are no incarnations: what was pushed, and what windows remember.
    epochs = [int(stream) for stream in marks if stream.isascii() and stream.isdigit()]
    if not epochs:
        return None, 0
    epoch = max(epochs)
    return epoch, marks[str(epoch)]

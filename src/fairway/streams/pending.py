"""Writes to a stream that are under way, and which of them a verdict has to wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from fairway.streams.offset import Offset
    from fairway.streams.requests import Producer, StreamAppend
    from fairway.streams.verdict import AppendVerdict

    Write = asyncio.Future[Offset]


class PendingWrites:
    """What is being appended to one stream."""

    def __init__(self) -> None:
        self.closing: Write | None = None
        """The write that closes it."""
        self.last: Write | None = None
        """The newest one, under way or not."""
        self._of_producers: dict[str, Write] = {}

    def blocker(self, producer: Producer | None, verdict: AppendVerdict) -> Write | None:
        """The write under way that has to end before a verdict counts.

        The next append of a producer need not wait for the one before: if that fails, this one
        fails with it. But nothing is refused, or called done, because of what may yet fail.
        """
        if self.closing is not None:
            return self.closing
        if producer is None or verdict is None:
            return None
        return self._of_producers.get(producer.id)

    def began(self, write: Write, request: StreamAppend) -> None:
        """An append is under way."""
        self.last = write
        if request.closes:
            self.closing = write
        if request.producer is not None:
            self._of_producers[request.producer.id] = write

    def ended(self, write: Write, request: StreamAppend) -> None:
        """An append has ended, well or badly."""
        if self.closing is write:
            self.closing = None
        if request.producer is not None and self._of_producers.get(request.producer.id) is write:
            del self._of_producers[request.producer.id]

"""One pass over what a topic holds: which page to ask for next, and when it is done. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fairway.client import protocol
from fairway.client.records import Position

if TYPE_CHECKING:
    from fairway.client.protocol import Call
    from fairway.client.records import Page, Record, RecordDecoder
    from fairway.errors import BadRecord

T = TypeVar("T")


class Sweep(Generic[T]):
    """Pages from a cursor to where the head was when the first one came.

    The end is settled then, or a topic that is written faster than read would never let go.
    """

    def __init__(
        self, topic: str, decoder: RecordDecoder[T], from_seq: int | Position, **options: Any
    ) -> None:
        self._topic = topic
        self._decoder = decoder
        self._cursor = from_seq
        self._options = options
        self._end: Position | None = None
        self._done = False

    def next_call(self) -> Call[Page[T]] | None:
        """The next page to ask for; None when all was read."""
        if self._done:
            return None
        return protocol.diff(self._topic, self._decoder, self._cursor, **self._options)

    def take(self, page: Page[T]) -> list[Record[T] | BadRecord]:
        """The records of a page that belong to this pass, those that do not fit in their place."""
        if self._end is None or self._end.epoch != page.epoch:
            self._end = Position(page.epoch, page.head_seq)
        end_seq = self._end.seq
        self._cursor = page.position
        self._done = page.caught_up or page.next_from_seq >= end_seq
        found: list[Record[T] | BadRecord] = [*page.records, *page.bad]
        if page.bad:
            found.sort(key=lambda one: one.seq)
        return [one for one in found if one.seq <= end_seq]

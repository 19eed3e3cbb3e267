"""Which write under way a verdict waits for."""

from __future__ import annotations

from typing import Any

from fairway.streams.pending import PendingWrites
from fairway.streams.requests import Producer, StreamAppend
from fairway.streams.verdict import Denied, Repeat


def asked(producer: str | None = None, *, closes: bool = False) -> StreamAppend:
    return StreamAppend("text/plain", closes, None, Producer(producer, 0, 0) if producer else None)


def write() -> Any:
    """Stands for the future of an append: it is only compared."""
    return object()


def test_a_close_is_waited_for_by_everybody() -> None:
    pending, closing = PendingWrites(), write()
    pending.began(closing, asked(closes=True))
    pending.began(write(), asked("p"))
    for producer in (None, Producer("p", 0, 1), Producer("q", 0, 0)):
        assert pending.blocker(producer, None) is closing
    pending.ended(closing, asked(closes=True))
    assert pending.blocker(None, None) is None


def test_a_producer_is_refused_or_told_of_success_only_by_what_is_decided() -> None:
    pending, first, second = PendingWrites(), write(), write()
    me = Producer("p", 0, 1)
    pending.began(first, asked("p"))
    assert pending.blocker(me, None) is None  # the next append fails with the one before
    assert pending.blocker(me, Denied.GAP) is first
    assert pending.blocker(Producer("q", 0, 1), Denied.GAP) is None
    pending.began(second, asked("p"))
    pending.ended(first, asked("p"))
    assert pending.blocker(me, Repeat(0)) is second
    assert pending.last is second
    pending.ended(second, asked("p"))
    assert pending.blocker(me, Repeat(0)) is None

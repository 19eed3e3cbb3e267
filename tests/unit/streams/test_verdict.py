"""What an append means for a stream as it is."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.streams.requests import Producer, StreamAppend
from fairway.streams.stored import StreamMeta
from fairway.streams.verdict import Denied, Repeat, judge, judge_producer


@pytest.mark.parametrize(
    ("known", "epoch", "seq", "verdict"),
    [
        (None, 0, 0, None),
        (None, 7, 0, None),
        (None, 0, 1, Denied.GAP),
        ((1, 3), 1, 4, None),
        ((1, 3), 1, 3, Repeat(3)),
        ((1, 3), 1, 0, Repeat(3)),
        ((1, 3), 1, 5, Denied.GAP),
        ((1, 3), 0, 9, Denied.STALE_EPOCH),
        ((1, 3), 2, 0, None),
        ((1, 3), 2, 1, Denied.EPOCH_START),
    ],
)
def test_producer_verdicts(
    known: tuple[int, int] | None, epoch: int, seq: int, verdict: object
) -> None:
    assert judge_producer(Producer("p", epoch, seq), known) == verdict


def meta(**changes: Any) -> StreamMeta:
    return StreamMeta(1, "s", "text/plain", 0, None, None, **changes)


def asked(
    *, kind: str = "text/plain", closes: bool = False, seq: str | None = None, producer: Any = None
) -> StreamAppend:
    return StreamAppend(kind, closes, seq, Producer(*producer) if producer else None)


def test_closed_is_said_before_anything_else() -> None:
    closed = meta(closed=True, closed_by=("p", 1, 2))
    assert judge(closed, asked(kind="text/html"), None, empty=False) is Denied.CLOSED
    assert judge(closed, asked(closes=True), None, empty=True) == Repeat(None)
    assert judge(closed, asked(producer=("p", 1, 2)), (1, 2), empty=False) == Repeat(2)
    assert judge(closed, asked(producer=("p", 1, 1)), (1, 2), empty=False) is Denied.CLOSED
    assert judge(closed, asked(producer=("p", 0, 9)), (1, 2), empty=False) is Denied.STALE_EPOCH


def test_verdicts_of_an_open_stream() -> None:
    open_ = meta(seq="b")
    assert judge(open_, asked(), None, empty=False) is None
    assert judge(open_, asked(kind="Text/Plain; charset=utf-8"), None, empty=False) is None
    assert judge(open_, asked(kind="text/html"), None, empty=False) is Denied.CONTENT_TYPE
    assert judge(open_, asked(kind="text/html", closes=True), None, empty=True) is None
    assert judge(open_, asked(seq="b"), None, empty=False) is Denied.SEQ
    assert judge(open_, asked(seq="B"), None, empty=False) is Denied.SEQ
    assert judge(open_, asked(seq="ba"), None, empty=False) is None
    assert judge(open_, asked(seq="a", producer=("p", 0, 0)), (0, 0), empty=False) == Repeat(0)

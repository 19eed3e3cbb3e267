"""What an append means for a stream as it is: taken, refused, or done before. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fairway.streams.content import same_type

if TYPE_CHECKING:
    from fairway.streams.requests import Producer, StreamAppend
    from fairway.streams.stored import StreamMeta


class Denied(Enum):
    """Why an append is refused."""

    CLOSED = "the stream is closed"
    CONTENT_TYPE = "the content type is not the stream's"
    STALE_EPOCH = "the producer has begun a newer epoch"
    EPOCH_START = "a new epoch begins with Producer-Seq 0"
    GAP = "appends of the producer before this one are missing"
    SEQ = "Stream-Seq does not rise"


class Repeat(NamedTuple):
    """Done before; `seq` is the highest number the producer has reached, if there is one."""

    seq: int | None


AppendVerdict = Denied | Repeat | None
"""None: append it."""


def judge(
    meta: StreamMeta, request: StreamAppend, known: tuple[int, int] | None, *, empty: bool
) -> AppendVerdict:
    """What to do with an append; `known` is where its producer is, `empty`: it only closes."""
    producer = request.producer
    if meta.closed:
        if producer is None:
            return Repeat(None) if empty else Denied.CLOSED
        if producer == meta.closed_by:
            return Repeat(producer.seq)
        stale = known is not None and producer.epoch < known[0]
        return Denied.STALE_EPOCH if stale else Denied.CLOSED
    if not empty and not same_type(request.content_type, meta.content_type):
        return Denied.CONTENT_TYPE
    if producer is not None:
        verdict = judge_producer(producer, known)
        if verdict is not None:
            return verdict
    # After the producer's verdict: a repeated append is no regression of Stream-Seq.
    if request.seq is not None and meta.seq is not None and request.seq <= meta.seq:
        return Denied.SEQ
    return None


def judge_producer(producer: Producer, known: tuple[int, int] | None) -> AppendVerdict:
    """Whether this is the producer's next append."""
    epoch, seq = known if known is not None else (producer.epoch, -1)
    if producer.epoch < epoch:
        return Denied.STALE_EPOCH
    if producer.epoch > epoch:
        return Denied.EPOCH_START if producer.seq else None
    if producer.seq <= seq:
        return Repeat(seq)
    return Denied.GAP if producer.seq > seq + 1 else None


def after(meta: StreamMeta, request: StreamAppend) -> StreamMeta:
    """What a stream is once an append was made; the same object if that changes nothing."""
    changes: dict[str, object] = {}
    if request.seq is not None:
        changes["seq"] = request.seq
    if request.closes:
        changes |= {"closed": True, "closed_by": request.producer}
    return msgspec.structs.replace(meta, **changes) if changes else meta

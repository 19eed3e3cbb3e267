"""Positions in a stream: as clients name them, and where that is. Pure.

A fork is a list of segments, ranges of other topics that it reads first, and a topic of its own
that continues them.

    forked at 5 of A, whose own fork of R was made at 3:   R 1..3 | A 1..5 | own 1..head
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.streams.stored import Segment

START: Final = "-1"
NOW: Final = "now"

_OFFSET = re.compile(r"[0-9]{16}_[0-9]{16}")


class Offset(NamedTuple):
    """A position: after record `seq` of the topic whose incarnation is `epoch`.

    Spelled in fixed width, so text sorts as positions do. A fork has a higher epoch than what it
    was forked from, so its own records sort behind those it inherited.
    """

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch:016d}_{self.seq:016d}"

    @classmethod
    def parse(cls, text: str) -> Offset:
        if not _OFFSET.fullmatch(text):
            raise InvalidRequest(f"{text[:80]!r} is not an offset of this server")
        return cls(int(text[:16]), int(text[17:]))


BEGINNING: Final = Offset(0, 0)
"""Before everything, in any stream."""


class StreamPlace(NamedTuple):
    """A position resolved: after `seq` of segment number `segment` (the own one is the last)."""

    segment: int
    seq: int


def offset_of(place: StreamPlace, segments: Sequence[Segment], epoch: int) -> Offset:
    """How a position is named to clients: the end of a segment and the start of the next are one
    position and have one name."""
    segment, seq = place
    if segment < len(segments):
        return Offset(segments[segment].epoch, seq)
    if not seq and segments:
        return Offset(segments[-1].epoch, segments[-1].upto)
    return Offset(epoch, seq)


def place_of(offset: Offset | str | None, segments: Sequence[Segment], own: Offset) -> StreamPlace:
    """Where a position is; `own` is the end of the stream's own topic.

    `InvalidRequest` with code `gone` if it was of a former stream of this path.
    """
    if offset is None or offset in (START, BEGINNING):
        return StreamPlace(0, 0)
    if offset == NOW:
        return StreamPlace(len(segments), own.seq)
    assert isinstance(offset, Offset)
    for number, segment in enumerate(segments):
        if offset.epoch == segment.epoch and offset.seq <= segment.upto:
            at_end = offset.seq == segment.upto
            return StreamPlace(number + 1, 0) if at_end else StreamPlace(number, offset.seq)
    if offset.epoch == own.epoch and offset.seq <= own.seq:
        return StreamPlace(len(segments), offset.seq)
    if offset.epoch < own.epoch and not segments:
        raise InvalidRequest(f"{offset} was in a stream that is gone from here", code="gone")
    raise InvalidRequest(f"{offset} is no position of this stream")

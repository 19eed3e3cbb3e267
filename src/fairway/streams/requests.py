"""What can be asked of a stream, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fairway.streams.lifetime import Lifetime
    from fairway.streams.offset import Offset


class Producer(NamedTuple):
    """Who appends, in which life, and the number of this append in it."""

    id: str
    epoch: int
    seq: int


class StreamCreate(NamedTuple):
    """A stream that is to be there."""

    content_type: str | None
    lifetime: Lifetime
    closed: bool
    source: str | None
    """The path of the stream this one is forked from."""
    fork_offset: Offset | None
    sub_offset: int


class StreamAppend(NamedTuple):
    """What is to be appended, and by whom; or that nothing more will be."""

    content_type: str | None
    closes: bool
    seq: str | None
    producer: Producer | None

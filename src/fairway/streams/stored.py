"""What is stored of a stream beside its records, as metadata of its topic."""

from __future__ import annotations

from typing import Final

import msgspec

VERSION: Final = 1
META: Final = "ds"
TOUCHED: Final = META + ".t"
"""When it was last used, near enough."""
PIN: Final = META + ".f/"
"""Before the epoch of each of its forks."""


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """Seqs up to `upto` of another topic, and which of them were missing at the fork, and why.

    Extended only at the end, with defaults.
    """

    topic: str
    epoch: int
    upto: int
    floor: int
    """Those below it were lost."""
    delete_floor: int = 1
    """Those below it were deleted on request, if they were not lost before."""
    floor_reason: str = ""
    holes: tuple[tuple[int, int, str], ...] = ()
    """Lost as well: first and last seq, and why."""

    @property
    def first(self) -> int:
        """Nothing below it was there."""
        return max(self.floor, self.delete_floor)


class Fork(msgspec.Struct, array_like=True, frozen=True):
    """Where a stream was forked from, as asked for, and what it therefore inherits."""

    source: str
    source_epoch: int
    offset: str
    sub_offset: int
    segments: tuple[Segment, ...]
    inherits_lifetime: bool


class StreamMeta(msgspec.Struct, array_like=True, frozen=True):
    """What is stored of a stream. Extended only at the end, with defaults."""

    version: int
    path: str
    content_type: str
    created_ms: int
    ttl_s: int | None
    expires_at: str | None
    fork: Fork | None = None
    closed: bool = False
    closed_by: tuple[str, int, int] | None = None
    seq: str | None = None
    """The last `Stream-Seq`, whoever sent it: its scope is the stream."""
    deleted: bool = False
    """Deleted, and kept for the forks that read it."""


class Pin(msgspec.Struct, array_like=True, frozen=True):
    """A fork of this stream: its topic, and from where on it needs this one's records."""

    topic: str
    floor: int


_encoder = msgspec.msgpack.Encoder()
encode_meta = _encoder.encode
encode_pin = _encoder.encode
decode_meta = msgspec.msgpack.Decoder(StreamMeta).decode
decode_pin = msgspec.msgpack.Decoder(Pin).decode


def encode_touched(ms: int) -> bytes:
    return ms.to_bytes(8)


def decode_touched(value: bytes) -> int:
    return int.from_bytes(value)

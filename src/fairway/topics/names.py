"""What a topic keeps beside its records: names of its metadata and how the values are packed."""

from __future__ import annotations

from typing import Final

import msgspec

SNAPSHOT: Final = "s"
RESERVED: Final = "r"
RESERVED_DISK: Final = "rd"
"""The same number beside it, if it was reserved for the class `disk`: each of these seqs that was
given out is written before anybody hears of it."""
KEY: Final = "i/"
PRODUCER: Final = "p/"
RULE: Final = "x/"
CONFIRMED: Final = "c"
"""Written behind appends whose outcome was unknown, to be certain of them."""
EXTRA: Final = "u/"
"""What other parts keep with a topic, in the same operations as its records."""


class SeenKey(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An idempotency key that was used: what its append was given, and when."""

    first_seq: int
    last_seq: int
    ts: int


_encoder = msgspec.msgpack.Encoder()
encode_key = _encoder.encode
decode_key = msgspec.msgpack.Decoder(SeenKey).decode
decode_position = msgspec.msgpack.Decoder(tuple[int, int]).decode


def encode_position(epoch: int, number: int) -> bytes:
    """A producer's position: its epoch and the number of its last append."""
    return _encoder.encode((epoch, number))


def encode_number(number: int) -> bytes:
    return number.to_bytes(8)


def decode_number(value: bytes) -> int:
    return int.from_bytes(value)

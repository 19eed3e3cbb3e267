"""Where WebSocket frames end in the bytes of a client: so many and no more are read at once.

A frame of a few bytes costs as much to serve as a small request, and a read holds tens of thousands
of them. What a frame means is left to the `websockets` library.
"""

from __future__ import annotations

from typing import NamedTuple


class Cut(NamedTuple):
    """How much of the bytes may be read now."""

    end: int
    """Up to where."""
    missing: int
    """What the frame that is read last still lacks, and is to come."""


def cut(data: bytes, missing: int, most: int) -> Cut:
    """Where the frames end of which the next `most` begin in `data`, after `missing` bytes of one.

    A head that is not whole is left out: it is looked at again when more has come.
    """
    at = min(missing, len(data))
    missing -= at
    while not missing and most > 0 and len(data) - at >= 2:
        length = data[at + 1] & 0x7F
        head = 2 + (4 if data[at + 1] & 0x80 else 0)
        if length >= 126:
            extra = 2 if length == 126 else 8
            if len(data) - at < 2 + extra:
                break
            length = int.from_bytes(data[at + 2 : at + 2 + extra], "big")
            head += extra
        whole = head + length
        here = min(whole, len(data) - at)
        at += here
        missing = whole - here
        most -= 1
    return Cut(at, missing)

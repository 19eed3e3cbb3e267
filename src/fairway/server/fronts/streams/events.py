"""How an event stream is spelled: data events, and the control event that follows each of them.

Pure. A payload cannot leave its event, and a character is never cut in two by one.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.wire.streams import StreamControl

CHARACTER_BYTES: Final = 4
"""The most that one character takes in UTF-8."""

_LINE_ENDS = re.compile(r"\r\n|\r|\n")


def event(name: str, payload: str) -> bytes:
    """One event. Whatever ends a line in the payload starts a new line of data, so no payload can
    end its event and begin another."""
    lines = "".join(f"data:{line}\n" for line in _LINE_ENDS.split(payload))
    return f"event: {name}\n{lines}\n".encode()


def control_event(control: StreamControl) -> bytes:
    return event("control", msgspec.json.encode(control).decode())


def unfinished_bytes(text: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character and do not complete it."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
    return 0


def whole_characters(pieces: Sequence[bytes]) -> int:
    """How many of these pieces can be sent so that no character is cut in two.

    0 if the next piece has to come first; all of them if they are not UTF-8 at all.
    """
    for count in range(len(pieces), 0, -1):
        last = b"".join(pieces[max(0, count - CHARACTER_BYTES) : count])
        if not unfinished_bytes(last):
            return count
    try:
        getincrementaldecoder("utf-8")().decode(b"".join(pieces))
    except UnicodeDecodeError:
        return len(pieces)
    return 0

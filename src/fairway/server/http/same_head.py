"""Knowing the head of a request by the one before it on the same connection.

Most clients send the same head again and again; only the length of the body differs. What such a
head means is known: it need not be parsed, and the parser, which is between two requests, need not
know of it. This is about as much work as all else that is done for a small append.

Connections that send the same head share what it means: thousands of copies would be as many places
in memory to fetch, one for each request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD_BYTES_MAX: Final = 2048
TRIES: Final = 8
"""So many heads of a connection in a row that nothing repeated, and no more are looked at."""
LENGTH: Final = b"content-length"
MEANING: Final = ("method", "path", "raw_path", "query_string")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]{0,7})(?=\r\n)", re.IGNORECASE)
_END: Final = b"\r\n\r\n"


class SameHead:
    """One head that was parsed and found right, with what it means for its request."""

    __slots__ = (
        "__weakref__",
        "_headers",
        "_length_at",
        "_meaning",
        "_prefix",
        "_suffix",
        "fair_key",
        "path",
    )

    def __init__(self, prefix: bytes, suffix: bytes, scope: Mapping[str, Any]) -> None:
        self._prefix = prefix
        self._suffix = suffix
        self._meaning = {name: scope[name] for name in MEANING}
        self.path: str = scope["path"]
        self.fair_key: Any = None  # whose line such requests wait in: noted by whoever decides it
        self._headers: list[tuple[bytes, bytes]] = [*scope["headers"]]
        self._length_at = [name for name, _ in self._headers].index(LENGTH)

    def body_at(self, data: bytes) -> int:
        """Where the body of `data` begins, if that is one request with this head; else 0.

        What is not a plain number there is left to the parser, and so is whatever else there is.
        """
        if not data.startswith(self._prefix):
            return 0
        begin = len(self._prefix)
        end = data.find(b"\r", begin, begin + 9)
        digits = data[begin:end]
        if end < 0 or not digits.isdigit() or digits.startswith(b"0"):
            return 0
        if not data.startswith(self._suffix, end):
            return 0
        at = end + len(self._suffix)
        return at if len(data) - at == int(digits) else 0

    def meaning(self, size: int) -> dict[str, Any]:
        """What it says of a request whose body has so many bytes."""
        headers = self._headers.copy()
        headers[self._length_at] = (LENGTH, b"%d" % size)
        return {**self._meaning, "headers": headers}


class Heads:
    """The heads that the connections of one server know. One that none of them knows any more is
    forgotten: it may hold a key."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[bytes, bytes], SameHead] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, data: bytes, size: int, scope: Mapping[str, Any]) -> SameHead | None:
        """The head of `data`, if that is a request with a body of `size` bytes and nothing else.

        `scope` is what the head was found to say.
        """
        end = data.find(_END, 0, HEAD_BYTES_MAX) + len(_END)
        if end < len(_END) or len(data) - end != size:
            return None
        found = _LENGTH.search(data, 0, end)
        if found is None or int(found[1]) != size:
            return None
        parts = data[: found.start(1)], data[found.end(1) : end]
        known = self._known.get(parts)
        if known is None:
            known = self._known[parts] = SameHead(*parts, scope)
        return known


def body_after(data: bytes) -> int:
    """Where the body of a request begins whose head is whole."""
    return data.find(_END) + len(_END)

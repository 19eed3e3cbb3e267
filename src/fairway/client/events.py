"""Server-sent events, read from bytes as they come: a pure machine that knows no topic.

It follows the standard (WHATWG HTML, "Interpreting an event stream"): lines end in LF, CR or CRLF,
a leading byte order mark is skipped, `data` lines are joined, an id with a NUL is ignored, and an
event that its stream ends in the middle of never happened. Chunks may be cut anywhere.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fairway.errors import Stop

BOM: Final = b"\xef\xbb\xbf"
EVENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Many times what the largest frame of a server can have."""


class ServerSentEvent(NamedTuple):
    """One event. `id` is the last one that was set, which may be in an earlier event."""

    kind: str
    data: str
    id: str


class EventParser:
    """Bytes in, events out. One for each response: nothing carries over but what you keep."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        """What a client sends as `Last-Event-ID` when it comes back."""
        self.retry_ms: int | None = None
        """How long the server wants a client to wait before it comes back."""
        self._id = last_id  # of the event being read
        self._kind = ""
        self._data: list[str] = []
        self._partial: list[bytes] = []  # the beginning of a line whose end has not come
        self._size = 0  # of the event being read
        self._after_cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")  # the other half of a CRLF
        if not chunk:
            return []
        self._size += len(chunk)
        lines = chunk.splitlines(keepends=True)
        if self._partial:
            lines[0] = b"".join((*self._partial, lines[0]))
            self._partial.clear()
        if not lines[-1].endswith((b"\n", b"\r")):
            self._partial.append(lines.pop())
        self._after_cr = chunk.endswith(b"\r")
        events: list[ServerSentEvent] = []
        for line in lines:
            self._line(line.rstrip(b"\r\n"), events)
        if self._size > EVENT_BYTES_MAX:
            raise Stop(f"an event of more than {EVENT_BYTES_MAX:,} bytes: this is no event stream")
        return events

    def _line(self, line: bytes, events: list[ServerSentEvent]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch(events)
        elif not line.startswith(b":"):
            name, _, value = line.decode(errors="replace").partition(":")
            self._field(name, value.removeprefix(" "))

    def _field(self, name: str, value: str) -> None:
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id":
            if "\0" not in value:
                self._id = value
        elif name == "retry" and value.isascii() and value.isdigit() and len(value) <= 18:
            self.retry_ms = int(value)

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        self.last_id = self._id
        if self._data:
            events.append(ServerSentEvent(self._kind or "message", "\n".join(self._data), self._id))
            self._data.clear()
        self._kind = ""
        self._size = sum(map(len, self._partial))

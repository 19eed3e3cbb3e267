"""Server-sent events: an event as bytes, and the response that it is written to.

What the events say, and what becomes of those that find no room, is for whoever has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairway.errors import Fenced, InvalidRequest
from fairway.server.http.problems import problem
from fairway.server.http.response import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.errors import FairwayError
    from fairway.server.http.exchange import Request
    from fairway.storage.ownership import Ownership

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
RETRY: Final = b"retry: 2000\n\n"
KEEP_ALIVE: Final = b": hb\n\n"


class Frame:
    """One event, spelled once: bare, and framed as an HTTP chunk."""

    __slots__ = ("bare", "chunk")

    def __init__(self, bare: bytes) -> None:
        self.bare = bare
        self.chunk = ResponseStream.chunk(bare)


class EventStream:
    """One open response, until it is ended or its client goes."""

    def __init__(self, response: ResponseStream, on_closed: Callable[[], None]) -> None:
        """`on_closed` is called when the client or the server goes, not after `finish`."""
        self.response = response
        self.quiet = True
        """Nothing was written since somebody last looked."""
        response.on_writable = self._resume
        response.on_closed = on_closed

    def open(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.response.open(200, [*HEADERS, *headers])
        self.send(Frame(RETRY))

    def send(self, frame: Frame) -> bool:
        """Write an event; False if there is no room for it."""
        response = self.response
        if response.ownership is not None and response.ownership.overdue:
            self._cut_off(response.ownership)
            return False
        if response.write(frame.chunk if response.chunked else frame.bare):
            self.quiet = False
            return True
        return False

    def keep_alive(self) -> None:
        """Write a comment, which says that the stream lives."""
        response = self.response
        if response.ownership is not None and response.ownership.overdue:
            self._cut_off(response.ownership)
            return
        response.write(_KEEP_ALIVE.chunk if response.chunked else _KEEP_ALIVE.bare)

    def _cut_off(self, ownership: Ownership) -> None:
        """Another process may own the log: nothing of it is sent any more."""
        frame = problem_event(ownership.refusal())
        self.response.cut_off(frame.chunk if self.response.chunked else frame.bare)

    def end(self, reason: FairwayError) -> None:
        """Say why, if there is room for it, and end the response."""
        response, frame = self.response, problem_event(reason)
        if isinstance(reason, Fenced):  # what waits to be sent may be out of date by now
            response.cut_off(frame.chunk if response.chunked else frame.bare)
            return
        response.write(frame.chunk if response.chunked else frame.bare)
        response.finish()

    def _resume(self) -> None:
        """There is room again, after there was none."""


_KEEP_ALIVE = Frame(KEEP_ALIVE)


def problem_event(error: FairwayError, **detail: object) -> Frame:
    """An `error` event: the same body as an error response has."""
    return Frame(b"event: error\ndata: %b\n\n" % problem(error, **detail).body)


def require_event_stream(request: Request) -> None:
    if not _accepts_events(request.headers.get(b"accept", b"*/*")):
        raise InvalidRequest(
            "this is an event stream: accept text/event-stream", code="not_acceptable"
        )


def _accepts_events(accept: bytes) -> bool:
    """Of the ranges that an event stream is in, the narrowest decides; a weight of 0 is a no."""
    accepted: dict[bytes, bool] = {}
    for each in accept.lower().split(b","):
        found, *parameters = (part.strip() for part in each.split(b";"))
        accepted[found] = not any(
            part.startswith(b"q=") and not part[2:].strip(b"0.") for part in parameters
        )
    ranges = (b"text/event-stream", b"text/*", b"*/*")
    return next((accepted[each] for each in ranges if each in accepted), False)

"""A reader that follows a topic: where it stands, what it wants, and where its frames go.

A watcher is *behind* while it reads pages of its own, and has *caught up* once its cursor has met
what the topic has delivered to everybody; then it is given the same frames as all others of its
view that have caught up. It is registered before it reads anything, and catching up is one step of
the event loop: a record is either in a page it reads or in a frame it is given, whatever lands in
between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fairway.topics.batch import Projection, RawRecord
from fairway.topics.reading import EVERYTHING, Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.topics.topic import Gap, Topic


DEFAULT = Projection()


class Encoder(Protocol):
    """How events of one kind of stream are spelled. What it returns is handed to `Sink.write`."""

    def records(
        self,
        topic: Topic,
        records: Sequence[RawRecord],
        from_seq: int,
        to_seq: int,
        view: SharedView,
    ) -> Any: ...
    def gap(self, topic: Topic, gap: Gap) -> Any: ...
    def caught_up(self, topic: Topic) -> Any: ...
    def deleted(self, topic: Topic) -> Any: ...


@dataclass(frozen=True, slots=True)
class SharedView:
    """What watchers who share their frames have in common."""

    encoder: Encoder
    selection: Selection = EVERYTHING
    projection: Projection = DEFAULT
    limit: int = 256
    max_bytes: int = 256 * 1024
    touch: bool = True
    """Whether what they are given counts as consuming, for the topic's automatic priority."""


class Sink(Protocol):
    """Where a watcher's frames go. Bounded: it refuses what it has no room for."""

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        """Take a frame that brings the watcher to `to_seq`, or return False and take nothing.

        After a refusal the sink calls `watcher.resume` once, when it has room again.
        """
        ...


class Watcher:
    """One topic followed by one sink."""

    __slots__ = (
        "caught_up",
        "closed",
        "cursor",
        "farewell",
        "on_resume",
        "queued",
        "sink",
        "stalled",
        "topic",
        "view",
    )

    def __init__(self, topic: Topic, view: SharedView, sink: Sink, cursor: int) -> None:
        self.topic = topic
        self.view = view
        self.sink = sink
        self.cursor = cursor
        self.caught_up = False
        self.stalled = False  # its sink refused a frame and has not asked for more
        self.queued = False  # it waits for somebody to read a page for it
        self.closed = False
        self.farewell: Any = None  # the last frame, given when there is room for it
        self.on_resume: Callable[[Watcher], None] | None = None

    def resume(self) -> None:
        """The sink has room again."""
        if self.stalled:
            self.stalled = False
            if self.farewell is not None and self.give(self.farewell, self.cursor):
                self.farewell = None
            if self.on_resume is not None and not self.closed:
                self.on_resume(self)

    def give(self, frame: Any, to_seq: int) -> bool:
        """Hand a frame over; after a refusal the watcher is behind until its sink resumes."""
        if self.sink.write(self, frame, to_seq):
            self.cursor = to_seq
            return True
        self.caught_up = False
        self.stalled = True
        return False

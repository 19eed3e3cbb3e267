"""From pages to frames to watchers: what is handed over, counted, within a slice of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairway.runtime.telemetry import Telemetry
    from fairway.runtime.turn import TimeSlice
    from fairway.topics.reading import RecordPage
    from fairway.topics.topic import Topic
    from fairway.topics.watching import SharedView, Watcher


class FrameWriter:
    """Hands frames to watchers. Each is built once, whoever it is for."""

    def __init__(self, slice_: TimeSlice, telemetry: Telemetry) -> None:
        self._slice = slice_
        self._frames = telemetry.counter("fairway_delivery_frames", "Frames handed to watchers")
        self._lagged = telemetry.counter(
            "fairway_watchers_lagged", "Times a watcher's buffer was full"
        )
        self._gaps = {
            reason: telemetry.counter(
                "fairway_tombstones", "Tombstones handed to watchers", reason=reason
            )
            for reason in ("cap", "ttl", "mixed", "crash", "recreated", "source_trim")
        }

    def frames_of(
        self, topic: Topic, view: SharedView, page: RecordPage, start: int, limit: int
    ) -> list[tuple[Any, int]]:
        """(frame, the seq it leads to) for all of a page, up to `limit` records in each."""
        frames: list[tuple[Any, int]] = []
        if page.gap is not None:
            frames.append((view.encoder.gap(topic, page.gap), page.gap.last))
            self._gaps[page.gap.reason].add()
            start = page.gap.last
        records = page.records
        for at in range(0, len(records), limit):
            chunk = records[at : at + limit]
            to_seq = chunk[-1].seq
            frames.append((view.encoder.records(topic, chunk, start, to_seq, view), to_seq))
            start = to_seq
        return frames

    def give(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        """False if it had no room; then it took nothing and is behind."""
        self._frames.add()
        given = watcher.give(frame, to_seq)
        if not given:
            self._lagged.add()
        return given

    async def give_page(self, watcher: Watcher, page: RecordPage) -> None:
        """A page of its own, as far as it has room."""
        limit = watcher.view.limit
        for frame, to_seq in self.frames_of(
            watcher.topic, watcher.view, page, watcher.cursor, limit
        ):
            if not self.give(watcher, frame, to_seq):
                return
        watcher.cursor = page.next_seq
        if self._slice.spent:
            await self._slice.let_others()

    def give_notice(self, watcher: Watcher, frame: Any) -> None:
        """What is no record and no loss, and is not counted as a frame."""
        if not watcher.give(frame, watcher.cursor):
            self._lagged.add()

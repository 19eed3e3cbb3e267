"""Events of topics: how a topic's frames are spelled, and the streams that watchers write to.

A frame of a single-topic stream is one bytes object for all its watchers, its id `epoch.seq`
included. A multi-topic stream writes its own id line, the epoch and the seq of all its topics
packed into a few bytes each. Ids describe themselves: a server that never saw the stream resumes
it from its id, and a topic that was deleted and made anew is not taken for the old one.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import msgspec

from fairway.errors import InvalidRequest
from fairway.server.http.sse import EventStream, Frame
from fairway.topics.batch import encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairway.server.http.connection import Connection
    from fairway.topics.batch import RawRecord
    from fairway.topics.topic import Gap, Topic
    from fairway.topics.watching import SharedView, Watcher

_json = msgspec.json.Encoder().encode


class EventEncoder:
    """Events of topics. With ids, for streams of one topic; without, for streams of several."""

    def __init__(self, *, ids: bool) -> None:
        self._ids = ids

    def records(
        self,
        topic: Topic,
        records: Sequence[RawRecord],
        from_seq: int,
        to_seq: int,
        view: SharedView,
    ) -> Frame:
        projection = view.projection
        return self._event(
            topic,
            to_seq,
            b'record\ndata: {"topic":"%b","epoch":%d,"records":[%b],"from_seq":%d,"to_seq":%d,'
            b'"head_seq":%d}'
            % (
                topic.name.encode(),
                topic.epoch,
                b",".join([encode_record(record, projection) for record in records]),
                from_seq,
                to_seq,
                topic.head,
            ),
        )

    def gap(self, topic: Topic, gap: Gap) -> Frame:
        facts = {
            "topic": topic.name,
            "epoch": topic.epoch,
            "reason": gap.reason,
            "gap_from": gap.first,
            "gap_to": gap.last,
            "missed_estimate": gap.last - gap.first + 1,
            "earliest_seq": topic.earliest,
            "head_seq": topic.head,
        }
        return self._event(topic, gap.last, b"tombstone\ndata: " + _json(facts))

    def caught_up(self, topic: Topic) -> Frame:
        return self._event(
            topic,
            topic.drained,
            b'caught-up\ndata: {"topic":"%b","epoch":%d,"head_seq":%d}'
            % (topic.name.encode(), topic.epoch, topic.drained),
        )

    def deleted(self, topic: Topic) -> Frame:
        return self._event(
            topic,
            topic.head,
            b'topic-deleted\ndata: {"topic":"%b","epoch":%d,"head_seq":%d,"reason":"deleted"}'
            % (topic.name.encode(), abs(topic.epoch), topic.head),
        )

    def _event(self, topic: Topic, to_seq: int, event: bytes) -> Frame:
        if self._ids:
            return Frame(b"id: %d.%d\nevent: %b\n\n" % (abs(topic.epoch), to_seq, event))
        return Frame(b"event: %b\n\n" % event)


SHARED: Final = EventEncoder(ids=True)
"""One for all single-topic streams: their views are equal, so their frames are shared."""


def parse_id(text: str) -> tuple[int, int]:
    """(epoch, seq) of a single-topic id."""
    epoch, dot, seq = text.partition(".")
    if not dot or not _digits(epoch) or not _digits(seq):
        raise InvalidRequest(f"{text[:80]!r} is no event id of this server: epoch.seq")
    return int(epoch), int(seq)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def pack_position(epoch: int, seq: int) -> bytes:
    """How far a reader is in one incarnation of a topic: two numbers, seven bits a byte."""
    packed = bytearray()
    for number in (epoch, seq):
        while number > 0x7F:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def pack_id(positions: Iterable[bytes]) -> bytes:
    """The id of a multi-topic stream."""
    return base64.urlsafe_b64encode(b"".join(positions)).rstrip(b"=")


def parse_positions(text: str) -> dict[int, int]:
    """Read `pack_id` back: the seq by epoch."""
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise InvalidRequest(f"{text[:80]!r} is no event id of this server") from None
    numbers, number, shift = [], 0, 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(number)
            number = shift = 0
        elif shift > 63:
            break
    if shift or len(numbers) % 2 or any(number >= 2**63 for number in numbers):
        raise InvalidRequest(f"{text[:80]!r} is no event id of this server")
    return dict(zip(numbers[::2], numbers[1::2], strict=True))


class TopicStream(EventStream):
    """A stream of one topic: the sink of all the watchers that write to it."""

    ends_with_topic = True
    """There is one topic, so there is nothing to come once it is deleted."""

    def __init__(self, connection: Connection, on_closed: Callable[[], None]) -> None:
        super().__init__(connection, on_closed)
        self._stalled: list[Watcher] = []

    def write(self, watcher: Watcher, frame: Frame, to_seq: int) -> bool:
        if not self._offer(watcher, frame, to_seq):
            self._stalled.append(watcher)
            return False
        if self.ends_with_topic and watcher.topic.epoch < 0:
            self.connection.finish()
        return True

    def _offer(self, watcher: Watcher, frame: Frame, to_seq: int) -> bool:
        return self.send(frame)

    def _resume(self) -> None:
        stalled, self._stalled = self._stalled, []
        for watcher in stalled:
            watcher.resume()


class MultiStream(TopicStream):
    """A stream of several topics: each event carries the positions in all of them as its id."""

    ends_with_topic = False

    def __init__(self, connection: Connection, on_closed: Callable[[], None]) -> None:
        super().__init__(connection, on_closed)
        self.on_room: Callable[[], None] | None = None
        """Called when there is room again, before the watchers that found none go on."""
        self._packed: dict[int, bytes] = {}

    def place(self, epoch: int, seq: int) -> None:
        """Whoever reads this stream is at `seq` of a topic, from the next event on."""
        self._packed[epoch] = pack_position(epoch, seq)

    def say(self, frame: Frame, *, at: tuple[int, int] | None = None) -> bool:
        """Send an event that no watcher offers, with an id like any other.

        `at` is the (epoch, seq) that it brings the reader to; False if there was no room for it.
        """
        packed = self._packed
        if at is not None:
            packed = {**packed, at[0]: pack_position(*at)}
        if not self.send(Frame(b"id: %b\n%b" % (pack_id(packed.values()), frame.bare))):
            return False
        if at is not None:
            self.place(*at)
        return True

    def _resume(self) -> None:
        if self.on_room is not None:
            self.on_room()
        super()._resume()

    def _offer(self, watcher: Watcher, frame: Frame, to_seq: int) -> bool:
        epoch, before = watcher.topic.epoch, self._packed
        if epoch > 0:
            self._packed = {**before, epoch: pack_position(epoch, to_seq)}
        else:  # deleted: nobody can be anywhere in it
            self._packed = {known: place for known, place in before.items() if known != -epoch}
        if not self.say(frame):
            self._packed = before
            return False
        return True

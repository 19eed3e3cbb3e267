"""Topics of a class below `fsync` reserve seqs durably before they give them out.

A crash may take the records that had them, and then the next start goes on behind the reservation:
no seq ever means two records. If only this process died, those of the class `disk` are all there,
and what is left of the reservation is skipped: it was never written. More is reserved before the
last of them is given out, so that hardly anybody waits for it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fairway.errors import FairwayError, NotFound, OutcomeUnknown, Unavailable, WriteFailed
from fairway.storage.wal import Operation
from fairway.topics import names
from fairway.topics.operations import Reserved, encode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.kernel.writability import Writability
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.topic import Topic

SEQS_MIN: Final = 4096
SEQS_MAX: Final = 65_536
"""As many at a time as were ever given out, within these: a busy topic syncs for it less often."""


def step(topic: Topic) -> int:
    """How many seqs are reserved beyond the need, and may be skipped after a crash."""
    return min(max(topic.assigned, SEQS_MIN), SEQS_MAX)


class SeqReservation:
    """The seqs of one topic that are reserved, or about to be."""

    __slots__ = ("under_way", "upto")

    def __init__(self) -> None:
        self.under_way: asyncio.Future[int] | None = None
        """The newest that is being written."""
        self.upto = 0
        """The highest seq whose reservation is written or being written."""

    def begin(self, upto: int, written: asyncio.Future[int]) -> None:
        self.upto, self.under_way = upto, written

    def end(self, written: asyncio.Future[int]) -> None:
        if self.under_way is written:
            self.under_way = None

    def give_back(self) -> None:
        """Nothing is reserved any more: whoever is numbered from now on must reserve anew."""
        self.upto = 0


class Reserving:
    """Reserves seqs for topics of a class below `fsync`."""

    def __init__(
        self, log: Partitions, activate: Callable[[Topic], ActiveTopic], writability: Writability
    ) -> None:
        self._log = log
        self._activate = activate
        self._writability = writability

    async def reserve(self, topic: Topic, count: int) -> None:
        """Make sure that the next `count` seqs will not be given out again after a crash."""
        active = self._activate(topic)
        while topic.reserves_seqs and topic.assigned + count > topic.reserved:
            if topic.epoch < 0:
                raise NotFound("topic", topic.name)
            under_way = active.reservation.under_way
            enough = active.reservation.upto >= topic.assigned + count
            if under_way is None or under_way.done() or not enough:
                under_way = self._begin(topic, active, count)
            try:
                await asyncio.shield(under_way)
            except (OutcomeUnknown, WriteFailed) as error:
                raise WriteFailed(f"no seqs could be reserved: {error}") from error

    def keep_ahead(self, topic: Topic, active: ActiveTopic) -> None:
        """Begin to reserve more once half of it is given out."""
        left = topic.reserved - topic.assigned
        if active.reservation.under_way is None and left < step(topic) // 2:
            with suppress(FairwayError):  # whoever really needs it hears why not
                self._begin(topic, active, 0)

    def _begin(self, topic: Topic, active: ActiveTopic, count: int) -> asyncio.Future[int]:
        if active.doubts.changes:  # its class may be another one, which needs none
            raise Unavailable(f"it is not known yet what topic {topic.name!r} holds")
        # Never less than another one asked for: the last of them is what the store keeps.
        upto = max(topic.assigned + count + step(topic), active.reservation.upto)
        number = names.encode_number(upto)
        disk = topic.config.durability == "disk"
        meta = {names.RESERVED: number, names.RESERVED_DISK: number if disk else None}
        snapshot = topic.snapshot() if topic.skip_unsaved else None
        if snapshot is not None:
            meta[names.SNAPSHOT] = encode_snapshot(snapshot)
        written = self._log.submit(topic.epoch, Operation(meta=meta))
        active.reservation.begin(upto, written)

        def known(_: asyncio.Future[int]) -> None:
            active.reservation.end(written)
            if written.cancelled():
                return
            if (error := written.exception()) is not None:
                self._writability.note(error, abs(topic.epoch))
                return
            if snapshot is not None:
                topic.saved(max(topic.snapshot_head, snapshot.head))
            if (
                active.reservation.upto >= upto
            ):  # else the class changed meanwhile, and took it back
                topic.apply(Reserved(upto))

        written.add_done_callback(known)
        return written

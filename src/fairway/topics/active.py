"""What only a topic in use has. A topic that nobody uses is a `Topic` and nothing else, so that
very many of them fit in memory.

Each piece belongs to one owner, and the others ask it or call its methods:

    writes       what is numbered and not decided yet       `Writing`, `Deletions`, `Changes`
    producers    how far its producers are                  `Writing`
    keys         which idempotency keys were used           `Writing`; one memory for all topics
    subscribers  who reads it, or waits for new records     `Delivery`
    reservation  which seqs may be given out next           `Reserving`
    doubts       what only the store knows                  whoever wrote; `Retention` asks
    hot memory   its newest and its oldest batches, tags    `HotBytes`, `OldBatches`, `TagMemory`
    upkeep       the lock of whoever evicts or deletes      `Retention`, `Reclaiming`, `Changes`
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.topics.doubts import Doubts
from fairway.topics.operations import KeySeen
from fairway.topics.producers import Producers
from fairway.topics.reserving import SeqReservation
from fairway.topics.subscribers import Subscribers
from fairway.topics.tail import BatchTail
from fairway.topics.writes import Writes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from fairway.topics.idempotency import KeyMemory
    from fairway.topics.operations import Noted
    from fairway.topics.tags import TagIndex


class ActiveTopic:
    """The parts of a topic in use, by owner."""

    __slots__ = (
        "doubts",
        "front",
        "keys",
        "lock",
        "producers",
        "reclaiming",
        "reservation",
        "subscribers",
        "tags",
        "tail",
        "unsaved",
        "writes",
    )

    def __init__(self, tail: BatchTail, keys: KeyMemory) -> None:
        self.writes = Writes()
        self.producers = Producers()
        self.keys = keys
        self.subscribers = Subscribers()
        self.reservation = SeqReservation()
        self.doubts = Doubts()
        self.tail = tail
        self.front: BatchTail | None = None  # its oldest batches, if the tail does not reach them
        self.tags: TagIndex | None = None  # kept by `TagMemory`
        self.lock = asyncio.Lock()  # held while it is worked out what to evict or delete
        self.reclaiming = False  # by who holds the lock: what memory holds may be evicted meanwhile
        self.unsaved = False  # it is on the list of topics to be snapshotted

    # What is metadata, and nothing else

    def apply(self, epoch: int, change: Noted) -> None:
        """A key or a position is in the store: remember it."""
        if isinstance(change, KeySeen):
            self.keys.apply(epoch, change)
        else:
            self.producers.apply(change)

    def lose(self, epoch: int, changes: Iterable[Noted], *, unknown: bool) -> None:
        """They were not written, or only the store knows whether they were."""
        for change in changes:
            if not isinstance(change, KeySeen):
                self.producers.forget(change.producer)
                continue
            self.keys.forget(epoch, change.key)
            if unknown and change.seen is not None:
                self.keys.doubt(change.seen.ts)

    # Memory

    def restart_tail(self, first_seq: int) -> None:
        """What comes from `first_seq` on is in memory, and nothing before."""
        self.tail = BatchTail(first_seq)

    def begin_front(self, first_seq: int) -> BatchTail:
        """The oldest batches are about to be read, from `first_seq` on."""
        self.front = BatchTail(first_seq)
        return self.front

    def discard(self, last_seqs: Container[int]) -> None:
        """Nothing lives in the batches that end with these seqs."""
        self.tail.discard(last_seqs)
        self.front = None

    def keep_tags(self, index: TagIndex | None) -> None:
        """Where the records of a tag are, from some seq on; None if that is forgotten."""
        self.tags = index

    # Upkeep

    def begin_reclaiming(self) -> None:
        self.reclaiming = True

    def end_reclaiming(self) -> None:
        self.reclaiming = False

    def note_unsaved(self) -> bool:
        """It is to be snapshotted when it is left alone; False if that was noted before."""
        before, self.unsaved = self.unsaved, True
        return not before

    def note_saved(self) -> None:
        self.unsaved = False

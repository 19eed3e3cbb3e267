"""What a topic is after a start: its snapshot, what was written since, and what a crash took.

Topics are loaded a few hundred at a time, each batch in one call to the store: nobody else reads
yet, so there is nothing to be fair about, and ten thousand topics take ten thousand look-ups.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fairway.storage.wal import NO_META
from fairway.topics import names
from fairway.topics.operations import changes_of, decode_snapshot
from fairway.topics.topic import Topic
from fairway.wire.topics import TopicConfig  # noqa: TC001 - msgspec looks the type up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from fairway.kernel.catalog import Named
    from fairway.storage.partitions import Partitions, StoredPartitions
    from fairway.storage.wal import Entry
    from fairway.topics.operations import Change

AT_ONCE: Final = 256
PAGE: Final = 1000
PAGE_BYTES: Final = 1024 * 1024


class StoredTopic(msgspec.Struct, array_like=True):
    """What the catalog keeps of a topic: how it began, and where to look for it.

    Its snapshot says what it is configured as: that comes first, and here when that is durable.
    """

    config: TopicConfig
    owner: str = ""


encode_topic = msgspec.msgpack.Encoder().encode
decode_topic = msgspec.msgpack.Decoder(StoredTopic).decode


class _Found(NamedTuple):
    summary: list[Change]
    """What is kept in place of the operations before the entries."""
    rules: bool
    """Whether there are more metadata to be read: deletions by tag."""
    all_written: bool
    """Whether every reserved seq that was given out is among the entries."""
    entries: list[Entry]


class TopicRecovery:
    """Makes topics of what the log holds."""

    def __init__(
        self,
        log: Partitions,
        *,
        share: Callable[[TopicConfig], TopicConfig],
        expire: Callable[[Topic], Awaitable[None]],
        admit: Callable[[Topic], None],
    ) -> None:
        self._log = log
        self._share = share
        self._expire = expire
        self._admit = admit
        self._late: list[Topic] = []  # with more than they may hold, or something too old
        self.total = 0
        self.done = 0

    async def run(self, stored: dict[str, Named]) -> None:
        """Recover every topic, and empty `stored` while at it: its memory is needed."""
        self.total = len(stored)
        while stored:
            some = [stored.popitem() for _ in range(min(AT_ONCE, len(stored)))]
            topics = [self._new(name, named) for name, named in some]
            asked = [(topic, self._log.last_key(topic.epoch)) for topic in topics]
            load = partial(_load, asked, self._log.unsynced_kept)
            found = await self._log.read_many(load)
            for topic, facts in zip(topics, found, strict=True):
                await self._complete(topic, facts)
                self._admit(topic)
                self.done += 1

    async def trim(self) -> None:
        """Expire what time and caps have expired. Not before everything was read: it writes. And
        before anybody reads: what was announced as lost does not come back."""
        while self._late:
            topic = self._late.pop()
            await self._expire(topic)
            topic.end_use()

    def _new(self, name: str, named: Named) -> Topic:
        stored = decode_topic(named.value)
        return Topic(name, named.partition, self._share(stored.config), sys.intern(stored.owner))

    async def _complete(self, topic: Topic, found: _Found) -> None:
        for change in found.summary:
            topic.apply(change)
        if found.rules:
            await self._read_rules(topic)
        last = self._log.last_key(topic.epoch)
        entries = found.entries
        while topic.head < last:
            if not entries:
                entries = await self._log.read(topic.epoch, first=topic.head + 1)
            _add(topic, entries, NO_META)
            if not entries:
                break
            entries = []
        topic.take_over(all_written=found.all_written)
        if topic.over_cap or topic.config.ttl_ms:
            self._late.append(topic)

    async def _read_rules(self, topic: Topic) -> None:
        after = ""
        while page := await self._log.meta_scan(topic.epoch, prefix=names.RULE, after=after):
            _add(topic, (), dict(page))
            after = page[-1][0]


def _add(topic: Topic, entries: Iterable[Entry], meta: Mapping[str, bytes | None]) -> None:
    """Add what the store holds as if an operation had just written it."""
    for change in changes_of(entries, meta, topic=topic.name):
        topic.apply(change)


def _load(
    asked: list[tuple[Topic, int]], unsynced_kept: bool, wal: StoredPartitions
) -> list[_Found]:
    """The snapshot of each partition, and the first page of what came after it."""
    found = []
    for topic, last_key in asked:
        epoch, reserves_seqs = topic.epoch, topic.reserves_seqs
        snapshot = wal.meta(epoch, names.SNAPSHOT)
        head, rules = 0, False
        summary: list[Change] = []
        if snapshot is not None:
            state = decode_snapshot(snapshot)
            summary.append(state)
            head, rules = state.head, state.rules
            if state.config is not None:
                reserves_seqs = state.config.durability != "fsync"
        entries: list[Entry] = []
        if head < last_key:
            entries = wal.read(epoch, first=head + 1, limit=PAGE, max_bytes=PAGE_BYTES)
        reserved = wal.meta(epoch, names.RESERVED) if reserves_seqs else None
        all_written = False
        if unsynced_kept and reserved is not None:
            all_written = wal.meta(epoch, names.RESERVED_DISK) == reserved
        if reserved is not None:
            summary += changes_of((), {names.RESERVED: reserved}, topic=topic.name)
        found.append(_Found(summary, rules, all_written, entries))
    return found

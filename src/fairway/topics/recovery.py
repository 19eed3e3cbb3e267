"""What a topic is after a start: its snapshot, what was written since, and what a crash took.

Topics are loaded a few hundred at a time, each batch in one call to the store: nobody else reads
yet, so there is nothing to be fair about, and ten thousand topics take ten thousand look-ups.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fairway.topics import names
from fairway.topics.batch import decode_batch
from fairway.topics.match import TagRules, rule_named
from fairway.topics.topic import Topic, decode_snapshot
from fairway.wire.topics import TopicConfig  # noqa: TC001 - msgspec looks the type up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fairway.storage.catalog import Named
    from fairway.storage.log import Log
    from fairway.storage.wal import Entry, Wal

AT_ONCE: Final = 256
PAGE: Final = 1000
PAGE_BYTES: Final = 1024 * 1024


class StoredTopic(msgspec.Struct, array_like=True):
    """What the catalog keeps of a topic."""

    config: TopicConfig
    owner: str = ""


encode_topic = msgspec.msgpack.Encoder().encode
_decode_topic = msgspec.msgpack.Decoder(StoredTopic).decode


class _Found(NamedTuple):
    snapshot: bytes | None
    reserved: bytes | None
    all_written: bool
    """Whether every reserved seq that was given out is among the entries."""
    entries: list[Entry]


class Recovery:
    """Makes topics of what the log holds."""

    def __init__(
        self,
        log: Log,
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
            asked = [(topic.epoch, self._log.last_key(topic.epoch), topic.weak) for topic in topics]
            load = partial(_load, asked, self._log.unsynced_kept)
            found = await self._log.past_the_lanes(load)
            for topic, facts in zip(topics, found, strict=True):
                await self._complete(topic, facts)
                self._admit(topic)
                self.done += 1

    async def trim(self) -> None:
        """Expire what time and caps have expired. Not before everything was read: it writes. And
        before anybody reads: what was told to be lost does not come back."""
        while self._late:
            topic = self._late.pop()
            await self._expire(topic)
            topic.live = None

    def _new(self, name: str, named: Named) -> Topic:
        stored = _decode_topic(named.value)
        return Topic(name, named.partition, self._share(stored.config), sys.intern(stored.owner))

    async def _complete(self, topic: Topic, found: _Found) -> None:
        if found.snapshot is not None:
            state = decode_snapshot(found.snapshot)
            topic.restore(state)
            if state.rules:
                await self._read_rules(topic)
        last = self._log.last_key(topic.epoch)
        entries = found.entries
        while topic.head < last:
            if not entries:
                entries = await self._log.read(topic.epoch, first=topic.head + 1)
            for entry in entries:
                topic.replay(decode_batch(entry.payload, topic=topic.name))
            if not entries:
                break
            entries = []
        if topic.config.durability == "ephemeral" and topic.floor <= topic.head:
            topic.lose_all("crash")  # live or not: nobody must look for it in the store
        if found.reserved is not None:
            reserved = names.decode_number(found.reserved)
            if found.all_written and topic.config.durability == "disk":
                topic.note_skip(reserved)
            else:
                # Not written down here: until it is, the jump in the seqs tells the same.
                topic.note_crash(topic.head, reserved)
            topic.reserved = topic.head
        if topic.over_cap or topic.config.ttl_ms:
            self._late.append(topic)

    async def _read_rules(self, topic: Topic) -> None:
        topic.rules = TagRules()
        after = ""
        while page := await self._log.meta_scan(topic.epoch, prefix=names.RULE, after=after):
            for name, value in page:
                rule = rule_named(name.removeprefix(names.RULE))
                topic.rules.add(rule, names.decode_number(value))
            after = page[-1][0]


def _load(asked: list[tuple[int, int, bool]], unsynced_kept: bool, wal: Wal) -> list[_Found]:
    """The snapshot of each partition, and the first page of what came after it."""
    found = []
    for epoch, last_key, weak in asked:
        snapshot = wal.meta(epoch, names.SNAPSHOT)
        head = decode_snapshot(snapshot).head if snapshot is not None else 0
        entries: list[Entry] = []
        if head < last_key:
            entries = wal.read(epoch, first=head + 1, limit=PAGE, max_bytes=PAGE_BYTES)
        reserved = wal.meta(epoch, names.RESERVED) if weak else None
        all_written = False
        if unsynced_kept and reserved is not None:
            all_written = wal.meta(epoch, names.RESERVED_DISK) == reserved
        found.append(_Found(snapshot, reserved, all_written, entries))
    return found

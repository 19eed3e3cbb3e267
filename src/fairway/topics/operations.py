"""What the operations of a partition say about its topic, and what they add up to.

A topic is the sum of the operations of its partition. `Topic.apply` adds them: while the topic
runs, when it is recovered and, on another machine, when it is followed. Each operation is all or
nothing, and says one or more of these:

    operation            writes                                applied in the process that wrote it
    append               the entry of a `RecordBatch`          `RecordBatch`, once its class is met
      under a key        `i/…`                                 `KeySeen`, with it
      of a producer      `p/…`                                 `ProducerPosition`, with it
    gap of a source      `s`, `p/…`                            `Hole`, `ProducerPosition`: the same
    delete               `s`, and `x/…` if it leaves others    `Removal`, once it is durable
    reserve              `r`, `rd`                             `Reserved`, once it is durable
    upkeep, pin, stop    `s`, rows below the floors removed    nothing new: see below
    reclaim              `s`, `x/…` dropped, rows removed      nothing new: see below
    configure            `s`; then the catalog                 `TopicConfig`, once it is durable
    old keys             `i/…` dropped                         nothing new: see below

`s` is a `Snapshot`: the whole state once everything before it is written, and what the topic is
configured as from there on. Whoever only reads operations applies it in place of what its writer
applied (`changes_of` decodes an operation), and is where the writer was. Operations are physical,
so that adding one twice, or a run of them again from any earlier point, changes nothing.

The catalog says how a topic began, and is where a start looks for topics. A configuration is in
force once the partition has it, in one operation with what the former one made of the topic; the
catalog is written after that. So where they differ (a crash came between), the snapshot is right;
one of an older release says nothing of it, and then the catalog is.

The owner of a topic runs ahead of its operations in what it may decide by itself: the seqs it gives
out (`Topic.place`), what caps and TTL take (`evict`), where the first live record is
(`skip_deleted`), what is reclaimed. Each snapshot carries that; a life that begins before the next
one decides the same again from what is stored (`TopicRecovery`). What a crash took shows as a jump
in the seqs, or as seqs that were reserved and are not there (`Topic.take_over`). It also runs ahead
in how far producers are (`Producers.begin`) and which keys have had their window
(`KeyMemory.expire`).

Keys and positions are rows of their own, and no part of a snapshot: there may be millions, and most
are never asked for. So the rows are the state, and memory (`KeyMemory`, `Producers`) spares a look
at them: it holds those of topics in use, within a budget, and whoever needs another one finds its
row and applies that, as if its operation had just been written (`Once`, `Writing.position_of`). A
start reads none of them, and whoever takes a topic over with the rows that its operations left has
all of them. What other parts keep (`u/…`) is theirs, and nobody applies it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import msgspec

from fairway.topics import names
from fairway.topics.batch import RecordBatch, decode_batch
from fairway.topics.match import Rule, rule_named
from fairway.wire.topics import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fairway.storage.wal import Entry
    from fairway.topics.names import SeenKey
    from fairway.wire.topics import LossReason

SKIPPED: Final = "skipped"
"""Why a hole is no loss: its seqs were reserved, and never written."""


class Hole(NamedTuple):
    """Seqs without records: they are lost, or were skipped."""

    first: int
    last: int
    reason: LossReason | Literal["skipped"]


NO_HOLES: Final[tuple[Hole, ...]] = ()


def joined(holes: Iterable[Hole]) -> tuple[Hole, ...]:
    """In order, and those that lie side by side as one: they are one loss to a reader."""
    found: list[Hole] = []
    for hole in sorted(holes):
        if found and found[-1].last == hole.first - 1 and found[-1].reason == hole.reason:
            found[-1] = Hole(found[-1].first, hole.last, hole.reason)
        else:
            found.append(hole)
    return tuple(found)


class Removal(NamedTuple):
    """A deletion on request."""

    delete_floor: int
    earliest: int
    records: int
    size: int
    rule: Rule | None = None
    """Which records are hidden, if others beside them stay."""
    upto: int = 0
    """The last seq that the rule hides."""
    hidden: int = 0
    """How many bytes more, or less, are stored without being live."""


class Ruling(NamedTuple):
    """Records up to a seq that match are hidden; 0 says that the rule has nothing left to hide."""

    rule: Rule
    upto: int


class Reserved(NamedTuple):
    """Seqs up to this one may be given out; 0 takes that back."""

    upto: int


class KeySeen(NamedTuple):
    """An idempotency key was used; None if that is forgotten."""

    key: str
    seen: SeenKey | None


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """Who writes, and how far it is: never taken twice, however late it comes again."""

    producer: str
    epoch: int
    number: int


Noted: TypeAlias = KeySeen | ProducerPosition
"""What is metadata, and nothing else: memory of it spares a look at the store."""


class Snapshot(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a topic is after the entries up to `head`; stored as metadata beside them."""

    version: int
    head: int
    ts: int
    count: int
    bytes: int
    evict_floor: int
    floor_reason: str
    delete_floor: int
    earliest: int
    holes: list[tuple[int, int, str]]
    rules: bool = False
    """Whether there are deletions by tag to be read as well."""
    pin: int = 0
    hidden: int = -1
    """Bytes of deleted records that are stored beside others; -1 if nobody counted them."""
    reclaimed: int = 0
    """Up to this seq entries may be missing: every record of theirs was deleted."""
    to_reclaim: int = 0
    """Up to this seq there may be more of them."""
    set_back: tuple[int, int] = (0, 0)
    """(seq, time): what lies below that seq was accepted before that time, whatever it says."""
    config: TopicConfig | None = None
    """What it is configured as; None if a release wrote it that kept that in the catalog alone."""


encode_snapshot = msgspec.msgpack.Encoder().encode
decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode

Change: TypeAlias = (
    RecordBatch | Hole | Removal | Ruling | Reserved | Snapshot | TopicConfig | Noted
)


def rows_of(noted: Iterable[Noted]) -> dict[str, bytes | None]:
    """The metadata that say it: `changes_of` reads them back."""
    rows: dict[str, bytes | None] = {}
    for change in noted:
        if isinstance(change, ProducerPosition):
            row = names.PRODUCER + change.producer
            rows[row] = names.encode_position(change.epoch, change.number)
        else:
            seen = change.seen
            rows[names.KEY + change.key] = names.encode_key(seen) if seen is not None else None
    return rows


def changes_of(
    entries: Iterable[Entry], meta: Mapping[str, bytes | None], *, topic: str
) -> Iterator[Change]:
    """What an operation says about a topic; or what a store holds, which reads like one: there the
    entries that a snapshot sums up are passed over, as what was applied before."""
    snapshot = meta.get(names.SNAPSHOT)
    if snapshot is not None:
        yield decode_snapshot(snapshot)
    for name, value in meta.items():
        if name.startswith(names.RULE):
            rule = rule_named(name.removeprefix(names.RULE))
            yield Ruling(rule, names.decode_number(value) if value is not None else 0)
        elif name == names.RESERVED:
            yield Reserved(names.decode_number(value) if value is not None else 0)
        elif name.startswith(names.KEY):
            seen = names.decode_key(value) if value is not None else None
            yield KeySeen(name.removeprefix(names.KEY), seen)
        elif name.startswith(names.PRODUCER) and value is not None:  # nobody removes one
            yield ProducerPosition(name.removeprefix(names.PRODUCER), *names.decode_position(value))
    for entry in entries:
        yield decode_batch(entry.payload, topic=topic)

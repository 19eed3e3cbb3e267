"""What tests of topics share: batches in one line, sinks that write down what they are given."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fairway.core.pressure import Ladder
from fairway.kernel.kernel import Kernel
from fairway.runtime.pressure import PressureSampler
from fairway.runtime.turn import TURN
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.watching import SharedView
from fairway.topics.writing import NewBatch
from fairway.wire.records import Records, decode_records, parse_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from fairway.runtime.turn import TurnBudget
    from fairway.storage.wal import Wal
    from fairway.topics.batch import RawRecord
    from fairway.topics.topic import Gap, Topic
    from fairway.topics.watching import Watcher

MS = 1_000_000


def new(*data: Any, tag: str | None = None, **options: Any) -> NewBatch:
    """An append of these values; a pair is (value, tag)."""
    records = []
    for one in data:
        value, own = one if isinstance(one, tuple) else (one, tag)
        records.append({"data": value} if own is None else {"data": value, "tag": own})
    return NewBatch(records=parse_records(msgspec.json.encode(records)), **options)


def unchecked(raw: bytes) -> NewBatch:
    """An append of records as they may have been stored before something in them was refused."""
    return NewBatch(records=Records.of(raw, decode_records(raw)))


class Plain:
    """Frames as values: ("records", …), ("gap", …), ("caught-up",) and ("deleted",)."""

    def records(
        self,
        topic: Topic,
        records: Sequence[RawRecord],
        from_seq: int,
        to_seq: int,
        view: SharedView,
    ) -> Any:
        return ("records", [(r.seq, r.data) for r in records], from_seq, to_seq)

    def gap(self, topic: Topic, gap: Gap) -> Any:
        return ("gap", gap)

    def caught_up(self, topic: Topic) -> Any:
        return ("caught-up",)

    def deleted(self, topic: Topic) -> Any:
        return ("deleted",)


PLAIN = SharedView(Plain())


@dataclass
class Notes:
    """A sink that takes everything while `open`, and says when it was given what."""

    open: bool = True
    frames: list[Any] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    refused: int = 0

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        if not self.open:
            self.refused += 1
            return False
        self.frames.append(frame)
        self.times_ns.append(asyncio.get_running_loop().clock.now_ns())  # type: ignore[attr-defined]
        return True

    @property
    def seqs(self) -> list[int]:
        """Every seq it was given, in order."""
        return [seq for frame in self.frames if frame[0] == "records" for seq, _ in frame[1]]

    @property
    def kinds(self) -> list[Literal["records", "gap", "caught-up", "deleted"]]:
        return [frame[0] for frame in self.frames]

    def at_ns(self, seq: int) -> int:
        """When it was given a seq."""
        for frame, when in zip(self.frames, self.times_ns, strict=True):
            if frame[0] == "records" and any(one == seq for one, _ in frame[1]):
                return when
        raise AssertionError(f"seq {seq} was never pushed: {self.seqs}")


class Forced(PressureSampler):
    """A governor that says what the test wants, and nothing else."""

    def __init__(self, ladder: Ladder | None = None) -> None:
        super().__init__()
        self.forced = ladder or Ladder()
        self.listeners: list[Callable[[Ladder], None]] = []

    @property
    def ladder(self) -> Ladder:
        return self.forced

    def listen(self, listener: Callable[[Ladder], None]) -> None:
        self.listeners.append(listener)

    def force(self, ladder: Ladder) -> None:
        self.forced = ladder
        for listener in self.listeners:
            listener(ladder)

    async def run(self) -> None:
        self.force(self.forced)
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def topics_on(
    wal: Wal | None = None,
    config: TopicsConfig | None = None,
    *,
    sampler: PressureSampler | None = None,
    turn: TurnBudget = TURN,
) -> AsyncIterator[Topics]:
    """An engine on a store in memory, with a governor that stands still."""
    async with (
        Log(wal if wal is not None else MemoryWal(), turn=turn) as log,
        Kernel(log, governor=sampler or Forced()) as kernel,
        Topics(kernel, config=config) as topics,
    ):
        yield topics


@dataclass
class Reading:
    """All that a reader from a cursor gets."""

    records: list[RawRecord] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    cursor: int = 0

    @property
    def seqs(self) -> list[int]:
        return [record.seq for record in self.records]

    @property
    def lost(self) -> set[int]:
        return {seq for gap in self.gaps for seq in range(gap.first, gap.last + 1)}


async def read_all(topics: Topics, name: str, cursor: int = 0, **options: Any) -> Reading:
    """Diff until caught up."""
    found = Reading(cursor=cursor)
    while True:
        diff = await topics.reading.diff(name, found.cursor, **options)
        if diff.page.gap is not None:
            found.gaps.append(diff.page.gap)
        found.records += diff.page.records
        assert diff.page.next_seq >= found.cursor
        stuck = diff.page.next_seq == found.cursor
        found.cursor = diff.page.next_seq
        if found.cursor >= diff.topic.head:
            return found
        assert not stuck, f"a reader at {found.cursor} of {diff.topic.head} gets nowhere"


async def until_idle(topics: Topics, topic: Topic) -> None:
    """Return when nothing of a topic is under way."""
    while writes := topics.activate(topic).writes:
        await writes.wait_decided()


def values(reading: Reading) -> list[Any]:
    return [msgspec.json.decode(record.data) for record in reading.records]


__all__ = [
    "MS",
    "PLAIN",
    "Forced",
    "Notes",
    "Plain",
    "Reading",
    "new",
    "read_all",
    "topics_on",
    "until_idle",
    "values",
]

"""Routers: rules that copy what is appended to one topic into another, exactly once.

A router is a reader of its source whose frames become appends to its destination. Each carries the
router's position (the source's epoch and the last seq looked at), which the destination keeps in
the same operation as the records: that is the router's durable cursor, so a replay after a crash
finds out what was forwarded and forwards nothing twice. Routers form no cycle unless told that they
may; a record stops after `HOPS_MAX` of them, and a tombstone at the first that may close one.

Where routers meet again and again, a few hops make very many copies. So a record has `COPIES_MAX`
of them, which the routers of each topic that it comes to share: each takes one for its own copy,
and what is left is divided among those that lead on. What has none left is not copied, which is
counted and shown; of a record that no router made, each router of its topic makes its copy always.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from fairway.core.backoff import BackoffConfig
from fairway.errors import FairwayError, Throttled
from fairway.topics.batch import RawRecord, encode_new
from fairway.topics.match import TagMatch
from fairway.topics.operations import ProducerPosition
from fairway.topics.reading import Selection
from fairway.topics.topic import Gap, Topic
from fairway.topics.watching import SharedView, Watcher
from fairway.topics.writing import NewBatch
from fairway.wire.records import RECORD_OVERHEAD, Records, decode_records
from fairway.wire.topics import RouterConfig, RouterState

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from fairway.kernel.writability import Writability
    from fairway.topics.bounds import OwnerBounds
    from fairway.topics.outcome import Appended
    from fairway.topics.writing import Writing

logger = logging.getLogger("fairway.topics")

HOPS_MAX: Final = 8
COPIES_MAX: Final = 10_000
"""Copies of one record, those of its copies counted."""
PASSED_ON: Final = ("source_trim", "mixed")
"""Reasons of a gap that may have come through a router."""
IN_FLIGHT_MAX: Final = 64
RETRY: Final = BackoffConfig(base_ns=10_000_000, cap_ns=1_000_000_000, jitter=0.0)
AT_ONCE: Final = 1000
"""Records that are copied in one append."""
RETRY_MAX_NS: Final = 1_000_000_000
"""A quota may have room again before anybody can say so."""
_way = attrgetter("hops", "trace", "copies")


class Destinations(Protocol):
    """What a router needs of the engine."""

    writing: Writing
    writability: Writability

    bounds: OwnerBounds

    async def topic_for_router(self, config: RouterConfig, owner: str = "") -> Topic: ...
    def fan_out(self, topic: str) -> tuple[int, int]: ...
    def start(self, chore: Coroutine[Any, Any, None]) -> object: ...


class Router:
    """One rule: an encoder and a sink at once, since its frames are its own affair."""

    def __init__(self, name: str, config: RouterConfig, start_seq: int, owner: str = "") -> None:
        """`owner` is whoever its copies count for."""
        self.name = name
        self.owner = owner
        self.config = config
        self.start_seq = start_seq
        self.watcher: Watcher | None = None
        self.forwarded = 0
        self.stopped = 0
        self.error: str | None = None
        self._engine: Destinations
        self._dest: Topic | None = None
        self._in_flight = 0
        self._confirmed = start_seq
        self._failures = 0
        self._preparing = False
        self._fetched = False
        self._most = AT_ONCE

    @property
    def producer(self) -> str:
        # The source belongs to it: epochs of different topics cannot be compared.
        return f"router/{self.name}/{self.config.source}"

    def view(self) -> SharedView:
        match = TagMatch.of(self.config.filter) if self.config.filter is not None else None
        return SharedView(self, Selection(match=match), limit=AT_ONCE, max_bytes=256 * 1024)

    def follow(self, engine: Destinations, source: Topic, cursor: int) -> Watcher:
        """Start reading `source` after `cursor`."""
        self._engine = engine
        self._confirmed = cursor
        self.watcher = Watcher(source, self.view(), self, cursor)
        return self.watcher

    @property
    def cursor(self) -> int:
        """The last seq of the source that was examined, and its copy, if it has one, is safe."""
        watcher = self.watcher
        if watcher is None or self._in_flight:
            return self._confirmed
        return max(self._confirmed, watcher.cursor)

    def progress(self) -> ProducerPosition | None:
        """How far it is, if that is further than its last copy says: much may be filtered out."""
        watcher, cursor = self.watcher, self.cursor
        if watcher is None or watcher.topic.epoch < 0 or cursor <= self._confirmed:
            return None
        self._confirmed = cursor
        return ProducerPosition(self.producer, watcher.topic.epoch, cursor)

    def state(self) -> RouterState:
        watcher, cursor = self.watcher, self.cursor
        return RouterState(
            router=self.name,
            **msgspec.structs.asdict(self.config),
            cursor=cursor,
            lag=watcher.topic.head - cursor if watcher is not None else 0,
            forwarded_total=self.forwarded,
            stopped_total=self.stopped,
            error=self.error,
        )

    # As an encoder: frames are what is to be appended.

    def records(
        self,
        topic: Topic,
        records: Sequence[RawRecord],
        from_seq: int,
        to_seq: int,
        view: SharedView,
    ) -> Sequence[RawRecord]:
        return records

    def gap(self, topic: Topic, gap: Gap) -> Gap:
        return gap

    def caught_up(self, topic: Topic) -> None:
        return None

    def deleted(self, topic: Topic) -> None:
        return None

    # As a sink

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        """Queue the copies, or refuse until there is room, the destination is ready or works."""
        if frame is None:
            return True
        dest = self._dest
        if dest is None or dest.epoch < 0 or self._preparing:
            self._prepare(1)
            return False
        if self._in_flight >= IN_FLIGHT_MAX:
            return False  # `_settled` resumes
        writing = self._engine.writing
        if isinstance(frame, Gap):
            if self.config.allow_cycle and frame.reason in PASSED_ON:
                return True  # it has no hops to be counted, and would go round for ever
            position = ProducerPosition(self.producer, watcher.topic.epoch, to_seq)
            count = frame.last - frame.first + 1
            return self._queue(
                partial(writing.enqueue_gap, dest, count, "source_trim", position), to_seq, 0
            )
        # What a batch holds has one trace, and has come equally far.
        fan_out = self._engine.fan_out(self.config.source)
        for (hops, _, copies), group in groupby(frame, _way):
            records = list(group)
            left = share_of(hops, copies, *fan_out)
            if left is None:
                self._stop(records)
                continue
            while records:
                some = records[: min(_room(dest, records), self._most)]
                del records[: len(some)]
                if not self._copy(watcher, dest, some, left):
                    return False
        return True

    def _stop(self, records: Sequence[RawRecord]) -> None:
        """They came through too many routers, or have too many copies, and go no further."""
        if not self.stopped:
            logger.warning(
                "router %s leaves out what came through %d routers or has %d copies, from seq %d"
                " of %s on",
                *(self.name, HOPS_MAX, COPIES_MAX, records[0].seq, self.config.source),
            )
        self.stopped += len(records)

    def _copy(self, watcher: Watcher, dest: Topic, records: Sequence[RawRecord], left: int) -> bool:
        if dest.reserves_seqs and dest.assigned + len(records) > dest.reserved:
            self._prepare(len(records))
            return False
        last = records[-1].seq
        batch = self._batch(
            records, ProducerPosition(self.producer, watcher.topic.epoch, last), left
        )
        if dest.capped and not self._fetched and self._engine.writing.lacks_front(dest, batch):
            self._prepare(len(records))
            return False
        self._fetched = False

        def enqueue() -> asyncio.Future[Appended]:
            copied = None
            if self.owner:
                size = len(batch.records.raw)
                copied = self._engine.bounds.may_copy(self.owner, len(records), size)
            waiting = self._engine.writing.enqueue(dest, batch)
            if copied is not None:
                copied()
            return waiting

        if not self._queue(enqueue, last, len(records)):
            return False
        watcher.cursor = last  # should the next ones be refused, it begins there
        return True

    def _queue(
        self, enqueue: Callable[[], asyncio.Future[Appended]], to_seq: int, copied: int
    ) -> bool:
        try:
            self._engine.writability.check()  # what is left of a full disk is for what makes room
            waiting = enqueue()
        except FairwayError as error:
            self._failed(error)
            return False
        self._in_flight += 1

        def settle(done: asyncio.Future[Appended]) -> None:
            self._settled(done, to_seq, copied)

        waiting.add_done_callback(settle)
        return True

    def _batch(
        self, records: Sequence[RawRecord], position: ProducerPosition, left: int
    ) -> NewBatch:
        config = self.config
        raw = b"[%b]" % b",".join(
            encode_new(record, keep_tag=config.preserve_tag, keep_node=config.preserve_node)
            for record in records
        )
        return NewBatch(
            records=Records.of(raw, decode_records(raw)),
            position=position,
            trace=records[-1].trace,
            hops=records[-1].hops + 1,
            copies=left,
        )

    def _settled(self, done: asyncio.Future[Appended], to_seq: int, copied: int) -> None:
        self._in_flight -= 1
        error = done.exception()
        watcher = self.watcher
        assert watcher is not None
        if error is None:
            if not done.result().deduped:
                self.forwarded += copied
            self._confirmed = max(self._confirmed, to_seq)
            self._failures = 0
            self._most = AT_ONCE
            self.error = None
            watcher.resume()
            return
        # What was queued behind it failed as well: begin again after what is known to be there,
        # and ask the destination first, since some of it may be.
        watcher.cursor = self._confirmed
        watcher.caught_up = False
        self._dest = None
        watcher.stalled = True
        if not self._in_flight:
            assert isinstance(error, FairwayError)
            self._failed(error)

    def _failed(self, error: FairwayError) -> None:
        self._failures += 1
        self.error = str(error)
        if self._failures in (1, 10, 100):
            logger.warning("router %s stands still: %s", self.name, error)
        watcher = self.watcher
        assert watcher is not None
        delay_ns = getattr(error, "retry_after_ns", 0) or RETRY.ceiling_ns(min(self._failures, 20))
        delay_ns = min(delay_ns, RETRY_MAX_NS)
        if isinstance(error, Throttled) and error.limit == "stored_bytes" and self._most > 1:
            # There may be room for some of them, and would never be for all.
            self._most //= 2
            delay_ns = RETRY.base_ns
        asyncio.get_running_loop().call_later(delay_ns / 1e9, watcher.resume)

    def _prepare(self, count: int) -> None:
        if not self._preparing:
            self._preparing = True
            self._engine.start(self._ready_dest(count))

    async def _ready_dest(self, count: int) -> None:
        """Find or make the destination, and fetch what an append to it must know."""
        watcher = self.watcher
        assert watcher is not None
        try:
            dest = await self._engine.topic_for_router(self.config, self.owner)
            known = await self._engine.writing.written_position_of(dest, self.producer)
            if dest.capped:
                await self._engine.writing.fetch_front(dest)
                self._fetched = True  # with or without success: it is not tried again and again
            await self._engine.writing.reserving.reserve(dest, count)
        except FairwayError as error:
            self._preparing = False
            self._failed(error)
            return
        self._preparing = False
        if self._dest is not dest and known is not None and known[0] == watcher.topic.epoch:
            self._confirmed = max(self._confirmed, known[1])
            watcher.cursor = max(watcher.cursor, self._confirmed)
        self._dest = dest
        watcher.resume()


def share_of(hops: int, copies: int, routers: int, leading: int) -> int | None:
    """How many copies may follow a copy of a record; None if it is not copied at all.

    `copies` may be made of it, by so many routers of its topic, some of them leading on.
    """
    if hops >= HOPS_MAX:
        return None
    if hops == 0 or copies < 0:
        copies = COPIES_MAX
    elif copies < routers:
        return None
    return max(0, copies - routers) // max(leading, 1)


def _room(dest: Topic, records: Sequence[RawRecord]) -> int:
    """How many of the first records a destination takes that refuses when full; at least one."""
    count = len(records)
    if dest.config.discard != "reject":
        return count
    size = 0
    for at, record in enumerate(records):
        size += RECORD_OVERHEAD + len(record.data) + len(record.meta or b"")
        size += len(record.tag or "") + len(record.node or "")
        if dest.would_overflow(at + 1, size):
            return max(at, 1)
    return count


def find_cycle(edges: Iterable[tuple[str, str]], source: str, dest: str) -> list[str] | None:
    """The way from `source` through `dest` and back, if an edge between them closes one."""
    following: dict[str, list[str]] = {}
    for start, end in edges:
        following.setdefault(start, []).append(end)
    came_from: dict[str, str] = {dest: source}
    waiting = [dest]
    while waiting:
        here = waiting.pop()
        if here == source:
            path = [source]
            while path[-1] != dest:
                path.append(came_from[path[-1]])
            return [source, *reversed(path)]
        for end in following.get(here, ()):
            if end not in came_from:
                came_from[end] = here
                waiting.append(end)
    return None

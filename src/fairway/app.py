"""`Fairway`: the parts of the runtime over one data directory, and what the user declared.

Embedded in a process it needs no server; `fairway serve module:app` puts HTTP in front of the same
object. Entering it takes the data directory, recovers, and starts the services; leaving it stops
admitting, drains and closes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, overload

import msgspec

from fairway.core.lanes import LaneLimits
from fairway.errors import Closing, InvalidConfig
from fairway.runtime.telemetry import Telemetry
from fairway.storage.log import Log
from fairway.storage.reserve import DiskReserve
from fairway.storage.wals import wal_at
from fairway.storage.writer import WriterConfig
from fairway.topics.engine import Topics, TopicsConfig
from fairway.topics.match import TagMatch
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.topic import Gap
from fairway.topics.watching import View, Watcher
from fairway.topics.writing import NewBatch
from fairway.wire.topics import (
    Match,
    RouterConfig,
    TopicPatch,
    check_name,
    parse_records,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from types import TracebackType
    from typing import Self

    from fairway.storage.wal import Wal
    from fairway.topics.batch import Record as RawRecord
    from fairway.topics.outcome import Appended
    from fairway.topics.topic import Topic

T = TypeVar("T")

MIB: Final = 1024 * 1024
WRITER: Final = WriterConfig(total=LaneLimits(items=65_536, size=256 * MIB))
DATA: Final = "fairway-data"


class Record(NamedTuple, Generic[T]):
    """One record of a topic, its data as the topic's type."""

    seq: int
    ts: int
    data: T
    tag: str | None
    node: str | None
    meta: dict[str, Any] | None


class Lost(NamedTuple):
    """Seqs `first..last` are gone (cap, TTL, crash), and nobody asked for it."""

    first: int
    last: int
    reason: str


class Fairway:
    """A durable runtime in this process.

        app = Fairway()                       # ./fairway-data on SQLite
        orders = app.topic("orders", Order)

        async with app:
            await orders.append(Order(id=1))

    A directory has one owner: `AlreadyOwned` names the process that has it.
    """

    def __init__(
        self,
        place: str | Path | Wal = DATA,
        *,
        writer: WriterConfig = WRITER,
        topics: TopicsConfig | None = None,
    ) -> None:
        self.place = place
        self.telemetry = Telemetry()
        self._writer = writer
        self._topics_config = topics
        self._declared: dict[str, TopicHandle[Any]] = {}
        self._routers: dict[str, RouterConfig] = {}
        self._log: Log | None = None
        self._engine: Topics | None = None
        self._stack: AsyncExitStack | None = None

    @overload
    def topic(self, name: str, type: type[T], **config: Any) -> TopicHandle[T]: ...
    @overload
    def topic(self, name: str, **config: Any) -> TopicHandle[Any]: ...
    def topic(self, name: str, type: Any = Any, **config: Any) -> TopicHandle[Any]:
        """Declare a topic: what its records are, and its configuration (see `TopicConfig`).

        It is created, or configured so, when the app starts; asked for later, at its first use.
        """
        check_name(name)
        try:
            patch = msgspec.convert(config, TopicPatch)
        except msgspec.ValidationError as error:
            raise InvalidConfig(f"topic {name!r}: {error}") from None
        known = self._declared.get(name)
        if known is not None:
            asked = type is not Any or bool(config)
            if asked and (known.type, known.patch) != (type, patch):
                raise InvalidConfig(f"topic {name!r} is declared twice, and differently")
            return known
        handle: TopicHandle[Any] = TopicHandle(self, name, type, patch)
        self._declared[name] = handle
        return handle

    def route(self, source: str, dest: str, *, name: str | None = None, **config: Any) -> None:
        """Declare a router from one topic to another (see `RouterConfig`)."""
        router = msgspec.convert({"source": source, "dest": dest, **config}, RouterConfig)
        self._routers[name or f"{source}->{dest}"] = router

    @property
    def log(self) -> Log:
        """The log underneath, once the app is entered."""
        if self._log is None:
            raise Closing("the app is not running: enter it with `async with app:`")
        return self._log

    @property
    def topics(self) -> Topics:
        """The engine underneath, once the app is entered."""
        if self._engine is None:
            raise Closing("the app is not running: enter it with `async with app:`")
        return self._engine

    @property
    def progress(self) -> dict[str, object]:
        """How far recovery has come."""
        recovery = self._starting.recovery if self._starting is not None else None
        if recovery is None or not recovery.total:
            return {"replay_progress": 0.0}
        share = round(recovery.done / recovery.total, 3)
        return {"replay_progress": share, "topics": recovery.total}

    _starting: Topics | None = None

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            place = self.place
            wal = wal_at(place) if isinstance(place, str | Path) else place
            log = await stack.enter_async_context(
                Log(wal, writer=self._writer, telemetry=self.telemetry)
            )
            self._starting = Topics(
                log,
                config=self._topics_config,
                telemetry=self.telemetry,
                reserve=_reserve_of(place),
            )
            engine = await stack.enter_async_context(self._starting)
            for handle in self._declared.values():
                await engine.put(handle.name, handle.patch)
            for name, router in self._routers.items():
                for end in (router.source, router.dest):
                    if engine.find(end) is None:
                        await engine.create(end)
                await engine.put_router(name, router)
            self._log, self._engine = log, engine
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._stack is not None
        try:
            await self._stack.__aexit__(kind, error, trace)
        finally:
            self._log = self._engine = self._starting = None


def _reserve_of(place: object) -> DiskReserve | None:
    """Room kept back beside the data, where that is a directory of this machine."""
    path = Path(place) if isinstance(place, str | Path) else None
    return DiskReserve(path / "reserve") if path is not None and path.is_dir() else None


class TopicHandle(Generic[T]):
    """One topic, typed: what is appended is encoded, what is read is decoded and checked."""

    def __init__(self, app: Fairway, name: str, type: Any, patch: TopicPatch) -> None:
        self.name = name
        self.type = type
        self.patch = patch
        self._app = app
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type)

    def __repr__(self) -> str:
        return f"TopicHandle({self.name!r})"

    async def append(
        self,
        *values: T,
        tag: str | None = None,
        node: str | None = None,
        meta: dict[str, Any] | None = None,
        key: str | None = None,
        wait_for_room: bool = False,
    ) -> Appended:
        """Append values, all or none of them, and return once they are as durable as configured.

        Raises `Backpressure` or `Throttled` (nothing happened; they say when to come back),
        `TopicFull`, `WriteFailed`, or `OutcomeUnknown`. With `key` a repeat changes nothing.
        """
        encode = msgspec.json.encode
        extra = b""
        if tag is not None:
            extra += b',"tag":' + encode(tag)
        if meta is not None:
            extra += b',"meta":' + encode(meta)
        raw = b"[%b]" % b",".join(b'{"data":%b%b}' % (encode(value), extra) for value in values)
        raw, records = parse_records(raw)
        new = NewBatch(raw=raw, records=records, node=node, key=key, patient=wait_for_room)
        _, appended, _ = await self._app.topics.append(self.name, new, config=self.patch)
        return appended

    async def read(
        self,
        from_seq: int = 0,
        *,
        limit: int = 256,
        node: str | None = None,
        match: Match | None = None,
        wait_s: float = 0.0,
    ) -> Read[T]:
        """What comes after `from_seq`; waits up to `wait_s` if nothing does."""
        if self._app.topics.find(self.name) is None:
            await self._app.topics.create(self.name, self.patch)
        answer = await self._app.topics.diff(
            self.name,
            from_seq,
            limit=limit,
            selection=_selection(node, match),
            wait_ns=round(wait_s * 1e9),
        )
        topic, page, recreated = answer
        gap = page.gap
        lost = Lost(gap.first, gap.last, gap.reason) if gap is not None else None
        if recreated:
            lost = Lost(1, topic.evict_floor - 1, "recreated")
        return Read(
            [self._record(record) for record in page.records],
            lost,
            page.next_seq,
            page.next_seq >= topic.head,
        )

    async def watch(
        self, from_seq: int = 0, *, node: str | None = None, match: Match | None = None
    ) -> AsyncIterator[Record[T] | Lost]:
        """Every record after `from_seq`, then every new one as it comes; `Lost` for a gap.

        Ends when the topic is deleted. A reader that is slow falls behind and catches up from the
        log: it costs nobody else anything.
        """
        engine = self._app.topics
        topic = engine.find(self.name)
        if topic is None:
            topic, _ = await engine.create(self.name, self.patch)
        inbox = _Inbox()
        watcher = engine.watch(
            topic, View(_PLAIN, _selection(node, match)), inbox, min(from_seq, topic.head)
        )
        try:
            while True:
                frame = await inbox.take()
                if frame is _DELETED:
                    return
                if isinstance(frame, Gap):
                    yield Lost(frame.first, frame.last, frame.reason)
                else:
                    for record in frame:
                        yield self._record(record)
        finally:
            engine.unwatch(watcher)

    async def delete(self, *, before_seq: int | None = None, match: Match | None = None) -> int:
        """Delete records that are there now, for good; returns how many."""
        tags = TagMatch.of(match) if match is not None else None
        _, count = await self._app.topics.delete_records(
            self.name, before_seq=before_seq, match=tags
        )
        return count

    @property
    def state(self) -> Topic:
        """Where the topic is now: `head`, `earliest`, `count`, `bytes`, `config`."""
        return self._app.topics.get(self.name)

    def _record(self, record: RawRecord) -> Record[T]:
        return Record(
            record.seq,
            record.ts,
            self._decoder.decode(record.data),
            record.tag,
            record.node,
            msgspec.json.decode(record.meta) if record.meta is not None else None,
        )


class Read(NamedTuple, Generic[T]):
    """A page of records. `lost` comes before them."""

    records: list[Record[T]]
    lost: Lost | None
    next_seq: int
    caught_up: bool


def _selection(node: str | None, match: Match | None) -> Selection:
    return Selection(
        frozenset((node,)) if node is not None else NO_NODES,
        TagMatch.of(match) if match is not None else None,
    )


_DELETED: Final = object()


class _PlainEncoder:
    """Frames as they are: for readers in this process."""

    def records(
        self, topic: Topic, records: Sequence[RawRecord], from_seq: int, to_seq: int, view: View
    ) -> Sequence[RawRecord]:
        return records

    def gap(self, topic: Topic, gap: Gap) -> Gap:
        return gap

    def caught_up(self, topic: Topic) -> None:
        return None

    def deleted(self, topic: Topic) -> object:
        return _DELETED


_PLAIN: Final = _PlainEncoder()


class _Inbox:
    """The sink of a reader in this process: a few frames, then it falls behind."""

    FRAMES_MAX = 64

    def __init__(self) -> None:
        self._frames: deque[Any] = deque()
        self._came = asyncio.Event()
        self._stalled: Watcher | None = None

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        if len(self._frames) >= self.FRAMES_MAX and frame is not _DELETED:
            self._stalled = watcher
            return False
        self._frames.append(frame)
        self._came.set()
        return True

    async def take(self) -> Any:
        while not self._frames:
            self._came.clear()
            await self._came.wait()
        frame = self._frames.popleft()
        if self._stalled is not None and len(self._frames) <= self.FRAMES_MAX // 2:
            stalled, self._stalled = self._stalled, None
            stalled.resume()
        return frame

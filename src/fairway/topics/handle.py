"""A topic as an app of this process holds it: typed, and without a server between."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing
from inspect import isawaitable
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from fairway.errors import BadRecord, FairwayError, InvalidRequest
from fairway.runtime.words import brief
from fairway.topics.match import TagMatch
from fairway.topics.outcome import Appended
from fairway.topics.reading import NO_NODES, Selection
from fairway.topics.topic import Gap
from fairway.topics.watching import SharedView, Watcher
from fairway.topics.writing import NewBatch
from fairway.wire.encoding import NOT_JSON, check_numbers
from fairway.wire.events import TombstoneEvent
from fairway.wire.records import check_tag, parse_records
from fairway.wire.topics import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    WAIT_MS_MAX,
    DeleteRequest,
    DiffRequest,
    Match,
    TopicPatch,
    check_writer,
    match_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
    from typing import Self

    from fairway.topics.batch import RawRecord
    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic
    from fairway.wire.topics import AppendReply

logger = logging.getLogger("fairway.topics")

T = TypeVar("T")
M = TypeVar("M")

MS_NS: Final = 1_000_000


class RemoteRecord(Protocol):
    """A record as a client has it."""

    @property
    def seq(self) -> int: ...
    @property
    def ts(self) -> int: ...
    @property
    def data(self) -> Any: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def node(self) -> str | None: ...
    @property
    def meta(self) -> dict[str, Any] | None: ...
    @property
    def epoch(self) -> int: ...


class RemotePage(Protocol):
    """A page of records as a client has it."""

    @property
    def records(self) -> Sequence[RemoteRecord]: ...
    @property
    def next_from_seq(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def caught_up(self) -> bool: ...
    @property
    def tombstone(self) -> TombstoneEvent | None: ...
    @property
    def bad(self) -> tuple[BadRecord, ...]: ...


class RemoteTopics(Protocol):
    """Topics of a running server, for a process that does not own the log. Values are as typed.

    `fairway.client.ServerTopics` fills it. `config` is how to make a topic that is not there.
    """

    async def append(
        self, name: str, values: Sequence[Any], *, config: TopicPatch, **options: Any
    ) -> AppendReply: ...

    async def read(
        self, name: str, type: Any, asked: DiffRequest, *, config: TopicPatch
    ) -> RemotePage: ...

    def watch(
        self, name: str, type: Any, asked: DiffRequest, *, config: TopicPatch, touch: bool = True
    ) -> AsyncGenerator[RemoteRecord | TombstoneEvent | BadRecord, None]: ...

    async def delete(self, name: str, asked: DeleteRequest) -> int: ...


class HasTopics(Protocol):
    """An app: it has the engine while it runs, or a way to a server that does."""

    @property
    def topics(self) -> Topics: ...

    @property
    def remote_topics(self) -> RemoteTopics | None: ...


class Record(NamedTuple, Generic[T]):
    """One record of a topic, its data as the topic's type."""

    seq: int
    ts: int
    data: T
    tag: str | None
    node: str | None
    meta: dict[str, Any] | None
    epoch: int
    """Of which incarnation of the topic it is. Keep it with the seq."""


class Lost(NamedTuple):
    """Seqs `first..last` are gone (cap, TTL, crash), and nobody asked for it."""

    first: int
    last: int
    reason: str


class TopicHandle(Generic[T]):
    """One topic, typed: what is appended is encoded, what is read is decoded and checked.

    The type is a promise of this handle alone: over HTTP anybody with a key may append what does
    not fit it. Such a record comes as `BadRecord`, and nobody stops at it.
    """

    def __init__(self, app: HasTopics, name: str, type: Any, patch: TopicPatch) -> None:
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

        Raises `InvalidRequest` for what is not JSON, `nan` and `inf` included; `Backpressure` or
        `Throttled` (nothing happened; they say when to come back), `TopicFull`, `WriteFailed`, or
        `OutcomeUnknown`. With `key` a repeat changes nothing.
        """
        if (remote := self._app.remote_topics) is not None:
            reply = await remote.append(
                self.name,
                values,
                tag=tag,
                node=node,
                meta=meta,
                key=key,
                config=self.patch,
                wait_for_room=wait_for_room,
            )
            return Appended(reply.first_seq, reply.last_seq, reply.deduped)
        check_writer(node, key)
        check_tag(tag)
        encode = msgspec.json.encode
        extra = b""
        try:
            if tag is not None:
                extra += b',"tag":' + encode(tag)
            if meta is not None:
                extra += b',"meta":' + encode(meta)
            raw = b"[%b]" % b",".join(b'{"data":%b%b}' % (encode(value), extra) for value in values)
            check_numbers(raw, (values, tag, meta))
        except NOT_JSON as error:
            raise InvalidRequest(f"topic {self.name!r}: a value is not JSON: {error}") from None
        new = NewBatch(records=parse_records(raw), node=node, key=key, wait_for_room=wait_for_room)
        _, appended, _ = await self._app.topics.append(self.name, new, config=self.patch)
        return appended

    async def read(
        self,
        from_seq: int = 0,
        *,
        epoch: int | None = None,
        limit: int = LIMIT_DEFAULT,
        node: str | None = None,
        match: Match | None = None,
        wait_s: float = 0.0,
    ) -> Read[T]:
        """What comes after `from_seq`; waits up to `wait_s`, 30 seconds at most, if nothing does.

        `epoch` is that of the incarnation `from_seq` was read from. If the topic is another one by
        now, `lost` says that it was recreated, and the page begins at its start. Without it, that
        is noticed only if the topic has not come to `from_seq`.

        `node` leaves out that node's own records. `match` is a tag, or a prefix such as "eu.*".
        `limit` is how many records are looked at, 1,000 at most.
        """
        asked = _asked(from_seq, epoch=epoch, limit=limit, node=node, match=match, wait_s=wait_s)
        if (remote := self._app.remote_topics) is not None:
            return _read(await remote.read(self.name, self.type, asked, config=self.patch))
        known = self._app.topics.find(self.name)
        if known is None:
            known, _ = await self._app.topics.create(self.name, self.patch)
        answer = await self._app.topics.reading.diff(
            self.name,
            from_seq,
            epoch=epoch,
            limit=asked.limit,
            selection=_selection(known, asked),
            wait_ns=asked.wait_ms * MS_NS,
        )
        topic, page, recreated = answer
        gap = page.gap
        lost = Lost(gap.first, gap.last, gap.reason) if gap is not None else None
        if recreated:
            lost = (lost or Lost(1, 0, ""))._replace(reason="recreated")
        now = abs(topic.epoch)  # negative if it was deleted meanwhile
        found = [self._record(record, now) for record in page.records]
        bad = tuple(one for one in found if isinstance(one, BadRecord))
        return Read(
            [one for one in found if not isinstance(one, BadRecord)],
            lost,
            page.next_seq,
            page.next_seq >= topic.head,
            now,
            bad,
        )

    def watch(
        self,
        from_seq: int = 0,
        *,
        epoch: int | None = None,
        node: str | None = None,
        match: Match | None = None,
        touch: bool = True,
        on_bad_record: Callable[[BadRecord], object] | None = None,
    ) -> TopicWatch[T]:
        """Every record after `from_seq`, then every new one as it comes; `Lost` for a gap.

        A `from_seq` of another `epoch`, or one that the topic has not come to, is of another topic
        of that name: `Lost` says that it was recreated, and all of this one follows. Ends when the
        topic is deleted. A reader that is slow falls behind and catches up from the log: it costs
        nobody else anything. Without `touch` it does not count as consuming: the topic's automatic
        priority stays.

        A record that does not fit the type raises `BadRecord`, which names topic and seq, and
        iterating over the same watch again goes on behind it. With `on_bad_record` that is called,
        awaited if it can be, and the watch goes on by itself.
        """
        items = self._items(from_seq, epoch=epoch, node=node, match=match, touch=touch)
        return TopicWatch(items, on_bad_record)

    async def _items(
        self,
        from_seq: int,
        *,
        epoch: int | None,
        node: str | None,
        match: Match | None,
        touch: bool,
    ) -> AsyncGenerator[Record[T] | Lost | BadRecord, None]:
        asked = _asked(from_seq, epoch=epoch, node=node, match=match)
        if (remote := self._app.remote_topics) is not None:
            watch = remote.watch(self.name, self.type, asked, config=self.patch, touch=touch)
            async with aclosing(watch) as items:
                async for item in items:
                    if isinstance(item, TombstoneEvent):
                        yield _lost(item)
                    else:
                        yield item if isinstance(item, BadRecord) else _record(item)
            return
        engine = self._app.topics
        topic = engine.find(self.name)
        if topic is None:
            topic, _ = await engine.create(self.name, self.patch)
        inbox = _Inbox()
        view = SharedView(_IN_PROCESS, _selection(topic, asked), touch=touch)
        now = topic.epoch
        recreated = epoch not in (None, now) or from_seq > topic.assigned
        start = topic.evict_floor - 1 if recreated else min(from_seq, topic.head)
        watcher = engine.watch(topic, view, inbox, start)
        when_lost = engine.kernel.partitions.when_lost
        when_lost.append(inbox.fail)
        try:
            if recreated:
                yield Lost(1, start, "recreated")
            while True:
                frame = await inbox.take()
                engine.check_owned()
                if frame is _DELETED:
                    return
                if isinstance(frame, Gap):
                    yield Lost(frame.first, frame.last, frame.reason)
                else:
                    for record in frame:
                        yield self._record(record, now)
        finally:
            engine.unwatch(watcher)
            when_lost.remove(inbox.fail)

    async def delete(
        self,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        seq: int | None = None,
    ) -> int:
        """Delete records that are there now, for good; returns how many.

        Below a seq, of a tag (or of tags with a prefix such as "eu.*"), the one of a seq, or where
        all that is asked holds. Raises `NotFound` if there is no such topic: there is nothing to
        make it for.
        """
        asked = _checked(DeleteRequest, before_seq=before_seq, match=match_of(match), seq=seq)
        if (remote := self._app.remote_topics) is not None:
            return await remote.delete(self.name, asked)
        _, count = await self._app.topics.delete_records(
            self.name, before_seq=before_seq, match=_tags(asked.match), seq=seq
        )
        return count

    @property
    def state(self) -> Topic:
        """Where the topic is now: `head`, `earliest`, `count`, `bytes`, `config`.

        For the process that has the log; in `fairway worker` it raises `Closing`.
        """
        self._app.topics.check_owned()
        return self._app.topics.get(self.name)

    def _record(self, record: RawRecord, epoch: int) -> Record[T] | BadRecord:
        what = ""
        try:
            data = self._decoder.decode(record.data)
            what = "meta: "  # which can be of a time when any number was taken there
            meta = msgspec.json.decode(record.meta) if record.meta is not None else None
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"{what}{error}"
            return BadRecord(self.name, record.seq, epoch, bytes(record.data), reason)
        return Record(record.seq, record.ts, data, record.tag, record.node, meta, epoch)


class TopicWatch(Generic[T]):
    """Records of a topic as they come. It outlives a record that does not fit its type."""

    def __init__(
        self,
        items: AsyncGenerator[Record[T] | Lost | BadRecord, None],
        on_bad_record: Callable[[BadRecord], object] | None,
    ) -> None:
        self._items = items
        self._on_bad_record = on_bad_record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[T] | Lost:
        while True:
            item = await anext(self._items)
            if not isinstance(item, BadRecord):
                return item
            if self._on_bad_record is None:
                raise item
            answer = self._on_bad_record(item)
            if isawaitable(answer):
                await answer

    async def aclose(self) -> None:
        """Stop following."""
        await self._items.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


async def consumed(
    engine: Topics, name: str, epoch: int | None, from_seq: int
) -> AsyncIterator[tuple[int, list[tuple[int, bytes]]]]:
    """Records of a topic for a part that keeps its own position: the epoch, seqs and raw data.

    Comes after watchers and is deferred under pressure, as routers are. A position in another
    incarnation of the topic begins at the start of this one. Ends when the topic is deleted.
    """
    topic = engine.get(name)
    start = from_seq if epoch == topic.epoch else 0
    inbox = _Inbox()
    watcher = engine.consume(
        topic, SharedView(_IN_PROCESS, Selection(NO_NODES, None)), inbox, start
    )
    try:
        while True:
            frame = await inbox.take()
            if frame is _DELETED:
                return
            if isinstance(frame, Gap):
                logger.warning(
                    "%s: %d..%d are gone (%s)", name, frame.first, frame.last, frame.reason
                )
            elif frame:
                yield topic.epoch, [(record.seq, record.data) for record in frame]
    finally:
        engine.unwatch(watcher)


class Read(NamedTuple, Generic[T]):
    """A page of records. `lost` comes before them."""

    records: list[Record[T]]
    lost: Lost | None
    next_seq: int
    caught_up: bool
    epoch: int
    """Of which incarnation of the topic `next_seq` is."""
    bad: tuple[BadRecord, ...] = ()
    """Records that do not fit the topic's type; they are not among `records`."""


def _read(page: RemotePage) -> Read[Any]:
    return Read(
        [_record(one) for one in page.records],
        _lost(page.tombstone) if page.tombstone is not None else None,
        page.next_from_seq,
        page.caught_up,
        page.epoch,
        page.bad,
    )


def _record(one: RemoteRecord) -> Record[Any]:
    return Record(one.seq, one.ts, one.data, one.tag, one.node, one.meta, one.epoch)


def _lost(gone: TombstoneEvent) -> Lost:
    return Lost(gone.gap_from, gone.gap_to, gone.reason)


def _asked(
    from_seq: int,
    *,
    epoch: int | None,
    limit: int = LIMIT_DEFAULT,
    node: str | None,
    match: Match | None,
    wait_s: float = 0.0,
) -> DiffRequest:
    """What a reader asks for, refused or brought into its range as it is over HTTP."""
    if not isinstance(node, str | None):
        raise InvalidRequest(f"node is one name, not {node!r}")
    if not isinstance(wait_s, int | float) or not isfinite(wait_s):
        raise InvalidRequest(f"wait_s is a number of seconds, not {brief(wait_s)}")
    asked = _checked(
        DiffRequest,
        from_seq=from_seq,
        epoch=epoch,
        limit=limit,
        node=node,
        match=match_of(match),
        wait_ms=round(wait_s * 1000),
    )
    _tags(asked.match)  # refused before a topic is made for it
    return msgspec.structs.replace(
        asked,
        limit=min(asked.limit or LIMIT_DEFAULT, LIMIT_MAX),
        wait_ms=min(asked.wait_ms, WAIT_MS_MAX),
    )


def _checked(message: type[M], **fields: Any) -> M:
    """A message that can be sent, or `InvalidRequest` in the words of whoever would get it."""
    try:
        return msgspec.convert(fields, message)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None


def _selection(topic: Topic, asked: DiffRequest) -> Selection:
    nodes = NO_NODES
    if isinstance(asked.node, str) and topic.config.dedupe_node:
        nodes = frozenset((asked.node,))
    return Selection(nodes, _tags(asked.match))


def _tags(match: Match | None) -> TagMatch | None:
    return TagMatch.of(match) if match is not None else None


_DELETED: Final = object()


class _InProcessEncoder:
    """Frames as they are: for readers in this process."""

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

    def deleted(self, topic: Topic) -> object:
        return _DELETED


_IN_PROCESS: Final = _InProcessEncoder()


INBOX_FRAMES_MAX: Final = 64
"""Frames that wait for a reader in this process; with more it falls behind, and catches up from the
log. Raising it rides out longer pauses of a reader without reading again, and costs memory."""
INBOX_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of records in them, in the same way. The frame that passes it is taken."""


class _Inbox:
    """The sink of a reader in this process: a few frames, then it falls behind."""

    def __init__(self) -> None:
        self._frames: deque[tuple[Any, int]] = deque()  # with their sizes
        self._bytes = 0  # but for the first: a reader that keeps up costs no counting
        self._came = asyncio.Event()
        self._stalled: Watcher | None = None
        self._failure: FairwayError | None = None

    def fail(self, error: FairwayError) -> None:
        """Nothing more comes: `take` raises this."""
        self._failure = error
        self._came.set()

    def write(self, watcher: Watcher, frame: Any, to_seq: int) -> bool:
        size = 0
        if self._frames:
            full = len(self._frames) >= INBOX_FRAMES_MAX or self._bytes >= INBOX_BYTES_MAX
            if full and frame is not _DELETED:
                self._stalled = watcher
                return False
            if frame is not _DELETED and not isinstance(frame, Gap):
                size = sum([len(record.data) + len(record.meta or b"") for record in frame])
                self._bytes += size
        self._frames.append((frame, size))
        self._came.set()
        return True

    async def take(self) -> Any:
        while not self._frames:
            if self._failure is not None:
                raise self._failure.again()
            self._came.clear()
            await self._came.wait()
        frame, size = self._frames.popleft()
        self._bytes -= size
        if (
            self._stalled is not None
            and len(self._frames) <= INBOX_FRAMES_MAX // 2
            and self._bytes <= INBOX_BYTES_MAX // 2
        ):
            stalled, self._stalled = self._stalled, None
            stalled.resume()
        return frame

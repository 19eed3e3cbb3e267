# Generated from aio/topics.py: edit that one, then run `make client`.
"""One topic of a server, and following it. A thin shell: others decide, this one waits."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx

from fairway.client import protocol
from fairway.client.bulk import BATCH_RECORDS, Bulk
from fairway.client.exchange import AUTO, Auto
from fairway.client.faces import each, notify
from fairway.client.following import HEARTBEAT_MS, Follower, OneTopic, Places, silence_s
from fairway.client.records import NewRecord, Record, RecordDecoder
from fairway.client.retry import Fail, WatchAttempts, ended
from fairway.client.sweep import Sweep
from fairway.errors import BadRecord, FairwayError, NotFound, Unavailable
from fairway.wire.topics import LIMIT_DEFAULT, LIMIT_MAX, READ_BYTES_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from fairway.client.bulk import Progress
    from fairway.client.faces import Values
    from fairway.client.following import Item
    from fairway.client.protocol import Call
    from fairway.client.records import Page, Position
    from fairway.client.sync.client import Client
    from fairway.wire.events import TombstoneEvent
    from fairway.wire.topics import (
        AppendReply,
        DeleteReply,
        DeleteTopicReply,
        Match,
        PutTopicReply,
        TopicOptions,
        TopicPatch,
        TopicState,
    )

    OnTombstone = Callable[[TombstoneEvent], object]
    OnBadRecord = Callable[[BadRecord], object]
    OnDisconnect = Callable[[FairwayError], object]

T = TypeVar("T")


class TopicHandle(Generic[T]):
    """One topic of a server, typed."""

    def __init__(self, client: Client, name: str, type: Any) -> None:
        self.name = name
        self._client = client
        self._decoder: RecordDecoder[T] = RecordDecoder(type)

    def __repr__(self) -> str:
        return f"TopicHandle({self.name!r})"

    def append(
        self,
        *values: T | NewRecord,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        key: str | Auto | None = AUTO,
        create: bool | None = None,
        config: Mapping[str, Any] | TopicPatch | None = None,
        wait_for_room: bool = False,
    ) -> AppendReply:
        """Append values, all or none of them; they are as durable as the topic is configured.

        A value is anything msgspec can encode, or a `NewRecord` with its own tag, node or meta.
        `key` makes a repeat change nothing for the topic's `idempotency_window_ms`; the client
        makes one for each call, so that it can repeat itself. With `key=None` there is none: then
        a connection lost on the way raises `OutcomeUnknown` at once. `create` says whether a
        topic that is not there is made, and `config` how.

        Raises `InvalidRequest` for what is not JSON, `nan` and `inf` included; `TopicFull`,
        `Throttled` and `Unavailable` (past the deadline), `OutcomeUnknown`.
        """
        return self._client.call(
            protocol.append(
                self.name,
                values,
                tag=tag,
                node=node,
                meta=meta,
                key=self._client._exchange.key_for(key),
                create=create,
                config=config,
                wait_for_room=wait_for_room,
            )
        )

    def append_many(
        self,
        values: Values[T | NewRecord],
        *,
        batch: int = BATCH_RECORDS,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        key: str | Auto | None = AUTO,
        create: bool | None = None,
        config: Mapping[str, Any] | TopicPatch | None = None,
        start: int = 0,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> Progress:
        """Append any number of values, in order, in batches that are each all or none.

        `on_progress` is told after each batch. A run that failed is gone on with by the rest of
        the values, the same `key` and `batch`, and `start` as the number of records that were
        acknowledged: whatever of the failed batch was stored is then not stored twice.
        """
        bulk = Bulk(
            self.name,
            batch=batch,
            tag=tag,
            node=node,
            meta=meta,
            key=self._client._exchange.key_for(key),
            create=create,
            config=config,
            start=start,
        )
        try:
            for call in _calls(bulk, values):
                progress = bulk.acknowledged(self._client.call(call))
                if on_progress is not None:
                    notify(on_progress, progress)
        except Exception as error:
            bulk.failed(error)
            raise
        return bulk.progress

    def diff(
        self,
        from_seq: int | Position = 0,
        *,
        limit: int = LIMIT_DEFAULT,
        wait_ms: int = 0,
        node: str | Sequence[str] | None = None,
        match: Match | None = None,
        max_batch_bytes: int = READ_BYTES_DEFAULT,
    ) -> Page[T]:
        """One page of what comes after a cursor, waiting up to `wait_ms` if nothing does.

        `node` leaves out that node's own records. `match` is a tag, or a prefix such as "eu.*".
        Given a `Position`, a topic that was made anew since is told by a tombstone.
        """
        return self._client.call(
            protocol.diff(
                self.name,
                self._decoder,
                from_seq,
                limit=limit,
                wait_ms=wait_ms,
                node=node,
                match=match,
                max_batch_bytes=max_batch_bytes,
            )
        )

    def read(
        self,
        from_seq: int | Position = 0,
        *,
        node: str | Sequence[str] | None = None,
        match: Match | None = None,
        on_tombstone: OnTombstone | None = None,
        on_bad_record: OnBadRecord | None = None,
        page_size: int = LIMIT_MAX,
    ) -> Iterator[Record[T]]:
        """Every record there is now after a cursor; what comes meanwhile is left for later.

        A record that does not fit its type raises `BadRecord`; `on_bad_record` is told instead, and
        the others follow.
        """
        sweep = Sweep(self.name, self._decoder, from_seq, limit=page_size, node=node, match=match)
        while (call := sweep.next_call()) is not None:
            page = self._client.call(call)
            if page.tombstone is not None and on_tombstone is not None:
                notify(on_tombstone, page.tombstone)
            for found in sweep.take(page):
                if not isinstance(found, BadRecord):
                    yield found
                elif on_bad_record is None:
                    raise found
                else:
                    notify(on_bad_record, found)

    def watch(
        self,
        from_seq: int | Position = 0,
        *,
        tail: bool = False,
        node: str | None = None,
        match: Match | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        touch: bool = True,
        on_tombstone: OnTombstone | None = None,
        on_bad_record: OnBadRecord | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> Watch[T]:
        """Every record after a cursor, then every new one as it comes; with `tail`, only those.

        The connection is opened by the first record that is asked for, or by `with`. When it
        breaks, or has been silent for two heartbeats, it is opened again where it was, for as
        long as it takes: no record comes twice, and what is lost is told to `on_tombstone`. The
        watch ends when the topic is deleted. Without `touch` it does not count as consuming: the
        topic's automatic priority stays. A record that does not fit its type raises `BadRecord`,
        and iterating again goes on behind it; `on_bad_record` is told instead.
        """
        places = Places()
        plan = OneTopic(
            self.name,
            "tail" if tail else from_seq,
            places,
            node=node,
            match=match,
            heartbeat_ms=heartbeat_ms,
            touch=touch,
        )
        return Watch(
            self._client,
            Follower(plan, self._decoder, places),
            silence_s=silence_s(heartbeat_ms),
            on_tombstone=on_tombstone,
            on_bad_record=on_bad_record,
            on_disconnect=on_disconnect,
        )

    def state(self) -> TopicState:
        return self._client.call(protocol.state(self.name))

    def put(self, **config: Unpack[TopicOptions]) -> PutTopicReply:
        """Create the topic, or change these fields of its configuration (see `TopicConfig`)."""
        return self._client.call(protocol.put_topic(self.name, config))

    def delete_records(
        self,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        seq: int | None = None,
    ) -> DeleteReply:
        """Delete records that are there now: below a seq, of a tag, of one seq, or where all that
        is asked holds."""
        return self._client.call(
            protocol.delete_records(self.name, before_seq=before_seq, match=match, seq=seq)
        )

    def delete(self, *, if_empty: bool = False) -> DeleteTopicReply:
        """Delete the topic, all it holds, and the routers that name it."""
        return self._client.call(protocol.delete_topic(self.name, if_empty=if_empty))


class Watch(Generic[T]):
    """Records as they come. Iterate over it; leaving the loop closes the connection.

    Iterating again goes on where it was. A record that does not fit its type raises, and the next
    iteration goes on after it.
    """

    def __init__(
        self,
        client: Client,
        follower: Follower[T],
        *,
        silence_s: float,
        on_tombstone: OnTombstone | None,
        on_bad_record: OnBadRecord | None,
        on_disconnect: OnDisconnect | None,
    ) -> None:
        self._client = client
        self._follower = follower
        self._silence_s = silence_s
        self._on_tombstone = on_tombstone
        self._on_bad_record = on_bad_record
        self._on_disconnect = on_disconnect
        self._attempts: WatchAttempts | None = None
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes]

    @property
    def positions(self) -> dict[str, Position]:
        """How far each topic was handed out: what a later process begins with."""
        return dict(self._follower.delivered)

    def __iter__(self) -> Iterator[Record[T]]:
        with closing(self.items()) as items:
            for item in items:
                if isinstance(item, Record):
                    yield item
                elif self._on_tombstone is not None:
                    notify(self._on_tombstone, item)

    def items(self) -> Generator[Item[T], None]:
        """The same with tombstones in their place, which `on_tombstone` is then not told."""
        try:
            while True:
                try:
                    item = self._follower.next_nowait()
                except BadRecord as bad:
                    if self._on_bad_record is None:
                        raise
                    notify(self._on_bad_record, bad)
                    continue
                if item is not None:
                    yield item
                elif self._follower.ended:
                    return
                else:
                    self._advance()
        finally:
            self.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect now, and not when the first record is asked for."""
        while self._response is None and not self._follower.ended:
            self._advance()

    def close(self) -> None:
        """Drop the connection. What has come and was not handed out is kept."""
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _advance(self) -> None:
        """One step: open the stream, read a piece of it, or wait for the server."""
        exchange = self._client._exchange
        if self._attempts is None:
            self._attempts = WatchAttempts(exchange.retry, exchange.random, exchange.clock.now_ns())
        try:
            if self._response is None:
                self._open()
            else:
                self._read()
        except FairwayError as error:
            self.close()
            if isinstance(error, NotFound):
                self._follower.missing(error)
                if self._follower.ended:
                    return
                error = Unavailable(str(error))
            decision = self._attempts.failed(error, exchange.clock.now_ns(), met=exchange.met)
            if isinstance(decision, Fail):
                raise decision.error from error.__cause__
            if self._follower.opened and self._on_disconnect is not None:
                notify(self._on_disconnect, error)
            exchange.clock.sleep_ns(decision.after_ns)

    def _open(self) -> None:
        assert self._attempts is not None
        follower = self._follower
        while (call := follower.plan.prepare()) is not None:
            if not follower.plan.prepared(self._client.once(call)):
                follower.ended = True
                return
        self._response = self._client.open_stream(follower.stream(), self._silence_s)
        self._chunks = self._response.iter_raw()
        follower.open()
        self._attempts.opened()

    def _read(self) -> None:
        assert self._attempts is not None
        try:
            chunk = next(self._chunks, None)
        except httpx.HTTPError as error:
            raise self._client._exchange.lost(error) from error
        if chunk is None:
            raise ended(self._client.url)
        if self._follower.feed(chunk):
            self._attempts.worked()
        self._attempts.retry_ms = self._follower.retry_ms


def _calls(bulk: Bulk, values: Values[Any]) -> Iterator[Call[AppendReply]]:
    for value in each(values):
        call = bulk.add(value)
        while call is not None:
            yield call
            call = bulk.rest()
    call = bulk.finish()
    while call is not None:
        yield call
        call = bulk.rest()

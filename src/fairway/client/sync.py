"""`Client`: a running server from ordinary Python. A thin shell: others decide, this one waits."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import httpx

from fairway.client import protocol
from fairway.client.bulk import BATCH_RECORDS, Bulk
from fairway.client.exchange import AUTO, TIMEOUT_S, Auto, Exchange
from fairway.client.following import (
    HEARTBEAT_MS,
    Follower,
    ManyTopics,
    OneTopic,
    Places,
    silence_s,
)
from fairway.client.graphs import RemoteGraphs
from fairway.client.jobs import RemoteJobs
from fairway.client.records import NewRecord, Record, RecordDecoder
from fairway.client.retry import Answer, Fail, Patience, ended
from fairway.client.sweep import Sweep
from fairway.errors import BadRecord, FairwayError, NotFound, Unavailable
from fairway.wire.topics import LIMIT_DEFAULT, LIMIT_MAX, READ_BYTES_DEFAULT

if TYPE_CHECKING:
    import random
    import ssl
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from fairway.client.bulk import Progress
    from fairway.client.clock import ClientClock
    from fairway.client.following import Item, Stream
    from fairway.client.problems import NoReply, Reply
    from fairway.client.protocol import Call
    from fairway.client.records import Cursor, Page, Position
    from fairway.client.retry import RetryConfig
    from fairway.wire.events import TombstoneEvent
    from fairway.wire.server import Readiness, TicketReply
    from fairway.wire.topics import (
        AppendReply,
        DeleteReply,
        DeleteRouterReply,
        DeleteTopicReply,
        Match,
        PutRouterReply,
        PutTopicReply,
        RouterOptions,
        RouterState,
        TopicOptions,
        TopicPatch,
        TopicState,
        TopicSummary,
    )

    OnTombstone = Callable[[TombstoneEvent], object]
    OnBadRecord = Callable[[BadRecord], object]
    OnDisconnect = Callable[[FairwayError], object]

T = TypeVar("T")


class Client:
    """A server, by its URL. Threads may share one.

        with Client() as client:
            orders = client.topic("orders", Order)
            orders.append(Order(id=1))
            for record in orders.watch():
                ...

    `url` and `key` default to `FAIRWAY_URL` and `FAIRWAY_API_KEY`. Refusals (429 and 503) and
    lost connections are tried again as `retry` says, for 30 s by default; an append whose answer
    was lost only under an idempotency key, which the client makes unless told not to.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        retry: RetryConfig | None = None,
        timeout_s: float = TIMEOUT_S,
        verify: ssl.SSLContext | bool = True,
        transport: httpx.BaseTransport | None = None,
        clock: ClientClock | None = None,
        source: random.Random | None = None,
    ) -> None:
        self._exchange = Exchange(
            url, key, retry=retry, timeout_s=timeout_s, clock=clock, source=source
        )
        self._http = httpx.Client(**self._exchange.client_options(verify, transport))
        self.jobs = RemoteJobs(self)
        """Enqueue jobs, follow and steer them."""
        self.graphs = RemoteGraphs(self)
        """Look at graphs, push, fire and steer them."""

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop every connection."""
        self._http.close()

    @property
    def url(self) -> str:
        return self._exchange.url

    # Topics

    @overload
    def topic(self, name: str, type: type[T]) -> TopicHandle[T]: ...
    @overload
    def topic(self, name: str, type: Any = Any) -> TopicHandle[Any]: ...
    def topic(self, name: str, type: Any = Any) -> TopicHandle[Any]:
        """A topic by name. What is read from it is decoded as `type`. Asks the server nothing."""
        return TopicHandle(self, name, type)

    def topics(self, prefix: str = "", *, page_size: int = protocol.PAGE) -> Iterator[TopicSummary]:
        """Every topic whose name begins with `prefix`, in order of their names."""
        cursor: str | None = None
        while True:
            page = self.call(protocol.list_topics(prefix, page_size, cursor))
            yield from page.topics
            if not (cursor := page.next_cursor or None):
                return

    @overload
    def watch(
        self,
        topics: Mapping[str, Cursor] | Iterable[str] = (),
        *,
        prefix: str | None = None,
        type: type[T],
        node: str | None = None,
        match: Match | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        touch: bool = True,
        on_tombstone: OnTombstone | None = None,
        on_bad_record: OnBadRecord | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> Watch[T]: ...
    @overload
    def watch(
        self,
        topics: Mapping[str, Cursor] | Iterable[str] = (),
        *,
        prefix: str | None = None,
        type: Any = Any,
        node: str | None = None,
        match: Match | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        touch: bool = True,
        on_tombstone: OnTombstone | None = None,
        on_bad_record: OnBadRecord | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> Watch[Any]: ...
    def watch(
        self,
        topics: Mapping[str, Cursor] | Iterable[str] = (),
        *,
        prefix: str | None = None,
        type: Any = Any,
        node: str | None = None,
        match: Match | None = None,
        heartbeat_ms: int = HEARTBEAT_MS,
        touch: bool = True,
        on_tombstone: OnTombstone | None = None,
        on_bad_record: OnBadRecord | None = None,
        on_disconnect: OnDisconnect | None = None,
    ) -> Watch[Any]:
        """Follow several topics: each from its cursor, those of `prefix` from now on.

        A cursor is a seq, a `Position`, or "tail"; topics without one begin at their first record.
        Topics that come to bear the prefix later are followed from their first record.
        Without `touch` it does not count as consuming: their automatic priority stays.
        """
        places = Places()
        plan = ManyTopics(
            topics,
            places,
            prefix=prefix,
            node=node,
            match=match,
            heartbeat_ms=heartbeat_ms,
            touch=touch,
        )
        return Watch(
            self,
            Follower(plan, RecordDecoder[Any](type), places),
            silence_s=silence_s(heartbeat_ms),
            on_tombstone=on_tombstone,
            on_bad_record=on_bad_record,
            on_disconnect=on_disconnect,
        )

    # Routers

    def put_router(
        self, name: str, source: str, dest: str, **config: Unpack[RouterOptions]
    ) -> PutRouterReply:
        """Copy what is appended to `source` into `dest` (options: see `RouterConfig`)."""
        return self.call(protocol.put_router(name, {"source": source, "dest": dest, **config}))

    def router(self, name: str) -> RouterState:
        return self.call(protocol.get_router(name))

    def routers(
        self,
        prefix: str = "",
        *,
        source: str | None = None,
        dest: str | None = None,
        page_size: int = protocol.PAGE,
    ) -> Iterator[RouterState]:
        """Every router, in order of their names."""
        cursor: str | None = None
        while True:
            page = self.call(protocol.list_routers(prefix, source, dest, page_size, cursor))
            yield from page.routers
            if not (cursor := page.next_cursor or None):
                return

    def delete_router(self, name: str) -> DeleteRouterReply:
        return self.call(protocol.delete_router(name))

    # The server

    def ready(self) -> Readiness:
        """Whether requests are served and writes taken. Asked once; `Unreachable` if by nobody."""
        return self.once(protocol.ready())

    def ticket(self, path: str | None = None) -> TicketReply:
        """A single-use ticket for an EventSource or a WebSocket, good for a minute."""
        return self.call(protocol.ticket(path))

    # Carrying calls out

    def call(self, call: Call[T]) -> T:
        """Carry a call out, again if need be."""
        exchange = self._exchange
        attempts = exchange.attempts(call)
        while True:
            verdict = attempts.judge(self._send(call), exchange.clock.now_ns())
            if isinstance(verdict, Answer):
                value: T = verdict.value
                return value
            if isinstance(verdict, Fail):
                raise verdict.error
            exchange.clock.sleep_ns(verdict.after_ns)

    def once(self, call: Call[T]) -> T:
        """Carry a call out, whatever comes of it."""
        return self._exchange.value(call, self._send(call))

    def open_stream(self, stream: Stream, silence_s: float) -> httpx.Response:
        """The response of a stream, once it is known to be one."""
        exchange = self._exchange
        request = self._http.build_request(**exchange.stream_request(stream, silence_s))
        try:
            response = self._http.send(request, stream=True)
            if response.status_code == 200:
                exchange.met = True
                return response
            response.read()
        except httpx.HTTPError as error:
            raise exchange.lost(error) from error
        raise exchange.refusal(exchange.replied(response))

    def _send(self, call: Call[Any]) -> Reply | NoReply:
        exchange = self._exchange
        try:
            return exchange.replied(self._http.request(**exchange.request(call)))
        except httpx.HTTPError as error:
            return exchange.unanswered(error)


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
        values: Iterable[T | NewRecord],
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
                    on_progress(progress)
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
                on_tombstone(page.tombstone)
            for found in sweep.take(page):
                if not isinstance(found, BadRecord):
                    yield found
                elif on_bad_record is None:
                    raise found
                else:
                    on_bad_record(found)

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
        self._patience: Patience | None = None
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] = iter(())

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
                    self._on_tombstone(item)

    def items(self) -> Generator[Item[T], None, None]:
        """The same with tombstones in their place, which `on_tombstone` is then not told."""
        try:
            while True:
                try:
                    item = self._follower.next_nowait()
                except BadRecord as bad:
                    if self._on_bad_record is None:
                        raise
                    self._on_bad_record(bad)
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
        if self._patience is None:
            self._patience = Patience(exchange.retry, exchange.random, exchange.clock.now_ns())
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
            verdict = self._patience.failed(error, exchange.clock.now_ns(), met=exchange.met)
            if isinstance(verdict, Fail):
                raise verdict.error from error.__cause__
            if self._follower.opened and self._on_disconnect is not None:
                self._on_disconnect(error)
            exchange.clock.sleep_ns(verdict.after_ns)

    def _open(self) -> None:
        assert self._patience is not None
        follower = self._follower
        while (call := follower.plan.prepare()) is not None:
            if not follower.plan.prepared(self._client.once(call)):
                follower.ended = True
                return
        self._response = self._client.open_stream(follower.stream(), self._silence_s)
        self._chunks = self._response.iter_raw()
        follower.open()
        self._patience.opened()

    def _read(self) -> None:
        assert self._patience is not None
        try:
            chunk = next(self._chunks, None)
        except httpx.HTTPError as error:
            raise self._client._exchange.lost(error) from error
        if chunk is None:
            raise ended(self._client.url)
        if self._follower.feed(chunk):
            self._patience.worked()
        self._patience.retry_ms = self._follower.retry_ms


def _calls(bulk: Bulk, values: Iterable[Any]) -> Iterator[Call[AppendReply]]:
    for value in values:
        call = bulk.add(value)
        while call is not None:
            yield call
            call = bulk.rest()
    call = bulk.finish()
    while call is not None:
        yield call
        call = bulk.rest()

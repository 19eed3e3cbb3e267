# Generated from aio/client.py: edit that one, then run `make client`.
"""`Client`: a running server. A thin shell: others decide, this one waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints, overload

import httpx

from fairway.client import protocol
from fairway.client.exchange import TIMEOUT_S, Exchange
from fairway.client.following import HEARTBEAT_MS, Follower, ManyTopics, Places, silence_s
from fairway.client.records import RecordDecoder
from fairway.client.retry import Fail, Success
from fairway.client.sync.graphs import RemoteGraphs  # noqa: TC001  (read at run time)
from fairway.client.sync.jobs import RemoteJobs  # noqa: TC001  (read at run time)
from fairway.client.sync.topics import TopicHandle, Watch
from fairway.client.sync.workflows import RemoteWorkflows  # noqa: TC001  (read at run time)

if TYPE_CHECKING:
    import random
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Self, Unpack

    from fairway.client.clock import ClientClock
    from fairway.client.following import StreamCall
    from fairway.client.problems import HttpResponse, NoResponse
    from fairway.client.protocol import Call
    from fairway.client.records import Cursor
    from fairway.client.retry import RetryConfig
    from fairway.client.sync.topics import OnBadRecord, OnDisconnect, OnTombstone
    from fairway.wire.server import Readiness, TicketReply
    from fairway.wire.topics import (
        DeleteRouterReply,
        Match,
        PutRouterReply,
        RouterOptions,
        RouterState,
        TopicSummary,
    )

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

    # The parts, a line each.
    jobs: RemoteJobs
    """Enqueue jobs, follow and steer them."""
    graphs: RemoteGraphs
    """Look at graphs, push, fire and steer them."""
    workflows: RemoteWorkflows
    """Start runs of workflows, follow and steer them; pause schedules."""

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
        for name, part in PARTS:
            setattr(self, name, part(self))

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
            decision = attempts.decide(self._send(call), exchange.clock.now_ns())
            if isinstance(decision, Success):
                value: T = decision.value
                return value
            if isinstance(decision, Fail):
                raise decision.error
            exchange.clock.sleep_ns(decision.after_ns)

    def once(self, call: Call[T]) -> T:
        """Carry a call out, whatever comes of it."""
        return self._exchange.value(call, self._send(call))

    def open_stream(self, stream: StreamCall, silence_s: float) -> httpx.Response:
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

    def _send(self, call: Call[Any]) -> HttpResponse | NoResponse:
        exchange = self._exchange
        try:
            return exchange.replied(self._http.request(**exchange.request(call)))
        except httpx.HTTPError as error:
            return exchange.unanswered(error)


PARTS: Final[list[tuple[str, Callable[[Client], Any]]]] = [*get_type_hints(Client).items()]
"""The name and class of each part, as `Client` lists them: a client makes one of each."""

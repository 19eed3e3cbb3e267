"""HTTP/1.1 with limits and deadlines, for `uvicorn.Config(http=HttpProtocol.limited_to(limits))`.

Parsing is httptools', running the app is uvicorn's. This decides what a client may cost us before
an app sees its request: bytes, headers, time, requests in advance and connections. A request that
passes a limit is answered with a JSON error, after the answers still owed, and the connection is
closed. Streaming responses are in `response`.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fairway.runtime.clock import clock_of
from fairway.server.http.deadline import Deadline
from fairway.server.http.held_bytes import FREE, HeldBytes
from fairway.server.http.limits import (
    BODY_LARGE,
    BODY_LATE,
    CROWDED,
    HEAD_LARGE,
    HEAD_LATE,
    MALFORMED,
    PIPELINE_FULL,
    SECOND_NS,
    URL_LONG,
    HttpLimits,
    HttpRefusal,
)
from fairway.server.http.peers import NOWHERE, Peer, Peers
from fairway.server.http.read_turns import Standing
from fairway.server.http.response import EXTENSION, ResponseCycle, ResponseStream
from fairway.server.http.same_head import TRIES, Heads, body_after

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn._types import ASGI3Application, HTTPScope
    from uvicorn.config import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
    from uvicorn.server import ServerState

    from fairway.server.http.door import Door
    from fairway.server.http.same_head import SameHead
    from fairway.storage.ownership import Ownership

PROBES = (b"GET /healthz ", b"GET /readyz ", b"GET /metrics ")
"""How requests begin that ask how the server is."""


class Site(Protocol):
    """What a server may know of its requests before an ASGI app sees them."""

    door: Door | None
    """Decides which client is read; without one, all are as soon as they speak."""

    def admit(self, peer: Peer, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        """Call `begin` when it is the turn of this request; or answer it, if it is refused."""
        ...

    def line_up(self, peer: Peer, head: SameHead, begin: Callable[[], object]) -> bool:
        """Let a request wait that would not begin at once: `begin` is called in its turn, and
        perhaps before this returns. False if it is to be admitted, like one nothing is known of.
        """
        ...

    def let_in(self, peer: Peer, cycle: ResponseCycle, begin: Callable[[], object]) -> None:
        """Call `begin` now: the request has waited in line. Or answer it, if it is refused."""
        ...

    def answer_without_task(self, cycle: ResponseCycle) -> bool:
        """Answer a request that is whole without the app, and so without a task. False if not."""
        ...

    @property
    def ownership(self) -> Ownership | None:
        """Until when answers are true; None if for as long as there is a server."""
        ...

    def withholds(self, scope: Any) -> bool:
        """Whether the answer to a request may be out of date by now, and must not be written."""
        ...

    def end_cut_off(self, cycle: ResponseCycle) -> bool:
        """The task of a request was cancelled. True if that is as it should be: it is answered."""
        ...

    def lost(self, peer: Peer) -> None:
        """The connection of `peer` is gone."""
        ...


class ParseState(enum.Enum):
    """Where in the client's bytes we are."""

    BETWEEN = enum.auto()
    """Before the first request or after a complete one."""
    HEAD = enum.auto()
    BODY = enum.auto()
    OVER = enum.auto()
    """Nothing the client sends counts any more; it is read only to notice when it leaves."""


class _Over(Exception):
    """Leaves a parser callback, and so the parser, when reading is over."""


# As globals, since attributes of an Enum are slow to look up and these are read at each request.
BETWEEN, HEAD, BODY, OVER = ParseState


class HttpProtocol(HttpToolsProtocol):
    """One client's connection."""

    # The base's fields too. With more than thirty attributes an object has a dictionary of its own,
    # a place or two in memory for each of them; under thousands of connections that is most of what
    # a request waits for.
    __slots__ = (
        "_body_bytes",
        "_body_from_ns",
        "_content_length",
        "_deadline",
        "_door",
        "_foreign_bytes",
        "_framing_bytes",
        "_half_closed",
        "_head_bytes",
        "_hosts",
        "_in_line",
        "_lingering",
        "_messages",
        "_now_ns",
        "_parse_state",
        "_read_bytes",
        "_refusal",
        "_running",
        "_same_head",
        "_scope",
        "_stream",
        "_transfer_encoding",
        "_tries",
        "_unheard",
        "_unread",
        "_unsent",
        "_waiting",
        "_waiting_counted",
        "access_log",
        "access_logger",
        "app",
        "app_state",
        "asgi_version",
        "client",
        "config",
        "connections",
        "cycle",
        "expect_100_continue",
        "flow",
        "headers",
        "limit_concurrency",
        "logger",
        "loop",
        "parser",
        "peer",
        "pipeline",
        "root_path",
        "scheme",
        "scope",
        "server",
        "server_state",
        "tasks",
        "timeout_keep_alive",
        "timeout_keep_alive_task",
        "transport",
        "url",
        "ws_protocol_class",
    )

    limits: ClassVar[HttpLimits] = HttpLimits()
    site: ClassVar[Site | None] = None
    held: ClassVar[HeldBytes] = HeldBytes(limits.held_bytes_max)
    peers: ClassVar[Peers] = Peers(limits)
    heads: ClassVar[Heads] = Heads()
    if TYPE_CHECKING:
        cycle: ResponseCycle

    @classmethod
    def limited_to(cls, limits: HttpLimits, site: Site | None = None) -> type[HttpProtocol]:
        """This protocol with other limits, for `uvicorn.Config(http=...)`.

        `site` decides when requests begin, and may serve some itself; else all begin at once.
        """
        shared = {
            "limits": limits,
            "site": site,
            "held": HeldBytes(limits.held_bytes_max),
            "peers": Peers(limits),
            "heads": Heads(),
            "__slots__": (),
        }
        return type(cls.__name__, (cls,), shared)

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._now_ns = clock_of(self.loop).now_ns
        self._deadline = Deadline(self.loop, self._now_ns, self._on_deadline_missed)
        self._unsent = 0  # what waited to be sent when we last looked for progress
        self._unread = 0  # of that, what is counted
        self._door = self.site.door if self.site is not None else None
        self._waiting = b""  # what was received and is not read yet: it waits for its turn
        self._waiting_counted = 0
        self._unheard = False  # more came meanwhile, or an end, and reading is paused

        self._running: ResponseCycle | None = None  # `cycle` is the one last parsed
        self._stream: ResponseStream | None = None
        self._refusal: HttpRefusal | None = None  # to be sent after the answers still owed
        self._half_closed = False
        self._lingering = False

        self._scope: dict[str, Any] | None = None  # of a connection's requests, what they share
        self._same_head: SameHead | None = None  # of the last request, if it may come again
        self._in_line: bytes | ResponseCycle | None = None  # with this head, and waits for its turn
        self._tries = TRIES if self.site is not None else 0
        self._parse_state = BETWEEN
        self._messages = 0  # complete ones, to see whether a read held the end of one
        self._read_bytes = 0  # of the present read
        self._head_bytes = 0  # of a head, in reads before the present one; perhaps less
        self._foreign_bytes = 0  # of those, what may have belonged to the request before
        self._hosts = 0
        self._content_length = 0
        self._transfer_encoding: bytes | None = None
        self._body_bytes = 0
        self._body_from_ns = 0
        self._framing_bytes = 0  # read since the last byte of body: extensions, trailers

    # --- what the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(FREE)
        self.peer = Peer(self.peers, self.client[0] if self.client else NOWHERE, self._make_room)
        refusal, goes = self.peers.enter(self.peer)
        if goes is not None:
            goes.make_room()
        if refusal is None:
            if self.site is None:
                self.peer.show(None)  # nobody tells strangers from others
            self._deadline.grant(self.limits.first_byte_ns)
        elif len(self.connections) <= 1 + self.limits.connections_max * 11 // 10:
            self._answer(refusal)
        else:  # telling them politely needs connections too
            self._parse_state = OVER
            transport.abort()

    def data_received(self, data: bytes) -> None:
        before = self._parse_state
        if before is OVER:
            return
        if self._in_line is not None:
            self._take_in_line()
        door = self._door
        if before is BODY:
            self._read(data)
        elif door is not None and (self._waiting or self.peer.due_ns or not door.passes()):
            self._hold(data, door)
        elif before is not BETWEEN or self._same_head is None or not self._repeats(data):
            self._read(data)

    def _hold(self, data: bytes, door: Door) -> None:
        """Keep what came until it is our turn. Whoever sends more meanwhile is not read."""
        if self._waiting:
            self._waiting += data
            self._unheard = True
            self.transport.pause_reading()
        else:
            self._waiting = data
            peer, standing = self.peer, self.peer.standing
            if self._parse_state is BETWEEN and data.startswith(PROBES):
                standing = Standing.PROBE
            elif peer.due_ns and peer.due_ns <= self._now_ns():
                standing = Standing.RETURNING
            door.wait(self, standing, peer.holder)
        more = len(self._waiting) - self._waiting_counted
        if more > FREE:
            if self.held.take(more):
                self._waiting_counted += more
            else:
                door.leave(self)
                self._take_waiting()
                self._refuse(self.held.refusal)

    def _take_waiting(self) -> bytes:
        data, self._waiting = self._waiting, b""
        if self._waiting_counted:
            self.held.give(self._waiting_counted)
            self._waiting_counted = 0
        return data

    def read_held(self) -> None:
        """It is our turn: what came is read, and whatever comes next may be."""
        data = self._take_waiting()
        if self._unheard:
            self._unheard = False
            if not self.flow.read_paused:
                self.transport.resume_reading()
        if self._parse_state is OVER:
            return
        if self._parse_state is not BETWEEN or self._same_head is None or not self._repeats(data):
            self._read(data)

    def _leave_door(self) -> bytes:
        """Wait no more; what had waited, if anything did."""
        if not self._waiting:
            return b""
        assert self._door is not None
        self._door.leave(self)
        return self._take_waiting()

    def _make_room(self) -> None:
        """We are a stranger, and somebody else needs the place."""
        self._take_in_line()
        if self._parse_state is OVER or self._owes_answer():
            self.transport.abort()
        else:
            self._leave_door()
            self._answer(CROWDED)

    def _read(self, data: bytes) -> None:
        before, messages = self._parse_state, self._messages
        size = self._read_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._parse_state is not OVER:
                reason = f"{MALFORMED.message}: {error}"  # the parser's words, never the client's
                self._refuse(replace(MALFORMED, message=reason))
        after, same = self._parse_state, messages == self._messages
        if after is BETWEEN:
            if same and data.strip(b"\r\n"):  # the first letters of a method
                self._parse_state = HEAD
                self._head_goes_on(size, fresh=True, whole=True)
            elif self._tries and before is BETWEEN and not same:
                self._learn(data)
        elif after is HEAD:
            self._head_goes_on(size, fresh=before is not HEAD or not same, whole=same)
        elif after is BODY:
            self._body_goes_on(size, fresh=before is not BODY or not same)

    def _learn(self, data: bytes) -> None:
        """`data` was one request: the next one may have the same head."""
        self._tries -= 1
        cycle = self.cycle
        # The parser may have had the first letters of the method before, which `data` then lacks.
        whole = data.startswith(cycle.scope["method"].encode() + b" ")
        if whole and cycle.begins_whole and cycle.keep_alive:
            self._same_head = self.heads.learn(data, self._body_bytes, cycle.scope)

    def _repeats(self, data: bytes) -> bool:
        """Take in a request whose head is known, without the parser; or return False.

        One that has to wait for its turn waits as it came. Under load thousands do, and what is
        made of a request is ten times as large: it would be made when it comes, and be fetched from
        far away in memory when it begins.
        """
        same = self._same_head
        assert same is not None
        at = same.body_at(data)
        size = len(data) - at
        if not at or self._owes_answer() or at > self.limits.head_bytes_max:
            return False
        if size > FREE or size > self.limits.body_bytes_max:  # a larger one is counted
            return False
        self._tries = TRIES
        assert self.site is not None
        self._in_line = data
        if not self.site.line_up(self.peer, same, self._begin_in_line):
            self._in_line = None
            cycle = self._repeated(data, at)
            self._start_asgi_task(cycle, self.app)
        return True

    def _repeated(self, data: bytes, at: int) -> ResponseCycle:
        """What is made of a request whose head is known, and whose body begins at `at`."""
        assert self._same_head is not None
        assert self._scope is not None
        size = self._body_bytes = len(data) - at
        own = {**self._same_head.meaning(size), "state": self.app_state.copy()}
        scope: Any = {**self._scope, **own}
        self.scope, self.headers, self.expect_100_continue = scope, scope["headers"], False
        cycle = self.cycle = self._running = ResponseCycle(self, scope, keep_alive=True)
        cycle.take_in(data[at:])
        cycle.more_body = False
        cycle.message_event.set()
        self._messages += 1
        if self.flow.write_paused:
            self._expect_progress()
        else:
            self._deadline.lift()
        return cycle

    def _take_in_line(self) -> None:
        """More happens on the connection than that its request waits: make that what it is."""
        if isinstance(self._in_line, bytes):
            self._in_line = self._repeated(self._in_line, body_after(self._in_line))

    def _begin_in_line(self) -> None:
        """It is the turn of the request that waits."""
        cycle, self._in_line = self._in_line, None
        if isinstance(cycle, bytes):
            cycle = self._repeated(cycle, body_after(cycle))
        if cycle is not None:  # or its client left while it waited
            assert self.site is not None
            self.site.let_in(self.peer, cycle, partial(self._begin, cycle, self.app))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. A request that is complete is still answered, if soon."""
        self._take_in_line()
        if self._waiting:
            if self.peer.standing >= Standing.NEW or self.scheme != "http":
                return False  # thousands that hang up at once are not read first
            self._unheard = True
            self.transport.pause_reading()  # read again in our turn, it says so again
            return True
        if self._stream is not None or self._answer_lasts():
            self.transport.abort()
        elif self._owes_answer() and self._parse_state is not BODY and self.scheme == "http":
            assert self._running is not None
            self._running.keep_alive = False
            self._parse_state = OVER
            self._half_closed = True
            self._unsent = self.transport.get_write_buffer_size()
            self._deadline.grant(self.limits.half_closed_ns)
            return True
        elif not self._lingering and self.transport.get_write_buffer_size():
            self._expect_progress()  # the transport closes when that is sent
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._parse_state = OVER
        self._in_line = None
        self._deadline.end()
        self._leave_door()
        self._release()
        self.held.give(self._unread)
        self._unread = 0
        self._left()
        self.pipeline.clear()
        owed = self._running if self._owes_answer() else None
        super().connection_lost(exc)
        if owed is not None:
            self._disconnect(owed)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.count_unread()
        if self._stream is None and not self._lingering:
            self._expect_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.held.give(self._unread)
        self._unread = 0
        if self._stream is not None:
            self._stream.drained()
        elif not self._lingering and not self.transport.is_closing():
            self._expect_client()

    def _left(self) -> None:
        if self.site is not None:
            self.site.lost(self.peer)
        self.peers.leave(self.peer)

    def count_unread(self) -> None:
        """Count what waits to be sent: it is more than is free, and will be until it is less.

        Counted even beyond the bound: it is there. `ResponseCycle` refuses before what makes it.
        """
        more = self.transport.get_write_buffer_size() - self._unread
        if more > 0:
            self.held.used += more
            self._unread += more

    def _release(self) -> None:
        """The bodies of all that was asked are held no more."""
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None:
                self._give_body(cycle)

    def _give_body(self, cycle: Any) -> None:
        self.held.give(cycle.held)
        cycle.held = 0

    def shutdown(self) -> None:
        """Finish the answer under way, if there is one, and close. Streams end at once."""
        self._take_in_line()
        self.pipeline.clear()
        self._refusal = None
        if self._stream is not None:
            assert self._running is not None
            self._running.keep_alive = False
            self._stream.shut_down()
            self._linger_until_abort()
        elif self._lingering:
            self.transport.abort()
        elif self._owes_answer():
            assert self._running is not None
            self._running.keep_alive = False
        else:
            self.transport.close()
            self._linger_until_abort()

    def withhold_unsent(self) -> None:
        """Drop the connection if an answer waits to be sent that may be out of date by now."""
        cycle = self._running
        if cycle is None or self.site is None or not self.transport.get_write_buffer_size():
            return
        if self.site.withholds(cycle.scope):
            self.transport.abort()

    # --- what the parser tells

    def on_message_begin(self) -> None:
        # A copy of the first request's, instead of uvicorn's own at each.
        if self._scope is None:
            super().on_message_begin()
            self._scope = {**self.scope}
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        own = {"headers": self.headers, "state": self.app_state.copy()}
        self.scope = {**self._scope, **own}  # type: ignore[typeddict-item]

    def on_url(self, url: bytes) -> None:
        self._parse_state = HEAD
        self.url += url
        if len(self.url) > self.limits.url_bytes_max:
            self._refuse(URL_LONG)
            raise _Over
        if self._stream is not None:
            self._ignore_the_rest()
            raise _Over
        if len(self.pipeline) >= self.limits.pipeline_max:
            self._refuse(replace(PIPELINE_FULL, maximum=self.limits.pipeline_max))
            raise _Over

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._parse_state is BODY:
            return  # a trailer, which nobody asked for, and no header of the next request
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            self._content_length = int(value)
        elif name == b"transfer-encoding":
            self._transfer_encoding = value.lower()
        elif name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the app, or queue its turn. Not uvicorn's: that would ask the parser all again."""
        parser, scope = self.parser, self.scope
        version, upgrade = parser.get_http_version(), parser.should_upgrade()
        refusal = self._refusal_of_head(version, upgrade)
        if refusal is not None:
            self._refuse(refusal)
            raise _Over
        size = self._content_length if self._transfer_encoding is None else None
        self._hosts = self._content_length = self._head_bytes = self._body_bytes = 0
        self._transfer_encoding = self._same_head = None
        if version == "1.0":  # it knows nothing of it, and would take a 100 for its answer
            self.expect_100_continue = False
        scope["method"] = parser.get_method().decode("ascii")
        if upgrade and self._should_upgrade():
            return
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + url.path
        scope["query_string"] = url.query or b""
        if version != "1.1":
            scope["http_version"] = version
        self._parse_state = BODY
        keep_alive = version == "1.1" and parser.should_keep_alive()
        self._take_on(scope, keep_alive=keep_alive, size=size)

    def _should_upgrade(self) -> bool:
        # With another method it is no handshake, but a wish that we may ignore.
        return self.scope["method"] == "GET" and super()._should_upgrade()

    def _take_on(self, scope: HTTPScope, *, keep_alive: bool, size: int | None) -> None:
        cycle = self.cycle = ResponseCycle(self, scope, keep_alive=keep_alive)
        cycle.begins_whole = (
            size is not None and size <= HIGH_WATER_LIMIT and not self.expect_100_continue
        )
        if self._owes_answer():
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._running = cycle
            if not cycle.begins_whole:
                self._start_asgi_task(cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if self.site is None:
            self._run(cycle, app)
        else:
            assert isinstance(cycle, ResponseCycle)
            self.site.admit(self.peer, cycle, partial(self._begin, cycle, app))

    def _begin(self, cycle: ResponseCycle, app: ASGI3Application) -> None:
        """It is its turn. Not if its client left while it waited."""
        assert self.site is not None
        if not cycle.disconnected and (cycle.more_body or not self.site.answer_without_task(cycle)):
            self._run(cycle, app)

    def _run(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        response = ResponseStream(self)
        response.chunked = cycle.scope["http_version"] == "1.1"
        cycle.scope["extensions"] = {EXTENSION: response}  # type: ignore[dict-item]
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._framing_bytes = -self._read_bytes  # this read is not to count
        if self._body_bytes > self.limits.body_bytes_max:
            self._refuse(BODY_LARGE)
            raise _Over
        cycle = self.cycle
        if cycle.response_complete or self._stream is not None:
            return
        if self._body_bytes > FREE:
            more = len(body) if cycle.held else self._body_bytes
            if not self.held.take(more):
                self._refuse(self.held.refusal)
                raise _Over
            cycle.held += more
        cycle.take_in(body)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._parse_state is not BODY:  # a WebSocket
            return
        self._messages += 1
        self._parse_state = BETWEEN
        cycle = self.cycle
        if cycle.response_complete:
            self._deadline.grant(self.limits.idle_ns)
        else:
            if self.flow.write_paused:
                self._expect_progress()
            else:
                self._deadline.lift()
            cycle.more_body = False
            cycle.message_event.set()
            if cycle.begins_whole and cycle is self._running:
                self._start_asgi_task(cycle, self.app)

    # --- what the app tells

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self._running is not None and self._running.held:
            self._give_body(self._running)
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self._expect_progress()
        elif self.pipeline:
            cycle, app = self.pipeline.pop()
            assert isinstance(cycle, ResponseCycle)
            self._running = cycle
            if cycle.begins_whole and cycle.more_body:  # it begins when its body is there
                self.flow.resume_reading()
            else:
                self._start_asgi_task(cycle, app)
        elif self._refusal is not None:
            self._answer(self._refusal)
        elif self._parse_state is BODY and self.expect_100_continue and not self._body_bytes:
            # Answered without asking for the body: whether it comes is up to the client, and
            # what comes next could be either a body or a request.
            self._linger()
        else:
            self.flow.resume_reading()
            if self.flow.write_paused:
                self._expect_progress()
            elif self._parse_state is BETWEEN:
                self._deadline.grant(self.limits.idle_ns)

    def start_stream(self, response: ResponseStream) -> bool:
        """Let `response` be written to the client. True if the client may go on after it.

        While a stream is open the client is read only to notice its end, so what it sends behind
        the request is dropped, and the connection is closed after the stream.
        """
        cycle = self._running
        if cycle is None or cycle.begun or _response_stream_of(cycle) is not response:
            raise RuntimeError("a response is opened once, in its turn, and not after `send`")
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        self.peer.show(self.peer.key)  # a ticket is as good as a key
        self._stream = response
        if self.pipeline or self._parse_state is not BETWEEN:
            self.pipeline.clear()
            self._ignore_the_rest()
        self.flow.resume_reading()
        if self._half_closed:  # nobody reads a stream after leaving
            self.transport.abort()
        return cycle.keep_alive

    def finish_stream(self) -> None:
        """The stream's last byte is written."""
        self._stream = None
        assert self._running is not None
        self._running.complete()

    # --- limits

    def _refusal_of_head(self, version: str, upgrade: bool) -> HttpRefusal | None:
        limits = self.limits
        if self._head_bytes + self._read_bytes > limits.head_bytes_max:  # perhaps; so count
            fields = sum(len(name) + len(value) + 4 for name, value in self.headers)
            if len(self.url) + fields > limits.head_bytes_max:
                return HEAD_LARGE
        if len(self.headers) > limits.header_count_max:
            return HEAD_LARGE
        if self._content_length > limits.body_bytes_max:
            return BODY_LARGE
        if b"#" in self.url:  # what is behind it would be cut off, and another name be meant
            return replace(MALFORMED, message="a # in the request target is written as %23")
        if version == "1.1":
            if self._hosts != 1:
                return replace(MALFORMED, message="HTTP/1.1 asks for exactly one Host header")
            if self._transfer_encoding is not None and self._transfer_encoding != b"chunked":
                return replace(MALFORMED, message="the only transfer encoding here is chunked")
        elif version != "1.0" or self._hosts > 1 or self._transfer_encoding is not None:
            return MALFORMED
        # The parser skips the body of what asks for an upgrade, and would take it for a request.
        has_body = self._content_length or self._transfer_encoding is not None
        if has_body and upgrade:
            return replace(MALFORMED, message="a request with a body cannot ask for an upgrade")
        return None

    def _head_goes_on(self, size: int, *, fresh: bool, whole: bool) -> None:
        """A read ended inside a head; `whole` if it held nothing else."""
        if fresh:
            self._head_bytes = 0
            self._foreign_bytes = 0 if whole else size
            self._deadline.grant(self.limits.head_ns)
        self._head_bytes += size
        too_large = self._head_bytes - self._foreign_bytes > self.limits.head_bytes_max
        if too_large or len(self.headers) > self.limits.header_count_max:
            self._refuse(HEAD_LARGE)

    def _body_goes_on(self, size: int, *, fresh: bool) -> None:
        """A read ended inside a body."""
        if fresh:
            self._framing_bytes = 0
            self._body_from_ns = self._now_ns()
            self._deadline.grant(self.limits.body_ns)
            return
        # Trailers and the extensions of chunks are no body, so they have the limit of a head.
        self._framing_bytes += size
        if self._framing_bytes > self.limits.head_bytes_max:
            self._refuse(HEAD_LARGE)

    def _upgrade(self, rest: bytes) -> None:
        if self._parse_state is not HEAD:
            # Not a WebSocket, so a wish that we may ignore: its request is being answered.
            if rest:
                self.data_received(rest)
        elif self._owes_answer():
            self._refuse(replace(MALFORMED, message="an upgrade cannot be asked for in advance"))
        else:
            self._parse_state = OVER
            self._deadline.end()
            self._leave_door()
            self.handle_websocket_upgrade()
            # The connection is the socket's from here on, and counts until that is lost.
            self.peer.show(self.peer.key)  # or its handshake is refused, and it leaves
            upgraded: Any = self.transport.get_protocol()
            upgraded.on_lost = self._left
            upgraded.door, upgraded.holder = self._door, self.peer.holder
            upgraded.limits = self.limits

    # --- refusing

    def _refuse(self, refusal: HttpRefusal) -> None:
        """Answer the request being read with an error and read no further."""
        in_body = self._parse_state is BODY
        self._parse_state = OVER
        self._deadline.lift()
        if in_body and self.cycle.held:
            self._give_body(self.cycle)
        if in_body and self.cycle is not self._running:
            self.pipeline.popleft()  # it was waiting for its turn; the refusal takes its place
        elif in_body and self.cycle.response_started:
            # Too late for another answer. A complete one stands; half a one cannot be mended.
            self._linger() if self.cycle.response_complete else self.transport.abort()
            return
        elif in_body:
            self._disconnect(self.cycle)
            self._answer(refusal)
            return
        if self._owes_answer():
            self._refusal = refusal
        else:
            self._answer(refusal)

    def _answer(self, refusal: HttpRefusal) -> None:
        self.logger.debug("refused a request: %s", refusal.code)
        self.transport.write(refusal.render(self.server_state.default_headers))
        self._linger()

    def _linger(self) -> None:
        """Close our side and read on for a while: a reset would take our answer with it."""
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.transport.resume_reading()  # it may have waited for its turn, unread
        self._linger_until_abort()

    def _linger_until_abort(self) -> None:
        self._parse_state = OVER
        self._lingering = True
        self._deadline.grant(self.limits.linger_ns)

    def _ignore_the_rest(self) -> None:
        """Answer what was taken on, and close."""
        self._parse_state = OVER
        self._deadline.lift()
        assert self._running is not None
        self._running.keep_alive = False

    def _disconnect(self, cycle: ResponseCycle) -> None:
        """Tell the app of this request that its client is gone."""
        cycle.disconnected = True
        cycle.message_event.set()
        self._stream = None
        response = _response_stream_of(cycle)
        if response is not None:
            response.lost()

    def _answer_lasts(self) -> bool:
        if self._running is None or not self._owes_answer():
            return False
        response = _response_stream_of(self._running)
        return response is not None and response.lasts

    def _owes_answer(self) -> bool:
        return self._running is not None and not (
            self._running.response_complete or self._running.disconnected
        )

    # --- deadlines

    def _expect_client(self) -> None:
        """Have the patience that the place in its bytes deserves."""
        if self._half_closed:
            self._deadline.grant(self.limits.half_closed_ns)
        elif self._parse_state is HEAD:
            self._deadline.grant(self.limits.head_ns)
        elif self._parse_state is BODY:
            self._deadline.grant(self.limits.body_ns)
        elif self._owes_answer():
            self._deadline.lift()
        else:
            self._deadline.grant(self.limits.idle_ns)

    def _expect_progress(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._deadline.grant(self.limits.stall_ns)

    def _on_deadline_missed(self) -> None:
        if isinstance(self._in_line, bytes):  # it is we who do not answer
            self._take_in_line()
            return
        unsent = self.transport.get_write_buffer_size()
        if self._waiting and not self._lingering:  # it is we who do not read
            self._deadline.grant(self.limits.head_ns)
        elif self._lingering:
            self.transport.abort()
        elif unsent and self._stream is None and self._parse_state is not HEAD:
            if unsent < self._unsent:
                self._expect_progress()
            else:
                self.transport.abort()
        elif self._half_closed:
            self.transport.abort()
        elif self._parse_state is BODY:
            self._body_is_late()
        elif self._parse_state is HEAD and self.flow.read_paused:  # it is we who do not read
            self._deadline.grant(self.limits.head_ns)
        elif self._parse_state is HEAD:
            self._refuse(HEAD_LATE)
        else:
            self.transport.close()

    def _body_is_late(self) -> None:
        limits = self.limits
        granted_ns = limits.body_ns + self._body_bytes * SECOND_NS // limits.body_rate_min
        left_ns = self._body_from_ns + granted_ns - self._now_ns()
        if self.flow.read_paused:  # it is our app that does not read
            self._deadline.grant(limits.body_ns)
        elif left_ns > 0:
            self._deadline.grant(left_ns)
        else:
            self._refuse(BODY_LATE)


def _response_stream_of(cycle: ResponseCycle) -> ResponseStream | None:
    extensions: Any = cycle.scope.get("extensions", {})
    found: ResponseStream | None = extensions.get(EXTENSION)
    return found

"""What requests share: the parts that run, who may do what, and the streams that are open.

Every handler takes it as `context`, beside the request.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fairway.core.priority import Band
from fairway.errors import (
    Backpressure,
    Closing,
    FairwayError,
    Throttled,
    Unauthorized,
    Unavailable,
)
from fairway.runtime.clock import clock_of, sleep_ns
from fairway.runtime.lifecycle import Lifecycle
from fairway.server.access.quotas import Quotas
from fairway.server.access.tickets import Tickets
from fairway.server.http.gate import RequestGate
from fairway.server.http.large_pages import LargePages
from fairway.settings import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fairway.app import Fairway
    from fairway.runtime.blocking import BlockingPool
    from fairway.server.access.auth import Access, Identity, ReloadedKeys
    from fairway.server.access.cors import Cors
    from fairway.server.access.quotas import KeyUsage
    from fairway.server.front import Fronts
    from fairway.server.http.exchange import Request
    from fairway.server.http.held_bytes import HeldBytes
    from fairway.server.http.peers import Peer
    from fairway.server.http.response import ResponseStream
    from fairway.server.http.sse import EventStream
    from fairway.settings import ServerSettings


logger = logging.getLogger("fairway.server")

T = TypeVar("T")

OWNED_CHECK_NS: Final = 250_000_000
"""How soon streams that are quiet end, once another process may own the log."""

STEP_MS: Final = 500
"""How exactly the times of keep-alives are kept."""


class KeepAlives:
    """Writes to every quiet stream now and then, so that proxies and clients keep it open."""

    def __init__(self) -> None:
        self._streams: dict[EventStream, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[EventStream]:
        return iter(self._streams)

    def add(self, stream: EventStream, every_ms: int) -> None:
        self._streams[stream] = (every_ms, every_ms)

    def remove(self, stream: EventStream) -> None:
        self._streams.pop(stream, None)

    async def run(self) -> None:
        while True:
            await sleep_ns(STEP_MS * 1_000_000)
            for stream, (every_ms, left_ms) in list(self._streams.items()):
                left_ms -= STEP_MS
                if not stream.quiet:  # something was written: the silence begins anew
                    stream.quiet, left_ms = True, every_ms - STEP_MS
                elif left_ms <= 0:
                    stream.keep_alive()
                    left_ms = every_ms
                self._streams[stream] = (every_ms, left_ms)


class LongPolls:
    """Requests that wait for something. A stop ends the waiting; they are answered all the same."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Timeout] = set()
        self._stopped = False

    async def wait(self, wait: Callable[[], Awaitable[object]], wait_ms: int) -> None:
        """Wait for it, for so long at most. After a stop it is `Closing`: ask another server."""
        if self._stopped:
            raise Closing("the server is shutting down")
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000) as limit:
                self._waiting.add(limit)
                try:
                    await wait()
                finally:
                    self._waiting.discard(limit)

    def stop(self) -> None:
        self._stopped = True
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(0)  # a time that has passed


class OpenStream(NamedTuple):
    """A stream or socket that is open under a key."""

    number: int
    identity: Identity
    usage: KeyUsage
    end: Callable[[FairwayError], None]
    """Ends it and tells why."""


class FairKey(NamedTuple):
    """Whose line a request waits in."""

    key: str | None
    """None if it does not wait: it is vital."""
    probes: bool = False


class ServerContext(Lifecycle):
    """Everything a request may need, from when the app has its log until it loses or leaves it."""

    name = "server-context"

    def __init__(
        self,
        app: Fairway,
        fronts: Fronts,
        settings: ServerSettings,
        *,
        access: Access,
        cors: Cors,
        keys: ReloadedKeys | None = None,
        random_bytes: Callable[[int], bytes],
        pool: BlockingPool,
        held: HeldBytes,
        withhold_unsent: Callable[[], None],
    ) -> None:
        """`held` counts what clients make it hold; `keys` reads again what `access` knows;
        `withhold_unsent` drops answers that wait to be sent and may be out of date by now."""
        self.app = app
        self._keys = keys
        self._withhold_unsent = withhold_unsent
        self.settings = settings
        self.parts = tuple(part for front in fronts for part in front.parts(app))
        self.kernel = app.kernel
        self.telemetry = app.kernel.telemetry
        self.ownership = app.kernel.partitions.ownership
        self.random_bytes = random_bytes
        self.pool = pool
        self.turn = app.kernel.turn
        self.pages = LargePages(held, turn=self.turn)
        self.access = access
        self.cors = cors
        self.clock = clock_of()
        self.quotas = Quotas()
        self.tickets = Tickets(random_bytes)
        self.keep_alives = KeepAlives()
        self.polls = LongPolls()
        # The log goes on with what waits for it between two requests of one turn of the loop.
        self.gate = RequestGate(self.clock, self._band_of, app.kernel.expedite, turn=self.turn)
        self.kernel.governor.add_signal("request_line", lambda: self.gate.fill)
        self.fronts = fronts
        self._routes = fronts.routes
        rules = fronts.fair_key_rules
        self._bands = [rule.band_of for rule in rules if rule.band_of is not None]
        self._by_type: dict[type, Any] = {type(part): part for part in self.parts}
        self._states: dict[type, Any] = {}
        self._open_streams: dict[int, OpenStream] = {}
        self._streams_so_far = 0
        self.telemetry.gauge("fairway_streams", "Open event streams", lambda: len(self.keep_alives))
        for front in fronts:
            front.start(self)

    def part(self, kind: type[T]) -> T:
        """The part of this type that runs."""
        found: T = self._by_type[kind]
        return found

    def keep(self, state: T) -> T:
        """Keep what a front needs while this server runs; `state` finds it by its type."""
        self._states[type(state)] = state
        return state

    def state(self, kind: type[T]) -> T:
        """What a front keeps here."""
        found: T = self._states[kind]
        return found

    async def open(self) -> None:
        """Look after streams and keys, and have each front ready."""
        if self._keys is not None:
            keys = self._keys.access
            keys.listen(lambda gone: self.quotas.retain(keys.keyring.names))
            keys.listen(lambda gone: self.review())
            self.spawn(self._keys.run(), self._keys.name)
        self.spawn(self.keep_alives.run(), "keep-alives")
        self.spawn(self._purge(), "purge")
        self.spawn(self._watch_ownership(), "ownership")
        for front in self.fronts:
            await front.prepare(self)
            self.spawn(front.run(self), front.name)

    async def _watch_ownership(self) -> None:
        """End what is open once another process may own the log, though nothing is to be sent."""
        ownership = self.ownership
        warned = False
        while ownership is not None:
            await sleep_ns(OWNED_CHECK_NS)
            if ownership.overdue:
                refusal = ownership.refusal()
                if not warned and ownership.lost is None:  # the log tells of its loss itself
                    logger.warning("fenced: %s", refusal)
                    warned = True
                self.dismiss(refusal)
            elif warned:
                logger.warning("the lease was renewed: requests are answered again")
                warned = False

    def dismiss(self, error: FairwayError) -> None:
        """End every stream and socket, and say why; drop the answers that are not sent yet."""
        for open_stream in list(self._open_streams.values()):
            open_stream.end(error)
        self._withhold_unsent()

    async def _purge(self) -> None:
        while True:
            for _ in range(10):
                await sleep_ns(1_000_000_000)
                self.review()  # a key may expire without anybody changing it
            self.tickets.purge(self.clock.now_ns())

    def fair_key_of(self, path: str) -> FairKey:
        """Whose line a request waits in: that of what it is about, as its front says."""
        for prefix, key_of, _ in self.fronts.fair_key_rules:
            if path.startswith(prefix):
                return FairKey(key_of(path))
        return FairKey(None if path in self._routes.vital else path, path in self._routes.probes)

    def wait_turn(
        self, fair_key: FairKey, begin: Callable[[], object], peer: Peer | None = None
    ) -> None:
        """Begin a request in its turn. Raises `Throttled`."""
        key, probes = fair_key
        if key is None:
            begin()
        else:
            self.gate.wait(key, begin, peer, probes)

    def _band_of(self, key: str) -> Band:
        """The band of what waits under a key, or the middle one."""
        for band_of in self._bands:
            band = band_of(self, key)
            if band is not None:
                return band
        return Band.B2

    def count_refusal(self, error: FairwayError) -> None:
        """Count a request that was refused for the time being, by what it ran into."""
        if isinstance(error, Throttled):
            cause = error.limit or "pressure"
        elif isinstance(error, Backpressure):
            cause = "lane"
        else:
            return
        self.telemetry.counter(
            "fairway_requests_throttled", "Requests answered 429", cause=cause
        ).add()

    def now_ms(self) -> int:
        return self.clock.wall_ns() // 1_000_000

    def wall_ms_of(self, at_ns: int | None) -> int | None:
        """The date of a moment on the monotonic clock."""
        if at_ns is None:
            return None
        return (self.clock.wall_ns() - (self.clock.now_ns() - at_ns)) // 1_000_000

    # Quotas

    def begin(self, identity: Identity) -> KeyUsage | None:
        """Count a request that begins; `end` of what is returned must follow, if it is anything.

        Raises `Throttled`.
        """
        if identity.quota is UNLIMITED:
            return None
        now_ns = self.clock.now_ns()
        usage = self.quotas.of(identity, now_ns)
        usage.begin(now_ns)
        return usage

    def charge(self, identity: Identity, *, records: int, size: int) -> None:
        """Count so much work against its key's quota. Raises `Throttled`; then none is counted."""
        if identity.quota is not UNLIMITED:
            now_ns = self.clock.now_ns()
            self.quotas.of(identity, now_ns).charge(now_ns, records=records, size=size)

    def connect(self, identity: Identity, end: Callable[[FairwayError], None]) -> OpenStream:
        """Count a stream that opens; `disconnect` must follow. Raises `Throttled`.

        `end` is called if its key stops being good.
        """
        usage = self.quotas.of(identity, self.clock.now_ns())
        usage.connect()
        self._streams_so_far += 1
        open_stream = OpenStream(self._streams_so_far, identity, usage, end)
        self._open_streams[open_stream.number] = open_stream
        return open_stream

    @property
    def open_streams(self) -> tuple[OpenStream, ...]:
        """The streams that are open now, in the order in which they opened."""
        return tuple(self._open_streams.values())

    def disconnect(self, open_stream: OpenStream) -> None:
        """Safe to call twice."""
        if self._open_streams.pop(open_stream.number, None) is not None:
            open_stream.usage.disconnect()

    def review(self) -> None:
        """End what is open under keys that are gone, have expired, or may do something else now."""
        for front in self.fronts:
            front.review(self)
        wall_ns = self.clock.wall_ns()
        for open_stream in list(self._open_streams.values()):
            then = open_stream.identity
            try:
                now = self.access.confirm(then, wall_ns)
            except FairwayError as error:
                open_stream.end(error)
                continue
            if (now.scopes, now.prefixes) != (then.scopes, then.prefixes):
                open_stream.end(Unauthorized("what this key may do has changed: connect again"))

    def stop_admitting(self) -> None:
        """The server ends: refuse what is new, and answer whoever waits for something."""
        for front in self.fronts:
            front.stop_admitting(self)
        self.polls.stop()

    def confirm(self, request: Request) -> None:
        """After a wait: whoever asked may not be who it was. Raises `Unauthorized`."""
        request.identity = self.access.confirm(request.identity, self.clock.wall_ns())

    # Streams

    def response_stream_of(self, request: Request) -> ResponseStream:
        response = request.response_stream
        if response is None:
            raise Unavailable("this server cannot stream: run it with `fairway serve`")
        return response

    def cors_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        pairs = self.cors.response_headers(request.header(b"origin"))
        return [(name.lower().encode(), value.encode()) for name, value in pairs]

"""What the routes share: the engine, who may do what, and the streams that are open."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

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
from fairway.server.audit import Audit
from fairway.server.gate import Gate
from fairway.server.large_pages import LargePages
from fairway.server.quotas import RETRY_SPACE_NS, Quotas
from fairway.server.sessions import KIND, Sessions
from fairway.server.tickets import Tickets
from fairway.settings import UNLIMITED
from fairway.wire.records import RECORD_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fairway.graphs.engine import Graphs
    from fairway.jobs.engine import Jobs
    from fairway.jobs.flows import Flow
    from fairway.jobs.job import NewJob
    from fairway.runtime.blocking import BlockingPool
    from fairway.server.auth import Access, Cors, Identity
    from fairway.server.connection import Connection
    from fairway.server.exchange import Request
    from fairway.server.held_bytes import HeldBytes
    from fairway.server.peers import Peer
    from fairway.server.quotas import Allowance
    from fairway.server.sse import EventStream
    from fairway.topics.engine import Topics
    from fairway.topics.topic import Topic

logger = logging.getLogger("fairway.server")

OWNED_FRESH_NS: Final = 1_000_000_000
"""How long a sum over a key's topics is good before it is taken again."""
OWNED_AGAIN_NS: Final = 50_000_000
"""The same if it is too much: room may have been made since."""

TOPICS_PATH: Final = "/v0/topics/"
JOBS_PATH: Final = "/v0/jobs/"
GRAPHS_PATH: Final = "/v0/graphs/"
METRICS_PATH: Final = "/metrics"
UNGATED: Final = frozenset({"/healthz", "/readyz"})
"""Asked by whoever decides whether this server lives: answered at once, however long the line."""

OWNED_CHECK_NS: Final = 250_000_000
"""How soon streams that are quiet end, once another process may own the log."""

STEP_MS: Final = 500
"""How exactly heartbeats are kept."""


class Heartbeats:
    """Lets every quiet stream hear from us now and then."""

    def __init__(self) -> None:
        self._streams: dict[EventStream, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: EventStream, every_ms: int) -> None:
        self._streams[stream] = (every_ms, every_ms)

    def remove(self, stream: EventStream) -> None:
        self._streams.pop(stream, None)

    async def run(self) -> None:
        while True:
            await sleep_ns(STEP_MS * 1_000_000)
            for stream, (every_ms, left_ms) in list(self._streams.items()):
                left_ms -= STEP_MS
                if not stream.quiet:  # it heard from us: the silence begins anew
                    stream.quiet, left_ms = True, every_ms - STEP_MS
                elif left_ms <= 0:
                    stream.beat()
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


class Guest(NamedTuple):
    """A stream or socket that is open under a key."""

    number: int
    identity: Identity
    allowance: Allowance
    end: Callable[[FairwayError], None]
    """Ends it and tells why."""


class Host:
    """Everything a request may need. One for each server."""

    name = "host"

    def __init__(
        self,
        topics: Topics,
        jobs: Jobs,
        flows: Mapping[str, Flow],
        graphs: Graphs,
        *,
        access: Access,
        cors: Cors,
        random_bytes: Callable[[int], bytes],
        pool: BlockingPool,
        held: HeldBytes,
        meanwhile: Callable[[], None],
    ) -> None:
        """`held` counts what clients make it hold. `meanwhile` is called between two requests that
        begin in the same turn of the loop."""
        self.topics = topics
        self.jobs = jobs
        self.flows = flows
        self.graphs = graphs
        self.pool = pool
        self.pages = LargePages(held)
        self.audit = Audit(self.now_ms)
        self.access = access
        self.cors = cors
        self.clock = clock_of()
        self.quotas = Quotas()
        self.tickets = Tickets(random_bytes)
        self.sessions = Sessions(topics.catalog, random_bytes)
        self.sessions.restore(topics.others.get(KIND, {}), self.now_ms())
        self.heartbeats = Heartbeats()
        self.polls = LongPolls()
        self.gate = Gate(self.clock, self._band_of, meanwhile)
        topics.sampler.add_signal("request_line", lambda: self.gate.fill)
        self._owned: dict[str, tuple[int, int, int]] = {}
        topics.created.append(self._count_owned)
        topics.may_make = self._check_topics
        topics.may_copy = self._check_copies
        topics.writing.may_store = self._store
        self._bound_stores()
        self._guests: dict[int, Guest] = {}
        self._guests_so_far = 0
        telemetry = topics.telemetry
        telemetry.gauge("fairway_streams", "Open event streams", lambda: len(self.heartbeats))
        telemetry.gauge("fairway_watch_sessions", "Watch sessions", lambda: len(self.sessions))

    async def run(self) -> None:
        """Heartbeats, and forgetting what expired."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.heartbeats.run(), name="heartbeats")
            group.create_task(self._purge(), name="sessions")
            group.create_task(self._watch_ownership(), name="ownership")

    async def _watch_ownership(self) -> None:
        """End what is open once another process may own the log, though nothing is to be sent."""
        ownership = self.topics.ownership
        told = False
        while ownership is not None:
            await sleep_ns(OWNED_CHECK_NS)
            if ownership.overdue:
                refusal = ownership.refusal()
                if not told and ownership.lost is None:  # the log tells of its loss itself
                    logger.warning("fenced: %s", refusal)
                    told = True
                self.dismiss(refusal)
            elif told:
                logger.warning("the lease was renewed: requests are answered again")
                told = False

    def dismiss(self, error: FairwayError) -> None:
        """End every stream and socket, and say why."""
        for guest in list(self._guests.values()):
            guest.end(error)

    async def _purge(self) -> None:
        while True:
            for _ in range(10):
                await sleep_ns(1_000_000_000)
                self.review()  # a key may expire without anybody changing it
            await self.sessions.purge(self.now_ms())
            self.tickets.purge(self.clock.now_ns())

    def wait_turn(self, path: str, begin: Callable[[], object], peer: Peer | None = None) -> None:
        """Begin a request in its turn: that of its topic, if it is about one.

        Raises `Throttled`.
        """
        if path.startswith(TOPICS_PATH):
            self.gate.wait(path[len(TOPICS_PATH) :].partition("/")[0], begin, peer)
        elif path in UNGATED:
            begin()
        elif path == METRICS_PATH:
            self.gate.wait(path, begin, peer, probes=True)
        else:
            # All that is about single jobs is one key, or many ids would be many turns; and all
            # that is about one graph.
            key = JOBS_PATH if path.startswith(JOBS_PATH) else path
            if path.startswith(GRAPHS_PATH):
                key = "/".join(path.split("/", 4)[:4])
            self.gate.wait(key, begin, peer)

    def _band_of(self, key: str) -> Band:
        """The band of what waits under a key: a topic's own, or the middle one."""
        topic = self.topics.find(key)
        return self.topics.delivery.band_of(topic) if topic is not None else Band.B2

    def count_refusal(self, error: FairwayError) -> None:
        """Count a request that was refused for the time being, by what it ran into."""
        if isinstance(error, Throttled):
            cause = error.limit or "pressure"
        elif isinstance(error, Backpressure):
            cause = "lane"
        else:
            return
        self.topics.telemetry.counter(
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

    def begin(self, identity: Identity) -> Allowance | None:
        """Count a request that begins; `end` of what is returned must follow, if it is anything.

        Raises `Throttled`.
        """
        if identity.quota is UNLIMITED:
            return None
        now_ns = self.clock.now_ns()
        allowance = self.quotas.of(identity, now_ns)
        allowance.begin(now_ns)
        return allowance

    def charge(self, identity: Identity, topic: str, *, records: int, size: int) -> None:
        """Count an append against its key's quota. Raises `Throttled`; then nothing is counted."""
        if identity.quota is UNLIMITED:
            return
        now_ns = self.clock.now_ns()
        allowance = self.quotas.of(identity, now_ns)
        if topic not in self.topics.making and self.topics.find(topic) is None:
            # It is asked again when it is made; this once so that a refusal uses nothing up.
            self._check_topics(identity.name)
        # Before anything is used up. It is asked again in the step in which they are appended.
        found = self.topics.find(topic)
        owner = identity.name if found is None else found.owner
        self._check_room(owner, size + RECORD_OVERHEAD * records)
        allowance.charge(now_ns, records=records, size=size)

    def _bound_stores(self) -> None:
        """Whose topics are bounded in bytes, by the keys of now."""
        self._quotas_known = known = self.access.quotas()
        self._bounds = {name: q.stored_bytes for name, q in known.items() if q.stored_bytes}
        self.topics.writing.bounded = self._bounds

    def _check_room(self, owner: str, size: int) -> None:
        """Whether the topics of a key have room for so much. Raises `Throttled`."""
        most = self._bounds.get(owner)
        if most is None or self._owned_by(owner)[1] + size <= most:
            return
        if self._owned_by(owner, fresh_ns=OWNED_AGAIN_NS)[1] + size > most:
            raise Throttled(
                f"the key that made it is at its quota of {most:,} stored bytes",
                retry_after_ns=RETRY_SPACE_NS,
                limit="stored_bytes",
                maximum=most,
            )

    def _store(self, topic: Topic, size: int) -> None:
        """So much is about to be appended to a topic whose owner is bounded. Raises `Throttled`."""
        self._check_room(topic.owner, size)
        count, stored, at_ns = self._owned[topic.owner]
        self._owned[topic.owner] = (count, stored + size, at_ns)

    def _check_copies(self, owner: str, records: int, size: int) -> Callable[[], None] | None:
        """Whether a router of a key may copy so much. Raises `Throttled`; see `Topics.may_copy`."""
        quota = self.access.quotas().get(owner)
        if quota is None:
            return None
        now_ns = self.clock.now_ns()
        allowance = self.quotas.named(owner, quota, now_ns)
        self._check_room(owner, size)
        try:
            allowance.check_rates(now_ns, records=records, size=size)
        except Throttled as refusal:  # shown to whoever may see the router, without the key's name
            raise Throttled(
                f"the key that made it is at its quota of {refusal.maximum:,}"
                f" {(refusal.limit or '').replace('_', ' ')}",
                retry_after_ns=refusal.retry_after_ns,
                limit=refusal.limit,
                maximum=refusal.maximum,
            ) from None
        return partial(allowance.take, records=records, size=size)

    def charge_jobs(self, identity: Identity, jobs: Sequence[NewJob]) -> None:
        """Count jobs as records against their key's quota. Raises `Throttled`."""
        if identity.quota is UNLIMITED:
            return
        now_ns = self.clock.now_ns()
        size = sum(len(job.state) for job in jobs)
        self.quotas.of(identity, now_ns).charge(now_ns, records=len(jobs), size=size)

    def charge_pushes(self, identity: Identity, count: int, size: int) -> None:
        """Count boundaries as records against their key's quota. Raises `Throttled`."""
        if identity.quota is not UNLIMITED:
            now_ns = self.clock.now_ns()
            self.quotas.of(identity, now_ns).charge(now_ns, records=count, size=size)

    def _check_topics(self, owner: str) -> None:
        """Whether a key may have one topic more. Raises `Throttled`."""
        allowance = self.quotas.find(owner)
        if allowance is None or not allowance.quota.topics:
            return  # the server's own program, or somebody without a bound
        making = sum(each == owner for each in self.topics.making.values())
        allowance.check_topics(self._owned_by(owner)[0] + making)

    def _count_owned(self, topic: Topic) -> None:
        """A topic was made."""
        if topic.owner in self._owned:
            count, size, at_ns = self._owned[topic.owner]
            self._owned[topic.owner] = (count + 1, size, at_ns)

    def _owned_by(self, owner: str, *, fresh_ns: int = OWNED_FRESH_NS) -> tuple[int, int]:
        """How many topics count for a key, and the bytes in them, those under way too."""
        count, size, at_ns = self._owned.get(owner, (0, 0, 0))
        now_ns = self.clock.now_ns()
        if owner not in self._owned or now_ns - at_ns > fresh_ns:
            owned = [topic for topic in self.topics if topic.owner == owner]
            count, size = len(owned), sum(topic.stored for topic in owned)
            size += sum(topic.live.pending_bytes for topic in owned if topic.live is not None)
            self._owned[owner] = (count, size, now_ns)
        return count, size

    def connect(self, identity: Identity, end: Callable[[FairwayError], None]) -> Guest:
        """Count a stream that opens; `disconnect` must follow. Raises `Throttled`.

        `end` is called if its key stops being good.
        """
        allowance = self.quotas.of(identity, self.clock.now_ns())
        allowance.connect()
        self._guests_so_far += 1
        guest = Guest(self._guests_so_far, identity, allowance, end)
        self._guests[guest.number] = guest
        return guest

    def disconnect(self, guest: Guest) -> None:
        """Safe to call twice."""
        if self._guests.pop(guest.number, None) is not None:
            guest.allowance.disconnect()

    def review(self) -> None:
        """End what is open under keys that are gone, have expired, or may do something else now."""
        if self.access.quotas() is not self._quotas_known:
            self._bound_stores()
        wall_ns = self.clock.wall_ns()
        for guest in list(self._guests.values()):
            then = guest.identity
            try:
                now = self.access.confirm(then, wall_ns)
            except FairwayError as error:
                guest.end(error)
                continue
            if (now.scopes, now.prefixes) != (then.scopes, then.prefixes):
                guest.end(Unauthorized("what this key may do has changed: connect again"))

    # Streams

    def connection_of(self, request: Request) -> Connection:
        connection = request.connection
        if connection is None:
            raise Unavailable("this server cannot stream: run it with `fairway serve`")
        return connection

    def cors_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        pairs = self.cors.response_headers(request.header(b"origin"))
        return [(name.lower().encode(), value.encode()) for name, value in pairs]

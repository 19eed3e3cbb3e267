"""The accumulator of one source: everything that comes, from its feed and by push, in one order.

Both ways in lead through the same steps, on the loop and without waiting between: decode, pass
`through`, leave out repeats, collect; then it is the reactor's. So what was accepted first is seen
first. The object outlives the task that reads its feed: if that dies, it is begun again after what
was received, and pushes go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.core.backoff import Backoff, BackoffConfig
from fairway.errors import Backpressure, FairwayError, FeedLost, InvalidRequest
from fairway.graphs.boundary import PUSH, Boundary
from fairway.graphs.checkpoint import STATE, Pushed
from fairway.graphs.health import SourceState
from fairway.graphs.journal import RECORD_BYTES_MAX
from fairway.graphs.source import KEYS_MAX
from fairway.graphs.tickets import Several, Ticket
from fairway.graphs.windows import Batching, collector_of
from fairway.runtime.clock import sleep_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fairway.graphs.boundary import Marks, Schema, Stored
    from fairway.graphs.checkpoint import Kept
    from fairway.graphs.feed import Connection, Event, Report, Surroundings
    from fairway.graphs.health import SourceHealth
    from fairway.graphs.reactor import Reactor
    from fairway.graphs.source import Source
    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.graphs")

RECONNECT: Final = BackoffConfig(
    base_ns=500_000_000, cap_ns=30_000_000_000, jitter=0.25, reset_after_ns=1_000_000_000
)
COMMIT_NS: Final = 200_000_000
"""How long a feed waits, after something was consumed, to be told of it with what comes next."""
VALUE_BYTES_MAX: Final = RECORD_BYTES_MAX - 64 * 1024
"""What is pushed to a checkpointed graph: the record of it fits the journal."""
RETRY_FLOOR_NS: Final = 1_000_000
UNCLOG_NS: Final = 20_000_000
"""When to try again while too much is not durable yet: some syncs later."""
RETRY_CAP_NS: Final = 5_000_000_000


class Accumulator:
    """One source while its graph runs."""

    def __init__(
        self,
        source: Source[Any],
        reactor: Reactor,
        health: SourceHealth,
        clock: Clock,
        random: Random,
        *,
        journaled: bool,
    ) -> None:
        self.source = source
        self.health = health
        self.events = 0
        """Events that came, pushes included."""
        self.dropped = 0
        """Boundaries that were dropped for newer ones."""
        self.refused = 0
        self.repeated = 0
        self.suppressed = 0
        """Events that `through` left out."""
        self.buried = 0
        """Events that did not decode."""
        self._reactor = reactor
        self._clock = clock
        self._random = random
        self._name = source.name
        self._journaled = journaled
        self._pushed = 0
        self._marks: Marks = {}  # how far the feed was received
        self._consumed: Marks = {}  # how far it is consumed, and the feed was not told yet
        self._commits = asyncio.Event()
        self._reading: asyncio.Timeout | None = None  # ends what reads, and nothing else
        self._hushed = False
        self._lost: FeedLost | None = None
        self._keys: OrderedDict[Any, None] = OrderedDict()
        self._collector = collector_of(source.batch) if source.batch is not None else None
        self._window: list[Any] = []
        self._written = 0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._took_ns = 0
        self._plain = (
            source.through is None
            and source.dedupe is None
            and not source.collects
            and not journaled
        )
        self._fits = source.through is None and source.type is not Any
        found = source.type  # Any is a class as well, and the only one that nothing is one of
        is_class = isinstance(found, type) and found is not Any and source.through is None
        self._class = found if is_class else None

    # What was kept

    def restore(self, kept: Kept) -> None:
        """Begin where the checkpoint says. Raises `InvalidRequest` if a value does not fit."""
        self._marks = dict(kept.marks)
        self._pushed = kept.pushed
        for key in kept.keys:
            self._keys[_hashable(key)] = None
        cache = self._reactor.inputs.cache
        if kept.value is not None:
            cache[self._name] = self._loaded(self.source.schema, kept.value)
        if self._collector is not None:
            self._collector.resume(kept.marks)
        if self.source.keep is not None:
            self._window = [self._loaded(self.source.item_schema, each) for each in kept.window]
            self._written = kept.written
            if self._written > kept.marks.get(STATE, 0):
                self._give_state(None)

    def replay(self, kept: Kept) -> None:
        """Take in again what was pushed and not consumed."""
        for offset, stored in list(kept.pushes.items()):
            try:
                value = self.source.item_schema.load(stored)
                self._take_in(value, self._keys_of(value), {PUSH: offset}, None)
            except InvalidRequest as error:
                self.buried += 1
                self._reactor.buried(self._name, str(error), stored.data, {PUSH: offset})
                self._pass({PUSH: offset})

    def _loaded(self, schema: Schema, stored: Stored) -> Any:
        try:
            return schema.load(stored)
        except InvalidRequest as error:
            raise InvalidRequest(f"source {self._name!r}: {error}") from None

    # Pushes

    def room(self) -> bool:
        return self._reactor.inputs.room(self._name) > 0 and not self._reactor.clogged

    def push(self, value: Any, ticket: Ticket | None) -> None:
        """Take in a value. Raises `Backpressure` or `InvalidRequest`; then nothing happened."""
        if type(value) is not self._class and self._fits:
            value = self._fitting(value)
        if self._plain and value is not None:
            if self._reactor.inputs.room(self._name) <= 0:
                self._make_room()
            self.events += 1
            self._heard()
            self._reactor.arrived(self._name, Boundary(value), ticket)
            return
        if self.source.through is not None:
            value = self._through(value)
        self._push_kept(value, ticket)

    def push_json(self, data: bytes, ticket: Ticket | None) -> None:
        """The same, for JSON."""
        self.push(self.source.event_schema.of_json(data), ticket)

    def _push_kept(self, value: Any, ticket: Ticket | None) -> None:
        # What may refuse it comes first: then nothing happened.
        keys: tuple[Any, ...] = ()
        stored = None
        if value is not None:
            if self.source.dedupe is not None:
                keys = self._keys_of(value)
            if self._journaled:
                stored = self._stored(value)
            if not (keys and self._repeats(keys)):
                self._see_to_room(value)
        self.events += 1
        self._heard()
        if not self._journaled:
            self._take_in(value, keys, {}, ticket)
            return
        ticket = ticket or Ticket(None, asks=False)
        self._pushed += 1
        offset = self._pushed
        if self.source.keep is not None and stored is not None and not self._repeats(keys):
            # The window is part of what is kept: it must not be fired with before it is.
            ticket.recorded = True
            self._reactor.remember(Pushed(self._name, offset, stored, keys), ticket.kept)
        self._take_in(value, keys, {PUSH: offset}, ticket)
        if stored is not None and not ticket.recorded:
            # It waits for other news, or for its firing to end: it must not be lost meanwhile.
            ticket.recorded = True
            self._reactor.remember(Pushed(self._name, offset, stored), ticket.kept)

    def _stored(self, value: Any) -> Stored:
        try:
            stored = self.source.item_schema.store(value)
        except Exception as error:
            raise InvalidRequest(
                f"source {self._name!r}: the value cannot be kept: {error}"
            ) from error
        if len(stored.data) > VALUE_BYTES_MAX:
            raise InvalidRequest(
                f"source {self._name!r}: a value of {len(stored.data):,} bytes cannot be kept:"
                f" at most {VALUE_BYTES_MAX:,}"
            )
        return stored

    def _see_to_room(self, value: Any) -> None:
        if self._reactor.clogged:
            self.refused += 1
            raise Backpressure(
                f"journal under source {self._name}",
                depth=self._reactor.unwritten,
                limit="what may wait to be durable",
                retry_after_ns=UNCLOG_NS,
            )
        if self._reactor.inputs.room(self._name) <= 0:
            if self._collector is not None:
                self._collector.check(value)
            self._make_room()

    def _fitting(self, value: Any) -> Any:
        found = self._class
        if found is not None and isinstance(value, found) and type(value) is not bool:
            return value
        try:
            return self.source.event_schema.of_plain(value)
        except InvalidRequest as error:
            raise InvalidRequest(f"source {self._name!r}: {error}") from None

    def _through(self, event: Any) -> Any:
        assert self.source.through is not None
        try:
            return self.source.through(event)
        except Exception as error:
            raise InvalidRequest(
                f"source {self._name!r}: through failed: {type(error).__name__}: {error}"
            ) from error

    def _make_room(self) -> None:
        if self.source.on_full == "drop_oldest":
            dropped = self._reactor.inputs.drop_oldest(self._name)
            self.dropped += 1
            for key in dropped.keys:  # it was not used: whoever tries again brings no repeat
                self._keys.pop(key, None)
            for token in dropped.tokens:
                token.failed(self._refusal("it was dropped for newer ones"))
            return
        self.refused += 1
        raise self._refusal("")

    def _refusal(self, why: str) -> Backpressure:
        depth = self._reactor.inputs.depth(self._name)
        pace_ns = self._took_ns or RETRY_FLOOR_NS
        retry_ns = min(max(pace_ns * max(1, depth // 4), RETRY_FLOOR_NS), RETRY_CAP_NS)
        limit = why or f"{self.source.capacity} boundaries"
        return Backpressure(
            f"source {self._name}", depth=depth, limit=limit, retry_after_ns=retry_ns
        )

    # What both ways in have in common

    def _take_in(
        self, value: Any, keys: tuple[Any, ...], marks: Marks, ticket: Ticket | None
    ) -> None:
        """Raises `InvalidRequest` if it cannot be collected; then nothing happened."""
        if value is None or (keys and self._repeats(keys)):
            self.suppressed += value is None
            self.repeated += value is not None
            self._pass(marks)
            if ticket is not None:
                ticket.passed()
        elif self._collector is not None:
            windows = self._collector.push(value, marks, keys, ticket, self._clock.now_ns())
            self._remember(keys)
            for window in windows:
                self._give(window)
            self._arm()
        elif self.source.keep is not None:
            self._remember(keys)
            self._write(value, ticket)
        else:
            if keys:
                self._remember(keys)
            self._reactor.arrived(self._name, Boundary(value, marks, keys), ticket)

    def _heard(self) -> None:
        now_ns = self._clock.now_ns()
        health = self.health
        was_stale = health.stale_after_ns is not None and health.stale(now_ns)
        health.event_ns = now_ns
        if was_stale:
            health.changed()

    def _keys_of(self, value: Any) -> tuple[Any, ...]:
        """What tells a value from its repeats, if anything does. Raises `InvalidRequest`."""
        if self.source.dedupe is None:
            return ()
        try:
            key = self.source.dedupe(value)
            key = _lasting(key) if self._journaled else _hashable(key)
            hash(key)
        except Exception as error:
            raise InvalidRequest(
                f"source {self._name!r}: dedupe failed: {type(error).__name__}: {error}"
            ) from error
        return (key,)

    def _repeats(self, keys: tuple[Any, ...]) -> bool:
        if not keys or keys[0] not in self._keys:
            return False
        self._keys.move_to_end(keys[0])
        return True

    def _remember(self, keys: tuple[Any, ...]) -> None:
        for key in keys:
            self._keys[key] = None
            if len(self._keys) > KEYS_MAX:
                self._keys.popitem(last=False)

    def _pass(self, marks: Marks) -> None:
        if not marks:
            return
        if self._collector is not None and self._collector.depth:
            self._collector.passed(marks)
        else:
            self._reactor.passed(self._name, marks)

    # State

    def write(self, value: Any) -> None:
        """The graph wrote to this state."""
        self._write(value, None)

    def _write(self, value: Any, ticket: Ticket | None) -> None:
        keep = self.source.keep
        assert keep is not None
        self._written += 1
        self._window.append(value)
        if keep >= 0:
            del self._window[: max(0, len(self._window) - keep)]
        self._give_state(ticket)

    def _give_state(self, ticket: Ticket | None) -> None:
        if self.source.keep == 0:
            if ticket is not None:
                ticket.passed()
            return
        marks = {STATE: self._written} if self._journaled else {}
        self._reactor.arrived(self._name, Boundary(list(self._window), marks), ticket)

    # Collecting

    def _give(self, window: Any) -> None:
        values, marks, keys, tokens = window
        ticket: Any = Several(tokens) if len(tokens) > 1 else (tokens[0] if tokens else None)
        self._reactor.arrived(self._name, Boundary(values, marks, keys), ticket)

    def _arm(self) -> None:
        assert self._collector is not None
        deadline_ns = self._collector.deadline_ns()
        if deadline_ns is None or self._timer is not None:
            return
        delay_s = max(0, deadline_ns - self._clock.now_ns()) / 1e9
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        assert self._collector is not None
        for window in self._collector.due(self._clock.now_ns()):
            self._give(window)
        self._arm()

    def after_firing(self) -> None:
        """A firing is over: give what came meanwhile, if the batch asks for that."""
        collector = self._collector
        if isinstance(collector, Batching) and collector.batch.after_firing:
            self.flush()

    def flush_at_end(self) -> None:
        """Give what is collected before the graph is stopped.

        Windows of a checkpointed graph are left as they are: they go on after the restart.
        """
        if isinstance(self._collector, Batching) or not self._journaled:
            self.flush()

    def flush(self) -> None:
        """Give what is collected, now."""
        if self._collector is not None:
            for window in self._collector.flush():
                self._give(window)

    @property
    def collected(self) -> int:
        return self._collector.depth if self._collector is not None else 0

    @property
    def late(self) -> int:
        return self._collector.late if self._collector is not None else 0

    # The feed

    def consumed(self, marks: Marks) -> None:
        """So far is consumed for good: its feed is told, with others."""
        if self.source.feed is not None:
            self._consumed.update(marks)
            self._commits.set()

    async def run(self, around: Surroundings, healthy: Callable[[bool], None]) -> None:
        """Read the feed until cancelled. A lost one is reached for again, for ever."""
        assert self.source.feed is not None
        backoff = Backoff(RECONNECT, self._random)
        while True:
            self.health.move(SourceState.CONNECTING)
            report = _Report(around.report)
            connection = self.source.feed.open(around._replace(report=report))
            try:
                for event in await connection.connect(dict(self._marks)) or ():
                    self._event(event)  # before it is live: what waits for it fires with it
                self.health.move(SourceState.LIVE)
                healthy(True)
                backoff.recovered(self._clock.now_ns())
                why = str(await self._use(connection))
            except FeedLost as lost:
                why = str(lost)
                if backoff.failures(self._clock.now_ns()) == 0:  # once, until it is back
                    logger.warning(
                        "graph %s, source %s: lost, trying again: %s",
                        around.graph,
                        self._name,
                        why,
                    )
            finally:
                report.over = True
                with suppress(FairwayError):  # it may be gone: then it is told next time
                    await self._tell_consumed(connection)
                await connection.aclose()
            healthy(False)
            self.health.move(SourceState.DISCONNECTED, why)
            await sleep_ns(backoff.failed(self._clock.now_ns()) or 0)

    async def _use(self, connection: Connection) -> FeedLost | None:
        """Read and commit until the other side is lost; how it was.

        That is not raised through the group: one that is cancelled while it ends by an error
        raises the error only (until Python 3.13), and a source that was to stop would go on.
        """
        self._lost = None
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(self._commit(connection))
            try:
                await self._read(connection)
                await committing
            except FeedLost as lost:
                self._lost = lost
            finally:
                committing.cancel()
        return self._lost

    async def _read(self, connection: Connection) -> None:
        """Take in what comes, until `hush`."""
        try:
            async with asyncio.timeout(None) as self._reading:
                while not self._hushed:
                    for event in await connection.receive():
                        if not self.room():
                            drops = self.source.on_full == "drop_oldest"
                            if drops and self._reactor.inputs.room(self._name) <= 0:
                                self._make_room()
                            # A feed can wait: nothing is refused, it is read later.
                            await self._reactor.wait_room(self._name)
                        self._event(event)
        except TimeoutError:
            if not self._hushed and self._lost is None:
                raise  # the feed's own
        finally:
            self._reading = None

    def _event(self, event: Event) -> None:
        self.events += 1
        self._heard()
        data, stream, offset = event
        marks = {stream: offset} if offset else {}
        if offset:
            if offset <= self._marks.get(stream, 0):
                self.repeated += 1  # read again after a reconnect
                return
            self._marks[stream] = offset
        value = data
        if data is None:
            self.suppressed += 1
            self._pass(marks)
            return
        try:
            if isinstance(data, bytes):
                value = self.source.event_schema.of_json(data)
            if self.source.through is not None:
                value = self._through(value)
            keys = () if value is None else self._keys_of(value)
            self._take_in(value, keys, marks, None)
        except InvalidRequest as error:
            self.buried += 1
            raw = data if isinstance(data, bytes) else msgspec.msgpack.encode(data, enc_hook=repr)
            self._reactor.buried(self._name, str(error), raw, marks)
            self._pass(marks)

    async def _commit(self, connection: Connection) -> None:
        while True:
            await self._commits.wait()
            await sleep_ns(COMMIT_NS)
            self._commits.clear()
            try:
                await self._tell_consumed(connection)
            except FeedLost as lost:
                self._lost = lost
                self._interrupt()
                return

    async def _tell_consumed(self, connection: Connection) -> None:
        marks = {stream: at for stream, at in self._consumed.items() if stream[:1] != "~"}
        self._consumed = {}
        if marks:
            try:
                await connection.commit(marks)
            except BaseException:
                self._consumed = {**marks, **self._consumed}
                self._commits.set()
                raise

    def hush(self) -> None:
        """Read no more. The feed stays open, to be told what is still consumed."""
        self._hushed = True
        self._interrupt()

    def _interrupt(self) -> None:
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Report:
    """What a connection says of itself, until it is closed: what a thread of it says later is old
    news, and would be taken for that of the next one."""

    def __init__(self, report: Report) -> None:
        self.over = False
        self._report = report

    def __call__(self, connected: bool, why: str = "") -> None:
        if not self.over:
            self._report(connected, why)


def _lasting(key: Any) -> Any:
    """A key that is the same when it comes back from the journal."""
    return key if type(key) in _LASTING else _encode(key)


_LASTING: Final = frozenset({str, int, bool, float, type(None)})
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list | tuple) else key

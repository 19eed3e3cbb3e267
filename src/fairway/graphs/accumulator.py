"""The accumulator of one source: everything that comes, from its feed and by push, in one order.

Both ways in lead through the same steps, on the loop and without waiting between: decode, pass
`through`, leave out repeats, collect; then it is the reactor's. So what was accepted first is seen
first. The object outlives the task that reads its feed: if that dies, it is begun again after what
was received, and pushes go on meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from fairway.errors import Backpressure, InvalidRequest
from fairway.graphs.boundary import PUSH, WHOLE, Boundary
from fairway.graphs.checkpoint import STATE, Pushed
from fairway.graphs.journal import RECORD_BYTES_MAX
from fairway.graphs.pace import RETRY_CAP_NS
from fairway.graphs.push_waiters import PushWaiter, PushWaiters
from fairway.graphs.repeats import Repeats, hashable, lasting, size_of
from fairway.graphs.source import KEYS_MAX
from fairway.graphs.waiting import Broadcast
from fairway.graphs.windows import Batching, Bound, collector_of
from fairway.runtime.usercode import reraise_interrupt, without_task
from fairway.runtime.words import brief, described, message_of, named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fairway.graphs.boundary import Marks, Schema, Stored
    from fairway.graphs.checkpoint import Kept
    from fairway.graphs.feed import Event
    from fairway.graphs.health import SourceHealth
    from fairway.graphs.reactor import Reactor
    from fairway.graphs.source import Source
    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.graphs")

VALUE_BYTES_MAX: Final = RECORD_BYTES_MAX - 64 * 1024
"""What is pushed to a checkpointed graph: the record of it fits the journal."""
OFFSET_MAX: Final = 2**63 - 1
UNCLOG_NS: Final = 20_000_000
"""When to try again while too much is not durable yet: some syncs later."""


class _Held(NamedTuple):
    """An event of the feed that was received, and is not collected yet."""

    value: Any
    keys: tuple[Any, ...]
    marks: Marks


class Accumulator:
    """One source while its graph runs."""

    def __init__(
        self,
        source: Source[Any],
        reactor: Reactor,
        health: SourceHealth,
        clock: Clock,
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
        """Events that `through` left out, and None where the type has room for it."""
        self.undecodable = 0
        """Events that did not decode, or did not fit."""
        self.marks: Marks = {}
        """How far the feed was received."""
        self._reactor = reactor
        self._clock = clock
        self._name = source.name
        self._journaled = journaled
        self._repeats = Repeats(KEYS_MAX)
        self._collector = None
        if source.batch is not None:
            most = source.capacity_bytes
            if journaled:  # it goes into the record of one firing
                most = min(most, VALUE_BYTES_MAX)
            self._collector = collector_of(source.batch, Bound(most, self._size_of))
        # What the feed brought that a window which is given whole cannot hold. Nothing else is
        # accepted until it is collected: that keeps the order.
        self._held: deque[_Held] = deque()
        self._flushed = Broadcast()
        queues = reactor.inputs.queues(source.name)
        # What is overtaken is dropped as it is: what fills its source is what tells repeats.
        self._drops = queues and source.on_full == "drop_oldest"
        self._overtakes = not queues
        self._window: list[Any] = []
        self._written = 0
        # What is written to a state is part of what is kept, and what completes a window may be
        # needed after the firing with it: that they came is recorded before they are fired with.
        overlaps = self._collector is not None and self._collector.overlaps
        self._first = source.keep is not None or overlaps
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        # Whether a push is handed to the reactor as it is.
        self._direct = (
            source.through is None
            and source.dedupe is None
            and not source.collects
            and not journaled
        )
        self._class = source.event_schema.cls
        self._typed = source.event_schema.type is not Any
        self._finite = source.event_schema.finite

    # What was kept

    def restore(self, kept: Kept, *, queued: bool) -> None:
        """Begin where the checkpoint says. Raises `InvalidRequest` if a value does not fit.

        If it is `queued`, each value of a state that no firing was given is news of its own.
        """
        self.marks = dict(kept.marks)
        self._repeats.remember(map(hashable, kept.keys))
        if kept.value is not None:
            self._reactor.inputs.cache[self._name] = self._restored(kept)
        if self._collector is not None:
            self._collector.resume(kept.marks)
        if self.source.keep is not None:
            self._resume_state(kept, queued)

    def _resume_state(self, kept: Kept, queued: bool) -> None:
        """Give again what no firing was given: each value as it was written, or the newest."""
        values = self._items(kept.window)
        again = min(kept.unseen if queued else 1, kept.unseen, len(values))
        seen = len(values) - again
        self._written = kept.written - again
        self._window = self._newest(values[:seen])
        for value in values[seen:]:
            self._write(value, None)

    def replay(self, offset: int, stored: Stored) -> None:
        """Take in again what was pushed and not consumed."""
        try:
            value = self.source.item_schema.load(stored)
            self._take_in(value, self._keys_of(value), {PUSH: offset}, None)
        except InvalidRequest as error:
            self.undecodable += 1
            self._reactor.dead_letter(self._name, str(error), stored.data, {PUSH: offset})
            self._pass({PUSH: offset})

    def _restored(self, kept: Kept) -> Any:
        assert kept.value is not None
        if kept.value.data == WHOLE:
            return self._items(kept.whole())
        return self._loaded(self.source.schema, kept.value)

    def _items(self, stored: Iterable[Stored]) -> list[Any]:
        return [self._loaded(self.source.item_schema, each) for each in stored]

    def _loaded(self, schema: Schema, stored: Stored) -> Any:
        try:
            return schema.load(stored)
        except InvalidRequest as error:
            raise InvalidRequest(f"source {self._name!r}: {error}") from None

    # Pushes

    def room(self) -> bool:
        return (
            self._reactor.inputs.room(self._name) > 0
            and not self._reactor.clogged
            and not self._held
        )

    def push(self, value: Any, waiter: PushWaiter | None) -> None:
        """Take in a value. Raises `Backpressure` or `InvalidRequest`; then nothing happened."""
        # What runs code of the user's does not see the task of whoever pushes.
        if type(value) is not self._class and self._typed:
            value = without_task(self._fitting, self.source.event_schema, value)
        if self._finite is not None:
            try:
                self._finite(value)
            except ValueError as error:
                raise self._not_json(error) from None
        if self._direct and value is not None:
            if self._reactor.inputs.room(self._name) <= 0:
                self._make_room()
            self.events += 1
            self._heard()
            self._reactor.arrived(self._name, Boundary(value), waiter)
            return
        without_task(self._push_kept, value, waiter)

    def _push_kept(self, value: Any, waiter: PushWaiter | None) -> None:
        if self.source.through is not None:
            value = self._through(value)
        # What may refuse it comes first: then nothing happened.
        keys: tuple[Any, ...] = ()
        stored = None
        if value is not None:
            if self.source.dedupe is not None:
                keys = self._keys_of(value)
            if self._journaled:
                stored = self._stored(value)
            if not (keys and self._repeats.met(keys)):
                self._see_to_room(value, keys)
        self.events += 1
        self._heard()
        if not self._journaled:
            self._take_in(value, keys, {}, waiter)
            return
        waiter = waiter or PushWaiter(None, asks=False)
        offset = self._reactor.next_push()
        if self._first and stored is not None and not self._repeats.met(keys):
            waiter.recorded = True
            consumed = keys if self.source.keep is not None else ()
            self._reactor.remember(Pushed(self._name, offset, stored, consumed), waiter.kept)
        self._take_in(value, keys, {PUSH: offset}, waiter)
        if stored is not None and not waiter.recorded:
            # It waits for other news, or for its firing to end: it must not be lost meanwhile.
            waiter.recorded = True
            self._reactor.remember(Pushed(self._name, offset, stored), waiter.kept)

    def _stored(self, value: Any) -> Stored:
        try:
            stored = self.source.item_schema.store(value)
        except BaseException as error:
            reraise_interrupt(error)
            raise InvalidRequest(
                f"source {self._name!r}: the value cannot be kept: {message_of(error)}"
            ) from error
        if len(stored.data) > VALUE_BYTES_MAX:
            raise InvalidRequest(
                f"source {self._name!r}: a value of {len(stored.data):,} bytes cannot be kept:"
                f" at most {VALUE_BYTES_MAX:,}"
            )
        return stored

    def _see_to_room(self, value: Any, keys: tuple[Any, ...]) -> None:
        if self._reactor.clogged:
            self.refused += 1
            raise Backpressure(
                f"journal under source {self._name}",
                depth=self._reactor.unwritten,
                limit="what may wait to be durable",
                retry_after_ns=UNCLOG_NS,
            )
        if not self._fits(value, keys):
            assert self._collector is not None
            self.refused += 1
            raise Backpressure(
                f"source {self._name}",
                depth=self._collector.depth,
                limit=self._window_bound(),
                retry_after_ns=RETRY_CAP_NS,
            )
        if self._reactor.inputs.room(self._name) <= 0:
            if self._collector is not None:
                self._collector.check(value)
            self._make_room()

    def _fitting(self, schema: Schema, value: Any) -> Any:
        try:
            return schema.fitting(value)
        except InvalidRequest as error:
            raise InvalidRequest(f"source {self._name!r}: {error}") from None

    def check_given(self, value: Any) -> None:
        """Raise `InvalidRequest` if a value for the cache has `nan` or `inf` in it."""
        finite = self.source.schema.finite
        if finite is not None:
            try:
                finite(value)
            except ValueError as error:
                raise self._not_json(error) from None

    def _not_json(self, error: ValueError) -> InvalidRequest:
        return InvalidRequest(f"source {self._name!r}: {error}")

    def _through(self, event: Any) -> Any:
        assert self.source.through is not None
        try:
            value = self.source.through(event)
        except BaseException as error:
            reraise_interrupt(error)
            raise InvalidRequest(
                f"source {self._name!r}: through failed: {named(error)}"
            ) from error
        return None if value is None else self._fitting(self.source.item_schema, value)

    def _make_room(self) -> None:
        if not self._drops:
            self.refused += 1
            raise self._refusal(self._bound())
        while self._reactor.inputs.room(self._name) <= 0:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        dropped = self._reactor.inputs.drop_oldest(self._name)
        self.dropped += 1
        self._repeats.forget(dropped.keys)
        if PUSH in dropped.marks:  # it is kept: after a crash it must not come back
            self._reactor.dropped(self._name, dropped.marks[PUSH])
        for waiter in dropped.waiters:
            waiter.dropped(self._refusal("it was dropped for newer ones"))

    def _bound(self) -> str:
        """Which of the bounds is reached."""
        if self._overtakes:
            return "what is kept of boundaries that were overtaken"
        if self._reactor.inputs.depth(self._name) >= self.source.capacity:
            return f"{self.source.capacity} boundaries"
        return f"{self.source.capacity_bytes:,} bytes of boundaries"

    def _refusal(self, why: str) -> Backpressure:
        depth = self._reactor.inputs.depth(self._name)
        return Backpressure(
            f"source {self._name}",
            depth=depth,
            limit=why,
            retry_after_ns=self._reactor.retry_after_ns(depth),
        )

    # What both ways in have in common

    def _take_in(
        self, value: Any, keys: tuple[Any, ...], marks: Marks, waiter: PushWaiter | None
    ) -> None:
        """Raises `InvalidRequest` if it cannot be collected; then nothing happened."""
        if value is None or (keys and self._repeats.met(keys)):
            self.suppressed += value is None
            self.repeated += value is not None
            self._pass(marks)
            if waiter is not None:
                waiter.passed()
        elif self._collector is not None:
            windows = self._collector.push(value, marks, keys, waiter, self._clock.now_ns())
            self._repeats.remember(keys)
            for window in windows:
                self._give(window)
            self._arm()
        elif self.source.keep is not None:
            self._repeats.remember(keys)
            self._write(value, waiter)
        else:
            if keys:
                self._repeats.remember(keys)
            self._reactor.arrived(self._name, Boundary(value, marks, keys), waiter)

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
            key = lasting(key) if self._journaled else hashable(key)
            hash(key)
        except BaseException as error:
            reraise_interrupt(error)
            raise InvalidRequest(f"source {self._name!r}: dedupe failed: {named(error)}") from error
        return (key,)

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

    def _write(self, value: Any, waiter: PushWaiter | None) -> None:
        self._written += 1
        self._window.append(value)
        self._window = self._newest(self._window)
        self._give_state(waiter)

    def _newest(self, values: list[Any]) -> list[Any]:
        """Of the values that were written, those that are kept."""
        keep = self.source.keep
        assert keep is not None
        if keep >= 0:
            del values[: max(0, len(values) - keep)]
        return values

    def _give_state(self, waiter: PushWaiter | None) -> None:
        if self.source.keep == 0:
            if waiter is not None:
                waiter.passed()
            return
        marks = {STATE: self._written} if self._journaled else {}
        self._reactor.arrived(self._name, Boundary(list(self._window), marks), waiter)

    # Collecting

    def _give(self, window: Any) -> None:
        values, marks, keys, waiters = window
        waiter: Any = (
            PushWaiters(waiters) if len(waiters) > 1 else (waiters[0] if waiters else None)
        )
        self._reactor.arrived(self._name, Boundary(values, marks, keys), waiter)

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
            self._collect_held()
            if not self._held:
                self._flushed.notify_all()

    def _size_of(self, value: Any, keys: tuple[Any, ...]) -> int:
        return self.source.item_schema.size_of(value) + size_of(keys)

    def _fits(self, value: Any, keys: tuple[Any, ...]) -> bool:
        """Whether a window that is given whole can hold it, now."""
        return self._collector is None or (not self._held and self._collector.fits(value, keys))

    def _window_bound(self) -> str:
        assert self._collector is not None
        return f"{self._collector.bound.most:,} bytes of a window that is given whole"

    @property
    def collected(self) -> int:
        return self._collector.depth if self._collector is not None else 0

    @property
    def collected_bytes(self) -> int:
        return self._collector.bytes if self._collector is not None else 0

    @property
    def late(self) -> int:
        return self._collector.late if self._collector is not None else 0

    # What the feed brings

    async def wait_room(self) -> None:
        """Wait until there is room for an event, or make some."""
        while self._held:
            await self._flushed.wait()
        if self._drops and self._reactor.inputs.room(self._name) <= 0:
            self._make_room()
        await self._reactor.wait_room(self._name)

    def event(self, event: Event) -> None:
        """Take in an event of the feed. One that cannot be used is kept aside."""
        self.events += 1
        self._heard()
        data, stream, offset = event
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX or not _is_written(stream):
            self.undecodable += 1
            reason = "its stream is a text, and its offset 0 or a number of 63 bits above it, not"
            reason = f"{reason} {brief(stream)} and {brief(offset)}"
            self._reactor.dead_letter(self._name, reason, _bytes_of(data), {})
            return
        marks = {stream: offset} if offset else {}
        if offset:
            if offset <= self.marks.get(stream, 0):
                self.repeated += 1  # read again after a reconnect
                return
            self.marks[stream] = offset
        try:
            if isinstance(data, bytes):
                value = self.source.event_schema.of_json(data)
            else:
                value = self._fitting(self.source.event_schema, data)
            if self.source.through is not None:
                value = self._through(value)
            keys = () if value is None else self._keys_of(value)
            if self._held or not (
                value is None or self._repeats.met(keys) or self._fits(value, keys)
            ):
                self._hold(_Held(value, keys, marks))
                return
            self._take_in(value, keys, marks, None)
        except InvalidRequest as error:
            self.undecodable += 1
            self._reactor.dead_letter(self._name, str(error), _bytes_of(data), marks)
            self._pass(marks)

    def _hold(self, held: _Held) -> None:
        """Read no more: the window cannot hold this one, and would be wrong without it."""
        logger.error(
            "graph %s, source %s: reads no more, the next event would pass %s",
            self._reactor.name,
            self._name,
            self._window_bound(),
        )
        self._held.append(held)

    def _collect_held(self) -> None:
        collector = self._collector
        assert collector is not None
        while self._held and collector.fits(self._held[0].value, self._held[0].keys):
            self._take_in(*self._held.popleft(), None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _is_written(stream: object) -> bool:
    """Whether it can stand in a journal, and be read again."""
    if type(stream) is not str:
        return False
    if not stream.isascii():
        try:
            stream.encode()
        except UnicodeEncodeError:
            return False
    return True


def _bytes_of(data: Any) -> bytes:
    """What is kept of an event that cannot be used."""
    if isinstance(data, bytes):
        return data
    try:
        return msgspec.msgpack.encode(data, enc_hook=repr)
    except BaseException as error:
        reraise_interrupt(error)
        return described(data)

"""The reactor: takes in what sources bring, and fires the graph when its gate opens.

A shell around pure machines: `inputs` decides what a firing is given and when, `health` whether
the graph may fire. A graph of plain nodes fires where the boundary arrives, to its end, without a
turn of the loop; one that waits for anything fires in the reactor's own task. There is never more
than one firing at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairway.errors import Closing, Conflict, FairwayError, FiringFailed, OutcomeUnknown
from fairway.graphs.checkpoint import Died, Steered
from fairway.graphs.context import FiringContext, JobEnqueue
from fairway.graphs.firing import LOG_MAX, Firing
from fairway.graphs.health import FIRING, ReactorState
from fairway.graphs.inputs import PASSED, Inputs, PredicateFailed, Slot
from fairway.graphs.journal import RECORD_BYTES_MAX, encode_fitting
from fairway.graphs.records import died_of, fired_of
from fairway.graphs.traversal import NodeFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairway.graphs.boundary import Boundary, Marks
    from fairway.graphs.checkpoint import Checkpoint, Limits, Record
    from fairway.graphs.graph import Graph
    from fairway.graphs.hands import Hands
    from fairway.graphs.health import ReactorHealth
    from fairway.graphs.inputs import Taken
    from fairway.graphs.journal import Journal
    from fairway.graphs.outbox import Outbox
    from fairway.graphs.tickets import Ticket
    from fairway.runtime.clock import Clock

logger = logging.getLogger("fairway.graphs")

FIRINGS_PER_TURN: Final = 128
"""Firings before others on the loop get their turn."""


class _Manual(NamedTuple):
    values: Mapping[str, Any] | None
    """What replaces the cache, if anything does."""
    reply: asyncio.Future[Firing]


class Reactor:
    """One graph, firing."""

    def __init__(
        self,
        graph: Graph,
        health: ReactorHealth,
        hands: Hands,
        clock: Clock,
        *,
        checkpoint: Checkpoint,
        limits: Limits,
        journal: Journal | None,
        outbox: Outbox,
        consumed: Callable[[str, Marks], None],
        wrote: Callable[[str, Any], None],
    ) -> None:
        """`consumed` is told how far a source is, for good; `wrote` what is new in a state."""
        self.health = health
        self.log: deque[Firing] = deque(maxlen=LOG_MAX)
        self.fired = 0
        """Firings that succeeded since it was loaded."""
        self.failed = 0
        """Tries that did not."""
        self.checkpoint = checkpoint
        self.number = checkpoint.number
        self.paused = checkpoint.paused
        self.halted: str | None = None
        """Why it stopped firing by itself, if it did."""
        self.listeners: list[Callable[[Firing], None]] = []
        """Told of each firing when it is over and recorded."""
        self.changed: Callable[[], None] = _nothing
        """Told when its state changed."""
        self._graph = graph
        self._traversal = graph.build()
        self._inline = self._traversal.inline
        self._hands = hands
        self._clock = clock
        self._now = clock.now_ns
        self._limits = limits
        self._journal = journal
        self._outbox = outbox
        self._consumed = consumed
        self._wrote = wrote
        self._wants_context = any(node.context is not None for node in graph.nodes)
        self._states = frozenset(n for n, s in graph.sources.items() if s.keep is not None)
        slots = [
            Slot(name, source.capacity, name in graph.firing_sources)
            for name, source in graph.sources.items()
        ]
        self.inputs = Inputs(slots, graph.gate, graph.inputs, clock.now_ns())
        self._stales = any(source.stale_after_ns for source in graph.sources.values())
        self._timed = graph.gate.timed or graph.warm_timeout_ns is not None or self._stales
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._attempt = 0
        self._retry_at_ns: int | None = None
        self._busy = False
        self._open = False  # whether a gate that opens may fire: kept, since it is asked so often
        self._ready = False  # the same, and nothing fires just now
        self._degraded: tuple[str, ...] = ()
        self._continues = False
        self.stopped: FairwayError | None = None
        """Why it does not run any more, if it does not."""
        self._death: BaseException | None = None
        self._work = asyncio.Event()
        self._manual: deque[_Manual] = deque()
        self._rooms: dict[str, list[asyncio.Future[None]]] = {}
        self._settling: list[asyncio.Future[None]] = []
        self._promised: set[asyncio.Future[Any]] = set()  # told, if it is stopped first

    def promise(self) -> asyncio.Future[Any]:
        """A future that is resolved by what becomes of something, or by the end of the graph."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._promised.add(future)
        future.add_done_callback(self._promised.discard)
        return future

    # What sources bring

    def arrived(self, source: str, boundary: Boundary, token: Ticket | None = None) -> None:
        """A source has news. The caller has seen to it that there is room."""
        self.inputs.arrive(source, boundary, self._now(), token)
        if self._ready:
            self._pump()
        elif self._timed:
            self._arm()

    def passed(self, source: str, marks: Marks, keys: tuple[Any, ...] = ()) -> None:
        """A source went on without a value."""
        self.inputs.passed(source, marks, keys)

    def buried(self, source: str, reason: str, data: bytes, at: Marks) -> None:
        """A boundary cannot be used: keep it aside."""
        data = data[: RECORD_BYTES_MAX // 2]
        died = Died(self._clock.wall_ns(), source, reason, {source: data}, at=at)
        self.remember(died, _nothing)
        logger.warning("graph %s, source %s: %s", self._graph.name, source, reason)

    async def wait_room(self, source: str) -> None:
        """Wait until a boundary of a source fits."""
        while self.clogged or self.inputs.room(source) <= 0:
            if self.stopped is not None:
                raise self.stopped
            waiter: asyncio.Future[None] = self._loop.create_future()
            waiting = self._rooms.setdefault(source, [])
            waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in waiting:
                    waiting.remove(waiter)
                raise

    @property
    def clogged(self) -> bool:
        """Whether so much waits to be written that no source has room."""
        return self._journal is not None and self._journal.full

    @property
    def unwritten(self) -> int:
        """Records that are not durable yet."""
        return self._journal.pending if self._journal is not None else 0

    # Life

    def start(self) -> None:
        """What was kept is loaded: fire from now on, as soon as the sources are healthy."""
        self.health.restored(self._now())
        for source in self.health.sources.values():
            source.changed = self.look
        self.changed()
        self._update()

    async def run(self) -> None:
        """Fire what cannot be fired where it arrives, until cancelled; raises what broke it."""
        while True:
            await self._work.wait()
            self._work.clear()
            if self._death is not None:
                raise self._death
            if self._inline:
                continue
            while (due := self._due()) is not None:
                await self._fire(*due)
            self.moved()

    def stop(self, why: FairwayError) -> None:
        """Fire no more. Whoever waits is told."""
        if self.stopped is not None:
            return
        self.stopped = why
        self._open = self._ready = False
        if self._timer is not None:
            self._timer.cancel()
        self.health.stopped(self._now())
        for manual in self._manual:
            _fail(manual.reply, why)
        self._manual.clear()
        self._wake_rooms()
        for future in list(self._promised):
            # What was accepted may be in the journal already, and fire when the graph is back.
            _fail(future, why if self._journal is None else OutcomeUnknown(str(why)))
        self._wake(self._settling)
        self.changed()

    def look(self) -> None:
        """A source, or the journal, changed: decide anew whether to fire."""
        if self.stopped is not None:
            return
        if self.health.look(self._now()):
            self.changed()
        self._update()

    def room(self) -> None:
        """The journal, or the outbox, has room again."""
        self._update()
        self._wake_rooms()

    def checkpoint_failing(self, failures: int, most: int) -> None:
        """The journal tells how many writes in a row have failed."""
        failing = failures >= most
        if failing is not self.health.checkpoint_fails:
            self.health.checkpoint_fails = failing
            self.look()

    def broken(self, error: BaseException) -> None:
        """It cannot go on: `run` raises this."""
        self._die(error)

    def check_broken(self) -> None:
        """Raise what broke it, if something did."""
        if self._death is not None:
            raise self._death

    # Commands

    async def force(self, values: Mapping[str, Any] | None = None) -> Firing:
        """Fire now, whatever the gate says, paused or not; with `values` as the cache if given.

        Returns the firing once it is over and recorded. Raises `FiringFailed` if it failed: then
        nothing was consumed.
        """
        self._check_running()
        manual = _Manual(values, self.promise())
        self._manual.append(manual)
        self._kick()
        return await manual.reply

    def pause(self, who: str = "") -> asyncio.Future[None]:
        """Stop evaluating the gate; sources go on. The future: that it is recorded."""
        return self._steer(True, who)

    def resume(self, who: str = "") -> asyncio.Future[None]:
        """Evaluate the gate again, at once; it also ends a halt."""
        self.halted = None
        self._attempt = 0
        self._retry_at_ns = None
        return self._steer(False, who)

    def _steer(self, paused: bool, who: str) -> asyncio.Future[None]:
        self._check_running()
        done: asyncio.Future[None] = self.promise()
        self.paused = paused
        self.remember(Steered(paused, self._clock.wall_ns(), who), partial(_resolve, done))
        self.changed()
        self._update()
        return done

    async def settled(self) -> None:
        """Wait until nothing more will happen by itself."""
        while self.stopped is None and not self._at_rest:
            if self._journal is not None and self._journal.pending:
                # Not all that is written is a firing, which would tell when it is.
                with suppress(Closing):
                    await self._journal.wait_durable()
                    continue
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._settling.append(waiter)
            await waiter

    @property
    def _at_rest(self) -> bool:
        if self._busy or self._manual or self._continues or self._work.is_set():
            return False
        if self._retry_at_ns is not None:
            return False
        return not (self._journal is not None and self._journal.pending) and self._outbox.idle

    def moved(self) -> None:
        """Something that `settled` waits for may be over."""
        if self._settling and self._at_rest:
            self._wake(self._settling)

    # Firing

    def _may_fire(self) -> bool:
        return (
            self.stopped is None
            and self._death is None
            and not self.paused
            and self.halted is None
            and self._retry_at_ns is None
            and self.health.state in FIRING
            and not self._outbox.full
            and not (self._journal is not None and self._journal.full)
        )

    def _decide(self) -> None:
        """Note whether firing is allowed. Called whenever something that it depends on changes."""
        self._open = self._may_fire()
        self._ready = self._open and not self._busy
        self._degraded = self.health.degraded(self._now())

    def _update(self) -> None:
        """Decide anew, and fire what is due already."""
        self._decide()
        if self._ready or self._manual:
            self._kick()
        elif self._timed:
            self._arm()

    def _kick(self) -> None:
        if self._inline:
            if not self._busy:
                self._pump()
        else:
            self._work.set()

    def _pump(self) -> None:
        """Fire all that is due, where we are; others on the loop get their turn now and then."""
        if not self._inline:
            self._work.set()
            return
        left = FIRINGS_PER_TURN
        try:
            while (due := self._due()) is not None:
                self._fire_inline(*due)
                left -= 1
                if not left:
                    if not self._continues:
                        self._continues = True
                        self._loop.call_soon(self._go_on)
                    break
        except BaseException as error:  # a defect of ours, or a gate that cannot be evaluated
            self._busy = False
            self._die(error)

    def _go_on(self) -> None:
        self._continues = False
        self._update()
        self.moved()

    def _due(self) -> tuple[Taken, str, asyncio.Future[Firing] | None, bool] | None:
        """The next firing, if one may and should be; commands come first."""
        if self._busy or self.stopped is not None or self._death is not None:
            return None
        if self._manual:
            values, reply = self._manual.popleft()
            if values is None:
                return self.inputs.force(), "forced", reply, False
            return self.inputs.force_with(values), "injected", reply, True
        while self._open:
            try:
                taken = self.inputs.take(self._now())
            except PredicateFailed as failure:
                self._missed(failure.taken, "news", failure.error, None, self._now(), {})
                continue  # with what comes after it, unless this one is tried again
            if taken is None:
                if self._rooms:
                    self._wake_rooms()  # a predicate may have passed over some
                if self._timed:
                    self._arm()
                return None
            return taken, "news", None, False
        return None

    def _begin(self, taken: Taken, cause: str) -> FiringContext:
        if self._stales:
            self._degraded = self.health.degraded(self._now())
        return FiringContext(
            self._graph.name,
            self._graph.tenant,
            self.number + 1,
            cause,
            self._clock.wall_ns(),
            self._degraded,
            tuple([news.source for news in taken.news if news.value is not PASSED]),
            self._states,
        )

    def _fire_inline(
        self, taken: Taken, cause: str, reply: asyncio.Future[Firing] | None, replaced: bool
    ) -> None:
        self._busy = True
        self._ready = False
        begin_ns = self._now()
        ctx = self._begin(taken, cause)
        outputs: dict[str, Any] = {}
        try:
            self._traversal.run(taken.values, ctx, outputs)
        except NodeFailed as failure:
            self._busy = False
            self._missed(taken, cause, failure, reply, begin_ns, outputs)
        else:
            self._busy = False
            self._hit(taken, ctx, reply, replaced, begin_ns, outputs)

    async def _fire(
        self, taken: Taken, cause: str, reply: asyncio.Future[Firing] | None, replaced: bool
    ) -> None:
        self._busy = True
        self._ready = False
        begin_ns = self._now()
        ctx = self._begin(taken, cause)
        outputs: dict[str, Any] = {}
        try:
            await self._traversal.arun(taken.values, ctx, outputs, self._hands)
        except NodeFailed as failure:
            self._busy = False
            self._missed(taken, cause, failure, reply, begin_ns, outputs)
        except BaseException:
            self._busy = False
            self.inputs.restore(taken)
            if reply is not None:
                _fail(reply, Closing("the graph was stopped during this firing"))
            raise
        else:
            self._busy = False
            self._hit(taken, ctx, reply, replaced, begin_ns, outputs)

    def _hit(
        self,
        taken: Taken,
        ctx: FiringContext,
        reply: asyncio.Future[Firing] | None,
        replaced: bool,
        begin_ns: int,
        outputs: dict[str, Any],
    ) -> None:
        """It succeeded: record it, and let its effects go once it is recorded."""
        if self.stopped is not None:  # stopped under way: nothing of it happened
            self.inputs.restore(taken)
            return
        effects: tuple[Any, ...] = ()
        try:
            for bridge in self._graph.bridges:
                if bridge.where is None or bridge.where(outputs):
                    ctx.effects.append(JobEnqueue(bridge.order(outputs)))
            if ctx.effects:
                effects = self._outbox.encoded(ctx.effects)
            if self._journal is not None:
                record = fired_of(
                    self._graph, taken, ctx, effects, outputs, self._outbox, replaced=replaced
                )
                encoded = encode_fitting(record)
        except Exception as error:  # what cannot be recorded did not happen
            self._missed(taken, ctx.cause, error, reply, begin_ns, outputs)
            return
        self.number = ctx.number
        self.fired += 1
        self._attempt = 0
        firing = Firing(
            ctx.number,
            ctx.cause,
            ctx.wall_ns,
            self._now() - begin_ns,
            taken.values,
            ctx.fresh,
            outputs,
            None,
            ctx.degraded,
        )
        if self._journal is None:
            self._release(taken, firing, effects, reply)
        else:
            for news in taken.news:
                for token in news.tokens:
                    token.recorded = True
            told = partial(self._release, taken, firing, effects, reply)
            self._journal.append(record, told, encoded)
            if self._journal.full:
                self._open = False
        for name, value in ctx.writes:
            self._wrote(name, value)
        self._after(taken)

    def _release(
        self,
        taken: Taken,
        firing: Firing,
        effects: tuple[Any, ...],
        reply: asyncio.Future[Firing] | None,
    ) -> None:
        """It is recorded: tell whoever waits, and let its effects go."""
        if firing.error is None:
            self.log.append(firing)
        for source, _, marks, _, tokens in taken.news:
            if marks:
                self._consumed(source, marks)
            for token in tokens:
                token.fired(firing)
        if effects:
            self._outbox.send(firing.number, effects)
            if self._outbox.full:
                self._open = self._ready = False
        if reply is not None and not reply.done():
            reply.set_result(firing)
        for listener in self.listeners:
            listener(firing)
        if self._settling:
            self._loop.call_soon(self.moved)

    def _missed(
        self,
        taken: Taken,
        cause: str,
        error: Exception,
        reply: asyncio.Future[Firing] | None,
        begin_ns: int,
        outputs: dict[str, Any],
    ) -> None:
        """It failed: nothing of it happened. What is done about it is the graph's policy."""
        self.failed += 1
        attempt = self._attempt + 1
        now_ns = self._now()
        firing = Firing(
            self.number + 1,
            cause,
            self._clock.wall_ns(),
            now_ns - begin_ns,
            taken.values,
            tuple(news.source for news in taken.news if news.value is not PASSED),
            outputs,
            str(error),
            self.health.degraded(now_ns),
            attempt,
        )
        self.log.append(firing)
        policy = self._graph.on_error
        final = reply is not None or attempt > policy.retries
        cause_of = error.error if isinstance(error, NodeFailed) else error
        # Each try is told; where it happened, once.
        logger.warning(
            "graph %s, firing %d: %s%s",
            self._graph.name,
            firing.number,
            error,
            "; it is halted" if final and reply is None and policy.then == "halt" else "",
            exc_info=cause_of if final else None,
        )
        if reply is not None:  # whoever asked for it is told, and decides
            self.inputs.restore(taken)
            _fail(reply, FiringFailed(firing, "nothing was consumed"))
            self._tell(firing)
            self._after(taken)
            return
        if attempt <= policy.retries:
            self.inputs.restore(taken)
            self._attempt = attempt
            self._retry_at_ns = now_ns + policy.backoff.ceiling_ns(attempt)
            self._timed = True
            self._decide()
            self._arm()
        elif policy.then == "halt":
            self.inputs.restore(taken)
            self.halted = str(error)
            self._decide()
            self.changed()
        else:
            self._attempt = 0
            self._bury(taken, firing)  # whoever listens is told when it is recorded
            self._after(taken)
            return
        self._tell(firing)
        self._after(taken)

    def _bury(self, taken: Taken, firing: Firing) -> None:
        self.number = firing.number
        for news in taken.news:
            for token in news.tokens:
                token.recorded = True
        died = died_of(self._graph, taken, firing)
        self.remember(died, partial(self._release, taken, firing, (), None))

    def remember(self, record: Record, told: Callable[[], None]) -> None:
        """Keep a record in the journal, or only in memory if there is none; then call `told`."""
        if self._journal is not None:
            self._journal.append(record, told)
        else:
            self.checkpoint.apply(record, self._limits)
            told()

    def _tell(self, firing: Firing) -> None:
        for listener in self.listeners:
            listener(firing)

    def _after(self, taken: Taken) -> None:
        if self._rooms:
            for news in taken.news:
                self._wake(self._rooms.pop(news.source, ()))
        self._ready = self._open
        if self._settling:
            self._loop.call_soon(self.moved)

    # Time

    def _arm(self) -> None:
        """See to it that we are woken when time alone changes something."""
        if self.stopped is not None:
            return
        now_ns = self._now()
        deadlines = [self._retry_at_ns, self.health.deadline_ns(now_ns)]
        if self._open and not self._busy:  # when the firing under way is over, it is asked anyway
            deadlines.append(self.inputs.deadline_ns())
        due = [each for each in deadlines if each is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            delay_s = max(0, min(due) - now_ns) / 1e9
            self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ns = self._now()
        if self._retry_at_ns is not None and now_ns >= self._retry_at_ns:
            self._retry_at_ns = None
        self.look()
        self._arm()
        self.moved()

    def _die(self, error: BaseException) -> None:
        self._open = self._ready = False
        self._death = error
        self._work.set()

    def _check_running(self) -> None:
        if self.stopped is not None:
            raise Conflict(
                f"graph {self._graph.name!r} does not run: {self.stopped}", code="graph_stopped"
            )

    def _wake_rooms(self) -> None:
        for source in list(self._rooms):
            self._wake(self._rooms.pop(source))

    def _wake(self, waiters: Any) -> None:
        for waiter in list(waiters):
            _resolve(waiter)
        if isinstance(waiters, list):
            waiters.clear()

    @property
    def state(self) -> ReactorState:
        return self.health.state


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _nothing() -> None:
    return None

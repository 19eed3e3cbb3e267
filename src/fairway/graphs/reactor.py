"""The reactor: takes in what sources bring, and fires the graph when its gate opens.

A shell around pure machines: `inputs` decides what a firing is given and when, `health` and
`steering` whether the graph may fire. A graph of plain nodes fires where the boundary arrives, to
its end, without a turn of the loop; one that waits for anything fires in a task of its own. There
is never more than one firing at a time.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import _enter_task as enter_task
from asyncio import _leave_task as leave_task
from asyncio import current_task
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairway.errors import (
    Closing,
    Conflict,
    FairwayError,
    FiringFailed,
    OutcomeUnknown,
    ProcessDied,
)
from fairway.graphs.boundary import PUSH
from fairway.graphs.checkpoint import Consumed, Died, Dropped, Passed, Steered, Trying
from fairway.graphs.context import FiringContext
from fairway.graphs.crash_loop import CrashLoop
from fairway.graphs.firing import INJECTED, LOG_MAX, Firing
from fairway.graphs.health import FIRING, ReactorState
from fairway.graphs.inputs import PASSED, Inputs, PredicateFailed, Slot
from fairway.graphs.journal import RECORD_BYTES_MAX, encode_fitting
from fairway.graphs.pace import RECENT, RETRY_CAP_NS, pace_ns, retry_after_ns
from fairway.graphs.records import died_of, fired_of
from fairway.graphs.steering import Steering, Verdict
from fairway.graphs.traversal import NodeFailed
from fairway.graphs.waiting import Bell, Promises, fail, resolve
from fairway.runtime.completion import notify, settle
from fairway.runtime.eager import EagerTask
from fairway.runtime.turn import TURN
from fairway.runtime.usercode import (
    CancelledItself,
    is_interrupt,
    reraise_interrupt,
    without_task,
)
from fairway.runtime.words import is_a, said, traced, writable

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
    from fairway.runtime.completion import OnDone
    from fairway.runtime.turn import TurnBudget

logger = logging.getLogger("fairway.graphs")

NEWS: Final = "news"
"""The cause of a firing that the gate let pass."""

# A third faster than calling the class, twice per firing.
_due = _fired = tuple.__new__


class _Manual(NamedTuple):
    values: Mapping[str, Any] | None
    """What replaces the cache, if anything does."""
    reply: asyncio.Future[Firing]


class _Due(NamedTuple):
    """A firing that is to be, or under way."""

    taken: Taken
    cause: str
    reply: asyncio.Future[Firing] | None
    """Whoever asked for it by command."""


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
        turn: TurnBudget = TURN,
    ) -> None:
        """`consumed` is told how far a source is, for good; `wrote` what is new in a state."""
        self.name = graph.name
        self.health = health
        self.log: deque[Firing] = deque(maxlen=LOG_MAX)
        self.logged = 0
        """Firings that were ever put in the log: those that are recorded, and tries that failed."""
        self.fired = 0
        """Firings that succeeded since it was loaded."""
        self.failed = 0
        """Tries that did not."""
        self.checkpoint = checkpoint
        self.number = checkpoint.number
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
        self._firings_per_turn = turn.firings_per_turn
        self._states = graph.states
        slots = [
            Slot(
                name,
                source.capacity,
                name in graph.firing_sources,
                source.capacity_bytes,
                source.size_of,
                source.dedupe is not None or source.batch is not None,
            )
            for name, source in graph.sources.items()
        ]
        self.inputs = Inputs(slots, graph.gate, graph.inputs, clock.now_ns())
        self._stales = any(source.stale_after_ns for source in graph.sources.values())
        self._timed = graph.gate.timed or graph.warm_timeout_ns is not None or self._stales
        self._filters = bool(graph.gate.predicates)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._steering = Steering(graph.on_error, paused=checkpoint.paused)
        self._firing: _Due | None = None  # the one that is under way
        self._open = False  # whether a gate that opens may fire: kept, since it is asked so often
        self._degraded: tuple[str, ...] = ()
        self._continues = False
        self.stopped: FairwayError | None = None
        """Why it does not run any more, if it does not."""
        self._death: BaseException | None = None
        self._work = asyncio.Event()
        self._eager = EagerTask(graph.name)
        self._manual: deque[_Manual] = deque()
        self._rooms: dict[str, Bell] = {}  # of the sources that somebody waits for
        self._rest = Bell()
        self._promises = Promises()
        self.promise = self._promises.make
        """A future that is resolved by what becomes of something, or by the end of the graph."""
        # Without a journal nothing is fired again, and its checkpoint is new.
        self._crash_loop = CrashLoop(starts=checkpoint.starts, crashes=checkpoint.crashes)
        self._pushes = max((kept.pushed for kept in checkpoint.sources.values()), default=0)

    # What sources bring

    def arrived(self, source: str, boundary: Boundary, token: Ticket | None = None) -> None:
        """A source has news. The caller has seen to it that there is room."""
        self.inputs.arrive(source, boundary, self._now(), token)
        if self._open and self._firing is None:
            self._pump()
        elif self._timed:
            self._arm()

    def next_push(self) -> int:
        """The offset of a push. They rise over all sources: that is the order of arrival."""
        self._pushes += 1
        return self._pushes

    def passed(self, source: str, marks: Marks, keys: tuple[Any, ...] = ()) -> None:
        """A source went on without a value."""
        self.inputs.passed(source, marks, keys)

    def dropped(self, source: str, offset: int) -> None:
        """A push that was kept, up to this offset, was dropped for newer ones."""
        above = 0
        if self._firing is not None:  # what it took came before, and is not consumed yet
            taken = [news for news in self._firing.taken.news if news.source == source]
            above = max((news.marks.get(PUSH, 0) for news in taken), default=0)
        self.remember(Dropped(source, above, offset))

    def buried(self, source: str, reason: str, data: bytes, at: Marks) -> None:
        """A boundary cannot be used: keep it aside."""
        data, reason = data[: RECORD_BYTES_MAX // 2], writable(reason)
        died = Died(self._clock.wall_ns(), source, reason, {source: data}, at=at)
        self.remember(died)
        logger.warning("graph %s, source %s: %s", self._graph.name, source, reason)

    async def wait_room(self, source: str) -> None:
        """Wait until a boundary of a source fits."""
        while self.clogged or self.inputs.room(source) <= 0:
            if self.stopped is not None:
                raise self.stopped
            await self._rooms.setdefault(source, Bell()).wait()

    @property
    def clogged(self) -> bool:
        """Whether so much waits to be written that no source has room."""
        return self._journal is not None and self._journal.full

    def retry_after_ns(self, depth: int) -> int:
        """When a source of which so many wait may have room again."""
        if self.paused or self.halted is not None:
            return RETRY_CAP_NS
        recent = [firing.duration_ns for firing in islice(reversed(self.log), RECENT)]
        return retry_after_ns(pace_ns(reversed(recent)), depth)

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
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                if self._death is not None:
                    raise self._death
                if self._inline and not self._crash_loop.suspected:
                    continue
                while (due := without_task(self._due)) is not None:
                    if self._crash_loop.suspected:
                        await self._fire_noted(due)
                        if self.inputs.refused:
                            break  # else it would be asked about for ever
                    else:
                        await self._fire(due)
                    if self._inline and not self._crash_loop.suspected:
                        self._update()
                        break
                self.moved()
        finally:
            await self._eager.aclose()

    def stop(self, why: FairwayError) -> None:
        """Fire no more. Whoever waits is told."""
        if self.stopped is not None:
            return
        self.stopped = why
        self._open = False
        if self._timer is not None:
            self._timer.cancel()
        self.health.stopped(self._now())
        for manual in self._manual:
            fail(manual.reply, why)
        self._manual.clear()
        self._wake_rooms()
        # What was accepted may be in the journal already, and fire when the graph is back.
        self._promises.fail_all(why if self._journal is None else OutcomeUnknown(str(why)))
        self._rest.ring()
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
        self._pump()
        return await manual.reply

    def pause(self, who: str = "") -> asyncio.Future[None]:
        """Stop evaluating the gate; sources go on. The future: that it is recorded."""
        self._check_running()
        self._steering.pause()
        return self._steered(who)

    def resume(self, who: str = "") -> asyncio.Future[None]:
        """Evaluate the gate again, at once; it also ends a halt."""
        self._check_running()
        self._steering.resume()
        self._crash_loop.forget()
        return self._steered(who)

    def _steered(self, who: str) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self.promise()
        self.remember(Steered(self.paused, self._clock.wall_ns(), who), partial(settle, done))
        self.changed()
        self._update()
        return done

    async def settled(self) -> None:
        """Wait until nothing more will happen by itself."""
        while self.stopped is None and not self.at_rest:
            if self._journal is not None and self._journal.pending:
                # Not all that is written is a firing, which would tell when it is.
                with suppress(Closing):
                    await self._journal.wait_durable()
                    continue
            await self._rest.wait()

    @property
    def at_rest(self) -> bool:
        """Whether nothing will happen before something comes, or time brings it."""
        if self._firing is not None or self._manual or self._continues or self._work.is_set():
            return False
        if self._steering.retry_at_ns is not None:
            return False
        return not (self._journal is not None and self._journal.pending) and self._outbox.idle

    def moved(self) -> None:
        """Something that `settled` waits for may be over."""
        if self._rest.waiters and self.at_rest:
            self._rest.ring()

    # Firing

    def _may_fire(self) -> bool:
        return (
            self.stopped is None
            and self._death is None
            and self._steering.allows
            and self.health.state in FIRING
            and not self._outbox.full
            and not self.clogged
        )

    def _decide(self) -> None:
        """Note whether firing is allowed. Called whenever something that it depends on changes."""
        self._open = self._may_fire()
        self._degraded = self.health.degraded(self._now())

    def _update(self) -> None:
        """Decide anew, and fire what is due already."""
        self._decide()
        if self._manual or (self._open and self._firing is None):
            self._pump()
        elif self._timed:
            self._arm()

    def _pump(self) -> None:
        """Fire all that is due, where we are; others on the loop get their turn now and then.

        While a firing is under way nothing else is due.
        """
        if not self._inline or self._crash_loop.suspected:
            self._work.set()
            return
        task = current_task(self._loop)
        if task is not None:  # plain nodes see none: they could cancel it, and it is anybody's
            leave_task(self._loop, task)
        left = self._firings_per_turn
        try:
            while (due := self._due()) is not None:
                self._fire_inline(due)
                left -= 1
                if not left:
                    if not self._continues:
                        self._continues = True
                        self._loop.call_soon(self._go_on)
                    break
        except BaseException as error:  # a defect of ours, or a gate that cannot be evaluated
            firing, self._firing = self._firing, None
            if is_interrupt(error):
                if firing is not None:
                    self.inputs.restore(firing.taken)
                raise
            self._die(error)
        finally:
            if task is not None:
                enter_task(self._loop, task)

    def _go_on(self) -> None:
        self._continues = False
        self._update()
        self.moved()

    def _due(self) -> _Due | None:
        """The next firing, if one may and should be; commands come first."""
        if self._firing is not None or self.stopped is not None or self._death is not None:
            return None
        if self._manual:
            values, reply = self._manual.popleft()
            if values is None:
                return _Due(self.inputs.force(), "forced", reply)
            return _Due(self.inputs.force_with(values), INJECTED, reply)
        while self._open:
            try:
                if self._filters and self._crash_loop.suspected:
                    # Whether it is wanted is asked once it is noted: it may end the process.
                    taken = self.inputs.candidate(self._now())
                else:
                    taken = self.inputs.take(self._now())
            except PredicateFailed as failure:
                self._pass_over()
                due = _Due(failure.taken, NEWS, None)
                self._missed(due, failure.error, self._now(), {})
                continue  # with what comes after it, unless this one is tried again
            if self._filters:
                self._pass_over()
            if taken is None:
                if self._rooms:
                    self._wake_rooms()  # a predicate may have passed over some
                if self._timed:
                    self._arm()
                return None
            return _due(_Due, (taken, NEWS, None))
        return None

    def _pass_over(self) -> None:
        """A predicate wanted no firing: that is kept, and whoever waits for one is told."""
        unwanted, self.inputs.unwanted = self.inputs.unwanted, []
        if not unwanted:
            return
        tokens = [token for news in unwanted for token in news.tokens]
        over = [Consumed(news.source, news.marks, None, news.keys) for news in unwanted]
        noted = self._crash_loop.suspected
        if self._journal is not None and (noted or self.checkpoint.minds(over)):
            # After a crash none of them must be back without the others: it would go together
            # with what it never waited for. Nor before the one that ends the process, whose crashes
            # would be counted as its own.
            for token in tokens:
                token.recorded = True
            self._journal.append(Passed(tuple(over)), partial(_passed, tokens))
        else:
            _passed(tokens)

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

    def _fire_inline(self, due: _Due) -> None:
        self._firing = due
        taken, cause, _ = due
        begin_ns = self._now()
        ctx = self._begin(taken, cause)
        outputs: dict[str, Any] = {}
        try:
            self._traversal.run(taken.values, ctx, outputs)
        except NodeFailed as failure:
            self._missed(due, failure, begin_ns, outputs)
        else:
            self._hit(due, ctx, begin_ns, outputs)

    async def _fire(self, due: _Due) -> None:
        self._firing = due
        taken, cause, reply = due
        begin_ns = self._now()
        ctx = self._begin(taken, cause)
        outputs: dict[str, Any] = {}
        try:
            await self._eager.run(self._traversal.arun, taken.values, ctx, outputs, self._hands)
        except NodeFailed as failure:
            without_task(self._missed, due, failure, begin_ns, outputs)
        except CancelledItself as cancelled:
            by_node = self._traversal.failure_of(cancelled)
            without_task(self._missed, due, by_node, begin_ns, outputs)
        except BaseException:
            self._firing = None
            self.inputs.restore(taken)
            if reply is not None:
                fail(reply, Closing("the graph was stopped during this firing"))
            raise
        else:
            without_task(self._hit, due, ctx, begin_ns, outputs)

    async def _fire_noted(self, due: _Due) -> None:
        """Note that it is tried, and wait until it is recorded: if the process ends, it was this.

        One that is given up fails without being tried, and is dealt with as any failure.
        """
        assert self._journal is not None
        self._firing = due
        number = self.number + 1
        crashes = self._crash_loop.begin()
        if crashes is None:
            why = f"the process ended {self._crash_loop.crashes} times during this firing"
            without_task(self._missed, due, ProcessDied(why), self._now(), {})
        else:
            try:
                self._journal.append(Trying(number, crashes))
                await self._journal.wait_durable()
            except BaseException:
                self._firing = None
                self.inputs.restore(due.taken)
                raise
            if without_task(self._wanted, due):
                if self._inline:
                    without_task(self._fire_inline, due)
                else:
                    await self._fire(due)
            self.survived()
        if self.number >= number:
            self._crash_loop.forget()
        await self._journal.wait_durable()

    def _wanted(self, due: _Due) -> bool:
        """Whether what is noted is to be fired. If not, it has failed, was passed over for good, or
        stays news, of which the same crashes are counted."""
        if not self._filters or due.cause != NEWS:
            return True
        try:
            if self.inputs.wanted(due.taken):
                return True
        except PredicateFailed as failure:
            self._missed(due, failure.error, self._now(), {})
            return False
        if self.inputs.unwanted:
            self._pass_over()
            self._crash_loop.forget()
        self._after(due.taken)
        if self._timed:
            self._arm()
        return False

    def survived(self) -> None:
        """A firing that was noted is over without a record, or is stopped: it ended no process."""
        crashes = self._crash_loop.crashes
        if self._journal is not None and self.checkpoint.crashes > crashes:
            self._journal.append(Trying(self.number + 1, crashes))

    def _hit(self, due: _Due, ctx: FiringContext, begin_ns: int, outputs: dict[str, Any]) -> None:
        """It succeeded: record it, and let its effects go once it is recorded."""
        taken = due.taken
        if self.stopped is not None:  # stopped under way: nothing of it happened
            self._firing = None
            self.inputs.restore(taken)
            return
        effects: tuple[Any, ...] = ()
        try:
            for bridge in self._graph.bridges:
                if bridge.where is None or bridge.where(outputs):
                    ctx.enqueue(bridge.order(outputs))
            if ctx.effects:
                effects = self._outbox.encoded(ctx.effects)
            if self._journal is not None:
                record = fired_of(self._graph, taken, ctx, effects, outputs, self._outbox)
                encoded = encode_fitting(record)
        except BaseException as error:  # what cannot be recorded did not happen
            reraise_interrupt(error)
            self._missed(due, error, begin_ns, outputs)
            return
        self.number = ctx.number
        self.fired += 1
        if self._steering.failures:
            self._steering.succeeded()
        firing = _fired(
            Firing,
            (
                ctx.number,
                ctx.cause,
                ctx.wall_ns,
                self._now() - begin_ns,
                taken.values,
                ctx.fresh,
                outputs,
                None,
                ctx.degraded,
                1,
            ),
        )
        if self._journal is None:
            self._release(due, firing, effects)
        else:
            for news in taken.news:
                for token in news.tokens:
                    token.recorded = True
            release = partial(self._release, due, firing, effects)
            self._journal.append(record, release, encoded)
            if self._journal.full:
                self._open = False
        for name, value in ctx.writes:
            self._wrote(name, value)
        self._after(taken)

    def _release(
        self,
        due: _Due,
        firing: Firing,
        effects: tuple[Any, ...],
        recorded: None = None,
        error: BaseException | None = None,
    ) -> None:
        """It is recorded: notify whoever waits, and let its effects go."""
        taken, _, reply = due
        if firing.error is None:
            self.log.append(firing)
            self.logged += 1
        for source, _, marks, _, tokens in taken.news:
            if marks:
                self._consumed(source, marks)
            for token in tokens:
                token.fired(firing)
        if effects:
            self._outbox.send(firing.number, effects)
            if self._outbox.full:
                self._open = False
        if reply is not None:
            resolve(reply, firing)
        self._tell(firing)
        if self._rest.waiters:
            self._loop.call_soon(self.moved)

    def _missed(
        self, due: _Due, error: BaseException, begin_ns: int, outputs: dict[str, Any]
    ) -> None:
        """It failed: nothing of it happened. What is done about it is the graph's policy."""
        taken, cause, reply = due
        now_ns = self._now()
        attempt = self._steering.failures + 1
        why = said(error)
        # Whoever asked for it is told, and decides.
        verdict = self._steering.failed(why, now_ns) if reply is None else None
        self.failed += 1
        firing = Firing(
            self.number + 1,
            cause,
            self._clock.wall_ns(),
            now_ns - begin_ns,
            taken.values,
            tuple(news.source for news in taken.news if news.value is not PASSED),
            outputs,
            why,
            self.health.degraded(now_ns),
            attempt,
        )
        self.log.append(firing)
        self.logged += 1
        cause_of = error.error if is_a(error, NodeFailed) else error  # type: ignore[attr-defined]
        # Each try is told; where it happened, once. Not by `exc_info`: the error may be such that
        # to format it raises.
        logger.warning(
            "graph %s, firing %d: %s%s%s",
            self._graph.name,
            firing.number,
            why,
            "; it is halted" if verdict is Verdict.HALT else "",
            "" if verdict is Verdict.RETRY else f"\n{traced(cause_of)}",
        )
        if verdict is Verdict.BURY:
            self._bury(due, firing)  # whoever listens is told when it is recorded
            self._after(taken)
            return
        self.inputs.restore(taken)
        if reply is not None:
            fail(reply, FiringFailed(firing, "nothing was consumed"))
        else:
            self._decide()
            if verdict is Verdict.RETRY:
                self._timed = True
                self._arm()
            else:
                self.changed()
        self._tell(firing)
        self._after(taken)

    def _bury(self, due: _Due, firing: Firing) -> None:
        self.number = firing.number
        for news in due.taken.news:
            for token in news.tokens:
                token.recorded = True
        died = died_of(self._graph, due.taken, firing)
        self.remember(died, partial(self._release, due, firing, ()))

    def remember(self, record: Record, on_done: OnDone[None] | None = None) -> None:
        """Keep a record in the journal, or only in memory if there is none: then `on_done` is
        called within this call."""
        if self._journal is not None:
            self._journal.append(record, on_done)
            return
        self.checkpoint.apply(record, self._limits)
        if on_done is not None:
            notify(on_done, None)

    def _tell(self, firing: Firing) -> None:
        for listener in self.listeners:
            listener(firing)

    def _after(self, taken: Taken) -> None:
        """It is over, and the next may begin."""
        self._firing = None
        if self._rooms:
            for news in taken.news:
                bell = self._rooms.pop(news.source, None)
                if bell is not None:
                    bell.ring()
        if self._rest.waiters:
            self._loop.call_soon(self.moved)

    # Time

    def _arm(self) -> None:
        """See to it that we are woken when time alone changes something."""
        if self.stopped is not None:
            return
        now_ns = self._now()
        deadlines = [self._steering.retry_at_ns, self.health.deadline_ns(now_ns)]
        if (
            self._open and self._firing is None
        ):  # when the firing under way is over, it is asked anyway
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
        self._steering.tick(self._now())
        self.look()
        self._arm()
        self.moved()

    def _die(self, error: BaseException) -> None:
        self._open = False
        self._death = error
        self._work.set()

    def _check_running(self) -> None:
        if self.stopped is not None:
            raise Conflict(
                f"graph {self._graph.name!r} does not run: {self.stopped}", code="graph_stopped"
            )

    def _wake_rooms(self) -> None:
        rooms, self._rooms = self._rooms, {}
        for bell in rooms.values():
            bell.ring()

    @property
    def paused(self) -> bool:
        return self._steering.paused

    @property
    def halted(self) -> str | None:
        """Why it stopped firing by itself, if it did."""
        return self._steering.halted

    @property
    def state(self) -> ReactorState:
        return self.health.state


def _passed(tokens: list[Any], recorded: None = None, error: BaseException | None = None) -> None:
    for token in tokens:
        token.passed()


def _nothing() -> None:
    return None

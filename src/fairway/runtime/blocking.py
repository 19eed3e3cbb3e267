"""A bounded pool for synchronous calls: the only way from the event loop to a thread.

At most `threads` calls run at once and at most `queue_limit` wait; the next one is refused at once.
All decisions are made on the event loop. A call crosses to its thread as one submission and comes
back as one callback. A loop on virtual time takes that over, in its `run_in_executor`, and then no
thread exists at all.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from fairway.errors import Backpressure, Closing, InvalidConfig
from fairway.runtime.clock import Clock, clock_of, pause_for_threads
from fairway.runtime.completion import resolve
from fairway.runtime.turn import TURN
from fairway.runtime.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from fairway.runtime.completion import OnDone
    from fairway.runtime.turn import TurnBudget

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RETRY_FLOOR_NS = 1_000_000  # a refusal never invites the caller back within the same millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """What a `BlockingPool` is doing at one moment."""

    threads: int
    busy: int
    """Calls in a thread now, including those whose caller has gone away."""
    waiting: int
    queue_limit: int
    completed: int
    """Calls that ran to their end, with a result or an error."""
    refused: int
    abandoned: int
    """Calls whose caller was cancelled while they ran; they went on to their end."""
    busy_ratio: float
    """Share of thread time in use over the last window, 0..1."""
    call_ns: int
    """Smoothed duration of a call."""


class BusyMeter:
    """The share of capacity in use over a sliding window, from changes of a level over time."""

    __slots__ = ("_before", "_capacity", "_level", "_now_ns", "_start_ns", "_sum", "_window_ns")

    def __init__(self, capacity: int, window_ns: int, now_ns: int) -> None:
        self._capacity = capacity
        self._window_ns = window_ns
        self._start_ns = self._now_ns = now_ns
        self._level = 0
        self._sum = 0  # level x time in the present window
        self._before = 0  # the same of the window before

    def change(self, level: int, now_ns: int) -> None:
        """The level is `level` from now on."""
        self._advance(now_ns)
        self._level = level

    def ratio(self, now_ns: int) -> float:
        """The share over one window ending now; the part before the present one is prorated."""
        self._advance(now_ns)
        left_ns = self._window_ns - (now_ns - self._start_ns)
        used = self._sum + self._before * left_ns // self._window_ns
        return min(1.0, used / (self._capacity * self._window_ns))

    def _advance(self, now_ns: int) -> None:
        end_ns = self._start_ns + self._window_ns
        if now_ns >= end_ns:
            full = self._sum + self._level * (end_ns - self._now_ns)
            skipped = (now_ns - end_ns) // self._window_ns
            self._before = self._level * self._window_ns if skipped else full
            self._start_ns = self._now_ns = end_ns + skipped * self._window_ns
            self._sum = 0
        self._sum += self._level * (now_ns - self._now_ns)
        self._now_ns = now_ns


class _Call:
    """One accepted call: what to run, and the callback for its end."""

    __slots__ = ("function", "on_done", "outcome", "started_ns")

    def __init__(
        self,
        function: Callable[[], Any],
        on_done: OnDone[Any],
        outcome: asyncio.Future[Any] | None,
    ) -> None:
        self.function = function
        self.on_done = on_done
        self.outcome = outcome  # if it is cancelled before its turn, the call is not made
        self.started_ns = 0


class BlockingPool:
    """Runs synchronous calls in at most `threads` threads, in order of arrival.

    Cancelling the caller of a waiting call withdraws it: it never runs. Cancelling the caller of a
    running call only stops the waiting: the call goes on to its end, holds its thread until then
    and its result is dropped. A pool belongs to the loop that first runs a call on it.
    """

    def __init__(
        self,
        threads: int,
        *,
        queue_limit: int = 1024,
        name: str = "blocking",
        window_ns: int = 1_000_000_000,
        clock: Clock | None = None,
        turn: TurnBudget = TURN,
    ) -> None:
        if threads < 1 or queue_limit < 0 or window_ns < 1:
            raise InvalidConfig("a pool needs a thread, a queue_limit of 0 or more and a window")
        self.name = name
        self._threads = threads
        self._queue_limit = queue_limit
        self._window_ns = window_ns
        self._clock = clock
        self._pause_every_ns = turn.thread_pause_every_ns
        self._pause_every_s = turn.thread_pause_every_ns / 1e9
        self._pause_every_serving_ns = turn.thread_pause_every_serving_ns
        self._meter: BusyMeter | None = None
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)  # starts none yet
        self._waiting: OrderedDict[_Call, None] = OrderedDict()  # so that withdrawing is O(1)
        # With its work in a thread. Not on the call, which the work knows: what is in such a circle
        # stays until the collector finds it, and that may be all that was written.
        self._running: dict[_Call, Future[Any] | None] = {}
        self.ended: deque[tuple[_Call, Future[Any]]] = deque()
        """Calls that have ended, and that the loop has not heard of. Filled by threads."""
        self._completed = self._refused = self._abandoned = 0
        self._call_ns = 0
        self._closing = False
        self._threadless = False  # a loop on virtual time makes the calls itself
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run `call(*args)` in a thread and return its result, or raise its error.

        Raises `Backpressure` when `queue_limit` calls wait already and `Closing` after `aclose`;
        either way the call was not and will not be made.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        accepted = self._accept(resolve(outcome), call, args, outcome)
        try:
            result: T = await outcome
        except asyncio.CancelledError:
            if accepted in self._running:
                self._abandoned += 1
            elif accepted in self._waiting:
                del self._waiting[accepted]
                self._settle()
            raise
        return result

    def submit(self, on_done: OnDone[T], call: Callable[[*Ts], T], *args: *Ts) -> None:
        """As `run`, with a callback, for whoever cannot wait. Never called before this returns."""
        self._accept(on_done, call, args)

    def _accept(
        self,
        on_done: OnDone[T],
        call: Callable[[*Ts], T],
        args: tuple[*Ts],
        outcome: asyncio.Future[T] | None = None,
    ) -> _Call:
        if self._closing:
            raise Closing(f"pool {self.name} is closing")
        if len(self._running) >= self._threads and len(self._waiting) >= self._queue_limit:
            self._refused += 1
            raise self._refusal()
        accepted = _Call(partial(_invoke, call, args), on_done, outcome)
        self._idle.clear()
        if len(self._running) < self._threads:
            self._start(accepted)
        else:
            self._waiting[accepted] = None
        return accepted

    def yield_to_threads(self, now_ns: int) -> int:
        """Pause the loop for a moment if a call is running; returns when to ask again.

        For whoever keeps the loop busy. CPython gives its lock to a thread that has asked for it
        for a whole switch interval; but asking begins anew whenever the loop lets go of it between
        two callbacks, for less time than the thread takes to wake up. So a busy loop would keep
        each call from going on, after each of its system calls, until it is idle again. Where the
        interval is shorter than most callbacks, as in a server, that is needed less often.
        """
        if self._running and not self._threadless and self._clock is not None:
            pause_for_threads()
            now_ns = self._clock.now_ns()
        if sys.getswitchinterval() > self._pause_every_s:
            return now_ns + self._pause_every_ns
        return now_ns + self._pause_every_serving_ns

    def statistics(self) -> PoolStatistics:
        """A frozen snapshot, cheap enough to be taken ten times a second by the governor."""
        ratio = 0.0
        if self._meter is not None and self._clock is not None:
            ratio = self._meter.ratio(self._clock.now_ns())
        return PoolStatistics(
            threads=self._threads,
            busy=len(self._running),
            waiting=len(self._waiting),
            queue_limit=self._queue_limit,
            completed=self._completed,
            refused=self._refused,
            abandoned=self._abandoned,
            busy_ratio=ratio,
            call_ns=self._call_ns,
        )

    async def aclose(self, *, abandon: bool = False) -> None:
        """Refuse new calls, finish every accepted one, end the threads. May be called again.

        With `abandon` calls that run are not waited for: their threads end when they do.
        """
        self._closing = True
        if abandon:
            self._executor.shutdown(wait=False, cancel_futures=True)
            _ABANDONED.extend(work for work in self._running.values() if work is not None)
            return
        await self._idle.wait()
        # No call is running, so the threads are parked and joining them takes microseconds.
        self._executor.shutdown(wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _start(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        if self._clock is None:
            self._clock = clock_of(loop)
        call.started_ns = self._clock.now_ns()
        if self._meter is None:
            self._meter = BusyMeter(self._threads, self._window_ns, call.started_ns)
        work: Future[Any] | None = None
        try:
            if getattr(loop, "clock", None) is not None:
                self._threadless = True
                loop.run_in_executor(None, call.function).add_done_callback(
                    partial(self._finish, call)
                )
            else:
                # Not by way of `run_in_executor`, whose future would cost another turn of the loop.
                work = self._executor.submit(call.function)
                work.add_done_callback(partial(self._hand_over, loop, call))
        except Exception as error:  # for instance, the system has no thread left for us
            loop.call_soon(call.on_done, None, error)
            self._settle()
            return
        self._running[call] = work
        self._meter.change(len(self._running), call.started_ns)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, call: _Call, work: Future[Any]) -> None:
        """In the thread, at the end of a call."""
        self.ended.append((call, work))
        try:
            loop.call_soon_threadsafe(self._hear)
        except RuntimeError:  # the loop was closed without waiting for us
            if not loop.is_closed():
                raise

    def collect(self) -> None:
        """Hear now of the calls that have ended, not in the loop's next turn.

        For whoever makes a turn long, between two of the things it does there. Not of those that
        end meanwhile: whoever is notified starts the next ones, and the turn would never end.
        """
        for _ in range(len(self.ended)):
            self._hear()

    def _hear(self) -> None:
        if self.ended:  # else it was heard of before its turn
            self._finish(*self.ended.popleft())

    def _finish(self, call: _Call, work: asyncio.Future[Any] | Future[Any]) -> None:
        assert self._meter is not None
        assert self._clock is not None
        now_ns = self._clock.now_ns()
        del self._running[call]
        self._completed += 1
        duration_ns = now_ns - call.started_ns
        self._call_ns += (duration_ns - self._call_ns) // (8 if self._completed > 1 else 1)
        self._meter.change(len(self._running), now_ns)
        # The next call goes to the free thread before the caller is notified: threads stay busy.
        while self._waiting and len(self._running) < self._threads:
            waiting, _ = self._waiting.popitem(last=False)
            if waiting.outcome is None or not waiting.outcome.cancelled():
                self._start(waiting)
        self._settle()
        if work.cancelled():  # not by us; the loop is being torn down
            call.on_done(None, asyncio.CancelledError())
            return
        error = work.exception()  # asked for even if the caller is gone: it counts as seen
        call.on_done(work.result() if error is None else None, error)

    def _settle(self) -> None:
        if not self._running and not self._waiting:
            self._idle.set()

    def _refusal(self) -> Backpressure:
        assert self._clock is not None
        now_ns = self._clock.now_ns()
        # Before the first call has ended, the age of the oldest is the best measure there is.
        call_ns = self._call_ns or max(now_ns - call.started_ns for call in self._running)
        return Backpressure(
            self.name,
            depth=len(self._waiting),
            limit=f"{self._queue_limit} calls",
            retry_after_ns=max(RETRY_FLOOR_NS, call_ns // self._threads),
        )


def abandoned_calls() -> int:
    """How many calls go on in threads of pools that were closed without waiting for them.

    The interpreter waits for such threads before it ends.
    """
    _ABANDONED[:] = [work for work in _ABANDONED if not work.done()]
    return len(_ABANDONED)


_ABANDONED: list[Future[Any]] = []


def _invoke(call: Callable[[*Ts], T], args: tuple[*Ts]) -> T:
    try:
        return call(*args)
    except (StopIteration, GeneratorExit) as error:
        # A future cannot carry the first, and the slot would never come back. The second it would
        # throw into whoever waits, and that closes a coroutine.
        raise RuntimeError(f"a blocking call raised {kind_of(error)}") from error

"""An asyncio event loop on virtual time: deterministic, seeded, and never waiting.

Time stands still while callbacks run and leaps to the next deadline when none is left, so an hour
of sleeping costs nothing and the same seed gives the same run, event for event. Blocking calls
(`run_in_executor`, and so `fairway.runtime.blocking`) run inline between two virtual delays drawn
from the seed: no thread exists. There is no network. When nothing is scheduled and the main
coroutine has not ended, nothing can ever happen again, and that is reported as a `Deadlock`.

What the seed cannot reach: real threads, real clocks, `id()` and the order of sets of strings
(set PYTHONHASHSEED if a test depends on that).
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import sys
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SECOND_NS = 1_000_000_000
LATENCY_NS = (0, 2_000_000)
"""Virtual duration of a blocking call, from and to, unless told otherwise."""
WALL_START_NS = 1_767_225_600 * SECOND_NS
"""What a virtual wall clock shows at the start: 2026-01-01 00:00 UTC."""
SPIN_LIMIT = 10_000_000
"""Callbacks that may run at one virtual instant before the loop calls it a livelock."""

# Seconds to nanoseconds, less four units in the last place of a double. Rounding up from there is
# never early by more than the noise of float arithmetic, and takes 0.2 + 0.1 for the 0.3 that was
# meant. It is one multiplication, so of two deadlines the earlier never becomes the later.
_NEARLY_1E9 = 1e9 - 4 * math.ulp(1e9)
_NEVER_NS = 2**63 - 1


class Deadlock(RuntimeError):
    """The main coroutine would wait for ever: nothing is scheduled, or its time limit is up."""


class Livelock(RuntimeError):
    """Callbacks follow each other without end while virtual time stands still."""


class NotSimulated(RuntimeError):
    """The virtual loop has no sockets, pipes, signals or processes."""


class VirtualClock:
    """The clock of a virtual loop. Satisfies `fairway.runtime.clock.Clock`."""

    __slots__ = ("_loop", "_wall_start_ns")

    def __init__(self, loop: VirtualLoop, *, wall_start_ns: int = WALL_START_NS) -> None:
        self._loop = loop
        self._wall_start_ns = wall_start_ns

    def now_ns(self) -> int:
        return self._loop.now_ns

    def wall_ns(self) -> int:
        return self._wall_start_ns + self._loop.now_ns

    def shift_wall(self, ns: int) -> None:
        """Have the wall clock jump, ahead or back, as when somebody sets it; `now_ns` does not."""
        self._wall_start_ns += ns


class VirtualTask(asyncio.Task[T]):
    """A task whose name and hash are its number on this loop.

    Sets of tasks, such as those a TaskGroup cancels, are then walked in the same order in every
    run; by default the order would follow memory addresses.
    """

    def __init__(
        self, coro: Coroutine[Any, Any, T], *, loop: VirtualLoop, number: int, **options: Any
    ) -> None:
        self._number = number
        options["name"] = options.get("name") or f"Task-{number}"
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Timer(asyncio.TimerHandle):
    """asyncio's own, with the private parts that this loop answers for spelled out."""

    __slots__ = ()
    _scheduled: bool  # in the heap; asyncio reports a cancellation only while this is set
    _cancelled: bool


class _BlockingCall:
    """A call given to `run_in_executor`, between its two virtual delays."""

    __slots__ = ("after_ns", "function", "future")

    def __init__(
        self, function: Callable[[], Any], future: asyncio.Future[Any], after_ns: int
    ) -> None:
        self.function = function
        self.future = future
        self.after_ns = after_ns


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number of nanoseconds that starts at 0.

    Callbacks run in the order they became ready, as asyncio promises. Timers with equal deadlines
    fire in the order they were set, or, with `shuffle`, in an order drawn from the seed. A timer
    set for the future never fires at the present instant and never before its time; conversion
    from float seconds is exact to the nanosecond for the first 14 virtual days.

    `steps` counts callbacks run, `jumps` leaps of time and `calls` blocking calls made. `random`
    is a source for the test itself: drawing from it does not disturb the loop's own choices.
    """

    _ready: deque[asyncio.Handle]  # these two belong to BaseEventLoop
    _stopping: bool

    def __init__(
        self,
        seed: int = 0,
        *,
        latency_ns: tuple[int, int] = LATENCY_NS,
        shuffle: bool = False,
        limit_ns: int | None = None,
        wall_start_ns: int = WALL_START_NS,
    ) -> None:
        super().__init__()
        if not 0 <= latency_ns[0] <= latency_ns[1]:
            self.close()  # or the collector complains about it
            raise ValueError("latency_ns is (least, most), 0 or more")
        self.seed = seed
        self.now_ns = 0
        self.steps = self.jumps = self.calls = 0
        self.random = random.Random(f"{seed}/test")
        self.clock = VirtualClock(self, wall_start_ns=wall_start_ns)
        self._latency_ns = latency_ns
        self._limit_ns = _NEVER_NS - 1 if limit_ns is None else limit_ns
        self._latencies = random.Random(f"{seed}/latency")
        self._ties = random.Random(f"{seed}/ties") if shuffle else None
        self._timers: list[tuple[int, int, int, _Timer]] = []
        self._timers_set = self._timers_cancelled = 0
        self._tasks_made = 0
        self._spins = 0
        self._inside: _BlockingCall | None = None
        self.set_task_factory(_make_task)

    # Time

    def time(self) -> float:
        return self.now_ns / SECOND_NS

    def call_at(  # type: ignore[override]  # typeshed ties args to callback
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._refuse_if_closed()
        due_ns = _NEVER_NS if when == math.inf else math.ceil(when * _NEARLY_1E9)
        if when > self.time():  # or a wait for less than a nanosecond would spin at this instant
            due_ns = max(due_ns, self.now_ns + 1)
        return self._set_timer(due_ns, when, callback, args, context)

    def call_at_ns(
        self, due_ns: int, callback: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Like `call_at`, at an exact nanosecond."""
        return self._set_timer(due_ns, due_ns / SECOND_NS, callback, args, None)

    def _refuse_if_closed(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")

    def _set_timer(
        self,
        due_ns: int,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer._scheduled = True
        tie = self._ties.getrandbits(32) if self._ties else 0
        self._timers_set += 1
        heapq.heappush(self._timers, (due_ns, tie, self._timers_set, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, _Timer)
        if not handle._scheduled:  # its time has come; it is among the ready callbacks
            return
        # Called by the handle before it is marked as cancelled. A cancelled timer stays in the heap
        # until its time; a program that sets and cancels many long timeouts would only grow.
        self._timers_cancelled += 1
        if self._timers_cancelled > 100 and self._timers_cancelled > len(self._timers) // 2:
            self._timers = [
                entry
                for entry in self._timers
                if entry[3] is not handle and not entry[3]._cancelled
            ]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    # Running

    def _run_once(self) -> None:
        self._drop_cancelled()
        if not self._ready and not self._stopping:
            self._jump()
        while self._timers and self._timers[0][0] <= self.now_ns:
            timer = heapq.heappop(self._timers)[3]
            timer._scheduled = False
            self._ready.append(timer)
            self._drop_cancelled()
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle._cancelled:
                self.steps += 1
                self._spins += 1
                handle._run()
        if self._spins > SPIN_LIMIT:
            raise Livelock(
                f"{self._spins:,} callbacks ran at {self.now_ns} ns without time moving"
                f" (seed {self.seed}); somebody polls with sleep(0)?{_who_waits(self)}"
            )

    def _drop_cancelled(self) -> None:
        while self._timers and self._timers[0][3]._cancelled:
            heapq.heappop(self._timers)[3]._scheduled = False
            self._timers_cancelled -= 1

    def _jump(self) -> None:
        due_ns = self._timers[0][0] if self._timers else _NEVER_NS
        if due_ns > self._limit_ns:
            why = "nothing is scheduled" if due_ns == _NEVER_NS else "the time limit is reached"
            raise Deadlock(
                f"{why} at {self.now_ns} ns and the main coroutine has not ended"
                f" (seed {self.seed}){_who_waits(self)}"
            )
        if due_ns > self.now_ns:
            self.now_ns = due_ns
            self.jumps += 1
            self._spins = 0

    def _write_to_self(self) -> None:
        """Called by `call_soon_threadsafe`. This loop never sleeps, so there is no one to wake."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There is no selector and there are no events."""

    # Blocking calls

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run the call inline, at a virtual moment of its own, and deliver its outcome later.

        `executor` is ignored and starts no thread. Cancelling the future before the call began
        withdraws it; after that the call has happened and only its outcome is dropped.
        """
        self._refuse_if_closed()
        least_ns, most_ns = self._latency_ns
        latency_ns = self._latencies.randint(least_ns, most_ns)
        before_ns = self._latencies.randint(0, latency_ns)
        future: asyncio.Future[T] = self.create_future()
        call = _BlockingCall(lambda: func(*args), future, latency_ns - before_ns)
        self.call_at_ns(self.now_ns + before_ns, self._make_call, call)
        return future

    def spend_ns(self, duration_ns: int) -> None:
        """Make the blocking call under way last longer. For simulated devices inside the call."""
        if self._inside is None:
            raise RuntimeError("spend_ns is for code inside a blocking call; elsewhere, sleep")
        self._inside.after_ns += duration_ns

    def _make_call(self, call: _BlockingCall) -> None:
        if call.future.cancelled():
            return
        self.calls += 1
        self._inside = call
        asyncio._set_running_loop(None)  # a thread would see no running loop either
        error: BaseException | None = None
        result = None
        try:
            result = call.function()
        except StopIteration as stop:  # a future cannot carry it
            error = RuntimeError("a blocking call raised StopIteration")
            error.__cause__ = stop
        except BaseException as raised:
            error = raised
        finally:
            asyncio._set_running_loop(self)
            self._inside = None
        self.call_at_ns(self.now_ns + call.after_ns, _deliver, call.future, result, error)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""


def _deliver(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():  # its waiter was cancelled meanwhile
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> VirtualTask[Any]:
    assert isinstance(loop, VirtualLoop)
    loop._tasks_made += 1
    return VirtualTask(coro, loop=loop, number=loop._tasks_made, **options)


def _who_waits(loop: VirtualLoop) -> str:
    """One line for each task: its name and the innermost line outside asyncio it waits at."""
    lines = []
    for task in asyncio.all_tasks(loop):
        where = "?"
        inner: Any = task.get_coro()
        while (frame := getattr(inner, "cr_frame", None)) is not None:
            if not frame.f_globals.get("__name__", "").startswith("asyncio."):
                where = f"{frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}"
            inner = inner.cr_await
        lines.append(f"\n  {task.get_name()} waits in {where}")
    return "".join(sorted(lines))


def _refuse(name: str) -> Callable[..., Any]:
    def refused(self: VirtualLoop, *args: Any, **options: Any) -> Any:
        raise NotSimulated(
            f"loop.{name}: the virtual loop has no sockets, pipes, signals or processes"
        )

    refused.__name__ = name
    return refused


_NOT_SIMULATED = (
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "add_signal_handler",
    "remove_signal_handler",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendto",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "sendfile",
    "start_tls",
    "getaddrinfo",
    "getnameinfo",
    "create_connection",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "connect_accepted_socket",
    "create_datagram_endpoint",
    "connect_read_pipe",
    "connect_write_pipe",
    "subprocess_exec",
    "subprocess_shell",
)

for _name in _NOT_SIMULATED:
    setattr(VirtualLoop, _name, _refuse(_name))


def run(
    main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T],
    *,
    seed: int | None = None,
    latency_ns: tuple[int, int] = LATENCY_NS,
    shuffle: bool = False,
    limit_ns: int | None = None,
    quiet: bool = False,
) -> T:
    """Run `main` to its end on a fresh virtual loop and return its result.

    Without `seed` a fresh one is drawn. It is printed to standard error before anything runs
    (unless `quiet`) and noted on any exception, so that every failure can be replayed. Tasks still
    running when `main` ends are cancelled, as by `asyncio.run`.

    A background task that ticks for ever hides a deadlock from the loop, since something is always
    scheduled. Then give `limit_ns`, a virtual time by which `main` has ended for sure.
    """
    if seed is None:
        seed = random.SystemRandom().randrange(2**32)
    if not quiet:
        print(f"fairway.testing: seed {seed}", file=sys.stderr)

    def make_loop() -> VirtualLoop:
        return VirtualLoop(seed, latency_ns=latency_ns, shuffle=shuffle, limit_ns=limit_ns)

    coroutine = main if asyncio.iscoroutine(main) else main()
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(coroutine)
    except BaseException as error:
        error.add_note(f"replay with fairway.testing.run(…, seed={seed})")
        raise

"""Runs one step of a job: on the loop, in a thread, or in a process of its own.

Whatever a step does or raises, it comes to a `Settlement`; what each ending means is decided in
`verdict`. A coroutine runs in a task that only a `StepRun` cancels, so what cancels it otherwise is
the step itself, and that is an error of its own like any other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fairway.errors import CallFailed, Cancelled
from fairway.jobs import verdict
from fairway.jobs.context import Context, stop_context
from fairway.jobs.isolation import IsolatedRun, run_isolated
from fairway.jobs.logs import RunLog, logging_for, run_is_over, task_logs_for
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.processes import Processes
from fairway.runtime.targets import target_of
from fairway.runtime.usercode import reraise_interrupt
from fairway.runtime.words import is_a, traced

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.core.backoff import RandomSource
    from fairway.jobs.job import Claim, Settlement
    from fairway.jobs.kinds import Kind, StepCall
    from fairway.runtime.clock import Clock

THREAD_QUEUE = 1 << 20
"""Calls that wait for a thread: the slots of the queues bound them."""


class StepRun:
    """One run of a claimed job."""

    __slots__ = (
        *("began_ns", "begun", "cancelled", "claim", "context", "kind", "log", "step", "task"),
        *("log_bytes", "log_key", "stopping", "timed_out", "withdrawn"),
    )

    def __init__(
        self, claim: Claim, kind: Kind, step: StepCall, began_ns: int, log_bytes: int = 0
    ) -> None:
        self.claim = claim
        self.kind = kind
        self.step = step
        self.began_ns = began_ns
        self.log_bytes = log_bytes
        """How much is kept of what it logs."""
        self.log_key = 0
        self.log: RunLog | None = None
        self.context: Context[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Whether its task has had a turn: one that is cancelled before ends without a word."""
        self.cancelled: str | None = None
        """Why it is to end, if it is."""
        self.stopping = False
        """Whether it is to end because its worker does: the job itself is not cancelled."""
        self.timed_out = False
        self.withdrawn = False
        """Whether a thread that comes to it late is to leave it alone."""

    def interrupt(self, reason: str) -> None:
        """Ask the step to end, or make it: a thread can only be asked."""
        self.withdrawn = True
        if self.context is not None:
            stop_context(self.context, reason)
        if self.task is not None and self.is_stoppable:
            self.task.cancel(reason)

    @property
    def is_stoppable(self) -> bool:
        """Whether it can be cancelled."""
        return self.begun and (self.step.is_async or self.kind.options.isolation == "process")


class Steps:
    """Where steps run."""

    def __init__(
        self,
        *,
        threads: int,
        processes: int,
        random: RandomSource,
        note_progress: Callable[[int, bytes], None],
    ) -> None:
        self._random = random
        self._note_progress = note_progress
        self._processes = Processes(processes)
        self.trusted_until: Callable[[], int] = lambda: 0
        """Until when claims are ours: what runs in a process ends then, whatever became of us."""
        self.pool = BlockingPool(threads, queue_limit=THREAD_QUEUE, name="jobs")

    async def aclose(self, *, abandon: bool) -> None:
        """End the processes, and the threads: with `abandon`, when they have time for it."""
        await self._processes.aclose()
        await self.pool.aclose(abandon=abandon)

    def renew(self, until_ns: int) -> None:
        """Claims are ours until then. On any thread."""
        self._processes.renew(until_ns)

    async def perform(self, run: StepRun, clock: Clock) -> Settlement:
        """Run a step to its end."""
        claim, kind, step = run.claim, run.kind, run.step
        run.begun = True
        if run.cancelled is not None:
            return verdict.of_cancel(claim, run.cancelled)
        if run.log_bytes:
            task_logs_for(run)
        limit: asyncio.Timeout | None = None
        limit_ns = kind.options.timeout_ns
        try:
            state = kind.decoder.decode(claim.state)
            if step.wants_context:
                run.context = Context(claim, state, self._note_progress, clock)
            if kind.options.isolation == "process":
                value, state = await self._in_process(run)
            elif not step.is_async:
                value = await self._in_thread(run, state, clock)
            elif limit_ns is None:
                value = await kind.call(step, state, run.context)
            else:
                async with asyncio.timeout(limit_ns / 1e9) as limit:
                    value = await kind.call(step, state, run.context)
            if run.timed_out or (limit is not None and limit.expired()):
                raise TimeoutError  # whatever it returned: it did so after its time
            return verdict.of_return(kind, claim, state, value, self._random)
        except BaseException as error:  # also `sys.exit`: it ends the job's run, not the worker
            reraise_interrupt(error)
            run.timed_out = run.timed_out or (limit is not None and limit.expired())
            return self.failed(run, error)
        finally:
            if run.log_bytes:
                run_is_over(run)

    async def _in_process(self, run: StepRun) -> tuple[Any, Any]:
        """Run a step in a process of its own, which a timeout or a cancel ends."""
        target = target_of(run.kind.declared, f"job {run.kind.name!r}")
        limit_ns = run.kind.options.timeout_ns
        limit_s = None if limit_ns is None else limit_ns / 1e9
        try:
            fields = await self._processes.run(
                run_isolated,
                target,
                run.claim,
                run.kind.is_task,
                run.log_bytes,
                limit_s=limit_s,
                until=self.trusted_until,
            )
        except TimeoutError:  # what the step raises itself comes as `CallFailed`
            run.timed_out = True
            raise
        ended = IsolatedRun(*fields)
        if ended.log is not None:
            run.log = RunLog(run.log_bytes)
            run.log.add(ended.log.decode().removesuffix("\n"))
        if ended.error is not None:
            raise CallFailed(ended.error)
        saved = ended.state
        return ended.value, None if saved is None else run.kind.decoder.decode(saved)

    async def _in_thread(self, run: StepRun, state: Any, clock: Clock) -> Any:
        """Run a synchronous step. It is asked to stop, not made to: its slot is busy until then."""
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        limit_ns = run.kind.options.timeout_ns
        ended: asyncio.Future[Any] = loop.create_future()

        def on_done(value: Any, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result((value, error))

        def begin() -> None:
            nonlocal timer
            if limit_ns is not None and not ended.done():
                timer = loop.call_later(limit_ns / 1e9, _time_is_up, run)

        def call() -> Any:
            if run.withdrawn:
                raise Cancelled("it was to end before a thread was free for it")
            if limit_ns is None:
                with logging_for(run):
                    return run.kind.call(run.step, state, run.context)
            began_ns = clock.now_ns()  # the wait for a thread is not the job's
            loop.call_soon_threadsafe(begin)
            try:
                with logging_for(run):
                    return run.kind.call(run.step, state, run.context)
            finally:  # the loop may be too busy to have seen that its time was up
                run.timed_out = run.timed_out or clock.now_ns() - began_ns > limit_ns

        self.pool.submit(on_done, call)
        try:
            value, error = await ended
        finally:
            run.withdrawn = True
            if timer is not None:
                timer.cancel()
        if error is not None:
            raise error
        return value

    def failed(self, run: StepRun, error: BaseException) -> Settlement:
        """What it means that a step ended by an error."""
        if run.cancelled is not None:
            return verdict.of_cancel(run.claim, run.cancelled)
        error_text = str(error) if is_a(error, CallFailed) else traced(error)  # of its process
        limit_ns = run.kind.options.timeout_ns
        if run.timed_out and limit_ns is not None:
            error_text = f"took longer than {limit_ns / 1e9:g} s"
        return verdict.of_error(run.kind, run.claim, error, error_text, self._random)


def _time_is_up(run: StepRun) -> None:
    run.timed_out = True
    if run.context is not None:
        stop_context(run.context, "took too long")

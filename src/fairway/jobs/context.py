"""What a step is given: who it is, what it knows, and the ways it may end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from fairway.errors import Cancelled, InvalidRequest
from fairway.jobs import outcome
from fairway.jobs.times import time_ns
from fairway.wire.encoding import encode_given
from fairway.wire.jobs import PROGRESS_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairway.jobs.job import Child, Claim, Signal
    from fairway.jobs.kinds import Order
    from fairway.runtime.clock import Clock

T = TypeVar("T")


class ReceivedSignal(msgspec.Struct, frozen=True):
    """A signal that came for the job."""

    name: str
    payload: Any


class ChildResult(msgspec.Struct, frozen=True):
    """How a child ended, or that it has not."""

    id: int
    kind: str
    status: str
    result: Any
    error: str | None


class Context(Generic[T]):
    """The job that runs, as its step sees it."""

    __slots__ = ("_claim", "_clock", "_note_progress", "_stop", "state")

    def __init__(
        self, claim: Claim, state: T, note_progress: Callable[[int, bytes], None], clock: Clock
    ) -> None:
        self._claim = claim
        self._note_progress = note_progress
        self._clock = clock
        self._stop: str | None = None
        self.state = state
        """A machine's state; for a function, its arguments."""

    def __repr__(self) -> str:
        return f"Context(job={self.id}, kind={self.kind!r}, step={self.step!r})"

    @property
    def id(self) -> int:
        return self._claim.id

    @property
    def kind(self) -> str:
        return self._claim.kind

    @property
    def step(self) -> str:
        return self._claim.step

    @property
    def attempt(self) -> int:
        """Which try of this step this is: 1 is the first."""
        return self._claim.attempt + self._claim.crashes + 1

    @property
    def retries(self) -> int:
        """How often the job was retried by hand after it had ended."""
        return self._claim.retries

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def tenant(self) -> str:
        return self._claim.tenant

    @property
    def parent(self) -> int | None:
        return self._claim.parent

    @property
    def traceparent(self) -> str | None:
        """Of whoever enqueued the job."""
        return self._claim.trace

    @property
    def timed_out(self) -> bool:
        """Whether a wait ended because its time was up: none of its signals is there."""
        return self._claim.timed_out

    @property
    def wall_ns(self) -> int:
        """What time it is, on the clock of the worker: nanoseconds since 1970 in UTC."""
        return self._clock.wall_ns()

    @property
    def raw_signals(self) -> tuple[Signal, ...]:
        """As `signals`, their payloads not decoded."""
        return self._claim.signals

    @property
    def signals(self) -> list[ReceivedSignal]:
        """What came of the signals the job waited for, in order.

        The commit of this step consumes them, whatever it goes on with; if it fails, or returns
        `retry`, its next attempt is given them again.
        """
        return [
            ReceivedSignal(one.name, msgspec.json.decode(one.payload))
            for one in self._claim.signals
        ]

    @property
    def children(self) -> list[ChildResult]:
        """The children of this job, in the order they were spawned."""
        return [_result(child) for child in self._claim.children]

    @property
    def cancelled(self) -> bool:
        """Whether this run is to end. A step in a thread looks now and then; see `check`."""
        return self._stop is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why this run is to end: what whoever cancelled it said, or that it took too long."""
        return self._stop

    def check(self) -> None:
        """Raise `Cancelled` if this run is to end."""
        if self._stop is not None:
            raise Cancelled(self._stop)

    def progress(self, value: Any) -> None:
        """Say how far the job is: anything that is at most 64 KiB of JSON.

        `jobs show` shows it within a second. What was said before is replaced. Raises
        `InvalidRequest`.
        """
        encoded = encode_given(value, "the progress of a job")
        if len(encoded) > PROGRESS_BYTES_MAX:
            raise InvalidRequest(
                f"the progress of a job is {len(encoded):,} bytes of JSON: at most"
                f" {PROGRESS_BYTES_MAX:,}"
            )
        self._note_progress(self.id, encoded)

    # How a step may end. Return one of these.

    def next(self, step: str) -> outcome.Next:
        """Go on with another step; what the state is now is committed first."""
        return outcome.Next(step)

    def retry(self, *, after_s: float | None = None, reason: str | None = None) -> outcome.Retry:
        """Try this step again, after so long (else by the job's backoff), if attempts are left."""
        return outcome.Retry(None if after_s is None else time_ns("after_s", after_s), reason)

    def defer(self, *, after_s: float) -> outcome.Retry:
        """Come back to this step later. It frees the slot and uses up no attempt.

        The state is saved and the signals of this run are consumed: keep what you need of them.
        """
        return outcome.Retry(max(1, time_ns("after_s", after_s)), counts=False)

    def wait(self, *names: str, then: str, timeout_s: float | None = None) -> outcome.Wait:
        """Wait for a signal of one of these names, and go on with the step `then`."""
        return outcome.Wait(names, then, _timeout_ns(timeout_s))

    def spawn(
        self, children: Iterable[Order], *, then: str, timeout_s: float | None = None
    ) -> outcome.Spawn:
        """Start children and go on with the step `then` when all of them have ended."""
        return outcome.Spawn(tuple(children), then, (), _timeout_ns(timeout_s))

    def done(self, result: Any = None) -> outcome.Done:
        """End the job, with a result."""
        return outcome.Done(result)

    def stop(self, reason: str) -> outcome.Stopped:
        """End the job as failed: no further attempt."""
        return outcome.Stopped(reason)


def stop_context(context: Context[Any], reason: str) -> None:
    """Ask a step to end."""
    context._stop = reason


def _timeout_ns(timeout_s: float | None) -> int:
    """As an outcome has it: 0 is never, and no time at all is at once."""
    return 0 if timeout_s is None else max(1, time_ns("timeout_s", timeout_s))


def _result(child: Child) -> ChildResult:
    result = msgspec.json.decode(child.result) if child.result is not None else None
    return ChildResult(child.id, child.kind, child.status.word, result, child.error)

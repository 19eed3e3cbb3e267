"""Running a step in a process of its own: how it is found there, and what it is given."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairway.jobs.context import Context
from fairway.jobs.flows import task_kind
from fairway.jobs.handles import JobFunction, Machine
from fairway.jobs.kinds import Options, function_kind, machine_kind
from fairway.jobs.logs import RunLog, hearing, run_is_over, task_logs_for
from fairway.jobs.outcome import Outcome
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.runtime.processes import FailedCall, NotReached
from fairway.runtime.targets import found_at
from fairway.runtime.usercode import run_coroutine
from fairway.runtime.words import traced
from fairway.wire.encoding import encode

if TYPE_CHECKING:
    from fairway.jobs.job import Claim
    from fairway.jobs.kinds import Kind
    from fairway.runtime.targets import Target


class IsolatedRun(NamedTuple):
    """How a step ended in its process."""

    value: Any = None
    """What it returned."""
    state: bytes | None = None
    """A machine's state after it."""
    error: str | None = None
    """What it raised, if it did."""
    log: bytes | None = None
    """The end of what it logged."""


def run_isolated(
    target: Target, claim: Claim, is_task: bool, log_bytes: int
) -> tuple[Any, bytes | None, str | None, bytes | None]:
    """In the process: run the step of a claim, and keep the end of what it logs.

    Returns the fields of an `IsolatedRun`, and no class that may have gone with the step.
    """
    if not log_bytes:
        return (*_run(target, claim, is_task),)
    here = _Here(log_bytes)
    with hearing():
        task_logs_for(here)
        try:
            ended = _run(target, claim, is_task)
        except NotReached:
            raise
        except BaseException as error:  # returned with its log
            ended = IsolatedRun(error=traced(error))
        finally:
            run_is_over(here)
    if here.log is not None:
        ended = ended._replace(log=here.log.text())
    if ended.error is not None:
        raise FailedCall((*ended,))
    return (*ended,)


class _Here:
    """The run that this process is for."""

    def __init__(self, log_bytes: int) -> None:
        self.log_bytes = log_bytes
        self.log_key = 0
        self.log: RunLog | None = None


def _run(target: Target, claim: Claim, is_task: bool) -> IsolatedRun:
    try:
        kind = _kind(target, claim.kind, is_task)
        step = kind.steps[claim.step]
        state = kind.decoder.decode(claim.state)
        context = Context(claim, state, lambda id, value: None, SYSTEM_CLOCK)
    except BaseException as error:
        raise NotReached from error
    value = kind.call(step, state, context if step.wants_context else None)
    if asyncio.iscoroutine(value):
        value = run_coroutine(value)
    if kind.is_machine:
        return IsolatedRun(value, encode(state))
    return IsolatedRun(_portable(value))


def _portable(value: Any) -> Any:
    """A result as JSON: its type may be one that the worker cannot import. An outcome is ours."""
    if isinstance(value, Outcome):
        return value
    try:
        return msgspec.Raw(encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return value  # the worker says why it cannot be saved


@cache
def _kind(target: Target, name: str, is_task: bool) -> Kind:
    found = found_at(target)
    if isinstance(found, JobFunction | Machine):
        return found.kind
    # Declared by a call, `orders = app.machine(Order)`, classes and functions keep their names.
    if isinstance(found, type):
        return machine_kind(found, name, 1, Options(), None)
    return (
        task_kind(name, found, Options()) if is_task else function_kind(found, name, 1, Options())
    )

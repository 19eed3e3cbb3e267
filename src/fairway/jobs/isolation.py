"""Running a step in a process of its own: how it is found there, and what it is given."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.jobs.context import Context
from fairway.jobs.flows import task_kind
from fairway.jobs.handles import JobFunction, Machine
from fairway.jobs.kinds import Options, function_kind, machine_kind
from fairway.jobs.outcome import Outcome
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.runtime.processes import NotReached
from fairway.runtime.targets import found_at
from fairway.runtime.usercode import run_coroutine
from fairway.wire.encoding import encode

if TYPE_CHECKING:
    from fairway.jobs.job import Claim
    from fairway.jobs.kinds import Kind
    from fairway.runtime.targets import Target


def run_isolated(target: Target, claim: Claim, is_task: bool) -> tuple[Any, bytes | None]:
    """In the process: run the step of a claim; what it returned, and a machine's state after."""
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
        return value, encode(state)
    return _portable(value), None


def _portable(value: Any) -> Any:
    """A result as JSON: its type may be one that the worker cannot import. An outcome is ours."""
    if isinstance(value, Outcome):
        return value
    try:
        return msgspec.Raw(encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return value  # the worker tells why it cannot be saved


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

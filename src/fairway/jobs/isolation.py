"""Running a step in a process of its own: how it is found there, and what it is given."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from fairway.jobs.context import Context
from fairway.jobs.handles import JobFunction, Machine
from fairway.runtime.clock import SYSTEM_CLOCK
from fairway.runtime.targets import found_at

if TYPE_CHECKING:
    from fairway.jobs.job import Claim
    from fairway.jobs.kinds import Kind
    from fairway.runtime.targets import Target


def run_isolated(target: Target, claim: Claim) -> tuple[Any, bytes | None]:
    """In the process: run the step of a claim; what it returned, and a machine's state after."""
    kind = _kind(target)
    step = kind.steps[claim.step]
    state = kind.decoder.decode(claim.state)
    context = Context(claim, state, lambda id, value: None, SYSTEM_CLOCK)
    value = kind.call(step, state, context if step.wants_context else None)
    if asyncio.iscoroutine(value):
        value = asyncio.run(value)
    return value, msgspec.json.encode(state) if kind.is_machine else None


def _kind(target: Target) -> Kind:
    found = found_at(target)
    assert isinstance(found, JobFunction | Machine), f"{target.name} is no job"
    return found.kind

"""Running a step in a process of its own: how it is found there, and what it is given.

The process imports the module that declares the job, as anybody would, and looks the job up by
name. A script is imported from its file, under another name than `__main__`, so that what stands
under `if __name__ == "__main__"` does not run again.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairway.errors import InvalidConfig
from fairway.jobs.context import Context
from fairway.jobs.handles import JobFunction, Machine
from fairway.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from fairway.jobs.job import Claim
    from fairway.jobs.kinds import Kind

SCRIPT = "__fairway_script__"


class Target(NamedTuple):
    """Where a process finds a job."""

    module: str
    file: str | None
    """For a script: its file."""
    name: str


def target_of(declared: Callable[..., Any] | type, job: str) -> Target:
    """Where another process finds what was declared here. Raises `InvalidConfig` if nowhere."""
    name = declared.__qualname__
    if "<" in name:
        raise InvalidConfig(
            f"job {job!r}: isolation='process' needs a function another process can import,"
            f" not {name}"
        )
    module = sys.modules.get(declared.__module__)
    if declared.__module__ != "__main__":
        return Target(declared.__module__, None, name)
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:
        return Target(spec.name, None, name)
    file = getattr(module, "__file__", None)
    if file is None:
        raise InvalidConfig(f"job {job!r}: isolation='process' needs a module or a script file")
    return Target(SCRIPT, str(Path(file).resolve()), name)


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
    found: Any = _module(target)
    for part in target.name.split("."):
        found = getattr(found, part)
    assert isinstance(found, JobFunction | Machine), f"{target.name} is no job"
    return found.kind


@cache
def _module(target: Target) -> ModuleType:
    if target.file is None:
        return importlib.import_module(target.module)
    spec = importlib.util.spec_from_file_location(SCRIPT, target.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT] = module
    spec.loader.exec_module(module)
    return module

"""How another process finds a function or class that was declared in this one.

The process imports the module that declares it, as anybody would, and looks it up by name. A script
is imported from its file, under another name than `__main__`, so that what stands under
`if __name__ == "__main__"` does not run again.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairway.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

SCRIPT = "__fairway_script__"


class Target(NamedTuple):
    """Where a process finds it."""

    module: str
    file: str | None
    """For a script: its file."""
    name: str


def target_of(declared: Callable[..., Any] | type, label: str) -> Target:
    """Where another process finds what was declared here. Raises `InvalidConfig` if nowhere.

    `label` is what people call it.
    """
    name = declared.__qualname__
    if "<" in name:
        raise InvalidConfig(
            f"{label}: isolation='process' needs a function another process can import, not {name}"
        )
    module = sys.modules.get(declared.__module__)
    if declared.__module__ != "__main__":
        return Target(declared.__module__, None, name)
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:
        return Target(spec.name, None, name)
    file = getattr(module, "__file__", None)
    if file is None:
        raise InvalidConfig(f"{label}: isolation='process' needs a module or a script file")
    return Target(SCRIPT, str(Path(file).resolve()), name)


def is_hidden(declared: Callable[..., Any]) -> bool:
    """Whether something else has its name in its module, once that is imported."""
    found: Any = sys.modules.get(declared.__module__)
    for part in declared.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not declared


def found_at(target: Target) -> Any:
    """In the other process: what was declared."""
    found: Any = _module(target)
    for part in target.name.split("."):
        found = getattr(found, part)
    return found


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

"""Runs a driver of a peer in the peer's own interpreter, and reads the figures that it prints.

A driver is a script beside this one. The last line that it prints is a JSON object with a value
for each field of a figure.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from benchmarks.harness import last_line, peer_environment

if TYPE_CHECKING:
    from dataclasses import Field

HERE = Path(__file__).resolve().parent


class Figure(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


F = TypeVar("F", bound=Figure)


def missing(peer: str) -> str | None:
    """Why a peer cannot be run, or None if it can."""
    found = peer_environment(peer)
    return found.reason if found.python is None else None


def figures(
    peer: str, script: str, arguments: list[str], figure: type[F], *, task: str, timeout: float
) -> tuple[F, None] | tuple[None, str]:
    """What the driver printed, or None and the reason. `task` says what it did not do in time."""
    environment = peer_environment(peer)
    if environment.python is None:
        return None, environment.reason
    try:
        done = subprocess.run(
            # -P: the modules beside the script are ours, not the peer's
            [str(environment.python), "-P", str(HERE / script), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"{peer} did not {task} in {timeout:g} s"
    if done.returncode != 0:
        return None, f"{peer} failed with {done.returncode}: {last_line(done.stderr)}"
    return parsed(peer, done.stdout, figure)


def parsed(peer: str, output: str, figure: type[F]) -> tuple[F, None] | tuple[None, str]:
    """The figures in what a driver printed."""
    try:
        found = json.loads((output.strip().splitlines() or [""])[-1])
        return figure(**{each.name: found[each.name] for each in fields(figure)}), None
    except (ValueError, TypeError, KeyError):
        return None, f"{peer} printed no figures but {last_line(output)!r}"

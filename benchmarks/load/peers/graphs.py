"""How fast another library takes an event through three stages, each in one process of its own.

    flow("streamz", EVENTS["streamz"])

Each `NAME_graph.py` runs in the peer's interpreter: three functions after another and one source,
the same as ours, and after every event it looks whether the result has come before it goes on.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path

from benchmarks.harness import peer_environment

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 120

EVENTS = {"streamz": 100_000, "reactivex": 500_000}
"""As many as take each a second or two."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a driver printed."""

    peer: str
    events: int
    seconds: float
    events_per_s: float
    p50_us: float
    """From the call to its result, one after another."""
    p99_us: float
    version: str


def flow(
    peer: str, events: int, *, timeout: float = TIMEOUT_S
) -> tuple[Flow, None] | tuple[None, str]:
    """Push `events` through the peer, and return the figures, or None and the reason."""
    if peer not in EVENTS:
        raise ValueError(f"no peer {peer!r}; there are: {', '.join(EVENTS)}")
    environment = peer_environment(peer)
    if environment.python is None:
        return None, environment.reason
    try:
        done = subprocess.run(
            # -P: the modules beside the script are ours, not the peer's
            [str(environment.python), "-P", str(HERE / f"{peer}_graph.py"), str(events)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"{peer} did not take {events:,} events in {timeout:g} s"
    if done.returncode != 0:
        return None, f"{peer} failed with {done.returncode}: {_last(done.stderr)}"
    return parsed(peer, done.stdout)


def parsed(peer: str, output: str) -> tuple[Flow, None] | tuple[None, str]:
    line = _last(output)
    try:
        said = json.loads(line)
        return Flow(**{each.name: said[each.name] for each in fields(Flow)}), None
    except (ValueError, TypeError, KeyError):
        return None, f"{peer} printed no figures but {line!r}"


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing"])[-1]

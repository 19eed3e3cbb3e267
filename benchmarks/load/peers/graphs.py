"""How fast another library takes an event through three stages, each in one process of its own.

    flow("streamz", EVENTS["streamz"])

Each `NAME_graph.py` runs in the peer's interpreter: three functions after another and one source,
the same as ours, and after every event it looks whether the result has come before it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.load.peers.driver import figures

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
    task = f"take {events:,} events"
    return figures(peer, f"{peer}_graph.py", [str(events)], Flow, task=task, timeout=timeout)

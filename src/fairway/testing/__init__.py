"""Shipped to users: virtual time, jobs and graphs on it, a simulated disk, SQLite on top of that.

    from fairway.testing import run

    def test_retry_after_an_hour():
        run(scenario, seed=7)       # asyncio code, on virtual time

Everything random comes from one printed seed. Production code never imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.testing.disk import DiskFile, PowerLoss, SimulatedDisk
from fairway.testing.loop import (
    Deadlock,
    Livelock,
    NotSimulated,
    VirtualClock,
    VirtualLoop,
    run,
)

if TYPE_CHECKING:
    from fairway.testing.graphs import (
        GraphState,
        GraphsUnderTest,
        InjectedCrash,
        TestFeed,
        run_graph,
    )
    from fairway.testing.jobs import JobsUnderTest, run_jobs
    from fairway.testing.vfs import SimulatedVFS

__all__ = [
    "Deadlock",
    "DiskFile",
    "GraphState",
    "GraphsUnderTest",
    "InjectedCrash",
    "JobsUnderTest",
    "Livelock",
    "NotSimulated",
    "PowerLoss",
    "SimulatedDisk",
    "SimulatedVFS",
    "TestFeed",
    "VirtualClock",
    "VirtualLoop",
    "run",
    "run_graph",
    "run_jobs",
]

_OF_GRAPHS = ("GraphState", "GraphsUnderTest", "InjectedCrash", "TestFeed", "run_graph")


def __getattr__(name: str) -> Any:
    if name == "SimulatedVFS":  # imports apsw, which tests without SQLite need not wait for
        from fairway.testing.vfs import SimulatedVFS

        return SimulatedVFS
    if name in ("JobsUnderTest", "run_jobs"):
        from fairway.testing import jobs

        return getattr(jobs, name)
    if name in _OF_GRAPHS:
        from fairway.testing import graphs

        return getattr(graphs, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

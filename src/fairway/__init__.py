"""Fairway: a durable work-and-event runtime for Python, on one fair scheduler.

The names a user needs, loaded when they are first used so that `import fairway` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairway.app import Fairway
    from fairway.client import AsyncClient, Client
    from fairway.core.lanes import LaneLimits
    from fairway.errors import (
        Backpressure,
        Closing,
        Corrupt,
        FairwayError,
        FeedLost,
        Fenced,
        FiringFailed,
        JobFailed,
        OutcomeUnknown,
        WriteFailed,
    )
    from fairway.graphs.context import FiringContext
    from fairway.graphs.criteria import all_, any_, debounce, every, quorum, where
    from fairway.graphs.feed import Event
    from fairway.graphs.feeds.kafka import kafka
    from fairway.graphs.feeds.poll import poll
    from fairway.graphs.firing import Firing, OnError, retry
    from fairway.graphs.graph import Graph
    from fairway.graphs.source import ALL, Source
    from fairway.graphs.windows import Batch, Window
    from fairway.jobs.context import Context
    from fairway.jobs.feeder import FeederConfig
    from fairway.jobs.job import Limits
    from fairway.jobs.kinds import Unique
    from fairway.jobs.outcome import Outcome
    from fairway.jobs.worker import WorkerConfig
    from fairway.runtime.telemetry import Telemetry
    from fairway.storage.log import Log
    from fairway.storage.reader import ReaderConfig
    from fairway.storage.wal import Entry, HardState, Operation
    from fairway.storage.wals import wal_at
    from fairway.storage.writer import Durability, WriterConfig

__all__ = [
    "ALL",
    "AsyncClient",
    "Backpressure",
    "Batch",
    "Client",
    "Closing",
    "Context",
    "Corrupt",
    "Durability",
    "Entry",
    "Event",
    "Fairway",
    "FairwayError",
    "FeedLost",
    "FeederConfig",
    "Fenced",
    "Firing",
    "FiringContext",
    "FiringFailed",
    "Graph",
    "HardState",
    "JobFailed",
    "LaneLimits",
    "Limits",
    "Log",
    "OnError",
    "Operation",
    "Outcome",
    "OutcomeUnknown",
    "ReaderConfig",
    "Source",
    "Telemetry",
    "Unique",
    "Window",
    "WorkerConfig",
    "WriteFailed",
    "WriterConfig",
    "all_",
    "any_",
    "debounce",
    "every",
    "kafka",
    "poll",
    "quorum",
    "retry",
    "wal_at",
    "where",
]

_HOMES = {
    "fairway.app": ("Fairway",),
    "fairway.client": ("AsyncClient", "Client"),
    "fairway.core.lanes": ("LaneLimits",),
    "fairway.errors": (
        "Backpressure",
        "Closing",
        "Corrupt",
        "FairwayError",
        "FeedLost",
        "Fenced",
        "FiringFailed",
        "JobFailed",
        "OutcomeUnknown",
        "WriteFailed",
    ),
    "fairway.graphs.context": ("FiringContext",),
    "fairway.graphs.criteria": ("all_", "any_", "debounce", "every", "quorum", "where"),
    "fairway.graphs.feed": ("Event",),
    "fairway.graphs.feeds.kafka": ("kafka",),
    "fairway.graphs.feeds.poll": ("poll",),
    "fairway.graphs.firing": ("Firing", "OnError", "retry"),
    "fairway.graphs.graph": ("Graph",),
    "fairway.graphs.source": ("ALL", "Source"),
    "fairway.graphs.windows": ("Batch", "Window"),
    "fairway.jobs.context": ("Context",),
    "fairway.jobs.feeder": ("FeederConfig",),
    "fairway.jobs.job": ("Limits",),
    "fairway.jobs.kinds": ("Unique",),
    "fairway.jobs.outcome": ("Outcome",),
    "fairway.jobs.worker": ("WorkerConfig",),
    "fairway.runtime.telemetry": ("Telemetry",),
    "fairway.storage.log": ("Log",),
    "fairway.storage.reader": ("ReaderConfig",),
    "fairway.storage.wal": ("Entry", "HardState", "Operation"),
    "fairway.storage.wals": ("wal_at",),
    "fairway.storage.writer": ("Durability", "WriterConfig"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'fairway' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value

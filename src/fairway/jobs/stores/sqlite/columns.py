"""The columns of a job that come with it and never change: those of a `NewJob`, by its own names.

The statements that add jobs are made from this, so a new option is a column in a migration.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from fairway.jobs.job import NewJob

ELSEWHERE: Final = frozenset({"queue", "tenant", "delay_ns", "at_wall_ns", "parent", "state"})
"""What of a `NewJob` is in its lane and its times, or told otherwise when it is added."""
OPTIONS: Final = tuple(name for name in NewJob.__struct_fields__ if name not in ELSEWHERE)
"""What a row has of its `NewJob` as it is."""
COLUMNS: Final = (
    *("id", "status", "lane", "since_ns", "due_ns", "enqueued_ns", "parent"),
    *OPTIONS,
    "state",  # the last one: jobs that are alike come with an array of these
)
"""What a row is added with."""
options = attrgetter(*OPTIONS)

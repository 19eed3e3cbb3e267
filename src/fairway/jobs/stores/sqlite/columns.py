"""The columns of a job, by the names of `NewJob` and `Claim`: those that come with it and never
change, and those that a worker is given with a claim.

The statements that add jobs and claim them are made from this, so a new option is a column in a
migration.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from fairway.jobs.job import CLAIM_FIELDS, NewJob
from fairway.jobs.stores.sqlite.transaction import REASON

ELSEWHERE: Final = frozenset({"queue", "tenant", "delay_ns", "at_wall_ns", "parent", "state"})
"""What of a `NewJob` is in its line and its times, or given otherwise when it is added."""
OPTIONS: Final = tuple(name for name in NewJob.__struct_fields__ if name not in ELSEWHERE)
"""What a row has of its `NewJob` as it is."""
COLUMNS: Final = (
    *("id", "status", "lane", "since_ns", "due_ns", "enqueued_ns", "parent"),
    *OPTIONS,
    "state",  # the last one: jobs that differ in their state alone come with an array of these
)
"""What a row is added with."""
options = attrgetter(*OPTIONS)

_EXPRESSIONS: Final = {"token": "NULL", "queue": "NULL", "tenant": "NULL", "cancelling": REASON}
"""How a field is read that is no column: what all jobs of a line share is not read for each."""
CLAIMED: Final = ", ".join(_EXPRESSIONS.get(name, name) for name in CLAIM_FIELDS)
"""The first columns of a claim, as `Claim` takes them by place: by name it takes several times as
long, and this is done for every job that runs."""

"""The columns of a job: those that come with it and never change, with what each holds of a
`NewJob`, and those that a worker is given with a claim.

The statements that add jobs, claim them, end them and take them up again are made from this, so a
new option is a line here and a column in a migration.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fairway.jobs.job import CLAIM_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from fairway.jobs.job import NewJob

ARRAYS_FROM: Final = 5
VALUES_FROM: Final = 3
"""The places of the first of them among the parameters of `enqueue` and of `enqueue_uniform`."""


class Column(NamedTuple):
    """One column: its type, and its value for a new job."""

    type: str
    value: Callable[[NewJob], Any]


def us(ns: int) -> int:
    """Microseconds, rounded up: never earlier than asked."""
    return -(-ns // 1000)


def ns(at: datetime) -> int:
    """A time as we have it: nanoseconds since 1970."""
    return int(at.timestamp()) * 1_000_000_000 + at.microsecond * 1000


COLUMNS: Final = {
    "kind": Column("text", attrgetter("kind")),
    "version": Column("int", attrgetter("version")),
    "step": Column("text", attrgetter("step")),
    "priority": Column("smallint", attrgetter("priority")),
    "max_attempts": Column("int", attrgetter("max_attempts")),
    "max_crashes": Column("int", attrgetter("max_crashes")),
    "pkey": Column("text", attrgetter("partition_key")),
    "strict": Column("boolean", attrgetter("strict")),
    "ukey": Column("text", attrgetter("unique_key")),
    "window_us": Column("bigint", lambda job: us(job.window_ns)),
    "parent": Column("bigint", attrgetter("parent")),
    "notify": Column("text", attrgetter("notify")),
    "trace": Column("text", attrgetter("trace")),
}


_NAMES: Final = {"partition_key": "pkey"}
_EXPRESSIONS: Final = {
    "token": "null::bigint",
    "queue": "null::text",
    "tenant": "null::text",
    "cancelling": "case when j.cancelling then coalesce(j.error, 'cancelled') end",
}
"""How a field is read that is no column: what all jobs of a line share is not read for each of
them, and a reason is an error."""


def _claim_field(field: str) -> str:
    return f"{_EXPRESSIONS.get(field, f'j.{_NAMES.get(field, field)}')} as claim_{field}"


def values_of(job: NewJob) -> list[Any]:
    return [column.value(job) for column in COLUMNS.values()]


def arrays_of(jobs: Iterable[NewJob]) -> list[list[Any]]:
    jobs = list(jobs)
    return [[column.value(job) for job in jobs] for column in COLUMNS.values()]


def fragments() -> dict[str, str]:
    """What stands for the columns in the statements."""
    types = [column.type for column in COLUMNS.values()]
    arrays = enumerate(types, ARRAYS_FROM)
    return {
        "claim_fields": ", ".join(map(_claim_field, CLAIM_FIELDS)),
        "no_claim_fields": ", ".join(["null"] * len(CLAIM_FIELDS)),
        "columns": ", ".join(COLUMNS),
        "gone": ", ".join(f"g.{name}" for name in COLUMNS),
        "arrays": ", ".join(f"${at}::{one}[]" for at, one in arrays),
        "values": ", ".join(f"${at}::{one}" for at, one in enumerate(types, VALUES_FROM)),
        "at": f"${ARRAYS_FROM + len(COLUMNS)}",
        "priority": f"${VALUES_FROM + list(COLUMNS).index('priority')}",
    }

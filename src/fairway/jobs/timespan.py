"""Which ids the jobs of a span of time have. Pure.

Ids rise in the order of enqueueing, so the table's own key finds a time as well, and no job pays
for another index.

Times and ids are not in quite the same order. A job that is added in a transaction of the caller
has the time at which that began (PostgreSQL), and a clock may be set back. So a span is looked for
with some slack on both sides, and each job's time is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

SLACK_NS: Final = 60 * 1_000_000_000
"""A job whose time is further out of line with its id may be missing from a listing by time."""


class Placed(NamedTuple):
    """A job, and when it was enqueued."""

    id: int
    at_ns: int


def first_id(at_ns: int, last: int) -> Generator[int, Placed | None, int]:
    """The id from which on jobs were enqueued then or later; `last` is the highest there is.

    Yields an id each time, and is to be sent the first job that has that id or a higher one.
    """
    low, high = 1, last + 1
    while low < high:
        middle = (low + high) // 2
        found = yield middle
        if found is None or found.at_ns >= at_ns:
            high = middle
        else:
            low = found.id + 1
    return low


def from_id(since_ns: int, last: int) -> Generator[int, Placed | None, int]:
    """No job that was enqueued since then has a lower id."""
    return first_id(since_ns - SLACK_NS, last)


def below_id(until_ns: int, last: int) -> Generator[int, Placed | None, int]:
    """No job that was enqueued before then has this id or a higher one."""
    return first_id(until_ns + SLACK_NS, last)

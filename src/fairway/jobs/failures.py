"""What the log says of jobs that nobody tries again: one line each, when that is committed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from fairway.jobs.job import Fate, last_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fairway.jobs.job import DeadJob, Settlement

logger = logging.getLogger("fairway.jobs")

LINE_MAX: Final = 500
"""Characters of an error in the log; the job has all of it."""


def log_failed(settlements: Iterable[Settlement], stale: Collection[int]) -> None:
    """Of what was settled, warn of the jobs that failed for good."""
    for one in settlements:
        if one.fate is Fate.FAILED and one.claim.id not in stale:
            claim = one.claim
            _warn("failed for good", claim.id, claim.kind, _attempt(one), one.error)


def log_died(died: Iterable[DeadJob]) -> None:
    """Warn of jobs that are dead: their workers died with them too often."""
    for one in died:
        _warn("is dead", one.id, one.kind, one.attempt, one.error)


def _attempt(one: Settlement) -> int:
    return one.claim.attempt + one.claim.crashes + 1


def _warn(what: str, id: int, kind: str, attempt: int, error: str | None) -> None:
    error_text = last_line(error or "")[:LINE_MAX] or "it said nothing"
    logger.warning("job %d (%s) %s at attempt %d: %s", id, kind, what, attempt, error_text)

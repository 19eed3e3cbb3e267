"""What is kept of the attempts of a job: each is one run of one step by one worker. Pure.

An attempt begins when a worker is given the job and ends when the store hears how it went, or when
the worker is taken for dead. Attempts of a job are numbered as they end, whatever their step:
`runs` of the job counts them. What is written depends on how the attempt went:

* One that failed, was cancelled or was lost, or that logged something, is kept by itself.
* One that went well and said nothing costs nothing. If it ended its job, its facts stand in the
  job's own row; if the job went on, its number is left out, so that a gap in the numbers says how
  many went well. A plain job that is done at once, or a machine of ten thousand steps that never
  fails, writes no attempt at all.
* Of one job the last `ATTEMPTS_MAX` are kept.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from fairway.jobs.job import Fate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.jobs.job import Job, Settlement

ATTEMPTS_MAX: Final = 32
"""Attempts of one job that are kept. With their logs they are 2 MiB at most."""
ERROR_MAX: Final = 4_000
"""Characters of an error; of a longer one, the last."""
LOG_BYTES_MAX: Final = 64 * 1024
"""Bytes of a log; of a longer one, the last."""
WORKER_DIED: Final = "its worker died"
CLAIM_LOST: Final = "the store lost the claim of its worker"


class AttemptFate(Enum):
    """How an attempt ended."""

    DONE = "done"
    """And with it the job."""
    WENT_ON = "went_on"
    """Its job goes on: with another step, or later with the same one."""
    FAILED = "failed"
    """It raised, or said so itself. Perhaps the job is tried again."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its worker died, or the store lost the claim."""


class JobAttempt(Struct, frozen=True, kw_only=True):
    """One run of one step of a job by one worker."""

    number: int
    """Which run of its job it was, from 1 and whatever the step. What is left out went well."""
    step: str
    worker: int
    started_wall_ns: int
    """When the worker was given the job."""
    ended_wall_ns: int | None = None
    """When the store heard of its end; None while it runs."""
    fate: AttemptFate | None = None
    """None while it runs."""
    error: str | None = None
    log_bytes: int = 0
    """How much of its log there is: see `JobStore.attempt_log`."""


_FATES: Final = {
    Fate.DONE: AttemptFate.DONE,
    Fate.FAILED: AttemptFate.FAILED,
    Fate.CANCELLED: AttemptFate.CANCELLED,
    Fate.NEXT: AttemptFate.WENT_ON,
    Fate.WAIT: AttemptFate.WENT_ON,
    Fate.SPAWN: AttemptFate.WENT_ON,
}
REMARKABLE: Final = frozenset({AttemptFate.FAILED, AttemptFate.CANCELLED, AttemptFate.LOST})


def attempt_fate(settlement: Settlement, *, counts: bool = True) -> AttemptFate | None:
    """How the attempt ended that is settled; None if it was none, since the job was not run.

    `counts` unless somebody had cancelled the job: see `Move`.
    """
    if not settlement.is_run:
        return None
    if not counts:
        return AttemptFate.CANCELLED
    if settlement.fate is Fate.RETRY:
        return AttemptFate.FAILED if settlement.counts else AttemptFate.WENT_ON
    return _FATES[settlement.fate]


def is_kept(fate: AttemptFate | None, log: bytes | None) -> bool:
    """Whether an attempt is kept by itself."""
    return fate is not None and (fate in REMARKABLE or bool(log))


def kept_error(error: str | None) -> str | None:
    """As much of an error as is kept."""
    return None if error is None else error[-ERROR_MAX:]


def kept_log(log: bytes | None, most: int = LOG_BYTES_MAX) -> bytes | None:
    """As much of a log as is kept, from its end. No character is cut in two."""
    if not log or len(log) <= most:
        return log or None
    begin = len(log) - most
    while begin < len(log) and log[begin] & 0xC0 == 0x80:  # the middle of one
        begin += 1
    return log[begin:] or None


def attempts_of(job: Job, kept: Sequence[JobAttempt]) -> list[JobAttempt]:
    """The attempts of a job: those that are kept, and what its own row says of the last one."""
    attempts = list(kept)
    if job.started_wall_ns is None or job.ran_by is None:
        return attempts  # nobody runs it, and it is not done
    last = JobAttempt(
        number=job.runs + 1,
        step=job.step,
        worker=job.ran_by,
        started_wall_ns=job.started_wall_ns,
    )
    if job.status.ended:
        ended_ns = job.finished_wall_ns
        last = structs.replace(last, number=job.runs, ended_wall_ns=ended_ns, fate=AttemptFate.DONE)
    if not kept or kept[-1].number < last.number:
        attempts.append(last)
    return attempts

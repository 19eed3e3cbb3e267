"""Attempts of jobs in PostgreSQL: how those that are kept are written, and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairway.jobs.attempts import (
    AttemptFate,
    JobAttempt,
    attempt_fate,
    is_kept,
    kept_error,
    kept_log,
)
from fairway.jobs.stores.postgres.columns import ns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from fairway.jobs.job import Settlement
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection


class EndedAttempt(NamedTuple):
    """An attempt that has ended, as `keep_attempts` takes it."""

    job: int
    number: int
    step: str
    worker: int
    started: datetime
    fate: str
    error: str | None
    log: bytes | None


def ended_attempt(
    one: Settlement, worker: int, number: int, started: datetime, reason: str | None = None
) -> EndedAttempt | None:
    """The attempt that a settlement ended, if it is kept; `reason`, if its job was cancelled."""
    fate = attempt_fate(one, counts=reason is None)
    if fate is None or not is_kept(fate, one.log):
        return None
    error = kept_error(one.error if reason is None else reason)
    claim, log = one.claim, kept_log(one.log)
    return EndedAttempt(claim.id, number, claim.step, worker, started, fate.value, error, log)


async def keep_attempts(
    connection: AsyncpgConnection, sql: Mapping[str, str], ended: Sequence[EndedAttempt | None]
) -> None:
    """Keep attempts, if there are any, in the transaction of `connection`."""
    kept = [one for one in ended if one is not None]
    if kept:
        await connection.execute(sql["keep_attempts"], *map(list, zip(*kept, strict=True)))


def attempt_of(row: Any) -> JobAttempt:
    return JobAttempt(
        number=row["number"],
        step=row["step"],
        worker=row["worker"],
        started_wall_ns=ns(row["started_at"]),
        ended_wall_ns=ns(row["ended_at"]),
        fate=AttemptFate(row["fate"]),
        error=row["error"],
        log_bytes=row["log_bytes"],
    )

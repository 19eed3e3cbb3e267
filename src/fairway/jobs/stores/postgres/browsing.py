"""Looking at jobs in PostgreSQL: rows to `Job`, and the statement that lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fairway.jobs.job import Job, Status
from fairway.jobs.moves import signals_awaited
from fairway.jobs.stores.postgres.columns import ns, us
from fairway.jobs.timespan import Placed, below_id, from_id

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from datetime import datetime

    from fairway.jobs.job import Filter
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection

_LIVE = """
select j.id, j.kind, j.version, j.step, j.state, j.priority, j.attempt, j.crashes, j.max_attempts,
    j.pkey, j.ukey, j.parent, j.trace, j.progress, j.error, j.enqueued_at, j.names, j.cancelling,
    j.retries, j.runs, l.queue, l.tenant, t.due, s.worker as ran_by, s.claimed_at as started_at,
    null::bytea as result, null::timestamptz as finished_at,
    case when s.id is not null then 'x' when b.id is not null then 'b' else j.status end as shown
from fw.job j join fw.lane l on l.id = j.lane left join fw.timer t on t.id = j.id
    left join fw.lease s on s.id = j.id left join fw.blocked b on b.pkey = j.pkey and b.id = j.id
"""
_ENDED = """
select h.id, h.kind, h.version, h.step, h.state, h.priority, h.attempt, h.crashes, h.max_attempts,
    h.pkey, h.ukey, h.parent, h.trace, h.progress, h.error, h.enqueued_at, null::text[] as names,
    false as cancelling, h.retries, h.runs, l.queue, l.tenant, null::timestamptz as due, h.ran_by,
    h.started_at, h.result, h.finished_at, h.status as shown
from fw.history h join fw.lane l on l.id = h.lane
"""
_TIME = "'epoch'::timestamptz + ${n}::bigint * interval '1 microsecond'"
_ONLY = {  # where to look for the jobs of one state, without looking at all of them
    Status.SCHEDULED: "j.status = 's'",
    Status.WAITING: "j.status = 'w'",
    Status.RUNNING: "s.id is not null",
    Status.BLOCKED: "b.id is not null",
    Status.READY: "j.status = 'r' and s.id is null and b.id is null",
}


class IdSpan(NamedTuple):
    """From which id on, and below which one."""

    low: int | None = None
    high: int | None = None


EVERYWHERE = IdSpan()


async def span(connection: AsyncpgConnection, sql: Mapping[str, str], filter: Filter) -> IdSpan:
    """The ids between which the jobs of a listing lie that asks for a span of time."""
    low: int | None = None
    high: int | None = None
    if filter.since_wall_ns is not None or filter.until_wall_ns is not None:
        last: int = await connection.fetchval(sql["last_id"])
        if filter.since_wall_ns is not None:
            low = await _found(connection, sql, from_id(filter.since_wall_ns, last))
        if filter.until_wall_ns is not None:
            high = await _found(connection, sql, below_id(filter.until_wall_ns, last))
    return IdSpan(low, high)


async def _found(
    connection: AsyncpgConnection,
    sql: Mapping[str, str],
    search: Generator[int, Placed | None, int],
) -> int:
    try:
        asked = next(search)
        while True:
            rows = await connection.fetch(sql["placed"], asked)
            at = Placed(rows[0]["id"], ns(rows[0]["enqueued_at"])) if rows else None
            asked = search.send(at)
    except StopIteration as end:
        return int(end.value)


def browsing(filter: Filter, ids: IdSpan = EVERYWHERE) -> tuple[str, list[Any]]:
    """The statement that lists jobs, newest first, and its arguments."""
    args: list[Any] = []
    live: list[str] = []
    ended: list[str] = []

    def both(condition: str, value: Any) -> None:
        if value is not None:
            args.append(value)
            live.append(condition.format(t="j", n=len(args)))
            ended.append(condition.format(t="h", n=len(args)))

    both("l.queue = ${n}", filter.queue)
    both("l.tenant = ${n}", filter.tenant)
    both("{t}.kind = ${n}", filter.kind)
    both("{t}.parent = ${n}", filter.parent)
    both("substring({t}.trace, 4, 32) = ${n} and {t}.trace is not null", filter.trace)
    both("{t}.enqueued_at >= " + _TIME, filter.since_wall_ns and us(filter.since_wall_ns))
    both("{t}.enqueued_at < " + _TIME, filter.until_wall_ns and us(filter.until_wall_ns))
    both("{t}.id >= ${n}", ids.low)
    both("{t}.id < ${n}", ids.high)
    both("{t}.id < ${n}", filter.before)
    parts = []
    if filter.status is None or not filter.status.ended:
        if filter.status is not None:
            live.append(_ONLY[filter.status])
        parts.append(_ordered(_LIVE, live, "j", filter.limit))
    if filter.status is None or filter.status.ended:
        if filter.status is not None:
            ended.append(f"h.status = '{filter.status.value}'")
        parts.append(_ordered(_ENDED, ended, "h", filter.limit))
    joined = " union all ".join(f"({part})" for part in parts)
    return f"select * from ({joined}) as found order by id desc limit {filter.limit:d}", args


def _ordered(text: str, conditions: list[str], table: str, limit: int) -> str:
    where = f"where {' and '.join(conditions)}" if conditions else ""
    return f"{text} {where} order by {table}.id desc limit {limit:d}"


def job_of(row: Any) -> Job:
    """A row of a live or an ended job."""
    letter = row.get("shown") or row["status"]
    status = Status(letter.decode() if isinstance(letter, bytes) else letter)
    runs, done = status is Status.RUNNING, status is Status.DONE
    return Job(
        id=row["id"],
        kind=row["kind"],
        version=row["version"],
        status=status,
        queue=row["queue"],
        tenant=row["tenant"],
        priority=row["priority"],
        step=row["step"],
        state=row["state"],
        attempt=row["attempt"],
        crashes=row["crashes"],
        max_attempts=row["max_attempts"],
        partition_key=row["pkey"],
        unique_key=row["ukey"],
        parent=row["parent"],
        trace=row["trace"],
        enqueued_wall_ns=_ns(row["enqueued_at"]) or 0,
        due_wall_ns=_ns(row.get("due")),
        finished_wall_ns=_ns(row.get("finished_at")),
        worker=row["ran_by"] if runs else None,
        cancelling=row.get("cancelling") or False,
        retries=row["retries"],
        runs=row["runs"],
        ran_by=row["ran_by"] if runs or done else None,
        started_wall_ns=_ns(row["started_at"]) if runs or done else None,
        waits_for=signals_awaited(row.get("names") or ()) if status is Status.WAITING else (),
        progress=row["progress"],
        result=row.get("result"),
        error=row["error"],
    )


def _ns(at: datetime | None) -> int | None:
    return None if at is None else ns(at)

"""Looking at jobs: by id, by key, page by page, queue by queue. Never waits for a commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairway.errors import Closing
from fairway.jobs.attempts import AttemptFate, JobAttempt, attempts_of
from fairway.jobs.job import Job, Limits, QueueState, Status
from fairway.jobs.limits import stored_limits
from fairway.jobs.moves import QueueFacts, WaitFacts, WaitReason, signals_awaited, why_waits
from fairway.jobs.presence import KindState, WorkerState, kind_state, kinds_in, queues_in
from fairway.jobs.store import TopicCursor
from fairway.jobs.stores.sqlite.claiming import running_jobs
from fairway.jobs.stores.sqlite.connections import answering, connect
from fairway.jobs.stores.sqlite.schema import (
    CODES,
    IS_READY,
    PARKED,
    QUEUE_SHIFT,
    READY,
    RUNNING,
    STATUSES,
    TENANT_OF_LINE,
    TRACE_ID,
    UNFINISHED,
    UNHAPPY,
)
from fairway.jobs.stores.sqlite.transaction import KEYED, names_in
from fairway.jobs.timespan import Placed, below_id, from_id
from fairway.runtime.blocking import BlockingPool

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import apsw

    from fairway.jobs.job import Filter
    from fairway.jobs.stores.sqlite.schema import Sql
    from fairway.runtime.clock import Clock

T = TypeVar("T")


class JobRow(NamedTuple):
    """A job as it is read; `COLUMNS` says what of it has another name in the tables."""

    id: int
    kind: str
    version: int
    status: int
    queue: str
    tenant: str
    priority: int
    step: str
    state: bytes
    attempt: int
    crashes: int
    max_attempts: int
    partition_key: str | None
    unique_key: str | None
    parent: int | None
    trace: str | None
    enqueued_ns: int
    due_ns: int | None
    since_ns: int
    worker: int | None
    cancelling: int
    names: str | None
    progress: bytes | None
    result: bytes | None
    error: str | None
    retries: int
    runs: int
    ran_by: int | None
    started_ns: int | None
    claimed_ns: int | None


COLUMNS = {
    "id": "job.id",
    "queue": "queue.name",
    "tenant": "tenant.name",
    "worker": "(SELECT worker FROM lease WHERE job = job.id)",
    "claimed_ns": "(SELECT claimed_ns FROM lease WHERE job = job.id)",
}
SELECT_JOB = f"""
SELECT {", ".join(COLUMNS.get(name, name) for name in JobRow._fields)}
FROM job JOIN queue ON queue.id = lane >> {QUEUE_SHIFT}
JOIN tenant ON tenant.id = {TENANT_OF_LINE}
"""
# How those of a status are found by an index, with the words that SQLite wants to hear for it.
INDEXED = {
    Status.READY: f"SELECT id FROM job WHERE {IS_READY}",
    Status.RUNNING: "SELECT job FROM lease",
    **{
        status: f"SELECT id FROM job WHERE {term} AND status = {CODES[status]}"
        for term, statuses in (
            (PARKED, (Status.SCHEDULED, Status.WAITING, Status.BLOCKED)),
            (UNHAPPY, (Status.FAILED, Status.DEAD, Status.CANCELLED)),
        )
        for status in statuses
    },
}
ATTEMPTS = """
SELECT number, step, worker, started_ns, ended_ns, fate, error, coalesce(length(log), 0)
FROM attempt WHERE job = ? ORDER BY number
"""
WORKERS = """
SELECT id, name, until_ns, started_ns, beat_ns, queues, kinds, coalesce(running, 0)
FROM worker LEFT JOIN (SELECT worker, count(*) AS running FROM lease GROUP BY worker)
ON worker = id ORDER BY id
"""
PENDING = f"""
SELECT (
    SELECT count(*) FROM job AS child
    WHERE child.parent = job.id AND child.notify IS NULL AND child.{UNFINISHED}
), strict FROM job WHERE id = ?
"""
HOLDER = f"""
SELECT min(id) FROM job
WHERE partition_key = ? AND {UNFINISHED} AND status = {RUNNING} AND id <> ?
"""
EARLIER = f"SELECT min(id) FROM job WHERE partition_key = ? AND {UNFINISHED} AND id < ?"
FEW = 10_000
"""Fewer are looked up one by one; among more, the newest are met soon by reading backwards."""

# In the order of the indexes, so that they are only counted.
COUNTS = f"""
SELECT lane, {READY}, count(*) FROM job WHERE {IS_READY} GROUP BY lane
UNION ALL
SELECT lane, status, count(*) FROM job WHERE {PARKED} GROUP BY status, lane
UNION ALL
SELECT lane, {RUNNING}, count(*) FROM lease GROUP BY lane
"""


class SqliteReader:
    """A connection and a thread for whoever only looks."""

    def __init__(self, place: str, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._pool = BlockingPool(1, name="fairway-jobs-reader", clock=clock)
        self._connection: apsw.Connection | None = None

    async def open(self) -> None:
        await self._pool.run(self._open)

    async def aclose(self) -> None:
        await self._pool.run(self._close)
        await self._pool.aclose()

    def _open(self) -> None:
        with answering(self._place):
            self._connection = connect(self._place)
            self._connection.pragma("query_only", True)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close(force=True)
            self._connection = None

    async def find(self, id: int) -> Job | None:
        return await self._read(lambda connection: _find(connection, id))

    async def find_by_key(self, unique_key: str) -> Job | None:
        now_ns = self._clock.wall_ns()

        def read(connection: Sql) -> Job | None:
            found = connection.execute(KEYED, (unique_key, now_ns)).fetchone()
            return _find(connection, *found) if found is not None else None

        return await self._read(read)

    async def browse(self, filter: Filter) -> list[Job]:
        return await self._read(lambda connection: _browse(connection, filter))

    async def attempts(self, id: int) -> list[JobAttempt]:
        return await self._read(lambda connection: _attempts(connection, id))

    async def attempt_log(self, id: int, number: int) -> bytes | None:
        rows = await self.rows("SELECT log FROM attempt WHERE job = ? AND number = ?", (id, number))
        log: bytes | None = rows[0][0] if rows else None
        return log

    async def why_waits(self, id: int) -> WaitReason | None:
        now_ns = self._clock.wall_ns()
        return await self._read(lambda connection: _why_waits(connection, id, now_ns))

    async def workers(self) -> list[WorkerState]:
        now_ns = self._clock.wall_ns()
        return await self._read(lambda connection: _workers(connection, now_ns))

    async def kinds(self) -> list[KindState]:
        now_ns = self._clock.wall_ns()
        return await self._read(lambda connection: _kinds(connection, now_ns))

    async def queues(self) -> list[QueueState]:
        return await self._read(_queues)

    async def cursor(self, name: str) -> TopicCursor | None:
        def read(connection: Sql) -> TopicCursor | None:
            found = connection.execute(
                "SELECT name, epoch, seq FROM topic_cursor WHERE name = ?", (name,)
            ).fetchone()
            return TopicCursor(*found) if found is not None else None

        return await self._read(read)

    async def rows(self, statement: str, bindings: tuple[Any, ...] = ()) -> list[Any]:
        """The rows of a statement that changes nothing."""
        return await self._read(
            lambda connection: connection.execute(statement, bindings).fetchall()
        )

    async def _read(self, look: Callable[[Sql], T]) -> T:
        return await self._pool.run(self._look, look)

    def _look(self, look: Callable[[Sql], T]) -> T:
        connection = self._connection
        if connection is None:
            raise Closing(f"{self._place} is not open")
        with answering(self._place):
            connection.execute("BEGIN")  # one moment for all that is read
            try:
                return look(connection)
            finally:
                connection.execute("ROLLBACK")


def _find(connection: Sql, id: int) -> Job | None:
    found = connection.execute(f"{SELECT_JOB} WHERE job.id = ?", (id,)).fetchone()
    return _job(found) if found is not None else None


def _browse(connection: Sql, filter: Filter) -> list[Job]:
    terms: list[str] = []
    values: list[object] = []

    def only(term: str, *wanted: object) -> None:
        terms.append(term)
        values.extend(wanted)

    if filter.before is not None:
        only("job.id < ?", filter.before)
    if filter.queue is not None:
        only("queue.name = ?", filter.queue)
    if filter.tenant is not None:
        only("tenant.name = ?", filter.tenant)
    if filter.kind is not None:
        only("kind = ?", filter.kind)
    if filter.parent is not None:
        only("parent = ?", filter.parent)
    if filter.trace is not None:
        only(f"{TRACE_ID} = ? AND trace IS NOT NULL", filter.trace)
    _during(connection, filter, only)
    if filter.status is not None:
        only("+status = ?", CODES[filter.status])
        found = INDEXED.get(filter.status)
        if found is not None and _few(connection, found):
            terms.append(f"job.id IN ({found})")
    where = f"WHERE {' AND '.join(terms)}" if terms else ""
    rows = connection.execute(
        f"{SELECT_JOB} {where} ORDER BY job.id DESC LIMIT ?", (*values, max(0, filter.limit))
    )
    return [_job(row) for row in rows.fetchall()]


def _during(connection: Sql, filter: Filter, only: Callable[..., None]) -> None:
    """Only jobs of a span of time, and where in the table those lie."""
    if filter.since_wall_ns is None and filter.until_wall_ns is None:
        return
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM job").fetchone()
    if filter.since_wall_ns is not None:
        only("enqueued_ns >= ?", filter.since_wall_ns)
        only("job.id >= ?", _found(connection, from_id(filter.since_wall_ns, last)))
    if filter.until_wall_ns is not None:
        only("enqueued_ns < ?", filter.until_wall_ns)
        only("job.id < ?", _found(connection, below_id(filter.until_wall_ns, last)))


def _found(connection: Sql, search: Generator[int, Placed | None, int]) -> int:
    try:
        asked = next(search)
        while True:
            row = connection.execute(
                "SELECT id, enqueued_ns FROM job WHERE id >= ? ORDER BY id LIMIT 1", (asked,)
            ).fetchone()
            asked = search.send(Placed(*row) if row is not None else None)
    except StopIteration as end:
        return int(end.value)


def _few(connection: Sql, found: str) -> bool:
    (count,) = connection.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM ({found}) LIMIT {FEW})"
    ).fetchone()
    return bool(count < FEW)


def _queues(connection: Sql) -> list[QueueState]:
    counts: defaultdict[int, Counter[Status]] = defaultdict(Counter)
    for line, code, count in connection.execute(COUNTS).fetchall():
        counts[line >> QUEUE_SHIFT][STATUSES[code]] += count
    known = connection.execute(
        "SELECT id, name, paused, concurrency, rate_per_s, burst FROM queue WHERE name <> '*'"
        " ORDER BY name"
    ).fetchall()
    return [
        QueueState(
            name=name,
            paused=bool(paused),
            limits=stored_limits(name, concurrency, rate_per_s, burst),
            ready=counts[id][Status.READY],
            scheduled=counts[id][Status.SCHEDULED],
            waiting=counts[id][Status.WAITING],
            blocked=counts[id][Status.BLOCKED],
            running=counts[id][Status.RUNNING],
        )
        for id, name, paused, concurrency, rate_per_s, burst in known
    ]


def _attempts(connection: Sql, id: int) -> list[JobAttempt]:
    job = _find(connection, id)
    if job is None:
        return []
    rows = connection.execute(ATTEMPTS, (id,)).fetchall()
    kept = [
        JobAttempt(
            number=number,
            step=step,
            worker=worker,
            started_wall_ns=started_ns,
            ended_wall_ns=ended_ns,
            fate=AttemptFate(fate),
            error=error,
            log_bytes=log_bytes,
        )
        for number, step, worker, started_ns, ended_ns, fate, error, log_bytes in rows
    ]
    return attempts_of(job, kept)


def _why_waits(connection: Sql, id: int, now_ns: int) -> WaitReason | None:
    job = _find(connection, id)
    if job is None:
        return None
    ((children, strict),) = connection.execute(PENDING, (id,)).fetchall()
    key = job.partition_key
    around = WaitFacts(
        paused=_is_paused(connection, job.queue),
        queues=[_queue_facts(connection, name, now_ns) for name in (job.queue, "*")],
        holder=_holder(connection, id, key, bool(strict)) if key is not None else None,
        children=children,
        workers=_workers(connection, now_ns),
    )
    return why_waits(job, around)


def _is_paused(connection: Sql, queue: str) -> bool:
    paused = connection.execute("SELECT paused FROM queue WHERE name = ?", (queue,)).fetchall()
    return bool(paused and paused[0][0])


def _queue_facts(connection: Sql, name: str, now_ns: int) -> QueueFacts:
    rows = connection.execute(
        "SELECT id, concurrency, rate_per_s, burst, tokens, refilled_ns FROM queue WHERE name = ?",
        (name,),
    ).fetchall()
    if not rows:
        return QueueFacts(name, Limits(), 0, 0, 0)
    number, concurrency, rate, burst, tokens, refilled_ns = rows[0]
    limits = stored_limits(name, concurrency, rate, burst)
    running = running_jobs(connection, name, number) if concurrency is not None else 0
    return QueueFacts(name, limits, running, tokens, now_ns - refilled_ns)


def _holder(connection: Sql, id: int, key: str, strict: bool) -> int | None:
    """The job that keeps another from running under their key."""
    (holder,) = connection.execute(HOLDER, (key, id)).fetchone()
    if holder is None and strict:
        (holder,) = connection.execute(EARLIER, (key, id)).fetchone()
    return None if holder is None else int(holder)


def _workers(connection: Sql, now_ns: int) -> list[WorkerState]:
    return [
        WorkerState(
            id=id,
            name=name,
            alive=until_ns > now_ns,
            started_wall_ns=started_ns,
            beat_wall_ns=beat_ns,
            expires_wall_ns=until_ns,
            running=running,
            queues=queues_in(queues),
            kinds=kinds_in(kinds),
        )
        for id, name, until_ns, started_ns, beat_ns, queues, kinds, running in connection.execute(
            WORKERS
        ).fetchall()
    ]


def _kinds(connection: Sql, now_ns: int) -> list[KindState]:
    workers = _workers(connection, now_ns)
    rows = connection.execute(
        "SELECT name, version, schema, seen_ns FROM kind ORDER BY name, version"
    ).fetchall()
    return [
        kind_state(name, version, schema, seen_ns, workers)
        for name, version, schema, seen_ns in rows
    ]


def _job(values: tuple[Any, ...]) -> Job:
    row = JobRow._make(values)
    status = STATUSES[row.status]
    runs, done = status is Status.RUNNING, status is Status.DONE
    return Job(
        id=row.id,
        kind=row.kind,
        version=row.version,
        status=status,
        queue=row.queue,
        tenant=row.tenant,
        priority=row.priority,
        step=row.step,
        state=row.state,
        attempt=row.attempt,
        crashes=row.crashes,
        max_attempts=row.max_attempts,
        partition_key=row.partition_key,
        unique_key=row.unique_key,
        parent=row.parent,
        trace=row.trace,
        enqueued_wall_ns=row.enqueued_ns,
        due_wall_ns=row.due_ns,
        finished_wall_ns=row.since_ns if status.ended else None,
        worker=row.worker,
        cancelling=bool(row.cancelling),
        retries=row.retries,
        runs=row.runs,
        ran_by=row.worker if runs else row.ran_by if done else None,
        started_wall_ns=row.claimed_ns if runs else row.started_ns if done else None,
        waits_for=signals_awaited(names_in(row.names)) if status is Status.WAITING else (),
        progress=row.progress,
        result=row.result,
        error=row.error,
    )

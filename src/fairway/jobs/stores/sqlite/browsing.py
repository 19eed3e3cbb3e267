"""Looking at jobs: by id, by key, page by page, queue by queue. Never waits for a commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairway.errors import Closing
from fairway.jobs.job import Job, QueueState, Status
from fairway.jobs.limits import stored_limits
from fairway.jobs.moves import signals_awaited
from fairway.jobs.store import Cursor
from fairway.jobs.stores.sqlite.connections import answering, connect
from fairway.jobs.stores.sqlite.schema import (
    CODES,
    IS_READY,
    PARKED,
    QUEUE_SHIFT,
    READY,
    RUNNING,
    STATUSES,
    TENANT_OF_LANE,
    UNHAPPY,
)
from fairway.jobs.stores.sqlite.transaction import KEYED, names_in
from fairway.runtime.blocking import BlockingPool

if TYPE_CHECKING:
    from collections.abc import Callable

    import apsw

    from fairway.jobs.job import Filter
    from fairway.jobs.stores.sqlite.schema import Sql
    from fairway.runtime.clock import Clock

T = TypeVar("T")


class Row(NamedTuple):
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


COLUMNS = {
    "id": "job.id",
    "queue": "queue.name",
    "tenant": "tenant.name",
    "worker": "(SELECT worker FROM lease WHERE job = job.id)",
}
SELECT_JOB = f"""
SELECT {", ".join(COLUMNS.get(name, name) for name in Row._fields)}
FROM job JOIN queue ON queue.id = lane >> {QUEUE_SHIFT}
JOIN tenant ON tenant.id = {TENANT_OF_LANE}
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

    async def queues(self) -> list[QueueState]:
        return await self._read(_queues)

    async def cursor(self, name: str) -> Cursor | None:
        def read(connection: Sql) -> Cursor | None:
            found = connection.execute(
                "SELECT name, epoch, seq FROM topic_cursor WHERE name = ?", (name,)
            ).fetchone()
            return Cursor(*found) if found is not None else None

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


def _few(connection: Sql, found: str) -> bool:
    (count,) = connection.execute(
        f"SELECT count(*) FROM (SELECT 1 FROM ({found}) LIMIT {FEW})"
    ).fetchone()
    return bool(count < FEW)


def _queues(connection: Sql) -> list[QueueState]:
    counts: defaultdict[int, Counter[Status]] = defaultdict(Counter)
    for lane, code, count in connection.execute(COUNTS).fetchall():
        counts[lane >> QUEUE_SHIFT][STATUSES[code]] += count
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


def _job(values: tuple[Any, ...]) -> Job:
    row = Row._make(values)
    status = STATUSES[row.status]
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
        waits_for=signals_awaited(names_in(row.names)) if status is Status.WAITING else (),
        progress=row.progress,
        result=row.result,
        error=row.error,
    )

"""A `JobStore` in one SQLite file, which several processes of a machine may share.

Writes go through one thread and share commits (`writer`); what they do is in the modules
beside this one, a noun each. Whatever somebody else was promised is synced before the call returns:
jobs that were added, settled, signalled, cancelled or retried, and settings. Claims, leases and
timers are not: after a power cut they come back older, and are made again.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fairway.errors import Closing, InvalidConfig
from fairway.jobs.job import NO_TENANT, Status, distinct
from fairway.jobs.moves import Facts, cancelled, may_be_retried, names_again, reason_to_end, retried
from fairway.jobs.store import NO_OFFER, CancelResult, Delivered, Exchanged, retry_order
from fairway.jobs.stores.sqlite import claiming, upkeep
from fairway.jobs.stores.sqlite.browsing import SqliteReader
from fairway.jobs.stores.sqlite.calls import (
    SETTING,
    UPKEEP,
    WORKER,
    Caller,
    size_of_jobs,
    size_of_settlements,
    who_enqueues,
)
from fairway.jobs.stores.sqlite.connections import answering, inspect
from fairway.jobs.stores.sqlite.heartbeat import SqliteLeaseRenewer
from fairway.jobs.stores.sqlite.intake import intake_of
from fairway.jobs.stores.sqlite.schema import (
    CANCELLED,
    DEAD,
    DONE,
    FAILED,
    STATUSES,
    UNFINISHED,
    WAITING,
)
from fairway.jobs.stores.sqlite.settling import SqliteSettling
from fairway.jobs.stores.sqlite.timetable import SqliteTimetable
from fairway.jobs.stores.sqlite.transaction import REASON, names_column, names_in, numbers
from fairway.jobs.stores.sqlite.within import OPENED, add_within
from fairway.jobs.stores.sqlite.writer import SqliteWriter
from fairway.runtime.blocking import BlockingPool
from fairway.runtime.clock import Clock, clock_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from fairway.jobs.attempts import JobAttempt
    from fairway.jobs.job import (
        Claim,
        Enqueued,
        Filter,
        Job,
        Limits,
        NewJob,
        QueueState,
        Reaped,
        Settlement,
    )
    from fairway.jobs.moves import WaitReason
    from fairway.jobs.presence import KindState, Offer, WorkerState
    from fairway.jobs.store import Promoted, TopicCursor, Want
    from fairway.jobs.stores.sqlite.transaction import Transaction

FAMILY = f"""
WITH RECURSIVE family(id) AS (
    SELECT value FROM carray(?1)
    UNION SELECT job.id FROM job JOIN family ON job.parent = family.id
)
SELECT id, status, {REASON} FROM job WHERE id IN family AND {UNFINISHED} ORDER BY id
"""


class RetriedRow(NamedTuple):
    """What decides about a retry."""

    status: int
    unique_key: str | None
    window_ns: int
    waited_until_ns: int | None
    names: str | None
    parent_lives: int
    reporters_live: int


RETRIED = f"""
SELECT {", ".join(RetriedRow._fields[:-2])}, {upkeep.PARENT_LIVES}, {upkeep.REPORTERS_LIVE}
FROM job WHERE id = ?
"""


class SqliteStore:
    """Jobs in the SQLite file at `path`, made if it is not there.

    A call that has to wait more than five seconds for another process is refused with
    `Unavailable`. The processes that share the file must be on one machine, and so have one clock.
    """

    def __init__(self, path: str | Path, *, clock: Clock | None = None) -> None:
        if not str(path) or str(path).startswith((":", "file:")):
            raise InvalidConfig(f"jobs live in a file of their own, and {path!s} names none")
        self._place = os.path.realpath(path)
        self._clock = clock
        self._writer: SqliteWriter | None = None
        self._reader: SqliteReader | None = None

    async def inspect(self) -> None:
        """See `Inspected`."""
        OPENED[self._place] += 1
        try:
            async with BlockingPool(1, name="fairway-jobs-inspect", clock=self._now()) as pool:
                await pool.run(self._inspect)
        finally:
            OPENED[self._place] -= 1

    def _inspect(self) -> None:
        with answering(self._place):
            inspect(self._place)

    async def open(self) -> None:
        clock = self._now()
        writer, reader = SqliteWriter(self._place, clock), SqliteReader(self._place, clock)
        OPENED[self._place] += 1
        try:
            await writer.open()
            await reader.open()
        except BaseException:
            await self._close(writer, reader)
            raise
        self._writer, self._reader = writer, reader

    @property
    def timetable(self) -> SqliteTimetable:
        return SqliteTimetable(self._write, self._read)

    async def aclose(self) -> None:
        writer, reader = self._writer, self._reader
        self._writer = self._reader = None
        if writer is not None and reader is not None:
            await self._close(writer, reader)

    async def _close(self, writer: SqliteWriter, reader: SqliteReader) -> None:
        try:
            await reader.aclose()  # before the writer: the last connection tidies the files up
        finally:
            await writer.aclose()
            OPENED[self._place] -= 1

    def _now(self) -> Clock:
        return self._clock or clock_of(asyncio.get_running_loop())

    @property
    def _write(self) -> SqliteWriter:
        if self._writer is None:
            raise Closing(f"{self._place} is not open")
        return self._writer

    @property
    def _read(self) -> SqliteReader:
        if self._reader is None:
            raise Closing(f"{self._place} is not open")
        return self._reader

    # Enqueueing

    async def enqueue(
        self, jobs: Sequence[NewJob], *, within: Any = None, cursor: TopicCursor | None = None
    ) -> list[Enqueued]:
        """See `JobStore`. `within` runs in the caller's thread, that of the event loop."""
        if within is not None:
            return add_within(within, self._place, self._now().wall_ns(), jobs, cursor)
        if not jobs and cursor is None:
            return []
        size = size_of_jobs(jobs)
        caller = who_enqueues(distinct(jobs)[0].tenant if jobs else NO_TENANT, size)
        if cursor is None:
            return await self._write.enqueue(jobs, caller, size)
        add = partial(_enqueue_behind, jobs, cursor)
        return await self._write.run(add, caller, durable=True, size=size)

    async def cursor(self, name: str) -> TopicCursor | None:
        return await self._read.cursor(name)

    # Workers

    async def register(self, name: str, ttl_ns: int, offer: Offer = NO_OFFER) -> int:
        return await self._write.run(
            partial(upkeep.register, name=name, ttl_ns=ttl_ns, offer=offer),
            Caller(WORKER),
            durable=False,
        )

    async def unregister(self, worker: int) -> None:
        await self._write.run(
            partial(upkeep.dismiss, worker=worker), Caller(WORKER, worker), durable=False
        )

    async def count_lost(self, worker: int, claims: Sequence[Claim]) -> None:
        count = partial(upkeep.count_lost, worker=worker, claims=claims)
        await self._write.run(count, Caller(WORKER, worker), durable=True)

    def lease_renewer(self) -> SqliteLeaseRenewer:
        return SqliteLeaseRenewer(self._place, self._now())

    async def exchange(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Collection[str] = (),
    ) -> Exchanged:
        exchange = partial(_exchange, worker, token, settlements, wants, probe)
        size = size_of_settlements(settlements) if settlements else 0
        caller = Caller(WORKER, worker)
        return await self._write.run(exchange, caller, durable=bool(settlements), size=size)

    async def progress(self, worker: int, values: Mapping[int, bytes]) -> None:
        def progress(transaction: Transaction) -> None:
            transaction.connection.executemany(
                "UPDATE job SET progress = ? WHERE id = (SELECT job FROM lease WHERE job = ?"
                " AND worker = ?)",
                [(value, id, worker) for id, value in values.items()],
            )

        size = sum(map(len, values.values()))
        await self._write.run(progress, Caller(WORKER, worker), durable=False, size=size)

    # Maintenance

    async def promote(self, limit: int) -> Promoted:
        return await self._write.run(
            partial(upkeep.promote, limit=limit), Caller(UPKEEP, "promote"), durable=False
        )

    async def reap(self, limit: int) -> Reaped:
        return await self._write.run(
            partial(upkeep.reap, limit=limit), Caller(UPKEEP, "reap"), durable=False
        )

    async def age(self, limit: int) -> int:
        return await self._write.run(
            partial(upkeep.age, limit=limit), Caller(UPKEEP, "age"), durable=False
        )

    async def prune(
        self,
        older_than_ns: int,
        *,
        failed_older_than_ns: int | None = None,
        dedup_older_than_ns: int | None = None,
        exact: bool = True,
    ) -> int:
        """See `JobStore`. In several transactions, so that others get their turn between them."""
        now_ns = self._now().wall_ns()
        failed_ns = older_than_ns if failed_older_than_ns is None else failed_older_than_ns
        horizons_ns = {
            FAILED: now_ns - failed_ns,
            DEAD: now_ns - failed_ns,
            CANCELLED: now_ns - older_than_ns,
            DONE: now_ns - older_than_ns,
        }
        gone = await self._prune(horizons_ns)
        if exact:
            # What a parent might have read goes after it.
            while some := await self._prune(horizons_ns):
                gone += some
        if dedup_older_than_ns is not None:
            horizon_ns = now_ns - dedup_older_than_ns
            forget = partial(upkeep.forget_signal_keys, horizon_ns=horizon_ns)
            while await self._write.run(forget, Caller(UPKEEP, "prune"), durable=False):
                pass
        return gone

    async def _prune(self, horizons_ns: Mapping[int, int]) -> int:
        """Go once through the jobs that ended so by then, and forget what no parent may read."""
        gone = 0
        for code, horizon_ns in horizons_ns.items():
            place: upkeep.PrunePlace | None = upkeep.PrunePlace()
            while place is not None:
                prune = partial(upkeep.prune, code=code, horizon_ns=horizon_ns, place=place)
                caller = Caller(UPKEEP, "prune")
                count, place = await self._write.run(prune, caller, durable=False)
                gone += count
        return gone

    # From outside

    async def signal(
        self, target: int | str, name: str, payload: bytes, *, dedup: str | None = None
    ) -> Delivered:
        def signal(transaction: Transaction) -> Delivered:
            id = transaction.keyed(target) if isinstance(target, str) else target
            if id is None:
                return Delivered(None, False, None)
            return transaction.deliver(id, name, payload, dedup)

        return await self._write.command(signal, target, durable=True, size=len(payload))

    async def cancel(self, jobs: Sequence[int], *, reason: str = "cancelled") -> CancelResult:
        if not jobs:
            return CancelResult((), ())
        return await self._write.command(partial(_cancel, jobs, reason), jobs[0], durable=True)

    async def retry(self, jobs: Sequence[int], *, anew: bool = False) -> list[int]:
        if not jobs:
            return []
        return await self._write.command(partial(_retry, jobs, anew), jobs[0], durable=True)

    async def discard(self, jobs: Sequence[int]) -> list[int]:
        if not jobs:
            return []

        def discard(transaction: Transaction) -> list[int]:
            gone = upkeep.discard(transaction, jobs)
            return [id for id in dict.fromkeys(jobs) if id in gone]

        return await self._write.command(discard, jobs[0], durable=True)

    async def set_paused(self, queue: str, paused: bool) -> None:
        def set_paused(transaction: Transaction) -> None:
            transaction.connection.execute(
                "UPDATE queue SET paused = ? WHERE id = ?", (paused, transaction.names.queue(queue))
            )

        await self._write.run(set_paused, Caller(SETTING, queue), durable=True)

    async def set_limits(self, queue: str, limits: Limits) -> None:
        def set_limits(transaction: Transaction) -> None:
            transaction.connection.execute(
                "UPDATE queue SET concurrency = ?, rate_per_s = ?, burst = ?, tokens = ?,"
                " refilled_ns = ? WHERE id = ?",
                (
                    limits.concurrency,
                    limits.rate_per_s,
                    limits.burst,
                    float(limits.burst),
                    transaction.now_ns,
                    transaction.names.queue(queue),
                ),
            )

        await self._write.run(set_limits, Caller(SETTING, queue), durable=True)

    # Looking

    async def find(self, id: int) -> Job | None:
        return await self._read.find(id)

    async def find_by_key(self, unique_key: str) -> Job | None:
        return await self._read.find_by_key(unique_key)

    async def browse(self, filter: Filter) -> list[Job]:
        return await self._read.browse(filter)

    async def attempts(self, id: int) -> list[JobAttempt]:
        return await self._read.attempts(id)

    async def attempt_log(self, id: int, number: int) -> bytes | None:
        return await self._read.attempt_log(id, number)

    async def why_waits(self, id: int) -> WaitReason | None:
        return await self._read.why_waits(id)

    async def workers(self) -> list[WorkerState]:
        return await self._read.workers()

    async def kinds(self) -> list[KindState]:
        return await self._read.kinds()

    async def queues(self) -> list[QueueState]:
        return await self._read.queues()


def _enqueue_behind(
    jobs: Sequence[NewJob], cursor: TopicCursor, transaction: Transaction
) -> list[Enqueued]:
    intake = intake_of(transaction)
    return intake.add(jobs) if intake.advance(cursor) else []


def _exchange(
    worker: int,
    token: int,
    settlements: Sequence[Settlement],
    wants: Sequence[Want],
    probe: Collection[str],
    transaction: Transaction,
) -> Exchanged:
    settling = SqliteSettling(transaction)
    claims = claiming.SqliteClaiming(transaction, worker, token)
    held_back: dict[str, int] = {}
    if transaction.alive(worker):
        settling.settle(worker, settlements)
        held_back = claims.claim(wants)
    else:
        settling.stale.extend(settlement.claim.id for settlement in settlements)
    return Exchanged(
        claims=claims.claims,
        contended=claims.contended,
        stale=settling.stale,
        lines=claiming.probe(transaction, probe),
        woken=transaction.woken(),
        held_back_ns=held_back,
        ended=settling.ended,
        cancelling=claiming.cancelling(transaction, worker) if probe else {},
    )


def _cancel(jobs: Sequence[int], reason: str, transaction: Transaction) -> CancelResult:
    ended: dict[int, str] = {}
    running: dict[int, str] = {}
    for id, code, before in transaction.connection.execute(FAMILY, (numbers(jobs),)).fetchall():
        # One that was cancelled while it ran, and came back to its ready line, has its reason.
        job = Facts(STATUSES[code], reason=before)
        (running if cancelled(job) is None else ended)[id] = reason_to_end(job, reason)
    transaction.connection.executemany(
        "UPDATE job SET cancelling = 1, error = ? WHERE id = ?",
        [(why, id) for id, why in running.items()],
    )
    for id, why in ended.items():  # parents first: none wakes, or hears, for its children
        transaction.end(id, Status.CANCELLED, None, why)
    return CancelResult(tuple(ended), tuple(running))


def _retry(jobs: Sequence[int], anew: bool, transaction: Transaction) -> list[int]:
    execute = transaction.connection.execute
    again = set()
    asked = execute(
        "SELECT id, parent, notify FROM job WHERE id IN carray(?)", (numbers(jobs),)
    ).fetchall()
    parents = {id: parent for id, parent, _ in asked}
    reporting = {id for id, _, notify in asked if notify is not None}
    for id in retry_order(jobs, parents, reporting):
        found = execute(RETRIED, (id,)).fetchone()
        if found is None:
            continue
        row = RetriedRow._make(found)
        job = Facts(
            STATUSES[row.status], names=names_in(row.names), waited_until_ns=row.waited_until_ns
        )
        if not may_be_retried(
            job, parent_lives=bool(row.parent_lives), reporters_live=bool(row.reporters_live)
        ):
            continue
        if row.unique_key is not None:
            if transaction.keyed(row.unique_key) not in (None, id):
                continue  # another job stands for the key now
            execute(
                "INSERT OR REPLACE INTO unique_key (key, job, until_ns) VALUES (?, ?, ?)",
                (row.unique_key, id, transaction.now_ns + row.window_ns),
            )
        names = names_again(job)
        execute(
            "UPDATE job SET attempt = 0, crashes = 0, retries = retries + 1,"
            " error = NULL, result = NULL, waited_until_ns = NULL, names = ? WHERE id = ?",
            (names_column(names), id),
        )
        if anew:
            execute("UPDATE job SET timed_out = 0, names = NULL WHERE id = ?", (id,))
            execute("DELETE FROM signal WHERE job = ?", (id,))
            # What went with its inbox may be sent again; what it has dealt with may not.
            execute("DELETE FROM signal_key WHERE job = ? AND consumed_ns IS NULL", (id,))
        again.add(id)
        waits = not anew and transaction.still_waits(id, names)
        if retried(anew=anew, waits=waits).to is Status.WAITING:
            execute(
                f"UPDATE job SET status = {WAITING}, due_ns = ? WHERE id = ?",
                (row.waited_until_ns or None, id),
            )
        else:
            transaction.make_ready(id)
    return [id for id in dict.fromkeys(jobs) if id in again]

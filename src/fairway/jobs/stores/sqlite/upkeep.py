"""What nobody asks for but time: timers, workers that died, waiting too long, forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fairway.core.priority import Band
from fairway.jobs.attempts import CLAIM_LOST, WORKER_DIED, AttemptFate
from fairway.jobs.job import DeadJob, Reaped, Status
from fairway.jobs.moves import TRIES, TRIES_MAX, Facts, death_error, may_be_discarded, worker_died
from fairway.jobs.presence import kinds_column, queues_column, schemas_of
from fairway.jobs.store import Promoted
from fairway.jobs.stores.sqlite.claiming import ready_lines
from fairway.jobs.stores.sqlite.schema import (
    AGED_BAND,
    BAND_MASK,
    CANCELLED,
    DEAD,
    DONE,
    FAILED,
    IS_DONE,
    IS_READY,
    QUEUE_SHIFT,
    STATUSES,
    UNFINISHED,
    UNHAPPY,
    WAITING,
)
from fairway.jobs.stores.sqlite.transaction import (
    BECOME_READY,
    FORGET_ATTEMPTS,
    REASON,
    numbers,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fairway.jobs.job import Claim, ReadyLine
    from fairway.jobs.presence import Offer
    from fairway.jobs.stores.sqlite.transaction import Transaction

PRUNE_CHUNK = 1_000
BEYOND_ALL_LINES = (1 << 63) - 1

PROMOTE = f"""
UPDATE job SET timed_out = timed_out OR status = {WAITING}, {BECOME_READY} WHERE id IN carray(?)
"""
TRIED = (*TRIES, *TRIES_MAX)
LEASED = f"""
SELECT id, kind, partition_key, {REASON}, {", ".join(TRIED)}
FROM lease JOIN job ON id = job WHERE worker = ? ORDER BY job LIMIT ?
"""
LOST = """
INSERT OR REPLACE INTO attempt
    (job, number, step, worker, started_ns, ended_ns, fate, error)
SELECT job.id, runs, step, worker, claimed_ns, ?1, ?2, ?3
FROM job JOIN lease ON lease.job = job.id WHERE job.id IN carray(?4)
"""
COUNT_LOST = f"""
UPDATE job SET crashes = crashes + 1, runs = runs + 1 WHERE id = ? AND {UNFINISHED}
AND step = ? AND attempt = ? AND crashes = ? AND NOT EXISTS (
    SELECT 1 FROM lease WHERE job = id AND worker = ? AND token = ?
) RETURNING runs
"""
FORGET = """
DELETE FROM worker WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM lease WHERE worker = ?1)
"""
AGE = f"""
UPDATE job SET lane = (lane & ~{BAND_MASK}) | {AGED_BAND}
WHERE id IN (
    SELECT id FROM job WHERE {IS_READY} AND lane = ?2
    ORDER BY id LIMIT ?3
) AND {AGED_BAND} > (lane & {BAND_MASK})
"""
PARENT_LIVES = f"""EXISTS (
    SELECT 1 FROM job AS parent WHERE parent.id = job.parent AND parent.{UNFINISHED}
)"""
PARENT_MAY_READ = f"""EXISTS (
    SELECT 1 FROM job AS parent WHERE parent.id = job.parent AND parent.status <> {DONE}
)"""
"""Whether the parent is there and not done: it lives, or may be retried."""
REPORTERS_LIVE = f"""EXISTS (
    SELECT 1 FROM job AS child WHERE child.parent = job.id AND child.notify IS NOT NULL
    AND child.{UNFINISHED}
)"""
PRUNABLE = """
SELECT id, since_ns, {parent_may_read} FROM job
WHERE {status} AND since_ns BETWEEN ?1 AND ?3 AND (since_ns > ?1 OR id > ?2)
ORDER BY since_ns, id LIMIT ?4
"""
PRUNABLE_OF: Final = {
    code: PRUNABLE.format(
        parent_may_read=PARENT_MAY_READ,
        status=IS_DONE if code == DONE else f"{UNHAPPY} AND status = {code}",
    )
    for code in (DONE, CANCELLED, FAILED, DEAD)
}
"""Those that ended in one way, in the order of their ending, by an index."""
ORPHAN = """
UPDATE unique_key SET orphaned = 1 FROM job
WHERE job.id IN carray(?) AND unique_key.key = job.unique_key AND unique_key.job = job.id
"""
FORGET_SIGNAL_KEYS = """
DELETE FROM signal_key WHERE (job, key) IN (
    SELECT job, key FROM signal_key WHERE consumed_ns IS NOT NULL AND consumed_ns <= ? LIMIT ?
)
"""


class PrunePlace(NamedTuple):
    """How far pruning has come, in the order of ending."""

    ended_ns: int = 0
    id: int = 0


def promote(transaction: Transaction, limit: int) -> Promoted:
    connection = transaction.connection
    due = connection.execute(
        "SELECT id FROM job WHERE due_ns <= ? ORDER BY due_ns, id LIMIT ?",
        (transaction.now_ns, limit),
    ).fetchall()
    lines: frozenset[ReadyLine] = frozenset()
    if due:
        ids = [id for (id,) in due]
        connection.execute(PROMOTE, (transaction.now_ns, numbers(ids)))
        lines = frozenset(transaction.ready_lines(ids))
    (next_ns,) = connection.execute(
        "SELECT min(due_ns) FROM job WHERE due_ns IS NOT NULL"
    ).fetchone()
    wait_ns = None if next_ns is None else max(0, next_ns - transaction.now_ns)
    return Promoted(len(due), lines, wait_ns)


def reap(transaction: Transaction, limit: int) -> Reaped:
    connection = transaction.connection
    lost = connection.execute(
        "SELECT id FROM worker WHERE until_ns <= ? ORDER BY id", (transaction.now_ns,)
    ).fetchall()
    returned: list[int] = []
    died: list[DeadJob] = []
    for (worker,) in lost:
        rows = connection.execute(LEASED, (worker, limit)).fetchall()
        limit -= len(rows)
        if rows:
            ids = [id for id, *_ in rows]
            keep_lost(transaction, ids)
            transaction.let_go(ids)
        for id, kind, key, reason, *tried in rows:
            before = Facts(Status.RUNNING, reason=reason, **dict(zip(TRIED, tried, strict=True)))
            crashes = before.crashes + 1
            connection.execute("UPDATE job SET crashes = ? WHERE id = ?", (crashes, id))
            move = worker_died(before._replace(crashes=crashes))
            if move.to is Status.CANCELLED:
                transaction.end(id, move.to, None, reason)
            elif move.ends:
                error = death_error(crashes)
                died.append(DeadJob(id, kind, before.attempt + crashes, error))
                transaction.end(id, move.to, None, error)
            else:
                returned.append(id)
                transaction.give_back(id, key)
        connection.execute(FORGET, (worker,))
    lines = frozenset(transaction.ready_lines(returned)) if returned else frozenset()
    return Reaped(len(lost), len(returned), len(died), lines, tuple(sorted(died)))


def register(transaction: Transaction, name: str, ttl_ns: int, offer: Offer) -> int:
    connection, now_ns = transaction.connection, transaction.now_ns
    connection.execute(
        "INSERT INTO worker (name, until_ns, started_ns, beat_ns, queues, kinds)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (name, now_ns + ttl_ns, now_ns, now_ns, queues_column(offer), kinds_column(offer)),
    )
    worker = connection.last_insert_rowid()
    connection.executemany(
        "INSERT OR REPLACE INTO kind (name, version, schema, seen_ns) VALUES (?, ?, ?, ?)",
        [(*one, now_ns) for one in schemas_of(offer)],
    )
    return worker


def keep_lost(transaction: Transaction, jobs: Collection[int]) -> None:
    """The worker of these died: an attempt of each has ended. They still have their leases."""
    execute = transaction.connection.execute
    execute("UPDATE job SET runs = runs + 1 WHERE id IN carray(?)", (numbers(jobs),))
    execute(LOST, (transaction.now_ns, AttemptFate.LOST.value, WORKER_DIED, numbers(jobs)))
    transaction.connection.executemany(FORGET_ATTEMPTS, [(job,) for job in jobs])


def count_lost(transaction: Transaction, worker: int, claims: Sequence[Claim]) -> None:
    """See `JobStore`."""
    now_ns, fate = transaction.now_ns, AttemptFate.LOST.value
    for one in claims:
        found = transaction.connection.execute(
            COUNT_LOST, (one.id, one.step, one.attempt, one.crashes, worker, one.token)
        ).fetchall()
        for (number,) in found:
            transaction.connection.execute(
                "INSERT OR REPLACE INTO attempt"
                " (job, number, step, worker, started_ns, ended_ns, fate, error)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (one.id, number, one.step, worker, now_ns, now_ns, fate, CLAIM_LOST),
            )
            transaction.connection.execute(FORGET_ATTEMPTS, (one.id,))


def dismiss(transaction: Transaction, worker: int) -> None:
    """A worker ends; what it still holds is the reaper's at once."""
    transaction.connection.execute(FORGET, (worker,))
    transaction.connection.execute(
        "UPDATE worker SET until_ns = min(until_ns, ?) WHERE id = ?", (transaction.now_ns, worker)
    )


def age(transaction: Transaction, limit: int) -> int:
    paused = {
        id for (id,) in transaction.connection.execute("SELECT id FROM queue WHERE paused = 1")
    }
    moved = 0
    # From the highest ready line down: nothing that moves up is looked at twice.
    for line in reversed(ready_lines(transaction, 0, BEYOND_ALL_LINES)):
        if line >> QUEUE_SHIFT not in paused and line & BAND_MASK != Band.B4:
            transaction.connection.execute(AGE, (transaction.now_ns, line, limit))
            moved += transaction.connection.changes()
    return moved


def forget_signal_keys(transaction: Transaction, horizon_ns: int) -> bool:
    """Forget one chunk of dedup keys whose signals were dealt with by then; whether more are."""
    transaction.connection.execute(FORGET_SIGNAL_KEYS, (horizon_ns, PRUNE_CHUNK))
    return transaction.connection.changes() == PRUNE_CHUNK


def discard(transaction: Transaction, jobs: Collection[int]) -> set[int]:
    """Forget those of these jobs that may be forgotten by hand."""
    found = transaction.connection.execute(
        f"SELECT id, status, {PARENT_LIVES} FROM job WHERE id IN carray(?)", (numbers(jobs),)
    ).fetchall()
    gone = {
        id
        for id, code, parent_lives in found
        if may_be_discarded(Facts(STATUSES[code]), parent_lives=bool(parent_lives))
    }
    if gone:
        forget(transaction, gone)
    return gone


def forget(transaction: Transaction, jobs: Collection[int]) -> None:
    """Jobs that ended go, with all that stands beside them.

    Their unique keys may have a window that is still open: `prune` removes them after it.
    """
    execute, ids = transaction.connection.execute, numbers(jobs)
    execute(ORPHAN, (ids,))
    for table in ("signal", "signal_key", "attempt"):
        execute(f"DELETE FROM {table} WHERE job IN carray(?)", (ids,))
    execute("DELETE FROM job WHERE id IN carray(?)", (ids,))


def prune(
    transaction: Transaction, code: int, horizon_ns: int, place: PrunePlace
) -> tuple[int, PrunePlace | None]:
    """Forget one chunk of jobs that ended so by `horizon_ns`: how many, and where to go on."""
    connection = transaction.connection
    rows = connection.execute(PRUNABLE_OF[code], (*place, horizon_ns, PRUNE_CHUNK)).fetchall()
    gone = [id for id, _, may_be_read in rows if not may_be_read]
    if gone:
        forget(transaction, gone)
    connection.execute(
        "DELETE FROM unique_key WHERE orphaned = 1 AND until_ns <= ?", (transaction.now_ns,)
    )
    if len(rows) < PRUNE_CHUNK:
        return len(gone), None
    id, ended_ns, _ = rows[-1]
    return len(gone), PrunePlace(ended_ns, id)

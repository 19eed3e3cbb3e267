"""Settling: which claims still stand, and what becomes of the jobs.

Most jobs have nobody beside them but a parent that counts them: no children, no signals. Those are
gathered, and all that go the same way go in one statement. Whatever touches another job is settled
by itself, after those before it, so that the outcome is that of one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import json

from fairway.core.priority import Band
from fairway.jobs.attempts import attempt_fate, is_kept, kept_error, kept_log
from fairway.jobs.job import ASIDE_MAX, ReadyLine, Status, line_of
from fairway.jobs.moves import LIKE, is_just_done, like, settled
from fairway.jobs.store import Ended
from fairway.jobs.stores.sqlite.intake import intake_of
from fairway.jobs.stores.sqlite.schema import BAND_MASK, CODES, DONE, IS_READY, SCHEDULED
from fairway.jobs.stores.sqlite.transaction import (
    BECOME_READY,
    FORGET_ATTEMPTS,
    WHY,
    names_column,
    numbers,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fairway.jobs.job import Claim, Settlement
    from fairway.jobs.moves import Move
    from fairway.jobs.stores.sqlite.transaction import Transaction

REPORTS, CANCELLING, KEYED = 1, 2, 4

# One value for all of them: each row by itself would cost the interpreter's lock twice.
STANDING = f"""
SELECT json_group_array(json_array(
    id, token, parent,
    {REPORTS} * (notify IS NOT NULL) + {CANCELLING} * cancelling
    + {KEYED} * (partition_key IS NOT NULL)
)) FROM lease JOIN job ON id = job WHERE job IN carray(?) AND worker = ?
"""

# What a run leaves behind. It is in no index, so to write it for one job at a time is cheap. To
# change a status is not: that is done for many at once.
LEFT = "state = coalesce(?, state), progress = coalesce(?, progress), result = ?, error = ?"
LEAVE = f"UPDATE job SET {LEFT} WHERE id = ?"
# Who ran it last, and since when: a job that is done has no other note of that run.
RAN_BY = """
    (ran_by, started_ns) = (SELECT worker, claimed_ns FROM lease WHERE lease.job = job.id)
"""
MANY_END = f"""
UPDATE job SET {LEFT}, status = ?5, since_ns = ?6, due_ns = NULL, cancelling = 0,
    names = iif(?5 = {DONE}, NULL, names), runs = runs + ?7, {RAN_BY}
WHERE id IN carray(?8)
"""
MANY_DONE = f"""
UPDATE job SET result = ?, error = NULL, status = {DONE}, since_ns = ?, due_ns = NULL,
    cancelling = 0, names = NULL, runs = runs + 1, ran_by = ?, started_ns = ?
WHERE id IN carray(?)
"""
CLAIMED_AT = "SELECT token, claimed_ns FROM lease WHERE job IN carray(?)"
UNSIGNAL = "DELETE FROM signal WHERE job IN carray(?)"
LEAVE_ALONE = f"UPDATE job SET {LEFT}, runs = runs + ?, {RAN_BY} WHERE id = ?"
KEEP_ATTEMPT = """
INSERT OR REPLACE INTO attempt
    (job, number, step, worker, started_ns, ended_ns, fate, error, log)
SELECT job.id, runs, ?2, worker, claimed_ns, ?3, ?4, ?5, ?6
FROM job JOIN lease ON lease.job = job.id WHERE job.id = ?1
"""
MANY_RELEASE = f"UPDATE job SET {LEFT}, {BECOME_READY} WHERE id IN carray(?)"
MANY_ASIDE = f"""
UPDATE job SET {LEFT}, {IS_READY}, due_ns = NULL, since_ns = ?, lane = ? WHERE id IN carray(?)
"""
# Others like it, of those that stand at the head of a line: to another number for its tenant.
IS_LIKE = " AND ".join(f"{name} = ?{at}" for at, name in enumerate(LIKE, 2))
SET_ASIDE = f"""
UPDATE job SET lane = ?5 | (lane & {BAND_MASK}), error = ?6
WHERE id IN (SELECT id FROM job WHERE {IS_READY} AND lane = ?1 ORDER BY id LIMIT {ASIDE_MAX})
    AND {IS_LIKE}
"""
MANY_NEXT = f"""
UPDATE job SET {LEFT}, step = ?, timed_out = 0, attempt = 0, names = NULL, runs = runs + 1,
    {BECOME_READY}
WHERE id IN carray(?)
"""
MANY_AGAIN = f"""
UPDATE job SET {LEFT}, step = ?, attempt = attempt + ?, runs = runs + ?, {BECOME_READY}
WHERE id IN carray(?)
"""
# Each has a time of its own, which is in an index: the times come along as JSON.
MANY_LATER = f"""
UPDATE job SET {LEFT}, step = ?, attempt = attempt + ?, runs = runs + ?, status = {SCHEDULED},
    due_ns = one.value ->> 1
FROM json_each(?) AS one WHERE job.id = one.value ->> 0
"""
CONSUME_KEYS = """
UPDATE signal_key SET consumed_ns = ?1 WHERE job = ?3 AND key IN (
    SELECT dedup FROM signal WHERE id IN carray(?2) AND job = ?3 AND dedup IS NOT NULL
)
"""


class Left(NamedTuple):
    """What a run leaves behind; None of the first two leaves what was there."""

    state: bytes | None = None
    progress: bytes | None = None
    result: bytes | None = None
    error: str | None = None


NOTHING = Left()


class StandingClaim(NamedTuple):
    """What a claim that stands is of."""

    id: int
    token: int
    parent: int | None
    shape: int


class SqliteSettling:
    """The settlements of one exchange."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.stale: list[int] = []
        self.ended: list[Ended] = []
        self._groups: dict[tuple[object, ...], dict[int, Left]] = {}  # by statement and values
        self._due: dict[int, int] = {}
        self._done: list[int] = []
        self._keyed: list[int] = []
        self._parents: set[int] = set()  # of those that end
        self._aside: dict[object, Settlement] = {}  # what nobody here knows, one of each
        self._attempts: list[tuple[object, ...]] = []  # those to keep

    def settle(self, worker: int, settlements: Sequence[Settlement]) -> None:
        """Settle the claims of a worker whose lease stands."""
        if not settlements:
            return
        standing = self._standing(worker, settlements)
        ours = []
        done: dict[int, dict[int, bytes | None]] = {}  # what those returned, by token
        for settlement in settlements:
            claim = settlement.claim
            found = standing.get(claim.id)
            if found is None or found.token != claim.token:
                self.stale.append(claim.id)
                continue
            del standing[claim.id]  # settled twice, the second one is stale
            ours.append(claim.id)
            if not found.shape and is_just_done(settlement):
                done.setdefault(claim.token, {})[claim.id] = settlement.result
            else:
                self._settle(settlement, found)
        self._flush()
        if done:
            self._settle_done(worker, done)
        if self._attempts:
            self._keep_attempts()
        if ours:
            self._transaction.let_go(ours)
        for settlement in self._aside.values():
            self._set_aside(settlement)
        self.ended.sort()

    def _settle_done(self, worker: int, done: Mapping[int, Mapping[int, bytes | None]]) -> None:
        """Settle jobs of which there is nothing else to say. Most are such."""
        connection, now_ns = self._transaction.connection, self._transaction.now_ns
        # All that was claimed under one token was claimed at one moment.
        firsts = numbers([next(iter(returned)) for returned in done.values()])
        claimed_ns = dict(connection.execute(CLAIMED_AT, (firsts,)).fetchall())
        for token, returned in done.items():
            results = set(returned.values())
            common = results.pop() if len(results) == 1 else None
            jobs = numbers(returned)
            connection.execute(MANY_DONE, (common, now_ns, worker, claimed_ns[token], jobs))
            if results:
                own = [(result, id) for id, result in returned.items() if result is not None]
                connection.executemany("UPDATE job SET result = ? WHERE id = ?", own)
            connection.execute(UNSIGNAL, (jobs,))
            self.ended += [Ended(id, Status.DONE, result, None) for id, result in returned.items()]

    def _standing(self, worker: int, settlements: Sequence[Settlement]) -> dict[int, StandingClaim]:
        ids = numbers([settlement.claim.id for settlement in settlements])
        (found,) = self._transaction.connection.execute(STANDING, (ids, worker)).fetchone()
        return {one.id: one for one in json.decode(found, type=list[StandingClaim])}

    def _settle(self, settlement: Settlement, standing: StandingClaim) -> None:
        id, _, parent, shape = standing
        move = settled(settlement, bool(shape & CANCELLING))
        result = settlement.result if move.ends else None
        left = Left(settlement.state, settlement.progress, result, settlement.error)
        if not move.counts:
            (reason,) = self._transaction.connection.execute(WHY, (id,)).fetchone()
            left = Left(error=reason)
        elif consumed := settlement.consumed:
            self._consume(id, consumed)
        done = move.to is Status.DONE
        if not done or settlement.log:
            self._note_attempt(settlement, move, left.error)
        if move.ends:
            self.ended.append(Ended(id, move.to, left.result, left.error))
        way = self._way(settlement, move)
        if way is None or (move.ends and shape & REPORTS):
            self._flush()
            self._settle_alone(settlement, move, left)
            return
        if done:
            self._done.append(id)
        if move.ends and parent is not None:
            self._parents.add(parent)
        self._groups.setdefault(way, {})[id] = left
        if shape & KEYED:
            self._keyed.append(id)

    def _way(self, settlement: Settlement, move: Move) -> tuple[object, ...] | None:
        """The statement for all that go this way, and its values; None if it goes alone."""
        now_ns = self._transaction.now_ns
        if move.ends:
            return (MANY_END, CODES[move.to], now_ns, move.counts or settlement.is_run)
        if move.begins:
            alone = move.to is Status.WAITING or settlement.children or settlement.skill is not None
            return None if alone else (MANY_NEXT, settlement.step, now_ns)
        if move.to is Status.SCHEDULED:
            self._due[settlement.claim.id] = now_ns + settlement.delay_ns
            return (MANY_LATER, settlement.step, move.tries, int(settlement.is_run))
        if move.steps:
            return (MANY_AGAIN, settlement.step, move.tries, int(settlement.is_run), now_ns)
        if settlement.skill is not None:
            line = self._transaction.names.number(_line(settlement.claim, settlement.skill))
            if settlement.skill:
                self._aside.setdefault((line, like(settlement.claim)), settlement)
            return (MANY_ASIDE, now_ns, line)
        return (MANY_RELEASE, now_ns)

    def _set_aside(self, settlement: Settlement) -> None:
        """Others like this one, at the heads of its lines, wait for those who know them as well."""
        claim, names = settlement.claim, self._transaction.names
        for band in Band:
            line = ReadyLine(claim.queue, claim.tenant, band)
            aside = names.number(line._replace(skill=settlement.skill or "")) & ~BAND_MASK
            self._transaction.connection.execute(
                SET_ASIDE, (names.number(line), *like(claim), aside, settlement.error)
            )

    def _flush(self) -> None:
        """Settle those that were gathered."""
        if not self._groups:
            return
        execute = self._transaction.connection.execute
        for (statement, *values), rows in self._groups.items():
            assert isinstance(statement, str)
            different = set(rows.values())
            common = different.pop() if len(different) == 1 else NOTHING
            jobs = numbers(rows)
            if statement is MANY_LATER:
                jobs = json.encode([(id, self._due.pop(id)) for id in rows]).decode()
            elif statement is not MANY_END:
                self._transaction.readied.update(rows)
            execute(statement, (*common, *values, jobs))
            if different:
                own = [(*left, id) for id, left in rows.items() if left != NOTHING]
                self._transaction.connection.executemany(LEAVE, own)
        self._groups.clear()
        if self._done:
            execute(UNSIGNAL, (numbers(self._done),))
            self._done.clear()
        if self._keyed:
            keys = execute(
                "SELECT partition_key FROM job WHERE id IN carray(?)", (numbers(self._keyed),)
            ).fetchall()
            self._transaction.unblock(*(key for (key,) in keys))
            self._keyed.clear()
        if self._parents:
            self._transaction.wake_parents(self._parents)
            self._parents.clear()

    def _settle_alone(self, settlement: Settlement, move: Move, left: Left) -> None:
        transaction, id = self._transaction, settlement.claim.id
        execute = transaction.connection.execute
        execute(LEAVE_ALONE, (*left, int(settlement.is_run), id))
        if move.ends:
            transaction.end(id, move.to, left.result, left.error)
            return
        names = settlement.names if move.to is Status.WAITING else ()
        execute(
            "UPDATE job SET step = ?, timed_out = 0, attempt = 0, names = ? WHERE id = ?",
            (settlement.step, names_column(names), id),
        )
        if settlement.skill is not None:
            line = transaction.names.number(_line(settlement.claim, settlement.skill))
            execute("UPDATE job SET lane = ? WHERE id = ?", (line, id))
        (key,) = execute("SELECT partition_key FROM job WHERE id = ?", (id,)).fetchone()
        self._spawn(settlement)
        if move.to is Status.WAITING and transaction.still_waits(id, names):
            transaction.park(id, key, move.to, settlement.delay_ns or None)
        else:
            transaction.give_back(id, key)

    def _note_attempt(self, settlement: Settlement, move: Move, error: str | None) -> None:
        """Remember an attempt that is to be kept, until its job has counted it."""
        fate = attempt_fate(settlement, counts=move.counts)
        if fate is not None and is_kept(fate, settlement.log):
            claim, log = settlement.claim, kept_log(settlement.log)
            now_ns = self._transaction.now_ns
            self._attempts.append(
                (claim.id, claim.step, now_ns, fate.value, kept_error(error), log)
            )

    def _keep_attempts(self) -> None:
        """Keep the attempts that are to be kept; their jobs have counted them."""
        connection = self._transaction.connection
        connection.executemany(KEEP_ATTEMPT, self._attempts)
        connection.executemany(FORGET_ATTEMPTS, [(job,) for job, *_ in self._attempts])

    def _consume(self, id: int, signals: Collection[int]) -> None:
        """A step has dealt with these; their dedup keys stand on."""
        execute = self._transaction.connection.execute
        execute(CONSUME_KEYS, (self._transaction.now_ns, numbers(signals), id))
        execute("DELETE FROM signal WHERE id IN carray(?) AND job = ?", (numbers(signals), id))
        execute("UPDATE job SET timed_out = 0 WHERE id = ?", (id,))  # what it waited for had come

    def _spawn(self, settlement: Settlement) -> None:
        transaction = self._transaction
        if settlement.children:
            spawned = intake_of(transaction).add(settlement.children, parent=settlement.claim.id)
            transaction.readied.update(one.id for one in spawned if one.fresh)


def _line(claim: Claim, skill: str) -> ReadyLine:
    return line_of(claim)._replace(skill=skill)

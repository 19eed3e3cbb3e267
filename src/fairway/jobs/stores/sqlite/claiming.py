"""Claiming: which jobs may start, from which ready line, and what a worker is given of them.

The head of a ready line is read by its index, so a claim costs the same however many jobs wait
behind.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from msgspec import Struct, json

from fairway.jobs.job import CLAIM_FIELDS, Child, Claim, Signal, Status
from fairway.jobs.limits import UNLIMITED, allowance, stored_limits
from fairway.jobs.stores.sqlite.columns import CLAIMED
from fairway.jobs.stores.sqlite.ready_lines import lines_of
from fairway.jobs.stores.sqlite.schema import BLOCKED, DONE, IS_READY, RUNNING, STATUSES, UNFINISHED
from fairway.jobs.stores.sqlite.transaction import REASON, names_in, numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fairway.jobs.job import Limits, ReadyLine
    from fairway.jobs.store import Want
    from fairway.jobs.stores.sqlite.schema import Sql
    from fairway.jobs.stores.sqlite.transaction import Transaction

ALL_QUEUES = "*"
HEAD_READ = ("id", "partition_key", "names", "strict")

ID, KEY, NAMES, STRICT = map((*CLAIM_FIELDS, "names", "strict").index, HEAD_READ)
HEAD = f"""
SELECT {CLAIMED}, names, strict
FROM job WHERE {IS_READY} AND lane = ? AND id > ? ORDER BY id LIMIT ?
"""
TAKE = f"UPDATE job SET status = {RUNNING} WHERE id IN carray(?)"
BLOCK = f"UPDATE job SET status = {BLOCKED} WHERE id IN carray(?)"
LEASE = """
INSERT INTO lease (job, worker, token, claimed_ns, lane) SELECT value, ?, ?, ?, ? FROM carray(?)
"""
BUSY_KEYS = f"""
SELECT DISTINCT partition_key FROM job WHERE partition_key IN (SELECT value FROM json_each(?))
AND {UNFINISHED} AND status = {RUNNING}
"""
EARLIER = f"""
SELECT 1 FROM job WHERE partition_key = ? AND {UNFINISHED}
AND status IN ({", ".join(map(str, range(DONE)))}) AND id < ? LIMIT 1
"""
CHILDREN = """
SELECT parent, id, kind, status, result, error FROM job
WHERE parent IN carray(?) AND notify IS NULL ORDER BY id
"""
SIGNALS = "SELECT job, id, name, payload FROM signal WHERE job IN carray(?) ORDER BY id"

# From one ready line that has something ready to the next, in the order of the index.
READY_LINES = f"""
WITH RECURSIVE present(lane) AS (
    SELECT * FROM (
        SELECT lane FROM job WHERE {IS_READY} AND lane >= ?1 AND lane < ?2
        ORDER BY lane LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT lane FROM job WHERE {IS_READY}
        AND lane > present.lane AND lane < ?2 ORDER BY lane LIMIT 1
    ) FROM present WHERE present.lane IS NOT NULL
)
SELECT json_group_array(lane) FROM present WHERE lane IS NOT NULL
"""


class QueueAllowance(Struct):
    """How many jobs of a queue may start now."""

    number: int
    paused: bool
    limits: Limits
    tokens: float
    refilled_ns: int
    left: int = UNLIMITED
    wait_ns: int = 0
    changed: bool = False


class SqliteClaiming:
    """The claims of one exchange."""

    def __init__(self, transaction: Transaction, worker: int, token: int) -> None:
        self._transaction = transaction
        self._worker = worker
        self._token = token
        self._keys: set[str] = set()  # taken by claims of this exchange
        self.claims: list[Claim] = []
        self.contended = 0

    def claim(self, wants: Sequence[Want]) -> dict[str, int]:
        """Take what is wanted; which queues are held back, and for how long."""
        allowed = {name: self._allowance(name) for name in {want.line.queue for want in wants}}
        everything = allowed[ALL_QUEUES] = self._allowance(ALL_QUEUES)
        held_back = {name: one.wait_ns for name, one in allowed.items() if not one.left}
        if held_back.pop(ALL_QUEUES, None) is not None:
            held_back.update((want.line.queue, everything.wait_ns) for want in wants)
        for line, most in wants:
            if not allowed[line.queue].paused:
                self._claim_line(line, most, allowed[line.queue], everything)
        for one in allowed.values():
            if one.changed:
                self._transaction.connection.execute(
                    "UPDATE queue SET tokens = ?, refilled_ns = ? WHERE id = ?",
                    (one.tokens, one.refilled_ns, one.number),
                )
        return held_back

    def _claim_line(
        self, line: ReadyLine, most: int, queue: QueueAllowance, everything: QueueAllowance
    ) -> None:
        number = self._transaction.names.number(line)
        seen = 0
        while (count := min(most, queue.left, everything.left)) > 0:
            rows = self._transaction.connection.execute(HEAD, (number, seen, count)).fetchall()
            if not rows:
                return
            taken = self._take(rows, line, number)
            for one in (queue, everything):
                one.left -= taken
                one.tokens -= taken
                one.changed |= taken > 0 and one.limits.rate_per_s is not None
            if len(rows) < count:
                return
            # Those that found their key taken cost nobody's allowance: look further.
            most -= len(rows)
            seen = rows[-1][ID]

    def _take(self, rows: Sequence[Any], line: ReadyLine, number: int) -> int:
        """Claim these, except those whose key is taken."""
        transaction, token = self._transaction, self._token
        children = self._children([row[ID] for row in rows])
        signals = self._signals([row[ID] for row in rows if row[NAMES] is not None])
        self._learn_keys({row[KEY] for row in rows if row[KEY] is not None})
        became: dict[int, Status] = {}
        taken, blocked = [], []
        for row in rows:
            id, key, names = row[ID], row[KEY], row[NAMES]
            if key is not None and not self._may_have(key, row[STRICT], id):
                became[id] = Status.BLOCKED
                self.contended += 1
                blocked.append(id)
                continue
            became[id] = Status.RUNNING
            taken.append(id)
            claim = Claim(*row[:NAMES])
            claim.token, claim.timed_out = token, claim.timed_out != 0
            claim.queue, claim.tenant, _, claim.skill = line
            if names is not None and id in signals:
                known = names_in(names)
                claim.signals = tuple(one for one in signals[id] if one.name in known)
                claim.timed_out = claim.timed_out and not claim.signals
            if id in children:
                # As they stand at this moment, between the claims before and those after.
                claim.children = tuple(
                    Child(child, kind, became.get(child, status), result, error)
                    for child, kind, status, result, error in children[id]
                )
            self.claims.append(claim)
        if taken:
            ids = numbers(taken)
            transaction.connection.execute(TAKE, (ids,))
            transaction.connection.execute(
                LEASE, (self._worker, token, transaction.now_ns, number, ids)
            )
        if blocked:
            transaction.connection.execute(BLOCK, (numbers(blocked),))
        return len(taken)

    def _learn_keys(self, keys: Collection[str]) -> None:
        if keys:
            busy = self._transaction.connection.execute(BUSY_KEYS, (json.encode(keys).decode(),))
            self._keys.update(key for (key,) in busy.fetchall())

    def _may_have(self, key: str, strict: int, id: int) -> bool:
        if key in self._keys:
            return False
        if (
            strict
            and self._transaction.connection.execute(EARLIER, (key, id)).fetchone() is not None
        ):
            return False
        self._keys.add(key)
        return True

    def _children(
        self, ids: Sequence[int]
    ) -> dict[int, list[tuple[int, str, Status, bytes | None, str | None]]]:
        found = defaultdict(list)
        rows = self._transaction.connection.execute(CHILDREN, (numbers(ids),)).fetchall()
        for parent, id, kind, code, result, error in rows:
            found[parent].append((id, kind, STATUSES[code], result, error))
        return found

    def _signals(self, ids: Sequence[int]) -> dict[int, list[Signal]]:
        found = defaultdict(list)
        if ids:
            rows = self._transaction.connection.execute(SIGNALS, (numbers(ids),)).fetchall()
            for job, id, name, payload in rows:
                found[job].append(Signal(id, name, payload))
        return found

    def _allowance(self, name: str) -> QueueAllowance:
        transaction = self._transaction
        number = transaction.names.queue(name)
        paused, concurrency, rate, burst, tokens, refilled_ns = transaction.connection.execute(
            "SELECT paused, concurrency, rate_per_s, burst, tokens, refilled_ns FROM queue"
            " WHERE id = ?",
            (number,),
        ).fetchone()
        limits = stored_limits(name, concurrency, rate, burst)
        one = QueueAllowance(number, bool(paused), limits, tokens, refilled_ns)
        running = 0
        if concurrency is not None:
            running = running_jobs(transaction.connection, name, number)
        may = allowance(limits, running, tokens, transaction.now_ns - refilled_ns)
        one.left, one.tokens, one.wait_ns = may
        if rate is not None:
            one.refilled_ns = transaction.now_ns
            # A full bucket stays full: there is nothing to write down.
            one.changed = one.tokens != tokens or tokens != burst
        return one


def running_jobs(connection: Sql, name: str, number: int) -> int:
    """How many jobs of a queue run, or of all of them."""
    running = "SELECT count(*) FROM lease"
    if name == ALL_QUEUES:
        (count,) = connection.execute(running).fetchone()
    else:
        where = "WHERE lane >= ? AND lane < ?"
        (count,) = connection.execute(f"{running} {where}", lines_of(number)).fetchone()
    return int(count)


def probe(transaction: Transaction, queues: Collection[str]) -> dict[str, list[ReadyLine]]:
    """For each queue the ready lines that have something ready; none if it is paused."""
    return {name: _lines_with_work(transaction, name) for name in queues}


def _lines_with_work(transaction: Transaction, name: str) -> list[ReadyLine]:
    found = transaction.connection.execute(
        "SELECT id, paused FROM queue WHERE name = ?", (name,)
    ).fetchone()
    queue, paused = found or (0, True)
    if paused:
        return []
    lines = ready_lines(transaction, *lines_of(queue))
    return sorted(transaction.names.line(number) for number in lines)


def cancelling(transaction: Transaction, worker: int) -> dict[int, str]:
    """The jobs of a worker that somebody cancelled, and why."""
    rows = transaction.connection.execute(
        f"SELECT id, {REASON} FROM job JOIN lease ON job = id"
        " WHERE cancelling = 1 AND worker = ? ORDER BY id",
        (worker,),
    ).fetchall()
    return dict(rows)


def ready_lines(transaction: Transaction, first: int, beyond: int) -> list[int]:
    """The numbers of the ready lines that have something ready, lowest first."""
    (found,) = transaction.connection.execute(READY_LINES, (first, beyond)).fetchone()
    return json.decode(found, type=list[int])

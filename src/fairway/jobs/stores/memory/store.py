"""Jobs in the memory of this process: for tests, and the twin the databases must agree with.

Nothing here is clever, so that it can be believed: one dictionary of jobs, scanned where a database
would use an index.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, structs

from fairway.core.priority import band_at, band_of
from fairway.errors import Invalid
from fairway.jobs import moves
from fairway.jobs.attempts import (
    ATTEMPTS_MAX,
    CLAIM_LOST,
    WORKER_DIED,
    AttemptFate,
    JobAttempt,
    attempt_fate,
    attempts_of,
    is_kept,
    kept_error,
    kept_log,
)
from fairway.jobs.job import (
    ASIDE_MAX,
    CANCELLED,
    GIVEN,
    Child,
    Claim,
    DeadJob,
    Enqueued,
    Fate,
    Filter,
    Job,
    LeaseRenewal,
    Limits,
    NewJob,
    QueueState,
    ReadyLine,
    Reaped,
    Settlement,
    Signal,
    Status,
    ending,
    line_of,
)
from fairway.jobs.limits import allowance
from fairway.jobs.moves import Facts, QueueFacts, WaitFacts, WaitReason
from fairway.jobs.presence import KindState, Offer, WorkerState, kind_state
from fairway.jobs.store import (
    NO_OFFER,
    CancelResult,
    Delivered,
    Ended,
    Exchanged,
    Promoted,
    TopicCursor,
    Want,
    retry_order,
)
from fairway.jobs.stores.memory.timetable import MemoryTimetable
from fairway.runtime.clock import Clock, clock_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class _Row(Struct, kw_only=True, eq=False):
    id: int
    new: NewJob
    status: Status
    line: ReadyLine
    step: str
    state: bytes
    enqueued_ns: int
    since_ns: int
    attempt: int = 0
    crashes: int = 0
    retries: int = 0
    due_ns: int | None = None
    worker: int | None = None
    token: int = 0
    claimed_ns: int = 0
    names: tuple[str | None, ...] = ()
    timed_out: bool = False
    cancelling: bool = False
    inbox: list[tuple[Signal, str | None]] = field(default_factory=list)
    dedup: dict[str, int | None] = field(default_factory=dict)  # when its signal was dealt with
    progress: bytes | None = None
    result: bytes | None = None
    error: str | None = None
    finished_ns: int | None = None
    waited_until_ns: int | None = None  # if it waited when it ended badly; 0 without a timer
    runs: int = 0
    ran_by: int | None = None
    attempts: list[_Attempt] = field(default_factory=list)

    @property
    def facts(self) -> Facts:
        return Facts(
            status=self.status,
            attempt=self.attempt,
            crashes=self.crashes,
            **{name: getattr(self.new, name) for name in moves.TRIES_MAX},
            reason=self.reason,
            names=self.names,
            waited_until_ns=self.waited_until_ns,
        )

    @property
    def reason(self) -> str | None:
        """Why it is to end, if somebody has cancelled it."""
        return (self.error or CANCELLED) if self.cancelling else None


class _Attempt(Struct):
    attempt: JobAttempt
    log: bytes | None


class _Worker(Struct):
    name: str
    until_ns: int
    started_ns: int
    renewed_ns: int
    offer: Offer


class _Bucket(Struct):
    paused: bool = False
    limits: Limits = Limits()
    tokens: float = 0.0
    refilled_ns: int = 0


class MemoryStore:
    """A `JobStore` that ends with its process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self._rows: dict[int, _Row] = {}
        self._keys: dict[str, tuple[int, int]] = {}  # unique key -> job, until when at least
        self._workers: dict[int, _Worker] = {}
        self._kinds: dict[tuple[str, int], tuple[bytes | None, int]] = {}
        self._queues: dict[str, _Bucket] = {}
        self._cursors: dict[str, TopicCursor] = {}
        self._last_worker = 0
        self._last_job = 0
        self._last_signal = 0
        self.timetable = MemoryTimetable(self._now)

    async def open(self) -> None:
        self._clock = self._clock or clock_of(asyncio.get_running_loop())

    async def aclose(self) -> None:
        pass

    def _now(self) -> int:
        assert self._clock is not None, "the store is open"
        return self._clock.wall_ns()

    # Enqueueing

    async def enqueue(
        self, jobs: Sequence[NewJob], *, within: Any = None, cursor: TopicCursor | None = None
    ) -> list[Enqueued]:
        if within is not None:
            raise Invalid("a store in memory has no transactions to take part in")
        if cursor is not None:
            known = self._cursors.get(cursor.name)
            first = cursor.seq if cursor.first is None else cursor.first
            if known is not None and (known.epoch, known.seq) >= (cursor.epoch, first):
                return []
            self._cursors[cursor.name] = cursor._replace(first=None)
        return self._enqueue(jobs)

    async def cursor(self, name: str) -> TopicCursor | None:
        return self._cursors.get(name)

    def _enqueue(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        now = self._now()
        added = []
        for new in jobs:
            key = new.unique_key
            if key is not None and (known := self._keyed(key)) is not None:
                added.append(Enqueued(known, False))
                continue
            due = now + new.delay_ns if new.at_wall_ns is None else new.at_wall_ns
            self._last_job += 1
            self._rows[self._last_job] = _Row(
                id=self._last_job,
                new=new,
                status=Status.SCHEDULED if due > now else Status.READY,
                line=line_of(new),
                step=new.step,
                state=new.state,
                enqueued_ns=now,
                since_ns=now,
                due_ns=due if due > now else None,
            )
            if key is not None:
                self._keys[key] = (self._last_job, now + new.window_ns)
            added.append(Enqueued(self._last_job, True))
        return added

    def _keyed(self, key: str) -> int | None:
        """The job a unique key stands for, as long as it does."""
        id, until = self._keys.get(key, (0, 0))
        row = self._rows.get(id)
        if until > self._now() or (row is not None and not row.status.ended):
            return id
        return None

    # Workers

    async def register(self, name: str, ttl_ns: int, offer: Offer = NO_OFFER) -> int:
        now = self._now()
        self._last_worker += 1
        self._workers[self._last_worker] = _Worker(name, now + ttl_ns, now, now, offer)
        for one in offer.kinds or ():
            key = one.name, one.version
            self._kinds[key] = offer.schemas.get(key), now
        return self._last_worker

    async def unregister(self, worker: int) -> None:
        if self._leased(worker) and worker in self._workers:
            known = self._workers[worker]
            known.until_ns = min(known.until_ns, self._now())
        else:
            self._workers.pop(worker, None)

    def lease_renewer(self) -> MemoryStore:
        return self

    def close(self) -> None:
        pass

    def renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        now = self._now()
        known = dict(held)
        if not self._alive(worker):
            return LeaseRenewal(alive=False)
        mine = self._workers[worker]
        mine.until_ns = max(mine.until_ns, now + ttl_ns)
        mine.renewed_ns = now
        cancel = {}
        released = 0
        for row in self._leased(worker):
            if held.get(row.id) != row.token and row.claimed_ns + grace_ns <= now:
                self._give_back(row)
                released += 1
            elif row.reason is not None:
                cancel[row.id] = row.reason
        have = {(row.id, row.token) for row in self._leased(worker)}
        lost = {id: token for id, token in known.items() if (id, token) not in have}
        return LeaseRenewal(alive=True, cancel=cancel, released=released, lost=lost)

    async def count_lost(self, worker: int, claims: Sequence[Claim]) -> None:
        have = {(row.id, row.token) for row in self._leased(worker)}
        for claim in claims:
            row = self._rows.get(claim.id)
            if row is None or row.status.ended or (claim.id, claim.token) in have:
                continue
            then = (claim.step, claim.attempt, claim.crashes)
            if (row.step, row.attempt, row.crashes) == then:
                row.crashes += 1
                self._keep(row, worker, self._now(), AttemptFate.LOST, CLAIM_LOST)

    def _keep(
        self,
        row: _Row,
        worker: int,
        started_ns: int,
        fate: AttemptFate,
        error: str | None,
        log: bytes | None = None,
    ) -> None:
        """An attempt has ended: count it, and keep it if `is_kept` says so."""
        row.runs += 1
        if is_kept(fate, log):
            log = kept_log(log)
            attempt = JobAttempt(
                number=row.runs,
                step=row.step,
                worker=worker,
                started_wall_ns=started_ns,
                ended_wall_ns=self._now(),
                fate=fate,
                error=kept_error(error),
                log_bytes=len(log or b""),
            )
            row.attempts = [*row.attempts, _Attempt(attempt, log)][-ATTEMPTS_MAX:]

    def _alive(self, worker: int) -> bool:
        known = self._workers.get(worker)
        return known is not None and known.until_ns > self._now()

    def _leased(self, worker: int | None = None) -> list[_Row]:
        return [
            row
            for row in self._rows.values()
            if row.status is Status.RUNNING and worker in (None, row.worker)
        ]

    # The exchange

    async def exchange(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Collection[str] = (),
    ) -> Exchanged:
        out = Exchanged(claims=[], stale=[], lines={}, woken=set(), held_back_ns={}, ended=[])
        alive = self._alive(worker)
        before = {id: row.status for id, row in self._rows.items()}
        aside: dict[object, Settlement] = {}
        for settlement in settlements:
            row = self._rows.get(settlement.claim.id)
            if (
                not alive
                or row is None
                or row.status is not Status.RUNNING
                or (row.worker, row.token) != (worker, settlement.claim.token)
            ):
                out.stale.append(settlement.claim.id)
                continue
            self._settle(row, settlement)
            if settlement.fate is Fate.RELEASE and settlement.skill and not row.status.ended:
                claim = settlement.claim
                others = (claim.queue, claim.tenant, settlement.skill, moves.like(claim))
                aside.setdefault(others, settlement)
        for settlement in aside.values():
            self._set_aside(settlement)
        for id, row in self._rows.items():
            if row.status.ended and before.get(id) is not row.status:
                out.ended.append(Ended(id, row.status, row.result, row.error))
        if alive:
            self._claim(worker, token, wants, out)
        out.woken = {
            row.line
            for id, row in self._rows.items()
            if row.status is Status.READY and before.get(id) is not Status.READY
        }
        if probe:
            out.cancelling = {
                row.id: row.reason for row in self._leased(worker) if row.reason is not None
            }
        out.lines = {
            queue: sorted({row.line for row in self._ready() if row.line.queue == queue})
            for queue in probe
        }
        return out

    def _settle(self, row: _Row, settlement: Settlement) -> None:
        move = moves.settled(settlement, row.cancelling)
        fate = attempt_fate(settlement, counts=move.counts)
        row.ran_by, row.worker = row.worker, None
        if fate is not None and row.ran_by is not None:
            error = row.reason if not move.counts else settlement.error
            self._keep(row, row.ran_by, row.claimed_ns, fate, error, settlement.log)
        if not move.counts:
            self._end(row, move.to, None, row.reason)
            return
        if settlement.state is not None:
            row.state = settlement.state
        if settlement.progress is not None:
            row.progress = settlement.progress
        row.error = settlement.error
        if consumed := settlement.consumed:
            self._consume(row, consumed)
        if move.ends:
            self._end(row, move.to, settlement.result, settlement.error)
            return
        if settlement.skill is not None:
            row.line = row.line._replace(skill=settlement.skill)
        if move.steps:
            row.step = settlement.step
        row.attempt += move.tries
        if move.begins:
            row.attempt, row.timed_out = 0, False
            row.names = settlement.names if move.to is Status.WAITING else ()
        self._enqueue([_adopted(child, row.id) for child in settlement.children])
        if move.to is Status.READY or (move.to is Status.WAITING and not self._still_waits(row)):
            self._give_back(row)
        else:
            self._park(row, move.to, settlement.delay_ns or None)

    def _consume(self, row: _Row, signals: Collection[int]) -> None:
        """A step has dealt with these; their dedup keys stand on."""
        row.timed_out = False  # what it waited for had come
        for one, dedup in row.inbox:
            if one.id in signals and dedup is not None:
                row.dedup[dedup] = self._now()
        row.inbox = [entry for entry in row.inbox if entry[0].id not in signals]

    def _set_aside(self, settlement: Settlement) -> None:
        """Others like this one, at the heads of its lines, wait for those who know them as well."""
        like = moves.like(settlement.claim)
        seen: Counter[ReadyLine] = Counter()
        for row in sorted(self._rows.values(), key=lambda row: row.id):
            line = row.line
            home = (settlement.claim.queue, settlement.claim.tenant, "")
            if row.status is not Status.READY or (line.queue, line.tenant, line.skill) != home:
                continue
            seen[line] += 1
            if seen[line] <= ASIDE_MAX and (row.new.kind, row.new.version, row.step) == like:
                row.line = line._replace(skill=settlement.skill or "")
                row.error = settlement.error

    def _park(self, row: _Row, status: Status, delay_ns: int | None) -> None:
        row.status = status
        row.due_ns = self._now() + delay_ns if delay_ns is not None else None
        self._unblock(row.new.partition_key)

    def _make_ready(self, row: _Row) -> None:
        row.status = Status.READY
        row.due_ns = None
        row.worker = None
        row.since_ns = self._now()
        row.line = row.line._replace(band=band_of(row.new.priority))

    def _give_back(self, row: _Row) -> None:
        """A job that a worker had is ready again, and its key is free."""
        self._make_ready(row)
        self._unblock(row.new.partition_key)

    def _unblock(self, key: str | None) -> None:
        """The first job that waits for a key may try for it."""
        blocked = [
            row
            for row in self._rows.values()
            if row.status is Status.BLOCKED and row.new.partition_key == key
        ]
        if key is not None and blocked and not self._busy(key):
            move = moves.key_is_free(blocked[0].facts)
            assert move is not None, "it is blocked"
            blocked[0].status = move.to

    def _busy(self, key: str) -> bool:
        return any(row.new.partition_key == key for row in self._leased())

    def _end(self, row: _Row, status: Status, result: bytes | None, error: str | None) -> None:
        if status is Status.DONE:
            row.inbox = []
            row.names = ()
        elif row.status is Status.WAITING:
            row.waited_until_ns = row.due_ns or 0
        row.status = status
        row.result, row.error = result, error
        row.worker = row.due_ns = None
        row.finished_ns = self._now()
        row.cancelling = False
        self._unblock(row.new.partition_key)
        parent = self._rows.get(row.new.parent) if row.new.parent is not None else None
        if parent is None or parent.status.ended:
            return
        if row.new.notify is not None:
            self._deliver(parent, row.new.notify, ending(row.id, status, result, error), None)
            return
        if moves.child_ended(parent.facts, self._pending(parent) > 0) is not None:
            self._make_ready(parent)

    def _pending(self, row: _Row) -> int:
        """How many children that the job counts have not ended."""
        return sum(
            child.new.parent == row.id and child.new.notify is None and not child.status.ended
            for child in self._rows.values()
        )

    # Claiming

    def _ready(self) -> list[_Row]:
        return [
            row
            for row in sorted(self._rows.values(), key=lambda row: row.id)
            if row.status is Status.READY and not self._bucket(row.line.queue).paused
        ]

    def _claim(self, worker: int, token: int, wants: Sequence[Want], out: Exchanged) -> None:
        now = self._now()
        allowed: dict[str, int] = {}
        held_back: dict[str, int] = {}
        running = Counter(row.line.queue for row in self._leased())
        for queue in {want.line.queue for want in wants} | {"*"}:
            bucket = self._bucket(queue)
            have = running.total() if queue == "*" else running[queue]
            may = allowance(bucket.limits, have, bucket.tokens, now - bucket.refilled_ns)
            bucket.tokens, bucket.refilled_ns = may.tokens, now
            allowed[queue] = may.free
            if not may.free:
                held_back[queue] = may.wait_ns
        if "*" in held_back:
            wait_ns = held_back.pop("*")
            held_back.update({want.line.queue: wait_ns for want in wants})
        out.held_back_ns = held_back
        for line, count in wants:
            left = count
            for row in self._ready():
                if row.line != line:
                    continue
                if not left or not allowed[line.queue] or not allowed["*"]:
                    break
                left -= 1
                if not self._may_have_key(row):
                    row.status = Status.BLOCKED
                    out.contended += 1
                    continue
                for queue in (line.queue, "*"):
                    allowed[queue] -= 1
                    self._bucket(queue).tokens -= 1
                out.claims.append(self._take(row, worker, token))

    def _bucket(self, queue: str) -> _Bucket:
        return self._queues.setdefault(queue, _Bucket(refilled_ns=self._now()))

    def _may_have_key(self, row: _Row) -> bool:
        key = row.new.partition_key
        if key is None:
            return True
        if self._busy(key):
            return False
        return not row.new.strict or not any(
            other.new.partition_key == key and not other.status.ended and other.id < row.id
            for other in self._rows.values()
        )

    def _take(self, row: _Row, worker: int, token: int) -> Claim:
        row.status = Status.RUNNING
        row.worker, row.token, row.claimed_ns = worker, token, self._now()
        new = row.new
        signals = tuple(one for one, _ in row.inbox if one.name in row.names)
        return Claim(
            id=row.id,
            token=token,
            **{name: getattr(new, name) for name in GIVEN},
            step=row.step,
            state=row.state,
            attempt=row.attempt,
            crashes=row.crashes,
            timed_out=row.timed_out and not signals,
            cancelling=row.reason,
            retries=row.retries,
            signals=signals,
            children=tuple(
                Child(child.id, child.new.kind, child.status, child.result, child.error)
                for child in self._rows.values()
                if child.new.parent == row.id and child.new.notify is None
            ),
            skill=row.line.skill,
        )

    # Maintenance

    async def promote(self, limit: int) -> Promoted:
        now = self._now()
        timed = [row for row in self._rows.values() if row.due_ns is not None]
        timed.sort(key=lambda row: (row.due_ns or 0, row.id))
        due = [row for row in timed if (row.due_ns or 0) <= now][:limit]
        for row in due:
            row.timed_out = row.timed_out or row.status is Status.WAITING
            self._make_ready(row)
        rest = timed[len(due) :]
        next_due = max(0, (rest[0].due_ns or 0) - now) if rest else None
        return Promoted(len(due), frozenset(row.line for row in due), next_due)

    async def reap(self, limit: int) -> Reaped:
        lost = [worker for worker in self._workers if not self._alive(worker)]
        returned = 0
        died = []
        lines = set()
        rows = [row for worker in lost for row in self._leased(worker)]
        for row in rows[:limit]:
            row.crashes += 1
            assert row.worker is not None, "it runs"
            self._keep(row, row.worker, row.claimed_ns, AttemptFate.LOST, WORKER_DIED)
            move = moves.worker_died(row.facts)
            if move.to is Status.CANCELLED:
                self._end(row, move.to, None, row.reason)
            elif move.ends:
                error = moves.death_error(row.crashes)
                died.append(DeadJob(row.id, row.new.kind, row.attempt + row.crashes, error))
                self._end(row, move.to, None, error)
            else:
                returned += 1
                self._give_back(row)
                lines.add(row.line)
        for worker in lost:
            if not self._leased(worker):
                del self._workers[worker]
        return Reaped(len(lost), returned, len(died), frozenset(lines), tuple(sorted(died)))

    async def age(self, limit: int) -> int:
        now = self._now()
        moved = 0
        seen: Counter[ReadyLine] = Counter()
        for row in self._ready():
            line = row.line
            seen[line] += 1
            band = band_at(row.new.priority, False, None, row.since_ns, now)
            if seen[line] <= limit and band > line.band:
                row.line = line._replace(band=band)
                moved += 1
        return moved

    # From outside

    async def signal(
        self, target: int | str, name: str, payload: bytes, *, dedup: str | None = None
    ) -> Delivered:
        id = self._keyed(target) if isinstance(target, str) else target
        row = self._rows.get(id or 0)
        if row is None or row.status.ended:
            return Delivered(None, False, None)
        return self._deliver(row, name, payload, dedup)

    def _deliver(self, row: _Row, name: str, payload: bytes, dedup: str | None) -> Delivered:
        if dedup is not None:
            if dedup in row.dedup:
                return Delivered(row.id, False, None)
            row.dedup[dedup] = None
        self._last_signal += 1
        row.inbox.append((Signal(self._last_signal, name, payload), dedup))
        if moves.signalled(row.facts, name) is not None:
            self._make_ready(row)
            return Delivered(row.id, True, row.line)
        return Delivered(row.id, True, None)

    async def cancel(self, jobs: Sequence[int], *, reason: str = "cancelled") -> CancelResult:
        ended: list[int] = []
        running: list[int] = []
        family = list(jobs)
        for id in family:
            family += [row.id for row in self._rows.values() if row.new.parent == id]
        for id in sorted(set(family)):  # parents first: none wakes, or hears, for its children
            row = self._rows.get(id)
            if row is None or row.status.ended:
                continue
            row.error = moves.reason_to_end(row.facts, reason)
            row.cancelling = True
            (running if moves.cancelled(row.facts) is None else ended).append(id)
        for id in ended:
            self._end(self._rows[id], Status.CANCELLED, None, self._rows[id].reason)
        return CancelResult(tuple(sorted(ended)), tuple(sorted(running)))

    async def retry(self, jobs: Sequence[int], *, anew: bool = False) -> list[int]:
        again = set()
        found = {id: self._rows[id].new for id in jobs if id in self._rows}
        parents = {id: new.parent for id, new in found.items()}
        reporting = {id for id, new in found.items() if new.notify is not None}
        for id in retry_order(jobs, parents, reporting):
            row = self._rows.get(id)
            if row is None or not moves.may_be_retried(
                row.facts,
                parent_lives=self._parent_lives(row),
                reporters_live=self._has_reporters(row),
            ):
                continue
            key = row.new.unique_key
            if key is not None:
                if self._keyed(key) not in (None, id):
                    continue  # another job stands for the key now
                self._keys[key] = (id, self._now() + row.new.window_ns)
            row.attempt = row.crashes = 0
            row.retries += 1
            row.finished_ns = row.error = row.result = None
            row.names = tuple(moves.names_again(row.facts))
            move = moves.retried(anew=anew, waits=self._still_waits(row))
            waited_until_ns, row.waited_until_ns = row.waited_until_ns, None
            if anew:
                row.timed_out = False
                row.inbox, row.names = [], ()
                row.dedup = {key: at for key, at in row.dedup.items() if at is not None}
            if move.to is Status.WAITING:
                row.status = Status.WAITING
                row.due_ns = waited_until_ns or None
            else:
                self._make_ready(row)
            again.add(id)
        return [id for id in dict.fromkeys(jobs) if id in again]

    async def discard(self, jobs: Sequence[int]) -> list[int]:
        gone = []
        for id in dict.fromkeys(jobs):
            row = self._rows.get(id)
            if row is not None and moves.may_be_discarded(
                row.facts, parent_lives=self._parent_lives(row)
            ):
                del self._rows[id]
                gone.append(id)
        return gone

    async def progress(self, worker: int, values: Mapping[int, bytes]) -> None:
        for row in self._leased(worker):
            row.progress = values.get(row.id, row.progress)

    async def find(self, id: int) -> Job | None:
        row = self._rows.get(id)
        return _job(row) if row is not None else None

    async def find_by_key(self, unique_key: str) -> Job | None:
        id = self._keyed(unique_key)
        return await self.find(id) if id is not None else None

    async def browse(self, filter: Filter) -> list[Job]:
        found = [
            _job(row)
            for row in sorted(self._rows.values(), key=lambda row: -row.id)
            if filter.queue in (None, row.new.queue)
            and filter.kind in (None, row.new.kind)
            and filter.status in (None, row.status)
            and filter.tenant in (None, row.new.tenant)
            and filter.parent in (None, row.new.parent)
            and (filter.trace is None or (row.new.trace or "")[3:35] == filter.trace)
            and (filter.since_wall_ns is None or row.enqueued_ns >= filter.since_wall_ns)
            and (filter.until_wall_ns is None or row.enqueued_ns < filter.until_wall_ns)
            and (filter.before is None or row.id < filter.before)
        ]
        return found[: filter.limit]

    async def attempts(self, id: int) -> list[JobAttempt]:
        row = self._rows.get(id)
        return [] if row is None else attempts_of(_job(row), [one.attempt for one in row.attempts])

    async def attempt_log(self, id: int, number: int) -> bytes | None:
        row = self._rows.get(id)
        logs = {one.attempt.number: one.log for one in row.attempts} if row is not None else {}
        return logs.get(number)

    async def why_waits(self, id: int) -> WaitReason | None:
        row = self._rows.get(id)
        if row is None:
            return None
        running = Counter(one.line.queue for one in self._leased())
        running["*"] = running.total()
        queues = []
        for name in (row.new.queue, "*"):
            bucket = self._queues.get(name, _Bucket())
            since_ns = self._now() - bucket.refilled_ns
            queues.append(QueueFacts(name, bucket.limits, running[name], bucket.tokens, since_ns))
        around = WaitFacts(
            paused=self._queues.get(row.new.queue, _Bucket()).paused,
            queues=queues,
            holder=self._holder(row),
            children=self._pending(row),
            workers=await self.workers(),
        )
        return moves.why_waits(_job(row), around)

    def _holder(self, row: _Row) -> int | None:
        """The job that keeps another from running under their key."""
        if row.new.partition_key is None:
            return None
        of_key = [
            one
            for one in self._rows.values()
            if one.new.partition_key == row.new.partition_key and one.id != row.id
        ]
        running = [one.id for one in of_key if one.status is Status.RUNNING]
        earlier = [one.id for one in of_key if not one.status.ended and one.id < row.id]
        return min(running or (earlier if row.new.strict else ()), default=None)

    async def workers(self) -> list[WorkerState]:
        return [
            WorkerState(
                id=id,
                name=one.name,
                alive=self._alive(id),
                started_wall_ns=one.started_ns,
                beat_wall_ns=one.renewed_ns,
                expires_wall_ns=one.until_ns,
                running=len(self._leased(id)),
                queues=one.offer.queues,
                kinds=one.offer.kinds,
            )
            for id, one in self._workers.items()
        ]

    async def kinds(self) -> list[KindState]:
        workers = await self.workers()
        return [
            kind_state(name, version, schema, seen_ns, workers)
            for (name, version), (schema, seen_ns) in sorted(self._kinds.items())
        ]

    async def queues(self) -> list[QueueState]:
        names = {row.new.queue for row in self._rows.values()} | set(self._queues)
        return [self._queue_state(name) for name in sorted(names - {"*"})]

    def _queue_state(self, name: str) -> QueueState:
        bucket = self._bucket(name)
        counts = Counter(row.status for row in self._rows.values() if row.new.queue == name)
        return QueueState(
            name=name,
            paused=bucket.paused,
            limits=bucket.limits,
            ready=counts[Status.READY],
            scheduled=counts[Status.SCHEDULED],
            waiting=counts[Status.WAITING],
            blocked=counts[Status.BLOCKED],
            running=counts[Status.RUNNING],
        )

    async def set_paused(self, queue: str, paused: bool) -> None:
        self._bucket(queue).paused = paused

    async def set_limits(self, queue: str, limits: Limits) -> None:
        bucket = self._bucket(queue)
        bucket.limits = limits
        bucket.tokens = float(limits.burst)
        bucket.refilled_ns = self._now()

    async def prune(
        self,
        older_than_ns: int,
        *,
        failed_older_than_ns: int | None = None,
        dedup_older_than_ns: int | None = None,
        exact: bool = True,
    ) -> int:
        now = self._now()
        if failed_older_than_ns is None:
            failed_older_than_ns = older_than_ns
        before = len(self._rows)
        # Again and again: what a parent might have read goes after it.
        while gone := self._prunable(now - older_than_ns, now - failed_older_than_ns):
            for id in gone:
                del self._rows[id]
        if dedup_older_than_ns is not None:
            horizon = now - dedup_older_than_ns
            for row in self._rows.values():
                row.dedup = {key: at for key, at in row.dedup.items() if at is None or at > horizon}
        for key, (id, until) in list(self._keys.items()):
            if id not in self._rows and until <= self._now():
                del self._keys[key]
        return before - len(self._rows)

    def _prunable(self, horizon_ns: int, failed_horizon_ns: int) -> list[int]:
        """Jobs that ended by then, and that no parent may read."""
        return [
            row.id
            for row in self._rows.values()
            if row.finished_ns is not None
            and row.finished_ns
            <= (failed_horizon_ns if row.status in (Status.FAILED, Status.DEAD) else horizon_ns)
            and not self._parent_may_read(row)
        ]

    def _still_waits(self, row: _Row) -> bool:
        """Whether what a job waited for has not come."""
        inbox = [one.name for one, _ in row.inbox]
        return moves.still_waits(row.names, inbox, self._pending(row) > 0)

    def _has_reporters(self, row: _Row) -> bool:
        """Whether a child that reports to the job by signal has not ended."""
        return any(
            child.new.parent == row.id and child.new.notify is not None and not child.status.ended
            for child in self._rows.values()
        )

    def _parent_may_read(self, row: _Row) -> bool:
        """Whether the job's parent is there and not done: it lives, or may be retried."""
        parent = self._rows.get(row.new.parent) if row.new.parent is not None else None
        return parent is not None and parent.status is not Status.DONE

    def _parent_lives(self, row: _Row) -> bool:
        parent = self._rows.get(row.new.parent) if row.new.parent is not None else None
        return parent is not None and not parent.status.ended


def _adopted(child: NewJob, parent: int) -> NewJob:
    return structs.replace(child, parent=parent)


def _job(row: _Row) -> Job:
    new = row.new
    runs, done = row.status is Status.RUNNING, row.status is Status.DONE
    return Job(
        id=row.id,
        kind=new.kind,
        version=new.version,
        status=row.status,
        queue=new.queue,
        tenant=new.tenant,
        priority=new.priority,
        step=row.step,
        state=row.state,
        attempt=row.attempt,
        crashes=row.crashes,
        max_attempts=new.max_attempts,
        partition_key=new.partition_key,
        unique_key=new.unique_key,
        parent=new.parent,
        trace=new.trace,
        enqueued_wall_ns=row.enqueued_ns,
        due_wall_ns=row.due_ns,
        finished_wall_ns=row.finished_ns,
        worker=row.worker,
        cancelling=row.cancelling,
        retries=row.retries,
        runs=row.runs,
        ran_by=row.worker if runs else row.ran_by if done else None,
        started_wall_ns=row.claimed_ns if runs or done else None,
        waits_for=moves.signals_awaited(row.names) if row.status is Status.WAITING else (),
        progress=row.progress,
        result=row.result,
        error=row.error,
    )

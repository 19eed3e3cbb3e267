"""Jobs in PostgreSQL, shared by any number of workers.

Tables and what each is for are in `migrations/`, the statements in `statements.sql`. Locks are
taken in one order (lease, job, timer; keys by name), and a transaction that still met a deadlock is
tried again. Beside this file stand its nouns.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from fairway.errors import FairwayError, Invalid, InvalidConfig
from fairway.jobs.attempts import CLAIM_LOST, AttemptFate, JobAttempt, attempts_of
from fairway.jobs.job import QueueState, Status, distinct, line_of
from fairway.jobs.limits import stored_limits
from fairway.jobs.moves import Facts, QueueFacts, WaitFacts, cancelled, is_just_done, why_waits
from fairway.jobs.presence import (
    KindState,
    WorkerState,
    kind_state,
    kinds_column,
    kinds_in,
    queues_column,
    queues_in,
    schemas_of,
)
from fairway.jobs.store import (
    NO_OFFER,
    CancelResult,
    Delivered,
    Ended,
    Exchanged,
    TopicCursor,
    retry_order,
)
from fairway.jobs.stores.postgres.attempts import EndedAttempt, attempt_of, keep_attempts
from fairway.jobs.stores.postgres.browsing import browsing, job_of, span
from fairway.jobs.stores.postgres.claiming import PostgresClaiming, by_id, put_off
from fairway.jobs.stores.postgres.columns import ns, us
from fairway.jobs.stores.postgres.connections import Connections
from fairway.jobs.stores.postgres.heartbeat import PostgresLeaseRenewer
from fairway.jobs.stores.postgres.intake import PostgresIntake, are_uniform
from fairway.jobs.stores.postgres.locks import KeyLocks
from fairway.jobs.stores.postgres.ready_lines import LowWater, ReadyLineNumbers
from fairway.jobs.stores.postgres.schema import in_schema, migrate
from fairway.jobs.stores.postgres.settling import LOCK_WAIT_MS, PostgresSettling, lines_with
from fairway.jobs.stores.postgres.timetable import PostgresTimetable
from fairway.jobs.stores.postgres.upkeep import PostgresUpkeep
from fairway.jobs.stores.postgres.waiting import WaitingLine
from fairway.jobs.stores.postgres.within import CallerConnections
from fairway.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fairway.jobs.job import (
        Claim,
        Enqueued,
        Filter,
        Job,
        Limits,
        NewJob,
        ReadyLine,
        Reaped,
        Settlement,
    )
    from fairway.jobs.moves import WaitReason
    from fairway.jobs.presence import Offer
    from fairway.jobs.store import Promoted, Want
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection

SCHEMA = "fairway_jobs"
MILLISECOND_NS = 1_000_000
LOCK_TIMEOUT_NS = 5_000 * MILLISECOND_NS
LOOKS_MAX = 100
"""How often a cancel looks for jobs that were on their way; each time somebody had moved them."""


class PostgresStore:
    """A `JobStore` in a schema of a PostgreSQL database."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        connections: int = 8,
        keys: Literal["table", "advisory"] = "table",
        claims: Literal["relaxed", "durable"] = "relaxed",
        lock_timeout_ns: int = LOCK_TIMEOUT_NS,
        clock: Clock = SYSTEM_CLOCK,
        **options: Any,
    ) -> None:
        """`connections` at most; `options` go to `asyncpg.create_pool`.

        `lock_timeout_ns` is how long a call waits for a transaction of somebody else that is in its
        way, such as one that has enqueued the same unique key and is not committed yet; then it is
        refused with `LockTimeout`, and nothing has changed. Raising it bears longer transactions
        and lets their neighbours hang for longer. Those who wait for a key have half of the
        connections at most, and the others stand in line, for as long as that. A worker whose jobs
        spawn such a key does not hang: what they said is settled when the transaction has ended.

        `keys` says how partition keys are held, and all workers of a schema must agree: in a table,
        which poolers do not disturb and which can keep strict order, or as advisory locks of one
        session. When that session ends others may run the keys at once: the runs that had them are
        stopped as soon as this process knows of it, and a thread only when it asks.

        `claims` says what of a claim is on disk when it is made. Those under a partition key or a
        limit always are; with `durable` all of them, and a crash of the database undoes none.

        `clock` says how old what this process remembers is; leases and timers go by the database's.

        Behind a pooler in transaction mode give `statement_cache_size=0`.
        """
        if claims not in ("relaxed", "durable"):
            raise InvalidConfig(f"claims are relaxed or durable, not {claims!r}")
        if lock_timeout_ns < MILLISECOND_NS:
            raise InvalidConfig("lock_timeout is at least a millisecond")
        self._dsn = dsn
        self._lock_timeout_ns = lock_timeout_ns
        waits = {"lock_timeout": str(lock_timeout_ns // MILLISECOND_NS)}
        self._connections = Connections(
            dsn, schema=schema, size=connections, options=options, settings=waits
        )
        self._relaxed = Connections(
            dsn,
            schema=schema,
            size=2,
            options=options,
            settings={"synchronous_commit": "off", **waits} if claims == "relaxed" else waits,
        )
        self.timetable = PostgresTimetable(self._connections)
        self._sql = self._connections.sql
        self._lines = ReadyLineNumbers(self._connections)
        self._low_water = LowWater()
        self._locks = KeyLocks(dsn, schema) if keys == "advisory" else None
        self._intake = PostgresIntake(self._connections, self._lines)
        self._waiting_line = WaitingLine(
            self._connections, connections, lock_timeout_ns // MILLISECOND_NS
        )
        self._callers = CallerConnections(self._connections, lock_timeout_ns // MILLISECOND_NS)
        lock_wait_ms = min(LOCK_WAIT_MS, lock_timeout_ns // MILLISECOND_NS)
        self._settling = PostgresSettling(self._sql, self._intake, self._lines, lock_wait_ms)
        self._upkeep = PostgresUpkeep(
            self._connections, self._lines, self._low_water, self._settling
        )
        self._claiming = PostgresClaiming(
            self._sql, self._lines, self._low_water, self._settling, self._locks, clock
        )

    async def open(self) -> None:
        try:
            await self._connections.open()
            await migrate(self._connections)
            await self._relaxed.open()
            await self._upkeep.turn_days()
            await self._lines.load()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        if self._locks is not None:
            await self._locks.aclose()
        await self._relaxed.aclose()
        await self._connections.aclose()

    # Enqueueing

    async def enqueue(
        self, jobs: Sequence[NewJob], *, within: Any = None, cursor: TopicCursor | None = None
    ) -> list[Enqueued]:
        if not jobs and cursor is None:
            return []
        if self._locks is not None and any(job.strict for job in distinct(jobs)):
            raise Invalid("strict order needs partition keys in the table, not as advisory locks")
        if within is None and cursor is None and len(jobs) > 1 and are_uniform(jobs):
            return await self._intake.add_uniform(jobs)
        await self._lines.ensure({line_of(job) for job in distinct(jobs)})

        async def add(connection: Any, lock_wait_ms: int | None = None) -> list[Enqueued]:
            if cursor is not None:
                name, epoch, seq, first = cursor
                first = seq if first is None else first
                if not await connection.fetchval(self._sql["move_cursor"], name, epoch, seq, first):
                    return []
            return await self._intake.add(connection, jobs, lock_wait_ms)

        keyed = any(job.unique_key is not None for job in distinct(jobs))
        one = cursor is None and not keyed
        if within is not None:
            caller = await self._callers.recognize(within)
            if one:
                return await add(caller)
            async with self._callers.all_or_none(caller):
                return await add(caller)
        if one:
            return await self._connections.statement(add)  # one statement commits itself
        if keyed:
            return await self._waiting_line.transaction(add)
        return await self._connections.transaction(add)

    async def cursor(self, name: str) -> TopicCursor | None:
        rows = await self._connections.fetch("cursor", name)
        return TopicCursor(*rows[0]) if rows else None

    # Workers

    async def register(self, name: str, ttl_ns: int, offer: Offer = NO_OFFER) -> int:
        known = schemas_of(offer)
        rows = await self._connections.change(
            "register",
            *(name, us(ttl_ns), queues_column(offer), kinds_column(offer)),
            *([one[at] for one in known] for at in range(3)),
        )
        id: int = rows[0]["id"]
        return id

    async def unregister(self, worker: int) -> None:
        async with self._connections.connection() as connection:
            await connection.execute(self._sql["unregister"], worker)

    async def count_lost(self, worker: int, claims: Sequence[Claim]) -> None:
        async def count(connection: AsyncpgConnection) -> None:
            rows = await connection.fetch(
                self._sql["count_lost"],
                worker,
                [one.id for one in claims],
                [one.token for one in claims],
                [one.step for one in claims],
                [one.attempt for one in claims],
                [one.crashes for one in claims],
            )
            fate = AttemptFate.LOST.value
            lost = [
                EndedAttempt(id, runs, step, worker, at, fate, CLAIM_LOST, None)
                for id, runs, step, at in rows
            ]
            await keep_attempts(connection, self._sql, lost)

        await self._connections.transaction(count)

    def lease_renewer(self) -> PostgresLeaseRenewer:
        return PostgresLeaseRenewer(self._dsn, self._sql, gave_back=self._low_water.clear)

    def on_keys_lost(self, notify: Callable[[Mapping[int, int]], None]) -> Callable[[], None]:
        """See `KeysMayGo`. Keys in the table stay until their jobs are settled or reaped."""
        if self._locks is None:
            return lambda: None
        on_lost = self._locks.on_lost
        on_lost.append(notify)
        return lambda: on_lost.remove(notify)

    # The exchange

    async def exchange(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Collection[str] = (),
    ) -> Exchanged:
        await self._lines.ensure(
            {line_of(child) for one in settlements for child in one.children}
            | {line for one in settlements if one.skill is not None for line in lines_with(one)}
            | {want.line for want in wants}
        )

        settling = list(settlements)
        keyed = [one.claim for one in settling if one.claim.partition_key is not None]
        lost: set[int] = set()
        if self._locks is not None:
            # Keys that went with the lock connection may be others' now. Nothing their runs said
            # counts; they go back, their attempts unchanged.
            lost = {one.id for one in keyed if not self._locks.holds((one.id, one.token))}
            settling = [put_off(one.claim, 0) if one.claim.id in lost else one for one in settling]

        asked = {want.line: want.most for want in wants}
        left: dict[ReadyLine, int] = {}

        async def trade(connection: AsyncpgConnection) -> Exchanged:
            out = _nothing()
            woken: set[int] = set()
            # Asked at each try: the last one may have met a limit.
            gated = self._claiming.may_be_limited(asked) and connection.is_in_transaction()
            if gated:
                await self._claiming.pass_gate(connection)
            if settling:
                await self._settling.settle(connection, worker, settling, out, woken)
                self._low_water.forget(woken)  # before the claim: what came back has lower numbers
            if asked:
                left.update(
                    await self._claiming.claim(connection, worker, token, asked, out, gated=gated)
                )
                await self._claiming.take_keys(connection, worker, out)
            if probe:
                await self._claiming.probe(connection, worker, probe, out)
            out.woken = await self._lines.of(woken)
            return out

        if not probe and self._is_done_and_claim(settling, wants):
            out = await self._trade(worker, token, settling, asked, left)
            return await self._claim_left(worker, token, left, out)
        if settling or self._locks is not None:
            try:
                out = await self._claiming.transaction(self._connections, trade, asked)
            except FairwayError:
                if self._locks is not None:
                    await self._locks.abandon(token)
                raise
            if self._locks is not None:
                out.stale += sorted(lost - set(out.stale))
                kept = {(one.claim.id, one.claim.token) for one in out.postponed}
                given = {(claim.id, claim.token) for claim in keyed} - kept
                await self._locks.give_back(given)
                await self._without_keys(self._locks, worker, token, out)
            return out
        # A claim that a crash of the database undoes is made again, and its first run is stopped by
        # the heartbeat: it need not be on disk. Those under a key or a limit ask for it themselves.
        if probe or self._claiming.limited or not wants:
            return await self._claiming.transaction(self._relaxed, trade, asked)
        out = await self._relaxed.statement(trade)  # one statement commits itself
        return await self._claim_left(worker, token, left, out)

    async def _without_keys(self, locks: KeyLocks, worker: int, token: int, out: Exchanged) -> None:
        """Give back claims that have lost their keys since: the worker was notified before them."""
        while gone := [
            claim
            for claim in out.claims
            if claim.partition_key is not None and not locks.holds((claim.id, claim.token))
        ]:
            out.claims = [claim for claim in out.claims if claim not in gone]
            with suppress(FairwayError):  # the next heartbeat gives back what nobody knows of
                await self.exchange(worker, token, [put_off(claim, 0) for claim in gone])

    async def _claim_left(
        self, worker: int, token: int, left: Mapping[ReadyLine, int], out: Exchanged
    ) -> Exchanged:
        """What the statement of an exchange left out, since it met limits unknown before."""
        if not left:
            return out

        async def rest(connection: AsyncpgConnection) -> Exchanged:
            more = _nothing()
            await self._claiming.pass_gate(connection)
            await self._claiming.claim(connection, worker, token, left, more, gated=True)
            return more

        # What was claimed before is ours and must be returned: if this fails, it is asked again.
        with suppress(FairwayError):
            more = await self._claiming.transaction(self._connections, rest, left)
            out.claims = sorted(out.claims + more.claims, key=by_id)
            out.held_back_ns = {**out.held_back_ns, **more.held_back_ns}
            out.contended += more.contended
        return out

    def _is_done_and_claim(self, settlements: Sequence[Settlement], wants: Sequence[Want]) -> bool:
        """Whether an exchange is only this: jobs are done, and others are claimed."""
        return (
            bool(settlements and wants)
            and self._locks is None
            and not self._claiming.limited
            and len({one.claim.id for one in settlements}) == len(settlements)
            and all(map(is_just_done, settlements))
        )

    async def _trade(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement],
        asked: Mapping[ReadyLine, int],
        left: dict[ReadyLine, int],
    ) -> Exchanged:
        """The common exchange in one statement, which commits itself: one round trip, not four.

        Ready lines that it left out, since they have limits, are added to `left`.
        """
        done = (
            [one.claim.id for one in settlements],
            [one.claim.token for one in settlements],
            [one.result for one in settlements],
        )

        async def take(connection: AsyncpgConnection) -> Exchanged:
            out = _nothing()
            left.update(
                (await self._claiming.take(connection, worker, token, asked, out, done)).limited
            )
            return out

        out = await self._connections.statement(take)
        out.claims.sort(key=by_id)
        stale = set(out.stale)
        out.ended = [
            Ended(one.claim.id, Status.DONE, one.result, None)
            for one in settlements
            if one.claim.id not in stale
        ]
        return out

    # Maintenance

    async def promote(self, limit: int) -> Promoted:
        return await self._upkeep.promote(limit)

    async def reap(self, limit: int) -> Reaped:
        return await self._upkeep.reap(limit)

    async def age(self, limit: int) -> int:
        return await self._upkeep.age(limit)

    async def prune(
        self,
        older_than_ns: int,
        *,
        failed_older_than_ns: int | None = None,
        dedup_older_than_ns: int | None = None,
        exact: bool = True,
    ) -> int:
        """See `JobStore`. Days that are old enough are dropped whole, the rest job by job."""
        failed_ns = older_than_ns if failed_older_than_ns is None else failed_older_than_ns
        return await self._upkeep.prune(older_than_ns, failed_ns, dedup_older_than_ns, exact=exact)

    # From outside

    async def signal(
        self, target: int | str, name: str, payload: bytes, *, dedup: str | None = None
    ) -> Delivered:
        async def deliver(connection: AsyncpgConnection) -> tuple[int | None, bool, set[int]]:
            woken: set[int] = set()
            id = target
            if isinstance(id, str):
                id = await connection.fetchval(self._sql["find_key"], id) or 0
            fresh = await self._settling.deliver(connection, id, name, payload, dedup, woken)
            return None if fresh is None else id, bool(fresh), woken

        id, fresh, woken = await self._connections.transaction(deliver)
        self._low_water.forget(woken)
        lines = await self._lines.of(woken)
        return Delivered(id, fresh, next(iter(lines), None))

    async def cancel(self, jobs: Sequence[int], *, reason: str = "cancelled") -> CancelResult:
        woken: set[int] = set()

        async def end(connection: AsyncpgConnection) -> tuple[list[int], list[int]]:
            found = await connection.fetch(self._sql["family"], list(jobs))
            family = [row["id"] for row in found]
            rows = await connection.fetch(self._sql["mark_cancelled"], family, reason)
            if not rows:
                return [], []
            states = {row["id"]: Status(row["status"].decode()) for row in rows}
            lined = {id for id, status in states.items() if status is Status.READY}
            running = lined - await self._unqueue(connection, lined, rows)
            states |= dict.fromkeys(running, Status.RUNNING)
            ended = sorted(
                id for id, status in states.items() if cancelled(Facts(status)) is not None
            )
            await self._settling.end(connection, ended, Status.CANCELLED, woken)
            return ended, sorted(states.keys() - set(ended))

        ended, asked = await self._connections.transaction(end)
        self._low_water.forget(woken)
        return CancelResult(tuple(ended), tuple(asked))

    async def _unqueue(
        self, connection: AsyncpgConnection, jobs: set[int], rows: Sequence[Any]
    ) -> set[int]:
        """Take jobs, whose rows these are, out of the lines they wait in; those that did not run.

        One on its way from one line to another is in none that a statement sees. So we look again,
        until those that are left are seen to run.
        """
        lines = list({row["lane"] for row in rows})
        keys = [row["pkey"] for row in rows if row["pkey"] is not None]
        left = set(jobs)
        for _ in range(LOOKS_MAX):
            if not left:
                break
            free = await connection.fetch(self._sql["unqueue"], list(left), lines, keys)
            left -= {row["id"] for row in free}
            held = await connection.fetch(self._sql["leased"], list(left)) if left else []
            if len(held) == len(left):
                break
        return jobs - left

    async def retry(self, jobs: Sequence[int], *, anew: bool = False) -> list[int]:
        async def revive(connection: AsyncpgConnection, lock_wait_ms: int) -> list[int]:
            await connection.fetch(self._sql["lock_wait"], lock_wait_ms)
            # Who retries a child and who retries its parent wait for each other here; the second
            # one sees in the statements that follow what the first one did.
            rows = await connection.fetch(self._sql["lock_ended"], list(jobs))
            await connection.fetch(self._sql["lock_children"], list(jobs))
            wanted = set(jobs)
            asked = [row for row in rows if row["id"] in wanted]
            keys = [row["ukey"] for row in asked if row["ukey"] is not None]
            related = any(row["parent"] in wanted for row in asked)
            if not related and len(set(keys)) == len(keys):
                return await some(connection, jobs)
            parents = {row["id"]: row["parent"] for row in rows}
            reporting = {row["id"] for row in rows if row["notify"] is not None}
            order = retry_order(jobs, parents, reporting)
            return [id for one in order for id in await some(connection, [one])]

        async def some(connection: AsyncpgConnection, jobs: Sequence[int]) -> list[int]:
            rows = await connection.fetch(self._sql["reviving_keys"], list(jobs))
            holders: set[int] = set()
            if rows:
                wanted = {row["ukey"]: (row["id"], row["window_us"]) for row in rows}
                holders = set((await self._intake.take_keys(connection, wanted)).values())
            revived = await connection.fetch(self._sql["revive"], list(jobs), list(holders), anew)
            return [row["id"] for row in revived]

        revived = set(await self._waiting_line.transaction(revive))
        self._low_water.clear()
        return [id for id in dict.fromkeys(jobs) if id in revived]

    async def discard(self, jobs: Sequence[int]) -> list[int]:
        rows = await self._connections.change("discard", list(jobs))
        gone = {row["id"] for row in rows}
        return [id for id in dict.fromkeys(jobs) if id in gone]

    async def progress(self, worker: int, values: Mapping[int, bytes]) -> None:
        await self._connections.change("progress", worker, list(values), list(values.values()))

    async def find(self, id: int) -> Job | None:
        for statement in ("find", "find_ended", "find"):  # it may end between the first two
            if rows := await self._connections.fetch(statement, id):
                return job_of(rows[0])
        return None

    async def find_by_key(self, unique_key: str) -> Job | None:
        rows = await self._connections.fetch("find_key", unique_key)
        return await self.find(rows[0]["job"]) if rows else None

    async def browse(self, filter: Filter) -> list[Job]:
        async with self._connections.connection(sent=False) as connection:
            ids = await span(connection, self._sql, filter)
            text, args = browsing(filter, ids)
            rows = await connection.fetch(in_schema(text, self._connections.schema), *args)
        return [job_of(row) for row in rows]

    async def attempts(self, id: int) -> list[JobAttempt]:
        job = await self.find(id)
        if job is None:
            return []
        kept = await self._connections.fetch("attempts", id)  # after: one may have ended meanwhile
        return attempts_of(job, [attempt_of(row) for row in kept])

    async def attempt_log(self, id: int, number: int) -> bytes | None:
        rows = await self._connections.fetch("attempt_log", id, number)
        log: bytes | None = rows[0]["log"] if rows else None
        return log

    async def why_waits(self, id: int) -> WaitReason | None:
        job = await self.find(id)
        if job is None:
            return None
        (around,) = await self._connections.fetch("around", id) or [None]
        if around is None:  # it has ended, now or before
            return None
        limits = await self._connections.fetch("limits_seen", [job.queue, "*"])
        names = [row["name"] for row in limits if row["concurrency"] is not None]
        running = dict(await self._connections.fetch("running", names)) if names else {}
        queues = []
        for name, concurrency, rate, burst, tokens, since_us in limits:
            known = stored_limits(name, concurrency, rate, burst)
            queues.append(QueueFacts(name, known, running.get(name, 0), tokens, since_us * 1000))
        return why_waits(
            job,
            WaitFacts(
                paused=around["paused"],
                queues=queues,
                holder=around["holder"],
                children=around["children"],
                workers=await self.workers(),
            ),
        )

    async def workers(self) -> list[WorkerState]:
        return [
            WorkerState(
                id=row["id"],
                name=row["name"],
                alive=row["alive"],
                started_wall_ns=ns(row["started_at"]),
                beat_wall_ns=None if row["beat_at"] is None else ns(row["beat_at"]),
                expires_wall_ns=ns(row["expires_at"]),
                running=row["running"],
                queues=queues_in(row["queues"]),
                kinds=kinds_in(row["kinds"]),
            )
            for row in await self._connections.fetch("workers")
        ]

    async def kinds(self) -> list[KindState]:
        workers = await self.workers()
        return [
            kind_state(name, version, schema, ns(seen_at), workers)
            for name, version, schema, seen_at in await self._connections.fetch("kinds")
        ]

    async def queues(self) -> list[QueueState]:
        return [
            QueueState(
                name=row["name"],
                paused=row["paused"],
                limits=stored_limits(
                    row["name"], row["concurrency"], row["rate_per_s"], row["burst"]
                ),
                ready=row["ready"],
                scheduled=row["scheduled"],
                waiting=row["waiting"],
                blocked=row["blocked"],
                running=row["running"],
            )
            for row in await self._connections.fetch("queues")
        ]

    async def set_paused(self, queue: str, paused: bool) -> None:
        await self._connections.change("set_paused", queue, paused)

    async def set_limits(self, queue: str, limits: Limits) -> None:
        """When it returns, every claim that comes keeps the limits.

        A claim that began before may not have seen them and be counted by nobody. So claims under
        limits wait at a gate until those that were under way have ended.
        """

        async def put(connection: AsyncpgConnection) -> None:
            await connection.execute(
                self._sql["set_limits"],
                queue,
                limits.concurrency,
                limits.rate_per_s,
                limits.burst,
            )

        async def put_and_wait(connection: AsyncpgConnection) -> None:
            await connection.execute(self._sql["shut_gate"])
            await self._connections.statement(put)
            await self._claiming.wait_for_claims(connection, self._lock_timeout_ns // 2)

        # The gate is held on a connection of the other pool: this one may have a single one.
        if limits.concurrency is None and limits.rate_per_s is None:
            await self._connections.statement(put)
        else:
            await self._relaxed.transaction(put_and_wait)
            self._claiming.limited.add(queue)


def _nothing() -> Exchanged:
    return Exchanged(claims=[], stale=[], lines={}, woken=set(), held_back_ns={}, ended=[])

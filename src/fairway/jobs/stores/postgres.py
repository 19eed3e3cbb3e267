"""Jobs in PostgreSQL, shared by any number of workers.

Tables and what each is for are in `migrations/`, the statements in `postgres.sql`. Locks are taken
in one order (lease, job, timer; keys by name), and a transaction that still met a deadlock is
tried again. What settles claims is in `postgres_settling.py`.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import asyncpg

from fairway.core.priority import Band, band_of
from fairway.errors import FairwayError
from fairway.jobs.job import (
    Child,
    Claim,
    Enqueued,
    Fate,
    Job,
    Lane,
    Limits,
    QueueState,
    Reaped,
    Settlement,
    Signal,
    Status,
)
from fairway.jobs.store import Cancelled, Cursor, Delivered, Ended, Exchanged, Promoted
from fairway.jobs.stores.postgres_browsing import browsing, job_of
from fairway.jobs.stores.postgres_connections import IN_THE_WAY, Connections, in_schema
from fairway.jobs.stores.postgres_heart import PostgresHeart
from fairway.jobs.stores.postgres_locks import KeyLocks
from fairway.jobs.stores.postgres_settling import Settling
from fairway.jobs.stores.postgres_timetable import PostgresTimetable
from fairway.jobs.stores.postgres_within import unwrapped
from fairway.runtime.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fairway.jobs.job import Filter, NewJob
    from fairway.jobs.store import Want
    from fairway.jobs.stores.postgres_connections import Connection

SCHEMA = "fairway_jobs"
PRUNE_ROWS = 5_000
CONTENDED_NS = 50_000_000
"""How long a job rests whose key somebody else has, where keys are advisory locks."""
DAYS_AHEAD = 3
LOW_WATER_NS = 1_000_000_000
_UNLIMITED = 1 << 30


class PostgresStore:
    """A `JobStore` in a schema of a PostgreSQL database."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        connections: int = 8,
        keys: Literal["table", "advisory"] = "table",
        **options: Any,
    ) -> None:
        """`connections` at most; `options` go to `asyncpg.create_pool`.

        `keys` says how partition keys are held, and all workers of a schema must agree: in a table,
        which poolers do not disturb and which can keep strict order, or as advisory locks of one
        session.

        Behind a pooler in transaction mode give `statement_cache_size=0`.
        """
        self._dsn = dsn
        self._connections = Connections(dsn, schema=schema, size=connections, options=options)
        self._relaxed = Connections(
            dsn,
            schema=schema,
            size=2,
            options=options,
            settings={"synchronous_commit": "off"},
        )
        self.timetable = PostgresTimetable(self._connections)
        self._clock: Clock = SYSTEM_CLOCK
        self._low_water = _LowWater()
        self._sql = self._connections.sql
        self._settling = Settling(
            self._sql, self._enqueue_rows, lambda job: self._lane_ids[_lane(job)]
        )
        self._locks = KeyLocks(dsn, schema) if keys == "advisory" else None
        self._claim_statement = "claim" if self._locks is None else "claim_any"
        self._lane_ids: dict[Lane, int] = {}
        self._lane_of: dict[int, Lane] = {}
        self._limited: set[str] = set()

    async def open(self) -> None:
        await self._connections.open()
        await self._connections.migrate()
        await self._relaxed.open()
        await self._turn_days()
        self._learn(await self._connections.fetch("known_lanes"))

    async def aclose(self) -> None:
        if self._locks is not None:
            await self._locks.aclose()
        await self._relaxed.aclose()
        await self._connections.aclose()

    # Lanes

    def _learn(self, rows: Sequence[Any]) -> None:
        for id, queue, tenant, band in rows:
            lane = Lane(queue, tenant, Band(band))
            self._lane_ids[lane] = id
            self._lane_of[id] = lane

    async def _ensure_lanes(self, lanes: Collection[Lane]) -> None:
        """Give lanes their numbers, committed at once: no caller's transaction holds them."""
        new = [lane for lane in lanes if lane not in self._lane_ids]
        if new:
            async with self._connections.connection() as connection:
                await self._make_lanes(connection, new)

    async def _make_lanes(self, connection: Connection, lanes: Sequence[Lane]) -> None:
        columns = zip(*lanes, strict=True)
        self._learn(await connection.fetch(self._sql["lanes"], *map(list, columns)))

    async def _lanes_of(self, ids: Collection[int]) -> set[Lane]:
        """The lanes of some numbers; others may have made them."""
        if not all(id in self._lane_of for id in ids):
            self._learn(await self._connections.fetch("known_lanes"))
        return {self._lane_of[id] for id in ids}

    # Enqueueing

    async def enqueue(
        self, jobs: Sequence[NewJob], *, within: Any = None, cursor: Cursor | None = None
    ) -> list[Enqueued]:
        if not jobs and cursor is None:
            return []
        if within is None and cursor is None and len(jobs) > 1 and _alike(jobs):
            return await self._enqueue_alike(jobs)
        await self._ensure_lanes({_lane(job) for job in jobs})
        if within is not None:
            return await self._enqueue_rows(await unwrapped(within), jobs)
        if cursor is None and all(job.unique_key is None for job in jobs):
            async with self._connections.connection() as connection:  # one statement commits itself
                return await self._enqueue_rows(connection, jobs)

        async def add(connection: Connection) -> list[Enqueued]:
            if cursor is not None and not await connection.fetchval(
                self._sql["move_cursor"], *cursor
            ):
                return []
            return await self._enqueue_rows(connection, jobs)

        return await self._connections.transaction(add)

    async def _enqueue_alike(self, jobs: Sequence[NewJob]) -> list[Enqueued]:
        one = jobs[0]
        await self._ensure_lanes((_lane(one),))
        async with self._connections.connection() as connection:
            rows = await connection.fetch(
                self._sql["enqueue_alike"],
                [job.state for job in jobs],
                one.kind,
                one.version,
                one.step,
                self._lane_ids[_lane(one)],
                one.priority,
                one.max_attempts,
                one.max_crashes,
                one.trace,
            )
        return [Enqueued(row[0], True) for row in rows]

    async def _enqueue_rows(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Add jobs in the transaction of `connection`."""
        if missing := [lane for job in jobs if (lane := _lane(job)) not in self._lane_ids]:
            await self._make_lanes(connection, sorted(set(missing)))
        if any(job.unique_key is not None for job in jobs):
            return await self._enqueue_unique(connection, jobs)
        rows = await connection.fetch(
            self._sql["enqueue"], [None] * len(jobs), *self._columns(jobs)
        )
        return [Enqueued(row[0], True) for row in rows]

    async def _enqueue_unique(self, connection: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        """Add jobs of which some have unique keys: those whose key is taken are not added."""
        numbers = [row[0] for row in await connection.fetch(self._sql["numbers"], len(jobs))]
        first: dict[str, tuple[int, int]] = {}
        for id, job in zip(numbers, jobs, strict=True):
            if job.unique_key is not None:
                first.setdefault(job.unique_key, (id, _us(job.window_ns)))
        await connection.fetch(
            self._sql["take_keys"],
            list(first),
            [id for id, _ in first.values()],
            [window_us for _, window_us in first.values()],
        )
        holders = dict(await connection.fetch(self._sql["holders"], list(first)))
        answers = [
            Enqueued(holders.get(job.unique_key, id), holders.get(job.unique_key, id) == id)
            for id, job in zip(numbers, jobs, strict=True)
        ]
        fresh = [job for job, answer in zip(jobs, answers, strict=True) if answer.fresh]
        if fresh:
            ids = [answer.id for answer in answers if answer.fresh]
            await connection.fetch(self._sql["enqueue"], ids, *self._columns(fresh))
        return answers

    def _columns(self, jobs: Sequence[NewJob]) -> list[list[Any]]:
        return [
            [job.kind for job in jobs],
            [job.version for job in jobs],
            [job.step for job in jobs],
            [job.state for job in jobs],
            [self._lane_ids[_lane(job)] for job in jobs],
            [job.priority for job in jobs],
            [job.max_attempts for job in jobs],
            [job.max_crashes for job in jobs],
            [job.partition_key for job in jobs],
            [job.strict for job in jobs],
            [job.unique_key for job in jobs],
            [_us(job.window_ns) for job in jobs],
            [job.parent for job in jobs],
            [job.notify for job in jobs],
            [job.trace for job in jobs],
            [_us(job.delay_ns) for job in jobs],
            [None if job.at_wall_ns is None else _us(job.at_wall_ns) for job in jobs],
        ]

    async def cursor(self, name: str) -> Cursor | None:
        rows = await self._connections.fetch("cursor", name)
        return Cursor(*rows[0]) if rows else None

    # Workers

    async def register(self, name: str, ttl_ns: int) -> int:
        async with self._connections.connection() as connection:
            id: int = await connection.fetchval(self._sql["register"], name, _us(ttl_ns))
            return id

    async def unregister(self, worker: int) -> None:
        async with self._connections.connection() as connection:
            await connection.execute(self._sql["unregister"], worker)

    def heart(self) -> PostgresHeart:
        return PostgresHeart(self._dsn, self._sql, gave_back=self._low_water.clear)

    # The exchange

    async def exchange(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement] = (),
        wants: Sequence[Want] = (),
        probe: Collection[str] = (),
    ) -> Exchanged:
        await self._ensure_lanes(
            {_lane(child) for one in settlements for child in one.children}
            | {want.lane for want in wants}
        )

        settling = list(settlements)
        keyed = [one.claim for one in settling if one.claim.partition_key is not None]
        lost: set[int] = set()
        if self._locks is not None:
            # Keys that went with the lock connection may be others' now. Nothing their runs said
            # counts; they go back, their attempts unchanged.
            lost = {one.id for one in keyed if not self._locks.holds((one.id, one.token))}
            settling = [_put_off(one.claim, 0) if one.claim.id in lost else one for one in settling]

        async def trade(connection: Connection) -> Exchanged:
            out = Exchanged(claims=[], stale=[], lanes={}, woken=set(), held_back_ns={}, ended=[])
            woken: set[int] = set()
            if settling:
                await self._settling.settle(connection, worker, settling, out, woken)
                self._low_water.forget(woken)  # before the claim: what came back has lower numbers
            if wants:
                await self._claim(connection, worker, token, wants, out)
                await self._take_keys(connection, worker, out)
            if probe:
                await self._probe(connection, worker, probe, out)
            out.woken = await self._lanes_of(woken)
            return out

        if not probe and self._plain_trade(settling, wants):
            return await self._trade(worker, token, settling, wants)
        if settling or self._locks is not None:
            try:
                out = await self._connections.transaction(trade)
            except FairwayError:
                if self._locks is not None:
                    await self._locks.abandon(token)
                raise
            if self._locks is not None:
                out.stale += sorted(lost - set(out.stale))
                await self._locks.give_back([(claim.id, claim.token) for claim in keyed])
            return out
        # A claim that a crash of the database undoes is only claimed again: it need not be on disk.
        if probe or self._limited or not wants:
            return await self._relaxed.transaction(trade)
        return await self._relaxed.statement(trade)  # one statement commits itself

    def _plain_trade(self, settlements: Sequence[Settlement], wants: Sequence[Want]) -> bool:
        """Whether an exchange is only this: jobs are done, and others are claimed."""
        return (
            bool(settlements and wants)
            and self._locks is None
            and not self._limited
            and len({one.claim.id for one in settlements}) == len(settlements)
            and all(
                one.fate is Fate.DONE
                and one.state is None
                and one.progress is None
                and one.error is None
                and one.claim.partition_key is None
                and one.claim.parent is None
                for one in settlements
            )
        )

    async def _trade(
        self,
        worker: int,
        token: int,
        settlements: Sequence[Settlement],
        wants: Sequence[Want],
    ) -> Exchanged:
        """The common exchange in one statement, which commits itself: one round trip, not four."""
        asked = {want.lane: want.most for want in wants}
        done = (
            [one.claim.id for one in settlements],
            [one.claim.token for one in settlements],
            [one.result for one in settlements],
        )

        async def take(connection: Connection) -> tuple[list[Claim], list[int]]:
            stale: list[int] = []
            claims, _ = await self._take(connection, worker, token, asked, done, stale)
            return claims, stale

        out = Exchanged(claims=[], stale=[], lanes={}, woken=set(), held_back_ns={}, ended=[])
        out.claims, out.stale = await self._connections.statement(take)
        out.claims.sort(key=_by_id)
        stale = set(out.stale)
        out.ended = [
            Ended(one.claim.id, Status.DONE, one.result, None)
            for one in settlements
            if one.claim.id not in stale
        ]
        return out

    async def _take_keys(self, connection: Connection, worker: int, out: Exchanged) -> None:
        """Where keys are advisory locks: claims that did not get theirs go back at once."""
        wanted = {
            (claim.id, claim.token): claim.partition_key
            for claim in out.claims
            if claim.partition_key is not None
        }
        if self._locks is None or not wanted:
            return
        won = await self._locks.take(wanted)
        refused = {id for id, token in wanted.keys() - won}
        if refused:
            again = [_put_off(one, CONTENDED_NS) for one in out.claims if one.id in refused]
            await self._settling.settle(connection, worker, again, out, set())
            out.claims = [claim for claim in out.claims if claim.id not in refused]

    async def _claim(
        self,
        connection: Connection,
        worker: int,
        token: int,
        wants: Sequence[Want],
        out: Exchanged,
    ) -> None:
        asked = {want.lane: want.most for want in wants}
        if self._limited & ({lane.queue for lane in asked} | {"*"}):
            await self._claim_limited(connection, worker, token, asked, out)
        else:
            out.claims, _ = await self._take(connection, worker, token, asked)
        out.claims.sort(key=_by_id)

    async def _claim_limited(
        self,
        connection: Connection,
        worker: int,
        token: int,
        asked: Mapping[Lane, int],
        out: Exchanged,
    ) -> None:
        """Claim lane by lane: what one leaves of a limit, the next may use."""
        allowed = await self._allowances(connection, asked, out)
        left = {name: one.free for name, one in allowed.items()}
        for lane, most in asked.items():
            limits = left.keys() & {lane.queue, "*"}
            while most and (count := min(most, *(left[name] for name in limits), most)):
                claims, looked = await self._take(connection, worker, token, {lane: count})
                for name in limits:
                    left[name] -= len(claims)
                out.claims += claims
                # Jobs whose key was taken used up none of the limit: look at as many again.
                most = most - looked if looked == count else 0
        await self._spend(connection, allowed, out.claims)

    async def _take(
        self,
        connection: Connection,
        worker: int,
        token: int,
        asked: Mapping[Lane, int],
        done: tuple[Any, ...] = (),
        stale: list[int] | None = None,
    ) -> tuple[list[Claim], int]:
        """Claim from lanes, and how many jobs were looked at.

        With `done` jobs end in the same statement; those that were not ours are added to `stale`.
        """
        lanes = [self._lane_ids[lane] for lane in asked]
        now_ns = self._clock.now_ns()
        low = [self._low_water.first(lane, now_ns) for lane in lanes]
        statement = self._sql["trade" if done else self._claim_statement]
        rows = await connection.fetch(
            statement, worker, token, lanes, list(asked.values()), low, *done
        )
        won: list[Any] = []
        lost: list[Any] = []
        reached = dict.fromkeys(lanes, (0, 0))
        for row in rows:
            if row[1] is not None:
                won.append(row)
            elif row[10] is not None:
                lost.append(row)
            elif row[8] == 0:
                assert stale is not None
                stale.append(row[0])
            else:
                reached[row[8]] = (row[2], row[0])
        for lane, most in zip(lanes, asked.values(), strict=True):
            count, last = reached[lane]
            self._low_water.reached(lane, last if count == most else 0, now_ns)
        if lost and connection.is_in_transaction():
            await self._block(connection, lost)
        elif lost:
            # What it looks at must stand still until the jobs are blocked. If others are in the
            # way they stay ready, and the next claim meets them again.
            with suppress(*IN_THE_WAY):
                async with connection.transaction():
                    await self._block(connection, lost)
        await self._lanes_of({row[8] for row in won})
        claims = [self._claim_of(row, token) for row in won]
        if any(row[15] is not None or row[16] for row in won):
            await self._add_inboxes(connection, claims, won)
        return claims, len(won) + len(lost)

    def _claim_of(self, row: Any, token: int) -> Claim:
        lane = self._lane_of[row[8]]
        return Claim(
            row[0], token, row[1], row[2], row[3], row[4], row[5], row[6], row[7], lane[0], lane[1],
            row[9], row[10], row[11], row[12], row[13], row[14],
        )  # fmt: skip

    async def _add_inboxes(
        self, connection: Connection, claims: Sequence[Claim], rows: Sequence[Any]
    ) -> None:
        """Give claims the signals they waited for and the children they have."""
        by_id = {claim.id: claim for claim in claims}
        if told := [row[0] for row in rows if row[15] is not None]:
            for job, id, name, payload in await connection.fetch(self._sql["inbox"], told):
                by_id[job].signals += (Signal(id, name, payload),)
        if parents := [row[0] for row in rows if row[16]]:
            for parent, id, kind, status, result, error in await connection.fetch(
                self._sql["children"], parents
            ):
                child = Child(id, kind, Status(status.decode()), result, error)
                by_id[parent].children += (child,)

    async def _block(self, connection: Connection, lost: Sequence[Any]) -> None:
        """Jobs whose key is taken leave their lane. Whoever has the key waits for us to commit.

        What gave way between the claim and now stays ready: the next claim finds the key free.
        """
        keys = list({row[10] for row in lost})
        held = {row[0] for row in await connection.fetch(self._sql["held_keys"], keys)}
        earlier = {
            row[0]
            for row in await connection.fetch(
                self._sql["earlier"], [row[0] for row in lost], [row[10] for row in lost]
            )
        }
        stuck = [row for row in lost if row[10] in held or row[0] in earlier]
        if stuck:
            await connection.execute(
                self._sql["block"], [row[0] for row in stuck], list({row[8] for row in stuck})
            )

    async def _allowances(
        self, connection: Connection, asked: Mapping[Lane, int], out: Exchanged
    ) -> dict[str, _Allowed]:
        """How many each limited queue may start now, held until we commit."""
        names = sorted({lane.queue for lane in asked} | {"*"})
        allowed = {}
        for name, concurrency, rate, _, tokens, running in await connection.fetch(
            self._sql["limits"], names
        ):
            free = _UNLIMITED if concurrency is None else max(0, concurrency - running)
            wait_ns = 0
            if rate is not None:
                free = min(free, int(tokens))
                wait_ns = round(max(0.0, 1 - tokens) / rate * 1e9)
            allowed[name] = _Allowed(free, tokens, rate is not None)
            if not free:
                queues = {lane.queue for lane in asked} if name == "*" else {name}
                out.held_back_ns = {**out.held_back_ns, **dict.fromkeys(queues, wait_ns)}
        return allowed

    async def _spend(
        self, connection: Connection, allowed: Mapping[str, _Allowed], claims: Sequence[Claim]
    ) -> None:
        spent = {name: one for name, one in allowed.items() if one.rated}
        if spent:
            used = Counter(claim.queue for claim in claims)
            used["*"] = len(claims)
            await connection.execute(
                self._sql["spend"],
                list(spent),
                [one.tokens - used[name] for name, one in spent.items()],
            )

    async def _probe(
        self, connection: Connection, worker: int, queues: Collection[str], out: Exchanged
    ) -> None:
        rows = await connection.fetch(self._sql["probe"], list(queues), worker)
        found = await self._lanes_of({row[0] for row in rows if row[0] > 0})
        out.lanes = {
            queue: sorted(lane for lane in found if lane.queue == queue) for queue in queues
        }
        self._limited -= {*queues, "*"}
        self._limited |= {limited for _, limited in rows if limited is not None}
        out.cancelling = sorted(-row[0] for row in rows if row[0] < 0)

    # Maintenance

    async def promote(self, limit: int) -> Promoted:
        async with self._connections.connection() as connection:
            rows = await connection.fetch(self._sql["promote"], limit)
            next_us = await connection.fetchval(self._sql["next_due"])
        lanes = await self._lanes_of({row[0] for row in rows})
        self._low_water.forget(row[0] for row in rows)
        next_due_ns = None if next_us is None else max(0, next_us * 1000)
        return Promoted(len(rows), frozenset(lanes), next_due_ns)

    async def reap(self, limit: int) -> Reaped:
        woken: set[int] = set()

        async def take_over(connection: Connection) -> tuple[int, int, int, set[int]]:
            workers = [row[0] for row in await connection.fetch(self._sql["lost_workers"])]
            if not workers:
                return 0, 0, 0, set()
            rows = await connection.fetch(self._sql["take_over"], workers, limit)
            cancelled = [row[0] for row in rows if row[2]]
            dead = [row[0] for row in rows if row[3] and not row[2]]
            back = {row[0]: row[1] for row in rows if not row[2] and not row[3]}
            if back:
                queued = await connection.fetch(self._sql["queue_again"], list(back))
                woken.update(row[0] for row in queued)
            lanes = set(woken)
            keyed = {id: key for id, key in back.items() if key is not None}
            await self._settling.free_keys(connection, keyed, woken)
            if dead:
                await self._settling.end(connection, dead, Status.DEAD, None, woken)
            if cancelled:
                await self._settling.end(
                    connection, cancelled, Status.CANCELLED, "cancelled", woken
                )
            await connection.execute(self._sql["bury_workers"], workers)
            return len(workers), len(back), len(dead), lanes

        workers, back, dead, lanes = await self._connections.transaction(take_over)
        self._low_water.forget(woken)
        return Reaped(workers, back, dead, frozenset(await self._lanes_of(lanes)))

    async def age(self, limit: int) -> int:
        rows = await self._connections.fetch("aged", limit)
        if not rows:
            return 0
        ups = [Lane(row[2], row[3], Band(row[4])) for row in rows]
        await self._ensure_lanes(set(ups))
        async with self._connections.connection() as connection:
            moved = await connection.fetch(
                self._sql["climb"],
                [row[0] for row in rows],
                [row[1] for row in rows],
                [self._lane_ids[up] for up in ups],
            )
        self._low_water.forget({self._lane_ids[up] for up in ups})
        return len(moved)

    # From outside

    async def signal(
        self, target: int | str, name: str, payload: bytes, *, dedup: str | None = None
    ) -> Delivered:
        async def deliver(connection: Connection) -> tuple[int | None, bool, set[int]]:
            woken: set[int] = set()
            id = target
            if isinstance(id, str):
                id = await connection.fetchval(self._sql["find_key"], id) or 0
            fresh = await self._settling.deliver(connection, id, name, payload, dedup, woken)
            return None if fresh is None else id, bool(fresh), woken

        id, fresh, woken = await self._connections.transaction(deliver)
        self._low_water.forget(woken)
        lanes = await self._lanes_of(woken)
        return Delivered(id, fresh, next(iter(lanes), None))

    async def cancel(self, jobs: Sequence[int], *, reason: str = "cancelled") -> Cancelled:
        woken: set[int] = set()

        async def end(connection: Connection) -> tuple[list[int], list[int]]:
            family = [row[0] for row in await connection.fetch(self._sql["family"], list(jobs))]
            rows = await connection.fetch(self._sql["mark_cancelled"], family)
            if not rows:
                return [], []
            parked = [row[0] for row in rows if row[3] != b"r"]
            free = await connection.fetch(
                self._sql["unqueue"],
                [row[0] for row in rows],
                list({row[1] for row in rows}),
                [row[2] for row in rows if row[2] is not None],
            )
            ended = sorted({*parked, *(row[0] for row in free)})
            await self._settling.end(connection, ended, Status.CANCELLED, reason, woken)
            return ended, sorted({row[0] for row in rows} - set(ended))

        ended, running = await self._connections.transaction(end)
        self._low_water.forget(woken)
        return Cancelled(tuple(ended), tuple(running))

    async def retry(self, jobs: Sequence[int]) -> list[int]:
        async def revive(connection: Connection) -> list[int]:
            rows = await connection.fetch(self._sql["reviving_keys"], list(jobs))
            keys: list[str] = []
            if rows:
                taken = await connection.fetch(
                    self._sql["retake_keys"],
                    [row[1] for row in rows],
                    [row[0] for row in rows],
                    [row[2] for row in rows],
                )
                keys = [row[0] for row in taken]
            return [row[0] for row in await connection.fetch(self._sql["revive"], list(jobs), keys)]

        revived = set(await self._connections.transaction(revive))
        self._low_water.forget(list(self._lane_of))
        return [id for id in jobs if id in revived]

    async def discard(self, jobs: Sequence[int]) -> list[int]:
        async with self._connections.connection() as connection:
            rows = await connection.fetch(self._sql["discard"], list(jobs))
        gone = {row[0] for row in rows}
        return [id for id in dict.fromkeys(jobs) if id in gone]

    async def progress(self, worker: int, values: Mapping[int, bytes]) -> None:
        async with self._connections.connection() as connection:
            await connection.execute(
                self._sql["progress"], worker, list(values), list(values.values())
            )

    async def find(self, id: int) -> Job | None:
        for statement in ("find", "find_ended", "find"):  # it may end between the first two
            if rows := await self._connections.fetch(statement, id):
                return job_of(rows[0])
        return None

    async def find_by_key(self, unique_key: str) -> Job | None:
        rows = await self._connections.fetch("find_key", unique_key)
        return await self.find(rows[0][0]) if rows else None

    async def browse(self, filter: Filter) -> list[Job]:
        text, args = browsing(filter)
        async with self._connections.connection(sent=False) as connection:
            rows = await connection.fetch(in_schema(text, self._connections.schema), *args)
        return [job_of(row) for row in rows]

    async def queues(self) -> list[QueueState]:
        return [
            QueueState(
                name=row[0],
                paused=row[1],
                limits=Limits(concurrency=row[2], rate_per_s=row[3], burst=row[4]),
                ready=row[5],
                scheduled=row[6],
                waiting=row[7],
                blocked=row[8],
                running=row[9],
            )
            for row in await self._connections.fetch("queues")
        ]

    async def set_paused(self, queue: str, paused: bool) -> None:
        async with self._connections.connection() as connection:
            await connection.execute(self._sql["set_paused"], queue, paused)

    async def set_limits(self, queue: str, limits: Limits) -> None:
        async with self._connections.connection() as connection:
            await connection.execute(
                self._sql["set_limits"],
                queue,
                limits.concurrency,
                limits.rate_per_s,
                limits.burst,
            )
        self._limited.add(queue)

    async def prune(self, older_than_ns: int, *, exact: bool = True) -> int:
        count = await self._turn_days(older_than_ns)
        while exact:
            async with self._connections.connection() as connection:
                said = await connection.execute(self._sql["prune"], _us(older_than_ns), PRUNE_ROWS)
            count += (some := int(said.split()[-1]))
            if some < PRUNE_ROWS:
                break
        async with self._connections.connection() as connection:
            await connection.execute(self._sql["forget_keys"])
        return count

    async def _turn_days(self, older_than_ns: int | None = None) -> int:
        """Make the parts of history for the next days, and drop those that are old enough."""
        schema = self._connections.schema
        count = 0
        async with self._connections.connection() as connection:
            today = await connection.fetchval(self._sql["today"])
            for ahead in range(DAYS_AHEAD):
                day = today + timedelta(days=ahead)
                text = (
                    f"create table if not exists fw.history_{day:%Y%m%d} partition of fw.history"
                    f" for values from ('{day} 00:00+00') to ('{day + timedelta(days=1)} 00:00+00')"
                )
                # After days with nobody to make them, the rest holds rows of that day: so be it.
                with suppress(asyncpg.CheckViolationError):
                    await connection.execute(in_schema(text, schema))
            if older_than_ns is None:
                return 0
            last = today - timedelta(microseconds=older_than_ns // 1000, days=1)
            for (part,) in await connection.fetch(self._sql["parts"]):
                if part >= f"history_{last:%Y%m%d}":
                    continue
                text = f"select 1 from fw.{part} h join fw.job p on p.id = h.parent limit 1"
                needed = await connection.fetchval(in_schema(text, schema))
                if not needed:
                    count += await connection.fetchval(
                        in_schema(f"select count(*) from fw.{part}", schema)
                    )
                    await connection.execute(in_schema(f"drop table fw.{part}", schema))
        return count


class _Allowed(NamedTuple):
    """What a limited queue may start now."""

    free: int
    tokens: float
    rated: bool


class _LowWater:
    """Where in each lane the next claim begins to look.

    While an old transaction is open somewhere, rows that were claimed long ago cannot be cleaned
    away, and every claim would step over all of them. It looks from the start again after a second,
    when a lane was not full, and when something came back into it: those have lower numbers.
    """

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int]] = {}

    def first(self, lane: int, now_ns: int) -> int:
        id, until_ns = self._at.get(lane, (0, 0))
        return id if now_ns < until_ns else 0

    def reached(self, lane: int, last: int, now_ns: int) -> None:
        _, until_ns = self._at.get(lane, (0, 0))
        if not last:
            self._at.pop(lane, None)
        elif now_ns < until_ns:
            self._at[lane] = (last, until_ns)
        else:
            self._at[lane] = (last, now_ns + LOW_WATER_NS)

    def clear(self) -> None:
        self._at.clear()

    def forget(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._at.pop(lane, None)


def _alike(jobs: Sequence[NewJob]) -> bool:
    """Whether jobs differ in their state alone and have nothing that needs care."""
    one = jobs[0]
    shape = (one.kind, one.queue, one.tenant, one.priority, one.version, one.step)
    rest = (one.max_attempts, one.max_crashes, one.trace)
    return all(
        job.unique_key is None
        and job.partition_key is None
        and job.parent is None
        and not job.delay_ns
        and job.at_wall_ns is None
        and (job.kind, job.queue, job.tenant, job.priority, job.version, job.step) == shape
        and (job.max_attempts, job.max_crashes, job.trace) == rest
        for job in jobs
    )


def _put_off(claim: Claim, delay_ns: int) -> Settlement:
    """Not now: back in line, as if it had not been claimed."""
    return Settlement(
        claim=claim, fate=Fate.RETRY, step=claim.step, delay_ns=delay_ns, counts=False
    )


def _lane(job: NewJob) -> Lane:
    return Lane(job.queue, job.tenant, band_of(job.priority))


def _us(ns: int) -> int:
    """Microseconds, rounded up: never earlier than asked."""
    return -(-ns // 1000)


def _by_id(claim: Claim) -> int:
    return claim.id

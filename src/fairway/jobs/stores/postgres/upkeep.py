"""What nobody asks for but time: timers, workers that died, waiting too long, forgetting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairway.core.priority import Band
from fairway.jobs.attempts import WORKER_DIED, AttemptFate
from fairway.jobs.job import DeadJob, ReadyLine, Reaped, Status
from fairway.jobs.store import Promoted
from fairway.jobs.stores.postgres.attempts import EndedAttempt, keep_attempts
from fairway.jobs.stores.postgres.columns import us
from fairway.jobs.stores.postgres.history import History

if TYPE_CHECKING:
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections
    from fairway.jobs.stores.postgres.ready_lines import LowWater, ReadyLineNumbers
    from fairway.jobs.stores.postgres.settling import PostgresSettling


class PostgresUpkeep:
    """The maintenance calls of a store."""

    def __init__(
        self,
        connections: Connections,
        lines: ReadyLineNumbers,
        low_water: LowWater,
        settling: PostgresSettling,
    ) -> None:
        self._connections = connections
        self._sql = connections.sql
        self._lines = lines
        self._low_water = low_water
        self._settling = settling
        self._history = History(connections)

    async def turn_days(self) -> None:
        await self._history.turn_days()

    async def promote(self, limit: int) -> Promoted:
        async def wake(connection: AsyncpgConnection) -> tuple[list[Any], int | None]:
            held = [row["id"] for row in await connection.fetch(self._sql["hold_due"], limit)]
            rows = await connection.fetch(self._sql["promote"], held, limit)
            return rows, await connection.fetchval(self._sql["next_due"])

        rows, next_us = await self._connections.transaction(wake)
        woken = {row["lane"] for row in rows}
        lines = await self._lines.of(woken)
        self._low_water.forget(woken)
        next_due_ns = None if next_us is None else max(0, next_us * 1000)
        return Promoted(len(rows), frozenset(lines), next_due_ns)

    async def reap(self, limit: int) -> Reaped:
        woken: set[int] = set()

        async def take_over(
            connection: AsyncpgConnection,
        ) -> tuple[int, int, list[DeadJob], set[int]]:
            workers = [row["id"] for row in await connection.fetch(self._sql["lost_workers"])]
            # A connection may stall before the commit of a claim until its worker was taken for
            # dead and forgotten. Nobody else would ever look for what it holds.
            gone = await connection.fetch(self._sql["gone_workers"])
            workers += [row["worker"] for row in gone]
            if not workers:
                return 0, 0, [], set()
            rows = await connection.fetch(self._sql["take_over"], workers, limit)
            lost = [
                EndedAttempt(
                    row["id"],
                    row["runs"],
                    row["step"],
                    row["worker"],
                    row["claimed_at"],
                    AttemptFate.LOST.value,
                    WORKER_DIED,
                    None,
                )
                for row in rows
            ]
            await keep_attempts(connection, self._sql, lost)
            cancelled = [row["id"] for row in rows if row["cancelling"]]
            rest = [row for row in rows if not row["cancelling"]]
            dead = [row["id"] for row in rest if row["dies"]]
            back = {row["id"]: row["pkey"] for row in rest if not row["dies"]}
            if back:
                queued = await connection.fetch(self._sql["queue_again"], list(back))
                woken.update(row["lane"] for row in queued)
            lines = set(woken)
            keyed = {id: key for id, key in back.items() if key is not None}
            await self._settling.free_keys(connection, keyed, woken)
            ended = {}
            if dead:
                endings = await self._settling.end(connection, dead, Status.DEAD, woken)
                ended = {one.id: one.error or "" for one in endings}
            if cancelled:
                await self._settling.end(connection, cancelled, Status.CANCELLED, woken)
            await connection.execute(self._sql["forget_workers"], workers)
            died = [
                DeadJob(row["id"], row["kind"], row["tries"], ended[row["id"]])
                for row in rows
                if row["id"] in ended
            ]
            return len(workers), len(back), died, lines

        workers, back, died, lines = await self._connections.transaction(take_over)
        self._low_water.forget(woken)
        ready = frozenset(await self._lines.of(lines))
        return Reaped(workers, back, len(died), ready, tuple(sorted(died)))

    async def age(self, limit: int) -> int:
        rows = await self._connections.fetch("aged", limit)
        if not rows:
            return 0
        ups = [
            ReadyLine(row["queue"], row["tenant"], Band(row["band"]), row["skill"]) for row in rows
        ]
        await self._lines.ensure(set(ups))
        moved = await self._connections.change(
            "climb",
            [row["lane"] for row in rows],
            [row["id"] for row in rows],
            [self._lines[up] for up in ups],
        )
        self._low_water.forget({self._lines[up] for up in ups})
        return len(moved)

    async def prune(
        self, older_than_ns: int, failed_ns: int, dedup_older_than_ns: int | None, *, exact: bool
    ) -> int:
        gone = await self._history.prune(older_than_ns, failed_ns, exact=exact)
        await self._connections.change("forget_signals")
        await self._history.forget_attempts(exact=exact)
        if dedup_older_than_ns is not None:
            async with self._connections.connection() as connection:
                await connection.execute(self._sql["forget_signal_keys"], us(dedup_older_than_ns))
        return gone

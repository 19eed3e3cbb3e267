"""How claims are settled in PostgreSQL, and everything that follows from a job's ending.

Everything here runs in the transaction of the connection it is given. The first statement of each
settlement deletes the lease by worker, job and token: what it does not find is stale, and nothing
else happens to it. Numbers of ready lines that got something ready are added to `woken`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpg import LockNotAvailableError
from msgspec import structs

from fairway.core.priority import Band
from fairway.jobs.job import ASIDE_MAX, CANCELLED, Fate, Status, ending, line_of
from fairway.jobs.moves import END, Facts, child_ended, like, settled, signalled
from fairway.jobs.store import Ended
from fairway.jobs.stores.postgres.attempts import ended_attempt, keep_attempts
from fairway.jobs.stores.postgres.columns import us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from fairway.jobs.job import ReadyLine, Settlement
    from fairway.jobs.store import Exchanged
    from fairway.jobs.stores.postgres.attempts import EndedAttempt
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection
    from fairway.jobs.stores.postgres.intake import PostgresIntake
    from fairway.jobs.stores.postgres.ready_lines import ReadyLineNumbers

_LETTER = {fate: status.value.encode() for fate, status in END.items()}
ANEW = -1
"""In place of attempts to be added, for `requeue`: they are forgotten, a step begins."""
LOCK_WAIT_MS = 50
"""How long an exchange waits for unique keys of children that others hold, before it only tries.
Raising it postpones fewer of those that meet a short transaction, and holds up everything else that
is settled for longer."""


class _Gone(NamedTuple):
    """A job that has ended, and who may have waited for it."""

    key: str | None
    parent: int | None
    notify: str | None
    ended: Ended


class PostgresSettling:
    """Settles claims and ends jobs."""

    def __init__(
        self,
        sql: Mapping[str, str],
        intake: PostgresIntake,
        lines: ReadyLineNumbers,
        lock_wait_ms: int = LOCK_WAIT_MS,
    ) -> None:
        self._sql = sql
        self._intake = intake
        self._lines = lines
        self.lock_wait_ms = lock_wait_ms

    async def settle(
        self,
        connection: AsyncpgConnection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
    ) -> None:
        aside: dict[object, Settlement] = {}
        held: list[set[str]] = []
        for part in together(settlements):
            # Those that spawn such keys come one by one.
            keys = _spawned_keys(part) if len(part) == 1 else None
            if not keys:
                await self._settle(connection, worker, part, out, woken, aside)
                continue
            known = any(some <= keys for some in held)
            # After the first wait that was in vain the others are only tried: they add up.
            lock_wait_ms = 1 if held else self.lock_wait_ms
            if known or not await self._spawn(connection, worker, part, out, woken, lock_wait_ms):
                held.append(keys)
                out.postponed = [*out.postponed, *part]
        for one in aside.values():
            claim = one.claim
            rows = await connection.fetch(
                self._sql["set_aside"],
                *(claim.queue, claim.tenant, *like(claim), one.skill, ASIDE_MAX, one.error),
            )
            woken |= {row["lane"] for row in rows}  # also what this exchange made ready

    async def _settle(
        self,
        connection: AsyncpgConnection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
        aside: dict[object, Settlement],
    ) -> None:
        """Settle; one settlement of each kind that is set aside is added to `aside`."""
        finishing: list[Settlement] = []
        going: list[Settlement] = []
        parking: list[Settlement] = []
        for one in settlements:
            move = settled(one)  # whether somebody has cancelled the job is seen in the statements
            if move.ends:
                finishing.append(one)
            elif move.to is Status.WAITING or one.children:
                parking.append(one)
            else:
                going.append(one)
        if finishing:
            await self._finish(connection, worker, finishing, out, woken)
        if going:
            await self._requeue(connection, worker, going, out, woken, aside)
        for one in parking:
            await self._park(connection, worker, one, out, woken)

    async def _finish(
        self,
        connection: AsyncpgConnection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
    ) -> None:
        rows = await connection.fetch(
            self._sql["finish"],
            worker,
            [one.claim.id for one in settlements],
            [one.claim.token for one in settlements],
            [_LETTER[one.fate] for one in settlements],
            [one.result for one in settlements],
            [one.error for one in settlements],
            [one.state for one in settlements],
            [one.progress for one in settlements],
        )
        found = {row["id"]: row for row in rows}
        await keep_attempts(
            connection,
            self._sql,
            [
                ended_attempt(one, worker, row["runs"], row["claimed_at"])
                for one in settlements
                if (row := found.get(one.claim.id)) is not None
            ],
        )
        consumed = [id for one in settlements if one.claim.id in found for id in one.consumed]
        if consumed:
            await connection.execute(self._sql["consume"], consumed)
        gone = []
        for one in settlements:
            row = found.get(one.claim.id)
            if row is None:
                out.stale.append(one.claim.id)
                continue
            ended = Ended(one.claim.id, END[one.fate], one.result, one.error)
            out.ended.append(ended)
            if row["pkey"] is not None or row["parent"] is not None:
                gone.append(_Gone(row["pkey"], row["parent"], row["notify"], ended))
        if gone:
            await self._after(connection, gone, woken)

    async def _requeue(
        self,
        connection: AsyncpgConnection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
        aside: dict[object, Settlement],
    ) -> None:
        moves = [(one, settled(one)) for one in settlements]
        rows = await connection.fetch(
            self._sql["requeue"],
            worker,
            [one.claim.id for one in settlements],
            [one.claim.token for one in settlements],
            [one.step if move.steps else None for one, move in moves],
            [one.state for one in settlements],
            [one.error for one in settlements],
            [us(one.delay_ns) if move.to is Status.SCHEDULED else 0 for one, move in moves],
            [ANEW if move.begins else move.tries for _, move in moves],
            [one.progress for one in settlements],
            [self._line(one) for one in settlements],
            [int(one.is_run) for one in settlements],
        )
        found = {row["id"]: row for row in rows}
        keyed: dict[int, str] = {}
        cancelled: dict[int, Settlement] = {}
        consumed: list[int] = []
        attempts: list[EndedAttempt | None] = []
        for one in settlements:
            claim = one.claim
            row = found.get(claim.id)
            if row is None:
                out.stale.append(claim.id)
                continue
            if row["lane"] is None:
                cancelled[claim.id] = one
                continue
            attempts.append(ended_attempt(one, worker, row["runs"], row["claimed_at"]))
            if claim.partition_key is not None:
                keyed[claim.id] = claim.partition_key
            if row["delay_us"] == 0:
                woken.add(row["lane"])
            if one.fate is Fate.RELEASE and one.skill:
                aside.setdefault((self._line(one), like(one.claim)), one)
            consumed += one.consumed
        if consumed:
            await connection.execute(self._sql["consume"], consumed)
        await keep_attempts(connection, self._sql, attempts)
        await self.free_keys(connection, keyed, woken)
        if cancelled:
            since = {id: found[id]["claimed_at"] for id in cancelled}
            out.ended += await self._end_cancelled(connection, worker, cancelled, since, woken)

    def _line(self, one: Settlement) -> int | None:
        """The ready line that a settlement moves its job to, if it does."""
        if one.skill is None:
            return None
        return self._lines[line_of(one.claim)._replace(skill=one.skill)]

    async def _park(
        self,
        connection: AsyncpgConnection,
        worker: int,
        one: Settlement,
        out: Exchanged,
        woken: set[int],
    ) -> None:
        claim = one.claim
        held = await connection.fetch(self._sql["fence"], worker, claim.id, claim.token)
        if not held:
            out.stale.append(claim.id)
            return
        keyed = {} if claim.partition_key is None else {claim.id: claim.partition_key}
        if held[0]["cancelling"]:
            since = {claim.id: held[0]["claimed_at"]}
            out.ended += await self._end_cancelled(
                connection, worker, {claim.id: one}, since, woken
            )
            return
        if one.children:
            children = [structs.replace(child, parent=claim.id) for child in one.children]
            await self._intake.add(connection, children)
            woken |= {self._lines[line_of(child)] for child in children}
        if consumed := one.consumed:
            await connection.execute(self._sql["consume"], consumed)
        (parked,) = await connection.fetch(
            self._sql["park"],
            claim.id,
            one.step,
            one.state,
            one.error,
            one.progress,
            list(one.names) or None,
            any(child.notify is None for child in one.children),
            self._line(one),
        )
        if settled(one).to is not Status.WAITING:
            wakes = True
        elif one.names:
            wakes = await connection.fetchval(self._sql["heard"], claim.id, list(one.names))
        else:
            wakes = not parked["awaits"]
        if wakes:
            woken |= await self._wake(connection, [claim.id])
        elif one.delay_ns:
            await connection.execute(self._sql["set_timer"], claim.id, us(one.delay_ns))
        ended = ended_attempt(one, worker, parked["runs"], held[0]["claimed_at"])
        await keep_attempts(connection, self._sql, [ended])
        await self.free_keys(connection, keyed, woken)

    async def _end_cancelled(
        self,
        connection: AsyncpgConnection,
        worker: int,
        settlements: Mapping[int, Settlement],
        since: Mapping[int, datetime],
        woken: set[int],
    ) -> list[Ended]:
        """End jobs whose runs would have gone on, if nobody had cancelled them."""
        ran = [id for id, one in settlements.items() if one.is_run]
        counted = await connection.fetch(self._sql["count_runs"], ran) if ran else []
        ended = await self.end(connection, list(settlements), Status.CANCELLED, woken)
        reasons = {one.id: one.error or CANCELLED for one in ended}
        await keep_attempts(
            connection,
            self._sql,
            [
                ended_attempt(settlements[id], worker, runs, since[id], reasons[id])
                for id, runs in counted
            ],
        )
        return ended

    async def _spawn(
        self,
        connection: AsyncpgConnection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
        lock_wait_ms: int,
    ) -> bool:
        """Settle what spawns unique keys; False, and nothing of it, if somebody holds one of them.

        A transaction of a user may hold a key for as long as it likes. It must not hold up whatever
        else the worker has to settle.
        """
        await connection.execute(
            f"savepoint fairway_spawn; set local lock_timeout = {lock_wait_ms}"
        )
        try:
            await self._settle(connection, worker, settlements, out, woken, {})
        except LockNotAvailableError:
            await connection.execute(
                "rollback to savepoint fairway_spawn; release savepoint fairway_spawn"
            )
            return False
        await connection.execute(
            "release savepoint fairway_spawn; set local lock_timeout to default"
        )
        return True

    async def end(
        self,
        connection: AsyncpgConnection,
        ids: Sequence[int],
        status: Status,
        woken: set[int],
    ) -> list[Ended]:
        """End jobs that nobody holds, as dead or as cancelled."""
        rows = await connection.fetch(self._sql["end_jobs"], list(ids), status.value.encode())
        gone = []
        for row in rows:
            ended = Ended(row["id"], status, None, row["final_error"])
            gone.append(_Gone(row["pkey"], row["parent"], row["notify"], ended))
        await self._after(connection, gone, woken)
        return [one.ended for one in gone]

    async def _after(
        self, connection: AsyncpgConnection, gone: Sequence[_Gone], woken: set[int]
    ) -> None:
        """What follows from endings: keys are free, parents are notified."""
        keyed = {one.ended.id: one.key for one in gone if one.key is not None}
        await self.free_keys(connection, keyed, woken)
        parents = sorted({one.parent for one in gone if one.parent is not None and not one.notify})
        if parents:
            # Locked first, looked at in a second statement: of two children that end at the same
            # time, the later one sees that the other has gone.
            await connection.fetch(self._sql["lock_parents"], parents)
            rows = await connection.fetch(self._sql["pending"], parents)
            ready = [
                row["id"] for row in rows if child_ended(_facts(row), row["pending"]) is not None
            ]
            if ready:
                woken |= await self._wake(connection, ready)
        for one in sorted(gone, key=lambda one: (one.parent or 0, one.ended.id)):
            if one.parent is not None and one.notify is not None:
                payload = ending(*one.ended)
                await self.deliver(connection, one.parent, one.notify, payload, None, woken)

    async def _wake(self, connection: AsyncpgConnection, jobs: Sequence[int]) -> set[int]:
        """Parked jobs become ready; the lines that they wait in."""
        return {row["lane"] for row in await connection.fetch(self._sql["wake"], jobs)}

    async def deliver(
        self,
        connection: AsyncpgConnection,
        job: int,
        name: str,
        payload: bytes,
        dedup: str | None,
        woken: set[int],
    ) -> bool | None:
        """Put a signal into an inbox. None if the job has ended, False if it was there already.

        The job's row is changed first, always: whoever is about to park the job waits for us and
        then sees the signal, or we wait for them and then see that it is parked.
        """
        if dedup is None:
            rows = await connection.fetch(self._sql["send_signal"], job, name, payload)
            if any(row["wakes"] for row in rows):
                woken |= {row["lane"] for row in rows}
                await connection.execute(self._sql["end_timer"], job)
            return bool(rows) or None
        rows = await connection.fetch(self._sql["notified"], job)
        if not rows:
            return None
        if not await connection.fetch(self._sql["deliver"], job, name, payload, dedup):
            return False
        if signalled(_facts(rows[0]), name) is not None:
            woken |= await self._wake(connection, [job])
        return True

    async def free_keys(
        self, connection: AsyncpgConnection, keyed: Mapping[int, str], woken: set[int]
    ) -> None:
        """Jobs run no longer: the first that waits for each of their keys may try for it.

        In two statements: the second sees who began to wait while the first waited for them.
        """
        if keyed:
            keys = sorted(set(keyed.values()))
            await connection.execute(self._sql["free_keys"], keys, list(keyed))
            rows = await connection.fetch(self._sql["unblock"], keys)
            woken |= {row["lane"] for row in rows}


def _facts(row: Any) -> Facts:
    return Facts(Status(row["status"].decode()), names=row["names"] or ())


def together(settlements: Sequence[Settlement]) -> Iterator[Sequence[Settlement]]:
    """Those that may be settled in one go, in order: what they spawn is numbered in that order."""
    if _spawned_keys(settlements):
        # Whether such a child is new depends on who ended before it was spawned: one by one.
        yield from ([one] for one in settlements)
        return
    start, seen = 0, set[int]()
    for at, one in enumerate(settlements):
        if one.claim.id in seen:  # an old claim of the job and its successor: one after the other
            yield settlements[start:at]
            start, seen = at, set()
        seen.add(one.claim.id)
    yield settlements[start:]


def _spawned_keys(settlements: Sequence[Settlement]) -> set[str]:
    """The unique keys of the children that these spawn."""
    return {
        child.unique_key
        for one in settlements
        for child in one.children
        if child.unique_key is not None
    }


def lines_with(one: Settlement) -> set[ReadyLine]:
    """The ready lines that a settlement with a skill puts jobs in: those of its tenant."""
    return {line_of(one.claim)._replace(band=band, skill=one.skill or "") for band in Band}

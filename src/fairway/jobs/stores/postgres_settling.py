"""How claims are settled in PostgreSQL, and everything that follows from a job's ending.

Everything here runs in the transaction of the connection it is given. The first statement of each
settlement deletes the lease by worker, job and token: what it does not find is stale, and nothing
else happens to it. Numbers of lanes that got something ready are added to `woken`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from asyncpg import LockNotAvailableError
from msgspec import structs

from fairway.core.priority import Band
from fairway.jobs.job import ASIDE_MAX, TERMINAL, Fate, Status, ending, lane_of
from fairway.jobs.store import Ended
from fairway.jobs.stores.postgres_connections import us

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fairway.jobs.job import Claim, Lane, Settlement
    from fairway.jobs.store import Exchanged
    from fairway.jobs.stores.postgres_connections import Connection
    from fairway.jobs.stores.postgres_intake import Intake
    from fairway.jobs.stores.postgres_lanes import LaneNumbers

_STATUS = {
    Fate.DONE: Status.DONE,
    Fate.FAILED: Status.FAILED,
    Fate.CANCELLED: Status.CANCELLED,
}
_LETTER = {fate: status.value.encode() for fate, status in _STATUS.items()}
_SIMPLE = frozenset({Fate.NEXT, Fate.RETRY, Fate.RELEASE})
PATIENCE_MS = 50
"""How long an exchange waits for unique keys of children that others hold, before it only tries.
Raising it postpones fewer of those that meet a short transaction, and holds up everything else that
is settled for longer."""


class _Gone(NamedTuple):
    """A job that has ended, and who may have waited for it."""

    id: int
    key: str | None
    parent: int | None
    notify: str | None
    ended: Ended


class Settling:
    """Settles claims and ends jobs."""

    def __init__(
        self,
        sql: Mapping[str, str],
        intake: Intake,
        lanes: LaneNumbers,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        self._sql = sql
        self._intake = intake
        self._lanes = lanes
        self.patience_ms = patience_ms

    async def settle(
        self,
        connection: Connection,
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
            patience_ms = 1 if held else self.patience_ms
            if known or not await self._spawn(connection, worker, part, out, woken, patience_ms):
                held.append(keys)
                out.postponed = [*out.postponed, *part]
        for one in aside.values():
            claim = one.claim
            rows = await connection.fetch(
                self._sql["set_aside"],
                *(claim.queue, claim.tenant, *_like(claim), one.skill, ASIDE_MAX, one.error),
            )
            woken |= {row[0] for row in rows}  # also what this exchange made ready

    async def _settle(
        self,
        connection: Connection,
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
            if one.fate in TERMINAL:
                finishing.append(one)
            elif one.fate in _SIMPLE and not one.children:
                going.append(one)
            else:
                parking.append(one)
        if finishing:
            await self._finish(connection, worker, finishing, out, woken)
        if going:
            await self._requeue(connection, worker, going, out, woken, aside)
        for one in parking:
            await self._park(connection, worker, one, out, woken)

    async def _finish(
        self,
        connection: Connection,
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
        found = {row[0]: row for row in rows}
        consumed = [id for one in settlements if one.claim.id in found for id in one.consumed]
        if consumed:
            await connection.execute(self._sql["consume"], consumed)
        gone = []
        for one in settlements:
            row = found.get(one.claim.id)
            if row is None:
                out.stale.append(one.claim.id)
                continue
            ended = Ended(one.claim.id, _STATUS[one.fate], one.result, one.error)
            out.ended.append(ended)
            if row[1] is not None or row[2] is not None:
                gone.append(_Gone(row[0], row[1], row[2], row[3], ended))
        if gone:
            await self._after(connection, gone, woken)

    async def _requeue(
        self,
        connection: Connection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
        aside: dict[object, Settlement],
    ) -> None:
        rows = await connection.fetch(
            self._sql["requeue"],
            worker,
            [one.claim.id for one in settlements],
            [one.claim.token for one in settlements],
            [None if one.fate is Fate.RELEASE else one.step for one in settlements],
            [one.state for one in settlements],
            [one.error for one in settlements],
            [us(one.delay_ns) if one.fate is Fate.RETRY else 0 for one in settlements],
            [_tries(one) for one in settlements],
            [one.progress for one in settlements],
            [self._lane(one) for one in settlements],
        )
        found = {row[0]: row for row in rows}
        keyed: dict[int, str] = {}
        cancelled: list[int] = []
        consumed: list[int] = []
        for one in settlements:
            claim = one.claim
            row = found.get(claim.id)
            if row is None:
                out.stale.append(claim.id)
                continue
            if row[1] is None:
                cancelled.append(claim.id)
                continue
            if claim.partition_key is not None:
                keyed[claim.id] = claim.partition_key
            if row[2] == 0:
                woken.add(row[1])
            if one.fate is Fate.RELEASE and one.skill:
                aside.setdefault((self._lane(one), _like(one.claim)), one)
            consumed += one.consumed
        if consumed:
            await connection.execute(self._sql["consume"], consumed)
        await self.free_keys(connection, keyed, woken)
        if cancelled:
            out.ended += await self.end(connection, cancelled, Status.CANCELLED, woken)

    def _lane(self, one: Settlement) -> int | None:
        """The lane that a settlement moves its job to, if it does."""
        if one.skill is None:
            return None
        return self._lanes[lane_of(one.claim)._replace(skill=one.skill)]

    async def _park(
        self,
        connection: Connection,
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
        if held[0][0]:
            out.ended += await self.end(connection, [claim.id], Status.CANCELLED, woken)
            return
        if one.children:
            children = [structs.replace(child, parent=claim.id) for child in one.children]
            await self._intake.add(connection, children)
            woken |= {self._lanes[lane_of(child)] for child in children}
        if consumed := one.consumed:
            await connection.execute(self._sql["consume"], consumed)
        left = await connection.fetchval(
            self._sql["park"],
            claim.id,
            one.step,
            one.state,
            one.error,
            one.progress,
            list(one.names) or None,
            any(child.notify is None for child in one.children),
            self._lane(one),
        )
        if one.names:
            wakes = await connection.fetchval(self._sql["heard"], claim.id, list(one.names))
        else:
            wakes = one.fate is not Fate.SPAWN or not left
        if wakes:
            woken |= {row[0] for row in await connection.fetch(self._sql["wake"], [claim.id])}
        elif one.delay_ns:
            await connection.execute(self._sql["set_timer"], claim.id, us(one.delay_ns))
        await self.free_keys(connection, keyed, woken)

    async def _spawn(
        self,
        connection: Connection,
        worker: int,
        settlements: Sequence[Settlement],
        out: Exchanged,
        woken: set[int],
        patience_ms: int,
    ) -> bool:
        """Settle what spawns unique keys; False, and nothing of it, if somebody holds one of them.

        A transaction of a user may hold a key for as long as it likes. It must not hold up whatever
        else the worker has to settle.
        """
        await connection.execute(f"savepoint fairway_spawn; set local lock_timeout = {patience_ms}")
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
        connection: Connection,
        ids: Sequence[int],
        status: Status,
        woken: set[int],
    ) -> list[Ended]:
        """End jobs that nobody holds, as dead or as cancelled."""
        rows = await connection.fetch(self._sql["end_jobs"], list(ids), status.value.encode())
        gone = []
        for id, key, parent, notify, said in rows:
            gone.append(_Gone(id, key, parent, notify, Ended(id, status, None, said)))
        await self._after(connection, gone, woken)
        return [one.ended for one in gone]

    async def _after(self, connection: Connection, gone: Sequence[_Gone], woken: set[int]) -> None:
        """What follows from endings: keys are free, parents are told."""
        keyed = {one.id: one.key for one in gone if one.key is not None}
        await self.free_keys(connection, keyed, woken)
        parents = sorted({one.parent for one in gone if one.parent is not None and not one.notify})
        if parents:
            # Locked first, looked at in a second statement: of two children that end at the same
            # time, the later one sees that the other has gone.
            await connection.fetch(self._sql["lock_parents"], parents)
            ready = [row[0] for row in await connection.fetch(self._sql["childless"], parents)]
            if ready:
                woken |= {row[0] for row in await connection.fetch(self._sql["wake"], ready)}
        for one in sorted(gone, key=lambda one: (one.parent or 0, one.id)):
            if one.parent is not None and one.notify is not None:
                payload = ending(*one.ended)
                await self.deliver(connection, one.parent, one.notify, payload, None, woken)

    async def deliver(
        self,
        connection: Connection,
        job: int,
        name: str,
        payload: bytes,
        dedup: str | None,
        woken: set[int],
    ) -> bool | None:
        """Put a signal into an inbox. None if the job has ended, False if it was there already.

        The job's row is changed first, always: whoever is about to park the job waits for us and
        then sees the signal, or we wait for him and then see that it is parked.
        """
        if dedup is None:
            rows = await connection.fetch(self._sql["tell"], job, name, payload)
            woken |= {row[0] for row in rows if row[1]}
            return bool(rows) or None
        rows = await connection.fetch(self._sql["notified"], job)
        if not rows:
            return None
        if not await connection.fetch(self._sql["deliver"], job, name, payload, dedup):
            return False
        status, names, _ = rows[0]
        if status == b"w" and names is not None and name in names:
            woken |= {row[0] for row in await connection.fetch(self._sql["wake"], [job])}
        return True

    async def free_keys(
        self, connection: Connection, keyed: Mapping[int, str], woken: set[int]
    ) -> None:
        """Jobs run no longer: the first that waits for each of their keys may try for it.

        In two statements: the second sees who began to wait while the first waited for them.
        """
        if keyed:
            keys = sorted(set(keyed.values()))
            await connection.execute(self._sql["free_keys"], keys, list(keyed))
            woken |= {row[0] for row in await connection.fetch(self._sql["unblock"], keys)}


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


def lanes_with(one: Settlement) -> set[Lane]:
    """The lanes that a settlement with a skill puts jobs in: those of its tenant."""
    return {lane_of(one.claim)._replace(band=band, skill=one.skill or "") for band in Band}


def _like(claim: Claim) -> tuple[str, int, str]:
    return claim.kind, claim.version, claim.step


def _tries(one: Settlement) -> int:
    """What a settlement does to the count of attempts; -1 resets it."""
    if one.fate is Fate.RETRY:
        return int(one.counts)
    return 0 if one.fate is Fate.RELEASE else -1

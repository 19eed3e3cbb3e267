"""Claiming in PostgreSQL: the first jobs of lines, under limits, if they can have their keys."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from fairway.jobs.job import CLAIM_FIELDS, Child, Claim, Fate, Settlement, Signal, Status
from fairway.jobs.limits import allowance, stored_limits
from fairway.jobs.stores.postgres.connections import IN_THE_WAY
from fairway.runtime.clock import sleep_ns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from fairway.jobs.job import ReadyLine
    from fairway.jobs.limits import StartAllowance
    from fairway.jobs.store import Exchanged
    from fairway.jobs.stores.postgres.connections import AsyncpgConnection, Connections
    from fairway.jobs.stores.postgres.locks import KeyLocks
    from fairway.jobs.stores.postgres.ready_lines import LowWater, ReadyLineNumbers
    from fairway.jobs.stores.postgres.settling import PostgresSettling
    from fairway.runtime.clock import Clock

CONTENDED_NS = 50_000_000
"""How long a job rests whose key somebody else has, where keys are advisory locks."""


LOOK_AGAIN_NS = 1_000_000
"""How often whoever sets limits looks whether the claims that were under way have ended."""

logger = logging.getLogger("fairway.jobs")


class LimitFound(Exception):
    """A claim in a transaction that did not pass the gate met a limit: it begins again, and does.

    Whoever waits at the gate holds nothing that others wait for.
    """


class PostgresClaiming:
    """Claims jobs in the transaction of the connection it is given."""

    def __init__(
        self,
        sql: Mapping[str, str],
        lines: ReadyLineNumbers,
        low_water: LowWater,
        settling: PostgresSettling,
        locks: KeyLocks | None,
        clock: Clock,
    ) -> None:
        self._sql = sql
        self._lines = lines
        self._low_water = low_water
        self._settling = settling
        self._locks = locks
        self._clock = clock
        self.limited: set[str] = set()
        """Queues that have limits, as of the last look at them. Only a hint, which spares the claim
        that meets a limit: the statement that claims leaves out what it finds to be limited."""

    async def take_keys(self, connection: AsyncpgConnection, worker: int, out: Exchanged) -> None:
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
            again = [put_off(one, CONTENDED_NS) for one in out.claims if one.id in refused]
            await self._settling.settle(connection, worker, again, out, set())
            out.claims = [claim for claim in out.claims if claim.id not in refused]
            out.contended += len(refused)

    async def claim(
        self,
        connection: AsyncpgConnection,
        worker: int,
        token: int,
        asked: Mapping[ReadyLine, int],
        out: Exchanged,
        *,
        gated: bool,
    ) -> dict[ReadyLine, int]:
        """Claim from ready lines; those left out, since they have limits and there was no
        transaction.

        `gated`: the transaction has passed the gate, and may claim under limits.
        """
        left: dict[ReadyLine, int] = {}
        if gated:
            await self._claim_limited(connection, worker, token, asked, out)
        else:
            left = (await self.take(connection, worker, token, asked, out)).limited
            if left and connection.is_in_transaction():
                raise LimitFound
        out.claims.sort(key=by_id)
        return left

    def may_be_limited(self, lines: Iterable[ReadyLine]) -> bool:
        """Whether a claim from these ready lines is better made under limits from the start."""
        return bool(self.limited) and not self.limited.isdisjoint(
            {"*", *(line.queue for line in lines)}
        )

    async def transaction(
        self,
        connections: Connections,
        work: Callable[[AsyncpgConnection], Awaitable[Exchanged]],
        lines: Collection[ReadyLine],
    ) -> Exchanged:
        """Run `work`, which claims from `lines`, in a transaction; again if it met a limit."""
        while True:
            try:
                return await connections.transaction(work)
            except LimitFound:
                # What it claimed is ready again, before where the next claim would begin to look.
                self._low_water.forget(self._lines[line] for line in lines)

    async def wait_for_claims(self, connection: AsyncpgConnection, most_ns: int) -> None:
        """Until every transaction that changes leases now has ended, or for `most_ns`.

        A statement holds the table before it decides what it sees, and holds it to the end. So
        whoever could have missed what was committed before this call is among them.
        """
        text = self._sql["claims_under_way"]
        until_ns = self._clock.now_ns() + most_ns
        under_way = {claim for (claim,) in await connection.fetch(text)}
        while under_way and self._clock.now_ns() < until_ns:
            await sleep_ns(LOOK_AGAIN_NS)
            under_way &= {claim for (claim,) in await connection.fetch(text)}
        if under_way:
            logger.warning(
                "%d claims are under way for long, and may not keep the limits that were set",
                len(under_way),
            )

    async def pass_gate(self, connection: AsyncpgConnection) -> None:
        """Before anything else of a transaction that claims under limits."""
        await connection.execute(self._sql["pass_gate"])

    async def _claim_limited(
        self,
        connection: AsyncpgConnection,
        worker: int,
        token: int,
        asked: Mapping[ReadyLine, int],
        out: Exchanged,
    ) -> None:
        """Claim line by line: what one leaves of a limit, the next may use."""
        claimed = len(out.claims)
        allowed = await self._allowances(connection, asked, out)
        left = {name: one.free for name, one in allowed.items()}
        for line, most in asked.items():
            limits = left.keys() & {line.queue, "*"}
            while most and (count := min(most, *(left[name] for name in limits), most)):
                taken = await self.take(connection, worker, token, {line: count}, out, held=[*left])
                if taken.limited:
                    raise LimitFound  # set after we looked for limits
                for name in limits:
                    left[name] -= taken.won
                # Jobs whose key was taken used up none of the limit: look at as many again.
                most = most - taken.looked if taken.looked == count else 0
        if allowed:
            await self._spend(connection, allowed, out.claims[claimed:])

    async def take(
        self,
        connection: AsyncpgConnection,
        worker: int,
        token: int,
        asked: Mapping[ReadyLine, int],
        out: Exchanged,
        done: tuple[Any, ...] = (),
        held: Sequence[str] = (),
    ) -> ClaimCount:
        """Claim from ready lines, but not from those under limits that are not `held`.

        With `done` jobs end in the same statement; those that were not ours are stale.
        """
        lines = [self._lines[line] for line in asked]
        now_ns = self._clock.now_ns()
        low = [self._low_water.first(line, now_ns) for line in lines]
        rows = await connection.fetch(
            self._sql["trade" if done else "claim"],
            *(worker, token, lines, list(asked.values()), low, self._locks is not None, held),
            *done,
        )
        won: list[Any] = []
        lost: list[Any] = []
        limits: set[str] = set()
        reached = dict.fromkeys(lines, (0, 0))
        for row in rows:
            what = row["what"]
            if what == "job":
                won.append(row)
            elif what == "key":
                lost.append(row)
            elif what == "line":
                reached[row["lane"]] = (row["looked"], row["id"])
            elif what == "limit":
                limits.add(row["detail"])
            else:
                assert what == "stale", what
                out.stale.append(row["id"])
        for line, most in zip(lines, asked.values(), strict=True):
            count, last = reached[line]
            self._low_water.reached(line, last if count == most else 0, now_ns)
        out.contended += len(lost)
        if lost and connection.is_in_transaction():
            await self._block(connection, lost)
        elif lost:
            # What it looks at must stand still until the jobs are blocked. If others are in the
            # way they stay ready, and the next claim meets them again.
            with suppress(*IN_THE_WAY):
                async with connection.transaction():
                    await self._block(connection, lost)
        await self._lines.of({row["lane"] for row in won})
        claims = [self._claim_of(row, token) for row in won]
        if any(row["names"] is not None or row["spawned"] for row in won):
            await self._add_inboxes(connection, claims, won)
        out.claims += claims
        self.limited |= limits
        limited = {
            line: most for line, most in asked.items() if "*" in limits or line.queue in limits
        }
        return ClaimCount(len(won), len(won) + len(lost), limited)

    def _claim_of(self, row: Any, token: int) -> Claim:
        # By place: by name it takes several times as long, and it is done for every job that runs.
        claim = Claim(*row[-len(CLAIM_FIELDS) :])
        claim.token = token
        claim.queue, claim.tenant, _, claim.skill = self._lines.line(row["lane"])
        return claim

    async def _add_inboxes(
        self, connection: AsyncpgConnection, claims: Sequence[Claim], rows: Sequence[Any]
    ) -> None:
        """Give claims the signals they waited for and the children they have."""
        by_id = {claim.id: claim for claim in claims}
        if waited := [row["id"] for row in rows if row["names"] is not None]:
            for job, id, name, payload in await connection.fetch(self._sql["inbox"], waited):
                by_id[job].signals += (Signal(id, name, payload),)
                by_id[job].timed_out = False
        if parents := [row["id"] for row in rows if row["spawned"]]:
            for parent, id, kind, status, result, error in await connection.fetch(
                self._sql["children"], parents
            ):
                child = Child(id, kind, Status(status.decode()), result, error)
                by_id[parent].children += (child,)

    async def _block(self, connection: AsyncpgConnection, lost: Sequence[Any]) -> None:
        """Jobs whose key is taken leave their line. Whoever has the key waits for us to commit.

        What gave way between the claim and now stays ready: the next claim finds the key free.
        """
        keys = list({row["pkey"] for row in lost})
        held = {row["pkey"] for row in await connection.fetch(self._sql["held_keys"], keys)}
        # Only where order is strict does an earlier job that does not run hold up the others.
        strict = [row for row in lost if row["strict"]]
        earlier = {
            row["id"]
            for row in await connection.fetch(
                self._sql["earlier"],
                [row["id"] for row in strict],
                [row["pkey"] for row in strict],
            )
        }
        stuck = [row for row in lost if row["pkey"] in held or row["id"] in earlier]
        if stuck:
            await connection.execute(
                self._sql["block"],
                [row["id"] for row in stuck],
                list({row["lane"] for row in stuck}),
            )

    async def _allowances(
        self, connection: AsyncpgConnection, asked: Mapping[ReadyLine, int], out: Exchanged
    ) -> dict[str, StartAllowance]:
        """How many each limited queue may start now, held until we commit.

        In two statements: whoever held a queue while the first one waited for it has started jobs
        that only the second one sees.
        """
        names = sorted({line.queue for line in asked} | {"*"})
        rows = await connection.fetch(self._sql["limits"], names)
        counted = [row["name"] for row in rows if row["concurrency"] is not None]
        running = dict(await connection.fetch(self._sql["running"], counted)) if counted else {}
        allowed = {}
        for name, concurrency, rate, burst, tokens, since_us in rows:
            limits = stored_limits(name, concurrency, rate, burst)
            may = allowance(limits, running.get(name, 0), tokens, since_us * 1000)
            allowed[name] = may
            if not may.free:
                queues = {line.queue for line in asked} if name == "*" else {name}
                out.held_back_ns = {**out.held_back_ns, **dict.fromkeys(queues, may.wait_ns)}
        return allowed

    async def _spend(
        self,
        connection: AsyncpgConnection,
        allowed: Mapping[str, StartAllowance],
        claims: Sequence[Claim],
    ) -> None:
        used = Counter(claim.queue for claim in claims)
        used["*"] = len(claims)
        await connection.execute(
            self._sql["spend"],
            list(allowed),
            [one.tokens - used[name] for name, one in allowed.items()],
            bool(claims),  # if the claims were lost, others would start beyond the limit
        )

    async def probe(
        self, connection: AsyncpgConnection, worker: int, queues: Collection[str], out: Exchanged
    ) -> None:
        rows = await connection.fetch(self._sql["probe"], list(queues), worker)
        found = await self._lines.of({row["id"] for row in rows if row["what"] == "line"})
        out.lines = {
            queue: sorted(line for line in found if line.queue == queue) for queue in queues
        }
        self.limited -= {*queues, "*"}
        self.limited |= {row["detail"] for row in rows if row["what"] == "limit"}
        out.cancelling = {row["id"]: row["detail"] for row in rows if row["what"] == "cancel"}


class ClaimCount(NamedTuple):
    """What came of asking for jobs."""

    won: int
    looked: int
    """Jobs that were looked at: some may not get their key."""
    limited: dict[ReadyLine, int]
    """Ready lines that were left out, since they have limits which the claim does not hold."""


def put_off(claim: Claim, delay_ns: int) -> Settlement:
    """Not now: back in line, as if it had not been claimed. It keeps its signals."""
    claim = structs.replace(claim, signals=())
    return Settlement(
        claim=claim, fate=Fate.RETRY, step=claim.step, delay_ns=delay_ns, counts=False, ran=False
    )


def by_id(claim: Claim) -> int:
    return claim.id

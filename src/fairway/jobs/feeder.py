"""Decides when a worker asks for work, for how much, and from which ready lines. Pure.

One `Feeder` per queue. It claims rows into a small buffer and lets at most `concurrency` of them
run. A finished job is followed by one from the buffer without a round trip; when there is room for
`min_demand` more, the next exchange asks for them. Polling only governs how soon work that others
enqueued is noticed while this queue is idle: an empty pick on an idle queue doubles the interval up
to `max_poll_interval_ns`, anything else snaps it back.

Fairness. The ready lines of a queue that have work take turns: bands by weight (`core.turns`,
8/4/2/1/1), inside a band tenant after tenant. With T tenants ready in a band of weight w, and W the
weights of all bands that are ready, a tenant's oldest job is among the next ceil(T / w) * W that
this worker asks for, however long the others' ready lines are, from when the worker knows of it: at
once if it was enqueued in this process, else at the next look, which is not put off by work on
other ready lines.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairway.core.priority import WEIGHTS, Band
from fairway.core.turns import Turns
from fairway.errors import InvalidConfig
from fairway.jobs.store import Want
from fairway.runtime.amounts import check_amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairway.jobs.job import Claim, ReadyLine

SECOND_NS = 1_000_000_000
VAIN_LOOKS_MAX = 3
VAIN_PAUSE_NS = 10_000_000
"""After so many claims in a row that came back empty the worker pauses before the next one: others
have just taken the jobs, or its own lease ran out and it does not know that yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederConfig:
    """How eagerly one queue is worked on."""

    concurrency: int = 10
    """Jobs that run at once. Raising it does more at a time and needs more of everything."""
    prefetch: int = 0
    """Jobs claimed beyond those that run. Raising it makes fewer, larger claims; what waits in this
    buffer is invisible to other workers and to newer priorities, and waits for the reaper if this
    worker dies."""
    min_demand: int = 1
    """The least room before more is claimed. Raising it makes claims fewer and larger at the cost
    of slots that stand empty; ignored while the queue is idle, and clamped to all there is."""
    poll_interval_ns: int = SECOND_NS
    """How often a busy queue is looked at. Raising it spares the database and notices others'
    work later."""
    max_poll_interval_ns: int = 5 * SECOND_NS
    """How rarely an idle queue is looked at, in the end. Raising it spares the database while
    nothing happens; the first job after a quiet time, enqueued elsewhere, starts later."""

    def __post_init__(self) -> None:
        check_amounts(self, concurrency=1, prefetch=0, min_demand=1)
        check_amounts(self, poll_interval_ns=1, max_poll_interval_ns=1)
        if self.poll_interval_ns > self.max_poll_interval_ns:
            raise InvalidConfig("poll_interval is at most max_poll_interval")


class ReadyLineTurns:
    """Which ready lines of a queue have jobs, as far as we know, and how many each gives next."""

    def __init__(self) -> None:
        self._turns: Turns[Band] = Turns(WEIGHTS)
        self._rings: dict[Band, deque[str]] = {band: deque() for band in WEIGHTS}
        # A tenant whose jobs were set aside has several lines in a band, and one turn for them all.
        self._of_tenant: dict[tuple[Band, str], deque[ReadyLine]] = {}
        self._known: set[ReadyLine] = set()
        self._unsure: set[ReadyLine] = set()

    def __len__(self) -> int:
        return len(self._known)

    def add(self, line: ReadyLine) -> None:
        """The line has work."""
        self._unsure.discard(line)
        if line not in self._known:
            self._known.add(line)
            lines = self._of_tenant.setdefault((line.band, line.tenant), deque())
            lines.append(line)
            if len(lines) == 1:
                self._rings[line.band].append(line.tenant)
                self._turns.wake(line.band)

    def drop(self, line: ReadyLine) -> None:
        """The line gave less than it was asked for: it is empty for now."""
        if line in self._known:
            self._known.remove(line)
            self._unsure.discard(line)
            lines = self._of_tenant[line.band, line.tenant]
            lines.remove(line)
            if not lines:
                del self._of_tenant[line.band, line.tenant]
                ring = self._rings[line.band]
                ring.remove(line.tenant)
                if not ring:
                    self._turns.rest(line.band)

    def doubt(self) -> None:
        """Some gave less than they were asked for: nothing more is asked before the next look.

        They keep their places until then. If all were forgotten, the ring would begin with the same
        tenants again each time, and those behind them would wait for as long as that goes on.
        """
        self._unsure = set(self._known)

    @property
    def doubtful(self) -> bool:
        return bool(self._unsure)

    def replace(self, lines: Iterable[ReadyLine]) -> None:
        """Exactly these have work. Tenants that had it before keep their place in the ring."""
        self._unsure.clear()
        fresh = set(lines)
        gone = self._known - fresh
        for line in sorted(fresh - self._known):
            self.add(line)
        for line in gone:
            self.drop(line)

    def split(self, count: int) -> list[Want]:
        """How many to ask of each line, `count` together."""
        if not self._known or self._unsure or count < 1:
            return []
        if len(self._known) == 1:
            return [Want(next(iter(self._known)), count)]
        shares: dict[ReadyLine, int] = {}
        for _ in range(count):
            band = self._turns.take()
            assert band is not None, "a band with a lane has work"
            ring = self._rings[band]
            lines = self._of_tenant[band, ring[0]]
            ring.rotate(-1)
            line = lines[0]
            lines.rotate(-1)
            shares[line] = shares.get(line, 0) + 1
        return [Want(line, most) for line, most in shares.items()]


class Feeder:
    """The buffer and the slots of one queue, and when to ask for more."""

    def __init__(self, queue: str, config: FeederConfig, now_ns: int) -> None:
        self.queue = queue
        self.config = config
        self.lines = ReadyLineTurns()
        self.buffer: deque[Claim] = deque()
        self.running: dict[tuple[int, int], Claim] = {}  # by id and token
        self.poll_ns = config.poll_interval_ns
        self.next_poll_ns = now_ns
        self._prefetch = config.prefetch
        self._asked = 0
        self._stirred = True
        self._held_until_ns = 0
        self._held_by_running = False
        self._vain = 0

    @property
    def idle(self) -> bool:
        return not self.running and not self.buffer

    @property
    def room(self) -> int:
        """How many more may be claimed."""
        return (
            self.config.concurrency
            + self._prefetch
            - len(self.running)
            - len(self.buffer)
            - self._asked
        )

    def apply_pressure(self, pressure: float) -> None:
        """Under pressure hold less in the buffer: claimed work that waits helps nobody."""
        self._prefetch = int(self.config.prefetch * (1.0 - min(1.0, max(0.0, pressure))))

    def stir(self) -> None:
        """Something may be there: work was enqueued here, or a slot came free."""
        self._stirred = True

    def due(self, now_ns: int) -> bool:
        """Whether it is time to look, by itself."""
        return now_ns >= self.next_poll_ns

    def demand(self, now_ns: int) -> int:
        """How many to ask for now: 0 unless something happened and there is room for enough."""
        if not self._stirred and not self.due(now_ns):
            return 0
        if now_ns < self._held_until_ns:
            return 0
        room = self.room
        least = min(self.config.min_demand, self.config.concurrency + self._prefetch)
        return room if room > 0 and (room >= least or self.idle) else 0

    def asking(self, count: int) -> None:
        """An exchange is under way that asks for `count`, or only looks (0)."""
        self._asked = count
        self._stirred = False

    def picked(
        self, claims: Iterable[Claim], now_ns: int, *, looked: bool = True, more: bool = False
    ) -> None:
        """The exchange is back with these.

        `looked`: it was asked which lines have work, not only for the jobs of lines we
        know; `more`: it was seen that something is there still.
        """
        asked, self._asked = self._asked, 0
        before = len(self.buffer)
        self.buffer.extend(claims)
        got = len(self.buffer) > before
        if more or got or not self.idle:
            self.poll_ns = self.config.poll_interval_ns
        elif not self.lines.doubtful:  # or the look that follows would double it a second time
            self.poll_ns = min(self.poll_ns * 2, self.config.max_poll_interval_ns)
        next_poll_ns = now_ns + self.poll_ns
        # Claims alone put no look off, or a long line would hide the others until its end.
        self.next_poll_ns = next_poll_ns if looked else min(self.next_poll_ns, next_poll_ns)
        if asked and not got:
            self._vain += 1
            if self._vain >= VAIN_LOOKS_MAX:
                self.hold_back(VAIN_PAUSE_NS, now_ns)
        elif got or not more:
            self._vain = 0

    def failed(self) -> None:
        """The exchange came to nothing: ask again."""
        self._asked = 0
        self._stirred = True

    def hold_back(self, wait_ns: int, now_ns: int) -> None:
        """The queue is at one of its limits: nothing is to be had before then, as things stand.

        0 is until one of its jobs ends, here or elsewhere: that is looked for as usual. And so is
        whether somebody raised the limit or took it away, elsewhere: nothing notifies us of it.
        """
        self._held_by_running = wait_ns <= 0
        usual_ns = self.config.poll_interval_ns
        self._held_until_ns = now_ns + (min(wait_ns, usual_ns) if wait_ns > 0 else usual_ns)
        self.next_poll_ns = min(self.next_poll_ns, self._held_until_ns)

    def let_go(self) -> None:
        """The limits of the queue are others now: ask again."""
        self._held_until_ns = 0
        self._stirred = True

    def start(self) -> Claim | None:
        """The next job to run, if a slot is free."""
        if not self.buffer or len(self.running) >= self.config.concurrency:
            return None
        claim = self.buffer.popleft()
        self.running[claim.id, claim.token] = claim
        return claim

    def finished(self, claim: Claim) -> None:
        """The run of a claim is over; its slot is free."""
        if self.running.pop((claim.id, claim.token), None) is not None:
            self._stirred = True
            if self._held_by_running:
                self._held_until_ns = 0

    def release(self) -> list[Claim]:
        """Empty the buffer: these go back to the store."""
        claims = list(self.buffer)
        self.buffer.clear()
        return claims

    def drop(self, lost: Mapping[int, int]) -> list[Claim]:
        """Forget those in the buffer that the store does not know, given by job and token."""
        gone = [claim for claim in self.buffer if lost.get(claim.id) == claim.token]
        for claim in gone:
            self.buffer.remove(claim)
        if gone:
            self._stirred = True
        return gone

    def check(self) -> None:
        """Assert every invariant."""
        assert len(self.running) <= self.config.concurrency
        assert not {(claim.id, claim.token) for claim in self.buffer} & self.running.keys()
        assert self.config.poll_interval_ns <= self.poll_ns <= self.config.max_poll_interval_ns

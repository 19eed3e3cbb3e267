"""One budget for a turn of the event loop, and what counts within a turn.

A turn is one pass of the loop: it reads what arrived, and runs every callback that was ready. What
one of them does, all others wait for. `TurnBudget` says how much of each thing is done in a turn
before the others go on; `docs/explanation/turns.md` says in what order, and how the numbers were
found. Each field is read once, by whoever obeys it, when that is made.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from fairway.core.amounts import WHOLE_MAX, wrong_whole
from fairway.errors import InvalidConfig
from fairway.runtime.amounts import check_amounts
from fairway.runtime.clock import sleep_ns
from fairway.runtime.words import brief

if TYPE_CHECKING:
    from fairway.runtime.clock import Clock

KIB: Final = 1024
GC_MAX: Final = 2**31 - 1
"""The largest threshold that CPython's collector takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnBudget:
    """How much is done in one turn of the loop. The defaults suit a server on two cores."""

    # Connections are accepted and read.

    connections_per_turn: int = 16
    """Connections accepted on each listening socket, about a millisecond. Raising it lets a rush in
    sooner and holds up those who are in."""
    reads_per_turn: int = 64
    """Connections read, refusals aside: well under two milliseconds of small requests. Raising it
    costs fewer turns under load, and those who are served wait longer for each."""
    probe_reads_per_turn: int = 4
    """Of those that were held, how many that ask how the server is. Raising it answers more
    monitors under overload, and takes time from requests."""
    socket_reads_per_turn: int = 16
    """Open WebSockets with more frames than `frames_per_turn`. Raising it favours busy sockets
    over requests."""
    refusals_per_turn: int = 3
    """Known clients read to be refused while the line is full: a quarter of what begins, about a
    tenth of the time. Raising it answers more of them sooner, at the cost of those in the line."""
    new_reads_per_turn: int = 8
    """Connections read for the first time; a first head costs as much as a small append. Raising
    it greets a rush sooner, and slows down those who are known."""
    stranger_reads_per_turn: int = 3
    """Connections without a good key. Raising it refuses them sooner, at everybody's cost."""
    idle_reads_per_turn: int = 16
    """New connections, or strangers, while no request waits or begins: half a millisecond. Raising
    it makes the first request after an idle while wait longer."""
    frames_per_turn: int = 8
    """Frames of one WebSocket, about a tenth of a millisecond. Raising it favours clients that
    send much on one socket."""

    # Requests begin, and large answers are built.

    requests_per_turn: int = 12
    """Requests begun, and as many of the most urgent topics: about a millisecond of work. Raising
    it buys larger groups and fewer turns; an urgent request waits for more of the others."""
    page_step_bytes: int = 256 * KIB
    """Bytes of a large page read and encoded, about a millisecond. Raising it builds large pages
    with fewer reads, and stops everybody else for longer."""
    pages_at_once: int = 4
    """Large pages under way; a turn takes a step of each. Raising it keeps the store busier, and
    makes turns longer and memory fuller."""
    pushes_per_turn: int = 128
    """Events of one push to a graph taken in. Raising it ends large pushes sooner."""

    # The store's threads go on, and callers hear that their write is done.

    acks_per_turn: int = 12
    """Callers notified that their write is done, in a server: about half a millisecond of answers.
    Raising it buys throughput; deliveries and reads wait longer. (A log without a server notifies
    all of a group at once.)"""
    acks_per_partition: int = 4
    """Callers of one partition notified before another one has its turn. Raising it costs less per
    caller; one with a single write waits longer behind a flood."""
    acks_backlog_share: int = 8
    """At least one part in so many of a backlog is notified in a turn, so that it cannot grow for
    ever. Raising it keeps turns even, and works a backlog off later."""
    offers_per_pause: int = 8
    """Operations offered while a group is under way, after which the loop is busy enough to hold up
    the store and pauses for it. Raising it pauses less, and writes take longer under load."""
    thread_pause_every_ns: int = 500_000
    """How long a busy loop keeps the threads of the store from going on. Raising it leaves more
    time to the loop, and makes writes slower."""
    thread_pause_every_serving_ns: int = 2_000_000
    """The same where threads ask for the interpreter more often than that (`switch_interval_ns`),
    and need fewer pauses."""
    urgent_pause_every_ns: int = 300_000
    """The same while an urgent write waits."""
    urgent_writes_per_window: int = 8
    """Urgent writes in a window that are expedited; with more, in it or the one before, none is.
    Raising it spares more of them the wait for the turn, and makes groups smaller for all."""
    urgent_window_ns: int = 10_000_000
    """How long such a window is. Raising it forgets a rush of urgent writes later."""
    group_enough_bytes: int = 128 * KIB
    """A group of so many bytes waits for no company: writing it takes longer than a sync. Raising
    it saves syncs of large writes, which then wait for the turn to end."""

    # Records reach watchers, and graphs fire.

    inline_deliveries_per_turn: int = 8
    """Urgent topics served within the turn that hears of their write, not in the next. Raising it
    is sooner for them, and later for whoever's turn it is."""
    inline_delivery_items: int = 8
    """New records, and watchers, up to which a topic is served so."""
    inline_delivery_bytes: int = 16 * KIB
    """Bytes of those records: each view has them encoded."""
    delivery_ns: int = 2_000_000
    """How long drains hold the loop before I/O has a turn. Raising it favours throughput."""
    firings_per_turn: int = 128
    """Firings of one graph of plain nodes. Raising it fires faster; one graph holds up the rest
    for longer."""

    # Upkeep looks through old records.

    scan_records_per_turn: int = 1024
    """Records parsed in one step of eviction or deletion, some 0.6 ms. Raising it is done sooner,
    in longer stalls."""
    scan_records_per_append: int = 128
    """The same for an append that evicts: many may come at once. Raising it leaves less to upkeep,
    and makes appends over a cap slower."""
    scan_rest_ns: int = 1_000_000
    """Time left to the others after a step. Raising it slows them less, and is done later."""

    # The interpreter of a process that serves.

    switch_interval_ns: int = 100_000
    """How long a thread of the store waits for the interpreter while the loop is busy. Python's own
    5 ms would be most of a write's time under load. Raising it leaves more time to the loop."""
    gc_thresholds: tuple[int, int, int] = (10_000, 20, 50)
    """How often the collector looks: almost nothing of a request is in a cycle. Raising it pauses
    less, and frees cycles later."""

    def __post_init__(self) -> None:
        numbers = [field.name for field in fields(self) if field.name != "gc_thresholds"]
        check_amounts(self, count_max=WHOLE_MAX, **dict.fromkeys(numbers, 1))
        if not isinstance(self.gc_thresholds, tuple) or len(self.gc_thresholds) != 3:
            raise InvalidConfig(f"gc_thresholds are three numbers, not {brief(self.gc_thresholds)}")
        for number in self.gc_thresholds:
            if wrong := wrong_whole("each of gc_thresholds", number, least=1, most=GC_MAX):
                raise InvalidConfig(wrong)
        if self.refusals_per_turn > self.requests_per_turn:
            raise InvalidConfig("refusals_per_turn is not more than requests_per_turn")
        if self.acks_per_partition > self.acks_per_turn:
            raise InvalidConfig("acks_per_partition lies within acks_per_turn")
        if self.scan_records_per_append > self.scan_records_per_turn:
            raise InvalidConfig("scan_records_per_append lies within scan_records_per_turn")
        if not (
            self.urgent_pause_every_ns
            <= self.thread_pause_every_ns
            <= self.thread_pause_every_serving_ns
        ):
            raise InvalidConfig(
                "urgent_pause_every_ns, thread_pause_every_ns, thread_pause_every_serving_ns rise"
            )
        if self.switch_interval_ns >= self.thread_pause_every_ns:
            raise InvalidConfig("switch_interval_ns is shorter than thread_pause_every_ns")


TURN: Final = TurnBudget()
"""What everything has that is given no other."""


class PerTurn:
    """An allowance that each turn of the loop renews: for what may go before its turn, and must
    stay rare."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = 0

    def take(self, limit: int, count: int = 1) -> bool:
        """Whether `count` more are within `limit` in this turn; they are taken then."""
        if self._taken + count > limit:
            return False
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._renew)
        self._taken += count
        return True

    def _renew(self) -> None:
        self._taken = 0


class TimeSlice:
    """How long somebody may keep the event loop before others have a turn, by the clock."""

    def __init__(self, clock: Clock, length_ns: int) -> None:
        self._now_ns = clock.now_ns
        self._length_ns = length_ns
        self._since_ns = 0

    def begin(self) -> None:
        """Others have just had a turn."""
        self._since_ns = self._now_ns()

    @property
    def spent(self) -> bool:
        return self._now_ns() - self._since_ns > self._length_ns

    async def let_others(self) -> None:
        """I/O has a turn. Whoever is being served keeps its place."""
        await asyncio.sleep(0)
        self.begin()


class Pace:
    """The same by work that is counted: equal steps on every machine and under a virtual clock.

    Between two steps there is a rest: to be merely last in the queue of the loop would leave no
    time for the threads that write.
    """

    __slots__ = ("_left", "_rest_ns", "_work")

    def __init__(self, work: int, rest_ns: int) -> None:
        self._left = self._work = work
        self._rest_ns = rest_ns

    def spend(self, work: int) -> None:
        self._left -= work

    @property
    def spent(self) -> bool:
        return self._left <= 0

    async def turn(self, work: int) -> None:
        """Some work was done; rest if it was enough."""
        self.spend(work)
        if self.spent:
            await self.rest()

    async def rest(self) -> None:
        """The step is over."""
        self._left = self._work
        await sleep_ns(self._rest_ns)

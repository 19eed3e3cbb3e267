"""Who is served next: requests begin a few at a time, urgent topics first, none of them starved.

An event loop serves whatever is readable, all of it, before it looks at anything else; under load a
request then waits for every one that came with it. Here at most `requests_per_turn` begin in one
turn of the loop, and as many more of the most urgent topics. The rest wait by topic, each topic at
most once in line, in the band of its priority, as for delivery. What does not fit the bound is
refused at once, and told when to come back: each at a moment of its own, at the pace at which the
line moves. Places are kept for those that do, so that whoever waits as it was told mostly gets in.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from fairway.core.lanes import LaneLimits, Lanes
from fairway.core.priority import WEIGHTS, Band
from fairway.core.ready import Ready
from fairway.errors import Throttled
from fairway.runtime.turn import TURN
from fairway.server.http.door import LineState

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.runtime.clock import Clock
    from fairway.runtime.turn import TurnBudget
    from fairway.server.http.peers import Peer

logger = logging.getLogger("fairway.server")

WAITING_MAX: Final = 4096
LIMITS: Final = LaneLimits(items=WAITING_MAX, size=WAITING_MAX)
PROBES_MAX: Final = 64
"""Places beyond these, for who asks how the server is."""
KEPT_MAX: Final = WAITING_MAX // 4
"""Places that are kept for those who were told when to come back."""
PACE_ITEMS: Final = 256
"""So many requests have to leave the line for its pace to be measured anew."""
PACE_UNMEASURED_NS: Final = 200_000
RETRY_MIN_NS: Final = 20_000_000
RETRY_MAX_NS: Final = 10_000_000_000


class Reservations:
    """When those who found the line full may come back, and how many of them will.

    They come back one after the other, somewhat slower than the line moves: the rest of its pace is
    for those who come for the first time.
    """

    __slots__ = ("_last_ns", "_pace_ns", "_since_ns", "_started", "outstanding")

    def __init__(self) -> None:
        self._pace_ns = PACE_UNMEASURED_NS  # of one request
        self._last_ns = 0  # when the last one is expected
        self._since_ns = 0
        self._started = 0
        self.outstanding = 0
        """Those that were told and did not get in yet."""

    def note_begun(self, count: int, now_ns: int) -> None:
        """So many have left the line, and others wait in it."""
        if not self._since_ns:
            self._since_ns, self._started = now_ns, 0
            return
        self._started += count
        if self._started >= PACE_ITEMS:
            self._pace_ns = max((now_ns - self._since_ns) // self._started, 1)
            self._since_ns, self._started = now_ns, 0

    def note_empty(self) -> None:
        """Nobody waits: the pace from here on is not that of the line."""
        self._since_ns = 0

    def reserve(self, now_ns: int) -> int:
        """When one more may come back."""
        self.outstanding += 1
        self._last_ns = max(self._last_ns + self._pace_ns * 5 // 4, now_ns + RETRY_MIN_NS)
        return min(self._last_ns, now_ns + RETRY_MAX_NS)


class RequestGate:
    """Lets requests in. On an idle server that is one comparison."""

    def __init__(
        self,
        clock: Clock,
        band_of: Callable[[str], Band],
        meanwhile: Callable[[], None] = lambda: None,
        *,
        turn: TurnBudget = TURN,
    ) -> None:
        """`band_of` tells the band of a key, asked whenever it gets in line. `meanwhile` is called
        between two requests: for what should not wait for the end of the turn."""
        self._clock = clock
        self._band_of = band_of
        self._meanwhile = meanwhile
        self._per_turn = turn.requests_per_turn
        self._begun = self._urgent = self._begun_before = 0  # in this turn; in the one before
        self._lanes: Lanes[str, Callable[[], object]] = Lanes(
            LIMITS, total=LIMITS, reserve=(PROBES_MAX, PROBES_MAX)
        )
        self._reservations = Reservations()
        self._ready: Ready[str, Band] = Ready(WEIGHTS)
        self._bands: dict[str, Band] = {}  # of those in line
        self._loop = asyncio.get_running_loop()

    @property
    def fill(self) -> float:
        """How full the line is, 0 to 1."""
        return min(self._lanes.depth / WAITING_MAX, 1.0)

    @property
    def line_state(self) -> LineState:
        """How many more may wait, and how many places of those are kept for whoever returns."""
        depth = self._lanes.depth
        kept = min(self._reservations.outstanding, KEPT_MAX)
        working = depth or self._begun or self._begun_before
        return LineState(max(WAITING_MAX - depth, 0), kept, working > 0)

    @property
    def idle(self) -> bool:
        """Whether a request may begin now."""
        return self._begun < self._per_turn and not self._lanes.depth

    def passes(self) -> bool:
        """The same, and it is counted. Else it must `wait`."""
        if self._begun >= self._per_turn or self._lanes.depth:
            return False
        if not self._begun:
            self._loop.call_soon(self._turn)
        self._begun += 1
        return True

    def wait(
        self,
        key: str,
        begin: Callable[[], object],
        peer: Peer | None = None,
        probes: bool = False,
    ) -> None:
        """Call `begin` in a turn to come; in this one, if it is urgent and few such were.

        `peer` is whoever asks: one that was refused and is back when it was told to be has a place
        that is kept. One that `probes` is let in where others are not.

        Raises `Throttled` if the line is full.
        """
        in_line = key in self._bands
        band = Band.B0 if in_line else self._band_of(key)
        if band is Band.B4 and self._urgent < self._per_turn:
            self._urgent += 1
            begin()
            self._meanwhile()
            return
        now_ns = self._clock.now_ns()
        if not probes and self._lanes.depth + self._reservations.outstanding >= WAITING_MAX:
            self._check_room(peer, now_ns)
        refusal = self._lanes.offer(key, begin, 1, now_ns, probes)
        if refusal is not None:
            raise self._refusal(peer, now_ns)
        if peer is not None and peer.due_ns:
            self.forget(peer)
        if not in_line:
            self._line_up(key, band, now_ns)
        self._meanwhile()

    def forget(self, peer: Peer) -> None:
        """It is in, or gone: no place is kept for it."""
        if peer.due_ns:
            peer.due_ns = 0
            self._reservations.outstanding -= 1

    def _check_room(self, peer: Peer | None, now_ns: int) -> None:
        kept = min(self._reservations.outstanding, KEPT_MAX)
        if self._lanes.depth + kept < WAITING_MAX:
            return
        returns = peer is not None and 0 < peer.due_ns <= now_ns
        if self._lanes.depth >= WAITING_MAX or not returns:
            raise self._refusal(peer, now_ns)

    def _refusal(self, peer: Peer | None, now_ns: int) -> Throttled:
        if peer is None:
            due_ns = now_ns + RETRY_MIN_NS
        elif peer.due_ns > now_ns:
            due_ns = peer.due_ns  # it has a place already, and did not wait for it
        else:
            self.forget(peer)
            due_ns = peer.due_ns = self._reservations.reserve(now_ns)
        return Throttled(
            f"{WAITING_MAX:,} requests wait already",
            retry_after_ns=due_ns - now_ns,
            limit="waiting_requests",
            maximum=WAITING_MAX,
        )

    def _line_up(self, key: str, band: Band, now_ns: int) -> None:
        self._bands[key] = band
        self._ready.mark(key, band, now_ns)

    def _turn(self) -> None:
        """A new turn of the loop: let the next few in."""
        self._begun_before = self._begun
        self._begun = self._urgent = 0
        now_ns = self._clock.now_ns()
        per_turn = self._per_turn
        while self._begun < per_turn and (key := self._ready.take()) is not None:
            count = 1 if len(self._ready) else per_turn - self._begun  # alone, it has all turns
            begins = self._lanes.drain(key, items=count, size=count).items
            if self._lanes.settle(key, len(begins), len(begins), now_ns):
                self._line_up(key, self._band_of(key), now_ns)
            else:
                del self._bands[key]
            self._ready.release(key, now_ns)
            self._begun += len(begins)
            self._reservations.note_begun(len(begins), now_ns)
            for begin in begins:
                try:
                    begin()
                    self._meanwhile()
                except Exception:  # or nobody behind it would ever begin
                    logger.exception("a request could not begin")
        if not self._lanes.depth:
            self._reservations.note_empty()
        if self._begun:
            self._loop.call_soon(self._turn)

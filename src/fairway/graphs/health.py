"""How sources and reactors are, as tables: which state may follow which, and what each means.

The diagrams in the documentation are drawn from these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class SourceState(Enum):
    STARTING = "starting"
    """Loading what was kept."""
    CONNECTING = "connecting"
    """Reaching for its feed."""
    LIVE = "live"
    """Connected: events come."""
    DISCONNECTED = "disconnected"
    """The feed is lost, or the source died; trying again."""
    SOCKET_ONLY = "socket_only"
    """It has no feed and takes pushes: healthy by definition."""
    FAILED = "failed"
    """It died too often, and stays so until a command restarts it."""


class ReactorState(Enum):
    STARTING = "starting"
    """Loading what was kept."""
    WARMING = "warming"
    """Not all required sources are healthy yet: receiving, not firing."""
    LIVE = "live"
    """All required sources are healthy: firing."""
    DEGRADED = "degraded"
    """A required source was lost or is stale, or records fail: firing, and saying so."""
    STOPPED = "stopped"
    """It ended, or gave up."""


_S, _R = SourceState, ReactorState

SOURCE_MOVES: Final = {
    _S.STARTING: {_S.CONNECTING, _S.SOCKET_ONLY, _S.DISCONNECTED, _S.FAILED},
    _S.CONNECTING: {_S.LIVE, _S.DISCONNECTED, _S.STARTING, _S.FAILED},
    _S.LIVE: {_S.DISCONNECTED, _S.STARTING, _S.FAILED},
    _S.DISCONNECTED: {_S.CONNECTING, _S.LIVE, _S.STARTING, _S.FAILED},
    _S.SOCKET_ONLY: {_S.STARTING},
    _S.FAILED: {_S.STARTING},
}
REACTOR_MOVES: Final = {
    _R.STARTING: {_R.WARMING, _R.LIVE, _R.STOPPED},
    _R.WARMING: {_R.LIVE, _R.DEGRADED, _R.STOPPED},
    _R.LIVE: {_R.DEGRADED, _R.STOPPED},
    _R.DEGRADED: {_R.LIVE, _R.STOPPED},
    _R.STOPPED: set(),
}
HEALTHY: Final = {_S.LIVE, _S.SOCKET_ONLY}
FIRING: Final = {_R.LIVE, _R.DEGRADED}
CHECKPOINT: Final = "checkpoint"
"""The source that a reactor lacks while its records cannot be written."""


class IllegalMove(AssertionError):
    """A state followed another that it never may: a defect of ours."""


class SourceHealth:
    """The state of one source, and since when. It outlives the task that runs the source."""

    def __init__(self, name: str, *, required: bool, stale_after_ns: int | None) -> None:
        self.name = name
        self.required = required
        self.stale_after_ns = stale_after_ns
        self.state = SourceState.STARTING
        self.why = ""
        self.event_ns: int | None = None
        """When its last event came."""
        self.started_ns = 0
        self.changed: Callable[[], None] = _nobody

    def move(self, state: SourceState, why: str = "") -> None:
        """Go to another state. The same one again changes only the reason."""
        self.why = why
        if state is self.state:
            return
        if state not in SOURCE_MOVES[self.state]:
            raise IllegalMove(f"source {self.name}: {self.state.value} -> {state.value}")
        self.state = state
        self.changed()

    def stale_at_ns(self) -> int | None:
        """When it goes stale if nothing comes."""
        if self.stale_after_ns is None:
            return None
        since_ns = self.event_ns if self.event_ns is not None else self.started_ns
        return since_ns + self.stale_after_ns

    def stale(self, now_ns: int) -> bool:
        at_ns = self.stale_at_ns()
        return at_ns is not None and now_ns >= at_ns

    def healthy(self, now_ns: int) -> bool:
        return self.state in HEALTHY and not self.stale(now_ns)


def _nobody() -> None:
    return None


@dataclass(frozen=True, slots=True)
class WaitingSources:
    """Why a reactor is not live: the required sources that are not healthy."""

    healthy: tuple[str, ...]
    waiting: tuple[str, ...]


class ReactorHealth:
    """The state of a reactor, decided from its sources. Pure."""

    def __init__(self, sources: Iterable[SourceHealth], *, warm_timeout_ns: int | None) -> None:
        self.sources = {source.name: source for source in sources}
        self.state = ReactorState.STARTING
        self.moves: list[tuple[int, ReactorState]] = []
        """The last moves and their times, for whoever looks."""
        self.checkpoint_fails = False
        self._warm_timeout_ns = warm_timeout_ns
        self._warming_ns = 0
        # While all are required and none goes stale, a live reactor lacks nothing.
        self._may_lack = any(
            source.stale_after_ns is not None or not source.required
            for source in self.sources.values()
        )

    def restored(self, now_ns: int) -> None:
        """What was kept is loaded: look at the sources from now on."""
        for source in self.sources.values():
            source.started_ns = now_ns
        self._warming_ns = now_ns
        if self.waiting(now_ns).waiting:
            self._move(ReactorState.WARMING, now_ns)
        else:
            self._move(ReactorState.LIVE, now_ns)
            self.look(now_ns)

    def look(self, now_ns: int) -> bool:
        """Decide anew; whether the state changed."""
        before = self.state
        if before is ReactorState.WARMING:
            timeout_ns = self._warm_timeout_ns
            if not self.waiting(now_ns).waiting:
                bad = self.checkpoint_fails
                self._move(ReactorState.DEGRADED if bad else ReactorState.LIVE, now_ns)
            elif timeout_ns is not None and now_ns >= self._warming_ns + timeout_ns:
                self._move(ReactorState.DEGRADED, now_ns)
        elif before in FIRING:
            bad = self.checkpoint_fails or bool(self.waiting(now_ns).waiting)
            self._move(ReactorState.DEGRADED if bad else ReactorState.LIVE, now_ns)
        return self.state is not before

    def stopped(self, now_ns: int) -> None:
        self._move(ReactorState.STOPPED, now_ns)

    def waiting(self, now_ns: int) -> WaitingSources:
        required = [source for source in self.sources.values() if source.required]
        return WaitingSources(
            tuple(source.name for source in required if source.healthy(now_ns)),
            tuple(source.name for source in required if not source.healthy(now_ns)),
        )

    def degraded(self, now_ns: int) -> tuple[str, ...]:
        """What a firing is told is old or missing, of all sources."""
        if self.state is ReactorState.LIVE and not self._may_lack:
            return ()
        found = [s.name for s in self.sources.values() if not s.healthy(now_ns)]
        return (*found, CHECKPOINT) if self.checkpoint_fails else tuple(found)

    def deadline_ns(self, now_ns: int) -> int | None:
        """When to look again although nothing happened."""
        found = []
        if self.state is ReactorState.WARMING and self._warm_timeout_ns is not None:
            found.append(self._warming_ns + self._warm_timeout_ns)
        for source in self.sources.values():
            at_ns = source.stale_at_ns()
            if at_ns is not None and at_ns > now_ns:
                found.append(at_ns)
        return min(found, default=None)

    def _move(self, state: ReactorState, now_ns: int) -> None:
        if state is self.state:
            return
        if state not in REACTOR_MOVES[self.state]:
            raise IllegalMove(f"reactor: {self.state.value} -> {state.value}")
        self.state = state
        self.moves = [*self.moves[-31:], (now_ns, state)]

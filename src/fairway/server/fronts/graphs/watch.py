"""A graph as an event stream: its state whenever it changes, and its firings, in bounded pieces.

A stream asks, a few times a second; nothing is queued for it and no firing waits for it or knows of
it. What a reader was too slow to see is counted, and the state it sees next is the newest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairway.errors import NotFound
from fairway.server.fronts.graphs.views import last_firings, state_of, summarised
from fairway.server.http.sse import EventStream, Frame
from fairway.wire.graphs import FiringsEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairway.graphs.engine import Graphs, Managed
    from fairway.graphs.running import RunningGraph
    from fairway.runtime.clock import Clock
    from fairway.server.http.response import ResponseStream

EVERY_MS: Final = 250
EVERY_MS_MIN: Final = 50
SOON_S: Final = 0.02
"""A change of state is sent after so long: what changes together is sent together."""
FIRINGS_PER_EVENT_MAX: Final = 100
"""Firings in one event, the newest."""

_json = msgspec.json.Encoder().encode


class GraphStream(EventStream):
    """One reader of one graph."""

    def __init__(
        self,
        response: ResponseStream,
        on_closed: Callable[[], None],
        graphs: Graphs,
        managed: Managed,
        clock: Clock,
        *,
        every_ms: int,
        cache: bool,
    ) -> None:
        super().__init__(response, on_closed)
        self._graphs = graphs
        self._managed = managed
        self._clock = clock
        self._every_s = every_ms / 1000
        self._cache = cache
        self._instance: RunningGraph | None = managed.instance
        self._sent_firings = _firings(self._instance)
        self._shown: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False

    def start(self) -> None:
        self._managed.watchers.append(self._changed)
        self._look()

    def stop(self) -> None:
        """Safe to call twice."""
        if self._changed in self._managed.watchers:
            self._managed.watchers.remove(self._changed)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self) -> None:
        if not self._soon:
            self._soon = True
            self._arm(SOON_S)

    def _resume(self) -> None:
        """The reader has read enough: it is sent what there is now."""
        self._look()

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._soon = False
        if self.response.closed:
            return
        self._arm(self._every_s)
        try:
            here = self._graphs.get(self._managed.graph.name, self._managed.graph.tenant)
        except NotFound:
            here = None
        if here is not self._managed:
            self._unloaded()
        elif self.response.writable and self._send_firings():
            self._send_state()

    def _send_firings(self) -> bool:
        instance = self._managed.instance
        if instance is not self._instance:  # started anew, and so are its numbers
            self._instance, self._sent_firings = instance, 0
        now = _firings(instance)
        fresh = now - self._sent_firings
        if instance is None or not fresh:
            return True
        firings = last_firings(instance, min(fresh, FIRINGS_PER_EVENT_MAX))
        event = FiringsEvent(
            graph=instance.graph.name,
            tenant=instance.graph.tenant,
            firings=[summarised(each) for each in firings],
            skipped=fresh - len(firings),
        )
        if not self._send_event(b"firings", event):
            return False
        self._sent_firings = now
        return True

    def _send_state(self) -> None:
        shown = _look_of(self._managed)
        if shown != self._shown:
            state = state_of(self._managed, self._clock.now_ns(), cache=self._cache)
            if self._send_event(b"state", state):
                self._shown = shown

    def _unloaded(self) -> None:
        graph = self._managed.graph
        self._send_event(b"unloaded", {"graph": graph.name, "tenant": graph.tenant})
        self.stop()
        self.response.finish()

    def _send_event(self, event: bytes, message: object) -> bool:
        return self.send(Frame(b"event: %b\ndata: %b\n\n" % (event, _json(message))))


def _firings(instance: RunningGraph | None) -> int:
    return instance.reactor.logged if instance is not None else 0


def _look_of(managed: Managed) -> Any:
    """What differs between two states, cheap to take."""
    instance = managed.instance
    if instance is None:
        return (managed.state, managed.failed)
    reactor = instance.reactor
    return (
        managed.state,
        managed.failed,
        id(instance),
        reactor.paused,
        reactor.halted,
        reactor.number,
        reactor.fired,
        reactor.failed,
        reactor.health.checkpoint_fails,
        instance.outbox.depth,
        tuple(
            (
                health.state,
                each.events,
                each.refused,
                each.dropped,
                each.collected,
                reactor.inputs.depth(name),
            )
            for (name, each), health in zip(
                instance.accumulators.items(), instance.healths.values(), strict=True
            )
        ),
    )

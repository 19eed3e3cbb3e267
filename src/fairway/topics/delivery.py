"""Fair delivery: dirty topics take turns, each drained whole, urgent ones more often.

The unit is the topic: however much was written, it waits once, in the band its effective priority
puts it in, and climbs while it waits. A drain builds each frame once and hands the same bytes to
every watcher that has caught up, then feeds the topic's routers. Watchers that fell behind are read
pages of their own by a few workers, so a slow one costs its own latency and nobody else's.

Under pressure the governor's ladder changes *when* things are pushed, never what: above 0.2 the
bands below the top one are served in bursts and records are packed into frames; when it defers,
routers go one band lower and B0 gets no turns until it ages out of B0.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fairway.core import priority
from fairway.core.pressure import Ladder
from fairway.core.priority import WEIGHTS, Band
from fairway.core.ready import Ready
from fairway.errors import InvalidConfig
from fairway.runtime.clock import sleep_ns
from fairway.runtime.telemetry import LATENCY_NS, Telemetry
from fairway.runtime.turn import TURN, PerTurn, TimeSlice
from fairway.topics.catching_up import CatchUp
from fairway.topics.frames import FrameWriter
from fairway.topics.reading import hot_page
from fairway.topics.withholding import Withholding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairway.runtime.clock import Clock
    from fairway.runtime.turn import TurnBudget
    from fairway.storage.partitions import Partitions
    from fairway.topics.active import ActiveTopic
    from fairway.topics.topic import Topic
    from fairway.topics.watching import SharedView, Watcher

logger = logging.getLogger("fairway.topics")

AGED_NS = priority.BONUS_MAX * priority.POINT_NS
"""Whoever has waited this long is as urgent as waiting can make it."""
BURST_BANDS = (Band.B0, Band.B1, Band.B2, Band.B3)
"""Served in bursts while frames are coalesced; the top band never waits for the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfig:
    tick_ns: int = 50_000_000
    """How often waiting topics are re-banded. Raising it costs less and ages later."""
    catch_up_workers: int = 4
    """Pages read at once for watchers that are behind. Raising it costs memory and disk."""
    ready_budget: int = 256
    """Dirty topics that count as full pressure."""
    retry_ns: int = 50_000_000
    """How long a watcher waits after its page could not be read."""
    delay_full_ns: int = 5_000_000
    """Smoothed time from dirty to drained that counts as full pressure."""

    def __post_init__(self) -> None:
        if min(self.tick_ns, self.catch_up_workers, self.ready_budget) < 1:
            raise InvalidConfig("delivery needs a positive tick, workers and ready_budget")


class Delivery:
    """Watchers and routers of all topics, served in order of urgency."""

    name = "delivery"

    def __init__(
        self,
        log: Partitions,
        clock: Clock,
        *,
        config: DeliveryConfig | None = None,
        telemetry: Telemetry | None = None,
        refresh: Callable[[Topic], None] | None = None,
        turn: TurnBudget = TURN,
    ) -> None:
        self.config = config or DeliveryConfig()
        self._log = log
        self._clock = clock
        self._ready: Ready[tuple[Topic, bool], Band] = Ready(WEIGHTS)
        self._dirty = asyncio.Event()
        self._ladder = Ladder()
        self._gathering: asyncio.TimerHandle | None = None
        self._withheld = Withholding(self._ready)
        self._delay_ns = 0.0
        self._drains = 0
        self._inline = PerTurn()  # topics served before their turn
        self._inline_max = turn.inline_deliveries_per_turn
        self._inline_items = turn.inline_delivery_items
        self._inline_bytes = turn.inline_delivery_bytes
        telemetry = telemetry if telemetry is not None else Telemetry()
        self._slice = TimeSlice(clock, turn.delivery_ns)
        self._frames = FrameWriter(self._slice, telemetry)
        self._catch_up = CatchUp(log, self._frames, retry_ns=self.config.retry_ns)
        self._delays = {
            band: telemetry.histogram(
                "fairway_delivery_delay_ns",
                "Time from a topic becoming dirty to its delivery",
                LATENCY_NS,
                band=band.name,
            )
            for band in Band
        }
        for band in Band:
            telemetry.gauge(
                "fairway_ready_topics",
                "Topics that wait for delivery",
                partial(self._depth, band),
                band=band.name,
            )

    # What the rest of the engine says

    def mark(self, topic: Topic) -> None:
        """Something new may be seen in `topic`."""
        active = topic.active
        if active is None:
            topic.mark_drained()  # nobody reads it
            return
        subscribers = active.subscribers
        if not (subscribers.by_view or subscribers.routers or subscribers.waiters):
            topic.mark_drained()
            return
        now_ns = self._clock.now_ns()
        band = self._band(topic, now_ns)
        if not subscribers.since_ns:
            subscribers.get_in_line(now_ns, band, self._withheld.held_ns(band, now_ns))
        if band is Band.B4 and self._goes_at_once(topic, active):
            for _ in self._serve(topic, active):
                pass  # it is too little to let others in between
        else:
            self._enqueue((topic, True), band, now_ns)

    def attach(self, watcher: Watcher, *, router: bool = False) -> None:
        """Follow a topic from the watcher's cursor on."""
        active = watcher.topic.active
        assert active is not None, "the engine activates a topic before it is watched"
        active.subscribers.attach(watcher, router=router)
        if watcher.view.touch and not router:
            self.touch(watcher.topic)
        watcher.on_resume = self._catch_up.queue
        self._catch_up.queue(watcher)

    def detach(self, watcher: Watcher) -> None:
        """Follow no more. Safe to call twice."""
        if watcher.closed:
            return
        watcher.closed = True
        active = watcher.topic.active
        assert active is not None
        active.subscribers.detach(watcher)

    def touch(self, topic: Topic) -> None:
        """Somebody consumed from it: recency."""
        topic.note_read(self._clock.now_ns())

    def forget(self, topic: Topic) -> None:
        """The topic is deleted: notify its watchers and let go of them."""
        self._ready.forget((topic, True))
        self._ready.forget((topic, False))
        active = topic.active
        if active is None:
            return
        for view, group in list(active.subscribers.by_view.items()):
            self._dismiss(list(group), view.encoder.deleted(topic))
        for router in list(active.subscribers.routers):
            self._dismiss([router], router.view.encoder.deleted(topic))
        active.subscribers.wake()

    def _dismiss(self, watchers: list[Watcher], frame: Any) -> None:
        """Their last frame, which whoever has no room for it is given later."""
        for watcher in watchers:
            if watcher.stalled or not watcher.give(frame, watcher.cursor):
                watcher.farewell = frame
            self.detach(watcher)

    def obey(self, ladder: Ladder) -> None:
        """The governor's latest answer."""
        self._ladder = ladder
        self._withhold(self._gathering is not None and ladder.coalesce_window_ns > 0)
        if not ladder.coalesce_window_ns and self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._dirty.set()

    def effective_priority(self, topic: Topic) -> int:
        """What the scheduler would use now."""
        now_ns = self._clock.now_ns()
        since_ns = topic.active.subscribers.since_ns if topic.active is not None else 0
        config = topic.config
        return priority.effective(
            config.priority, config.auto_priority, topic.last_read_ns, since_ns or now_ns, now_ns
        )

    def band_of(self, topic: Topic) -> Band:
        """The band a topic belongs to now, apart from how long it waits."""
        config = topic.config
        now_ns = self._clock.now_ns()
        return priority.band_at(
            config.priority, config.auto_priority, topic.last_read_ns, now_ns, now_ns
        )

    def depth_signal(self) -> float:
        return self._withheld.depth() / self.config.ready_budget

    def delay_signal(self) -> float:
        if not self._drains:
            self._delay_ns /= 2  # nothing was late because nothing was due
        self._drains = 0
        return self._delay_ns / self.config.delay_full_ns

    # The services

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._drain_dirty(), name="delivery-drain")
            group.create_task(self._age(), name="delivery-age")
            for number in range(self.config.catch_up_workers):
                group.create_task(self._catch_up.run(), name=f"delivery-catch-up-{number}")

    async def _drain_dirty(self) -> None:
        while True:
            await self._dirty.wait()
            self._slice.begin()
            drained = False
            while (key := self._ready.take()) is not None:
                drained = True
                try:
                    await self._drain(*key)
                finally:
                    self._ready.release(key, self._clock.now_ns(), due_ns=self._due_ns())
            self._dirty.clear()
            if drained and self._ladder.coalesce_window_ns and self._gathering is None:
                self._gather()

    async def _age(self) -> None:
        while True:
            await sleep_ns(self.config.tick_ns)
            now_ns = self._clock.now_ns()
            for key, _, since_ns in self._ready.due(now_ns):
                topic, whole = key
                config = topic.config
                facts = (
                    config.priority,
                    config.auto_priority,
                    topic.last_read_ns,
                    since_ns,
                    now_ns,
                )
                crossing_ns = priority.next_crossing_ns(*facts)
                band = priority.band_at(*facts)
                if not whole and now_ns - since_ns < AGED_NS:
                    # Not for ever: what cannot climb any higher would never leave B0.
                    band = self._lower(band)
                    crossing_ns = min(crossing_ns or AGED_NS, AGED_NS)
                self._ready.move(
                    key,
                    band,
                    due_ns=since_ns + crossing_ns if crossing_ns is not None else None,
                )
            if len(self._ready):
                self._dirty.set()

    # Draining one topic

    async def _drain(self, topic: Topic, whole: bool) -> None:
        active = topic.active
        if active is None:
            return
        if not whole:
            await self._feed_routers(topic, active)
            return
        for _ in self._serve(topic, active):
            await self._slice.let_others()
        if not active.subscribers.routers:
            return
        if self._ladder.defer:
            now_ns = self._clock.now_ns()
            self._enqueue((topic, False), self._lower(self._band(topic, now_ns)), now_ns)
        else:
            await self._feed_routers(topic, active)

    def _goes_at_once(self, topic: Topic, active: ActiveTopic) -> bool:
        """Whether what is new in an urgent topic can be handed over now: waiting for its turn takes
        a turn of the loop, also if it is next. Only if it takes no turn from others; a little, to a
        few, a few times in each turn of the loop; and not while somebody has the topic in hand."""
        if active.subscribers.routers or topic.head - topic.drained > self._inline_items:
            return False
        if sum(batch.size for batch in active.tail.after(topic.drained)) > self._inline_bytes:
            return False
        if len(active.subscribers) > self._inline_items:
            return False
        if self._withheld.depth():
            return False
        return not self._ready.is_taken((topic, True)) and self._inline.take(self._inline_max)

    def _serve(self, topic: Topic, active: ActiveTopic) -> Iterator[None]:
        """Everything new to everybody who watches. Yields wherever the budget is spent."""
        self._note_delay(topic, active)
        target = topic.head
        start = topic.mark_drained()
        for view, group in list(active.subscribers.by_view.items()):
            watchers = [one for one in group if one.caught_up]
            if watchers:
                if view.touch:
                    self.touch(topic)
                yield from self._deliver(topic, view, watchers, start, target)
            for watcher in list(group):
                # Whoever is on its own way may now stand exactly where the others do, or not.
                if watcher.caught_up and watcher.cursor < target:
                    watcher.caught_up = False
                if not watcher.caught_up:
                    self._catch_up.queue(watcher)
        active.subscribers.wake()

    def _deliver(
        self, topic: Topic, view: SharedView, watchers: list[Watcher], start: int, target: int
    ) -> Iterator[None]:
        """Frames for (start, target], built once, to those watchers of one view."""
        limit = view.limit if self._ladder.coalesce_window_ns else 1
        while start < target:
            page = hot_page(topic, start, target, view.limit, view.max_bytes, view.selection)
            if page is None:
                for watcher in watchers:  # it waited so long that the tail went on without it
                    watcher.caught_up = False
                    self._catch_up.queue(watcher)
                return
            for frame, to_seq in self._frames.frames_of(topic, view, page, start, limit):
                for watcher in watchers:
                    # Whoever stalled meanwhile and has caught up again by itself stands further
                    # on, and has had this frame.
                    if watcher.caught_up and not watcher.closed and watcher.cursor == start:
                        self._frames.give(watcher, frame, to_seq)
                    if self._slice.spent:
                        yield
                start = to_seq
            for watcher in watchers:
                if watcher.caught_up and watcher.cursor == start:
                    watcher.cursor = page.next_seq
            start = page.next_seq

    async def _feed_routers(self, topic: Topic, active: ActiveTopic) -> None:
        for router in list(active.subscribers.routers):
            while not (router.closed or router.queued or router.stalled):
                if router.cursor >= topic.drained:
                    break
                view = router.view
                page = hot_page(
                    topic, router.cursor, topic.drained, view.limit, view.max_bytes, view.selection
                )
                if page is None:
                    self._catch_up.queue(router)  # the disk is somebody else's work, not ours
                    break
                await self._frames.give_page(router, page)

    # Small things

    def _band(self, topic: Topic, now_ns: int) -> Band:
        config = topic.config
        since_ns = topic.active.subscribers.since_ns if topic.active is not None else 0
        return priority.band_at(
            config.priority, config.auto_priority, topic.last_read_ns, since_ns or now_ns, now_ns
        )

    def _depth(self, band: Band) -> int:
        return self._ready.depths()[band]

    def _lower(self, band: Band) -> Band:
        return Band(max(band - 1, 0)) if self._ladder.defer else band

    def _enqueue(self, key: tuple[Topic, bool], band: Band, now_ns: int) -> None:
        self._ready.mark(key, band, now_ns, due_ns=now_ns + self.config.tick_ns)
        self._dirty.set()

    def _due_ns(self) -> int:
        return self._clock.now_ns() + self.config.tick_ns

    def _note_delay(self, topic: Topic, active: ActiveTopic) -> None:
        now_ns = self._clock.now_ns()
        delay_ns = late_ns = 0
        subscribers = active.subscribers
        if subscribers.since_ns:
            delay_ns = now_ns - subscribers.since_ns
            held_ns = self._withheld.held_ns(subscribers.band, now_ns) - subscribers.held_ns
            late_ns = delay_ns - held_ns
        self._delays[self._band(topic, now_ns)].record(delay_ns)
        self._delay_ns += 0.2 * (late_ns - self._delay_ns)
        self._drains += 1
        subscribers.served()

    def _gather(self) -> None:
        """Let the lower bands gather what comes, for one window."""
        loop = asyncio.get_running_loop()
        self._withhold(True)
        self._gathering = loop.call_later(self._ladder.coalesce_window_ns / 1e9, self._burst)

    def _burst(self) -> None:
        self._gathering = None
        self._withhold(False)
        self._dirty.set()

    def _withhold(self, gathering: bool) -> None:
        wanted = set(BURST_BANDS) if gathering else set()
        if self._ladder.defer:
            wanted.add(Band.B0)
        self._withheld.only(wanted, self._clock.now_ns())

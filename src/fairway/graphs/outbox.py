"""Lets the effects of firings out, in order, each of them once.

An effect goes out when its firing is recorded, under the producer position (graph, epoch, number of
the firing, ordinal): its destination keeps the last one, so that an effect that is sent again after
a crash, however late, changes nothing. What cannot be sent now is tried until it can.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fairway.core.backoff import BackoffConfig
from fairway.errors import FairwayError, Invalid, TopicFull, Unavailable
from fairway.graphs.checkpoint import EffectRecord
from fairway.kernel.effects import EffectPosition
from fairway.runtime.clock import sleep_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from fairway.graphs.context import Effect
    from fairway.kernel.effects import Destination

logger = logging.getLogger("fairway.graphs")

ORDINAL_BITS: Final = 20
"""A firing has at most a million effects; its number and the ordinal make one rising number."""
BATCH: Final = 1000
BATCH_BYTES: Final = 8 * 1024 * 1024
WAITING_MAX: Final = 10_000
"""Effects that wait; the graph stops firing beyond. Raising it lets a destination be away for
longer before its graph waits for it, and costs memory."""
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of them, in the same way. The firing that passes a bound has its effects taken."""
MET_MAX: Final = 1_000
"""Targets of which it is remembered, when nothing waits for them, that they have nothing beyond
what was sent. Raising it asks fewer of them again."""
BACKOFF: Final = BackoffConfig(base_ns=20_000_000, cap_ns=5_000_000_000, jitter=0.0)

_Where: TypeAlias = tuple[str, str]
"""A kind of destination, and the target there."""


class _Waiting(NamedTuple):
    epoch: int
    firing: int
    number: int
    effect: EffectRecord


class Outbox:
    """The effects of one graph that are on their way: a lane for each target that some wait for.

    Order is kept at each target, not between them; so one that is slow holds up no other. A graph
    may have a target for each of its users: the lane ends, and its task with it, when it is empty.
    """

    def __init__(
        self,
        destinations: Mapping[str, Destination] | None,
        producer: str,
        epoch: int,
        *,
        positions: bool,
        moved: Callable[[], None],
        room_freed: Callable[[], None],
    ) -> None:
        """With `positions` each goes out once; without, at least once while the process lives."""
        self.epoch = epoch
        self.sent = 0
        """Effects of firings up to this one have gone out."""
        self.dropped = 0
        """Effects that their destination will never take."""
        self.full = False
        """Whether so much waits to go out that no more should be made."""
        self.depth = 0
        """Effects that have not gone out yet."""
        self.bytes = 0
        """The size of their data."""
        self._destinations = destinations
        self._producer = producer
        self._positions = positions
        self._moved = moved
        self._room_freed = room_freed
        self._lanes: dict[_Where, _Lane] = {}
        self._met: dict[_Where, bool] = {}  # what lanes knew when they ended, the oldest first
        self._left: dict[int, int] = {}  # effects of each firing that have not gone out, in order
        self._made: asyncio.Event = asyncio.Event()
        self._new: list[tuple[_Where, _Lane]] = []

    @property
    def effects_possible(self) -> bool:
        """Whether there is anywhere for effects to go."""
        return self._destinations is not None

    @property
    def idle(self) -> bool:
        return not self.depth

    @property
    def failing(self) -> dict[str, int]:
        """Destinations that cannot be reached, and how many tries in a row have failed."""
        return {
            target or kind: lane.failures
            for (kind, target), lane in self._lanes.items()
            if lane.failures
        }

    def encoded(self, effects: Sequence[Effect]) -> tuple[EffectRecord, ...]:
        """What is recorded of the effects of a firing."""
        if self._destinations is None:
            raise Invalid("there is nowhere for effects to go: the graph runs without an app")
        if len(effects) >= 1 << ORDINAL_BITS:
            raise Invalid(f"{len(effects):,} effects are too many for one firing")
        return tuple([self._encoded(effect) for effect in effects])

    def _encoded(self, effect: Effect) -> EffectRecord:
        assert self._destinations is not None
        kind, asked = effect
        destination = self._destinations.get(kind)
        if destination is None:
            known = ", ".join(sorted(self._destinations))
            raise Invalid(f"nothing here takes effects of kind {kind!r}: there are {known}")
        return EffectRecord(kind, *destination.encode(asked))

    def send(self, firing: int, effects: Sequence[EffectRecord], epoch: int | None = None) -> None:
        """Let the effects of a firing go; `epoch` is another one's if a restart sends them."""
        if epoch is None:
            epoch = self.epoch
        self._left[firing] = len(effects)
        self.depth += len(effects)
        for ordinal, effect in enumerate(effects):
            self.bytes += len(effect.data)
            where = effect.kind, effect.target
            lane = self._lanes.get(where)
            if lane is None:
                lane = self._lanes[where] = _Lane(met=self._met.pop(where, False))
                self._new.append((where, lane))
                self._made.set()
            number = firing << ORDINAL_BITS | ordinal
            lane.waiting.append(_Waiting(epoch, firing, number, effect))
        if self.depth >= WAITING_MAX or self.bytes >= WAITING_BYTES_MAX:
            self.full = True

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for where, lane in self._new:
                    group.create_task(self._serve(where, lane), name="outbox-lane")
                self._new.clear()
                self._made.clear()
                await self._made.wait()

    async def _serve(self, where: _Where, lane: _Lane) -> None:
        while lane.waiting:
            batch = lane.batch()
            try:
                if not await self._send(lane, batch):
                    lane.met = False
                    continue
            except Invalid as error:
                if isinstance(error, TopicFull):
                    await self._failed(lane, error)
                    continue
                if len(batch) > 1:
                    lane.alone = len(batch)  # one of them is why: let each go by itself
                    continue
                self.dropped += 1
                logger.error("%s: an effect goes nowhere: %s", self._producer, error)
            except FairwayError as error:
                lane.met = False  # whether it arrived may be in doubt: ask before it goes again
                await self._failed(lane, error)
                continue
            lane.failures = 0
            self._gone(lane, batch)
        # Nothing is awaited since it was seen empty: what comes next finds no lane, and its new one
        # begins when all that went before is out.
        del self._lanes[where]
        if lane.met:
            self._met[where] = True
            if len(self._met) > MET_MAX:
                del self._met[next(iter(self._met))]

    async def _send(self, lane: _Lane, batch: list[_Waiting]) -> bool:
        """Whether they are out. If not, somebody sent some of them meanwhile: look which."""
        assert self._destinations is not None
        kind, target = batch[0].effect.kind, batch[0].effect.target
        destination = self._destinations.get(kind)
        if destination is None:  # a part that was there when it was recorded
            raise Unavailable(f"nothing here takes effects of kind {kind!r}")
        position = None
        if self._positions:
            if not lane.met:
                known = await destination.known(target, self._producer)
                if known is not None:
                    batch = [each for each in batch if (each.epoch, each.number) > known]
                    if not batch:
                        return True
            first, last = batch[0], batch[-1]
            position = EffectPosition(self._producer, last.epoch, last.number, first.number)
        sent = await destination.send(target, [each.effect.data for each in batch], position)
        lane.met = sent
        return sent

    def _gone(self, lane: _Lane, batch: list[_Waiting]) -> None:
        for waiting in batch:
            lane.waiting.popleft()
            self._left[waiting.firing] -= 1
            self.bytes -= len(waiting.effect.data)
        lane.alone = max(0, lane.alone - len(batch))
        self.depth -= len(batch)
        while self._left:
            first = next(iter(self._left))
            if self._left[first]:
                break
            del self._left[first]
            self.sent = first
        if self.full and self.depth < WAITING_MAX // 2 and self.bytes < WAITING_BYTES_MAX // 2:
            self.full = False
            self._room_freed()
        self._moved()

    async def _failed(self, lane: _Lane, error: FairwayError) -> None:
        lane.failures += 1
        if lane.failures in (1, 10):
            logger.warning("%s: effects wait, will try again: %s", self._producer, error)
        await sleep_ns(BACKOFF.ceiling_ns(lane.failures))


class _Lane:
    """Effects that wait for one target."""

    __slots__ = ("alone", "failures", "met", "waiting")

    def __init__(self, *, met: bool) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.met = met
        """Whether it is known that the target has nothing beyond what was sent."""
        self.failures = 0
        self.alone = 0
        """So many of the first go one by one: together they were refused."""

    def batch(self) -> list[_Waiting]:
        """The first of them, as many as may go at once: of one epoch."""
        epoch = self.waiting[0].epoch
        batch: list[_Waiting] = []
        most, size = 1 if self.alone else BATCH, 0
        for waiting in self.waiting:
            size += len(waiting.effect.data)
            if batch and (waiting.epoch != epoch or len(batch) >= most or size > BATCH_BYTES):
                break
            batch.append(waiting)
        return batch

"""Groups under random interleavings: what each promise means, and planted bugs that break it.

The referee sees what any caller sees, and nothing inside the machine. Several workers hold groups
at once and settle their parts one by one, in any order; at the end they keep going until all is
drained. Each planted bug is a machine that breaks one promise: the same referee must catch it, by
what comes of it and not by a gauge or by the machine's own `check`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from fairway.core.groups import Groups
from fairway.core.lanes import Drained, LaneLimits, Lanes, Refusal
from fairway.core.ready import Ready
from tests.properties.twins import MANY, SlowGroups, histories

if TYPE_CHECKING:
    from random import Random

    from tests.conftest import Campaign

KEYS = "abcde"
LIMITS = LaneLimits(items=6, size=60)
TOTAL = LaneLimits(items=20, size=200)
RESERVE = (2, 15)

Item = tuple[int, int]
"""A number that rises, and a size."""


class Referee:
    """Drives a machine and asserts, from outside, everything it promises."""

    def __init__(
        self, groups: Groups[str, Item], tally: Counter[str], *, gauges: bool = True
    ) -> None:
        self.groups = groups
        self.tally = tally
        self.gauges = gauges
        self.waiting: dict[str, list[Item]] = {key: [] for key in KEYS}  # accepted, in order
        self.held: dict[str, Drained[str, Item]] = {}
        self.overtook: dict[str, set[str]] = {}  # for each waiting key, who went before it
        self.numbers = 0
        self.now_ns = 0

    def in_lane(self, key: str) -> list[Item]:
        """What counts against the bounds of a key."""
        return self.waiting[key] + (self.held[key].items if key in self.held else [])

    def offer(self, key: str, size: int, *, finishing: bool = False) -> None:
        item = (self.numbers, size)
        self.numbers += 1
        before = self.seen()
        refusal = self.groups.offer(key, item, size, self.now_ns, finishing=finishing)
        reserve = RESERVE if finishing else (0, 0)
        own = [*self.in_lane(key), item]
        everything = [item] + [item for key in KEYS for item in self.in_lane(key)]
        fits = bounded(own, LIMITS, reserve) and bounded(everything, TOTAL, reserve)
        assert (refusal is None) == fits, "exactly what fits is accepted"
        if refusal is not None:
            self.tally["refused"] += 1
            assert self.seen() == before, "a refusal changed something"
            assert (refusal.lane, refusal.depth) == (key, len(own) - 1)
            return
        self.tally["offered while held" if key in self.held else "offered"] += 1
        self.tally["offered to finish"] += finishing
        if key not in self.held and not self.waiting[key]:
            self.overtook[key] = set()
        self.waiting[key].append(item)

    def take(self, keys: int, items: int, size: int, total_size: int | None) -> None:
        ready = [key for key in KEYS if self.waiting[key] and key not in self.held]
        group = self.groups.take(keys=keys, items=items, size=size, total_size=total_size)
        self.tally["taken together"] += len(group) > 1
        self.tally["held by several"] += bool(group and self.held)
        left = total_size
        for part in group:
            assert left is None or left > 0, "the group was full"
            room = size if left is None else min(size, left)
            left = None if left is None else left - part.size
            self.receive(part, items, room)
        idle = [key for key in ready if key not in self.held]
        full = len(group) == keys or (left is not None and left <= 0)
        assert full or not idle, f"{idle} could have joined"

    def receive(self, part: Drained[str, Item], items: int, room: int) -> None:
        key = part.key
        assert key not in self.held, f"{key} has two owners"
        assert part.items, f"{key} has a turn for nothing"
        assert part.items == self.waiting[key][: len(part.items)], "in order, each once"
        assert part.size == total(part.items)
        within = len(part.items) <= items and part.size <= room
        assert within or len(part.items) == 1, "a part is too large"
        self.held[key] = part
        del self.waiting[key][: len(part.items)]
        del self.overtook[key]
        for other, before in self.overtook.items():
            assert key not in before, f"{key} went twice while {other} waited"
            before.add(key)

    def settle(self, key: str) -> None:
        self.groups.settle(self.held.pop(key), self.now_ns)
        self.tally["settled with more waiting" if self.waiting[key] else "settled"] += 1
        if self.waiting[key]:
            self.overtook[key] = set()

    def withdraw(self, key: str) -> None:
        self.tally["withdrew"] += bool(self.waiting[key])
        assert self.groups.withdraw(key) == self.waiting[key], "all that waits, and nothing else"
        self.waiting[key].clear()

    def seen(self) -> object:
        """Everything that can be seen from outside."""
        groups = self.groups
        return groups.depth, groups.size, groups.waiting_keys, groups.depths()

    def check(self) -> None:
        if not self.gauges:
            return
        self.groups.check()
        depths = {key: (len(lane), total(lane)) for key in KEYS if (lane := self.in_lane(key))}
        assert self.groups.depths() == depths
        assert self.groups.depth == sum(depth for depth, _ in depths.values())
        assert self.groups.size == sum(size for _, size in depths.values())
        assert self.groups.waiting_keys == len(self.overtook), "who has items and no owner waits"

    def drain(self) -> None:
        """Workers keep going; nothing more comes. Everything accepted must leave."""
        for _ in range(1 + sum(len(lane) for lane in self.waiting.values()) + len(self.held)):
            for key in list(self.held):
                self.settle(key)
            self.take(keys=2, items=3, size=30, total_size=None)
        assert not self.held
        stranded = {key: lane for key, lane in self.waiting.items() if lane}
        assert not stranded, "stranded"
        self.check()


def total(items: list[Item]) -> int:
    return sum(size for _, size in items)


def bounded(items: list[Item], limits: LaneLimits, reserve: tuple[int, int]) -> bool:
    return len(items) <= limits.items + reserve[0] and total(items) <= limits.size + reserve[1]


def interleave(referee: Referee, random: Random, steps: int = 150) -> None:
    """One random history of offers, takes, settlements and withdrawals, then a full drain."""
    # A flood fills the bounds, a trickle lets lanes run empty: both happen.
    offers = random.choice((2, 6, 12))
    for _ in range(steps):
        referee.now_ns += random.randrange(1_000_000)
        verb = random.choices(("offer", "take", "settle", "withdraw"), (offers, 3, 4, 1))[0]
        held = sorted(referee.held)
        if verb == "offer":
            size = random.choice((0, 1, 5, 10, 30))
            referee.offer(random.choice(KEYS), size, finishing=random.random() < 0.2)
        elif verb == "take":
            referee.take(
                keys=random.randint(1, 3),
                items=random.randint(1, 4),
                size=random.choice((1, 10, 40)),
                total_size=random.choice((None, 1, 20, 50)),
            )
        elif held and verb == "settle":
            referee.settle(random.choice(held))
        elif held:
            referee.withdraw(random.choice(held))
        referee.check()
    referee.drain()


EVENTS = (
    *("offered", "offered while held", "offered to finish", "refused"),
    *("taken together", "held by several", "settled", "settled with more waiting", "withdrew"),
)


def test_every_promise_holds_under_random_interleavings(campaign: Campaign) -> None:
    for number in range(campaign.rounds(share=200, full=5_000)):
        groups: Groups[str, Item] = Groups(LIMITS, total=TOTAL, reserve=RESERVE)
        interleave(Referee(groups, campaign.tally), campaign.random(number))
    assert all(campaign.tally[event] >= 100 for event in EVENTS), campaign.tally


# --- planted bugs: a machine for each promise that breaks it

PLANTED: list[type[Planted]] = []


class Planted(Groups[str, Item]):
    """A machine with one bug, of the kind that its docstring names."""

    breaks = ""
    """What the referee must say."""
    lanes_type: type[Lanes[str, Item]] = Lanes
    ready_type: type[Ready[str, str]] = Ready

    def __init_subclass__(cls) -> None:
        PLANTED.append(cls)

    def __init__(self) -> None:
        super().__init__(LIMITS, total=TOTAL, reserve=RESERVE)
        self._lanes = self.lanes_type(LIMITS, total=TOTAL, reserve=RESERVE)
        self._ready = self.ready_type({"": 1})


class ForgetsTheRest(Planted):
    """A settled key with items left is not put back: stranded until somebody offers again."""

    breaks = "could have joined"

    def settle(self, drained: Drained[str, Item], now_ns: int) -> None:
        self._lanes.settle(drained.key, len(drained.items), drained.size, now_ns)
        self._ready.release(drained.key, now_ns)


class ForgetsMarksWhileHeld(Planted):
    """What is offered while its key is held wakes nobody at the release."""

    breaks = "could have joined"

    def settle(self, drained: Drained[str, Item], now_ns: int) -> None:
        self._lanes.settle(drained.key, len(drained.items), drained.size, now_ns)
        self._ready.forget(drained.key)
        self._ready.release(drained.key, now_ns)


class NeverWakes(Planted):
    """Every so often an accepted item does not wake its key."""

    breaks = "could have joined"

    def offer(
        self, key: str, item: Item, size: int, now_ns: int, finishing: bool = False
    ) -> Refusal | None:
        if item[0] % 7:
            return super().offer(key, item, size, now_ns, finishing=finishing)
        return self._lanes.offer(key, item, size, now_ns, finishing=finishing)


class StopsEarly(Planted):
    """A group is cut short though keys wait and there is room."""

    breaks = "could have joined"

    def take(
        self, *, keys: int, items: int, size: int, total_size: int | None = None
    ) -> list[Drained[str, Item]]:
        return super().take(keys=min(keys, 2), items=items, size=size, total_size=total_size)


class NoGuard(Planted):
    """Nobody remembers who is taken: a mark makes a key ready for the next worker at once."""

    breaks = "has two owners"

    class ready_type(Ready[str, str]):
        def take(self, cost: int = 1) -> str | None:
            key = super().take(cost)
            self._taken.pop(key or "", None)
            return key

        def release(self, key: str, now_ns: int = 0, *, due_ns: int | None = None) -> bool:
            return False


class ReleasesEarly(Planted):
    """The hold ends when the group is taken rather than when it is settled."""

    breaks = "has two owners"

    def take(
        self, *, keys: int, items: int, size: int, total_size: int | None = None
    ) -> list[Drained[str, Item]]:
        group = super().take(keys=keys, items=items, size=size, total_size=total_size)
        for part in group:
            if self._lanes.has_items(part.key):
                self._ready.mark(part.key, "")
            self._ready.release(part.key)
        return group

    def settle(self, drained: Drained[str, Item], now_ns: int) -> None:
        self._lanes.settle(drained.key, len(drained.items), drained.size, now_ns)


class PushesIn(Planted):
    """A key that comes back goes to the front: a busy one starves the others."""

    breaks = "went twice while"

    def settle(self, drained: Drained[str, Item], now_ns: int) -> None:
        super().settle(drained, now_ns)
        if self._ready.waiting_in(drained.key) is not None:
            self._ready._bands[""].began.rotate(1)


class ForgetsBytes(Planted):
    """Limits count items only: a few large ones are unbounded memory."""

    breaks = "exactly what fits"

    class lanes_type(Lanes[str, Item]):
        def __init__(self, limits: LaneLimits, *, total: LaneLimits, **more: Any) -> None:
            endless, both = LaneLimits(items=limits.items), LaneLimits(items=total.items)
            super().__init__(endless, total=both, **more)


class ForgetsWhatIsInFlight(Planted):
    """Room is free again once items are drained, though they are still in memory."""

    breaks = "exactly what fits"

    class lanes_type(Lanes[str, Item]):
        def drain(self, key: str, *, items: int, size: int) -> Drained[str, Item]:
            drained = super().drain(key, items=items, size=size)
            lane = self._lanes[key]
            lane.depth -= len(drained.items)
            lane.size -= drained.size
            self.depth -= len(drained.items)
            self.size -= drained.size
            return drained

        def settle(self, key: str, count: int, size: int, now_ns: int) -> bool:
            return key in self._lanes and super().settle(key, 0, 0, now_ns)


class OffByOne(Planted):
    """A full lane takes one more."""

    breaks = "exactly what fits"

    class lanes_type(Lanes[str, Item]):
        def __init__(self, limits: LaneLimits, **more: object) -> None:
            loose = LaneLimits(items=limits.items + 1, size=limits.size)
            super().__init__(loose, **more)  # type: ignore[arg-type]


class OpenReserve(Planted):
    """Anybody may use the reserve, so finishing work finds it taken."""

    breaks = "exactly what fits"

    def offer(
        self, key: str, item: Item, size: int, now_ns: int, finishing: bool = False
    ) -> Refusal | None:
        return super().offer(key, item, size, now_ns, finishing=True)


class RefusesAndKeeps(Planted):
    """A refused item is in the lane all the same."""

    breaks = "a refusal changed something"

    class lanes_type(Lanes[str, Item]):
        def offer(
            self, key: str, item: Item, size: int, now_ns: int, finishing: bool = False
        ) -> Refusal | None:
            refusal = super().offer(key, item, size, now_ns, finishing=finishing)
            if refusal is not None and key in self._lanes:
                self._lanes[key].queue.append(item)
                self._lanes[key].sizes.append(size)
                self._lanes[key].depth += 1
            return refusal


class LastInFirstOut(Planted):
    """The newest item of a key leaves first."""

    breaks = "in order, each once"

    class lanes_type(Lanes[str, Item]):
        def drain(self, key: str, *, items: int, size: int) -> Drained[str, Item]:
            self._lanes[key].queue.rotate(1)
            self._lanes[key].sizes.rotate(1)
            return super().drain(key, items=items, size=size)


class ServesTwice(Planted):
    """The last item of a part stays in the lane and leaves once more."""

    breaks = "in order, each once"

    class lanes_type(Lanes[str, Item]):
        def drain(self, key: str, *, items: int, size: int) -> Drained[str, Item]:
            drained = super().drain(key, items=items, size=size)
            lane, again = self._lanes[key], drained.items[-1]
            lane.queue.appendleft(again)
            lane.sizes.appendleft(again[1])
            lane.depth += 1
            lane.size += again[1]
            return drained


class LosesWhatDidNotFit(Planted):
    """The item that made a part too large is gone."""

    breaks = "in order, each once"

    class lanes_type(Lanes[str, Item]):
        def drain(self, key: str, *, items: int, size: int) -> Drained[str, Item]:
            drained = super().drain(key, items=items, size=size)
            if len(drained.items) < items and len(self._lanes[key].queue) > 1:
                self._lanes[key].queue.popleft()
                self._lanes[key].sizes.popleft()
            return drained


class MisreadsTheLimit(Planted):
    """The byte limit of a part is looked at only after the item that passes it."""

    breaks = "a part is too large"

    class lanes_type(Lanes[str, Item]):
        def drain(self, key: str, *, items: int, size: int) -> Drained[str, Item]:
            return super().drain(key, items=items, size=2 * size)


class KeepsTheMark(Planted):
    """A lane was emptied by its holder, but its key has a turn all the same."""

    breaks = "has a turn for nothing"

    def withdraw(self, key: str) -> list[Item]:
        return self._lanes.withdraw(key)

    class lanes_type(Lanes[str, Item]):
        def drain(self, key: str, *, items: int, size: int) -> Drained[str, Item]:
            if key in self._lanes:
                return super().drain(key, items=items, size=size)
            return Drained(key, [], 0)


class WithdrawsAPart(Planted):
    """One item stays behind when a lane is emptied."""

    breaks = "all that waits"

    def withdraw(self, key: str) -> list[Item]:
        return super().withdraw(key)[:-1]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_referee_catches_a_planted_bug(planted: type[Planted], campaign: Campaign) -> None:
    histories = campaign.rounds(share=60, full=1_000)
    for number in range(histories):
        referee = Referee(planted(), Counter(), gauges=False)
        try:
            interleave(referee, campaign.random(number))
        except (AssertionError, KeyError) as complaint:
            campaign.tally["caught"] += planted.breaks in str(complaint)
    campaign.tally["histories"] = histories
    assert campaign.tally["caught"] >= histories / 30, "it must not take luck"


def test_the_referee_has_nothing_against_a_machine_without_a_bug(campaign: Campaign) -> None:
    """The frame of the planted ones is sound: it is their bug that is caught."""
    for number in range(20):
        interleave(Referee(Planted(), campaign.tally), campaign.random(number))


# --- the twin


class Step(NamedTuple):
    verb: str
    key: str
    count: int
    much: int


VERBS = ("offer",) * 6 + ("finish",) + ("take",) * 3 + ("settle",) * 4 + ("withdraw",)


def step(verb: int, key: int, count: int, much: int) -> Step:
    return Step(VERBS[verb % len(VERBS)], KEYS[key % len(KEYS)], count, much)


@MANY
@given(history=histories(step, 120), bounded=st.booleans())
def test_same_groups_as_the_slow_twin(history: list[Step], bounded: bool) -> None:
    total = TOTAL if bounded else None
    groups: Groups[str, int] = Groups(LIMITS, total=total, reserve=RESERVE)
    twin = SlowGroups(LIMITS, total=total, reserve=RESERVE)
    held: list[Drained[str, int]] = []
    most = 0
    for number, step in enumerate(history):
        now_ns = number * 1_000_000
        if step.verb in ("offer", "finish"):
            finishing = step.verb == "finish"
            got = groups.offer(step.key, number, step.much % 25, now_ns, finishing=finishing)
            expected = twin.offer(step.key, number, step.much % 25, now_ns, finishing=finishing)
            assert (got and got[:3]) == (expected and expected[:3])
        elif step.verb == "take":
            keys, items, size = 1 + step.count % 3, 1 + step.count // 3 % 4, 1 + step.much % 50
            total_size = step.much // 2 if step.much % 2 else None
            group = groups.take(keys=keys, items=items, size=size, total_size=total_size)
            assert group == twin.take(keys=keys, items=items, size=size, total_size=total_size)
            held += group
        elif step.verb == "settle" and held:
            part = held.pop(step.count % len(held))
            groups.settle(part, now_ns)
            twin.settle(part, now_ns)
        elif step.verb == "withdraw" and held:
            key = held[step.count % len(held)].key
            assert groups.withdraw(key) == twin.withdraw(key)
        most = max(most, len(held))
        groups.check()
        assert groups.depths() == twin.lanes.depths()
        assert groups.waiting_keys == len(twin.line)
    event(f"held at once: {most}")

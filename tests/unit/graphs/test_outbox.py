"""Effects go out once, also if somebody else sends some of them in the meantime."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fairway.graphs import outbox as outbox_module
from fairway.graphs.checkpoint import EffectRecord
from fairway.graphs.outbox import ORDINAL_BITS, Outbox
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairway.kernel.effects import EffectPosition


class Store:
    """A destination that keeps a position; another sender writes right before we do."""

    def __init__(self) -> None:
        self.position = (0, 0)
        self.held: list[bytes] = []
        self.meanwhile: list[tuple[int, list[bytes]]] = []
        """What the other one sends, once, after we asked: up to which firing, and what."""

    def encode(self, asked: Any) -> tuple[str, bytes]:
        raise AssertionError("they are encoded already")

    async def known(self, target: str, producer: str) -> tuple[int, int]:
        known = self.position
        if self.meanwhile:
            upto, sent = self.meanwhile.pop()
            self.position = (1, upto << ORDINAL_BITS)
            self.held += sent
        return known

    async def send(
        self, target: str, effects: Sequence[bytes], position: EffectPosition | None
    ) -> bool:
        assert position is not None
        if self.position >= (position.epoch, position.first):
            return False
        self.position = (position.epoch, position.number)
        self.held += effects
        return True


def test_what_an_earlier_holder_sends_meanwhile_is_not_sent_again() -> None:
    async def main() -> None:
        store = Store()
        store.meanwhile = [(3, [b"1", b"2", b"3"])]
        done = asyncio.Event()
        outbox = Outbox(
            {"job": store}, "graph//g", 1, positions=True, moved=done.set, room_freed=lambda: None
        )
        for firing in range(1, 6):
            outbox.send(firing, [EffectRecord("job", "", b"%d" % firing)])
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(outbox.run())
            while not outbox.idle:
                done.clear()
                await done.wait()
            sending.cancel()
        assert store.held == [b"1", b"2", b"3", b"4", b"5"]
        assert outbox.sent == 5

    run(main)


def test_few_large_effects_fill_it_until_half_of_their_bytes_are_out() -> None:
    async def main() -> None:
        left: list[int] = []
        done = asyncio.Event()
        most = 2 * outbox_module.WAITING_BYTES_MAX // outbox_module.BATCH_BYTES
        large = b"x" * (outbox_module.BATCH_BYTES // 2)
        store = Store()
        outbox = Outbox(
            {"job": store},
            "graph//g",
            1,
            positions=True,
            moved=done.set,
            room_freed=lambda: left.append(outbox.bytes),
        )
        for firing in range(1, most + 1):
            assert not outbox.full
            outbox.send(firing, [EffectRecord("job", "", large)])
        assert outbox.full
        assert outbox.bytes == most * len(large)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(outbox.run())
            while not outbox.idle:
                done.clear()
                await done.wait()
            sending.cancel()
        half = outbox_module.WAITING_BYTES_MAX // 2
        assert left == [half - 2 * len(large)], "told once, by the first batch that leaves so much"
        assert not outbox.full
        assert not outbox.bytes

    run(main)


class Users:
    """A destination with many targets, each with a position; whoever sends waits a few turns."""

    def __init__(self, turns: Callable[[], int] = lambda: 1) -> None:
        self.turns = turns
        self.positions: dict[str, tuple[int, int]] = {}
        self.held: dict[str, list[bytes]] = {}
        self.asked: Counter[str] = Counter()
        """How often each was asked what it has."""
        self.busy: set[str] = set()

    def encode(self, asked: Any) -> tuple[str, bytes]:
        raise AssertionError("they are encoded already")

    async def known(self, target: str, producer: str) -> tuple[int, int] | None:
        self.asked[target] += 1
        return self.positions.get(target)

    async def send(
        self, target: str, effects: Sequence[bytes], position: EffectPosition | None
    ) -> bool:
        assert position is not None
        assert target not in self.busy, "two at a time, to one target"
        self.busy.add(target)
        for _ in range(self.turns()):
            await asyncio.sleep(0)
        self.busy.remove(target)
        assert self.positions.get(target, (0, 0)) < (position.epoch, position.first)
        self.positions[target] = (position.epoch, position.number)
        self.held.setdefault(target, []).extend(effects)
        return True


def effect(target: str, number: int) -> EffectRecord:
    return EffectRecord("topic", target, b"%d" % number)


def lanes() -> int:
    return sum(task.get_name() == "outbox-lane" for task in asyncio.all_tasks())


def to_users(users: Users, play: Callable[[Outbox, Callable[[], Any]], Any]) -> None:
    """Play with an outbox that runs; what `play` is given besides waits until all is out."""

    async def main() -> None:
        done = asyncio.Event()
        outbox = Outbox(
            {"topic": users}, "graph//g", 1, positions=True, moved=done.set, room_freed=lambda: None
        )

        async def all_out() -> None:
            while not outbox.idle:
                done.clear()
                await done.wait()
            await asyncio.sleep(0)  # the tasks that served the last of them end

        async with asyncio.TaskGroup() as group:
            sending = group.create_task(outbox.run())
            await play(outbox, all_out)
            sending.cancel()

    run(main)


def test_what_sends_to_a_target_ends_when_nothing_waits_for_it() -> None:
    users = Users()

    async def play(outbox: Outbox, all_out: Callable[[], Any]) -> None:
        for firing in range(1, 301):
            outbox.send(firing, [effect(f"user-{firing}", firing)])
            await asyncio.sleep(0)
            assert lanes() < 10, "one for each target that there ever was"
        await all_out()
        assert not lanes()
        assert not outbox._lanes
        assert users.held == {f"user-{n}": [b"%d" % n] for n in range(1, 301)}

    to_users(users, play)


def test_targets_that_were_sent_to_of_late_are_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "MET_MAX", 2)
    users = Users()

    async def play(outbox: Outbox, all_out: Callable[[], Any]) -> None:
        for firing, target in enumerate("ababcdca", start=1):
            outbox.send(firing, [effect(target, firing)])
            await all_out()
        assert users.asked == {"a": 2, "b": 1, "c": 1, "d": 1}
        assert len(outbox._met) == 2

    to_users(users, play)


@pytest.mark.parametrize("seed", range(20))
def test_lanes_that_come_and_go_keep_the_order_of_each_target(seed: int) -> None:
    chance = random.Random(seed)
    users = Users(turns=lambda: chance.randrange(4))
    sent: dict[str, list[bytes]] = {}

    async def play(outbox: Outbox, all_out: Callable[[], Any]) -> None:
        for firing in range(1, 200):
            targets = chance.choices("abc", k=chance.randrange(1, 4))
            outbox.send(firing, [effect(target, firing) for target in targets])
            for target in targets:
                sent.setdefault(target, []).append(b"%d" % firing)
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
        await all_out()
        assert outbox.sent == 199

    to_users(users, play)
    assert users.held == sent

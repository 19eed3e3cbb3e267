"""Effects go out once, also if somebody else sends some of them in the meantime."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fairway.graphs import outbox as outbox_module
from fairway.graphs.checkpoint import EffectRecord
from fairway.graphs.outbox import ORDINAL_BITS, Outbox
from fairway.testing import run

if TYPE_CHECKING:
    from collections.abc import Sequence

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
            {"job": store}, "graph//g", 1, positions=True, moved=done.set, room=lambda: None
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
            room=lambda: left.append(outbox.bytes),
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

"""Writes that are not to be throttled: they wait for room, up to a deadline, and so many bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairway.core.lanes import LaneLimits
from fairway.errors import Backpressure, Unavailable
from fairway.kernel.kernel import Kernel
from fairway.storage.log import Log
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.writer import WriterConfig
from fairway.testing import run
from fairway.topics import writing
from fairway.topics.engine import Topics
from tests.support.topics import Forced, new, read_all, values

S = 1_000_000_000
ROOM = LaneLimits(items=4, size=1024 * 1024)


def with_little_room(body: Any, latency_s: tuple[int, int]) -> None:
    """`body` is given topics whose log takes four writes at once, each of which takes its time."""

    async def main() -> None:
        config = WriterConfig(lane=ROOM, total=ROOM, reserve_items=1)
        async with (
            Log(MemoryWal(), writer=config) as log,
            Kernel(log, governor=Forced()) as kernel,
            Topics(kernel) as topics,
        ):
            await topics.append("t", new(0))
            async with asyncio.TaskGroup() as group:
                for number in range(1, 5):
                    group.create_task(topics.append("t", new(number)))
                await asyncio.sleep(0)
                await body(topics)

    run(main, seed=1, quiet=True, limit_ns=10**12, latency_ns=tuple(s * S for s in latency_s))


@pytest.mark.parametrize("name", ["t", "made-by-it"])
def test_a_write_waits_for_room(name: str) -> None:
    async def body(topics: Topics) -> None:
        with pytest.raises(Backpressure):
            await topics.append(name, new("does not wait"))
        await topics.append(name, new("waits", wait_for_room=True))
        assert values(await read_all(topics, name))[-1] == "waits"
        assert not topics.writing._waiting_bytes

    with_little_room(body, (1, 1))


@pytest.mark.parametrize("name", ["t", "made-by-it"])
def test_a_write_that_waits_for_room_fails_at_its_deadline_and_nothing_is_changed(
    name: str,
) -> None:
    async def body(topics: Topics) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        with pytest.raises(Unavailable, match="no room for a write"):
            await topics.append(name, new("waits", wait_for_room=True))
        assert loop.time() - begin <= writing.ROOM_WAIT_NS / S
        assert topics.find("made-by-it") is None

    with_little_room(body, (20, 20))


def test_what_waits_for_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new("waits", wait_for_room=True)
    monkeypatch.setattr(writing, "WAITING_BYTES_MAX", len(first.records.raw))

    async def body(topics: Topics) -> None:
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(topics.append("t", first))
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="too many"):
                await topics.append("t", new("one too many", wait_for_room=True))
            await waiting

    with_little_room(body, (1, 1))

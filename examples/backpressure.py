"""What a full lane says, and three ways to live with it.

Run it with `python examples/backpressure.py`. The store is in memory and syncs slowly on purpose.
"""

import asyncio
import time
from collections import deque

from fairway import Log, Operation
from fairway.core.lanes import LaneLimits
from fairway.errors import Backpressure
from fairway.storage.wals.memory import MemoryWal
from fairway.storage.writer import WriterConfig

SMALL = WriterConfig(
    lane=LaneLimits(items=8, size=64 * 1024),
    max_batch=4,
    max_batch_bytes=16 * 1024,
    reserve_items=2,
    reserve_bytes=1024,
)


def slow_store() -> MemoryWal:
    return MemoryWal(sync=lambda: time.sleep(0.005))


# --8<-- [start:refusal]
async def see_a_refusal(log: Log) -> None:
    for number in range(8):
        log.append(1, b"entry %d" % number)  # accepted; nobody waits for these yet
    try:
        log.append(1, b"one too many")
    except Backpressure as full:
        print(f"{full.lane} holds {full.depth}, the limit is {full.limit},", end=" ")
        print(f"come back in {full.retry_after_ns / 1e6:.0f} ms")
    log.append(2, b"another partition has a lane of its own")


# --8<-- [end:refusal]


# --8<-- [start:retry]
async def append_patiently(log: Log, partition: int, payload: bytes, *, patience_s: float) -> int:
    """Append, coming back when told to, for as long as there is patience."""
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            accepted = log.append(partition, payload)
        except Backpressure as full:
            pause_s = full.retry_after_ns / 1e9
            if time.monotonic() + pause_s > give_up_at:
                raise
            await asyncio.sleep(pause_s)
        else:
            return await accepted  # patience is for getting in; what got in is waited for


# --8<-- [end:retry]


# --8<-- [start:window]
async def copy(log: Log, partition: int, source: list[bytes], *, window: int) -> None:
    """Append everything with at most `window` in flight: the lane never fills."""
    pending: deque[asyncio.Future[int]] = deque()
    for payload in source:
        if len(pending) == window:
            await pending.popleft()  # they resolve in order, and a failure is raised here
        pending.append(log.append(partition, payload))
    while pending:
        await pending.popleft()


# --8<-- [end:window]


# --8<-- [start:finishing]
async def finish_under_overload(log: Log) -> None:
    """Work that frees something may use a reserve which new work cannot."""
    accepted = [log.append(3, b"new work") for _ in range(8)]
    done = Operation(meta={"step 1": b"done"})
    try:
        log.submit(3, done)
    except Backpressure:
        accepted.append(log.submit(3, done, finishing=True))
    for each in accepted:
        await each
    assert await log.meta(3, "step 1") == b"done"


# --8<-- [end:finishing]


async def main() -> None:
    async with Log(slow_store(), writer=SMALL) as log:
        await see_a_refusal(log)
        async with asyncio.TaskGroup() as callers:
            for number in range(20):
                payload = b"patient %d" % number
                callers.create_task(append_patiently(log, 1, payload, patience_s=10))
        await copy(log, 4, [b"copied %d" % number for number in range(40)], window=6)
        await finish_under_overload(log)
        writer, _ = log.statistics()
        print(
            f"{writer.operations} operations in {writer.groups} groups, {writer.refused} refusals"
        )
        assert log.last_key(1) == 28
        assert log.last_key(4) == 40


asyncio.run(main())

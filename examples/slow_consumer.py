"""A consumer that stalls falls behind alone, and catches up from the log with every record."""

import asyncio
import tempfile

from fairway.app import Fairway, Lost

COUNT = 500


# --8<-- [start:consumers]
async def consume(app: Fairway, until: int, gate: asyncio.Event) -> list[int]:
    """Every seq up to `until`; reads nothing while the gate is shut."""
    seen: list[int] = []
    async for record in app.topic("prices").watch():
        assert not isinstance(record, Lost)
        await gate.wait()
        seen.append(record.seq)
        if record.seq == until:
            break
    return seen


async def main(directory: str) -> None:
    app = Fairway(directory)
    prices = app.topic("prices")
    async with app, asyncio.TaskGroup() as group:
        open_gate, shut_gate = asyncio.Event(), asyncio.Event()
        open_gate.set()
        quick = group.create_task(consume(app, COUNT, open_gate))
        stalled = group.create_task(consume(app, COUNT, shut_gate))
        for price in range(COUNT):
            await prices.append(price)
        seen = await quick  # the stalled one has not taken a single record
        assert not stalled.done()
        shut_gate.set()
        assert await stalled == seen == list(range(1, COUNT + 1))
        print(f"both saw all {COUNT}, the stalled one later")


# --8<-- [end:consumers]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

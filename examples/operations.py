"""Several changes of a partition that happen together or not at all.

Run it with `python examples/operations.py`.
"""

import asyncio
import tempfile

from fairway import Durability, Entry, Log, Operation, wal_at
from fairway.errors import InvalidOperation

ORDERS = 1


# --8<-- [start:together]
async def copy_with_position(log: Log, orders: list[bytes], position: int) -> None:
    """Append what was read from elsewhere, and how far that was, in one operation."""
    after = log.last_key(ORDERS)
    await log.submit(
        ORDERS,
        Operation(
            entries=[Entry(after + n, order) for n, order in enumerate(orders, start=1)],
            meta={"source position": str(position).encode()},
        ),
    )


# --8<-- [end:together]


# --8<-- [start:compact]
async def forget_before(log: Log, key: int) -> None:
    """Remove entries below `key`. The keys of what stays do not change."""
    await log.submit(ORDERS, Operation(compact_before=key))


# --8<-- [end:compact]


# --8<-- [start:classes]
async def three_promises(log: Log) -> None:
    await log.append(2, b"survives power loss")
    await log.append(2, b"survives kill -9", durability=Durability.DISK)
    await log.append(2, b"survives nothing yet", durability=Durability.MEMORY)


# --8<-- [end:classes]


async def main(directory: str) -> None:
    async with Log(wal_at(directory)) as log:
        await copy_with_position(log, [b"order a", b"order b", b"order c"], position=1003)
        assert [entry.key for entry in await log.read(ORDERS)] == [1, 2, 3]
        assert await log.meta(ORDERS, "source position") == b"1003"

        await forget_before(log, 3)
        assert [entry.key for entry in await log.read(ORDERS)] == [3]
        assert await log.append(ORDERS, b"order d") == 4

        try:
            log.submit(ORDERS, Operation(entries=[Entry(4, b"a key is not used twice")]))
        except InvalidOperation as refused:
            print(f"refused: {refused}")

        await three_promises(log)
        assert log.partitions() == [1, 2]
        await log.delete(ORDERS)
        assert await log.read(ORDERS) == []
        print("done")


with tempfile.TemporaryDirectory() as directory:
    asyncio.run(main(directory))

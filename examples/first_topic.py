"""Topics in this process, without a server: append, watch, resume, route.

The tutorial `docs/tutorial/first-topic.md` uses this file.
"""

# --8<-- [start:declare]
import asyncio
import tempfile

import msgspec

from fairway.app import Fairway, Lost


class Order(msgspec.Struct, frozen=True):
    id: int
    item: str


class Shop:
    def __init__(self, directory: str) -> None:
        self.app = Fairway(directory)
        self.orders = self.app.topic("orders", Order, cap_records=100_000)
        self.archive = self.app.topic("archive", Order)
        self.app.route("orders", "archive")


# --8<-- [end:declare]


# --8<-- [start:append]
async def take_orders(shop: Shop) -> None:
    async with shop.app:
        done = await shop.orders.append(Order(1, "chair"), Order(2, "table"), tag="furniture")
        print("acknowledged", done.first_seq, "to", done.last_seq)
        first = await shop.orders.append(Order(3, "lamp"), key="order-3")
        again = await shop.orders.append(Order(3, "lamp"), key="order-3")
        print("a repeat appends nothing:", first.last_seq == again.last_seq)


# --8<-- [end:append]


# --8<-- [start:watch]
async def ship_orders(shop: Shop, after: int, count: int) -> int:
    """Ship `count` orders after seq `after`; returns the seq to go on after."""
    async with shop.app:
        async for record in shop.orders.watch(from_seq=after):
            if isinstance(record, Lost):
                print("lost:", record.first, "to", record.last, record.reason)
                continue
            print("shipped", record.data.item)
            after, count = record.seq, count - 1
            if not count:
                break
    return after


# --8<-- [end:watch]


# --8<-- [start:read]
async def look_at_archive(shop: Shop) -> None:
    async with shop.app:
        page = await shop.archive.read(wait_s=5)
        print("archived", [record.data.id for record in page.records])


# --8<-- [end:read]


# --8<-- [start:main]
async def main(directory: str) -> None:
    await take_orders(Shop(directory))
    after = await ship_orders(Shop(directory), after=0, count=2)
    after = await ship_orders(Shop(directory), after, count=1)  # another run goes on
    await look_at_archive(Shop(directory))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
# --8<-- [end:main]

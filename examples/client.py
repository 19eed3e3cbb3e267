"""The client, blocking and not, against a server of its own."""

import asyncio

import msgspec
from serving import served

from fairway.client import AsyncClient, Client, Tombstone


class Order(msgspec.Struct, frozen=True):
    id: int
    item: str


# --8<-- [start:sync]
def say(loss: Tombstone) -> None:
    print(f"lost {loss.gap_from} to {loss.gap_to}: {loss.reason}")


def blocking(url: str) -> None:
    with Client(url) as client:
        orders = client.topic("orders", Order)
        orders.put(cap_records=1_000_000)
        orders.append(Order(1, "chair"), Order(2, "table"), tag="furniture")
        progress = orders.append_many(Order(number, "lamp") for number in range(3, 1000))
        print(progress.records, "more in", progress.batches, "append")
        for record in orders.watch(on_tombstone=say):
            if record.seq == progress.last_seq:
                print("seen up to", record.position)
                break


# --8<-- [end:sync]


# --8<-- [start:async]
async def not_blocking(url: str) -> None:
    async with AsyncClient(url) as client:
        page = await client.topic("orders", Order).diff(997, wait_ms=1000)
        print([record.data.id for record in page.records], page.caught_up)
        await client.put_router("to-archive", "orders", "archive", filter="furniture")
        await client.topic("orders").append({"id": 1000, "item": "bench"}, tag="furniture")
        async for record in client.topic("archive", Order).watch():
            print("archived", record.data.item)
            break


# --8<-- [end:async]


if __name__ == "__main__":
    with served() as url:
        blocking(url)
        asyncio.run(not_blocking(url))

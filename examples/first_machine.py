"""A state machine: it waits for a signal, for a while, and for its children.

The tutorial `docs/tutorial/first-job.md` uses this file.
"""

# --8<-- [start:declare]
import asyncio
from typing import Any

import msgspec

from fairway import Fairway
from fairway.errors import JobFailed
from fairway.jobs.context import Context
from fairway.jobs.job import Filter, Status
from fairway.jobs.outcome import Outcome

app = Fairway("fairway-data")


@app.job
async def pack(order: int, item: str) -> str:
    return f"{item} of order {order} is packed"


class Order(msgspec.Struct):
    id: int
    items: list[str]
    patience_s: float = 3600.0
    paid_cents: int = 0

    async def placed(self, ctx: Context[Any]) -> Outcome:
        return ctx.wait("payment", then="packing", timeout_s=self.patience_s)

    async def packing(self, ctx: Context[Any]) -> Outcome:
        if ctx.timed_out:
            return ctx.stop("nobody paid")
        self.paid_cents = ctx.signals[0].payload["cents"]
        return ctx.spawn([pack.order(self.id, item) for item in self.items], then="ship")

    async def ship(self, ctx: Context[Any]) -> Outcome:
        packed = [child.result for child in ctx.children]
        return ctx.done({"paid": self.paid_cents, "packed": packed})


orders = app.machine(Order, queue="orders", unique="order-{id}")


# --8<-- [end:declare]


# --8<-- [start:wait]
async def take_orders() -> None:
    async with app:
        await orders.start(Order(id=7, items=["chair", "lamp"]))
        again = await orders.start(Order(id=7, items=["chair", "lamp"]))
        print("a second order 7 was made:", again.fresh)
        hasty = await orders.start(Order(id=8, items=["table"], patience_s=0.2))
        try:
            await hasty.result(timeout_s=30)
        except JobFailed as failure:
            print("order 8:", failure.error)


# --8<-- [end:wait]


# --8<-- [start:signal]
async def take_payments() -> None:
    async with app:
        (waiting,) = await app.jobs.browse(Filter(kind="Order", status=Status.WAITING))
        print("order 7 waits for", *waiting.waits_for)
        await app.jobs.signal(waiting.id, "payment", {"cents": 4200}, dedup="payment-1")
        print(await app.jobs.result(waiting.id, timeout_s=30))


# --8<-- [end:signal]


# --8<-- [start:main]
async def main() -> None:
    await take_orders()  # the process could end here, and start again tomorrow
    await take_payments()


if __name__ == "__main__":
    asyncio.run(main())
# --8<-- [end:main]

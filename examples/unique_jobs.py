"""At most one job per key: while it lives, and for a window."""

import asyncio
import tempfile

from fairway import Fairway
from fairway.jobs.kinds import Unique

app = Fairway("fairway-data")
HOUR_NS = 3600 * 1_000_000_000


# --8<-- [start:declare]
@app.job(unique=True)  # by all of its arguments
async def rebuild_index(shop: str) -> None: ...


@app.job(unique="cart-{cart}")  # by some of them
async def remind(cart: int, text: str) -> None: ...


@app.job(unique=Unique(key="{day}", window_ns=HOUR_NS))  # and an hour from its enqueueing
async def report(day: str) -> None: ...


# --8<-- [end:declare]


async def main(directory: str) -> None:
    app.place = directory
    async with app:
        # --8<-- [start:use]
        first = await remind.using(delay_s=60).enqueue(cart=7, text="still there?")
        second = await remind.enqueue(cart=7, text="are you sure?")
        print(second.id == first.id, second.fresh)

        today = await report.enqueue(day="monday")
        await today.result(timeout_s=30)
        again = await report.enqueue(day="monday")
        print(again.id == today.id, again.fresh)
        # --8<-- [end:use]

        # --8<-- [start:ad-hoc]
        await rebuild_index.using(key="rebuild", window_s=600).enqueue(shop="north")
        found = await app.jobs.find_by_key("rebuild")
        print(found.kind, found.unique_key)
        # --8<-- [end:ad-hoc]
        print((await first.look()).unique_key)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

"""Limits of queues, tenants that take turns, bands, and keys that run one at a time."""

import asyncio
import tempfile

from fairway import Fairway
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.job import Limits
from fairway.jobs.worker import WorkerConfig

order: list[str] = []
one_at_a_time = WorkerConfig(queues={"mail": FeederConfig(concurrency=1)})
app = Fairway("fairway-data", worker=one_at_a_time)


# --8<-- [start:declare]
@app.job(queue="mail", tenant="{shop}")
async def newsletter(shop: str, to: str) -> None:
    order.append(shop)


@app.job(queue="mail", tenant="{shop}", priority=750)  # the most urgent band
async def password_reset(shop: str, to: str) -> None:
    order.append("reset")


@app.job(queue="mail", partition_key="account-{account}", strict=True)
async def book(account: int, cents: int) -> None:
    order.append(f"{cents}")


# --8<-- [end:declare]


async def main(directory: str) -> None:
    app.place = directory
    async with app:
        # --8<-- [start:turns]
        await app.jobs.pause("mail")
        await newsletter.enqueue_many([{"shop": "big", "to": f"{n}@big"} for n in range(1000)])
        letter = await newsletter.enqueue(shop="small", to="ada@small")
        await password_reset.enqueue(shop="big", to="bob@big")
        await app.jobs.resume("mail")
        await letter.result(timeout_s=30)
        print("small's letter came after", order.index("small"), "others")
        # --8<-- [end:turns]
        assert order.index("small") <= 20, order

        # --8<-- [start:limits]
        await app.jobs.limit("mail", Limits(concurrency=4))  # over all workers together
        await app.jobs.limit("mail", Limits(rate_per_s=10, burst=20))  # replaces the line above
        await app.jobs.limit("*", Limits(concurrency=64))  # all queues together
        await app.jobs.limit("mail", Limits())  # no limits
        # --8<-- [end:limits]
        bookings = await book.enqueue_many([{"account": 1, "cents": n} for n in range(5)])
        for booking in bookings:
            await booking.result(timeout_s=30)
        assert [one for one in order if one.isdigit()] == ["0", "1", "2", "3", "4"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

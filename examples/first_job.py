"""A job: typed arguments, a result, and another try when it fails.

The tutorial `docs/tutorial/first-job.md` uses this file. `fairway worker first_job:app` works on
the same jobs from another process.
"""

# --8<-- [start:declare]
import asyncio
from typing import Any

from fairway import Fairway
from fairway.errors import InvalidRequest, JobFailed
from fairway.jobs.context import Context

app = Fairway("fairway-data")


@app.job
async def total(prices: list[int], discount: int = 0) -> int:
    return sum(prices) - discount


# --8<-- [end:declare]


# --8<-- [start:enqueue]
async def add_up() -> None:
    job = await total.enqueue(prices=[3, 4, 5], discount=2)  # on disk when this returns
    print("job", job.id, "came to", await job.result(timeout_s=30))


# --8<-- [end:enqueue]


# --8<-- [start:refused]
async def ask_wrongly() -> None:
    try:
        await total.enqueue(prices=["three"])  # type: ignore[list-item]
    except InvalidRequest as refusal:
        print(refusal)


# --8<-- [end:refused]


# --8<-- [start:retry]
@app.job(queue="mail", max_attempts=3)
async def send_receipt(ctx: Context[Any], order: int, email: str) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the mail server is busy")
    if "@" not in email:
        raise ValueError(f"{email!r} is no address")
    return f"receipt {order} is on its way after {ctx.attempt} attempts"


async def send() -> None:
    good = await send_receipt.enqueue(order=7, email="ada@example.com")
    bad = await send_receipt.enqueue(order=8, email="nobody")
    print(await good.result(timeout_s=30))
    try:
        await bad.result(timeout_s=30)
    except JobFailed as failure:
        job = await bad.look()
        print(f"receipt 8 is {failure.status} after {job.attempt + 1} attempts")


# --8<-- [end:retry]


# --8<-- [start:main]
async def main() -> None:
    async with app:
        await add_up()
        await ask_wrongly()
        await send()


if __name__ == "__main__":
    asyncio.run(main())
# --8<-- [end:main]

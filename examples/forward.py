"""Each record of a topic becomes a job, exactly once."""

import asyncio
import tempfile
from typing import Any

from fairway import Fairway
from fairway.jobs.job import Filter, Status

shipped: asyncio.Queue[int] = asyncio.Queue()


# --8<-- [start:declare]
def shop(directory: str) -> Fairway:
    app = Fairway(directory)
    orders = app.topic("orders")

    @app.job(max_attempts=5)
    async def ship(id: int, express: bool = False) -> None:
        await shipped.put(id)

    app.forward(orders, ship, name="shipping", arguments=wanted)
    return app


def wanted(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], "express": record.get("speed") == "express"}


# --8<-- [end:declare]


async def main(directory: str) -> None:
    async with shop(directory) as app:
        await app.topic("orders").append({"id": 1}, {"id": 2, "speed": "express"})
        assert {await shipped.get(), await shipped.get()} == {1, 2}
    async with shop(directory) as app:  # goes on where it was
        await app.topic("orders").append({"id": "three"}, {"id": 4})
        assert await shipped.get() == 4
        # --8<-- [start:unfit]
        failed = await app.jobs.browse(Filter(kind="ship", status=Status.FAILED))
        # --8<-- [end:unfit]
        while not failed:
            failed = await app.jobs.browse(Filter(kind="ship", status=Status.FAILED))
        assert "Expected `int`" in str(failed[0].error)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

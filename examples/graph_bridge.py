"""Firings of a graph start runs of a workflow; and a task of a workflow calls a graph."""

import asyncio
import tempfile

import msgspec

from fairway import Fairway, Graph, Source


class Reading(msgspec.Struct, frozen=True):
    sensor: str
    celsius: float


async def main(directory: str) -> None:
    # --8<-- [start:starts]
    app = Fairway(directory)
    repair = app.workflow("repair")
    sent: asyncio.Queue[str] = asyncio.Queue()

    @repair.task
    def send_engineer(sensor: str, celsius: float) -> None:
        sent.put_nowait(f"{sensor} at {celsius}")

    readings = app.source("readings", Reading)
    watch = app.graph("watch", when=readings, inputs="sequential", checkpoint=True)

    @watch.node
    def hot(readings: Reading) -> Reading | None:
        return readings if readings.celsius > 80 else None

    watch.starts(
        lambda outputs: repair.order(
            {"sensor": outputs["hot"].sensor, "celsius": outputs["hot"].celsius}
        ),
        where=lambda outputs: outputs["hot"] is not None,
    )
    # --8<-- [end:starts]

    # --8<-- [start:invoke]
    judge = Graph("judge", when=Source("readings", Reading))

    @judge.node
    def verdict(readings: Reading) -> str:
        return "hot" if readings.celsius > 80 else "fine"

    audit = app.workflow("audit")

    @audit.task
    async def look(celsius: float) -> dict[str, str]:
        outputs = await judge.invoke(readings=Reading("s1", celsius))
        return {"verdict": outputs["verdict"]}

    # --8<-- [end:invoke]

    async with app:
        for sensor, celsius in (("s1", 20.0), ("s2", 91.0)):
            await watch.push(readings, Reading(sensor, celsius))
        assert await asyncio.wait_for(sent.get(), 20) == "s2 at 91.0"
        run = await audit.start({"celsius": 99.0})
        print(await run.result(timeout_s=20))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

"""A router copies each record once, however often the process starts again."""

import asyncio
import tempfile

from fairway import Fairway
from fairway.errors import Conflict
from fairway.wire.topics import RouterConfig


# --8<-- [start:declare]
def plant(directory: str) -> Fairway:
    app = Fairway(directory)
    app.route("sensors", "alarms", name="alarms", filter=("tag", "Glob", "alarm/*"))
    return app


# --8<-- [end:declare]


async def measure(app: Fairway) -> None:
    sensors, alarms = app.topic("sensors"), app.topic("alarms")
    async with app:
        await sensors.append({"celsius": 20}, tag="normal")
        await sensors.append({"celsius": 90}, tag="alarm/heat")
        await alarms.read(alarms.state.head, wait_s=5)


async def look(app: Fairway) -> None:
    alarms = app.topic("alarms")
    async with app:
        page = await alarms.read()
        print([(record.seq, record.tag) for record in page.records])
        # --8<-- [start:cycle]
        try:
            back = RouterConfig(source="alarms", dest="sensors")
            await app.topics.put_router("back", back)
        except Conflict as conflict:
            print(conflict.code, conflict.detail["cycle"])
        # --8<-- [end:cycle]


async def main(directory: str) -> None:
    for _ in range(3):
        await measure(plant(directory))
    await look(plant(directory))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

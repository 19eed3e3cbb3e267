"""How urgent a topic is, as the scheduler sees it."""

import asyncio
import tempfile

from fairway import Fairway
from fairway.core.priority import band_of


# --8<-- [start:declare]
def declare(directory: str) -> Fairway:
    app = Fairway(directory)
    app.topic("alerts", priority=1000)  # before everything automatic
    app.topic("orders")  # by recency, the default
    app.topic("reports", auto_priority=False)  # always 0
    app.topic("bulk", priority=-500)  # when nothing else is to be done
    return app


# --8<-- [end:declare]


# --8<-- [start:look]
async def main(directory: str) -> None:
    async with declare(directory) as app:
        for topic in app.topics:
            app.topics.delivery.touch(topic)  # as if somebody had read it just now
            points = app.topics.delivery.effective_priority(topic)
            print(f"{topic.name:8} {points:5} {band_of(points).name}")


# --8<-- [end:look]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

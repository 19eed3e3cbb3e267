"""Two processes, one app: the second stands by until the first is gone.

On PostgreSQL: python graph_standby.py postgresql://…  (twice). Without it, on SQLite, the second is
started here, and the first one leaves.
"""

import asyncio
import sys
import tempfile

from fairway import Fairway, Graph


# --8<-- [start:standby]
def make(place: str) -> tuple[Fairway, Graph]:
    app = Fairway(place, standby=True)  # "postgresql://…"
    numbers = app.source("numbers", int)

    @app.graph(when=numbers, inputs="sequential", checkpoint=True)
    def doubled(numbers: int) -> int:
        return 2 * numbers

    return app, doubled


# --8<-- [end:standby]


async def second(place: str) -> None:
    app, doubled = make(place)
    async with app:  # waits here
        firing = await doubled.ask("numbers", 2)
        assert firing is not None
        print("the second goes on with firing", firing.number)


async def main(place: str) -> None:
    app, doubled = make(place)
    async with asyncio.TaskGroup() as group, app:
        await doubled.push("numbers", 1)
        waiting = group.create_task(second(place))
        await asyncio.sleep(0.2)
        assert not waiting.done()


async def run_for_ever(place: str) -> None:
    app, doubled = make(place)
    async with app:
        print("this process has it, after firing", doubled.number)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(run_for_ever(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(main(directory))

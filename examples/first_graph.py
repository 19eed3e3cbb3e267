"""A graph: typed sources, nodes that take from each other, a route, an effect, a restart.

The tutorial `docs/tutorial/first-graph.md` uses this file. `fairway serve first_graph:app` runs
the same graph behind HTTP.
"""

# --8<-- [start:types]
import asyncio

import msgspec

from fairway import Fairway, FiringContext, any_


class Reading(msgspec.Struct, frozen=True):
    room: str
    celsius: float


class Limit(msgspec.Struct, frozen=True):
    celsius: float


class TooWarm(msgspec.Struct, frozen=True):
    room: str
    by: float


class Fine(msgspec.Struct, frozen=True):
    room: str


# --8<-- [end:types]

# --8<-- [start:declare]
app = Fairway("fairway-data")
alarms = app.topic("alarms", TooWarm)

readings = app.source("readings", Reading)
limits = app.source("limits", Limit)
cooling = app.graph("cooling", when=any_(readings), uses=[limits], checkpoint=True)
# --8<-- [end:declare]


# --8<-- [start:nodes]
@cooling.node
def judged(readings: Reading, limits: Limit | None) -> TooWarm | Fine:
    most = limits.celsius if limits is not None else 8.0
    if readings.celsius > most:
        return TooWarm(readings.room, round(readings.celsius - most, 1))
    return Fine(readings.room)


@cooling.node
def alarm(judged: TooWarm, firing: FiringContext) -> str:
    firing.append(alarms, judged)
    return f"{judged.room} is {judged.by} degrees too warm"


@cooling.node
def quiet(judged: Fine) -> str:
    return f"{judged.room} is fine"


# --8<-- [end:nodes]


# --8<-- [start:ask]
async def ask() -> None:
    for room, celsius in (("cellar", 6.5), ("kitchen", 9.0)):
        firing = await cooling.ask(readings, Reading(room, celsius))
        assert firing is not None
        print(f"firing {firing.number}: {firing.output}")


# --8<-- [end:ask]


# --8<-- [start:push]
async def push() -> None:
    await cooling.push(limits, Limit(10.0))  # an input only: nothing fires
    await cooling.push(readings, Reading("kitchen", 9.0))
    await cooling.push("readings", {"room": "attic", "celsius": 31})  # plain data will do
    await cooling.settled()  # all that came has fired, and its effects have gone out
    print(f"{cooling.fired} firings, {alarms.state.head} alarms")


# --8<-- [end:push]


# --8<-- [start:again]
async def again() -> None:
    async with app:
        firing = await cooling.ask(readings, Reading("kitchen", 9.5))
        assert firing is not None
        print(f"firing {firing.number} after the restart: {firing.output}")
        for record in (await alarms.read()).records:
            print("alarm", record.seq, record.data)


# --8<-- [end:again]


# --8<-- [start:main]
async def main() -> None:
    async with app:
        await ask()
        await push()
    await again()


if __name__ == "__main__":
    asyncio.run(main())
# --8<-- [end:main]

"""A graph over Kafka. Run it with the address of a broker; without one it only draws itself.

python graph_kafka.py broker:9092
"""

import asyncio
import sys

import msgspec

# --8<-- [start:declare]
from fairway import Fairway, any_, kafka


class Tick(msgspec.Struct, frozen=True):
    symbol: str
    price: float


SERVERS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"

app = Fairway("fairway-data")
ticks = app.source("ticks", Tick, feed=kafka("ticks", servers=SERVERS, start="latest"))
prices = app.graph("prices", when=any_(ticks), inputs="sequential", checkpoint=True)


@prices.node
def shown(ticks: Tick) -> str:
    print(f"{ticks.symbol}: {ticks.price}")
    return ticks.symbol


# --8<-- [end:declare]


async def main() -> None:
    async with app:
        await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main())
    else:
        print(prices.to_mermaid())

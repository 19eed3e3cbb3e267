"""Where the events of a graph come from: pushes, topics, functions that are asked; in lists too."""

import asyncio
import tempfile

import msgspec

from fairway import Batch, Fairway, Firing, FiringContext, Graph, Window, any_, poll
from fairway.graphs.feeds.topic import topic


class Order(msgspec.Struct, frozen=True):
    id: int
    euros: float


class Rate(msgspec.Struct, frozen=True):
    usd_per_eur: float


class Click(msgspec.Struct, frozen=True):
    page: str
    at: float


# --8<-- [start:push]
def pushed(app: Fairway) -> Graph:
    clicks = app.source("clicks", Click)

    @app.graph(when=clicks)
    def seen(clicks: Click) -> str:
        return clicks.page

    return seen


async def push(seen: Graph) -> None:
    await seen.push("clicks", Click("home", 1.0))
    seen.push_nowait("clicks", {"page": "shop", "at": 2.0})  # at once, or Backpressure
    firing = await seen.ask("clicks", Click("cart", 3.0))  # and wait for what came of it
    assert firing is not None
    assert firing.output == "cart"


# --8<-- [end:push]


# --8<-- [start:topic]
def from_topics(app: Fairway) -> Graph:
    orders = app.topic("orders", Order)  # a topic is a source already
    refunds = app.source("refunds", Order, feed=topic("orders.refunds"))  # under another name

    graph = app.graph("turnover", when=any_(orders, refunds), inputs="sequential")

    @graph.node
    def booked(firing: FiringContext, orders: Order | None, refunds: Order | None) -> float:
        if "refunds" in firing.fresh:
            assert refunds is not None
            return -refunds.euros
        assert orders is not None
        return orders.euros

    return graph


# --8<-- [end:topic]


# --8<-- [start:poll]
async def fetch_rate() -> Rate | None:
    """None says that nothing is new. An exception disconnects the source until one succeeds."""
    return Rate(1.09)


def by_asking(app: Fairway) -> Graph:
    orders = app.topic("orders", Order)
    rates = app.source("rates", Rate, feed=poll(fetch_rate, every_s=5), stale_after_s=60)

    graph = app.graph("dollars", when=orders, uses=[rates], inputs="sequential")

    @graph.node
    def dollars(orders: Order, rates: Rate, firing: FiringContext) -> str:
        old = " (the rate is old)" if "rates" in firing.degraded else ""
        return f"{orders.euros * rates.usd_per_eur:.2f} USD{old}"

    return graph


# --8<-- [end:poll]


# --8<-- [start:batch]
def in_batches(app: Fairway) -> Graph:
    clicks = app.source("clicks", Click, batch=Batch(size=100, every_s=0.2))

    graph = app.graph("pages", when=clicks)

    @graph.node
    def count(clicks: list[Click]) -> int:
        return len(clicks)

    return graph


# --8<-- [end:batch]


# --8<-- [start:window]
def in_windows(app: Fairway) -> Graph:
    minutes = Window(seconds=60, step_s=30, at=lambda click: click.at, lateness_s=5)
    clicks = app.source("clicks", Click, batch=minutes)

    graph = app.graph("minutes", when=clicks, inputs="sequential")

    @graph.node
    def window(clicks: list[Click]) -> list[float]:
        return [click.at for click in clicks]

    return graph


# --8<-- [end:window]


# --8<-- [start:state]
def with_state(app: Fairway) -> Graph:
    orders = app.topic("orders", Order)
    last = app.source("last", float, keep=3)  # written by the graph itself

    graph = app.graph("trend", when=orders, uses=[last], inputs="sequential", checkpoint=True)

    @graph.node
    def mean(orders: Order, last: list[float] | None, firing: FiringContext) -> float:
        firing.put("last", orders.euros)  # the next firing is given it
        seen = [*(last or []), orders.euros]
        return sum(seen) / len(seen)

    return graph


# --8<-- [end:state]


# --8<-- [start:through]
class Raw(msgspec.Struct, frozen=True):
    id: int
    cents: int
    test: bool = False


def order_of(raw: Raw) -> Order | None:
    """From an event to a boundary; None leaves it out."""
    return None if raw.test else Order(raw.id, raw.cents / 100)


def shaped(app: Fairway) -> Graph:
    orders = app.source("shaped", Order, through=order_of, dedupe=lambda order: order.id)

    @app.graph(when=orders, inputs="sequential")
    def euros(shaped: Order) -> float:
        return shaped.euros

    return euros


# --8<-- [end:through]


class Heard:
    """The outputs of a graph, as they come."""

    def __init__(self, graph: Graph) -> None:
        self.firings: asyncio.Queue[Firing] = asyncio.Queue()
        graph.listen(self.firings.put_nowait)

    async def next(self, count: int) -> list[object]:
        async with asyncio.timeout(20):
            return [(await self.firings.get()).output for _ in range(count)]


async def main(directory: str) -> None:
    app = Fairway(directory)
    seen, turnover, dollars = pushed(app), from_topics(app), by_asking(app)
    pages, minutes, trend, euros = in_batches(app), in_windows(app), with_state(app), shaped(app)
    async with app:
        heard = {graph.name: Heard(graph) for graph in (turnover, dollars, pages, minutes, trend)}
        await push(seen)
        await app.topic("orders").append(Order(1, 10.0), Order(2, 20.0), Order(3, 60.0))
        assert await heard["turnover"].next(3) == [10.0, 20.0, 60.0]
        await app.topic("orders.refunds").append(Order(2, 20.0))
        assert await heard["turnover"].next(1) == [-20.0]
        assert (await heard["dollars"].next(3))[0] == "10.90 USD"
        assert await heard["trend"].next(3) == [10.0, 15.0, 30.0]
        for at in range(150):
            await pages.push("clicks", Click("home", at))
        assert await heard["pages"].next(2) == [100, 50]  # by size, then by time
        for at in (10, 40, 65, 200):
            await minutes.push("clicks", Click("home", at))
        assert await heard["minutes"].next(2) == [[10], [10, 40]]
        for raw in (Raw(1, 500), Raw(1, 500), Raw(2, 700, test=True), Raw(3, 900)):
            await euros.push("shaped", raw)
        assert euros.fired == 2  # a repeat and a test order were left out


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

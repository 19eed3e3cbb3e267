"""A market in one process: quotes stream in, a graph decides, orders go out.

    python examples/market.py                    a few seconds, then a summary
    python examples/market.py --forever          until Ctrl-C
    python examples/market.py --data DIR       run it twice: it goes on where it stopped

    book ----> mid ----> signal --Trade-----> order ---> topic "orders", job "settle"
    rates ----^            ^ |----NoAction--> rest
    mids ------------------'   (the last prices: a state that the graph writes itself)

The feed is simulated. Everything else is what runs in earnest: the graph is checkpointed, and a
crash at any moment loses no quote that it acted on and sends no order twice.
"""

import argparse
import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean

import msgspec

from fairway import Fairway, FiringContext, poll
from fairway.app import Record, TopicHandle
from fairway.graphs.feed import Event

QUOTES_PER_S = 5_000
WINDOW = 200
EDGE = 0.0022
"""How far from its mean a price must be to be worth an order."""
SPREAD_MAX = 0.0008


# What flows


class Quote(msgspec.Struct, frozen=True):
    bid: float
    ask: float


class Rate(msgspec.Struct, frozen=True):
    eur_per_usd: float


class Mid(msgspec.Struct, frozen=True):
    price: float
    spread: float


class Trade(msgspec.Struct, frozen=True):
    side: str
    price: float
    mean: float


class NoAction(msgspec.Struct, frozen=True):
    why: str


class Order(msgspec.Struct, frozen=True):
    id: int
    side: str
    quantity: int
    price: float


# Where it comes from


class SimulatedMarket:
    """A feed: a random walk from a seed. Quote n is always the same, so it can be read again."""

    kind = "simulated"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def open(self, context: object) -> "SimulatedMarket":
        return self

    async def connect(self, marks: dict[str, int]) -> None:
        """Begin after the last quote that the graph has consumed."""
        self.random, self.price, self.number = random.Random(self.seed), 100.0, 0
        while self.number < marks.get("walk", 0):
            self.quote()

    async def receive(self) -> Sequence[Event]:
        await asyncio.sleep(0.01)
        return [
            Event(self.quote(), stream="walk", offset=self.number)
            for _ in range(QUOTES_PER_S // 100)
        ]

    async def commit(self, marks: dict[str, int]) -> None:
        """A real broker would be told how far we are."""

    async def aclose(self) -> None: ...

    def quote(self) -> Quote:
        self.number += 1
        self.price += self.random.gauss(0, 0.012) + 0.004 * (100 - self.price)
        half = self.price * self.random.uniform(0.0001, 0.0005)
        return Quote(round(self.price - half, 4), round(self.price + half, 4))


async def fetch_rate() -> Rate:
    """Stands for a request to a bank."""
    return Rate(0.92 + 0.002 * random.random())


# What is done with it

settled: list[int] = []


def make(directory: str) -> Fairway:
    app = Fairway(directory)
    orders = app.topic("orders", Order)

    @app.job(queue="settlement")
    async def settle(id: int, side: str, amount: float) -> None:
        settled.append(id)

    book = app.source("book", Quote, feed=SimulatedMarket(seed=7), stale_after_s=2)
    rates = app.source("rates", Rate, feed=poll(fetch_rate, every_s=0.5))
    mids = app.source("mids", float, keep=WINDOW)
    market = app.graph("market", when=book, uses=[rates, mids], checkpoint=True)

    @market.node
    def mid(book: Quote, rates: Rate) -> Mid:
        price = (book.bid + book.ask) / 2
        return Mid(price * rates.eur_per_usd, (book.ask - book.bid) / price)

    @market.node
    def signal(mid: Mid, mids: list[float] | None, firing: FiringContext) -> Trade | NoAction:
        firing.put("mids", mid.price)
        if mids is None or len(mids) < WINDOW:
            return NoAction("too little is known")
        if mid.spread > SPREAD_MAX:
            return NoAction("the spread is too wide")
        mean = fmean(mids)
        if abs(mid.price / mean - 1) < EDGE:
            return NoAction("the price is fair")
        return Trade("sell" if mid.price > mean else "buy", round(mid.price, 4), round(mean, 4))

    @market.node
    def order(signal: Trade, firing: FiringContext) -> Order:
        made = Order(firing.number, signal.side, 100, signal.price)
        firing.append(orders, made)  # both happen once, also if this process dies now
        firing.enqueue(settle.order(made.id, made.side, made.quantity * made.price))
        return made

    @market.node
    def rest(signal: NoAction) -> str:
        return signal.why

    return app


# How it is watched


async def tell(orders: TopicHandle[Order]) -> None:
    """A line for some of the orders, as they arrive in the topic."""
    async for record in orders.watch(orders.state.head):
        if isinstance(record, Record) and record.seq % 50 == 1:
            made = record.data
            print(f"  order {made.id:>6,}: {made.side:<4} {made.quantity} at {made.price:.4f} EUR")


async def main(directory: str, seconds: float | None) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with make(directory) as app:
        market = app.graphs.get("market").graph
        orders = app.topic("orders", Order)
        results: Counter[str] = Counter()
        market.listen(lambda firing: results.update([firing.outputs.get("rest", "an order")]))
        print(f"The market is open. Firings before this run: {market.number:,}")
        begin = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(tell(orders))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), seconds)
            watching.cancel()
        fired, took_s = results.total(), time.monotonic() - begin
        print(f"{fired:,} firings in {took_s:.1f} s, {fired / took_s:,.0f} a second. They came to")
        for result, count in results.most_common():
            print(f"  {count:>6,}  {result}")
        await market.settled()  # every effect has gone out
        print(f"{orders.state.head:,} orders are in the topic; {len(settled):,} jobs have settled")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A simulated market, traded by a graph.")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--forever", action="store_true", help="until Ctrl-C")
    parser.add_argument("--data", help="keep what happened here, and go on with it next time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(given.data or temporary, None if given.forever else given.seconds))

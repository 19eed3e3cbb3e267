"""A graph that survives kill -9: its sum, its place in the topic, and its effects.

Run without arguments it starts itself as another process, which kills itself in the middle.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

import msgspec

from fairway import Fairway, FiringContext, Graph, Source


class Payment(msgspec.Struct, frozen=True):
    id: int
    euros: int


class Receipt(msgspec.Struct, frozen=True):
    payment: int
    total: int


# --8<-- [start:declare]
def till(directory: str) -> tuple[Fairway, Graph]:
    app = Fairway(directory, worker=None)
    payments = app.topic("payments", Payment)
    receipts = app.topic("receipts", Receipt)
    total = app.source("total", int, keep=1)

    @app.job
    def book(payment: int) -> None: ...

    graph = app.graph("till", when=payments, uses=[total], inputs="sequential", checkpoint=True)

    @graph.node
    def add(payments: Payment, total: list[int] | None, firing: FiringContext) -> int:
        now = (total[-1] if total else 0) + payments.euros
        firing.put("total", now)
        firing.append(receipts, Receipt(payments.id, now))  # each of these
        firing.enqueue(book.order(payment=payments.id))  # happens once
        return now

    return app, graph


# --8<-- [end:declare]


async def die(directory: str) -> None:
    app, graph = till(directory)
    async with app:
        graph.listen(
            lambda firing: os.kill(os.getpid(), signal.SIGKILL) if firing.number == 57 else None
        )
        await app.topic("payments").append(*[Payment(id, 1) for id in range(1, 101)])
        await asyncio.Event().wait()


# --8<-- [start:again]
async def go_on(directory: str) -> None:
    app, graph = till(directory)
    async with app:
        receipts = app.topic("receipts", Receipt)
        while receipts.state.head < 100:
            await receipts.read(receipts.state.head, wait_s=5)
        await graph.settled()
        found = (await receipts.read(0, limit=1000)).records
        assert [each.data.payment for each in found] == list(range(1, 101))  # each once, in order
        assert [each.data.total for each in found] == list(range(1, 101))  # and the sum is exact
        (queue,) = await app.jobs.queues()
        kept = graph.running.checkpoint
        print(f"{len(found)} receipts and {queue.ready} jobs; this is life {kept.epoch}")


# --8<-- [end:again]


# --8<-- [start:upgrade]
class QuoteV2(msgspec.Struct, frozen=True):
    symbol: str
    bid: float
    ask: float


def split(quote: dict[str, object]) -> dict[str, object]:
    """From version 1, which had one price, to version 2."""
    return {"symbol": quote["symbol"], "bid": quote["price"], "ask": quote["price"]}


quotes = Source("quotes", QuoteV2, version=2, upgrades={1: split})
# --8<-- [end:upgrade]


class QuoteV1(msgspec.Struct, frozen=True):
    symbol: str
    price: float


async def upgrade(directory: str) -> None:
    for source in (Source("quotes", QuoteV1), quotes):
        app = Fairway(directory)
        graph = app.graph("kept", when=source, checkpoint=True)

        def same(quotes: object) -> object:
            return quotes

        graph.add(same)
        async with app:
            if source is quotes:
                firing = await graph.fire()
                assert firing.output == QuoteV2("A", 2.0, 2.0)
            else:
                await graph.push("quotes", QuoteV1("A", 2.0))


def main(directory: str) -> None:
    child = subprocess.run([sys.executable, __file__, directory], check=False)
    print("the process was killed:", child.returncode == -signal.SIGKILL)
    asyncio.run(go_on(directory))
    asyncio.run(upgrade(f"{directory}/upgrade"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(die(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)

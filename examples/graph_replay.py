"""What was recorded is run again, by the same code and by another version of it."""

import asyncio
import tempfile

import msgspec

from fairway import Fairway, Graph, Source
from fairway.graphs.replay import compared, events_of, over_events, over_journal


class Quote(msgspec.Struct, frozen=True):
    bid: float
    ask: float


# --8<-- [start:declare]
def pricing(weight: float = 0.5) -> Graph:
    quotes = Source("quotes", Quote)
    graph = Graph("pricing", when=quotes, inputs="sequential", checkpoint=True, record=100_000)

    @graph.node
    def mid(quotes: Quote) -> float:
        return quotes.bid * weight + quotes.ask * (1 - weight)

    return graph


# --8<-- [end:declare]


async def main(directory: str) -> None:
    app, graph = Fairway(directory), pricing()
    async with app:
        await app.graphs.load(graph)
        for at in range(20):
            await graph.push("quotes", Quote(at, at + 2 * (at % 4)))
        await graph.settled()
        # --8<-- [start:journal]
        async for firing in over_journal(graph, app.graphs.history("pricing")):
            assert firing.same, f"firing {firing.number} came to something else"
        # --8<-- [end:journal]
        # --8<-- [start:compare]
        before = over_journal(graph, app.graphs.history("pricing"))
        after = over_journal(pricing(weight=0.6), app.graphs.history("pricing"))
        differences = [difference async for difference in compared(before, after)]
        for found in differences[:3]:
            print(found.number, found.inputs["quotes"], found.before, "->", found.after)
        print(f"{len(differences)} firings differ")
        # --8<-- [end:compare]

    # --8<-- [start:events]
    lines = [
        b'{"source": "quotes", "data": {"bid": 99, "ask": 101}, "at": 0.0}',
        b'{"source": "quotes", "data": {"bid": 98, "ask": 104}, "at": 0.5}',
    ]
    fired = [each async for each in over_events(pricing(), events_of(lines))]
    assert [each.outputs["mid"] for each in fired] == [100.0, 101.0]
    assert fired[1].wall_ns == 500_000_000  # the time of the events, not of a clock
    # --8<-- [end:events]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

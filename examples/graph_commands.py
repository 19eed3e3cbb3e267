"""Commands to a graph from Python: pause, resume, fire, fire with other inputs, look, restart."""

import asyncio
import tempfile

import msgspec

from fairway import Fairway, FiringFailed, Graph, all_


class Quote(msgspec.Struct, frozen=True):
    bid: float
    ask: float


def make(directory: str) -> tuple[Fairway, Graph]:
    app = Fairway(directory)
    quotes, limits = app.source("quotes", Quote), app.source("limits", float)
    graph = app.graph(
        "pricing",
        when=all_(quotes, limits),
        inputs="sequential",
        on_error="dead_letter",
        checkpoint=True,
    )

    @graph.node
    def mid(quotes: Quote, limits: float) -> float:
        if quotes.bid > quotes.ask:
            raise ValueError("the book is crossed")
        return min((quotes.bid + quotes.ask) / 2, limits)

    return app, graph


async def main(directory: str) -> None:
    app, pricing = make(directory)
    async with app:
        # --8<-- [start:pause]
        await pricing.pause("ada")  # recorded: it stays paused after a restart
        await pricing.push("quotes", Quote(99, 101))
        await pricing.push("limits", 500.0)
        assert pricing.fired == 0  # sources go on, up to their capacity
        await pricing.resume("ada")
        await pricing.settled()
        assert pricing.fired == 1
        # --8<-- [end:pause]
        # --8<-- [start:fire]
        firing = await pricing.fire()  # whatever the criterion says, paused or not
        assert (firing.cause, firing.output) == ("forced", 100.0)

        instead = {"quotes": Quote(1, 3), "limits": 9.0}
        firing = await pricing.fire(instead)  # these replace the cache, all of it
        assert (firing.cause, firing.output) == ("injected", 2.0)

        try:
            await pricing.fire({"quotes": Quote(3, 1), "limits": 9.0})
        except FiringFailed as failed:  # nothing was consumed, nothing changed
            print(failed)
        # --8<-- [end:fire]
        # --8<-- [start:look]
        for last in pricing.firings:  # up to 200 firings
            print(last.number, last.cause, last.fresh, last.outputs or last.error)
        print(pricing.running.healths["quotes"].state, pricing.running.reactor.inputs.depths)
        # --8<-- [end:look]
        # --8<-- [start:dead]
        await pricing.push("quotes", Quote(3, 1))
        await pricing.push("limits", 500.0)
        await pricing.settled()
        (letter,) = pricing.dead_letters
        print(letter.reason, msgspec.msgpack.decode(letter.data["quotes"]))
        # --8<-- [end:dead]
        # --8<-- [start:restart]
        managed = await app.graphs.restart("pricing")  # drained, stopped, started from its records
        assert (managed.state, pricing.running.checkpoint.epoch) == ("live", 2)

        await app.graphs.unload("pricing")  # what was kept of it stays, unless forget=True
        await app.graphs.load(pricing)
        # --8<-- [end:restart]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))

"""Tests of graphs: the real reactors, on virtual time, over a log in memory."""

import msgspec

from fairway import Fairway, FiringContext, any_, debounce


class Quote(msgspec.Struct, frozen=True):
    bid: float
    ask: float


app = Fairway()
alerts = app.topic("alerts", float)
quotes = app.source("quotes", Quote)
pricing = app.graph("pricing", when=any_(quotes), checkpoint=True)


@pricing.node
def mid(quotes: Quote, firing: FiringContext) -> float:
    value = (quotes.bid + quotes.ask) / 2
    if value > 1_000:
        firing.append(alerts, value)
    return value


# --8<-- [start:expect]
from fairway.testing import GraphsUnderTest, TestFeed, run_graph  # noqa: E402


def test_the_mid_is_between_bid_and_ask() -> None:
    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(pricing, "quotes", Quote(99, 101))
        await kit.push(pricing, "quotes", Quote(99, 103))
        await kit.expect(pricing, 100.0, 101.0)  # the next two firings came to this
        await kit.expect_none(pricing)  # and that is all

    run_graph(app, play)


# --8<-- [end:expect]


# --8<-- [start:restart]
def test_a_crash_loses_no_quote_and_repeats_no_alert() -> None:
    async def play(kit: GraphsUnderTest) -> None:
        await kit.push(pricing, "quotes", Quote(1_999, 2_001))
        await kit.restart(power_loss=True)  # as by kill -9, and what was not synced is gone
        assert kit.state(pricing).cache["quotes"] == Quote(1_999, 2_001)
        await kit.settled()
        assert alerts.state.head == 1

    run_graph(app, play, seed=7)


# --8<-- [end:restart]


# --8<-- [start:time]
feed = TestFeed()
ticks = app.source("ticks", int, feed=feed)
calm = app.graph("calm", when=debounce(ticks, quiet_s=60))


@calm.node
def last(ticks: int) -> int:
    return ticks


def test_a_minute_of_quiet_takes_no_time() -> None:
    async def play(kit: GraphsUnderTest) -> None:
        feed.push(1, 2, 3)
        await kit.expect_none(calm, within_s=59)
        await kit.expect(calm, 3, within_s=2)
        feed.lose("cable cut")
        await kit.advance(1)
        assert kit.state(calm).state == "degraded"
        feed.restore()
        await kit.advance(60)
        assert kit.state(calm).sources["ticks"] == "live"

    run_graph(app, play)


# --8<-- [end:time]


# --8<-- [start:call]
def test_the_nodes_alone() -> None:
    assert pricing.call(quotes=Quote(99, 101)) == {"mid": 100.0}


# --8<-- [end:call]

if __name__ == "__main__":
    test_the_mid_is_between_bid_and_ask()
    test_a_crash_loses_no_quote_and_repeats_no_alert()
    test_a_minute_of_quiet_takes_no_time()
    test_the_nodes_alone()

"""An app with graphs of several kinds, for a server in the test's loop or a process of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Fairway
from fairway.graphs.criteria import all_, any_
from tests.support.server import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = "GRAPHS_APP_PLACE"


class Quote(msgspec.Struct):
    bid: float
    ask: float


class Order(msgspec.Struct):
    id: int


class Gate:
    """What the node of `slow` waits for."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered = asyncio.Event()


def desk(place: Any, gate: Gate | None = None) -> Fairway:
    """Graphs: `pricing`, `orders` and `waiting` (sequential, small), `kept` (checkpointed),
    `fragile` (fails below zero), `both` (of two sources), `shared` of two tenants, `slow`."""
    app = Fairway(place)
    quotes = app.source("quotes", Quote)
    rates = app.source("rates", float, required=False)

    pricing = app.graph("pricing", when=any_(quotes), uses=[rates])

    @pricing.node
    def mid(quotes: Quote) -> float:
        return (quotes.bid + quotes.ask) / 2

    @pricing.node
    def signal(mid: float, rates: float | None = None) -> float:
        return mid * (rates or 1.0)

    for name, on_full, capacity in (("orders", "refuse", 4), ("waiting", "block", 2)):
        source = app.source("orders", Order, on_full=on_full, capacity=capacity)
        sequential = app.graph(name, when=any_(source), inputs="sequential")

        @sequential.node
        def done(orders: Order) -> int:
            return orders.id

    kept = app.graph("kept", when=any_(app.source("quotes", Quote)), checkpoint=True, record=1000)
    kept.add(spread)

    fragile = app.graph("fragile", when=any_(app.source("quotes", Quote)), on_error="dead_letter")

    @fragile.node
    def checked(quotes: Quote) -> float:
        if quotes.bid < 0:
            raise ValueError("below zero")
        return quotes.bid

    both = app.graph("both", when=all_(app.source("left", int), app.source("right", int)))

    @both.node
    def added(left: int, right: int) -> int:
        return left + right

    for tenant in ("acme", "globex"):
        shared = app.graph("shared", when=any_(app.source("quotes", Quote)), tenant=tenant)
        shared.add(spread)

    if gate is not None:
        slow = app.graph("slow", when=any_(app.source("orders", Order)))

        @slow.node
        async def held(orders: Order) -> int:
            gate.entered.set()
            await gate.open.wait()
            return orders.id

    return app


def spread(quotes: Quote) -> float:
    return quotes.ask - quotes.bid


if PLACE in os.environ:
    app = desk(Path(os.environ[PLACE]))


@contextmanager
def graphs_process(place: Path, *options: str) -> Iterator[str]:
    """The URL of a process that serves the app."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PLACE, str(place))
        with server_process(place, f"{__name__}:app", *options) as process:
            yield f"http://127.0.0.1:{process.port}"

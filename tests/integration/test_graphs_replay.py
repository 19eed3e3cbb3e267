"""What was recorded can be run again: byte for byte by the same code, compared by another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairway import Batch, Fairway, FiringContext, Graph, Source, any_, debounce, where
from fairway.errors import InvalidRequest
from fairway.graphs import journal as journal_module
from fairway.graphs.replay import Given, compared, events_of, over_events, over_journal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Quote(msgspec.Struct, frozen=True):
    symbol: str
    price: float


class Mid(msgspec.Struct, frozen=True):
    price: float
    at: int
    why: tuple[str, ...]


def priced(factor: float = 2.0, **options: Any) -> tuple[Graph, Source[Quote], Source[float]]:
    quotes = Source("quotes", Quote)
    rates = Source("rates", float)
    past = Source("past", float, keep=3)
    graph = Graph("priced", when=any_(quotes, rates), uses=[past], **options)

    @graph.node
    def mid(
        firing: FiringContext,
        quotes: Quote,
        rates: float | None,
        past: list[float] | None,
    ) -> Mid:
        price = quotes.price * factor * (rates or 1.0) + sum(past or ())
        firing.put("past", quotes.price)
        return Mid(price, firing.wall_ns, firing.fresh)

    @graph.node
    def text(mid: Mid) -> str:
        return f"{mid.price:.3f}"

    return graph, quotes, rates


async def collected(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


def test_a_recorded_journal_gives_the_same_outputs_byte_for_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SNAPSHOT_RECORDS", 40)

    async def main() -> None:
        app = Fairway(tmp_path)
        graph, quotes, rates = priced(checkpoint=True, record=100, inputs="sequential")
        async with app:
            await app.graphs.load(graph)
            for at in range(150):
                await graph.push(rates if at % 7 == 3 else quotes, _value(at))
            await graph.settled()
            name = graph.name
            found = await collected(over_journal(graph, app.graphs.history(name)))
            assert found[-1].number == 150
            assert 100 <= len(found) <= 145, "what is kept begins after a snapshot"
            assert {each.same for each in found} == {True}
            assert len({each.packed for each in found}) > 90, "and they are not all alike"
            other, _, _ = priced(factor=3.0)
            changed = await collected(over_journal(other, app.graphs.history(name)))
            assert not any(each.same for each in changed)
            parts = await collected(
                compared(
                    over_journal(graph, app.graphs.history(name)),
                    over_journal(other, app.graphs.history(name)),
                )
            )
            assert [part.number for part in parts] == [each.number for each in found]

    asyncio.run(main())


def _value(at: int) -> Any:
    return 1.0 + at / 10 if at % 7 == 3 else Quote("A", float(at))


def test_events_of_a_file_fire_as_they_would_have() -> None:
    graph, _, _ = priced()
    lines = [
        b'{"source": "quotes", "data": {"symbol": "A", "price": 2}, "at": 1.5}',
        b"",
        b'{"source": "rates", "data": 3.0, "at": 2}',
    ]
    found = asyncio.run(collected(over_events(graph, events_of(lines))))
    assert [each.outputs["text"] for each in found] == ["4.000", "14.000"]
    assert [each.wall_ns for each in found] == [1_500_000_000, 2_000_000_000]


@pytest.mark.parametrize("how", ["through", "dedupe", "where"])
def test_what_a_source_or_its_gate_makes_of_an_event_is_told_if_it_fails(how: str) -> None:
    def bad(n: int) -> int:
        return 1 // n

    n = Source(
        "n",
        int,
        through=bad if how == "through" else None,
        dedupe=bad if how == "dedupe" else None,
    )
    criterion: Any = where(n, lambda inputs: bad(inputs["n"]) >= 0) if how == "where" else n
    graph = Graph("g", when=criterion, inputs="sequential")

    @graph.node
    def it(n: int) -> int:
        return n

    with pytest.raises(InvalidRequest, match=f"{how}.*: ZeroDivisionError"):
        asyncio.run(collected(over_events(graph, [Given("n", b"0", 0)])))


def test_gates_and_batches_go_by_the_time_of_the_events() -> None:
    quotes = Source("quotes", Quote, batch=Batch(size=3, every_s=1.0))
    graph = Graph("batched", when=quotes)

    @graph.node
    def count(quotes: list[Quote]) -> int:
        return len(quotes)

    times = [0.0, 0.1, 0.2, 5.0, 5.5, 9.0]
    events = [Given("quotes", b'{"symbol":"A","price":1}', round(at * 1e9)) for at in times]
    found = asyncio.run(collected(over_events(graph, events)))
    assert [(each.outputs["count"], each.wall_ns / 1e9) for each in found] == [
        (3, 0.2),
        (2, 6.0),
        (1, 9.0),
    ]

    calm = Source("calm", int)
    quiet = Graph("quiet", when=where(debounce(calm, quiet_s=1.0), lambda given: given["calm"] > 1))

    @quiet.node
    def echo(calm: int) -> int:
        return calm

    events = [Given("calm", b"%d" % at, at * 400_000_000) for at in range(4)]
    found = asyncio.run(collected(over_events(quiet, [*events, Given("calm", b"9", 10**10)])))
    assert [each.outputs["echo"] for each in found][:1] == [3]
    assert found[0].wall_ns == 2_200_000_000

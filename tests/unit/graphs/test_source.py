"""Sources: declarations that make no sense, what kind they are, and the types of `through`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairway.errors import InvalidConfig
from fairway.graphs.context import FiringContext  # noqa: TC001  (read at run time)
from fairway.graphs.inputs import CAPACITY
from fairway.graphs.source import ALL, Source
from fairway.graphs.windows import Batch, Window


class Tick(msgspec.Struct):
    price: float


class Quote(msgspec.Struct):
    mid: float


class GoodQuote(Quote):
    pass


class KafkaFeed:
    kind = "kafka"

    def open(self, context: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("my quotes", {}, r"source 'my quotes': parameters are named after sources"),
        ("class", {}, r"source 'class': parameters are named after sources"),
        ("", {}, r"parameters are named after sources"),
        ("quotes", {"on_full": "panic"}, r"on_full is block, drop_oldest or refuse, not 'panic'"),
        ("quotes", {"capacity": 0}, r"capacity is at least 1"),
        ("quotes", {"stale_after_s": 0}, r"stale_after_s is above 0"),
        ("quotes", {"keep": 5, "feed": KafkaFeed()}, r"written by the graph; it has no feed"),
        ("quotes", {"keep": 5, "batch": Batch(size=2)}, r"is not batched"),
        ("quotes", {"keep": -2}, r"keep is a number of values, or ALL"),
        ("quotes", {"version": 0}, r"version is at least 1"),
        ("quotes", {"upgrades": {1: dict}}, r"leads nowhere"),
    ],
)
def test_declarations_that_make_no_sense(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Source(name, Quote, **options)


def test_defaults() -> None:
    source = Source("quotes", Quote)
    assert (source.required, source.on_full, source.capacity) == (True, "block", CAPACITY)
    assert source.stale_after_ns is None
    assert source.event_schema.type is source.schema.type is Quote
    assert repr(source) == "Source('quotes')"
    assert Source("quotes", Quote, stale_after_s=1.5).stale_after_ns == 1_500_000_000


@pytest.mark.parametrize(
    ("options", "kind", "given_type"),
    [
        ({}, "passthrough", Quote),
        ({"feed": KafkaFeed()}, "kafka", Quote),
        ({"batch": Batch(size=3)}, "batch", list[Quote]),
        ({"batch": Window(count=3), "feed": KafkaFeed()}, "batch", list[Quote]),
        ({"keep": 10}, "state", list[Quote]),
        ({"keep": ALL}, "state", list[Quote]),
        ({"keep": 0}, "state", list[Quote]),
    ],
)
def test_kinds_and_what_a_node_is_given(
    options: dict[str, Any], kind: str, given_type: Any
) -> None:
    source = Source("quotes", Quote, **options)
    assert source.kind == kind
    assert source.given_type == given_type
    assert source.schema.type == given_type
    assert source.collects == (given_type is not Quote)


# Through


def to_quote(tick: Tick) -> Quote | None:
    return Quote(tick.price) if tick.price else None


def to_better(tick: Tick) -> GoodQuote:
    return GoodQuote(tick.price)


def from_either(event: Tick | int) -> Quote:
    return Quote(0)


def to_tick(tick: Tick) -> Tick:
    return tick


def of_two(tick: Tick, other: Tick) -> Quote: ...


def of_none() -> Quote: ...


async def waits(tick: Tick) -> Quote: ...


def with_context(tick: Tick, ctx: FiringContext) -> Quote: ...


def of_unknown(tick: Unknown) -> Quote: ...  # type: ignore[name-defined]  # noqa: F821


def test_the_parameter_of_through_is_the_type_of_events() -> None:
    source = Source("quotes", Quote, through=to_quote)
    assert source.event_schema.type is Tick
    assert source.schema.type is Quote
    assert source.event_schema.of_json(b'{"price": 2}') == Tick(2)


@pytest.mark.parametrize(
    ("through", "event_type"),
    [(to_better, Tick), (from_either, Any), (lambda event: event, Any)],
)
def test_through_that_fits(through: Any, event_type: Any) -> None:
    assert Source("quotes", Quote, through=through).event_schema.type is event_type


@pytest.mark.parametrize(
    ("through", "said"),
    [
        (to_tick, r"source 'quotes': through 'to_tick' \(.*:\d+\) gives Tick, not Quote"),
        (of_two, r"through 'of_two' \(.*:\d+\) takes one event, and gives a boundary"),
        (of_none, r"through 'of_none' .* takes one event"),
        (with_context, r"through 'with_context' .* takes one event"),
        (waits, r"through 'waits' .* is a plain function: sources keep their order"),
        (of_unknown, r"'Unknown' is not defined"),
    ],
)
def test_through_that_does_not_fit(through: Any, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Source("quotes", Quote, through=through)


def test_through_gives_one_of_a_union() -> None:
    source = Source("quotes", Quote | int, through=to_quote)  # type: ignore[var-annotated]
    assert source.event_schema.type is Tick

"""Boundaries: from bytes and back, from older versions to this one, and where they do not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.errors import InvalidConfig, InvalidRequest
from fairway.graphs.boundary import Boundary, Schema, Stored


class Quote(msgspec.Struct, frozen=True):
    symbol: str
    bid: float
    ask: float = 0.0


@dataclass
class Order:
    id: int
    quotes: list[Quote]


@dataclass
class Mid:
    """At version 3: it was {"mid": ...}, then {"price": ...}, and now has a currency."""

    price: float
    currency: str


VALUES: list[tuple[Any, Any]] = [
    (Quote, Quote("EURUSD", 1.5, 2.5)),
    (Order, Order(7, [Quote("EURUSD", 1.0), Quote("USDJPY", 2.0)])),
    (list[Quote], [Quote("EURUSD", 1.0)]),
    (dict[str, int], {"a": 1}),
    (int, 5),
    (Quote | None, None),
    (Any, {"free": [1, 2]}),
]


@pytest.mark.parametrize(("type_", "value"), VALUES, ids=[str(each[0]) for each in VALUES])
def test_what_goes_in_comes_out(type_: Any, value: Any) -> None:
    schema = Schema(type_)
    assert schema.load(schema.store(value)) == value
    assert schema.of_json(msgspec.json.encode(value)) == value
    assert schema.of_builtins(msgspec.to_builtins(value)) == value
    assert type(schema.load(schema.store(value))) is type(value)


@given(
    quotes=st.lists(
        st.builds(Quote, st.text(), st.floats(allow_nan=False), st.floats(allow_nan=False))
    )
)
def test_any_list_of_structs_round_trips(quotes: list[Quote]) -> None:
    schema = Schema(list[Quote])
    assert schema.load(schema.store(quotes)) == quotes
    finite = [quote for quote in quotes if abs(quote.bid) + abs(quote.ask) < float("inf")]
    assert schema.of_json(msgspec.json.encode(finite)) == finite


def test_a_boundary_shares_no_marks_by_default() -> None:
    assert Boundary(1) == (1, {}, ())


# Where it does not fit


@pytest.mark.parametrize(
    ("type_", "data", "said"),
    [
        (Quote, b'{"symbol": "EURUSD", "bid": "high"}', r"Expected `float`, got `str`.*\$\.bid"),
        (Quote, b'{"symbol": "EURUSD"}', r"missing required field `bid`"),
        (list[Quote], b'[{"symbol": 1, "bid": 2}]', r"Expected `str`.*\$\[0\]\.symbol"),
        (Order, b'{"id": 1, "quotes": [3]}', r"\$\.quotes\[0\]"),
        (Quote, b"{", r"does not decode"),
        (Quote, b"\xff", r"does not decode"),
        (str, b'"\xff"', r"does not decode"),
    ],
)
def test_json_that_does_not_fit_says_where(type_: Any, data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Schema(type_).of_json(data)


def test_plain_data_that_does_not_fit_says_where() -> None:
    with pytest.raises(InvalidRequest, match=r"does not fit: .*\$\.bid"):
        Schema(Quote).of_builtins({"symbol": "EURUSD", "bid": None})


def test_a_kept_value_that_does_not_fit_says_where() -> None:
    stored = Schema(dict).store({"symbol": "EURUSD", "bid": "high"})
    with pytest.raises(InvalidRequest, match=r"a kept value does not fit its type: .*\$\.bid"):
        Schema(Quote).load(stored)
    with pytest.raises(InvalidRequest, match=r"a kept value does not fit its type"):
        Schema(Quote).load(Stored(1, b"\xc1"))


# Versions

UPGRADES = {
    1: lambda old: {"price": old["mid"]},
    2: lambda old: {**old, "currency": "EUR"},
}


def test_upgrades_are_chained() -> None:
    schema = Schema(Mid, version=3, upgrades=UPGRADES)
    first = Stored(1, msgspec.msgpack.encode({"mid": 1.5}))
    second = Stored(2, msgspec.msgpack.encode({"price": 2.5}))
    third = schema.store(Mid(3.5, "USD"))
    assert third.version == 3
    assert [schema.load(each) for each in (first, second, third)] == [
        Mid(1.5, "EUR"),
        Mid(2.5, "EUR"),
        Mid(3.5, "USD"),
    ]


def test_a_missing_upgrade_is_named() -> None:
    schema = Schema(Mid, version=3, upgrades={1: UPGRADES[1]})
    with pytest.raises(
        InvalidRequest, match=r"of version 1 is kept, the type is at 3, .*no upgrade from 2"
    ):
        schema.load(Stored(1, msgspec.msgpack.encode({"mid": 1.5})))


def test_newer_code_wrote_it() -> None:
    with pytest.raises(
        InvalidRequest, match=r"of version 4 is kept, and the type is at 3: newer code wrote it"
    ):
        Schema(Mid, version=3, upgrades=UPGRADES).load(Stored(4, b"in any form"))


def test_an_upgrade_that_fails_is_named() -> None:
    schema = Schema(Mid, version=3, upgrades=UPGRADES)
    with pytest.raises(InvalidRequest, match=r"the upgrade from version 1 failed: KeyError: 'mid'"):
        schema.load(Stored(1, msgspec.msgpack.encode({})))


def test_an_upgrade_that_gives_something_else_says_where() -> None:
    schema = Schema(Mid, version=2, upgrades={1: lambda old: {"price": "none", "currency": "EUR"}})
    with pytest.raises(InvalidRequest, match=r"\$\.price"):
        schema.load(Stored(1, msgspec.msgpack.encode({})))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": 0}, "count from 1"),
        ({"upgrades": {1: dict}}, "from version 1 leads nowhere: the type is at 1"),
        ({"version": 3, "upgrades": {3: dict}}, "from version 3 leads nowhere"),
        ({"version": 3, "upgrades": {0: dict}}, "from version 0 leads nowhere"),
    ],
)
def test_declarations_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        Schema(Mid, **options)


def test_a_type_that_cannot_be_told_apart_cannot_be_a_boundary() -> None:
    with pytest.raises(InvalidConfig, match="cannot be a boundary"):
        Schema(Quote | Mid)

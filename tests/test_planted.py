"""Planted bugs that do not fit the code any more are refused."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.planted import Drifted, expect_seen, plant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Broken(AssertionError):
    pass


class Till:
    """What is broken here."""

    def __init__(self) -> None:
        self.sold = 0

    def sell(self, price: int, count: int = 1) -> int:
        self.sold += price * count
        return self.sold

    async def close(self) -> int:
        return self.sold


def simulate(seed: int, *, mutate: Callable[[], Any]) -> None:
    with mutate():
        till = Till()
        try:
            till.sell(seed)
            told = asyncio.run(till.close())
        except (TypeError, AttributeError):  # a supervisor would start it again, in vain
            told = -1
        if told != seed:
            raise Broken(f"sold {seed}, told {told}")


def planted(name: str, bug: Any) -> Callable[[], Any]:
    @contextmanager
    def there() -> Iterator[None]:
        with plant(Till, name, bug):
            yield

    return there


def test_a_bug_that_fits_is_seen_by_what_it_does() -> None:
    def sell(self: Till, price: int, count: int = 1) -> int:
        return 0

    assert expect_seen(simulate, planted("sell", sell), Broken, histories=9) == "sold 1, told 0"


def test_a_bug_that_does_no_harm_is_not_seen() -> None:
    real = Till.sell

    def sell(self: Till, price: int, count: int = 1) -> int:
        return real(self, price, count)

    with pytest.raises(pytest.fail.Exception, match="9 histories did not notice"):
        expect_seen(simulate, planted("sell", sell), Broken, histories=9)


def test_a_bug_that_takes_other_arguments_is_refused() -> None:
    with pytest.raises(Drifted, match=r"Till.sell takes \['self', 'price', 'count'\]"):
        expect_seen(simulate, planted("sell", lambda self, price: 0), Broken, histories=9)


def test_a_bug_that_touches_what_is_not_there_is_refused() -> None:
    def sell(self: Any, price: int, count: int = 1) -> int:
        return int(self.total)

    async def close(self: Any) -> int:
        return int(self.total)

    for name, bug in (("sell", sell), ("close", close)):
        with pytest.raises(Drifted, match=f"planted at Till.{name} raised AttributeError"):
            expect_seen(simulate, planted(name, bug), Broken, histories=9)


def test_a_bug_that_is_seen_by_an_accident_elsewhere_is_refused() -> None:
    def stumble(seed: int, *, mutate: Callable[[], Any]) -> None:
        try:
            int(None)  # type: ignore[call-overload]
        except TypeError as error:
            raise Broken("something died") from ExceptionGroup("of", [error])

    with pytest.raises(Drifted, match="something died was seen only by TypeError"):
        expect_seen(stumble, lambda: None, Broken, histories=9)

"""What the two clients do differently by more than a word: `async_x` for one, `x` for the other."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

V = TypeVar("V")

AsyncValues: TypeAlias = Iterable[V] | AsyncIterable[V]
"""Values to append, as `AsyncClient` takes them."""
Values: TypeAlias = Iterable[V]
"""Values to append, as `Client` takes them."""


async def async_each(values: AsyncValues[V]) -> AsyncIterator[V]:
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value
    else:
        for value in values:
            yield value


def each(values: Values[V]) -> Iterator[V]:
    return iter(values)


async def async_tell(callback: Callable[[Any], object], news: object) -> None:
    """Call back; what a callback returns is awaited if it can be."""
    answer = callback(news)
    if isawaitable(answer):
        await answer


def tell(callback: Callable[[Any], object], news: object) -> None:
    """Call back."""
    callback(news)

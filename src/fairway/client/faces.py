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


async def async_notify(callback: Callable[[Any], object], value: object) -> None:
    """Call back; what a callback returns is awaited if it can be."""
    answer = callback(value)
    if isawaitable(answer):
        await answer


def notify(callback: Callable[[Any], object], value: object) -> None:
    """Call back."""
    callback(value)

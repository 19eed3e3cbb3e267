"""One test for both faces of the client: `AsyncClient` driven as if it were `Client`."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairway.client import AsyncClient, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

FACES = ("blocking", "asyncio")


@contextmanager
def client_of(face: str, url: str, **options: Any) -> Iterator[Client]:
    """A client of that face. What it says to be is a lie for the second; what it does is not."""
    if face == "blocking":
        with Client(url, **options) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        driven: Any = _Driven(runner, AsyncClient(url, **options))
        try:
            yield driven
        finally:
            driven.close()


class _Driven:
    """Something of `fairway.client.aio`; each call runs until it is answered."""

    def __init__(self, runner: asyncio.Runner, target: Any) -> None:
        self._runner = runner
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return self._given(getattr(self._target, name))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._given(self._target(*args, **options))

    def __iter__(self) -> Iterator[Any]:
        items = aiter(self._target)
        while True:
            try:
                yield self._runner.run(_next(items))
            except StopAsyncIteration:
                return

    def _given(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._given(self._runner.run(value))
        if inspect.isasyncgen(value):
            return iter(_Driven(self._runner, value))
        ours = type(value).__module__.startswith("fairway.client.aio")
        return _Driven(self._runner, value) if ours or inspect.ismethod(value) else value


async def _next(items: Any) -> Any:
    return await anext(items)

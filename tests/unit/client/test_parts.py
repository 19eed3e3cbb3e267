"""A new part of the client is a module and a line of the list; the blocking face follows."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from fairway.client import AsyncClient, Client
from fairway.client.aio import client as aio
from fairway.client.sync import client as sync
from tools.blocking import blocking

TOY = '''"""`client.toy`: a part that somebody adds."""

from collections.abc import AsyncIterator

from fairway.client.aio.client import AsyncClient
from fairway.client.protocol import Call, reading


def things(of: str) -> Call[list]:
    return Call(method="GET", path=f"/v0/toy/{of}/things", decode=reading(list))


class AsyncRemoteToy:
    """The toys of a server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def first(self, of: str) -> str:
        found = await self._client.call(things(of))
        return found[0]

    async def list(self, of: str) -> AsyncIterator[str]:
        for one in await self._client.call(things(of)):
            yield one
'''


def made_of(source: str, name: str) -> Any:
    module: dict[str, Any] = {}
    exec(source, module)
    return module[name]


def answer(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=[request.url.path, "ball"])


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> httpx.MockTransport:
    toy = made_of(TOY, "AsyncRemoteToy")
    monkeypatch.setattr(aio, "PARTS", [*aio.PARTS, ("toy", toy)])
    twin = made_of(blocking(TOY, "toy.py"), "RemoteToy")
    monkeypatch.setattr(sync, "PARTS", [*sync.PARTS, ("toy", twin)])
    return httpx.MockTransport(answer)


def test_a_part_that_is_listed_is_there(transport: httpx.MockTransport) -> None:
    with Client("http://fairway.test", transport=transport) as client:
        toy: Any = client.toy  # type: ignore[attr-defined]
        assert toy.first("box") == "/v0/toy/box/things"
        assert list(toy.list("box")) == ["/v0/toy/box/things", "ball"]


def test_a_part_that_is_listed_is_there_for_asyncio(transport: httpx.MockTransport) -> None:
    async def play() -> None:
        async with AsyncClient("http://fairway.test", transport=transport) as client:
            toy: Any = client.toy  # type: ignore[attr-defined]
            assert await toy.first("box") == "/v0/toy/box/things"
            assert [one async for one in toy.list("box")] == ["/v0/toy/box/things", "ball"]

    asyncio.run(play())


def test_both_faces_have_the_same_parts() -> None:
    listed = [(name, part.__name__) for name, part in sync.PARTS]
    assert [(name, f"Async{kind}") for name, kind in listed] == [
        (name, part.__name__) for name, part in aio.PARTS
    ]

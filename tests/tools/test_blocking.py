"""The blocking client is made of the one for asyncio, and of nothing else."""

from __future__ import annotations

import inspect
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from fairway import client
from tools import blocking

if TYPE_CHECKING:
    from pathlib import Path

TWINS = [name for name in client.__all__ if name.startswith("Async")]


def test_the_blocking_client_is_what_the_other_one_says() -> None:
    assert [str(path) for path, _ in blocking.stale()] == [], f"run `{blocking.COMMAND}`"


def test_words_of_asyncio_go_and_the_rest_stays() -> None:
    source = '''"""`AsyncToy` of a server."""

from collections.abc import AsyncIterator

from fairway.client.aio.client import AsyncClient
from fairway.client.faces import async_notify


class AsyncToy:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def all(self) -> AsyncIterator[int]:
        """Every one: `async for one in toy.all()`."""
        page = await self._client.call("asynchronous")
        for one in page:
            yield one
        await async_notify(print, page)
'''
    assert (
        blocking.blocking(source, "toy.py")
        == '''# Generated from aio/toy.py: edit that one, then run `make client`.
"""`Toy` of a server."""

from collections.abc import Iterator

from fairway.client.faces import notify
from fairway.client.sync.client import Client


class Toy:
    def __init__(self, client: Client) -> None:
        self._client = client

    def all(self) -> Iterator[int]:
        """Every one: `for one in toy.all()`."""
        page = self._client.call("asynchronous")
        yield from page
        notify(print, page)
'''
    )


def test_what_has_no_rule_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"aio/toy\.py: no rule for 'asyncio'"):
        blocking.blocking("import asyncio\n", "toy.py")


def test_a_stale_module_and_one_too_many_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = tmp_path / "src/fairway/client"
    shutil.copytree(blocking.CLIENT / "sync", client / "sync")
    shutil.copytree(blocking.CLIENT / "aio", client / "aio")
    assert list(blocking.stale(client)) == []
    with (client / "aio/jobs.py").open("a") as source:
        source.write("\n\nMORE = 1\n")
    (client / "aio/graphs.py").unlink()
    stale = dict(blocking.stale(client))
    assert [path.name for path in stale] == ["jobs.py", "graphs.py"]
    assert stale[client / "sync/graphs.py"] is None
    monkeypatch.setattr(blocking, "CLIENT", client)
    monkeypatch.setattr(blocking, "stale", lambda: iter(stale.items()))
    monkeypatch.setattr("sys.argv", ["blocking", "--check"])
    assert blocking.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "stale: src/fairway/client/sync/jobs.py"
    assert said[-1].endswith("run `make client`")


@pytest.mark.parametrize("name", TWINS)
def test_both_faces_offer_the_same_calls(name: str) -> None:
    assert calls_of(getattr(client, name)) == calls_of(getattr(client, name.removeprefix("Async")))


def calls_of(face: type) -> dict[str, Any]:
    return {
        name: [(one.name, one.kind, one.default) for one in signature(call)]
        for name, call in inspect.getmembers(face, inspect.isfunction)
        if not name.startswith("_")
    }


def signature(call: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(call).parameters.values())

"""A part is new files and a line in each list: one that is added so has all that others have."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.server import JSON, ROOT, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

THING = {"a": "box", "b": "ball", "value": "red"}
TOY = [sys.executable, "-m", "tests.support.toy"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(
        tmp_path / "data",
        *("tests.support.toy:app", "--toy-limit", "3"),
        module="tests.support.toy",
    )
    try:
        yield process.wait_ready()
    finally:
        process.close()


def toy(*arguments: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "FAIRWAY_URL": f"http://127.0.0.1:{port}"}
    return subprocess.run(
        [*TOY, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def test_a_part_that_is_added_with_a_line_in_each_list_is_a_part(
    server: ServerProcess, tmp_path: Path
) -> None:
    async def scenario() -> dict[str, Any]:
        api = server.api
        # A route, and a refusal with its code.
        assert (await api.put("/v0/toy/box/things/ball", "red")).status == 201
        assert (await api.get("/v0/toy/box/things/ball")).json["value"] == "red"
        missing = await api.get("/v0/toy/box/things/none")
        assert (missing.status, missing.code) == (404, "thing_not_found")
        # An error of its own, with a status and a code that are in no table of ours.
        nothing = await api.put("/v0/toy/box/things/none", raw=b"null", headers=JSON)
        assert (nothing.status, nothing.code) == (422, "no_toy"), nothing.body
        document = (await api.get("/openapi.json")).json
        codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["examples"]
        assert "no_toy" in codes
        paths = document["paths"]
        assert set(paths["/v0/toy/{a}/things/{b}"]) == {"get", "put"}
        # A kind of effect, by a graph that knows nothing of toys.
        pushed = await api.post("/v0/graphs/squares/accumulators/numbers", {"data": 7})
        assert pushed.status in (200, 202), pushed.body

        squares = "/v0/toy/square/things/7"
        while (squared := await api.get(squares)).status == 404:
            pass  # it goes out when its firing is recorded
        assert squared.json["value"] == 49
        # A metric, a setting and a health line.
        assert b"\nfairway_toys 2\n" in (await api.get("/metrics")).body
        assert (await api.get("/readyz")).json["parts"]["toys"]["state"] == "ok"
        assert (await api.put("/v0/toy/box/things/bear", 1)).status == 201
        full = await api.put("/v0/toy/box/things/kite", 1)
        assert (full.status, full.code) == (429, "throttled"), full.body
        return (await api.get("/readyz")).json["parts"]["toys"]

    health = asyncio.run(scenario())
    assert health == {
        "state": "degraded",
        "ready": True,
        "reason": "the box is full: 3 things",
    }
    # A command.
    shown = toy("toy", "get", "box", "ball", port=server.port)
    assert json.loads(shown.stdout) == {**THING, "puts": 1}, shown.stderr
    assert "toy" in toy("--help").stdout
    assert "--toy-limit NUMBER" in toy("serve", "--help").stdout
    # What it keeps is in the log of the app, like that of the others.
    server.kill()
    again = ServerProcess(tmp_path / "data", "tests.support.toy:app", module="tests.support.toy")
    try:
        again.wait_ready()
        asyncio.run(after(again))
    finally:
        again.close()


async def after(again: ServerProcess) -> None:
    api = again.api
    assert (await api.get("/v0/toy/box/things/ball")).json == {**THING, "puts": 1}
    assert (await api.get("/readyz")).json["parts"]["toys"]["state"] == "ok"
    # The one that ended had no time to note that its effect was out, so it goes out again, before
    # those that come now; and changes nothing, for its position was kept with what it made.
    assert (await api.post("/v0/graphs/squares/accumulators/numbers", {"data": 8})).status < 300
    while (await api.get("/v0/toy/square/things/8")).status == 404:
        pass
    assert (await api.get("/v0/toy/square/things/7")).json["puts"] == 1


def test_both_clients_call_it(server: ServerProcess) -> None:
    asyncio.run(server.api.put("/v0/toy/box/things/ball", [1, 2]))
    script = f"""
import asyncio
from tests.support import toy
toy.add()
from fairway.client import AsyncClient, Client

with Client("http://127.0.0.1:{server.port}") as client:
    print(client.toys.get("box", "ball").value)

async def main():
    async with AsyncClient("http://127.0.0.1:{server.port}") as client:
        print((await client.toys.get("box", "ball")).value)
        try:
            await client.toys.get("box", "none")
        except toy.NotFound as error:
            print("refused:", error)
        try:
            await client.toys.put("box", "none", None)
        except toy.NoToy as error:
            print("refused:", error)

asyncio.run(main())
"""
    shown = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert shown.stdout.splitlines()[:2] == ["[1, 2]", "[1, 2]"], shown.stderr
    assert shown.stdout.count("refused:") == 2, shown.stderr
    assert "nothing is no toy" in shown.stdout


def test_without_its_lines_nothing_knows_of_it(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "fairway", "serve", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "--toy-limit" not in shown.stdout

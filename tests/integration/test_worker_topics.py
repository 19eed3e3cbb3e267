"""Topics inside `fairway worker`: through the running server, since the log has one owner."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from fairway import Fairway, FeederConfig, WorkerConfig
from fairway.client import AsyncClient, ServerTopics
from tests.support.server import server_process

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
APP = """
from fairway import Fairway

app = Fairway("data", worker=None)
orders = app.topic("orders")

@app.job(max_attempts=1)
async def place(ids: list[int]) -> list[int]:
    appended = await orders.append(*({"id": id} for id in ids))
    return [appended.first_seq, appended.last_seq]

@app.job(max_attempts=1)
async def total() -> list[object]:
    read = await orders.read(0)
    found = [record.data["id"] for record in read.records]
    watched = []
    async for record in orders.watch(0):
        watched.append(record.data["id"])
        if len(watched) == len(found):
            break
    return [found, watched]
"""


def test_topic_handles_in_a_worker_go_through_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    with server_process(tmp_path / "data", "shop:app") as server:
        url = f"http://127.0.0.1:{server.port}"

        def result(kind: str, args: dict[str, Any]) -> Any:
            made = httpx.post(f"{url}/v0/jobs", json={"jobs": [{"kind": kind, "args": args}]})
            id = made.json()["jobs"][0]["id"]
            job = httpx.get(f"{url}/v0/jobs/{id}", params={"wait_ms": 30_000}, timeout=60).json()
            assert job["status"] == "done", job
            return job["result"]

        worker = subprocess.Popen(
            [sys.executable, "-m", "fairway", "worker", "shop:app"],
            cwd=tmp_path,
            env={**os.environ, "FAIRWAY_SERVER": url},
            stdout=subprocess.PIPE,
        )
        try:
            assert result("place", {"ids": [7, 8, 9]}) == [1, 3]
            assert result("total", {}) == [[7, 8, 9], [7, 8, 9]]
        finally:
            worker.kill()
            worker.communicate()
        read = httpx.post(f"{url}/v0/topics/orders/diff", json={}).json()
        assert [record["data"]["id"] for record in read["records"]] == [7, 8, 9]


def test_a_worker_inside_another_program_reaches_the_topics_of_the_server(tmp_path: Path) -> None:
    app = Fairway(tmp_path / "data", worker=None)
    orders = app.topic("orders")

    @app.job(max_attempts=1)
    async def place(ids: list[int]) -> list[int]:
        appended = await orders.append(*({"id": id} for id in ids))
        read = await orders.read(0)
        return [appended.first_seq, *(record.data["id"] for record in read.records)]

    worker = WorkerConfig(queues={"default": FeederConfig()})

    async def work(url: str) -> None:
        async with AsyncClient(url) as client:
            async with app.working(worker, topics=ServerTopics(client)):
                placed = await place.enqueue(ids=[7, 8])
                assert await placed.result(timeout_s=30) == [1, 7, 8]
            assert (await client.topic("orders").state()).head_seq == 2

    with server_process(tmp_path / "data") as server:
        asyncio.run(work(f"http://127.0.0.1:{server.port}"))

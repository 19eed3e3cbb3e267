"""Durable Streams on real sockets and a real disk, through restarts and kill -9."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import connect

from fairway.streams.paths import topic_name
from tests.support.server import Wire, serving, until
from tests.support.server import run as run_served
from tests.support.streams import ServerProcess, server_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conftest import Campaign

TEXT = {"content-type": "text/plain"}
CLOSE = {"stream-closed": "true"}
DEADLINE_S = 60.0


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))


def client_of(process: ServerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{process.url}/v1/stream/", timeout=10, trust_env=False)


async def read_all(client: httpx.AsyncClient, path: str) -> str:
    found, offset = "", "-1"
    while True:
        answer = await client.get(path, params={"offset": offset})
        assert answer.status_code == 200, answer.text
        found += answer.text
        offset = answer.headers["stream-next-offset"]
        if "stream-up-to-date" in answer.headers:
            return found


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """(event, data) as they come."""
    name, lines = "", []
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data:"):
            lines.append(line.removeprefix("data:"))
        elif not line and lines:
            yield name, "\n".join(lines)
            lines = []


class Follower:
    """A reader that comes back with its last offset, whatever happens to the server."""

    def __init__(self) -> None:
        self.found = ""
        self.offset = "-1"
        self.closed = False

    async def follow(self, client: httpx.AsyncClient, path: str) -> None:
        """Read until the stream is closed or the connection breaks."""
        pending = ""
        params = {"offset": self.offset, "live": "sse"}
        try:
            async with client.stream("GET", path, params=params) as answer:
                assert answer.status_code == 200
                async for name, data in events(answer):
                    if name == "data":
                        pending = data
                        continue
                    # Taken together with where it ends, or not at all.
                    control = json.loads(data)
                    self.found, pending = self.found + pending, ""
                    self.offset = control["streamNextOffset"]
                    self.closed = control.get("streamClosed", False)
        except httpx.TransportError:
            return


async def produce(client: httpx.AsyncClient, path: str, done: int, upto: int) -> int:
    """Append the numbers from `done` on; returns how many are acknowledged when it has to stop."""
    while done < upto:
        headers = {"producer-id": "p", "producer-epoch": "0", "producer-seq": str(done), **TEXT}
        try:
            answer = await client.post(path, content=f"{done} ", headers=headers)
        except httpx.TransportError:
            return done
        assert answer.status_code in (200, 204), (answer.status_code, answer.text)
        done += 1
    return done


def test_each_append_is_there_once_after_every_kill(tmp_path: Path, campaign: Campaign) -> None:
    """An append in flight when the server dies is sent again and found once; a reader misses
    and repeats nothing."""
    rounds = campaign.rounds(share=4, full=30)
    random = campaign.random()

    async def one_life(done: int, reader: Follower) -> int:
        process = ServerProcess(tmp_path)
        try:
            async with client_of(process) as client, asyncio.TaskGroup() as group:
                answer = await client.put("numbers", headers=TEXT)
                assert answer.status_code in (200, 201)
                group.create_task(reader.follow(client, "numbers"))
                producing = group.create_task(produce(client, "numbers", done, 10**9))
                await asyncio.sleep(random.uniform(0.05, 0.4))
                process.end(signal.SIGKILL)
            campaign.tally["killed"] += 1
            campaign.tally["acknowledged"] += producing.result() - done
            return producing.result()
        finally:
            process.end()

    async def scenario() -> None:
        done, reader = 0, Follower()
        for _ in range(rounds):
            done = await one_life(done, reader)
        with server_process(tmp_path) as process:
            async with client_of(process) as client:
                total = await produce(client, "numbers", done, done + 3)
                expected = "".join(f"{number} " for number in range(total))
                assert await read_all(client, "numbers") == expected
                await client.post("numbers", headers=CLOSE)
                while not reader.closed:
                    await reader.follow(client, "numbers")
                assert reader.found == expected

    asyncio.run(asyncio.wait_for(scenario(), 10 * DEADLINE_S))


def test_closed_forked_and_deleted_survive_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        with server_process(tmp_path) as process:
            async with client_of(process) as client:
                await client.put("chat/a", content="one ", headers=TEXT)
                await client.put("chat/f", headers={"stream-forked-from": "/v1/stream/chat/a"})
                await client.post("chat/f", content="two ", headers=TEXT)
                await client.post("chat/f", content="three", headers={**TEXT, **CLOSE})
                await client.delete("chat/a")
            process.end(signal.SIGKILL)
        with server_process(tmp_path) as process:
            async with client_of(process) as client:
                assert (await client.head("chat/a")).status_code == 410
                assert await read_all(client, "chat/f") == "one two three"
                late = await client.post("chat/f", content="four", headers=TEXT)
                assert (late.status_code, late.headers["stream-closed"]) == (409, "true")

    run(scenario())


def test_a_large_binary_body_comes_back_byte_for_byte(tmp_path: Path) -> None:
    body = bytes(range(256)) * 12_000

    async def scenario() -> None:
        with server_process(tmp_path) as process:
            async with client_of(process) as client:
                kind = {"content-type": "application/octet-stream"}
                await client.put("blob", headers=kind)
                assert (await client.post("blob", content=body, headers=kind)).status_code == 204
                found, offset = b"", "-1"
                while True:
                    answer = await client.get("blob", params={"offset": offset})
                    found += answer.content
                    offset = answer.headers["stream-next-offset"]
                    if "stream-up-to-date" in answer.headers:
                        break
                assert found == body
                huge = await client.post("blob", content=b"x" * (33 * 2**20), headers=kind)
                assert huge.status_code == 413

    run(scenario())


# --- as topics


@pytest.mark.parametrize("path", ["chat/1", "über"])
def test_a_stream_is_appended_to_as_a_stream_only(tmp_path: Path, path: str) -> None:
    """Closure, types and producers are kept where they are known of: nothing gets past that."""
    topic, url = topic_name(path), f"/v1/stream/{quote(path)}"
    record = {"records": [{"data": "late"}]}

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            assert (await api.put(url, raw=b"1", headers=TEXT)).status == 201

            async def refused_everywhere() -> None:
                answers = [
                    await api.post(f"/v0/topics/{topic}", record),
                    await api.post(f"/v0/topics/{topic}", {**record, "create": True}),
                    await api.put("/v0/routers/r", {"source": "orders", "dest": topic}),
                ]
                for answer in answers:
                    assert (answer.status, answer.code) == (409, "stream_topic")
                    assert "/v1/stream/" in answer.error["message"]
                async with connect(f"ws://127.0.0.1:{api.port}/v0/ws", proxy=None) as socket:
                    await socket.send(json.dumps({"op": "publish", "topic": topic, **record}))
                    answer = json.loads(await socket.recv())
                    assert (answer["status"], answer["code"]) == (409, "stream_topic")

            await refused_everywhere()
            assert (await api.post(url, raw=b"2", headers={**TEXT, **CLOSE})).status == 204
            await refused_everywhere()
            assert (await api.get(f"{url}?offset=-1")).body == b"12"
            assert (await api.state(topic))["head_seq"] == 2
            assert (await api.get("/v0/routers")).json == {"routers": []}
            # What does not append is for topics of every kind.
            assert len((await api.diff(topic))["records"]) == 2
            assert (await api.put(f"/v0/topics/{topic}", {"cap_records": 1})).status == 200
            router = {"source": topic, "dest": "copies"}
            assert (await api.put("/v0/routers/out", router)).status == 201

    run_served(scenario())


def test_what_was_not_made_yet_is_a_stream_too_if_its_name_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            body = {"records": [{"data": 1}]}
            answer = await served.api.post("/v0/topics/ds:chat:1", body)
            assert (answer.status, answer.code) == (409, "stream_topic")
            assert answer.error["detail"] == {"append_at": "/v1/stream/chat/1"}
            assert (await served.api.get("/v0/topics/ds:chat:1")).status == 404
            for other in ("ds", "dsh", "ds.chat", "ads:chat"):
                await served.api.append(other, 1)

    run_served(scenario())


def test_a_stream_that_expired_while_nobody_served_goes_without_being_asked_for(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        async with serving(tmp_path) as served:
            headers = {**TEXT, "stream-expires-at": soon.isoformat()}
            assert (await served.api.put("/v1/stream/t", headers=headers)).status == 201
            assert (await served.api.put("/v1/stream/kept", headers=TEXT)).status == 201
        async with serving(tmp_path) as served:
            topics = served.app.topics
            await until(lambda: topics.find("ds:t") is None, within_s=10)
            assert topics.find("ds:kept") is not None

    run_served(scenario())


# --- what a key uses


KEY = """
[[key]]
name = "k"
secret = "k-secret"
scopes = ["admin"]
[key.quota]
in_flight = 1
connections = 2
"""


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_live_reader_is_a_connection_and_no_request_under_way(tmp_path: Path, live: str) -> None:
    """As one of `/v0` is: it keeps its key from nothing else, and is gone when it has left."""

    async def scenario() -> None:
        keys = tmp_path / "keys.toml"
        keys.write_text(KEY)
        async with serving(tmp_path / "data", keys_file=keys) as served:
            api = served.api.using("k-secret")
            assert (await api.put("/v1/stream/a", raw=b"x", headers=TEXT)).status == 201
            context = served.server.context
            assert context is not None

            def used() -> tuple[int, int]:
                now = context.quotas.statistics()["k"]
                return now.in_flight, now.connections

            url = f"/v1/stream/a?offset=now&live={live}"
            wires = []
            for number in (1, 2):
                wires.append(await Wire.open(api.port))
                wires[-1].send("GET", url, headers=api.headers)
                await until(lambda: used() == (0, number))  # noqa: B023
            refused = await api.get(url)
            assert (refused.status, refused.error["detail"]["limit"]) == (429, "connections")
            assert (await api.get("/v1/stream/a?offset=-1")).body == b"x"
            assert (await api.get("/v0/topics")).status == 200
            for wire in wires:
                await wire.close()
            await until(lambda: used() == (0, 0), within_s=2)

    run_served(scenario())


def test_a_long_poll_of_a_client_that_sends_no_more_is_answered_if_there_is_something(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await served.api.put("/v1/stream/a", raw=b"x", headers=TEXT)
            wire = await Wire.open(served.api.port)
            wire.send("GET", "/v1/stream/a?offset=-1&live=long-poll")
            wire.writer.write_eof()
            assert (await wire.answer()).body == b"x"

    run_served(scenario())

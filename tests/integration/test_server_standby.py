"""`fairway serve --standby`: a second server waits, and serves what the first one left."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from fairway import Fairway
from fairway.client import Client, RetryConfig
from fairway.runtime.service import StopSwitch
from fairway.server.serving import Server
from fairway.settings import ServerSettings
from fairway.storage.wals.memory import MemoryWal
from tests.support.server import WAIT_S, Api, ServerProcess, free_port, run, server_process, until

if TYPE_CHECKING:
    from pathlib import Path

    from fairway.storage.wal import Tail


def client_of(process: ServerProcess) -> Client:
    return Client(f"http://127.0.0.1:{process.port}", retry=RetryConfig(wait_for_server=False))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_server_that_stands_by_takes_over(tmp_path: Path, how: signal.Signals) -> None:
    with server_process(tmp_path) as first:
        with client_of(first) as client:
            client.topic("kept").append("before")
        second = ServerProcess(tmp_path, "--standby")
        try:
            first.signal(how)
            first.wait()
            second.wait_ready()
            with client_of(second) as client:
                client.topic("kept").append("after")
                found = [record.data for record in client.topic("kept").read()]
            assert found == ["before", "after"]
        finally:
            second.close()


def test_a_server_that_stands_by_says_where_it_listens(tmp_path: Path) -> None:
    with server_process(tmp_path) as first:
        second = ServerProcess(tmp_path, "--standby")  # on any port that is free
        try:
            port = second.wait_standing_by().port
            assert port not in (0, first.port)
            answer = run(second.api.get("/readyz"))
            assert (answer.status, answer.json["reason"]) == (503, "standing by")
            first.kill()
            assert second.wait_ready().port == port
        finally:
            second.close()


def test_a_server_that_stands_by_says_so_on_every_path(tmp_path: Path) -> None:
    """Durable Streams too: told 404, a client would give its stream up, or make it anew."""

    async def scenario(api: Api) -> None:
        async with asyncio.timeout(WAIT_S):
            reason = None
            while reason != "standing by":
                with suppress(OSError):  # it does not listen yet
                    reason = (await api.get("/readyz")).json["reason"]
        assert await not_ready_everywhere(api) == {"standing_by": True}

    with server_process(tmp_path):
        second = ServerProcess(tmp_path, "--standby", port=free_port())
        try:
            run(scenario(second.api))
        finally:
            second.close()


async def not_ready_everywhere(api: Api) -> Any:
    """What is told on every path of data: the same."""
    told = []
    for method, path in (
        *(("GET", path) for path in ("/v0/topics", "/v0/topics/x", "/v1/stream/x")),
        *((method, "/v1/stream/x") for method in ("PUT", "POST", "DELETE", "HEAD")),
    ):
        answer = await api.call(method, path)
        assert (answer.status, answer.header("retry-after")) == (503, "1"), (method, answer)
        # Behind one address there may be another server: whoever asks again comes by another way.
        assert answer.header("connection") == "close"
        if method != "HEAD":
            assert answer.code == "not_ready"
            told.append(answer.error["detail"])
    assert all(one == told[0] for one in told)
    return told[0]


def test_a_server_whose_log_is_being_opened_says_so_on_every_path() -> None:
    """From the moment it listens: Durable Streams are mounted later, and are no 404 before."""

    class Slow(MemoryWal):
        def open(self) -> dict[int, Tail]:
            assert opened.wait(WAIT_S)
            return super().open()

    opened = threading.Event()

    async def scenario() -> None:
        server, stop = Server(Fairway(Slow()), ServerSettings(port=0)), StopSwitch()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(server.run(stop))
            try:
                await until(lambda: server.port)
                api = Api(server.port)
                assert "replay_progress" in await not_ready_everywhere(api)
                assert (await api.get("/readyz")).json["reason"] == "recovering"
            finally:
                opened.set()
                await server.ready.wait()
                stop.request_stop()
                await asyncio.wait({running})

    run(scenario())


def test_without_it_a_second_server_is_refused(tmp_path: Path) -> None:
    with server_process(tmp_path) as first:
        second = ServerProcess(tmp_path)
        try:
            assert second.wait() == 1
            assert f"in use by process {first.pid}" in second.errors
        finally:
            second.close()


def test_data_given_on_the_command_line_counts_more_than_what_the_app_says(tmp_path: Path) -> None:
    with server_process(tmp_path / "here", "examples.first_graph:app") as process:
        with client_of(process) as client:
            client.topic("kept").append("here")
        assert any((tmp_path / "here").iterdir())

"""`fairway serve --standby`: a second server waits, and serves what the first one left."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fairway.client import Client, RetryConfig
from tests.support.server import WAIT_S, Api, ServerProcess, free_port, run, server_process

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_server_that_stands_by_says_so_on_every_path(tmp_path: Path) -> None:
    """Durable Streams too: told 404, a client would give its stream up, or make it anew."""

    async def scenario(api: Api) -> None:
        async with asyncio.timeout(WAIT_S):
            reason = None
            while reason != "standing by":
                with suppress(OSError):  # it does not listen yet
                    reason = (await api.get("/readyz")).json["reason"]
        for method, path in (
            *(("GET", path) for path in ("/v0/topics", "/v0/topics/x", "/v1/stream/x")),
            *((method, "/v1/stream/x") for method in ("PUT", "POST", "DELETE", "HEAD")),
        ):
            answer = await api.call(method, path)
            assert (answer.status, answer.header("retry-after")) == (503, "1"), (method, answer)
            if method != "HEAD":
                assert answer.code == "not_ready"
                assert answer.error["detail"] == {"standing_by": True}

    with server_process(tmp_path):
        second = ServerProcess(tmp_path, "--standby", port=free_port())
        try:
            run(scenario(second.api))
        finally:
            second.close()


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

"""How a real `fairway serve` starts and ends: signals, open streams, and what cannot start."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.server import (
    Api,
    Ended,
    Events,
    ServerProcess,
    free_port,
    run,
    server_process,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

WATCHERS = 100
END_S = 3.0
"""What is promised of a stop with open streams: a bound on behaviour, not a measure of speed."""


async def busy(process: ServerProcess) -> None:
    """Signal a server with 100 watchers, a long poll and a writer, and see everybody out."""
    api = process.api
    await api.append("t", "first")
    streams: list[Events] = []
    for number in range(WATCHERS):
        if number % 10:
            streams.append(await api.watch("t"))
        else:
            streams.append(await api.stream(await api.session(topics={"t": {}}, prefix="t*")))
    for stream in streams:
        await stream.named("caught-up")
    accepted = 1

    async def write() -> None:
        nonlocal accepted
        while True:
            try:
                answer = await api.post("/v0/topics/t", {"records": [{"data": accepted}]})
            except (OSError, asyncio.IncompleteReadError):
                return
            if answer.status != 200:
                assert (answer.status, answer.code) == (503, "shutting_down")
                return
            accepted += 1

    async def follow(stream: Events) -> int:
        seen = 0
        while True:
            try:
                event = await stream.next()
            except Ended:
                return seen
            if event.name == "record":
                seen = event.seqs[-1]

    async with asyncio.TaskGroup() as group:
        followers = [group.create_task(follow(stream)) for stream in streams]
        await api.append("idle", 1)
        poll = group.create_task(api.diff("idle", 1, wait_ms=30_000))
        writers = [group.create_task(write()) for _ in range(4)]
        await until(lambda: accepted >= 50)
        process.signal(signal.SIGINT)
        began = time.monotonic()
        page = await poll
        assert (page["records"], page["caught_up"]) == ([], True), "a poll ends with what there is"
        for writer in writers:
            await writer
        ends = [await follower for follower in followers]
    await until(lambda: process.ended)
    took_s = time.monotonic() - began
    print(f"ended {took_s:.2f} s after SIGINT with {WATCHERS} watchers and a long poll")
    assert process.wait() == 0
    assert took_s < END_S
    assert min(ends) > 0
    process.accepted = accepted  # type: ignore[attr-defined]


async def left(api: Api) -> list[int]:
    return await api.read_all("t")


def test_ctrl_c_with_100_watchers_and_a_long_poll_ends_within_3_s_and_keeps_what_it_accepted(
    tmp_path: Path,
) -> None:
    with server_process(tmp_path) as process:
        run(busy(process))
        accepted = process.accepted  # type: ignore[attr-defined]
        assert "Traceback" not in process.errors
    with server_process(tmp_path) as process:
        found = run(left(process.api))
    assert len(found) >= accepted
    assert found == list(range(1, len(found) + 1))


def test_sigterm_ends_an_idle_server_cleanly(tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.errors == ""


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """While a client holds up the stop: one that stopped reading its answer."""

    async def scenario(process: ServerProcess) -> None:
        api = process.api
        await api.append("t", *["x" * 100_000] * 50)
        held = await api.stream("/v0/topics/t/watch?limit=1", receive_buffer=4096)
        process.signal(signal.SIGINT)
        # It is stopping once nobody is let in any more.
        async with asyncio.timeout(10):
            while True:
                try:
                    await api.get("/healthz")
                except (OSError, asyncio.IncompleteReadError):
                    break
        began = time.monotonic()
        assert not process.ended, "somebody holds it up"
        process.signal(signal.SIGINT)
        await until(lambda: process.ended)
        print(f"ended {time.monotonic() - began:.3f} s after the second SIGINT")
        assert time.monotonic() - began < 0.5
        assert process.wait() == 130
        held.wire.abort()

    with server_process(tmp_path) as process:
        run(scenario(process))
    with server_process(tmp_path) as process:
        assert run(left(process.api)) == list(range(1, 51))


def test_a_data_directory_has_one_server_and_says_whose(tmp_path: Path) -> None:
    with server_process(tmp_path) as first:
        second = ServerProcess(tmp_path)
        try:
            assert second.wait() == 1
            assert f"in use by process {first.pid}" in second.errors
            assert "Traceback" not in second.errors
        finally:
            second.close()
        run(first.api.append("t", 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0 without keys"),
        (["--keys", "nowhere.toml"], "nowhere.toml"),
        (["--cors-origin", "*"], "lets every web page write"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    tmp_path: Path, options: list[str], said: str
) -> None:
    process = ServerProcess(tmp_path, *options)
    try:
        assert process.wait() == 1
        assert said in process.errors
        assert "Traceback" not in process.errors
    finally:
        process.close()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    port = free_port()
    with server_process(tmp_path / "a", port=port):
        other = ServerProcess(tmp_path / "b", port=port)
        try:
            assert other.wait() == 1
            assert f"cannot listen on 127.0.0.1:{port}" in other.errors
            assert "Traceback" not in other.errors
        finally:
            other.close()

"""How a real `fairway serve` starts and ends: signals, open streams, and what cannot start."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairway.server.front import Front, Fronts
from fairway.server.fronts import FRONTS
from fairway.server.http.asgi import HttpApp
from fairway.server.http.router import Route
from tests.support.graphs_served import Gate, desk
from tests.support.server import (
    Api,
    Ended,
    Events,
    ServerProcess,
    free_port,
    run,
    server_process,
    serving,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fairway.server.http.exchange import Reply

WATCHERS = 100
HEAD_OF_SLOW = ("HEAD", "/v0/slow")
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


async def never(context: Any, request: Any) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def requests_under_way() -> int:
    return sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


class SlowFront(Front):
    """Routes that answer when the server cuts them off, and no sooner."""

    name = "slow"
    routes = (
        Route("GET", "/v0/slow", never, "Reads"),
        Route("POST", "/v0/slow", never, "Changes something"),
        Route("POST", "/v0/slow/diff", never, "Reads by POST", reads=True),
    )


def test_what_a_stop_cuts_off_is_refused_if_it_reads_and_in_doubt_if_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {
        ("GET", "/v0/slow"): "shutting_down",
        ("POST", "/v0/slow/diff"): "shutting_down",
        ("POST", "/v0/slow"): "outcome_unknown",
    }

    async def scenario() -> None:
        async with serving(tmp_path, fronts=Fronts([*FRONTS, SlowFront()])) as served:
            async with asyncio.TaskGroup() as group:
                asking = {
                    how: group.create_task(served.api.call(*how)) for how in [*asked, HEAD_OF_SLOW]
                }
                await until(lambda: requests_under_way() == len(asking))
                served.stop.request_stop()
            answers = {how: task.result() for how, task in asking.items()}
        head = answers.pop(HEAD_OF_SLOW)
        assert (head.status, head.body) == (503, b"")
        assert {how: one.code for how, one in answers.items()} == asked
        for answer in answers.values():
            assert answer.status == 503
            assert (answer.header("connection"), answer.header("retry-after")) == ("close", "1")
            assert answer.error["message"].startswith("the server is shutting down")

    run(scenario())
    assert not [record for record in caplog.records if record.exc_info]


def test_commands_to_a_graph_that_a_stop_cuts_off_are_in_doubt_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def scenario() -> None:
        app = desk(tmp_path, gate)
        async with serving(tmp_path, app=app) as served:
            api = served.api
            async with asyncio.TaskGroup() as group:
                fire = {"cache": {"orders": {"id": 1}}}
                asking = [group.create_task(api.post("/v0/graphs/slow/fire", fire))]
                await gate.entered.wait()
                asking += [
                    group.create_task(api.delete("/v0/graphs/slow")),
                    group.create_task(api.post("/v0/graphs/slow/restart")),
                ]
                await until(lambda: requests_under_way() == len(asking))
                served.stop.request_stop()
            gate.open.set()
        for answer in [task.result() for task in asking]:
            assert (answer.status, answer.code) == (503, "outcome_unknown")

    with caplog.at_level("INFO", "fairway.audit"):
        run(scenario())
    notes = [one.getMessage() for one in caplog.records if one.name == "fairway.audit"]
    for command in ("fire_with", "unload", "restart"):
        assert f"anyone: {command} graph 'slow' of tenant '': cut_off (CancelledError)" in notes
    assert not [record for record in caplog.records if record.exc_info]


def test_a_server_that_ends_says_so_once_it_has_nothing_to_serve() -> None:
    http = HttpApp(FRONTS.routes, dict)
    assert b'"code":"not_ready"' in run(told(http, "/v0/topics/t"))["body"]
    http.stopping = True
    answer = run(told(http, "/v0/topics/t"))
    assert (answer["status"], (b"connection", b"close") in answer["headers"]) == (503, True)
    assert b'"code":"shutting_down"' in answer["body"]
    assert b'"reason":"shutting down"' in run(told(http, "/readyz"))["body"]


async def told(http: HttpApp, path: str) -> dict[str, Any]:
    """What an app answers to a `GET`."""
    answer: dict[str, Any] = {}

    async def receive() -> Any:
        raise AssertionError("nobody reads the body")

    async def send(message: Any) -> None:
        answer.update(message)

    scope: Any = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    await http(scope, receive, send)
    return answer


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

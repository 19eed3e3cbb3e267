"""Who owns a log in PostgreSQL, over real processes: an owner that was stopped for longer than its
lease wakes up among clients whose requests are there already, and answers none of them from what it
remembers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.postgres import PostgresServer, postgres_url
from tests.support.server import ROOT, Api, Wire, free_port, run

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_MS = 3000
SCHEMAS = itertools.count(1)
WAIT_S = 60.0
OCTETS = {"content-type": "application/octet-stream"}


class Owner:
    """A server process on a schema that it shares with others."""

    def __init__(self, schema: str, *flags: str, url: str = "") -> None:
        self.port = free_port()
        self.api = Api(self.port)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `close`)
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.owner_child"),
                *(url or postgres_url(), schema, str(LEASE_MS), str(self.port), *flags),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=os.environ,
        )

    async def ready(self, reason: str | None = None) -> None:
        """Wait until it says that it is ready; or that it is not, and why."""
        async with asyncio.timeout(WAIT_S):
            while True:
                assert self._child.poll() is None, self.errors
                try:
                    answer = await self.api.get("/readyz")
                except OSError:
                    continue  # it does not listen yet
                if (answer.status, answer.json.get("reason")) == (503 if reason else 200, reason):
                    return

    async def says_after(self, mark: int, text: str) -> None:
        """Wait until its log has this behind what it had."""
        async with asyncio.timeout(WAIT_S):
            while text not in self.errors[mark:]:
                assert self._child.poll() is None, self.errors
                assert (await self.api.get("/readyz")).status == 503

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self) -> int:
        return self._child.wait(WAIT_S)

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def close(self) -> None:
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.kill()
            self._child.wait()
        self._errors.close()


@contextmanager
def owners(*flags: tuple[str, ...], url: str = "") -> Iterator[list[Owner]]:
    schema = f"owner_{os.getpid()}_{next(SCHEMAS)}"
    started: list[Owner] = []
    try:
        for each in flags:
            started.append(Owner(schema, *each, url=url))
            if len(started) == 1:
                run(started[0].ready(), within_s=WAIT_S)
        yield started
    finally:
        for owner in started:
            owner.close()


async def asked(api: Api, method: str, path: str, body: object = None) -> Wire:
    """A request that was sent, and whose answer is still to be read."""
    wire = await Wire.open(api.port)
    raw = json.dumps(body).encode() if body is not None else None
    wire.send(method, path, raw, {"content-type": "application/json"} if raw else None)
    return wire


READS: list[tuple[str, str, object]] = [
    ("POST", "/v0/topics/t/diff", {"from_seq": 0}),
    ("POST", "/v0/topics/t/diff", {"from_seq": 3, "wait_ms": 30_000}),
    ("GET", "/v0/topics/t", None),
    ("HEAD", "/v0/topics/t", None),
    ("GET", "/v0/topics", None),
    ("GET", "/v1/stream/s", None),
    ("HEAD", "/v1/stream/s", None),
    ("GET", "/v1/stream/s?offset=now&live=long-poll", None),
]


def test_an_owner_that_slept_past_its_lease_answers_nothing_and_stands_by_again() -> None:
    async def scenario(first: Owner, second: Owner) -> None:
        api = first.api
        await api.append("t", 1, 2, 3)
        assert (await api.put("/v1/stream/s", headers=OCTETS, raw=b"old")).status == 201
        await second.ready("standing by")
        waiting = await second.api.get("/v1/stream/s")
        assert (waiting.status, waiting.header("retry-after")) == (503, "1")

        # Open before it sleeps; and asked, so that the answers wait for nothing but its waking.
        events = await api.watch("t", "?heartbeat_ms=1000")
        assert await events.seqs(3) == [1, 2, 3]
        await events.named("caught-up")
        stream_events = await asked(api, "GET", "/v1/stream/s?offset=now&live=sse")
        assert (await stream_events.head())[0] == 200
        polled = [await asked(api, *READS[1]), await asked(api, *READS[-1])]
        socket = await connect(f"ws://127.0.0.1:{first.port}/v0/ws", proxy=None).__aenter__()
        await socket.send(json.dumps({"op": "subscribe", "topic": "t", "from_seq": 3}))
        assert json.loads(await socket.recv())["op"] == "subscribed"
        assert json.loads(await socket.recv())["op"] == "caught-up"

        first.send(signal.SIGSTOP)
        wires = [await asked(api, *read) for read in READS]
        write = await asked(api, "POST", "/v0/topics/t", {"records": [{"data": "lost"}]})
        readiness = await asked(api, "GET", "/readyz")
        await socket.send(json.dumps({"op": "subscribe", "topic": "t", "from_seq": 0, "id": 1}))
        await second.ready()
        await second.api.append("t", 4)
        first.send(signal.SIGCONT)

        for (method, path, _), wire in zip(
            [*READS, READS[1], READS[-1]], [*wires, *polled], strict=True
        ):
            answer = await wire.answer(head_only=method == "HEAD")
            assert answer.status == 503, (method, path, answer)
            assert answer.header("retry-after") == "1", (method, path, answer)
            if method != "HEAD":
                assert answer.code in ("fenced", "not_ready", "shutting_down"), (path, answer)
        assert (await write.answer()).status == 503
        assert (await readiness.answer()).status == 503
        # The streams end, and say nothing of records or of having caught up.
        assert {event.name for event in await events.ended()} <= {"error"}
        assert b"event: data" not in await stream_events.ended()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is None or closed.value.rcvd.reason == "fenced"

        # Whoever comes again to the new owner goes on where it was.
        again = await second.api.watch("t", headers={"last-event-id": str(events.last_id)})
        assert await again.seqs(1) == [4]
        await first.ready("standing by")
        for method, path, body in READS:
            answer = await (await asked(api, method, path, body)).answer(head_only=method == "HEAD")
            assert (answer.status, answer.header("retry-after")) == (503, "1"), (path, answer)
            if method != "HEAD":
                assert answer.code == "not_ready", (method, path, answer)
                assert answer.error["detail"] == {"standing_by": True}, (method, path, answer)
        refused = await api.call("POST", "/v0/topics/t", {"records": [{"data": "lost"}]})
        assert (refused.status, refused.code) == (503, "not_ready"), refused
        assert (await api.get("/docs")).status == 200  # it is of no log
        assert (await api.get("/nowhere")).status == 404
        with pytest.raises(InvalidStatus) as handshake:
            await connect(f"ws://127.0.0.1:{first.port}/v0/ws", proxy=None).__aenter__()
        told = handshake.value.response
        assert (told.status_code, told.headers["retry-after"]) == (503, "1")
        assert told.body is not None
        assert json.loads(told.body)["error"]["detail"] == {"standing_by": True}
        # What happened is in its log, and not once for each request.
        assert "standing by again: " in first.errors
        assert "answered 503" not in first.errors

        # And it takes over again, once the other one lets go.
        await again.close()
        second.send(signal.SIGTERM)
        assert second.wait() == 0, second.errors
        await first.ready()
        assert await api.read_all("t") == [1, 2, 3, 4]
        assert (await api.append("t", 5))["first_seq"] == 5

    with owners(("--standby",), ("--standby",)) as (first, second):
        run(scenario(first, second), within_s=4 * WAIT_S)


def test_what_a_woken_owner_has_not_sent_yet_is_not_sent() -> None:
    """Pages and streams of clients that read slowly, begun while the log was its own."""

    async def scenario(first: Owner, second: Owner) -> None:
        for _ in range(2):
            await first.api.append("fat", *["x" * 700_000] * 10)
        page = await Wire.open(first.port, receive_buffer=4096)
        page.send(
            "POST",
            "/v0/topics/fat/diff",
            b'{"max_batch_bytes":8388608,"limit":1000}',
            {"content-type": "application/json"},
        )
        stream = await Wire.open(first.port, receive_buffer=4096)
        stream.send("GET", "/v0/topics/fat/watch")
        size = int(dict((await page.head())[1])["content-length"])
        assert size > 7_000_000
        await stream.head()
        await stream.reader.readexactly(1000)  # more of it waits behind these
        first.send(signal.SIGSTOP)
        await second.ready()
        first.send(signal.SIGCONT)
        await first.ready("standing by")
        for wire, whole in ((page, size), (stream, 700_000)):
            got = b""
            with suppress(ConnectionError):
                while part := await wire.reader.read(1 << 20):
                    got += part
            assert len(got) < whole
            assert not got.endswith(b"\r\n0\r\n\r\n")

    with owners(("--standby",), ("--standby",)) as (first, second):
        run(scenario(first, second), within_s=2 * WAIT_S)


def test_an_owner_that_was_not_asked_to_stand_by_ends_when_it_lost_the_log() -> None:
    async def scenario(first: Owner, second: Owner) -> None:
        await first.api.append("t", 1)
        first.send(signal.SIGSTOP)
        await second.ready()
        first.send(signal.SIGCONT)
        assert first.wait() == 1
        assert "has epoch 2" in first.errors, first.errors

    with owners((), ("--standby",)) as (first, second):
        run(scenario(first, second), within_s=2 * WAIT_S)


def test_a_server_that_stands_by_outlives_restarts_of_its_database() -> None:
    """One that waits for the first time, and one that was taken over from and waits again."""

    async def restarted(database: PostgresServer, *waiting: Owner) -> None:
        marks = [len(owner.errors) for owner in waiting]
        await asyncio.to_thread(database.stop, "immediate")
        for owner, mark in zip(waiting, marks, strict=True):
            await owner.says_after(mark, "standing by: database")
        await asyncio.to_thread(database.start)

    async def scenario(database: PostgresServer, first: Owner, second: Owner) -> None:
        await first.api.append("t", 1)
        await second.ready("standing by")
        await restarted(database, second)
        first.send(signal.SIGSTOP)
        await second.ready()
        await second.api.append("t", 2)
        first.send(signal.SIGCONT)
        await first.ready("standing by")
        await restarted(database, first)
        second.send(signal.SIGKILL)
        await first.ready()
        page = await first.api.post("/v0/topics/t/diff", {"from_seq": 0})
        assert [record["data"] for record in page.json["records"]] == [1, 2]

    with (
        PostgresServer() as database,
        owners(("--standby",), ("--standby",), url=database.url()) as (first, second),
    ):
        run(scenario(database, first, second), within_s=4 * WAIT_S)

"""The WebSocket over a real socket: requests, what is pushed, what is refused, and slow readers."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from socket import SO_SNDBUF, SOL_SOCKET
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairway.runtime.turn import TURN
from fairway.server.fronts.topics import sockets
from fairway.server.http import socket_protocol, websocket
from fairway.server.http.limits import SECOND_NS, HttpLimits
from fairway.server.http.socket_protocol import SocketProtocol
from fairway.wire.sockets import SocketMessage
from tests.support.server import (
    Api,
    Site,
    deaf_socket,
    run,
    serving,
    shared_site,
    text_frame,
    until,
)
from tests.support.sockets import as_written_down

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from websockets.asyncio.client import ClientConnection


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with shared_site(tmp_path_factory.mktemp("data")) as made:
        yield made


MESSAGE = msgspec.json.Decoder(SocketMessage)


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def next(self) -> Any:
        async with asyncio.timeout(10):
            return as_written_down(await self.connection.recv(), MESSAGE)

    async def ask(self, **message: Any) -> Any:
        """Send a request and return the next message, which must be its answer."""
        await self.send(**message)
        answer = await self.next()
        assert answer.get("id") == message.get("id"), answer
        return answer


@asynccontextmanager
async def opened(api: Api, path: str = "/v0/ws", **options: Any) -> AsyncIterator[Socket]:
    async with connect(f"ws://127.0.0.1:{api.port}{path}", proxy=None, **options) as connection:
        yield Socket(connection)


def test_subscribe_publish_unsubscribe_and_ping(site: Site) -> None:
    async def scenario(api: Api) -> None:
        epoch = (await api.append("ws.a", 1))["epoch"]
        async with opened(api) as socket:
            assert await socket.ask(op="ping", id=7) == {"op": "pong", "id": 7}
            assert await socket.ask(op="ping") == {"op": "pong"}
            assert await socket.ask(op="subscribe", topic="ws.a", id="s") == {
                "op": "subscribed",
                "id": "s",
                "topic": "ws.a",
                "epoch": epoch,
                "head_seq": 1,
                "earliest_seq": 1,
            }
            record = await socket.next()
            del record["records"][0]["$ts"]
            assert record == {
                "op": "record",
                "topic": "ws.a",
                "epoch": epoch,
                "records": [{"$seq": 1, "data": 1}],
                "from_seq": 0,
                "to_seq": 1,
                "head_seq": 1,
            }
            caught_up = {"op": "caught-up", "topic": "ws.a", "epoch": epoch, "head_seq": 1}
            assert await socket.next() == caught_up
            await socket.send(
                op="publish", topic="ws.a", records=[{"data": 2}], idempotency_key="k", id=1
            )
            got = [await socket.next(), await socket.next()]
            answers = {message["op"]: message for message in got}
            assert answers["published"] == {
                "op": "published",
                "id": 1,
                "topic": "ws.a",
                "epoch": epoch,
                "first_seq": 2,
                "last_seq": 2,
                "created": False,
                "deduped": False,
            }
            assert answers["record"]["records"][0]["$seq"] == 2
            again = await socket.ask(
                op="publish", topic="ws.a", records=[{"data": 2}], idempotency_key="k"
            )
            assert (again["deduped"], again["first_seq"]) == (True, 2)
            assert (await socket.ask(op="unsubscribe", topic="ws.a"))["op"] == "unsubscribed"
            await api.append("ws.a", 3)
            assert await socket.ask(op="ping", id=9) == {"op": "pong", "id": 9}, "nothing came"
        topic = site.served.app.topics.get("ws.a")
        await until(lambda: topic.active is None or not topic.active.subscribers)

    site.run(scenario(site.api))


def test_errors_leave_the_socket_open_and_change_nothing(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("ws.e", 1)
        await api.put("/v0/topics/ws.full", {"cap_records": 1, "discard": "reject"})
        wrong: list[tuple[Any, int, str]] = [
            ("{", 400, "invalid_request"),
            ("[]", 400, "invalid_request"),
            (b"\xff", 400, "invalid_request"),
            ({"op": "nonsense"}, 400, "invalid_request"),
            ({"op": "subscribe"}, 400, "invalid_request"),
            ({"op": "subscribe", "topic": "ws.none"}, 404, "topic_not_found"),
            ({"op": "subscribe", "topic": "-"}, 400, "invalid_request"),
            ({"op": "subscribe", "topic": "ws.e", "from_seq": -1}, 400, "invalid_request"),
            ({"op": "subscribe", "topic": "ws.e", "nope": 1}, 400, "invalid_request"),
            ({"op": "publish", "topic": "ws.e", "records": []}, 400, "invalid_request"),
            ({"op": "publish", "topic": "ws.e", "records": [{}]}, 400, "invalid_request"),
            (
                {"op": "publish", "topic": "ws.new", "records": [{"data": 1}], "create": False},
                404,
                "topic_not_found",
            ),
            (
                {"op": "publish", "topic": "ws.e", "records": [{"data": 1}], "node": "n" * 129},
                400,
                "record_too_large",
            ),
            (
                {"op": "publish", "topic": "ws.e", "records": [{"data": 1}], "idempotency_key": ""},
                400,
                "invalid_request",
            ),
            (
                {"op": "publish", "topic": "ws.full", "records": [{"data": 1}, {"data": 2}]},
                422,
                "topic_full",
            ),
        ]
        async with opened(api) as socket:
            for message, status, code in wrong:
                raw = message if isinstance(message, str | bytes) else json.dumps(message)
                await socket.connection.send(raw)
                error = await socket.next()
                assert error.keys() == {"op", "status", "code", "message"}, error
                assert (error["op"], error["status"], error["code"]) == ("error", status, code)
            assert (await socket.ask(op="ping"))["op"] == "pong"
            assert (await socket.ask(op="subscribe", topic="ws.e", tail=True))["op"] == "subscribed"
            assert (await socket.next())["op"] == "caught-up"
            twice = await socket.ask(op="subscribe", topic="ws.e")
            assert (twice["op"], twice["code"]) == ("error", "invalid_request")
        assert (await api.state("ws.e"))["head_seq"] == 1
        assert (await api.get("/v0/topics/ws.new")).status == 404

    site.run(scenario(site.api))


def test_a_deleted_topic_is_told_and_can_be_subscribed_to_again(site: Site) -> None:
    async def scenario(api: Api) -> None:
        old = (await api.append("ws.d", 1, 2))["epoch"]
        async with opened(api) as socket:
            await socket.ask(op="subscribe", topic="ws.d", tail=True)
            assert (await socket.next())["op"] == "caught-up"
            await api.delete("/v0/topics/ws.d")
            told = await socket.next()
            facts = {"topic": "ws.d", "epoch": old, "head_seq": 2, "reason": "deleted"}
            assert told == {"op": "topic-deleted", **facts}
            await api.append("ws.d", 1)
            again = await socket.ask(op="subscribe", topic="ws.d", from_seq=2, epoch=old)
            assert again["op"] == "subscribed"
            tombstone = await socket.next()
            assert (tombstone["op"], tombstone["reason"]) == ("tombstone", "recreated")
            assert (await socket.next())["records"][0]["$seq"] == 1

    site.run(scenario(site.api))


def test_subscriptions_filter(site: Site) -> None:
    async def scenario(api: Api) -> None:
        records = [{"data": n, "tag": f"t{n % 2}", "node": f"n{n}"} for n in range(4)]
        await api.post("/v0/topics/ws.f", {"records": records})
        async with opened(api) as socket:
            message = {"topic": "ws.f", "match": "t1", "node": "n3", "include_tags": True}
            await socket.ask(op="subscribe", **message)
            [record] = (await socket.next())["records"]
            assert (record["$seq"], record["$tag"]) == (2, "t1")
            assert (await socket.next())["head_seq"] == 4

    site.run(scenario(site.api))


def test_a_socket_that_does_not_read_falls_behind_and_catches_up_with_every_seq(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.append("ws.slow", 0)
        async with opened(api, max_queue=1) as socket:
            await socket.ask(op="subscribe", topic="ws.slow")
            topic = site.served.app.topics.get("ws.slow")
            [group] = topic.active.subscribers.by_view.values()  # type: ignore[union-attr]
            count = 1
            while not group[0].stalled:
                await api.append("ws.slow", *["x" * 50_000] * 20)
                count += 20
            seen: list[int] = []
            while len(seen) < count:
                message = await socket.next()
                if message["op"] == "record":
                    seen += [record["$seq"] for record in message["records"]]
            assert seen == list(range(1, count + 1))

    site.run(scenario(site.api))


def never(self: SocketProtocol) -> bool:
    """It is the queue of answers that fills, not what is written and unsent: whichever comes first
    stops the reading, and that depends on how many frames a read happens to hold."""
    return False


def test_who_asks_without_reading_answers_is_not_read_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that nobody fetches are bounded like everything else that is buffered."""
    monkeypatch.setattr(SocketProtocol, "_is_stalled", never)
    held: list[sockets.TopicSocket] = []

    class Held(sockets.TopicSocket):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            held.append(self)

    monkeypatch.setattr(sockets, "TopicSocket", Held)

    async def scenario(api: Api) -> None:
        wire = await deaf_socket(api.port, "/v0/ws")
        frame = text_frame(op="ping", id="i" * 30_000)
        for _ in range(1000):
            wire.writer.write(frame)
        await until(lambda: held[0].queued_bytes > websocket.QUEUE_BYTES)
        for _ in range(200):
            await asyncio.sleep(0)
            assert held[0].queued_bytes <= websocket.QUEUE_BYTES + 2 * len(frame)
        wire.abort()

    site.run(scenario(site.api))


def test_who_leaves_without_having_read_leaves_nothing_behind(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SocketProtocol, "_is_stalled", never)

    async def scenario(api: Api) -> None:
        host = site.served.server.host
        assert host is not None
        await api.append("ws.left", 1)
        topic = site.served.app.topics.get("ws.left")
        before = len(host.guests)
        wire = await deaf_socket(api.port, "/v0/ws")
        wire.writer.write(text_frame(op="subscribe", topic="ws.left"))
        for _ in range(1000):
            wire.writer.write(text_frame(op="ping", id="i" * 30_000))
        await until(lambda: len(host.guests) > before)
        socket = host.guests[-1].end.__self__  # type: ignore[attr-defined]
        # It was set when the first answers went out: the reading side waits for room.
        full = websocket.QUEUE_BYTES
        await until(lambda: socket.queued_bytes > full and not socket._room.is_set())
        wire.abort()
        await until(lambda: len(host.guests) == before)
        assert topic.active is None or not topic.active.subscribers

    site.run(scenario(site.api))


def test_a_handshake_that_is_refused_is_answered_like_any_request(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(api: Api) -> None:
        refused: list[tuple[str, dict[str, Any], int, str]] = [
            ("/v0/wss", {}, 404, "socket_not_found"),
            ("/v0/ws?x=1", {}, 400, "invalid_request"),
            ("/v0/ws", {"origin": "https://evil.example"}, 403, "forbidden"),
            ("/v0/ws", {"additional_headers": {"Origin": "null"}}, 403, "forbidden"),
            ("/v0/ws?ticket=none", {}, 401, "unauthorized"),
        ]
        for path, options, status, code in refused:
            with pytest.raises(InvalidStatus) as caught:
                async with opened(api, path, **options):
                    pass
            response = caught.value.response
            assert response.status_code == status, path
            assert json.loads(response.body or b"")["error"]["code"] == code

    site.run(scenario(site.api))
    faults = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert faults == [], "a client's mistake is no fault of the server"


UPGRADE = {"upgrade": "websocket", "connection": "Upgrade"}
KEY = {"sec-websocket-key": "eA" * 11 + "=="}
VERSION = {"sec-websocket-version": "13"}


def test_what_asks_for_a_socket_wrongly_is_told_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[tuple[str, dict[str, str], int, str]] = [
        ("GET", {}, 426, "upgrade_required"),
        ("GET", {"upgrade": "h2c", "connection": "Upgrade"}, 426, "upgrade_required"),
        ("GET", {**KEY, **VERSION}, 426, "upgrade_required"),
        ("GET", UPGRADE, 400, "invalid_request"),
        ("GET", {**UPGRADE, **VERSION}, 400, "invalid_request"),
        ("GET", {**UPGRADE, **KEY}, 400, "invalid_request"),
        ("GET", {**UPGRADE, **KEY, "sec-websocket-version": "12"}, 400, "invalid_request"),
        ("GET", {**UPGRADE, **VERSION, "sec-websocket-key": "short"}, 400, "invalid_request"),
        ("POST", {}, 405, "method_not_allowed"),
        ("POST", {**UPGRADE, **KEY, **VERSION}, 405, "method_not_allowed"),
    ]

    async def scenario(api: Api) -> None:
        for method, headers, status, code in wrong:
            answer = await api.call(method, "/v0/ws", headers=headers)
            assert (answer.status, answer.code) == (status, code), (method, headers)
            if status == 426:
                assert answer.header("upgrade") == "websocket"
        assert (await api.call("HEAD", "/v0/ws")).status == 426

    site.run(scenario(site.api))
    faults = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert faults == [], "a client's mistake is no fault of the server"


def test_the_traceparent_of_a_socket_or_of_a_message_is_stored(site: Site) -> None:
    async def scenario(api: Api) -> None:
        own, other = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-01"
        publish = {"op": "publish", "topic": "ws.trace", "records": [{"data": 1}]}
        async with opened(api, additional_headers={"traceparent": own}) as socket:
            await socket.ask(**publish)
            await socket.ask(**publish, traceparent=other)
        async with opened(api) as socket:
            await socket.ask(**publish)
            for wrong in ("", "x" * 257, 1):
                refused = await socket.ask(**publish, traceparent=wrong)
                assert (refused["op"], refused["code"]) == ("error", "invalid_request")
        records = (await api.diff("ws.trace"))["records"]
        assert [one.get("$traceparent") for one in records] == [own, other, None]

    site.run(scenario(site.api))


def test_a_ticket_opens_one_socket_and_reaches_no_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # By its name, too: `fairway serve` silences it for the whole process.
    caplog.set_level(logging.DEBUG, logger="uvicorn.error")

    async def scenario(api: Api) -> None:
        issued = await api.post("/v0/tickets", {"path": "/v0/ws"})
        assert issued.status == 201
        assert 0 < issued.json["expires_in_ms"] <= 60_000
        ticket = issued.json["ticket"]
        async with opened(api, f"/v0/ws?ticket={ticket}") as socket:
            assert (await socket.ask(op="ping"))["op"] == "pong"
        with pytest.raises(InvalidStatus) as caught:
            async with opened(api, f"/v0/ws?ticket={ticket}"):
                pass
        assert caught.value.response.status_code == 401
        server = [one.getMessage() for one in caplog.records if one.name != "websockets.client"]
        assert any("WebSocket" in line for line in server), "it logs something"
        assert [line for line in server if ticket in line] == []

    site.run(scenario(site.api))


def test_sockets_close_when_the_server_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served, opened(served.api) as socket:
            await socket.ask(op="ping")
            served.stop.press()
            with pytest.raises(ConnectionClosed) as caught:
                await socket.next()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1012

    run(scenario())


# --- sockets that send as fast as they can


def ping_frame(size: int = 125) -> bytes:
    return b"\x89" + bytes([0x80 | size]) + bytes(4 + size)


@pytest.mark.parametrize(
    "flood",
    [ping_frame() * 20_000, ping_frame(0) * 60_000, text_frame(op="ping", id="i" * 90) * 20_000],
    ids=["pings", "empty_pings", "messages"],
)
def test_who_sends_without_end_and_reads_nothing_is_held_to_the_bound_then_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flood: bytes
) -> None:
    made: list[Counted] = []

    class Counted(socket_protocol.SocketProtocol):
        """Counts the frames that it is given."""

        handled = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # The system would hold megabytes for a client on the same machine.
            held = transport.get_extra_info("socket")
            held.setsockopt(SOL_SOCKET, SO_SNDBUF, 4096)

        def handle_ping(self) -> None:
            self.handled += 1
            super().handle_ping()

        def handle_text(self, event: Any) -> None:
            self.handled += 1
            super().handle_text(event)

    monkeypatch.setattr("fairway.server.serving.SocketProtocol", Counted)

    async def scenario() -> None:
        limits = HttpLimits(stall_ns=SECOND_NS // 2)
        async with serving(tmp_path, limits=limits) as served:
            wire = await deaf_socket(served.api.port, "/v0/ws")
            (socket,) = made
            most = largest = before = 0
            wire.writer.write(flood)
            answered = asyncio.ensure_future(served.api.get("/healthz"))
            while not socket.disconnected:
                await asyncio.sleep(0)
                most = max(most, socket.transport.get_write_buffer_size())
                largest = max(largest, socket.handled - before)
                before = socket.handled
            assert (await answered).status == 200
            assert largest <= 2 * TURN.frames_per_turn
            assert 32 * 1024 < most <= websocket.BUFFER_BYTES
            wire.abort()

    run(scenario())


def test_whoever_reads_gets_an_answer_to_each_of_many(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async with opened(api) as socket:
            waiters = [await socket.connection.ping(b"%d" % number) for number in range(2000)]
            for waiter in waiters:
                await waiter
            for number in range(2000):
                await socket.send(op="ping", id=number)
            assert [(await socket.next())["id"] for _ in range(2000)] == list(range(2000))
            large = "x" * 900_000
            answer = await socket.ask(op="publish", topic="ws.large", records=[{"data": large}])
            assert answer["op"] == "published"

    site.run(scenario(site.api))

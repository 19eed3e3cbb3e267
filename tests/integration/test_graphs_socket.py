"""The sockets of graphs over real sockets: pushes with acks, commands, refusals, and the end."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairway.server.fronts.graphs import sockets
from fairway.server.http.websocket import QUEUE_BYTES
from fairway.settings import parse_api_keys
from fairway.wire.graphs import CommandAnswer, PushAnswer
from tests.support.graphs_served import Gate, desk
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

QUOTE = {"bid": 1.0, "ask": 3.0}
KEYS = "reader:read,writer:write,ruler:admin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("data")
    with shared_site(place, app=desk(place)) as made:
        yield made


ANSWER = msgspec.json.Decoder(PushAnswer | CommandAnswer)


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **message: Any) -> None:
        await self.connection.send(json.dumps(message))

    async def next(self) -> Any:
        async with asyncio.timeout(10):
            return as_written_down(await self.connection.recv(), ANSWER)

    async def ended(self) -> None:
        """Read on until the other side closes, which raises."""
        while True:
            await self.next()

    async def ask(self, **message: Any) -> Any:
        await self.send(**message)
        answer = await self.next()
        assert answer.get("id") == message.get("id"), answer
        return answer


@asynccontextmanager
async def opened(
    api: Api, graph: str, rest: str, *, key: str | None = None
) -> AsyncIterator[Socket]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"ws://127.0.0.1:{api.port}/v0/graphs/{graph}/{rest}"
    async with connect(url, proxy=None, additional_headers=headers) as connection:
        yield Socket(connection)


async def seen(api: Api, graph: str) -> list[Any]:
    found = (await api.get(f"/v0/graphs/{graph}/firings")).json["firings"]
    return [one["outputs"] for one in found]


# Pushes


def test_a_push_is_acknowledged_and_has_fired(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async with opened(api, "pricing", "accumulators/quotes") as socket:
            assert await socket.ask(data=QUOTE, id=1) == {"op": "ack", "id": 1}
            assert await socket.ask(data=QUOTE) == {"op": "ack"}
            await socket.connection.send(json.dumps({"data": QUOTE, "id": "b"}).encode())
            assert await socket.next() == {"op": "ack", "id": "b"}
            assert await seen(api, "pricing") == [{"signal": 2.0}] * 3

    site.run(scenario(site.api))


def test_many_pushes_at_once_keep_their_order_and_are_all_answered(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async with opened(api, "kept", "accumulators/quotes") as socket:
            window = sockets.WINDOW
            for number in range(window):
                await socket.send(data={"bid": 0, "ask": number}, id=number)
            acks = [await socket.next() for _ in range(window)]
            assert acks == [{"op": "ack", "id": number} for number in range(window)]
            assert (await seen(api, "kept"))[0] == {"spread": window - 1}
            instance = site.served.app.graphs.get("kept").running()
            assert instance.journal is not None
            assert not instance.journal.pending

    site.run(scenario(site.api))


def test_what_is_wrong_is_told_and_leaves_the_socket_open(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async with opened(api, "both", "accumulators/left") as socket:
            for raw, said in (
                ("{", "truncated"),
                (b"\xff", ""),
                ("[]", "object"),
                ('{"data": "x", "id": 3}', "Expected `int`"),
                ('{"date": 1, "id": 3}', "unknown field"),
                ('{"id": 3}', "missing required field"),
            ):
                await socket.connection.send(raw)
                answer = await socket.next()
                assert (answer["op"], answer["code"]) == ("error", "invalid_request"), raw
                assert said in answer["message"], answer
                assert answer.get("id") == (3 if '"id"' in str(raw) else None)
            assert await socket.ask(data=1, id=4) == {"op": "ack", "id": 4}
            source = (await api.get("/v0/graphs/both/state")).json["sources"][0]
            assert source["events"] == 1, "what was wrong changed nothing"

    site.run(scenario(site.api))


def test_a_full_source_refuses_with_a_time_and_drops_nothing(site: Site) -> None:
    """Defect 11: upstream dropped what did not fit, and said nothing."""

    async def scenario(api: Api) -> None:
        await api.post("/v0/graphs/orders/pause")
        async with opened(api, "orders", "accumulators/orders") as socket:
            for number in range(6):
                await socket.send(data={"id": number}, id=number)
            answers = [await socket.next() for _ in range(6)]
            assert [(one["op"], one["id"]) for one in answers] == [
                *(("ack", number) for number in range(4)),
                *(("refused", number) for number in (4, 5)),
            ]
            assert answers[-1]["retry_after_ms"] >= 1
            assert answers[-1]["code"] == "throttled"
            await api.post("/v0/graphs/orders/resume")
            assert (await socket.ask(data={"id": 4}))["op"] == "ack"
        assert await seen(api, "orders") == [{"done": number} for number in (4, 3, 2, 1, 0)]

    site.run(scenario(site.api))


def test_a_full_socket_refuses_with_a_time_and_answers_each_message(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.post("/v0/graphs/waiting/pause")
        instance = site.served.app.graphs.get("waiting").running()
        async with opened(api, "waiting", "accumulators/orders") as socket:
            count = sockets.WINDOW + 10
            for number in range(count):
                await socket.send(data={"id": number}, id=number)
            acks = [await socket.next() for _ in range(2)]  # as many as there is room for
            assert [(one["op"], one["id"]) for one in acks] == [("ack", 0), ("ack", 1)]
            await until(lambda: instance.reactor._room_broadcasts.get("orders"))
            early = []
            while len(early) < 8 or early[-1]["id"] != count - 1:
                early.append(await socket.next())
            assert {one["op"] for one in early} == {"refused"}
            assert all(one["retry_after_ms"] >= 1 for one in early)
            await api.post("/v0/graphs/waiting/resume")
            rest = [await socket.next() for _ in range(count - 2 - len(early))]
            assert {one["op"] for one in rest} == {"ack"}
            answered = sorted(one["id"] for one in (*acks, *early, *rest))
            assert answered == list(range(count)), "each once"
            accepted = [one["id"] for one in (*acks, *rest)]
            assert accepted == sorted(accepted), "in order"
            fired = site.served.app.graphs.get("waiting").running().reactor.fired
            assert fired == len(accepted)

    site.run(scenario(site.api))


def test_a_socket_outlives_a_restart_of_its_graph(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async with opened(api, "fragile", "accumulators/quotes") as socket:
            assert (await socket.ask(data=QUOTE))["op"] == "ack"
            assert (await api.post("/v0/graphs/fragile/restart")).status == 200
            assert (await socket.ask(data=QUOTE))["op"] == "ack"
            assert await seen(api, "fragile") == [{"checked": 1.0}]

    site.run(scenario(site.api))


# Commands


def test_commands_tell_the_true_outcome(site: Site) -> None:
    """Defect 2: `fired` with a number when it has, and an error when it has not."""

    async def scenario(api: Api) -> None:
        async with opened(api, "shared", "reactor?tenant=globex") as socket:
            fired = await socket.ask(command="force_fire", id=1)
            assert (fired["op"], fired["firing"], fired["outputs"]) == ("fired", 1, {})
            fired = await socket.ask(command="fire_with", cache={"quotes": QUOTE}, id=2)
            assert (fired["firing"], fired["cause"]) == (2, "injected")
            assert fired["outputs"] == {"spread": 2.0}
            paused = await socket.ask(command="pause", id=3)
            assert (paused["op"], paused["paused"], paused["firing"]) == ("paused", True, 2)
            pushed = "/v0/graphs/shared/accumulators/quotes?tenant=globex"
            assert (await api.post(pushed, {"data": {"bid": 1, "ask": 9}})).status == 200
            state = await socket.ask(command="get_state", id=4)
            assert (state["op"], state["state"], state["paused"]) == ("state", "live", True)
            assert (state["firing"], state["dirty"]) == (2, {"quotes": True})
            resumed = await socket.ask(command="resume", id=5)
            assert (resumed["op"], resumed["firing"]) == ("resumed", 3), "it looks again"
            bad = (400, "invalid_request")
            for wrong, told, said in (
                ({"command": "explode"}, bad, "explode"),
                ({"command": "fire_with"}, bad, "`cache` goes with fire_with"),
                ({"command": "pause", "cache": {}}, bad, "`cache` goes with fire_with"),
                (
                    {"command": "fire_with", "cache": {"x": 1}},
                    (404, "source_not_found"),
                    "no source 'x'",
                ),
                ({"command": "fire_with", "cache": {"quotes": 1}}, bad, "cache.quotes: "),
            ):
                answer = await socket.ask(**wrong, id=9)
                assert (answer["op"], answer["status"], answer["code"]) == ("error", *told), answer
                assert said in answer["message"]
            assert (await socket.ask(command="get_state"))["firing"] == 3
        path = "/v0/graphs/shared/state?tenant=acme"
        assert (await api.get(path)).json["firing"] == 0, "of the other tenant nothing changed"

    site.run(scenario(site.api))


def test_a_firing_that_fails_is_an_error_with_its_number(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async with opened(api, "fragile", "reactor") as socket:
            bad = {"quotes": {"bid": -1, "ask": 0}}
            before = (await socket.ask(command="get_state"))["firing"]
            answer = await socket.ask(command="fire_with", cache=bad)
            assert (answer["op"], answer["code"]) == ("error", "firing_failed")
            assert answer["detail"]["firing"] == before + 1
            assert (await socket.ask(command="get_state"))["firing"] == before

    site.run(scenario(site.api))


def test_a_denied_operation_leaves_the_socket_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = parse_api_keys(KEYS)
        async with serving(tmp_path, app=desk(tmp_path), api_keys=keys) as served:
            api = served.api
            async with opened(api, "pricing", "reactor", key="writer") as socket:
                for command in ("pause", "resume", "get_state"):
                    denied = await socket.ask(command=command, id=command)
                    assert (denied["op"], denied["code"]) == ("error", "forbidden")
                assert (await socket.ask(command="force_fire"))["op"] == "fired"
            async with opened(api, "pricing", "reactor", key="reader") as socket:
                assert (await socket.ask(command="force_fire"))["code"] == "forbidden"
                assert (await socket.ask(command="get_state"))["firing"] == 1
            async with opened(api, "pricing", "accumulators/quotes", key="reader") as socket:
                assert (await socket.ask(data=QUOTE))["code"] == "forbidden"
                assert (await socket.ask(data=QUOTE))["code"] == "forbidden"
            ruler = api.using("ruler")
            entries = (await ruler.get("/v0/graphs/pricing/audit")).json["entries"]
            assert [(one["who"], one["command"], one["outcome"]) for one in entries] == [
                ("env-1", "force_fire", "forbidden"),
                ("env-2", "force_fire", "done"),
                ("env-2", "get_state", "forbidden"),
                ("env-2", "resume", "forbidden"),
                ("env-2", "pause", "forbidden"),
            ]

    run(scenario())


def test_a_quota_that_comes_by_reload_holds_for_sockets_that_are_open(tmp_path: Path) -> None:
    key = '[[key]]\nname = "key"\nsecret = "secret"\nscopes = ["admin"]\n[key.quota]\n'

    async def scenario() -> None:
        keys = tmp_path / "keys.toml"
        keys.write_text(key)
        async with serving(tmp_path, app=desk(tmp_path), keys_file=keys) as served:
            context = served.server.context
            assert context is not None
            async with opened(served.api, "pricing", "accumulators/quotes", key="secret") as socket:
                large = {"data": QUOTE, "id": "x" * 1000}
                assert [(await socket.ask(**large))["op"] for _ in range(3)] == ["ack"] * 3
                keys.write_text(f"{key}bytes_per_second = 1")
                [open_stream] = context.open_streams
                confirm = context.access.confirm
                await until(lambda: confirm(open_stream.identity, 0).quota.bytes_per_s)
                assert (await socket.ask(**large))["op"] == "ack", "it leaves a debt"
                refused = await socket.ask(**large)
                assert (refused["op"], refused["detail"]["limit"]) == (
                    "refused",
                    "bytes_per_second",
                )

    run(scenario())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("none/reactor", 404),
        ("pricing/accumulators/none", 404),
        ("shared/reactor", 409),
        ("pricing/reactor?tenant=acme", 404),
        ("pricing/nothing", 404),
        ("pricing/reactor?nope=1", 400),
    ],
)
def test_a_socket_of_nothing_is_refused_at_the_door(site: Site, path: str, status: int) -> None:
    async def scenario(api: Api) -> None:
        graph, _, rest = path.partition("/")
        with pytest.raises(InvalidStatus) as refused:
            async with opened(api, graph, rest):
                pass
        assert refused.value.response.status_code == status

    site.run(scenario(site.api))


# The end


def test_sockets_end_with_the_server_also_when_something_is_under_way(tmp_path: Path) -> None:
    gate = Gate()

    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path, gate)) as served:
            api = served.api
            await api.post("/v0/graphs/waiting/pause")
            full = {"events": [{"id": 1}, {"id": 2}]}
            await api.post("/v0/graphs/waiting/accumulators/orders", full)
            instance = served.app.graphs.get("waiting").running()
            async with (
                opened(api, "slow", "reactor") as fires,
                opened(api, "waiting", "accumulators/orders") as pushes,
                opened(api, "pricing", "reactor") as idle,
            ):
                await fires.send(command="fire_with", cache={"orders": {"id": 1}})
                await pushes.send(data={"id": 3})
                await gate.entered.wait()
                await until(lambda: instance.reactor._room_broadcasts.get("orders"))
                served.stop.request_stop()
                for socket in (fires, pushes, idle):
                    with pytest.raises(ConnectionClosed):
                        await socket.ended()
            gate.open.set()

    run(scenario())


def test_a_client_that_leaves_leaves_nothing_behind(site: Site) -> None:
    async def scenario(api: Api) -> None:
        context = site.served.server.context
        assert context is not None
        before = len(context.open_streams)
        async with opened(api, "pricing", "reactor"), opened(api, "both", "accumulators/left"):
            assert len(context.open_streams) == before + 2
        await until(lambda: len(context.open_streams) == before)

    site.run(scenario(site.api))


@pytest.mark.parametrize("place", ["reactor", "accumulators/quotes"])
def test_a_client_that_leaves_without_having_read_leaves_nothing_behind(
    site: Site, place: str
) -> None:
    async def scenario(api: Api) -> None:
        context = site.served.server.context
        assert context is not None
        before = len(context.open_streams)
        gone = asyncio.Event()

        async def send(message: object) -> None:
            """As when the client reads nothing, and then leaves."""
            await gone.wait()
            raise OSError("the client is gone")

        wire = await deaf_socket(api.port, f"/v0/graphs/pricing/{place}")
        await until(lambda: len(context.open_streams) > before)
        socket = context.open_streams[-1].end.__self__  # type: ignore[attr-defined]
        socket._send = send
        for _ in range(200):
            wire.writer.write(text_frame(id="i" * 30_000))
        await until(lambda: socket.queued_bytes > QUEUE_BYTES)
        wire.abort()
        gone.set()
        await until(lambda: len(context.open_streams) == before)

    site.run(scenario(site.api))

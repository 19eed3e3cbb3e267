"""A front that is added to the list is served: routes, sockets, turns, state, document and end."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from fairway.errors import InvalidConfig, NotFound
from fairway.kernel.part import PartHealth
from fairway.server.front import FairKeyRule, Front, Fronts
from fairway.server.fronts import FRONTS
from fairway.server.http.exchange import Reply, json_reply
from fairway.server.http.router import QueryParameter, Route
from fairway.topics.engine import Topics
from tests.support.server import run, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairway.app import Fairway
    from fairway.server.context import ServerContext
    from fairway.server.front import Shown

THING = {"type": "integer", "minimum": 1}


class Toys:
    """A part."""

    name = "toys"

    def __init__(self) -> None:
        self.admitting = True

    def health(self) -> PartHealth:
        return PartHealth("failed", "broken", ready=False)


class Shelf:
    """What its front keeps for one server."""

    def __init__(self) -> None:
        self.happened: list[str] = []


async def get_thing(context: ServerContext, request: Any, a: str, b: str) -> Reply:
    request.identity.require("read")
    if b == "0":
        raise NotFound("thing", b)
    context.charge(request.identity, records=1, size=1)
    return json_reply({"a": a, "b": b, "happened": context.state(Shelf).happened})


async def serve_echo(
    context: ServerContext, request: Any, receive: Any, send: Any, name: str
) -> None:
    await send({"type": "websocket.accept"})
    loud = request.parameters.get("loud", name)
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": f"{loud}: {message['text']}"})


class ToyFront(Front):
    name = "toy"
    fair_key_rules = (FairKeyRule("/v0/toy/", lambda path: path.split("/")[3]),)
    routes = (
        Route(
            "GET",
            "/v0/toy/{a}/things/{b}",
            get_thing,
            "One thing of a toy",
            arguments={"b": THING},
            statuses={404: "there is no such thing"},
        ),
    )
    sockets = (
        Route(
            "GET",
            "/v0/toy/{name}/echo/socket",
            serve_echo,
            "Says it again",
            query=(QueryParameter("loud", "string", "says so instead"),),
        ),
    )

    def __init__(self) -> None:
        self.toys = Toys()

    def parts(self, app: Fairway) -> Sequence[Shown]:
        return (self.toys,)

    def start(self, context: ServerContext) -> None:
        assert context.part(Toys) is self.toys
        context.keep(Shelf()).happened.append("start")
        context.telemetry.gauge("fairway_toys", "Toys", lambda: 3)

    async def prepare(self, context: ServerContext) -> None:
        context.state(Shelf).happened.append("prepare")

    async def run(self, context: ServerContext) -> None:
        context.state(Shelf).happened.append("run")

    def stop_admitting(self, context: ServerContext) -> None:
        context.part(Toys).admitting = False


def test_a_front_that_is_added_is_served(tmp_path: Any) -> None:
    async def scenario() -> None:
        toy = ToyFront()
        async with serving(tmp_path, fronts=Fronts([*FRONTS, toy])) as served:
            api = served.api
            await asyncio.sleep(0)
            answer = await api.get("/v0/toy/bear/things/7")
            assert answer.json == {"a": "bear", "b": "7", "happened": ["start", "prepare", "run"]}
            assert (await api.get("/v0/toy/bear/things/0")).code == "thing_not_found"
            assert (await api.post("/v0/toy/bear/things/7")).status == 405
            assert (await api.append("t", 1))["last_seq"] == 1, "beside all others"
            assert b"\nfairway_toys 3" in (await api.get("/metrics")).body
            paths = (await api.get("/openapi.json")).json["paths"]
            operation = paths["/v0/toy/{a}/things/{b}"]["get"]
            schemas = {one["name"]: one["schema"] for one in operation["parameters"]}
            assert schemas["b"] == THING
            assert schemas["a"]["type"] == "string"
            assert operation["responses"]["404"]["description"] == "there is no such thing"
            url = f"ws://127.0.0.1:{api.port}/v0/toy/bear/echo/socket"
            for query, says in (("", "bear"), ("?loud=BEAR", "BEAR")):
                async with connect(url + query, proxy=None) as socket:
                    await socket.send("hello")
                    assert await socket.recv() == f"{says}: hello"
            ready = await api.get("/readyz")
            assert (ready.status, ready.json["reason"]) == (503, "broken")
            broken = {"state": "failed", "ready": False, "reason": "broken"}
            assert ready.json["parts"]["toys"] == broken
            assert toy.toys.admitting
        assert not toy.toys.admitting

    run(scenario())


def test_requests_to_a_front_wait_in_the_line_that_it_names(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, fronts=Fronts([*FRONTS, ToyFront()])) as served:
            context = served.server.context
            assert context is not None
            lines: list[tuple[str, bool]] = []

            def waits(key: str, begin: Any, peer: Any = None, probes: bool = False) -> None:
                lines.append((key, probes))

            monkeypatch.setattr(context.gate, "wait", waits)
            begun: list[str] = []
            for path in (
                *("/v0/topics/orders", "/v0/topics/orders/diff", "/v0/topics"),
                *("/v0/jobs/7", "/v0/jobs/by-key/a/b/signal", "/v0/jobs"),
                *("/v0/graphs/g/state", "/v0/graphs/g", "/v0/graphs"),
                *("/v0/toy/bear/things/1", "/v0/routers/r", "/metrics", "/healthz", "/readyz"),
            ):
                context.wait_turn(context.fair_key_of(path), lambda path=path: begun.append(path))
            assert [key for key, _ in lines] == [
                *("orders", "orders", "/v0/topics"),
                *("/v0/jobs/", "/v0/jobs/", "/v0/jobs"),
                *("/v0/graphs/g", "/v0/graphs/g", "/v0/graphs"),
                *("bear", "/v0/routers/r", "/metrics"),
            ]
            assert [key for key, probes in lines if probes] == ["/metrics"]
            assert begun == ["/healthz", "/readyz"]

    run(scenario())


def front_with(name: str = "other", **has: Any) -> Front:
    """A front that has this, and nothing else."""
    return type("OtherFront", (Front,), {"name": name, **has})()


def route_at(path: str, method: str = "GET") -> Route:
    return Route(method, path, get_thing, "A thing")


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ([ToyFront(), front_with("toy")], "ToyFront and OtherFront are two fronts of one name"),
        ([ToyFront(), front_with(routes=(route_at("/v0/toy/{x}/things/{y}"),))], "/v0/toy"),
        (
            [ToyFront(), front_with(sockets=(route_at("/v0/toy/{x}/echo/socket"),))],
            "/v0/toy/{name}/echo/socket are one path",
        ),
        ([front_with(routes=(route_at("/openapi.json"),))], "/openapi.json are one path"),
        ([front_with(mount="/v1/stream/")], "'streams' and 'other' are both mounted at /v1/stream"),
        ([front_with(mount="/v1/")], "'streams' and 'other' are both mounted at /v1/stream/"),
        ([front_with(mount="/v1/stream/mine/")], "both mounted at /v1/stream/mine/"),
        (
            [front_with(routes=(route_at("/v1/stream/x", "PUT"),))],
            "PUT /v1/stream/x of front 'other' is never found: front 'streams' is mounted at",
        ),
        ([front_with(mount="/v0/jobs/")], "of front 'jobs' is never found"),
        (
            [front_with(fair_key_rules=(FairKeyRule("/v0/graphs/", str),))],
            "requests to /v0/graphs/ take two turns",
        ),
        (
            [front_with(fair_key_rules=(FairKeyRule("/v0/graphs/g/", str),))],
            "requests to /v0/graphs/g/ take two",
        ),
        ([front_with(fair_key_rules=(FairKeyRule("/v0/", str),))], "those of /v0/ as well"),
    ],
)
def test_two_fronts_in_each_others_way_are_an_error_when_the_table_is_made(
    others: list[Front], told: str
) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(told)):
        Fronts([*FRONTS, *others])


def test_fronts_beside_each_other_are_no_error() -> None:
    beside = front_with(
        mount="/v1/streams/",
        fair_key_rules=(FairKeyRule("/v0/graph/", str),),
        routes=(route_at("/v1/{any}/x"), route_at("/v0/toy/{x}/things/{y}", "PUT")),
        sockets=(route_at("/v0/toy/{x}/things/{y}"),),
    )
    assert beside in list(Fronts([*FRONTS, ToyFront(), beside]))


def test_a_host_has_its_parts_by_their_types(tmp_path: Any) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            context = served.server.context
            assert context is not None
            assert context.part(Topics) is served.app.topics
            with pytest.raises(KeyError):
                context.part(Toys)

    run(scenario())


def test_every_name_of_a_front_is_its_own() -> None:
    names = [front.name for front in FRONTS]
    assert len(set(names)) == len(names)
    assert json.dumps(FRONTS.document())

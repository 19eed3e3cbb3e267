"""Graphs over HTTP, on a real server: what is looked at, pushed, fired, steered and watched."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from typing import TYPE_CHECKING, Any

import pytest

from fairway.app import Fairway
from fairway.errors import Closing, Fenced, InvalidRequest
from fairway.graphs.criteria import any_
from fairway.graphs.feeds.poll import poll
from fairway.settings import parse_api_keys
from tests.support.graphs_served import Gate, desk
from tests.support.server import Api, Site, run, serving, shared_site, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUOTE = {"bid": 1.0, "ask": 3.0}
KEYS = (
    "reader:read,writer:write,ruler:admin,acme:read+write+admin:acme/,plain:read+write+admin:shared"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("data")
    with shared_site(place, app=desk(place)) as made:
        yield made


async def state(api: Api, graph: str, query: str = "") -> Any:
    answer = await api.get(f"/v0/graphs/{graph}/state{query}")
    assert answer.status == 200, answer
    return answer.json


async def push(api: Api, graph: str, source: str, *events: Any, query: str = "") -> Any:
    body = {"data": events[0]} if len(events) == 1 else {"events": events}
    return await api.post(f"/v0/graphs/{graph}/accumulators/{source}{query}", body)


async def firings(api: Api, graph: str) -> Any:
    return (await api.get(f"/v0/graphs/{graph}/firings")).json["firings"]


# Looking


def test_graphs_are_listed_described_and_drawn(site: Site) -> None:
    async def scenario(api: Api) -> None:
        listed = (await api.get("/v0/graphs")).json["graphs"]
        assert [(one["tenant"], one["graph"]) for one in listed] == [
            ("", "both"),
            ("", "fragile"),
            ("", "kept"),
            ("", "orders"),
            ("", "pricing"),
            ("", "waiting"),
            ("acme", "shared"),
            ("globex", "shared"),
        ]
        assert {one["state"] for one in listed} == {"live"}
        found = (await api.get("/v0/graphs/pricing")).json
        assert (found["when"], found["inputs"]) == ("quotes", "latest")
        assert [(one["name"], one["fires"], one["kind"]) for one in found["sources"]] == [
            ("quotes", True, "passthrough"),
            ("rates", False, "passthrough"),
        ]
        (_, signal) = found["nodes"]
        assert [(one["source"], one["optional"]) for one in signal["takes"]] == [
            ("mid", False),
            ("rates", True),
        ]
        assert (signal["result"], signal["runs_in"]) == (True, "loop")
        assert found["mermaid"].startswith("flowchart LR\n")
        assert (await api.get("/v0/graphs/both")).json["when"] == "all of left, right"
        drawn = await api.get("/v0/graphs/pricing/graph.svg")
        assert drawn.header("content-type") == "image/svg+xml; charset=utf-8"
        assert b"events, socket_only" in drawn.body
        text = await api.get("/v0/graphs/pricing/graph.mmd")
        assert text.body.decode() == found["mermaid"]

    site.run(scenario(site.api))


def test_a_push_fires_and_the_state_and_the_firings_tell(site: Site) -> None:
    async def scenario(api: Api) -> None:
        assert (await push(api, "pricing", "quotes", QUOTE)).json == {
            "accepted": 1,
            "refused": None,
        }
        assert (await push(api, "pricing", "rates", 10.0)).json["accepted"] == 1
        assert (await push(api, "pricing", "quotes", QUOTE, QUOTE)).json["accepted"] == 2
        found = await state(api, "pricing")
        assert (found["state"], found["fired"], found["firing"]) == ("live", 3, 3)
        assert found["cache"] == {"quotes": QUOTE, "rates": 10.0}
        assert found["dirty"] == {"quotes": False}
        quotes, rates = found["sources"]
        assert (quotes["events"], quotes["state"], quotes["queue"]) == (3, "socket_only", 0)
        assert quotes["last_event_ms"] >= 0
        assert rates["events"] == 1
        assert [node["runs"] for node in found["nodes"]] == [3, 3]
        assert (await state(api, "pricing", "?cache=false"))["cache"] == {}
        newest, *_, first = await firings(api, "pricing")
        assert (newest["firing"], newest["cause"], newest["fresh"]) == (3, "news", ["quotes"])
        assert newest["outputs"] == {"signal": 20.0}
        assert first["inputs"] == {"quotes": QUOTE}
        assert len((await api.get("/v0/graphs/pricing/firings?limit=2")).json["firings"]) == 2

    site.run(scenario(site.api))


def test_what_does_not_decode_is_refused_and_changes_nothing(site: Site) -> None:
    async def scenario(api: Api) -> None:
        before = await state(api, "both")
        for body, said in (
            ({"data": "x"}, "Expected `int`, got `str`"),
            ({"events": [1, "x"]}, "events[1]: "),
            ({"events": []}, ""),
            ({"data": 1, "events": [1]}, "`data`, one boundary, or `events`"),
            ({}, "`data`, one boundary, or `events`"),
            ({"value": 1}, "unknown field"),
        ):
            answer = await api.post("/v0/graphs/both/accumulators/left", body)
            assert (answer.status, answer.code) == (400, "invalid_request"), answer
            assert said in answer.error["message"]
        assert await state(api, "both") == before

    site.run(scenario(site.api))


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v0/graphs/none", None, 404, "graph_not_found"),
        ("GET", "/v0/graphs/none/state", None, 404, "graph_not_found"),
        ("GET", "/v0/graphs/none/watch", None, 404, "graph_not_found"),
        ("GET", "/v0/graphs/pricing?tenant=acme", None, 404, "graph_not_found"),
        ("GET", "/v0/graphs/pricing/firings?limit=x", None, 400, "invalid_request"),
        ("GET", "/v0/graphs/pricing/state?nope=1", None, 400, "invalid_request"),
        ("POST", "/v0/graphs/none/fire", {}, 404, "graph_not_found"),
        ("POST", "/v0/graphs/pricing/fire", {"cache": {"x": 1}}, 404, "source_not_found"),
        ("POST", "/v0/graphs/pricing/fire", {"cache": {"quotes": 1}}, 400, "invalid_request"),
        ("POST", "/v0/graphs/pricing/fire", {"caches": {}}, 400, "invalid_request"),
        ("POST", "/v0/graphs/pricing/accumulators/none", {"data": 1}, 404, "source_not_found"),
        ("POST", "/v0/graphs/none/accumulators/none", {"data": 1}, 404, "graph_not_found"),
        ("POST", "/v0/graphs/pricing/restart", {"source": "none"}, 404, "source_not_found"),
        (
            *("POST", "/v0/graphs/pricing/restart", {"source": "quotes"}),
            *(409, "source_without_feed"),
        ),
        ("POST", "/v0/graphs", {"graph": "no_such_module:x"}, 409, "graph_not_loadable"),
        ("POST", "/v0/graphs", {"graph": "x"}, 400, "invalid_request"),
        ("DELETE", "/v0/graphs/none", None, 404, "graph_not_found"),
        ("GET", "/v0/graphs/pricing/accumulators/quotes", None, 405, "method_not_allowed"),
    ],
)
def test_bad_input_is_refused(
    site: Site, method: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = site.run(site.api.call(method, path, body))
    assert (answer.status, answer.code) == (status, code)


# Commands: upstream's defect 2


def test_fire_tells_the_true_outcome_also_of_nothing(site: Site) -> None:
    """Defect 2: upstream said `fired` before anything had happened, or when nothing did."""

    async def scenario(api: Api) -> None:
        empty = (await api.post("/v0/graphs/both/fire")).json
        assert (empty["cause"], empty["fresh"], empty["outputs"]) == ("forced", [], {})
        given = {"cache": {"left": 1, "right": 2}}
        fired = (await api.post("/v0/graphs/both/fire", given)).json
        assert (fired["firing"], fired["cause"]) == (empty["firing"] + 1, "injected")
        assert fired["outputs"] == {"added": 3}
        found = await state(api, "both")
        assert (found["firing"], found["cache"]) == (fired["firing"], given["cache"])
        # It replaces the cache, all of it: what is not given is gone.
        assert (await api.post("/v0/graphs/both/fire", {"cache": {"left": 5}})).json[
            "outputs"
        ] == {}
        assert (await state(api, "both"))["cache"] == {"left": 5}
        assert [one["cause"] for one in await firings(api, "both")] == [
            "injected",
            "injected",
            "forced",
        ]

    site.run(scenario(site.api))


def test_a_firing_that_fails_is_told_as_failed_and_consumes_nothing(site: Site) -> None:
    async def scenario(api: Api) -> None:
        bad = {"cache": {"quotes": {"bid": -1, "ask": 0}}}
        answer = await api.post("/v0/graphs/fragile/fire", bad)
        assert (answer.status, answer.code) == (409, "firing_failed")
        assert answer.error["detail"]["firing"] == 1
        assert "below zero" in answer.error["detail"]["error"]
        assert (await state(api, "fragile"))["failures"] == 1
        assert (await push(api, "fragile", "quotes", {"bid": -1, "ask": 0})).status == 200
        (letter,) = (await api.get("/v0/graphs/fragile/dead")).json["dead"]
        assert (letter["source"], letter["data"]["quotes"]["json"]) == (
            "",
            {"bid": -1.0, "ask": 0.0},
        )
        assert letter["data"]["quotes"]["base64"]
        assert "below zero" in letter["reason"]

    site.run(scenario(site.api))


def test_pause_accumulates_force_acts_while_paused_and_resume_looks_again(site: Site) -> None:
    async def scenario(api: Api) -> None:
        before = (await state(api, "orders"))["firing"]
        paused = (await api.post("/v0/graphs/orders/pause")).json
        assert paused["paused"]
        assert (await push(api, "orders", "orders", *({"id": n} for n in (1, 2, 3)))).status == 200
        found = await state(api, "orders")
        assert (found["firing"], found["sources"][0]["queue"]) == (before, 3)
        assert found["dirty"] == {"orders": True}
        forced = (await api.post("/v0/graphs/orders/fire")).json
        assert (forced["outputs"], forced["fresh"]) == ({"done": 1}, ["orders"])
        assert (await state(api, "orders"))["sources"][0]["queue"] == 2
        resumed = (await api.post("/v0/graphs/orders/resume")).json
        assert not resumed["paused"]
        assert resumed["firing"] == before + 3, "what waited has fired when it is answered"
        seen = [one["outputs"]["done"] for one in await firings(api, "orders")]
        assert seen[:3] == [3, 2, 1]
        # A queue that is empty: the firing sees what the last one saw, and says so.
        empty = (await api.post("/v0/graphs/orders/fire")).json
        assert (empty["firing"], empty["fresh"]) == (before + 4, [])
        assert empty["outputs"] == {"done": 3}

    site.run(scenario(site.api))


def test_a_cache_is_checked_in_its_parts(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = Fairway(tmp_path)
        numbers, anything = app.source("numbers", list[int]), app.source("anything", Any)
        graph = app.graph("parts", when=any_(numbers, anything))

        @graph.node
        def told(numbers: list[int] | None = None, anything: Any = None) -> str:
            return f"{numbers} {anything}"

        async with serving(tmp_path, app=app) as served:
            api = served.api
            given = {"cache": {"numbers": [1, 2], "anything": {"x": 1}}}
            fired = (await api.post("/v0/graphs/parts/fire", given)).json
            assert fired["outputs"] == {"told": "[1, 2] {'x': 1}"}
            wrong = await api.post("/v0/graphs/parts/fire", {"cache": {"numbers": ["x"]}})
            assert (wrong.status, wrong.code) == (400, "invalid_request")
            assert (await push(api, "parts", "anything", False, {}, [])).json["accepted"] == 3
            with pytest.raises(InvalidRequest):
                await app.graphs.get("parts").running().force({"numbers": ["x"]})

    run(scenario())


def test_what_json_has_no_number_for_is_shown_as_text_and_never_as_null(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = Fairway(tmp_path)
        numbers = app.source("numbers", float)
        made = iter([math.nan])
        polled = app.source("polled", float, feed=poll(lambda: next(made, None), every_s=0.01))
        graph = app.graph("made", when=numbers, inputs="sequential", checkpoint=True)
        looped = app.graph("polls", when=polled, inputs="sequential", on_error="dead_letter")

        @graph.node
        def divided(numbers: float) -> Any:
            return [{"x": 1 / numbers if numbers else math.inf, "none": None}, -math.inf, "nan"]

        @looped.node
        def failing(polled: float) -> None:
            raise ValueError("no number")

        async with serving(tmp_path, app=app) as served:
            api = served.api
            shown = [{"x": "inf", "none": None}, "-inf", "nan"]
            fired = (await api.post("/v0/graphs/made/fire", {"cache": {"numbers": 0}})).json
            assert fired["outputs"] == {"divided": shown}
            assert (await firings(api, "made"))[0]["outputs"] == {"divided": shown}
            await until(lambda: bool(looped.dead_letters))
            assert (await state(api, "polls"))["cache"] == {"polled": "nan"}
            (letter,) = (await api.get("/v0/graphs/polls/dead")).json["dead"]
            assert letter["data"]["polled"]["json"] == "nan"
            for number in (b"NaN", b"Infinity", b"1e999", b'"nan"'):
                refused = await api.post(
                    "/v0/graphs/made/accumulators/numbers",
                    raw=b'{"data":' + number + b"}",
                    headers={"content-type": "application/json"},
                )
                assert (refused.status, refused.code) == (400, "invalid_request")
            assert (await state(api, "made"))["firing"] == 1

    run(scenario())


# Full: upstream's defect 11


def test_a_full_source_refuses_with_a_time_and_drops_nothing(site: Site) -> None:
    """Defect 11: upstream dropped what did not fit, and said nothing."""

    async def scenario(api: Api) -> None:
        await api.post("/v0/graphs/orders/pause")
        some = [{"id": n} for n in range(6)]
        answer = await push(api, "orders", "orders", *some)
        assert answer.status == 200
        assert answer.json["accepted"] == 4
        assert answer.json["refused"]["code"] == "throttled"
        assert answer.json["refused"]["retry_after_ms"] >= 1
        refused = await push(api, "orders", "orders", {"id": 9})
        assert (refused.status, refused.code) == (429, "throttled")
        assert int(refused.header("retry-after") or 0) >= 1
        assert refused.error["detail"]["retry_after_ms"] >= 1
        source = (await state(api, "orders"))["sources"][0]
        assert (source["queue"], source["refused"], source["dropped"]) == (4, 2, 0)
        await api.post("/v0/graphs/orders/resume")
        seen = [one["outputs"]["done"] for one in await firings(api, "orders")]
        assert seen[:4] == [3, 2, 1, 0]

    site.run(scenario(site.api))


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_push_of_more_than_a_source_that_drops_holds_is_accepted(
    tmp_path: Path, checkpoint: bool
) -> None:
    app = Fairway(tmp_path)
    source = app.source("n", int, capacity=2, on_full="drop_oldest")
    graph = app.graph("newest", when=source, inputs="sequential", checkpoint=checkpoint)

    @graph.node
    def same(n: int) -> int:
        return n

    async def scenario() -> None:
        async with serving(tmp_path, app=app) as served:
            await served.api.post("/v0/graphs/newest/pause")
            answer = await push(served.api, "newest", "n", *range(8))
            assert (answer.status, answer.json) == (200, {"accepted": 8, "refused": None})
            (found,) = (await state(served.api, "newest"))["sources"]
            assert (found["queue"], found["dropped"], found["refused"]) == (2, 6, 0)
            await served.api.post("/v0/graphs/newest/resume")
            seen = [one["outputs"]["same"] for one in await firings(served.api, "newest")]
            assert seen == [7, 6]

    run(scenario())


def test_a_push_waits_for_room_so_long_and_no_longer(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.post("/v0/graphs/waiting/pause")
        await push(api, "waiting", "orders", {"id": 1}, {"id": 2})
        late = await push(api, "waiting", "orders", {"id": 3}, query="?wait_ms=0")
        assert (late.status, late.code) == (429, "throttled")
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(push(api, "waiting", "orders", {"id": 3}))
            instance = site.served.app.graphs.get("waiting").running()
            await until(lambda: instance.reactor._room_broadcasts.get("orders"))
            await api.post("/v0/graphs/waiting/resume")
        assert waits.result().json["accepted"] == 1
        assert [one["outputs"]["done"] for one in await firings(api, "waiting")] == [3, 2, 1]

    site.run(scenario(site.api))


# Tenants: upstream's defect 13


def test_a_name_that_several_tenants_have_is_refused_without_one(site: Site) -> None:
    """Defect 13: upstream's registry knew names only, and the last one won."""

    async def scenario(api: Api) -> None:
        for method, path in (
            ("GET", "/v0/graphs/shared"),
            ("GET", "/v0/graphs/shared/watch"),
            ("POST", "/v0/graphs/shared/fire"),
            ("POST", "/v0/graphs/shared/pause"),
            ("DELETE", "/v0/graphs/shared"),
        ):
            answer = await api.call(method, path)
            assert (answer.status, answer.code) == (409, "graph_ambiguous"), path
        assert (await push(api, "shared", "quotes", QUOTE)).code == "graph_ambiguous"
        assert (await push(api, "shared", "quotes", QUOTE, query="?tenant=acme")).status == 200
        fired = [(await state(api, "shared", f"?tenant={t}"))["fired"] for t in ("acme", "globex")]
        assert fired == [1, 0]
        (listed,) = (await api.get("/v0/graphs?tenant=globex")).json["graphs"]
        assert listed["fired"] == 0

    site.run(scenario(site.api))


# Keys and the audit


def test_each_operation_takes_its_scope_and_each_command_is_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        app = desk(tmp_path)
        async with serving(tmp_path, app=app, api_keys=parse_api_keys(KEYS)) as served:
            reader, writer, ruler = (served.api.using(k) for k in ("reader", "writer", "ruler"))
            assert (await state(reader, "pricing"))["firing"] == 0
            for api, method, path, body in (
                (reader, "POST", "/accumulators/quotes", {"data": QUOTE}),
                (reader, "POST", "/fire", {}),
                (reader, "POST", "/pause", None),
                (writer, "GET", "/state", None),
                (writer, "POST", "/pause", None),
                (writer, "POST", "/restart", {}),
                (writer, "GET", "/audit", None),
                (writer, "DELETE", "", None),
            ):
                answer = await api.call(method, f"/v0/graphs/pricing{path}", body)
                assert (answer.status, answer.code) == (403, "forbidden"), (method, path)
            assert (await writer.post("/v0/graphs", {"graph": "a:b"})).code == "forbidden"
            assert (await state(reader, "pricing"))["firing"] == 0, "a refusal changes nothing"
            assert (await push(writer, "pricing", "quotes", QUOTE)).status == 200
            assert (await writer.post("/v0/graphs/pricing/fire", {})).json["firing"] == 2
            assert (await ruler.post("/v0/graphs/pricing/pause")).json["paused"]
            assert (await ruler.post("/v0/graphs/pricing/resume")).status == 200
            assert (await ruler.post("/v0/graphs/pricing/restart")).json["state"] == "live"
            entries = (await ruler.get("/v0/graphs/pricing/audit")).json["entries"]
            assert [(one["who"], one["command"], one["outcome"]) for one in entries] == [
                ("env-3", "restart", "done"),
                ("env-3", "resume", "done"),
                ("env-3", "pause", "done"),
                ("env-2", "force_fire", "done"),
                ("env-2", "unload", "forbidden"),
                ("env-2", "restart", "forbidden"),
                ("env-2", "pause", "forbidden"),
                ("env-1", "pause", "forbidden"),
                ("env-1", "force_fire", "forbidden"),
            ]
            assert entries[3]["detail"] == "firing 2"

    with caplog.at_level(logging.INFO, "fairway.audit"):
        run(scenario())
    lines = [record.message for record in caplog.records if record.name == "fairway.audit"]
    assert "env-2: force_fire graph 'pricing' of tenant '': done (firing 2)" in lines
    assert any(line.startswith("env-2: load graph 'a:b'") for line in lines)
    assert len(lines) == 10


def test_prefixes_keep_tenants_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = desk(tmp_path)
        async with serving(tmp_path, app=app, api_keys=parse_api_keys(KEYS)) as served:
            acme, plain = served.api.using("acme"), served.api.using("plain")
            listed = (await acme.get("/v0/graphs")).json["graphs"]
            assert [(one["tenant"], one["graph"]) for one in listed] == [("acme", "shared")]
            # The one that it may touch is the one it means.
            assert (await state(acme, "shared"))["tenant"] == "acme"
            assert (await acme.get("/v0/graphs/shared?tenant=globex")).code == "forbidden"
            assert (await acme.get("/v0/graphs/pricing")).code == "forbidden"
            assert (await acme.post("/v0/graphs", {"graph": "a:b"})).code == "forbidden"
            assert (await plain.get("/v0/graphs")).json["graphs"] == []
            assert (await plain.get("/v0/graphs/shared")).code == "graph_not_found"
            assert (await acme.post("/v0/graphs/shared/pause")).json["tenant"] == "acme"
            entries = (await acme.get("/v0/graphs/shared/audit")).json["entries"]
            assert [(one["tenant"], one["command"]) for one in entries] == [("acme", "pause")]

    run(scenario())


# Checkpoints


def test_an_accepted_push_of_a_checkpointed_graph_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            await served.api.post("/v0/graphs/kept/pause")
            answer = await push(served.api, "kept", "quotes", QUOTE, {"bid": 2.0, "ask": 9.0})
            assert answer.json["accepted"] == 2
            instance = served.app.graphs.get("kept").running()
            assert instance.checkpoint.kept("quotes").pushed == 2
            assert instance.journal is not None
            assert not instance.journal.pending
            found = await state(served.api, "kept")
            assert found["checkpoint"]["epoch"] == 1
            assert not found["checkpoint"]["failing"]
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            found = await state(served.api, "kept")
            assert (found["paused"], found["firing"], found["dirty"]) == (
                *(True, 0),
                {"quotes": True},
            )
            await served.api.post("/v0/graphs/kept/resume")
            (fired,) = await firings(served.api, "kept")
            assert fired["outputs"] == {"spread": 7.0}

    run(scenario())


def test_what_may_be_durable_or_not_is_told_as_unknown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            instance = served.app.graphs.get("kept").running()
            assert instance.journal is not None
            instance.journal._submit = lambda: None  # type: ignore[method-assign]  # never comes back
            async with asyncio.TaskGroup() as group:
                pushed = group.create_task(push(served.api, "kept", "quotes", QUOTE, QUOTE))
                await until(lambda: instance.journal is not None and instance.journal.pending)
                instance.reactor.broken(Fenced("somebody else has it"))
            answer = pushed.result()
            assert (answer.status, answer.code) == (503, "outcome_unknown")
            stopped = await push(served.api, "kept", "quotes", QUOTE)
            assert (stopped.status, stopped.code) == (409, "graph_stopped")
            found = await state(served.api, "kept")
            assert (found["state"], found["sources"][0]["state"]) == ("failed", "stopped")
            assert "somebody else has it" in found["failed"]
            (gave_up, *_) = (await served.api.get("/v0/graphs/kept/recoveries")).json["recoveries"]
            assert (gave_up["what"], gave_up["happening"]) == ("reactor", "gave up")
            assert (await served.api.post("/v0/graphs/kept/restart")).json["state"] == "live"

    run(scenario())


# Coming and going


def test_a_graph_is_unloaded_and_loaded_while_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_graphs.py").write_text(
        "from fairway.graphs.graph import Graph\n"
        "from fairway.graphs.source import Source\n"
        "doubled = Graph('doubled', when=Source('numbers', int))\n"
        "@doubled.node\n"
        "def twice(numbers: int) -> int:\n"
        "    return numbers * 2\n"
        "broken = Graph('broken', when=Source('numbers', int))\n"
        "other = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def scenario() -> None:
        async with serving(tmp_path / "data", app=desk(tmp_path / "data")) as served:
            api = served.api
            loaded = await api.post("/v0/graphs", {"graph": "late_graphs:doubled"})
            assert (loaded.status, loaded.json["state"]) == (201, "live")
            assert (await push(api, "doubled", "numbers", 4)).status == 200
            assert (await firings(api, "doubled"))[0]["outputs"] == {"twice": 8}
            again = await api.post("/v0/graphs", {"graph": "late_graphs:doubled"})
            assert (again.status, again.code) == (409, "graph_exists")
            for name, said in (
                ("late_graphs:none", "its graphs: doubled, broken"),
                ("late_graphs:other", "is an int, not a Graph"),
                ("late_graphs:broken", "it has no nodes"),
            ):
                answer = await api.post("/v0/graphs", {"graph": name})
                assert (answer.status, answer.code) == (409, "graph_not_loadable")
                assert said in answer.error["message"]
            gone = (await api.delete("/v0/graphs/doubled")).json
            assert gone == {"graph": "doubled", "tenant": "", "forgotten": False}
            assert (await api.get("/v0/graphs/doubled")).status == 404
            assert (await state(api, "pricing"))["state"] == "live"
            entries = (await api.get("/v0/graphs/doubled/audit")).json["entries"]
            assert [one["command"] for one in entries] == ["unload", "load", "load"]

    run(scenario())


def test_unload_drains_what_was_accepted(tmp_path: Path) -> None:
    gate = Gate()

    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path, gate)) as served:
            api = served.api
            fired: list[Any] = []
            instance = served.app.graphs.get("slow").running()
            instance.reactor.listeners.append(fired.append)
            await push(api, "slow", "orders", {"id": 7})
            async with asyncio.TaskGroup() as group:
                await gate.entered.wait()
                gone = group.create_task(api.delete("/v0/graphs/slow"))
                await until(lambda: instance.reactor._rest.waiters)
                gate.open.set()
            assert gone.result().status == 200
            assert [firing.outputs for firing in fired] == [{"held": 7}]

    run(scenario())


def test_a_pause_that_may_not_be_recorded_is_not_told_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            instance = served.app.graphs.get("kept").running()
            monkeypatch.setattr(instance.journal, "_write", lambda: None)
            asked = asyncio.ensure_future(served.api.post("/v0/graphs/kept/pause"))
            await until(lambda: instance.reactor.paused)
            instance.stop(Closing("it is over"))
            answer = await asked
            assert (answer.status, answer.code) == (503, "outcome_unknown")

    run(scenario())


# Watching


def test_a_watch_tells_state_and_firings(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.post("/v0/graphs/fragile/resume")
        stream = await api.stream("/v0/graphs/fragile/watch?every_ms=50")
        first = await stream.named("state")
        before = first.data["firing"]
        await push(api, "fragile", "quotes", {"bid": 4, "ask": 5})
        told = await stream.named("firings")
        assert told.data["skipped"] == 0
        assert [(one["firing"], one["cause"]) for one in told.data["firings"]] == [
            (before + 1, "news")
        ]
        after = await stream.named("state")
        assert after.data["firing"] == before + 1
        assert after.data["cache"] == {"quotes": {"bid": 4.0, "ask": 5.0}}
        await api.post("/v0/graphs/fragile/pause")
        assert (await stream.named("state")).data["paused"]
        await api.post("/v0/graphs/fragile/resume")
        assert not (await stream.named("state")).data["paused"]
        await stream.close()

    site.run(scenario(site.api))


def test_a_watch_tells_each_firing_once_it_is_recorded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            graph = served.app.graphs.get("kept").graph
            stream = await served.api.stream("/v0/graphs/kept/watch?every_ms=60000")
            context = served.server.context
            assert context is not None
            (watching,) = context.keep_alives
            await stream.named("state")
            for bid in (1.0, 2.0):
                graph.push_nowait("quotes", {"bid": bid, "ask": bid})
                watching._look()  # type: ignore[attr-defined]  # it fired, and is being written
                await graph.settled()
                watching._look()  # type: ignore[attr-defined]
                told = await stream.named("firings")
                assert [one["firing"] for one in told.data["firings"]] == [int(bid)]
                assert told.data["skipped"] == 0
            await stream.close()

    run(scenario())


def test_a_reader_that_does_not_read_costs_nobody_anything(tmp_path: Path) -> None:
    """Nothing is queued for it; and when it reads again it sees the newest state."""

    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            api = served.api
            graph = served.app.graphs.get("fragile").graph
            stream = await api.stream("/v0/graphs/fragile/watch?every_ms=50", receive_buffer=4096)
            context = served.server.context
            assert context is not None
            (watching,) = context.keep_alives
            await stream.named("state")
            # Until the reader's buffers are full, and it is refused more.
            bid = 0.0
            while watching.response.writable:
                for _ in range(300):
                    bid += 1
                    graph.push_nowait("quotes", {"bid": bid, "ask": bid})
                watching._look()  # type: ignore[attr-defined]
            buffered = watching.response.buffered
            for _ in range(5000):
                bid += 1
                graph.push_nowait("quotes", {"bid": bid, "ask": bid})
                if not int(bid) % 100:
                    watching._look()  # type: ignore[attr-defined]
            assert watching.response.buffered <= buffered
            skipped = told = 0
            newest = 0.0
            while newest != bid or skipped + told != int(bid):
                event = await stream.named("state", "firings")
                if event.name == "state":
                    newest = event.data["cache"]["quotes"]["bid"]
                else:
                    skipped += event.data["skipped"]
                    told += len(event.data["firings"])
            assert skipped > 0
            await stream.close()
            await until(lambda: not context.keep_alives)
            assert not served.app.graphs.get("fragile").watchers

    run(scenario())


def test_watches_end_when_their_graph_goes_and_when_the_server_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=desk(tmp_path)) as served:
            gone = await served.api.stream("/v0/graphs/fragile/watch?every_ms=50")
            await gone.named("state")
            await served.api.delete("/v0/graphs/fragile")
            assert (await gone.ended())[-1].name == "unloaded"
            stays = await served.api.stream("/v0/graphs/pricing/watch")
            await stays.named("state")
            served.stop.request_stop()
            await stays.ended()

    run(scenario())


def test_the_log_holds_no_line_break_of_a_client(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fairway.audit"):
        site.run(site.api.post("/v0/graphs/a%0Ab/fire?tenant=x%0Ay", {}))
    (line,) = [record.message for record in caplog.records if record.name == "fairway.audit"]
    assert "\n" not in line
    assert json.dumps("a\nb")[1:-1] in line

"""Who may do what, end to end: keys, scopes, quotas, reload, tickets, hosts and origins."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from fairway.server.fronts.topics.quotas import TopicQuotas
from tests.support.server import Api, Served, run, server_process, serving, shared_site, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.server import Site

KEYS = """
[[key]]
name = "root"
secret = "root-secret"
scopes = ["admin"]

[[key]]
name = "reader"
secret = "reader-secret"
scopes = ["read"]
prefixes = ["orders."]

[[key]]
name = "writer"
secret = "writer-secret"
scopes = ["read", "write"]
prefixes = ["orders.", "stock."]
"""
RECORD = {"records": [{"data": 1}]}


@asynccontextmanager
async def keyed(tmp_path: Path, keys: str = KEYS, **settings: Any) -> AsyncIterator[Served]:
    file = tmp_path / "keys.toml"
    file.write_text(keys)
    async with serving(tmp_path / "data", keys_file=file, **settings) as served:
        yield served


def quota(name: str, **limits: int) -> str:
    table = "\n".join(f"{limit} = {value}" for limit, value in limits.items())
    return (
        f'[[key]]\nname = "{name}"\nsecret = "{name}-secret"\nscopes = ["admin"]\n'
        f"[key.quota]\n{table}\n"
    )


# --- keys


def test_scopes_and_prefixes_hold_on_every_route(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            anyone = served.api
            root, reader, writer = (
                anyone.using(f"{name}-secret") for name in ("root", "reader", "writer")
            )
            for name in ("orders.a", "stock.a", "hr.a"):
                assert (await root.put(f"/v0/topics/{name}")).status == 201

            for api in (
                anyone,
                anyone.using("wrong"),
                Api(anyone.port, {"authorization": "Basic x"}),
            ):
                for call in (api.get("/v0/topics"), api.post("/v0/topics/orders.a", RECORD)):
                    answer = await call
                    assert (answer.status, answer.code) == (401, "unauthorized")
                    assert answer.header("www-authenticate") == 'Bearer realm="fairway"'
            for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
                assert (await anyone.get(path)).status == 200
            assert (await anyone.get("/metrics")).status == 401

            refused = [
                (reader, "POST", "/v0/topics/orders.a", RECORD, {"scope": "write"}),
                (reader, "POST", "/v0/topics/hr.a/diff", {}, {"name": "hr.a"}),
                (reader, "GET", "/v0/topics/hr.a/watch", None, {"name": "hr.a"}),
                (reader, "POST", "/v0/watch", {"topics": {"hr.a": {}}}, {"name": "hr.a"}),
                (reader, "POST", "/v0/watch", {"prefix": "o*"}, {"prefix": "o"}),
                (reader, "POST", "/v0/watch", {"prefix": "*"}, {"prefix": ""}),
                (writer, "POST", "/v0/topics/hr.a", RECORD, {"name": "hr.a"}),
                (
                    writer,
                    "POST",
                    "/v0/topics/orders.a/delete",
                    {"before_seq": 9},
                    {"scope": "delete"},
                ),
                (writer, "DELETE", "/v0/topics/orders.a", None, {"scope": "delete"}),
                (writer, "PUT", "/v0/topics/orders.b", {}, {"scope": "admin"}),
                (
                    writer,
                    "PUT",
                    "/v0/routers/r",
                    {"source": "orders.a", "dest": "stock.a"},
                    {"scope": "admin"},
                ),
            ]
            for api, method, path, body, detail in refused:
                answer = await api.call(method, path, body)
                assert (answer.status, answer.code) == (403, "forbidden"), path
                assert answer.error["detail"] == detail
            assert (await writer.post("/v0/topics/orders.a", RECORD)).status == 200
            assert (await writer.post("/v0/topics/orders.made", RECORD)).status == 201
            assert (await reader.diff("orders.a"))["head_seq"] == 1
            shown = (await reader.get("/v0/topics")).json["topics"]
            assert [one["topic"] for one in shown] == ["orders.a", "orders.made"]
            await root.put("/v0/routers/out", {"source": "orders.a", "dest": "hr.a"})
            assert (await writer.get("/v0/routers")).json == {"routers": []}
            assert (await writer.get("/v0/routers/out")).status == 404

    run(scenario())


def test_a_router_of_others_is_neither_read_nor_replaced_nor_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = KEYS.replace('["read", "write"]', '["admin"]')
        async with keyed(tmp_path, keys) as served:
            root, tenant = (served.api.using(f"{name}-secret") for name in ("root", "writer"))
            for name in ("orders.a", "orders.b", "hr.a", "hr.b"):
                await root.put(f"/v0/topics/{name}")
            own = {"source": "orders.a", "dest": "orders.b"}
            for ends in (("hr.a", "hr.b"), ("orders.a", "hr.b"), ("hr.a", "orders.b")):
                theirs = dict(zip(("source", "dest"), ends, strict=True))
                assert (await root.put("/v0/routers/main", theirs)).status in (200, 201)
                # As if it were not there; but its name is taken.
                answer = await tenant.get("/v0/routers/main")
                unknown = await tenant.get("/v0/routers/mine")
                assert (answer.status, answer.code) == (404, "router_not_found"), ends
                assert answer.body == unknown.body.replace(b"mine", b"main")
                answer = await tenant.delete("/v0/routers/main")
                assert (answer.status, answer.json["deleted"]) == (200, False), ends
                answer = await tenant.put("/v0/routers/main", own)
                assert (answer.status, answer.code) == (403, "forbidden"), ends
                kept = (await root.get("/v0/routers/main")).json
                assert (kept["source"], kept["dest"]) == ends

            await root.delete("/v0/routers/main")
            async with asyncio.TaskGroup() as group:  # whoever comes second finds the other's
                made = group.create_task(root.put("/v0/routers/main", theirs))
                mine = group.create_task(tenant.put("/v0/routers/main", own))
            last = (await root.get("/v0/routers/main")).json
            assert made.result().status in (200, 201)
            assert (last["source"], last["dest"]) == ends, mine.result()
            assert (await root.put("/v0/routers/main", own)).status == 200
            assert (await tenant.put("/v0/routers/main", {**own, "filter": "x"})).status == 200
            assert (await tenant.delete("/v0/routers/main")).json["deleted"] is True

    run(scenario())


def test_a_unique_key_of_others_is_neither_told_nor_takes_the_place_of_ones_own(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            root, tenant = (served.api.using(f"{name}-secret") for name in ("root", "writer"))

            def job(queue: str, *keys: str | None) -> dict[str, Any]:
                return {"jobs": [{"kind": "k", "queue": queue, "key": key} for key in keys]}

            assert (await root.post("/v0/jobs", job("hr.mail", "one"))).status == 201
            for keys in (["one"], ["two", "one"], [None, "one", None]):
                answer = await tenant.post("/v0/jobs", job("orders.mail", *keys))
                assert (answer.status, answer.code) == (409, "key_taken")
                assert "hr" not in answer.body.decode()
            assert (await tenant.get("/v0/jobs")).json["jobs"] == []
            async with asyncio.TaskGroup() as group:  # whoever comes second finds the other's
                theirs = [
                    group.create_task(root.post("/v0/jobs", job("hr.mail", f"k{number}")))
                    for number in range(20)
                ]
                own = [
                    group.create_task(tenant.post("/v0/jobs", job("orders.mail", f"k{number}")))
                    for number in range(20)
                ]
            for first, second in zip(theirs, own, strict=True):
                made = first.result().json["jobs"][0]["fresh"]
                assert second.result().status == (409 if made else 201)
            again = await tenant.post("/v0/jobs", job("orders.mail", "two"))
            assert (again.status, again.json["jobs"][0]["fresh"]) == (201, True)
            again = await tenant.post("/v0/jobs", job("stock.mail", "two"))
            assert (again.status, again.json["jobs"][0]["fresh"]) == (200, False)

    run(scenario())


def test_routes_of_routers_name_nothing_of_another_tenant(tmp_path: Path) -> None:
    """Every route that has to do with routers, wherever the rule of another begins and ends."""
    keys = "".join(
        f'[[key]]\nname = "{name}"\nsecret = "{name}-key"\nscopes = ["admin"]\n'
        f"prefixes = {prefixes}\n"
        for name, prefixes in (("root", '["shop.", "bank."]'), ("shop", '["shop."]'))
    )
    ends = ("shop.in", "shop.out", "bank.secret-in", "bank.secret-out")
    own = {"source": "shop.in", "dest": "shop.out"}
    back = {"source": "shop.out", "dest": "shop.in"}

    async def scenario() -> None:
        async with keyed(tmp_path, keys) as served:
            root, shop = (served.api.using(f"{name}-key") for name in ("root", "shop"))

            async def ask(call: Any, *given: str) -> Any:
                """What the tenant is told tells nothing secret but what it `given`."""
                answer = await call
                text = f"{answer.headers} {answer.body.decode()}"
                for name in given:
                    text = text.replace(name, "")
                assert "secret" not in text, text
                return answer

            for source, dest in itertools.permutations(ends, 2):
                theirs = "/v0/routers/secret-rule"
                rule = {"source": source, "dest": dest}
                foreign = "bank" in source + dest
                for name in ends:
                    await root.put(f"/v0/topics/{name}")
                assert (await root.put(theirs, rule)).status == 201
                statuses = []
                for call in (shop.get(theirs), shop.put(theirs, own), shop.delete(theirs)):
                    statuses.append((await ask(call, "secret-rule")).status)
                assert statuses == ([404, 403, 200] if foreign else [200] * 3)
                await ask(shop.put("/v0/routers/mine", rule), source, dest)
                for query in ("", "?source=shop.in", f"?source={source}", "?prefix=secret"):
                    listed = await ask(shop.get(f"/v0/routers{query}"))
                    assert listed.status == 200
                # Routers of others lead from one of its topics to another: a cycle with them.
                detour = [("shop.out", "bank.secret-in"), ("bank.secret-in", "shop.in")]
                await root.delete(theirs)
                await shop.delete("/v0/routers/mine")
                for number, (here, there) in enumerate(detour):
                    made = {"source": here, "dest": there}
                    assert (await root.put(f"/v0/routers/secret-{number}", made)).status == 201
                closed = await ask(shop.put("/v0/routers/mine", own))
                assert closed.code == "router_cycle"
                assert closed.error["detail"]["cycle"] == ["shop.in", "shop.out", "shop.in"]
                assert (await ask(shop.put("/v0/routers/mine", back))).status == 201
                for name in ends[:2]:
                    assert (await ask(shop.delete(f"/v0/topics/{name}"))).json["deleted"]

    run(scenario())


def test_routers_that_go_with_a_topic_are_named_to_whom_they_belong(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = KEYS.replace('["read", "write"]', '["admin"]')
        async with keyed(tmp_path, keys) as served:
            root, tenant = (served.api.using(f"{name}-secret") for name in ("root", "writer"))
            for _ in range(2):
                for name in ("orders.a", "orders.b", "hr.a"):
                    await root.put(f"/v0/topics/{name}")
                await tenant.put("/v0/routers/own", {"source": "orders.a", "dest": "orders.b"})
                await root.put("/v0/routers/theirs", {"source": "orders.a", "dest": "hr.a"})
                api, tenant = tenant, root
                removed = (await api.delete("/v0/topics/orders.a")).json["routers_removed"]
                assert sorted(removed) == (["own", "theirs"] if api is root else ["own"])
                assert (await root.get("/v0/routers")).json["routers"] == []

    run(scenario())


def test_a_key_has_so_many_watch_sessions_and_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("few", watch_sessions=3) + quota("many")) as served:
            few, many = (served.api.using(f"{name}-secret") for name in ("few", "many"))
            await many.put("/v0/topics/t")
            body = {"topics": {"t": {}}}
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(few.post("/v0/watch", body)) for _ in range(10)]
            answers = [one.result() for one in asked]
            assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 7
            refused = next(answer for answer in answers if answer.status == 429)
            detail = refused.error["detail"]
            assert (detail["limit"], detail["max"]) == ("watch_sessions", 3)
            assert 290 <= int(refused.header("retry-after")) <= 300, "they live for five minutes"
            assert (await many.post("/v0/watch", body)).status == 200

    run(scenario())


def test_pages_of_a_narrow_key_are_full_though_others_lie_between(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            root, writer = (served.api.using(f"{name}-secret") for name in ("root", "writer"))
            names = [f"{name}.{n}" for name in ("a", "orders", "p", "stock", "z") for n in range(3)]
            for name in names:
                await root.put(f"/v0/topics/{name}")
            seen, cursor = [], ""
            while True:
                answer = (await writer.get(f"/v0/topics?page_size=2&cursor={cursor}")).json
                seen.append([one["topic"] for one in answer["topics"]])
                if "next_cursor" not in answer:
                    break
                cursor = answer["next_cursor"]
            assert seen == [
                ["orders.0", "orders.1"],
                ["orders.2", "stock.0"],
                ["stock.1", "stock.2"],
            ]
            for prefix, count in (("o", 3), ("stock.1", 1), ("a", 0), ("", 6)):
                answer = (await writer.get(f"/v0/topics?prefix={prefix}")).json
                assert len(answer["topics"]) == count, prefix

    run(scenario())


def test_a_session_belongs_to_the_key_that_made_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            root, reader, writer = (
                served.api.using(f"{name}-secret") for name in ("root", "reader", "writer")
            )
            await root.put("/v0/topics/orders.a")
            path = await reader.session(topics={"orders.a": {}})
            for other in (root, writer):
                answer = await other.get(path)
                assert (answer.status, answer.code) == (403, "forbidden")
            assert (await served.api.get(path)).status == 401
            await (await reader.stream(path)).named("caught-up")

    run(scenario())


def test_a_change_of_the_keys_file_counts_at_once_and_ends_what_was_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            root, reader, writer = (
                served.api.using(f"{name}-secret") for name in ("root", "reader", "writer")
            )
            await root.put("/v0/topics/orders.a")
            path = await reader.session(topics={"orders.a": {}})
            streams = [await reader.watch("orders.a"), await reader.stream(path)]
            kept = await writer.watch("orders.a")
            for stream in (*streams, kept):
                await stream.named("caught-up")
            url = f"ws://127.0.0.1:{served.api.port}/v0/ws"
            headers = {"authorization": "Bearer reader-secret"}
            async with connect(url, proxy=None, additional_headers=headers) as socket:
                without = KEYS.replace("reader-secret", "another-secret")
                (tmp_path / "keys.toml").write_text(without)
                for stream in streams:
                    events = await stream.ended()
                    assert [event.name for event in events] == ["error"]
                    assert events[0].data["error"]["code"] == "unauthorized"
                with pytest.raises(ConnectionClosed) as caught:
                    await socket.recv()
                assert caught.value.rcvd is not None
                assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1008, "unauthorized")
            assert (await reader.get("/v0/topics")).status == 401
            assert (await served.api.using("another-secret").get("/v0/topics")).status == 200
            await root.append("orders.a", 1)
            assert (await kept.named("record")).seqs == [1], "whoever may read reads on"

            (tmp_path / "keys.toml").write_text(without.replace('["orders.", "stock."]', '["x"]'))
            events = await kept.ended()
            assert events[-1].data["error"]["code"] == "unauthorized", "it may read less now"
            assert (await writer.get("/v0/topics/orders.a/watch")).status == 403

            (tmp_path / "keys.toml").write_text("[[key]]\nname = ")
            assert (await root.get("/v0/topics")).status == 200, "a slip of the editor"

    run(scenario())


def test_a_request_that_waits_under_a_key_that_is_gone_is_told_nothing(tmp_path: Path) -> None:
    """Nor one whose key may read less by now."""

    async def scenario() -> None:
        keys = KEYS.replace('["orders."]', '["orders.", "stock."]')
        async with keyed(tmp_path, keys) as served:
            root, reader, writer = (
                served.api.using(f"{name}-secret") for name in ("root", "reader", "writer")
            )
            await root.put("/v0/topics/orders.a")
            made = await root.post("/v0/jobs", {"jobs": [{"kind": "k", "queue": "orders.q"}]})
            job = made.json["jobs"][0]["id"]
            wait = {"from_seq": 0, "wait_ms": 30_000}
            async with asyncio.TaskGroup() as group:
                waiting = [
                    group.create_task(call)
                    for api in (reader, writer)
                    for call in (
                        api.post("/v0/topics/orders.a/diff", wait),
                        api.get(f"/v0/jobs/{job}?wait_ms=30000"),
                    )
                ]
                topic = served.app.topics.get("orders.a")
                await until(
                    lambda: topic.active is not None and len(topic.active.subscribers.waiters) == 2
                )
                (tmp_path / "keys.toml").write_text(
                    keys.replace("reader-secret", "another-secret").replace('"orders.", ', "")
                )
                while (await writer.get("/v0/topics/orders.a")).status != 403:
                    pass
                await root.append("orders.a", "a secret")
                await root.post(f"/v0/jobs/{job}/cancel", {"reason": "a secret"})
            answers = [each.result() for each in waiting]
            assert [answer.status for answer in answers] == [401, 401, 403, 404]
            assert not any(b"a secret" in answer.body for answer in answers)

    run(scenario())


def test_an_expired_key_ends_its_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = KEYS.replace('scopes = ["read"]', 'scopes = ["read"]\nexpires = 2100-01-01')
        async with keyed(tmp_path, keys) as served:
            root, reader = (served.api.using(f"{name}-secret") for name in ("root", "reader"))
            await root.put("/v0/topics/orders.a")
            stream = await reader.watch("orders.a")
            await stream.named("caught-up")
            host = served.server.host
            assert host is not None
            clock = host.clock

            class Later:
                def now_ns(self) -> int:
                    return clock.now_ns()

                def wall_ns(self) -> int:
                    return 5 * 10**18  # the year 2128

            host.clock = Later()  # type: ignore[assignment]
            [event] = await stream.ended()
            assert "expired" in event.data["error"]["message"]

    run(scenario())


# --- quotas


def test_quotas_of_a_key_are_429_with_their_limit(tmp_path: Path) -> None:
    keys = "".join(
        [
            quota("topics", topics=1),
            quota("rate", records_per_second=2),
            quota("bytes", bytes_per_second=100),
            quota("stored", stored_bytes=200),
            quota("requests", requests_per_second=3),
            quota("streams", connections=1),
            quota("flight", in_flight=1),
        ]
    )

    async def scenario() -> None:
        async with keyed(tmp_path, keys) as served:

            def api(name: str) -> Api:
                return served.api.using(f"{name}-secret")

            def check(answer: Any, limit: str, most: int) -> None:
                assert (answer.status, answer.code) == (429, "throttled"), limit
                detail = answer.error["detail"]
                assert (detail["limit"], detail["max"]) == (limit, most)
                assert detail["retry_after_ms"] >= 1
                assert int(answer.header("retry-after")) >= 1

            assert (await api("topics").put("/v0/topics/q.1")).status == 201
            check(await api("topics").put("/v0/topics/q.2"), "topics", 1)
            check(await api("topics").post("/v0/topics/q.2", RECORD), "topics", 1)
            await api("topics").delete("/v0/topics/q.1")

            assert (await api("rate").append("q.rate", 1, 2))["count"] == 2
            check(await api("rate").post("/v0/topics/q.rate", RECORD), "records_per_second", 2)
            assert (await api("rate").state("q.rate"))["head_seq"] == 2

            await api("bytes").append("q.bytes", "x" * 200)
            check(await api("bytes").post("/v0/topics/q.bytes", RECORD), "bytes_per_second", 100)

            await api("stored").append("q.stored", "x" * 150)
            check(
                await api("stored").post("/v0/topics/q.stored", {"records": [{"data": "x" * 60}]}),
                "stored_bytes",
                200,
            )
            assert (await api("stored").state("q.stored"))["head_seq"] == 1

            answers = [await api("requests").get("/v0/topics") for _ in range(5)]
            assert [answer.status for answer in answers[:3]] == [200] * 3
            check(answers[-1], "requests_per_second", 3)

            stream = await api("streams").watch("q.rate")
            await stream.named("caught-up")
            check(await api("streams").get("/v0/topics/q.rate/watch"), "connections", 1)
            url = f"ws://127.0.0.1:{served.api.port}/v0/ws"
            headers = {"authorization": "Bearer streams-secret"}
            with pytest.raises(Exception, match="429"):
                async with connect(url, proxy=None, additional_headers=headers):
                    pass
            await stream.close()
            host = served.server.host
            assert host is not None
            await until(lambda: not host.quotas.statistics()["streams"].connections)
            again = await api("streams").watch("q.rate")
            await again.close()

            async with asyncio.TaskGroup() as group:
                poll = group.create_task(api("flight").diff("q.rate", 2, wait_ms=30_000))
                allowances = host.quotas.statistics
                await until(lambda: "flight" in allowances() and allowances()["flight"].in_flight)
                check(await api("flight").get("/v0/topics"), "in_flight", 1)
                await api("stored").append("q.rate", 1)
                await poll
            assert (await api("flight").get("/v0/topics")).status == 200

    run(scenario())


def test_what_a_stream_begins_with_counts_as_what_is_appended_to_it(tmp_path: Path) -> None:
    keys = "".join(quota(f"k{n}", records_per_second=10) for n in range(5))
    many, json_type = json.dumps(list(range(1000))).encode(), {"content-type": "application/json"}
    fork = {"stream-forked-from": "/v1/stream/k0"}
    text = {"content-type": "text/plain"}

    async def scenario() -> None:
        async with keyed(tmp_path, keys) as served:

            async def puts(key: str, body: bytes, headers: dict[str, str]) -> list[int]:
                api = served.api.using(f"{key}-secret")
                paths = (key, key, f"{key}/again")
                return [
                    (await api.put(f"/v1/stream/{path}", raw=body, headers=headers)).status
                    for path in paths
                ]

            # What is there already gets nothing, which is free; and the debt is of many seconds.
            assert await puts("k0", many, json_type) == [201, 200, 429]
            assert await puts("k1", many, fork) == [201, 200, 429], "of its source's type"
            assert await puts("k2", many, text) == [201, 200, 201], "bytes: one record"
            assert await puts("k3", many, {**fork, **json_type}) == [201, 200, 429]
            assert await puts("k4", b"[1,", json_type) == [400, 400, 400]
            api = served.api.using("k2-secret")
            assert (await api.get("/v0/topics/ds:k1:again")).status == 404, "nothing was made"

    run(scenario())


def test_a_quota_of_topics_holds_however_they_are_made(tmp_path: Path) -> None:
    """At once, again and again, over a WebSocket; and who waits for one topic counts it once."""

    async def scenario() -> None:
        async with keyed(tmp_path, quota("crowd", topics=3) + quota("lone", topics=1)) as served:
            api = served.api.using("crowd-secret")
            async with asyncio.TaskGroup() as group:
                made = [
                    *(group.create_task(api.put(f"/v0/topics/put.{n}")) for n in range(4)),
                    *(
                        group.create_task(api.post(f"/v0/topics/post.{n}", RECORD))
                        for n in range(4)
                    ),
                    *(group.create_task(api.put(f"/v1/stream/{n}")) for n in range(4)),
                ]
            statuses = sorted(one.result().status for one in made)
            assert statuses == [201] * 3 + [429] * 9

            lone = served.api.using("lone-secret")
            async with asyncio.TaskGroup() as group:
                same = [group.create_task(lone.post("/v0/topics/lone", RECORD)) for _ in range(4)]
            assert sorted(one.result().status for one in same) == [200, 200, 200, 201]
            await lone.delete("/v0/topics/lone")

            url = f"ws://127.0.0.1:{served.api.port}/v0/ws"
            headers = {"authorization": "Bearer crowd-secret"}
            for topic in served.app.topics.ordered():
                await api.delete(f"/v0/topics/{topic.name}")
            host = served.server.host
            assert host is not None
            host.state(TopicQuotas).forget_sums()
            told = []
            async with connect(url, proxy=None, additional_headers=headers) as socket:
                for number in range(5):
                    message = {"op": "publish", "topic": f"ws.{number}", **RECORD}
                    await socket.send(json.dumps(message))
                    told.append(json.loads(await socket.recv())["op"])
            assert told == ["published"] * 3 + ["error"] * 2

    run(scenario())


def test_a_router_makes_no_topic_beyond_the_quota_of_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("crowd", topics=2)) as served:
            api = served.api.using("crowd-secret")
            for name in ("a", "b"):
                assert (await api.put(f"/v0/topics/{name}")).status == 201
            refused = await api.put("/v0/routers/r", {"source": "a", "dest": "c"})
            assert (refused.status, refused.code) == (429, "throttled")
            assert refused.error["detail"]["limit"] == "topics"
            assert (await api.get("/v0/topics/c")).status == 404, "nothing was made"
            assert (await api.get("/v0/routers/r")).status == 404
            wrong = [
                ({"source": "a", "dest": "-"}, 400),
                ({"source": "a", "dest": "c", "create_dest": False}, 404),
            ]
            for body, status in wrong:
                assert (await api.put("/v0/routers/r", body)).status == status, body
            made = await api.put("/v0/routers/r", {"source": "a", "dest": "b"})
            assert made.status == 201, "it needs no topic more"

    run(scenario())


def test_a_quota_of_topics_holds_for_those_that_wait_for_each_other(tmp_path: Path) -> None:
    """Routers are made one at a time, and so are the forks of one stream."""

    async def scenario() -> None:
        async with keyed(tmp_path, quota("routers", topics=3) + quota("forks", topics=3)) as served:

            async def refused(calls: list[Any], *, owner: str) -> list[int]:
                """The statuses of calls that are made at once, of which two have room."""
                async with asyncio.TaskGroup() as group:
                    made = [group.create_task(call) for call in calls]
                assert sorted(one.result().status for one in made) == [201] * 2 + [429] * 6
                for one in made:
                    if one.result().status == 429:
                        assert one.result().error["detail"]["limit"] == "topics"
                assert sum(topic.owner == owner for topic in served.app.topics) == 3
                return [one.result().status for one in made]

            api = served.api.using("routers-secret")
            await api.put("/v0/topics/source")
            routers = [{"source": "source", "dest": f"dest.{n}"} for n in range(8)]
            statuses = await refused(
                [api.put(f"/v0/routers/{n}", body) for n, body in enumerate(routers)],
                owner="routers",
            )
            listed = (await api.get("/v0/routers")).json["routers"]
            assert [one["router"] for one in listed] == [
                str(n) for n, status in enumerate(statuses) if status == 201
            ], "what was refused is not there"

            api = served.api.using("forks-secret")
            await api.put("/v1/stream/source", raw=b"x", headers={"content-type": "text/plain"})
            fork = {"stream-forked-from": "/v1/stream/source"}
            statuses = await refused(
                [api.put(f"/v1/stream/fork/{n}", headers=fork) for n in range(8)], owner="forks"
            )
            for n, status in enumerate(statuses):
                found = await api.get(f"/v1/stream/fork/{n}")
                assert found.status == (200 if status == 201 else 404)

    run(scenario())


def test_what_a_router_makes_counts_for_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("crowd", topics=2)) as served:
            api = served.api.using("crowd-secret")
            await api.put("/v0/topics/a")
            first = await api.put("/v0/routers/1", {"source": "a", "dest": "b"})
            second = await api.put("/v0/routers/2", {"source": "a", "dest": "c"})
            assert (first.status, second.status) == (201, 429)
            assert (await api.get("/v0/topics/c")).status == 404

    run(scenario())


def test_a_quota_that_comes_by_reload_holds_for_sockets_that_are_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        hundred = {"records": RECORD["records"] * 100}
        async with keyed(tmp_path, quota("key")) as served:
            api = served.api.using("key-secret")
            host = served.server.host
            assert host is not None
            url = f"ws://127.0.0.1:{served.api.port}/v0/ws"
            headers = {"authorization": "Bearer key-secret"}
            async with connect(url, proxy=None, additional_headers=headers) as socket:

                async def publish() -> Any:
                    message = {"op": "publish", "topic": "t", **hundred}
                    await socket.send(json.dumps(message))
                    return json.loads(await socket.recv())

                assert [(await publish())["op"] for _ in range(3)] == ["published"] * 3
                (tmp_path / "keys.toml").write_text(quota("key", records_per_second=1))
                [guest] = host.guests
                confirm = host.access.confirm
                await until(lambda: confirm(guest.identity, 0).quota.records_per_s)
                assert (await api.post("/v0/topics/t", hundred)).status == 200, "and has a debt now"
                refused = await publish()
                assert (refused["op"], refused["code"]) == ("error", "throttled")
                assert refused["detail"]["limit"] == "records_per_second"
                assert (await api.post("/v0/topics/t", RECORD)).status == 429, "the debt is there"

    run(scenario())


# --- tickets


def test_a_ticket_is_good_once_for_its_path_and_as_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            anyone = served.api
            root, reader = (anyone.using(f"{name}-secret") for name in ("root", "reader"))
            await root.append("orders.a", 1)
            await root.append("hr.a", 1)
            path = "/v0/topics/orders.a/watch"
            assert (await anyone.post("/v0/tickets", {})).status == 401

            async def ticket(path: str | None = None) -> str:
                answer = await reader.post("/v0/tickets", {"path": path} if path else None)
                assert answer.status == 201
                assert answer.json.keys() == {"ticket", "expires_in_ms"}
                return str(answer.json["ticket"])

            secret = await ticket(path)
            wrong = await anyone.get(f"{path}?ticket={secret}&from=1")
            assert wrong.status == 400, "a request that is wrong uses no ticket up"
            stream = await anyone.stream(f"{path}?ticket={secret}&from_seq=0")
            assert await stream.seqs(1) == [1]
            used = await anyone.get(f"{path}?ticket={secret}")
            assert (used.status, used.code) == (401, "unauthorized")

            bound = await ticket(path)
            assert (await anyone.get(f"/v0/topics/orders.b/watch?ticket={bound}")).status == 401
            assert (await anyone.get(f"{path}?ticket={bound}")).status == 401, "and is used up"

            free = await ticket()
            assert (await anyone.get(f"/v0/topics/hr.a/watch?ticket={free}")).status == 403
            session = await reader.session(topics={"orders.a": {}})
            stream = await anyone.stream(f"{session}?ticket={await ticket()}")
            assert await stream.seqs(1) == [1], "a session opens by a ticket of its key"
            foreign = (await root.post("/v0/tickets", {})).json["ticket"]
            assert (await anyone.get(f"{session}?ticket={foreign}")).status == 403

    run(scenario())


def test_a_ticket_opens_what_lasts_and_does_nothing_else(tmp_path: Path) -> None:
    """Else one that leaks could delete, or be changed for a new one without end."""

    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            anyone, root = served.api, served.api.using("root-secret")
            await root.append("orders.a", 1)
            await root.put("/v1/stream/s", headers={"content-type": "text/plain"})
            secret = (await root.post("/v0/tickets", {})).json["ticket"]
            for method, path, body in (
                ("POST", "/v0/tickets", {}),
                ("DELETE", "/v0/topics/orders.a", None),
                ("POST", "/v0/topics/orders.a", RECORD),
                ("PUT", "/v0/topics/orders.b", {}),
                ("GET", "/v0/topics", None),
                ("HEAD", "/v0/topics", None),
                ("POST", "/v0/watch", {"topics": {"orders.a": {}}}),
                ("GET", "/metrics", None),
                ("DELETE", "/v1/stream/s", None),
                ("PUT", "/v1/stream/t", None),
                ("GET", "/v1/stream/s", None),
                ("POST", "/v1/stream/s?live=sse", None),
            ):
                query = f"{'&' if '?' in path else '?'}ticket={secret}"
                answer = await anyone.call(method, path + query, body)
                assert answer.status == 401, (method, path)
                if method != "HEAD":
                    assert answer.code == "unauthorized"
                    assert "event streams and WebSockets" in answer.error["message"]
            names = [one["topic"] for one in (await root.get("/v0/topics")).json["topics"]]
            assert names == ["ds:s", "orders.a"], "nothing changed"
            stream = await anyone.watch("orders.a", f"?ticket={secret}")
            assert await stream.seqs(1) == [1], "none of them used it up"
            again = (await root.post("/v0/tickets", {})).json["ticket"]
            await anyone.stream(f"/v1/stream/s?offset=-1&live=sse&ticket={again}")
            both = await root.get(f"/v0/topics?ticket={secret}")
            assert both.status == 200, "a key counts wherever it is sent"

    run(scenario())


def test_no_secret_reaches_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with keyed(tmp_path) as served:
            root = served.api.using("root-secret")
            await root.append("orders.a", 1)
            secret = (await root.post("/v0/tickets", {})).json["ticket"]
            await (await served.api.watch("orders.a", f"?ticket={secret}")).named("caught-up")
            await served.api.using("wrong-secret").get(f"/v0/topics?ticket={secret}")
            assert caplog.records
            said = "\n".join(record.getMessage() for record in caplog.records)
            for kept in (secret, "root-secret", "wrong-secret"):
                assert kept not in said

    run(scenario())


# --- without keys


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with shared_site(tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ({"host": "evil.example"}, {"host": "evil.example"}),
        ({"host": "localhost.evil.example"}, {"host": "localhost.evil.example"}),
        ({"host": "192.168.0.1:4000"}, {"host": "192.168.0.1:4000"}),
        ({"origin": "https://evil.example"}, {"origin": "https://evil.example"}),
        ({"origin": "null"}, {"origin": "null"}),
    ],
)
def test_without_keys_a_page_from_elsewhere_can_do_nothing(
    site: Site, headers: dict[str, str], detail: dict[str, str]
) -> None:
    async def scenario(api: Api) -> None:
        await api.append("own", 1)
        page = Api(api.port, headers)
        for method, path, body in (
            ("POST", "/v0/topics/own", RECORD),
            ("PUT", "/v0/topics/own", {"ttl_ms": 1}),
            ("POST", "/v0/topics/own/diff", {}),
            ("POST", "/v0/topics/own/delete", {"before_seq": 9}),
            ("DELETE", "/v0/topics/own", None),
            ("GET", "/v0/topics/own/watch", None),
            ("POST", "/v0/watch", {"topics": {"own": {}}}),
            ("POST", "/v0/tickets", {}),
            ("GET", "/metrics", None),
        ):
            answer = await page.call(method, path, body)
            assert (answer.status, answer.code) == (403, "forbidden"), path
            assert answer.error["detail"] == detail
            assert "access-control-allow-origin" not in dict(answer.headers)
        preflight = await page.call("OPTIONS", "/v0/topics/own")
        assert not [name for name, _ in preflight.headers if name.startswith("access-control")]

    site.run(scenario(site.api))


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "127.0.0.1:4000"},
        {"host": "[::1]:80"},
        {"host": "app.localhost"},
        {"origin": "http://localhost:3000"},
    ],
)
def test_without_keys_the_machine_itself_is_served(site: Site, headers: dict[str, str]) -> None:
    async def scenario(api: Api) -> None:
        assert (await Api(api.port, headers).get("/v0/topics")).status == 200

    site.run(scenario(site.api))


# --- CORS


def test_pages_of_an_allowed_origin_may_call_and_read_everything(tmp_path: Path) -> None:
    origin = "https://shop.example"

    async def scenario() -> None:
        async with serving(tmp_path, cors_origins=(origin,)) as served:
            page = Api(served.api.port, {"origin": origin})
            preflight = await page.call(
                "OPTIONS",
                "/v0/topics/t",
                headers={
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "content-type, stream-future",
                },
            )
            assert preflight.status == 204
            assert preflight.header("access-control-allow-origin") == origin
            assert "POST" in str(preflight.header("access-control-allow-methods"))
            allowed = str(preflight.header("access-control-allow-headers")).lower()
            for name in ("content-type", "authorization", "last-event-id", "idempotency-key"):
                assert name in allowed
            assert "stream-future" in allowed
            answers = [
                await page.post("/v0/topics/t", RECORD),
                await page.get("/v0/topics/absent"),
                await page.post("/v0/topics/t", {"wrong": 1}),
            ]
            assert [answer.status for answer in answers] == [201, 404, 400]
            for answer in answers:
                assert answer.header("access-control-allow-origin") == origin
                assert answer.header("vary") == "Origin"
                assert "retry-after" in str(answer.header("access-control-expose-headers"))
            stream = await page.watch("t")
            assert stream.headers["access-control-allow-origin"] == origin
            foreign = Api(served.api.port, {"origin": "https://evil.example"})
            refused = await foreign.post("/v0/topics/t", RECORD)
            assert refused.status == 403
            assert refused.header("access-control-allow-origin") is None

    run(scenario())


def test_a_key_decides_and_not_the_origin(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, cors_origins=("*",)) as served:
            page = Api(
                served.api.port,
                {"origin": "https://any.example", "host": "evil.example"},
            ).using("root-secret")
            answer = await page.get("/v0/topics")
            assert answer.status == 200
            assert answer.header("access-control-allow-origin") == "*"
            assert json.loads(answer.body) == {"topics": []}

    run(scenario())


# --- TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_the_command_serves_https_with_its_tls_options(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with server_process(tmp_path / "data", *options) as process:
        trust = ssl.create_default_context(cafile=cert)
        url = f"https://localhost:{process.port}"
        with httpx.Client(base_url=url, verify=trust, trust_env=False) as client:
            assert client.post("/v0/topics/t", json=RECORD).status_code == 201
            with client.stream("GET", "/v0/topics/t/watch") as stream:
                lines = stream.iter_lines()
                assert any(line == "event: record" for line in lines)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://localhost:{process.port}/healthz", trust_env=False)


# --- what is stored, and what routers make of it


def test_a_quota_of_stored_bytes_is_not_passed_by_many_small_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("small", stored_bytes=20_000)) as served:
            api = served.api.using("small-secret")
            statuses: list[int] = []

            async def write(topic: str) -> None:
                for _ in range(30):
                    body = {"records": [{"data": 1}] * 5}
                    statuses.append((await api.post(f"/v0/topics/{topic}", body)).status)

            async with asyncio.TaskGroup() as group:
                for number in range(12):
                    group.create_task(write(f"small.{number % 4}"))
            assert {429} < set(statuses) <= {200, 201, 429}
            states = [await api.state(f"small.{number}") for number in range(4)]
            assert 19_000 < sum(state["bytes"] for state in states) <= 20_000

    run(scenario())


def test_deleted_records_count_until_their_rows_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("k", stored_bytes=10_000)) as served:
            api = served.api.using("k-secret")

            def records(*tags: str) -> dict[str, Any]:
                return {"records": [{"data": "x" * 4_000, "tag": tag} for tag in tags]}

            assert (await api.post("/v0/topics/t", records("a", "b"))).status == 201
            await api.post("/v0/topics/t/delete", {"match": "a"})
            assert (await api.post("/v0/topics/t", records("c"))).code == "throttled"
            assert (await api.state("t"))["bytes"] < 5_000, "what lives is told as before"
            gone = (await api.post("/v0/topics/t/delete", {"match": "b"})).json
            assert (gone["deleted"], gone["count"], gone["earliest_seq"]) == (1, 0, 3)

            async with asyncio.timeout(30):
                while (await api.post("/v0/topics/t", records("c"))).status != 200:
                    pass

    run(scenario())


RING = [(f"ring.{a}", f"ring.{b}") for a in range(5) for b in range(5) if a != b]


def test_routers_of_a_key_stop_at_its_stored_bytes_and_go_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("k", stored_bytes=20_000)) as served:
            api = served.api.using("k-secret")
            await api.put("/v0/topics/a")
            for name in "bcd":
                await api.put(f"/v0/routers/{name}", {"source": "a", "dest": name})
            await api.append("a", *("x" * 1_000 for _ in range(7)))
            topics = served.app.topics

            def stored() -> int:
                return sum(topic.stored for topic in topics)

            def copies() -> int:
                return sum(topics.get(name).head for name in "bcd")

            # As many as there is room for, though there is none for all that a router has read.
            await until(lambda: copies() == 12)
            await until(lambda: any(router.error for router in topics.routers().values()))
            assert stored() <= 20_000
            listed = (await api.get("/v0/routers")).json["routers"]
            assert any("20,000 stored bytes" in (one["error"] or "") for one in listed)
            assert sum(one["lag"] for one in listed) == 9
            for name in "bcd":
                await api.post(f"/v0/topics/{name}/delete", {"before_seq": 100})
            await until(lambda: copies() == 21)
            await until(lambda: not any(router.error for router in topics.routers().values()))
            assert stored() <= 20_000

    run(scenario())


def test_one_record_does_not_fill_a_store_through_a_ring_of_routers(tmp_path: Path) -> None:
    """Five topics joined with one another: what each router makes is copied by four others."""

    async def scenario() -> None:
        async with keyed(tmp_path, quota("ring", stored_bytes=100_000)) as served:
            api = served.api.using("ring-secret")
            topics = served.app.topics
            for number in range(5):
                await api.put(f"/v0/topics/ring.{number}")
            for number, (source, dest) in enumerate(RING):
                rule = {"source": source, "dest": dest, "allow_cycle": True}
                assert (await api.put(f"/v0/routers/{number}", rule)).status == 201
            await api.append("ring.0", "x" * 1_000)
            await until(lambda: any(router.error for router in topics.routers().values()))
            for _ in range(20):
                assert sum(topic.stored for topic in topics) <= 100_000
                await api.get("/v0/routers")

    run(scenario())


def test_routers_of_a_key_keep_to_its_rates(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with keyed(tmp_path, quota("slow", records_per_second=20)) as served:
            api = served.api.using("slow-secret")
            await api.put("/v0/topics/a")
            await api.put("/v0/routers/r", {"source": "a", "dest": "b"})
            await api.append("a", *range(20))
            router = served.app.topics.router("r")
            await until(lambda: router.error)
            assert "20 records per second" in (await api.get("/v0/routers/r")).json["error"]
            await until(lambda: served.app.topics.get("b").head == 20)
            await until(lambda: router.state().error is None)

    run(scenario())

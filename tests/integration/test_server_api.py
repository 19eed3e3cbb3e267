"""Every route over a real socket: what it answers, and that what it refuses changes nothing.

One server for the whole module; tests keep apart by the names of their topics.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairway.app import Fairway
from fairway.server.http.limits import HttpLimits
from fairway.topics.engine import TopicsConfig
from fairway.wire.topics import PAGE_MAX
from tests.support.server import JSON, Answer, Api, Site, Wire, run, serving, shared_site, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BODY_MAX = 4 * 1024 * 1024
CONFIG = {
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durability": "fsync",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
}
ROUTER = {
    "filter": None,
    "preserve_node": True,
    "preserve_tag": True,
    "create_dest": True,
    "allow_cycle": False,
}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    limits = HttpLimits(body_bytes_max=BODY_MAX)
    with shared_site(tmp_path_factory.mktemp("data"), limits=limits) as made:
        yield made


# --- records


def test_append_and_diff_reply_with_exactly_the_documented_fields(site: Site) -> None:
    async def scenario(api: Api) -> None:
        body = {
            "records": [
                {"data": {"a": [1, 2.50, None]}, "tag": "t1", "node": "n1", "meta": {"k": "v"}},
                {"data": "plain"},
            ],
            "node": "n0",
        }
        first = await api.post("/v0/topics/exact", body, headers={"traceparent": TRACE})
        assert first.status == 201
        epoch = first.json["epoch"]
        assert first.json == {
            "topic": "exact",
            "epoch": epoch,
            "first_seq": 1,
            "last_seq": 2,
            "seqs": [1, 2],
            "head_seq": 2,
            "count": 2,
            "created": True,
            "deduped": False,
        }
        again = await api.post("/v0/topics/exact?return_seqs=false", {"records": [{"data": 3}]})
        assert again.status == 200
        assert "seqs" not in again.json
        assert (again.json["first_seq"], again.json["created"]) == (3, False)

        page = await api.diff("exact", include_tags=True)
        times = [record.pop("$ts") for record in page["records"]]
        assert all(isinstance(ts, int) for ts in times)
        assert times == sorted(times)
        assert page == {
            "topic": "exact",
            "epoch": epoch,
            "records": [
                {
                    "$seq": 1,
                    "$node": "n1",
                    "$tag": "t1",
                    "data": {"a": [1, 2.5, None]},
                    "meta": {"k": "v"},
                    "$traceparent": TRACE,
                },
                {"$seq": 2, "$node": "n0", "data": "plain", "$traceparent": TRACE},
                {"$seq": 3, "data": 3},
            ],
            "next_from_seq": 3,
            "head_seq": 3,
            "earliest_seq": 1,
            "caught_up": True,
            "tombstone": None,
            "lag": 0,
        }
        bare = await api.diff("exact", include_meta=False)
        assert bare["records"][0].keys() == {"$seq", "$ts", "$node", "data"}

    site.run(scenario(site.api))


def test_data_comes_back_as_it_was_spelled(site: Site) -> None:
    spelled = b'{"records":[{"data":  {"b":1.50,\n\t"a":[ "\\u00e9\\n\xc3\xa9" ]}}]}'

    async def scenario(api: Api) -> None:
        made = await api.post("/v0/topics/spelled", raw=spelled, headers=JSON)
        assert made.status == 201
        page = await api.post("/v0/topics/spelled/diff", {})
        assert b'"data":{"b":1.50,"a":["\\u00e9\\n\xc3\xa9"]}' in page.body

    site.run(scenario(site.api))


def test_diff_pages_clamps_and_filters(site: Site) -> None:
    async def scenario(api: Api) -> None:
        records = [{"data": n, "tag": f"t{n % 2}", "node": f"n{n % 3}"} for n in range(1, 1201)]
        await api.post("/v0/topics/pages", {"records": records})
        for asked, given in ((None, 256), (0, 256), (7, 7), (1000, 1000), (10**9, 1000)):
            limit = {} if asked is None else {"limit": asked}
            page = await api.diff("pages", **limit)
            assert len(page["records"]) == given
            assert (page["next_from_seq"], page["lag"]) == (given, 1200 - given)
            assert page["caught_up"] is False
        small = await api.diff("pages", max_batch_bytes=1)
        assert len(small["records"]) == 1, "at least one record, whatever the limit"
        beyond = await api.diff("pages", 1000, max_batch_bytes=2**62, limit=1000)
        assert (len(beyond["records"]), beyond["caught_up"]) == (200, True)

        odd = await api.diff("pages", 1190, match="t1", include_tags=True)
        assert [record["$seq"] for record in odd["records"]] == [1191, 1193, 1195, 1197, 1199]
        assert odd["next_from_seq"] == 1200, "the cursor moves past what was left out"
        either = await api.diff("pages", 1190, match=["tag", "Glob", "t*"])
        assert len(either["records"]) == 10
        others = await api.diff("pages", 1190, node=["n0", "n1"])
        assert [record["$node"] for record in others["records"]] == ["n2"] * len(others["records"])
        assert (await api.diff("pages", 0, match="none", limit=1000))["caught_up"] is False
        await api.put("/v0/topics/pages", {"dedupe_node": False})
        assert len((await api.diff("pages", 1190, node="n0"))["records"]) == 10

    site.run(scenario(site.api))


def test_idempotency_key_in_the_body_wins_over_the_header(site: Site) -> None:
    async def scenario(api: Api) -> None:
        async def append(value: int, key: str | None, header: str | None) -> Any:
            body: dict[str, Any] = {"records": [{"data": value}]}
            if key is not None:
                body["idempotency_key"] = key
            headers = {"idempotency-key": header} if header is not None else {}
            answer = await api.post("/v0/topics/once", body, headers=headers)
            assert answer.status in (200, 201)
            return answer.json

        assert (await append(1, "k", None))["deduped"] is False
        again = await append(1, None, "k")
        assert (again["first_seq"], again["deduped"]) == (1, True)
        other = await append(2, "j", "k")
        assert (other["first_seq"], other["deduped"]) == (2, False)
        assert (await append(2, "j", "l"))["deduped"] is True
        assert (await api.state("once"))["head_seq"] == 2

    site.run(scenario(site.api))


def test_delete_records_by_seq_by_tag_and_both(site: Site) -> None:
    async def scenario(api: Api) -> None:
        records = [{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 11)]
        await api.post("/v0/topics/cut", {"records": records})

        async def delete(body: Any) -> Any:
            answer = await api.post("/v0/topics/cut/delete", body)
            assert answer.status == 200
            return answer.json

        gone = await delete({"before_seq": 4})
        size = gone.pop("bytes")
        assert gone == {"topic": "cut", "deleted": 3, "earliest_seq": 4, "head_seq": 10, "count": 7}
        assert (await delete({"before_seq": 4}))["deleted"] == 0
        assert (await delete({"before_seq": 7, "match": "odd"}))["deleted"] == 1
        for body in ({"seq": 5}, {"seq": 11}, {"seq": 6, "match": "odd"}):
            assert (await delete(body))["deleted"] == 0, "it is not there"
        assert (await delete({"seq": 4}))["earliest_seq"] == 6
        assert (await delete({"seq": 4}))["deleted"] == 0
        left = await delete({"match": ["tag", "Glob", "eve*"]})
        assert (left["deleted"], left["count"]) == (3, 2)
        assert left["bytes"] < size
        page = await api.diff("cut")
        assert [record["$seq"] for record in page["records"]] == [7, 9]
        assert page["tombstone"] is None, "what was asked for is removed in silence"
        assert "fairway-gap" not in dict((await api.post("/v0/topics/cut/diff", {})).headers)

    site.run(scenario(site.api))


def test_a_loss_is_told_in_the_body_and_in_a_header(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.put("/v0/topics/capped", {"cap_records": 3})
        await api.append("capped", *range(10))
        answer = await api.post("/v0/topics/capped/diff", {"from_seq": 2})
        assert answer.header("fairway-gap") == "3-7"
        assert answer.json["tombstone"] == {
            "reason": "cap",
            "gap_from": 3,
            "gap_to": 7,
            "missed_estimate": 5,
            "earliest_seq": 8,
            "head_seq": 10,
        }
        assert [record["$seq"] for record in answer.json["records"]] == [8, 9, 10]
        later = await api.diff("capped", 7)
        assert later["tombstone"] is None

    site.run(scenario(site.api))


def test_a_cursor_of_another_incarnation_is_told_so(site: Site) -> None:
    async def scenario(api: Api) -> None:
        old = (await api.append("anew", 1, 2, 3))["epoch"]
        await api.delete("/v0/topics/anew")
        new = (await api.append("anew", 4))["epoch"]
        assert new != old
        for body in ({"from_seq": 3}, {"from_seq": 1, "epoch": old}, {"epoch": old}):
            page = await api.diff("anew", **body)
            assert page["tombstone"]["reason"] == "recreated", body
            assert [record["data"] for record in page["records"]] == [4]
        assert (await api.diff("anew", 1, epoch=new))["tombstone"] is None

    site.run(scenario(site.api))


def test_a_long_poll_answers_at_once_when_something_comes_and_in_time_when_nothing_does(
    site: Site,
) -> None:
    async def scenario(api: Api) -> None:
        await api.append("poll", 1)
        began = time.monotonic()
        empty = await api.diff("poll", 1, wait_ms=50)
        assert time.monotonic() - began >= 0.05
        assert (empty["records"], empty["caught_up"]) == ([], True)

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(api.diff("poll", 1, wait_ms=2**60))
            topic = site.served.app.topics.get("poll")
            await until(lambda: topic.active is not None and topic.active.subscribers.waiters)
            await api.append("poll", 2)
            page = await waiting
        assert [record["$seq"] for record in page["records"]] == [2]
        assert (await api.diff("poll", 0, wait_ms=30_000))["next_from_seq"] == 2

    site.run(scenario(site.api))


# --- topics


def test_put_get_list_and_delete_a_topic(site: Site) -> None:
    async def scenario(api: Api) -> None:
        made = await api.put("/v0/topics/life", {"ttl_ms": 60_000, "priority": 700})
        assert made.status == 201
        epoch = made.json["epoch"]
        config = {**CONFIG, "ttl_ms": 60_000, "priority": 700}
        created = {"topic": "life", "created": True, "epoch": epoch, "config": config}
        assert made.json == created
        again = await api.put("/v0/topics/life")
        assert again.status == 200
        assert again.json == {**created, "created": False}, "an empty PUT changes nothing"
        changed = await api.put("/v0/topics/life", {"priority": None, "discard": "reject"})
        config = {**config, "priority": None, "discard": "reject"}
        assert changed.json["config"] == config

        await api.append("life", "x")
        state = await api.state("life")
        written = state.pop("last_write_ts")
        assert isinstance(written, int)
        assert state.pop("bytes") > 0
        assert state == {
            "topic": "life",
            "epoch": epoch,
            "head_seq": 1,
            "earliest_seq": 1,
            "evict_floor": 1,
            "next_seq": 2,
            "count": 1,
            "config": config,
            "effective_priority": 0,
            "last_read_ts": None,
            "watchers": 0,
        }
        touched = (await api.get("/v0/topics/life")).json
        assert 400 < touched["effective_priority"] <= 500, "a look at it counts as reading"
        assert touched["last_read_ts"] >= written
        head = await api.call("HEAD", "/v0/topics/life?touch=false")
        assert (head.status, head.body) == (200, b"")
        assert int(head.header("content-length") or 0) > 100

        refused = await api.delete("/v0/topics/life?if_empty=true")
        assert (refused.status, refused.code) == (409, "topic_not_empty")
        gone = await api.delete("/v0/topics/life")
        assert gone.json == {"topic": "life", "deleted": True, "routers_removed": []}
        absent = await api.delete("/v0/topics/life")
        assert (absent.status, absent.json["deleted"]) == (200, False)
        assert (await api.get("/v0/topics/life")).code == "topic_not_found"

    site.run(scenario(site.api))


def test_lists_come_in_pages_with_a_cursor_until_the_last(site: Site) -> None:
    async def scenario(api: Api) -> None:
        names = [f"list.{n:02d}" for n in range(7)]
        for name in reversed(names):
            await api.put(f"/v0/topics/{name}")
        for kind, field in (("topics", "topic"), ("routers", "router")):
            seen, cursor, pages = [], "", 0
            while True:
                path = f"/v0/{kind}?prefix=list.&page_size=3"
                answer = await api.get(path + (f"&cursor={cursor}" if cursor else ""))
                assert answer.status == 200
                seen += [one[field] for one in answer.json[kind]]
                pages += 1
                if "next_cursor" not in answer.json:
                    break
                cursor = answer.json["next_cursor"]
            assert (seen, pages) == (names, 3)
            if kind == "topics":
                one = answer.json["topics"][0]
                assert one.keys() == {
                    *("topic", "epoch", "head_seq", "earliest_seq", "count", "bytes"),
                    *("durability", "effective_priority"),
                }
                for name in names:
                    await api.put(f"/v0/routers/{name}", {"source": name, "dest": f"to.{name}"})
        clamped = await api.get(f"/v0/topics?page_size={PAGE_MAX * 1000}&prefix=list.")
        assert len(clamped.json["topics"]) == 7
        assert (await api.get("/v0/topics?prefix=nothing")).json == {"topics": []}

    site.run(scenario(site.api))


def test_an_append_creates_only_if_it_may(site: Site) -> None:
    async def scenario(api: Api) -> None:
        record = {"records": [{"data": 1}]}
        refusals = ({"create": False}, {"config": {"auto_create": False}})
        for more in refusals:
            answer = await api.post("/v0/topics/unmade", {**record, **more})
            assert (answer.status, answer.code) == (404, "topic_not_found")
        configured = await api.post(
            "/v0/topics/unmade", {**record, "create": True, "config": {"cap_records": 9}}
        )
        assert configured.status == 201
        assert (await api.state("unmade"))["config"]["cap_records"] == 9
        await api.post("/v0/topics/unmade", {**record, "config": {"cap_records": 5}})
        assert (await api.state("unmade"))["config"]["cap_records"] == 9, "only if it creates"

    site.run(scenario(site.api))


# --- routers


def test_routers_are_made_shown_and_removed(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.put("/v0/topics/r.a")
        rule = {"source": "r.a", "dest": "r.b", "filter": ["tag", "Glob", "x*"]}
        made = await api.put("/v0/routers/r.a->r.b", rule)
        shown = {"router": "r.a->r.b", **ROUTER, **rule}
        assert (made.status, made.json) == (201, {**shown, "created": True})
        same = await api.put("/v0/routers/r.a->r.b", rule)
        assert (same.status, same.json) == (200, {**shown, "created": False})

        await api.post("/v0/topics/r.a", {"records": [{"data": 1, "tag": "x1"}, {"data": 2}]})
        page = await api.diff("r.b", 0, wait_ms=10_000, include_tags=True)
        assert [(one["data"], one["$tag"]) for one in page["records"]] == [(1, "x1")]
        state = (await api.get("/v0/routers/r.a->r.b")).json
        counters = {"cursor": 2, "lag": 0, "forwarded_total": 1, "stopped_total": 0, "error": None}
        assert state == {**shown, **counters}
        only = (await api.get("/v0/routers?source=r.a&dest=r.b")).json
        assert [one["router"] for one in only["routers"]] == ["r.a->r.b"]

        await api.put("/v0/routers/r.b->r.c", {"source": "r.b", "dest": "r.c"})
        cycle = await api.put("/v0/routers/back", {"source": "r.c", "dest": "r.a"})
        assert (cycle.status, cycle.code) == (409, "router_cycle")
        assert cycle.error["detail"] == {"cycle": ["r.c", "r.a", "r.b", "r.c"]}
        assert (await api.get("/v0/routers/back")).code == "router_not_found"
        assert (await api.delete("/v0/routers/r.a->r.b")).json["deleted"] is True
        assert (await api.delete("/v0/routers/r.a->r.b")).json["deleted"] is False
        gone = (await api.delete("/v0/topics/r.b")).json
        assert gone["routers_removed"] == ["r.b->r.c"]

    site.run(scenario(site.api))


# --- the server itself


def test_probes_metrics_document_and_page(site: Site) -> None:
    async def scenario(api: Api) -> None:
        assert (await api.get("/healthz")).json == {"status": "ok"}
        ready = await api.get("/readyz")
        assert ready.status == 200
        assert ready.json.keys() == {
            *("ready", "writable", "reason", "topics", "pressure", "pressure_cause", "parts")
        }
        assert (ready.json["ready"], ready.json["writable"]) == (True, True)
        metrics = await api.get("/metrics")
        assert metrics.header("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        text = metrics.body.decode()
        for name in ("fairway_topics ", "fairway_pressure ", "fairway_delivery_delay_ns_bucket{"):
            assert f"\n{name}" in text, name
        document = (await api.get("/openapi.json")).json
        assert document["openapi"] == "3.1.0"
        page = await api.get("/docs")
        assert page.header("content-type") == "text/html; charset=utf-8"
        for probe in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
            head = await api.call("HEAD", probe)
            assert (head.status, head.body) == (200, b""), probe

    site.run(scenario(site.api))


# --- refusals


RECORD = {"records": [{"data": 1}]}
T = "/v0/topics/refused"
Case = tuple[str, str, Any, int, str]


def many(count: int) -> Any:
    return {"records": [{"data": 0}] * count}


WRONG: dict[str, tuple[str, str, Any]] = {
    "a star is no name": ("GET", "/v0/topics/*", None),
    "a star has no diff": ("POST", "/v0/topics/*/diff", {}),
    "name with a space": ("POST", "/v0/topics/a%20b", RECORD),
    "name too long": ("PUT", f"/v0/topics/{'x' * 256}", {}),
    "name starts badly": ("GET", "/v0/topics/.x", None),
    "name not ASCII": ("GET", "/v0/topics/%C3%A9", None),
    "unknown field": ("POST", T, {**RECORD, "recrods": []}),
    "unknown field of a record": ("POST", T, {"records": [{"data": 1, "seq": 1}]}),
    "no data": ("POST", T, {"records": [{"tag": "x"}]}),
    "no records": ("POST", T, {}),
    "empty records": ("POST", T, {"records": []}),
    "records not a list": ("POST", T, {"records": {"data": 1}}),
    "meta not an object": ("POST", T, {"records": [{"data": 1, "meta": [1]}]}),
    "key empty": ("POST", T, {**RECORD, "idempotency_key": ""}),
    "key too long": ("POST", T, {**RECORD, "idempotency_key": "k" * 257}),
    "create not a flag": ("POST", T, {**RECORD, "create": 1}),
    "unknown query of append": ("POST", f"{T}?retrun_seqs=0", RECORD),
    "flag of append": ("POST", f"{T}?return_seqs=perhaps", RECORD),
    "unknown query of diff": ("POST", f"{T}/diff?from_seq=1", {}),
    "unknown query of delete": ("POST", f"{T}/delete?before_seq=2", {"before_seq": 2}),
    "unknown query of put": ("PUT", f"{T}?ttl_ms=1", {}),
    "unknown query of a router": (
        "PUT",
        "/v0/routers/refused?x=1",
        {"source": "refused", "dest": "b"},
    ),
    "query given twice": ("GET", f"{T}?touch=1&touch=0", None),
    "query not UTF-8": ("GET", f"{T}?touch=%ff", None),
    "negative cursor": ("POST", f"{T}/diff", {"from_seq": -1}),
    "huge cursor": ("POST", f"{T}/diff", {"from_seq": 2**63}),
    "fraction of a cursor": ("POST", f"{T}/diff", {"from_seq": 1.5}),
    "cursor as text": ("POST", f"{T}/diff", {"from_seq": "1"}),
    "negative limit": ("POST", f"{T}/diff", {"limit": -1}),
    "negative wait": ("POST", f"{T}/diff", {"wait_ms": -1}),
    "star in the middle": ("POST", f"{T}/diff", {"match": ["tag", "Glob", "a*b*"]}),
    "unknown operator": ("POST", f"{T}/diff", {"match": ["tag", "Like", "a"]}),
    "delete of nothing": ("POST", f"{T}/delete", {}),
    "negative ttl": ("PUT", T, {"ttl_ms": -1}),
    "priority too high": ("PUT", T, {"priority": 1001}),
    "unknown durability": ("PUT", T, {"durability": "maybe"}),
    "flag of a delete": ("DELETE", f"{T}?if_empty=2", None),
    "page of no size": ("GET", "/v0/topics?page_size=0", None),
    "page size of many digits": ("GET", f"/v0/topics?page_size={'9' * 5000}", None),
    "cursor of nobody": ("GET", "/v0/topics?cursor=%21", None),
    "router badly named": ("PUT", "/v0/routers/-r", {"source": "refused", "dest": "x"}),
    "watch of nothing": ("POST", "/v0/watch", {}),
    "watch from before": ("POST", "/v0/watch", {"topics": {"refused": {"from_seq": -1}}}),
    "watch of too many": ("POST", "/v0/watch", {"topics": {f"t{n}": {} for n in range(257)}}),
    "prefix of no name": ("POST", "/v0/watch", {"prefix": "a*b*"}),
    "event id of nobody": ("GET", f"{T}/watch?last_event_id=zzz", None),
    "watch from before, at the tail": ("GET", f"{T}/watch?from_seq=-1&tail=1", None),
    "watch from text": ("GET", f"{T}/watch?from_seq=x", None),
    "unknown query of a watch": ("GET", f"{T}/watch?from=1", None),
    "ticket of a wrong type": ("POST", "/v0/tickets", {"path": 7}),
}
"""All of them a 400 `invalid_request`."""
REFUSED: dict[str, Case] = {
    **{name: (*case, 400, "invalid_request") for name, case in WRONG.items()},
    "nothing there": ("GET", "/v0/nothing", None, 404, "not_found"),
    "too deep": ("GET", f"{T}/watch/more", None, 404, "not_found"),
    "topic absent": ("POST", "/v0/topics/absent/diff", {}, 404, "topic_not_found"),
    "topic absent, delete": (
        "POST",
        "/v0/topics/absent/delete",
        {"before_seq": 1},
        404,
        "topic_not_found",
    ),
    "topic absent, watch": ("GET", "/v0/topics/absent/watch", None, 404, "topic_not_found"),
    "router absent": ("GET", "/v0/routers/absent", None, 404, "router_not_found"),
    "session absent": ("GET", "/v0/watch/wid_none", None, 404, "watch_not_found"),
    "too many records": ("POST", T, many(10_001), 400, "batch_too_large"),
    "record too large": (
        "POST",
        T,
        {"records": [{"data": "x" * 1024 * 1024}]},
        400,
        "record_too_large",
    ),
    "tag too long": (
        "POST",
        T,
        {"records": [{"data": 1, "tag": "é" * 129}]},
        400,
        "record_too_large",
    ),
    "node too long": (
        "POST",
        T,
        {"records": [{"data": 1, "node": "n" * 129}]},
        400,
        "record_too_large",
    ),
    "common node too long": ("POST", T, {**RECORD, "node": "n" * 129}, 400, "record_too_large"),
    "meta too long": (
        "POST",
        T,
        {"records": [{"data": 1, "meta": {"k": "v" * 16384}}]},
        400,
        "record_too_large",
    ),
    "too many keys of meta": (
        "POST",
        T,
        {"records": [{"data": 1, "meta": dict.fromkeys(map(str, range(65)), 0)}]},
        400,
        "record_too_large",
    ),
    "router onto itself": (
        "PUT",
        "/v0/routers/r",
        {"source": "refused", "dest": "refused"},
        409,
        "router_cycle",
    ),
    "cannot become ephemeral": (
        "PUT",
        T,
        {"durability": "ephemeral"},
        409,
        "topic_exists_incompatible",
    ),
    "not empty": ("DELETE", f"{T}?if_empty", None, 409, "topic_not_empty"),
    "router from nowhere": (
        "PUT",
        "/v0/routers/r",
        {"source": "absent", "dest": "x"},
        404,
        "topic_not_found",
    ),
    "router to nowhere": (
        "PUT",
        "/v0/routers/r",
        {"source": "refused", "dest": "absent", "create_dest": False},
        404,
        "topic_not_found",
    ),
    "watch of an absent topic": (
        "POST",
        "/v0/watch",
        {"topics": {"absent": {}}},
        404,
        "topic_not_found",
    ),
    "unknown ticket": ("GET", f"{T}?ticket=none", None, 401, "unauthorized"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_names_its_code_and_changes_nothing(site: Site, case: Case) -> None:
    method, path, body, status, code = case

    async def scenario(api: Api) -> None:
        if (await api.get("/v0/topics/refused?touch=false")).status == 404:
            await api.append("refused", "kept")
        before = await everything(api)
        answer = await api.call(method, path, body)
        assert (answer.status, answer.code) == (status, code), answer.body
        assert await everything(api) == before

    site.run(scenario(site.api))


async def everything(api: Api) -> Any:
    """What there is, less what time alone changes."""
    topics = (await api.get("/v0/topics?page_size=1000")).json["topics"]
    state = await api.state("refused")
    for shown in (*topics, state):
        shown.pop("effective_priority")
    state.pop("last_read_ts")
    return topics, state, (await api.get("/v0/routers")).json


def deep(levels: int) -> bytes:
    return b'{"records":[{"data":' + b"[" * levels + b"]" * levels + b"}]}"


MALFORMED = {
    "not JSON": b"{",
    "nothing": b"",
    "not an object": b"[]",
    "two documents": b"{}{}",
    "NaN": b'{"records":[{"data":NaN}]}',
    "not UTF-8": b'{"records":[{"data":"\xff"}]}',
    "half a surrogate": b'{"records":[{"data":1,"tag":"\\ud800"}]}',
    "a control character": b'{"records":[{"data":"\x01"}]}',
    "a line break in a string": b'{"records":[{"data":"a\nb"}]}',
    "too deep": deep(200_000),
    "a number that is none": b'{"records":[{"data":01}]}',
    "a number in meta that fits no double": b'{"records":[{"data":1,"meta":{"k":1e999}}]}',
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_json_is_a_400(site: Site, body: bytes) -> None:
    async def scenario(api: Api) -> None:
        answer = await api.post("/v0/topics/malformed", raw=body, headers=JSON)
        assert (answer.status, answer.code) == (400, "invalid_request"), body[:80]
        assert (await api.get("/v0/topics/malformed")).status == 404

    site.run(scenario(site.api))


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_body_of_another_type_is_a_415(site: Site, kind: str | None) -> None:
    """A page elsewhere can send these without asking; JSON it cannot."""

    async def scenario(api: Api) -> None:
        headers = {"content-type": kind} if kind is not None else {}
        raw = json.dumps(RECORD).encode()
        for path in ("", "/diff", "/delete"):
            answer = await api.post(f"/v0/topics/typed{path}", raw=raw, headers=headers)
            assert (answer.status, answer.code) == (415, "unsupported_media_type")
        for path in ("/v0/watch", "/v0/tickets"):
            answer = await api.post(path, raw=b"{}", headers=headers)
            assert (answer.status, answer.code) == (415, "unsupported_media_type")
        assert (await api.get("/v0/topics/typed")).status == 404
        good = {"content-type": "Application/JSON; charset=utf-8"}
        assert (await api.post("/v0/topics/typed.well", raw=raw, headers=good)).status < 300

    site.run(scenario(site.api))


def test_a_wrong_method_is_a_405_that_names_the_right_ones(site: Site) -> None:
    expected = {
        "/v0/topics": "GET, HEAD, OPTIONS",
        "/v0/topics/x": "DELETE, GET, HEAD, OPTIONS, POST, PUT",
        "/v0/topics/x/diff": "OPTIONS, POST",
        "/v0/topics/x/watch": "GET, OPTIONS",
        "/v0/watch": "OPTIONS, POST",
        "/v0/watch/wid": "GET, OPTIONS",
        "/v0/routers/x": "DELETE, GET, HEAD, OPTIONS, PUT",
        "/healthz": "GET, HEAD, OPTIONS",
    }

    async def scenario(api: Api) -> None:
        for path, allowed in expected.items():
            answer = await api.call("PATCH", path)
            assert (answer.status, answer.code) == (405, "method_not_allowed")
            assert answer.header("allow") == allowed, path
            options = await api.call("OPTIONS", path)
            assert (options.status, options.header("allow")) == (204, allowed)
            assert options.header("content-length") is None
        head = await api.call("HEAD", "/v0/topics/x/watch")
        assert (head.status, head.header("allow")) == (405, "GET, OPTIONS")

    site.run(scenario(site.api))


def test_not_acceptable_is_a_406(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.put("/v0/topics/accepted")
        for refused in (
            "application/json",
            "text/event-stream;q=0",
            "text/event-stream; Q=0.000, */*",
            "text/*;q=0.0, */*;q=1",
        ):
            answer = await api.get("/v0/topics/accepted/watch", headers={"accept": refused})
            assert (answer.status, answer.code) == (406, "not_acceptable"), refused
        for accepted in (
            "text/event-stream",
            "Text/Event-Stream;q=0.001",
            "application/json;q=0, text/*;charset=utf-8;q=0.5",
            "text/html;q=0, */*",
        ):
            stream = await api.watch("accepted", headers={"accept": accepted})
            await stream.close()

    site.run(scenario(site.api))


def test_too_large_a_body_is_a_413_before_and_while_it_is_sent(site: Site) -> None:
    async def scenario(api: Api) -> None:
        declared = await Wire.open(api.port)
        length = {"content-length": str(BODY_MAX + 1), **JSON}
        declared.send("POST", "/v0/topics/large", headers=length)
        answer = await declared.answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        await declared.close()

        chunked = await Wire.open(api.port)
        chunked.send("POST", "/v0/topics/large", headers={"transfer-encoding": "chunked", **JSON})
        chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
        for _ in range(5):
            chunked.writer.write(chunk)
        answer = await chunked.answer()
        assert (answer.status, answer.code) == (413, "payload_too_large")
        await chunked.close()
        assert (await api.get("/v0/topics/large")).status == 404

    site.run(scenario(site.api))


def test_a_full_topic_that_refuses_is_a_422_and_takes_no_seq(site: Site) -> None:
    async def scenario(api: Api) -> None:
        await api.put("/v0/topics/full", {"cap_records": 2, "discard": "reject"})
        await api.append("full", 1)
        answer = await api.post("/v0/topics/full", many(2))
        assert (answer.status, answer.code) == (422, "topic_full")
        assert (await api.append("full", 2))["first_seq"] == 2
        assert (await api.post("/v0/topics/full", RECORD)).status == 422
        await api.post("/v0/topics/full/delete", {"before_seq": 2})
        assert (await api.append("full", 3))["first_seq"] == 3

    site.run(scenario(site.api))


def test_a_refused_append_does_not_leave_a_topic_behind(site: Site) -> None:
    async def scenario(api: Api) -> None:
        config = {"cap_records": 1, "discard": "reject"}
        answer = await api.post("/v0/topics/unborn", {**many(2), "config": config})
        assert (answer.status, answer.code) == (422, "topic_full")
        assert (await api.get("/v0/topics/unborn")).status == 404

    site.run(scenario(site.api))


def test_too_many_topics_is_a_429_with_its_limit(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = Fairway(tmp_path, topics=TopicsConfig(topics_max=2))
        async with serving(tmp_path, app=app) as served:
            api = served.api
            await api.put("/v0/topics/a")
            await api.put("/v0/topics/b")
            for answer in (await api.put("/v0/topics/c"), await api.post("/v0/topics/c", RECORD)):
                assert (answer.status, answer.code) == (429, "throttled")
                assert answer.error["detail"] == {
                    "limit": "topics",
                    "max": 2,
                    "retry_after_ms": 60_000,
                }
                assert answer.header("retry-after") == "60"

    run(scenario())


# --- sockets


def test_half_closed_and_cut_off_requests(site: Site) -> None:
    async def scenario(api: Api) -> None:
        body = json.dumps(RECORD).encode()
        half = await Wire.open(api.port)
        half.send("POST", "/v0/topics/half", body, JSON)
        half.writer.write_eof()
        answer = await half.answer()
        assert answer.status == 201, "a client that only closed its sending side is answered"
        assert await half.ended() == b""
        await half.close()

        cut = await Wire.open(api.port)
        cut.send("POST", "/v0/topics/half", body[:-5], {**JSON, "content-length": str(len(body))})
        cut.writer.write_eof()
        await cut.ended()
        await cut.close()
        gone = await Wire.open(api.port)
        gone.send("GET", "/v0/topics/half/watch")
        gone.writer.write_eof()
        await gone.ended()
        await gone.close()
        state = await api.state("half")
        assert (state["head_seq"], state["watchers"]) == (1, 0)

    site.run(scenario(site.api))


def test_one_connection_serves_many_requests_pipelined_in_order(site: Site) -> None:
    async def scenario(api: Api) -> None:
        wire = await Wire.open(api.port)
        for number in range(10):
            body = json.dumps({"records": [{"data": number}]}).encode()
            wire.send("POST", "/v0/topics/piped", body, JSON)
        answers: list[Answer] = [await wire.answer() for _ in range(10)]
        assert [answer.json["first_seq"] for answer in answers] == list(range(1, 11))
        wire.send("HEAD", "/v0/topics/piped")
        assert (await wire.answer(head_only=True)).status == 200
        wire.send("GET", "/healthz")
        assert (await wire.answer()).status == 200, "a HEAD has no body to fall over"
        await wire.close()

    site.run(scenario(site.api))

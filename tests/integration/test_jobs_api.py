"""The routes of jobs and queues over a real socket, before an app that works on its jobs.

One server for the whole module; tests keep apart by the names of their jobs and queues.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, get_args

import pytest

from fairway.jobs.job import ENDED as ENDED_STATUSES
from fairway.jobs.job import Status
from fairway.wire.jobs import ARGS_BYTES_MAX, ENDED, JOBS_MAX, PAGE_MAX, StatusName
from tests.support.jobs_app import Gates, jobs_app
from tests.support.server import Answer, Api, Site, run, serving, shared_site, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HOUR_MS = 3_600_000
GATES = Gates()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("data")
    with shared_site(place, app=jobs_app(place, GATES)) as made:
        yield made


async def enqueue(api: Api, kind: str, args: Any = None, **more: Any) -> int:
    """Enqueue one job, which must be a new one; its id."""
    body = {"jobs": [{"kind": kind, "args": args or {}, **more}]}
    answer = await api.post("/v0/jobs", body)
    assert answer.status == 201, answer
    (made,) = answer.json["jobs"]
    assert made["fresh"]
    return int(made["id"])


async def ended(api: Api, id: int) -> Any:
    answer = await api.get(f"/v0/jobs/{id}?wait_ms=30000")
    assert answer.status == 200, answer
    assert answer.json["status"] in ENDED, answer.json
    return answer.json


async def seen(api: Api, id: int) -> Any:
    answer = await api.get(f"/v0/jobs/{id}")
    assert answer.status == 200, answer
    return answer.json


async def until_status(api: Api, id: int, status: str) -> Any:
    """Look until the job is so: the store is the only one to know."""
    async with asyncio.timeout(30):
        while (job := await seen(api, id))["status"] != status:
            pass
    return job


async def ids(api: Api, query: str) -> list[int]:
    answer = await api.get(f"/v0/jobs?{query}")
    assert answer.status == 200, answer
    return [job["id"] for job in answer.json["jobs"]]


def test_words_of_the_wire_are_those_of_the_jobs() -> None:
    assert list(get_args(StatusName)) == [status.word for status in Status]
    assert {status.word for status in ENDED_STATUSES} == ENDED


# --- enqueueing


def test_a_job_is_enqueued_run_and_seen_with_exactly_the_documented_fields(site: Site) -> None:
    async def scenario(api: Api) -> None:
        id = await enqueue(api, "add", {"a": 2}, tenant="acme", priority=7, traceparent=TRACE)
        job = await ended(api, id)
        assert job.pop("enqueued_at") <= job.pop("finished_at")
        assert job == {
            "id": id,
            "kind": "add",
            "version": 1,
            "status": "done",
            "queue": "math",
            "tenant": "acme",
            "priority": 7,
            "step": "run",
            "attempt": 0,
            "crashes": 0,
            "max_attempts": 20,
            "key": "add:sum-2-1-",
            "partition_key": None,
            "parent": None,
            "traceparent": TRACE,
            "due_at": None,
            "worker": None,
            "cancelling": False,
            "retries": 0,
            "waits_for": [],
            "progress": None,
            "error": None,
            "state": {"a": 2, "b": 1, "nonce": ""},
            "result": 3,
        }

    site.run(scenario(site.api))


def test_many_are_enqueued_in_order_and_all_or_none(site: Site) -> None:
    async def scenario(api: Api) -> None:
        many = [{"kind": "add", "args": {"a": n, "nonce": "many"}} for n in range(JOBS_MAX)]
        answer = await api.post("/v0/jobs", {"jobs": many})
        assert answer.status == 201
        made = [one["id"] for one in answer.json["jobs"]]
        assert made == sorted(set(made))
        assert (await ended(api, made[41]))["result"] == 42

        refused = await api.post(
            "/v0/jobs",
            {"jobs": [{"kind": "all-or-none"}, {"kind": "add", "args": {"a": "x"}}]},
        )
        assert refused.status == 400
        assert "jobs[1]: job 'add': Expected `int`, got `str`" in refused.error["message"]
        assert await ids(api, "kind=all-or-none") == []

    site.run(scenario(site.api))


def test_a_kind_that_nobody_here_knows_is_kept_as_it_came(site: Site) -> None:
    raw = b'{"jobs":[{"kind":"elsewhere","args":{"n":1.50,"big":123456789012345678901}}]}'

    async def scenario(api: Api) -> None:
        headers = {"content-type": "application/json"}
        made = await api.post("/v0/jobs", raw=raw, headers=headers)
        shown = await api.get(f"/v0/jobs/{made.json['jobs'][0]['id']}")
        assert b'"state":{"n":1.50,"big":123456789012345678901}' in shown.body
        assert (shown.json["queue"], shown.json["status"]) == ("default", "ready")
        other = await enqueue(
            api, "elsewhere", version=3, step="begin", max_attempts=2, partition_key="p"
        )
        job = await seen(api, other)
        assert (job["version"], job["step"], job["max_attempts"]) == (3, "begin", 2)
        assert job["partition_key"] == "p"
        # A version of a known kind that is declared elsewhere is not checked by the one here.
        assert (await seen(api, await enqueue(api, "add", {"z": 1}, version=9)))["version"] == 9

    site.run(scenario(site.api))


def test_a_key_stands_for_one_job(site: Site) -> None:
    async def scenario(api: Api) -> None:
        first = await enqueue(api, "elsewhere", key="only", window_ms=HOUR_MS)
        again = await api.post("/v0/jobs", {"jobs": [{"kind": "elsewhere", "key": "only"}]})
        assert (again.status, again.json) == (200, {"jobs": [{"id": first, "fresh": False}]})

    site.run(scenario(site.api))


def test_a_job_may_start_later(site: Site) -> None:
    async def scenario(api: Api) -> None:
        delayed = await seen(api, await enqueue(api, "elsewhere", delay_ms=HOUR_MS))
        assert delayed["status"] == "scheduled"
        assert abs(delayed["due_at"] - delayed["enqueued_at"] - HOUR_MS) < 60_000
        at = delayed["enqueued_at"] + HOUR_MS
        assert (await seen(api, await enqueue(api, "elsewhere", at=at)))["due_at"] == at
        past = await enqueue(api, "add", {"a": 1, "nonce": "past"}, at=0)
        assert (await ended(api, past))["result"] == 2

    site.run(scenario(site.api))


def test_the_trace_of_a_request_is_stored_unless_the_job_has_its_own(site: Site) -> None:
    async def scenario(api: Api) -> None:
        jobs = [{"kind": "elsewhere"}, {"kind": "elsewhere", "traceparent": OTHER_TRACE}]
        answer = await api.post("/v0/jobs", {"jobs": jobs}, headers={"traceparent": TRACE})
        found = [await seen(api, one["id"]) for one in answer.json["jobs"]]
        assert [one["traceparent"] for one in found] == [TRACE, OTHER_TRACE]
        long = await api.post("/v0/jobs", {"jobs": jobs[:1]}, headers={"traceparent": "0" * 300})
        assert (await seen(api, long.json["jobs"][0]["id"]))["traceparent"] is None

    site.run(scenario(site.api))


# --- what is refused

JOB = {"kind": "never"}
BAD = [
    ("POST", "/v0/jobs", {}, "missing required field `jobs`"),
    ("POST", "/v0/jobs", {"jobs": []}, "length >= 1"),
    ("POST", "/v0/jobs", {"jobs": [JOB] * (JOBS_MAX + 1)}, f"length <= {JOBS_MAX}"),
    ("POST", "/v0/jobs", {"jobs": [{}]}, "missing required field `kind`"),
    ("POST", "/v0/jobs", {"jobs": [{"kind": ""}]}, "$.jobs[0].kind"),
    ("POST", "/v0/jobs", {"jobs": [{"kind": "a\0"}]}, "kind has a NUL"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "more": 1}]}, "unknown field `more`"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "args": [1]}]}, "Expected `object`, got `array`"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "queue": "a b"}]}, "cannot name a queue"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "queue": "*"}]}, "cannot name a queue"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "priority": 1001}]}, "priority"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "delay_ms": -1}]}, "delay_ms"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "delay_ms": 10**15}]}, "delay_ms"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "delay_ms": 1, "at": 1}]}, "not both"),
    ("POST", "/v0/jobs", {"jobs": [{**JOB, "key": "k" * 501}]}, "key"),
    ("POST", "/v0/jobs", {"jobs": [{"kind": "add"}]}, "missing argument `a`"),
    ("POST", "/v0/jobs", {"jobs": [{"kind": "add", "args": {"a": "1"}}]}, "at `a`"),
    (
        "POST",
        "/v0/jobs",
        {"jobs": [{"kind": "add", "args": {"a": 1, "c": 2}}]},
        "unknown argument `c`",
    ),
    ("POST", "/v0/jobs", {"jobs": [{"kind": "Purchase", "args": {"id": "x"}}]}, "at `id`"),
    (
        "POST",
        "/v0/jobs",
        {"jobs": [{"kind": "Purchase", "args": {"id": 1}, "step": "settle"}]},
        "begins with the step 'start'",
    ),
    ("GET", "/v0/jobs?status=lost", None, "status is one of scheduled, ready"),
    ("GET", "/v0/jobs?parent=x", None, "parent is a whole number"),
    ("GET", "/v0/jobs?page_size=0", None, "page_size"),
    ("GET", "/v0/jobs?cursor=!", None, "cursor"),
    ("GET", "/v0/jobs?cursor=eA", None, "cursor"),
    ("GET", "/v0/jobs?queue=%00", None, "queue has a NUL"),
    ("GET", "/v0/jobs?limit=3", None, "unknown query parameter 'limit'"),
    ("GET", "/v0/jobs/x", None, "id is a whole number"),
    ("GET", "/v0/jobs/0", None, "id is a whole number"),
    ("GET", f"/v0/jobs/{2**63}", None, "id is a whole number"),
    ("GET", "/v0/jobs/1?wait_ms=-1", None, "wait_ms"),
    ("POST", "/v0/jobs/1/signal", {}, "missing required field `name`"),
    ("POST", "/v0/jobs/1/signal", {"name": "a\0"}, "name has a NUL"),
    ("POST", "/v0/jobs/x/signal", {"name": "a"}, "id is a whole number"),
    ("POST", "/v0/jobs/by-key//signal", {"name": "a"}, "a key has 1 to 500"),
    ("POST", f"/v0/jobs/by-key/{'k' * 501}/signal", {"name": "a"}, "a key has 1 to 500"),
    ("POST", "/v0/jobs/1/cancel", {"reason": ""}, "reason"),
    ("POST", "/v0/jobs/prune", {}, "older_than_ms"),
    ("POST", "/v0/jobs/prune", {"older_than_ms": -1}, "older_than_ms"),
    ("GET", "/v0/queues/a%20b", None, "cannot name a queue"),
    ("PUT", "/v0/queues/never", {}, "say `paused`, `limits`, or both"),
    ("PUT", "/v0/queues/never", {"paused": 1}, "paused"),
    ("PUT", "/v0/queues/never", {"limits": {"concurrency": 0}}, "concurrency"),
    ("PUT", "/v0/queues/never", {"limits": {"rate_per_s": 0}}, "rate_per_s"),
    ("PUT", "/v0/queues/never", {"limits": {"rate_per_s": 1e-320}}, "rate_per_s"),
    ("PUT", "/v0/queues/never", {"limits": {"rate_per_s": 1, "burst": 0}}, "burst"),
]


def test_what_is_wrong_is_said_and_changes_nothing(site: Site) -> None:
    async def scenario(api: Api) -> None:
        for method, path, body, said in BAD:
            answer = await api.call(method, path, body)
            assert (answer.status, answer.code) == (400, "invalid_request"), (path, body, answer)
            assert said in answer.error["message"], (path, body, answer.error)
        assert await ids(api, "kind=never") == []
        queues = (await api.get("/v0/queues")).json["queues"]
        assert "never" not in [queue["queue"] for queue in queues]

    site.run(scenario(site.api))


def test_what_is_not_there_and_what_does_not_fit(site: Site) -> None:
    async def scenario(api: Api) -> None:
        signal = {"name": "payment"}
        for method, path, body, code in (
            ("GET", "/v0/jobs/999999999", None, "job_not_found"),
            ("GET", "/v0/jobs/999999999?wait_ms=9", None, "job_not_found"),
            ("POST", "/v0/jobs/999999999/signal", signal, "job_not_found"),
            ("POST", "/v0/jobs/by-key/nobody/signal", signal, "job_not_found"),
            ("POST", "/v0/jobs/999999999/cancel", {}, "job_not_found"),
            ("POST", "/v0/jobs/999999999/retry", None, "job_not_found"),
            ("GET", "/v0/queues/nowhere", None, "queue_not_found"),
        ):
            answer = await api.call(method, path, body)
            assert (answer.status, answer.code) == (404, code), answer
        form = await api.post("/v0/jobs", raw=b"jobs=1", headers={"content-type": "text/plain"})
        assert (form.status, form.code) == (415, "unsupported_media_type")
        big = {"jobs": [{"kind": "never", "args": {"x": "x" * ARGS_BYTES_MAX}}]}
        assert (await api.post("/v0/jobs", big)).code == "payload_too_large"
        assert (await api.delete("/v0/jobs/1")).status == 405

    site.run(scenario(site.api))


# --- looking


def test_jobs_are_listed_newest_first_by_page_and_by_what_they_are(site: Site) -> None:
    async def scenario(api: Api) -> None:
        made = []
        for n in range(7):
            where = {"queue": f"listed.{n % 2}", "tenant": f"t{n % 3}"}
            delay = {"delay_ms": HOUR_MS} if n > 4 else {}
            made.append(await enqueue(api, "listed", {"n": n}, **where, **delay))
        pages, cursor = [], ""
        while True:
            answer = await api.get(f"/v0/jobs?kind=listed&page_size=3{cursor}")
            pages.append([job["id"] for job in answer.json["jobs"]])
            if "next_cursor" not in answer.json:
                break
            cursor = f"&cursor={answer.json['next_cursor']}"
        newest = made[::-1]
        assert pages == [newest[:3], newest[3:6], newest[6:]]
        assert "state" not in answer.json["jobs"][0], "a list leaves out what may be large"
        assert "result" not in answer.json["jobs"][0]
        assert await ids(api, "kind=listed&queue=listed.1") == made[1::2][::-1]
        assert await ids(api, "kind=listed&tenant=t0") == made[::3][::-1]
        assert await ids(api, "kind=listed&status=scheduled") == newest[:2]
        assert await ids(api, "kind=listed&status=ready&queue=listed.0&tenant=t1") == [made[4]]
        assert await ids(api, "kind=listed&status=failed") == []
        assert len(await ids(api, "page_size=1000000")) <= PAGE_MAX

    site.run(scenario(site.api))


def test_a_long_poll_is_answered_by_the_end_of_the_job(site: Site) -> None:
    async def scenario(api: Api) -> None:
        id = await enqueue(api, "held", {"name": "polled"})
        await until(lambda: GATES.runs["polled"])
        short = await api.get(f"/v0/jobs/{id}?wait_ms=1")
        assert (short.status, short.json["status"], short.json["result"]) == (200, "running", None)
        assert short.json["worker"] is not None
        polls = site.served.server.context.polls._waiting  # type: ignore[union-attr]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(api.get(f"/v0/jobs/{id}?wait_ms=99999999"))
            await until(lambda: polls)
            GATES.open("polled")
        answer: Answer = waiting.result()
        assert (answer.json["status"], answer.json["result"]) == ("done", "polled")
        assert not polls

    site.run(scenario(site.api))


def test_a_stop_ends_long_polls_with_what_is_known(tmp_path: Path) -> None:
    gates = Gates()

    async def polled(api: Api, id: int) -> Answer:
        answer = await api.get(f"/v0/jobs/{id}?wait_ms=30000")
        gates.open("stopped")  # or the stop would wait for the job
        return answer

    async def scenario() -> None:
        app = jobs_app(tmp_path, gates)
        async with asyncio.TaskGroup() as group, serving(tmp_path, app=app) as served:
            id = await enqueue(served.api, "held", {"name": "stopped"})
            await until(lambda: gates.runs["stopped"])
            polls = served.server.context.polls  # type: ignore[union-attr]
            waiting = group.create_task(polled(served.api, id))
            await until(lambda: polls._waiting)
        assert waiting.result().json["status"] == "running"

    run(scenario())


def test_progress_is_shown_while_a_job_runs(site: Site) -> None:
    async def scenario(api: Api) -> None:
        id = await enqueue(api, "held", {"name": "shown"})
        async with asyncio.timeout(30):
            while (job := await seen(api, id))["progress"] is None:
                pass
        assert (job["status"], job["progress"]) == ("running", {"held": "shown"})
        GATES.open("shown")
        await ended(api, id)

    site.run(scenario(site.api))


# --- steering


def test_signals_reach_a_job_by_id_and_by_key(site: Site) -> None:
    async def scenario(api: Api) -> None:
        by_id = await enqueue(api, "Purchase", {"id": 1})
        job = await until_status(api, by_id, "waiting")
        assert (job["waits_for"], job["partition_key"]) == (["payment"], "order-1")
        signal = {"name": "payment", "payload": {"amount": 12.5}}
        sent = await api.post(f"/v0/jobs/{by_id}/signal", signal)
        assert (sent.status, sent.json) == (200, {"id": by_id, "fresh": True})
        job = await ended(api, by_id)
        assert (job["result"], job["state"]) == (1, {"id": 1, "paid": {"amount": 12.5}})

        key = "shop/order 2?"
        by_key = await enqueue(api, "Purchase", {"id": 2}, key=key, window_ms=HOUR_MS)
        path = "/v0/jobs/by-key/shop%2Forder%202%3F/signal"
        for fresh in (True, False):
            other = {"name": "other", "dedup": "once"}
            answer = await api.post(path, other)
            assert answer.json == {"id": by_key, "fresh": fresh}
        assert (await api.post(path, {"name": "payment"})).status == 200
        assert (await ended(api, by_key))["state"] == {"id": 2, "paid": None}
        late = await api.post(path, {"name": "payment"})
        assert (late.status, late.code) == (409, "job_ended")
        assert late.error["detail"] == {"status": "done"}

    site.run(scenario(site.api))


def test_a_failed_job_is_retried_and_others_are_not(site: Site) -> None:
    async def scenario(api: Api) -> None:
        id = await enqueue(api, "fails_once", {"name": "luck"})
        job = await ended(api, id)
        assert (job["status"], job["result"]) == ("failed", None)
        assert "luck is not\nto be had" in job["error"]
        assert id in await ids(api, "status=failed&kind=fails_once")
        again = await api.post(f"/v0/jobs/{id}/retry")
        assert (again.status, again.json) == (200, {"id": id})
        assert (await ended(api, id))["result"] == "luck"
        refused = await api.post(f"/v0/jobs/{id}/retry")
        assert (refused.status, refused.code) == (409, "job_not_retryable")
        assert refused.error["detail"] == {"status": "done"}

    site.run(scenario(site.api))


def test_a_cancel_ends_a_job_with_its_children(site: Site) -> None:
    async def scenario(api: Api) -> None:
        parent = await enqueue(api, "Family", {"names": ["ann", "bob"]})
        await until(lambda: GATES.runs["ann"] and GATES.runs["bob"])
        children = await ids(api, f"parent={parent}")
        assert len(children) == 2
        answer = await api.post(f"/v0/jobs/{parent}/cancel", {"reason": "moved away"})
        assert answer.status == 200
        assert answer.json["id"] == parent
        assert parent in answer.json["ended"]
        assert sorted(answer.json["running"]) == sorted(children)
        for id in (parent, *children):  # those that ran were told, and end with what they were told
            job = await ended(api, id)
            assert (job["status"], job["error"]) == ("cancelled", "moved away")
        again = await api.post(f"/v0/jobs/{parent}/cancel")
        assert (again.status, again.json) == (200, {"id": parent, "ended": [], "running": []})

    site.run(scenario(site.api))


def test_what_ended_long_ago_is_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=jobs_app(tmp_path)) as served:
            api = served.api
            done = await enqueue(api, "add", {"a": 1})
            await ended(api, done)
            later = await enqueue(api, "elsewhere", delay_ms=HOUR_MS)
            kept = await api.post("/v0/jobs/prune", {"older_than_ms": HOUR_MS})
            assert (kept.status, kept.json) == (200, {"pruned": 0})
            failed = await enqueue(api, "fails_once", {"name": "never"})
            await ended(api, failed)
            longer = {"older_than_ms": 0, "failed_older_than_ms": HOUR_MS}
            assert (await api.post("/v0/jobs/prune", longer)).json == {"pruned": 1}
            assert (await api.get(f"/v0/jobs/{done}")).status == 404
            assert (await seen(api, failed))["status"] == "failed"
            gone = await api.post("/v0/jobs/prune", {"older_than_ms": 0})
            assert gone.json == {"pruned": 1}
            assert (await api.get(f"/v0/jobs/{failed}")).status == 404
            assert (await seen(api, later))["status"] == "scheduled"

    run(scenario())


# --- queues


def test_a_paused_queue_starts_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, app=jobs_app(tmp_path)) as served:
            api = served.api
            paused = await api.put("/v0/queues/math", {"paused": True})
            assert paused.json == {
                "queue": "math",
                "paused": True,
                "limits": {"concurrency": None, "rate_per_s": None, "burst": 1},
                "ready": 0,
                "scheduled": 0,
                "waiting": 0,
                "blocked": 0,
                "running": 0,
            }
            id = await enqueue(api, "add", {"a": 1})
            # Another queue goes on: what it does shows that the worker had its chance.
            other = await enqueue(api, "Purchase", {"id": 1})
            await until_status(api, other, "waiting")
            assert (await seen(api, id))["status"] == "ready"
            math = (await api.get("/v0/queues/math")).json
            assert (math["paused"], math["ready"], math["running"]) == (True, 1, 0)
            listed = (await api.get("/v0/queues")).json["queues"]
            assert [(one["queue"], one["waiting"]) for one in listed] == [
                ("math", 0),
                ("orders", 1),
            ]
            resumed = await api.put("/v0/queues/math", {"paused": False})
            assert resumed.json["paused"] is False
            assert (await ended(api, id))["result"] == 2

    run(scenario())


def test_limits_hold_and_are_replaced_as_a_whole(tmp_path: Path) -> None:
    gates = Gates()

    async def scenario() -> None:
        async with serving(tmp_path, app=jobs_app(tmp_path, gates)) as served:
            api = served.api
            limits = {"concurrency": 1, "rate_per_s": 1000.0, "burst": 9}
            answer = await api.put("/v0/queues/math", {"limits": limits})
            assert answer.json["limits"] == limits
            first = await enqueue(api, "held", {"name": "one"})
            await until(lambda: gates.runs["one"])
            second = await enqueue(api, "held", {"name": "two"})
            other = await enqueue(api, "Purchase", {"id": 1})
            await until_status(api, other, "waiting")
            assert (await seen(api, second))["status"] == "ready"
            gates.open("one")
            gates.open("two")
            for id in (first, second):
                assert (await ended(api, id))["status"] == "done"
            lifted = await api.put("/v0/queues/math", {"limits": {}})
            assert lifted.json["limits"] == {"concurrency": None, "rate_per_s": None, "burst": 1}
            paused = await api.put("/v0/queues/*", {"paused": True})
            assert (paused.status, paused.code) == (409, "all_queues")
            every = await api.put("/v0/queues/*", {"limits": {"concurrency": 8}})
            assert (every.json["queue"], every.json["limits"]["concurrency"]) == ("*", 8)
            assert every.json["waiting"] == 1

    run(scenario())


# --- who may do what

KEYS = """
[[key]]
name = "root"
secret = "root-secret"
scopes = ["admin"]

[[key]]
name = "reader"
secret = "reader-secret"
scopes = ["read"]
prefixes = ["mail."]

[[key]]
name = "writer"
secret = "writer-secret"
scopes = ["read", "write"]
prefixes = ["mail."]

[[key]]
name = "mailer"
secret = "mailer-secret"
scopes = ["admin"]
prefixes = ["mail."]

[[key]]
name = "metered"
secret = "metered-secret"
scopes = ["admin"]
[key.quota]
records_per_second = 3
"""


def test_scopes_and_prefixes_hold_on_every_route(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)

    async def scenario() -> None:
        async with serving(tmp_path / "data", keys_file=file) as served:
            anyone = served.api
            root, reader, writer, mailer = (
                anyone.using(f"{name}-secret") for name in ("root", "reader", "writer", "mailer")
            )
            ours = await enqueue(root, "send", queue="mail.out", key="ours")
            theirs = await enqueue(root, "pay", queue="bank.out", key="theirs")
            mail, bank = {"kind": "send", "queue": "mail.in"}, {"kind": "pay", "queue": "bank.in"}
            signal = {"name": "go"}
            name, scope = {"name": "bank.out"}, {"scope": "write"}
            refused = [
                (reader, "POST", "/v0/jobs", {"jobs": [mail]}, scope),
                (reader, "GET", "/v0/jobs?queue=bank.out", None, name),
                (reader, "POST", f"/v0/jobs/{ours}/signal", signal, scope),
                (reader, "POST", "/v0/jobs/by-key/ours/signal", signal, scope),
                (reader, "POST", f"/v0/jobs/{ours}/cancel", {}, scope),
                (reader, "POST", f"/v0/jobs/{ours}/retry", None, scope),
                (reader, "GET", "/v0/queues/bank.out", None, name),
                (reader, "PUT", "/v0/queues/mail.out", {"paused": True}, {"scope": "admin"}),
                (reader, "POST", "/v0/jobs/prune", {"older_than_ms": 0}, {"scope": "delete"}),
                (writer, "POST", "/v0/jobs", {"jobs": [mail, bank]}, {"name": "bank.in"}),
                (writer, "POST", "/v0/jobs", {"jobs": [{"kind": "x"}]}, {"name": "default"}),
                (writer, "PUT", "/v0/queues/mail.out", {"paused": True}, {"scope": "admin"}),
                (writer, "POST", "/v0/jobs/prune", {"older_than_ms": 0}, {"scope": "delete"}),
                (mailer, "PUT", "/v0/queues/bank.out", {"paused": True}, name),
                (mailer, "PUT", "/v0/queues/*", {"limits": {}}, {"name": "*"}),
                (mailer, "POST", "/v0/jobs/prune", {"older_than_ms": 0}, {"prefix": ""}),
            ]
            for api, method, path, body, detail in refused:
                answer = await api.call(method, path, body)
                assert (answer.status, answer.code) == (403, "forbidden"), (path, answer)
                assert answer.error["detail"] == detail, (path, answer.error)
            # What belongs to others is as if it were not there: no id and no key can be tried out.
            hidden = [
                (reader, "GET", "/v0/jobs/{}", None),
                (writer, "POST", "/v0/jobs/{}/signal", signal),
                (writer, "POST", "/v0/jobs/by-key/{}/signal", signal),
                (writer, "POST", "/v0/jobs/{}/cancel", {}),
                (writer, "POST", "/v0/jobs/{}/retry", None),
                (reader, "GET", "/v0/runs/{}", None),
                (writer, "POST", "/v0/runs/{}", {"action": "cancel"}),
            ]
            for api, method, path, body in hidden:
                there, nowhere = ("theirs", "nobody") if "by-key" in path else (str(theirs), "999")
                answer = await api.call(method, path.format(there), body)
                unknown = await api.call(method, path.format(nowhere), body)
                assert (answer.status, answer.code) == (404, "job_not_found"), (path, answer)
                assert answer.body.replace(there.encode(), nowhere.encode()) == unknown.body
            assert (await anyone.get("/v0/jobs")).status == 401
            assert await ids(root, "") == [theirs, ours], "what was refused changed nothing"

            assert await ids(reader, "") == [ours], "what may not be touched is left out"
            queues = (await reader.get("/v0/queues")).json["queues"]
            assert [one["queue"] for one in queues] == ["mail.out"]
            allowed = [
                (writer, "POST", "/v0/jobs", {"jobs": [mail]}, 201),
                (writer, "POST", f"/v0/jobs/{ours}/signal", signal, 200),
                (writer, "POST", "/v0/jobs/by-key/ours/signal", signal, 200),
                (writer, "POST", f"/v0/jobs/{ours}/cancel", {}, 200),
                (writer, "POST", f"/v0/jobs/{ours}/retry", None, 200),
                (mailer, "PUT", "/v0/queues/mail.out", {"paused": True}, 200),
                (root, "PUT", "/v0/queues/*", {"limits": {}}, 200),
                (root, "POST", "/v0/jobs/prune", {"older_than_ms": 0}, 200),
            ]
            for api, method, path, body, status in allowed:
                answer = await api.call(method, path, body)
                assert answer.status == status, (path, answer)

    run(scenario())


def test_a_key_pages_through_jobs_of_others_to_its_own(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)

    async def scenario() -> None:
        async with serving(tmp_path / "data", keys_file=file) as served:
            root, reader = (served.api.using(f"{name}-secret") for name in ("root", "reader"))
            ours = await enqueue(root, "send", queue="mail.out")
            many = [{"kind": "pay", "queue": "bank.out"}] * 100
            assert (await root.post("/v0/jobs", {"jobs": many})).status == 201
            found, cursor, pages = [], "", 0
            while True:
                answer = await reader.get(f"/v0/jobs?page_size=2{cursor}")
                found += [job["id"] for job in answer.json["jobs"]]
                pages += 1
                if "next_cursor" not in answer.json:
                    break
                cursor = f"&cursor={answer.json['next_cursor']}"
            assert found == [ours]
            assert pages > 2, "one request does not look through everything"

    run(scenario())


def test_jobs_count_against_the_quota_of_records(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)

    async def scenario() -> None:
        async with serving(tmp_path / "data", keys_file=file) as served:
            api = served.api.using("metered-secret")
            assert (await api.post("/v0/jobs", {"jobs": [{"kind": "x"}] * 3})).status == 201
            refused = await api.post("/v0/jobs", {"jobs": [{"kind": "x"}] * 3})
            assert (refused.status, refused.code) == (429, "throttled")
            assert refused.error["detail"]["limit"] == "records_per_second"
            assert len(await ids(api, "")) == 3

    run(scenario())

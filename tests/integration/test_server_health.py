"""`/readyz` tells how every part is, and which of them keep the server from being ready."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec

from fairway import Fairway
from fairway.core.lease import Tenure
from fairway.errors import Fenced, Unavailable
from fairway.graphs.checkpoint import FORMAT, Began, decode_records
from fairway.jobs import engine as jobs_engine
from fairway.jobs.stores.memory import MemoryStore
from fairway.server.fronts.jobs import front as jobs_front
from fairway.storage.ownership import Ownership
from fairway.storage.wal import Entry, Operation
from tests.support.postgres import PostgresServer
from tests.support.server import Api, run, serving, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

OK = {"state": "ok", "ready": True, "reason": None}
MILLISECOND_NS = 1_000_000
KEYS = """
[[key]]
name = "root"
secret = "root-secret"
scopes = ["admin"]

[[key]]
name = "one"
secret = "one-secret"
scopes = ["read"]
prefixes = ["one."]
"""


class Quote(msgspec.Struct):
    bid: float


class Store(MemoryStore):
    """A job store that fails, or does not answer, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()
        self.failure: Exception | None = None

    async def find(self, id: int) -> Any:
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        return await super().find(id)


async def parts_of(api: Api, *, status: int = 200) -> Any:
    answer = await api.get("/readyz")
    assert (answer.status, answer.json["ready"]) == (status, status == 200)
    assert answer.json["writable"] is (status == 200)
    assert (await api.get("/healthz")).status == 200, "it lives, whatever is wrong"
    return answer.json["parts"]


def failing_graph(place: Any, name: str) -> Fairway:
    app = Fairway(place)
    quotes = app.source("quotes", Quote)

    @app.graph(when=quotes, name=name)
    def spread(quotes: Quote) -> float:
        return quotes.bid

    return app


def test_a_server_that_is_well_says_so_of_every_part(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            parts = await parts_of(served.api)
            assert {"topics", "streams", "jobs", "graphs"} == set(parts)
            assert all(part == OK for part in parts.values())
            assert (await served.api.get("/readyz")).json["topics"] == 0
            await served.api.append("t", 1)
            assert (await served.api.get("/readyz")).json["topics"] == 1

    run(scenario())


def test_a_server_that_ends_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            served.app.topics.stop_admitting()
            parts = await parts_of(served.api, status=503)
            ends = {"state": "degraded", "ready": False, "reason": "shutting down"}
            assert parts.pop("topics") == ends
            assert all(part == OK for part in parts.values())
            assert (await served.api.get("/readyz")).json["reason"] == "shutting down"

    run(scenario())


def test_a_server_that_may_not_answer_from_its_log_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        tenure = Tenure(ttl_ns=15, margin_ns=1)
        tenure.renewed(0)
        overdue = Ownership(tenure, lambda: 14, "the log")
        async with serving(tmp_path) as served:
            monkeypatch.setattr(served.app.log, "ownership", overdue)
            topics = (await parts_of(served.api, status=503))["topics"]
            assert (topics["state"], topics["ready"]) == ("failed", False)
            assert "fenced" in topics["reason"]
            assert "fenced" in (await served.api.get("/readyz")).json["reason"]
            monkeypatch.undo()

    run(scenario())


def test_a_job_store_out_of_reach_is_told_and_all_else_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_front, "PROBE_NS", 5 * MILLISECOND_NS)
    monkeypatch.setattr(jobs_engine, "SILENT_NS", 20 * MILLISECOND_NS)

    async def scenario() -> None:
        store = Store()
        app = Fairway(tmp_path, jobs=store)
        async with serving(tmp_path, app=app) as served:
            api = served.api
            for failure, told in (
                (Unavailable("cannot reach postgresql://u:secret@db"), "cannot reach postgresql:"),
                (OSError("a bug of the store"), "OSError"),
            ):
                store.failure = failure
                await until(lambda: app.jobs.health().state == "degraded")
                jobs = (await parts_of(api))["jobs"]
                assert (jobs["state"], jobs["ready"]) == ("degraded", True)
                assert jobs["reason"].startswith(f"the job store is out of reach: {told}")
                assert "secret" not in jobs["reason"]
                assert (await api.append("t", 1))["count"] == 1, "which needs no jobs"
                store.failure = None
                await until(lambda: app.jobs.health().state == "ok")
            store.answers.clear()
            await until(lambda: app.jobs.health().state == "degraded")
            assert "no answer for" in (await parts_of(api))["jobs"]["reason"]
            store.answers.set()
            await until(lambda: app.jobs.health().state == "ok")

    run(scenario())


def test_a_database_that_is_down_is_noticed_and_so_is_its_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_front, "PROBE_NS", 50 * MILLISECOND_NS)

    async def scenario(database: PostgresServer) -> None:
        app = Fairway(tmp_path, jobs=database.url())
        async with serving(tmp_path, app=app) as served:
            assert (await parts_of(served.api))["jobs"] == OK
            database.stop()
            await until(lambda: app.jobs.health().state == "degraded")
            assert (await parts_of(served.api))["jobs"]["ready"]
            assert (await served.api.get("/v0/jobs")).status == 503
            database.start()
            await until(lambda: app.jobs.health().state == "ok")

    with PostgresServer() as database:
        run(scenario(database), within_s=120)


def test_a_failed_graph_is_named_with_its_reason_and_all_else_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = failing_graph(tmp_path, "spread")
        async with serving(tmp_path, app=app) as served:
            assert (await parts_of(served.api))["graphs"] == OK
            app.graphs.get("spread").running().reactor.broken(Fenced("somebody else has it"))
            await until(lambda: app.graphs.health().state == "degraded")
            graphs = (await parts_of(served.api))["graphs"]
            assert (graphs["state"], graphs["ready"]) == ("degraded", True)
            assert graphs["reason"].startswith("graph 'spread' failed: ")
            assert "somebody else has it" in graphs["reason"]
            await served.api.post("/v0/graphs/spread/restart")
            assert (await parts_of(served.api))["graphs"] == OK

    run(scenario())


def test_a_journal_of_another_format_fails_its_graph_at_once_and_no_other(tmp_path: Path) -> None:
    def declared() -> Fairway:
        app = Fairway(tmp_path)
        n = app.source("n", int)
        for name in ("newer", "other"):
            app.graph(name, when=n, checkpoint=True).add(lambda n: n)
        return app

    async def another_release_wrote() -> int:
        app = declared()
        async with app:
            partition = app.graphs.get("newer").partition
            assert partition is not None
            await app.graphs.unload("newer")
            [first] = await app.log.read(partition, limit=1)
            began = decode_records(first.payload)[0]
            assert isinstance(began, Began)
            assert began.format == FORMAT, "which tells an older release what follows"
            entry = Entry(app.log.last_key(partition) + 1, msgspec.msgpack.encode([[99, 1, 2]]))
            await app.log.submit(partition, Operation((entry,)))
        return partition

    async def scenario() -> None:
        partition = await another_release_wrote()
        app = declared()
        async with serving(tmp_path, app=app) as served:
            newer, other = app.graphs.get("newer"), app.graphs.get("other")
            assert (newer.state, other.state) == ("failed", "live")
            happened = [(one.happening, one.failures) for one in newer.recoveries]
            assert happened == [("failed", 1), ("gave up", 1)], "no restart mends that"
            graphs = (await parts_of(served.api))["graphs"]
            assert (graphs["state"], graphs["ready"]) == ("degraded", True)
            place = (
                rf"graph 'newer' failed: journal entry \d+ of partition {partition} is of no form"
            )
            assert re.match(place, graphs["reason"])
            answer = await served.api.post("/v0/graphs/newer/restart")
            assert (answer.status, answer.code) == (409, "graph_failed")
            asked = await served.api.post("/v0/graphs/other/accumulators/n", {"data": 7})
            assert asked.status in (200, 202)

    run(scenario())


def test_reasons_are_told_to_keys_that_may_read_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = tmp_path / "keys.toml"
        keys.write_text(KEYS)
        keys.chmod(0o600)
        app = failing_graph(tmp_path / "data", "private")
        async with serving(tmp_path / "data", app=app, keys_file=keys) as served:
            app.graphs.get("private").running().reactor.broken(Fenced("somebody else has it"))
            await until(lambda: app.graphs.health().state == "degraded")
            api = served.api
            for who, told in (
                (api, False),
                (api.using("wrong-secret"), False),
                (api.using("one-secret"), False),
                (api.using("root-secret"), True),
            ):
                graphs = (await parts_of(who))["graphs"]
                assert graphs["state"] == "degraded", "which anybody may know"
                assert (graphs["reason"] is not None) == told
                assert told or "private" not in (await who.get("/readyz")).body.decode()

    run(scenario())

"""A full disk and a failed sync under a running server: what clients are told, and what is kept.

SQLite runs on real files through a VFS that fails on request.
"""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from fairway.app import Fairway
from fairway.server.fronts.topics.sessions import KIND, WatchSessions
from fairway.storage.reserve import RESERVE_BYTES, DiskReserve
from tests.support import full_disk
from tests.support.log_vfs import HookedVFS, fail_full, fail_sync, hooked_vfs
from tests.support.server import Api, Served, run, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RECORD = {"records": [{"data": "new"}]}


@pytest.fixture
def vfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[HookedVFS]:
    with hooked_vfs(monkeypatch) as made:
        yield made


def heal(vfs: HookedVFS) -> None:
    vfs.hook = lambda step, path: None


def full(step: str, path: str) -> None:
    if step == "write":
        fail_full()


def no_sync(step: str, path: str) -> None:
    if step == "sync":
        fail_sync()


async def wait_ready(api: Api, *, status: int) -> None:
    """Ask `/readyz` until it says so; the deadline is that of the scenario."""
    async with asyncio.timeout(20):
        while (await api.get("/readyz")).status != status:
            pass


async def wait_read(api: Api, topic: str, seqs: list[int]) -> None:
    async with asyncio.timeout(10):
        while await api.read_all(topic) != seqs:
            pass


async def wait_router(api: Api, *, error: str) -> None:
    async with asyncio.timeout(10):
        while error not in str((await api.get("/v0/routers/r")).json["error"]):
            pass


async def check_read_only(api: Api, *, seqs: list[int]) -> None:
    """What a server that cannot write says, and goes on doing."""
    ready = await api.get("/readyz")
    assert ready.status == 503
    assert (ready.json["ready"], ready.json["writable"]) == (False, False)
    assert ready.json["reason"]
    parts = ready.json["parts"]
    topics = {"state": "degraded", "ready": False, "reason": ready.json["reason"]}
    assert parts.pop("topics") == topics
    assert all(part["ready"] for part in parts.values())
    for path, body in (("/v0/topics/kept", RECORD), ("/v0/topics/another", RECORD)):
        refused = await api.post(path, body)
        assert (refused.status, refused.code) == (503, "read_only"), refused
        assert refused.header("retry-after") == "1"
    assert (await api.get("/healthz")).status == 200, "it lives, so nobody should restart it"
    assert await api.read_all("kept") == seqs, "reading goes on"


def test_12_on_a_full_disk_writers_are_told_and_writing_resumes_by_itself(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    """Checklist 12: full disk (ENOSPC)."""

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.append("kept", 1, 2, 3)
            watcher = await api.watch("kept")
            await watcher.named("caught-up")
            vfs.hook = full
            failed = await api.post("/v0/topics/kept", RECORD)
            assert (failed.status, failed.code) == (503, "write_failed")
            await check_read_only(api, seqs=[1, 2, 3])
            fresh = await api.watch("kept", "?from_seq=1")
            assert await fresh.seqs(2) == [2, 3], "streams open and catch up"
            heal(vfs)
            await wait_ready(api, status=200)
            assert (await api.append("kept", 4))["first_seq"] == 4, "the refused took no seq"
            assert await watcher.seqs(1) == [4], "the same stream goes on"
            assert await api.read_all("kept") == [1, 2, 3, 4]
        async with serving(tmp_path) as served:
            assert await served.api.read_all("kept") == [1, 2, 3, 4]

    run(scenario())


def test_deletes_work_on_a_full_disk_from_the_reserve(tmp_path: Path, vfs: HookedVFS) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.append("kept", *range(10))
            await api.append("doomed", 1)
            reserve = tmp_path / "reserve"
            await until(reserve.exists)

            def full_but_for_the_reserve(step: str, path: str) -> None:
                if step == "write" and reserve.exists():
                    fail_full()

            vfs.hook = full_but_for_the_reserve
            failed = await api.post("/v0/topics/kept", RECORD)
            assert (failed.status, failed.code) == (503, "write_failed")
            refused = await api.post("/v0/topics/kept", RECORD)
            assert (refused.status, refused.code) == (503, "read_only")
            async with asyncio.timeout(10):
                while (
                    answer := await api.post("/v0/topics/kept/delete", {"before_seq": 8})
                ).status != 200:
                    assert answer.code in ("write_failed", "read_only"), answer
            assert answer.json["count"] == 3
            async with asyncio.timeout(10):
                while (answer := await api.delete("/v0/topics/doomed")).status != 200:
                    assert answer.code in ("write_failed", "read_only"), answer
            heal(vfs)
            await wait_ready(api, status=200)
            assert await api.read_all("kept") == [8, 9, 10]
            assert (await api.append("kept", 1))["first_seq"] == 11
        async with serving(tmp_path) as served:
            assert await served.api.read_all("kept") == [8, 9, 10, 11]
            assert (await served.api.get("/v0/topics/doomed")).status == 404

    run(scenario())


def test_routers_leave_a_full_disk_to_deletes(
    tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.put("/v0/topics/copy", {"cap_records": 1, "discard": "reject"})
            await api.append("kept", 0)
            await api.put("/v0/routers/r", {"source": "kept", "dest": "copy"})
            await api.append("kept", 1, 2, 3)
            await wait_router(api, error="full")
            await wait_read(api, "copy", [1])
            vfs.hook = full
            with monkeypatch.context() as patch:
                patch.setattr(DiskReserve, "hold", lambda *_, **__: False)
                assert (await api.post("/v0/topics/kept", RECORD)).code == "write_failed"
                heal(vfs)  # as when the reserve is given up: a write would succeed
                deleted = await api.post("/v0/topics/copy/delete", {"before_seq": 2})
                assert (deleted.status, deleted.json["deleted"]) == (200, 1), "there is room for it"
                await wait_router(api, error="read-only")
                assert await api.read_all("copy") == []
            await wait_ready(api, status=200)
            await wait_read(api, "copy", [2])

    run(scenario())


def test_nothing_is_made_from_the_reserve_of_a_full_disk(
    tmp_path: Path, vfs: HookedVFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = {"source": "kept", "dest": "copy"}
    filtered, making = {**router, "filter": "x"}, {**router, "dest": "made"}
    text = {"content-type": "text/plain"}

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.append("kept", 1, 2, 3)
            await api.put("/v0/topics/copy")
            await api.put("/v0/routers/there", router)
            path = await api.session(topics={"kept": {}}, prefix="later.*")
            await api.append("later.one", 1)
            vfs.hook = full
            with monkeypatch.context() as patch:
                patch.setattr(DiskReserve, "hold", lambda *_, **__: False)
                assert (await api.post("/v0/topics/kept", RECORD)).code == "write_failed"
                heal(vfs)  # as when the reserve is given up: a write would succeed
                for call in (
                    api.put("/v0/topics/new", {}),
                    api.put("/v0/routers/new", router),
                    api.put("/v0/routers/new", making),
                    api.put("/v0/routers/there", filtered),
                    api.post("/v0/watch", {"topics": {"kept": {}}}),
                    api.put("/v1/stream/new", raw=b"x", headers=text),
                ):
                    refused = await call
                    assert (refused.status, refused.code) == (503, "read_only"), refused
                for missing in ("/v0/topics/new", "/v0/topics/made", "/v0/routers/new"):
                    assert (await api.get(missing)).status == 404
                assert (await api.get("/v0/routers/there")).json["filter"] is None
                assert (await api.put("/v0/routers/there", router)).status == 200, "as it is"

                wid = path.rpartition("/")[2]
                stored = await served.app.kernel.catalog.get(KIND, wid)
                stream = await api.stream(path)
                assert sorted(await stream.seqs(4)) == [1, 1, 2, 3], (
                    "a session that is there is read"
                )
                context = served.server.context
                assert context is not None
                [_, joined] = context.state(WatchSessions).get(wid, 0).definition.topics
                assert joined.topic == "later.one"
                assert (await api.put("/v0/topics/kept", {"cap_records": 1})).status == 200
                assert await api.read_all("kept") == [3], "a lower cap makes room"
                assert (await api.delete("/v0/routers/there")).json["deleted"] is True
                assert await served.app.kernel.catalog.get(KIND, wid) == stored, "and not written"
            await wait_ready(api, status=200)
            for path, body in (("/v0/topics/new", {}), ("/v0/routers/new", making)):
                assert (await api.put(path, body)).status == 201
            assert (await api.post("/v0/watch", {"topics": {"kept": {}}})).status == 200

    run(scenario())


def test_a_program_starts_on_a_full_disk_with_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be asked to delete anything else."""

    async def scenario() -> None:
        reserve = DiskReserve(tmp_path / "reserve")
        reserve.release()  # as it had to be, to open the log
        monkeypatch.setattr("fairway.kernel.opening._reserve_of", lambda _: reserve)
        monkeypatch.setattr(DiskReserve, "hold", lambda *_, **__: False)
        app = Fairway(tmp_path)
        app.topic("declared")
        app.route("declared", "copy", name="there")
        async with serving(tmp_path, app=app) as served:
            api = served.api
            assert (await api.get("/readyz")).status == 503
            for path in ("/v0/topics/declared", "/v0/topics/copy", "/v0/routers/there"):
                assert (await api.get(path)).status == 200
            assert (await api.put("/v0/topics/new")).code == "read_only"

    run(scenario())


@pytest.mark.parametrize("disk", ["pretended", "real"])
@pytest.mark.parametrize("scenario", full_disk.SCENARIOS)
def test_a_small_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, disk: str
) -> None:
    """Deletes, trims, a stop and a start work on it, and writing resumes, however often."""
    if disk == "real":
        full_disk.in_a_process(scenario, tmp_path)
        return
    with full_disk.pretended(tmp_path, monkeypatch):
        run(full_disk.SCENARIOS[scenario](tmp_path), within_s=120)


def test_rocksdb_goes_on_by_itself_after_a_full_disk(tmp_path: Path) -> None:
    """Reads, and a start on it; deletes in the room of the reserve; writing once there is room."""
    full_disk.in_a_process("rocksdb", tmp_path)


@pytest.mark.parametrize("scheme", ["", "sqlite:", "rocksdb:"])
def test_a_directory_has_its_reserve_however_it_is_spelled(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a spelling that is not understood would make a directory

    async def scenario() -> None:
        async with Fairway(f"{scheme}{tmp_path / 'data'}"):
            await until((tmp_path / "data" / "reserve").exists)
            assert (tmp_path / "data" / "jobs.db").exists()

    run(scenario())
    assert os.listdir(tmp_path) == ["data"]


def test_a_stop_leaves_half_of_the_reserve_where_all_of_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = tmp_path / "reserve"

    nearly_full = SimpleNamespace(f_bavail=12 * 1024, f_frsize=1024)
    monkeypatch.setattr(os, "statvfs", lambda _: nearly_full)

    async def scenario() -> None:
        async with Fairway(tmp_path) as app:
            kept = app._opening.reserve
            assert kept is not None
            await until(lambda: kept.given_up)
            assert not reserve.exists()

    run(scenario())
    assert reserve.stat().st_size == RESERVE_BYTES // 2


@pytest.mark.parametrize("fault", [full, no_sync], ids=["full disk", "failed sync"])
def test_12_every_write_under_a_fault_is_told_and_nothing_acknowledged_is_lost(
    tmp_path: Path, vfs: HookedVFS, fault: Callable[[str, str], None]
) -> None:
    """Checklist 12: full disk (ENOSPC), fsync EIO. Sixteen writers go on through it all."""
    acknowledged: list[int] = []
    told: set[tuple[int, str]] = set()

    async def writer(api: Api, number: int, stop: asyncio.Event) -> None:
        at = 0
        while not stop.is_set():
            at += 1
            body = {"records": [{"data": f"{number}/{at}"}], "idempotency_key": f"{number}/{at}"}
            answer = await api.post("/v0/topics/kept", body)
            if answer.status in (200, 201):
                acknowledged.append(answer.json["first_seq"])
            else:
                told.add((answer.status, answer.code))

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for number in range(16):
                    group.create_task(writer(served.api, number, stop))
                await until(lambda: len(acknowledged) >= 100)
                vfs.hook = fault
                await wait_ready(served.api, status=503)
                await until(lambda: (503, "read_only") in told)
                stop.set()
            heal(vfs)
        assert told <= {
            (503, "write_failed"),
            (503, "outcome_unknown"),
            (503, "read_only"),
            (503, "unavailable"),
        }
        async with serving(tmp_path) as served:
            found = await served.api.read_all("kept")
            assert set(acknowledged) <= set(found), "acknowledged, and lost"
            assert found == list(range(1, len(found) + 1))
            page = await served.api.diff("kept", 0, limit=1000)
            keys = [record["data"] for record in page["records"]]
            assert len(set(keys)) == len(keys), "one idempotency key, one record"
            ready = await served.api.get("/readyz")
            assert ready.status == 200
            assert (await served.api.append("kept", "after"))["first_seq"] == len(found) + 1

    run(scenario())


def test_12_after_a_failed_sync_the_outcome_is_unknown_and_a_restart_decides(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    """Checklist 12: fsync EIO."""

    async def before(served: Served) -> None:
        api = served.api
        await api.append("kept", 1)
        vfs.hook = no_sync
        failed = await api.post("/v0/topics/kept", {**RECORD, "idempotency_key": "k"})
        assert (failed.status, failed.code) == (503, "outcome_unknown"), "not a refusal"
        heal(vfs)
        ready = await api.get("/readyz")
        assert (ready.status, ready.json["writable"]) == (503, False)
        refused = await api.post("/v0/topics/kept", RECORD)
        assert (refused.status, refused.code) == (503, "read_only")

    async def scenario() -> None:
        async with serving(tmp_path) as served:
            await before(served)
        async with serving(tmp_path) as served:
            api = served.api
            assert (await api.get("/readyz")).status == 200
            retried = await api.post("/v0/topics/kept", {**RECORD, "idempotency_key": "k"})
            assert retried.status == 200
            assert retried.json["first_seq"] == 2, "whichever it was, it is there once"
            assert await api.read_all("kept") == [1, 2]

    run(scenario())


def test_a_session_that_cannot_be_saved_or_removed_does_not_bring_the_server_down(
    tmp_path: Path, vfs: HookedVFS
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as served:
            api = served.api
            await api.append("p.one", 1)
            path = await api.session(prefix="p.")
            stream = await api.stream(path)
            await stream.named("caught-up")
            context = served.server.context
            assert context is not None
            await api.put("/v0/topics/p.two", {"durability": "ephemeral"})
            await stream.named("caught-up")
            vfs.hook = full
            refused = await api.post("/v0/watch", {"topics": {"p.one": {}}})
            assert refused.status == 503, refused
            sessions = context.state(WatchSessions)
            await sessions.try_save(next(iter(sessions._sessions.values())))
            await stream.close()
            await until(lambda: not context.keep_alives)
            await sessions.purge(context.now_ms() + 10**9)
            assert len(sessions) == 0
            assert (await api.get("/healthz")).status == 200
            assert (await api.get(path)).code == "watch_not_found"
            heal(vfs)
            await wait_ready(api, status=200)
            await sessions.purge(context.now_ms())
        async with serving(tmp_path) as served:
            assert (await served.api.get(path)).code == "watch_not_found", "removed after all"

    run(scenario())

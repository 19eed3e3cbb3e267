"""The client's workflows against a real server that works on them: every call of both faces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from fairway import errors
from tests.support.faces import FACES, client_of
from tests.support.server import server_process
from tests.support.workflows_served import PLACE, workflows_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairway.client import Client

WAIT_S = 30.0


class Loaded(msgspec.Struct):
    day: str
    rows: int


@pytest.fixture(scope="module", params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, face: str) -> Path:
    return tmp_path_factory.mktemp(face)


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    with workflows_process(place) as url:
        yield url


@pytest.fixture
def client(url: str, face: str) -> Iterator[Client]:
    with client_of(face, url) as made:
        yield made


def test_a_run_is_started_and_what_it_came_to_awaited(client: Client) -> None:
    flows = client.workflows
    assert [one.name for one in flows.list()] == ["etl", "fragile"]
    assert flows.get("etl").tasks == ["extract", "load", "page"]
    with pytest.raises(errors.NotFound, match="workflow 'none'"):
        flows.get("none")
    made = flows.start("etl", {"day": "mon"})
    assert made.fresh
    assert flows.wait(made.id, WAIT_S)["rows"] == 3
    assert flows.wait(made.id, type=Loaded) == Loaded("mon", 3)
    run = flows.run(made.id, wait_ms=1000)
    assert (run.status, run.workflow) == ("done", "etl")
    assert [task.state for task in run.tasks] == ["done", "done", "skipped"]
    declared = flows.start("etl")
    assert flows.wait(declared.id, WAIT_S, type=Loaded).day == "sunday"


def test_runs_are_listed_by_status(client: Client) -> None:
    flows = client.workflows
    ids = [flows.start("etl", {"day": "x"}, delay_s=3600).id for _ in range(3)]
    assert [run.id for run in flows.runs("etl", status="scheduled")] == ids[::-1]
    assert [run.id for run in flows.runs("etl", limit=1)] == ids[-1:]
    for id in ids:
        flows.cancel(id)
    assert flows.runs("etl", status="scheduled") == []
    with pytest.raises(errors.NotFound):
        flows.runs("none")


def test_a_key_starts_one_run(client: Client) -> None:
    flows = client.workflows
    first = flows.start("etl", {"day": "x"}, key="once", window_s=60)
    again = flows.start("etl", {"day": "y"}, key="once", window_s=60)
    assert (again.id, again.fresh) == (first.id, False)


def test_what_is_wrong_is_refused(client: Client) -> None:
    flows = client.workflows
    with pytest.raises(errors.InvalidRequest, match="its context does not fit"):
        flows.start("etl", {"day": 7})
    with pytest.raises(errors.NotFound, match="workflow 'none'"):
        flows.start("none")
    with pytest.raises(errors.NotFound, match="999999999"):
        flows.run(999_999_999)
    for timeout_s in (math.nan, -1):
        with pytest.raises(errors.InvalidRequest, match="timeout_s"):
            flows.wait(1, timeout_s)


def test_a_run_is_paused_resumed_and_cancelled(client: Client) -> None:
    flows = client.workflows
    client.jobs.pause("default")  # its tasks do not start, so that it lives
    try:
        id = flows.start("etl", {"day": "x"}).id
        with pytest.raises(TimeoutError, match=f"run {id} is still"):
            flows.wait(id, 0.001)
        assert flows.pause(id).action == "pause"
        assert flows.resume(id).action == "resume"
        flows.cancel(id, reason="the wrong day")
    finally:
        client.jobs.resume("default")
    with pytest.raises(errors.JobFailed, match="the wrong day") as failed:
        flows.wait(id, WAIT_S)
    assert (failed.value.id, failed.value.status) == (id, "cancelled")


def test_a_failed_run_is_retried(client: Client, place: Path) -> None:
    flows = client.workflows
    id = flows.start("fragile").id
    with pytest.raises(errors.JobFailed, match="nobody is at home"):
        flows.wait(id, WAIT_S)
    (place / "mended").touch()
    flows.retry(id)
    assert flows.wait(id, WAIT_S) == {"prepared": True, "reported": True}
    for refused in (flows.pause, flows.resume, flows.cancel, flows.retry):
        with pytest.raises(errors.Conflict, match="done"):
            refused(id)


def test_schedules_are_paused_and_resumed(client: Client) -> None:
    flows = client.workflows
    (etl,) = flows.schedules()
    assert (etl.name, etl.paused) == ("etl", False)
    flows.pause_schedule("etl")
    assert [one.paused for one in flows.schedules()] == [True]
    flows.resume_schedule("etl")
    assert [one.paused for one in flows.schedules()] == [False]
    with pytest.raises(errors.NotFound):
        flows.pause_schedule("none")


def test_a_start_whose_answer_was_lost_is_repeated_only_under_a_key_that_stands(face: str) -> None:
    sent: list[Any] = []

    def lose_the_first(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        if len(sent) == 1:
            raise httpx.ReadError("gone", request=request)
        return httpx.Response(200, json={"id": 1, "fresh": False})

    transport = httpx.MockTransport(lose_the_first)
    with client_of(face, "http://server", transport=transport) as client:
        with pytest.raises(errors.OutcomeUnknown):
            client.workflows.start("etl", key="k", window_s=1)
        sent.clear()
        assert client.workflows.start("etl", key="k", window_s=60).id == 1
    assert sent == ["/v0/workflows/etl"] * 2


def test_a_key_for_the_workflow_alone_can_wait_for_its_runs(
    face: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is a job of the queue `workflows`, which such a key may not see."""
    monkeypatch.setenv(PLACE, str(tmp_path))
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[[key]]\nname = "etl"\nsecret = "etl-secret"\nscopes = ["read", "write"]\n'
        'prefixes = ["etl"]\n'
    )
    app = "tests.support.workflows_served:app"
    with server_process(tmp_path / "data", app, "--keys", str(keys)) as process:
        url = f"http://127.0.0.1:{process.port}"
        with client_of(face, url, key="etl-secret") as client:
            made = client.workflows.start("etl", {"day": "mon"})
            assert client.workflows.wait(made.id, WAIT_S)["rows"] == 3
            with pytest.raises(errors.NotFound):
                client.jobs.get(made.id)

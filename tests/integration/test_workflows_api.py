"""Workflows over HTTP and from the command line, on a real server that runs them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from click.testing import CliRunner

from fairway.cli.main import main
from fairway.client import Client
from fairway.errors import JobFailed
from tests.support.workflows_served import workflows_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workflows")


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    with workflows_process(place) as url:
        yield url


def runs(url: str) -> Any:
    return httpx.get(f"{url}/v0/workflows/etl/runs").json()["runs"]


def cli(url: str, *args: str) -> str:
    done = CliRunner().invoke(main, ["workflow", "--url", url, *args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_is_started_and_shown_as_a_tree(url: str) -> None:
    listed, _ = httpx.get(f"{url}/v0/workflows").json()["workflows"]
    assert listed["tasks"] == ["extract", "load", "page"]
    started = httpx.post(f"{url}/v0/workflows/etl", json={"context": {"day": "mon"}})
    assert started.status_code == 201
    id = started.json()["id"]
    job = httpx.get(f"{url}/v0/jobs/{id}", params={"wait_ms": 10_000}).json()
    assert job["result"].pop("scheduled_at_ms") > 0
    assert job["result"] == {"day": "mon", "rows": 3}
    run = httpx.get(f"{url}/v0/runs/{id}").json()
    assert run["status"] == "done"
    assert (run["context"]["day"], run["context"]["rows"]) == ("mon", 3)
    assert [(task["name"], task["state"]) for task in run["tasks"]] == [
        ("extract", "done"),
        ("load", "done"),
        ("page", "skipped"),
    ]
    extract, load, page = run["tasks"]
    assert run["started_at"] <= extract["started_at"] <= extract["finished_at"]
    assert extract["finished_at"] <= load["started_at"] <= load["finished_at"]
    assert page["started_at"] is None
    assert page["finished_at"] <= run["finished_at"]
    shown = cli(url, "show", str(id))
    assert "✓ extract done" in shown
    assert "○ page skipped" in shown
    assert runs(url)[0]["id"] == id


def test_the_command_line_starts_waits_lists_and_steers(url: str) -> None:
    said = json.loads(cli(url, "run", "etl", '{"day": "wednesday"}', "--wait", "10s", "--json"))
    assert said.pop("scheduled_at_ms") > 0
    assert said == {"day": "wednesday", "rows": 9, "paged": True}
    assert "done" in cli(url, "ls", "etl")
    assert "extract" in cli(url, "show", "etl")
    assert "cron 0 3 * * *, UTC" in cli(url, "schedules")
    assert "paused" in cli(url, "schedules", "--pause", "etl")
    assert "paused" not in cli(url, "schedules", "--resume", "etl")
    with Client(url) as client:
        client.jobs.pause("default")  # so that the run goes on until it is cancelled
        try:
            made = json.loads(cli(url, "run", "etl", '{"day": "x"}', "--json"))
            assert "starts no more tasks" in cli(url, "pause", str(made["id"]))
            assert "goes on" in cli(url, "resume", str(made["id"]))
            assert "is cancelled" in cli(url, "cancel", str(made["id"]))
        finally:
            client.jobs.resume("default")


def test_a_run_by_hand_has_the_context_of_the_schedule(url: str) -> None:
    said = json.loads(cli(url, "run", "etl", "--wait", "30s", "--json"))
    assert said.pop("scheduled_at_ms") > 0
    assert said == {"day": "sunday", "rows": 6, "paged": True}


def test_a_context_that_does_not_fit_is_refused_at_the_start(url: str) -> None:
    before = runs(url)
    refused = httpx.post(f"{url}/v0/workflows/etl", json={"context": {"day": 7}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    said = refused.json()["error"]["message"]
    assert "workflow 'etl': task 'etl.extract': its context does not fit" in said
    done = CliRunner().invoke(main, ["workflow", "--url", url, "run", "etl", '{"day": 7}'])
    assert (done.exit_code, "its context does not fit" in done.stderr) == (1, True)
    assert runs(url) == before


NO_NUMBERS = {
    "too large": "1e999",
    "too small": "-1e999",
    "long": "9" * 5_000,
    "deep inside": '[{"a": 1e999}]',
    "half a character": '"\\ud800"',
    "nested": "[" * 5_000 + "]" * 5_000,
}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
@pytest.mark.parametrize("field", ["day", "unused"])
def test_a_context_that_nothing_can_read_is_refused(url: str, field: str, value: str) -> None:
    before = runs(url)
    refused = httpx.post(
        f"{url}/v0/workflows/etl",
        content=f'{{"context": {{"day": "x", "{field}": {value}}}}}',
        headers={"content-type": "application/json"},
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    words = ["workflow", "--url", url, "run", "etl", f'{{"{field}": {value}}}']
    done = CliRunner().invoke(main, words)
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert "Error: " in done.stderr
    assert runs(url) == before


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_a_run_that_has_ended_is_not_steered_any_more(url: str, action: str) -> None:
    with Client(url) as client:
        id = client.workflows.start("etl", {"day": action}).id
        client.jobs.wait(id, 30)
    reply = httpx.post(f"{url}/v0/runs/{id}", json={"action": action})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "job_ended")
    assert reply.json()["error"]["detail"] == {"status": "done"}
    done = CliRunner().invoke(main, ["workflow", "--url", url, action, str(id)])
    assert done.exit_code == 1
    assert f"run {id} had ended already: done" in done.stderr
    assert "cancelled" not in done.output
    unknown = CliRunner().invoke(main, ["workflow", "--url", url, action, "987654"])
    assert unknown.exit_code == 1
    assert "there is no job '987654'" in unknown.stderr


def test_a_failed_run_is_retried_over_http_by_a_client_and_from_the_command_line(
    url: str, place: Path
) -> None:
    with Client(url) as client:
        id = client.workflows.start("fragile").id
        with pytest.raises(JobFailed, match="nobody is at home"):
            client.jobs.wait(id, 30)
        client.workflows.retry(id)
        with pytest.raises(JobFailed, match="nobody is at home"):
            client.jobs.wait(id, 30)
        assert "is tried again" in cli(url, "retry", str(id))
        with pytest.raises(JobFailed, match="nobody is at home"):
            client.jobs.wait(id, 30)
        shown = cli(url, "show", str(id))
        assert f"run {id} of fragile: failed, retried 2x" in shown
        assert "✗ deliver failed: OSError: nobody is at home" in shown
        (place / "mended").touch()
        reply = httpx.post(f"{url}/v0/runs/{id}", json={"action": "retry"})
        assert (reply.status_code, reply.json()) == (200, {"id": id, "action": "retry"})
        assert client.jobs.wait(id, 30) == {"prepared": True, "reported": True}
        run = client.workflows.run(id)
        assert (run.retries, [task.state for task in run.tasks]) == (3, ["done"] * 3)
        deliveries = sorted(job.id for job in client.jobs.list(kind="fragile.deliver"))
        assert (len(deliveries), run.tasks[1].job) == (4, deliveries[-1])
    assert (place / "prepared").read_text() == "x", "what succeeded was not repeated"
    again = httpx.post(f"{url}/v0/runs/{id}", json={"action": "retry"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "job_not_retryable")
    assert again.json()["error"]["detail"] == {"status": "done"}


def test_a_run_is_retried_before_its_tasks_however_they_are_listed(url: str, place: Path) -> None:
    """`jobs ls` tells of the task first: retried first, it would keep its run from it."""
    (place / "mended").unlink(missing_ok=True)
    with Client(url) as client:
        id = client.workflows.start("fragile").id
        with pytest.raises(JobFailed, match="nobody is at home"):
            client.jobs.wait(id, 30)
        (task,) = client.jobs.list(parent=id, status="failed")
        client.jobs.pause("default")  # so that the run goes on until we have asked for both
        failed = ["jobs", "--url", url, "retry", str(task.id), str(id)]
        done = CliRunner().invoke(main, failed, catch_exceptions=False)
        client.jobs.resume("default")
        assert (done.exit_code, done.stdout) == (1, f"job {id} is tried again\n")
        assert f"job {task.id} is failed and stays so" in done.stderr
        with pytest.raises(JobFailed, match="nobody is at home"):
            client.jobs.wait(id, 30)
        assert len(list(client.jobs.list(parent=id, kind="fragile.deliver"))) == 2


def test_a_run_tells_why_it_was_cancelled(url: str) -> None:
    body = {"context": {"day": "x"}, "delay_ms": 60_000}
    id = httpx.post(f"{url}/v0/workflows/etl", json=body).json()["id"]
    cli(url, "cancel", str(id), "--reason", "the wrong day")
    assert httpx.get(f"{url}/v0/runs/{id}").json()["error"] == "the wrong day"
    cli(url, "cancel", str(id), "--reason", "once more")  # it is as was asked for
    assert httpx.get(f"{url}/v0/runs/{id}").json()["error"] == "the wrong day"
    odd = {"action": "cancel", "reason": "nul \0"}
    assert httpx.post(f"{url}/v0/runs/{id}", json=odd).status_code == 200


def test_a_key_starts_one_run(url: str) -> None:
    body = {"context": {"day": "x"}, "key": "once", "window_ms": 60_000}
    first = httpx.post(f"{url}/v0/workflows/etl", json=body)
    again = httpx.post(f"{url}/v0/workflows/etl", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"id": first.json()["id"], "fresh": False}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v0/workflows/none", {}, 404, "workflow_not_found"),
        ("GET", "/v0/workflows/none/runs", None, 404, "workflow_not_found"),
        ("GET", "/v0/runs/99", None, 404, "job_not_found"),
        ("GET", "/v0/runs/x", None, 400, "invalid_request"),
        ("POST", "/v0/workflows/etl", {"context": 1}, 400, "invalid_request"),
        ("POST", "/v0/workflows/etl", {"contexts": {}}, 400, "invalid_request"),
        ("GET", "/v0/workflows/etl/runs?status=odd", None, 400, "invalid_request"),
        ("PUT", "/v0/schedules/none", {"paused": True}, 404, "schedule_not_found"),
        ("PUT", "/v0/schedules/etl", {"paused": 1}, 400, "invalid_request"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(
    url: str, method: str, path: str, body: Any, status: int, code: str
) -> None:
    before = len(runs(url))
    reply = httpx.request(method, url + path, json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
    assert len(runs(url)) == before


def test_a_job_that_is_no_run_is_told(url: str) -> None:
    made = httpx.post(f"{url}/v0/jobs", json={"jobs": [{"kind": "elsewhere"}]}).json()
    id = made["jobs"][0]["id"]
    reply = httpx.get(f"{url}/v0/runs/{id}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "not_a_run")

"""What a worker process shows of itself: metrics as the server renders them, health, readiness."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from click.testing import CliRunner

from fairway import Fairway
from fairway.cli.main import main
from fairway.errors import InvalidConfig
from fairway.jobs.feeder import FeederConfig
from fairway.jobs.store import NO_OFFER
from fairway.jobs.stores.memory import MemoryStore
from fairway.jobs.worker import WorkerConfig
from fairway.runtime.telemetry import Telemetry
from fairway.server.http.metrics import CONTENT_TYPE, render
from fairway.server.worker_endpoint import WorkerEndpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fairway.jobs.job import LeaseRenewal
    from fairway.jobs.presence import Offer

ROOT = Path(__file__).parents[2]
MS_NS = 1_000_000
APP = """
from fairway import Fairway

app = Fairway("data")

@app.job(queue="mail")
async def send(id: int) -> int:
    return id
"""


@contextmanager
def worker_process(place: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real `fairway worker`, and where it shows its metrics."""
    (place / "shown.py").write_text(APP)
    process = subprocess.Popen(
        [sys.executable, "-m", "fairway", "worker", "shown:app", *options],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", greeting)
        yield process, found[0] if found is not None else greeting
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_a_worker_shows_its_metrics_and_how_it_is(tmp_path: Path) -> None:
    with worker_process(tmp_path, "--metrics", "0") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        health = httpx.get(f"{url}/healthz")
        assert (health.status_code, health.json()) == (200, {"status": "ok"})
        ready = httpx.get(f"{url}/readyz")
        while ready.status_code == 503:  # it registers after it has said hello
            assert ready.json()["reason"] == "not registered with the job store"
            ready = httpx.get(f"{url}/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {
                "ready": True,
                "reason": None,
                "worker": 1,
                "queues": ["mail"],
                "running": 0,
                "buffered": 0,
            },
        )
        shown = httpx.get(f"{url}/metrics")
        assert shown.headers["content-type"] == CONTENT_TYPE.decode()
        assert "# TYPE fairway_jobs_settled_total counter" not in shown.text
        assert 'fairway_jobs_running{queue="mail"} 0\n' in shown.text
        assert "# TYPE fairway_jobs_exchange_ns histogram\n" in shown.text
        assert httpx.post(f"{url}/metrics").status_code == 405
        assert httpx.get(f"{url}/v0/topics").status_code == 404
        rebound = httpx.get(f"{url}/metrics", headers={"host": "evil.example"})
        assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "forbidden")
        page = httpx.get(f"{url}/metrics", headers={"origin": "https://evil.example"})
        assert page.status_code == 403
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_without_the_option_a_worker_listens_nowhere(tmp_path: Path) -> None:
    with worker_process(tmp_path) as (process, greeting):
        assert greeting == "Fairway works on mail    Ctrl-C stops.\n"
        listening = Path(f"/proc/{process.pid}/net/tcp")
        if listening.exists():
            own = {os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir()}
            lines = [line.split() for line in listening.read_text().splitlines()[1:]]
            assert not [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("0.0.0.0:0", "refusing to show metrics on 0.0.0.0"),
        ("10.0.0.1:9100", "refusing to show metrics on 10.0.0.1"),
        ("nine", "an address is [HOST:]PORT"),
        ("127.0.0.1:99999", "an address is [HOST:]PORT"),
        ("127.0.0.1:", "an address is [HOST:]PORT"),
    ],
)
def test_an_address_that_will_not_do_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("refused.py").write_text(APP)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(main, ["worker", "refused:app", "--metrics", address])
    assert done.exit_code == 1
    assert said in done.stderr
    assert not Path("data").exists(), "nothing was opened"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--queue", "mail=²"], "--queue mail=²: the concurrency is a number"),
        (["--queue", "=5"], "a queue has a name"),
        (["--processes", "0"], "processes is at least 1, not 0"),
        (["--heartbeat-interval", "0s"], "heartbeat_interval_ns is at least 1, not 0"),
    ],
)
def test_an_option_that_will_not_do_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("refused.py").write_text(APP)
    monkeypatch.setattr(sys, "path", [*sys.path])
    done = CliRunner().invoke(main, ["worker", "refused:app", *options])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert said in done.stderr


def test_a_port_that_is_taken_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.py").write_text(APP)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = CliRunner().invoke(main, ["worker", "taken:app", "--metrics", str(port)])
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_beyond_loopback_only_who_says_so() -> None:
    with pytest.raises(InvalidConfig, match="--allow-insecure"):
        WorkerEndpoint(Telemetry(), "0.0.0.0", 0)
    assert WorkerEndpoint(Telemetry(), "0.0.0.0", 0, allow_insecure=True).url == "http://0.0.0.0:0"


class Mute(MemoryStore):
    """A store whose heartbeats can be made to fail, and that may refuse workers."""

    answers = True
    admits: asyncio.Event | None = None

    async def register(self, name: str, ttl_ns: int, offer: Offer = NO_OFFER) -> int:
        if self.admits is not None:
            await self.admits.wait()
        return await super().register(name, ttl_ns, offer)

    def renew(
        self, worker: int, held: Mapping[int, int], ttl_ns: int, grace_ns: int
    ) -> LeaseRenewal:
        if not self.answers:
            raise InvalidConfig("it does not answer")
        return super().renew(worker, held, ttl_ns, grace_ns)


def test_ready_is_registered_and_heartbeating() -> None:
    async def play() -> None:
        app = Fairway(jobs="memory:")
        gate = asyncio.Event()

        @app.job
        async def work() -> None:
            await gate.wait()

        store = Mute()
        store.admits = asyncio.Event()
        config = WorkerConfig(
            queues={"default": FeederConfig()},
            lease_ttl_ns=60_000 * MS_NS,
            heartbeat_interval_ns=20 * MS_NS,
        )
        endpoint = WorkerEndpoint(app.telemetry, "127.0.0.1", 0)
        async with asyncio.timeout(60), endpoint, httpx.AsyncClient() as client:

            async def ready() -> tuple[int, Any]:
                reply = await client.get(f"{endpoint.url}/readyz")
                return reply.status_code, reply.json()

            async def until(reason: str | None) -> dict[str, Any]:
                while True:
                    status, said = await ready()
                    assert (status, said["reason"] is None) in ((200, True), (503, False))
                    if said["reason"] == reason or (reason and reason in (said["reason"] or "")):
                        found: dict[str, Any] = said
                        return found

            await until("starting")
            async with app.working(config, store=store) as part:
                assert part.worker is not None
                endpoint.readiness = part.worker.readiness
                await until("not registered with the job store")
                store.admits.set()
                await until(None)
                job = await work.enqueue()
                while (await until(None))["running"] == 0:
                    pass
                shown = (await client.get(f"{endpoint.url}/metrics")).text
                assert 'fairway_jobs_running{queue="default"} 1\n' in shown
                assert shown.startswith("# HELP fairway_jobs_acked")
                store.answers = False
                await until("no heartbeat for")
                store.answers = True
                await until(None)
                gate.set()
                await job.result()
                assert render(app.telemetry.snapshot()).startswith(b"# HELP fairway_jobs_acked")
            assert (await ready())[1]["reason"] == "stopping"

    asyncio.run(play())

"""No secret of any setting leaves the process: not in what it prints, and not in what it answers.

Each command is started with secrets wherever it takes one, once so that it runs and once for each
way in which it cannot.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest
from click.testing import CliRunner

from fairway import Fairway
from fairway.cli import main
from fairway.errors import FairwayError, InvalidConfig
from fairway.server.fronts import FRONTS
from tests.support.postgres import postgres_url
from tests.support.server import WAIT_S, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

SRC = str(Path(__file__).parents[2] / "src")
SECRET = "s3cr3t"
APP = """
import os
from fairway import Fairway

app = Fairway(os.environ["PLACE"])

@app.job
def greet(name: str) -> None: ...
"""


class Command:
    """A `fairway` command as a process, and all that it prints."""

    def __init__(self, folder: Path, *words: str, env: Mapping[str, str] | None = None) -> None:
        (folder / "shop.py").write_text(APP)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `ended`)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "fairway", *words],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": SRC, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def said(self, until: str) -> str:
        assert self.child.stdout is not None
        text = ""
        while until not in text:
            line = self.child.stdout.readline()
            assert line, f"it ended with {self.child.wait(WAIT_S)}: {self.errors}"
            text += line
        return text

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def ended(self) -> tuple[int, str]:
        """The exit code of a command that ends by itself, and all that it printed."""
        try:
            rest, _ = self.child.communicate(timeout=WAIT_S)
            return self.child.returncode, rest + self.errors
        finally:
            self.child.kill()
            self.child.wait()
            self._errors.close()


def test_a_server_with_secrets_in_every_setting_shows_none(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[key]]\nname = "ops"\nsecret = "{SECRET}-file"\nscopes = ["admin"]\n')
    place = postgres_url().replace("fairway@", f"fairway:{SECRET}-url@")
    env = {
        "PLACE": f"{place}&password={SECRET}-query",
        "PGPASSWORD": f"{SECRET}-pg",
        "FAIRWAY_KEYS_FILE": str(keys),
        "FAIRWAY_API_KEYS": f"{SECRET}-env:read",
        "FAIRWAY_PORT": str(port := free_port()),
    }
    server = Command(tmp_path, "serve", "shop:app", env=env)
    try:
        shown = server.said(until="Ctrl-C stops")
        assert "postgresql://fairway:***@" in shown
        headers = {"authorization": f"Bearer {SECRET}-file"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as http:
            for route in FRONTS.routes.all:
                if route.method == "GET" and not route.stream and not route.socket:
                    path = route.path.replace("{id}", "1")
                    shown += http.get(path).text
            assert "fairway_" in http.get("/metrics").text
            wrong = {"authorization": f"Bearer {SECRET}-wrong"}
            shown += http.get("/v0/topics", headers=wrong).text
    finally:
        server.child.send_signal(signal.SIGTERM)
        code, rest = server.ended()
    assert code == 0, rest
    assert SECRET not in shown + rest


def test_a_worker_with_secrets_in_every_setting_shows_none(tmp_path: Path) -> None:
    """Also when its sessions are ended, and it may have something to tell of its database."""
    place = postgres_url().replace("fairway@", f"fairway:{SECRET}-url@")
    env = {
        "PLACE": f"{place}&password={SECRET}-query",
        "PGPASSWORD": f"{SECRET}-pg",
        "FAIRWAY_SERVER": "http://127.0.0.1:1",
        "FAIRWAY_API_KEY": f"{SECRET}-key",
    }
    words = ("worker", "shop:app", "--metrics", "0", "--heartbeat-interval", "100ms")
    worker = Command(tmp_path, *words, env=env)
    try:
        shown = worker.said(until="Ctrl-C stops")
        found = re.search(r"http://127\.0\.0\.1:\d+", shown)
        assert found is not None, shown
        with httpx.Client(base_url=found[0]) as http:
            while (ready := http.get("/readyz")).status_code != 200:
                shown += ready.text
            with psycopg.connect(postgres_url(), autocommit=True) as hand:
                hand.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name like 'fairway%%' and pid <> pg_backend_pid()"
                )
            for _ in range(20):
                shown += http.get("/readyz").text
            for path in ("/healthz", "/readyz", "/metrics", "/nowhere"):
                shown += http.get(path).text
            assert "fairway_jobs" in http.get("/metrics").text
    finally:
        worker.child.send_signal(signal.SIGTERM)
        code, rest = worker.ended()
    assert code == 0, rest
    assert SECRET not in shown + rest


UNREADABLE = [
    f"postgresql://u:{SECRET}/x@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}@127.0.0.1:port/db",
    f"postgresql://u:{SECRET}%zz@127.0.0.1/db",
    f"postgresql://u:{SECRET} x@[::1/db",
    f"postgresql://u:1/{SECRET}@127.0.0.1/db",
    f"postgresql://u:x@{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:1?{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:x#{SECRET}@127.0.0.1:1/db",
    f"postgresql://u:{SECRET}/db",
    f"host=127.0.0.1 port=1 user=u password={SECRET}",
    f"user=u password=x:{SECRET}",
    f"mysql://u:{SECRET}@127.0.0.1/db",
    f"rocksdb:/dev/null/password={SECRET}",
]
UNREACHABLE = [
    f"postgresql://u:{SECRET}@127.0.0.1:1/db",
    f"postgresql://u@127.0.0.1:1/db?password={SECRET}",
    f"postgresql://u:{SECRET}%23x@127.0.0.1:1/db",
]


@pytest.mark.parametrize("place", [*UNREADABLE, *UNREACHABLE])
def test_an_app_that_cannot_start_tells_no_secret(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def start(app: Fairway) -> None:
        async with app:
            pass

    for app in (Fairway(place), Fairway("memory:", jobs=place)):
        with pytest.raises(FairwayError) as refused:
            asyncio.run(start(app))
        assert SECRET not in str(refused.value)
        if place in UNREADABLE:
            assert isinstance(refused.value, InvalidConfig)
    assert not any(tmp_path.iterdir())


def test_a_command_that_cannot_start_shows_no_secret(tmp_path: Path) -> None:
    env = {"PLACE": UNREADABLE[0], "FAIRWAY_API_KEYS": SECRET, "PGPASSWORD": SECRET}
    conninfo = f"host=127.0.0.1 port=1 user=u password={SECRET}"
    for command in [
        Command(tmp_path, "serve", "--port", "0", "--data", conninfo),
        Command(tmp_path, "serve", "--port", "0", "--data", UNREADABLE[1], env=env),
        Command(tmp_path, "worker", "shop:app", env=env),
        Command(tmp_path, "serve", "--port", "0", env={"FAIRWAY_DATA": UNREACHABLE[0]}),
    ]:
        code, shown = command.ended()
        assert code != 0, shown
        assert "Traceback" not in shown
        assert SECRET not in shown
        assert shown.startswith("Error: "), shown


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "--url", f"http://u:{SECRET}@127.0.0.1:1", "ls"],
        ["topic", "--url", "http://127.0.0.1:1", "--key", SECRET, "ls"],
        ["topic", "--key", f"{SECRET} with a space", "ls"],
        ["serve", "--port", "0", "--keys", "keys.toml"],
        ["serve", "--port", "0", "--tls-cert", "keys.toml", "--tls-key", "keys.toml"],
    ],
)
def test_what_is_refused_is_not_repeated_with_its_secret(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # set back when this is over
    (tmp_path / "keys.toml").write_text(f'[[key]]\nname = "x"\nsecret = "{SECRET}"\nscopes = []\n')
    refused = CliRunner().invoke(main, words, env={"FAIRWAY_API_KEYS": f"{SECRET}:nonsense"})
    assert refused.exit_code != 0, refused.output
    assert isinstance(refused.exception, SystemExit)
    assert SECRET not in refused.output


def test_what_ends_a_command_uncaught_is_printed_without_secrets(tmp_path: Path) -> None:
    place = f"postgresql://u:{SECRET}@host/db"
    (tmp_path / "broken.py").write_text("import os\nraise RuntimeError(os.environ['PLACE'])\n")
    code, shown = Command(tmp_path, "serve", "broken:app", env={"PLACE": place}).ended()
    assert code == 1
    assert "RuntimeError: postgresql://u:***@host/db" in shown
    assert SECRET not in shown
